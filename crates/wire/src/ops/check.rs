//! Messages for checking a running formation: pages of what a node keeps, and whether it was changed meanwhile.

use bivouac_types::{Ino, Layout, Slot, TargetIndex};

use crate::TargetEntry;

owned! {
    /// A position among a node's records.
    ListRecordsRequest {
        /// The slot to begin in.
        slot: Slot,
        /// The last key there that is known already; empty for none.
        after: Vec<u8>,
        /// First letters of the keys that are wanted, ascending.
        tables: Vec<u8>,
        /// Do not go on with the next slots.
        one_slot: bool,
        /// About how many bytes the answer may have.
        max_bytes: u32,
        /// Values are cut to so many bytes.
        value_max: u32,
    }
    /// A page of records.
    RecordPage {
        /// In the order of slots and keys.
        records: Vec<ListedRecord>,
        /// Slot and key to go on behind; nothing when these were the last.
        next: Option<(Slot, Vec<u8>)>,
    }
    /// A record as it is kept.
    ListedRecord {
        /// The slot that it is in.
        slot: Slot,
        /// Its key.
        key: Vec<u8>,
        /// Its value, or the beginning of it.
        value: Vec<u8>,
        /// Length of the whole value, in bytes.
        value_len: u32,
    }
    /// A position among the subfiles of a volume.
    ListSubfilesRequest {
        /// Position of the volume on the node.
        volume: u16,
        /// The last one that is known already.
        after: Option<(Ino, TargetIndex)>,
        /// Most subfiles of the answer.
        max: u32,
    }
    /// A page of subfiles.
    SubfilePage {
        /// In an order of their own.
        subfiles: Vec<SubfileFacts>,
        /// True if these were the last.
        end: bool,
    }
    /// A subfile as it is found on a volume.
    SubfileFacts {
        /// The file, by the subfile's name.
        ino: Ino,
        /// The target, by the subfile's name.
        target: TargetIndex,
        /// Bytes of data, holes included.
        len: u64,
        /// Bytes on the volume, header included.
        allocated: u64,
        /// The header's content; `None` if it is damaged.
        header: Option<HeaderFacts>,
        /// The fault of the header; empty if it has none.
        problem: String,
        /// True if it was made and is not there any more.
        lost: bool,
    }
    /// Content of a sound header of a subfile.
    HeaderFacts {
        /// Layout of the file.
        layout: Layout,
        /// Epoch of the last cut that the subfile took part in.
        epoch: u32,
        /// Nodes and volumes of the file's targets, from the base target on.
        places: Vec<TargetEntry>,
    }
    /// A part of a subfile that is to be compared with its checksums.
    #[derive(Copy)]
    ScrubRequest {
        /// The file.
        ino: Ino,
        /// The target that holds the subfile.
        target: TargetIndex,
        /// Offset in its data to begin at, in bytes.
        from: u64,
        /// About how much to compare, in bytes.
        bytes: u64,
    }
    /// Result of a verification, in bytes.
    #[derive(Default)]
    ScrubDone {
        /// Offset to go on at; `None` at the end.
        next: Option<u64>,
        /// Bytes compared.
        compared: u64,
        /// Bytes that had no valid checksums and have them now.
        settled: u64,
        /// Bytes without checksums, or being written by processes directly.
        skipped: u64,
        /// Damaged ranges: start and end, in the subfile's data.
        wrong: Vec<(u64, u64)>,
    }
    /// Several inodes.
    Inos {
        /// Their numbers.
        inos: Vec<Ino>,
    }
    /// Inodes of a client's watch that were changed since it began.
    TouchedInos {
        /// True if the node knows of the watch: a restart forgets it, and so may others' watches.
        known: bool,
        /// Inodes whose records, or entries leading to them, were changed since.
        touched: Vec<Ino>,
    }
}
