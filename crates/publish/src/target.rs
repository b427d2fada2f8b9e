//! The directory that files are put into, and nothing beside it: no name and no link leads out of it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::digest::Digest;
use crate::error::{Cause, PublishError, PublishResult};
use crate::names::{UNFINISHED, check};
use crate::space::check_fits;

/// Longest name of a file in a directory, in bytes.
const FILE_NAME_MAX: usize = 255;
/// Unit of `st_blocks`, in bytes.
const STAT_BLOCK: u64 = 512;

/// The directory, kept open.
pub struct TargetDir {
    dir: OwnedFd,
    path: PathBuf,
}

/// Target of a file: its directory and name.
pub struct TargetFile {
    dir: OwnedFd,
    name: String,
    partial: String,
    /// Path for messages.
    pub path: PathBuf,
}

impl TargetDir {
    /// Returns a directory, made with all above it if it is not there.
    pub fn open(path: &Path) -> PublishResult<TargetDir> {
        let failed = |error: std::io::Error| PublishError::system(path.display(), &error);
        std::fs::create_dir_all(path).map_err(failed)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
        Ok(TargetDir { dir, path: path.to_owned() })
    }

    /// Returns the target of a file with this name and digest, and creates its directories. Links are not followed.
    ///
    /// # Errors
    /// [`Cause::Damaged`] for a name that leads elsewhere; otherwise what the system says.
    pub fn spot(&self, name: &str, tag: &Digest) -> PublishResult<TargetFile> {
        let gone = || PublishError::system(self.path.join(name).display(), &Errno::NOENT.into());
        self.walk(name, tag, true)?.ok_or_else(gone)
    }

    /// Like [`TargetDir::spot`], without making anything; `None` if its directories are not there.
    pub fn spot_if_there(&self, name: &str, tag: &Digest) -> PublishResult<Option<TargetFile>> {
        self.walk(name, tag, false)
    }

    /// Refuses what certainly does not fit there.
    ///
    /// # Errors
    /// [`Cause::Other`] with the needed and the free bytes.
    pub fn check_fits(&self, needed: u64) -> PublishResult<()> {
        check_fits(&self.dir, needed, &self.path.display())
    }

    fn walk(&self, name: &str, tag: &Digest, makes: bool) -> PublishResult<Option<TargetFile>> {
        check(name)
            .map_err(|why| PublishError::new(Cause::Damaged, format_args!("the name {name:?} {why}")))?;
        let (parents, last) = name.rsplit_once('/').map_or(("", name), |(parents, last)| (parents, last));
        let mut dir =
            rustix::io::fcntl_dupfd_cloexec(&self.dir, 0).map_err(|error| self.failed(name, error))?;
        let mut so_far = String::new();
        for part in parents.split('/').filter(|part| !part.is_empty()) {
            so_far = format!("{so_far}{part}/");
            let made =
                if makes { rustix::fs::mkdirat(&dir, part, Mode::from_raw_mode(0o777)) } else { Ok(()) };
            match made {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(self.failed(&so_far, error)),
            }
            // The tree may be shared: a link in place of a directory must not lead the write elsewhere.
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            dir = match rustix::fs::openat(&dir, part, flags, Mode::empty()) {
                Ok(dir) => dir,
                Err(Errno::NOENT) if !makes => return Ok(None),
                Err(Errno::LOOP | Errno::NOTDIR) => return Err(self.no_directory(&so_far)),
                Err(error) => return Err(self.failed(&so_far, error)),
            };
        }
        let tag = tag.hex();
        // Cut at a character boundary, so that name and tag fit into a file name.
        let begin: String = last.chars().take(40).collect();
        let partial = format!(".{begin}{UNFINISHED}{}", tag.get(..24).unwrap_or_default());
        assert!(partial.len() <= FILE_NAME_MAX, "{partial:?} is too long for the name of a file");
        Ok(Some(TargetFile { dir, name: last.to_owned(), partial, path: self.path.join(name) }))
    }

