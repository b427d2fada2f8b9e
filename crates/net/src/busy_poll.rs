//! Busy polling for an answer, or for the next request, that may be about to come.
//!
//! Sleeping costs two changes of threads, and where a processor goes idle meanwhile, waking it costs ten times that. So
//! whoever waits first looks again and again for a moment. Whether that pays is learned from what came of it, as with
//! spinning locks (Karlin et al., "Empirical studies of competitive spinning", 1991): on one processor looking only
//! keeps the answer from coming, and what takes a disk's time is not worth it either. Nobody looks while more threads
//! want to run than there are processors: it would take one from a program that computes.

use std::hint;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::processors;

/// Duration of busy polling: about what it costs to sleep and be woken on an idle processor.
const LOOK: Duration = Duration::from_micros(50);
/// Failures in a row after which looking is taken not to pay.
const FAILURES_MAX: u32 = 3;
/// Of so many waits one tries it nevertheless.
const TRIED_EVERY: u32 = 64;
/// Instructions of rest between two looks.
const RESTS: usize = 32;

/// Outcome of earlier waits for one thing.
#[derive(Debug, Default)]
pub struct BusyPoll {
    waits: AtomicU32,
    failures: AtomicU32,
}

/// One wait; by default without busy polling.
#[derive(Debug, Default)]
pub(crate) struct PollAttempt {
    looks: bool,
    since: Option<Instant>,
}

impl BusyPoll {
    /// Looks for a moment whether it has come, if that pays; whether it has.
    pub fn look(&self, has_come: impl FnMut() -> bool) -> bool {
        self.look_on(processors::are_spare(), has_come)
    }

    fn look_on(&self, spare: bool, mut has_come: impl FnMut() -> bool) -> bool {
        let mut watching = self.begin_on(spare);
        let mut found = false;
        while !found && watching.goes_on() {
            found = has_come();
        }
        self.saw(&watching, found);
        found
    }

    /// Begins a wait.
    pub(crate) fn begin(&self) -> PollAttempt {
        self.begin_on(processors::are_spare())
    }

    fn begin_on(&self, spare: bool) -> PollAttempt {
        let is_trial = self.waits.fetch_add(1, Ordering::Relaxed).is_multiple_of(TRIED_EVERY);
        let pays = is_trial || self.failures.load(Ordering::Relaxed) < FAILURES_MAX;
        PollAttempt { looks: pays && spare, since: None }
    }

    /// Notes the outcome of a wait: the answer came while it was polled for, or later.
    pub(crate) fn saw(&self, watching: &PollAttempt, answered: bool) {
        // A wait that did not poll says nothing about polling; it would undo what the others have learned.
        if watching.since.is_some() {
            let failures = if answered { 0 } else { self.failures.load(Ordering::Relaxed).saturating_add(1) };
            self.failures.store(failures, Ordering::Relaxed);
        }
    }
}

impl PollAttempt {
    /// Returns true if the socket is to be polled again, after no answer was there.
    pub fn goes_on(&mut self) -> bool {
        // At least once, however long this thread was not scheduled.
        let goes_on = self.looks && self.since.is_none_or(|since| since.elapsed() < LOOK);
        if goes_on {
            self.since.get_or_insert_with(Instant::now);
            (0..RESTS).for_each(|_| hint::spin_loop());
        }
        goes_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits for an answer that comes while it is looked for, or does not; whether it was looked for.
    fn wait(busy_poll: &BusyPoll, answered: bool) -> bool {
        let mut looked = false;
        busy_poll.look_on(true, || {
            looked = true;
            answered
        });
        looked
    }

    #[test]
    fn what_does_not_pay_is_left_and_tried_again_seldom() {
        let busy_poll = BusyPoll::default();
        assert!((0..FAILURES_MAX).all(|_| wait(&busy_poll, false)));
        assert!((FAILURES_MAX..TRIED_EVERY).all(|_| !wait(&busy_poll, false)));
        assert!(wait(&busy_poll, true), "a trial");
        assert!((0..10).all(|_| wait(&busy_poll, true)), "it pays again");
    }

    #[test]
    fn nobody_looks_where_all_processors_are_wanted() {
        assert!(!BusyPoll::default().look_on(false, || true));
    }

    #[test]
    fn every_look_ends() {
        let mut watching = BusyPoll::default().begin_on(true);
        while watching.goes_on() {}
        assert!(!PollAttempt::default().goes_on());
    }
}
