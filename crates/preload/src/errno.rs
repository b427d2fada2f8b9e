//! The calling thread's error number.
#![allow(unsafe_code, reason = "it is reached by a pointer")]

use std::ffi::c_int;

/// Returns its value.
pub fn get() -> c_int {
    // SAFETY: the pointer is to the thread's own number, and valid as long as the thread lives.
    unsafe { *libc::__errno_location() }
}

/// Sets it.
pub fn set(errno: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno }
}

/// Keeps it as it is, whatever is done meanwhile.
pub struct ErrnoGuard(c_int);

impl ErrnoGuard {
    pub fn new() -> ErrnoGuard {
        ErrnoGuard(get())
    }
}

impl Drop for ErrnoGuard {
    fn drop(&mut self) {
        set(self.0);
    }
}
