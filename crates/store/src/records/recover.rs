//! Recovery of the records in memory from the files on a volume.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bivouac_types::Errno;

use super::Recovery;
use super::format::{FileHeader, FileKind, Op, Ops, Origin};
use super::log::{
    DIR, Tail, begin_file, file_name, finish_file, parse_name, path_of, remove_file, unfinished_name,
};
use super::map::{Change, SlotMap};
use super::reader::{self, EntryReader, NextEntry};
use crate::{OpenMode, StoreError, StoreResult, Volume, VolumeFile};

/// Records and log as found on a volume.
pub(super) struct Recovered {
    pub(super) slots: Vec<SlotMap>,
    pub(super) tail: Tail,
    pub(super) total: Change,
    pub(super) log_bytes: u64,
    pub(super) snapshot_bytes: u64,
    pub(super) report: Recovery,
}

/// Reads everything, and prepares the volume for the next commit.
pub(super) fn recover(volume: &Arc<dyn Volume>, origin: Origin) -> StoreResult<Recovered> {
    let files = Files::find(&**volume)?;
    let mut recovery = Run::new(volume, origin);
    let first = match files.snapshots.last() {
        Some(generation) => recovery.read_snapshot(*generation)?,
        None => 1,
    };
    let tail = recovery.read_logs(&files, first)?;
    // Only now that all newer files were read: with a damaged snapshot, salvage needs the older ones.
    files.remove_older_than(&**volume, first)?;
    let mut report = recovery.report;
    assert!(recovery.total.records >= 0, "{} records were read", recovery.total.records);
    report.records = u64::try_from(recovery.total.records).unwrap_or(0);
    let Run { slots, total, log_bytes, snapshot_bytes, .. } = recovery;
    Ok(Recovered { slots, tail, total, log_bytes, snapshot_bytes, report })
}

/// Generations of the complete files.
#[derive(Default)]
pub(super) struct Files {
    pub(super) logs: BTreeSet<u64>,
    pub(super) snapshots: BTreeSet<u64>,
}

impl Files {
    /// Lists the files, makes the directory if there is none, and removes unfinished files.
    fn find(volume: &dyn Volume) -> StoreResult<Files> {
        match volume.make_dir(DIR) {
            Err(error) if error.raw_os_error() != Some(Errno::EEXIST.code()) => {
                return Err(StoreError::io(format!("{}: make", path_of(volume, DIR).display()))(error));
            }
            _ => {}
        }
        for kind in [FileKind::Log, FileKind::Snapshot] {
            // A file without its final name is not needed; a new one would otherwise be written over its remains.
            remove_file(volume, &unfinished_name(kind))?;
        }
        Files::list(volume)
    }

    pub(super) fn list(volume: &dyn Volume) -> StoreResult<Files> {
        let what = || format!("{}: list", path_of(volume, DIR).display());
        let mut files = Files::default();
        for entry in volume.list(DIR).map_err(|error| StoreError::io(what())(error))? {
            match parse_name(&entry.name) {
                Some((FileKind::Log, generation)) => files.logs.insert(generation),
                Some((FileKind::Snapshot, generation)) => files.snapshots.insert(generation),
                None => false,
            };
        }
        Ok(files)
    }

    pub(super) fn remove_older_than(&self, volume: &dyn Volume, generation: u64) -> StoreResult<()> {
        for (kind, found) in [(FileKind::Snapshot, &self.snapshots), (FileKind::Log, &self.logs)] {
            found.range(..generation).try_for_each(|old| remove_file(volume, &file_name(kind, *old)))?;
        }
        Ok(())
    }
}

/// Returns node, formation and slots of the records on a volume; `None` if there are none.
pub(super) fn origin(volume: &dyn Volume) -> StoreResult<Option<Origin>> {
    if !volume.list("").is_ok_and(|entries| entries.iter().any(|entry| entry.is_dir && entry.name == DIR)) {
        return Ok(None);
    }
    let files = Files::list(volume)?;
    let newest = |kind, found: &BTreeSet<u64>| found.last().map(|generation| (kind, *generation));
    let named = newest(FileKind::Snapshot, &files.snapshots).or(newest(FileKind::Log, &files.logs));
    let Some((kind, generation)) = named else { return Ok(None) };
    let name = file_name(kind, generation);
    let path = path_of(volume, &name);
    let file = volume.open(&name, OpenMode::Existing).map_err(|error| cannot_open(&path, error))?;
    reader::origin(&*file, &path, kind).map(Some)
}

struct Run<'a> {
    volume: &'a Arc<dyn Volume>,
    origin: Origin,
    slots: Vec<SlotMap>,
    sequence: u64,
    total: Change,
    log_bytes: u64,
    snapshot_bytes: u64,
    report: Recovery,
    torn: Option<Torn>,
}

/// An unfinished entry: it is cut off if it is the last of all logs, and damage otherwise.
struct Torn {
    file: Arc<dyn VolumeFile>,
    path: PathBuf,
    offset: u64,
}

