//! Flushes under way.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bivouac_ranks::{Condvar, Mutex};
use bivouac_types::{FsResult, Ino};
use bivouac_wire::FlushState;

/// Kind of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobKind {
    /// It is flushed.
    Flush,
    /// It is found out what a killed daemon's flush had done.
    Settle,
    /// Its content is brought here, and counts as written here.
    Own,
}

/// A flush under way, or what excludes one.
pub struct FlushJob {
    pub number: u64,
    pub kind: JobKind,
    pub moved: AtomicU64,
    pub outcome: Mutex<Option<FsResult<FlushState>>>,
    pub over: Condvar,
}

/// Jobs by the inode that they are about.
pub type FlushJobs = Mutex<HashMap<Ino, Arc<FlushJob>>>;

impl FlushJob {
    /// Returns the state of a job that is over.
    pub fn ended(&self) -> FlushState {
        FlushState { done: true, ..self.running() }
    }

    pub fn wait(&self, wait: Duration) -> Option<FsResult<FlushState>> {
        // Announced without the lock, as that may start a thread.
        if self.outcome.lock().is_none() {
            bivouac_net::before_waiting();
        }
        let mut outcome = self.outcome.lock();
        if outcome.is_none() {
            self.over.wait_for(&mut outcome, wait);
        }
        outcome.clone()
    }

    pub fn end(&self, outcome: FsResult<FlushState>) {
        let former = self.outcome.lock().replace(outcome);
        assert!(former.is_none(), "job {} ends twice", self.number);
        self.over.notify_all();
    }

    pub fn running(&self) -> FlushState {
        let moved = self.moved.load(Ordering::Relaxed);
        FlushState { done: false, job: self.number, moved, version: None, lost: Vec::new() }
    }
}

/// A guard that reports the end of a job to its waiters, also of one that panicked.
pub struct FlushEnd<'a> {
    pub job: &'a FlushJob,
    pub outcome: FsResult<FlushState>,
}

impl Drop for FlushEnd<'_> {
    fn drop(&mut self) {
        self.job.end(self.outcome.clone());
    }
}
