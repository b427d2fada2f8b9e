//! Flushes that this node makes by itself: of files that have waited for long enough, and of those whose space is
//! needed. Threads live only while there is something to do or to wait for.

use std::ops::ControlFlow;
use std::time::Instant;

use bivouac_types::PartitionId;
use bivouac_wire::FlushTrigger;

use super::marks::read_marks;
use crate::namespace::decode;
use crate::node::Node;
use crate::proxy_state::{Part, QueuedFlush};
use crate::record::{SiteFile, ino_of_site_key, marks_of_key, table};

/// Files that are flushed for room at once.
const FOR_ROOM: usize = 8;

impl Node {
    /// Begins to flush what is dirty on a volume, so that its space can be evicted. Returns true if that may help.
    pub(crate) fn flush_for_room(&self, volume: u16) -> bool {
        let mut parts = self.unflushed_parts(volume);
        parts.sort_by_key(|part| self.proxy.uses.last_of(*part));
        parts.dedup_by_key(|part| part.ino);
        let now = Instant::now();
        {
            let mut state = self.proxy.flusher.state.lock();
            state.failed.retain(|_, until| *until > now);
            parts.retain(|part| !state.failed.contains_key(&part.ino));
            // What that makes clean may be enough.
            if parts.iter().any(|part| state.under_way.contains_key(&part.ino)) {
                return true;
            }
        }
        for part in parts.iter().take(FOR_ROOM) {
            let (occasion, partition) = (FlushTrigger::Room, part.target.partition());
            self.flush_at(part.ino, QueuedFlush { at: now, occasion, partition });
        }
        !parts.is_empty()
    }

    fn unflushed_parts(&self, volume: u16) -> Vec<Part> {
        let mut parts = Vec::new();
        for slot in self.own_slots() {
            self.records.scan(slot, &table(b'Q'), &table(b'Q'), |key, value| {
                if let Some((ino, target, _)) = marks_of_key(key)
                    && read_marks(Some(value), ino).is_ok_and(|marks| marks.unsaved() > 0)
                {
                    parts.push(Part { ino, target });
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

    /// Returns true if a subfile has data on a volume. Marks alone may be of a write that did not fit.
    fn occupies(&self, part: Part, volume: u16) -> bool {
        let Ok(id) = self.subfile(part.ino, part.target) else { return false };
        let stat = || self.data.stat(id).ok().flatten();
        id.volume == volume && stat().is_some_and(|stat| stat.allocated > stat.front)
    }

    /// Queues flushes that an earlier daemon left.
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
                if let Some((ino, target, _)) = marks_of_key(key)
                    && read_marks(Some(value), ino).is_ok_and(|marks| marks.unsaved() > 0)
                {
                    found.push((ino, Some(target.partition())));
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
