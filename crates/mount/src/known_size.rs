//! Makes the size greater that the kernel knows of a file.
//!
//! The kernel asks for attributes when a program looks at them, and not before an asynchronous direct read, which it
//! ends at the size that it knows. Of its notifications only `FUSE_NOTIFY_STORE` changes that size: it raises it to the
//! end of what is stored, and then copies the content. Content must not be stored: a page may have newer bytes. So the
//! content is where nothing can be read, and the copy fails, with `EFAULT`, behind the new size.
#![allow(unsafe_code, reason = "a message whose second part cannot be read has no safe interface")]

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::OnceLock;

use rustix::io::Errno as OsErrno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::abi::{NOTIFY_STORE, reply_header, store};

const PAGE: usize = 4096;

/// Raises the kernel's size of a file to at least `size` bytes, and has it request the attributes when it needs them.
/// Leaves an empty page in its cache. It waits for the page's lock, so a thread that serves requests may not call it.
///
/// # Errors
/// The error of the write to the device; an unknown inode and an ended mount are none.
pub fn raise(device: BorrowedFd<'_>, nodeid: u64, size: u64) -> io::Result<()> {
    let Some(last) = size.checked_sub(1) else { return Ok(()) };
    let unreadable = unreadable()?;
    let body = store(nodeid, last, 1);
    let header = reply_header(0, NOTIFY_STORE, body.len() + 1);
    let part = |at: *const u8, len| libc::iovec { iov_base: at.cast_mut().cast::<c_void>(), iov_len: len };
    let parts = [
        part(header.as_ptr(), header.len()),
        part(body.as_ptr(), body.len()),
        part(unreadable as *const u8, 1),
    ];
    loop {
        // SAFETY: the kernel only reads from the parts, of which two are borrowed here; of the third it can read
        // nothing.
        let written = unsafe { libc::writev(device.as_raw_fd(), parts.as_ptr(), parts.len() as i32) };
        if written >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match OsErrno::from_io_error(&error) {
            Some(OsErrno::INTR | OsErrno::AGAIN) => {}
            // EFAULT is what is wanted: the size is raised by then, and the copy has failed.
            Some(OsErrno::FAULT | OsErrno::NOENT | OsErrno::NODEV | OsErrno::CONNABORTED | OsErrno::PIPE) => {
                return Ok(());
            }
            _ => return Err(error),
        }
    }
}

/// Returns the address of a page that nobody may read, as long as this process lives.
fn unreadable() -> io::Result<usize> {
    static PAGE_AT: OnceLock<usize> = OnceLock::new();
    if let Some(at) = PAGE_AT.get() {
        return Ok(*at);
    }
    // SAFETY: a new mapping, which nobody has a reference to.
    let at = unsafe { mmap_anonymous(ptr::null_mut(), PAGE, ProtFlags::empty(), MapFlags::PRIVATE)? };
    // Of two that come at once one page is never used.
    Ok(*PAGE_AT.get_or_init(|| at as usize))
}
