//! Ends of requests: none sooner than the delay, and their bytes one behind the other at the rate.

use std::time::{Duration, Instant};

/// Nanoseconds of a second.
const NANOS: u64 = 1_000_000_000;

/// Cost of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Nothing: the storage is not asked.
    Free,
    /// The delay, and these bytes at the rate.
    Bytes(u64),
}

/// A link to storage that all share.
#[derive(Debug)]
pub struct Throttle {
    delay: Duration,
    /// Bytes per second; 0 is no limit.
    rate: u64,
    /// Time when the next byte may move.
    free_at: Instant,
}

impl Throttle {
    /// A link that is idle.
    pub fn new(delay: Duration, rate: u64, now: Instant) -> Throttle {
        Throttle { delay, rate, free_at: now }
    }

    /// Time when a request that comes now is over. Delays of requests overlap, their bytes do not.
    pub fn over(&mut self, now: Instant, cost: Cost) -> Instant {
        match cost {
            Cost::Free => now,
            Cost::Bytes(0) => now + self.delay,
            Cost::Bytes(bytes) => {
                let moving = bytes.saturating_mul(NANOS).checked_div(self.rate).unwrap_or(0);
                self.free_at = self.free_at.max(now) + Duration::from_nanos(moving);
                self.free_at.max(now + self.delay)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn delays_overlap_and_bytes_do_not() {
        let start = Instant::now();
        let mut link = Throttle::new(5 * MS, 1_000_000, start);
        assert_eq!(link.over(start, Cost::Free), start);
        // 2,000 bytes take 2 ms: less than the delay.
        assert_eq!(link.over(start, Cost::Bytes(2_000)), start + 5 * MS);
        assert_eq!(link.over(start, Cost::Bytes(0)), start + 5 * MS);
        assert_eq!(link.over(start, Cost::Bytes(8_000)), start + 10 * MS);
        assert_eq!(link.over(start + MS, Cost::Bytes(1_000)), start + 11 * MS);
        // What asks for no bytes does not wait for those of others.
        assert_eq!(link.over(start + MS, Cost::Bytes(0)), start + 6 * MS);
        assert_eq!(link.over(start + 50 * MS, Cost::Bytes(9_000)), start + 59 * MS);
    }

    #[test]
    fn no_rate_is_no_limit() {
        let start = Instant::now();
        let mut link = Throttle::new(MS, 0, start);
        assert_eq!(link.over(start, Cost::Bytes(u64::MAX)), start + MS);
        assert_eq!(link.over(start, Cost::Bytes(1)), start + MS);
    }
}
