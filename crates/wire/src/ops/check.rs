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
    /// Some records.
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
        /// Its value, or the front of it.
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
    /// Some subfiles.
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
        /// What the header says; nothing when it is damaged.
        header: Option<HeaderFacts>,
        /// What is wrong with the header; empty when nothing is.
        problem: String,
        /// True if it was made and is not there any more.
        lost: bool,
    }
    /// What a sound header of a subfile says.
    HeaderFacts {
        /// Where the bytes of the file are.
        layout: Layout,
        /// Epoch of the last cut that the subfile took part in.
        epoch: u32,
        /// Where the file's targets are, from the base target on.
        places: Vec<TargetEntry>,
    }
    /// A part of a subfile that is to be compared with its checksums.
    #[derive(Copy)]
    ScrubRequest {
        /// The file.
        ino: Ino,
        /// The target that holds the subfile.
        target: TargetIndex,
        /// Where to begin in its data, in bytes.
        from: u64,
        /// About how much to compare, in bytes.
        bytes: u64,
    }
    /// What comparing found, in bytes.
    #[derive(Default)]
    ScrubDone {
        /// Where to go on; nothing at the end.
        next: Option<u64>,
        /// What was compared.
        compared: u64,
        /// What was not known and has checksums now.
        settled: u64,
        /// What has no checksums, or is being written by processes themselves.
        skipped: u64,
        /// What is not what was written: from and to, in the subfile's data.
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
        /// Those whose records, or entries leading to them, were changed since.
        touched: Vec<Ino>,
    }
}
