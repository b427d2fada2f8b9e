//! Gathered state in packed form: some forty bytes per inode, thirty per entry and per subfile.

use std::collections::{BTreeMap, HashMap};

use bivouac_node::IntentScope;
use bivouac_node::record::Shard;
use bivouac_types::limits::NAME_LEN_MAX;
use bivouac_types::{Ino, Layout, NodeId, Slot, TargetIndex};
use bivouac_wire::{FormationMap, Inherited, PartitionTable, TargetEntry};

/// Directory, as the upper bits of a mode say it.
pub const DIR: u8 = 0o04;
/// Regular file.
pub const FILE: u8 = 0o10;
/// Symbolic link.
pub const LINK: u8 = 0o12;

/// Returns the type bits of a mode.
pub fn kind_of(mode: u32) -> u8 {
    (mode >> 12 & 0xf) as u8
}

/// Returns the name of a type.
pub fn kind_name(kind: u8) -> &'static str {
    match kind {
        DIR => "directory",
        FILE => "file",
        LINK => "symbolic link",
        0o14 => "socket",
        0o01 => "named pipe",
        0o02 | 0o06 => "device",
        _ => "unknown type",
    }
}

/// An inode.
#[derive(Clone, Copy, Debug)]
pub struct InodeRow {
    pub ino: Ino,
    pub parent: Ino,
    pub size: u64,
    pub nlink: u32,
    pub epoch: u32,
    /// Number in [`FormationFacts::layouts`].
    pub layout: u32,
    /// Number of entries that refer to it.
    pub names: u32,
    /// Number of its entries.
    pub entries: u32,
    /// Number of directories among its entries.
    pub subdirs: u32,
    /// Length of what the symbolic link leads to, if it has that.
    pub link_target_len: Option<u16>,
    pub kind: u8,
}

impl InodeRow {
    /// Returns whether it is a directory whose entries lie in the slots of their hashes.
    pub fn is_spread(&self) -> bool {
        self.kind == DIR && self.epoch != 0
    }
}

/// A node's shard of a spread directory.
#[derive(Clone, Debug)]
pub struct ShardRow {
    pub dir: Ino,
    pub node: NodeId,
    pub slot: Slot,
    pub record: Shard,
}

/// An entry.
#[derive(Clone, Copy, Debug)]
pub struct EntryRow {
    pub parent: Ino,
    pub ino: Ino,
    pub hash: u64,
    pub node: NodeId,
    pub slot: Slot,
    pub kind: u8,
}

/// A subfile.
#[derive(Clone, Copy, Debug)]
pub struct SubfileRow {
    pub ino: Ino,
    pub len: u64,
    /// Number in [`FormationFacts::layouts`]; of the problem in [`FormationFacts::problems`] if the header is damaged.
    pub layout: Result<u32, u32>,
    pub epoch: u32,
    pub target: TargetIndex,
    pub node: NodeId,
    pub volume: u16,
    /// True if the targets' places in the header are those of the map.
    pub places_right: bool,
}

const _: () = assert!(size_of::<InodeRow>() <= 64);
const _: () = assert!(size_of::<EntryRow>() <= 32);
const _: () = assert!(size_of::<SubfileRow>() <= 48);

/// Node, slot and key of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordLocation {
    pub node: NodeId,
    pub slot: Slot,
    pub key: Vec<u8>,
}

/// Last known name of an inode whose entry is in a damaged part of the records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostName {
    /// The directory of the name.
    pub parent: Ino,
    pub name: Vec<u8>,
}

/// An unfinished change.
#[derive(Clone, Debug)]
pub struct IntentRow {
    pub node: NodeId,
    pub tx: u64,
    pub concerns: IntentScope,
}

/// All gathered state. Rows are sorted by inode number.
#[derive(Debug, Default)]
pub struct FormationFacts {
    pub inodes: Vec<InodeRow>,
    pub entries: Vec<EntryRow>,
    pub subfiles: Vec<SubfileRow>,
    /// Inodes that are not there, of which there is what a symbolic link leads to.
    pub stray_link_targets: Vec<Ino>,
    /// Inodes that have extended attributes.
    pub xattrs: Vec<Ino>,
    /// Inodes with an orphan record.
    pub orphans: Vec<Ino>,
    /// Inodes with a garbage record: their subfiles are to be removed.
    pub garbage: Vec<Ino>,
    /// Inodes whose subfiles are still to be removed by a node that was down.
    pub pending: Vec<Ino>,
    pub intents: Vec<IntentRow>,
    /// Shards of spread directories.
    pub shards: Vec<ShardRow>,
    /// Sum of the versions of the shards, as folded into the homes of spread directories.
    pub folded: Vec<(Ino, u64)>,
    /// Attributes that new entries of spread directories inherit.
    pub inherited: HashMap<Ino, Inherited>,
    /// Entries, and directories among them, of spread directories by node.
    pub parts: HashMap<(Ino, NodeId), (u64, u32)>,
    /// Next number of each allocator, where its records could be read.
    pub marks: Vec<Option<u64>>,
    /// Highest number seen of each allocator.
    pub highest: Vec<(u64, Ino)>,
    pub undecodable: Vec<(RecordLocation, String)>,
    pub misplaced: Vec<RecordLocation>,
    pub layouts: Layouts,
    pub partitions: PartitionTable,
    pub problems: Vec<String>,
    /// Names of inodes in damaged records.
    pub lost_names: BTreeMap<Ino, LostName>,
    /// Missing subfiles of files that are in the volumes' tables.
    pub lost: Vec<(Ino, TargetIndex)>,
    /// Subfiles and bytes per volume.
    pub volumes: HashMap<(NodeId, u16), (u64, u64)>,
}

