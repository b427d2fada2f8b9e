//! Looking at names. Before that the formation is told when was written.
#![allow(unsafe_code, reason = "the calls of C have no safe interface")]

use std::ffi::{c_char, c_int, c_uint};

use libc::stat as status;

use crate::names::{self, NameQuery};
use crate::{errno, pending, real};

/// Flags of calls for a name that do not ask what only the kernel can say.
const NAMED: c_int = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;

/// Looks here, or has `real` do so.
unsafe fn attributes(
    (dir, path, flags): (c_int, *const c_char, c_int),
    into: *mut status,
    real: impl FnOnce() -> c_int,
) -> c_int {
    pending::flush_mtimes();
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    let is_plain = flags & !NAMED == 0;
    // SAFETY: as the caller says.
    let find = || unsafe { names::find(dir, path, follow, NameQuery::Attributes) };
    let found = if is_plain { find() } else { None };
    match found {
        // SAFETY: as the caller says; there is room.
        Some(Ok(found)) if unsafe { names::has_room(into) } => unsafe {
            into.write_unaligned(found.status());
            return 0;
        },
        Some(Err(error)) => return failed(error.code()),
        _ => {}
    }
    let look = names::begin(NameQuery::Attributes);
    let outcome = real();
    if outcome == 0 && is_plain {
        // SAFETY: the kernel has just written it.
        look.found(unsafe { (&raw const (*into).st_dev).read_unaligned() });
    }
    outcome
}

fn failed(code: c_int) -> c_int {
    errno::set(code);
    -1
}

macro_rules! attributes {
    ($($name:ident($($arg:ident: $ty:ty),*; $into:ident) of ($dir:expr, $path:expr, $flags:expr);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> c_int {
            // SAFETY: as the caller says.
            unsafe { attributes(($dir, $path, $flags), $into, || real::$name($($arg),*)) }
        }
    )*};
}

attributes! {
    stat(path: *const c_char, into: *mut status; into) of (libc::AT_FDCWD, path, 0);
    stat64(path: *const c_char, into: *mut status; into) of (libc::AT_FDCWD, path, 0);
    lstat(path: *const c_char, into: *mut status; into) of (libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW);
    lstat64(path: *const c_char, into: *mut status; into) of (libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW);
    fstatat(dir: c_int, path: *const c_char, into: *mut status, flags: c_int; into) of (dir, path, flags);
    fstatat64(dir: c_int, path: *const c_char, into: *mut status, flags: c_int; into) of (dir, path, flags);
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn statx(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    into: *mut libc::statx,
) -> c_int {
    pending::flush_mtimes();
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    // When a file was made nobody knows, and the kernel says so.
    let is_plain = flags & !(NAMED | libc::AT_STATX_DONT_SYNC) == 0
        && mask & !(libc::STATX_BASIC_STATS | libc::STATX_BTIME) == 0;
    // SAFETY: as the caller says.
    let find = || unsafe { names::find(dir, path, follow, NameQuery::Attributes) };
    let found = if is_plain { find() } else { None };
    match found {
        // SAFETY: as the caller says; there is room.
        Some(Ok(found)) if unsafe { names::has_room_for_statx(into) } => unsafe {
            into.write_unaligned(found.statx());
            return 0;
        },
        Some(Err(error)) => return failed(error.code()),
        _ => {}
    }
    let look = names::begin(NameQuery::Attributes);
    // SAFETY: as the caller says.
    let outcome = unsafe { real::statx(dir, path, flags, mask, into) };
    if outcome == 0 && is_plain {
        // SAFETY: the kernel has just written it.
        let seen = unsafe { into.read_unaligned() };
        look.found(rustix::fs::makedev(seen.stx_dev_major, seen.stx_dev_minor));
    }
    outcome
}

/// Looks whether a name is there, and may be read; other rights are the kernel's to tell.
unsafe fn may_access(
    (dir, path, flags): (c_int, *const c_char, c_int),
    mode: c_int,
    real: impl FnOnce() -> c_int,
) -> c_int {
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    let is_plain = flags & !libc::AT_SYMLINK_NOFOLLOW == 0 && mode & !libc::R_OK == 0;
    let wanted = NameQuery::Access { read: mode != libc::F_OK };
    // SAFETY: as the caller says.
    let find = || unsafe { names::find(dir, path, follow, wanted) };
    match if is_plain { find() } else { None } {
        Some(Ok(_)) => 0,
        Some(Err(error)) => failed(error.code()),
        None => real(),
    }
}

macro_rules! access {
    ($($name:ident($($arg:ident: $ty:ty),*; $mode:ident) of ($dir:expr, $path:expr, $flags:expr);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> c_int {
            // SAFETY: as the caller says.
            unsafe { may_access(($dir, $path, $flags), $mode, || real::$name($($arg),*)) }
        }
    )*};
}

access! {
    access(path: *const c_char, mode: c_int; mode) of (libc::AT_FDCWD, path, 0);
    faccessat(dir: c_int, path: *const c_char, mode: c_int, flags: c_int; mode) of (dir, path, flags);
}
