//! Syncs of subfiles. A failure stays known until the bytes that it may have cost are written anew or removed: all
//! clients of a subfile share one descriptor, and Linux reports a writeback error once per open file.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bivouac_ranks::{Mutex, rank};
use bivouac_types::Errno;

use super::cache::SubfileHandle;
use super::ranges::Ranges;
use super::subfile::OpenSubfile;
use super::{DataStore, SubfileId, names};
use crate::group_sync::GroupSync;
use crate::{StoreError, StoreResult};

/// Most subfiles whose sync failures are recorded one by one. Beyond that, no sync succeeds until the daemon restarts.
const SUBFILES_MAX: usize = 1 << 16;

/// Remedy for a subfile.
const REMEDY: &str = "write all of the file anew, cut it to nothing, or remove it, and sync again";
/// Remedy for a directory, or for more subfiles than are kept apart.
const VOLUME_REMEDY: &str = "look at the disk and the file system of the volume, and start its daemon anew";

/// Subfiles and directories whose last sync failed.
#[derive(Debug)]
pub(super) struct SyncFailures {
    /// Number of failures, so that the usual case, none, takes no lock.
    count: AtomicUsize,
    known: Mutex<FailedSyncs>,
}

#[derive(Debug, Default)]
struct FailedSyncs {
    /// Bytes of data that may not be on the volume; empty once all of them are written anew, and not yet synced.
    subfiles: BTreeMap<SubfileId, Ranges>,
    /// Directories of volumes, by their numbers.
    dirs: BTreeSet<(u16, u8)>,
    /// Turns of syncs: 256 directories of each volume at most.
    dir_turns: BTreeMap<(u16, u8), Arc<GroupSync>>,
    is_over_limit: bool,
}

impl Default for SyncFailures {
    fn default() -> SyncFailures {
        SyncFailures {
            count: AtomicUsize::new(0),
            known: Mutex::new(rank::SYNC_FAILURES, FailedSyncs::default()),
        }
    }
}

/// Returns the directory of a subfile, as a number.
fn dir_of(id: SubfileId) -> (u16, u8) {
    (id.volume, id.ino.0 as u8)
}

impl SyncFailures {
    fn change(&self, change: impl FnOnce(&mut FailedSyncs)) {
        let mut known = self.known.lock();
        change(&mut known);
        let count = known.subfiles.len() + known.dirs.len() + usize::from(known.is_over_limit);
        self.count.store(count, Ordering::SeqCst);
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Returns whether a sync of this subfile failed and the next one that succeeds has to be waited for.
    pub(super) fn has(&self, id: SubfileId) -> bool {
        !self.is_empty() && self.known.lock().subfiles.contains_key(&id)
    }

    /// Returns whether a sync of the directory of this subfile has failed.
    fn has_dir(&self, id: SubfileId) -> bool {
        !self.is_empty() && self.known.lock().dirs.contains(&dir_of(id))
    }

    /// Returns the turn of syncs of the directory of this subfile.
    fn dir_turn(&self, id: SubfileId) -> Arc<GroupSync> {
        let mut known = self.known.lock();
        let turn = known.dir_turns.entry(dir_of(id));
        Arc::clone(turn.or_insert_with(|| Arc::new(GroupSync::new(rank::SUBFILE_DIR_SYNC))))
    }

    /// Returns the remedy without which no sync succeeds; `None` if one can.
    fn remedy(&self, id: SubfileId) -> Option<&'static str> {
        if self.is_empty() {
            return None;
        }
        let known = self.known.lock();
        if known.is_over_limit || known.dirs.contains(&dir_of(id)) {
            return Some(VOLUME_REMEDY);
        }
        known.subfiles.get(&id).filter(|bytes| !bytes.is_empty()).map(|_| REMEDY)
    }

    fn add(&self, id: SubfileId, data: &Range<u64>) {
        self.change(|known| {
            if known.subfiles.len() >= SUBFILES_MAX && !known.subfiles.contains_key(&id) {
                known.is_over_limit = true;
                return;
            }
            known.subfiles.entry(id).or_default().add(data);
        });
    }

    /// Notes that these bytes were written anew, or are gone.
    pub(super) fn rewritten(&self, id: SubfileId, data: &Range<u64>) {
        if self.has(id) {
            self.change(|known| {
                if let Some(bytes) = known.subfiles.get_mut(&id) {
                    bytes.remove(data);
                }
            });
        }
    }

