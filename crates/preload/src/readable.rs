//! Whether a buffer of the program can be read. The kernel finds that out while it copies; what is summed up here for a
//! node of another host is read by us, and must not end the program.
#![allow(unsafe_code, reason = "memory of the program is asked about by address")]

use libc::{c_int, c_void, iovec};

use crate::errno;

/// The kernel makes the pages readable, or says that it cannot (since Linux 5.14).
const POPULATE_READ: c_int = 22;
/// Smallest page there is: rounding down to it is right for larger ones too, but then the kernel refuses the address.
const PAGE_MIN: usize = 4096;

/// Returns whether all bytes of a piece can be read.
pub fn is_readable(piece: &iovec) -> bool {
    if piece.iov_len == 0 {
        return true;
    }
    let (_kept, (start, end)) = (errno::ErrnoGuard::new(), pages(piece));
    match populate(start, end) {
        Ok(()) => true,
        // What may not be read looks like a question that is not understood. What surely may be tells which it is.
        Err(libc::EINVAL) if populate_known() => false,
        // SAFETY: nothing is written by this, nor waited for. At least something is mapped there.
        Err(libc::EINVAL) => unsafe { libc::msync(start as *mut c_void, end - start, libc::MS_ASYNC) == 0 },
        Err(_) => false,
    }
}

fn populate(start: usize, end: usize) -> Result<(), c_int> {
    // SAFETY: pages are made readable as by reading them; their content stays.
    let outcome = unsafe { libc::madvise(start as *mut c_void, end - start, POPULATE_READ) };
    if outcome == 0 { Ok(()) } else { Err(errno::get()) }
}

/// Returns whether this kernel knows the question.
fn populate_known() -> bool {
    let here = 0u8;
    let (start, end) = pages(&iovec { iov_base: (&raw const here) as *mut c_void, iov_len: 1 });
    populate(start, end).is_ok()
}

/// Returns the pages that a piece lies in.
fn pages(piece: &iovec) -> (usize, usize) {
    // SAFETY: a question about the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page = usize::try_from(page).unwrap_or(PAGE_MIN).max(PAGE_MIN);
    let start = piece.iov_base as usize;
    let end = start.saturating_add(piece.iov_len).checked_next_multiple_of(page);
    (start - start % page, end.unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_there_is_told_from_memory_that_is() {
        let map = |protection| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: new memory, at a place that the kernel chooses.
            let base = unsafe { libc::mmap(std::ptr::null_mut(), 3 * 4096, protection, flags, -1, 0) };
            assert_ne!(base, libc::MAP_FAILED);
            base
        };
        let piece = |base: *mut c_void, skip: usize, len| {
            is_readable(&iovec { iov_base: base.wrapping_byte_add(skip), iov_len: len })
        };
        let (none, read) = (map(libc::PROT_NONE), map(libc::PROT_READ));
        assert!(!piece(none, 0, 1) && !piece(none, 5000, 2000));
        assert!(piece(read, 1, 3 * 4096 - 1) && piece(read, 4095, 2));
        // SAFETY: nothing of ours is there but this.
        unsafe { libc::munmap(read.wrapping_byte_add(4096), 4096) };
        assert!(piece(read, 0, 4096) && piece(read, 8192, 10));
        assert!(!piece(read, 0, 4097) && !piece(read, 4000, 5000));
        let bytes = vec![1u8; 1 << 20];
        assert!(is_readable(&iovec { iov_base: bytes.as_ptr() as *mut c_void, iov_len: bytes.len() }));
    }
}
