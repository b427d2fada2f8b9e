//! A mutex with a rank, and the condition variable that goes with it.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use crate::Rank;
use crate::held::{HeldLock, LockPosition, assert_only};

/// Ranked `parking_lot::Mutex`.
pub struct Mutex<T: ?Sized> {
    place: LockPosition,
    inner: parking_lot::Mutex<T>,
}

/// The lock, until it is dropped.
#[must_use = "the lock is given up when this is dropped"]
pub struct MutexGuard<'a, T: ?Sized> {
    // Dropped first: the lock is free before the thread is said not to hold it.
    inner: parking_lot::MutexGuard<'a, T>,
    held: HeldLock,
}

impl<T> Mutex<T> {
    /// Creates a lock of this rank.
    pub const fn new(rank: Rank, value: T) -> Mutex<T> {
        Mutex::numbered(rank, 0, value)
    }

    /// Returns the lock with a number among those of its rank. Where a thread may have several of these, it takes them
    /// in the order of their numbers.
    pub const fn numbered(rank: Rank, number: u32, value: T) -> Mutex<T> {
        Mutex { place: LockPosition::new(rank, number), inner: parking_lot::Mutex::new(value) }
    }

    /// Returns the value of a lock that nobody else knows any more.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: Default> Default for Mutex<T> {
    /// Returns a lock under which nothing else is taken.
    fn default() -> Mutex<T> {
        Mutex::new(crate::rank::LEAF, T::default())
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.place.check();
        MutexGuard { inner: self.inner.lock(), held: self.place.hold() }
    }

    /// Returns the lock if nobody has it. Who does not wait may ask against the order.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let inner = self.inner.try_lock()?;
        Some(MutexGuard { inner, held: self.place.hold() })
    }

    /// Returns the lock, if it becomes free within a time. Who gives up may ask against the order.
    pub fn try_lock_for(&self, time: Duration) -> Option<MutexGuard<'_, T>> {
        let inner = self.inner.try_lock_for(time)?;
        Some(MutexGuard { inner, held: self.place.hold() })
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// Ranked `parking_lot::Condvar`. A thread that waits holds no lock other than the one that it releases, except those
/// under which waiting is permitted.
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// Creates it without waiters.
    pub const fn new() -> Condvar {
        Condvar(parking_lot::Condvar::new())
    }

    /// Wakes one that waits; whether there was one.
    pub fn notify_one(&self) -> bool {
        self.0.notify_one()
    }

    /// Wakes all that wait, and says how many.
    pub fn notify_all(&self) -> usize {
        self.0.notify_all()
    }

    /// Waits until it is woken.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        assert_only("a thread waits", Some(&guard.held));
        self.0.wait(&mut guard.inner);
    }

    /// Waits until a moment at most.
    pub fn wait_until<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        until: Instant,
    ) -> parking_lot::WaitTimeoutResult {
        assert_only("a thread waits", Some(&guard.held));
        self.0.wait_until(&mut guard.inner, until)
    }

    /// Waits for a time at most.
    pub fn wait_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        time: Duration,
    ) -> parking_lot::WaitTimeoutResult {
        assert_only("a thread waits", Some(&guard.held));
        self.0.wait_for(&mut guard.inner, time)
    }

    /// Waits while a condition holds, for a time at most.
    pub fn wait_while_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        condition: impl FnMut(&mut T) -> bool,
        time: Duration,
    ) -> parking_lot::WaitTimeoutResult {
        assert_only("a thread waits", Some(&guard.held));
        self.0.wait_while_for(&mut guard.inner, condition, time)
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
}
