//! Messages for checking a running formation: pages of what a node keeps, and whether it was changed meanwhile.

use bivouac_types::{Ino, Layout, SeatIndex, Slot};

use crate::{SeatEntry, codec_struct};

/// A position among a node's records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListRecordsRequest {
    /// The slot to begin in.
    pub slot: Slot,
    /// The last key there that is known already; empty for none.
    pub after: Vec<u8>,
    /// First letters of the keys that are wanted, ascending.
    pub tables: Vec<u8>,
    /// Do not go on with the next slots.
    pub one_slot: bool,
    /// About how many bytes the answer may have.
    pub max_bytes: u32,
    /// Values are cut to so many bytes.
    pub value_max: u32,
}
codec_struct!(ListRecordsRequest { slot, after, tables, one_slot, max_bytes, value_max });

/// Some records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordPage {
    /// In the order of slots and keys.
    pub records: Vec<ListedRecord>,
    /// Slot and key to go on behind; nothing when these were the last.
    pub next: Option<(Slot, Vec<u8>)>,
}
codec_struct!(RecordPage { records, next });

/// A record as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedRecord {
    /// The slot that it is in.
    pub slot: Slot,
    /// Its key.
    pub key: Vec<u8>,
    /// Its value, or the front of it.
    pub value: Vec<u8>,
    /// Length of the whole value, in bytes.
    pub value_len: u32,
}
codec_struct!(ListedRecord { slot, key, value, value_len });

/// A position among the subfiles of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListSubfilesRequest {
    /// Position of the volume on the node.
    pub volume: u16,
    /// The last one that is known already.
    pub after: Option<(Ino, SeatIndex)>,
    /// Most subfiles of the answer.
    pub max: u32,
}
codec_struct!(ListSubfilesRequest { volume, after, max });

/// Some subfiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubfilePage {
    /// In an order of their own.
    pub subfiles: Vec<SubfileFacts>,
    /// Whether these were the last.
    pub end: bool,
}
codec_struct!(SubfilePage { subfiles, end });

/// A subfile as it is found on a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubfileFacts {
    /// The file, by the subfile's name.
    pub ino: Ino,
    /// The seat, by the subfile's name.
    pub seat: SeatIndex,
    /// Bytes of data, holes included.
    pub len: u64,
    /// Bytes on the volume, header included.
    pub allocated: u64,
    /// What the header says; nothing when it is damaged.
    pub header: Option<HeaderFacts>,
    /// What is wrong with the header; empty when nothing is.
    pub problem: String,
    /// Whether it was made and is not there any more.
    pub lost: bool,
}
codec_struct!(SubfileFacts { ino, seat, len, allocated, header, problem, lost });

/// What a sound header of a subfile says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderFacts {
    /// Where the bytes of the file are.
    pub layout: Layout,
    /// Epoch of the last cut that the subfile took part in.
    pub epoch: u32,
    /// Where the file's seats are, from the base seat on.
    pub places: Vec<SeatEntry>,
}
codec_struct!(HeaderFacts { layout, epoch, places });

/// A part of a subfile that is to be compared with its checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubRequest {
    /// The file.
    pub ino: Ino,
    /// The seat that holds the subfile.
    pub seat: SeatIndex,
    /// Where to begin in its data, in bytes.
    pub from: u64,
    /// About how much to compare, in bytes.
    pub bytes: u64,
}
codec_struct!(ScrubRequest { ino, seat, from, bytes });

/// What comparing found, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubDone {
    /// Where to go on; nothing at the end.
    pub next: Option<u64>,
    /// What was compared.
    pub compared: u64,
    /// What was not known and has checksums now.
    pub settled: u64,
    /// What has no checksums, or is being written by processes themselves.
    pub skipped: u64,
    /// What is not what was written: from and to, in the subfile's data.
    pub wrong: Vec<(u64, u64)>,
}
codec_struct!(ScrubDone { next, compared, settled, skipped, wrong });

/// Several inodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inos {
    /// Their numbers.
    pub inos: Vec<Ino>,
}
codec_struct!(Inos { inos });

/// What became of the inodes that a client watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// Whether the node knows of the watch: a restart forgets it, and so may others' watches.
    pub known: bool,
    /// Those whose records, or entries leading to them, were changed since.
    pub touched: Vec<Ino>,
}
codec_struct!(Watched { known, touched });
