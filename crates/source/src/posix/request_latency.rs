//! Concurrent requests to storage with a high latency. Remote storage takes as long for each request, however small it
//! is; for storage that answers at once a thread would cost more than it saves.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::Cause;
use crate::{SourceError, SourceResult};

/// Latency from which on independent requests are sent in parallel.
const HIGH: Duration = Duration::from_micros(500);

/// Latency of the most recent request.
#[derive(Debug, Default)]
pub struct RequestLatency {
    last_ns: AtomicU64,
    is_always_high: bool,
}

impl RequestLatency {
    /// Creates a tracker that always reports a high latency.
    pub fn always_high() -> RequestLatency {
        RequestLatency { is_always_high: true, ..RequestLatency::default() }
    }

    /// Runs a request and records its duration.
    pub fn measured<T>(&self, ask: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let answer = ask();
        self.record(begun.elapsed());
        answer
    }

    /// Records the duration of a request.
    pub fn record(&self, time: Duration) {
        self.last_ns.store(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn is_high(&self) -> bool {
        self.is_always_high || self.last_ns.load(Ordering::Relaxed) >= HIGH.as_nanos() as u64
    }

    /// Runs both requests: in parallel if the latency is high, and then `undo` reverts the second if the first has
    /// failed; otherwise one after the other, and the second only if the first has succeeded.
    pub fn run_both<A: Send, B>(
        &self,
        first: impl FnOnce() -> SourceResult<A> + Send,
        then: impl FnOnce() -> SourceResult<B>,
        undo: impl FnOnce(B) -> SourceResult<()>,
    ) -> SourceResult<(A, B)> {
        if !self.is_high() {
            return Ok((first()?, then()?));
        }
        let (first, done) = std::thread::scope(|scope| {
            let failed = |text: String| Err(SourceError::new(Cause::Other, text));
            let thread = std::thread::Builder::new().name("source".to_owned()).spawn_scoped(scope, first);
            // The second request runs on the calling thread, which saves one thread.
            let done = then();
            let first = match thread {
                Ok(thread) => thread
                    .join()
                    .unwrap_or_else(|_| failed("a thread that asked a source ended early".to_owned())),
                Err(error) => failed(format!("no thread to ask a source: {error}")),
            };
            (first, done)
        });
        match (first, done) {
            (Ok(first), done) => Ok((first, done?)),
            // The parallel request has succeeded although the sequential order would never have sent it.
            (Err(error), Ok(in_vain)) => match undo(in_vain) {
                Ok(()) => Err(error),
                Err(more) => Err(SourceError::new(error.cause(), format!("{error}; then {more}"))),
            },
            (Err(error), Err(_)) => Err(error),
        }
    }
}

/// The `undo` of a request without side effects.
pub fn no_undo<B>(_: B) -> SourceResult<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    fn slow() -> RequestLatency {
        let latency = RequestLatency::default();
        latency.record(HIGH);
        latency
    }

    fn lost() -> SourceResult<()> {
        Err(SourceError::new(Cause::Lost, "gone"))
    }

    #[test]
    fn who_is_slow_is_asked_for_both_at_once() {
        let both = Barrier::new(2);
        let wait = || Ok(both.wait().is_leader());
        let (first, then) = slow().run_both(wait, wait, no_undo).unwrap();
        assert_ne!(first, then);
    }

    #[test]
    fn who_answers_at_once_is_asked_one_after_the_other() {
        let latency = slow();
        latency.measured(|| ());
        let mine = std::thread::current().id();
        let (first, then) =
            latency.run_both(|| Ok(std::thread::current().id()), || Ok(mine), no_undo).unwrap();
        assert_eq!((first, then), (mine, mine));
        let mut done = false;
        let then = || {
            done = true;
            Ok(())
        };
        assert_eq!(latency.run_both(lost, then, no_undo).unwrap_err().cause(), Cause::Lost);
        assert!(!done, "nothing is done after a failure");
    }

    #[test]
    fn what_was_done_in_vain_is_undone() {
        let mut undone = None;
        let undo = |done| {
            undone = Some(done);
            lost()
        };
        let error = slow().run_both(|| Err::<(), _>(SourceError::new(Cause::Full, "full")), || Ok(7), undo);
        let error = error.unwrap_err();
        assert_eq!((error.cause(), undone), (Cause::Full, Some(7)));
        assert!(error.to_string().contains("full; then gone"), "{error}");
        assert_eq!(slow().run_both(|| Ok(1), lost, no_undo).unwrap_err().cause(), Cause::Lost);
    }
}
