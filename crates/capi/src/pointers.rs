//! Pointers of the caller: none is followed before it was looked at.
#![allow(unsafe_code, reason = "pointers of a program in C have no safe interface")]

use std::ffi::{CStr, c_char};

use bivouac_types::{Errno, FsError, FsResult};

fn null(what: &str) -> FsError {
    FsError::with(Errno::EINVAL, format!("{what} is NULL"))
}

/// Returns an object that a function of ours returned.
///
/// # Safety
/// It is NULL, or such a one that has not been ended.
pub unsafe fn object<'a, T>(pointer: *const T, what: &str) -> FsResult<&'a T> {
    // SAFETY: as the caller says.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(what))
}

/// Returns a text.
///
/// # Safety
/// It is NULL, or ends with a NUL and stays as it is during the call.
pub unsafe fn text<'a>(pointer: *const c_char, what: &str) -> FsResult<&'a [u8]> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: as the caller says.
    Ok(unsafe { CStr::from_ptr(pointer) }.to_bytes())
}

/// Writes a result to the caller's place for it.
///
/// # Safety
/// It is NULL, or has room for one, which nobody else uses during the call.
pub unsafe fn place<T>(pointer: *mut T, what: &str, value: T) -> FsResult<()> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: as the caller says.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Returns the bytes to read.
///
/// # Safety
/// There are `count` of them, initialised, which nobody changes during the call; or `count` is 0.
pub unsafe fn bytes<'a>(pointer: *const u8, count: usize) -> FsResult<&'a [u8]> {
    check(pointer, count)?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: as the caller says; `check` has seen that it is not NULL and not too long.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Returns the bytes to write to.
///
/// # Safety
/// There is room for `count` of them, which nobody else uses during the call; or `count` is 0.
pub unsafe fn bytes_mut<'a>(pointer: *mut u8, count: usize) -> FsResult<&'a mut [u8]> {
    check(pointer, count)?;
    if count == 0 {
        return Ok(&mut []);
    }
    // SAFETY: as the caller says. They are bytes, only ever written to before they are read, by the kernel or by
    // copies.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, count) })
}

fn check(pointer: *const u8, count: usize) -> FsResult<()> {
    if count > isize::MAX as usize {
        return Err(FsError::with(Errno::EINVAL, format!("{count} bytes are more than memory can have")));
    }
    if pointer.is_null() && count > 0 { Err(null("buffer")) } else { Ok(()) }
}
