//! The operations: one row each in [`Op`], one request and one reply type each.

mod locks;
mod members;

use bivouac_types::{
    Attr, ClientId, Contract, ExpectedFile, Ino, Layout, OpenId, PartitionId, SetAttr, TargetIndex, Timestamp,
};

pub use shards::{
    DirChangedRequest, DropShardRequest, Inherited, InstallShardRequest, RemoveDirRequest, SealRequest,
    ShardEntry, ShardState, UpdateShardRequest,
};

use crate::{Decode, DecodeError, Encode, FormationMap, NodeStatus, Partition, Reader};

pub use locks::*;
pub use members::*;
pub use partitions::*;

/// Lanes that may carry an operation. Operations on the peer lane call nobody, so no cycle of waiting nodes can form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// May call peers; refused on the peer lane.
    Client,
    /// A step that a peer asks for; refused on the client lane.
    Peer,
    /// Calls nobody; served on both.
    Both,
    /// Changes replicas for a peer, and waits for nobody; refused on the others.
    Mirror,
}

/// Effect of an operation on what clients have cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touches {
    /// Neither names nor attributes.
    Nothing,
    /// Returns names or attributes.
    Looks,
    /// Changes what others may have cached.
    Changes,
}

impl Op {
    /// Returns true for failure detection, which also reaches nodes held for dead.
    #[must_use]
    pub fn seeks_life(self) -> bool {
        matches!(self, Op::Probe | Op::ProbeFor | Op::Reached)
    }

    /// Returns its effect on what clients have cached.
    #[must_use]
    pub fn touches(self) -> Touches {
        match self {
            Op::Lookup | Op::GetAttr | Op::ReadDir | Op::ListHashes | Op::Open => Touches::Looks,
            Op::SetAttr | Op::Make | Op::Put | Op::Unlink | Op::Rmdir | Op::Rename | Op::Link => {
                Touches::Changes
            }
            Op::SetContract | Op::SetXattr | Op::RemoveXattr | Op::Extend | Op::ExtendOver | Op::Count => {
                Touches::Changes
            }
            Op::Append | Op::Claim | Op::Touch | Op::CutTail | Op::LendSize => Touches::Changes,
            Op::RemoveDir | Op::RestoreDir | Op::AdjustLinks | Op::InstallEntry | Op::SetParent => {
                Touches::Changes
            }
            Op::DirChanged | Op::BindDirectory => Touches::Changes,
            // One that changes attributes or names and is missing above leaves others with what they have cached.
            _ => Touches::Nothing,
        }
    }
}

/// Ties an operation's number to its request and reply.
pub trait Operation {
    /// The number on the wire.
    const OP: Op;
    /// Body of the request.
    type Request<'a>: Encode + Decode<'a>;
    /// Body of the reply.
    type Reply: Encode + for<'a> Decode<'a>;
}

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $lane:ident, $request:ty => $reply:ty;)*) => {
        /// Number of an operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Op { $($(#[$doc])* $name = $number),* }

        impl Op {
            /// Every operation, in the order of the table.
            pub const ALL: &[Op] = &[$(Op::$name),*];

            /// Returns the operation with this number.
            #[must_use]
            pub fn from_number(number: u16) -> Option<Op> {
                match number { $($number => Some(Op::$name),)* _ => None }
            }

            /// Returns its name, as metrics and status show it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Op::$name => stringify!($name)),* }
            }

            /// Returns the lanes that may carry it.
            #[must_use]
            pub fn lane(self) -> Lane {
                match self { $(Op::$name => Lane::$lane),* }
            }
        }

        /// One marker type per operation.
        pub mod op {
            use super::*;
            $($(#[$doc])* #[derive(Clone, Copy, Debug)] pub struct $name;
            impl Operation for $name {
                const OP: Op = Op::$name;
                type Request<'a> = $request;
                type Reply = $reply;
            })*
        }
    };
}

