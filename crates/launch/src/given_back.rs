//! Memory that this process has freed, back to the system.
#![allow(unsafe_code, reason = "the allocator's own call for it has no safe interface")]

/// Gives back whole pages that the allocator keeps for later; it would keep them as long as anything behind them is in
/// use.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number, and may be called at any time from any thread.
    unsafe {
        // Nothing to give back is no failure.
        let _ = libc::malloc_trim(0);
    }
}
