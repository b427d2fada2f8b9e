//! What the calling thread is at: a call of the program is served here only if no other one is being served in the same
//! thread. One that comes in between is a signal handler's, or of the client's own sockets: it goes to libc. So does
//! all that a child of `vfork` does: it has its parent's memory, but a table of descriptors of its own.

use std::cell::Cell;

use crate::process;

const IDLE: u32 = 0;
const BUSY: u32 = 1;
const VFORKED: u32 = 2;

thread_local! {
    static STATE: Cell<u32> = const { Cell::new(IDLE) };
}

/// While it lives, the thread serves a call.
pub struct CallGuard(());

impl CallGuard {
    /// `None` if the thread serves one already, or is a child's that has its parent's memory.
    pub fn enter() -> Option<CallGuard> {
        let idle = STATE.try_with(|state| {
            state.get() == IDLE && {
                state.set(BUSY);
                true
            }
        });
        let busy = idle.unwrap_or(false).then(|| CallGuard(()))?;
        process::renew_if_forked();
        Some(busy)
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        // A thread that ends has no state any more.
        let _ = STATE.try_with(|state| state.set(IDLE));
    }
}

/// Returns whether the thread serves a call: then what is called is called by this library.
pub fn is_busy() -> bool {
    STATE.try_with(Cell::get) == Ok(BUSY)
}

/// Returns whether the thread is the program's own, in the program's own process: what it opens is the program's.
#[inline]
pub fn is_idle() -> bool {
    STATE.try_with(Cell::get) == Ok(IDLE)
}

/// Returns whether this is a child of `vfork`, in its parent's memory.
pub fn is_vforked() -> bool {
    STATE.try_with(Cell::get) == Ok(VFORKED)
}

/// Notes that a child of `vfork` begins to use the memory of this thread, or has ceased to.
pub fn set_vforked(child: bool) {
    // Only a thread that is ending has no state; it has no child either.
    let _ = STATE.try_with(|state| match (child, state.get()) {
        (true, IDLE) => state.set(VFORKED),
        (false, VFORKED) => state.set(IDLE),
        _ => {}
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_at_a_time_is_served() {
        let busy = CallGuard::enter();
        assert!(busy.is_some() && is_busy() && CallGuard::enter().is_none());
        std::thread::spawn(|| assert!(CallGuard::enter().is_some())).join().unwrap();
        assert!(is_busy(), "one that is refused changes nothing");
        drop(busy);
        assert!(!is_busy());
        set_vforked(true);
        assert!(is_vforked() && CallGuard::enter().is_none() && is_vforked());
        set_vforked(false);
        assert!(CallGuard::enter().is_some() && !is_vforked());
    }
}