    fn no_directory(&self, name: &str) -> PublishError {
        let text = format!(
            "{}: is no directory but a link or a file; nothing is put through it, remove it first",
            self.path.join(name).display()
        );
        PublishError::new(Cause::Exists, text)
    }

    fn failed(&self, name: &str, error: Errno) -> PublishError {
        PublishError::system(self.path.join(name).display(), &error.into())
    }
}

impl TargetFile {
    /// Opens an existing file; `None` if there is none.
    ///
    /// # Errors
    /// [`Cause::Exists`] if it is something else than a file.
    pub fn existing(&self) -> PublishResult<Option<File>> {
        // A pipe would be waited for, and a link followed out of the directory.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.dir, &self.name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::NXIO) => return Err(self.in_the_way()),
            Err(error) => return Err(self.failed(error)),
        };
        let is_file =
            file.metadata().map_err(|error| PublishError::system(self.path.display(), &error))?.is_file();
        if is_file { Ok(Some(file)) } else { Err(self.in_the_way()) }
    }

    fn in_the_way(&self) -> PublishError {
        let text =
            format!("{}: is there and no file; remove it, or choose another target", self.path.display());
        PublishError::new(Cause::Exists, text)
    }

    /// Returns the file that is being fetched, beside its name, for one process at a time: with what an earlier one
    /// left.
    ///
    /// # Errors
    /// [`Cause::Exists`] while another process works on it.
    pub fn partial(&self) -> PublishResult<File> {
        loop {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&self.dir, &self.partial, flags, Mode::from_raw_mode(0o666));
            let file = File::from(file.map_err(|error| self.failed(error))?);
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) | Err(Errno::NOSYS | Errno::OPNOTSUPP) => {}
                Err(Errno::WOULDBLOCK) => {
                    let text =
                        format!("{}: another bivouac get is fetching it; wait for that", self.path.display());
                    return Err(PublishError::new(Cause::Exists, text));
                }
                Err(error) => return Err(self.failed(error)),
            }
            self.check_is_ours(&file)?;
            // The previous owner of the lock may have renamed the file: then the next attempt creates a new one.
            let ours = rustix::fs::fstat(&file).map_err(|error| self.failed(error))?;
            match rustix::fs::statat(&self.dir, &self.partial, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(there) if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino) => return Ok(file),
                Ok(_) | Err(Errno::NOENT) => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    /// Returns the number of bytes that an earlier run left of the file, as far as they take space.
    pub fn partial_space(&self) -> u64 {
        let stat = rustix::fs::statat(&self.dir, &self.partial, AtFlags::SYMLINK_NOFOLLOW);
        stat.map_or(0, |stat| u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(STAT_BLOCK))
    }

    /// Removes the file that is being fetched, which this process has.
    pub fn discard(&self) {
        // Best effort: the failure that led here is reported.
        let _left = rustix::fs::unlinkat(&self.dir, &self.partial, AtFlags::empty());
    }

    /// Refuses a file of another user: in a shared directory somebody may have created it in advance, to own the
    /// content.
    fn check_is_ours(&self, file: &File) -> PublishResult<()> {
        let stat = rustix::fs::fstat(file).map_err(|error| self.failed(error))?;
        let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
        if is_file && stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_nlink <= 1 {
            return Ok(());
        }
        let beside = self.path.with_file_name(&self.partial);
        let text = format!("{}: is of somebody else, or has another name; remove it", beside.display());
        Err(PublishError::new(Cause::Exists, text))
    }

    /// Gives what was fetched its name, safely on the disk.
    ///
    /// # Errors
    /// [`Cause::Exists`] if there is something by now and it is not to be replaced.
    pub fn commit(&self, file: &File, replace: bool) -> PublishResult<()> {
        // Content before name: after a crash the name never leads to an incomplete file.
        file.sync_all().map_err(|error| PublishError::system(self.path.display(), &error))?;
        if replace {
            rustix::fs::renameat(&self.dir, &self.partial, &self.dir, &self.name)
                .map_err(|error| self.failed(error))?;
        } else {
            self.rename_to_free().map_err(|error| match error {
                Errno::EXIST => self.appeared(),
                error => self.failed(error),
            })?;
        }
        // The name itself is durable only with its directory.
        rustix::fs::fsync(&self.dir).map_err(|error| self.failed(error))
    }

    fn rename_to_free(&self) -> Result<(), Errno> {
        let flags = RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(&self.dir, &self.partial, &self.dir, &self.name, flags) {
            // A file system without this kind of rename; a hard link does not replace an existing name either.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                rustix::fs::linkat(&self.dir, &self.partial, &self.dir, &self.name, AtFlags::empty())?;
                rustix::fs::unlinkat(&self.dir, &self.partial, AtFlags::empty())
            }
            renamed => renamed,
        }
    }

    fn appeared(&self) -> PublishError {
        let text =
            format!("{}: was made by somebody else meanwhile; --force replaces it", self.path.display());
        PublishError::new(Cause::Exists, text)
    }

    fn failed(&self, error: Errno) -> PublishError {
        PublishError::system(self.path.display(), &error.into())
    }
}

