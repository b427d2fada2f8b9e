//! Reports of programs' calls while races are detected. Otherwise each of these costs a branch.

use bivouac_layout::entry_hash;
use bivouac_types::{ByteRange, Errno, FsResult, Ino, RaceEvent, Refresh, SyncObject};

use super::Client;

impl Client {
    /// Returns whether races are detected: programs with the preload leave files to mounts then.
    #[must_use]
    pub fn detects_races(&self) -> bool {
        self.races.is_some()
    }

    /// Reports what was gathered of accesses until now.
    pub fn report_accesses(&self) {
        self.races.iter().for_each(|races| races.report_gathered());
    }

    /// Reports that this thread has read or written places of a file.
    pub(super) fn accessed(&self, ino: Ino, is_write: bool, places: impl IntoIterator<Item = (u64, usize)>) {
        if let Some(races) = &self.races {
            races.accessed(ino, is_write, places.into_iter().map(|(at, len)| ByteRange::at(at, len as u64)));
        }
    }

    /// Reports that this thread has changed a range of a file by a call that all others see at once: a truncation, a
    /// punch.
    pub(super) fn changed_at_once(&self, ino: Ino, range: ByteRange) {
        if let Some(races) = &self.races {
            races.accessed(ino, true, [range]);
            races.report([RaceEvent::Publish(ino)]);
        }
    }

    /// Reports that what was written to a file until now is visible to others, or is about to be.
    pub(super) fn published(&self, ino: Ino) {
        self.report([RaceEvent::Publish(ino)]);
    }

    /// Reports that the file was opened or locked: what others have published is visible.
    pub(super) fn refreshed(&self, ino: Ino, by: Refresh) {
        self.report([RaceEvent::Refresh(ino, by)]);
    }

    /// Reports that an open is about to end.
    pub(super) fn closing(&self, ino: Ino) {
        self.report([RaceEvent::Close(ino)]);
    }

    /// Reports that names are about to be made, changed or removed: who sees that knows how far this client has come.
    pub(super) fn changing_names(&self, names: &[(Ino, &[u8])]) {
        if let Some(races) = &self.races {
            let of = |(dir, name): &(Ino, &[u8])| {
                [SyncObject::Name(*dir, entry_hash(*dir, name)), SyncObject::Names(*dir)]
            };
            races.report(names.iter().flat_map(of).map(RaceEvent::Release));
        }
    }

    /// Reports that a name was looked at, or changed: this client knows how far others have come who changed it.
    /// Returns the outcome of the call; the absence of a name tells as much as its presence.
    pub(super) fn saw_name<T>(&self, (dir, name): (Ino, &[u8]), outcome: FsResult<T>) -> FsResult<T> {
        if let Some(races) = &self.races {
            let seen =
                |error: &bivouac_types::FsError| matches!(error.errno(), Errno::ENOENT | Errno::EEXIST);
            if outcome.as_ref().err().is_none_or(seen) {
                races.note(RaceEvent::Acquire(SyncObject::Name(dir, entry_hash(dir, name))));
            }
        }
        outcome
    }

    /// Reports that the names of a directory were listed.
    pub(super) fn saw_names(&self, dir: Ino) {
        if let Some(races) = &self.races {
            races.note(RaceEvent::Acquire(SyncObject::Names(dir)));
        }
    }

    /// Returns what is to be called when a lock is granted later, on a thread that may wait for nobody.
    pub(super) fn refreshed_later(&self, ino: Ino) -> impl FnOnce() + Send + use<> {
        let races = self.races.clone();
        move || {
            if let Some(races) = races {
                races.note_only(RaceEvent::Refresh(ino, Refresh::Lock));
            }
        }
    }

    /// Reports events, which come after all that was reported or gathered before.
    pub(super) fn report<const N: usize>(&self, events: [RaceEvent; N]) {
        if let Some(races) = &self.races {
            races.report(events);
        }
    }
}
