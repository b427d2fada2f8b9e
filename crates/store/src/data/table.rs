//! Which subfiles a volume has, in a file of its own: a slot for each, so that one that is missing is told from one that
//! was never made. Byte by byte in docs/format.md.
//!
//! A subfile has its slot before anything of it is acknowledged, and loses it before its file is removed: a kill in
//! between leaves a subfile without a slot, which gets one at the next start, and never a slot without a subfile.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice, IoSliceMut};
use std::path::PathBuf;
use std::sync::Arc;

use bivouac_ranks::{Mutex, rank};
use bivouac_types::{Errno, Ino, SeatIndex};

use super::SubfileId;
use crate::crc::crc32c;
use crate::volume::transfer::{read_full_at, write_all_at};
use crate::{OpenMode, StoreError, StoreResult, Volume, VolumeFile};

/// Name of the table in a volume's directory.
pub(crate) const TABLE_NAME: &str = "bivouac-subfiles";

const MAGIC: &[u8; 8] = b"BVKTABL1";
const VERSION: u16 = 1;
const HEADER_LEN: usize = 64;
const SLOT_LEN: usize = 16;
const FREE: [u8; SLOT_LEN] = [0; SLOT_LEN];
/// Slots that are read at once.
const READ_SLOTS: usize = 1 << 16;

/// In the order in which subfiles are listed: directory, file, seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    dir: u8,
    ino: u64,
    seat: u32,
}

/// The table of one volume.
#[derive(Debug)]
pub(super) struct Table {
    file: Arc<dyn VolumeFile>,
    volume: u16,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    slots: BTreeMap<Key, u32>,
    free: Vec<u32>,
    /// Slots that the file has.
    count: u32,
    /// Of the subfiles with a slot, those that are known not to be there.
    lost: BTreeSet<Key>,
}

