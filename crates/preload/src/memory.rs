//! Memory of this library. A program that has used up its own goes on, and so it must here: where malloc has nothing
//! left, what is being done gets memory of a reserve, and later calls are the kernel's until there is memory again.
#![allow(unsafe_code, reason = "an allocator has no safe interface")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes of the reserve. Joining a formation takes some hundred KiB at most, a call of the program 512 KiB at most, and
/// several threads may be in the middle of one.
const RESERVE: usize = 4 << 20;
/// Bytes that have to be left of it when a call begins.
const LEFT_MIN: usize = RESERVE / 2;
/// Bytes that malloc has to have again, and in each thread before its first call: what is set up per thread ends the
/// process if it fails.
const TRIED: usize = 256 << 10;

#[global_allocator]
static MEMORY: Memory = Memory { reserve: StaticMemory::new(), is_short: AtomicBool::new(false) };

thread_local! {
    /// True if the thread had memory when it began its first call.
    static BEGUN: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether there is memory enough for a call. Not to be asked in the middle of malloc.
pub fn is_there() -> bool {
    let has_begun = BEGUN.try_with(Cell::get).unwrap_or(true);
    if has_begun && !MEMORY.is_short.load(Ordering::Relaxed) {
        return true;
    }
    if !has(TRIED) || MEMORY.reserve.left() < LEFT_MIN {
        return false;
    }
    MEMORY.is_short.store(false, Ordering::Relaxed);
    // Only a thread that ends has no place for it.
    let _ = BEGUN.try_with(|begun| begun.set(true));
    true
}

/// Returns whether malloc has so many bytes.
pub fn has(bytes: usize) -> bool {
    let Ok(layout) = Layout::from_size_align(bytes.max(1), 16) else { return false };
    // SAFETY: the size is not zero, and what was got is given back.
    unsafe {
        let tried = System.alloc(layout);
        if !tried.is_null() {
            // Otherwise it would never be asked for.
            std::hint::black_box(tried);
            System.dealloc(tried, layout);
        }
        !tried.is_null()
    }
}

struct Memory {
    reserve: StaticMemory,
    /// True if malloc had nothing left when it was asked last.
    is_short: AtomicBool,
}

// SAFETY: memory is of malloc or of the reserve, each gets back what it gave, and both give memory as it was asked for.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller says.
        let got = unsafe { System.alloc(layout) };
        if got.is_null() { self.take_reserved(layout) } else { got }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller says.
        let got = unsafe { System.alloc_zeroed(layout) };
        if !got.is_null() {
            return got;
        }
        let got = self.take_reserved(layout);
        if !got.is_null() {
            // SAFETY: it has so many bytes, which may have been used before.
            unsafe { ptr::write_bytes(got, 0, layout.size()) };
        }
        got
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        if self.reserve.has(place) {
            self.reserve.give_back();
        } else {
            // SAFETY: as the caller says, and it is malloc's.
            unsafe { System.dealloc(place, layout) };
        }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !self.reserve.has(place) {
            // SAFETY: as the caller says, and it is malloc's.
            let got = unsafe { System.realloc(place, layout, size) };
            if !got.is_null() {
                return got;
            }
        }
        // SAFETY: the caller says that this is a layout.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: the size is not zero, as the caller says.
        let got = unsafe { self.alloc(new) };
        if !got.is_null() {
            // SAFETY: both have so many bytes, and do not overlap, since both are in use.
            unsafe { ptr::copy_nonoverlapping(place, got, layout.size().min(size)) };
            // SAFETY: as the caller says.
            unsafe { self.dealloc(place, layout) };
        }
        got
    }
}

impl Memory {
    fn take_reserved(&self, layout: Layout) -> *mut u8 {
        self.is_short.store(true, Ordering::Relaxed);
        self.reserve.take(layout).unwrap_or(ptr::null_mut())
    }
}

