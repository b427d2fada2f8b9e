//! Messages about the locks that programs take: `flock`, and the byte ranges of `fcntl`.

use bivouac_types::{ClientId, Ino, NodeId};

use crate::{Decode, DecodeError, Encode, Reader, codec_struct};

/// Last byte that a lock can cover: a range to the end of the file, however long it gets, ends here.
pub const LOCK_END_MAX: u64 = i64::MAX as u64;

/// Which locks exclude each other: those of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockKind {
    /// Byte ranges: `fcntl`, of processes and of open file descriptions.
    Range,
    /// Whole files: `flock`.
    Whole,
}

/// What a lock lets others do, or that it is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// Others may read-lock too.
    Read,
    /// Nobody else may lock.
    Write,
    /// No lock.
    Unlock,
}

macro_rules! codec_enum {
    ($ty:ident { $($name:ident = $number:literal),* }) => {
        impl Encode for $ty {
            fn encode(&self, out: &mut Vec<u8>) {
                out.push(match self { $($ty::$name => $number),* });
            }
        }
        impl Decode<'_> for $ty {
            fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
                match u8::decode(input)? {
                    $($number => Ok($ty::$name),)*
                    _ => Err(DecodeError::Invalid(stringify!($ty))),
                }
            }
        }
    };
}
codec_enum!(LockKind { Range = 0, Whole = 1 });
codec_enum!(LockMode { Read = 0, Write = 1, Unlock = 2 });

/// Of what an owner has locked, and waits for, what is to be unlocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnlockScope {
    /// What it has locked in the range.
    Range,
    /// Everything, since it has closed the file. Who still waits asks again.
    Owner,
    /// What was asked for through the open file, since that is no more.
    Handle,
}
codec_enum!(UnlockScope { Range = 0, Owner = 1, Handle = 2 });

/// A lock of some owner within a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLock {
    /// Which locks it excludes.
    pub kind: LockKind,
    /// What it lets others do.
    pub mode: LockMode,
    /// Whose it is: a process's table of open files, or an open file description.
    pub owner: u64,
    /// The open file through which it was taken.
    pub handle: u64,
    /// The process that took it, as the client's kernel numbers it.
    pub pid: u32,
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
}
codec_struct!(FileLock { kind, mode, owner, handle, pid, start, end });

/// A lock to be taken or given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetLockRequest {
    /// The file.
    pub ino: Ino,
    /// The lock, or what is to be unlocked.
    pub lock: FileLock,
    /// What is to be unlocked.
    pub scope: UnlockScope,
    /// Whether the client has locked something of the file: if the home knows of nothing, it has dropped that, and refuses.
    pub holds: bool,
    /// The number under which the request may wait.
    pub ticket: Option<u64>,
    /// The node whose process serves the client, so that it can be told.
    pub node: Option<NodeId>,
}
codec_struct!(SetLockRequest { ino, lock, scope, holds, ticket, node });

/// A request that may be waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockTicket {
    /// Who waits.
    pub client: ClientId,
    /// The file.
    pub ino: Ino,
    /// The request's number, unique within the client.
    pub ticket: u64,
}
codec_struct!(LockTicket { client, ino, ticket });

/// A lock with its client and file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockOf {
    /// The client.
    pub client: ClientId,
    /// The node whose process serves the client, if it is known.
    pub node: Option<NodeId>,
    /// The file.
    pub ino: Ino,
    /// The lock.
    pub lock: FileLock,
}
codec_struct!(LockOf { client, node, ino, lock });

/// A part of a client's locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListLocksRequest {
    /// Whether the client's waiting requests are to be dropped first.
    pub drop_waits: bool,
    /// Those behind this one, in the order of files, kinds, owners and first bytes: the last one that is known.
    pub after: Option<LockOf>,
}
codec_struct!(ListLocksRequest { drop_waits, after });

/// Locks of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockList {
    /// File and lock.
    pub locks: Vec<LockOf>,
    /// Whether nothing follows.
    pub end: bool,
}
codec_struct!(LockList { locks, end });

/// Locks of any clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolderList {
    /// The locks; not all of them if there are very many.
    pub holders: Vec<LockOf>,
}
codec_struct!(LockHolderList { holders });

/// Owners of locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockOwners {
    /// Client, and owner within it.
    pub owners: Vec<(ClientId, u64)>,
}
codec_struct!(LockOwners { owners });

/// A request that waits, as its client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockWait {
    /// What is waited for.
    pub of: LockOf,
    /// Its number.
    pub ticket: u64,
    /// For how long it has been waiting.
    pub waited_ms: u64,
}
codec_struct!(LockWait { of, ticket, waited_ms });

/// Requests that wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockWaitList {
    /// The requests.
    pub waits: Vec<LockWait>,
}
codec_struct!(LockWaitList { waits });

/// Requests that have their locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantedLocks {
    /// Client and number of the request.
    pub tickets: Vec<(ClientId, u64)>,
}
codec_struct!(GrantedLocks { tickets });

impl FileLock {
    /// Whether it is a range of bytes that a file can have.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.start <= self.end && self.end <= LOCK_END_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
