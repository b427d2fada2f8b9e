//! Checksums of a subfile's blocks, byte by byte: where they lie, what they say, and the note of the change that is
//! under way. docs/format.md is the specification.

use std::ops::{Deref, Range};

use bivouac_types::limits::{SUM_BLOCK, SUMMED_DATA_AT};
use bivouac_wire::subfile::SUMMED_HEADER_LEN;
use crc_fast::{CrcAlgorithm, Digest, checksum};

/// Bytes of a block.
pub(super) const BLOCK: usize = SUM_BLOCK as usize;
/// First bytes behind the header proper, by which sums are known although the header is damaged.
pub(super) const MAGIC: &[u8; 8] = b"BVKSUMS1";
/// Offset of these bytes in the local file.
pub(super) const MAGIC_AT: u64 = SUMMED_HEADER_LEN as u64;
/// Offset of the note.
pub(super) const NOTE_AT: u64 = MAGIC_AT + MAGIC.len() as u64;
/// Bytes of the note.
pub(super) const NOTE_LEN: usize = 32;
/// Offset of the entry of block 0; the others follow it.
pub(super) const ENTRIES_AT: u64 = MAGIC_AT + 64;
/// Bytes of an entry.
const ENTRY_LEN: u64 = 4;
/// Blocks that have entries. Those behind them are not compared.
pub(super) const BLOCKS_MAX: u64 = (SUMMED_DATA_AT - ENTRIES_AT) / ENTRY_LEN;

/// A block that was never written.
pub(super) const HOLE: u32 = 0;
/// A block of which it is not known whether it is right: it was being changed when a process was killed, or may be
/// changed by others. It is not compared.
pub(super) const FLUX: u32 = 1;
/// A block that was found to be wrong when a part of it was cut off or made zeros.
pub(super) const WRONG: u32 = 2;

/// A block of zeros.
pub(super) static ZEROS: [u8; BLOCK] = [0; BLOCK];
/// CRC-32C of a block of zeros. With it the entry of a block that was never written is a hole.
const CRC_OF_ZEROS: u32 = 0x98f9_4189;

const _: () = assert!(NOTE_AT + NOTE_LEN as u64 <= ENTRIES_AT);

/// Returns the offset of a block's entry in the local file.
pub(super) fn entry_at(block: u64) -> u64 {
    ENTRIES_AT + block.min(BLOCKS_MAX) * ENTRY_LEN
}

/// Returns the first block whose entry is at this place of the local file or behind it.
pub(super) fn block_at(place: u64) -> u64 {
    place.saturating_sub(ENTRIES_AT).div_ceil(ENTRY_LEN)
}

/// Returns the blocks that have bytes of a range of data, as far as they have entries.
pub(super) fn blocks_of(data: &Range<u64>) -> Range<u64> {
    (data.start / SUM_BLOCK).min(BLOCKS_MAX)..data.end.div_ceil(SUM_BLOCK).min(BLOCKS_MAX)
}

/// Returns the entry of a block whose first bytes these are; the others are zeros.
pub(super) fn entry_of(bytes: &[u8]) -> u32 {
    if bytes.len() == BLOCK {
        return entry_with(checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32);
    }
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(bytes);
    finish(digest, bytes.len())
}

fn finish(mut digest: Digest, len: usize) -> u32 {
    digest.update(ZEROS.get(len..).unwrap_or_default());
    entry_with(digest.finalize() as u32)
}

/// Returns the entry of a checksum. The values of states are no sums: what would be one of them is its complement.
fn entry_with(crc: u32) -> u32 {
    match crc ^ CRC_OF_ZEROS {
        state @ (FLUX | WRONG) => !state,
        sum => sum,
    }
}

/// Bytes in several slices, taken from the front.
pub(super) struct Pieces<'a, T> {
    slices: &'a [T],
    /// Bytes of the first slice that were taken.
    taken: usize,
}

impl<'a, T: Deref<Target = [u8]>> Pieces<'a, T> {
    pub(super) fn of(slices: &'a [T]) -> Pieces<'a, T> {
        Pieces { slices, taken: 0 }
    }

    /// Takes so many bytes, or all that there are, piece by piece.
    pub(super) fn take(&mut self, mut len: usize, mut with: impl FnMut(&[u8])) {
        while len > 0
            && let Some((first, others)) = self.slices.split_first()
        {
            let left = first.get(self.taken..).unwrap_or_default();
            let piece = left.get(..len).unwrap_or(left);
            with(piece);
            len -= piece.len();
            self.taken += piece.len();
            if piece.len() == left.len() {
                (self.slices, self.taken) = (others, 0);
            }
        }
    }

    /// Returns the entry of a block whose first bytes are the next `len`.
    pub(super) fn entry(&mut self, len: usize) -> u32 {
        let whole = self.slices.first().and_then(|first| first.get(self.taken..self.taken + len));
        if whole.is_some() {
            let mut entry = 0;
            self.take(len, |bytes| entry = entry_of(bytes));
            return entry;
        }
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        self.take(len, |bytes| digest.update(bytes));
        finish(digest, len)
    }
}

/// Returns the entries as bytes.
pub(super) fn encoded(entries: &[u32]) -> Vec<u8> {
    entries.iter().flat_map(|entry| entry.to_le_bytes()).collect()
}

/// A change of blocks, noted before it is begun.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ChangeNote {
    /// Blocks whose bytes and entries may not fit together.
    pub(super) blocks: Range<u64>,
    /// Condition under which they do.
    pub(super) until: Completion,
    /// True if there may be blocks in flux.
    pub(super) flux: bool,
}