operations! {
    /// Does nothing; the reply shows that the node lives.
    Ping = 1, Both, () => ();
    /// The current map.
    GetMap = 2, Both, () => FormationMap;
    /// A directory's entry, with attributes where they are at hand.
    Lookup = 3, Both, EntryName<'a> => Found;
    /// Attributes of an inode.
    GetAttr = 4, Both, InoOnly => Seen;
    /// Changes attributes; cuts or extends a file.
    SetAttr = 5, Client, SetAttrRequest => Seen;
    /// Makes an entry with a new inode of any kind; opens a regular file on the way.
    Make = 6, Client, MakeRequest<'a> => Made;
    /// Removes an entry that is not a directory.
    Unlink = 7, Client, UnlinkRequest<'a> => ();
    /// Removes an empty directory.
    Rmdir = 8, Client, EntryName<'a> => ();
    /// Moves an entry.
    Rename = 9, Client, RenameRequest<'a> => ();
    /// Makes one more entry for an inode.
    Link = 10, Client, LinkRequest<'a> => Seen;
    /// Target of a symbolic link.
    ReadLink = 11, Both, InoOnly => Blob;
    /// Entries of a directory behind a cookie.
    ReadDir = 12, Both, ReadDirRequest => DirPage;
    /// The directory that holds a directory.
    Parent = 13, Both, InoOnly => Ino;
    /// The hashes of all names in a directory.
    ListHashes = 76, Both, InoOnly => Hashes;
    /// Value of an extended attribute.
    GetXattr = 14, Both, XattrName<'a> => Blob;
    /// Names of all extended attributes, each with a NUL behind it.
    ListXattr = 15, Both, InoOnly => Blob;
    /// Sets an extended attribute.
    SetXattr = 16, Client, SetXattrRequest<'a> => ();
    /// Removes an extended attribute.
    RemoveXattr = 17, Client, XattrName<'a> => ();
    /// Sets the contract of a file, or of what is made in a directory from then on.
    SetContract = 142, Client, SetContractRequest => Seen;
    /// Registers an open; cuts the file to nothing first if asked.
    Open = 18, Client, OpenRequest => Seen;
    /// Unregisters opens, and tells how files were used.
    Close = 19, Client, CloseRequest => ();
    /// Registers again what is open: replaces all of the client's opens here but those under way.
    Reassert = 20, Client, ReassertRequest => ();
    /// Tells the home that a finished write reaches to `end`.
    Extend = 21, Client, ExtendRequest => Extended;
    /// Writes the payload at the end of the file, serialised by the home.
    Append = 22, Client, AppendRequest => Appended;
    /// Makes a file longer by a hole and answers where it begins, serialised by the home; of no bytes, only the size.
    Claim = 105, Client, ClaimRequest => Appended;
    /// Tells the home that content changed within the size: sets the times to now.
    Touch = 23, Client, InoOnly => ();
    /// Space and inodes of this node.
    StatFs = 24, Both, StatFsRequest => bivouac_types::StatFs;
    /// All about this node.
    Status = 25, Client, () => NodeStatus;
    /// Returns how files with their homes here were used.
    ListUses = 126, Client, () => UseTable;
    /// Returns the history of files with their homes here, or of requests.
    ListHistory = 134, Client, HistoryRequest => HistoryTable;
    /// Returns what this node's host has beside volumes: logs, and staging jobs.
    AskHost = 129, Client, HostQuestion<'a> => Blob;
    /// Makes this node's records durable on their volume.
    SyncRecords = 26, Both, () => ();
    /// Reads from a subfile; the reply's payload is short at the subfile's end.
    Read = 27, Both, ReadRequest => ReadDone;
    /// Writes the payload into a subfile, making it if need be.
    Write = 28, Both, WriteRequest => Written;
    /// State of a subfile.
    StatSubfile = 29, Both, SubfileName => SubfileState;
    /// Makes a subfile durable on its volume.
    SyncSubfile = 30, Both, SubfileName => ();
    /// A write failed half way: makes what it left behind the end of the file disappear.
    CutTail = 32, Client, InoOnly => ();
    /// Ends the daemon.
    Shutdown = 31, Client, () => ();
    /// The client ends for good: nothing about it need be known any more.
    Leave = 37, Client, () => ();

    /// Reserves, frees or zeroes a range of a subfile.
    ChangeSpace = 48, Both, SpaceRequest => Written;
    /// Finds the next data of a subfile.
    FindData = 49, Both, FindDataRequest => FoundData;
    /// Makes a regular file without a name, and opens it.
    MakeUnnamed = 50, Client, MakeUnnamedRequest => Seen;
    /// Copies between two subfiles of a target.
    CopyRange = 51, Both, CopyRequest => Copied;
    /// Extends a file for a write that leaves a hole behind the end that its writer knows.
    ExtendOver = 60, Client, ExtendOverRequest => Extended;
    /// Tells the home how much of a file is holes.
    Count = 61, Client, CountRequest => ();
    /// Begins direct access of one process to subfiles of this node.
    OpenSession = 56, Client, () => DirectSession;
    /// Lets a process read or write a subfile by itself.
    GrantDirect = 57, Client, GrantRequest => Grant;
    /// Lets a process write further by itself.
    WidenDirect = 58, Client, WidenRequest => Window;
    /// Lends the size of a file to a process that makes it longer.
    LendSize = 33, Client, LendSizeRequest => SizeLease;
    /// Reads or writes several places of a subfile.
    AccessList = 59, Both, ListRequest => ListDone;

    /// Records of this node behind a position, as they are kept; for checking.
    ListRecords = 52, Both, ListRecordsRequest => RecordPage;
    /// Subfiles of a volume behind a position, with what their headers say; for checking.
    ListSubfiles = 53, Both, ListSubfilesRequest => SubfilePage;
    /// Compares some of a subfile's data with its checksums.
    Scrub = 125, Client, ScrubRequest => ScrubDone;
    /// Replaces the inodes that this client watches here; none ends the watch.
    Watch = 54, Client, Inos => ();
    /// Returns which of the watched inodes were changed since.
    ListTouched = 55, Client, () => TouchedInos;

    /// Locks or unlocks a range of a file; may have the request wait in the home's queue.
    SetLock = 40, Client, SetLockRequest => bool;
    /// Takes a waiting request back; answers whether it had its lock already.
    CancelLock = 41, Client, SetLockRequest => bool;
    /// A lock that is in the way of another, if there is one.
    TestLock = 42, Both, LockOf => Option<LockOf>;
    /// The client's locks here, from the given one on; drops its waiting requests if asked.
    ListLocks = 43, Client, ListLocksRequest => LockList;
    /// Drops all locks and waiting requests of the client.
    ReleaseLocks = 44, Client, () => ();
    /// All locks that are in the way of another client's request.
    LockHolders = 45, Both, LockOf => LockHolderList;
    /// Returns what owners of locks wait for, whose clients this node's process serves.
    LockWaits = 46, Both, LockOwners => LockWaitList;
    /// Makes a client that this node's process serves check whether a wait of its own is part of a deadlock.
    LookAgain = 47, Both, LockTicket => ();
    /// Makes clients that this node's process serves complete the closes of their programs; 0 stands for each owner.
    SettleLocks = 35, Both, LockOwners => ();

    /// Gives a call of the client tokens of bytes of a file, or queues the request.
    TakeTokens = 143, Client, TakeTokensRequest => TakenTokens;
    /// Tokens that the client has no more.
    ReturnTokens = 144, Client, ReturnTokensRequest => ();
    /// Recalls tokens from a client that this node's process serves, as far as no call uses them.
    RecallTokens = 145, Peer, RecallTokensRequest => RecalledTokens;
    /// Tells what tokens the client has, after a connection was lost.
    ReclaimTokens = 146, Client, ReclaimTokensRequest => ReclaimedTokens;
    /// A call of the client does not wait for tokens any more.
    CancelTokens = 180, Client, CancelTokensRequest => ();
    /// Lists clients that have tokens of a file, and requests that wait for some.
    ListTokens = 181, Client, InoOnly => TokenList;

    /// Takes the next events of a client while races are detected; asked of the root directory's home.
    ReportAccesses = 170, Client, ReportAccessesRequest => ();
    /// Races that were found, of the root directory's home; every node has mounts of its process report first.
    ListRaces = 171, Client, ListRacesRequest => RacePage;

    /// Makes, changes or forgets a partition; asked of the root directory's home.
    ChangePartition = 62, Client, PartitionChange => Partition;
    /// Partitions that this node knows; the root directory's home knows all.
    ListPartitions = 63, Both, ListPartitionsRequest => PartitionList;

    /// Makes an inode record; the same record again is no error.
    PutInode = 64, Peer, PutInodeRequest<'a> => ();
    /// Removes an inode record if it is as just made; none there is no error.
    DropInode = 65, Peer, InoOnly => ();
    /// Removes an empty directory's inode; answers what it was. None there is no error.
    RemoveDir = 66, Peer, RemoveDirRequest => RemovedDir;
    /// Adds to an inode's number of names, once per request id.
    AdjustLinks = 67, Peer, AdjustLinksRequest => Attr;
    /// Points an entry at an inode if it holds what is expected.
    InstallEntry = 68, Peer, InstallEntryRequest<'a> => ();
    /// Changes the parent that a directory names.
    SetParent = 69, Peer, SetParentRequest => ();
    /// Cuts a subfile and remembers the epoch.
    Trim = 70, Peer, TrimRequest => ();
    /// Removes subfiles; none there is no error.
    RemoveSubfiles = 71, Peer, Subfiles => ();
    /// Takes the formation-wide lock for moving directories, for the asking node; `EBUSY` when another has it.
    LockRename = 72, Peer, Ticket => ();
    /// Gives it back.
    UnlockRename = 73, Peer, Ticket => ();
    /// Returns which of these inodes, all made by the asked node, are gone for good.
    WhichGone = 86, Peer, Inodes => Inodes;

    /// Brings a directory back that was set aside; none that was is no error.
    RestoreDir = 74, Peer, InoOnly => ();
    /// Removes a directory for good that was set aside; none that was is no error.
    DropDir = 75, Peer, InoOnly => ();
    /// Brings entries of a directory that is about to spread; nobody looks at them yet.
    InstallShard = 94, Peer, InstallShardRequest<'a> => ();
    /// Removes a shard with all its entries; none there is no error.
    DropShard = 95, Peer, DropShardRequest => ();
    /// Closes an empty shard to new entries: its directory is about to be removed.
    SealShard = 96, Peer, SealRequest => ();
    /// Opens it again.
    UnsealShard = 97, Peer, SealRequest => ();
    /// Returns what a shard adds to its directory's attributes; its next change will be reported again.
    FoldShard = 98, Peer, InoOnly => ShardState;
    /// Tells a spread directory's home that its shard on a node has changed.
    DirChanged = 99, Peer, DirChangedRequest => ();
    /// Makes a whole small file, whose content is the payload, in a directory of who asks.
    Put = 104, Client, PutRequest<'a> => Seen;
    /// Tells a shard what new entries get from their directory.
    UpdateShard = 108, Peer, UpdateShardRequest => ();
    /// Tells a node of a partition; what it knows already is no error.
    PutPartition = 109, Peer, Partition => ();
    /// Makes an empty directory part of another partition; one that is so already is no error.
    BindDirectory = 110, Peer, BindDirectoryRequest => ();
    /// Tells clients that this node's process serves that requests of theirs have their locks.
    LocksGranted = 80, Peer, GrantedLocks => ();
    /// Returns true if this node's process serves the client.
    ServesClient = 81, Peer, ClientId => bool;
    /// Makes a client that this node's process serves invalidate what is named; returns for how many milliseconds it
    /// may still use some of it.
    Invalidate = 79, Peer, InvalidateRequest => u32;
    /// Tells a mount that this node's process serves of the size of a file that it has open.
    HasGrown = 141, Peer, HasGrownRequest => ();

    /// Returns where content of a file may have to be brought from.
    FindOrigin = 113, Peer, InoOnly => Whence;
    /// Returns what this node has that site storage lacks.
    ListDirty = 114, Client, ListDirtyRequest => DirtyPage;
    /// Names that site storage had in a directory.
    ListSeen = 115, Client, ListSeenRequest => SeenPage;
    /// Takes note of what site storage has under a name.
    NoteSeen = 116, Both, NoteSeenRequest => ();
    /// Brings a file, directory or link to site storage; asked again until it is over.
    Flush = 117, Both, FlushRequest => FlushState;
    /// Marks what a flush takes of a subfile, or what came of it.
    MarkFlush = 118, Peer, MarkFlushRequest => u64;
    /// Writes parts of a subfile to site storage.
    FlushParts = 119, Peer, FlushPartsRequest => FlushedParts;
    /// Returns the path of a directory at site storage, or that it would have; and what was seen there under a name in
    /// it.
    FindPlace = 120, Peer, FindPlaceRequest => SitePlace;
    /// Brings some of a file from site storage; answers where to go on.
    BringFile = 121, Client, BringRequest => Option<u64>;
    /// Brings a file to site storage wherever it belongs there, if its policy says so; asked again until it is over.
    FlushHere = 122, Both, FlushHereRequest => FlushState;
    /// Makes a file get all of its content here, since another file takes its place at site storage; repeated until it
    /// is done.
    Own = 123, Peer, OwnRequest => FlushState;
    /// Pins or unpins a file: pinned content stays here however full its volumes are.
    Pin = 38, Client, PinRequest => ();
    /// Returns which files of this node are pinned.
    ListPinned = 39, Client, ListPinnedRequest => PinnedPage;
    /// Deletes at site storage what was deleted here, or tells what is to be.
    Mirror = 34, Client, MirrorRequest => MirrorPage;
    /// Makes the node refuse all changes for a while, or ends that. Returns true if it had refused them until now.
    Fence = 124, Client, FenceRequest => bool;
    /// Tells what mounts of this node have written behind in front of site storage and not sent; has them send it, and
    /// write nothing behind there for a while.
    SendUnsent = 78, Client, FenceRequest => Vec<Dirty>;
    /// Removes everywhere, before it answers, what nobody needs any more of files whose records are here: somebody
    /// finds no space.
    MakeRoom = 107, Client, () => ();
    /// Asks for a sign of life, and tells news of the nodes; the answer has news too.
    Probe = 87, Peer, NewsList => NewsList;
    /// Asks to probe another node, later, and to report if that answers.
    ProbeFor = 88, Peer, ProbeForRequest => NewsList;
    /// A node that somebody was asked to probe has answered.
    Reached = 89, Peer, ProbeForRequest => NewsList;

    /// Begins a session of a node whose volumes are mirrored with its backup.
    BeginReplica = 182, Mirror, BeginReplicaRequest => BegunReplica;
    /// Changes replicas as the primary's volumes are changed; bytes to write are the payload.
    ApplyChanges = 183, Mirror, ApplyChangesRequest => AppliedChanges;
    /// Renews the lease of a primary; may tell that the replicas are complete.
    RenewReplica = 184, Mirror, ReplicaSessionRequest => ReplicaOutcome;
    /// Seals replicas: their backup refuses the primary for good, and tells where they are.
    SealReplica = 185, Both, SealReplicaRequest => SealedReplica;
    /// Gives the asked node another backup, or none.
    SetBackup = 186, Client, SetBackupRequest => ();
}

