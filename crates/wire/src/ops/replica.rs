//! Messages between a node whose volumes are mirrored, the primary, and the node that keeps the replicas, its backup.

use bivouac_types::NodeId;

use crate::{Decode, DecodeError, Encode, Reader};

/// Most channels of a replica session: as many requests with changes of a primary are under way at once.
pub const REPLICA_CHANNELS_MAX: u16 = 64;
/// Greatest number of changes in one request.
pub const REPLICA_CHANGES_MAX: usize = 64;

// The answer says in 16 bits how many were made.
const _: () = assert!(REPLICA_CHANGES_MAX <= u16::MAX as usize);

/// A change of a volume, as the primary makes it. Names are `file` or `directory/file`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeChange {
    /// Makes an empty file; one that is there stays as it is.
    Create {
        /// The file.
        name: String,
    },
    /// Makes a directory; one that is there stays.
    MakeDir {
        /// The directory.
        name: String,
    },
    /// Gives a file another name, replacing what has that name.
    Rename {
        /// The name until now.
        from: String,
        /// The new name.
        to: String,
    },
    /// Removes a file; none there is no error.
    Remove {
        /// The file.
        name: String,
    },
    /// Writes the payload to extents, each an offset and a length in bytes, in order and without overlap.
    Write {
        /// The file.
        name: String,
        /// The extents.
        extents: Vec<(u64, u32)>,
    },
    /// Cuts or extends a file.
    SetLen {
        /// The file.
        name: String,
        /// Its new length.
        len: u64,
    },
    /// Gives a range bytes of the volume.
    Allocate {
        /// The file.
        name: String,
        /// First byte.
        start: u64,
        /// First byte behind it.
        end: u64,
    },
    /// Makes a file at least so long, and keeps what is allocated behind its end.
    Grow {
        /// The file.
        name: String,
        /// The length.
        len: u64,
    },
    /// Makes a range zeros and gives back its whole pages.
    Punch {
        /// The file.
        name: String,
        /// First byte.
        start: u64,
        /// First byte behind it.
        end: u64,
    },
    /// Makes a file outlive the host.
    Sync {
        /// The file.
        name: String,
    },
    /// Makes the names in a directory outlive the host; the empty name is the volume itself.
    SyncDir {
        /// The directory.
        name: String,
    },
}

impl VolumeChange {
    /// Returns the file or directory that it changes; of a change of names, the old one.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            VolumeChange::Create { name }
            | VolumeChange::MakeDir { name }
            | VolumeChange::Rename { from: name, .. }
            | VolumeChange::Remove { name }
            | VolumeChange::Write { name, .. }
            | VolumeChange::SetLen { name, .. }
            | VolumeChange::Allocate { name, .. }
            | VolumeChange::Grow { name, .. }
            | VolumeChange::Punch { name, .. }
            | VolumeChange::Sync { name }
            | VolumeChange::SyncDir { name } => name,
        }
    }

    /// Returns the number of bytes that come as its payload; `None` if they are more than a message has.
    #[must_use]
    pub fn payload_len(&self) -> Option<usize> {
        match self {
            VolumeChange::Write { extents, .. } => {
                let sum = extents.iter().try_fold(0u64, |sum, (_, len)| sum.checked_add(u64::from(*len)))?;
                usize::try_from(sum).ok().filter(|sum| *sum <= bivouac_types::limits::FRAME_PAYLOAD_MAX)
            }
            _ => Some(0),
        }
    }
}

impl Encode for VolumeChange {
    fn encode(&self, out: &mut Vec<u8>) {
        let mut named = |kind: u8, name: &String| {
            out.push(kind);
            name.encode(out);
        };
        match self {
            VolumeChange::Create { name } => named(0, name),
            VolumeChange::MakeDir { name } => named(1, name),
            VolumeChange::Rename { from, to } => {
                named(2, from);
                to.encode(out);
            }
            VolumeChange::Remove { name } => named(3, name),
            VolumeChange::Write { name, extents } => {
                named(4, name);
                extents.encode(out);
            }
            VolumeChange::SetLen { name, len } => {
                named(5, name);
                len.encode(out);
            }
            VolumeChange::Allocate { name, start, end } => {
                named(6, name);
                (*start, *end).encode(out);
            }
            VolumeChange::Grow { name, len } => {
                named(7, name);
                len.encode(out);
            }
            VolumeChange::Punch { name, start, end } => {
                named(8, name);
                (*start, *end).encode(out);
            }
            VolumeChange::Sync { name } => named(9, name),
            VolumeChange::SyncDir { name } => named(10, name),
        }
    }
}

