//! Attributes that the kernel may cache for a while. A home that is about to change those of an inode may have them
//! invalidated, rather than wait for the end of the lease; see docs/decisions/0073-leases.md.
//!
//! An invalidation affects what the kernel has cached, but not a reply on its way to one of its threads, which would be
//! cached afterwards. A reply has certainly been taken in once its thread has sent another request, as it has one at a
//! time, or once the file that it opened was used. Otherwise the mount reports for how long the reply may still be
//! under way.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bivouac_ranks::Mutex;
use bivouac_types::Ino;
use bivouac_types::limits::LEASE_MS;

use crate::opens::Handle;

/// Inodes share that many places; what is so of one is taken as so of all that have its place.
const PLACES: usize = 512;
/// Most replies under way that are tracked at a place.
const TOLD_MAX: usize = 16;
/// Longest lease. For so long after an invalidation no reply is cached; after so long a reply counts as taken in.
const LEASE: Duration = Duration::from_millis(LEASE_MS);

/// Attributes that the kernel may cache.
pub struct CachedAttrs {
    places: Vec<Mutex<Bucket>>,
    /// Until when replies of an earlier daemon may be under way.
    calm: Instant,
    /// Count of replies and requests.
    turns: AtomicU64,
    /// By place of threads, the thread that sent a request last, and its turn.
    heard: Vec<AtomicU64>,
}

/// Number of threads that are tracked.
const THREADS: usize = 1024;
/// Bits of a turn in a word with a thread's number: those have 22 at most.
const TURN_BITS: u32 = 42;

#[derive(Debug, Default)]
struct Bucket {
    /// Answers that may not be taken in yet, the last one to each thread.
    told: Vec<SentAnswer>,
    /// Time of the last reply beyond [`TOLD_MAX`].
    told_others: Option<Instant>,
    /// Until when nothing may be cached.
    silent: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct SentAnswer {
    at: Instant,
    turn: u64,
    to: AnswerRecipient,
}

/// Recipient of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerRecipient {
    /// The thread's number in the kernel; 0 if unknown.
    pub thread: u32,
    /// The file that it opens, which nobody can use before the reply is taken in.
    pub opens: Option<Handle>,
}

