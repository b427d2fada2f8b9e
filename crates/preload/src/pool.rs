//! Memory of a fixed type that is never given back, so that who finds an outdated way to it reads something of that
//! type.
#![allow(unsafe_code, reason = "it is mapped and reached by pointers")]

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Values per piece of memory.
const CHUNK: usize = 1024;

/// A type of which all bytes zero are a value, which nothing is done to before its memory is used.
///
/// # Safety
/// That is so.
pub unsafe trait Zeroed: Sync {}

/// An array that grows by pieces, up to `CHUNKS` of 1024 values. Takes no locks, and no memory of malloc.
pub struct Pool<T, const CHUNKS: usize> {
    chunks: [AtomicPtr<T>; CHUNKS],
    used: AtomicU32,
}

impl<T: Zeroed, const CHUNKS: usize> Pool<T, CHUNKS> {
    pub const fn new() -> Pool<T, CHUNKS> {
        Pool { chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS], used: AtomicU32::new(0) }
    }

    /// Returns the value at an index, if it has memory.
    pub fn get(&self, index: usize) -> Option<&T> {
        let chunk = self.chunks.get(index / CHUNK)?.load(Ordering::Acquire);
        if chunk.is_null() {
            return None;
        }
        // SAFETY: a chunk has so many values, zeros at first, which is one; it is never unmapped.
        Some(unsafe { &*chunk.add(index % CHUNK) })
    }

    /// Like [`get`](Self::get), with memory if there is any to be had.
    pub fn get_or_make(&self, index: usize) -> Option<&T> {
        if let Some(value) = self.get(index) {
            return Some(value);
        }
        let place = self.chunks.get(index / CHUNK)?;
        let (access, length) = (ProtFlags::READ | ProtFlags::WRITE, CHUNK * size_of::<T>());
        // SAFETY: no address is asked for, so nothing that is mapped already is touched.
        let new = unsafe { mmap_anonymous(ptr::null_mut(), length, access, MapFlags::PRIVATE) }.ok()?;
        let placed = place.compare_exchange(ptr::null_mut(), new.cast(), Ordering::AcqRel, Ordering::Acquire);
        if placed.is_err() {
            // SAFETY: just mapped, and nobody else knows of it. If it stays, it is only lost.
            let _ = unsafe { munmap(new, length) };
        }
        self.get(index)
    }

    /// Returns an index that nobody had before.
    pub fn take(&self) -> Option<usize> {
        let more = |used| (used < (CHUNKS * CHUNK) as u32).then_some(used + 1);
        let index = self.used.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).ok()? as usize;
        // Without memory it is lost.
        self.get_or_make(index).map(|_| index)
    }

    /// Returns all that were taken so far, with their indices.
    pub fn taken(&self) -> impl Iterator<Item = (usize, &T)> {
        let used = self.used.load(Ordering::Acquire) as usize;
        (0..used).filter_map(|index| Some((index, self.get(index)?)))
    }

    /// Returns all places that have memory, by pieces that lie behind each other, with the index of the first.
    pub fn indices(&self) -> impl Iterator<Item = usize> {
        let present = |(chunk, place): (usize, &AtomicPtr<T>)| {
            (!place.load(Ordering::Acquire).is_null()).then_some(chunk * CHUNK..(chunk + 1) * CHUNK)
        };
        self.chunks.iter().enumerate().filter_map(present).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    // SAFETY: zeros are a number.
    unsafe impl Zeroed for AtomicU64 {}

    #[test]
    fn values_stay_where_they_are() {
        static POOL: Pool<AtomicU64, 2> = Pool::new();
        assert!(POOL.get(0).is_none() && POOL.get(5000).is_none() && POOL.get_or_make(2048).is_none());
        let value = POOL.get_or_make(1030).unwrap();
        value.store(7, Ordering::Relaxed);
        assert_eq!(POOL.get(1030).unwrap().load(Ordering::Relaxed), 7);
        assert_eq!((POOL.indices().next(), POOL.indices().last()), (Some(1024), Some(2047)));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..600).filter(|_| POOL.take().is_some()).count());
            }
        });
        assert_eq!((POOL.taken().count(), POOL.take()), (2048, None), "each was given once");
    }
}
