//! Locks that know their place in the one order in which locks are taken.
//!
//! Every lock has a [`Rank`]. A thread takes locks in the order of their ranks, outermost first, so no circle of
//! threads that wait for each other can form. The order is the table in [`rank`]. In debug builds, and so in all
//! tests, a lock that is taken against the order panics, whether or not anybody else wants it at that moment; and so
//! does a wait for other nodes under a lock that is not meant for it ([`assert_may_wait`]). Release builds do not look:
//! there a ranked lock is a `parking_lot` lock and nothing else.

mod held;
mod mutex;
pub mod rank;
mod rwlock;

pub use held::{HeldLock as InOrder, LockPosition, assert_may_wait, on_behalf_of_peer, wait_for_backup};
pub use mutex::{Condvar, Mutex, MutexGuard};
pub use rank::Rank;
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
