//! Syncs of the log. Linux reports a writeback error once per open file, so a failure stays known until a snapshot has
//! replaced the log.

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Records, log as log_files};
use crate::{StoreError, StoreResult};

/// Shortest interval of snapshots that are attempted because a sync failed.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Remedy when neither log nor snapshot can be written.
const REMEDY: &str = "look at the disk and the file system of the volume, and sync again";

impl Records {
    /// Makes every finished commit durable against the end of the host. Where the log cannot be synced, a snapshot of
    /// what is in memory takes its place; that takes as long as [`Records::compact`].
    ///
    /// # Errors
    /// The system's; `NotSynced` after an earlier failure, as long as no snapshot can be written either.
    pub fn sync(&self) -> StoreResult<()> {
        // Linux drops the pages of a failed write and reports the error once, so a second sync of this file would
        // succeed and prove nothing.
        let Err(failed) = self.sync_log() else { return Ok(()) };
        let mut failed_at = self.compacting.lock();
        // The former holder of the lock may have written a snapshot.
        if self.unsynced_log.load(Ordering::SeqCst) == 0 {
            drop(failed_at);
            return self.sync_log();
        }
        // Every waiting client asks: without a pause, each would write all records once more to a failing disk.
        if failed_at.is_some_and(|at| at.elapsed() < RETRY_AFTER) {
            return Err(failed);
        }
        log::warn!(error:% = failed; "{failed}; a snapshot is written instead");
        match self.compact_alone() {
            Ok(_) => {
                *failed_at = None;
                Ok(())
            }
            Err(error) => {
                log::error!(error:%; "{error}; the records may not outlive the host");
                *failed_at = Some(Instant::now());
                Err(failed)
            }
        }
    }

    fn sync_log(&self) -> StoreResult<()> {
        self.syncing.run(|| {
            self.sync_tail()?;
            match self.unsynced_log.load(Ordering::SeqCst) {
                0 => Ok(()),
                _ => {
                    let path = log_files::path_of(&*self.volume, log_files::DIR);
                    Err(StoreError::NotSynced { path, remedy: REMEDY })
                }
            }
        })
    }

    /// Syncs the log that commits go to, whatever the state of older ones. The caller has the turn at syncing.
    fn sync_tail(&self) -> StoreResult<()> {
        let (file, generation) = {
            let log = self.log.lock();
            (log.file.clone(), log.generation)
        };
        self.note_sync(generation, file.sync())
    }

    /// Like [`Records::sync`] for the newest log alone, for the thread that writes the snapshot which replaces the
    /// older ones.
    pub(super) fn sync_newest_log(&self) -> StoreResult<()> {
        self.syncing.alone(|| self.sync_tail())
    }

    /// Notes the outcome of syncing a log. The caller has the turn at syncing.
    pub(super) fn note_sync(&self, generation: u64, outcome: io::Result<()>) -> StoreResult<()> {
        outcome.map_err(|error| {
            self.unsynced_log.fetch_max(generation, Ordering::SeqCst);
            self.log_error("sync", error)
        })
    }

    /// Notes that a snapshot has replaced all logs of lower generations.
    pub(super) fn logs_are_replaced(&self, generation: u64) {
        let older = |unsynced: u64| (unsynced < generation).then_some(0);
        // A failure of a newer log stays.
        let _ = self.unsynced_log.fetch_update(Ordering::SeqCst, Ordering::SeqCst, older);
    }
}
