//! Telling what is sound in a damaged log or snapshot from what is not.
//!
//! An entry counts only if head and body have their own checksums, or have them but for one flipped bit. Behind a
//! head that is lost the next one is looked for, byte by byte; docs/format.md says why none is found by mistake.

use std::borrow::Cow;

use super::correct::flipped_bit;
use super::format::{BODY_LEN_MAX, FileKind, HEAD_LEN, HEADER_LEN, Head, Op, Ops};
use crate::crc::crc32c;
use bivouac_types::Slot;

/// Shortest entry: a head and the delete of an empty key.
const ENTRY_LEN_MIN: u64 = HEAD_LEN as u64 + 5;
/// Longest body of a log's entry of which one bit is corrected: a wrong correction of bytes that are damaged in more
/// places is less likely than 1 to 100,000.
const CORRECTED_LEN_MAX: usize = 4096;
/// The same of a snapshot's entries, which would take thousands of records with them.
const CORRECTED_LEN_MAX_SNAPSHOT: usize = 1 << 19;

/// Longest value of a lost record that is kept: entries of directories are shorter.
const LOST_VALUE_MAX: usize = 64;

/// A record that a lost commit seems to have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRecord {
    /// Its slot.
    pub slot: Slot,
    /// Its key.
    pub key: Vec<u8>,
    /// Its new value, if it was not removed, and is not longer than an entry of a directory.
    pub value: Option<Vec<u8>>,
}

/// A stretch of a file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    pub(super) at: usize,
    pub(super) end: usize,
    /// Records that the entry seems to have changed; its checksum does not vouch for them.
    pub(super) records: Vec<LostRecord>,
}

/// An entry that can be used.
pub(super) struct UsableEntry<'a> {
    pub(super) body: Cow<'a, [u8]>,
    pub(super) corrected: bool,
}

/// Content of a damaged file, sorted.
#[derive(Default)]
pub(super) struct SiftedFile<'a> {
    pub(super) entries: Vec<UsableEntry<'a>>,
    pub(super) gaps: Vec<Gap>,
    /// Entries that are known to be missing, by their sequences.
    pub(super) lost: u64,
    /// Bytes at the end that look like a write that was never finished.
    pub(super) torn: usize,
}

/// A reader of the entries of one file.
pub(super) struct FileSifter<'a> {
    bytes: &'a [u8],
    kind: FileKind,
    generation: u64,
    slots: u16,
    /// Sequence of the last entry.
    pub(super) last: u64,
    /// True if that is the one right in front of what comes next.
    pub(super) exact: bool,
    out: SiftedFile<'a>,
}

