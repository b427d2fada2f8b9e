//! Whether calls are served by this library, and how many are in flight.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Threads in the middle of a call that is served here.
static IN_FLIGHT: AtomicU32 = AtomicU32::new(0);
/// Set while all calls go to the kernel.
static CLOSED: AtomicBool = AtomicBool::new(true);

/// A call that this library carries out. [`in_flight`] counts it until it is dropped.
pub struct ServedCall(());

impl ServedCall {
    /// Begins a call; `None` if calls are not served here any more.
    pub fn begin() -> Option<ServedCall> {
        // Counted before the check: [`close`] either sees this call, or this call sees that service is closed.
        IN_FLIGHT.fetch_add(1, Ordering::SeqCst);
        let call = ServedCall(());
        (!CLOSED.load(Ordering::SeqCst)).then_some(call)
    }
}

impl Drop for ServedCall {
    fn drop(&mut self) {
        IN_FLIGHT.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Calls are served here from now on.
pub fn open() {
    CLOSED.store(false, Ordering::SeqCst);
}

/// Returns whether calls are served here.
pub fn is_open() -> bool {
    !CLOSED.load(Ordering::Relaxed)
}

/// Makes all calls go to the kernel from now on; those [in flight](in_flight) go on.
pub fn close() {
    CLOSED.store(true, Ordering::SeqCst);
}

/// Calls that have begun and not ended.
pub fn in_flight() -> u32 {
    IN_FLIGHT.load(Ordering::SeqCst)
}

/// Begins anew in the child after a fork: calls of the parent's other threads are not in flight here.
pub fn renew() {
    IN_FLIGHT.store(0, Ordering::SeqCst);
}
