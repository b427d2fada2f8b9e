//! Opening: by libc and the mount. What they return is remembered.
#![allow(unsafe_code, reason = "the calls of C have no safe interface")]

use std::ffi::{c_char, c_int};

use libc::mode_t;

use crate::file::HeldDescription;
use crate::{real, serving, table, thread};

/// Takes down a descriptor that has just been opened.
fn opened(fd: c_int, flags: c_int) -> c_int {
    if fd >= 0 && !thread::is_vforked() {
        let not_for_data =
            flags & (libc::O_DIRECTORY | libc::O_PATH) != 0 && flags & libc::O_TMPFILE != libc::O_TMPFILE;
        // What is opened in the middle of a call here is this library's; its number means nothing else any more.
        let wanted = serving::is_open() && !not_for_data && thread::is_idle();
        table::set(fd, if wanted { HeldDescription::new(flags) } else { None });
    }
    fd
}

macro_rules! opening {
    ($($name:ident($($arg:ident: $ty:ty),*) with $flags:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> c_int {
            // SAFETY: as the caller says. A mode that was not given is not used either.
            opened(unsafe { real::$name($($arg),*) }, $flags)
        }
    )*};
}

const CREATED: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

opening! {
    open(path: *const c_char, flags: c_int, mode: mode_t) with flags;
    open64(path: *const c_char, flags: c_int, mode: mode_t) with flags;
    openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) with flags;
    openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) with flags;
    creat(path: *const c_char, mode: mode_t) with CREATED;
    creat64(path: *const c_char, mode: mode_t) with CREATED;
    __open_2(path: *const c_char, flags: c_int) with flags;
    __open64_2(path: *const c_char, flags: c_int) with flags;
    __openat_2(dir: c_int, path: *const c_char, flags: c_int) with flags;
    __openat64_2(dir: c_int, path: *const c_char, flags: c_int) with flags;
    mkstemp(template: *mut c_char) with libc::O_RDWR;
    mkostemp(template: *mut c_char, flags: c_int) with libc::O_RDWR | flags;
}
