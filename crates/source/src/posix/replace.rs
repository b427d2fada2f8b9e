//! Conditional replacement of a file: source and target are exchanged atomically, the displaced file is compared with
//! the precondition, and the exchange is undone if it does not match.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, RenameFlags, renameat, renameat_with};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use super::attrs::version_at;
use super::{PosixSource, TEMPORARY};
use crate::error::Cause;
use crate::source::split_path;
use crate::{Precondition, SourceError, SourceResult, Upload, Version};

/// A temporary file or link in the directory of its target.
pub struct TemporaryEntry<'a> {
    /// The common directory.
    pub dir: &'a OwnedFd,
    /// The temporary name.
    pub name: &'a [u8],
    /// The inode number, as versions have it: identifies the file under its temporary name. Empty if unknown.
    pub tag: &'a str,
    /// The target path.
    pub path: &'a [u8],
}

impl TemporaryEntry<'_> {
    fn target(&self) -> &[u8] {
        split_path(self.path).1
    }

    fn rename(&self, flags: RenameFlags) -> Result<(), Errno> {
        renameat_with(self.dir, self.name, self.dir, self.target(), flags)
    }
}

impl PosixSource {
    pub(super) fn replace_target(&self, new: &TemporaryEntry<'_>, expect: &Precondition) -> SourceResult<()> {
        let outcome = match expect {
            Precondition::Anything => Err(Errno::INVAL),
            Precondition::Absent => new.rename(RenameFlags::NOREPLACE),
            Precondition::Version(_) => {
                // A cheap early refusal. What counts is the comparison after the exchange.
                self.expect(new.path, expect)?;
                new.rename(RenameFlags::EXCHANGE)
            }
        };
        match (outcome, expect) {
            // No precondition, or a file system without this kind of rename (NFS, some FUSE file systems). The check
            // just before the rename leaves a short window there, which semantics.md names.
            (Err(Errno::INVAL | Errno::NOSYS), _) => {
                if *expect == Precondition::Absent {
                    self.expect(new.path, expect)?;
                }
                renameat(new.dir, new.name, new.dir, new.target()).map_err(self.failed(new.path))
            }
            (Err(Errno::EXIST | Errno::NOENT), _) => Err(SourceError::changed(&self.object(new.path))),
            (Err(error), _) => Err(self.failed(new.path)(error)),
            (Ok(()), Precondition::Version(version)) => self.finish_exchange(new, version),
            (Ok(()), _) => Ok(()),
        }
    }

    /// Completes an exchange: unlinks the displaced file if it is the expected one, otherwise undoes the exchange.
    fn finish_exchange(&self, new: &TemporaryEntry<'_>, version: &Version) -> SourceResult<()> {
        if self.temporary_version(new)?.is_some_and(|displaced| displaced == *version) {
            return self.unlink_displaced(new);
        }
        self.undo_exchange(new)?;
        Err(SourceError::changed(&self.object(new.path)))
    }

    fn undo_exchange(&self, new: &TemporaryEntry<'_>) -> SourceResult<()> {
        match new.rename(RenameFlags::EXCHANGE) {
            // The new file has been removed in the meantime, so there is nothing to exchange the displaced one with.
            Err(Errno::NOENT) => match new.rename(RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => return Err(self.conflict(new)),
                outcome => return outcome.map_err(self.failed(new.path)),
            },
            outcome => outcome.map_err(self.failed(new.path))?,
        }
        if self.temporary_version(new)?.is_none_or(|back| back.tag == new.tag) {
            return Ok(());
        }
        // The new file was overwritten between the two exchanges. That third file is the latest one: it goes back to
        // the target, and the displaced one stays under the temporary name instead of being lost.
        new.rename(RenameFlags::EXCHANGE).map_err(self.failed(new.path))?;
        Err(self.conflict(new))
    }

    fn conflict(&self, new: &TemporaryEntry<'_>) -> SourceError {
        let (object, name) = (self.object(new.path), String::from_utf8_lossy(new.name));
        let text = format!(
            "{object}: changed at the source several times meanwhile: one of them is kept as '{name}'"
        );
        SourceError::new(Cause::Changed, text)
    }

    fn temporary_version(&self, new: &TemporaryEntry<'_>) -> SourceResult<Option<Version>> {
        version_at(new.dir, new.name).map_err(self.failed(new.path))
    }

    fn unlink_temporary(&self, new: &TemporaryEntry<'_>) -> SourceResult<()> {
        match rustix::fs::unlinkat(new.dir, new.name, AtFlags::empty()) {
            Err(Errno::NOENT) | Ok(()) => Ok(()),
            Err(error) => Err(self.failed(new.path)(error)),
        }
    }

    /// Unlinks what was displaced. A directory goes back to its place: what is in it is not ours.
    fn unlink_displaced(&self, new: &TemporaryEntry<'_>) -> SourceResult<()> {
        match rustix::fs::unlinkat(new.dir, new.name, AtFlags::empty()) {
            Err(Errno::NOENT) | Ok(()) => Ok(()),
            Err(error) => {
                self.undo_exchange(new)?;
                Err(self.failed(new.path)(error))
            }
        }
    }

