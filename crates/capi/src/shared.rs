//! What processes that use one file need of each other: locks, and bytes that only one of them gets.
#![allow(unsafe_code, reason = "pointers of a program in C have no safe interface")]
#![allow(clippy::missing_safety_doc, reason = "the header says what callers have to keep to")]

use std::ffi::c_int;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bivouac_client::{FileLock, LOCK_END_MAX, LockKind, LockMode, NewInode};
use bivouac_types::{Errno, FsError, FsResult, Ino, mode};

use crate::connection::Formation;
use crate::failure::answer;
use crate::file::{File, offset_of};
use crate::flags::OpenFlags;
use crate::pointers;

/// How long a lock that others have is left alone before it is asked for again, at first and at most.
const PAUSE: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(5);

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_claim(file: *mut File, count: libc::off_t) -> libc::off_t {
    answer(|| {
        // SAFETY: the header asks for an object.
        let file = unsafe { pointers::object(file, "file")? };
        let len = offset_of(count)?;
        let (client, change) = (file.writable()?, file.shared.change()?);
        Ok(client.claim(&change.ctx, file.ino, len)?.try_into().unwrap_or(libc::off_t::MAX))
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_open_unnamed(
    formation: *mut Formation,
    directory: u64,
    permissions: libc::mode_t,
) -> *mut File {
    answer(|| {
        // SAFETY: the header asks for an object.
        let formation = unsafe { pointers::object(formation, "formation")? };
        let (client, change) = (formation.0.client()?, formation.0.change()?);
        let new = NewInode { mode: mode::FILE | permissions & mode::PERM, rdev: 0, target: &[] };
        let ino = client.tmpfile(&change.ctx, Ino(directory), &new, false)?.ino;
        let flags = OpenFlags::from_bits(libc::O_RDWR)?;
        drop(change);
        Ok(Box::into_raw(Box::new(File { shared: Arc::clone(&formation.0), ino, flags })))
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_lock(
    file: *mut File,
    kind: c_int,
    start: libc::off_t,
    count: libc::off_t,
    owner: u64,
    wait: c_int,
) -> c_int {
    answer(|| {
        // SAFETY: the header asks for an object.
        let file = unsafe { pointers::object(file, "file")? };
        let lock = lock_of(file, kind, start, count, owner)?;
        let client = file.shared.client()?;
        let mut pause = PAUSE;
        loop {
            match client.set_lock(file.ino, &lock, None) {
                Err(error) if error.errno() == Errno::EAGAIN && wait != 0 => {
                    // Nobody tells a process without threads of its own that the range is free: it asks again.
                    thread::park_timeout(pause);
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                done => return done.map(|_| 0),
            }
        }
    })
}

fn lock_of(
    file: &File,
    kind: c_int,
    start: libc::off_t,
    count: libc::off_t,
    owner: u64,
) -> FsResult<FileLock> {
    let (start, count) = (offset_of(start)?, offset_of(count)?);
    let mode = match kind {
        libc::F_RDLCK => LockMode::Read,
        libc::F_WRLCK => LockMode::Write,
        libc::F_UNLCK => LockMode::Unlock,
        _ => return Err(FsError::with(Errno::EINVAL, format!("{kind} is no kind of lock"))),
    };
    let end = match count {
        0 => LOCK_END_MAX,
        count => start.checked_add(count - 1).filter(|end| *end <= LOCK_END_MAX).ok_or(Errno::EOVERFLOW)?,
    };
    assert!(start <= end, "a lock from {start} to {end} has no bytes");
    // The object is the handle: closing it unlocks what was locked through it, and nothing else.
    let handle = std::ptr::from_ref(file) as u64;
    Ok(FileLock { kind: LockKind::Range, mode, owner, handle, pid: std::process::id(), start, end })
}
