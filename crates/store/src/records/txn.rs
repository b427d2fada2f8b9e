//! Changes of several records at once: all or nothing.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow, Range};
use std::sync::atomic::Ordering;

use bivouac_ranks::MutexGuard;
use bivouac_types::Slot;

use super::Records;
use super::format::{BODY_LEN_MAX, HEAD_LEN, KEY_LEN_MAX, Op, VALUE_LEN_MAX};
use super::map::{Change, SlotMap, footprint};
use super::memory::Level;
use crate::crc::crc32c;
use crate::{StoreError, StoreResult};

/// Largest buffer that a thread keeps for its next transaction, in bytes.
const KEPT_LEN_MAX: usize = 1 << 16;

/// Changes to records of locked slots: this transaction sees them at once, everybody after
/// [`Txn::commit`]. Dropped without it, nothing has happened.
pub struct Txn<'a> {
    records: &'a Records,
    guards: Vec<(Slot, MutexGuard<'a, SlotMap>)>,
    draft: EntryDraft,
    refusal: Cell<Option<CommitRefusal>>,
    must_fit: bool,
    /// Part of the memory that the commit may use; `None` for a commit that memory never refuses.
    level: Option<Level>,
}

/// Reason why a commit will be refused.
#[derive(Clone, Copy)]
enum CommitRefusal {
    BadSlot(Slot),
    TooLarge { what: &'static str, len: usize, max: usize },
}

/// The log entry under construction, with the positions of its operations.
#[derive(Default)]
struct EntryDraft {
    bytes: Vec<u8>,
    ops: Vec<PendingOp>,
}

/// A put (with value) or delete, as ranges of the draft.
struct PendingOp {
    guard: usize,
    key: Range<usize>,
    value: Option<Range<usize>>,
}

thread_local! {
    static DRAFT: Cell<EntryDraft> = Cell::default();
}

impl<'a> Txn<'a> {
    pub(super) fn begin(records: &'a Records, slots: &[Slot]) -> Txn<'a> {
        let mut order: Vec<Slot> = slots.to_vec();
        // Ascending, so that two transactions with slots in common never wait for each other.
        order.sort_unstable();
        order.dedup();
        let map = |slot: Slot| records.slots.get(usize::from(slot.0)).map(|map| (slot, map.lock()));
        let mut draft = DRAFT.take();
        draft.bytes.clear();
        draft.bytes.resize(HEAD_LEN, 0);
        draft.ops.clear();
        Txn {
            records,
            guards: order.into_iter().filter_map(map).collect(),
            draft,
            refusal: Cell::new(None),
            must_fit: false,
            level: None,
        }
    }

    /// Returns the value of a record, with this transaction's own changes. For a slot that is not locked, returns
    /// `None`, and the commit will fail.
    #[must_use]
    pub fn get(&self, slot: Slot, key: &[u8]) -> Option<&[u8]> {
        let guard = self.guard(slot)?;
        let bytes = &self.draft.bytes;
        let is_it = |op: &&PendingOp| op.guard == guard && bytes.get(op.key.clone()) == Some(key);
        // The newest change of the key decides. Transactions have few operations, so a linear search is faster than a
        // map.
        match self.draft.ops.iter().rev().find(is_it) {
            Some(op) => op.value.clone().and_then(|value| bytes.get(value)),
            None => self.guards.get(guard).and_then(|(_, map)| map.get(key)),
        }
    }

    /// Sets a record. If that is impossible (slot not locked, too long), the commit will fail.
    pub fn put(&mut self, slot: Slot, key: &[u8], value: &[u8]) {
        let Some(guard) = self.admit(slot, key, value.len()) else { return };
        Op::Put { slot: slot.0, key, value }.encode(&mut self.draft.bytes);
        let end = self.draft.bytes.len();
        let value = end - value.len()..end;
        let key = value.start - key.len()..value.start;
        self.draft.ops.push(PendingOp { guard, key, value: Some(value) });
    }

    /// Removes a record, if it exists. Fails as [`Txn::put`] does.
    pub fn delete(&mut self, slot: Slot, key: &[u8]) {
        let Some(guard) = self.admit(slot, key, 0) else { return };
        Op::Delete { slot: slot.0, key }.encode(&mut self.draft.bytes);
        let end = self.draft.bytes.len();
        self.draft.ops.push(PendingOp { guard, key: end - key.len()..end, value: None });
    }

    /// Like [`Records::scan`], including this transaction's own changes.
    pub fn scan(
        &self,
        slot: Slot,
        from: &[u8],
        prefix: &[u8],
        look: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) {
        let Some(guard) = self.guard(slot) else { return };
        let Some((_, map)) = self.guards.get(guard) else { return };
        let own = self.own_changes(guard);
        if own.is_empty() {
            scan_map(map, from, prefix, look)
        } else {
            scan_merged(map, &own, from, prefix, look)
        }
    }

    /// Makes the commit fail if the volume's capacity does not suffice, or memory is full. Without this, a commit may
    /// also use the space that is reserved for commits which free some.
    pub fn must_fit(&mut self) {
        self.must_fit = true;
        self.level = Some(Level::Making);
    }

    /// Makes the commit fail if it makes the records larger and memory is full. It may use a little more memory than
    /// with [`Txn::must_fit`]: moves, which need a little more or less, still succeed when nothing can be created any
    /// more.
    pub fn bound_growth(&mut self) {
        self.level = Some(Level::Moving);
    }

    /// Returns true if nothing would be changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.draft.ops.is_empty()
    }

