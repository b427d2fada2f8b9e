//! Threads that read the kernel's requests: those that hold a permit.
//!
//! There are as many permits as needed. The kernel wakes its readers in turn, so a surplus reader means waking another
//! processor, while the thread that served the last request could serve the next. So there is one permit at first, one
//! more when all readers are busy and requests are left unread, and one again when that has not been so for a while. A
//! single reader polls for the next request for a moment before it sleeps.
//!
//! A thread reads a request and serves it itself. Before it waits for another node it gives up its permit
//! ([`about_to_block`]); if no thread is left that reads, another one, parked or new, takes over, unless no request
//! arrives meanwhile. A thread that serves a request for long without waiting, as for a disk, loses its permit when a
//! request arrives ([`DelayedHandover`]). A request that needs no other node wakes no thread.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bivouac_client::{BusyPoll, looking_max};
use bivouac_ranks::{Condvar, Mutex, MutexGuard, rank};

use crate::handover::DelayedHandover;
use crate::state::CHANNELS_PER_INCARNATION;

/// Stack of a thread, in bytes. Buffers are on the heap.
const STACK: usize = 256 * 1024;
/// After this a parked thread that nobody needed ends, in milliseconds.
const PARKED_MS_MAX: u64 = 5_000;

/// Reads in a row that leave requests unread until there is one reader more. A program's close leaves one in front of
/// its next call, and needs none.
const CROWDED_READS: u32 = 2;
/// After so long without a read that left requests unread one reader is enough, in microseconds.
const UNCROWDED_US: u64 = 20_000;

thread_local! {
    static PERMIT: RefCell<Option<Permit>> = const { RefCell::new(None) };
}

/// A thread's permit to read.
struct Permit {
    pool: Arc<Pool>,
    thread: u16,
}

/// Gives up the calling thread's permit to read, if it has one and others may need it. To be called before a request
/// waits for another node; in any other thread it does nothing.
pub fn about_to_block() {
    let keeps = PERMIT.with_borrow(|permit| permit.as_ref().is_none_or(Permit::may_be_kept));
    if !keeps && let Some(permit) = PERMIT.take() {
        permit.give_up();
    }
}

impl Permit {
    /// Returns whether it may be kept while its thread waits.
    fn may_be_kept(&self) -> bool {
        self.pool.is_last_reader() && self.pool.handover.wait(self.thread, || self.pool.spawn_looker())
    }

    /// Returns whether it was taken away while its thread waited.
    fn is_lost(&self) -> bool {
        self.pool.handover.end(self.thread)
    }

    /// Gives it back, unless it was taken away.
    fn give_up(self) {
        if !self.is_lost() {
            self.pool.release();
        }
    }
}

/// Limits of the number of threads.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Permits to read at most, at least 1.
    pub readers_max: usize,
    /// Threads in all, at most 64.
    pub threads_max: usize,
}

type Work = dyn Fn(&Arc<Pool>, u16) + Send + Sync;
type HasUnread = dyn Fn() -> bool + Send + Sync;

/// The threads of one mount.
pub struct Pool {
    limits: Limits,
    work: Box<Work>,
    unread: Box<HasUnread>,
    handover: DelayedHandover,
    looker: Mutex<Option<JoinHandle<()>>>,
    start: Instant,
    /// When all readers were last busy with requests unread, in microseconds since the start.
    crowded_at: AtomicU64,
    /// Reads in a row of which this was so.
    crowded_reads: AtomicU32,
    /// Readers that wait for a request.
    free: AtomicUsize,
    /// Permits that there are; changes under the roster's lock.
    readers: AtomicUsize,
    /// True if the only reader may look before it sleeps, and whether that pays.
    looks: bool,
    busy_poll: BusyPoll,
    roster: Mutex<Roster>,
    permit_freed: Condvar,
    thread_ended: Condvar,
}

#[derive(Default)]
struct Roster {
    permits: usize,
    parked: usize,
    /// One bit per thread number in use.
    live: u64,
    closing: bool,
}

const _: () = assert!(CHANNELS_PER_INCARNATION as u32 == u64::BITS);