/// Defines a message that borrows from the frame.
macro_rules! borrowed {
    ($($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $ty:ty),* $(,)? })*) => {$(
        $(#[$doc])* #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name<'a> { $($(#[$fdoc])* pub $field: $ty),* }
        impl Encode for $name<'_> {
            fn encode(&self, out: &mut Vec<u8>) { $(self.$field.encode(out);)* }
        }
        impl<'a> Decode<'a> for $name<'a> {
            fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
                Ok($name { $($field: Decode::decode(input)?),* })
            }
        }
    )*};
}

// Modules that come after the macro have it in scope, those at the top do not.
mod partitions;
mod races;
mod replica;
mod shards;
mod site;
mod space;
mod tokens;
pub use races::*;
pub use replica::*;
pub use site::*;
pub use space::*;
pub use tokens::*;

borrowed! {
    /// An entry by directory and name.
    EntryName {
        /// The directory.
        parent: Ino,
        /// The name in it.
        name: &'a [u8],
    }
    /// Question about a host, which any of its nodes answers.
    HostQuestion {
        /// The subject, in words that the command defines.
        what: &'a [u8],
        /// Offset in the answer.
        offset: u64,
        /// Most bytes of the answer.
        most: u32,
    }
    /// A new entry with a new inode.
    MakeRequest {
        /// The directory.
        parent: Ino,
        /// The name in it.
        name: &'a [u8],
        /// Type and permission bits, umask applied.
        mode: u32,
        /// Owner.
        uid: u32,
        /// Group; a set-group-id directory overrides it.
        gid: u32,
        /// Device number of a device node.
        rdev: u32,
        /// Target of a symbolic link.
        target: &'a [u8],
        /// Register this open (regular files).
        open: Option<OpenId>,
        /// Fail if the entry exists; otherwise answer what it is, unopened.
        exclusive: bool,
        /// A target on the asking node, for local placement.
        near: Option<TargetIndex>,
    }
    /// A new file with its content and attributes.
    PutRequest {
        /// The directory.
        parent: Ino,
        /// The name in it.
        name: &'a [u8],
        /// Permission bits.
        mode: u32,
        /// Its owner, who sends the request: the directory has to be theirs.
        uid: u32,
        /// Group.
        gid: u32,
        /// Its time of modification.
        mtime: Timestamp,
        /// A target on the asking node, for local placement.
        near: Option<TargetIndex>,
    }
    /// A move.
    RenameRequest {
        /// The directory that holds the entry.
        parent: Ino,
        /// Its name there.
        name: &'a [u8],
        /// The directory that is to hold it.
        new_parent: Ino,
        /// Its name there.
        new_name: &'a [u8],
        /// `RENAME_NOREPLACE` 1, `RENAME_EXCHANGE` 2.
        flags: u32,
        /// The file that the new name must lead to; `None` for any, or none. `ECANCELED` if it does not.
        expect: Option<ExpectedFile>,
    }
    /// The removal of an entry that is not a directory.
    UnlinkRequest {
        /// The directory.
        parent: Ino,
        /// The name in it.
        name: &'a [u8],
        /// The file that the name must lead to, else `ECANCELED`; `None` for any.
        expect: Option<ExpectedFile>,
    }
    /// A further name of an inode.
    LinkRequest {
        /// The inode.
        ino: Ino,
        /// The directory.
        parent: Ino,
        /// The name in it.
        name: &'a [u8],
    }
    /// An extended attribute.
    XattrName {
        /// The inode.
        ino: Ino,
        /// The attribute's name.
        name: &'a [u8],
    }
    /// A new value of an extended attribute.
    SetXattrRequest {
        /// The inode.
        ino: Ino,
        /// The attribute's name.
        name: &'a [u8],
        /// Its value.
        value: &'a [u8],
        /// `XATTR_CREATE` 1, `XATTR_REPLACE` 2.
        flags: u32,
    }
    /// A whole inode record for another slot.
    PutInodeRequest {
        /// The inode's number, which names the slot.
        ino: Ino,
        /// The record as the node crate encodes it.
        record: &'a [u8],
        /// Target of a symbolic link.
        target: &'a [u8],
        /// Its state at site storage, as the node crate encodes it.
        site: Option<&'a [u8]>,
    }
    /// A compare-and-set of an entry.
    InstallEntryRequest {
        /// The directory.
        parent: Ino,
        /// The name in it.
        name: &'a [u8],
        /// The inode that it must lead to now.
        expect: Option<Ino>,
        /// True if that is a directory.
        expect_dir: bool,
        /// The data version that it must have, where the node is also its home; `None` for any. `ECANCELED` if it has
        /// not.
        expect_version: Option<u64>,
        /// The partition that the directory must be in.
        partition: PartitionId,
        /// The inode that it is to lead to.
        ino: Ino,
        /// Type bits of that.
        kind: u32,
    }
}