/// Memory that is part of the library. It is given out from its beginning on, and again from there when all has come
/// back. Takes no locks.
struct StaticMemory {
    bytes: UnsafeCell<Bytes>,
    /// Pieces that are given out, in the upper half, and bytes up to the end of the last, in the lower one.
    used: AtomicU64,
}

#[repr(align(4096))]
struct Bytes {
    _bytes: [u8; RESERVE],
}

// SAFETY: each piece is given to one caller only.
unsafe impl Sync for StaticMemory {}

impl StaticMemory {
    const fn new() -> StaticMemory {
        StaticMemory { bytes: UnsafeCell::new(Bytes { _bytes: [0; RESERVE] }), used: AtomicU64::new(0) }
    }

    fn start(&self) -> *mut u8 {
        self.bytes.get().cast()
    }

    fn take(&self, layout: Layout) -> Option<*mut u8> {
        let start = self.start();
        let place = |used: u64| {
            let end = (used & u64::from(u32::MAX)) as usize;
            let from =
                start.addr().checked_add(end)?.checked_next_multiple_of(layout.align())? - start.addr();
            let to = from.checked_add(layout.size()).filter(|to| *to <= RESERVE)?;
            Some((from, ((used >> 32) + 1) << 32 | to as u64))
        };
        let more = |used| place(used).map(|(_, more)| more);
        let used = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        place(used).map(|(from, _)| start.wrapping_add(from))
    }

    fn has(&self, place: *mut u8) -> bool {
        place.addr().checked_sub(self.start().addr()).is_some_and(|at| at < RESERVE)
    }

    fn give_back(&self) {
        let less = |used: u64| {
            let pieces = (used >> 32).saturating_sub(1);
            Some(if pieces == 0 { 0 } else { pieces << 32 | used & u64::from(u32::MAX) })
        };
        let _is_always_some = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }

    fn left(&self) -> usize {
        RESERVE - (self.used.load(Ordering::Acquire) & u64::from(u32::MAX)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    #[test]
    fn the_reserve_gives_each_piece_once_and_begins_anew_when_all_are_back() {
        static RESERVED: StaticMemory = StaticMemory::new();
        let (first, second) = (RESERVED.take(layout(3, 1)).unwrap(), RESERVED.take(layout(100, 64)).unwrap());
        assert_eq!((second.addr() % 64, second.addr() - first.addr()), (0, 64));
        assert!(RESERVED.has(first) && RESERVED.has(second) && !RESERVED.has(ptr::null_mut()));
        assert_eq!(RESERVED.left(), RESERVE - 164);
        assert!(
            RESERVED.take(layout(RESERVE, 1)).is_none() && RESERVED.take(layout(RESERVE - 164, 1)).is_some()
        );
        assert_eq!((RESERVED.left(), RESERVED.take(layout(1, 1))), (0, None));
        (0..3).for_each(|_| RESERVED.give_back());
        assert_eq!((RESERVED.left(), RESERVED.take(layout(5, 1))), (RESERVE, Some(first)));
    }

    #[test]
    fn what_is_in_the_reserve_grows_and_goes() {
        static OTHER: Memory = Memory { reserve: StaticMemory::new(), is_short: AtomicBool::new(false) };
        let small = layout(10, 8);
        let place = OTHER.take_reserved(small);
        assert!(OTHER.is_short.load(Ordering::Relaxed) && OTHER.reserve.has(place));
        // SAFETY: a piece of 10 bytes that is used as such, made longer and given back.
        unsafe {
            ptr::write_bytes(place, 7, 10);
            let grown = OTHER.realloc(place, small, 20);
            assert!(!OTHER.reserve.has(grown) && std::slice::from_raw_parts(grown, 10) == [7; 10]);
            assert_eq!(OTHER.reserve.left(), RESERVE);
            OTHER.dealloc(grown, layout(20, 8));
        }
    }

    #[test]
    fn a_thread_has_memory_before_its_first_call() {
        assert!(is_there() && is_there());
        std::thread::spawn(|| assert!(is_there())).join().unwrap();
    }
}
