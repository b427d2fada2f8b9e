//! The loops in which content is written and read, whichever way it travels: cuts that overtake it, what has to be
//! waited for, what the home is told afterwards, and what is left behind where it fails.
//!
//! Why they are right: docs/design/truncation.md.

use std::ops::Range;

use bivouac_types::{Errno, FsError, FsResult, Ino};
use bivouac_wire::{ExtendOverRequest, ExtendRequest, InoOnly, op};

use super::Content;
use super::carry::Carried;
use crate::connections::retry_in_progress;
use crate::homes::known::KnownFile;
use crate::tokens::Access;

/// How often something is done again because cuts of the file overtake it.
pub const OVERTAKEN_MAX: usize = 64;

/// A change of a file's content.
#[derive(Clone, Copy)]
pub struct Update {
    /// The file, and what covers the change.
    pub file: Access,
    /// Where it ends: the file is as long as that afterwards, or longer.
    pub end: u64,
    /// How often it is done again because cuts overtake it.
    pub tries: usize,
    /// Whether bytes of it may be behind the end of the file where it fails: they are cut off then, with all that is
    /// reserved there.
    pub has_bytes: bool,
}

impl Update {
    /// Writes bytes, up to this end.
    pub(crate) fn of(file: impl Into<Access>, end: u64) -> Update {
        Update { file: file.into(), end, tries: OVERTAKEN_MAX, has_bytes: true }
    }
}

impl Content {
    /// Data first, then the size: no reader sees a size whose bytes are not there. `carry` carries what is not carried yet
    /// to the targets, notes it there, and says whether no target had a newer epoch; it is called again if one had. `start`
    /// says, of a size, where behind it what is written without a gap up to the end begins.
    pub(crate) fn publish(
        &self,
        update: &Update,
        start: impl Fn(u64) -> u64,
        carry: impl FnMut(&KnownFile, &mut Carried) -> FsResult<bool>,
    ) -> FsResult<()> {
        let published = self.publish_within(update, start, carry)?;
        if published { Ok(()) } else { Err(overtaken(update.file.ino)) }
    }

