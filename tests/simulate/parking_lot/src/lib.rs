//! The part of `parking_lot` that Bivouac uses, with the same types. Who waits, and who gets what becomes free, is the
//! simulated schedule's choice; every lock and every release is a place where another thread may go on.
#![allow(unsafe_code, reason = "the traits of locks are so")]

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};
use std::time::{Duration, Instant};

use bivouac_sim_kernel::{point, wait_on, wake_all, wake_one};
use lock_api::GuardNoSend;

/// What a lock is known by to the schedule.
fn address<T>(of: &T) -> usize {
    std::ptr::from_ref(of).addr()
}

/// Attempts to take a lock, for the last time at `timeout`; whether it was taken.
fn take_until(what: &'static str, address: usize, timeout: Instant, take: impl Fn() -> bool) -> bool {
    loop {
        // Another thread may run, and release the lock, while the clock is read: a failed attempt and the wait that follows
        // it are one step, or the release wakes nobody.
        let left = timeout.saturating_duration_since(Instant::now());
        if take() {
            return true;
        }
        if left.is_zero() {
            return false;
        }
        wait_on(what, address, Some(left));
    }
}

/// As `parking_lot::RawMutex`.
pub struct RawMutex(AtomicBool);

// SAFETY: `lock` returns when it has set the flag, which was not set; nobody but the holder takes it back.
unsafe impl lock_api::RawMutex for RawMutex {
    #[allow(clippy::declare_interior_mutable_const, reason = "as lock_api wants it")]
    const INIT: RawMutex = RawMutex(AtomicBool::new(false));
    type GuardMarker = GuardNoSend;

    fn lock(&self) {
        point();
        while !self.take() {
            wait_on("lock", address(self), None);
        }
    }

    fn try_lock(&self) -> bool {
        point();
        self.take()
    }

    unsafe fn unlock(&self) {
        self.0.store(false, Ordering::Release);
        wake_one(address(self));
        point();
    }
}

impl RawMutex {
    fn take(&self) -> bool {
        !self.0.swap(true, Ordering::Acquire)
    }
}

// SAFETY: as above; who gives up has not set the flag.
unsafe impl lock_api::RawMutexTimed for RawMutex {
    type Duration = Duration;
    type Instant = Instant;

    fn try_lock_for(&self, timeout: Duration) -> bool {
        self.try_lock_until(Instant::now() + timeout)
    }

    fn try_lock_until(&self, timeout: Instant) -> bool {
        take_until("lock", address(self), timeout, || self.take())
    }
}

/// As `parking_lot::RawRwLock`: the number of readers, or -1 for a writer.
pub struct RawRwLock {
    holders: AtomicIsize,
    writers: AtomicIsize,
}

impl RawRwLock {
    fn share(&self, beside_writers: bool) -> bool {
        let holders = self.holders.load(Ordering::Acquire);
        let free = holders >= 0 && (beside_writers || self.writers.load(Ordering::Acquire) == 0);
        if free {
            self.holders.store(holders + 1, Ordering::Release);
        }
        free
    }

    fn take(&self) -> bool {
        let free = self.holders.load(Ordering::Acquire) == 0;
        if free {
            self.holders.store(-1, Ordering::Release);
        }
        free
    }

    fn left(&self) {
        wake_all(address(self));
        point();
    }
}

// SAFETY: only one thread runs at a time, and it is taken from another one only in `point` and `wait_on`; so the number is
// read and changed in one step.
unsafe impl lock_api::RawRwLock for RawRwLock {
    #[allow(clippy::declare_interior_mutable_const, reason = "as lock_api wants it")]
    const INIT: RawRwLock = RawRwLock { holders: AtomicIsize::new(0), writers: AtomicIsize::new(0) };
    type GuardMarker = GuardNoSend;

    fn lock_shared(&self) {
        point();
        // Behind writers that wait, as there.
        while !self.share(false) {
            wait_on("read lock", address(self), None);
        }
    }

    fn try_lock_shared(&self) -> bool {
        point();
        self.share(false)
    }

    unsafe fn unlock_shared(&self) {
        self.holders.fetch_sub(1, Ordering::AcqRel);
        self.left();
    }

    fn lock_exclusive(&self) {
        point();
        self.writers.fetch_add(1, Ordering::AcqRel);
        while !self.take() {
            wait_on("write lock", address(self), None);
        }
        self.writers.fetch_sub(1, Ordering::AcqRel);
    }

