//! Descriptors of this library in the program's table: kept at high numbers, and from being closed or replaced by it.
#![allow(unsafe_code, reason = "nobody owns the descriptors of a parent")]

use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use rustix::process::{Resource, getrlimit};

/// Numbers that can be hidden are below this: the kernel's table is as long as the highest number.
const NUMBERS: u64 = 8192;
/// Distance below the program's limit at which the first are taken.
const ROOM: u64 = 1280;

static HIDDEN: [AtomicU64; NUMBERS as usize / 64] = [const { AtomicU64::new(0) }; NUMBERS as usize / 64];
static FIRST: AtomicI32 = AtomicI32::new(3);

/// Finds out where there is room.
pub fn choose() {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(NUMBERS).min(NUMBERS);
    let first = limit.saturating_sub(ROOM.min(limit / 4)).max(3);
    FIRST.store(c_int::try_from(first).unwrap_or(3), Ordering::Relaxed);
}

/// Moves a descriptor to where the program does not expect it.
pub fn keep(descriptor: OwnedFd) -> OwnedFd {
    let first = FIRST.load(Ordering::Relaxed);
    let moved = rustix::io::fcntl_dupfd_cloexec(&descriptor, first).unwrap_or(descriptor);
    if let Some((word, bit)) = place(moved.as_raw_fd()) {
        word.fetch_or(bit, Ordering::AcqRel);
    }
    moved
}

/// Returns whether it is one of this library's.
#[inline]
pub fn is(fd: c_int) -> bool {
    place(fd).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
}

/// Forgets a descriptor that this library is about to close.
pub fn forget(fd: c_int) {
    if let Some((word, bit)) = place(fd) {
        word.fetch_and(!bit, Ordering::AcqRel);
    }
}

/// Returns the hidden ones from `first` to `last`.
pub fn within(first: u32, last: u32) -> impl Iterator<Item = u32> {
    (first..=last.min(NUMBERS as u32 - 1)).filter(|fd| c_int::try_from(*fd).is_ok_and(is))
}

/// Closes all of them but one in a child; they are still in use by its parent.
pub fn close_all_but(kept: Option<c_int>) {
    for (index, word) in (0i32..).zip(&HIDDEN) {
        let mut left = word.swap(0, Ordering::Relaxed);
        while left != 0 {
            let fd = index * 64 + left.trailing_zeros().cast_signed();
            left &= left - 1;
            if kept == Some(fd) {
                word.fetch_or(1 << (fd % 64), Ordering::Relaxed);
            } else {
                // The kernel copies descriptors before memory: one that another thread has made in between is not here.
                // SAFETY: the values that own them were the parent's, and are not used here.
                let _ = unsafe { rustix::io::try_close(fd) };
            }
        }
    }
}

fn place(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((HIDDEN.get(fd / 64)?, 1 << (fd % 64)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn descriptors_are_moved_and_known() {
        choose();
        let (mut readable, writable) = std::io::pipe().unwrap();
        let kept = keep(writable.into());
        let fd = kept.as_raw_fd();
        assert!(fd >= FIRST.load(Ordering::Relaxed) && is(fd) && !is(fd + 1) && !is(-1) && !is(c_int::MAX));
        assert_eq!(within(0, u32::MAX).collect::<Vec<_>>(), [fd.cast_unsigned()]);
        std::fs::File::from(kept).write_all(b"x").unwrap();
        assert_eq!(std::io::read_to_string(&mut readable).unwrap(), "x");
        forget(fd);
        assert!(!is(fd));
    }
}
