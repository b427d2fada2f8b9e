//! Repair actions: one per finding.

use bivouac_types::{Ino, Layout, NodeId, Slot};
use bivouac_wire::Inherited;

use crate::facts::{EntryRow, RecordLocation, SubfileRow};

/// The repair of one finding.
#[derive(Clone, Debug)]
pub enum RepairAction {
    /// Remove a record.
    Delete(RecordLocation),
    /// Remove all records with this key prefix.
    DeleteAll(RecordLocation),
    /// Move a record to its place.
    Move(RecordLocation),
    /// Move an entry to its place.
    MoveEntry { entry: EntryRow, slot: Slot },
    /// Correct the counts of a shard.
    ShardCounts { place: RecordLocation, entries: u64, subdirs: u32 },
    /// Unseal a shard.
    Unseal(RecordLocation),
    /// Correct the inherited attributes of a shard.
    Inherit { place: RecordLocation, inherited: Inherited },
    /// Create a missing shard.
    AddShard { node: NodeId, dir: Ino },
    /// Remove an entry.
    DropEntry(EntryRow),
    /// Correct the type in an entry.
    EntryKind { entry: EntryRow, kind: u8 },
    /// Correct a link count.
    Links { ino: Ino, nlink: u32 },
    /// Correct a size.
    Size { ino: Ino, size: u64 },
    /// Correct a directory's parent.
    Parent { ino: Ino, parent: Ino },
    /// Correct a file's epoch.
    Epoch { ino: Ino, epoch: u32 },
    /// Create a lost directory inode.
    RebuildDir { ino: Ino, parent: Ino },
    /// Create a lost file inode from its subfiles.
    RebuildFile { ino: Ino },
    /// Link an inode into `/lost+found`, and remove an entry.
    Relink { ino: Ino, from: Option<EntryRow> },
    /// Raise an allocator's mark.
    Mark { node: NodeId, mark: u64 },
    /// Rewrite a subfile's header.
    Header { subfile: SubfileRow, layout: Layout, epoch: u32 },
    /// Remove a subfile without data.
    RemoveSubfile(SubfileRow),
    /// Remove a subfile with data, if that is permitted.
    DiscardSubfile(SubfileRow),
}
