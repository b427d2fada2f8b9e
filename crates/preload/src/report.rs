//! Which calls took which path, for who asks with `BIVOUAC_REPORT=1`.

use std::fmt::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::{hidden, settings};

/// The calls that are told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Read,
    Pread,
    Readv,
    Preadv,
    Write,
    Pwrite,
    Writev,
    Pwritev,
    Stat,
    Access,
}

const CALLS: [(Call, &str); 10] = [
    (Call::Read, "read"),
    (Call::Pread, "pread"),
    (Call::Readv, "readv"),
    (Call::Preadv, "preadv"),
    (Call::Write, "write"),
    (Call::Pwrite, "pwrite"),
    (Call::Writev, "writev"),
    (Call::Pwritev, "pwritev"),
    (Call::Stat, "stat"),
    (Call::Access, "access"),
];

/// Reason why a call went through the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountReason {
    /// The first calls of a file do, and looks at names that the kernel knows.
    First,
    /// Another process may have the same position.
    Shared,
    /// The home or the mount has to do it: O_APPEND, O_SYNC, a limit on sizes, flags of the call.
    Flags,
    /// Pieces, which the mount takes as one request.
    Pieces,
    /// A signal handler may be under way, or there is little memory or room on the stack.
    Signal,
    /// The file is mapped, or the formation cannot be reached otherwise.
    Mapped,
    /// It was tried, and is the kernel's to answer.
    Odd,
}

const REASONS: [(MountReason, &str); 7] = [
    (MountReason::First, "first calls of a file, or what the kernel knows"),
    (MountReason::Shared, "position shared with other processes"),
    (MountReason::Flags, "O_APPEND, O_SYNC, limits or flags"),
    (MountReason::Pieces, "long lists of pieces"),
    (MountReason::Signal, "handlers of signals, small stacks"),
    (MountReason::Mapped, "mapped, or not to be reached"),
    (MountReason::Odd, "left to the kernel"),
];

struct Count {
    calls: AtomicU64,
    bytes: AtomicU64,
}

impl Count {
    const fn new() -> Count {
        Count { calls: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    fn get(&self) -> (u64, u64) {
        (self.calls.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// By call: what was done here, and what the mount did.
static COUNTS: [[Count; 2]; CALLS.len()] = [const { [const { Count::new() }; 2] }; CALLS.len()];
static BECAUSE: [AtomicU64; REASONS.len()] = [const { AtomicU64::new(0) }; REASONS.len()];
/// Standard error as it was at the start: some programs close theirs before they end.
static OUT: OnceLock<OwnedFd> = OnceLock::new();
static TOLD: AtomicBool = AtomicBool::new(false);

/// Keeps a way to tell.
pub fn begin() {
    if settings::reports()
        && let Ok(copy) = rustix::io::fcntl_dupfd_cloexec(std::io::stderr().as_fd(), 3)
    {
        // Only the first one counts.
        let _ = OUT.set(hidden::keep(copy));
    }
}

/// Returns the way to tell, which children have too.
pub fn descriptor() -> Option<i32> {
    OUT.get().map(AsRawFd::as_raw_fd)
}

/// Counts a call that was done here.
pub fn direct(call: Call, bytes: usize) {
    if settings::reports() {
        count(call, 0, bytes);
    }
}

/// Counts a call on a formation's file that goes through the mount.
pub fn mount(call: Call, bytes: usize, why: MountReason) {
    if settings::reports() {
        count(call, 1, bytes);
        if let Some(count) = BECAUSE.get(why as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn count(call: Call, way: usize, bytes: usize) {
    if let Some(count) = COUNTS.get(call as usize).and_then(|ways| ways.get(way)) {
        count.calls.fetch_add(1, Ordering::Relaxed);
        count.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Begins anew in the child after a fork: it has done nothing yet.
pub fn renew() {
    for count in COUNTS.iter().flatten() {
        count.calls.store(0, Ordering::Relaxed);
        count.bytes.store(0, Ordering::Relaxed);
    }
    BECAUSE.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    TOLD.store(false, Ordering::Relaxed);
}

/// Tells it, if there is anything to be told.
pub fn tell() {
    if !settings::reports() || TOLD.swap(true, Ordering::AcqRel) {
        return;
    }
    let (Some(text), Some(out)) = (text(), OUT.get()) else { return };
    // In one piece, so that reports of several processes do not mix. Nobody could be told that it failed.
    let _ = rustix::io::write(out, text.as_bytes());
}

fn text() -> Option<String> {
    let rows: Vec<_> = CALLS
        .iter()
        .zip(&COUNTS)
        .map(|((_, name), [direct, mount])| (*name, direct.get(), mount.get()))
        .filter(|(_, direct, mount)| direct.0 + mount.0 > 0)
        .collect();
    if rows.is_empty() {
        return None;
    }
    let mut text = format!("bivouac: calls of process {} on files of formations\n", std::process::id());
    let head = ["CALL", "DIRECT", "BYTES", "MOUNT", "BYTES"];
    let mut line = |[call, direct, bytes, mount, more]: [&str; 5]| {
        writeln!(text, "{call:<8} {direct:>10} {bytes:>15} {mount:>10} {more:>15}")
    };
    let mut written = line(head);
    for (name, direct, mount) in rows {
        let [a, b, c, d] = [direct.0, direct.1, mount.0, mount.1].map(|number| number.to_string());
        written = written.and_then(|()| line([name, &a, &b, &c, &d]));
    }
    let reasons: Vec<String> = REASONS
        .iter()
        .zip(&BECAUSE)
        .map(|((_, name), count)| (name, count.load(Ordering::Relaxed)))
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    if !reasons.is_empty() {
        written = written.and_then(|()| writeln!(text, "through the mount: {}", reasons.join(", ")));
    }
    written.ok().map(|()| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_where_their_names_are() {
        assert!(CALLS.iter().enumerate().all(|(index, (call, _))| *call as usize == index));
        assert!(REASONS.iter().enumerate().all(|(index, (why, _))| *why as usize == index));
    }

    #[test]
    fn what_was_counted_is_told() {
        renew();
        assert_eq!(text(), None);
        count(Call::Pwrite, 0, 4096);
        count(Call::Pwrite, 0, 4096);
        count(Call::Read, 1, 10);
        BECAUSE[MountReason::Shared as usize].fetch_add(1, Ordering::Relaxed);
        let text = text().unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["CALL", "DIRECT", "BYTES", "MOUNT", "BYTES"]);
        assert_eq!(lines[2], ["read", "0", "0", "1", "10"]);
        assert_eq!(lines[3], ["pwrite", "2", "8192", "0", "0"]);
        assert!(text.ends_with("through the mount: position shared with other processes 1\n"), "{text}");
    }
}
