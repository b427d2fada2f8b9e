//! The clock that all processes of one machine share.

use std::time::Duration;

use rustix::event::{Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since some moment before the start of every process.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

/// Lets time pass, where that is what is needed; less if a signal comes.
pub fn pass(time: Duration) {
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    let _interrupted = poll(&mut [], Some(&time));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_forward() {
        let first = now_ns();
        assert!(first > 0 && now_ns() >= first);
    }
}
