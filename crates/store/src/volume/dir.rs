//! A volume that is a directory.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, FallocateFlags, FileType, Mode, OFlags, SeekFrom};
use rustix::io::{Errno as SystemError, retry_on_intr};

use bivouac_direct::WritablePages;
use bivouac_types::TMPFS_MAGIC;

use super::subfile_table::{check_table, renew_table};
use super::transfer::write_each;
use super::{
    Entry, FileStat, OpenMode, Places, Space, Volume, VolumeFile, VolumeIdentity, VolumeKind, check_name,
    claim,
};

use crate::StoreResult;

const FILE_MODE: Mode = Mode::from_raw_mode(0o600);
const DIR_MODE: Mode = Mode::from_raw_mode(0o700);
/// Most buffers of one system call (`IOV_MAX`).
const BUFFERS_MAX: usize = 1024;
const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// A directory on tmpfs or disk, held under a lock while this lives.
#[derive(Debug)]
pub struct DirVolume {
    path: PathBuf,
    root: OwnedFd,
    kind: VolumeKind,
    /// True if its format has a table of subfiles.
    has_table: bool,
}

impl DirVolume {
    /// Opens a volume of this node; an empty directory becomes one. With `create` a missing directory is made.
    ///
    /// # Errors
    /// Says of the directory that it is missing, not a directory, not writable, alien, damaged, another
    /// formation's or node's, of a newer format, or in use.
    pub fn open(path: &Path, identity: VolumeIdentity, create: bool) -> StoreResult<DirVolume> {
        let root = claim::claim(path, identity, create)?;
        let kind = kind_of(root.as_fd());
        Ok(DirVolume { path: path.to_owned(), root, kind, has_table: true })
    }

    /// Opens a directory that is a volume already, and says whose: for looking at what a formation left.
    ///
    /// # Errors
    /// As [`DirVolume::open`]; `BadIdentity` where there is no identity, `InUse` while a daemon has it.
    pub fn open_existing(path: &Path) -> StoreResult<(DirVolume, VolumeIdentity)> {
        let (root, identity) = claim::claim_existing(path)?;
        let (kind, has_table) = (kind_of(root.as_fd()), claim::has_table(path, root.as_fd())?);
        Ok((DirVolume { path: path.to_owned(), root, kind, has_table }, identity))
    }

    /// Checks that the table of subfiles is there, without which nobody knows whether they are; volumes of older
    /// releases need none.
    ///
    /// # Errors
    /// `NoTable`, `Corrupt`, `NewerFormat`, `Io`.
    pub fn check_table(&self) -> StoreResult<()> {
        if self.has_table { check_table(self) } else { Ok(()) }
    }

    /// Makes the table of subfiles anew, of those that are there.
    ///
    /// # Errors
    /// `Io`.
    pub fn renew_table(&self) -> StoreResult<()> {
        renew_table(self)
    }
}

fn kind_of(root: BorrowedFd<'_>) -> VolumeKind {
    match rustix::fs::fstatfs(root) {
        Ok(fs) if matches!(fs.f_type as u64, TMPFS_MAGIC | RAMFS_MAGIC) => VolumeKind::Memory,
        _ => VolumeKind::Disk,
    }
}

impl Volume for DirVolume {
    fn path(&self) -> &Path {
        &self.path
    }

    fn kind(&self) -> VolumeKind {
        self.kind
    }