    /// As [`Content::publish`], or `false` if cuts have overtaken it too often.
    pub(crate) fn publish_within(
        &self,
        update: &Update,
        start: impl Fn(u64) -> u64,
        mut carry: impl FnMut(&KnownFile, &mut Carried) -> FsResult<bool>,
    ) -> FsResult<bool> {
        let Update { file, end, tries, has_bytes } = *update;
        let ino = file.ino;
        let changeable = |known: KnownFile| {
            known.check_changeable(ino)?;
            self.checked(&file, known)
        };
        let (mut known, mut carried) = (changeable(self.homes.know(ino)?)?, Carried::default());
        for _ in 0..tries {
            let attempt = self
                .reclaimer
                .retry_after_reclaim(|| self.attempt(ino, &known, end, &start, (&mut carry, &mut carried)));
            if let Err(error) = &attempt
                && has_bytes
            {
                if [Errno::ENOSPC, Errno::EDQUOT, Errno::EIO].contains(&error.errno()) {
                    // Some targets may have taken their part: the home hears at the close that content has changed.
                    self.known.mark_dirty(ino);
                }
                if end > known.size {
                    // What they took must not come up when the file grows over it.
                    self.cut_tail(ino);
                }
            }
            match attempt? {
                Some(now) => {
                    // What was carried before a cut may have been cut off.
                    if now.epoch != known.epoch {
                        carried = Carried::default();
                    }
                    known = changeable(now)?;
                }
                None => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Carries what is not carried yet, and tells the size. What is to be known for the next attempt, if a cut has
    /// overtaken this one.
    fn attempt(
        &self,
        ino: Ino,
        known: &KnownFile,
        end: u64,
        start: impl Fn(u64) -> u64,
        (mut carry, carried): (impl FnMut(&KnownFile, &mut Carried) -> FsResult<bool>, &mut Carried),
    ) -> FsResult<Option<KnownFile>> {
        if !carried.is_whole() {
            if !carry(known, carried)? {
                // A cut is on its way through the targets; its end is where the home lets us go on.
                return self.extend(ino, &(0..0), known).map(|(_, now)| Some(now));
            }
            carried.complete();
        }
        if end <= known.size {
            self.tell_write(ino)?;
            return Ok(None);
        }
        let written = start(known.size)..end;
        assert!(written.start <= end, "inode {ino}: a write of {written:?} ends before it begins");
        if self.direct.sizes.tell(ino, &written, known) {
            self.known.grew(ino, written, known.epoch);
            return Ok(None);
        }
        let (accepted, now) = self.extend(ino, &written, known)?;
        if accepted {
            self.direct.grew(self.connections.home(ino)?, ino);
        }
        Ok((!accepted).then_some(now))
    }

    /// Tells the home of a write within the size, if that is due.
    pub(super) fn tell_write(&self, ino: Ino) -> FsResult<()> {
        let Some(due) = self.known.note_write(ino) else { return Ok(()) };
        self.homes.touch(ino)?;
        self.known.told_write(ino, due);
        Ok(())
    }

    /// Tells the home the end of a write, also of one that leaves a hole in front of it. Whether it has taken it down, and
    /// what it says of the file; it says nothing while a cut is under way.
    fn extend(&self, ino: Ino, written: &Range<u64>, known: &KnownFile) -> FsResult<(bool, KnownFile)> {
        let (home, epoch, start, end) =
            (self.connections.home(ino)?, known.epoch, written.start, written.end);
        let tell = || match start > known.size {
            true => {
                self.connections.ask::<op::ExtendOver>(home, &ExtendOverRequest { ino, start, end, epoch })
            }
            false => self.connections.ask::<op::Extend>(home, &ExtendRequest { ino, end, epoch }),
        };
        let told = self.homes.changing(ino, tell)?;
        self.known.changed(&told.attr);
        Ok((told.accepted, KnownFile::from(&told.attr)))
    }

    /// Has the home cut off what is behind the end.
    pub(crate) fn cut_tail(&self, ino: Ino) {
        let cut = self
            .connections
            .home(ino)
            .and_then(|home| self.connections.ask::<op::CutTail>(home, &InoOnly { ino }));
        if let Err(error) = cut {
            log::warn!(why:% = error; "inode {ino}: what a failed write left behind its end stays");
        }
    }

    /// Reads as of one epoch. `read` reads what is within the size of the epoch that it is given, and says whether
    /// everything was there; it is called again if a cut came in between. The size up to which what was read holds, or
    /// `None` if cuts have overtaken it so often.
    pub(crate) fn read_within(
        &self,
        tries: usize,
        file: Access,
        known: KnownFile,
        mut read: impl FnMut(&KnownFile) -> FsResult<bool>,
    ) -> FsResult<Option<u64>> {
        let mut known = self.checked(&file, known)?;
        for _ in 0..tries {
            if retry_in_progress(|| read(&known))? {
                return Ok(Some(known.size));
            }
            // Some subfile is shorter than the size says, or ahead of it: a hole, or a cut.
            let now = self.homes.ask(file.ino)?;
            if now.epoch == known.epoch {
                return Ok(Some(now.size.min(known.size)));
            }
            known = self.checked(&file, now)?;
        }
        Ok(None)
    }

    /// What is known of a file, if a call may go on with that.
    pub(crate) fn checked(&self, file: &Access, known: KnownFile) -> FsResult<KnownFile> {
        file.check(&known, self.partitions.contract(&known)?)?;
        Ok(known)
    }
}

/// The failure of what cuts have overtaken too often.
pub fn overtaken(ino: Ino) -> FsError {
    FsError::with(
        Errno::EIO,
        format!("inode {ino} was cut {OVERTAKEN_MAX} times while it was read or written"),
    )
}