    /// Forgets a subfile that is gone, or of which all is on the volume.
    pub(super) fn forget(&self, id: SubfileId) {
        if self.has(id) {
            self.change(|known| drop(known.subfiles.remove(&id)));
        }
    }
}

impl DataStore {
    /// Makes a subfile's bytes outlive the host, as far as its volume does. One that is not there needs nothing.
    ///
    /// # Errors
    /// `NoVolume`, `Corrupt` and the like, `Io`; `NotSynced` after a failure, until all bytes that the subfile had then
    /// are written anew or cut off.
    pub fn sync(&self, id: SubfileId) -> StoreResult<()> {
        let place = self.place(id)?;
        place.sync.run(|| self.sync_alone(id, &place))
    }

    fn sync_alone(&self, id: SubfileId, place: &SubfileHandle) -> StoreResult<()> {
        let mut state = place.state.write();
        let Some(open) = self.opened(id, &mut state)? else { return Ok(()) };
        if let Some(remedy) = self.sync_failures.remedy(id) {
            return Err(StoreError::NotSynced { path: self.path_of(id).into(), remedy });
        }
        if self.sync_failures.has(id) {
            // All of its data was written anew; what is in front of it was written long before.
            open.rewrite_front().map_err(|error| self.io_error(id, "write header", error))?;
        }
        // Synced without the lock: writes and reads of the subfile go on meanwhile, and what they add is not
        // promised by this sync.
        let file = open.file().clone();
        drop(state);
        if let Err(error) = file.sync() {
            self.note_unsynced(id, place);
            return Err(self.io_error(id, "sync", error));
        }
        // One after the other: a sync that begins behind a failed one would find its error consumed and succeed.
        let turn = self.sync_failures.dir_turn(id);
        // With each sync, not only the first: whether the name has ever been made durable is known to nobody after a
        // restart.
        turn.run(|| self.sync_dir_alone(id))?;
        // Last: as long as the name may be lost, so may the bytes.
        self.sync_failures.forget(id);
        Ok(())
    }

    fn sync_dir_alone(&self, id: SubfileId) -> StoreResult<()> {
        if self.sync_failures.has_dir(id) {
            return Err(StoreError::NotSynced { path: self.path_of(id).into(), remedy: VOLUME_REMEDY });
        }
        let Err(error) = self.lent(id.volume)?.volume.sync_dir(&names::dir_of(id)) else { return Ok(()) };
        // A directory that could not even be opened has consumed no error.
        let is_lasting = !matches!(errno_of(&error), Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM);
        if is_lasting {
            self.sync_failures.change(|known| {
                known.dirs.insert(dir_of(id));
            });
            log::error!(why:% = error; "{}: sync of its directory failed", self.path_of(id));
        }
        Err(self.io_error(id, "sync directory of", error))
    }

    /// Notes that a sync has failed, and that nobody knows which of the subfile's bytes it was about.
    fn note_unsynced(&self, id: SubfileId, place: &SubfileHandle) {
        let mut state = place.state.write();
        // One that was removed meanwhile has nothing to lose.
        let Ok(Some(open)) = self.opened(id, &mut state) else { return };
        let end = open.file().stat().map_or(u64::MAX, |stat| stat.len.saturating_sub(open.data_at()));
        // All of it: the kernel does not say which pages it has dropped.
        self.sync_failures.add(id, &(0..end.max(open.len()).max(1)));
        // What its holders write is not heard of, so it could not be told what is written anew.
        open.holders.close();
        log::error!("{}: sync failed; its bytes may not outlive the host: {REMEDY}", self.path_of(id));
    }
}

fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_code)
}

impl OpenSubfile {
    /// Writes the page in front of the data once more, so that the next sync has it to write.
    fn rewrite_front(&self) -> io::Result<()> {
        let mut page = [0; bivouac_types::limits::SUBFILE_HEADER_LEN as usize];
        let len = page.len() as u64;
        crate::volume::transfer::read_full_at(&**self.file(), &mut [io::IoSliceMut::new(&mut page)], 0, len)?;
        crate::volume::transfer::write_all_at(&**self.file(), &[io::IoSlice::new(&page)], 0)
    }
}
