//! A file that is open as a client of its formation, and the writes whose times have not been sent.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use bivouac_client::{Client, Member};
use bivouac_types::{FsResult, Ino};
use parking_lot::Mutex;

use crate::known::WRITTEN;

/// True if the time of any write may not have been sent to its home.
static DIRTY_MTIMES: AtomicBool = AtomicBool::new(false);

/// A file that is open at its home: its calls are carried out by this library.
pub struct DirectFile {
    member: Arc<Member>,
    /// The inode.
    pub ino: Ino,
    access: u32,
    /// Position after the last call. One call at a time uses it, as in the kernel.
    pub position: Mutex<Option<u64>>,
    mtime_dirty: AtomicBool,
    written: AtomicBool,
    /// The next one that was given up.
    pub next: AtomicPtr<DirectFile>,
}

impl DirectFile {
    /// Creates a file that `member` has opened with this access mode of the kernel.
    pub fn new(member: Arc<Member>, ino: Ino, access: u32) -> DirectFile {
        DirectFile {
            member,
            ino,
            access,
            position: Mutex::new(None),
            mtime_dirty: AtomicBool::new(false),
            written: AtomicBool::new(false),
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Returns the client that has it open.
    pub fn client(&self) -> FsResult<&Client> {
        self.member.client()
    }

    /// Notes a write whose time has not been sent to the home.
    pub fn mark_mtime_dirty(&self) {
        if !self.written.load(Ordering::Relaxed) {
            self.written.store(true, Ordering::Relaxed);
            WRITTEN.add(0, self.ino.0);
        }
        if !self.mtime_dirty.load(Ordering::Relaxed) {
            self.mtime_dirty.store(true, Ordering::Release);
        }
        mark_mtime_dirty();
    }

    /// Sends the time of the last write to the home; returns whether the home has it.
    pub fn send_mtime(&self) -> bool {
        if !self.mtime_dirty.swap(false, Ordering::AcqRel) {
            return true;
        }
        let is_sent = self.client().and_then(|client| client.homes.tell_times(self.ino)).is_ok();
        if !is_sent {
            self.mtime_dirty.store(true, Ordering::Release);
        }
        is_sent
    }
}

impl Drop for DirectFile {
    fn drop(&mut self) {
        if let Ok(client) = self.member.client() {
            // Nothing can be lost any more.
            let _ = catch_unwind(AssertUnwindSafe(|| client.close_open(self.ino, self.access)));
        }
    }
}

/// Notes a write whose time is to be sent later.
pub fn mark_mtime_dirty() {
    if !DIRTY_MTIMES.load(Ordering::Relaxed) {
        DIRTY_MTIMES.store(true, Ordering::Release);
    }
}

/// Returns whether the time of any write may not have been sent to its home.
#[inline]
pub fn has_dirty_mtimes() -> bool {
    DIRTY_MTIMES.load(Ordering::Acquire)
}

/// Forgets which times are to be sent: all are about to be. A write that comes after this is noted again.
pub fn clear_dirty_mtimes() {
    DIRTY_MTIMES.store(false, Ordering::SeqCst);
}
