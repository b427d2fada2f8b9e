//! Ordered records in memory, one map per slot, with a checksummed log on a volume.
//!
//! What a commit acknowledged survives a kill of the process: it is in the log, by one write, before
//! memory changes. [`Records::compact`] replaces old logs by a snapshot while requests go on.

use std::ops::ControlFlow;
use std::sync::Arc;

use bivouac_types::{FormationId, NodeId, Slot};

use crate::{StoreResult, Volume};

/// Settings of [`Records`].
#[derive(Clone, Debug)]
pub struct RecordsOptions {
    /// Number of slots: a power of two, at most 4096.
    pub slots: u16,
    /// Compaction is wanted when the logs have more bytes than this …
    pub compact_log_bytes_min: u64,
    /// … and more than this many per cent of the bytes of all live records.
    pub compact_percent: u64,
}

/// What was found when the records were opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Records in memory now.
    pub records: u64,
    /// Records that came from the snapshot.
    pub snapshot_records: u64,
    /// Commits replayed from logs.
    pub commits: u64,
    /// Log files read.
    pub logs: u64,
    /// Bytes of a torn last commit that were cut off.
    pub torn_bytes: u64,
}

/// Counts for status and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordsStats {
    /// Records.
    pub records: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// Bytes of the logs that the next snapshot will replace.
    pub log_bytes: u64,
    /// Bytes on the volume: logs and snapshot.
    pub disk_bytes: u64,
    /// Commits since the records were first made.
    pub sequence: u64,
}

/// Outcome of [`Records::compact`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compaction {
    /// A snapshot with this many records replaced the logs.
    Done {
        /// Records in it.
        records: u64,
    },
    /// Another thread is at it.
    Busy,
}

/// The records of one node.
#[derive(Debug)]
pub struct Records {}

/// Changes to records of locked slots: seen by itself at once, by others after [`Txn::commit`].
/// Dropped without commit, nothing has happened.
pub struct Txn<'a> { records: &'a Records }

impl Records {
    /// Opens the records in directory `records` of a volume, or makes them.
    ///
    /// # Errors
    /// [`crate::StoreError::Corrupt`] names file and offset of what cannot be read;
    /// `WrongFormation`, `WrongNode`, `NewerFormat`; `Io`.
    pub fn open(volume: Arc<dyn Volume>, formation: FormationId, node: NodeId, options: RecordsOptions) -> StoreResult<(Records, Recovery)>;

    /// Locks slots for a change. Waits for other transactions on the same slots; a thread must not begin a
    /// second one while it has one. Slots may repeat and be in any order.
    pub fn txn(&self, slots: &[Slot]) -> Txn<'_>;

    /// Shows one record's value to `look`, with its slot locked: be brief.
    pub fn read<R>(&self, slot: Slot, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> R;

    /// Shows the records of a slot whose keys begin with `prefix`, from `from` (inclusive) on, in order of
    /// keys, with the slot locked.
    pub fn scan(&self, slot: Slot, from: &[u8], prefix: &[u8], look: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>);

    pub fn wants_compaction(&self) -> bool;
    pub fn compact(&self) -> StoreResult<Compaction>;
    pub fn sync(&self) -> StoreResult<()>;
    pub fn stats(&self) -> RecordsStats;
}

impl Txn<'_> {
    pub fn get(&self, slot: Slot, key: &[u8]) -> Option<&[u8]>;
    pub fn put(&mut self, slot: Slot, key: &[u8], value: &[u8]);
    pub fn delete(&mut self, slot: Slot, key: &[u8]);
    pub fn scan(&self, slot: Slot, from: &[u8], prefix: &[u8], look: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>);
    /// all errors (slot not locked, too large, ENOSPC, EIO) come here; memory unchanged then
    pub fn commit(self) -> StoreResult<()>;
}
