//! Room on the stack: what is done here takes more of it than a system call. Where there is little, or nobody knows how
//! much (in a coroutine, on a handler's stack), the kernel serves.
#![allow(unsafe_code, reason = "where a stack is has no safe interface")]

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;

/// Bytes that there have to be. Joining a formation takes 42 KiB, and twice as much without optimisation.
pub const ROOM: usize = if cfg!(debug_assertions) { 160 << 10 } else { 64 << 10 };
const PAGE: usize = 4096;

thread_local! {
    /// From where to where the thread's own stack is; zeros until somebody has looked.
    static BOUNDS: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    /// From where on it surely has memory.
    static MAPPED: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Returns whether there is room in this thread, where it is now. Not to be asked in the middle of malloc.
pub fn has_room() -> bool {
    let mark = 0u8;
    let here = ptr::from_ref(&mark).addr();
    BOUNDS.try_with(Cell::get).is_ok_and(|(mut low, mut high)| {
        if high == 0 {
            (low, high) = look().unwrap_or_default();
            // Only a thread that ends has no place for them.
            let _ = BOUNDS.try_with(|bounds| bounds.set((low, high)));
        }
        here < high && here.checked_sub(low).is_some_and(|left| left >= ROOM) && is_mapped(here - ROOM)
    })
}

/// Returns whether the stack has memory down to an address. The first thread's grows when it is used, which ends the
/// process where the memory is used up (RLIMIT_AS).
fn is_mapped(low: usize) -> bool {
    let mapped = MAPPED.try_with(Cell::get).unwrap_or(usize::MAX);
    if low >= mapped {
        return true;
    }
    let page = low & !(PAGE - 1);
    let mut resident = 0u8;
    // SAFETY: there is room for the answer about one page; nothing is changed.
    let is_there = unsafe { libc::mincore(ptr::without_provenance_mut(page), PAGE, &raw mut resident) } == 0;
    if is_there {
        // Only a thread that ends has no place for it.
        let _ = MAPPED.try_with(|mapped| mapped.set(page));
    }
    is_there || memory_is_unlimited()
}

fn memory_is_unlimited() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: there is room for the answer.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
    got == 0 && limit.rlim_cur == libc::RLIM_INFINITY
}

/// Returns whether a value of the caller's is on this thread's own stack, above where it is now. Only right behind
/// [`has_room`].
pub fn holds<T>(value: *const T) -> bool {
    let mark = 0u8;
    let (here, first) = (ptr::from_ref(&mark).addr(), value.addr());
    BOUNDS.try_with(Cell::get).is_ok_and(|(_, high)| {
        first > here && first.checked_add(size_of::<T>()).is_some_and(|end| end <= high)
    })
}

/// Asks libc.
fn look() -> Option<(usize, usize)> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut low, mut length) = (ptr::null_mut(), 0);
    // SAFETY: the attributes are made by the first call, used by the second, and ended by the third.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let got = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut low, &raw mut length);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        (got == 0).then(|| (low.addr(), low.addr().saturating_add(length)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_stacks_have_no_room_and_usual_ones_have() {
        let room_in = |length: usize| {
            std::thread::Builder::new().stack_size(length).spawn(has_room).unwrap().join().unwrap()
        };
        assert!(!room_in(ROOM / 2) && room_in(2 * ROOM) && room_in(2 << 20));
        assert!(has_room() && has_room());
    }
}
