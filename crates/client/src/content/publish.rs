//! The loops in which content is written and read, whichever way it travels: cuts that overtake it, what has to be
//! waited for, what the home is told afterwards, and what is left behind where it fails.
//!
//! Why they are right: docs/semantics.md, "Truncation" and "Bytes behind the end".

use std::ops::Range;

use bivouac_types::{Errno, FsError, FsResult, Ino};
use bivouac_wire::{ExtendOverRequest, ExtendRequest, InoOnly, op};

use super::Content;
use crate::homes::known::Known;
use crate::ways::when_here;

/// How often something is done again because cuts of the file overtake it.
pub const OVERTAKEN_MAX: usize = 64;

/// A change of a file's content.
#[derive(Clone, Copy)]
pub struct Update {
    /// The file.
    pub ino: Ino,
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
    pub(crate) fn of(ino: Ino, end: u64) -> Update {
        Update { ino, end, tries: OVERTAKEN_MAX, has_bytes: true }
    }
}

impl Content {
    /// Data first, then the size: no reader sees a size whose bytes are not there. `carry` carries everything to the
    /// seats, and says whether none had a newer epoch; it is called again if one had. `start` says, of a size, where
    /// behind it what is written without a gap up to the end begins.
    pub(crate) fn publish(
        &self,
        update: &Update,
        start: impl Fn(u64) -> u64,
        carry: impl FnMut(&Known) -> FsResult<bool>,
    ) -> FsResult<()> {
        let published = self.publish_within(update, start, carry)?;
        if published { Ok(()) } else { Err(overtaken(update.ino)) }
    }

    /// As [`Content::publish`], or `false` if cuts have overtaken it too often.
    pub(crate) fn publish_within(
        &self,
        update: &Update,
        start: impl Fn(u64) -> u64,
        mut carry: impl FnMut(&Known) -> FsResult<bool>,
    ) -> FsResult<bool> {
        let Update { ino, end, tries, has_bytes } = *update;
        let mut known = self.homes.know(ino)?;
        for _ in 0..tries {
            let attempt = self.room.when_there_is(|| self.attempt(ino, &known, end, &start, &mut carry));
            if attempt.is_err() && has_bytes && end > known.size {
                // What some seats took must not come up when the file grows over it.
                self.cut_tail(ino);
            }
            match attempt? {
                Some(now) => known = now,
                None => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Carries once, and tells the size. What is to be known for the next attempt, if a cut has overtaken this one.
    fn attempt(
        &self,
        ino: Ino,
        known: &Known,
        end: u64,
        start: impl Fn(u64) -> u64,
        mut carry: impl FnMut(&Known) -> FsResult<bool>,
    ) -> FsResult<Option<Known>> {
        if !carry(known)? {
            // A cut is on its way through the seats; its end is where the home lets us go on.
            return self.extend(ino, &(0..0), known).map(|(_, now)| Some(now));
        }
        if end <= known.size {
            return if self.known.written(ino) { self.homes.touch(ino).map(|()| None) } else { Ok(None) };
        }
        let written = start(known.size)..end;
        if self.direct.sizes.tell(ino, &written, known) {
            self.known.grew(ino, written, known.epoch);
            return Ok(None);
        }
        let (accepted, now) = self.extend(ino, &written, known)?;
        if accepted {
            self.direct.grew(self.ways.home(ino)?, ino);
        }
        Ok((!accepted).then_some(now))
    }

    /// Tells the home the end of a write, also of one that leaves a hole in front of it. Whether it has taken it down, and
    /// what it says of the file; it says nothing while a cut is under way.
    fn extend(&self, ino: Ino, written: &Range<u64>, known: &Known) -> FsResult<(bool, Known)> {
        let (home, epoch, start, end) = (self.ways.home(ino)?, known.epoch, written.start, written.end);
        let tell = || match start > known.size {
            true => self.ways.ask::<op::ExtendOver>(home, &ExtendOverRequest { ino, start, end, epoch }),
            false => self.ways.ask::<op::Extend>(home, &ExtendRequest { ino, end, epoch }),
        };
        let told = self.homes.changing(ino, tell)?;
        self.known.changed(&told.attr);
        Ok((told.accepted, Known::from(&told.attr)))
    }

    /// Has the home cut off what is behind the end.
    pub(crate) fn cut_tail(&self, ino: Ino) {
        let cut = self.ways.home(ino).and_then(|home| self.ways.ask::<op::CutTail>(home, &InoOnly { ino }));
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
        ino: Ino,
        mut known: Known,
        mut read: impl FnMut(&Known) -> FsResult<bool>,
    ) -> FsResult<Option<u64>> {
        for _ in 0..tries {
            if when_here(|| read(&known))? {
                return Ok(Some(known.size));
            }
            // Some subfile is shorter than the size says, or ahead of it: a hole, or a cut.
            let now = self.homes.ask(ino)?;
            if now.epoch == known.epoch {
                return Ok(Some(now.size.min(known.size)));
            }
            known = now;
        }
        Ok(None)
    }
}

/// The failure of what cuts have overtaken too often.
pub fn overtaken(ino: Ino) -> FsError {
    FsError::with(
        Errno::EIO,
        format!("inode {ino} was cut {OVERTAKEN_MAX} times while it was read or written"),
    )
}
