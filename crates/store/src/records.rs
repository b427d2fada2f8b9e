//! Ordered records in memory, one map per slot, with a checksummed log on a volume.
//!
//! What a commit acknowledged survives a kill of the process: it is in the log, by one write, before
//! memory changes. [`Records::compact`] replaces old logs by a snapshot while requests go on.
//! Formats, and why recovery gives exactly what was acknowledged, are in docs/format.md.

mod compact;
mod correct;
mod format;
mod log;
mod map;
mod memory;
mod reader;
mod recover;
mod salvage;
mod sift;
mod sync;
#[cfg(test)]
mod tests;
mod txn;

use std::fmt;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bivouac_ranks::{Mutex, rank};
use bivouac_types::limits::{SLOTS_DEFAULT, SLOTS_MAX};
use bivouac_types::{FormationId, NodeId, Slot};

pub use compact::Compaction;
pub use salvage::{Damage, Salvage};
pub use sift::LostRecord;
pub use txn::Txn;

use self::format::Origin;
use self::log::Tail;
use self::map::{Change, SlotMap};
use self::memory::MemoryUse;
use crate::group_sync::GroupSync;
use crate::{Headroom, RecordsRoom, StoreError, StoreResult, Volume};

/// Settings of [`Records`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordsOptions {
    /// Number of slots: a power of two, at most 4096. The same for the whole life of the records.
    pub slots: u16,
    /// Compaction is wanted when the logs have more bytes than this …
    pub compact_log_bytes_min: u64,
    /// … and more than this many per cent of the bytes of all records.
    pub compact_percent: u64,
}

impl Default for RecordsOptions {
    fn default() -> RecordsOptions {
        RecordsOptions { slots: SLOTS_DEFAULT, compact_log_bytes_min: 8 << 20, compact_percent: 100 }
    }
}

/// Report of opening the records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Records in memory now.
    pub records: u64,
    /// Records that came from the snapshot.
    pub snapshot_records: u64,
    /// Commits that came from logs.
    pub commits: u64,
    /// Logs that were read.
    pub logs: u64,
    /// Bytes of an unfinished last commit that were cut off.
    pub torn_bytes: u64,
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Recovery { records, snapshot_records, commits, logs, torn_bytes } = self;
        write!(
            f,
            "{records}, of which {snapshot_records} from a snapshot; {commits} commits from {logs} logs"
        )?;
        if *torn_bytes > 0 {
            write!(f, "; {torn_bytes} bytes of a last commit that was not finished were cut off")?;
        }
        Ok(())
    }
}

/// Counts for status and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordsStats {
    /// Records.
    pub records: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// Bytes of memory that they take.
    pub memory: u64,
    /// Limit of that; `u64::MAX` for none.
    pub memory_max: u64,
    /// Bytes of the logs that the next snapshot replaces.
    pub log_bytes: u64,
    /// Bytes on the volume: logs and snapshot.
    pub disk_bytes: u64,
    /// Commits since the records were first made.
    pub commits: u64,
}

/// The records of one node.
///
/// Locks are taken in this order: slots ascending, then the log.
pub struct Records {
    volume: Arc<dyn Volume>,
    origin: Origin,
    options: RecordsOptions,
    slots: Box<[Mutex<SlotMap>]>,
    log: Mutex<Tail>,
    totals: Totals,
    /// Held by the thread that compacts. Its value is when a compaction for a failed sync last failed.
    compacting: Mutex<Option<Instant>>,
    /// Order of the threads that sync the log.
    syncing: GroupSync,
    /// Generation of the newest log whose sync failed and that no snapshot has replaced; 0 if there is none.
    unsynced_log: AtomicU64,
    /// Account of their bytes on the volume.
    room: OnceLock<RecordsRoom>,
    /// Account of their memory.
    memory: MemoryUse,
    /// After a failed compaction, the size of logs in bytes at which the next is attempted.
    retry_above: AtomicU64,
}

#[derive(Default)]
struct Totals {
    records: AtomicU64,
    bytes: AtomicU64,
    log_bytes: AtomicU64,
    snapshot_bytes: AtomicU64,
}

impl Totals {
    fn change(&self, change: Change) {
        // Two's complement: adding a negative number wraps to a subtraction.
        let records = self.records.fetch_add(change.records as u64, Ordering::Relaxed);
        let bytes = self.bytes.fetch_add(change.bytes as u64, Ordering::Relaxed);
        // Each commit is counted while its slots are locked, so no record is taken away before it was added.
        assert!(records.checked_add_signed(change.records).is_some(), "fewer records than none");
        assert!(bytes.checked_add_signed(change.bytes).is_some(), "records of fewer bytes than none");
    }
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Records").field("volume", &self.volume).field("stats", &self.stats()).finish()
    }
}

