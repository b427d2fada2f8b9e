//! Files in the making: written beside their target under another name, then renamed.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_128;

use super::at_once::leave;
use super::attrs::{give_new, times, version_of};
use super::place::Beside;
use super::{PosixSource, TEMPORARY};
use crate::error::Cause;
use crate::model::Opened;
use crate::source::{join_path, split_path};
use crate::{Attrs, Expect, Kept, Piece, Source, SourceError, SourceResult, Upload};

/// Blocks of zeros of this size are left out, so that sparse files stay sparse.
const BLOCK: usize = 4096;
/// How often another temporary name is tried.
const TRIES_MAX: usize = 64;
/// Largest piece, in bytes: it is read again as a whole.
const PIECE_MAX: usize = 64 << 20;

impl PosixSource {
    pub(super) fn make_temporary(&self, path: &[u8], size: u64) -> SourceResult<Upload> {
        let (parent, name) = split_path(path);
        let dir = self.open_place(parent)?;
        // A name that the storage does not take is refused before anything is written.
        let is_taken = || match rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) | Ok(_) => Ok(()),
            Err(error) => Err(self.failed(path)(error)),
        };
        let make = || {
            let (token, file) = self.create_temporary(&dir, path)?;
            let made = self.size_temporary(&file, path, size);
            match made {
                Ok(tag) => {
                    Ok(Upload { path: path.to_vec(), size, token, tag, opened: Opened::holding(file) })
                }
                Err(error) => {
                    self.throw_away(&Beside { dir: &dir, name: token.as_bytes(), tag: "", path })?;
                    Err(error)
                }
            }
        };
        self.pace.both(is_taken, make, |upload| self.abort(&upload)).map(|((), upload)| upload)
    }

    fn create_temporary(&self, dir: &OwnedFd, path: &[u8]) -> SourceResult<(String, OwnedFd)> {
        let mode = Mode::RUSR | Mode::WUSR;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..TRIES_MAX {
            let token = temporary_name();
            match self.pace.timed(|| rustix::fs::openat(dir, token.as_str(), flags, mode)) {
                Ok(file) => return Ok((token, file)),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(self.failed(path)(error)),
            }
        }
        let text = format!("{}: no temporary name is free", self.object(path));
        Err(SourceError::new(Cause::Other, text))
    }

    /// Gives a new temporary file its size, and answers its tag.
    fn size_temporary(&self, file: &OwnedFd, path: &[u8], size: u64) -> SourceResult<String> {
        if size > 0 {
            rustix::fs::ftruncate(file, size).map_err(self.failed(path))?;
        }
        let stat = rustix::fs::fstat(file).map_err(self.failed(path))?;
        Ok(version_of(&stat).tag)
    }

    pub(super) fn put_piece(&self, upload: &Upload, offset: u64, data: &[u8]) -> SourceResult<Piece> {
        let file = self.file_of(upload)?;
        write_sparse(&file, offset, data).map_err(self.failed(&upload.path))?;
        Ok(Piece { offset, len: data.len() as u64, tag: format!("{:032x}", xxh3_128(data)) })
    }

    /// The temporary file, which must be what it was made as: its name cannot lead elsewhere.
    fn file_of(&self, upload: &Upload) -> SourceResult<Arc<OwnedFd>> {
        if !upload.token.starts_with(TEMPORARY) {
            let text = format!("'{}' is no name of a file in the making", upload.token);
            return Err(SourceError::new(Cause::BadName, text));
        }
        let path = join_path(split_path(&upload.path).0, upload.token.as_bytes());
        upload.opened.get(|| self.open_file(&path, OFlags::RDWR))
    }

    /// Synced first: what is read again then may still come from memory, but an error of the storage has been told.
    pub(super) fn verify_pieces(&self, upload: &Upload, pieces: &[Piece]) -> SourceResult<()> {
        let file = self.file_of(upload)?;
        rustix::fs::fsync(&file).map_err(self.failed(&upload.path))?;
        let mut buffer = Vec::new();
        for piece in pieces {
            buffer.resize(usize::try_from(piece.len).unwrap_or(usize::MAX).min(PIECE_MAX), 0);
            let read = read_full(&file, piece.offset, &mut buffer).map_err(self.failed(&upload.path))?;
            if read as u64 != piece.len || format!("{:032x}", xxh3_128(&buffer)) != piece.tag {
                let object = self.object(&upload.path);
                let text = format!("{object}: {} bytes at {} read back differently", piece.len, piece.offset);
                return Err(SourceError::new(Cause::Other, text));
            }
        }
        Ok(())
    }

    pub(super) fn commit_upload(
        &self,
        upload: &Upload,
        attrs: &Attrs,
        expect: &Expect,
    ) -> SourceResult<Kept> {
        let path = &upload.path;
        let file = self.file_of(upload)?;
        let make_ready = || {
            let (lost, version) = give_new(&file, attrs, &self.object(path)).map_err(self.failed(path))?;
            let size = version.size;
            if size != upload.size {
                let text =
                    format!("{}: is {size} bytes beside its target, not {}", self.object(path), upload.size);
                return Err(SourceError::new(Cause::Other, text));
            }
            rustix::fs::fsync(&file).map_err(self.failed(path))?;
            // What it looks like from now on: another name changes nothing of that.
            Ok(Kept { version, lost })
        };
        let find_place = || {
            self.check()?;
            self.open_dir(split_path(path).0)
        };
        let (dir, kept) = self.pace.both(find_place, make_ready, leave)?;
        let (name, tag) = (upload.token.as_bytes(), &kept.version.tag[..]);
        self.take_place(&Beside { dir: &dir, name, tag, path }, expect)?;
        rustix::fs::fsync(&dir).map_err(self.failed(path))?;
        Ok(kept)
    }

    /// A link is made under another name first, so that an old one is replaced as a whole.
    pub(super) fn make_link(
        &self,
        path: &[u8],
        target: &[u8],
        attrs: &Attrs,
        expect: &Expect,
    ) -> SourceResult<Kept> {
        let dir = self.open_place(split_path(path).0)?;
        let name = temporary_name();
        rustix::fs::symlinkat(target, &dir, name.as_str()).map_err(self.failed(path))?;
        let set = rustix::fs::utimensat(&dir, name.as_str(), &times(attrs), AtFlags::SYMLINK_NOFOLLOW);
        let made = super::meta_of(&dir, name.as_bytes()).map_err(self.failed(path))?.version;
        let new = Beside { dir: &dir, name: name.as_bytes(), tag: &made.tag, path };
        let placed = set.map_err(self.failed(path)).and_then(|()| self.take_place(&new, expect));
        if let Err(error) = placed {
            self.throw_away(&new)?;
            return Err(error);
        }
        let meta = super::meta_of(&dir, split_path(path).1).map_err(self.failed(path))?;
        Ok(Kept { version: meta.version, lost: Vec::new() })
    }
}

