//! A read-write lock with a rank.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::Rank;
use crate::held::{HeldLock, LockPosition};

/// Ranked `parking_lot::RwLock`. A reader must not lock it once more: a writer in between would wait for it, and block
/// it.
pub struct RwLock<T: ?Sized> {
    place: LockPosition,
    inner: parking_lot::RwLock<T>,
}

/// The lock for reading, until it is dropped.
#[must_use = "the lock is given up when this is dropped"]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    inner: parking_lot::RwLockReadGuard<'a, T>,
    _held: HeldLock,
}

/// The lock for writing, until it is dropped.
#[must_use = "the lock is given up when this is dropped"]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    inner: parking_lot::RwLockWriteGuard<'a, T>,
    _held: HeldLock,
}

impl<T> RwLock<T> {
    /// Creates a lock of this rank.
    pub const fn new(rank: Rank, value: T) -> RwLock<T> {
        RwLock::numbered(rank, 0, value)
    }

    /// Returns the lock with a number among those of its rank, as [`crate::Mutex::numbered`].
    pub const fn numbered(rank: Rank, number: u32, value: T) -> RwLock<T> {
        RwLock { place: LockPosition::new(rank, number), inner: parking_lot::RwLock::new(value) }
    }
}

impl<T: Default> Default for RwLock<T> {
    /// Returns a lock under which nothing else is taken.
    fn default() -> RwLock<T> {
        RwLock::new(crate::rank::LEAF, T::default())
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until nobody writes.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.place.check();
        RwLockReadGuard { inner: self.inner.read(), _held: self.place.hold() }
    }

    /// Like [`RwLock::read`], also for a thread that is a reader already: it passes waiting writers.
    #[inline]
    pub fn read_recursive(&self) -> RwLockReadGuard<'_, T> {
        self.place.check_again();
        RwLockReadGuard { inner: self.inner.read_recursive(), _held: self.place.hold() }
    }

    /// Returns the lock for writing, if nobody has it any more within a time. Who gives up may ask against the order.
    pub fn try_write_for(&self, time: Duration) -> Option<RwLockWriteGuard<'_, T>> {
        let inner = self.inner.try_write_for(time)?;
        Some(RwLockWriteGuard { inner, _held: self.place.hold() })
    }

    /// Waits until nobody reads or writes.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.place.check();
        RwLockWriteGuard { inner: self.inner.write(), _held: self.place.hold() }
    }

    /// Returns the value of a lock that nobody else can have.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}
