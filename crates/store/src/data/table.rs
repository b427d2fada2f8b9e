//! Table of a volume's subfiles, in a file of its own: a slot for each, so that one that is missing is told from one
//! that was never made. Byte by byte in docs/format.md.
//!
//! A subfile has its slot before anything of it is acknowledged, and loses it before its file is removed: a kill in
//! between leaves a subfile without a slot, which gets one at the next start, and never a slot without a subfile.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

use bivouac_ranks::{Mutex, rank};
use bivouac_types::{Ino, TargetIndex};

use super::SubfileId;
use crate::crc::crc32c;
use crate::volume::subfile_table::{HEADER_LEN, TABLE_NAME, check_header, empty_table};
use crate::volume::transfer::{read_full_at, write_all_at};
use crate::{OpenMode, StoreError, StoreResult, Volume, VolumeFile};

const SLOT_LEN: usize = 16;
const FREE: [u8; SLOT_LEN] = [0; SLOT_LEN];
/// Slots that are read at once.
const READ_SLOTS: usize = 1 << 16;

/// Key of a subfile, in the order in which subfiles are listed: directory, file, target. A slot of the file has it as
///
/// ```text
///  0              8         12     16
/// ┌──────────────┬─────────┬──────┐
/// │ inode number │ target  │ crc  │     all zeros: free
/// │ 8            │ 4       │ 4    │
/// └──────────────┴─────────┴──────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    dir: u8,
    ino: u64,
    target: u32,
}

/// The table of one volume.
#[derive(Debug)]
pub(super) struct Table {
    file: Arc<dyn VolumeFile>,
    volume: u16,
    known: Mutex<SlotIndex>,
}

#[derive(Debug, Default)]
struct SlotIndex {
    slots: BTreeMap<Key, u32>,
    free: Vec<u32>,
    /// Slots that the file has.
    count: u32,
    /// Of the subfiles with a slot, those that are known not to be there.
    lost: BTreeSet<Key>,
}

impl Key {
    fn of(id: SubfileId) -> Key {
        Key { dir: id.ino.0 as u8, ino: id.ino.0, target: id.target.0 }
    }

    fn id(self, volume: u16) -> SubfileId {
        SubfileId { volume, ino: Ino(self.ino), target: TargetIndex(self.target) }
    }

