//! Replaces logs by a snapshot while commits go on. The steps, and why a snapshot of changing records is sufficient,
//! are in docs/format.md.

use std::io::IoSlice;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bivouac_ranks::Mutex;

use super::Records;
use super::format::{CHUNK_LEN, FileHeader, FileKind, HEAD_LEN, HEADER_LEN, Head, Op};
use super::log::{
    begin_file, file_name, finish_file, next_generation, path_of, remove_file, unfinished_name,
};
use super::map::SlotMap;
use super::recover::Files;
use crate::crc::crc32c;
use crate::volume::transfer::write_all_at;
use crate::{StoreError, StoreResult, Volume, VolumeFile};

/// Most records copied while a slot is locked.
const CHUNK_RECORDS: usize = 256;

/// Outcome of [`Records::compact`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compaction {
    /// A snapshot replaced the logs.
    Done {
        /// Records in it.
        records: u64,
    },
    /// Another thread compacts.
    Busy,
}

impl Records {
    /// Returns true if the logs have grown enough for [`Records::compact`].
    #[must_use]
    pub fn wants_compaction(&self) -> bool {
        let log_bytes = self.totals.log_bytes.load(Ordering::Relaxed);
        let live = self.totals.bytes.load(Ordering::Relaxed);
        let share = live.saturating_mul(self.options.compact_percent) / 100;
        let retry_above = self.retry_above.load(Ordering::Relaxed);
        // In proportion to the live records: the cost of a snapshot is spread over as many bytes of commits.
        log_bytes > share.max(self.options.compact_log_bytes_min).max(retry_above)
    }

    /// Writes a snapshot and removes the logs that it replaces. Commits go on meanwhile; each slot is locked for some
    /// hundred records at a time. Call it from a thread that has the time.
    ///
    /// # Errors
    /// The system's. Nothing is lost then: the logs stay, and [`Records::wants_compaction`] waits until they
    /// have grown by a quarter.
    pub fn compact(&self) -> StoreResult<Compaction> {
        let Some(_alone) = self.compacting.try_lock() else { return Ok(Compaction::Busy) };
        let result = self.compact_alone();
        let log_bytes = self.totals.log_bytes.load(Ordering::Relaxed);
        let retry_above = if result.is_ok() { 0 } else { log_bytes.saturating_add(log_bytes / 4) };
        self.retry_above.store(retry_above, Ordering::Relaxed);
        result.map(|records| Compaction::Done { records })
    }

    pub(super) fn compact_alone(&self) -> StoreResult<u64> {
        let (header, replaced_bytes) = self.rotate()?;
        // Commits go to the new log from here on, so a failed snapshot costs nothing but the space of two logs.
        let written = self.write_snapshot(header);
        if written.is_err() {
            // If removal fails, the file is removed at the next start, or overwritten by the next attempt.
            let _ = remove_file(&*self.volume, &unfinished_name(FileKind::Snapshot));
        }
        let (records, snapshot_bytes) = written?;
        // Before the old logs are removed: if that fails, what they could not sync is durable all the same.
        self.logs_are_replaced(header.generation);
        self.totals.snapshot_bytes.store(snapshot_bytes, Ordering::Relaxed);
        let log_bytes = self.totals.log_bytes.fetch_sub(replaced_bytes, Ordering::Relaxed);
        assert!(
            log_bytes >= replaced_bytes,
            "logs of {log_bytes} bytes, of which {replaced_bytes} are replaced"
        );
        let newest = self.log.lock().generation;
        assert!(newest >= header.generation, "log {newest} is in use, and would be removed");
        // Last: until the snapshot has its name, recovery reads the logs that it replaces.
        Files::list(&*self.volume)?.remove_older_than(&*self.volume, header.generation)?;
        if let Some(room) = self.room.get() {
            room.set(self.stats().disk_bytes);
        }
        Ok(records)
    }

    /// Directs commits to a new log. Returns the header of the snapshot for the older ones, and the bytes of logs that
    /// it replaces.
    fn rotate(&self) -> StoreResult<(FileHeader, u64)> {
        // Syncs most of the log now, so that the sync under the lock has little left to do. A failure is noted; this
        // log is about to be replaced by the content of memory.
        let _ = self.sync_newest_log();
        let generation = next_generation(&*self.volume, self.log.lock().generation)?;
        let origin = self.origin;
        let header = FileHeader { kind: FileKind::Log, origin, generation, base: 0 };
        let file = begin_file(&*self.volume, header)?;
        finish_file(&*self.volume, &*file, header)?;
        self.syncing.alone(|| self.direct_to(file, header))
    }