owned! {
    /// An inode alone.
    InoOnly {
        /// The inode.
        ino: Ino,
    }
    /// Changed attributes.
    SetAttrRequest {
        /// The inode.
        ino: Ino,
        /// The changes.
        set: SetAttr,
    }
    /// A change of contract.
    SetContractRequest {
        /// The file or directory.
        ino: Ino,
        /// The contract; none leaves it to the partition.
        contract: Option<Contract>,
        /// Digest of a file that is to be laminated; without it the file is only made ready for that to be taken.
        digest: Option<ContentDigest>,
        /// The flags of `setxattr`: 1 refuses an inode that has one of its own (`EEXIST`), 2 one that has none
        /// (`ENODATA`).
        flags: u32,
    }
    /// The digest of a file's content.
    ContentDigest {
        /// The data version of the content that it was taken of.
        data_version: u64,
        /// SHA-256.
        sha256: [u8; 32],
    }
    /// Attributes, and for how long the asker may cache them.
    Seen {
        /// The attributes.
        attr: Attr,
        /// The asker may cache them for so many milliseconds; see docs/semantics/leases.md.
        lease_ms: u32,
    }
    /// An entry.
    Found {
        /// The inode; 0 if there is no such entry, and that may be cached.
        ino: Ino,
        /// Type bits of its mode.
        kind: u32,
        /// Its attributes, when its home is the node that answers.
        attr: Option<Attr>,
        /// The asker may cache the entry for so many milliseconds.
        lease_ms: u32,
        /// The length of the lease on the attributes, in milliseconds; see [`Seen`].
        attr_lease_ms: u32,
    }
    /// An inode that `Make` made or found.
    Made {
        /// The entry.
        found: Found,
        /// True if it existed before.
        existed: bool,
    }
    /// Bytes.
    Blob {
        /// The bytes.
        bytes: Vec<u8>,
    }
    /// Hashes of the names of a directory.
    Hashes {
        /// Of each name; of more than [`NAMES_KNOWN_MAX`](bivouac_types::limits::NAMES_KNOWN_MAX) none.
        hashes: Vec<u64>,
        /// True if these are all.
        all: bool,
        /// The length of the lease on the name, in milliseconds; see [`Found`].
        lease_ms: u32,
    }
    /// A position in a directory.
    ReadDirRequest {
        /// The directory.
        ino: Ino,
        /// Entries with a cookie above this; 0 is the start.
        cookie: u64,
        /// About how many bytes the answer may have.
        max_bytes: u32,
        /// Send attributes of entries that live on this node.
        attrs: bool,
        /// Only this node's part of a spread directory, from the cookie on without a gap.
        shard: bool,
        /// Only what is here: nothing is looked up at site storage.
        here: bool,
        /// The lease is to be of the directory's attributes and of each entry's, which with every name in it changes,
        /// too; instead of all that is in their slots.
        each: bool,
    }
    /// A page of entries.
    DirPage {
        /// In the order of their cookies.
        entries: Vec<DirEntry>,
        /// True if nothing follows.
        end: bool,
        /// Milliseconds for which the client may cache the entries that have attributes, and these.
        lease_ms: u32,
    }
    /// An entry.
    DirEntry {
        /// The inode.
        ino: Ino,
        /// Type bits of its mode.
        kind: u32,
        /// Position of the entry: hash of its name.
        cookie: u64,
        /// Its name.
        name: Vec<u8>,
        /// Its attributes, when asked for and at hand.
        attr: Option<Attr>,
    }
    /// An open.
    OpenRequest {
        /// The inode.
        ino: Ino,
        /// Cut to nothing.
        truncate: bool,
        /// Number of the open among the client's.
        id: OpenId,
        /// No open with a lower number is under way any more.
        floor: OpenId,
    }
    /// Opens that end.
    CloseRequest {
        /// No open with a lower number is under way any more.
        floor: OpenId,
        /// Inode and open.
        opens: Vec<(Ino, OpenId)>,
        /// Uses of files, closed and open ones.
        uses: Vec<FileUseDelta>,
    }
    /// Opens of a client at a node that lost its memory.
    ReassertRequest {
        /// True for the first message.
        first: bool,
        /// True for the last message: what none of them told, and is not under way, is not open.
        last: bool,
        /// No open with a lower number is under way any more.
        floor: OpenId,
        /// Opens from the floor on that are under way.
        under_way: Vec<OpenId>,
        /// All opens from this on may be under way.
        next: OpenId,
        /// Inode and open.
        opens: Vec<(Ino, OpenId)>,
    }
    /// The end of a finished write.
    ExtendRequest {
        /// The inode.
        ino: Ino,
        /// First byte behind the write.
        end: u64,
        /// The epoch that the write was made in.
        epoch: u32,
    }
    /// The home's answer to the end of a write.
    Extended {
        /// True if the epoch was the current one; if not, the write has to be repeated.
        accepted: bool,
        /// Attributes now.
        attr: Attr,
    }
    /// Bytes at the end of a file that nobody else shall get.
    ClaimRequest {
        /// The inode.
        ino: Ino,
        /// Number of bytes.
        len: u64,
    }
    /// Place of an append.
    Appended {
        /// Offset of its first byte.
        offset: u64,
        /// Attributes now.
        attr: Attr,
    }
    /// A part of a subfile.
    ReadRequest {
        /// The file.
        ino: Ino,
        /// The target that holds the subfile.
        target: TargetIndex,
        /// Offset in the subfile's data.
        offset: u64,
        /// Bytes wanted.
        len: u32,
    }
    /// Result of a read besides the payload.
    ReadDone {
        /// The subfile's epoch: a higher one than the reader knows says that the file was cut meanwhile.
        epoch: u32,
    }
    /// A place for the payload in a subfile.
    WriteRequest {
        /// The file.
        ino: Ino,
        /// The target that holds the subfile.
        target: TargetIndex,
        /// The file's layout, for the header.
        layout: Layout,
        /// The epoch that the writer knows.
        epoch: u32,
        /// Offset in the subfile's data.
        offset: u64,
    }
    /// Outcome of a write.
    Written {
        /// True if the epoch was not older than the subfile's; if not, nothing was written.
        accepted: bool,
        /// The subfile's epoch.
        epoch: u32,
    }
    /// A subfile.
    SubfileName {
        /// The file.
        ino: Ino,
        /// The target that holds it.
        target: TargetIndex,
    }
    /// State of a subfile; by default of none.
    #[derive(Default)]
    SubfileState {
        /// True if it exists.
        exists: bool,
        /// Bytes of data, holes included.
        len: u64,
        /// Bytes on the volume, header and checksums included.
        allocated: u64,
        /// Bytes of these that are in front of the data.
        front: u64,
        /// Offset of data in the local file.
        data_at: u64,
        /// Path on the node.
        path: String,
    }
    /// A removed directory.
    RemovedDir {
        /// Its record as the node crate encodes it; empty when there was none.
        record: Vec<u8>,
    }
    /// A change of the number of names.
    AdjustLinksRequest {
        /// The inode.
        ino: Ino,
        /// The difference.
        delta: i32,
    }
    /// The new name of what is moved.
    SetParentRequest {
        /// The inode.
        ino: Ino,
        /// The directory that holds it then; of a directory what its `..` is to be.
        parent: Ino,
        /// Its name there.
        name: Vec<u8>,
        /// True if a move is undone.
        back: bool,
    }
    /// A turn of a node at moving directories.
    Ticket {
        /// Rises from turn to turn of the node.
        ticket: u64,
    }
    /// A cut of a subfile.
    TrimRequest {
        /// The file.
        ino: Ino,
        /// The target that holds the subfile.
        target: TargetIndex,
        /// The file's layout, for the header.
        layout: Layout,
        /// The new epoch.
        epoch: u32,
        /// Bytes of data that remain at most.
        len: u64,
    }
    /// Several subfiles.
    Subfiles {
        /// File and target.
        subfiles: Vec<(Ino, TargetIndex)>,
    }
}

