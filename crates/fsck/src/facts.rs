//! What was read, packed: some forty bytes per inode, thirty per entry and per subfile.

use std::collections::{BTreeMap, HashMap};

use crate::salvage::LostName;
use bivouac_node::Concerns;
use bivouac_node::record::Shard;
use bivouac_types::limits::NAME_LEN_MAX;
use bivouac_types::{Ino, Layout, NodeId, SeatIndex, Slot};
use bivouac_wire::{FormationMap, Inherited, PartitionTable, SeatEntry};

/// Directory, as the upper bits of a mode say it.
pub const DIR: u8 = 0o04;
/// Regular file.
pub const FILE: u8 = 0o10;
/// Symbolic link.
pub const LINK: u8 = 0o12;

/// The upper bits of a mode.
pub fn kind_of(mode: u32) -> u8 {
    (mode >> 12 & 0xf) as u8
}

/// What a kind is called.
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
    /// Number in [`Facts::layouts`].
    pub layout: u32,
    /// Entries that lead to it.
    pub names: u32,
    /// Entries that it has.
    pub entries: u32,
    /// Of these, directories.
    pub subdirs: u32,
    /// Length of the link's target, if it has one.
    pub target: Option<u16>,
    pub kind: u8,
}

impl InodeRow {
    /// Whether this is a directory whose entries are in the slots of their hashes.
    pub fn is_spread(&self) -> bool {
        self.kind == DIR && self.epoch != 0
    }
}

/// What one node has of a spread directory.
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
    /// Number in [`Facts::layouts`]; of the problem in [`Facts::problems`] if the header is damaged.
    pub layout: Result<u32, u32>,
    pub epoch: u32,
    pub seat: SeatIndex,
    pub node: NodeId,
    pub volume: u16,
    /// Whether the header's list of places is that of the map.
    pub places_right: bool,
}

const _: () = assert!(size_of::<InodeRow>() <= 64);
const _: () = assert!(size_of::<EntryRow>() <= 32);
const _: () = assert!(size_of::<SubfileRow>() <= 48);

/// A record by its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordPlace {
    pub node: NodeId,
    pub slot: Slot,
    pub key: Vec<u8>,
}

/// An unfinished change.
#[derive(Clone, Debug)]
pub struct IntentRow {
    pub node: NodeId,
    pub tx: u64,
    pub concerns: Concerns,
}

/// Everything that was read. Rows are sorted by inode number.
#[derive(Debug, Default)]
pub struct Facts {
    pub inodes: Vec<InodeRow>,
    pub entries: Vec<EntryRow>,
    pub subfiles: Vec<SubfileRow>,
    /// Symbolic links' targets whose inode is not there.
    pub targets: Vec<Ino>,
    /// Inodes that have extended attributes.
    pub xattrs: Vec<Ino>,
    /// Inodes that are marked to be without names.
    pub orphans: Vec<Ino>,
    /// Inodes whose subfiles are to be removed.
    pub garbage: Vec<Ino>,
    /// Inodes whose subfiles a node that was away is still to remove.
    pub pending: Vec<Ino>,
    pub intents: Vec<IntentRow>,
    /// Parts of spread directories.
    pub shards: Vec<ShardRow>,
    /// Sum of their numbers of changes, as the homes of spread directories know it.
    pub folded: Vec<(Ino, u64)>,
    /// What new entries get from spread directories.
    pub inherited: HashMap<Ino, Inherited>,
    /// Entries, and directories among them, of spread directories by node.
    pub parts: HashMap<(Ino, NodeId), (u64, u32)>,
    /// First number that a node has not reserved yet, where its records could be read.
    pub marks: Vec<Option<u64>>,
    /// The highest number that was seen of each node.
    pub highest: Vec<(u64, Ino)>,
    pub undecodable: Vec<(RecordPlace, String)>,
    pub misplaced: Vec<RecordPlace>,
    pub layouts: Layouts,
    pub partitions: PartitionTable,
    pub problems: Vec<String>,
    /// Names that inodes had by what is lost of records.
    pub lost_names: BTreeMap<Ino, LostName>,
    /// Subfiles that were made and are not there any more, by file.
    pub lost: Vec<(Ino, SeatIndex)>,
    /// Subfiles and bytes per volume.
    pub volumes: HashMap<(NodeId, u16), (u64, u64)>,
}

