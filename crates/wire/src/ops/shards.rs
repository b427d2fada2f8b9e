//! Messages about directories that are spread over all nodes. A *shard* is the part of such a directory that one
//! node holds.

use bivouac_types::{ClientId, Contract, Ino, Layout, NodeId, Placement};

use crate::{Decode, DecodeError, Encode, Reader};

owned! {
    /// Attributes that new entries inherit from their directory.
    #[derive(Copy)]
    Inherited {
        /// The set-group-id bit of its mode.
        mode: u32,
        /// Its group.
        gid: u32,
        /// Layout of new files, but for their base's position.
        layout: Layout,
        /// Rule for the base; none leaves that and the layout to the partition.
        placement: Option<Placement>,
        /// Contract of new files and directories; none leaves it to the partition.
        contract: Option<Contract>,
    }
}

borrowed! {
    /// An entry that moves to its shard.
    ShardEntry {
        /// The name.
        name: &'a [u8],
        /// The inode that it leads to.
        ino: Ino,
        /// Type bits of that.
        kind: u32,
    }
    /// Entries of a shard.
    InstallShardRequest {
        /// The directory.
        dir: Ino,
        /// Number of the intent to spread it; rises with every attempt.
        tx: u64,
        /// True if this is the first message: the shard is made anew.
        first: bool,
        /// Attributes that new entries inherit.
        inherited: Inherited,
        /// The entries.
        entries: Vec<ShardEntry<'a>>,
    }
}

owned! {
    /// A shard to be removed.
    DropShardRequest {
        /// The directory.
        dir: Ino,
        /// A shard made by a later intent than this stays.
        tx: u64,
    }
    /// A shard to be closed or opened.
    SealRequest {
        /// The directory.
        dir: Ino,
        /// The node that wants to remove the directory.
        by: ClientId,
        /// Number of its intent.
        tx: u64,
    }
    /// A shard's contribution to its directory's attributes.
    ShardState {
        /// Entries.
        entries: u64,
        /// Subdirectories among them.
        subdirs: u32,
        /// Number of changes so far.
        version: u64,
    }
    /// A shard that has changed.
    DirChangedRequest {
        /// The directory.
        dir: Ino,
        /// The node of the shard.
        node: NodeId,
        /// True if it has; if not, it may have.
        certain: bool,
    }
    /// Attributes that new entries inherit from now on.
    UpdateShardRequest {
        /// The directory.
        dir: Ino,
        /// Attributes that new entries inherit.
        inherited: Inherited,
    }
    /// A directory to be removed.
    RemoveDirRequest {
        /// The directory.
        ino: Ino,
        /// True if all of its shards are closed and empty; if it is spread and they are not, `EREMOTE`.
        sealed: bool,
        /// True if it is set aside, until it is restored or dropped, instead of removed for good.
        aside: bool,
    }
}
