//! Opening of paths below the root.

use std::os::fd::OwnedFd;

use bivouac_types::mode;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

use super::PosixSource;
use crate::error::Cause;
use crate::source::{check_path, split_path};
use crate::{Attrs, SourceError, SourceResult};

impl PosixSource {
    /// Opens a directory for reading.
    pub(super) fn open_dir(&self, path: &[u8]) -> SourceResult<OwnedFd> {
        self.open_below(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// Opens a directory with `O_PATH` for operations on its entries: needs no read permission, and cannot be synced.
    pub(super) fn open_dir_handle(&self, path: &[u8]) -> SourceResult<OwnedFd> {
        self.open_below(path, OFlags::PATH | OFlags::DIRECTORY)
    }

    /// Opens a regular file.
    pub(super) fn open_file(&self, path: &[u8], flags: OFlags) -> SourceResult<OwnedFd> {
        // NONBLOCK: a FIFO that has replaced the file must not block the open.
        let file = self.open_below(path, flags | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        // The type of an inode never changes, so a cached answer is as good as a round trip to a file server.
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

    /// Creates a directory with all permissions for its owner, and returns whether it did not exist before.
    pub(super) fn make_dir(&self, path: &[u8], attrs: &Attrs) -> SourceResult<bool> {
        let (parent, name) = split_path(path);
        if name.is_empty() {
            return Ok(false);
        }
        let fd = self.open_dir_handle(parent)?;
        // The owner gets all permissions until the final attributes are set: entries follow before that.
        match rustix::fs::mkdirat(&fd, name, Mode::from_raw_mode(attrs.perm & 0o777) | Mode::RWXU) {
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(self.failed(path)(error)),
            Ok(()) => Ok(true),
        }
    }

    /// Opens a path below the root; the kernel refuses symbolic links and `..` that would leave the tree.
    fn open_below(&self, path: &[u8], flags: OFlags) -> SourceResult<OwnedFd> {
        check_path(path)?;
        let name: &[u8] = if path.is_empty() { b"." } else { path };
        // The tree belongs to users who may replace a directory by a link at any time, so the kernel has to check each
        // component of the path. A check in advance would be a race.
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        rustix::fs::openat2(&self.root, name, flags | OFlags::CLOEXEC, Mode::empty(), how)
            .map_err(self.failed(path))
    }
}