impl Facts {
    /// Node and volume of a seat.
    pub fn place_of(&self, map: &FormationMap, seat: SeatIndex) -> Option<SeatEntry> {
        self.partitions.seat(map, seat)
    }

    /// An inode.
    pub fn inode(&self, ino: Ino) -> Option<&InodeRow> {
        self.inodes.binary_search_by_key(&ino, |row| row.ino).ok().and_then(|at| self.inodes.get(at))
    }

    /// What an inode is called in `/lost+found`: its number, behind the name that it had as far as that is known.
    pub fn found_name(&self, ino: Ino) -> Vec<u8> {
        let number = ino.to_string().into_bytes();
        let Some(LostName { name, .. }) = self.lost_names.get(&ino) else { return number };
        let room = NAME_LEN_MAX - number.len() - 1;
        let name = name.get(..room).unwrap_or(name);
        [name, b".", &number].concat()
    }

    /// The entries that lead to an inode.
    pub fn names_of(&self, ino: Ino) -> &[EntryRow] {
        equal(&self.entries, ino, |row| row.ino)
    }

    /// The subfiles of a file.
    pub fn subfiles_of(&self, ino: Ino) -> &[SubfileRow] {
        equal(&self.subfiles, ino, |row| row.ino)
    }

    /// Whether a subfile was made and is not there any more.
    pub fn is_lost(&self, ino: Ino, seat: SeatIndex) -> bool {
        self.lost.binary_search(&(ino, seat)).is_ok()
    }

    /// The parts of a spread directory.
    pub fn shards_of(&self, dir: Ino) -> &[ShardRow] {
        equal(&self.shards, dir, |row| row.dir)
    }

    /// Whether the attributes of a directory have followed its parts.
    pub fn is_folded(&self, row: &InodeRow) -> bool {
        let sum =
            self.shards_of(row.ino).iter().fold(0_u64, |sum, shard| sum.wrapping_add(shard.record.version));
        let known =
            equal(&self.folded, row.ino, |(dir, _)| *dir).first().map_or(0, |(_, versions)| *versions);
        sum == known
    }

    /// Whether an unfinished change concerns one of the inodes.
    pub fn is_in_change(&self, inos: &[Ino]) -> bool {
        self.intents.iter().any(|intent| intent.concerns.inos.iter().any(|ino| inos.contains(ino)))
    }
}

/// The part of sorted rows with this number.
fn equal<T>(rows: &[T], ino: Ino, number: impl Fn(&T) -> Ino) -> &[T] {
    let start = rows.partition_point(|row| number(row) < ino);
    let behind = rows.get(start..).unwrap_or_default();
    let count = behind.partition_point(|row| number(row) == ino);
    behind.get(..count).unwrap_or_default()
}

/// Layouts by number: many files have the same.
#[derive(Debug, Default)]
pub struct Layouts {
    all: Vec<Layout>,
    numbers: HashMap<(u32, u16, u32, u16), u32>,
}

impl Layouts {
    /// The number of a layout.
    pub fn number(&mut self, layout: Layout) -> u32 {
        let next = self.all.len() as u32;
        let key = (layout.stripe, layout.width, layout.base.0, layout.seats);
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.all.push(layout);
        }
        number
    }

    /// The layout with a number.
    pub fn get(&self, number: u32) -> Layout {
        let none = Layout { stripe: 0, width: 0, base: SeatIndex(0), seats: 0 };
        self.all.get(number as usize).copied().unwrap_or(none)
    }
}