/// Condition under which a noted change is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Completion {
    /// Without a note.
    #[default]
    Now,
    /// Once the CRC-32C of the entries of its blocks is this one.
    Entries(u32),
    /// By another note, which replaces this one.
    Noted,
}

impl ChangeNote {
    /// ```text
    ///  0             8           16               20     21      22      28     32
    /// ┌─────────────┬───────────┬────────────────┬──────┬───────┬───────┬──────┐
    /// │ first block │ end block │ crc of entries │ kind │ flags │ 0     │ crc  │
    /// │ 8           │ 8         │ 4              │ 1    │ 1     │ 6     │ 4    │
    /// └─────────────┴───────────┴────────────────┴──────┴───────┴───────┴──────┘
    /// ```
    pub(super) fn to_bytes(&self) -> [u8; NOTE_LEN] {
        assert!(self.blocks.start <= self.blocks.end, "a note of blocks {:?}", self.blocks);
        let (kind, crc) = match self.until {
            Completion::Now => (0, 0),
            Completion::Entries(crc) => (1, crc),
            Completion::Noted => (2, 0),
        };
        let mut out = [0; NOTE_LEN];
        out[..8].copy_from_slice(&self.blocks.start.to_le_bytes());
        out[8..16].copy_from_slice(&self.blocks.end.to_le_bytes());
        out[16..20].copy_from_slice(&crc.to_le_bytes());
        (out[20], out[21]) = (kind, u8::from(self.flux));
        let seal = crate::crc::crc32c(&out[..NOTE_LEN - 4]);
        out[NOTE_LEN - 4..].copy_from_slice(&seal.to_le_bytes());
        out
    }

    /// Decodes a note. A torn one is no note: what was noted before is complete, and what it announces was not
    /// begun.
    pub(super) fn from_bytes(bytes: &[u8; NOTE_LEN]) -> ChangeNote {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let double = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        if word(NOTE_LEN - 4) != crate::crc::crc32c(&bytes[..NOTE_LEN - 4]) {
            return ChangeNote::default();
        }
        let until = match bytes[20] {
            0 => Completion::Now,
            1 => Completion::Entries(word(16)),
            _ => Completion::Noted,
        };
        let end = double(8).min(BLOCKS_MAX);
        let blocks = double(0).min(end)..end;
        ChangeNote { blocks, until, flux: bytes[21] & 1 != 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_block_of_zeros_has_the_entry_of_a_hole() {
        assert_eq!(crate::crc::crc32c(&ZEROS), CRC_OF_ZEROS);
        assert_eq!((entry_of(&ZEROS), entry_of(&[]), entry_of(&[0; 9])), (0, 0, 0));
        assert_ne!(entry_of(&[0, 1]), 0);
    }

    #[test]
    #[should_panic(expected = "a note of blocks 4..3")]
    fn a_note_of_blocks_that_end_before_they_begin_is_not_written() {
        let blocks = std::ops::Range { start: 4, end: 3 };
        let _ = ChangeNote { blocks, until: Completion::Noted, flux: false }.to_bytes();
    }

    #[test]
    fn a_note_that_ends_before_it_begins_is_read_as_one_of_no_blocks() {
        let mut bytes = ChangeNote { blocks: 3..4, until: Completion::Noted, flux: false }.to_bytes();
        bytes[..8].copy_from_slice(&9u64.to_le_bytes());
        let seal = crate::crc::crc32c(&bytes[..NOTE_LEN - 4]);
        bytes[NOTE_LEN - 4..].copy_from_slice(&seal.to_le_bytes());
        assert!(ChangeNote::from_bytes(&bytes).blocks.is_empty());
    }

    #[test]
    fn no_sum_is_a_state() {
        for state in [FLUX, WRONG] {
            assert_eq!(entry_with(state ^ CRC_OF_ZEROS), !state);
        }
    }

    #[test]
    fn notes_come_back_and_torn_ones_say_nothing() {
        for until in [Completion::Now, Completion::Entries(7), Completion::Noted] {
            let note = ChangeNote { blocks: 3..9, until, flux: true };
            let bytes = note.to_bytes();
            assert_eq!(ChangeNote::from_bytes(&bytes), note);
            for at in 0..NOTE_LEN {
                let mut torn = bytes;
                torn[at] ^= 0x10;
                assert_eq!(ChangeNote::from_bytes(&torn), ChangeNote::default());
            }
        }
        assert_eq!(ChangeNote::from_bytes(&[0; NOTE_LEN]), ChangeNote::default());
    }

    proptest! {
        #[test]
        fn how_bytes_are_sliced_does_not_matter(bytes in proptest::collection::vec(any::<u8>(), 0..10_000), cut in 1usize..5000) {
            let slices: Vec<&[u8]> = bytes.chunks(cut).collect();
            let mut pieces = Pieces::of(&slices);
            for block in bytes.chunks(BLOCK) {
                prop_assert_eq!(pieces.entry(block.len()), entry_of(block));
            }
        }
    }
}
