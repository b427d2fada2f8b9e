//! Bytes of files where they lie.
#![allow(unsafe_code, reason = "pointers of a program in C have no safe interface")]
#![allow(clippy::missing_safety_doc, reason = "the header says what callers have to keep to")]

use std::ffi::{c_int, c_void};

use bivouac_client::AccessKind;
use bivouac_types::{Errno, FsError};

use crate::failure::answer;
use crate::file::{File, offset_of};
use crate::pointers;

/// The callback type of the header's `bivouac_shown`.
pub type ShowCallback =
    unsafe extern "C" fn(context: *mut c_void, offset: libc::off_t, bytes: *mut u8, count: usize) -> usize;

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_show(
    file: *mut File,
    is_write: c_int,
    offset: libc::off_t,
    count: usize,
    show: Option<ShowCallback>,
    context: *mut c_void,
) -> isize {
    answer(|| {
        // SAFETY: the header asks for an object.
        let file = unsafe { pointers::object(file, "file")? };
        let (client, wish) = match is_write {
            0 => (file.readable()?, AccessKind::Read),
            _ => (file.writable()?, AccessKind::Write),
        };
        let show = show.ok_or_else(|| FsError::with(Errno::EINVAL, "show is NULL"))?;
        // Where it ends is not known before it is written, so nothing can be shown.
        if file.flags.append && wish == AccessKind::Write {
            return Ok(0);
        }
        let mut shown = |at: u64, bytes: *mut [u8]| {
            // SAFETY: the header says what is asked of the function, and the bytes are there until it returns.
            unsafe { show(context, at as libc::off_t, bytes.cast(), bytes.len()) }
        };
        let moved = client.show(file.ino, wish, offset_of(offset)?, count, &mut shown)?;
        Ok(moved.unwrap_or(0) as isize)
    })
}
