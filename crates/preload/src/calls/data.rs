//! Reading and writing.
#![allow(unsafe_code, reason = "the calls of C have no safe interface")]

use std::ffi::{c_int, c_void};
use std::slice;

use libc::{iovec, off_t, size_t, ssize_t};

use super::copies;
use crate::file::DescriptionId;
use crate::report::Call;
use crate::transfer::{self, CallPosition, DataCall};
use crate::{pending, real, table};

/// Most pieces of a list, as in the kernel: behind them nobody looks.
const PIECES_MAX: usize = 1024;

/// Returns a buffer as a list. The client does not write to those that it reads from.
fn piece(buffer: *const c_void, count: size_t) -> [iovec; 1] {
    [iovec { iov_base: buffer.cast_mut(), iov_len: count }]
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t {
    if let Some(name) = table::name(fd) {
        let asked = DataCall { call: Call::Read, fd, place: CallPosition::Position };
        // SAFETY: as the caller of `read` says.
        if let Some(done) = unsafe { transfer::read(asked, name, &piece(buffer, count)) } {
            return done;
        }
    }
    // SAFETY: as the caller says.
    unsafe { real::read(fd, buffer, count) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    buffer: *mut c_void,
    count: size_t,
    room: size_t,
) -> ssize_t {
    if count > room {
        // SAFETY: as the caller says; libc ends the program.
        return unsafe { real::__read_chk(fd, buffer, count, room) };
    }
    // SAFETY: as the caller says.
    unsafe { read(fd, buffer, count) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t {
    if let Some(name) = table::name(fd) {
        let asked = DataCall { call: Call::Write, fd, place: CallPosition::Position };
        // SAFETY: as the caller of `write` says.
        if let Some(done) = unsafe { transfer::write(asked, name, &piece(buffer, count)) } {
            return done;
        }
    }
    // SAFETY: as the caller says.
    unsafe { real::write(fd, buffer, count) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pread(fd: c_int, buffer: *mut c_void, count: size_t, offset: off_t) -> ssize_t {
    if let Some(name) = table::name(fd) {
        let asked = DataCall { call: Call::Pread, fd, place: CallPosition::At(offset) };
        // SAFETY: as the caller of `pread` says.
        if let Some(done) = unsafe { transfer::read(asked, name, &piece(buffer, count)) } {
            return done;
        }
    }
    // SAFETY: as the caller says.
    unsafe { real::pread(fd, buffer, count, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __pread_chk(
    fd: c_int,
    buffer: *mut c_void,
    count: size_t,
    offset: off_t,
    room: size_t,
) -> ssize_t {
    if count > room {
        // SAFETY: as the caller says; libc ends the program.
        return unsafe { real::__pread_chk(fd, buffer, count, offset, room) };
    }
    // SAFETY: as the caller says.
    unsafe { pread(fd, buffer, count, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pwrite(
    fd: c_int,
    buffer: *const c_void,
    count: size_t,
    offset: off_t,
) -> ssize_t {
    if let Some(name) = table::name(fd) {
        let asked = DataCall { call: Call::Pwrite, fd, place: CallPosition::At(offset) };
        // SAFETY: as the caller of `pwrite` says.
        if let Some(done) = unsafe { transfer::write(asked, name, &piece(buffer, count)) } {
            return done;
        }
    }
    // SAFETY: as the caller says.
    unsafe { real::pwrite(fd, buffer, count, offset) }
}

/// Returns the pieces of a list; `None` for what is the kernel's to refuse.
///
/// # Safety
/// There are `count` of them, or NULL.
unsafe fn list<'a>(pieces: *const iovec, count: c_int) -> Option<&'a [iovec]> {
    let length = usize::try_from(count).ok().filter(|length| (1..=PIECES_MAX).contains(length))?;
    if pieces.is_null() {
        return None;
    }
    // SAFETY: as the caller says.
    Some(unsafe { slice::from_raw_parts(pieces, length) })
}

unsafe fn read_list(asked: DataCall, pieces: *const iovec, count: c_int) -> Option<ssize_t> {
    let name: DescriptionId = table::name(asked.fd)?;
    // SAFETY: as the caller says.
    unsafe { transfer::read(asked, name, list(pieces, count)?) }
}

unsafe fn write_list(asked: DataCall, pieces: *const iovec, count: c_int) -> Option<ssize_t> {
    let name: DescriptionId = table::name(asked.fd)?;
    // SAFETY: as the caller says.
    unsafe { transfer::write(asked, name, list(pieces, count)?) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn readv(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t {
    let asked = DataCall { call: Call::Readv, fd, place: CallPosition::Position };
    // SAFETY: as the caller says.
    unsafe { read_list(asked, pieces, count).unwrap_or_else(|| real::readv(fd, pieces, count)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn writev(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t {
    let asked = DataCall { call: Call::Writev, fd, place: CallPosition::Position };
    // SAFETY: as the caller says.
    unsafe { write_list(asked, pieces, count).unwrap_or_else(|| real::writev(fd, pieces, count)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn preadv(fd: c_int, pieces: *const iovec, count: c_int, offset: off_t) -> ssize_t {
    let asked = DataCall { call: Call::Preadv, fd, place: CallPosition::At(offset) };
    // SAFETY: as the caller says.
    unsafe { read_list(asked, pieces, count).unwrap_or_else(|| real::preadv(fd, pieces, count, offset)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pwritev(fd: c_int, pieces: *const iovec, count: c_int, offset: off_t) -> ssize_t {
    let asked = DataCall { call: Call::Pwritev, fd, place: CallPosition::At(offset) };
    // SAFETY: as the caller says.
    unsafe { write_list(asked, pieces, count).unwrap_or_else(|| real::pwritev(fd, pieces, count, offset)) }
}

/// Returns the call of a function with flags, where offset -1 is the position; `None` if there are flags, which only
/// the kernel supports.
fn flagged(call: Call, fd: c_int, offset: off_t, flags: c_int) -> Option<DataCall> {
    let place = if offset == -1 { CallPosition::Position } else { CallPosition::At(offset) };
    (flags == 0).then_some(DataCall { call, fd, place })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn preadv2(
    fd: c_int,
    pieces: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    let asked = flagged(Call::Preadv, fd, offset, flags);
    // SAFETY: as the caller says.
    let done = asked.and_then(|asked| unsafe { read_list(asked, pieces, count) });
    // SAFETY: as the caller says.
    done.unwrap_or_else(|| unsafe { real::preadv2(fd, pieces, count, offset, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pwritev2(
    fd: c_int,
    pieces: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    let asked = flagged(Call::Pwritev, fd, offset, flags);
    // SAFETY: as the caller says.
    let done = asked.and_then(|asked| unsafe { write_list(asked, pieces, count) });
    // SAFETY: as the caller says.
    done.unwrap_or_else(|| unsafe {
        copies::writes_flagged(fd, flags);
        real::pwritev2(fd, pieces, count, offset, flags)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fsync(fd: c_int) -> c_int {
    pending::flush_mtime_of(fd);
    // SAFETY: as the caller says.
    unsafe { real::fsync(fd) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fdatasync(fd: c_int) -> c_int {
    pending::flush_mtime_of(fd);
    // SAFETY: as the caller says.
    unsafe { real::fdatasync(fd) }
}

/// Names of libc's for calls with offsets of 64 bits, which all have here.
macro_rules! named_also {
    ($($name:ident($($argument:ident: $kind:ty),*) = $call:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> ssize_t {
            // SAFETY: as the caller says.
            unsafe { $call($($argument),*) }
        }
    )*};
}

named_also! {
    pread64(fd: c_int, buffer: *mut c_void, count: size_t, offset: off_t) = pread;
    __pread64_chk(fd: c_int, buffer: *mut c_void, count: size_t, offset: off_t, room: size_t) = __pread_chk;
    pwrite64(fd: c_int, buffer: *const c_void, count: size_t, offset: off_t) = pwrite;
    preadv64(fd: c_int, pieces: *const iovec, count: c_int, offset: off_t) = preadv;
    pwritev64(fd: c_int, pieces: *const iovec, count: c_int, offset: off_t) = pwritev;
    preadv64v2(fd: c_int, pieces: *const iovec, count: c_int, offset: off_t, flags: c_int) = preadv2;
    pwritev64v2(fd: c_int, pieces: *const iovec, count: c_int, offset: off_t, flags: c_int) = pwritev2;
}
