//! How many threads a lane has, and how many it needs.

use std::sync::atomic::{AtomicU64, Ordering};

/// Threads of a lane, at most, those that wait for something else than requests among them.
const THREADS_CAP: u32 = 128;

/// The threads of a lane. Those there are and those that wait change together, in one word: who looked at the one and then
/// changed the other could leave while another thread begins to wait and counts on it.
pub(super) struct Crew {
    /// Threads that are not in the middle of a wait, at most.
    threads_max: u32,
    counts: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    /// Threads that there are.
    threads: u32,
    /// Those of them whose request waits for a peer, a lease or a lock: while they do, others take their place.
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

impl Crew {
    pub fn new(threads_max: usize) -> Crew {
        let threads_max = u32::try_from(threads_max).unwrap_or(u32::MAX).max(1);
        Crew { threads_max, counts: AtomicU64::new(0) }
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
        self.change(|counts| Some(Counts { threads: counts.threads.saturating_sub(1), ..counts }));
    }

    /// A thread's request is about to wait.
    pub fn begin_waiting(&self) {
        self.change(|counts| Some(Counts { waiting: counts.waiting + 1, ..counts }));
    }

    /// A thread's request has waited and is over. Whether the thread is one too many now, and counted out.
    pub fn end_waiting(&self) -> bool {
        let mut leaves = false;
        self.change(|Counts { threads, waiting }| {
            let waiting = waiting.saturating_sub(1);
            leaves = threads > self.enough(waiting);
            Some(Counts { threads: if leaves { threads - 1 } else { threads }, waiting })
        });
        leaves
    }

    /// How many threads are enough: those that may be at work, and as many as wait.
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

    impl Crew {
        fn counts(&self) -> Counts {
            Counts::of(self.counts.load(Ordering::Acquire))
        }
    }

    #[test]
    fn who_waits_is_replaced_and_whoever_is_too_much_goes() {
        let crew = Crew::new(1);
        assert_eq!((crew.join(), crew.join()), (Some(0), None));
        crew.begin_waiting();
        assert_eq!((crew.join(), crew.join()), (Some(1), None));
        assert!(crew.end_waiting(), "there is another one that is at work");
        crew.begin_waiting();
        assert_eq!(crew.join(), Some(1));
        crew.leave();
        assert_eq!(crew.counts(), Counts { threads: 1, waiting: 1 });
    }

    /// One thread ends to wait while its replacement begins to. Whichever comes first, one is at work afterwards.
    #[test]
    fn a_crew_is_never_left_one_short() {
        for _ in 0..1000 {
            let crew = Crew::new(1);
            assert!(crew.join().is_some());
            crew.begin_waiting();
            assert!(crew.join().is_some());
            let together = Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    together.wait();
                    crew.end_waiting()
                });
                together.wait();
                crew.begin_waiting();
                // As the lane does: nobody is idle then.
                crew.join();
            });
            let Counts { threads, waiting } = crew.counts();
            assert_eq!((threads - waiting, waiting), (1, 1));
        }
    }

    proptest! {
        #[test]
        fn as_many_are_at_work_as_may_be(max in 1usize..5, steps in proptest::collection::vec(0u8..3, 0..200)) {
            let crew = Crew::new(max);
            for step in steps {
                let Counts { threads, waiting } = crew.counts();
                match step {
                    0 if threads > waiting => {
                        crew.begin_waiting();
                        crew.join();
                    }
                    1 if waiting > 0 => drop(crew.end_waiting()),
                    _ => drop(crew.join()),
                }
                let Counts { threads, waiting } = crew.counts();
                prop_assert!(threads > waiting || threads >= THREADS_CAP, "{threads} of which {waiting} wait");
                prop_assert!(threads <= crew.enough(waiting));
            }
        }
    }
}
