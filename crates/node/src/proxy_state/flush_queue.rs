//! The queue of files that a node has flushed by itself, after a time or for their space.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bivouac_ranks::{Condvar, Mutex};
use bivouac_types::{Errno, FsResult, Ino, PartitionId};
use bivouac_wire::FlushTrigger;

/// Threads of all partitions together: above the first number each partition has one at most, above the second those
/// that there are serve the others as well.
const SHARED_MAX: usize = 64;
const THREADS_MAX: usize = 128;

/// Pause before what could not be flushed is tried again; its home waits longer each time.
const AGAIN: Duration = Duration::from_secs(1);
/// The same of one that a source gets only under another name, which may be days away.
const AGAIN_TEMPORARY: Duration = Duration::from_secs(10);

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
    /// Files that are being flushed, with the number of threads that are at each.
    pub under_way: HashMap<Ino, usize>,
    /// Could not be flushed for room a moment ago.
    pub failed: HashMap<Ino, Instant>,
    /// Bytes written since the partition was last flushed because of its amount.
    pub waiting: HashMap<PartitionId, u64>,
    /// Threads by the partition that each serves, so that slow storage of one holds up no other.
    threads: HashMap<PartitionId, usize>,
}

impl FlushQueueState {
    /// Puts a file into the queue. Returns whether its partition is to get one more thread, of at most so many, which
    /// is counted.
    pub fn add(&mut self, ino: Ino, due: QueuedFlush, threads_max: usize) -> bool {
        let known = self.due.entry(ino).or_insert(due);
        if due.at < known.at {
            *known = due;
        }
        let all: usize = self.threads.values().sum();
        assert!(all <= THREADS_MAX, "{all} threads flush files");
        let own = self.threads.entry(due.partition).or_default();
        let is_more = *own < threads_max && all < if *own == 0 { THREADS_MAX } else { SHARED_MAX };
        *own += usize::from(is_more);
        // A partition without a thread must not be in the table: others serve it then.
        if *own == 0 {
            self.threads.remove(&due.partition);
        }
        is_more
    }

    /// A thread of a partition ends.
    pub fn end_thread(&mut self, partition: PartitionId) {
        let count = self.threads.get_mut(&partition);
        let left = count.map(|count| {
            assert!(*count > 0, "a thread of {partition} ends that was not counted");
            *count -= 1;
            *count
        });
        assert!(left.is_some(), "a thread of {partition} ends that was not counted");
        if left == Some(0) {
            self.threads.remove(&partition);
        }
    }

    /// The file that a thread of a partition flushes next: the first of that partition, or of those that have no
    /// thread.
    fn first(&self, partition: PartitionId) -> Option<(Ino, QueuedFlush)> {
        let is_served =
            |due: &QueuedFlush| due.partition == partition || !self.threads.contains_key(&due.partition);
        let own = self.due.iter().filter(|(_, due)| is_served(due));
        own.min_by_key(|(_, due)| due.at).map(|(ino, due)| (*ino, *due))
    }
}

/// A file in the queue.
#[derive(Clone, Copy)]
pub struct QueuedFlush {
    pub at: Instant,
    pub occasion: FlushTrigger,
    pub partition: PartitionId,
}

impl FlushQueue {
    /// The next that is due for a thread of a partition, which serves another one afterwards if need be; nothing when
    /// there is nothing left for it to wait for.
    pub fn next(&self, partition: &mut PartitionId) -> Option<(Ino, QueuedFlush)> {
        let mut state = self.state.lock();
        loop {
            let Some((ino, due)) = state.first(*partition) else {
                state.end_thread(*partition);
                return None;
            };
            if due.at <= Instant::now() {
                if due.partition != *partition {
                    state.end_thread(*partition);
                    // The partition had no thread: `first` leaves the files of others to theirs.
                    state.threads.insert(due.partition, 1);
                    *partition = due.partition;
                }
                state.due.remove(&ino);
                *state.under_way.entry(ino).or_default() += 1;
                return Some((ino, due));
            }
            self.changed.wait_until(&mut state, due.at);
        }
    }

