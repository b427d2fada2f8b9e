//! Opening what is below the root, and nothing else.

use std::os::fd::OwnedFd;

use bivouac_types::mode;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

use super::PosixSource;
use crate::error::Cause;
use crate::source::{check_path, split_path};
use crate::{Attrs, SourceError, SourceResult};

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
        // A file stays what it is: storage need not be asked again.
        let (as_known, kind) = (AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
        let mode = match rustix::fs::statx(&file, "", as_known, kind) {
            Ok(stat) if stat.stx_mask & kind.bits() != 0 => u32::from(stat.stx_mode),
            _ => rustix::fs::fstat(&file).map_err(self.failed(path))?.st_mode,
        };
        if mode & mode::TYPE == mode::FILE {
            return Ok(file);
        }
        Err(SourceError::new(Cause::Changed, format!("{}: is no regular file", self.object(path))))
    }

    /// Makes a directory that its owner can work in, unless there is something. Whether it did.
    pub(super) fn make_dir(&self, path: &[u8], attrs: &Attrs) -> SourceResult<bool> {
        let (parent, name) = split_path(path);
        if name.is_empty() {
            return Ok(false);
        }
        let fd = self.open_place(parent)?;
        match rustix::fs::mkdirat(&fd, name, Mode::from_raw_mode(attrs.perm & 0o777) | Mode::RWXU) {
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(self.failed(path)(error)),
            Ok(()) => Ok(true),
        }
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
