//! Making records that can be opened again of what is sound in damaged ones. What stays true is in docs/format.md.

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::path::PathBuf;
use std::sync::Arc;

use bivouac_ranks::{Mutex, rank};
use bivouac_types::{FormationId, NodeId};

use super::Records;
use super::compact::SnapshotWriter;
use super::correct::flipped_bit;
use super::format::{FileHeader, FileKind, HEADER_LEN, HeaderError, OLDEST, Op, Ops, Origin, VERSION};
use super::log::{DIR, begin_file, file_name, finish_file, next_generation, path_of};
use super::map::{Change, SlotMap};
use super::recover::{Files, apply};
use super::sift::{FileSifter, LostRecord, SiftedFile};
use crate::crc::crc32c;
use crate::volume::transfer::{read_full_at, write_all_at};
use crate::{OpenMode, StoreError, StoreResult, Volume};

/// A part of the records that could not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub path: PathBuf,
    /// First byte, and the one behind the last.
    pub bytes: std::ops::Range<u64>,
    /// Records that it seems to have changed, as far as that can be read.
    pub records: Vec<LostRecord>,
}

/// Result of salvaging damaged records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Salvage {
    /// Records that are there now.
    pub records: u64,
    /// Commits of logs that were used.
    pub commits: u64,
    /// Entries of which one flipped bit was corrected; they count as used.
    pub corrected: u64,
    /// Commits that are lost, at least.
    pub lost_commits: u64,
    /// Records of a damaged snapshot that are lost, as far as it says.
    pub lost_records: u64,
    /// Bytes of an unfinished last commit.
    pub torn_bytes: u64,
    /// Parts of files that could not be used.
    pub damage: Vec<Damage>,
    /// Copies of the files as they were.
    pub kept: Vec<PathBuf>,
}

impl Salvage {
    /// Returns whether anything that was acknowledged is gone.
    #[must_use]
    pub fn has_loss(&self) -> bool {
        self.lost_commits > 0 || self.lost_records > 0 || !self.damage.is_empty()
    }
}

impl Records {
    /// Returns the number of slots of the records on a volume, by any of their files that says so.
    ///
    /// # Errors
    /// `Io`.
    pub fn salvageable_slots(volume: &dyn Volume) -> StoreResult<Option<u16>> {
        let mut slots = None;
        for (kind, generation) in every_file(volume)? {
            let (header, _) = header_of(&read(volume, &file_name(kind, generation))?, kind);
            slots = slots.or(header.ok().map(|header| header.origin.slots));
        }
        Ok(slots)
    }

    /// Makes records that [`Records::open`] takes of what is sound, and keeps the files as they were beside them, with
    /// `damaged-` in front of their names. Killed, it has changed nothing that another call does not find.
    ///
    /// # Errors
    /// `WrongFormation`, `NewerFormat`; `Io`, also when there is no room for the copies. Nothing is lost then.
    pub fn salvage(
        volume: &Arc<dyn Volume>,
        formation: FormationId,
        node: NodeId,
        slots: u16,
    ) -> StoreResult<Salvage> {
        let mut run = Run::new(&**volume, Origin { formation, node, slots });
        let files = every_file(&**volume)?;
        let mut by_generation: BTreeMap<u64, Vec<FileKind>> = BTreeMap::new();
        // A snapshot comes before the log of its generation.
        for (kind, generation) in files.iter().rev() {
            by_generation.entry(*generation).or_default().insert(0, *kind);
        }
        let newest = files.iter().filter(|(kind, _)| *kind == FileKind::Snapshot).map(|(_, at)| *at).max();
        let mut expected = newest.unwrap_or(1);
        for (generation, kinds) in &by_generation {
            // Logs before the newest snapshot are not missed: it has what they say. They are there only after a kill.
            if kinds.contains(&FileKind::Log) && *generation >= expected {
                (expected..*generation).for_each(|missing| run.note_missing(missing));
                expected = generation.saturating_add(1);
            }
            kinds.iter().try_for_each(|kind| run.take(*kind, *generation))?;
        }
        if newest.is_some_and(|newest| expected == newest) {
            run.note_missing(expected);
        }
        let last = by_generation.keys().next_back().copied().unwrap_or(0);
        run.finish(&files, last)
    }
}

/// Returns all logs and snapshots: snapshots first, by generation.
fn every_file(volume: &dyn Volume) -> StoreResult<Vec<(FileKind, u64)>> {
    let files = Files::list(volume)?;
    let snapshots = files.snapshots.iter().map(|generation| (FileKind::Snapshot, *generation));
    Ok(snapshots.chain(files.logs.iter().map(|generation| (FileKind::Log, *generation))).collect())
}