/// Unlikely to be taken; whoever makes a file sees to it that it is not.
fn temporary_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{TEMPORARY}{:x}-{count:x}", std::process::id())
}

/// Writes all of it, holes where there are blocks of zeros.
fn write_sparse(file: &OwnedFd, offset: u64, data: &[u8]) -> Result<(), Errno> {
    let mut at = 0;
    while at < data.len() {
        let rest = data.get(at..).unwrap_or_default();
        let zeros = rest.chunks(BLOCK).take_while(|block| block.iter().all(|byte| *byte == 0)).count();
        let zeros = (zeros * BLOCK).min(rest.len());
        make_hole(file, offset + at as u64, rest.get(..zeros).unwrap_or_default())?;
        at += zeros;
        let rest = data.get(at..).unwrap_or_default();
        let full = rest.chunks(BLOCK).take_while(|block| block.iter().any(|byte| *byte != 0)).count();
        let len = (full * BLOCK).min(rest.len());
        write_full(file, offset + at as u64, rest.get(..len).unwrap_or_default())?;
        at += len;
    }
    Ok(())
}

/// A hole in place of zeros, where the file system has holes.
fn make_hole(file: &OwnedFd, offset: u64, zeros: &[u8]) -> Result<(), Errno> {
    if zeros.is_empty() {
        return Ok(());
    }
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, flags, offset, zeros.len() as u64) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_full(file, offset, zeros),
        outcome => outcome,
    }
}

fn write_full(file: &OwnedFd, mut offset: u64, mut data: &[u8]) -> Result<(), Errno> {
    while !data.is_empty() {
        match rustix::io::pwrite(file, data, offset) {
            Ok(0) => return Err(Errno::IO),
            Ok(len) => {
                offset += len as u64;
                data = data.get(len..).unwrap_or_default();
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Fewer bytes than fit only at the end of the file.
pub fn read_full(file: impl AsFd, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
    let mut done = 0;
    while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(&file, rest, offset + done as u64) {
            Ok(0) => break,
            Ok(len) => done += len,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