    /// Directs commits to a new log, after the one before it ends with a whole entry.
    fn direct_to(&self, file: Arc<dyn VolumeFile>, header: FileHeader) -> StoreResult<(FileHeader, u64)> {
        let mut log = self.log.lock();
        assert!(header.generation > log.generation, "log {} after log {}", header.generation, log.generation);
        // A torn entry is accepted at the end of the newest log only, which this one is about to cease to be.
        log.clean().map_err(|error| self.log_error("cut", error))?;
        let _ = self.note_sync(log.generation, log.file.sync());
        let replaced_bytes = self.totals.log_bytes.fetch_add(HEADER_LEN as u64, Ordering::Relaxed);
        let base = log.sequence;
        *log = super::Tail::of_new(file, header.generation, base);
        Ok((FileHeader { kind: FileKind::Snapshot, base, ..header }, replaced_bytes))
    }

    /// Writes the snapshot and gives it its name; returns its number of records and its length.
    fn write_snapshot(&self, header: FileHeader) -> StoreResult<(u64, u64)> {
        let mut snapshot = SnapshotWriter::begin(&*self.volume, header)?;
        for (slot, map) in (0..self.origin.slots).zip(&self.slots) {
            snapshot.copy_slot(slot, map)?;
        }
        snapshot.end()?;
        self.check_count(&header, snapshot.records);
        // No commit in the snapshot may be missing from the log when a host fails.
        self.sync_newest_log()?;
        finish_file(&*self.volume, &*snapshot.file, header)?;
        Ok((snapshot.records, snapshot.at))
    }
}

impl Records {
    /// Compares the number of records in a snapshot, before it gets its name, with that in memory. They are comparable
    /// only if no commit came in between. The number in memory is read before the sequence: a commit is in the log
    /// before it is counted, so the sequence includes everything in the number.
    fn check_count(&self, header: &FileHeader, copied: u64) {
        let records = self.totals.records.load(Ordering::Relaxed);
        let is_unchanged = self.log.lock().sequence == header.base;
        assert!(!is_unchanged || copied == records, "snapshot has {copied} of {records} records");
    }
}

pub(super) struct SnapshotWriter {
    file: Arc<dyn VolumeFile>,
    name: String,
    generation: u64,
    at: u64,
    sequence: u64,
    records: u64,
    /// The entry under construction: space for its head, then operations.
    entry: Vec<u8>,
}

impl SnapshotWriter {
    pub(super) fn begin(volume: &dyn Volume, header: FileHeader) -> StoreResult<SnapshotWriter> {
        let file = begin_file(volume, header)?;
        let name = file_name(FileKind::Snapshot, header.generation);
        Ok(SnapshotWriter {
            file,
            name: path_of(volume, &name).display().to_string(),
            generation: header.generation,
            at: HEADER_LEN as u64,
            sequence: 0,
            records: 0,
            entry: vec![0; HEAD_LEN],
        })
    }

    pub(super) fn file(&self) -> &dyn VolumeFile {
        &*self.file
    }

    /// Returns its number of records so far.
    pub(super) fn records(&self) -> u64 {
        self.records
    }

    pub(super) fn copy_slot(&mut self, slot: u16, map: &Mutex<SlotMap>) -> StoreResult<()> {
        let mut behind: Option<Vec<u8>> = None;
        loop {
            // By key and not by position: records added or removed between two chunks do not shift others.
            let bound = behind.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let last = self.copy_chunk(slot, &map.lock(), bound);
            // Written without the lock: commits to this slot wait for the copy of some records, not for the volume.
            if self.entry.len() >= CHUNK_LEN {
                self.write_entry()?;
            }
            match last {
                Some(key) => {
                    assert!(behind.as_ref() < Some(&key), "records of slot {slot} are copied twice");
                    behind = Some(key);
                }
                None => return Ok(()),
            }
        }
    }

    /// Copies some records; returns the key to continue after, if there may be more.
    fn copy_chunk(&mut self, slot: u16, map: &SlotMap, from: Bound<&[u8]>) -> Option<Vec<u8>> {
        for (count, (key, value)) in map.range(from).enumerate() {
            Op::Put { slot, key, value }.encode(&mut self.entry);
            self.records += 1;
            if count + 1 >= CHUNK_RECORDS || self.entry.len() >= CHUNK_LEN {
                return Some(key.to_vec());
            }
        }
        None
    }

    pub(super) fn end(&mut self) -> StoreResult<()> {
        self.write_entry()?;
        // Without it, a snapshot that was cut off between two entries would look whole.
        Op::End { records: self.records }.encode(&mut self.entry);
        self.write_entry()
    }

    fn write_entry(&mut self) -> StoreResult<()> {
        let body = self.entry.get(HEAD_LEN..).unwrap_or_default();
        if body.is_empty() {
            return Ok(());
        }
        self.sequence += 1;
        let head = Head { len: body.len() as u32, body_crc: crc32c(body), sequence: self.sequence };
        self.entry[..HEAD_LEN].copy_from_slice(&head.to_bytes(self.generation));
        write_all_at(&*self.file, &[IoSlice::new(&self.entry)], self.at)
            .map_err(StoreError::io(format!("{}: write", self.name)))?;
        self.at += self.entry.len() as u64;
        self.entry.truncate(HEAD_LEN);
        Ok(())
    }
}
