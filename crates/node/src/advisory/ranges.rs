//! The locks of one file: for each owner ranges that do not overlap. Pure; what is to change is planned first,
//! so that it can be logged before it is done.

use std::collections::BTreeMap;

use bivouac_types::{ClientId, NodeId};
use bivouac_wire::{FileLock, LockKind, LockMode, codec_struct};

/// Owner of locks. Locks of one owner do not conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    pub kind: LockKind,
    pub client: ClientId,
    pub id: u64,
}

/// A locked range, without its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Last byte.
    pub end: u64,
    /// True for an exclusive lock.
    pub write: bool,
    /// The open file through which it was locked last.
    pub handle: u64,
    /// The process that did.
    pub pid: u32,
    /// The node whose process serves the client.
    pub node: Option<NodeId>,
}
codec_struct!(Span { end, write, handle, pid, node });

/// A change of one owner's locks: ranges by their first bytes. Those that go, go first.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Delta {
    pub removed: Vec<u64>,
    pub added: Vec<(u64, Span)>,
}

impl Delta {
    /// Returns true if nothing changes.
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.added.is_empty()
    }

    /// Returns by how many the number of ranges grows.
    pub fn growth(&self) -> isize {
        self.added.len() as isize - self.removed.len() as isize
    }
}

/// The locks of one file.
#[derive(Debug, Default)]
pub struct Ranges {
    owners: BTreeMap<Owner, BTreeMap<u64, Span>>,
    count: usize,
}

impl Owner {
    pub fn of(client: ClientId, lock: &FileLock) -> Owner {
        Owner { kind: lock.kind, client, id: lock.owner }
    }
}

impl Ranges {
    /// Returns the number of locked ranges.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns true if the owner holds any lock.
    pub fn holds(&self, owner: Owner) -> bool {
        self.owners.contains_key(&owner)
    }

    /// Returns all locked ranges with their first bytes.
    pub fn iter(&self) -> impl Iterator<Item = (Owner, u64, Span)> + '_ {
        self.owners
            .iter()
            .flat_map(|(owner, spans)| spans.iter().map(|(start, span)| (*owner, *start, *span)))
    }

    /// Returns what conflicts with a lock of this owner: of each other owner the lowest range.
    pub fn conflicts<'a>(
        &'a self,
        owner: Owner,
        lock: &'a FileLock,
    ) -> impl Iterator<Item = (Owner, u64, Span)> + 'a {
        let others =
            self.owners.iter().filter(move |(other, _)| **other != owner && other.kind == owner.kind);
        others.filter_map(|(other, spans)| {
            let mut conflicts = overlapping(spans, lock.start, lock.end);
            conflicts
                .find(|(_, span)| span.write || lock.mode == LockMode::Write)
                .map(|(start, span)| (*other, start, span))
        })
    }

    /// Returns true if the owner holds the whole range in this mode.
    pub fn covers(&self, owner: Owner, lock: &FileLock) -> bool {
        let Some(spans) = self.owners.get(&owner) else { return false };
        let mut next = lock.start;
        for (start, span) in overlapping(spans, lock.start, lock.end) {
            if start > next || span.write != (lock.mode == LockMode::Write) {
                return false;
            }
            next = span.end.saturating_add(1);
        }
        next > lock.end
    }

    /// Returns what locking the range changes, regardless of other owners. Adjacent ranges of one mode and handle are
    /// merged.
    pub fn plan_lock(&self, owner: Owner, lock: &FileLock, node: Option<NodeId>) -> Delta {
        let write = lock.mode == LockMode::Write;
        let mut whole = Span { end: lock.end, write, handle: lock.handle, pid: lock.pid, node };
        let (mut start, mut delta) = (lock.start, Delta::default());
        let Some(spans) = self.owners.get(&owner) else {
            delta.added.push((start, whole));
            return delta;
        };
        // With what is next to it: ranges of one mode and handle become one.
        let (low, high) = (lock.start.saturating_sub(1), lock.end.saturating_add(1));
        for (at, span) in overlapping(spans, low, high) {
            if (span.write, span.handle) == (write, lock.handle) {
                (start, whole.end) = (start.min(at), whole.end.max(span.end));
                delta.removed.push(at);
            // Those that only touch it stay as they are.
            } else if at <= lock.end && span.end >= lock.start {
                cut_out(&mut delta, (at, span), lock);
            }
        }
        // It is locked so already: there is nothing to write.
        if delta.removed == [start] && spans.get(&start) == Some(&whole) {
            return Delta::default();
        }
        delta.added.push((start, whole));
        delta
    }

    /// Returns what unlocking the range changes; with `of_handle`, only what was locked through the lock's handle.
    pub fn plan_unlock(&self, owner: Owner, lock: &FileLock, of_handle: bool) -> Delta {
        let mut delta = Delta::default();
        for (at, span) in
            self.owners.get(&owner).into_iter().flat_map(|spans| overlapping(spans, lock.start, lock.end))
        {
            if !of_handle || span.handle == lock.handle {
                cut_out(&mut delta, (at, span), lock);
            }
        }
        delta
    }

    /// Returns what the removal of all locks of an owner changes.
    pub fn plan_removal(&self, owner: Owner) -> Delta {
        let removed = self.owners.get(&owner).map(|spans| spans.keys().copied().collect());
        Delta { removed: removed.unwrap_or_default(), added: Vec::new() }
    }

    /// Returns the owners of a client.
    pub fn owners_of(&self, client: ClientId) -> Vec<Owner> {
        self.owners.keys().filter(|owner| owner.client == client).copied().collect()
    }

    /// Does what was planned.
    pub fn apply(&mut self, owner: Owner, delta: &Delta) {
        let spans = self.owners.entry(owner).or_default();
        for start in &delta.removed {
            // What was planned was logged: after a restart the range would be locked by nobody here.
            assert!(
                spans.remove(start).is_some(),
                "{owner:?} unlocks a range at {start} that it has not locked"
            );
            self.count -= 1;
        }
        for (start, span) in &delta.added {
            self.count += usize::from(spans.insert(*start, *span).is_none());
        }
        if spans.is_empty() {
            self.owners.remove(&owner);
        }
    }
}

/// Removes a range, and adds what is left of it outside of `lock`.
fn cut_out(delta: &mut Delta, (at, span): (u64, Span), lock: &FileLock) {
    delta.removed.push(at);
    if at < lock.start {
        delta.added.push((at, Span { end: lock.start - 1, ..span }));
    }
    if span.end > lock.end {
        delta.added.push((lock.end + 1, span));
    }
}

/// Returns the ranges that have a byte in common with `low..=high`, in their order.
fn overlapping(spans: &BTreeMap<u64, Span>, low: u64, high: u64) -> impl Iterator<Item = (u64, Span)> + '_ {
    // Ranges do not overlap, so only the last one that begins before `low` can reach into it.
    let before = spans.range(..low).next_back().filter(|(_, span)| span.end >= low);
    let first = before.map_or(low, |(start, _)| *start);
    spans.range(first..=high).map(|(start, span)| (*start, *span))
}

#[cfg(test)]
mod tests;