/// The bytes of a table without subfiles.
pub(crate) fn empty_table() -> [u8; HEADER_LEN] {
    let mut out = [0u8; HEADER_LEN];
    out[..8].copy_from_slice(MAGIC);
    out[8..10].copy_from_slice(&VERSION.to_le_bytes());
    let crc = crc32c(&out[..HEADER_LEN - 4]);
    out[HEADER_LEN - 4..].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Whether a volume's table is there and can be used.
///
/// # Errors
/// `NoTable`, `Corrupt`, `NewerFormat`, `Io`.
pub(crate) fn check_table(volume: &dyn Volume) -> StoreResult<()> {
    let path = volume.path().join(TABLE_NAME);
    let file = match volume.open(TABLE_NAME, OpenMode::Existing) {
        Err(error) if error.raw_os_error() == Some(Errno::ENOENT.code()) => {
            return Err(StoreError::NoTable { path: volume.path().to_owned() });
        }
        file => file.map_err(StoreError::io(format!("{}: open", path.display())))?,
    };
    check_header(&*file, path)
}

/// Makes the table anew, without subfiles: the volume's next start takes in those that are there.
///
/// # Errors
/// `Io`.
pub(crate) fn renew_table(volume: &dyn Volume) -> StoreResult<()> {
    let renew = || -> io::Result<()> {
        let file = volume.open(TABLE_NAME, OpenMode::Create)?;
        file.set_len(0)?;
        write_all_at(&*file, &[IoSlice::new(&empty_table())], 0)?;
        file.sync()?;
        volume.sync_dir("")
    };
    let path = volume.path().join(TABLE_NAME);
    renew().map_err(StoreError::io(format!("{}: make anew", path.display())))
}

fn check_header(file: &dyn VolumeFile, path: PathBuf) -> StoreResult<()> {
    let mut header = [0u8; HEADER_LEN];
    let what = format!("{}: read", path.display());
    let len = read_full_at(file, &mut [IoSliceMut::new(&mut header)], 0, HEADER_LEN as u64)
        .map_err(StoreError::io(what))?;
    let damaged = |cause: &str| StoreError::Corrupt { path: path.clone(), offset: 0, cause: cause.into() };
    let version = u16::from_le_bytes([header[8], header[9]]);
    if len < HEADER_LEN || !header.starts_with(MAGIC) {
        return Err(damaged("this is no table of subfiles"));
    }
    if version > VERSION {
        return Err(StoreError::NewerFormat { path, found: version, supported: VERSION });
    }
    if header[HEADER_LEN - 4..] != crc32c(&header[..HEADER_LEN - 4]).to_le_bytes() {
        return Err(damaged("wrong checksum"));
    }
    Ok(())
}

impl Key {
    fn of(id: SubfileId) -> Key {
        Key { dir: id.ino.0 as u8, ino: id.ino.0, seat: id.seat.0 }
    }

    fn id(self, volume: u16) -> SubfileId {
        SubfileId { volume, ino: Ino(self.ino), seat: SeatIndex(self.seat) }
    }

    fn to_slot(self) -> [u8; SLOT_LEN] {
        let mut out = FREE;
        out[..8].copy_from_slice(&self.ino.to_le_bytes());
        out[8..12].copy_from_slice(&self.seat.to_le_bytes());
        let crc = crc32c(&out[..12]);
        out[12..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn from_slot(slot: &[u8; SLOT_LEN]) -> Option<Key> {
        let [i0, i1, i2, i3, i4, i5, i6, i7, s0, s1, s2, s3, crc @ ..] = *slot;
        let ino = u64::from_le_bytes([i0, i1, i2, i3, i4, i5, i6, i7]);
        let seat = u32::from_le_bytes([s0, s1, s2, s3]);
        (crc == crc32c(&slot[..12]).to_le_bytes()).then_some(Key { dir: ino as u8, ino, seat })
    }
}

impl Table {
    /// Reads a volume's table; made if there is none, as on a volume that never had a directory.
    pub(super) fn open(volume: &dyn Volume, index: u16, mode: OpenMode) -> StoreResult<Table> {
        let path = volume.path().join(TABLE_NAME);
        let failed = |what: &str| StoreError::io(format!("{}: {what}", path.display()));
        let file = volume.open(TABLE_NAME, mode).map_err(failed("open"))?;
        if mode == OpenMode::Create && file.stat().map_err(failed("stat"))?.len < HEADER_LEN as u64 {
            write_all_at(&*file, &[IoSlice::new(&empty_table())], 0).map_err(failed("begin"))?;
        }
        check_header(&*file, path.clone())?;
        let (known, wrong) = Known::read(&*file).map_err(failed("read"))?;
        if wrong > 0 {
            log::warn!("{}: {wrong} entries are damaged, and not used", path.display());
        }
        Ok(Table { file, volume: index, known: Mutex::new(rank::SUBFILE_TABLE, known) })
    }

    /// Which volume's it is.
    pub(super) fn volume(&self) -> u16 {
        self.volume
    }

    /// Whether a subfile was made and not removed.
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
        let slot = known.free.pop().unwrap_or(known.count);
        known.count = known.count.max(slot.saturating_add(1));
        drop(known);
        // Others may use other slots meanwhile; this subfile's own lock is held.
        let written = self.write(slot, &key.to_slot());
        let mut known = self.known.lock();
        match &written {
            Ok(()) => drop(known.slots.insert(key, slot)),
            Err(_) => known.free.push(slot),
        }
        written
    }

    /// Notes that a subfile is going to be removed; whether it was there by the table.
    pub(super) fn remove(&self, id: SubfileId) -> io::Result<bool> {
        let key = Key::of(id);
        let Some(slot) = self.known.lock().slots.get(&key).copied() else { return Ok(false) };
        self.write(slot, &FREE)?;
        let mut known = self.known.lock();
        known.slots.remove(&key);
        known.lost.remove(&key);
        known.free.push(slot);
        Ok(true)
    }

    fn write(&self, slot: u32, bytes: &[u8; SLOT_LEN]) -> io::Result<()> {
        let at = HEADER_LEN as u64 + u64::from(slot) * SLOT_LEN as u64;
        write_all_at(&*self.file, &[IoSlice::new(bytes)], at)
    }

    /// A subfile with a slot was looked for, and is not there; whether that is news.
    pub(super) fn note_lost(&self, id: SubfileId) -> bool {
        let (key, mut known) = (Key::of(id), self.known.lock());
        known.slots.contains_key(&key) && known.lost.insert(key)
    }

    /// How many are known not to be there.
    pub(super) fn lost_count(&self) -> u64 {
        self.known.lock().lost.len() as u64
    }

    /// Those that are known not to be there.
    pub(super) fn lost(&self) -> Vec<SubfileId> {
        self.known.lock().lost.iter().map(|key| key.id(self.volume)).collect()
    }

    /// The subfiles of a directory, in their order.
    pub(super) fn in_dir(&self, dir: u8) -> Vec<SubfileId> {
        let (first, last) = (Key { dir, ino: 0, seat: 0 }, Key { dir, ino: u64::MAX, seat: u32::MAX });
        self.known.lock().slots.range(first..=last).map(|(key, _)| key.id(self.volume)).collect()
    }
}

impl Known {
    /// Reads all slots; how many are damaged besides.
    fn read(file: &dyn VolumeFile) -> io::Result<(Known, u64)> {
        let mut known = Known::default();
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
                    Some(key) if known.slots.insert(key, known.count).is_none() => {}
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