impl CachedAttrs {
    /// Creates the table of a mount that another daemon served before, or did not.
    pub fn new(resumed: bool) -> CachedAttrs {
        let places = (0..PLACES).map(|_| Mutex::default()).collect();
        CachedAttrs {
            places,
            calm: Instant::now() + if resumed { LEASE } else { Duration::ZERO },
            turns: AtomicU64::new(0),
            heard: (0..THREADS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Notes that an answer with an inode's attributes is about to go out. Returns for how long they may be cached, of
    /// the time that a lease allows.
    pub fn tell(&self, ino: Ino, to: AnswerRecipient, lease: Duration) -> Duration {
        if lease.is_zero() {
            return lease;
        }
        let mut place = self.place(ino).lock();
        if place.tell(to, self.turns.fetch_add(1, Ordering::AcqRel), Instant::now()) {
            lease
        } else {
            Duration::ZERO
        }
    }

    /// Notes that a thread has sent a request for whose answer it waits, and so has taken in what it was told before.
    pub fn hears_from(&self, thread: u32) {
        let turn = self.turns.fetch_add(1, Ordering::AcqRel) & ((1 << TURN_BITS) - 1);
        // A number that does not fit beside a turn could be taken for another thread's.
        if thread != 0 && thread.leading_zeros() >= u32::BITS - (u64::BITS - TURN_BITS) {
            let place = &self.heard[thread as usize % THREADS];
            place.store(u64::from(thread) << TURN_BITS | turn, Ordering::Release);
        }
    }

    /// Returns whether a thread has sent a request since it was told something.
    fn has_heard(&self, told: &SentAnswer) -> bool {
        let word = self.heard[told.to.thread as usize % THREADS].load(Ordering::Acquire);
        let (thread, turn) = (word >> TURN_BITS, word & ((1 << TURN_BITS) - 1));
        thread != 0 && thread == u64::from(told.to.thread) && turn > told.turn
    }

    /// Notes that an open file is used, and so that the answer that opened it was taken in.
    pub fn hears_of(&self, ino: Ino, opened: Handle) {
        self.place(ino).lock().takes_in(|to| to.opens == Some(opened));
    }

    /// Stops caching of replies about an inode's attributes for the length of a lease. Returns for how long earlier
    /// replies may still be under way; all others can be invalidated.
    pub fn silence(&self, ino: Ino) -> Duration {
        let (mut place, now) = (self.place(ino).lock(), Instant::now());
        // Looked at only here, where it matters, and not with each request of each thread.
        place.told.retain(|told| !self.has_heard(told));
        place.silence(now).max(self.calm.saturating_duration_since(now))
    }

    fn place(&self, ino: Ino) -> &Mutex<Bucket> {
        // Neighbours go to different places, and so do the same numbers of different slots.
        let mixed = ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.places[mixed as usize % PLACES]
    }
}

impl Bucket {
    /// Returns whether an answer may be cached.
    fn tell(&mut self, to: AnswerRecipient, turn: u64, now: Instant) -> bool {
        if self.silent.is_some_and(|until| until > now) {
            return false;
        }
        // What the thread was told before it has taken in.
        let by_itself = |told: &SentAnswer| to.thread != 0 && told.to.thread == to.thread;
        self.told.retain(|told| !is_over(told.at, now) && !by_itself(told));
        if self.told.len() < TOLD_MAX {
            self.told.push(SentAnswer { at: now, turn, to });
        } else {
            // Of these only the last is known, so all of them count as under way for as long as that one.
            self.told_others = Some(now);
        }
        true
    }

    fn takes_in(&mut self, does: impl Fn(&AnswerRecipient) -> bool) {
        self.told.retain(|told| !does(&told.to));
    }

    fn silence(&mut self, now: Instant) -> Duration {
        self.silent = Some(now + LEASE);
        let last = self.told.iter().map(|told| told.at).chain(self.told_others).max();
        last.map_or(Duration::ZERO, |at| (at + LEASE).saturating_duration_since(now))
    }
}

fn is_over(at: Instant, now: Instant) -> bool {
    at + LEASE <= now
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VALIDITY: Duration = Duration::from_millis(75);

    fn thread(thread: u32) -> AnswerRecipient {
        AnswerRecipient { thread, opens: None }
    }

    fn hear_from(place: &mut Bucket, one: u32) {
        place.takes_in(|to| to.thread == one && one != 0);
    }

    /// S271.
    #[test]
    fn an_answer_on_its_way_is_not_taken_for_forgotten() {
        let (mut place, now) = (Bucket::default(), Instant::now());
        assert!(place.silence(now).is_zero(), "nothing was told");
        let now = now + LEASE;
        assert!(place.tell(thread(1), 0, now) && place.silence(now) == LEASE);
        assert!(!place.tell(thread(1), 0, now), "from then on nothing is cached");
        assert!(place.silence(now + LEASE).is_zero(), "it is taken in by now, and none came since");
        assert!(!place.tell(thread(1), 0, now + LEASE) && place.tell(thread(1), 0, now + 2 * LEASE));
    }

    /// S271.
    #[test]
    fn who_sends_another_request_has_taken_in_what_it_was_told() {
        let (mut place, now) = (Bucket::default(), Instant::now());
        place.tell(thread(1), 0, now);
        place.tell(thread(1), 0, now);
        [0, 2].iter().for_each(|other| hear_from(&mut place, *other));
        assert!(!place.silence(now).is_zero(), "others have not");
        hear_from(&mut place, 1);
        assert!(place.silence(now).is_zero());
    }

    /// S271.
    #[test]
    fn all_threads_must_have_heard() {
        for (first, second) in [(1, 2), (0, 1), (0, 0)] {
            let (mut place, now) = (Bucket::default(), Instant::now());
            place.tell(thread(first), 0, now);
            place.tell(thread(second), 0, now);
            hear_from(&mut place, second);
            assert!(!place.silence(now).is_zero(), "{first} may not have heard yet");
            hear_from(&mut place, first);
            assert_eq!(place.silence(now).is_zero(), first != 0);
        }
    }

    #[test]
    fn too_many_are_not_told_from_each_other() {
        let (mut place, now) = (Bucket::default(), Instant::now());
        let threads = || 1..=TOLD_MAX as u32 + 1;
        threads().for_each(|one| assert!(place.tell(thread(one), 0, now)));
        threads().for_each(|one| hear_from(&mut place, one));
        assert_eq!(place.told.len(), 0);
        assert_eq!(
            [now, now + LEASE].map(|at| place.silence(at)),
            [LEASE, Duration::ZERO],
            "there was one more"
        );
    }

    #[test]
    fn who_uses_an_open_file_has_taken_in_that_it_is_open() {
        let (cached_attrs, ino) = (CachedAttrs::new(false), Ino(5));
        cached_attrs.tell(ino, AnswerRecipient { thread: 0, opens: Some(Handle(7)) }, VALIDITY);
        cached_attrs.hears_of(ino, Handle(8));
        cached_attrs.hears_from(0);
        assert_eq!(cached_attrs.place(ino).lock().told.len(), 1);
        cached_attrs.hears_of(ino, Handle(7));
        let begun = Instant::now();
        assert!(cached_attrs.silence(ino).is_zero());
        // On a busy machine a lease may have passed since.
        assert!(cached_attrs.tell(ino, thread(1), VALIDITY).is_zero() || begun.elapsed() >= LEASE);
    }

    /// S271.
    #[test]
    fn who_sends_any_other_request_has_taken_in_what_it_was_told() {
        let (cached_attrs, hour) = (CachedAttrs::new(false), Duration::from_secs(3600));
        let tell = |ino, one| assert_eq!(cached_attrs.tell(Ino(ino), thread(one), hour), hour);
        cached_attrs.hears_from(7);
        [(1, 7), (2, 8), (3, 0), (4, u32::MAX)].iter().for_each(|(ino, one)| tell(*ino, *one));
        // Another one of the same place, which is not taken for it.
        cached_attrs.hears_from(7 + THREADS as u32);
        assert!(!cached_attrs.silence(Ino(1)).is_zero());
        [7, 0, u32::MAX].iter().for_each(|one| cached_attrs.hears_from(*one));
        let left = [1, 2, 3, 4].map(|ino| cached_attrs.silence(Ino(ino)).is_zero());
        assert_eq!(left, [true, false, false, false]);
    }

    #[test]
    fn a_new_daemon_waits_for_answers_of_the_one_before() {
        let of_second =
            CachedAttrs { calm: Instant::now() + Duration::from_secs(3600), ..CachedAttrs::new(true) };
        let begun = Instant::now();
        assert!(CachedAttrs::new(true).calm >= begun + LEASE && of_second.silence(Ino(5)) > LEASE);
    }

    #[test]
    fn what_may_not_be_cached_anyway_is_not_waited_for() {
        let cached_attrs = CachedAttrs::new(false);
        assert_eq!(cached_attrs.tell(Ino(5), thread(1), Duration::ZERO), Duration::ZERO);
        assert!(cached_attrs.place(Ino(5)).lock().told.is_empty());
    }

    /// A kernel: answers on their way, to whom, since when, and whether they may be cached; and until when it
    /// caches what it has taken in.
    #[derive(Default)]
    struct Kernel {
        on_the_way: Vec<(u32, Duration, bool)>,
        cached_until: Duration,
    }

    impl Kernel {
        fn take_in(&mut self, at: usize, now: Duration) {
            let (_, _, cached) = self.on_the_way.remove(at);
            if cached {
                self.cached_until = self.cached_until.max(now + VALIDITY);
            }
        }

        fn take_in_all(&mut self, now: Duration, which: impl Fn(&(u32, Duration, bool)) -> bool) {
            while let Some(at) = self.on_the_way.iter().position(&which) {
                self.take_in(at, now);
            }
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// A thread asks, and is answered.
        Ask(u32),
        /// An answer is taken in, before its thread does anything else.
        TakeIn(usize),
        /// Time goes by, in milliseconds.
        Pass(u64),
        /// The home asks.
        Silence,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0u32..4).prop_map(Step::Ask),
            2 => (0usize..3).prop_map(Step::TakeIn),
            2 => (0u64..90).prop_map(Step::Pass),
            2 => Just(Step::Silence),
        ]
    }

    proptest! {
        /// S271. Whatever comes when: once it was said that nothing is cached, nothing is for as long as leases run.
        #[test]
        fn what_was_given_up_is_not_cached(steps in proptest::collection::vec(step(), 1..80)) {
            let (mut place, mut kernel, start) = (Bucket::default(), Kernel::default(), Instant::now());
            let (mut now, mut silent_until) = (Duration::ZERO, Duration::ZERO);
            for step in steps {
                match step {
                    Step::Ask(one) => {
                        // It has one request at a time, unless it is nobody in particular.
                        kernel.take_in_all(now, |(to, ..)| *to == one && one != 0);
                        hear_from(&mut place, one);
                        let cached = place.tell(thread(one), 0, start + now);
                        kernel.on_the_way.push((one, now, cached));
                    }
                    Step::TakeIn(at) if at < kernel.on_the_way.len() => kernel.take_in(at, now),
                    Step::TakeIn(_) => {}
                    Step::Pass(ms) => {
                        let then = now + Duration::from_millis(ms);
                        // No answer takes longer than a lease.
                        kernel.take_in_all(now, |(_, at, _)| *at + LEASE <= then);
                        now = then;
                    }
                    Step::Silence => {
                        if place.silence(start + now).is_zero() {
                            kernel.cached_until = Duration::ZERO;
                            silent_until = now + LEASE;
                        }
                    }
                }
                prop_assert!(now >= silent_until || kernel.cached_until <= now, "at {now:?}");
            }
        }
    }
}