/// Returns the directory and the name of what a path is to be.
pub fn split(path: &Path) -> PublishResult<(PathBuf, String)> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| {
        let text = format!("{}: does not end in a name that is text; name a file", path.display());
        PublishError::new(Cause::Usage, text)
    })?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok((parent.map_or_else(|| PathBuf::from("."), Path::to_owned), name.to_owned()))
}

/// Returns whether a path leads to a directory, through symbolic links as well.
pub fn is_dir(path: &Path) -> bool {
    let stat = rustix::fs::statat(CWD, path, AtFlags::empty());
    stat.is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn a_name_appears_with_all_that_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let target = TargetDir::open(&dir.path().join("new/dst")).unwrap();
        let spot = target.spot("a/b", &Digest::of(b"x")).unwrap();
        assert!(spot.existing().unwrap().is_none());
        let mut file = spot.partial().unwrap();
        assert_eq!(spot.partial().unwrap_err().cause(), Cause::Exists, "one at a time");
        let other = target.spot("a/linked", &Digest::of(b"x")).unwrap();
        std::fs::write(dir.path().join("mine"), "mine").unwrap();
        std::fs::hard_link(dir.path().join("mine"), other.path.with_file_name(&other.partial)).unwrap();
        assert!(other.partial().unwrap_err().to_string().contains("somebody else"));
        std::fs::remove_file(other.path.with_file_name(&other.partial)).unwrap();
        file.write_all(b"content").unwrap();
        assert!(!spot.path.exists());
        spot.commit(&file, false).unwrap();
        assert_eq!(std::fs::read(&spot.path).unwrap(), b"content");
        drop(file);
        let again = spot.partial().unwrap();
        assert!(spot.commit(&again, false).unwrap_err().to_string().contains("--force"));
        assert_eq!(std::fs::read(&spot.path).unwrap(), b"content");
        spot.commit(&again, true).unwrap();
        assert_eq!(std::fs::read_dir(dir.path().join("new/dst/a")).unwrap().count(), 1);
    }

    #[test]
    fn nothing_is_put_through_links() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(outside.path(), dir.path().join("link")).unwrap();
        std::os::unix::fs::symlink(outside.path().join("f"), dir.path().join("file")).unwrap();
        let target = TargetDir::open(dir.path()).unwrap();
        let tag = Digest::of(b"");
        let refusal = target.spot("link/x", &tag).err().unwrap();
        assert!(refusal.to_string().contains("link") && refusal.cause() == Cause::Exists, "{refusal}");
        assert_eq!(target.spot("file", &tag).unwrap().existing().unwrap_err().cause(), Cause::Exists);
        for name in ["../x", "/x", "a/../../x", "x\0"] {
            assert_eq!(target.spot(name, &tag).err().unwrap().cause(), Cause::Damaged);
        }
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    }
}
