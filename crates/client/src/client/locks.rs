//! Locks as operations of the file system.

use bivouac_types::{FsResult, Ino};
use bivouac_wire::FileLock;

use super::Client;
use crate::locks::{LockWaiting, Locked};

impl Client {
    /// Locks or unlocks a range, as [`crate::LockDesk::set`].
    ///
    /// # Errors
    /// `EAGAIN`, `ENOLCK`, `EINTR`, `EIO`.
    pub fn set_lock(&self, ino: Ino, lock: &FileLock, waiting: Option<LockWaiting>) -> FsResult<Locked> {
        // Who has the lock next sees what was written under it, and who gets it sees what others wrote.
        self.sessions.send_unsent(ino)?;
        let fresh = self.sessions.copies_of(ino);
        let waiting = waiting.map(|waiting| LockWaiting {
            answer: Box::new(move |outcome| {
                fresh();
                (waiting.answer)(outcome);
            }),
            ..waiting
        });
        let locked = self.locks.set(ino, lock, waiting)?;
        self.sessions.drop_copies(ino);
        Ok(locked)
    }

    /// A process closed the file: what it has locked of it in ranges is unlocked.
    pub fn unlock_owner(&self, ino: Ino, owner: u64) {
        self.sessions.give_up_locked(ino);
        self.locks.closed_by(ino, owner);
    }

    /// The last descriptor of an open file is closed: what was locked through it is unlocked.
    pub fn unlock_handle(&self, ino: Ino, handle: u64) {
        self.sessions.give_up_locked(ino);
        self.locks.released(ino, handle);
    }
}
