//! Attributes: the kernel's and the mount's. Before they look, or set a time, they are told when was written. Those of
//! names are beside this.
#![allow(unsafe_code, reason = "the calls of C have no safe interface")]

use std::ffi::{c_char, c_int};

use libc::{stat as status, timespec, timeval, utimbuf};

use crate::{pending, real};

macro_rules! told {
    ($($name:ident($($arg:ident: $ty:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> c_int {
            pending::flush_mtimes();
            // SAFETY: as the caller says.
            unsafe { real::$name($($arg),*) }
        }
    )*};
}

macro_rules! told_of {
    ($($name:ident $([$before:ident: $of:ty])? (fd, $last:ident: $ty:ty);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($before: $of,)? fd: c_int, $last: $ty) -> c_int {
            pending::flush_mtime_of(fd);
            // SAFETY: as the caller says.
            unsafe { real::$name($($before,)? fd, $last) }
        }
    )*};
}

told_of! {
    fstat(fd, into: *mut status);
    fstat64(fd, into: *mut status);
    __fxstat[version: c_int](fd, into: *mut status);
    __fxstat64[version: c_int](fd, into: *mut status);
    futimes(fd, times: *const timeval);
    futimens(fd, times: *const timespec);
}

told! {
    __xstat(version: c_int, path: *const c_char, into: *mut status);
    __xstat64(version: c_int, path: *const c_char, into: *mut status);
    __lxstat(version: c_int, path: *const c_char, into: *mut status);
    __lxstat64(version: c_int, path: *const c_char, into: *mut status);
    __fxstatat(version: c_int, dir: c_int, path: *const c_char, into: *mut status, flags: c_int);
    __fxstatat64(version: c_int, dir: c_int, path: *const c_char, into: *mut status, flags: c_int);
    utime(path: *const c_char, times: *const utimbuf);
    utimes(path: *const c_char, times: *const timeval);
    lutimes(path: *const c_char, times: *const timeval);
    futimesat(dir: c_int, path: *const c_char, times: *const timeval);
    utimensat(dir: c_int, path: *const c_char, times: *const timespec, flags: c_int);
}
