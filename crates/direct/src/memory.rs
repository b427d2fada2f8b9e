//! Shared memory as counters.
#![allow(unsafe_code, reason = "mappings have no safe interface")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A part of a file in memory, mapped for as long as this value lives. Every word of it is reached as an
/// atomic only: what other processes do to it cannot be undefined here.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<AtomicU32>,
    len: usize,
}

// SAFETY: the mapping belongs to this value, and all access to it is atomic.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Returns a file in memory, empty as yet. What is written there is there as long as any process has it open.
    ///
    /// # Errors
    /// What the system says.
    pub fn make(name: &str) -> io::Result<OwnedFd> {
        Ok(memfd_create(name, MemfdFlags::CLOEXEC)?)
    }

    /// Maps all of such a file, which has `len` bytes from then on. Only what is used takes memory.
    ///
    /// # Errors
    /// What the system says; `InvalidInput` for a file that has another length already.
    pub fn whole(file: &OwnedFd, len: usize) -> io::Result<Memory> {
        match fstat(file)?.st_size {
            0 => ftruncate(file, len as u64)?,
            known if usize::try_from(known) == Ok(len) => {}
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        }
        Memory::map(file.as_fd(), 0, len)
    }

    /// Maps `len` bytes from `offset`, a multiple of the page size. The file must be as long, and stay so.
    pub fn map(file: BorrowedFd<'_>, offset: usize, len: usize) -> io::Result<Memory> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: no address is asked for, so nothing that is mapped already is touched.
        let start = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, file, offset as u64)? };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Memory { start, len })
    }

    /// Returns the word at a position, counted in words.
    pub fn word(&self, index: usize) -> Option<&AtomicU32> {
        if index >= self.len / size_of::<AtomicU32>() {
            return None;
        }
        // SAFETY: within the mapping, aligned since the mapping is, and never reached but as an atomic.
        Some(unsafe { self.start.add(index).as_ref() })
    }

    /// Returns `count` consecutive double words from a position counted in double words; `None` beyond the end.
    #[must_use]
    pub fn doubles(&self, first: usize, count: usize) -> Option<&[AtomicU64]> {
        let end = first.checked_add(count)?;
        if end > self.len / size_of::<AtomicU64>() {
            return None;
        }
        // SAFETY: within the mapping, aligned since the mapping is, and never reached but as atomics.
        Some(unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast::<AtomicU64>().add(first), count) })
    }

    /// Returns the double word that begins at an even position, counted in words.
    pub fn double(&self, index: usize) -> Option<&AtomicU64> {
        if !index.is_multiple_of(2) || index + 1 >= self.len / size_of::<AtomicU32>() {
            return None;
        }
        // SAFETY: within the mapping, aligned since the mapping is and the position is even, and never reached but
        // as an atomic of this size.
        Some(unsafe { self.start.add(index).cast().as_ref() })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; no reference into it outlives this value.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can be unmapped");
    }
}
