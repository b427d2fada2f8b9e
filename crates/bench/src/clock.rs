//! The clock that all processes of one machine share.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since some moment before the start of every process.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
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
