//! The loops by which content is written and read, whichever way it travels: they repeat what truncations overtake,
//! wait for content that is on its way, report to the home afterwards, and clean up after failures.
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

/// Most repetitions because truncations of the file overtake a call.
pub const OVERTAKEN_MAX: usize = 64;

/// A change of a file's content.
#[derive(Clone, Copy)]
pub struct Update {
    /// The file, and what covers the change.
    pub file: Access,
    /// Its end: the file is at least that long afterwards.
    pub end: u64,
    /// Most attempts while truncations overtake it.
    pub tries: usize,
    /// Set if bytes of it may be behind the end of the file when it fails: they are cut off then, with all that is
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
    /// Changes content: data first, then the size, so that no reader sees a size whose bytes are missing. `carry`
    /// brings to the targets what is not carried yet, notes it in [`Carried`], and returns false if a target had a
    /// newer epoch; it is called again then. `start` returns, for a size, where behind it the range begins that is
    /// written without a gap up to the end.
    pub(crate) fn publish(
        &self,
        update: &Update,
        start: impl Fn(u64) -> u64,
        carry: impl FnMut(&KnownFile, &mut Carried) -> FsResult<bool>,
    ) -> FsResult<()> {
        let published = self.publish_within(update, start, carry)?;
        if published { Ok(()) } else { Err(overtaken(update.file.ino)) }
    }

    /// Like [`Content::publish`]; returns false if truncations have overtaken it too often.
    pub(crate) fn publish_within(
        &self,
        update: &Update,
        start: impl Fn(u64) -> u64,
        mut carry: impl FnMut(&KnownFile, &mut Carried) -> FsResult<bool>,
    ) -> FsResult<bool> {
        let Update { file, end, tries, has_bytes } = *update;
        assert!(tries > 0, "a change of inode {} is not even tried", file.ino);
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
                    // Some targets may have taken their part: the home is told at the close that content has changed.
                    self.known.mark_dirty(ino);
                }
                if end > known.size {
                    // What they took must not appear when the file grows over it.
                    self.cut_tail(ino);
                }
            }
            match attempt? {
                Some(now) => {
                    // Bytes carried before a truncation may have been cut off by it.
                    if now.epoch != known.epoch {
                        carried = Carried::default();
                    }
                    // Looked at again: the truncation may have come with another contract.
                    known = changeable(now)?;
                }
                None => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Carries what is not carried yet, and reports the size. Returns the state for the next attempt if a truncation
    /// has overtaken this one, `None` if it is done.
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
                // A truncation is on its way through the targets. The home answers once it is complete.
                return self.extend(ino, &(0..0), known).map(|(_, now)| Some(now));
            }
            // From here on only the size is left to report: a repetition for lack of space writes nothing again.
            carried.complete();
        }
        if end <= known.size {
            self.tell_write(ino)?;
            return Ok(None);
        }
        let written = start(known.size)..end;
        assert!(written.start <= end, "inode {ino}: a write of {written:?} ends before it begins");
        // A size lent to this process is raised in shared memory, without a message.
        if self.direct.sizes.tell(ino, &written, known) {
            self.known.grew(ino, written, known.epoch);
            return Ok(None);
        }
        let (accepted, now) = self.extend(ino, &written, known)?;
        // Only what the home has accepted counts towards asking for the size.
        if accepted {
            self.direct.grew(self.connections.home(ino)?, ino);
        }
        Ok((!accepted).then_some(now))
    }

    /// Reports a write within the size to the home, if that is due.
    pub(super) fn tell_write(&self, ino: Ino) -> FsResult<()> {
        // A message for each overwrite would cost as much as the write: the home hears of the first, and of the rest
        // now and then.
        let Some(due) = self.known.note_write(ino) else { return Ok(()) };
        self.homes.touch(ino)?;
        self.known.told_write(ino, due);
        Ok(())
    }

    /// Reports the end of a write to the home, also of one that leaves a hole in front of it. Returns true if it was
    /// accepted, and the state of the file. The home does not answer while a truncation is under way.
    fn extend(&self, ino: Ino, written: &Range<u64>, known: &KnownFile) -> FsResult<(bool, KnownFile)> {
        let (home, epoch, start, end) =
            (self.connections.home(ino)?, known.epoch, written.start, written.end);
        // A write behind the known size leaves a hole, under which there must be no bytes of clients that died: the
        // home looks for those.
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

    /// Asks the home to cut off what is behind the end of the file.
    pub(crate) fn cut_tail(&self, ino: Ino) {
        let cut = self
            .connections
            .home(ino)
            .and_then(|home| self.connections.ask::<op::CutTail>(home, &InoOnly { ino }));
        if let Err(error) = cut {
            log::warn!(why:% = error; "inode {ino}: what a failed write left behind its end stays");
        }
    }

    /// Reads as of one epoch. `read` reads what is within the size that it is given, and returns true if everything was
    /// there; it is called again if a truncation came in between. Returns the size up to which the bytes read are
    /// valid, `None` if truncations have overtaken it too often.
    pub(crate) fn read_within(
        &self,
        tries: usize,
        file: Access,
        known: KnownFile,
        mut read: impl FnMut(&KnownFile) -> FsResult<bool>,
    ) -> FsResult<Option<u64>> {
        assert!(tries > 0, "a read of inode {} is not even tried", file.ino);
        let mut known = self.checked(&file, known)?;
        for _ in 0..tries {
            if retry_in_progress(|| read(&known))? {
                return Ok(Some(known.size));
            }
            // Some subfile is shorter than the size says, or ahead of it: a hole, or a cut.
            let now = self.homes.ask(file.ino)?;
            // No truncation: what is missing is a hole, which reads as zeros. The smaller size is valid for both
            // moments.
            if now.epoch == known.epoch {
                return Ok(Some(now.size.min(known.size)));
            }
            known = self.checked(&file, now)?;
        }
        Ok(None)
    }

    /// Checks that a call may go on with what is known of a file, and returns that.
    pub(crate) fn checked(&self, file: &Access, known: KnownFile) -> FsResult<KnownFile> {
        file.check(&known, self.partitions.contract(&known)?)?;
        Ok(known)
    }
}

/// Returns the error of a call that truncations have overtaken too often.
pub fn overtaken(ino: Ino) -> FsError {
    FsError::with(
        Errno::EIO,
        format!("inode {ino} was cut {OVERTAKEN_MAX} times while it was read or written"),
    )
}
