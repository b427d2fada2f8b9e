//! Shared mappings, and what else has no safe interface.
#![allow(unsafe_code, reason = "mappings and truncate by name have no safe interface")]

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::{Errno, Result};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

/// `truncate` by name.
pub fn truncate(path: &Path, len: u64) -> Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
    let len = i64::try_from(len).map_err(|_| Errno::INVAL)?;
    // SAFETY: the path is a string with a NUL behind it that lives until the call returns.
    match unsafe { libc::truncate(path.as_ptr(), len) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// A part of a file in memory.
pub struct Mapping {
    start: *mut u8,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes from `offset` on, to write them too; `shared` or private.
    pub fn new(file: &OwnedFd, offset: u64, len: usize, shared: bool) -> Result<Mapping> {
        let flags = if shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the place, so nothing that is in use is replaced.
        let start = unsafe { mmap(std::ptr::null_mut(), len, prot, flags, file, offset)? };
        Ok(Mapping { start: start.cast(), len })
    }

    /// Reads bytes; those behind the mapping are left out.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let end = at.saturating_add(len).min(self.len);
        // SAFETY: within the mapping; volatile, since others write the file.
        (at..end).map(|at| unsafe { self.start.add(at).read_volatile() }).collect()
    }

    /// Writes bytes; those behind the mapping are left out.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        for (at, byte) in (at..self.len).zip(bytes) {
            // SAFETY: within the mapping, which may be written; volatile as in `read`.
            unsafe { self.start.add(at).write_volatile(*byte) }
        }
    }

    /// Waits until the file has what was written here.
    pub fn sync(&self) -> Result<()> {
        // SAFETY: the range is the mapping's own.
        unsafe { msync(self.start.cast(), self.len, MsyncFlags::SYNC) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping's own, and nobody else has its address.
        let unmapped = unsafe { munmap(self.start.cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}
