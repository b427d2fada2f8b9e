//! Closes on their way. The kernel sends RELEASE after `close` has returned, and does not wait for it; what was locked
//! through the file is held until then. Whoever is about to be refused a lock because of that can wait for them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Longest wait for them.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// Time without queued or served requests: a thread that has just read a request does not show that at once.
const CALM: Duration = Duration::from_millis(1);
const TICK: Duration = Duration::from_micros(100);

/// The RELEASE requests of a mount that are being served.
#[derive(Debug, Default)]
pub struct Releases {
    serving: AtomicUsize,
}

/// A RELEASE that is being served until this value is dropped.
#[derive(Debug)]
pub struct Release<'a>(&'a Releases);

impl Releases {
    /// Begins to serve one.
    pub fn begin(&self) -> Release<'_> {
        self.serving.fetch_add(1, Ordering::SeqCst);
        Release(self)
    }

    /// Waits until what the kernel has queued so far is served as far as it may be a RELEASE, at most [`WAIT_MAX`];
    /// `is_queued` says whether requests wait to be read. The calling thread must not be needed to read them.
    pub fn settle(&self, is_queued: impl Fn() -> bool) {
        let begun = Instant::now();
        let mut calm_since = None;
        while begun.elapsed() < WAIT_MAX {
            // The queue first: what is read in between shows in the count, but for the moment that `CALM` is for.
            if is_queued() || self.serving.load(Ordering::SeqCst) > 0 {
                calm_since = None;
            } else if calm_since.get_or_insert_with(Instant::now).elapsed() >= CALM {
                return;
            }
            // No event tells that the queue of the kernel is empty.
            thread::park_timeout(TICK);
        }
    }
}

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.serving.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn what_is_queued_or_served_is_waited_for() {
        let releases = Releases::default();
        let (queued, serving) = (Cell::new(3), Cell::new(None));
        releases.settle(|| {
            // The last request that is read is a RELEASE, which takes two looks more.
            match queued.get() {
                0 => drop(serving.take()),
                1 => serving.set(Some(releases.begin())),
                _ => {}
            }
            queued.set(queued.get() - 1);
            queued.get() > 0
        });
        assert!(queued.get() < 0 && serving.take().is_none());
        assert_eq!(releases.serving.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_release_that_does_not_end_is_given_up() {
        let releases = Releases::default();
        let _release = releases.begin();
        releases.settle(|| false);
    }
}
