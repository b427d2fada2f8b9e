//! Threads that keep their permit while they wait for another node.
//!
//! Most mounts serve one program at a time, which waits for the same answer: to have another thread read requests
//! meanwhile costs two changes of threads per request, for nobody. So the last reader keeps its permit. Somebody looks
//! every two milliseconds, as long as threads wait like this, whether requests have come that nobody reads; then it takes the
//! permits away, and for a second threads hand them on at once.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bivouac_client::Attendant;

use crate::state::CHANNELS_PER_INCARNATION;

/// Time between two looks.
const TICK: Duration = Duration::from_millis(2);
/// For so long threads hand their permits on at once after somebody had to wait for one.
const BUSY: Duration = Duration::from_secs(1);
/// Looks in a row that find unread requests while threads come and go.
const UNREAD_MAX: u32 = 3;
/// Looks without any wait after which there are no more until the next one.
const QUIET_TICKS: u32 = 25;
/// States of a thread, in the low bits above which waits are counted.
const HERE: u32 = 0;
const WAITS: u32 = 1;
const TAKEN: u32 = 2;
const STATES: u32 = 4;

/// Who waits with a permit.
pub struct DelayedHandover {
    start: Instant,
    threads: Vec<AtomicU32>,
    waits: AtomicU64,
    /// Until when permits are handed on at once, in milliseconds since the start.
    busy_until: AtomicU64,
    looker: Attendant,
}

/// What the looker remembers from look to look.
#[derive(Default)]
pub struct Findings {
    waiting: Vec<(u16, u32)>,
    waits: u64,
    unread: u32,
    quiet: u32,
}

impl Default for DelayedHandover {
    fn default() -> DelayedHandover {
        DelayedHandover {
            start: Instant::now(),
            threads: (0..CHANNELS_PER_INCARNATION).map(|_| AtomicU32::new(HERE)).collect(),
            waits: AtomicU64::new(0),
            busy_until: AtomicU64::new(0),
            looker: Attendant::default(),
        }
    }
}

impl DelayedHandover {
    /// A thread with a permit is about to wait. Whether it may keep the permit; `spawn` starts the thread that looks.
    pub fn begin(&self, thread: u16, spawn: impl FnOnce() -> bool) -> bool {
        if self.since_start() < self.busy_until.load(Ordering::Relaxed) {
            return false;
        }
        let Some(state) = self.threads.get(usize::from(thread)) else { return false };
        // The count comes round again in time.
        let next = |state: u32| (state / STATES).wrapping_add(1).wrapping_mul(STATES) | WAITS;
        let waits = |state: u32| (state % STATES != TAKEN).then(|| next(state));
        if state.fetch_update(Ordering::AcqRel, Ordering::Acquire, waits).is_err() {
            return true;
        }
        self.waits.fetch_add(1, Ordering::Release);
        self.looker.call(spawn)
    }

    /// A thread has waited. Whether its permit was taken away.
    pub fn end(&self, thread: u16) -> bool {
        let Some(state) = self.threads.get(usize::from(thread)) else { return false };
        let before = state.load(Ordering::Relaxed);
        if before % STATES == HERE {
            return false;
        }
        state.fetch_and(!(STATES - 1), Ordering::AcqRel) % STATES == TAKEN
    }

    /// What the thread that looks does: looks whether there are requests that nobody reads, and gives each permit that it
    /// takes away to `release`. Ends when there is nothing to look at for a while.
    pub fn look(&self, unread: impl Fn() -> bool, release: impl Fn()) {
        let mut findings = Findings::default();
        while self.looker.next(TICK) {
            let taken = self.look_once(&mut findings, &unread);
            (0..taken).for_each(|_| release());
            if findings.quiet >= QUIET_TICKS {
                self.looker.rest(|| self.waits.load(Ordering::Acquire) == findings.waits);
            }
        }
    }

    /// One look; how many permits were taken away.
    fn look_once(&self, findings: &mut Findings, unread: impl Fn() -> bool) -> usize {
        let waits = self.waits.load(Ordering::Acquire);
        findings.quiet = if waits == findings.waits { findings.quiet + 1 } else { 0 };
        findings.waits = waits;
        let waiting: Vec<(u16, u32)> = (0..)
            .zip(&self.threads)
            .map(|(thread, state)| (thread, state.load(Ordering::Acquire)))
            .filter(|(_, state)| state % STATES == WAITS)
            .collect();
        let unread = !waiting.is_empty() && unread();
        findings.unread = if unread { findings.unread + 1 } else { 0 };
        if !waiting.is_empty() {
            findings.quiet = 0;
        }
        let stuck = waiting.iter().any(|thread| findings.waiting.contains(thread));
        let mut taken = 0;
        if unread && (stuck || findings.unread >= UNREAD_MAX) {
            self.busy_until.store(self.since_start() + BUSY.as_millis() as u64, Ordering::Relaxed);
            taken = waiting.iter().filter(|(thread, state)| self.take(*thread, *state)).count();
        }
        findings.waiting = waiting;
        taken
    }

    /// Takes a thread's permit, if it still waits for the same.
    fn take(&self, thread: u16, seen: u32) -> bool {
        let taken = seen - WAITS + TAKEN;
        self.threads.get(usize::from(thread)).is_some_and(|state| {
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
        assert!(threads.iter().all(|thread| handover.begin(*thread, || true)));
        handover
    }

    #[test]
    fn nothing_is_taken_while_nobody_else_asks() {
        let (handover, mut findings) = (waiting(&[3]), Findings::default());
        for _ in 0..10 {
            assert_eq!(handover.look_once(&mut findings, || false), 0);
        }
        assert!(!handover.end(3) && handover.begin(3, || panic!("there is one")));
    }

    #[test]
    fn who_waits_for_long_loses_its_permit_to_who_asks() {
        let (handover, mut findings) = (waiting(&[0, 9]), Findings::default());
        assert_eq!(handover.look_once(&mut findings, || true), 0, "it may be over soon");
        assert!(!handover.end(9));
        assert_eq!(handover.look_once(&mut findings, || true), 1);
        assert!(handover.end(0) && !handover.end(0));
        assert!(!handover.begin(9, || true), "from now on they are handed on at once");
    }

    #[test]
    fn who_comes_and_goes_while_others_ask_loses_it_too() {
        let (handover, mut findings) = (waiting(&[5]), Findings::default());
        let taken: Vec<usize> = (0..UNREAD_MAX)
            .map(|_| {
                assert!(!handover.end(5) && handover.begin(5, || true));
                handover.look_once(&mut findings, || true)
            })
            .collect();
        assert_eq!(taken, [0, 0, 1]);
        assert!(!handover.begin(5, || true) && handover.end(5));
    }

    #[test]
    fn a_permit_that_was_taken_stays_so_until_the_thread_hears_of_it() {
        let (handover, mut findings) = (waiting(&[5]), Findings::default());
        handover.look_once(&mut findings, || true);
        assert_eq!(handover.look_once(&mut findings, || true), 1);
        handover.busy_until.store(0, Ordering::Relaxed);
        assert!(handover.begin(5, || true));
        assert!(handover.end(5));
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
    fn the_count_of_waits_comes_round() {
        let handover = DelayedHandover::default();
        handover.threads[2].store(u32::MAX - (STATES - 1), Ordering::Relaxed);
        assert!(handover.begin(2, || true) && handover.begin(2, || true));
        assert!(!handover.end(2));
    }

    #[test]
    fn without_a_thread_that_looks_permits_are_handed_on() {
        assert!(!DelayedHandover::default().begin(1, || false));
    }
}