fn read(volume: &dyn Volume, name: &str) -> StoreResult<Vec<u8>> {
    let load = || {
        let file = volume.open(name, OpenMode::Existing)?;
        let len = file.stat()?.len;
        let mut bytes = vec![0; len as usize];
        let count = read_full_at(&*file, &mut [IoSliceMut::new(&mut bytes)], 0, len)?;
        bytes.truncate(count);
        Ok(bytes)
    };
    load().map_err(StoreError::io(format!("{}: read", path_of(volume, name).display())))
}

/// Returns the header, if need be with one bit corrected; whether that was so.
fn header_of(bytes: &[u8], kind: FileKind) -> (Result<FileHeader, HeaderError>, bool) {
    let found = FileHeader::from_bytes(bytes, kind);
    let Some(mut copy) = bytes.first_chunk::<HEADER_LEN>().copied().filter(|_| found.is_err()) else {
        return (found, false);
    };
    let (content, crc) = copy.split_at_mut(HEADER_LEN - 4);
    let expected = u32::from_le_bytes([crc[0], crc[1], crc[2], crc[3]]);
    match (crc32c(content) ^ expected).count_ones() {
        // Sound, and written by a newer release.
        0 => return (found, false),
        1 => crc.copy_from_slice(&crc32c(content).to_le_bytes()),
        _ => match flipped_bit(content, expected) {
            Some((at, bit)) => content[at] ^= 1 << bit,
            None => return (Err(HeaderError::Damaged("wrong checksum of the header")), false),
        },
    }
    (FileHeader::from_bytes(&copy, kind), true)
}

struct Run<'a> {
    volume: &'a dyn Volume,
    origin: Origin,
    slots: Vec<SlotMap>,
    total: Change,
    last: u64,
    exact: bool,
    out: Salvage,
}

impl<'a> Run<'a> {
    fn new(volume: &'a dyn Volume, origin: Origin) -> Run<'a> {
        let slots = empty(origin.slots);
        Run { volume, origin, slots, total: Change::default(), last: 0, exact: true, out: Salvage::default() }
    }

    /// Uses what is sound in a file.
    fn take(&mut self, kind: FileKind, generation: u64) -> StoreResult<()> {
        let name = file_name(kind, generation);
        let bytes = read(self.volume, &name)?;
        let header = self.header(&bytes, kind, generation)?;
        let mut sieve = FileSifter::new(&bytes, kind, generation, self.origin.slots);
        if kind == FileKind::Log {
            (sieve.last, sieve.exact) = (self.last, self.exact);
        }
        let (found, last, exact) = sieve.sift();
        let path = path_of(self.volume, &name);
        self.out.damage.extend(found.gaps.iter().map(|gap| Damage {
            path: path.clone(),
            bytes: gap.at as u64..gap.end as u64,
            records: gap.records.clone(),
        }));
        self.out.corrected += found.entries.iter().filter(|entry| entry.corrected).count() as u64;
        match kind {
            FileKind::Log => {
                (self.last, self.exact) = (last, exact);
                self.out.lost_commits += found.lost;
                self.out.torn_bytes = found.torn as u64;
                self.out.commits += found.entries.len() as u64;
                self.put(&found);
            }
            FileKind::Snapshot => self.take_snapshot(&found, header, path, bytes.len() as u64),
        }
        Ok(())
    }

    /// Returns the header; `None` if it is lost, where the name has to do.
    fn header(&mut self, bytes: &[u8], kind: FileKind, generation: u64) -> StoreResult<Option<FileHeader>> {
        let path = path_of(self.volume, &file_name(kind, generation));
        let (header, corrected) = header_of(bytes, kind);
        self.out.corrected += u64::from(corrected);
        let header = match header {
            Ok(header) => header,
            Err(HeaderError::Newer(found)) => {
                return Err(StoreError::NewerFormat { path, found, supported: VERSION });
            }
            Err(HeaderError::Older(found)) => {
                return Err(StoreError::OlderFormat { path, found, oldest: OLDEST });
            }
            Err(HeaderError::Damaged(_)) => {
                let bytes = 0..HEADER_LEN.min(bytes.len()) as u64;
                self.out.damage.push(Damage { path, bytes, records: Vec::new() });
                return Ok(None);
            }
        };
        if header.origin.formation != self.origin.formation {
            let (found, expected) = (header.origin.formation, self.origin.formation);
            return Err(StoreError::WrongFormation { path, found, expected });
        }
        if header.origin != self.origin || header.generation != generation {
            let cause = "records of another node, or a file under another's name".to_owned();
            return Err(StoreError::Corrupt { path, offset: 0, cause });
        }
        Ok(Some(header))
    }

    fn take_snapshot(
        &mut self,
        found: &SiftedFile<'_>,
        header: Option<FileHeader>,
        path: PathBuf,
        file_len: u64,
    ) {
        let end = found.entries.last().and_then(|entry| match Ops(&entry.body).next() {
            Some(Ok(Op::End { records })) => Some(records),
            _ => None,
        });
        let whole = found.gaps.is_empty() && found.torn == 0 && end.is_some();
        // With older files still there, what is missing here may be in them; what is here is newer.
        if whole {
            (self.slots, self.total) = (empty(self.origin.slots), Change::default());
            (self.out.damage, self.out.lost_commits) = (Vec::new(), 0);
        }
        let puts = |entry: &super::sift::UsableEntry<'_>| {
            Ops(&entry.body).filter(|op| matches!(op, Ok(Op::Put { .. }))).count()
        };
        let had: usize = found.entries.iter().map(puts).sum();
        self.put(found);
        if found.torn > 0 || end.is_none() {
            let bytes = file_len - found.torn as u64..file_len;
            self.out.damage.push(Damage { path, bytes, records: Vec::new() });
        }
        self.out.lost_records = end.unwrap_or(0).saturating_sub(had as u64);
        match header {
            // The log of the same generation goes on right behind what the snapshot holds.
            Some(header) => (self.last, self.exact) = (header.base, true),
            None => self.exact = false,
        }
    }

