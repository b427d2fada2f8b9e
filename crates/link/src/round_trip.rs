//! The round trip to a gateway, its rate, and what it takes to fill the way there.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Rate that is assumed until content has been moved, in bytes per second.
const RATE_AT_FIRST: u64 = 64 << 20;
/// Upper limit of content under way, in bytes: memory of one node for one link.
const UNDER_WAY_MAX: u64 = 64 << 20;
/// Pieces under way, at least and at most.
const PIECES: (usize, usize) = (4, 64);
/// Part of the difference that a slower reply moves the estimates.
const RISE: u64 = 64;
/// Microseconds per second.
const US: u64 = 1_000_000;

/// Estimates of a way: the shortest round trip, which rises slowly, as replies to work take longer than the way; and
/// the greatest rate, which falls slowly, as what is under way does not always fill the way.
#[derive(Debug, Default)]
pub struct RoundTrip {
    us: AtomicU64,
    rate: AtomicU64,
}

impl RoundTrip {
    /// Records how long a small request took.
    pub fn record(&self, took: Duration) {
        let sample = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        let next = |known: u64| match known {
            0 => sample,
            known if sample < known => sample,
            known => known + (sample - known) / RISE,
        };
        // A lost update costs one sample.
        self.us.store(next(self.us.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// Records how long a request with content took, beside which so many bytes were under way, its own among them: the
    /// rate is what is under way by the time that it takes (Little's law).
    pub fn record_content(&self, under_way: u64, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        let sample = under_way.saturating_mul(US) / us;
        let known = self.rate.load(Ordering::Relaxed);
        let next = if sample > known { sample } else { known - (known - sample) / RISE };
        self.rate.store(next, Ordering::Relaxed);
    }

    /// Returns the round trip; zero before the first sample.
    pub fn get(&self) -> Duration {
        Duration::from_micros(self.us.load(Ordering::Relaxed))
    }

    /// Returns the rate in bytes per second; 0 before any content was moved.
    pub fn rate(&self) -> u64 {
        self.rate.load(Ordering::Relaxed)
    }

    /// Returns how many pieces of a length fill the way there and back twice: a way that is filled shows its rate, and
    /// one that is not is filled more each time.
    pub fn pieces(&self, piece_len: u64) -> usize {
        let (us, piece_len) = (self.us.load(Ordering::Relaxed), piece_len.max(1));
        let rate = if self.rate() == 0 { RATE_AT_FIRST } else { self.rate() };
        let wanted = (rate.saturating_mul(2).saturating_mul(us) / US).min(UNDER_WAY_MAX);
        let most = usize::try_from(UNDER_WAY_MAX / piece_len).unwrap_or(PIECES.1).clamp(1, PIECES.1);
        usize::try_from(wanted.div_ceil(piece_len)).unwrap_or(PIECES.1).clamp(PIECES.0.min(most), most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn way(ms: u64) -> RoundTrip {
        let way = RoundTrip::default();
        way.record(Duration::from_millis(ms));
        way
    }

    #[test]
    fn what_fills_the_way_grows_with_it_and_is_bounded() {
        assert_eq!(way(0).pieces(MIB), 4);
        assert_eq!(way(1).pieces(MIB), 4);
        assert_eq!(way(100).pieces(MIB), 13);
        assert_eq!(way(100).pieces(64 << 10), 64);
        assert_eq!(way(1000).pieces(32 * MIB), 2);
        assert_eq!(way(1000).pieces(1 << 30), 1);
    }

    #[test]
    fn what_is_under_way_follows_the_rate() {
        let way = way(100);
        // 1 MiB at 12.5 MB/s, and each time as much as was thought to fill the way.
        for _ in 0..500 {
            let under_way = way.pieces(MIB) as u64 * MIB;
            way.record_content(
                under_way,
                Duration::from_millis(100).max(Duration::from_micros(under_way * 2 / 25)),
            );
        }
        assert!((12_000_000..13_000_000).contains(&way.rate()), "{}", way.rate());
        assert_eq!(way.pieces(MIB), 4);
        // A faster way is found by filling it more each time.
        for _ in 0..20 {
            let under_way = way.pieces(MIB) as u64 * MIB;
            way.record_content(
                under_way,
                Duration::from_millis(100).max(Duration::from_micros(under_way / 125)),
            );
        }
        assert!(way.rate() > 120_000_000, "{}", way.rate());
        assert!(way.pieces(MIB) >= 24, "{}", way.pieces(MIB));
    }

    #[test]
    fn work_at_the_far_side_moves_the_estimate_little() {
        let way = way(20);
        way.record(Duration::from_millis(660));
        assert_eq!(way.get(), Duration::from_millis(30));
        way.record(Duration::from_millis(19));
        assert_eq!(way.get(), Duration::from_millis(19));
    }
}
