//! Taking the place of a file that must be what is expected, at the moment of taking it: both change places in one step,
//! then it is looked at what went, and given back if it is not what was expected.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, RenameFlags, renameat, renameat_with};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use super::attrs::version_at;
use super::{PosixSource, TEMPORARY};
use crate::error::Cause;
use crate::source::split_path;
use crate::{Expect, SourceError, SourceResult, Upload, Version};

/// Something beside the place that it is to take.
pub struct Beside<'a> {
    /// The directory of both.
    pub dir: &'a OwnedFd,
    /// The name that it has there.
    pub name: &'a [u8],
    /// What tells it from everything else: its inode number, as versions have it.
    pub tag: &'a str,
    /// The place.
    pub path: &'a [u8],
}

impl Beside<'_> {
    fn target(&self) -> &[u8] {
        split_path(self.path).1
    }

    fn rename(&self, flags: RenameFlags) -> Result<(), Errno> {
        renameat_with(self.dir, self.name, self.dir, self.target(), flags)
    }
}

impl PosixSource {
    pub(super) fn take_place(&self, new: &Beside<'_>, expect: &Expect) -> SourceResult<()> {
        let outcome = match expect {
            Expect::Anything => Err(Errno::INVAL),
            Expect::Absent => new.rename(RenameFlags::NOREPLACE),
            Expect::Version(_) => {
                self.expect(new.path, expect)?;
                new.rename(RenameFlags::EXCHANGE)
            }
        };
        match (outcome, expect) {
            // Nothing is expected; or a file system without this kind of rename: the look just before has to do.
            (Err(Errno::INVAL | Errno::NOSYS), _) => {
                if *expect == Expect::Absent {
                    self.expect(new.path, expect)?;
                }
                renameat(new.dir, new.name, new.dir, new.target()).map_err(self.failed(new.path))
            }
            (Err(Errno::EXIST | Errno::NOENT), _) => Err(SourceError::changed(&self.object(new.path))),
            (Err(error), _) => Err(self.failed(new.path)(error)),
            (Ok(()), Expect::Version(version)) => self.conclude_place(new, version),
            (Ok(()), _) => Ok(()),
        }
    }

    /// Both have changed places: what was expected goes, anything else gets its place back.
    fn conclude_place(&self, new: &Beside<'_>, version: &Version) -> SourceResult<()> {
        if self.beside(new)?.is_some_and(|displaced| displaced == *version) {
            return self.remove_beside(new);
        }
        self.give_back(new)?;
        Err(SourceError::changed(&self.object(new.path)))
    }

    fn give_back(&self, new: &Beside<'_>) -> SourceResult<()> {
        match new.rename(RenameFlags::EXCHANGE) {
            // Who has removed ours meanwhile has removed nothing of anybody else.
            Err(Errno::NOENT) => match new.rename(RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => return Err(self.kept_beside(new)),
                outcome => return outcome.map_err(self.failed(new.path)),
            },
            outcome => outcome.map_err(self.failed(new.path))?,
        }
        if self.beside(new)?.is_none_or(|back| back.tag == new.tag) {
            return Ok(());
        }
        // Somebody has overwritten ours meanwhile, which is the latest.
        new.rename(RenameFlags::EXCHANGE).map_err(self.failed(new.path))?;
        Err(self.kept_beside(new))
    }

    fn kept_beside(&self, new: &Beside<'_>) -> SourceError {
        let (object, name) = (self.object(new.path), String::from_utf8_lossy(new.name));
        let text = format!(
            "{object}: changed at the source several times meanwhile: one of them is kept as '{name}'"
        );
        SourceError::new(Cause::Changed, text)
    }

    fn beside(&self, new: &Beside<'_>) -> SourceResult<Option<Version>> {
        version_at(new.dir, new.name).map_err(self.failed(new.path))
    }

    fn remove_beside(&self, new: &Beside<'_>) -> SourceResult<()> {
        match rustix::fs::unlinkat(new.dir, new.name, AtFlags::empty()) {
            Err(Errno::NOENT) | Ok(()) => Ok(()),
            Err(error) => Err(self.failed(new.path)(error)),
        }
    }

    /// Removes what was to take a place, and nothing that has come under its name since.
    pub(super) fn throw_away(&self, new: &Beside<'_>) -> SourceResult<()> {
        let is_ours = |found: Version| new.tag.is_empty() || found.tag == new.tag;
        if self.beside(new)?.is_some_and(is_ours) { self.remove_beside(new) } else { Ok(()) }
    }