    /// Makes the changes: first in the log, by one write, then in memory.
    ///
    /// # Errors
    /// Nothing has changed: `BadSlot`, `TooLarge`, `NoSpace`; `Io` if the log could not be written (`ENOSPC`, `EIO`).
    pub fn commit(mut self) -> StoreResult<()> {
        if let Some(refusal) = self.refusal.get() {
            return Err(refusal.into());
        }
        if self.draft.ops.is_empty() {
            return Ok(());
        }
        // Nothing may fail between log and memory, so the conditions of `apply` are checked before the log is written.
        let locked = self.guards.len();
        assert!(self.draft.ops.iter().all(|op| op.guard < locked), "a change of a slot that is not locked");
        let reserved = self.take_memory()?;
        if let Err(error) = self.append() {
            self.records.memory.change(0, reserved);
            return Err(error);
        }
        self.apply(reserved);
        Ok(())
    }

    /// Reserves memory for the commit, if it is bounded; returns how many bytes.
    fn take_memory(&self) -> StoreResult<u64> {
        let Some(level) = self.level else { return Ok(0) };
        let puts = self.draft.ops.iter().filter_map(|op| Some(op.key.len() + op.value.as_ref()?.len()));
        let most = puts.map(|len| footprint(len as u64)).sum();
        // The upper bound first: the exact one takes a lookup of each record that is replaced.
        if self.records.memory.reserve(most, level).is_ok() {
            return Ok(most);
        }
        // Refused as if nothing were replaced: the exact growth may fit.
        let growth = self.growth();
        self.records.memory.reserve(growth, level).map(|()| growth)
    }

    /// Returns by how many bytes of memory the records grow; 0 if they shrink.
    fn growth(&self) -> u64 {
        let cost = |key: &[u8], value: &[u8]| footprint((key.len() + value.len()) as u64) as i64;
        let slots = self.guards.iter().enumerate();
        let growth = slots.flat_map(|(guard, (_, map))| {
            let ops = self.own_changes(guard).into_iter();
            ops.map(move |(key, value)| {
                let before = map.get(key).map_or(0, |before| cost(key, before));
                value.map_or(0, |value| cost(key, value)) - before
            })
        });
        u64::try_from(growth.sum::<i64>()).unwrap_or(0)
    }

    fn append(&mut self) -> StoreResult<()> {
        // Before the log is locked: all commits of the node wait for that lock.
        let body_crc = crc32c(self.draft.bytes.get(HEAD_LEN..).unwrap_or_default());
        let len = self.draft.bytes.len() as u64;
        let room = self.records.room.get();
        // Taken before the log is locked: a commit that does not fit makes no other wait.
        room.map_or(Ok(()), |room| room.take(len, self.must_fit))?;
        let mut log = self.records.log.lock();
        if let Err(error) = log.append(&mut self.draft.bytes, body_crc) {
            if let Some(room) = room {
                room.give_back(len);
            }
            return Err(self.records.log_error("append to", error));
        }
        self.records.totals.log_bytes.fetch_add(len, Ordering::Relaxed);
        Ok(())
    }

