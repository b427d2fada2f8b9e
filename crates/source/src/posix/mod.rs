//! A source on a mounted file system.

mod attrs;
mod open;
mod replace;
mod request_latency;
mod upload;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};

use crate::error::Cause;
use crate::model::unique_name;
use crate::source::{check_path, split_path};
use crate::{
    Attrs, Entry, Meta, Piece, Precondition, PutOutcome, Source, SourceError, SourceResult, Upload, Version,
};
use attrs::{apply, meta_of, version_at, version_of};
use replace::TemporaryEntry;
use request_latency::{RequestLatency, no_undo};

/// Prefix of the names of temporary files beside their targets. Listings omit such names.
pub const TEMPORARY: &str = ".bivouac-";

/// Plans an upload into a temporary file beside its target.
///
/// # Errors
/// As [`Source::plan`].
pub fn plan_beside(path: &[u8], size: u64) -> SourceResult<Upload> {
    check_path(path)?;
    let token = format!("{TEMPORARY}{}", unique_name()?);
    Ok(Upload { path: path.to_vec(), size, token, ..Upload::default() })
}

/// Upper limit of a path in messages, in characters.
const SHOWN_MAX: usize = 600;

/// A directory tree. The descriptor of the root is kept open, so that another file system mounted at its path is not
/// taken for it.
pub struct PosixSource {
    path: PathBuf,
    root: OwnedFd,
    identity: (u64, u64),
    latency: RequestLatency,
}

impl PosixSource {
    /// Opens the tree below a directory.
    ///
    /// # Errors
    /// When the directory cannot be opened.
    pub fn open(path: &Path) -> SourceResult<PosixSource> {
        let object = path.display().to_string();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty());
        let root = root.map_err(|error| SourceError::system(&object, error))?;
        let stat = rustix::fs::fstat(&root).map_err(|error| SourceError::system(&object, error))?;
        let (path, identity) = (path.to_owned(), (stat.st_dev, stat.st_ino));
        Ok(PosixSource { path, root, identity, latency: RequestLatency::default() })
    }

    /// Returns the number of the device that the root is on.
    #[must_use]
    pub fn device(&self) -> u64 {
        self.identity.0
    }

    /// Sends independent requests in parallel from the first one on, instead of after the first slow response.
    #[must_use]
    pub fn with_parallel_requests(self) -> PosixSource {
        PosixSource { latency: RequestLatency::always_high(), ..self }
    }

    /// Runs an operation below the root and verifies that the root is still the same directory.
    fn checked<T>(&self, work: impl FnOnce() -> SourceResult<T>) -> SourceResult<T> {
        self.latency.run_both(|| self.check(), work, no_undo).map(|((), done)| done)
    }

    /// Sets the attributes of a directory.
    fn apply_dir_attrs(&self, path: &[u8], attrs: &Attrs) -> SourceResult<PutOutcome> {
        let dir = self.open_dir(path)?;
        let lost = apply(&dir, attrs, &self.object(path)).map_err(self.failed(path))?;
        Ok(PutOutcome { version: self.file_version(&dir, path)?, lost })
    }

    /// Returns a path as it is shown to users.
    fn object(&self, path: &[u8]) -> String {
        if path.is_empty() {
            return self.path.display().to_string();
        }
        format!("{}/{}", self.path.display(), elided(path))
    }

    fn failed<'a>(&'a self, path: &'a [u8]) -> impl Fn(rustix::io::Errno) -> SourceError + 'a {
        move |error| SourceError::system(&self.object(path), error)
    }

    /// Returns the version of an open file.
    fn file_version(&self, file: &OwnedFd, path: &[u8]) -> SourceResult<Version> {
        rustix::fs::fstat(file).map(|stat| version_of(&stat)).map_err(self.failed(path))
    }

    /// Checks the precondition on the target.
    fn expect(&self, path: &[u8], expect: &Precondition) -> SourceResult<()> {
        if *expect == Precondition::Anything {
            return Ok(());
        }
        let (parent, name) = split_path(path);
        let found = match self.open_dir_handle(parent) {
            Err(error) if error.cause() == Cause::NotFound => None,
            dir => version_at(&dir?, name).map_err(self.failed(path))?,
        };
        let is_right = match (expect, found) {
            (Precondition::Version(version), Some(found)) => found == *version,
            (Precondition::Version(_), None) => false,
            (_, found) => found.is_none(),
        };
        if is_right { Ok(()) } else { Err(SourceError::changed(&self.object(path))) }
    }
}

