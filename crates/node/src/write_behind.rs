//! Write-behind: a node flushes what changed to site storage by itself, after the delay of the partition's write
//! policy.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bivouac_types::{Errno, FsError, FsResult, Ino, PartitionId, WritePolicy};
use bivouac_wire::{FlushHereRequest, FlushTrigger, op};

use crate::identity::SYSTEM;
use crate::node::Node;
use crate::peers::StepContext;
use crate::proxy_state::{DELETION_PAUSE_MIN, QueuedFlush, QueuedFlushEnd};

/// Files of a partition that are flushed at the same time where their room is needed, and over links, where each waits
/// for some round trips.
const ROOM_THREADS_MAX: usize = 4;
const LINK_THREADS_MAX: usize = 32;

/// Interval at which a flush under way is polled.
const LOOK: Duration = Duration::from_millis(10);

impl Node {
    /// Records that `bytes` were written to a file here, and schedules its flush where a policy of the partition asks
    /// for that.
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
                // The amount is a partition's, not a file's: all that waits in it becomes due at once.
                let of_partition = state.due.values_mut().filter(|due| due.partition == partition);
                of_partition.for_each(|due| due.at = Instant::now());
            }
            is_much
        };
        let at = if is_much { Instant::now() } else { at };
        self.flush_at(ino, QueuedFlush { at, occasion: FlushTrigger::Age, partition });
    }

    /// Returns the shortest delay of any write policy of a partition, in milliseconds, and this node's share of the
    /// bytes that may wait. `None` if no policy delays.
    pub(crate) fn delay_of(&self, partition: PartitionId) -> Option<(u64, u64)> {
        let known = self.partitions.get(partition)?;
        let targets = known.places(&self.map);
        let share = targets.iter().filter(|place| place.node == self.id).count().max(1) as u64;
        let rules = known.settings.rules.iter().filter_map(|rule| rule.write);
        let delayed = rules.chain([known.settings.write]).filter_map(|policy| match policy {
            WritePolicy::Delayed { age_ms, bytes } => Some((age_ms, bytes)),
            _ => None,
        });
        let shortest = delayed.reduce(|one, other| (one.0.min(other.0), one.1.min(other.1)));
        shortest.map(|(age_ms, bytes)| (age_ms, bytes / targets.len().max(1) as u64 * share))
    }

    // Sets a time for a file's flush, and starts a thread if more may work.
    pub(crate) fn flush_at(&self, ino: Ino, due: QueuedFlush) {
        let threads_max = match due.occasion {
            _ if self.changes_there(due.partition) => LINK_THREADS_MAX,
            FlushTrigger::Room => ROOM_THREADS_MAX,
            _ => 1,
        };
        let mut state = self.proxy.flusher.state.lock();
        let is_more = state.add(ino, due, threads_max);
        // All: each thread waits for the first of its own partition, and which one this concerns is not known.
        self.proxy.flusher.changed.notify_all();
        if !is_more {
            return;
        }
        let Some(node) = self.this.get().cloned() else { return state.end_thread(due.partition) };
        let flusher = Arc::clone(&self.proxy.flusher);
        let mut partition = due.partition;
        let work = move || {
            while let Some((ino, due)) = flusher.next(&mut partition) {
                let Some(node) = node.upgrade() else { return };
                // Recorded as failed by default, so that a panic does not leave the file as being flushed for good.
                let early = Err(FsError::with(Errno::EIO, "the flush ended early"));
                let mut end = QueuedFlushEnd { flusher: &flusher, ino, due, outcome: early };
                end.outcome = node.flush_at_home(ino, due.occasion);
                // The thread must not keep a node alive while it waits for the next file.
                drop(node);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("flusher".to_owned()).spawn(work) {
            log::error!(why:% = error; "inode {ino} waits to be flushed: no thread");
            state.end_thread(due.partition);
        }
    }

    // Asks the file's home to flush it, and polls until that is done.
    fn flush_at_home(&self, ino: Ino, occasion: FlushTrigger) -> FsResult<()> {
        let mut request = FlushHereRequest { ino, occasion, job: 0 };
        loop {
            let (home, steps) = (self.home_of(ino)?, StepContext::question(SYSTEM));
            let state = match self.step::<op::FlushHere>(home, steps, 0, request.clone()) {
                // Removed meanwhile.
                Err(error) if error.errno() == Errno::ENOENT => return Ok(()),
                state => state?,
            };
            if state.done {
                return Ok(());
            }
            // A later request must not begin another flush.
            request.job = state.job;
            bivouac_net::pause(LOOK);
        }
    }

    /// Schedules that a deletion in a partition is repeated at the source, where a write policy asks for that.
    pub(crate) fn mirror_later(&self, partition: PartitionId) {
        let Some(known) = self.partitions.get(partition) else { return };
        let rules = known.settings.rules.iter().filter_map(|rule| rule.write);
        let wait = |policy| match policy {
            WritePolicy::OnFlush | WritePolicy::Never => None,
            WritePolicy::Delayed { age_ms, .. } => Some(Duration::from_millis(age_ms)),
            // The client does so itself at once; this is for clients that do not get to it.
            WritePolicy::Through | WritePolicy::OnClose => Some(DELETION_PAUSE_MIN),
        };
        let Some(wait) = rules.chain([known.settings.write]).filter_map(wait).min() else { return };
        self.proxy.mirror.call_at(Instant::now() + wait);
    }
}
