//! Locks that a thread holds, in debug builds.

use crate::Rank;

/// Position of a lock in the lock order: its rank, and its number among those of one rank that may be held together. A
/// lock that is a row of a table has one, too; its owner calls [`LockPosition::check`] and [`LockPosition::hold`].
#[derive(Clone, Copy)]
pub struct LockPosition {
    #[cfg(debug_assertions)]
    rank: Rank,
    #[cfg(debug_assertions)]
    number: u32,
}

/// A lock that the thread holds, until this is dropped.
#[must_use = "it is not held any more when this is dropped"]
pub struct HeldLock {
    #[cfg(debug_assertions)]
    entry: u64,
    // Guards stay in the thread that took the lock; so does this.
    _here: std::marker::PhantomData<*const ()>,
}

#[cfg(debug_assertions)]
mod checked {
    use super::{HeldLock, LockPosition};
    use crate::Rank;
    use std::cell::RefCell;

    /// Locks that a thread holds, in the order in which they were taken.
    #[derive(Default)]
    struct Stack {
        next: u64,
        entries: Vec<(u64, LockPosition)>,
    }

    thread_local! {
        static STACK: RefCell<Stack> = RefCell::default();
    }

    impl LockPosition {
        /// Returns the place of the lock of this rank that has this number.
        #[must_use]
        pub const fn new(rank: Rank, number: u32) -> LockPosition {
            LockPosition { rank, number }
        }

        /// Checks, before the lock is waited for, that it stands behind everything that the thread holds.
        ///
        /// # Panics
        /// When it does not.
        pub fn check(self) {
            let broken = STACK.try_with(|stack| {
                let stack = stack.borrow();
                stack.entries.iter().map(|(_, place)| *place).find(|held| !held.is_before(self))
            });
            if let Ok(Some(held)) = broken {
                // Destructors of a thread that panics take locks in any order; a second panic would end the process.
                assert!(
                    std::thread::panicking(),
                    "lock order: {} is taken while {} is held; crates/ranks/src/rank.rs has the order",
                    self.rank,
                    held.rank
                );
            }
        }

        /// Checks a lock that the thread may have already, and that is given to it again.
        pub(crate) fn check_again(self) {
            let has_it =
                |stack: &RefCell<Stack>| stack.borrow().entries.iter().any(|(_, held)| held.is(self));
            if !STACK.try_with(has_it).unwrap_or(true) {
                self.check();
            }
        }

        fn is(self, other: LockPosition) -> bool {
            (self.rank.number(), self.number) == (other.rank.number(), other.number)
        }

        fn is_before(self, next: LockPosition) -> bool {
            match self.rank.number().cmp(&next.rank.number()) {
                std::cmp::Ordering::Less => true,
                std::cmp::Ordering::Equal => self.rank.has_siblings() && self.number < next.number,
                std::cmp::Ordering::Greater => false,
            }
        }

        /// Notes that the lock is taken.
        pub fn hold(self) -> HeldLock {
            let push = |stack: &RefCell<Stack>| {
                let mut stack = stack.borrow_mut();
                stack.next += 1;
                let entry = stack.next;
                stack.entries.push((entry, self));
                entry
            };
            // A thread that ends checks nothing any more.
            HeldLock { entry: STACK.try_with(push).unwrap_or(0), _here: std::marker::PhantomData }
        }
    }

    impl Drop for HeldLock {
        fn drop(&mut self) {
            let _ = STACK.try_with(|stack| {
                let entries = &mut stack.borrow_mut().entries;
                if let Some(at) = entries.iter().rposition(|(entry, _)| *entry == self.entry) {
                    entries.remove(at);
                }
            });
        }
    }

    /// Returns the innermost lock that the thread holds of those for which `is_it` says so, but for one.
    fn find(except: Option<&HeldLock>, is_it: impl Fn(&Rank) -> bool) -> Option<Rank> {
        let find = |stack: &std::cell::RefCell<Stack>| {
            let stack = stack.borrow();
            let mut held = stack.entries.iter().rev();
            let is_other = |entry: u64| except.is_none_or(|held| held.entry != entry);
            held.find(|(entry, place)| is_other(*entry) && is_it(&place.rank)).map(|(_, place)| place.rank)
        };
        STACK.try_with(find).ok().flatten()
    }

    /// The thread's stack of held locks, which is empty until this is dropped.
    pub(crate) struct SuspendedStack(Vec<(u64, LockPosition)>);

    impl SuspendedStack {
        pub(crate) fn begin() -> SuspendedStack {
            SuspendedStack(
                STACK.try_with(|stack| std::mem::take(&mut stack.borrow_mut().entries)).unwrap_or_default(),
            )
        }
    }

    impl Drop for SuspendedStack {
        fn drop(&mut self) {
            let _ = STACK.try_with(|stack| {
                let entries = &mut stack.borrow_mut().entries;
                // What was taken apart and is still held stays behind what there was.
                let rest = std::mem::replace(entries, std::mem::take(&mut self.0));
                entries.extend(rest);
            });
        }
    }

    pub(crate) fn short_held(except: Option<&HeldLock>) -> Option<Rank> {
        find(except, |rank| !rank.may_wait())
    }
}

