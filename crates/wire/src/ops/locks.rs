//! Messages about the locks that programs take: `flock`, and the byte ranges of `fcntl`.

use bivouac_types::{ClientId, Ino, NodeId};

/// Last byte that a lock can cover: a range to the end of the file, however long it gets, ends here.
pub const LOCK_END_MAX: u64 = i64::MAX as u64;

/// Kind of a lock. Only locks of one kind conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockKind {
    /// Byte ranges: `fcntl`, of processes and of open file descriptions.
    Range,
    /// Whole files: `flock`.
    Whole,
}

/// Mode of a lock, or its removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// Others may read-lock too.
    Read,
    /// Others may not lock.
    Write,
    /// No lock.
    Unlock,
}

codec_enum!(LockKind, "LockKind" { Range = 0, Whole = 1 });
codec_enum!(LockMode, "LockMode" { Read = 0, Write = 1, Unlock = 2 });

/// Of what an owner has locked, and waits for, what is to be unlocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnlockScope {
    /// Its locks in the range.
    Range,
    /// All its locks, since it has closed the file. Requests that wait ask again.
    Owner,
    /// Requests made through the open file, which has ended.
    Handle,
}
codec_enum!(UnlockScope, "UnlockScope" { Range = 0, Owner = 1, Handle = 2 });

owned! {
    /// A lock of some owner within a client.
    #[derive(Copy)]
    FileLock {
        /// Its kind.
        kind: LockKind,
        /// Its mode.
        mode: LockMode,
        /// Its owner: a process's table of open files, or an open file description.
        owner: u64,
        /// The open file through which it was taken.
        handle: u64,
        /// The process that took it, as the client's kernel numbers it.
        pid: u32,
        /// First byte.
        start: u64,
        /// Last byte.
        end: u64,
    }
    /// A lock to be taken or given back.
    #[derive(Copy)]
    SetLockRequest {
        /// The file.
        ino: Ino,
        /// The lock, or what is to be unlocked.
        lock: FileLock,
        /// The locks to be released.
        scope: UnlockScope,
        /// True if the client holds a lock of the file. A home that knows of none has dropped it, and refuses.
        holds: bool,
        /// The number under which the request may wait.
        ticket: Option<u64>,
        /// The node whose process serves the client, so that it can be told.
        node: Option<NodeId>,
    }
    /// A request that may be waiting.
    #[derive(Copy)]
    LockTicket {
        /// The client that waits.
        client: ClientId,
        /// The file.
        ino: Ino,
        /// The request's number, unique within the client.
        ticket: u64,
    }
    /// A lock with its client and file.
    #[derive(Copy)]
    LockOf {
        /// The client.
        client: ClientId,
        /// The node whose process serves the client, if it is known.
        node: Option<NodeId>,
        /// The file.
        ino: Ino,
        /// The lock.
        lock: FileLock,
    }
    /// A part of a client's locks.
    #[derive(Copy)]
    ListLocksRequest {
        /// True if the client's waiting requests are to be dropped first.
        drop_waits: bool,
        /// Return locks after this one, in the order of files, kinds, owners and first bytes: the last that is known.
        after: Option<LockOf>,
    }
    /// Locks of one client.
    LockList {
        /// File and lock.
        locks: Vec<LockOf>,
        /// True if nothing follows.
        end: bool,
    }
    /// Locks of any clients.
    LockHolderList {
        /// The locks; not all of them if there are very many.
        holders: Vec<LockOf>,
    }
    /// Owners of locks.
    LockOwners {
        /// Client, and owner within it.
        owners: Vec<(ClientId, u64)>,
    }
    /// A request that waits, as its client knows it.
    #[derive(Copy)]
    LockWait {
        /// The lock waited for.
        of: LockOf,
        /// Its number.
        ticket: u64,
        /// Time that it has waited, in milliseconds.
        waited_ms: u64,
    }
    /// Requests that wait.
    LockWaitList {
        /// The requests.
        waits: Vec<LockWait>,
    }
    /// Requests that have their locks.
    GrantedLocks {
        /// Client and number of the request.
        tickets: Vec<(ClientId, u64)>,
    }
}

impl FileLock {
    /// Returns whether it is a range of bytes that a file can have.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.start <= self.end && self.end <= LOCK_END_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decode, Encode};
    use proptest::prelude::*;

    #[test]
    fn golden_bytes_of_a_lock() {
        let lock = FileLock {
            kind: LockKind::Whole,
            mode: LockMode::Write,
            owner: 2,
            handle: 3,
            pid: 4,
            start: 5,
            end: 6,
        };
        let scope = UnlockScope::Handle;
        let request = SetLockRequest { ino: Ino(1), lock, scope, holds: true, ticket: Some(7), node: None };
        let mut bytes = vec![1, 0, 0, 0, 0, 0, 0, 0, 1, 1];
        bytes.extend([2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0]);
        bytes.extend([5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend([2, 1, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(request.to_bytes(), bytes);
        assert_eq!(SetLockRequest::from_bytes(&bytes), Ok(request));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = SetLockRequest::from_bytes(&bytes);
            let _ = LockList::from_bytes(&bytes);
            let _ = LockWaitList::from_bytes(&bytes);
            let _ = GrantedLocks::from_bytes(&bytes);
        }
    }
}