    fn try_lock_exclusive(&self) -> bool {
        point();
        self.take()
    }

    unsafe fn unlock_exclusive(&self) {
        self.holders.store(0, Ordering::Release);
        self.left();
    }
}

// SAFETY: as above.
unsafe impl lock_api::RawRwLockRecursive for RawRwLock {
    fn lock_shared_recursive(&self) {
        point();
        while !self.share(true) {
            wait_on("read lock", address(self), None);
        }
    }

    fn try_lock_shared_recursive(&self) -> bool {
        point();
        self.share(true)
    }
}

// SAFETY: as above; who gives up holds nothing.
unsafe impl lock_api::RawRwLockTimed for RawRwLock {
    type Duration = Duration;
    type Instant = Instant;

    fn try_lock_shared_for(&self, timeout: Duration) -> bool {
        self.try_lock_shared_until(Instant::now() + timeout)
    }

    fn try_lock_shared_until(&self, timeout: Instant) -> bool {
        take_until("read lock", address(self), timeout, || self.share(false))
    }

    fn try_lock_exclusive_for(&self, timeout: Duration) -> bool {
        self.try_lock_exclusive_until(Instant::now() + timeout)
    }

    fn try_lock_exclusive_until(&self, timeout: Instant) -> bool {
        self.writers.fetch_add(1, Ordering::AcqRel);
        let taken = take_until("write lock", address(self), timeout, || self.take());
        self.writers.fetch_sub(1, Ordering::AcqRel);
        if !taken {
            // Readers that waited behind this one.
            wake_all(address(self));
        }
        taken
    }
}

/// As `parking_lot::Mutex`.
pub type Mutex<T> = lock_api::Mutex<RawMutex, T>;
/// As `parking_lot::MutexGuard`.
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawMutex, T>;
/// As `parking_lot::RwLock`.
pub type RwLock<T> = lock_api::RwLock<RawRwLock, T>;
/// As `parking_lot::RwLockReadGuard`.
pub type RwLockReadGuard<'a, T> = lock_api::RwLockReadGuard<'a, RawRwLock, T>;
/// As `parking_lot::RwLockWriteGuard`.
pub type RwLockWriteGuard<'a, T> = lock_api::RwLockWriteGuard<'a, RawRwLock, T>;

/// As `parking_lot::WaitTimeoutResult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether the time was over.
    #[must_use]
    pub fn timed_out(self) -> bool {
        self.0
    }
}

/// As `parking_lot::Condvar`. Its address is what it is known by, so it has one of its own.
#[derive(Default)]
pub struct Condvar {
    _place: AtomicBool,
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Condvar")
    }
}

impl Condvar {
    /// Nobody waits.
    #[must_use]
    pub const fn new() -> Condvar {
        Condvar { _place: AtomicBool::new(false) }
    }

    /// Wakes one that waits.
    pub fn notify_one(&self) -> bool {
        let woken = wake_one(address(self));
        point();
        woken
    }

    /// Wakes all that wait.
    pub fn notify_all(&self) -> usize {
        let woken = wake_all(address(self));
        point();
        woken
    }

    fn wait_within<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, time: Option<Duration>) -> bool {
        // SAFETY: the guard shows that the lock is held; it is held again when this returns.
        let raw = unsafe { MutexGuard::mutex(guard).raw() };
        raw.0.store(false, Ordering::Release);
        wake_one(address(raw));
        let woken = wait_on("condition", address(self), time);
        while !raw.take() {
            wait_on("lock", address(raw), None);
        }
        woken
    }

    /// Waits until it is woken.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        self.wait_within(guard, None);
    }

    /// The same for a time at most.
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) -> WaitTimeoutResult {
        WaitTimeoutResult(!self.wait_within(guard, Some(time)))
    }

    /// The same until a moment at most.
    pub fn wait_until<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, until: Instant) -> WaitTimeoutResult {
        self.wait_for(guard, until.saturating_duration_since(Instant::now()))
    }

    /// Waits while a condition holds.
    pub fn wait_while<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) {
        while condition(guard) {
            self.wait(guard);
        }
    }

    /// The same for a time at most.
    pub fn wait_while_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut condition: impl FnMut(&mut T) -> bool,
        time: Duration,
    ) -> WaitTimeoutResult {
        let until = Instant::now() + time;
        while condition(guard) {
            if self.wait_until(guard, until).timed_out() {
                return WaitTimeoutResult(condition(guard));
            }
        }
        WaitTimeoutResult(false)
    }
}