impl Decode<'_> for VolumeChange {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (kind, name) = (u8::decode(input)?, String::decode(input)?);
        Ok(match kind {
            0 => VolumeChange::Create { name },
            1 => VolumeChange::MakeDir { name },
            2 => VolumeChange::Rename { from: name, to: String::decode(input)? },
            3 => VolumeChange::Remove { name },
            4 => VolumeChange::Write { name, extents: Vec::decode(input)? },
            5 => VolumeChange::SetLen { name, len: u64::decode(input)? },
            6 | 8 => {
                let (start, end) = <(u64, u64)>::decode(input)?;
                if start > end {
                    return Err(DecodeError::Invalid("range"));
                }
                match kind {
                    6 => VolumeChange::Allocate { name, start, end },
                    _ => VolumeChange::Punch { name, start, end },
                }
            }
            7 => VolumeChange::Grow { name, len: u64::decode(input)? },
            9 => VolumeChange::Sync { name },
            10 => VolumeChange::SyncDir { name },
            _ => return Err(DecodeError::Invalid("change of a volume")),
        })
    }
}

/// Outcome of a request of a primary at its backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaOutcome {
    /// It is done, and the primary's lease is renewed.
    Done,
    /// The backup has no space: nothing of it counts, some of it may be there. The lease is renewed.
    NoSpace,
    /// The session is over, or the backup's daemon is another one: the primary has to begin a session.
    NoSession,
    /// The replica is sealed, or of a later epoch: the primary must not serve any more.
    Superseded {
        /// The epoch below which the backup refuses everything.
        epoch: u32,
    },
    /// It failed with this errno: the replica may differ.
    Failed {
        /// The errno.
        errno: i32,
    },
}

codec_enum!(ReplicaOutcome, "outcome of a change" {
    Done = 0,
    NoSpace = 1,
    NoSession = 2,
    Superseded { epoch } = 3,
    Failed { errno } = 4,
});

