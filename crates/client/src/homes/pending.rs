//! Messages to homes that are under way, for threads that must wait for their end.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bivouac_direct::PendingTimeCounters;
use bivouac_session::{OpenNumbers, OpensUnderWay};
use bivouac_types::{Ino, OpenId};
use bivouac_wire::Invalidation;
use parking_lot::{Condvar, Mutex};

/// Numbers of opens, and which of them have not been answered yet.
pub struct PendingOpens(Mutex<OpenNumbers>);

/// An open under way; dropped when it is among the open files, or has failed.
pub struct Opening<'a> {
    numbers: &'a PendingOpens,
    /// Its number.
    pub id: OpenId,
}

impl PendingOpens {
    pub fn new(first: OpenId) -> PendingOpens {
        PendingOpens(Mutex::new(OpenNumbers::new(first)))
    }

    /// Returns an open that is about to be asked for.
    pub fn begin(&self, writes: bool) -> Opening<'_> {
        Opening { numbers: self, id: self.0.lock().begin(writes) }
    }

    /// Returns the opens that are under way.
    pub fn list(&self) -> OpensUnderWay {
        self.0.lock().under_way()
    }

    /// Returns the client's floor, see [`OpenNumbers::floor`].
    pub fn floor(&self) -> OpenId {
        self.0.lock().floor()
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.numbers.0.lock().end(self.id);
    }
}

/// Files whose homes are just being told that the content has changed, or have yet to be.
#[derive(Default)]
pub struct PendingMtimeUpdates {
    files: Mutex<HashMap<Ino, usize>>,
    ended: Condvar,
    /// Number of files, read without the lock.
    count: AtomicUsize,
    /// Counters by which other processes of the machine see which files these are.
    shown: Option<Arc<PendingTimeCounters>>,
}

/// A message under way that tells a home of a change.
pub struct MtimeUpdate<'a> {
    updates: &'a PendingMtimeUpdates,
    ino: Ino,
}

impl PendingMtimeUpdates {
    pub fn new(shown: Option<Arc<PendingTimeCounters>>) -> PendingMtimeUpdates {
        PendingMtimeUpdates { shown, ..PendingMtimeUpdates::default() }
    }

    /// Notes that the home of a file has yet to be told, from now on, or not any more.
    pub fn mark_dirty(&self, ino: Ino, due: bool) {
        if let Some(untold) = &self.shown {
            let key = Invalidation { ino, name: None }.key();
            if due { untold.begin(key) } else { untold.end(key) }
        }
    }

    /// Notes that the home of a file is about to be told.
    pub fn begin(&self, ino: Ino) -> MtimeUpdate<'_> {
        // Before the entry: who finds 0 asked before this began, and is not to wait for it.
        self.count.fetch_add(1, Ordering::AcqRel);
        *self.files.lock().entry(ino).or_default() += 1;
        self.mark_dirty(ino, true);
        MtimeUpdate { updates: self, ino }
    }

    /// Returns true if a thread is telling the home of this file.
    pub fn has(&self, ino: Ino) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.files.lock().contains_key(&ino)
    }

    /// Waits until nobody is telling the home of this file: what is said next is not overtaken.
    pub fn wait(&self, ino: Ino) {
        if !self.has(ino) {
            return;
        }
        // Not under the lock: it may start a thread.
        bivouac_net::before_waiting();
        let mut files = self.files.lock();
        while files.contains_key(&ino) {
            self.ended.wait(&mut files);
        }
    }
}

impl Drop for MtimeUpdate<'_> {
    fn drop(&mut self) {
        // Before waiters go on: the counter says by then that nothing is untold.
        self.updates.mark_dirty(self.ino, false);
        let mut files = self.updates.files.lock();
        let count = files.entry(self.ino).or_default();
        assert!(*count > 0, "the home of inode {} was told by nobody", self.ino);
        *count -= 1;
        if *count == 0 {
            files.remove(&self.ino);
            self.updates.ended.notify_all();
        }
        let before = self.updates.count.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "the message about inode {} ends, and was not counted", self.ino);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_telling_is_waited_for() {
        let updates = PendingMtimeUpdates::default();
        updates.wait(Ino(1));
        let (first, second) = (updates.begin(Ino(1)), updates.begin(Ino(1)));
        assert!(updates.has(Ino(1)) && !updates.has(Ino(2)));
        updates.wait(Ino(2));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| updates.wait(Ino(1)));
            drop(first);
            assert!(!updates.files.lock().is_empty() && !waiting.is_finished());
            drop(second);
        });
        assert!(updates.files.lock().is_empty() && updates.count.load(Ordering::Relaxed) == 0);
    }
}