#[cfg(not(debug_assertions))]
impl LockPosition {
    /// Creates the place of the lock of this rank that has this number.
    #[must_use]
    pub const fn new(_: Rank, _: u32) -> LockPosition {
        LockPosition {}
    }

    /// Checks nothing, in release builds.
    #[inline(always)]
    pub fn check(self) {}

    #[inline(always)]
    pub(crate) fn check_again(self) {}

    /// Notes that the lock is taken.
    #[inline(always)]
    pub fn hold(self) -> HeldLock {
        HeldLock { _here: std::marker::PhantomData }
    }
}

/// Does what another node does when it is asked: with locks of its own, as in a thread of its own. The asker's
/// locks do not count meanwhile; that none of them is held for a moment only is asserted first.
pub fn on_behalf_of_peer<R>(act: impl FnOnce() -> R) -> R {
    assert_may_wait("another node is asked");
    #[cfg(debug_assertions)]
    let _apart = checked::SuspendedStack::begin();
    act()
}

/// Does what a backup is asked, and waits for it. All locks may be held, also those that are held for a moment only: a
/// backup waits for nobody, and what it does takes locks of its own.
pub fn wait_for_backup<R>(act: impl FnOnce() -> R) -> R {
    #[cfg(debug_assertions)]
    let _apart = checked::SuspendedStack::begin();
    act()
}

/// Asserts that the thread holds no lock under which nobody may wait for others: in front of everything that asks
/// another node, pauses, or calls back whoever may do so.
///
/// # Panics
/// When it does, in debug builds.
#[inline(always)]
#[track_caller]
pub fn assert_may_wait(what: &str) {
    assert_only(what, None);
}

/// Like [`assert_may_wait`], except for one lock, which is released during the wait.
#[inline(always)]
#[track_caller]
pub(crate) fn assert_only(what: &str, except: Option<&HeldLock>) {
    #[cfg(debug_assertions)]
    if let Some(rank) = checked::short_held(except) {
        assert!(std::thread::panicking(), "{what} while {rank} is held, under which nobody may wait");
    }
    #[cfg(not(debug_assertions))]
    let _ = (what, except);
}

#[cfg(test)]
mod tests {
    use crate::rank::{ADVISORY, AGENDA, PART_WRITES, SLOT};
    use crate::{Condvar, Mutex, RwLock, assert_may_wait, on_behalf_of_peer};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn refusal(act: impl FnOnce()) -> Option<String> {
        let panic = catch_unwind(AssertUnwindSafe(act)).err()?;
        panic.downcast_ref::<String>().cloned()
    }

    #[test]
    fn locks_are_taken_in_the_order_of_their_ranks() {
        let (outer, inner) = (Mutex::new(ADVISORY, 1), Mutex::new(SLOT, 2));
        let guard = outer.lock();
        assert_eq!((*inner.lock(), *guard), (2, 1));
        drop(guard);
        let guard = inner.lock();
        let said = refusal(|| drop(outer.lock())).unwrap();
        assert!(
            said.contains("advisory locks of a file (rank 210) is taken while the lock of a slot's"),
            "{said}"
        );
        assert!(outer.try_lock().is_some(), "who does not wait may ask");
        drop(guard);
        drop(outer.lock());
    }

    #[test]
    fn those_of_one_rank_are_taken_by_their_numbers() {
        let slots: Vec<_> = (0..3).map(|number| Mutex::numbered(SLOT, number, ())).collect();
        let guards = (slots[0].lock(), slots[2].lock());
        assert!(refusal(|| drop(slots[1].lock())).is_some());
        drop(guards.1);
        drop(slots[1].lock());
        let two = [Mutex::new(ADVISORY, ()), Mutex::new(ADVISORY, ())];
        drop(guards.0);
        let _first = two[0].lock();
        assert!(refusal(|| drop(two[1].lock())).is_some(), "only those that have numbers");
    }

    #[test]
    fn nobody_waits_under_a_lock_that_is_held_for_a_moment() {
        let (long, short) = (RwLock::numbered(PART_WRITES, 1, ()), Mutex::new(AGENDA, ()));
        let reading = long.read();
        assert_may_wait("a peer is asked");
        let again = long.read_recursive();
        let guard = short.lock();
        assert!(refusal(|| assert_may_wait("a peer is asked")).unwrap().starts_with("a peer is asked while"));
        let (other, news) = (Mutex::new(crate::rank::LEAF, ()), Condvar::new());
        let waits = || _ = news.wait_for(&mut other.lock(), std::time::Duration::ZERO);
        assert!(refusal(waits).is_some(), "nor for news of another");
        drop(guard);
        waits();
        drop((again, reading));
    }

    #[test]
    fn another_node_has_locks_of_its_own() {
        let (here, there) = (RwLock::new(PART_WRITES, ()), Mutex::new(ADVISORY, ()));
        let reading = here.read();
        on_behalf_of_peer(|| {
            drop(here.read());
            drop(there.lock());
        });
        assert!(refusal(|| drop(here.read())).is_some(), "it holds it still");
        drop(reading);
    }
}
