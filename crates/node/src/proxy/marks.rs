//! Marks of the stripes of a subfile: which are here, which were written and are not at site storage.

use std::ops::ControlFlow;

use bivouac_store::Txn;
use bivouac_types::{FsResult, Ino, Slot};
use bivouac_wire::{Encode, codec_struct};

use crate::namespace::decode;
use crate::node::Node;
use crate::proxy_state::Part;
use crate::record::{held_key, marks_key, marks_of_key};

/// Bytes of marks of one kind in one record.
const BLOCK_BYTES: usize = 128;
/// Stripes whose marks are in one record.
pub const BLOCK_STRIPES: u64 = BLOCK_BYTES as u64 * 8;

/// The marks of some consecutive stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeMarks {
    /// Content that site storage has is here as well: it was brought, or flushed.
    present: [u8; BLOCK_BYTES],
    /// Written here, and not at site storage.
    dirty: [u8; BLOCK_BYTES],
    /// The same, of what a flush is about.
    flushing: [u8; BLOCK_BYTES],
}
codec_struct!(StripeMarks { present, dirty, flushing });

impl Default for StripeMarks {
    fn default() -> StripeMarks {
        StripeMarks { present: [0; BLOCK_BYTES], dirty: [0; BLOCK_BYTES], flushing: [0; BLOCK_BYTES] }
    }
}

fn has(bits: &[u8; BLOCK_BYTES], stripe: u64) -> bool {
    let at = (stripe % BLOCK_STRIPES) as usize;
    bits[at / 8] & 1 << (at % 8) != 0
}

fn set(bits: &mut [u8; BLOCK_BYTES], stripe: u64) {
    let at = (stripe % BLOCK_STRIPES) as usize;
    bits[at / 8] |= 1 << (at % 8);
}

fn clear(bits: &mut [u8; BLOCK_BYTES], stripe: u64) {
    let at = (stripe % BLOCK_STRIPES) as usize;
    bits[at / 8] &= !(1 << (at % 8));
}

fn count(bits: &[u8; BLOCK_BYTES]) -> u64 {
    bits.iter().map(|byte| u64::from(byte.count_ones())).sum()
}

impl StripeMarks {
    /// Returns true if the content of a stripe is here. What was written here is, whatever site storage has: a flush
    /// may have put an older state there whose end this target has not been told of.
    pub fn is_present(&self, stripe: u64) -> bool {
        has(&self.present, stripe) || has(&self.dirty, stripe) || has(&self.flushing, stripe)
    }

    /// Returns true if a stripe was written since the last flush began.
    pub fn is_dirty(&self, stripe: u64) -> bool {
        has(&self.dirty, stripe)
    }

    /// Returns true if a stripe is as at site storage: it came from there or was flushed, and was not written since.
    pub fn is_clean(&self, stripe: u64) -> bool {
        has(&self.present, stripe) && !has(&self.dirty, stripe) && !has(&self.flushing, stripe)
    }

    /// Returns true if any stripe is clean.
    pub fn has_clean(&self) -> bool {
        (0..BLOCK_STRIPES).any(|stripe| self.is_clean(stripe))
    }

    /// Stripes that site storage does not have as they are here.
    pub fn unsaved(&self) -> u64 {
        count(&std::array::from_fn(|at| self.dirty[at] | self.flushing[at]))
    }

    /// Begins a flush of what was written.
    fn begin(&mut self) {
        (0..BLOCK_BYTES).for_each(|at| self.flushing[at] |= self.dirty[at]);
        self.dirty = [0; BLOCK_BYTES];
    }

    /// Ends a flush that failed.
    fn fail(&mut self) {
        (0..BLOCK_BYTES).for_each(|at| self.dirty[at] |= self.flushing[at]);
        self.flushing = [0; BLOCK_BYTES];
    }

    /// Ends a flush that succeeded: its stripes are here and there.
    fn end(&mut self) {
        (0..BLOCK_BYTES).for_each(|at| self.present[at] |= self.flushing[at]);
        self.flushing = [0; BLOCK_BYTES];
    }

    /// Forgets stripes that came from site storage, whose version has changed; stripes written here stay.
    fn forget(&mut self) {
        (0..BLOCK_BYTES).for_each(|at| self.present[at] &= self.dirty[at] | self.flushing[at]);
    }
}

/// Change of all marks of a subfile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarksChange {
    /// A flush begins.
    Begin,
    /// It failed.
    Fail,
    /// It succeeded.
    End,
    /// No change: the marks are counted.
    Count,
    /// Content that was brought is not valid any more.
    Forget,
    /// The subfile is removed.
    Remove,
}

impl Node {
    /// Returns the slot of what this node keeps about its subfiles of a file.
    pub(super) fn part_slot(&self, ino: Ino) -> Slot {
        self.shards.slot_of(ino)
    }

    /// Returns the marks of the block that a stripe is in.
    pub(super) fn marks(&self, part: Part, stripe: u64) -> FsResult<StripeMarks> {
        let key = marks_key(part.ino, part.target, block_of(stripe));
        self.records.read(self.part_slot(part.ino), &key, |bytes| read_marks(bytes, part.ino))
    }

    /// Marks a stripe: its content was brought here.
    pub(super) fn mark_present(&self, part: Part, stripe: u64) -> FsResult<()> {
        self.change_marks(part, stripe, |marks| set(&mut marks.present, stripe))
    }