impl<'a> FileSifter<'a> {
    pub(super) fn new(bytes: &'a [u8], kind: FileKind, generation: u64, slots: u16) -> FileSifter<'a> {
        FileSifter { bytes, kind, generation, slots, last: 0, exact: true, out: SiftedFile::default() }
    }

    /// Reads everything; what was found, the last sequence, and whether what follows must be the next one.
    pub(super) fn sift(mut self) -> (SiftedFile<'a>, u64, bool) {
        let mut at = HEADER_LEN;
        while at < self.bytes.len() {
            let next = self.step(at);
            assert!(next > at, "salvage stands still at byte {at}");
            at = next;
        }
        (self.out, self.last, self.exact)
    }

    /// Takes what is at an offset; where to go on.
    fn step(&mut self, at: usize) -> usize {
        let Some((head, corrected)) = self.head(at) else { return self.search(at) };
        // A sound head with an old number is a copy of an entry within a value, or the rest of a file that was put
        // back.
        if head.sequence <= self.last {
            return self.search(at);
        }
        let (from, end) = span(at, head);
        let Some(body) = self.bytes.get(from..end) else { return self.tear(at) };
        let fixed = self.body(body, head.body_crc);
        // The last entry, with its end still zeros: nobody was told that it is done.
        if fixed.is_none() && end == self.bytes.len() && is_unwritten(body) {
            return self.tear(at);
        }
        // In a file that was not damaged elsewhere nothing is missing here, unless whole entries are gone.
        if self.exact || self.last > 0 {
            self.out.lost += head.sequence - self.last - 1;
        }
        (self.last, self.exact) = (head.sequence, true);
        match fixed {
            Some(mut sound) => {
                sound.corrected |= corrected;
                self.out.entries.push(sound);
            }
            None => {
                self.out.lost += 1;
                self.out.gaps.push(Gap { at, end, records: self.lost(body) });
            }
        }
        end
    }

    /// Returns the head at an offset, where one must be; with whether a bit of it was corrected, which the body then
    /// proves.
    fn head(&self, at: usize) -> Option<(Head, bool)> {
        let bytes = self.bytes.get(at..)?.first_chunk::<HEAD_LEN>()?;
        if let Some(head) = Head::from_bytes(bytes, self.generation) {
            return Some((head, false));
        }
        // All 160 of them are tried: a head that comes out right by chance is ruled out by the checksum of its
        // body.
        let flips = (0..HEAD_LEN * 8).filter_map(|bit| {
            let mut copy = *bytes;
            copy[bit / 8] ^= 1 << (bit % 8);
            Head::from_bytes(&copy, self.generation)
        });
        let proven = |head: &Head| {
            let (from, end) = span(at, *head);
            self.bytes.get(from..end).is_some_and(|body| crc32c(body) == head.body_crc)
        };
        flips.into_iter().find(proven).map(|head| (head, true))
    }

    fn body(&self, body: &'a [u8], crc: u32) -> Option<UsableEntry<'a>> {
        if crc32c(body) == crc {
            let body = Cow::Borrowed(body);
            return self.makes_sense(&body).then_some(UsableEntry { body, corrected: false });
        }
        let max = match self.kind {
            FileKind::Log => CORRECTED_LEN_MAX,
            FileKind::Snapshot => CORRECTED_LEN_MAX_SNAPSHOT,
        };
        if body.len() > max {
            return None;
        }
        let (at, bit) = flipped_bit(body, crc)?;
        let mut copy = body.to_vec();
        *copy.get_mut(at)? ^= 1 << bit;
        self.makes_sense(&copy).then_some(UsableEntry { body: Cow::Owned(copy), corrected: true })
    }

    /// Returns whether these are operations of such a file.
    fn makes_sense(&self, body: &[u8]) -> bool {
        Ops(body).all(|op| match op {
            Ok(Op::Put { slot, .. }) => slot < self.slots,
            Ok(Op::Delete { slot, .. }) => slot < self.slots && self.kind == FileKind::Log,
            Ok(Op::End { .. }) => self.kind == FileKind::Snapshot,
            Err(_) => false,
        })
    }

    fn lost(&self, body: &[u8]) -> Vec<LostRecord> {
        let lost = |op| {
            let (slot, key, value) = match op {
                Ok(Op::Put { slot, key, value }) => (slot, key, Some(value)),
                Ok(Op::Delete { slot, key }) => (slot, key, None),
                _ => return None,
            };
            let value = value.filter(|value| value.len() <= LOST_VALUE_MAX).map(<[u8]>::to_vec);
            (slot < self.slots).then(|| LostRecord { slot: Slot(slot), key: key.to_vec(), value })
        };
        Ops(body).map_while(lost).collect()
    }

    /// Looks for the next entry behind bytes that are none.
    fn search(&mut self, at: usize) -> usize {
        let behind = self.bytes.get(at + HEAD_LEN..).unwrap_or_default();
        if behind.iter().all(|byte| *byte == 0) {
            return self.tear(at);
        }
        let len = self.bytes.len();
        let found = (at + 1..len).find_map(|p| self.candidate(at, p).map(|sequence| (p, sequence)));
        let end = found.map_or(len, |(p, _)| p);
        // The body may be sound where only the head is lost.
        let body = self.bytes.get(at + HEAD_LEN..end).unwrap_or_default();
        self.out.gaps.push(Gap { at, end, records: self.lost(body) });
        match found {
            Some((_, sequence)) => {
                self.out.lost += sequence - self.last - 1;
                (self.last, self.exact) = (sequence - 1, true);
            }
            // The next log tells how many.
            None => self.exact = false,
        }
        end
    }

    /// Returns the sequence of a sound entry at `p`, if it can be the first one behind what is lost from `at` on.
    fn candidate(&self, at: usize, p: usize) -> Option<u64> {
        let bytes = self.bytes.get(p..)?.first_chunk::<HEAD_LEN>()?;
        let sequence = u64::from_le_bytes(*bytes.get(8..16)?.first_chunk()?);
        let lost = sequence.checked_sub(self.last)?.checked_sub(1)?;
        // Something is lost, and not more than there was room for: an entry within the value of another one, copied
        // there from this log, is older.
        if self.exact && (lost == 0 || lost > (p - at) as u64 / ENTRY_LEN_MIN) {
            return None;
        }
        let head = Head::from_bytes(bytes, self.generation)?;
        let (from, end) = span(p, head);
        let body = self.bytes.get(from..end)?;
        (crc32c(body) == head.body_crc && self.makes_sense(body)).then_some(sequence)
    }

    /// Takes the rest of the file for a write that never ended.
    fn tear(&mut self, at: usize) -> usize {
        self.out.torn = self.bytes.len() - at;
        self.exact = false;
        self.bytes.len()
    }
}

fn span(at: usize, head: Head) -> (usize, usize) {
    assert!(head.len as usize <= BODY_LEN_MAX, "a head whose body has {} bytes", head.len);
    (at + HEAD_LEN, at + HEAD_LEN + head.len as usize)
}

/// Returns whether the end of a body was never written, as a loss of power leaves it.
pub(super) fn is_unwritten(body: &[u8]) -> bool {
    let end = body.get(body.len().saturating_sub(16)..).unwrap_or_default();
    end.iter().all(|byte| *byte == 0)
}
