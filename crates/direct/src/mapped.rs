//! A part of a subfile in memory that is mapped, so that many small places of it are written, or read, without a system
//! call each.
#![allow(unsafe_code, reason = "mappings have no safe interface")]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const WORD: usize = size_of::<u64>();
/// Fewest places that are written by one mapping, one in each part of this length on average: with fewer, making the
/// mapping costs more than it saves.
const PLACES_MIN: usize = 8;
const STEP_MAX: u64 = 1024;

/// Pages of a file, mapped for as long as this value lives.
#[derive(Debug)]
struct Pages {
    start: NonNull<u8>,
    len: usize,
    /// Bytes in front of what was asked for: mappings begin with a page.
    skip: usize,
}

impl Pages {
    fn map(file: BorrowedFd<'_>, offset: u64, len: u64, access: ProtFlags) -> io::Result<Pages> {
        let skip = (offset % rustix::param::page_size() as u64) as usize;
        let len = usize::try_from(len).ok().and_then(|len| len.checked_add(skip));
        let len = len.ok_or(io::ErrorKind::InvalidInput)?;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: no address is asked for, so nothing that is mapped already is touched.
        let start = unsafe { mmap(ptr::null_mut(), len, access, flags, file, offset - skip as u64)? };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Pages { start, len, skip })
    }

    /// Returns the mapped bytes.
    fn bytes(&self) -> *mut [u8] {
        ptr::slice_from_raw_parts_mut(self.start.as_ptr().wrapping_add(self.skip), self.len - self.skip)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; no reference into it outlives this value.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can be unmapped");
    }
}

/// Mapped pages of a file in memory, for reading.
#[derive(Debug)]
pub struct ReadOnlyPages(Pages);

