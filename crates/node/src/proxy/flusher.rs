//! What this node has flushed by itself: files that have waited for long enough, and those whose room is needed. Threads
//! live only while there is something to do or to wait for.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bivouac_ranks::{Condvar, Mutex};
use bivouac_types::{Errno, FsError, FsResult, Ino, PartitionId, WritePolicy};
use bivouac_wire::{FlushHereRequest, Occasion, op};

use super::marks::{Part, read_marks};
use crate::dispatch::SYSTEM;
use crate::namespace::decode;
use crate::node::Node;
use crate::peers::Steps;
use crate::record::{SiteFile, ino_of_site_key, marks_of_key, table};

/// Files that are flushed at the same time.
const THREADS_MAX: usize = 4;
/// Files that are flushed for room at once.
const FOR_ROOM: usize = 8;
/// Pause before it is looked again how far a flush is.
const LOOK: Duration = Duration::from_millis(10);
/// Pause before what could not be flushed is tried again; its home waits longer each time.
const AGAIN: Duration = Duration::from_secs(1);

/// Files to be flushed, and when.
#[derive(Default)]
pub struct Flusher {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    due: HashMap<Ino, Due>,
    under_way: HashMap<Ino, Occasion>,
    /// Could not be flushed for room a moment ago.
    failed: HashMap<Ino, Instant>,
    /// Bytes written since the partition was last flushed because of its amount.
    waiting: HashMap<PartitionId, u64>,
    threads: usize,
}

#[derive(Clone, Copy)]
struct Due {
    at: Instant,
    occasion: Occasion,
    partition: PartitionId,
}

impl Flusher {
    /// The next that is due; nothing when there is nothing left to wait for.
    fn next(&self) -> Option<(Ino, Due)> {
        let mut state = self.state.lock();
        loop {
            let first = state.due.iter().min_by_key(|(_, due)| due.at).map(|(ino, due)| (*ino, *due));
            let Some((ino, due)) = first else {
                state.threads -= 1;
                return None;
            };
            if due.at <= Instant::now() {
                state.due.remove(&ino);
                state.under_way.insert(ino, due.occasion);
                return Some((ino, due));
            }
            self.changed.wait_until(&mut state, due.at);
        }
    }

    fn end(&self, ino: Ino, due: Due, outcome: &FsResult<()>) {
        let mut state = self.state.lock();
        state.under_way.remove(&ino);
        let Err(error) = outcome else { return };
        log::warn!(why:% = error; "inode {ino} is not flushed");
        let again = Instant::now() + AGAIN;
        match due.occasion {
            Occasion::Room => drop(state.failed.insert(ino, again)),
            _ => drop(state.due.insert(ino, Due { at: again, ..due })),
        }
    }
}

/// A flush is over when this goes, also by a panic: then its thread ends, too.
struct End<'a> {
    flusher: &'a Flusher,
    ino: Ino,
    due: Due,
    outcome: FsResult<()>,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.flusher.end(self.ino, self.due, &self.outcome);
        if std::thread::panicking() {
            self.flusher.state.lock().threads -= 1;
        }
    }
}

impl Node {
    /// Something was written to a file of a partition that stands in front of site storage: `bytes` on this node.
    pub(crate) fn note_written(&self, ino: Ino, partition: PartitionId, bytes: u64) {
        let Some((age_ms, amount)) = self.delay_of(partition) else { return };
        let at = Instant::now() + Duration::from_millis(age_ms);
        let is_much = {
            let mut state = self.proxy.flusher.state.lock();
            let waiting = state.waiting.entry(partition).or_default();
            *waiting += bytes;
            let is_much = *waiting > amount;
            if is_much {
                *waiting = 0;
                let of_partition = state.due.values_mut().filter(|due| due.partition == partition);
                of_partition.for_each(|due| due.at = Instant::now());
            }
            is_much
        };
        let at = if is_much { Instant::now() } else { at };
        self.flush_at(ino, Due { at, occasion: Occasion::Age, partition });
    }

    /// The shortest time that anything written in a partition may wait, and how many bytes of it on this node.
    fn delay_of(&self, partition: PartitionId) -> Option<(u64, u64)> {
        let known = self.partitions.get(partition)?;
        let seats = known.places(&self.map);
        let share = seats.iter().filter(|place| place.node == self.id).count().max(1) as u64;
        let rules = known.settings.rules.iter().filter_map(|rule| rule.write);
        let delayed = rules.chain([known.settings.write]).filter_map(|policy| match policy {
            WritePolicy::Delayed { age_ms, bytes } => Some((age_ms, bytes)),
            _ => None,
        });
        let shortest = delayed.reduce(|one, other| (one.0.min(other.0), one.1.min(other.1)));
        shortest.map(|(age_ms, bytes)| (age_ms, bytes / seats.len().max(1) as u64 * share))
    }