    /// Marks stripes whose content is here and at site storage.
    pub(super) fn mark_all_present(&self, part: Part, stripes: std::ops::Range<u64>) -> FsResult<()> {
        let mut next = stripes.start;
        while next < stripes.end {
            let end = stripes.end.min((next / BLOCK_STRIPES + 1) * BLOCK_STRIPES);
            self.change_marks(part, next, |marks| {
                (next..end).for_each(|stripe| set(&mut marks.present, stripe))
            })?;
            next = end;
        }
        Ok(())
    }

    /// Marks those of some stripes of a block that are clean as absent. Returns them.
    pub(super) fn take_present(&self, part: Part, first: u64, stripes: &[u64]) -> FsResult<Vec<u64>> {
        let mut taken = Vec::new();
        // The marks of another block would go, of stripes that nobody frees.
        let is_of_block = |stripe: &u64| block_of(*stripe) == block_of(first);
        assert!(stripes.iter().all(is_of_block), "stripes {stripes:?} are not all in the block of {first}");
        self.change_marks(part, first, |marks| {
            for stripe in stripes {
                if marks.is_clean(*stripe) {
                    clear(&mut marks.present, *stripe);
                    taken.push(*stripe);
                }
            }
        })?;
        Ok(taken)
    }

    /// Marks stripes before they are written.
    pub(super) fn mark_dirty(&self, part: Part, stripes: std::ops::Range<u64>) -> FsResult<()> {
        for stripe in stripes {
            // Mostly it was written before: to read the mark costs no commit.
            if !self.marks(part, stripe)?.is_dirty(stripe) {
                self.change_marks(part, stripe, |marks| set(&mut marks.dirty, stripe))?;
                let bytes = self.stripe_of(part.ino, part.target)?;
                // Once for each stripe between two flushes: what is written again adds nothing that has to be flushed.
                self.note_written(part.ino, part.target.partition(), bytes);
            }
        }
        Ok(())
    }

    fn change_marks(&self, part: Part, stripe: u64, change: impl FnOnce(&mut StripeMarks)) -> FsResult<()> {
        let (slot, key) = (self.part_slot(part.ino), marks_key(part.ino, part.target, block_of(stripe)));
        let mut txn = self.records.txn(&[slot]);
        let mut marks = read_marks(txn.get(slot, &key), part.ino)?;
        change(&mut marks);
        txn.put(slot, &key, &marks.to_bytes());
        self.commit_note(txn)
    }

    /// Changes all marks of a subfile. Answers how many stripes are not saved afterwards.
    pub(super) fn turn_marks(&self, part: Part, turn: MarksChange) -> FsResult<u64> {
        let slot = self.part_slot(part.ino);
        let mut txn = self.records.txn(&[slot]);
        let unsaved = turn_in(&mut txn, slot, part, turn)?;
        self.commit_note(txn)?;
        Ok(unsaved)
    }
}

/// Like [`Node::turn_marks`], within a transaction.
pub fn turn_in(txn: &mut Txn<'_>, slot: Slot, part: Part, turn: MarksChange) -> FsResult<u64> {
    let prefix = held_key(part.ino, part.target);
    let mut found = Vec::new();
    txn.scan(slot, &prefix, &prefix, |key, value| {
        found.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    });
    let mut unsaved = 0;
    for (key, value) in found {
        if turn == MarksChange::Remove {
            txn.delete(slot, &key);
            continue;
        }
        // The origin of the subfile, whose key is the prefix of all of these.
        if marks_of_key(&key).is_none() {
            continue;
        }
        let before = read_marks(Some(&value), part.ino)?;
        let mut marks = before;
        match turn {
            MarksChange::Begin => marks.begin(),
            MarksChange::Fail => marks.fail(),
            MarksChange::End => marks.end(),
            MarksChange::Forget => marks.forget(),
            MarksChange::Count | MarksChange::Remove => {}
        }
        unsaved += marks.unsaved();
        if marks != before {
            txn.put(slot, &key, &marks.to_bytes());
        }
    }
    Ok(unsaved)
}

fn block_of(stripe: u64) -> u32 {
    u32::try_from(stripe / BLOCK_STRIPES).unwrap_or(u32::MAX)
}

/// Returns the marks of a record; none without one.
pub fn read_marks(bytes: Option<&[u8]>, ino: Ino) -> FsResult<StripeMarks> {
    bytes.map_or(Ok(StripeMarks::default()), |bytes| decode(bytes, "mark", ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_wire::Decode;

    #[test]
    fn a_flush_takes_what_was_written_before_it() {
        let mut marks = StripeMarks::default();
        set(&mut marks.dirty, 3);
        marks.begin();
        set(&mut marks.dirty, 1024 + 4);
        assert!(!marks.is_dirty(3) && marks.is_dirty(4));
        assert_eq!(marks.unsaved(), 2);
        let mut failed = marks;
        failed.fail();
        assert!(failed.is_dirty(3) && failed.is_dirty(4));
        assert!(!marks.is_present(2) && marks.is_present(3) && marks.is_present(4));
        marks.end();
        assert_eq!((marks.unsaved(), marks.is_dirty(4)), (1, true));
        assert!(marks.is_clean(3) && marks.is_present(4) && !marks.is_clean(4));
        assert_eq!(StripeMarks::from_bytes(&marks.to_bytes()), Ok(marks));
    }

    #[test]
    fn what_was_written_here_is_believed_when_the_origin_is_not() {
        let mut marks = StripeMarks::default();
        [1, 2].into_iter().for_each(|stripe| set(&mut marks.present, stripe));
        set(&mut marks.dirty, 2);
        marks.forget();
        assert!(!marks.is_present(1) && marks.is_present(2));
    }
}
