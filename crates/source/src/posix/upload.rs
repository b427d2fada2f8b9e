//! Uploads: written to a temporary file beside the target, then renamed.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_128;

use super::attrs::{apply_new, times, version_at, version_of};
use super::replace::TemporaryEntry;
use super::request_latency::no_undo;
use super::{PosixSource, TEMPORARY};
use crate::error::Cause;
use crate::model::CachedFd;
use crate::source::{join_path, split_path};
use crate::{Attrs, Piece, Precondition, PutOutcome, Source, SourceError, SourceResult, Upload};

/// Aligned blocks of zeros of this size become holes, so that sparse files stay sparse.
const BLOCK: usize = 4096;
/// Largest piece, in bytes; verification reads it into memory as a whole.
const PIECE_MAX: usize = 64 << 20;

impl PosixSource {
    pub(super) fn make_temporary(&self, plan: Upload) -> SourceResult<Upload> {
        let path = &plan.path[..];
        let (parent, name) = split_path(path);
        let dir = self.open_dir_handle(parent)?;
        // A name that the storage refuses must fail before any data is written. EXIST is no failure here: the
        // precondition is checked at the commit.
        let check_name = || match rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) | Ok(_) => Ok(()),
            Err(error) => Err(self.failed(path)(error)),
        };
        let make = || {
            let file = self.create_temporary(&dir, &plan)?;
            let made = self.size_temporary(&file, path, plan.size);
            match made {
                Ok(tag) => Ok(Upload { tag, opened: CachedFd::holding(file), ..plan.clone() }),
                Err(error) => {
                    self.discard_temporary(&TemporaryEntry {
                        dir: &dir,
                        name: plan.token.as_bytes(),
                        tag: "",
                        path,
                    })?;
                    Err(error)
                }
            }
        };
        self.latency.run_both(check_name, make, |upload| self.abort(&upload)).map(|((), upload)| upload)
    }

    fn create_temporary(&self, dir: &OwnedFd, plan: &Upload) -> SourceResult<OwnedFd> {
        let mode = Mode::RUSR | Mode::WUSR;
        // EXCL and NOFOLLOW: the directory may be writable by others, who must not redirect the write.
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.check_token(plan)?;
        let made = self.latency.measured(|| rustix::fs::openat(dir, plan.token.as_str(), flags, mode));
        made.map_err(self.failed(&plan.path))
    }

    /// Sets the size of a new temporary file, and returns its tag.
    fn size_temporary(&self, file: &OwnedFd, path: &[u8], size: u64) -> SourceResult<String> {
        if size > 0 {
            rustix::fs::ftruncate(file, size).map_err(self.failed(path))?;
        }
        let stat = rustix::fs::fstat(file).map_err(self.failed(path))?;
        Ok(version_of(&stat).tag)
    }

    pub(super) fn put_piece(&self, upload: &Upload, offset: u64, data: &[u8]) -> SourceResult<Piece> {
        let file = self.temporary_fd(upload)?;
        write_sparse(&file, offset, data).map_err(self.failed(&upload.path))?;
        Ok(Piece { offset, len: data.len() as u64, tag: format!("{:032x}", xxh3_128(data)) })
    }

    /// Returns the descriptor of the temporary file. The name is checked, because upload records come from other
    /// processes.
    fn temporary_fd(&self, upload: &Upload) -> SourceResult<Arc<OwnedFd>> {
        self.check_token(upload)?;
        let path = join_path(split_path(&upload.path).0, upload.token.as_bytes());
        upload.opened.get(|| self.open_file(&path, OFlags::RDWR))
    }

    fn check_token(&self, upload: &Upload) -> SourceResult<()> {
        if upload.token.starts_with(TEMPORARY) && !upload.token.contains('/') {
            return Ok(());
        }
        let text = format!("'{}' is no name of a file in the making", upload.token);
        Err(SourceError::new(Cause::BadName, text))
    }

    /// Syncs before it reads back: the data may still come from the page cache, but write errors of the storage have
    /// been reported.
    pub(super) fn verify_pieces(&self, upload: &Upload, pieces: &[Piece]) -> SourceResult<()> {
        let file = self.temporary_fd(upload)?;
        rustix::fs::fsync(&file).map_err(self.failed(&upload.path))?;
        let mut buffer = Vec::new();
        for piece in pieces {
            buffer.resize(usize::try_from(piece.len).unwrap_or(usize::MAX).min(PIECE_MAX), 0);
            // Digests are of what was received, so an error between the network and the disk shows here.
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
        expect: &Precondition,
    ) -> SourceResult<PutOutcome> {
        let path = &upload.path;
        let file = self.temporary_fd(upload)?;
        let make_ready = || {
            let (lost, version) = apply_new(&file, attrs, &self.object(path)).map_err(self.failed(path))?;
            // Another one may have the name by now: of a beginning that was carried out late, and empty.
            if !upload.tag.is_empty() && version.tag != upload.tag {
                let text =
                    format!("{}: another file is beside its target than was written", self.object(path));
                return Err(SourceError::new(Cause::Other, text));
            }
            let size = version.size;
            if size != upload.size {
                let text =
                    format!("{}: is {size} bytes beside its target, not {}", self.object(path), upload.size);
                return Err(SourceError::new(Cause::Other, text));
            }
            rustix::fs::fsync(&file).map_err(self.failed(path))?;
            // A rename changes neither size, time nor inode number, so this is the version at the target, too.
            Ok(PutOutcome { version, lost })
        };
        let find_place = || {
            self.check()?;
            self.open_dir(split_path(path).0)
        };
        // The target directory is opened again: the file system may have been unmounted since the upload began.
        let (dir, kept) = self.latency.run_both(find_place, make_ready, no_undo)?;
        let (name, tag) = (upload.token.as_bytes(), &kept.version.tag[..]);
        // Only now: data and attributes are durable before the name, so a crash leaves all of the old file or the new.
        self.replace_target(&TemporaryEntry { dir: &dir, name, tag, path }, expect)?;
        // Without a sync of the directory a crash of the file server may undo the rename after it was acknowledged.
        rustix::fs::fsync(&dir).map_err(self.failed(path))?;
        Ok(kept)
    }

    /// Creates the link under a temporary name, so that an existing one is replaced atomically.
    pub(super) fn make_link(&self, plan: Upload, target: &[u8]) -> SourceResult<Upload> {
        self.check_token(&plan)?;
        let (dir, name) = (self.open_dir_handle(split_path(&plan.path).0)?, plan.token.as_str());
        rustix::fs::symlinkat(target, &dir, name).map_err(self.failed(&plan.path))?;
        match version_at(&dir, name.as_bytes()) {
            Ok(Some(made)) => Ok(Upload { tag: made.tag, ..plan }),
            Ok(None) => Err(SourceError::changed(&self.object(&plan.path))),
            Err(error) => {
                self.discard_temporary(&TemporaryEntry {
                    dir: &dir,
                    name: name.as_bytes(),
                    tag: "",
                    path: &plan.path,
                })?;
                Err(self.failed(&plan.path)(error))
            }
        }
    }

    pub(super) fn place_link(
        &self,
        link: &Upload,
        target: &[u8],
        attrs: &Attrs,
        expect: &Precondition,
    ) -> SourceResult<PutOutcome> {
        let (path, name) = (&link.path[..], link.token.as_bytes());
        let dir = self.open_dir_handle(split_path(path).0)?;
        let made = super::meta_of(&dir, name).map_err(self.failed(path))?;
        if made.version.tag != link.tag || made.target != target {
            return Err(SourceError::changed(&self.object(path)));
        }
        // Times are set before the rename, so that the target never shows a link with other attributes.
        let set = rustix::fs::utimensat(&dir, name, &times(attrs), AtFlags::SYMLINK_NOFOLLOW);
        set.map_err(self.failed(path))?;
        self.replace_target(&TemporaryEntry { dir: &dir, name, tag: &link.tag, path }, expect)?;
        let meta = super::meta_of(&dir, split_path(path).1).map_err(self.failed(path))?;
        Ok(PutOutcome { version: meta.version, lost: Vec::new() })
    }
}

/// Writes `data` with holes in place of blocks of zeros.
fn write_sparse(file: &OwnedFd, offset: u64, data: &[u8]) -> Result<(), Errno> {
    let mut at = 0;
    while at < data.len() {
        let rest = data.get(at..).unwrap_or_default();
        // Every pass makes progress: the first block of the rest is either zero or not.
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
    assert_eq!(at, data.len(), "a write left out part of its data");
    Ok(())
}

/// Punches a hole, or writes zeros where the file system has no holes.
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

/// Reads until `into` is full or the file ends.
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
