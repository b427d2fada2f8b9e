//! Streams of stdio: libc reads and writes them by itself, through the mount. What it closes has to be known.
#![allow(unsafe_code, reason = "the calls of C have no safe interface")]

use std::ffi::{c_char, c_int};

use libc::FILE;

use super::descriptors::look_at_flags;
use crate::{errno, given_up, real, table, thread};

/// Returns the descriptor of a stream; -1 if it has none.
fn descriptor(stream: *mut FILE) -> c_int {
    let _errno = errno::ErrnoGuard::new();
    // SAFETY: the caller of the function that this is for says that it is a stream.
    if stream.is_null() { -1 } else { unsafe { libc::fileno(stream) } }
}

/// Notes that libc is about to close these.
fn closes(fds: impl IntoIterator<Item = c_int>) {
    if !thread::is_vforked() {
        fds.into_iter().for_each(|fd| drop(table::remove(fd)));
        given_up::close_given_up();
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: as the caller says.
    let stream = unsafe { real::fdopen(fd, mode) };
    // It sets O_APPEND for some modes.
    look_at_flags(fd);
    stream
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fclose(stream: *mut FILE) -> c_int {
    closes([descriptor(stream)]);
    // SAFETY: as the caller says.
    unsafe { real::fclose(stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcloseall() -> c_int {
    closes(table::within(0, u32::MAX));
    // SAFETY: as the caller says.
    unsafe { real::fcloseall() }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn freopen(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    closes([descriptor(stream)]);
    // SAFETY: as the caller says.
    unsafe { real::freopen(path, mode, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn freopen64(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    closes([descriptor(stream)]);
    // SAFETY: as the caller says.
    unsafe { real::freopen64(path, mode, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn daemon(stay: c_int, keep: c_int) -> c_int {
    if keep == 0 {
        closes(0..3);
    }
    // SAFETY: as the caller says.
    unsafe { real::daemon(stay, keep) }
}