/// Returns a path with its middle elided if it is very long, so that the cause behind it stays visible.
fn elided(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(path);
    let count = text.chars().count();
    if count <= SHOWN_MAX {
        return text.into_owned();
    }
    let begin: String = text.chars().take(SHOWN_MAX / 2).collect();
    let end: String = text.chars().skip(count - SHOWN_MAX / 2).collect();
    format!("{begin}…{end}")
}

impl Source for PosixSource {
    fn check(&self) -> SourceResult<()> {
        let object = self.object(b"");
        // By path, not by the open descriptor: after an unmount the descriptor still works, and writes would go
        // nowhere.
        let stat = rustix::fs::stat(&self.path).map_err(|error| {
            SourceError::new(Cause::Lost, format!("{object}: {error}: is it still mounted?"))
        })?;
        if (stat.st_dev, stat.st_ino) != self.identity {
            let text = format!("{object} is not the directory that it was: mount the file system again");
            return Err(SourceError::new(Cause::Lost, text));
        }
        Ok(())
    }

    fn list(&self, dir: &[u8]) -> SourceResult<Vec<Entry>> {
        let fd = self.open_dir(dir)?;
        let mut entries = Vec::new();
        let listing = rustix::fs::Dir::read_from(&fd).map_err(self.failed(dir))?;
        for entry in listing {
            let entry = entry.map_err(self.failed(dir))?;
            let name = entry.file_name().to_bytes();
            // Temporary files of uploads become files, or are removed, by whoever began them.
            if matches!(name, b"." | b"..") || name.starts_with(TEMPORARY.as_bytes()) {
                continue;
            }
            match meta_of(&fd, name) {
                Ok(meta) => entries.push(Entry { name: name.to_vec(), meta }),
                // Removed between the listing and this call.
                Err(rustix::io::Errno::NOENT) => {}
                Err(error) => return Err(self.failed(&crate::join_path(dir, name))(error)),
            }
        }
        Ok(entries)
    }

    fn stat(&self, path: &[u8]) -> SourceResult<Meta> {
        check_path(path)?;
        let (parent, name) = split_path(path);
        let fd = self.open_dir_handle(parent)?;
        meta_of(&fd, if name.is_empty() { b"." } else { name }).map_err(self.failed(path))
    }

    fn read(&self, path: &[u8], version: &Version, offset: u64, into: &mut [u8]) -> SourceResult<usize> {
        let file = self.open_file(path, OFlags::RDONLY)?;
        if self.file_version(&file, path)? != *version {
            return Err(SourceError::changed(&self.object(path)));
        }
        let len = upload::read_full(&file, offset, into).map_err(self.failed(path))?;
        // Checked again after the read: a writer may have changed the file in between.
        if self.file_version(&file, path)? != *version {
            return Err(SourceError::changed(&self.object(path)));
        }
        Ok(len)
    }

    fn plan(&self, path: &[u8], size: u64) -> SourceResult<Upload> {
        plan_beside(path, size)
    }

    fn start(&self, plan: Upload, _: &Attrs) -> SourceResult<Upload> {
        let make = || self.make_temporary(plan);
        self.latency.run_both(|| self.check(), make, |upload| self.abort(&upload)).map(|((), upload)| upload)
    }

    fn piece_size(&self, _: u64) -> Option<u64> {
        None
    }

    fn put(&self, upload: &Upload, offset: u64, data: &[u8]) -> SourceResult<Piece> {
        self.put_piece(upload, offset, data)
    }

    fn verify(&self, upload: &Upload, pieces: &[Piece]) -> SourceResult<()> {
        self.verify_pieces(upload, pieces)
    }

    fn commit(
        &self,
        upload: &Upload,
        _: &[Piece],
        attrs: &Attrs,
        expect: &Precondition,
    ) -> SourceResult<PutOutcome> {
        self.commit_upload(upload, attrs, expect)
    }

    fn abort(&self, upload: &Upload) -> SourceResult<()> {
        // Of a file that is open, NFS removes the name only, and leaves it under another one.
        upload.opened.close();
        let dir = match self.open_dir_handle(split_path(&upload.path).0) {
            Err(error) if error.cause() == Cause::NotFound => return Ok(()),
            dir => dir?,
        };
        let (name, tag, path) = (upload.token.as_bytes(), &upload.tag[..], &upload.path[..]);
        self.discard_temporary(&TemporaryEntry { dir: &dir, name, tag, path })
    }