    fn put(&mut self, found: &SiftedFile<'_>) {
        for entry in &found.entries {
            // They were looked at: each is whole.
            let applied = apply(&mut self.slots, &mut self.total, &entry.body);
            assert!(applied.is_ok(), "an entry that was found to be whole: {applied:?}");
        }
    }

    fn note_missing(&mut self, generation: u64) {
        let path = path_of(self.volume, &file_name(FileKind::Log, generation));
        self.out.damage.push(Damage { path, bytes: 0..0, records: Vec::new() });
        self.exact = false;
    }

    /// Keeps copies, then writes the records anew; the snapshot's name makes them count.
    fn finish(mut self, files: &[(FileKind, u64)], last: u64) -> StoreResult<Salvage> {
        for (kind, generation) in files {
            // Complete copies first. A repair that makes things worse can be undone by hand.
            let kept = self.keep(&file_name(*kind, *generation))?;
            self.out.kept.push(kept);
        }
        let generation = next_generation(self.volume, last)?;
        let header = FileHeader { kind: FileKind::Log, origin: self.origin, generation, base: 0 };
        let log = begin_file(self.volume, header)?;
        let snapshot = FileHeader { kind: FileKind::Snapshot, base: self.last, ..header };
        let mut writer = SnapshotWriter::begin(self.volume, snapshot)?;
        for (slot, map) in (0..).zip(std::mem::take(&mut self.slots)) {
            writer.copy_slot(slot, &Mutex::new(rank::LEAF, map))?;
        }
        writer.end()?;
        let (copied, records) = (writer.records(), self.total.records);
        assert!(i64::try_from(copied) == Ok(records), "snapshot has {copied} of {records} records");
        // The log first: the snapshot's name makes both count, and a snapshot without its log is damage.
        finish_file(self.volume, &*log, header)?;
        finish_file(self.volume, writer.file(), snapshot)?;
        Files::list(self.volume)?.remove_older_than(self.volume, generation)?;
        self.out.records = copied;
        Ok(self.out)
    }

    fn keep(&self, name: &str) -> StoreResult<PathBuf> {
        let bytes = read(self.volume, name)?;
        let base = name.rsplit('/').next().unwrap_or(name);
        let copy = format!("{DIR}/damaged-{base}");
        let write = || {
            let file = self.volume.open(&copy, OpenMode::Create)?;
            file.set_len(0)?;
            write_all_at(&*file, &[IoSlice::new(&bytes)], 0)?;
            file.sync()
        };
        let path = path_of(self.volume, &copy);
        write().map_err(StoreError::io(format!("{}: write", path.display())))?;
        Ok(path)
    }
}

fn empty(slots: u16) -> Vec<SlotMap> {
    (0..slots).map(|_| SlotMap::default()).collect()
}