impl Invalidation {
    /// Returns its [`Ino::cache_key`].
    #[must_use]
    pub fn key(&self) -> u64 {
        self.ino.cache_key(self.name)
    }
}

impl Found {
    /// Returns a negative entry with this lease.
    #[must_use]
    pub fn absent(lease_ms: u32) -> Found {
        Found { ino: Ino(0), kind: 0, attr: None, lease_ms, attr_lease_ms: 0 }
    }

    /// Returns true if there is an entry.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.ino != Ino(0)
    }
}

mod check;
mod direct;
mod uses;

pub use check::*;
pub use direct::{
    DirectSession, Grant, GrantRequest, HasGrownRequest, InvalidateRequest, Invalidation, LendSizeRequest,
    ListDone, ListRequest, SizeLease, WidenRequest, Window,
};
pub use uses::*;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_lead_back_to_operations() {
        for op in Op::ALL {
            assert_eq!(Op::from_number(*op as u16), Some(*op));
        }
        assert_eq!(Op::from_number(0), None);
        assert_eq!(Op::from_number(u16::MAX), None);
    }

    #[test]
    fn peer_steps_stay_off_the_client_lane() {
        for op in Op::ALL {
            // Numbers of site storage are in one place, whoever asks; these had no other left.
            let exempt = [
                Op::ListHashes,
                Op::SendUnsent,
                Op::Put,
                Op::MakeRoom,
                Op::Claim,
                Op::AskHost,
                Op::ListHistory,
            ];
            // From 142 on, numbers are given as they come.
            if (113..=126).contains(&(*op as u16)) || *op as u16 >= 142 || exempt.contains(op) {
                continue;
            }
            assert_eq!(op.lane() == Lane::Peer, *op as u16 >= 64, "{}", op.name());
        }
    }

    #[test]
    fn golden_bytes_of_a_lookup() {
        let request = EntryName { parent: Ino(1), name: b"ab" };
        let bytes = [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, b'a', b'b'];
        assert_eq!(request.to_bytes(), bytes);
        assert_eq!(EntryName::from_bytes(&bytes), Ok(request));
    }

    #[test]
    fn golden_bytes_of_an_invalidation() {
        let what = vec![Invalidation { ino: Ino(3), name: Some(4) }];
        let request = InvalidateRequest { client: ClientId(0x0102), what };
        let mut bytes = vec![2, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend([1, 4, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(request.to_bytes(), bytes);
        assert_eq!(InvalidateRequest::from_bytes(&bytes), Ok(request));
    }

    #[test]
    fn golden_bytes_of_a_growth() {
        let request = HasGrownRequest { client: ClientId(0x0102), ino: Ino(3), size: 0x0405 };
        let bytes = [[2, 1, 0, 0, 0, 0, 0, 0], [3, 0, 0, 0, 0, 0, 0, 0], [5, 4, 0, 0, 0, 0, 0, 0]].concat();
        assert_eq!(request.to_bytes(), bytes);
        assert_eq!(HasGrownRequest::from_bytes(&bytes), Ok(request));
    }

    #[test]
    fn golden_bytes_of_a_put() {
        let mtime = Timestamp { secs: -1, nanos: 5 };
        let near = Some(TargetIndex(3));
        let request = PutRequest { parent: Ino(1), name: b"ab", mode: 0o640, uid: 8, gid: 9, mtime, near };
        let bytes = [
            &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, b'a', b'b', 0xa0, 1, 0, 0][..],
            &[8, 0, 0, 0, 9, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 5, 0, 0, 0, 1, 3, 0, 0, 0],
        ];
        assert_eq!(request.to_bytes(), bytes.concat());
        assert_eq!(PutRequest::from_bytes(&bytes.concat()), Ok(request));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = MakeRequest::from_bytes(&bytes);
            let _ = PutRequest::from_bytes(&bytes);
            let _ = RenameRequest::from_bytes(&bytes);
            let _ = UnlinkRequest::from_bytes(&bytes);
            let _ = SetXattrRequest::from_bytes(&bytes);
            let _ = InstallEntryRequest::from_bytes(&bytes);
            let _ = DirPage::from_bytes(&bytes);
            let _ = CloseRequest::from_bytes(&bytes);
            let _ = UseTable::from_bytes(&bytes);
            let _ = HostQuestion::from_bytes(&bytes);
            let _ = FormationMap::from_bytes(&bytes);
            let _ = NodeStatus::from_bytes(&bytes);
            let _ = WriteRequest::from_bytes(&bytes);
            let _ = ListRequest::from_bytes(&bytes);
            let _ = GrantRequest::from_bytes(&bytes);
        }

        #[test]
        fn a_rename_comes_back(name in proptest::collection::vec(any::<u8>(), 0..255), flags in any::<u32>()) {
            let request = RenameRequest { parent: Ino(1), name: &name, new_parent: Ino(2), new_name: b"x", flags, expect: Some(ExpectedFile { ino: Ino(3), data_version: Some(4) }) };
            let bytes = request.to_bytes();
            prop_assert_eq!(RenameRequest::from_bytes(&bytes), Ok(request));
            let request = UnlinkRequest { parent: Ino(1), name: &name, expect: Some(ExpectedFile { ino: Ino(3), data_version: None }) };
            let bytes = request.to_bytes();
            prop_assert_eq!(UnlinkRequest::from_bytes(&bytes), Ok(request));
        }
    }
}
