//! Limit of the byte rate: a token bucket shared by all workers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Capacity of the bucket, in milliseconds of its rate: bounds the burst after a pause.
const BURST_MS: u64 = 100;
/// Interval at which a waiting worker checks for cancellation, in milliseconds.
const LOOK_MS: u64 = 50;

/// Rate limit of all workers of a copy together.
#[derive(Debug)]
pub struct Limiter {
    /// Bytes per second; 0 pauses.
    rate: AtomicU64,
    /// Time at which the bucket is full again.
    full_at: Mutex<Option<Instant>>,
    /// Reason why the copies must stop.
    ended: OnceLock<String>,
}

impl Limiter {
    /// Creates a limit of `rate` bytes per second, at least 1.
    #[must_use]
    pub fn new(rate: u64) -> Limiter {
        Limiter { rate: AtomicU64::new(rate.max(1)), full_at: Mutex::new(None), ended: OnceLock::new() }
    }

    /// Changes the rate, also for waiting workers; 0 pauses until the next change.
    pub fn set(&self, rate: u64) {
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        // Withdrawals at the old rate may be due far in the future: the bucket starts full at the new one.
        if self.rate.swap(rate, Ordering::Relaxed) != rate {
            *full_at = None;
        }
    }

    /// Stops the limited copies as if they were cancelled.
    pub fn end(&self, why: String) {
        let _or_for_an_earlier_reason = self.ended.set(why);
    }

    /// Returns the reason of the stop.
    #[must_use]
    pub fn ended(&self) -> Option<&str> {
        self.ended.get().map(String::as_str)
    }

    /// Takes bytes from the bucket; blocks until they are due, `cancel` is set, or the limit is ended.
    pub(crate) fn take(&self, bytes: u64, cancel: &AtomicBool) {
        while !self.stops(cancel) && !self.taken(bytes, cancel) {}
    }

    fn stops(&self, cancel: &AtomicBool) -> bool {
        cancel.load(Ordering::Relaxed) || self.ended().is_some()
    }

    /// Takes bytes at the present rate; returns false if the rate changed during the wait.
    fn taken(&self, bytes: u64, cancel: &AtomicBool) -> bool {
        let rate = self.rate.load(Ordering::Relaxed);
        if rate == 0 {
            std::thread::park_timeout(Duration::from_millis(LOOK_MS));
            return false;
        }
        // The lock is held for the arithmetic only; each worker waits for its own withdrawal.
        let due = {
            let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
            let (next, due) = after(Instant::now(), *full_at, self.time_of(bytes));
            // Taken now and waited for afterwards: workers that come meanwhile queue behind it.
            *full_at = Some(next);
            due
        };
        while let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            if self.stops(cancel) {
                return true;
            }
            if self.rate.load(Ordering::Relaxed) != rate {
                return false;
            }
            std::thread::park_timeout(left.min(Duration::from_millis(LOOK_MS)));
        }
        true
    }

    fn time_of(&self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate.load(Ordering::Relaxed).max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Returns when the bucket is full again after a withdrawal, and when the withdrawn bytes may be used.
fn after(now: Instant, full_at: Option<Instant>, takes: Duration) -> (Instant, Instant) {
    let next = full_at.map_or(now, |full| full.max(now)).checked_add(takes).unwrap_or(now);
    let due = next.checked_sub(Duration::from_millis(BURST_MS)).unwrap_or(now);
    (next, due.max(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_due_at_the_rate_after_a_short_burst() {
        let now = Instant::now();
        let ms = Duration::from_millis;
        let (full, due) = after(now, None, ms(60));
        assert_eq!((full, due), (now + ms(60), now));
        let (full, due) = after(now, Some(full), ms(1000));
        assert_eq!((full, due), (now + ms(1060), now + ms(960)));
        let later = now + ms(5000);
        assert_eq!(after(later, Some(full), ms(10)), (later + ms(10), later), "a pause saves nothing up");
    }

    #[test]
    fn times_follow_from_the_rate() {
        assert_eq!(Limiter::new(1000).time_of(500), Duration::from_millis(500));
        assert_eq!(Limiter::new(0).time_of(1), Duration::from_secs(1));
        let _no_overflow = Limiter::new(1).time_of(u64::MAX);
    }

    #[test]
    fn who_is_cancelled_does_not_wait() {
        let limiter = Limiter::new(1);
        let cancel = AtomicBool::new(true);
        limiter.take(1 << 40, &cancel);
        limiter.take(1 << 40, &cancel);
    }

    #[test]
    fn who_waits_stops_when_nothing_may_move_any_more() {
        let (limiter, cancel) = (Limiter::new(1), AtomicBool::new(false));
        limiter.set(0);
        std::thread::scope(|scope| {
            let taking = scope.spawn(|| limiter.take(1, &cancel));
            limiter.end("over".into());
            taking.join().unwrap();
        });
        limiter.end("again".into());
        assert_eq!(limiter.ended(), Some("over"));
    }

    #[test]
    fn a_pause_lasts_until_there_is_a_rate() {
        let (limiter, cancel) = (Limiter::new(1), AtomicBool::new(false));
        limiter.set(0);
        std::thread::scope(|scope| {
            let taking = scope.spawn(|| limiter.take(1 << 30, &cancel));
            assert!(!taking.is_finished());
            // It is not due for years, and then at once.
            limiter.set(1);
            assert!(!taking.is_finished());
            limiter.set(1 << 40);
            taking.join().unwrap();
        });
        assert_eq!(limiter.time_of(1 << 40), Duration::from_secs(1));
    }
}