    fn space(&self) -> io::Result<Space> {
        let fs = rustix::fs::fstatvfs(&self.root)?;
        let bytes = |blocks: u64| blocks.saturating_mul(fs.f_frsize);
        Ok(Space { total: bytes(fs.f_blocks), free: bytes(fs.f_bavail) })
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn VolumeFile>> {
        check_name(name)?;
        let flags = match mode {
            OpenMode::Existing => OFlags::empty(),
            OpenMode::Create => OFlags::CREATE,
            OpenMode::CreateNew => OFlags::CREATE | OFlags::EXCL,
        };
        // No links: whoever can write to the directory must not make a daemon write elsewhere.
        let flags = flags | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = retry_on_intr(|| rustix::fs::openat(&self.root, name, flags, FILE_MODE))?;
        Ok(Arc::new(DirFile { fd, in_memory: self.kind == VolumeKind::Memory }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        Ok(rustix::fs::renameat(&self.root, from, &self.root, to)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        Ok(rustix::fs::unlinkat(&self.root, name, AtFlags::empty())?)
    }

    fn make_dir(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        Ok(rustix::fs::mkdirat(&self.root, name, DIR_MODE)?)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<Entry>> {
        entries(self.open_dir(dir)?.as_fd())
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let dir = self.open_dir(dir)?;
        Ok(retry_on_intr(|| rustix::fs::fsync(&dir))?)
    }
}

impl DirVolume {
    fn open_dir(&self, dir: &str) -> io::Result<OwnedFd> {
        if !dir.is_empty() {
            check_name(dir)?;
        }
        let name = if dir.is_empty() { "." } else { dir };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(rustix::fs::openat(&self.root, name, flags, Mode::empty())?)
    }
}

/// Returns the entries of an open directory, with sizes. A file that vanishes meanwhile is left out.
pub(super) fn entries(dir: BorrowedFd<'_>) -> io::Result<Vec<Entry>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => found.push(entry_of(name.to_string_lossy().into_owned(), &stat)),
            Err(SystemError::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

fn entry_of(name: String, stat: &rustix::fs::Stat) -> Entry {
    let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let stat = if is_dir { FileStat::default() } else { size_of(stat) };
    Entry { name, is_dir, stat }
}

fn size_of(stat: &rustix::fs::Stat) -> FileStat {
    // The kernel counts blocks of 512 bytes, whatever the file system's own are.
    FileStat { len: stat.st_size as u64, allocated: (stat.st_blocks as u64).saturating_mul(512) }
}

#[derive(Debug)]
struct DirFile {
    fd: OwnedFd,
    in_memory: bool,
}

impl DirFile {
    fn fallocate(&self, mode: FallocateFlags, range: &Range<u64>) -> io::Result<()> {
        let len = range.end.saturating_sub(range.start);
        if len == 0 {
            return Ok(());
        }
        Ok(retry_on_intr(|| rustix::fs::fallocate(&self.fd, mode, range.start, len))?)
    }
}

impl VolumeFile for DirFile {
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        // More is `EINVAL`; the callers go on with the rest, as after any short read or write.
        let count = bufs.len().min(BUFFERS_MAX);
        match bufs.get_mut(..count) {
            Some([one]) => Ok(retry_on_intr(|| rustix::io::pread(&self.fd, &mut one[..], offset))?),
            Some(some) => Ok(retry_on_intr(|| rustix::io::preadv(&self.fd, some, offset))?),
            None => Ok(0),
        }
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        match bufs.get(..bufs.len().min(BUFFERS_MAX)) {
            Some([one]) => Ok(retry_on_intr(|| rustix::io::pwrite(&self.fd, one, offset))?),
            Some(some) => Ok(retry_on_intr(|| rustix::io::pwritev(&self.fd, some, offset))?),
            None => Ok(0),
        }
    }

    fn write_places(&self, base: u64, places: &Places<'_>) -> io::Result<()> {
        let span = places.span();
        let (start, len) = (base + span.start, span.end - span.start);
        if !self.in_memory || !WritablePages::pays(places.count(), len) {
            return write_each(self, base, places);
        }
        let mapped = match WritablePages::map(self.fd.as_fd(), start, len) {
            Ok(mapped) => mapped,
            // Single writes would meet the same lack of space, after having written some of the places.
            Err(error) if error.kind() == io::ErrorKind::StorageFull => return Err(error),
            // A limit on mappings is none on files.
            Err(_) => return write_each(self, base, places),
        };
        let mut pieces = places.pieces();
        let all = pieces.all(|(at, piece)| mapped.put((at - span.start) as usize, piece));
        if all { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Ok(retry_on_intr(|| rustix::fs::ftruncate(&self.fd, len))?)
    }

    fn stat(&self) -> io::Result<FileStat> {
        Ok(size_of(&rustix::fs::fstat(&self.fd)?))
    }

    fn next_data(&self, from: u64) -> io::Result<Option<Range<u64>>> {
        // These move the descriptor's position, which nothing here uses.
        let start = match rustix::fs::seek(&self.fd, SeekFrom::Data(from)) {
            Ok(start) => start,
            // So the kernel says that there is no data behind the offset, or that the offset is behind the end.
            Err(SystemError::NXIO) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(&self.fd, SeekFrom::Hole(start))?;
        Ok(Some(start..end))
    }

    fn allocate(&self, range: Range<u64>) -> io::Result<()> {
        self.fallocate(FallocateFlags::KEEP_SIZE, &range)
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        // Not by `fallocate` of the last byte: tmpfs takes a page for data that is asked for a second time. And not
        // where it is that long already: cutting there would give back what is allocated behind the end.
        if self.stat()?.len < len { self.set_len(len) } else { Ok(()) }
    }

    fn punch(&self, range: Range<u64>) -> io::Result<()> {
        self.fallocate(FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE, &range)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(retry_on_intr(|| rustix::fs::fsync(&self.fd))?)
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::{FormationId, NodeId};
    use std::os::unix::fs::PermissionsExt;

    const IDENTITY: VolumeIdentity =
        VolumeIdentity { formation: FormationId([7; 16]), node: NodeId(1), index: 0 };

    #[test]
    fn a_directory_is_a_volume() {
        let dirs = std::cell::RefCell::new(Vec::new());
        crate::conformance::volume(|| {
            let dir = tempfile::tempdir().unwrap();
            let volume = DirVolume::open(dir.path(), IDENTITY, false).unwrap();
            dirs.borrow_mut().push(dir);
            Arc::new(volume)
        });
    }

    #[test]
    fn everything_is_for_this_user_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volume");
        let volume = DirVolume::open(&path, IDENTITY, true).unwrap();
        volume.make_dir("d").unwrap();
        volume.open("d/f", OpenMode::Create).unwrap();
        let mode = |name: &str| path.join(name).metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(""), mode("d")), (0o700, 0o700));
        assert_eq!((mode("d/f"), mode(super::super::IDENTITY_NAME)), (0o600, 0o600));
    }

    #[test]
    fn an_existing_volume_says_whose_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let error = DirVolume::open_existing(dir.path()).unwrap_err();
        assert!(error.to_string().contains("there is none"), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let held = DirVolume::open(dir.path(), IDENTITY, false).unwrap();
        let error = DirVolume::open_existing(dir.path()).unwrap_err();
        assert!(matches!(error, crate::StoreError::InUse { .. }), "{error}");
        drop(held);
        assert_eq!(DirVolume::open_existing(dir.path()).unwrap().1, IDENTITY);
    }

    #[test]
    fn a_symbolic_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let volume = DirVolume::open(&dir.path().join("v"), IDENTITY, true).unwrap();
        std::fs::write(dir.path().join("secret"), "x").unwrap();
        std::os::unix::fs::symlink("../secret", dir.path().join("v/link")).unwrap();
        assert!(volume.open("link", OpenMode::Existing).is_err());
    }

    #[test]
    fn the_kind_is_that_of_the_file_system() {
        let shm = Path::new("/dev/shm");
        if let Ok(dir) = tempfile::tempdir_in(shm) {
            let volume = DirVolume::open(dir.path(), IDENTITY, false).unwrap();
            assert_eq!(volume.kind(), kind_of(std::fs::File::open(shm).unwrap().as_fd()));
            assert!(volume.space().unwrap().total > 0);
        }
    }
}