    fn to_slot(self) -> [u8; SLOT_LEN] {
        let mut out = FREE;
        out[..8].copy_from_slice(&self.ino.to_le_bytes());
        out[8..12].copy_from_slice(&self.target.to_le_bytes());
        let crc = crc32c(&out[..12]);
        out[12..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn from_slot(slot: &[u8; SLOT_LEN]) -> Option<Key> {
        let [i0, i1, i2, i3, i4, i5, i6, i7, s0, s1, s2, s3, crc @ ..] = *slot;
        let ino = u64::from_le_bytes([i0, i1, i2, i3, i4, i5, i6, i7]);
        let target = u32::from_le_bytes([s0, s1, s2, s3]);
        (crc == crc32c(&slot[..12]).to_le_bytes()).then_some(Key { dir: ino as u8, ino, target })
    }
}

impl Table {
    /// Reads a volume's table; made if there is none, as on a volume that never had a directory.
    pub(super) fn open(volume: &dyn Volume, index: u16, mode: OpenMode) -> StoreResult<Table> {
        let path = volume.path().join(TABLE_NAME);
        let failed = |what: &str| StoreError::io(format!("{}: {what}", path.display()));
        let file = volume.open(TABLE_NAME, mode).map_err(failed("open"))?;
        // A header that was cut off by a kill is written again: no slot can be behind it.
        if mode == OpenMode::Create && file.stat().map_err(failed("stat"))?.len < HEADER_LEN as u64 {
            write_all_at(&*file, &[IoSlice::new(&empty_table())], 0).map_err(failed("begin"))?;
        }
        check_header(&*file, path.clone())?;
        let (known, wrong) = SlotIndex::read(&*file).map_err(failed("read"))?;
        if wrong > 0 {
            log::warn!("{}: {wrong} entries are damaged, and not used", path.display());
        }
        Ok(Table { file, volume: index, known: Mutex::new(rank::SUBFILE_TABLE, known) })
    }

    /// Returns the index of the volume.
    pub(super) fn volume(&self) -> u16 {
        self.volume
    }

    /// Returns whether a subfile was made and not removed.
    pub(super) fn has(&self, id: SubfileId) -> bool {
        self.known.lock().slots.contains_key(&Key::of(id))
    }

    /// Notes that a subfile is there now.
    pub(super) fn add(&self, id: SubfileId) -> io::Result<()> {
        let key = Key::of(id);
        let mut known = self.known.lock();
        known.lost.remove(&key);
        if known.slots.contains_key(&key) {
            return Ok(());
        }
        // The last one freed is used first, so the table stays as short as the subfiles that there are.
        let slot = known.free.pop().unwrap_or(known.count);
        known.count = known.count.max(slot.saturating_add(1));
        drop(known);
        // Others may use other slots meanwhile; this subfile's own lock is held.
        let written = self.write(slot, &key.to_slot());
        let mut known = self.known.lock();
        match &written {
            Ok(()) => {
                let before = known.slots.insert(key, slot);
                assert!(before.is_none(), "a subfile with slots {before:?} and {slot}");
            }
            // What was written of it has a wrong checksum, and counts as free.
            Err(_) => known.free.push(slot),
        }
        written
    }

    /// Notes that a subfile is going to be removed; whether it was there by the table.
    pub(super) fn remove(&self, id: SubfileId) -> io::Result<bool> {
        let key = Key::of(id);
        let Some(slot) = self.known.lock().slots.get(&key).copied() else { return Ok(false) };
        // Written before it is free in memory: nobody else may be given a slot that this write would clear.
        self.write(slot, &FREE)?;
        self.free_slot(key, slot);
        Ok(true)
    }

    fn free_slot(&self, key: Key, slot: u32) {
        let mut known = self.known.lock();
        let removed = known.slots.remove(&key);
        // Freed twice, a slot would be given to two subfiles, and one of them forgotten.
        assert!(removed == Some(slot), "slot {slot} was freed, and {removed:?} meanwhile");
        known.lost.remove(&key);
        known.free.push(slot);
    }

    fn write(&self, slot: u32, bytes: &[u8; SLOT_LEN]) -> io::Result<()> {
        let at = HEADER_LEN as u64 + u64::from(slot) * SLOT_LEN as u64;
        self.file.write_deferred(bytes, at)
    }

    /// Notes that a subfile with a slot was looked for, and is not there. Returns true if that is news.
    pub(super) fn note_lost(&self, id: SubfileId) -> bool {
        let (key, mut known) = (Key::of(id), self.known.lock());
        known.slots.contains_key(&key) && known.lost.insert(key)
    }

    /// Returns the number of subfiles that are known to be lost.
    pub(super) fn lost_count(&self) -> u64 {
        self.known.lock().lost.len() as u64
    }

    /// Returns the subfiles that are known to be missing.
    pub(super) fn lost(&self) -> Vec<SubfileId> {
        self.known.lock().lost.iter().map(|key| key.id(self.volume)).collect()
    }

    /// Returns the subfiles of a directory, in their order.
    pub(super) fn in_dir(&self, dir: u8) -> Vec<SubfileId> {
        let (first, last) = (Key { dir, ino: 0, target: 0 }, Key { dir, ino: u64::MAX, target: u32::MAX });
        self.known.lock().slots.range(first..=last).map(|(key, _)| key.id(self.volume)).collect()
    }
}

impl SlotIndex {
    /// Reads all slots; how many are damaged besides.
    fn read(file: &dyn VolumeFile) -> io::Result<(SlotIndex, u64)> {
        let mut known = SlotIndex::default();
        let mut wrong = 0;
        let mut bytes = vec![0u8; READ_SLOTS * SLOT_LEN];
        loop {
            let at = HEADER_LEN as u64 + u64::from(known.count) * SLOT_LEN as u64;
            let len = read_full_at(file, &mut [IoSliceMut::new(&mut bytes)], at, u64::MAX)?;
            // What is no whole slot is the rest of one that was not acknowledged.
            let (slots, _) = bytes.get(..len).unwrap_or_default().as_chunks::<SLOT_LEN>();
            for slot in slots {
                match Key::from_slot(slot) {
                    _ if *slot == FREE => known.free.push(known.count),
                    // The first slot of a subfile stays its own: a second one counts as free, and is given to others.
                    Some(key) if !known.slots.contains_key(&key) => {
                        known.slots.insert(key, known.count);
                    }
                    Some(_) | None => {
                        wrong += 1;
                        known.free.push(known.count);
                    }
                }
                known.count = known.count.saturating_add(1);
            }
            if slots.len() < READ_SLOTS {
                return Ok((known, wrong));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemVolume;

    #[test]
    #[should_panic(expected = "slot 0 was freed")]
    fn a_slot_that_is_freed_twice_is_not_given_to_two_subfiles() {
        let table = Table::open(&MemVolume::default(), 0, OpenMode::Create).unwrap();
        let id = SubfileId { volume: 0, ino: Ino(7), target: TargetIndex(0) };
        table.add(id).unwrap();
        table.remove(id).unwrap();
        // As a second removal would that looked for the slot before the first one had freed it.
        table.free_slot(Key::of(id), 0);
    }
}
