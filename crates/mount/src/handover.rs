//! Threads that keep their permit while they serve a request that takes long.
//!
//! Most mounts serve one program at a time, which waits for the same answer: to have another thread read requests
//! meanwhile costs two changes of threads per request, for nobody. So the last reader keeps its permit, also while it
//! waits for another node or for a disk. Somebody looks every now and then, as long as requests are served, whether
//! there are some that nobody reads. Then it takes the permits away of threads that are at the same request as before;
//! and of all that wait for other nodes: for a second they hand their permits on at once.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bivouac_client::OnDemandWorker;

use crate::state::CHANNELS_PER_INCARNATION;

/// Time between two looks while threads wait for other nodes.
const TICK: Duration = Duration::from_millis(2);
/// The same while none does: whoever comes by that often is in the way of readers that look for the next request.
const SLOW_TICK: Duration = Duration::from_millis(20);
/// Time for which threads hand their permits on at once, after one had to wait for a permit.
const BUSY: Duration = Duration::from_secs(1);
/// Looks in a row that find unread requests while threads come and go.
const UNREAD_MAX: u32 = 3;
/// Looks without any request after which there are no more until the next one.
const QUIET_TICKS: u32 = 25;
/// States of a thread, in the low bits above which requests are counted.
const READS: u32 = 0;
const SERVES: u32 = 1;
const WAITS: u32 = 2;
const TAKEN: u32 = 3;
const STATES: u32 = 4;

/// Threads that serve a request, or wait, with a permit.
pub struct DelayedHandover {
    start: Instant,
    threads: Vec<AtomicU32>,
    /// Until when permits are handed on at once, in milliseconds since the start.
    busy_until: AtomicU64,
    looker: OnDemandWorker,
    /// True if it looks at long intervals.
    is_slow: AtomicBool,
}

/// State of the looker between two looks.
#[derive(Default)]
pub struct Findings {
    threads: Vec<u32>,
    unread: u32,
    quiet: u32,
}

impl Default for DelayedHandover {
    fn default() -> DelayedHandover {
        DelayedHandover {
            start: Instant::now(),
            threads: (0..CHANNELS_PER_INCARNATION).map(|_| AtomicU32::new(READS)).collect(),
            busy_until: AtomicU64::new(0),
            looker: OnDemandWorker::default(),
            is_slow: AtomicBool::new(false),
        }
    }
}

impl DelayedHandover {
    /// Notes that a thread with a permit begins to serve a request; `spawn` starts the thread that looks.
    pub fn begin(&self, thread: u16, spawn: impl FnOnce() -> bool) {
        if let Some(state) = self.threads.get(usize::from(thread)) {
            let before = state.load(Ordering::Relaxed);
            assert_ne!(before % STATES, TAKEN, "a thread without a permit reads");
            // The count comes round again in time.
            let request = (before / STATES).wrapping_add(1).wrapping_mul(STATES);
            state.store(request | SERVES, Ordering::Release);
            self.looker.call(spawn);
        }
    }