impl Pool {
    /// Creates a pool whose threads run `work` with their number; `unread` says whether requests wait to be read.
    /// Nothing runs before [`Pool::start`].
    pub fn new(
        limits: Limits,
        work: impl Fn(&Arc<Pool>, u16) + Send + Sync + 'static,
        unread: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Arc<Pool> {
        let threads_max = limits.threads_max.clamp(1, u64::BITS as usize);
        let readers_max = limits.readers_max.clamp(1, threads_max);
        let roster = Roster { permits: 1, ..Roster::default() };
        Arc::new(Pool {
            limits: Limits { readers_max, threads_max },
            work: Box::new(work),
            unread: Box::new(unread),
            handover: DelayedHandover::default(),
            looker: Mutex::default(),
            start: Instant::now(),
            crowded_at: AtomicU64::new(0),
            crowded_reads: AtomicU32::new(0),
            free: AtomicUsize::new(0),
            readers: AtomicUsize::new(1),
            looks: looking_max() > 0,
            busy_poll: BusyPoll::default(),
            roster: Mutex::new(rank::MOUNT_POOL, roster),
            permit_freed: Condvar::new(),
            thread_ended: Condvar::new(),
        })
    }

    /// Starts the first thread.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(self: &Arc<Pool>) -> io::Result<()> {
        let number = self.roster.lock().enrol(self.limits.threads_max);
        number.map_or(Ok(()), |number| self.spawn(number))
    }

    /// Waits until the calling thread, of this number, has a permit. `false` means that the thread is to end.
    #[must_use]
    pub fn obtain(self: &Arc<Pool>, thread: u16) -> bool {
        let mut roster = self.roster.lock();
        while roster.permits == 0 && !roster.closing {
            if self.park(&mut roster) {
                return false;
            }
        }
        if roster.closing {
            return false;
        }
        assert!(roster.permits > 0, "thread {thread} takes a permit that is not there");
        roster.permits -= 1;
        PERMIT.set(Some(Permit { pool: Arc::clone(self), thread }));
        true
    }

    /// Waits for a permit for a while; says whether in vain.
    fn park(&self, roster: &mut MutexGuard<'_, Roster>) -> bool {
        roster.parked += 1;
        let timeout = Duration::from_millis(PARKED_MS_MAX);
        let in_vain = self.permit_freed.wait_for(roster, timeout).timed_out();
        roster.parked -= 1;
        in_vain && roster.permits == 0
    }

    /// Returns whether the calling thread still has its permit, now that it waits for nobody.
    #[must_use]
    pub fn holds_permit() -> bool {
        PERMIT.with_borrow_mut(|permit| {
            drop(permit.take_if(|permit| permit.is_lost()));
            permit.is_some()
        })
    }

    /// Calls `read`, which waits for a request. Before that, a single reader polls for a moment. Returns `None` without
    /// a call if the thread has given up its permit, because there are too many.
    pub fn read<T>(self: &Arc<Pool>, read: impl FnOnce() -> T) -> Option<T> {
        if self.readers.load(Ordering::Relaxed) > 1 {
            if self.leave() {
                return None;
            }
        } else if self.looks {
            self.busy_poll.look(|| (self.unread)());
        }
        self.free.fetch_add(1, Ordering::Relaxed);
        let outcome = read();
        let are_busy = self.free.fetch_sub(1, Ordering::Relaxed) == 1;
        if self.limits.readers_max > 1 && are_busy {
            self.judge();
        }
        let thread = PERMIT.with_borrow(|permit| permit.as_ref().map(|permit| permit.thread));
        if let Some(thread) = thread {
            self.handover.begin(thread, || self.spawn_looker());
        }
        Some(outcome)
    }

    /// Returns whether the calling thread was one reader too many, and is none any more.
    fn leave(&self) -> bool {
        let uncrowded = self.micros().saturating_sub(self.crowded_at.load(Ordering::Relaxed));
        if uncrowded < UNCROWDED_US {
            return false;
        }
        let roster = self.roster.lock();
        let readers = self.readers.load(Ordering::Relaxed);
        // A permit that is free is for a thread that comes back: somebody has to read until then.
        if roster.permits + 1 >= readers {
            return false;
        }
        if PERMIT.take().is_some_and(|permit| !permit.is_lost()) {
            self.readers.store(readers - 1, Ordering::Relaxed);
        }
        true
    }

    /// Decides whether there is to be one reader more: all are busy, and leave requests unread again and again.
    fn judge(self: &Arc<Pool>) {
        if !(self.unread)() {
            return self.crowded_reads.store(0, Ordering::Relaxed);
        }
        // Also when no reader is added: those there are must not leave while requests are unread.
        self.crowded_at.store(self.micros(), Ordering::Relaxed);
        if self.crowded_reads.fetch_add(1, Ordering::Relaxed) + 1 < CROWDED_READS {
            return;
        }
        self.crowded_reads.store(0, Ordering::Relaxed);
        let mut roster = self.roster.lock();
        if self.readers.load(Ordering::Relaxed) < self.limits.readers_max && !roster.closing {
            self.readers.fetch_add(1, Ordering::Relaxed);
            roster.permits += 1;
            self.hand_out(roster);
        }
    }

