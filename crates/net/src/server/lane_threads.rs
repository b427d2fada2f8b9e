//! Number of threads that a lane has, and that it needs.

use std::sync::atomic::{AtomicU64, Ordering};

/// Threads of a lane, at most, those that wait for something else than requests among them.
const THREADS_CAP: u32 = 128;

/// The threads of a lane. Those there are and those that wait change together, in one word: who looked at the one and
/// then changed the other could leave while another thread begins to wait and counts on it.
pub(super) struct LaneThreads {
    /// Threads that are not in the middle of a wait, at most.
    threads_max: u32,
    counts: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    /// Threads that there are.
    threads: u32,
    /// Threads whose request waits for a peer, a lease or a lock; others take their place meanwhile.
    waiting: u32,
}

impl Counts {
    fn of(word: u64) -> Counts {
        Counts { threads: (word >> 32) as u32, waiting: word as u32 }
    }

    fn word(self) -> u64 {
        u64::from(self.threads) << 32 | u64::from(self.waiting)
    }
}

impl LaneThreads {
    pub fn new(threads_max: usize) -> LaneThreads {
        let threads_max = u32::try_from(threads_max).unwrap_or(u32::MAX).max(1);
        LaneThreads { threads_max, counts: AtomicU64::new(0) }
    }

    /// Counts a new thread in, and numbers it; `None` if there are as many as there may be.
    pub fn join(&self) -> Option<u32> {
        let more = |Counts { threads, waiting }| {
            (threads < self.enough(waiting)).then_some(Counts { threads: threads + 1, waiting })
        };
        self.change(more).map(|before| before.threads)
    }

    /// Counts a thread out that could not be started.
    pub fn leave(&self) {
        let before =
            self.change(|counts| Some(Counts { threads: counts.threads.saturating_sub(1), ..counts }));
        assert!(
            before.is_some_and(|counts| counts.threads > counts.waiting),
            "no thread to leave: {before:?}"
        );
    }

    /// Notes that a thread's request is about to wait.
    pub fn begin_waiting(&self) {
        let before = self.change(|counts| Some(Counts { waiting: counts.waiting + 1, ..counts }));
        // Counted twice, a thread would have two others in its place, and more with each request.
        assert!(
            before.is_some_and(|counts| counts.waiting < counts.threads),
            "more wait than there are: {before:?}"
        );
    }

    /// Notes that a thread's request has waited and is over. Returns true if the thread is one too many now, and
    /// counted out.
    pub fn end_waiting(&self) -> bool {
        let mut leaves = false;
        let before = self.change(|Counts { threads, waiting }| {
            let waiting = waiting.saturating_sub(1);
            leaves = threads > self.enough(waiting);
            Some(Counts { threads: if leaves { threads - 1 } else { threads }, waiting })
        });
        assert!(before.is_some_and(|counts| counts.waiting > 0), "nobody waits: {before:?}");
        leaves
    }

    /// Returns the number of threads that are enough: those that may be at work, and as many as wait.
    fn enough(&self, waiting: u32) -> u32 {
        self.threads_max.saturating_add(waiting).min(self.threads_max.max(THREADS_CAP))
    }

    /// Makes a change in one step; what was before it.
    fn change(&self, mut to: impl FnMut(Counts) -> Option<Counts>) -> Option<Counts> {
        let step = |word| to(Counts::of(word)).map(Counts::word);
        self.counts.fetch_update(Ordering::AcqRel, Ordering::Acquire, step).ok().map(Counts::of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Barrier;

    impl LaneThreads {
        fn counts(&self) -> Counts {
            Counts::of(self.counts.load(Ordering::Acquire))
        }
    }

    #[test]
    fn who_waits_is_replaced_and_whoever_is_too_much_goes() {
        let threads = LaneThreads::new(1);
        assert_eq!((threads.join(), threads.join()), (Some(0), None));
        threads.begin_waiting();
        assert_eq!((threads.join(), threads.join()), (Some(1), None));
        assert!(threads.end_waiting(), "there is another one that is at work");
        threads.begin_waiting();
        assert_eq!(threads.join(), Some(1));
        threads.leave();
        assert_eq!(threads.counts(), Counts { threads: 1, waiting: 1 });
    }

    #[test]
    #[should_panic(expected = "more wait than there are")]
    fn a_thread_waits_once() {
        let threads = LaneThreads::new(1);
        threads.join();
        threads.begin_waiting();
        threads.begin_waiting();
    }

    /// One thread ends to wait while its replacement begins to. Whichever comes first, one is at work afterwards.
    #[test]
    fn a_lane_is_never_left_one_thread_short() {
        for _ in 0..1000 {
            let threads = LaneThreads::new(1);
            assert!(threads.join().is_some());
            threads.begin_waiting();
            assert!(threads.join().is_some());
            let together = Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    together.wait();
                    threads.end_waiting()
                });
                together.wait();
                threads.begin_waiting();
                // As the lane does: nobody is idle then.
                threads.join();
            });
            let Counts { threads, waiting } = threads.counts();
            assert_eq!((threads - waiting, waiting), (1, 1));
        }
    }

    proptest! {
        #[test]
        fn as_many_are_at_work_as_may_be(max in 1usize..5, steps in proptest::collection::vec(0u8..3, 0..200)) {
            let lane = LaneThreads::new(max);
            for step in steps {
                let Counts { threads, waiting } = lane.counts();
                match step {
                    0 if threads > waiting => {
                        lane.begin_waiting();
                        lane.join();
                    }
                    1 if waiting > 0 => drop(lane.end_waiting()),
                    _ => drop(lane.join()),
                }
                let Counts { threads, waiting } = lane.counts();
                prop_assert!(threads > waiting || threads >= THREADS_CAP, "{threads} of which {waiting} wait");
                prop_assert!(threads <= lane.enough(waiting));
            }
        }
    }
}
