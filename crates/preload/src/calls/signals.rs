//! Handlers of signals: which there are.
#![allow(unsafe_code, reason = "the calls of C have no safe interface")]

use std::ffi::c_int;

use crate::real::{self, Handler};
use crate::{handlers, quiet, thread};

fn changed(signal: c_int) {
    if !thread::is_vforked() {
        quiet::look(signal);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: as the caller says.
    let outcome = unsafe { handlers::set(signal, new, old) };
    if !new.is_null() {
        changed(signal);
    }
    outcome
}

macro_rules! handled {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(signal: c_int, handler: Handler) -> Handler {
            let own = handlers::of(signal);
            // SAFETY: as the caller says.
            let before = unsafe { real::$name(signal, handler) };
            changed(signal);
            if handlers::is_counted(before) { own } else { before }
        }
    )*};
}

handled! { signal bsd_signal sysv_signal __sysv_signal ssignal sigset }
