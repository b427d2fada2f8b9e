//! Waiting for descriptors, with limits in milliseconds.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::time::Timespec;

/// Waits until there is something to read, or the other side is gone. Answers whether that came in time.
#[must_use]
pub fn wait_readable(descriptor: BorrowedFd<'_>, wait_ms: u64) -> bool {
    let timeout = timespec(wait_ms);
    let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
    retry_on_intr(|| poll(&mut polled, Some(&timeout))).is_ok_and(|count| count > 0)
}

/// Returns the milliseconds as the system takes them.
#[must_use]
pub fn timespec(ms: u64) -> Timespec {
    let secs = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    Timespec { tv_sec: secs, tv_nsec: (ms % 1000 * 1_000_000) as _ }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_converted() {
        assert_eq!(timespec(1500), Timespec { tv_sec: 1, tv_nsec: 500_000_000 });
    }
}