    fn micros(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Returns whether no other thread has a permit.
    fn is_last_reader(&self) -> bool {
        self.roster.lock().permits + 1 >= self.readers.load(Ordering::Relaxed)
    }

    /// Starts the thread that looks for requests that nobody reads.
    fn spawn_looker(self: &Arc<Pool>) -> bool {
        let pool = Arc::clone(self);
        let look = move || pool.handover.look(|| (pool.unread)(), || pool.release());
        let spawned = thread::Builder::new().name("mount-look".into()).stack_size(STACK).spawn(look);
        let looks = spawned.is_ok();
        *self.looker.lock() = spawned.ok();
        looks
    }

    fn release(self: &Arc<Pool>) {
        let mut roster = self.roster.lock();
        roster.permits += 1;
        let readers = self.readers.load(Ordering::Relaxed);
        assert!(roster.permits <= readers, "{} permits are free, of {readers}", roster.permits);
        // Others read: whoever comes back finds its permit.
        if roster.closing || roster.permits < readers {
            return;
        }
        self.hand_out(roster);
    }

    /// Makes a parked thread, or a new one, take a free permit.
    fn hand_out(self: &Arc<Pool>, mut roster: MutexGuard<'_, Roster>) {
        if roster.parked > 0 {
            self.permit_freed.notify_one();
        } else if let Some(number) = roster.enrol(self.limits.threads_max) {
            drop(roster);
            if let Err(error) = self.spawn(number) {
                log::warn!(why:% = error; "no further thread for the mount, requests wait for each other");
            }
        }
    }

    fn spawn(self: &Arc<Pool>, number: u16) -> io::Result<()> {
        // Made before the thread: it gives the number back if there is no thread.
        let mut target = Target { pool: Arc::clone(self), number, has_begun: false };
        let builder = thread::Builder::new().name(format!("mount-{number}")).stack_size(STACK);
        let work = move || {
            target.has_begun = true;
            (target.pool.work)(&target.pool, target.number);
        };
        builder.spawn(work).map(drop)
    }

    /// Ends all threads as they come to ask for a permit.
    pub fn close(&self) {
        self.roster.lock().closing = true;
        self.permit_freed.notify_all();
        self.handover.close();
    }

    /// Waits until all threads have ended.
    pub fn join(&self) {
        let mut roster = self.roster.lock();
        while roster.live != 0 {
            self.thread_ended.wait(&mut roster);
        }
        drop(roster);
        // Also here: threads that panicked have not called `close`.
        self.handover.close();
        let looker = self.looker.lock().take();
        // A thread that panicked has said so.
        looker.into_iter().for_each(|looker| drop(looker.join()));
    }
}

impl Roster {
    /// Takes the lowest free thread number.
    fn enrol(&mut self, threads_max: usize) -> Option<u16> {
        // The lowest: few threads use few channels, each of which has a record at every node it has changed.
        let number = self.live.trailing_ones();
        if number as usize >= threads_max {
            return None;
        }
        assert!(number < u64::BITS, "thread {number} has no bit in the roster");
        self.live |= 1 << number;
        Some(number as u16)
    }
}

/// A thread's place in the roster, given back however the thread ends.
struct Target {
    pool: Arc<Pool>,
    number: u16,
    /// True if the thread has begun: the system may have none, and then another thread gives it back.
    has_begun: bool,
}

impl Drop for Target {
    fn drop(&mut self) {
        let is_own = |permit: &mut Permit| self.has_begun && permit.thread == self.number;
        let permit = PERMIT.try_with(|permit| permit.borrow_mut().take_if(is_own)).unwrap_or(None);
        let held = permit.is_some_and(|permit| !permit.is_lost());
        let mut roster = self.pool.roster.lock();
        roster.live &= !(1 << self.number);
        roster.permits += usize::from(held);
        self.pool.thread_ended.notify_all();
        // A permit may have come free while this thread was about to end, and there was no place for another one.
        let nobody_reads = roster.permits >= self.pool.readers.load(Ordering::Relaxed);
        if nobody_reads && self.has_begun && !roster.closing && (!held || thread::panicking()) {
            self.pool.hand_out(roster);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc;

    fn run(limits: Limits, work: impl Fn(&Arc<Pool>, u16) + Send + Sync + 'static) {
        let pool = Pool::new(limits, work, || true);
        pool.start().unwrap();
        pool.join();
    }

    #[test]
    fn without_blocking_no_other_thread_is_made() {
        let numbers = Arc::new(Mutex::<Vec<u16>>::default());
        let seen = Arc::clone(&numbers);
        run(Limits { readers_max: 1, threads_max: 8 }, move |pool, number| {
            while pool.obtain(number) {
                for _ in 0..100 {
                    assert!(Pool::holds_permit());
                    seen.lock().push(number);
                }
                pool.close();
            }
        });
        assert_eq!(*numbers.lock(), [0; 100]);
    }

    #[test]
    fn a_thread_that_blocks_is_replaced_up_to_the_limit() {
        let most = 4;
        let (all_blocked, met) = (Arc::new(Barrier::new(most)), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&met);
        run(Limits { readers_max: 1, threads_max: most }, move |pool, number| {
            assert!(usize::from(number) < most);
            while pool.obtain(number) {
                about_to_block();
                about_to_block();
                all_blocked.wait();
                count.fetch_add(1, Ordering::Relaxed);
                pool.close();
            }
        });
        assert_eq!(met.load(Ordering::Relaxed), most);
    }

    #[test]
    fn readers_come_when_requests_are_left_unread_and_go_when_none_are() {
        let (came, stayed) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
        let (crowded, count) = (Arc::new(AtomicBool::new(true)), Arc::clone(&stayed));
        let unread = Arc::clone(&crowded);
        let work = move |pool: &Arc<Pool>, number| {
            if pool.obtain(number) {
                came.fetch_add(1, Ordering::Relaxed);
                // Each goes on reading: what one has left unread long ago brings nobody on a busy machine.
                while came.load(Ordering::Relaxed) < 3 {
                    assert!(pool.read(|| ()).is_some());
                }
                crowded.store(false, Ordering::Relaxed);
                while pool.read(|| ()).is_some() && pool.readers.load(Ordering::Relaxed) > 1 {}
                if Pool::holds_permit() {
                    count.fetch_add(1, Ordering::Relaxed);
                    // Else the permit would go to another thread when this one ends.
                    pool.close();
                }
            }
        };
        let limits = Limits { readers_max: 3, threads_max: 8 };
        let pool = Pool::new(limits, work, move || unread.load(Ordering::Relaxed));
        // Nobody looks who is slow: threads may be, here.
        pool.handover.close();
        pool.start().unwrap();
        pool.join();
        assert_eq!(stayed.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_freed_permit_goes_to_a_parked_thread() {
        let (sender, numbers) = mpsc::channel();
        let work = move |pool: &Arc<Pool>, number| {
            let mut rounds = 0;
            while pool.obtain(number) {
                sender.send(number).unwrap();
                about_to_block();
                if let Some(permit) = PERMIT.take() {
                    permit.give_up();
                }
                rounds += 1;
                if rounds == 50 {
                    pool.close();
                }
            }
        };
        let pool = Pool::new(Limits { readers_max: 1, threads_max: 2 }, work, || false);
        pool.start().unwrap();
        pool.join();
        drop(pool);
        assert!(numbers.iter().count() >= 50);
    }

    #[test]
    fn after_a_panic_another_thread_has_the_permit_and_the_number() {
        let rounds = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&rounds);
        let work = move |pool: &Arc<Pool>, number| {
            assert!(pool.obtain(number) && number == 0);
            assert_ne!(count.fetch_add(1, Ordering::Relaxed), 0, "the first thread ends here, on purpose");
        };
        let pool = Pool::new(Limits { readers_max: 1, threads_max: 1 }, work, || false);
        pool.start().unwrap();
        pool.join();
        assert_eq!(rounds.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_thread_that_cannot_begin_takes_no_permit_along() {
        let kept = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&kept);
        run(Limits { readers_max: 1, threads_max: 1 }, move |pool, number| {
            if pool.obtain(number) {
                drop(Target { pool: Arc::clone(pool), number: 5, has_begun: false });
                seen.store(Pool::holds_permit(), Ordering::Relaxed);
            }
            pool.close();
        });
        assert!(kept.load(Ordering::Relaxed));
    }

    #[test]
    fn a_permit_that_comes_free_while_the_last_thread_ends_is_handed_out() {
        let (sender, numbers) = mpsc::channel();
        let work = move |pool: &Arc<Pool>, number| {
            sender.send((number, pool.obtain(number))).unwrap();
            pool.close();
        };
        let pool = Pool::new(Limits { readers_max: 1, threads_max: 1 }, work, || false);
        let number = pool.roster.lock().enrol(1).unwrap();
        // All places were taken when the permit came free.
        drop(Target { pool: Arc::clone(&pool), number, has_begun: true });
        pool.join();
        drop(pool);
        assert_eq!(numbers.iter().collect::<Vec<_>>(), [(0, true)]);
    }

    #[test]
    fn outside_of_a_pool_blocking_means_nothing() {
        about_to_block();
        assert!(!Pool::holds_permit());
    }
}
