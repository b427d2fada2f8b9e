//! Copies that the kernel makes by itself. It believes what it knew of the file: its size, and pages that such a call left in its
//! cache. So it is told to look anew.
#![allow(unsafe_code, reason = "the calls of C have no safe interface")]

use std::ffi::{c_int, c_uint};

use libc::{iovec, off_t, size_t, ssize_t};
use rustix::fs::FileType;

use crate::{devices, errno, real, settle, thread};

/// The kernel is about to read a file by itself.
fn looks_anew(fd: c_int) {
    if fd < 0 || !settle::concerns_kernel() || !thread::is_idle() {
        return;
    }
    let _errno = errno::Kept::new();
    if has_size(fd) && settle::has_written() {
        // All of it: a part would leave what reaches over its ends. Mapped pages stay, and those that are not written yet.
        // SAFETY: numbers only.
        unsafe { libc::posix_fadvise(fd, 0, 0, libc::POSIX_FADV_DONTNEED) };
    }
}

/// Has the kernel ask for the size of a file of a formation; whether it is one.
pub(super) fn has_size(fd: c_int) -> bool {
    // SAFETY: the caller's descriptor, which is used during this call only.
    let file = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    rustix::fs::fstat(file).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode).is_file() && devices::is_formation(stat.st_dev)
    })
}

macro_rules! copying {
    ($($name:ident($out:ident, $from:ident, $offset:ident);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($out: c_int, $from: c_int, $offset: *mut off_t, count: size_t) -> ssize_t {
            looks_anew($from);
            // SAFETY: as the caller says.
            unsafe { real::$name($out, $from, $offset, count) }
        }
    )*};
}

copying! {
    sendfile(out, from, offset);
    sendfile64(out, from, offset);
}

macro_rules! moving {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            from: c_int,
            from_offset: *mut off_t,
            to: c_int,
            to_offset: *mut off_t,
            count: size_t,
            flags: c_uint,
        ) -> ssize_t {
            looks_anew(from);
            // SAFETY: as the caller says.
            unsafe { real::$name(from, from_offset, to, to_offset, count, flags) }
        }
    )*};
}

moving! { splice copy_file_range }

/// A write with flags, by the kernel: an append goes to the end that it knows of.
pub(super) unsafe fn write_flagged(
    fd: c_int,
    pieces: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    if flags & libc::RWF_APPEND != 0 && settle::concerns_kernel() && thread::is_idle() {
        let _errno = errno::Kept::new();
        has_size(fd);
    }
    // SAFETY: as the caller says.
    unsafe { real::pwritev2(fd, pieces, count, offset, flags) }
}