    fn resume(&self, upload: &Upload, expect: &Precondition) -> SourceResult<Option<Version>> {
        check_path(&upload.path)?;
        self.check()?;
        self.resume_upload(upload, expect)
    }

    fn put_dir(&self, path: &[u8], attrs: &Attrs) -> SourceResult<PutOutcome> {
        check_path(path)?;
        self.checked(|| {
            self.make_dir(path, attrs)?;
            self.apply_dir_attrs(path, attrs)
        })
    }

    fn put_open_dir(&self, path: &[u8], attrs: &Attrs) -> SourceResult<PutOutcome> {
        check_path(path)?;
        self.checked(|| {
            if !self.make_dir(path, attrs)? || !attrs.xattrs.is_empty() {
                return self.apply_dir_attrs(path, attrs);
            }
            let made = self.open_dir_handle(path)?;
            let stat = rustix::fs::fstat(&made).map_err(self.failed(path))?;
            if !attrs::has_owner_and_mode(&stat, attrs) {
                return self.apply_dir_attrs(path, attrs);
            }
            Ok(PutOutcome { version: version_of(&stat), lost: Vec::new() })
        })
    }

    fn put_dir_times(&self, path: &[u8], attrs: &Attrs) -> SourceResult<PutOutcome> {
        check_path(path)?;
        let there = self.checked(|| match self.open_dir_handle(path) {
            Err(error) if matches!(error.cause(), Cause::NotFound | Cause::WrongKind) => Ok(None),
            dir => {
                let dir = dir?;
                attrs::set_dir_times(&dir, attrs).map_err(self.failed(path))?;
                self.file_version(&dir, path).map(Some)
            }
        })?;
        match there {
            Some(version) => Ok(PutOutcome { version, lost: Vec::new() }),
            None => self.put_dir(path, attrs),
        }
    }

    fn start_link(&self, plan: Upload, target: &[u8]) -> SourceResult<Upload> {
        self.check()?;
        self.make_link(plan, target)
    }

    fn put_link(
        &self,
        link: &Upload,
        target: &[u8],
        attrs: &Attrs,
        expect: &Precondition,
    ) -> SourceResult<PutOutcome> {
        self.check()?;
        self.expect(&link.path, expect)?;
        self.place_link(link, target, attrs, expect)
    }

    fn set_attrs(&self, path: &[u8], version: &Version, attrs: &Attrs) -> SourceResult<PutOutcome> {
        self.check()?;
        let file = match self.open_file(path, OFlags::RDONLY) {
            Err(error) if error.cause() == Cause::NotFound => {
                return Err(SourceError::changed(&self.object(path)));
            }
            file => file?,
        };
        // Version and attributes are those of one descriptor, so a file that replaces this one is not modified.
        if self.file_version(&file, path)? != *version {
            return Err(SourceError::changed(&self.object(path)));
        }
        let lost = apply(&file, attrs, &self.object(path)).map_err(self.failed(path))?;
        Ok(PutOutcome { version: self.file_version(&file, path)?, lost })
    }

    fn finish_removal(&self, path: &[u8], version: &Version) -> SourceResult<()> {
        check_path(path)?;
        self.check()?;
        self.finish_removal_of(path, version)
    }

    fn remove(&self, path: &[u8], version: Option<&Version>) -> SourceResult<()> {
        check_path(path)?;
        self.check()?;
        let found = match self.stat(path) {
            Err(error) if error.cause() == Cause::NotFound && version.is_none() => return Ok(()),
            Err(error) if error.cause() == Cause::NotFound => Meta::default(),
            found => found?,
        };
        if let (false, Some(version)) = (found.is_dir(), version) {
            // A rename to a temporary name and a comparison there close the race between the check and the removal.
            return self.remove_version(path, version);
        }
        // Of a directory only the identity: its time changes with each entry that is removed from it first.
        if version.is_some_and(|version| version.tag != found.version.tag) {
            return Err(SourceError::changed(&self.object(path)));
        }
        let flags = if found.is_dir() { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let (parent, name) = split_path(path);
        match rustix::fs::unlinkat(&self.open_dir_handle(parent)?, name, flags) {
            // Somebody else may have removed it since it was looked at.
            Err(rustix::io::Errno::NOENT) | Ok(()) => Ok(()),
            Err(error) => Err(self.failed(path)(error)),
        }
    }
}