    /// Changes the records in memory, for which `reserved` bytes were reserved.
    fn apply(&mut self, reserved: u64) {
        let mut total = Change::default();
        let EntryDraft { bytes, ops } = &self.draft;
        let part = |range: &Range<usize>| bytes.get(range.clone()).unwrap_or_default();
        for op in ops {
            let Some((_, map)) = self.guards.get_mut(op.guard) else { continue };
            total += match &op.value {
                Some(value) => map.put(part(&op.key), part(value)),
                None => map.delete(part(&op.key)),
            };
        }
        self.records.totals.change(total);
        self.records.memory.change(total.memory, reserved);
        let is_bounded = self.level.is_some();
        assert!(!is_bounded || total.memory <= reserved as i64, "took {} of {reserved} bytes", total.memory);
    }

    fn guard(&self, slot: Slot) -> Option<usize> {
        let found = self.guards.iter().position(|(locked, _)| *locked == slot);
        if found.is_none() {
            // Kept until the commit: reads return no error, and a change based on a read that saw nothing would be
            // wrong.
            self.refusal.set(Some(CommitRefusal::BadSlot(slot)));
        }
        found
    }

    fn admit(&self, slot: Slot, key: &[u8], value_len: usize) -> Option<usize> {
        let guard = self.guard(slot)?;
        let refuse = |what, len, max| {
            self.refusal.set(Some(CommitRefusal::TooLarge { what, len, max }));
            None
        };
        if key.len() > KEY_LEN_MAX {
            return refuse("key of a record", key.len(), KEY_LEN_MAX);
        }
        if value_len > VALUE_LEN_MAX {
            return refuse("value of a record", value_len, VALUE_LEN_MAX);
        }
        // 16 bytes are more than the fixed fields of an operation.
        match self.draft.bytes.len() + key.len() + value_len + 16 {
            len if len <= BODY_LEN_MAX => Some(guard),
            len => refuse("commit", len, BODY_LEN_MAX),
        }
    }

    /// Returns the last change to each key of a slot.
    fn own_changes(&self, guard: usize) -> Overlay<'_> {
        let bytes = |range: &Range<usize>| self.draft.bytes.get(range.clone()).unwrap_or_default();
        let ops = self.draft.ops.iter().filter(|op| op.guard == guard);
        ops.map(|op| (bytes(&op.key), op.value.as_ref().map(bytes))).collect()
    }
}

impl Drop for Txn<'_> {
    fn drop(&mut self) {
        // Transactions are small and frequent: this saves two allocations for each.
        let draft = std::mem::take(&mut self.draft);
        if draft.bytes.capacity() <= KEPT_LEN_MAX {
            DRAFT.set(draft);
        }
    }
}

impl From<CommitRefusal> for StoreError {
    fn from(refusal: CommitRefusal) -> StoreError {
        match refusal {
            CommitRefusal::BadSlot(slot) => {
                StoreError::BadSlot { slot: slot.0, expected: "one of those that the transaction locked" }
            }
            CommitRefusal::TooLarge { what, len, max } => {
                StoreError::TooLarge { what, len: len as u64, max: max as u64 }
            }
        }
    }
}

/// Changes by key; `None` is a delete.
type Overlay<'a> = BTreeMap<&'a [u8], Option<&'a [u8]>>;

pub(super) fn scan_map(
    map: &SlotMap,
    from: &[u8],
    prefix: &[u8],
    mut look: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
) {
    // From here on, the keys with the prefix come first, without gaps.
    let start = from.max(prefix);
    for (key, value) in map.range(Bound::Included(start)) {
        if !key.starts_with(prefix) || look(key, value).is_break() {
            return;
        }
    }
}

fn scan_merged(
    map: &SlotMap,
    own: &Overlay<'_>,
    from: &[u8],
    prefix: &[u8],
    mut look: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
) {
    let start = from.max(prefix);
    let mut committed = map.range(Bound::Included(start)).peekable();
    let mut changes = own.range::<[u8], _>((Bound::Included(start), Bound::Unbounded)).peekable();
    loop {
        let next_change = changes.peek().map(|(key, _)| **key);
        let from_map = match (committed.peek(), next_change) {
            (None, None) => return,
            (Some((key, _)), change) => change.is_none_or(|change| *key < change),
            (None, Some(_)) => false,
        };
        let next = if from_map {
            committed.next().map(|(key, value)| (key, Some(value)))
        } else {
            // This transaction's change hides the committed record.
            committed.next_if(|(key, _)| Some(*key) == next_change);
            changes.next().map(|(key, value)| (*key, *value))
        };
        let Some((key, value)) = next else { return };
        if !key.starts_with(prefix) {
            return;
        }
        if value.is_some_and(|value| look(key, value).is_break()) {
            return;
        }
    }
}