impl ReadOnlyPages {
    /// Maps `len` bytes from `offset`; `None` if not all of them are there: to look at a hole would make a page of it.
    /// They must not be cut off while this value lives, nor become a hole, and the file be of a file system in memory:
    /// a page that cannot be read from a disk would end the process.
    ///
    /// # Errors
    /// What the system says.
    pub fn map(file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<Option<ReadOnlyPages>> {
        let end = offset.checked_add(len).ok_or(io::ErrorKind::InvalidInput)?;
        if len == 0 || seek(file, SeekFrom::Hole(offset))? < end {
            return Ok(None);
        }
        Pages::map(file, offset, len, ProtFlags::READ).map(|pages| Some(ReadOnlyPages(pages)))
    }

    /// Returns the mapped bytes, for reading only, which is sound as long as nobody writes to it.
    #[must_use]
    pub fn bytes(&self) -> *mut [u8] {
        self.0.bytes()
    }
}

/// Mapped pages of a file in memory, for writing. Other processes may write to the same bytes: each store is atomic, so
/// what is there then is some of both, and nothing is undefined.
#[derive(Debug)]
pub struct WritablePages(Pages);

impl WritablePages {
    /// Maps `len` bytes from `offset`. The file gets all their pages, and ends behind them if it ended before. It must
    /// not be cut while this value lives, and be of a file system in memory: a page that cannot be read from a disk
    /// would end the process.
    ///
    /// # Errors
    /// What the system says: `StorageFull` if there is no space for the pages; then the file is as it was.
    pub fn map(file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<WritablePages> {
        fallocate(file, FallocateFlags::empty(), offset, len)?;
        Pages::map(file, offset, len, ProtFlags::READ | ProtFlags::WRITE).map(WritablePages)
    }

    /// Returns the mapped bytes, for a writer that expects others to write to the same bytes.
    #[must_use]
    pub fn bytes(&self) -> *mut [u8] {
        self.0.bytes()
    }

    /// Returns whether mapping `len` bytes takes less time than so many system calls.
    #[must_use]
    pub fn pays(places: usize, len: u64) -> bool {
        places >= PLACES_MIN && len <= places as u64 * STEP_MAX
    }

    /// Writes bytes at a place counted from what was asked for; whether it has room for them.
    #[must_use]
    pub fn put(&self, at: usize, bytes: &[u8]) -> bool {
        let Some(first) = self.0.skip.checked_add(at) else { return false };
        if first.checked_add(bytes.len()).is_none_or(|end| end > self.0.len) {
            return false;
        }
        let (front, rest) = bytes.split_at((first.wrapping_neg() % WORD).min(bytes.len()));
        let (words, behind) = rest.as_chunks::<WORD>();
        self.put_each(first, front);
        let mut at = first + front.len();
        for word in words {
            // SAFETY: within the mapping, aligned since the mapping is and `front` ends where a word begins, and never
            // reached but by atomic stores.
            unsafe { self.0.start.add(at).cast::<AtomicU64>().as_ref() }
                .store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            at += WORD;
        }
        self.put_each(at, behind);
        true
    }

    fn put_each(&self, at: usize, bytes: &[u8]) {
        for (index, byte) in bytes.iter().enumerate() {
            // SAFETY: within the mapping, as `put` has looked, and never reached but by atomic stores.
            unsafe { self.0.start.add(at + index).cast::<AtomicU8>().as_ref() }
                .store(*byte, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{FileExt, MetadataExt};

    fn memory(content: &[u8]) -> File {
        let file = File::from(memfd_create("mapped", MemfdFlags::CLOEXEC).unwrap());
        file.write_all_at(content, 0).unwrap();
        file
    }

    #[test]
    fn what_lies_outside_is_refused() {
        let file = memory(&[7; 100]);
        let mapped = WritablePages::map(file.as_fd(), 10, 20).unwrap();
        assert!(mapped.put(0, &[1; 20]) && mapped.put(20, &[]));
        assert!(!mapped.put(0, &[1; 21]) && !mapped.put(20, &[1]) && !mapped.put(usize::MAX, &[1]));
        drop(mapped);
        let mut content = vec![0; 100];
        file.read_exact_at(&mut content, 0).unwrap();
        assert_eq!(content, [&[7; 10][..], &[1; 20], &[7; 70]].concat());
    }

    #[test]
    fn only_what_is_all_there_is_shown() {
        let content: Vec<u8> = (0..20_000).map(|i| (i % 251) as u8).collect();
        let file = memory(&content);
        file.set_len(40_000).unwrap();
        file.write_all_at(&[7], 30_000).unwrap();
        let show = |at, len| ReadOnlyPages::map(file.as_fd(), at, len).unwrap();
        for (at, len) in [(0, 20_000), (5000, 1), (4097, 8000), (30_000, 100)] {
            let expected = if at < 20_000 {
                &content[at as usize..][..len as usize]
            } else {
                &[&[7][..], &[0; 99]].concat()
            };
            let shown = show(at, len).expect("there is no hole");
            // SAFETY: nobody else has the file.
            assert_eq!(unsafe { &*shown.bytes() }, expected);
        }
        for (at, len) in [(0, 30_000), (25_000, 10), (0, 0), (39_999, 1)] {
            assert!(show(at, len).is_none(), "{at}, {len}");
        }
        assert!(ReadOnlyPages::map(file.as_fd(), 40_000, 1).is_err(), "behind the end");
        assert_eq!(file.metadata().unwrap().blocks(), 6 * 8, "no hole was filled");
    }

    proptest! {
        /// Places that are put are there, and nothing else has changed.
        #[test]
        fn a_file_has_what_was_put(
            size in 0usize..20_000,
            offset in 0u64..20_000,
            places in prop::collection::vec((0usize..40, 1usize..70), 1..60),
        ) {
            let mut expected: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
            let file = memory(&expected);
            let len: usize = places.iter().map(|(gap, len)| gap + len).sum();
            expected.resize(size.max(offset as usize + len), 0);
            let mapped = WritablePages::map(file.as_fd(), offset, len as u64).unwrap();
            let mut at = 0;
            for (index, (gap, len)) in places.into_iter().enumerate() {
                let bytes: Vec<u8> = (0..len).map(|i| (index * 31 + i) as u8).collect();
                at += gap;
                prop_assert!(mapped.put(at, &bytes));
                expected[offset as usize + at..][..len].copy_from_slice(&bytes);
                at += len;
            }
            drop(mapped);
            let mut content = vec![0; expected.len()];
            file.read_exact_at(&mut content, 0).unwrap();
            prop_assert_eq!(file.metadata().unwrap().len() as usize, expected.len());
            prop_assert!(content == expected);
        }
    }
}