impl<'a> Run<'a> {
    fn new(volume: &'a Arc<dyn Volume>, origin: Origin) -> Run<'a> {
        let slots = (0..origin.slots).map(|_| SlotMap::default()).collect();
        let (total, report) = (Change::default(), Recovery::default());
        Run { volume, origin, slots, sequence: 0, total, log_bytes: 0, snapshot_bytes: 0, report, torn: None }
    }

    fn open(&self, kind: FileKind, generation: u64) -> StoreResult<EntryReader> {
        let name = file_name(kind, generation);
        let path = path_of(&**self.volume, &name);
        let file = self.volume.open(&name, OpenMode::Existing).map_err(|error| cannot_open(&path, error))?;
        let reader = EntryReader::open(file, &path, kind, self.origin)?;
        match reader.header().generation {
            found if found == generation => Ok(reader),
            found => Err(reader.damaged_at(0, format!("file says that it is of generation {found}"))),
        }
    }

    fn read_snapshot(&mut self, generation: u64) -> StoreResult<u64> {
        let mut reader = self.open(FileKind::Snapshot, generation)?;
        self.sequence = reader.header().base;
        self.snapshot_bytes = reader.file_len();
        let expected = self.read_until_end(&mut reader)?;
        if reader.offset() != reader.file_len() || i64::try_from(expected) != Ok(self.total.records) {
            let cause = format!("snapshot of {expected} records has {}", self.total.records);
            return Err(reader.damaged_at(reader.offset(), cause));
        }
        self.report.snapshot_records = expected;
        Ok(generation)
    }

    fn read_until_end(&mut self, reader: &mut EntryReader) -> StoreResult<u64> {
        loop {
            let at = reader.offset();
            let body = match reader.next()? {
                NextEntry::Entry(body) => body,
                NextEntry::End | NextEntry::Torn => return Err(reader.damaged_at(at, "snapshot has no end")),
            };
            match apply(&mut self.slots, &mut self.total, body) {
                Ok(None) => {}
                Ok(Some(records)) => return Ok(records),
                Err(cause) => return Err(reader.damaged_at(at, cause)),
            }
        }
    }

    fn read_logs(&mut self, files: &Files, first: u64) -> StoreResult<Tail> {
        if files.logs.is_empty() && files.snapshots.is_empty() {
            return self.make_first_log();
        }
        let last = files.logs.last().copied().unwrap_or(0);
        let mut tail = self.read_log(first)?;
        // Each of them must exist: a gap between two logs is a loss of acknowledged commits.
        for generation in first.saturating_add(1)..=last {
            tail = self.read_log(generation)?;
        }
        if let Some(torn) = self.torn.take() {
            let what = format!("{}: cut off an unfinished commit", torn.path.display());
            // Cut off now: the next commit is appended here, and readers stop at the first incomplete entry.
            torn.file.set_len(torn.offset).map_err(StoreError::io(what))?;
        }
        Ok(tail)
    }

    fn make_first_log(&mut self) -> StoreResult<Tail> {
        let header = FileHeader { kind: FileKind::Log, origin: self.origin, generation: 1, base: 0 };
        let file = begin_file(&**self.volume, header)?;
        finish_file(&**self.volume, &*file, header)?;
        let tail = Tail::of_new(file, 1, 0);
        self.log_bytes = tail.end;
        Ok(tail)
    }

    fn read_log(&mut self, generation: u64) -> StoreResult<Tail> {
        let mut reader = self.open(FileKind::Log, generation)?;
        // Sequences continue across logs, so a log of another history does not fit even if its header does.
        reader.continue_after(self.sequence);
        self.read_entries(&mut reader)?;
        self.report.logs += 1;
        self.sequence = reader.sequence();
        self.log_bytes += reader.offset();
        let (end, sequence) = (reader.offset(), self.sequence);
        Ok(Tail { file: reader.file().clone(), generation, end, sequence, unclean: false })
    }

    fn read_entries(&mut self, reader: &mut EntryReader) -> StoreResult<()> {
        loop {
            let at = reader.offset();
            let body = match reader.next()? {
                NextEntry::Entry(body) => body,
                NextEntry::End => return Ok(()),
                NextEntry::Torn => return self.note_torn(reader),
            };
            // An unfinished commit can only be the last one: with another behind it, an acknowledged commit was lost.
            self.torn.take().map_or(Ok(()), |torn| Err(torn.damage()))?;
            match apply(&mut self.slots, &mut self.total, body) {
                Ok(None) => self.report.commits += 1,
                Ok(Some(_)) => return Err(reader.damaged_at(at, "end of a snapshot in a log")),
                Err(cause) => return Err(reader.damaged_at(at, cause)),
            }
        }
    }

    fn note_torn(&mut self, reader: &EntryReader) -> StoreResult<()> {
        self.torn.take().map_or(Ok(()), |earlier| Err(earlier.damage()))?;
        let (path, offset) = (reader.path().to_owned(), reader.offset());
        let bytes = reader.file_len() - offset;
        log::warn!("{}: {bytes} bytes of an unfinished commit at byte {offset} are dropped", path.display());
        self.report.torn_bytes += bytes;
        self.torn = Some(Torn { file: reader.file().clone(), path, offset });
        Ok(())
    }
}

impl Torn {
    fn damage(self) -> StoreError {
        let cause = "unfinished entry, but a later log goes on".to_owned();
        StoreError::Corrupt { path: self.path, offset: self.offset, cause }
    }
}

/// Applies an entry; returns the number of records if it is the end of a snapshot.
pub(super) fn apply(
    slots: &mut [SlotMap],
    total: &mut Change,
    body: &[u8],
) -> Result<Option<u64>, &'static str> {
    const NO_SLOT: &str = "entry names a slot that there is not";
    for op in Ops(body) {
        *total += match op? {
            Op::Put { slot, key, value } => slots.get_mut(usize::from(slot)).ok_or(NO_SLOT)?.put(key, value),
            Op::Delete { slot, key } => slots.get_mut(usize::from(slot)).ok_or(NO_SLOT)?.delete(key),
            Op::End { records } => return Ok(Some(records)),
        };
    }
    Ok(None)
}

fn cannot_open(path: &Path, error: io::Error) -> StoreError {
    if error.raw_os_error() != Some(Errno::ENOENT.code()) {
        return StoreError::io(format!("{}: open", path.display()))(error);
    }
    let cause = "this file is missing, and with it commits that are in no other".to_owned();
    StoreError::Corrupt { path: path.to_owned(), offset: 0, cause }
}