impl Records {
    /// Opens the records on a volume, in its directory `records`, or makes them.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] with file and offset for bytes that were never written so, and for another number of
    /// slots than before; `WrongFormation`, `NewerFormat`; `TooLarge` for a bad number of slots; `Io`.
    pub fn open(
        volume: Arc<dyn Volume>,
        formation: FormationId,
        node: NodeId,
        options: RecordsOptions,
    ) -> StoreResult<(Records, Recovery)> {
        let slots = options.slots;
        if !slots.is_power_of_two() || slots > SLOTS_MAX {
            let (what, max) = ("number of slots (a power of two)", u64::from(SLOTS_MAX));
            return Err(StoreError::TooLarge { what, len: u64::from(slots), max });
        }
        let origin = Origin { formation, node, slots };
        let recovered = recover::recover(&volume, origin)?;
        let totals = Totals::default();
        totals.change(recovered.total);
        totals.log_bytes.store(recovered.log_bytes, Ordering::Relaxed);
        totals.snapshot_bytes.store(recovered.snapshot_bytes, Ordering::Relaxed);
        let memory = MemoryUse::default();
        // Not reserved: acknowledged records are read back even if they exceed the present limit.
        memory.change(recovered.total.memory, 0);
        let records = Records {
            volume,
            origin,
            options,
            slots: (0..)
                .zip(recovered.slots)
                .map(|(slot, map)| Mutex::numbered(rank::SLOT, slot, map))
                .collect(),
            log: Mutex::new(rank::RECORDS_LOG, recovered.tail),
            totals,
            compacting: Mutex::new(rank::COMPACTION, None),
            syncing: GroupSync::new(rank::RECORDS_SYNC),
            unsynced_log: AtomicU64::new(0),
            retry_above: AtomicU64::new(0),
            room: OnceLock::new(),
            memory,
        };
        Ok((records, recovered.report))
    }

    /// Counts the bytes of logs and snapshot against the capacity of their volume from now on.
    pub fn count_in(&self, room: RecordsRoom) {
        room.begin(self.stats().disk_bytes);
        // Only the first call counts, since there is one volume.
        let _ = self.room.set(room);
    }

    /// Refuses what adds records beyond `max` bytes of memory, or beyond the headroom in `left`. Existing records stay,
    /// and removals are always permitted.
    pub fn bound_memory(&self, max: u64, left: Option<Arc<dyn Headroom>>) {
        self.memory.bound(max, left);
    }

    /// Returns true if memory has no space for one more record with the longest attributes.
    #[must_use]
    pub fn is_memory_full(&self) -> bool {
        self.memory.is_full()
    }

    /// Returns true if so much was removed since the last call that the memory is worth giving back to the system.
    #[must_use]
    pub fn has_shrunk(&self) -> bool {
        self.memory.has_shrunk()
    }

    /// Restarts that count, as memory is being given back.
    pub fn note_given_back(&self) {
        self.memory.note_given_back();
    }

    /// Returns node and number of slots of the records on a volume; `None` if there are none.
    ///
    /// # Errors
    /// `Corrupt`, `NewerFormat` for a file that is none of ours; `Io`.
    pub fn stored(volume: &dyn Volume) -> StoreResult<Option<(NodeId, u16)>> {
        Ok(recover::origin(volume)?.map(|origin| (origin.node, origin.slots)))
    }

    /// Locks slots for a change, waiting for other transactions on them. Slots may be in any order and
    /// repeat. A thread that has a transaction must not begin another, nor call [`Records::read`] or
    /// [`Records::scan`] on its slots.
    #[must_use]
    pub fn txn(&self, slots: &[Slot]) -> Txn<'_> {
        Txn::begin(self, slots)
    }

    /// Shows one record's value to `look`, with its slot locked.
    pub fn read<R>(&self, slot: Slot, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> R {
        match self.slots.get(usize::from(slot.0)) {
            Some(map) => look(map.lock().get(key)),
            None => look(None),
        }
    }

    /// Shows the records of a slot whose keys begin with `prefix`, from the key `from` (inclusive) on, in
    /// order of keys, until `look` breaks; with the slot locked.
    pub fn scan(
        &self,
        slot: Slot,
        from: &[u8],
        prefix: &[u8],
        look: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) {
        if let Some(map) = self.slots.get(usize::from(slot.0)) {
            txn::scan_map(&map.lock(), from, prefix, look);
        }
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn slots(&self) -> u16 {
        self.origin.slots
    }

    /// Returns the counts. Each is exact by itself; together they are only approximate while commits go on.
    #[must_use]
    pub fn stats(&self) -> RecordsStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let log_bytes = load(&self.totals.log_bytes);
        RecordsStats {
            records: load(&self.totals.records),
            bytes: load(&self.totals.bytes),
            memory: self.memory.taken(),
            memory_max: self.memory.max(),
            log_bytes,
            disk_bytes: log_bytes + load(&self.totals.snapshot_bytes),
            commits: self.log.lock().sequence,
        }
    }

    /// Returns true if all slots and the log can be locked, each within `patience`; for detecting a standstill.
    #[must_use]
    pub fn can_be_taken(&self, patience: Duration) -> bool {
        let slots = self.slots.iter().all(|slot| slot.try_lock_for(patience).is_some());
        slots && self.log.try_lock_for(patience).is_some()
    }

    fn log_error(&self, what: &str, source: std::io::Error) -> StoreError {
        let what = format!("{}: {what} record log", log::path_of(&*self.volume, log::DIR).display());
        StoreError::Io { what, source }
    }
}
