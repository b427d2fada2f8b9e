//! Hook that a thread runs before it waits for the network.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

thread_local! {
    static HOOK: RefCell<Option<Rc<dyn Fn()>>> = const { RefCell::new(None) };
}

/// Sets what the current thread runs before it waits for the network, and returns what it ran until now. A mount, and a
/// lane of a server, let another thread take requests meanwhile. The hook may run several times per request, and not at
/// all if the answer is there already; it never runs for [`crate::InProcess`].
pub fn on_block(hook: Option<Rc<dyn Fn()>>) -> Option<Rc<dyn Fn()>> {
    // A thread that ends has none any more.
    HOOK.try_with(|cell| cell.replace(hook)).ok().flatten()
}

/// Returns whether the current thread has a hook.
pub(crate) fn is_set() -> bool {
    HOOK.try_with(|cell| cell.borrow().is_some()).unwrap_or(false)
}

/// Runs the current thread's hook: for a service that has to wait for something else than the network. Not to be called
/// under a lock that is held for a moment.
pub fn before_waiting() {
    bivouac_ranks::assert_may_wait("a thread is about to wait");
    run();
}

/// Lets others work for a while: the pause between two looks at what somebody else is changing.
pub fn pause(time: Duration) {
    bivouac_ranks::assert_may_wait("a thread pauses");
    run();
    let (mutex, never) = (Mutex::new(()), Condvar::new());
    never.wait_for(&mut mutex.lock(), time);
}

/// Runs the current thread's hook.
pub(crate) fn run() {
    // The hook runs outside the borrow, so that it may set another one.
    if let Some(hook) = HOOK.try_with(|cell| cell.borrow().clone()).ok().flatten() {
        hook();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn the_hook_belongs_to_its_thread() {
        let count = Rc::new(Cell::new(0));
        let inner = Rc::clone(&count);
        assert!(on_block(Some(Rc::new(move || inner.set(inner.get() + 1)))).is_none());
        run();
        std::thread::spawn(|| {
            assert!(!is_set());
            run();
        })
        .join()
        .unwrap();
        assert_eq!(count.get(), 1);
        assert!(on_block(None).is_some());
        run();
        assert_eq!(count.get(), 1);
    }
}
