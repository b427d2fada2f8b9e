//! Asking at once what does not depend on each other. Storage that is far away takes as long for each request, however
//! little is asked; for storage that answers at once a thread would cost more than it saves.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::Cause;
use crate::{SourceError, SourceResult};

/// What storage has to take for a request before it is asked for something else meanwhile.
const SLOW: Duration = Duration::from_micros(500);

/// How long storage took for a request lately.
#[derive(Debug, Default)]
pub struct Pace {
    lately_ns: AtomicU64,
    is_always_slow: bool,
}

impl Pace {
    /// Of storage that is taken for slow, whatever it takes.
    pub fn slow() -> Pace {
        Pace { is_always_slow: true, ..Pace::default() }
    }

    /// Does something for which storage has to be asked, and takes down how long that took.
    pub fn timed<T>(&self, ask: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let answer = ask();
        self.took(begun.elapsed());
        answer
    }

    /// A request took so long.
    pub fn took(&self, time: Duration) {
        self.lately_ns.store(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn is_slow(&self) -> bool {
        self.is_always_slow || self.lately_ns.load(Ordering::Relaxed) >= SLOW.as_nanos() as u64
    }

    /// Does both: at the same time if storage is slow, and then `undo` takes back what was done in vain because the first
    /// has failed; otherwise one after the other, and nothing after a failure.
    pub fn both<A: Send, B>(
        &self,
        first: impl FnOnce() -> SourceResult<A> + Send,
        then: impl FnOnce() -> SourceResult<B>,
        undo: impl FnOnce(B) -> SourceResult<()>,
    ) -> SourceResult<(A, B)> {
        if !self.is_slow() {
            return Ok((first()?, then()?));
        }
        let (first, done) = std::thread::scope(|scope| {
            let failed = |text: String| Err(SourceError::new(Cause::Other, text));
            let thread = std::thread::Builder::new().name("source".to_owned()).spawn_scoped(scope, first);
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
            (Err(error), Ok(in_vain)) => match undo(in_vain) {
                Ok(()) => Err(error),
                Err(more) => Err(SourceError::new(error.cause(), format!("{error}; then {more}"))),
            },
            (Err(error), Err(_)) => Err(error),
        }
    }
}

/// For what need not be undone.
pub fn leave<B>(_: B) -> SourceResult<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    fn slow() -> Pace {
        let pace = Pace::default();
        pace.took(SLOW);
        pace
    }

    fn lost() -> SourceResult<()> {
        Err(SourceError::new(Cause::Lost, "gone"))
    }

    #[test]
    fn who_is_slow_is_asked_for_both_at_once() {
        let both = Barrier::new(2);
        let wait = || Ok(both.wait().is_leader());
        let (first, then) = slow().both(wait, wait, leave).unwrap();
        assert_ne!(first, then);
    }

    #[test]
    fn who_answers_at_once_is_asked_one_after_the_other() {
        let pace = slow();
        pace.timed(|| ());
        let mine = std::thread::current().id();
        let (first, then) = pace.both(|| Ok(std::thread::current().id()), || Ok(mine), leave).unwrap();
        assert_eq!((first, then), (mine, mine));
        let mut done = false;
        let then = || {
            done = true;
            Ok(())
        };
        assert_eq!(pace.both(lost, then, leave).unwrap_err().cause(), Cause::Lost);
        assert!(!done, "nothing is done after a failure");
    }

    #[test]
    fn what_was_done_in_vain_is_undone() {
        let mut undone = None;
        let undo = |done| {
            undone = Some(done);
            lost()
        };
        let error = slow().both(|| Err::<(), _>(SourceError::new(Cause::Full, "full")), || Ok(7), undo);
        let error = error.unwrap_err();
        assert_eq!((error.cause(), undone), (Cause::Full, Some(7)));
        assert!(error.to_string().contains("full; then gone"), "{error}");
        assert_eq!(slow().both(|| Ok(1), lost, leave).unwrap_err().cause(), Cause::Lost);
    }
}
