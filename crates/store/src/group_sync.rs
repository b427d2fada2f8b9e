//! Syncs of one file that several callers share.

use std::sync::atomic::{AtomicU64, Ordering};

use bivouac_ranks::{Mutex, Rank};

/// The turn of the callers that sync one open file.
///
/// Linux reports a writeback error once per open file. Of two syncs of the same descriptor that overlap, one may
/// consume the error of both, so they run one after the other, and the failure of each is noted before the next begins.
#[derive(Debug)]
pub(crate) struct GroupSync {
    begun_count: AtomicU64,
    /// Number of the last sync that succeeded, counted from 1.
    last_success: Mutex<u64>,
}

impl GroupSync {
    /// Syncs whose turn is a lock of this rank.
    pub(crate) fn new(rank: Rank) -> GroupSync {
        GroupSync { begun_count: AtomicU64::new(0), last_success: Mutex::new(rank, 0) }
    }

    /// Runs `sync`, unless one that began after this call has succeeded meanwhile: that one covers all that the caller
    /// has written. `sync` notes a failure where later calls of it find it.
    pub(crate) fn run<E>(&self, sync: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let arrived = self.begun_count.load(Ordering::SeqCst);
        let mut last_success = self.last_success.lock();
        if *last_success > arrived {
            return Ok(());
        }
        // Numbered under the lock: a caller that read the count before has all that it wrote covered by this sync.
        let number = self.begun_count.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(number > *last_success, "sync {number} after sync {}", *last_success);
        sync()?;
        *last_success = number;
        Ok(())
    }

    /// Runs something that may consume the file's error, while nobody else syncs it.
    pub(crate) fn alone<R>(&self, run: impl FnOnce() -> R) -> R {
        let _turn = self.last_success.lock();
        run()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_ranks::rank;
    use std::sync::Barrier;

    #[test]
    fn only_a_sync_that_began_after_the_call_is_shared() {
        let group = GroupSync::new(rank::SUBFILE_SYNC);
        let count = AtomicU64::new(0);
        let sync = || {
            count.fetch_add(1, Ordering::SeqCst);
            Ok::<(), ()>(())
        };
        group.run(sync).unwrap();
        group.run(sync).unwrap();
        assert_eq!(count.load(Ordering::SeqCst), 2, "one that ended before the call does not count");
        let (begun, may_end) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                group.run(|| {
                    begun.wait();
                    may_end.wait();
                    Err(())
                })
            });
            begun.wait();
            let second = scope.spawn(|| group.run(sync));
            may_end.wait();
            assert_eq!((first.join().unwrap(), second.join().unwrap()), (Err(()), Ok(())));
        });
        assert_eq!(count.load(Ordering::SeqCst), 3, "one that was under way does not count");
    }
}
