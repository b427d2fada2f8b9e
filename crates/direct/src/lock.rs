//! Locks on single bytes of a grant table: they show that a session's process lives. They belong to the open file
//! description, which the kernel ends with the last process that has it.
#![allow(unsafe_code, reason = "open-file-description locks have no safe interface")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

fn request(kind: libc::c_int, byte: u32, len: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: i64::from(byte),
        l_len: len,
        l_pid: 0,
    }
}

/// Locks a byte for as long as `file`'s open file description lives. Fails if another one has it.
pub fn take(file: BorrowedFd<'_>, byte: u32) -> io::Result<()> {
    let lock = request(libc::F_WRLCK, byte, 1);
    // SAFETY: the call reads the structure, which lives until it returns.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Returns whether another open file description has the byte locked; with `len` 0, that one or any behind it.
pub fn is_taken(file: BorrowedFd<'_>, byte: u32, len: i64) -> io::Result<bool> {
    let mut lock = request(libc::F_WRLCK, byte, len);
    // SAFETY: the call reads and writes the structure, which lives until it returns.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(i32::from(lock.l_type) != libc::F_UNLCK),
    }
}