owned! {
    /// A primary begins a session with its backup.
    BeginReplicaRequest {
        /// The mirror epoch of the primary.
        epoch: u32,
        /// Number of the primary's volumes.
        volumes: u16,
        /// Length of a lease, in milliseconds.
        lease_ms: u32,
        /// The session that the primary had with this replica, if it knows which changes of it were under way.
        continues: Option<u64>,
        /// True if the replicas are to be made anew, whatever they have.
        anew: bool,
    }
    /// A part of a file of which the backup may have what the primary has not.
    SuspectPart {
        /// Position of the volume on the primary.
        volume: u16,
        /// The file.
        name: String,
        /// First byte.
        start: u64,
        /// First byte behind it.
        end: u64,
    }
    /// A session of a primary with its backup.
    BegunReplica {
        /// The outcome; the rest counts only if it is done.
        outcome: ReplicaOutcome,
        /// Number of the session, which no other session with this node has.
        session: u64,
        /// True if the replicas have all that was acknowledged, but for the suspects; if not, they are empty.
        is_complete: bool,
        /// Parts that the last changes of earlier sessions concerned.
        suspects: Vec<SuspectPart>,
    }
    /// Changes of a primary's volumes.
    ApplyChangesRequest {
        /// The mirror epoch of the primary.
        epoch: u32,
        /// The session.
        session: u64,
        /// Channel of the session: one request at a time.
        channel: u16,
        /// Number of the request on the channel, rising.
        sequence: u64,
        /// The changes, in order, each with the position of its volume on the primary. Their bytes follow each other in
        /// the payload.
        changes: Vec<(u16, VolumeChange)>,
    }
    /// Changes of which the first ones were made.
    AppliedChanges {
        /// Number of those.
        made: u16,
        /// The outcome of the first that was not made, or of all.
        outcome: ReplicaOutcome,
    }
    /// State of a session, from its primary.
    ReplicaSessionRequest {
        /// The mirror epoch of the primary.
        epoch: u32,
        /// The session.
        session: u64,
        /// True once the replicas have all that the primary has, suspects included.
        is_complete: bool,
    }
    /// Seals the replicas of a node at its backup.
    SealReplicaRequest {
        /// The node whose volumes are mirrored.
        node: NodeId,
        /// The epoch of its next daemon: all below are refused.
        epoch: u32,
    }
    /// A sealed replica.
    SealedReplica {
        /// Milliseconds until the old primary serves nothing any more; ask again then. Only 0 lets a daemon be
        /// started.
        wait_ms: u32,
        /// Directories of the replicas on the backup's host, by position of the volume on the node.
        volumes: Vec<String>,
    }
    /// Gives a node's mirror another backup, or none.
    SetBackupRequest {
        /// The new mirror epoch, above the one until now.
        epoch: u32,
        /// The node that keeps the replicas; none has the node go on alone.
        backup: Option<NodeId>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn changes() -> Vec<VolumeChange> {
        let name = || "ab/x".to_owned();
        vec![
            VolumeChange::Create { name: name() },
            VolumeChange::MakeDir { name: "ab".into() },
            VolumeChange::Rename { from: name(), to: "ab/y".into() },
            VolumeChange::Remove { name: name() },
            VolumeChange::Write { name: name(), extents: vec![(3, 4), (9, 1)] },
            VolumeChange::SetLen { name: name(), len: 7 },
            VolumeChange::Allocate { name: name(), start: 1, end: 2 },
            VolumeChange::Grow { name: name(), len: 8 },
            VolumeChange::Punch { name: name(), start: 3, end: 9 },
            VolumeChange::Sync { name: name() },
            VolumeChange::SyncDir { name: "ab".into() },
        ]
    }

    #[test]
    fn changes_and_outcomes_travel() {
        for change in changes() {
            assert_eq!(VolumeChange::from_bytes(&change.to_bytes()), Ok(change));
        }
        let outcomes = [
            ReplicaOutcome::Done,
            ReplicaOutcome::NoSpace,
            ReplicaOutcome::NoSession,
            ReplicaOutcome::Superseded { epoch: 4 },
            ReplicaOutcome::Failed { errno: 5 },
        ];
        for outcome in outcomes {
            assert_eq!(ReplicaOutcome::from_bytes(&outcome.to_bytes()), Ok(outcome));
        }
    }

    #[test]
    fn golden_bytes_of_a_change() {
        let change = VolumeChange::Write { name: "ab".into(), extents: vec![(3, 4)] };
        let changes = vec![(5, change)];
        let request = ApplyChangesRequest { epoch: 1, session: 2, channel: 3, sequence: 4, changes };
        let mut bytes =
            vec![1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 5, 0];
        bytes.extend([4, 2, 0, 0, 0, b'a', b'b', 1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0]);
        assert_eq!(request.to_bytes(), bytes);
        assert_eq!(ApplyChangesRequest::from_bytes(&bytes), Ok(request));
    }

    #[test]
    fn what_is_no_change_is_refused() {
        let mut bytes = changes()[6].to_bytes();
        bytes[9] = 3;
        assert_eq!(VolumeChange::from_bytes(&bytes), Err(DecodeError::Invalid("range")));
        bytes[0] = 11;
        assert_eq!(VolumeChange::from_bytes(&bytes), Err(DecodeError::Invalid("change of a volume")));
    }

    #[test]
    fn payloads_are_bounded() {
        let write = |extents| VolumeChange::Write { name: "f".into(), extents };
        assert_eq!(write(vec![(0, 4), (u64::MAX, 6)]).payload_len(), Some(10));
        assert_eq!(write(vec![(0, u32::MAX); 3]).payload_len(), None);
        assert_eq!(changes()[5].payload_len(), Some(0));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = ApplyChangesRequest::from_bytes(&bytes);
            let _ = BegunReplica::from_bytes(&bytes);
            let _ = SealedReplica::from_bytes(&bytes);
        }
    }
}