    /// Unlinks a temporary file, unless another file has taken its name since.
    pub(super) fn discard_temporary(&self, new: &TemporaryEntry<'_>) -> SourceResult<()> {
        let is_ours = |found: Version| new.tag.is_empty() || found.tag == new.tag;
        if self.temporary_version(new)?.is_some_and(is_ours) { self.unlink_temporary(new) } else { Ok(()) }
    }

    /// Returns the result of an upload after a crash, see [`Source::resume`](crate::Source::resume).
    pub(super) fn resume_upload(
        &self,
        upload: &Upload,
        expect: &Precondition,
    ) -> SourceResult<Option<Version>> {
        let (parent, name) = split_path(&upload.path);
        let dir = match self.open_dir_handle(parent) {
            Err(error) if error.cause() == Cause::NotFound => return Ok(None),
            dir => dir?,
        };
        let new =
            TemporaryEntry { dir: &dir, name: upload.token.as_bytes(), tag: &upload.tag, path: &upload.path };
        let placed = version_at(&dir, name).map_err(self.failed(&upload.path))?;
        let Some(placed) = placed.filter(|placed| placed.tag == upload.tag) else {
            return self.discard_temporary(&new).map(|()| None);
        };
        // The process was killed between the exchange and its completion.
        match (self.temporary_version(&new)?, expect) {
            (None, _) => Ok(Some(placed)),
            (Some(displaced), Precondition::Version(version)) if displaced != *version => {
                self.undo_exchange(&new)?;
                self.discard_temporary(&new).map(|()| None)
            }
            // Without an exchange nothing was displaced: what has the temporary name is none of this upload's.
            (Some(_), Precondition::Absent) => Ok(Some(placed)),
            (Some(_), _) => match self.unlink_displaced(&new) {
                Ok(()) => Ok(Some(placed)),
                Err(error) if error.cause() == Cause::WrongKind => {
                    self.discard_temporary(&new).map(|()| None)
                }
                Err(error) => Err(error),
            },
        }
    }

    /// Completes or reverts a removal after a crash.
    pub(super) fn finish_removal_of(&self, path: &[u8], version: &Version) -> SourceResult<()> {
        let (parent, name) = split_path(path);
        let dir = match self.open_dir_handle(parent) {
            Err(error) if error.cause() == Cause::NotFound => return Ok(()),
            dir => dir?,
        };
        let aside = removal_name(name);
        let aside = TemporaryEntry { dir: &dir, name: aside.as_bytes(), tag: &version.tag, path };
        let left = self.temporary_version(&aside)?;
        left.map_or(Ok(()), |left| self.conclude_removal(&aside, &left, version))
    }

    /// Removes a file or link that still has `version`: it is renamed to a deterministic temporary name first, which a
    /// retry finds, and compared there.
    pub(super) fn remove_version(&self, path: &[u8], version: &Version) -> SourceResult<()> {
        let (parent, name) = split_path(path);
        let dir = match self.open_dir_handle(parent) {
            Err(error) if error.cause() == Cause::NotFound => return Ok(()),
            dir => dir?,
        };
        let aside = removal_name(name);
        let aside = TemporaryEntry { dir: &dir, name: aside.as_bytes(), tag: &version.tag, path };
        // A crash has left a file of an earlier attempt: its removal is decided first.
        if let Some(left) = self.temporary_version(&aside)? {
            return self.conclude_removal(&aside, &left, version);
        }
        match version_at(&dir, name).map_err(self.failed(path))? {
            None => return Ok(()),
            Some(found) if found != *version => return Err(SourceError::changed(&self.object(path))),
            Some(_) => {}
        }
        match renameat_with(&dir, name, &dir, aside.name, RenameFlags::NOREPLACE) {
            Ok(()) => match self.temporary_version(&aside)? {
                Some(found) => self.conclude_removal(&aside, &found, version),
                None => Ok(()),
            },
            Err(Errno::NOENT) => Ok(()),
            // A file system without this kind of rename: the comparison just before has to suffice.
            Err(Errno::INVAL | Errno::NOSYS) => match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
                Err(Errno::NOENT) | Ok(()) => Ok(()),
                Err(error) => Err(self.failed(path)(error)),
            },
            Err(error) => Err(self.failed(path)(error)),
        }
    }

    /// Unlinks the renamed file if it has the expected version, otherwise renames it back.
    fn conclude_removal(
        &self,
        aside: &TemporaryEntry<'_>,
        found: &Version,
        version: &Version,
    ) -> SourceResult<()> {
        // Compared under the temporary name, where no other process replaces the file.
        if found == version {
            return self.unlink_temporary(aside);
        }
        match aside.rename(RenameFlags::NOREPLACE) {
            Ok(()) | Err(Errno::NOENT) => Err(SourceError::changed(&self.object(aside.path))),
            Err(Errno::EXIST) => Err(self.conflict(aside)),
            Err(error) => Err(self.failed(aside.path)(error)),
        }
    }
}

/// Returns the temporary name of a file under removal.
fn removal_name(name: &[u8]) -> String {
    format!("{TEMPORARY}gone-{:016x}", xxh3_64(name))
}
