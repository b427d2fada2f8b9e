//! Changes, and deferred writes with them, to both sides.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bivouac_mirror::FileState;
use bivouac_ranks::{MutexGuard, RwLockReadGuard, wait_for_backup};
use bivouac_types::Errno;
use bivouac_wire::{ReplicaOutcome, VolumeChange};

use super::super::deferred::DeferredWrite;
use super::super::mirrored_volume::FileName;
use super::super::part::parts_of;
use super::{MirroredVolumes, Mode, Session, no_answer, superseded};
use crate::VolumeFile;
use crate::volume::system_error;
use crate::volume::transfer::write_all_at;

/// Order of a change and the deferred writes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::mirror) enum ChangeOrder {
    /// May be made before changes under way.
    Free,
    /// Is made after all of them.
    BehindDeferred,
}

/// A change that is to be made at the backup and then here.
pub(in crate::mirror) struct Part<'p> {
    /// Position of its volume.
    pub volume: u16,
    pub change: VolumeChange,
    pub payload: &'p [IoSlice<'p>],
    /// Makes the change here.
    pub local: &'p mut dyn FnMut() -> io::Result<()>,
}

impl Part<'_> {
    fn again(&mut self) -> Part<'_> {
        Part {
            volume: self.volume,
            change: self.change.clone(),
            payload: self.payload,
            local: &mut *self.local,
        }
    }
}

