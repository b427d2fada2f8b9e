//! The queue of files that a node has flushed by itself, after a time or for their space.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bivouac_ranks::{Condvar, Mutex};
use bivouac_types::{FsResult, Ino, PartitionId};
use bivouac_wire::FlushTrigger;

/// Pause before what could not be flushed is tried again; its home waits longer each time.
const AGAIN: Duration = Duration::from_secs(1);

/// Files to be flushed, and when.
#[derive(Default)]
pub struct FlushQueue {
    pub state: Mutex<FlushQueueState>,
    pub changed: Condvar,
}

/// Contents of the queue.
#[derive(Default)]
pub struct FlushQueueState {
    pub due: HashMap<Ino, QueuedFlush>,
    pub under_way: HashMap<Ino, FlushTrigger>,
    /// Could not be flushed for room a moment ago.
    pub failed: HashMap<Ino, Instant>,
    /// Bytes written since the partition was last flushed because of its amount.
    pub waiting: HashMap<PartitionId, u64>,
    pub threads: usize,
}

/// A file in the queue.
#[derive(Clone, Copy)]
pub struct QueuedFlush {
    pub at: Instant,
    pub occasion: FlushTrigger,
    pub partition: PartitionId,
}

impl FlushQueue {
    /// Returns the next that is due; nothing when there is nothing left to wait for.
    pub fn next(&self) -> Option<(Ino, QueuedFlush)> {
        let mut state = self.state.lock();
        loop {
            let first = state.due.iter().min_by_key(|(_, due)| due.at).map(|(ino, due)| (*ino, *due));
            let Some((ino, due)) = first else {
                assert!(state.threads > 0, "a thread ends that was counted");
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

    pub fn end(&self, ino: Ino, due: QueuedFlush, outcome: &FsResult<()>) {
        let mut state = self.state.lock();
        state.under_way.remove(&ino);
        let Err(error) = outcome else { return };
        log::warn!(why:% = error; "inode {ino} is not flushed");
        let again = Instant::now() + AGAIN;
        match due.occasion {
            FlushTrigger::Room => drop(state.failed.insert(ino, again)),
            _ => drop(state.due.insert(ino, QueuedFlush { at: again, ..due })),
        }
    }
}

/// A flush is over when this goes, also by a panic: then its thread ends, too.
pub struct QueuedFlushEnd<'a> {
    pub flusher: &'a FlushQueue,
    pub ino: Ino,
    pub due: QueuedFlush,
    pub outcome: FsResult<()>,
}

impl Drop for QueuedFlushEnd<'_> {
    fn drop(&mut self) {
        self.flusher.end(self.ino, self.due, &self.outcome);
        if std::thread::panicking() {
            self.flusher.state.lock().threads -= 1;
        }
    }
}
