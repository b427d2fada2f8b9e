//! Locks as operations of the file system.

use bivouac_types::{FsResult, Ino};
use bivouac_wire::FileLock;

use super::{LockWaiting, Locked};
use crate::client::Client;

impl Client {
    /// Locks or unlocks a range, as [`super::LockDesk::set`].
    ///
    /// # Errors
    /// `EAGAIN`, `ENOLCK`, `EINTR`, `EIO`.
    pub fn set_lock(&self, ino: Ino, lock: &FileLock, waiting: Option<LockWaiting>) -> FsResult<Locked> {
        // Who has the lock next sees what was written under it, and who gets it sees what others wrote.
        self.send_unsent(ino)?;
        let fresh = self.copies_of(ino);
        let waiting = waiting.map(|waiting| LockWaiting {
            answer: Box::new(move |outcome| {
                fresh();
                (waiting.answer)(outcome);
            }),
            ..waiting
        });
        let locked = self.locks.set(ino, lock, waiting)?;
        self.drop_copies(ino);
        Ok(locked)
    }

    /// A lock that is in the way of this one.
    ///
    /// # Errors
    /// `EINVAL`, `EIO`.
    pub fn test_lock(&self, ino: Ino, lock: &FileLock) -> FsResult<Option<FileLock>> {
        self.locks.test(ino, lock)
    }

    /// Takes back a request for a lock that waits, or has yet to come.
    pub fn interrupt_lock(&self, ticket: u64) {
        self.locks.interrupt(ticket);
    }

    /// A process closed the file: what it has locked of it in ranges is unlocked.
    pub fn unlock_owner(&self, ino: Ino, owner: u64) {
        self.give_up_locked(ino);
        self.locks.closed_by(ino, owner);
    }

    /// The last descriptor of an open file is closed: what was locked through it is unlocked.
    pub fn unlock_handle(&self, ino: Ino, handle: u64) {
        self.give_up_locked(ino);
        self.locks.released(ino, handle);
    }

    /// Whether anything may be locked through this client, or was.
    #[must_use]
    pub fn locks_used(&self) -> bool {
        self.locks.is_used()
    }

    /// Drops all locks, at the end of the client.
    pub fn drop_locks(&self) {
        self.locks.close();
    }
}