    /// Notes that a thread which serves a request with a permit is about to wait. Returns true if it may keep the
    /// permit.
    pub fn wait(&self, thread: u16, spawn: impl FnOnce() -> bool) -> bool {
        if self.since_start() < self.busy_until.load(Ordering::Relaxed) {
            return false;
        }
        let Some(state) = self.threads.get(usize::from(thread)) else { return false };
        let waits = |state: u32| (state % STATES != TAKEN).then(|| (state / STATES * STATES) | WAITS);
        // Fails only if the permit was taken away meanwhile, which `end` finds out.
        let _is_taken = state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, waits);
        // Loaded first: threads that wait all the time would otherwise write to one line of memory.
        if self.is_slow.load(Ordering::SeqCst) && self.is_slow.swap(false, Ordering::Relaxed) {
            self.looker.hurry();
        }
        self.looker.call(spawn)
    }

    /// Notes that a thread has served a request. Returns true if its permit was taken away.
    pub fn end(&self, thread: u16) -> bool {
        let Some(state) = self.threads.get(usize::from(thread)) else { return false };
        let before = state.load(Ordering::Relaxed);
        if before % STATES == READS {
            return false;
        }
        // In one step with the look: the permit may be taken until now, and is somebody else's then.
        state.fetch_and(!(STATES - 1), Ordering::AcqRel) % STATES == TAKEN
    }

    /// Runs the loop of the looker: checks whether requests are left unread, and gives each permit that it takes away
    /// to `release`. Returns when there was nothing to look at for a while.
    pub fn look(&self, unread: impl Fn() -> bool, release: impl Fn()) {
        let mut findings = Findings::default();
        while self.looker.next_after(|| self.tick()) {
            let taken = self.look_once(&mut findings, &unread);
            (0..taken).for_each(|_| release());
            if findings.quiet >= QUIET_TICKS {
                self.looker.rest(|| self.states().eq(findings.threads.iter().copied()));
            }
        }
    }

    /// Returns the time until the next look.
    fn tick(&self) -> Duration {
        // Pairs with a thread that begins to wait: either its state is seen here, or it sees that it has to hurry the
        // looker.
        self.is_slow.store(true, Ordering::SeqCst);
        if !self.states().any(|state| state % STATES == WAITS) {
            return SLOW_TICK;
        }
        self.is_slow.store(false, Ordering::Relaxed);
        TICK
    }

    /// Looks once; returns how many permits were taken away.
    fn look_once(&self, findings: &mut Findings, unread: impl Fn() -> bool) -> usize {
        let threads: Vec<u32> = self.states().collect();
        let is_busy = |state: &u32| matches!(state % STATES, SERVES | WAITS);
        let waits = |state: &u32| state % STATES == WAITS;
        let is_quiet = threads == findings.threads && !threads.iter().any(is_busy);
        findings.quiet = if is_quiet { findings.quiet + 1 } else { 0 };
        // `unread` is a system call, and of no use while nobody is busy.
        let unread = threads.iter().any(is_busy) && unread();
        findings.unread = if unread && threads.iter().any(waits) { findings.unread + 1 } else { 0 };
        let mut taken = 0;
        if unread {
            let is_stuck = |(at, state): (usize, &u32)| findings.threads.get(at) == Some(state);
            let hands_on = findings.unread >= UNREAD_MAX
                || threads.iter().enumerate().any(|thread| waits(thread.1) && is_stuck(thread));
            if hands_on {
                self.busy_until.store(self.since_start() + BUSY.as_millis() as u64, Ordering::Relaxed);
            }
            let is_to_go = |thread: (usize, &u32)| if waits(thread.1) { hands_on } else { is_stuck(thread) };
            let busy = threads.iter().enumerate().filter(|(_, state)| is_busy(state));
            taken = busy.filter(|thread| is_to_go(*thread) && self.take(thread.0, *thread.1)).count();
        }
        findings.threads = threads;
        taken
    }

    fn states(&self) -> impl Iterator<Item = u32> {
        self.threads.iter().map(|state| state.load(Ordering::SeqCst))
    }

    /// Takes a thread's permit, if it is still at the same.
    fn take(&self, thread: usize, seen: u32) -> bool {
        let taken = seen | TAKEN;
        self.threads.get(thread).is_some_and(|state| {
            state.compare_exchange(seen, taken, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    /// Ends the thread that looks.
    pub fn close(&self) {
        self.looker.dismiss();
    }

    fn since_start(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(threads: &[u16]) -> DelayedHandover {
        let handover = DelayedHandover::default();
        for thread in threads {
            handover.begin(*thread, || true);
            assert!(handover.wait(*thread, || true));
        }
        handover
    }

    /// Whether who waits hands its permit on at once, unless the time for that is over by now.
    fn hands_on(handover: &DelayedHandover, thread: u16) -> bool {
        let until = handover.busy_until.load(Ordering::Relaxed);
        assert!(until >= BUSY.as_millis() as u64, "nobody is busy");
        !handover.wait(thread, || true) || handover.since_start() >= until
    }

    #[test]
    fn nothing_is_taken_while_nobody_else_asks() {
        let (handover, mut findings) = (waiting(&[3]), Findings::default());
        for _ in 0..10 {
            assert_eq!(handover.look_once(&mut findings, || false), 0);
        }
        assert!(!handover.end(3) && handover.wait(3, || panic!("there is one")));
    }

    #[test]
    fn who_waits_for_long_loses_its_permit_to_who_asks() {
        let (handover, mut findings) = (waiting(&[0, 9]), Findings::default());
        assert_eq!(handover.look_once(&mut findings, || true), 0, "it may be over soon");
        assert!(!handover.end(9));
        assert_eq!(handover.look_once(&mut findings, || true), 1);
        assert!(handover.end(0) && !handover.end(0));
        assert!(hands_on(&handover, 9), "from now on they are handed on at once");
    }

    #[test]
    fn who_comes_and_goes_while_others_ask_loses_it_too() {
        let (handover, mut findings) = (waiting(&[5]), Findings::default());
        let taken: Vec<usize> = (0..UNREAD_MAX)
            .map(|_| {
                assert!(!handover.end(5));
                handover.begin(5, || true);
                assert!(handover.wait(5, || true));
                handover.look_once(&mut findings, || true)
            })
            .collect();
        assert_eq!(taken, [0, 0, 1]);
        assert!(hands_on(&handover, 5) && handover.end(5));
    }

    #[test]
    fn a_permit_that_was_taken_stays_so_until_the_thread_hears_of_it() {
        let (handover, mut findings) = (waiting(&[5]), Findings::default());
        handover.look_once(&mut findings, || true);
        assert_eq!(handover.look_once(&mut findings, || true), 1);
        handover.busy_until.store(0, Ordering::Relaxed);
        assert!(handover.wait(5, || true));
        assert!(handover.end(5));
    }

    #[test]
    fn who_serves_one_request_for_long_loses_its_permit_to_who_asks() {
        let (handover, mut findings) = (DelayedHandover::default(), Findings::default());
        for _ in 0..2 * UNREAD_MAX {
            handover.begin(5, || true);
            assert_eq!(handover.look_once(&mut findings, || true), 0, "one request after the other");
            assert!(!handover.end(5));
        }
        handover.begin(5, || true);
        handover.begin(6, || true);
        let taken: Vec<usize> = (0..2).map(|_| handover.look_once(&mut findings, || true)).collect();
        assert_eq!(taken, [0, 2]);
        assert!(handover.wait(6, || true), "nobody hands on at once");
        assert!(handover.end(5) && handover.end(6));
    }

    #[test]
    fn the_thread_that_looks_ends() {
        let handover = waiting(&[1]);
        std::thread::scope(|scope| {
            let looker = scope.spawn(|| handover.look(|| true, || handover.close()));
            looker.join().unwrap();
        });
        assert!(handover.end(1));
    }

    #[test]
    fn the_count_of_requests_comes_round() {
        let handover = DelayedHandover::default();
        handover.threads[2].store(u32::MAX - (STATES - 1), Ordering::Relaxed);
        (0..2).for_each(|_| handover.begin(2, || true));
        assert!(!handover.end(2));
    }

    #[test]
    fn who_waits_has_the_thread_that_looks_hurry() {
        let handover = DelayedHandover::default();
        handover.begin(1, || true);
        assert_eq!(handover.tick(), SLOW_TICK);
        assert!(handover.wait(1, || panic!("there is one")) && !handover.is_slow.load(Ordering::Relaxed));
        assert_eq!(handover.tick(), TICK);
        assert!(!handover.end(1));
        assert_eq!(handover.tick(), SLOW_TICK);
    }

    #[test]
    fn without_a_thread_that_looks_permits_are_handed_on() {
        assert!(!DelayedHandover::default().wait(1, || false));
    }
}