    fn flush_at(&self, ino: Ino, due: Due) {
        let mut state = self.proxy.flusher.state.lock();
        let known = state.due.entry(ino).or_insert(due);
        if due.at < known.at {
            *known = due;
        }
        self.proxy.flusher.changed.notify_all();
        let is_idle = state.threads == 0 || due.occasion == Occasion::Room;
        if !is_idle || state.threads >= THREADS_MAX {
            return;
        }
        let Some(node) = self.proxy.node.get().cloned() else { return };
        let flusher = Arc::clone(&self.proxy.flusher);
        let work = move || {
            while let Some((ino, due)) = flusher.next() {
                let Some(node) = node.upgrade() else { return };
                let early = Err(FsError::with(Errno::EIO, "the flush ended early"));
                let mut end = End { flusher: &flusher, ino, due, outcome: early };
                end.outcome = node.have_flushed(ino, due.occasion);
                drop(node);
            }
        };
        match std::thread::Builder::new().name("flusher".to_owned()).spawn(work) {
            Ok(_) => state.threads += 1,
            Err(error) => log::error!(why:% = error; "inode {ino} waits to be flushed: no thread"),
        }
    }

    fn have_flushed(&self, ino: Ino, occasion: Occasion) -> FsResult<()> {
        let mut request = FlushHereRequest { ino, occasion, job: 0 };
        loop {
            let (home, steps) = (self.home_of(ino)?, Steps::question(SYSTEM));
            let state = match self.step::<op::FlushHere>(home, steps, 0, request.clone()) {
                // Removed meanwhile.
                Err(error) if error.errno() == Errno::ENOENT => return Ok(()),
                state => state?,
            };
            if state.done {
                return Ok(());
            }
            request.job = state.job;
            bivouac_net::pause(LOOK);
        }
    }

    /// What was written and not flushed on a volume is about to be, so that its room can be had: whether that may help.
    pub(crate) fn flush_for_room(&self, volume: u16) -> bool {
        let mut parts = self.unflushed_parts(volume);
        parts.sort_by_key(|part| self.proxy.uses.last_of(*part));
        parts.dedup_by_key(|part| part.ino);
        let now = Instant::now();
        {
            let mut state = self.proxy.flusher.state.lock();
            state.failed.retain(|_, until| *until > now);
            parts.retain(|part| !state.failed.contains_key(&part.ino));
            if parts.iter().any(|part| state.under_way.contains_key(&part.ino)) {
                return true;
            }
        }
        for part in parts.iter().take(FOR_ROOM) {
            let (occasion, partition) = (Occasion::Room, part.seat.partition());
            self.flush_at(part.ino, Due { at: now, occasion, partition });
        }
        !parts.is_empty()
    }

    fn unflushed_parts(&self, volume: u16) -> Vec<Part> {
        let mut parts = Vec::new();
        for slot in self.own_slots() {
            self.records.scan(slot, &table(b'Q'), &table(b'Q'), |key, value| {
                if let Some((ino, seat, _)) = marks_of_key(key)
                    && read_marks(Some(value), ino).is_ok_and(|marks| marks.unsaved() > 0)
                {
                    parts.push(Part { ino, seat });
                }
                ControlFlow::Continue(())
            });
        }
        // What is pinned makes no room by being flushed.
        parts.retain(|part| {
            self.occupies(*part, volume) && self.is_part_pinned(*part).is_ok_and(|pinned| !pinned)
        });
        parts
    }

    /// Whether a subfile has data on a volume. Marks alone may be those of a write that does not fit.
    fn occupies(&self, part: Part, volume: u16) -> bool {
        let Ok(id) = self.subfile(part.ino, part.seat) else { return false };
        let stat = || self.data.stat(id).ok().flatten();
        id.volume == volume && stat().is_some_and(|stat| stat.allocated > stat.front)
    }

    /// What an earlier daemon left to be flushed by itself.
    pub(crate) fn resume_flushes(&self) {
        let delayed: Vec<PartitionId> = (self.partitions.all().iter().map(|partition| partition.id))
            .filter(|id| self.delay_of(*id).is_some())
            .collect();
        if delayed.is_empty() {
            return;
        }
        let mut found = Vec::new();
        for slot in self.own_slots() {
            self.records.scan(slot, &table(b'Q'), &table(b'Q'), |key, value| {
                if let Some((ino, seat, _)) = marks_of_key(key)
                    && read_marks(Some(value), ino).is_ok_and(|marks| marks.unsaved() > 0)
                {
                    found.push((ino, Some(seat.partition())));
                }
                ControlFlow::Continue(())
            });
            self.records.scan(slot, &table(b'H'), &table(b'H'), |key, value| {
                let file = ino_of_site_key(key)
                    .and_then(|ino| Some((ino, decode::<SiteFile>(value, "site storage", ino).ok()?)));
                found.extend(file.filter(|(_, file)| file.is_unsaved()).map(|(ino, _)| (ino, None)));
                ControlFlow::Continue(())
            });
        }
        for (ino, partition) in found {
            let partition =
                partition.or_else(|| self.inode(ino).ok().map(|inode| inode.attr.layout.partition()));
            if let Some(partition) = partition.filter(|partition| delayed.contains(partition)) {
                self.note_written(ino, partition, 0);
            }
        }
    }
}
