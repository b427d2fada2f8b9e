//! Deletions at site storage that a node carries out by itself, and why some were not possible.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use bivouac_ranks::{Condvar, Mutex};
use bivouac_source::SourceError;

/// First and longest pause before what was not possible is tried again by itself.
pub const DELETION_PAUSE_MIN: Duration = Duration::from_secs(1);
const DELETION_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Something that repeats deletions at site storage: the node.
pub trait MirrorDeletions: Send + Sync {
    /// Carries out all deletions that need no flush. Returns true if none is left to be tried again.
    fn mirror_by_policy(&self) -> bool;
}

/// Schedule of automatic deletions, and the failures of some.
#[derive(Default)]
pub struct DeletionQueue {
    /// Set when the node starts; before that nothing is carried out.
    pub target: OnceLock<Weak<dyn MirrorDeletions>>,
    pub state: Mutex<DeletionQueueState>,
    pub changed: Condvar,
    pub under_way: AtomicUsize,
}

/// Contents of the queue.
#[derive(Default)]
pub struct DeletionQueueState {
    pub due: Option<Instant>,
    pub has_thread: bool,
    pub why: HashMap<Vec<u8>, String>,
}

impl DeletionQueue {
    /// Deletions are carried out at `moment`, or earlier.
    pub fn call_at(self: &Arc<Self>, moment: Instant) {
        let Some(target) = self.target.get().cloned() else { return };
        let mut state = self.state.lock();
        state.due = Some(state.due.map_or(moment, |due| due.min(moment)));
        self.changed.notify_all();
        if state.has_thread {
            return;
        }
        let queue = Arc::clone(self);
        match std::thread::Builder::new().name("mirror".to_owned()).spawn(move || queue.run(&target)) {
            Ok(_) => state.has_thread = true,
            Err(error) => log::error!(why:% = error; "deletions wait for a flush: no thread"),
        }
    }

    fn run(&self, target: &Weak<dyn MirrorDeletions>) {
        let mut pause = DELETION_PAUSE_MIN;
        while self.wait_until_due() {
            let Some(target) = target.upgrade() else { return };
            // A panic is a failure like others: the thread stays, and tries again later.
            let is_done = catch_unwind(AssertUnwindSafe(|| target.mirror_by_policy())).unwrap_or(false);
            // The thread must not keep the node alive while it waits.
            drop(target);
            pause = if is_done { DELETION_PAUSE_MIN } else { (pause * 2).min(DELETION_PAUSE_MAX) };
            if !is_done {
                // Unless a deletion since has set an earlier time.
                self.state.lock().due.get_or_insert(Instant::now() + pause);
            }
        }
    }

    /// Waits for the next turn; whether there is one.
    fn wait_until_due(&self) -> bool {
        let mut state = self.state.lock();
        loop {
            match state.due {
                None => {
                    // Under the lock: whoever calls next starts another thread.
                    state.has_thread = false;
                    return false;
                }
                Some(due) if due <= Instant::now() => {
                    state.due = None;
                    return true;
                }
                Some(due) => drop(self.changed.wait_until(&mut state, due)),
            }
        }
    }

    /// Notes why a deletion, by the key of its record, was not possible.
    pub fn note(&self, key: &[u8], error: &SourceError) {
        self.state.lock().why.insert(key.to_vec(), error.to_string());
    }

    /// Returns why a deletion was not possible; empty if it was not tried.
    pub fn why(&self, key: &[u8]) -> String {
        self.state.lock().why.get(key).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    struct PanicsOnce(AtomicUsize);

    impl MirrorDeletions for PanicsOnce {
        fn mirror_by_policy(&self) -> bool {
            assert!(self.0.fetch_add(1, Ordering::AcqRel) > 0, "a test's first attempt");
            true
        }
    }

    /// Its thread was gone and counted as there: nothing was deleted at the source any more.
    #[test]
    fn an_attempt_that_panics_is_followed_by_others() {
        let node = Arc::new(PanicsOnce(AtomicUsize::new(0)));
        let target: Arc<dyn MirrorDeletions> = Arc::<PanicsOnce>::clone(&node);
        let queue = Arc::new(DeletionQueue::default());
        assert!(queue.target.set(Arc::downgrade(&target)).is_ok());
        let until = Instant::now() + Duration::from_secs(20);
        while node.0.load(Ordering::Acquire) < 2 {
            assert!(Instant::now() < until, "nobody tries again");
            queue.call_at(Instant::now());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