    /// What became of an upload whose maker was killed, see [`Source::resume`](crate::Source::resume).
    pub(super) fn resume_upload(&self, upload: &Upload, expect: &Expect) -> SourceResult<Option<Version>> {
        let (parent, name) = split_path(&upload.path);
        let dir = match self.open_place(parent) {
            Err(error) if error.cause() == Cause::NotFound => return Ok(None),
            dir => dir?,
        };
        let new = Beside { dir: &dir, name: upload.token.as_bytes(), tag: &upload.tag, path: &upload.path };
        let placed = version_at(&dir, name).map_err(self.failed(&upload.path))?;
        let Some(placed) = placed.filter(|placed| placed.tag == upload.tag) else {
            return self.throw_away(&new).map(|()| None);
        };
        // Killed in the middle of changing places.
        match (self.beside(&new)?, expect) {
            (None, _) => Ok(Some(placed)),
            (Some(displaced), Expect::Version(version)) if displaced != *version => {
                self.give_back(&new)?;
                self.throw_away(&new).map(|()| None)
            }
            (Some(_), Expect::Absent) => Ok(Some(placed)),
            (Some(_), _) => self.remove_beside(&new).map(|()| Some(placed)),
        }
    }

    /// What somebody who was killed has put aside goes, or back.
    pub(super) fn finish_removal_of(&self, path: &[u8], version: &Version) -> SourceResult<()> {
        let (parent, name) = split_path(path);
        let dir = match self.open_place(parent) {
            Err(error) if error.cause() == Cause::NotFound => return Ok(()),
            dir => dir?,
        };
        let aside = name_aside(name);
        let aside = Beside { dir: &dir, name: aside.as_bytes(), tag: &version.tag, path };
        let left = self.beside(&aside)?;
        left.map_or(Ok(()), |left| self.conclude_removal(&aside, &left, version))
    }

    /// Removes a file or link that still looks like `version`: it is put aside first, under a name that a second try
    /// knows, and looked at there.
    pub(super) fn remove_seen(&self, path: &[u8], version: &Version) -> SourceResult<()> {
        let (parent, name) = split_path(path);
        let dir = match self.open_place(parent) {
            Err(error) if error.cause() == Cause::NotFound => return Ok(()),
            dir => dir?,
        };
        let aside = name_aside(name);
        let aside = Beside { dir: &dir, name: aside.as_bytes(), tag: &version.tag, path };
        // Left by somebody who was killed.
        if let Some(left) = self.beside(&aside)? {
            return self.conclude_removal(&aside, &left, version);
        }
        match version_at(&dir, name).map_err(self.failed(path))? {
            None => return Ok(()),
            Some(found) if found != *version => return Err(SourceError::changed(&self.object(path))),
            Some(_) => {}
        }
        match renameat_with(&dir, name, &dir, aside.name, RenameFlags::NOREPLACE) {
            Ok(()) => match self.beside(&aside)? {
                Some(found) => self.conclude_removal(&aside, &found, version),
                None => Ok(()),
            },
            Err(Errno::NOENT) => Ok(()),
            // A file system without this kind of rename: the look just before has to do.
            Err(Errno::INVAL | Errno::NOSYS) => match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
                Err(Errno::NOENT) | Ok(()) => Ok(()),
                Err(error) => Err(self.failed(path)(error)),
            },
            Err(error) => Err(self.failed(path)(error)),
        }
    }

    /// What was put aside goes if it is what was to be removed, and back to its place otherwise.
    fn conclude_removal(&self, aside: &Beside<'_>, found: &Version, version: &Version) -> SourceResult<()> {
        if found == version {
            return self.remove_beside(aside);
        }
        match aside.rename(RenameFlags::NOREPLACE) {
            Ok(()) | Err(Errno::NOENT) => Err(SourceError::changed(&self.object(aside.path))),
            Err(Errno::EXIST) => Err(self.kept_beside(aside)),
            Err(error) => Err(self.failed(aside.path)(error)),
        }
    }
}

/// What a file is called that is about to be removed.
fn name_aside(name: &[u8]) -> String {
    format!("{TEMPORARY}gone-{:016x}", xxh3_64(name))
}
