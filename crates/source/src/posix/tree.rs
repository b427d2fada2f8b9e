//! Opening what is below the root, and nothing else.

use std::os::fd::OwnedFd;

use bivouac_types::mode;
use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::PosixSource;
use crate::error::Cause;
use crate::source::check_path;
use crate::{SourceError, SourceResult};

impl PosixSource {
    /// A directory below the root, to be listed or worked in.
    pub(super) fn open_dir(&self, path: &[u8]) -> SourceResult<OwnedFd> {
        self.open_below(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// A directory below the root, to name things in: it is not asked whether it may be listed, and cannot be synced.
    pub(super) fn open_place(&self, path: &[u8]) -> SourceResult<OwnedFd> {
        self.open_below(path, OFlags::PATH | OFlags::DIRECTORY)
    }

    /// A regular file below the root.
    pub(super) fn open_file(&self, path: &[u8], flags: OFlags) -> SourceResult<OwnedFd> {
        // Not to wait for the other end of a pipe that has taken the file's place.
        let file = self.open_below(path, flags | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let stat = rustix::fs::fstat(&file).map_err(self.failed(path))?;
        if stat.st_mode & mode::TYPE == mode::FILE {
            return Ok(file);
        }
        Err(SourceError::new(Cause::Changed, format!("{}: is no regular file", self.object(path))))
    }

    /// Neither links nor `..` lead out of the tree.
    fn open_below(&self, path: &[u8], flags: OFlags) -> SourceResult<OwnedFd> {
        check_path(path)?;
        let name: &[u8] = if path.is_empty() { b"." } else { path };
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        rustix::fs::openat2(&self.root, name, flags | OFlags::CLOEXEC, Mode::empty(), how)
            .map_err(self.failed(path))
    }
}