/// Makes the changes behind the first `made` here alone.
fn make_here(parts: &mut [Part<'_>], made: &mut usize) -> io::Result<()> {
    for part in parts.iter_mut().skip(*made) {
        (part.local)()?;
        *made += 1;
    }
    Ok(())
}

impl MirroredVolumes {
    /// Makes a change at the backup, and then here by `local`.
    ///
    /// # Errors
    /// Those of `local`; `ENOSPC` of the backup; `EIO` if it does not answer in bounded time, or another daemon has
    /// taken over. Except for `local`'s, nothing was done here.
    pub(in crate::mirror) fn change(
        &self,
        (volume, order): (u16, ChangeOrder),
        change: VolumeChange,
        payload: &[IoSlice<'_>],
        local: &mut dyn FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        self.change_all(order, vec![Part { volume, change, payload, local }])
    }

    /// Like [`MirroredVolumes::change`], for changes that go to the backup together.
    pub(in crate::mirror) fn change_all(&self, order: ChangeOrder, parts: Vec<Part<'_>>) -> io::Result<()> {
        wait_for_backup(|| self.change_with_deferred(order, parts))
    }

    /// Returns true if writes may be deferred, which gains nothing without a backup.
    pub(in crate::mirror) fn defers(&self) -> bool {
        self.defers.load(Ordering::Acquire)
    }

    /// Leaves a write to the next thread that makes a change or flushes deferred writes. The caller holds the file's
    /// name.
    pub(in crate::mirror) fn defer(
        &self,
        place: (u16, &str),
        file: (&Arc<dyn VolumeFile>, &Arc<FileName>),
        offset: u64,
        bytes: &[u8],
    ) {
        self.deferred.add(place, file, offset, bytes);
    }

    /// Waits until all writes deferred so far are made on both sides. To be called before anything that discloses
    /// changes: replies, and requests to other nodes.
    ///
    /// # Errors
    /// As changes have them. The writes stay deferred.
    pub fn make_deferred(&self) -> io::Result<()> {
        let last = self.deferred.last();
        if self.deferred.are_made(last) {
            return Ok(());
        }
        wait_for_backup(|| {
            let _turn = self.turn_at_deferred()?;
            while !self.deferred.are_made(last) {
                self.make_taken(self.deferred.take(), std::iter::empty())??;
            }
            Ok(())
        })
    }

    /// Makes changes, with the deferred writes before them in the same message.
    fn change_with_deferred(&self, order: ChangeOrder, mut own: Vec<Part<'_>>) -> io::Result<()> {
        let turn = match order {
            _ if self.deferred.are_made(self.deferred.last()) => None,
            // Without the turn a free change goes alone: waiting would make it as slow as the change that has the turn.
            ChangeOrder::Free => self.deferred.turn.try_lock(),
            ChangeOrder::BehindDeferred => Some(self.turn_at_deferred()?),
        };
        if turn.is_none() {
            return self.make(&mut own).1;
        }
        loop {
            // New writes may be deferred meanwhile: changes that must come behind all of them take further rounds.
            let taken = self.deferred.take();
            let is_last = order == ChangeOrder::Free || self.deferred.none_waits();
            let again = own.iter_mut().filter(|_| is_last).map(|part| part.again());
            match self.make_taken(taken, again) {
                Ok(made) if is_last => return made,
                Ok(_) => {}
                // Their own callers get the error.
                Err(_) if order == ChangeOrder::Free => return self.make(&mut own).1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for the turn at making deferred writes.
    fn turn_at_deferred(&self) -> io::Result<MutexGuard<'_, ()>> {
        if let Some(turn) = self.deferred.turn.try_lock() {
            return Ok(turn);
        }
        self.link.before_waiting();
        self.deferred.turn.try_lock_for(self.options.patience).ok_or_else(no_answer)
    }

    /// Makes deferred writes that were taken, and then other changes. The caller has the turn.
    ///
    /// # Errors
    /// Not all of the writes were made, and the others were not begun. The inner result is that of the others.
    fn make_taken<'p>(
        &self,
        taken: Vec<DeferredWrite>,
        own: impl Iterator<Item = Part<'p>>,
    ) -> io::Result<io::Result<()>> {
        let payloads: Vec<_> = taken.iter().map(|write| [IoSlice::new(&write.bytes)]).collect();
        let mut locals: Vec<_> = taken
            .iter()
            .zip(&payloads)
            .map(|(write, payload)| move || write_all_at(&*write.file, payload, write.offset))
            .collect();
        let writes = taken.iter().zip(&payloads).zip(&mut locals).map(|((write, payload), local)| Part {
            volume: write.volume,
            change: VolumeChange::Write { name: write.name.clone(), extents: vec![write.extent()] },
            payload,
            local,
        });
        // Shortens the lifetime of the parts to that of the writes.
        let own = own.map(|Part { volume, change, payload, local }| Part { volume, change, payload, local });
        let (made, outcome) = self.make(&mut writes.chain(own).collect::<Vec<_>>());
        let are_all = made >= taken.len();
        self.deferred.end(taken, made);
        // Here the error is that of a deferred write; the outer result tells it from one of the caller's own change.
        if are_all { Ok(outcome) } else { outcome.map(Ok) }
    }

    /// Makes changes in order, at the backup and then here. Returns how many were made, and the error of the first that
    /// was not.
    fn make(&self, parts: &mut [Part<'_>]) -> (usize, io::Result<()>) {
        let deadline = self.link.now().saturating_add(self.options.patience);
        let (mut made, mut failed) = (0, false);
        while made < parts.len() {
            if failed && self.link.now() >= deadline {
                return (made, Err(no_answer()));
            }
            // Read before the session, so that a change of state in between ends the wait at once.
            let turn = *self.turn.lock();
            let session = self.session.read();
            let is_attached = session.mode == Mode::Attached;
            let done = match session.mode {
                Mode::Superseded => Err(superseded()),
                Mode::Detached => {
                    drop(session);
                    self.wait_for_session(turn, deadline)
                }
                Mode::Alone => make_here(parts, &mut made),
                // Before the first session the backup may miss changes: they are noted first, and made equal later.
                Mode::Starting => self.note_unsent(&session, true).and_then(|()| {
                    let mut suspects = self.suspects.lock();
                    parts.iter().for_each(|part| suspects.add_change(part.volume, &part.change));
                    drop(suspects);
                    make_here(parts, &mut made)
                }),
                Mode::Attached => self.make_at_both(session, parts, &mut made),
            };
            if let Err(error) = done {
                return (made, Err(error));
            }
            // Set behind the first attempt: a session that comes at the last moment is still used.
            failed |= is_attached;
        }
        (made, Ok(()))
    }

    /// Makes the changes behind the first `made` at the backup, and those here that the backup has made. Returns
    /// without an error if the rest is to be tried again.
    fn make_at_both(
        &self,
        session: RwLockReadGuard<'_, Session>,
        parts: &mut [Part<'_>],
        made: &mut usize,
    ) -> io::Result<()> {
        let rest = *made..parts.len();
        let is_sent: Vec<bool> =
            // A file whose copy has yet to begin is copied with this change in it.
            parts.iter().map(|part| !self.is_left_to_copy(part.volume, &part.change)).collect();
        let sent = |from: usize| (from..is_sent.len()).filter(|index| is_sent[*index]);
        let changes: Vec<_> =
            sent(rest.start).map(|index| (parts[index].volume, parts[index].change.clone())).collect();
        if changes.is_empty() {
            return make_here(parts, made);
        }
        let payload: Vec<_> =
            sent(rest.start).flat_map(|index| parts[index].payload.iter().copied()).collect();
        let mut channel = self.channels.take();
        let answer = self.send(&session, &mut channel, changes, &payload);
        let has = answer.as_ref().map_or(0, |applied| usize::from(applied.made));
        // The first change that the backup lacks, or may lack.
        let end = sent(rest.start).nth(has).unwrap_or(rest.end);
        let suspect = |parts: &[Part<'_>], range: Range<usize>| {
            let mut suspects = self.suspects.lock();
            sent(range.start)
                .take_while(|index| range.contains(index))
                .for_each(|index| suspects.add_change(parts[index].volume, &parts[index].change));
        };
        let mut done = Ok(());
        while *made < end && done.is_ok() {
            done = (parts[*made].local)();
            if done.is_ok() {
                self.note_names(parts[*made].volume, &parts[*made].change);
                *made += 1;
            }
        }
        let number = session.number;
        // The backup has made changes that failed here: they may differ, and a new session settles that.
        if done.is_err() {
            suspect(parts, *made..end);
            drop((channel, session));
            self.detach(number, false);
            return done;
        }
        let ended = match answer.map(|applied| applied.outcome) {
            Ok(ReplicaOutcome::Done) => None,
            Ok(ReplicaOutcome::NoSpace) => {
                suspect(parts, end..end + 1);
                let may_differ = !parts_of(parts[end].volume, &parts[end].change).is_empty();
                done = Err(system_error(Errno::ENOSPC));
                may_differ.then_some(false)
            }
            Ok(ReplicaOutcome::Superseded { epoch }) => {
                drop((channel, session));
                self.supersede(epoch);
                return Err(superseded());
            }
            Ok(ReplicaOutcome::Failed { errno }) => {
                log::error!("a replica cannot be changed (error {errno}); it is made anew");
                Some(true)
            }
            Ok(ReplicaOutcome::NoSession) => {
                suspect(parts, end..rest.end);
                Some(false)
            }
            Err(error) => {
                log::debug!(why:% = error; "changes wait for the backup");
                suspect(parts, end..rest.end);
                Some(false)
            }
        };
        drop((channel, session));
        if let Some(anew) = ended {
            self.detach(number, anew);
        }
        done
    }

    /// Returns true if a change of content concerns a file whose copy has yet to begin.
    fn is_left_to_copy(&self, volume: u16, change: &VolumeChange) -> bool {
        let name = match change {
            VolumeChange::Write { name, .. }
            | VolumeChange::SetLen { name, .. }
            | VolumeChange::Allocate { name, .. }
            | VolumeChange::Grow { name, .. }
            | VolumeChange::Punch { name, .. }
            | VolumeChange::Sync { name } => name,
            _ => return false,
        };
        let copy = self.copy.lock();
        !copy.is_over() && copy.state(&(volume, name.clone())) == FileState::Waiting
    }

    /// Repeats a change of names, made on both sides, in the plan of the copy.
    fn note_names(&self, volume: u16, change: &VolumeChange) {
        match change {
            VolumeChange::Rename { from, to } => {
                self.copy.lock().rename(&(volume, from.clone()), &(volume, to.clone()));
            }
            VolumeChange::Remove { name } => self.copy.lock().remove(&(volume, name.clone())),
            _ => {}
        }
    }
}
