//! Detection of processors to spare for threads that look for work.

use std::cell::Cell;
use std::sync::OnceLock;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

/// Processors, for each of which one thread of a kind may look for work.
const PROCESSORS_PER_LOOKER: usize = 4;
/// Time for which an answer about idle processors is reused.
const SPARE: Duration = Duration::from_millis(4);
/// Bytes of a file of the kernel's that are read.
const TEXT_MAX: usize = 1024;

/// Returns how many threads of a kind look for work at the same time at most: the other processors that this process
/// may use are for those who ask.
#[must_use]
pub fn looking_max() -> usize {
    match available_parallelism().map_or(1, usize::from) {
        1 => 0,
        several => (several / PROCESSORS_PER_LOOKER).max(1),
    }
}

/// Returns whether no more threads of this machine want to run than it has processors, the calling one included. A
/// system that does not say so is taken to have processors to spare.
pub(crate) fn are_spare() -> bool {
    thread_local! {
        static KNOWN: Cell<Option<(Instant, bool)>> = const { Cell::new(None) };
    }
    let now = Instant::now();
    if let Some((since, spare)) = KNOWN.get()
        && now - since < SPARE
    {
        return spare;
    }
    let spare = runnable().is_none_or(|runnable| online().is_none_or(|processors| runnable <= processors));
    KNOWN.set(Some((now, spare)));
    spare
}

/// Returns the number of threads of this machine that want to run.
fn runnable() -> Option<usize> {
    // 0.20 0.18 0.12 1/80 11206: three averages, those that want to run of all, the last process.
    text("/proc/loadavg")?.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

/// Processors of this machine, also those that this process may not use.
fn online() -> Option<usize> {
    static ONLINE: OnceLock<Option<usize>> = OnceLock::new();
    *ONLINE.get_or_init(|| text("/sys/devices/system/cpu/online").and_then(|list| count(list.trim_end())))
}

/// Returns the number of numbers that a list like `0-3,8` has.
fn count(list: &str) -> Option<usize> {
    let of_range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.split(',').try_fold(0usize, |sum, range| sum.checked_add(of_range(range)?))
}

fn text(path: &str) -> Option<String> {
    let mut bytes = [0; TEXT_MAX];
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let len = rustix::io::read(&file, &mut bytes).ok()?;
    str::from_utf8(bytes.get(..len)?).ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_least_wants_to_run() {
        assert!(runnable().is_none_or(|runnable| runnable > 0));
        assert!(online().is_none_or(|processors| processors > looking_max()));
    }

    #[test]
    fn lists_of_processors_are_counted() {
        assert_eq!(["0", "0-3", "0-3,8,10-11"].map(count), [Some(1), Some(4), Some(7)]);
        assert_eq!(["", "x", "3-1", "0-18446744073709551615"].map(count), [None; 4]);
    }
}