    pub fn end(&self, ino: Ino, due: QueuedFlush, outcome: &FsResult<()>) {
        let mut state = self.state.lock();
        // Written to meanwhile, it may have been queued again, and be another thread's, too.
        let left = state.under_way.remove(&ino).map(|threads| threads - 1);
        assert!(
            left.is_some() || std::thread::panicking(),
            "the flush of inode {ino} ends and has not begun"
        );
        if let Some(left) = left.filter(|left| *left > 0) {
            state.under_way.insert(ino, left);
        }
        let Err(error) = outcome else { return };
        let is_temporary = error.errno() == Errno::EBUSY;
        if is_temporary {
            log::debug!(why:% = error; "inode {ino} is not flushed");
        } else {
            log::warn!(why:% = error; "inode {ino} is not flushed");
        }
        let again = Instant::now() + if is_temporary { AGAIN_TEMPORARY } else { AGAIN };
        match due.occasion {
            // Not by itself: whether its room is needed still, the next full write says.
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
            self.flusher.state.lock().end_thread(self.due.partition);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: PartitionId = PartitionId(1);
    const OTHER: PartitionId = PartitionId(2);

    fn due(partition: PartitionId) -> QueuedFlush {
        QueuedFlush { at: Instant::now(), occasion: FlushTrigger::Age, partition }
    }

    #[test]
    fn slow_storage_of_one_partition_holds_up_no_other() {
        let queue = FlushQueue::default();
        let (mut slow, mut other) = (SLOW, OTHER);
        assert!(queue.state.lock().add(Ino(1), due(SLOW), 1));
        assert_eq!(queue.next(&mut slow).map(|(ino, _)| ino), Some(Ino(1)));
        // It does not end.
        assert!(!queue.state.lock().add(Ino(2), due(SLOW), 1), "one thread is enough");
        assert!(queue.state.lock().add(Ino(3), due(OTHER), 1));
        assert_eq!(queue.next(&mut other).map(|(ino, _)| ino), Some(Ino(3)));
        queue.end(Ino(3), due(OTHER), &Ok(()));
        assert_eq!(queue.next(&mut other).map(|(ino, _)| ino), None, "the other's file is its own thread's");
        queue.end(Ino(1), due(SLOW), &Ok(()));
        assert_eq!(queue.next(&mut slow).map(|(ino, _)| ino), Some(Ino(2)));
        queue.end(Ino(2), due(SLOW), &Ok(()));
        assert_eq!(queue.next(&mut slow).map(|(ino, _)| ino), None);
        assert!(queue.state.lock().threads.is_empty());
    }

    /// The first end counted for both, and what was under way was flushed once more for its room.
    #[test]
    fn a_file_is_under_way_until_all_of_its_threads_are_done() {
        let (queue, mut partition) = (FlushQueue::default(), SLOW);
        for _ in 0..2 {
            assert!(queue.state.lock().add(Ino(1), due(SLOW), 2));
            assert!(queue.next(&mut partition).is_some());
        }
        queue.end(Ino(1), due(SLOW), &Ok(()));
        assert!(queue.state.lock().under_way.contains_key(&Ino(1)));
        queue.end(Ino(1), due(SLOW), &Ok(()));
        assert!(queue.state.lock().under_way.is_empty());
    }

    #[test]
    fn there_are_so_many_threads_and_no_file_is_without_one() {
        let queue = FlushQueue::default();
        let links = (0..1000).filter(|ino| queue.state.lock().add(Ino(*ino), due(SLOW), 32)).count();
        assert_eq!(links, 32);
        let partitions = 500;
        let is_started = |number: &u16| {
            let ino = Ino(u64::from(*number) + 1000);
            queue.state.lock().add(ino, due(PartitionId(number + OTHER.0)), 1)
        };
        let mut serving: Vec<PartitionId> =
            (0..partitions).filter(is_started).map(|number| PartitionId(number + OTHER.0)).collect();
        assert_eq!(serving.len(), THREADS_MAX - links);
        // Those that have done their own go on with what is left.
        let mut done = 0;
        while let Some(mut partition) = serving.pop() {
            if let Some((ino, due)) = queue.next(&mut partition) {
                queue.end(ino, due, &Ok(()));
                serving.push(partition);
                done += 1;
            }
        }
        assert_eq!(done, partitions);
        assert_eq!(queue.state.lock().due.len(), 1000, "the link has threads of its own");
    }
}