impl FormationFacts {
    /// Returns node and volume of a target.
    pub fn place_of(&self, map: &FormationMap, target: TargetIndex) -> Option<TargetEntry> {
        self.partitions.target(map, target)
    }

    /// Returns an inode.
    pub fn inode(&self, ino: Ino) -> Option<&InodeRow> {
        self.inodes.binary_search_by_key(&ino, |row| row.ino).ok().and_then(|at| self.inodes.get(at))
    }

    /// Returns the name of an inode in `/lost+found`: its number, after its former name if that is known.
    pub fn found_name(&self, ino: Ino) -> Vec<u8> {
        let number = ino.to_string().into_bytes();
        let Some(LostName { name, .. }) = self.lost_names.get(&ino) else { return number };
        let room = NAME_LEN_MAX - number.len() - 1;
        let name = name.get(..room).unwrap_or(name);
        assert!(name.len() + 1 + number.len() <= NAME_LEN_MAX, "a name in lost+found is too long");
        [name, b".", &number].concat()
    }

    /// Returns the entries that refer to an inode.
    pub fn names_of(&self, ino: Ino) -> &[EntryRow] {
        equal(&self.entries, ino, |row| row.ino)
    }

    /// Returns the subfiles of a file.
    pub fn subfiles_of(&self, ino: Ino) -> &[SubfileRow] {
        equal(&self.subfiles, ino, |row| row.ino)
    }

    /// Returns whether a subfile was created and is missing.
    pub fn is_lost(&self, ino: Ino, target: TargetIndex) -> bool {
        self.lost.binary_search(&(ino, target)).is_ok()
    }

    /// Returns the shards of a spread directory.
    pub fn shards_of(&self, dir: Ino) -> &[ShardRow] {
        equal(&self.shards, dir, |row| row.dir)
    }

    /// Returns whether the attributes of a directory include all changes of its shards.
    pub fn is_folded(&self, row: &InodeRow) -> bool {
        let sum =
            self.shards_of(row.ino).iter().fold(0_u64, |sum, shard| sum.wrapping_add(shard.record.version));
        let known =
            equal(&self.folded, row.ino, |(dir, _)| *dir).first().map_or(0, |(_, versions)| *versions);
        sum == known
    }

    /// Returns whether an intent concerns one of the inodes.
    pub fn is_in_change(&self, inos: &[Ino]) -> bool {
        self.intents.iter().any(|intent| intent.concerns.inos.iter().any(|ino| inos.contains(ino)))
    }
}

/// Returns the rows with this inode number from sorted rows.
fn equal<T>(rows: &[T], ino: Ino, number: impl Fn(&T) -> Ino) -> &[T] {
    let start = rows.partition_point(|row| number(row) < ino);
    let behind = rows.get(start..).unwrap_or_default();
    let count = behind.partition_point(|row| number(row) == ino);
    behind.get(..count).unwrap_or_default()
}

/// Table of layouts: many files share one.
#[derive(Debug, Default)]
pub struct Layouts {
    all: Vec<Layout>,
    numbers: HashMap<(u32, u16, u32, u16), u32>,
}

impl Layouts {
    /// Returns the number of a layout.
    pub fn number(&mut self, layout: Layout) -> u32 {
        let next = self.all.len() as u32;
        let key = (layout.stripe, layout.width, layout.base.0, layout.targets);
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.all.push(layout);
        }
        assert!((number as usize) < self.all.len(), "layout {number} is not in the table");
        number
    }

    /// Returns the layout with a number.
    pub fn get(&self, number: u32) -> Layout {
        let none = Layout { stripe: 0, width: 0, base: TargetIndex(0), targets: 0 };
        assert!((number as usize) < self.all.len(), "a layout number that the table did not assign");
        self.all.get(number as usize).copied().unwrap_or(none)
    }
}
