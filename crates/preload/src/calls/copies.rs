//! Copies that the kernel makes by itself. It caches what it knew of the file: its size, and pages that such a call
//! left in its cache. So it is told to look anew.
#![allow(unsafe_code, reason = "the calls of C have no safe interface")]

use std::ffi::{c_int, c_uint};

use libc::{off_t, size_t, ssize_t};

use crate::known::WRITTEN;
use crate::{adopt, errno, process, real, serving, thread};

/// Makes the kernel look anew at a file that it is about to read by itself. Children may have written to it, too.
fn looks_anew(fd: c_int) {
    if thread::is_vforked() || !(serving::is_open() || WRITTEN.has_any()) {
        return;
    }
    let Some(ino) = adopt::look_at(fd) else { return };
    if process::shares() > 0 || WRITTEN.has(0, ino) {
        let _errno = errno::ErrnoGuard::new();
        // All of it: a part would leave what reaches over its ends. Mapped pages stay, and those that are not written
        // yet. SAFETY: numbers only.
        unsafe { libc::posix_fadvise(fd, 0, 0, libc::POSIX_FADV_DONTNEED) };
    }
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

/// Prepares for a write of the kernel with flags: an append goes to the end that it knows of.
pub(super) fn writes_flagged(fd: c_int, flags: c_int) {
    if flags & libc::RWF_APPEND != 0 && (serving::is_open() || WRITTEN.has_any()) && !thread::is_vforked() {
        adopt::look_at(fd);
    }
}
