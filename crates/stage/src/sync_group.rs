//! Groups of small files that are synced by one `syncfs` instead of one `fsync` each.

use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::small_file::UnsyncedFile;

/// Files that complete a group.
const FILES_MAX: usize = 4096;
/// Bytes that complete a group.
const BYTES_MAX: u64 = 512 << 20;
/// Number of files up to which each is synced separately.
const FEW: u64 = 32;
/// Files per batch.
pub(crate) const BATCH: usize = 64;

/// Method by which written data becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// None needed: a formation has acknowledged each write.
    Acknowledged,
    /// One `syncfs` per group.
    SyncFs,
    /// One `fsync` per file.
    Fsync,
}

impl Durability {
    /// Returns the method for the target's file system and this kernel.
    pub(crate) fn of(dir: &Path, is_formation: bool, files: u64) -> Durability {
        match () {
            () if is_formation => Durability::Acknowledged,
            // `syncfs` waits for the dirty data of other applications, too.
            () if files <= FEW => Durability::Fsync,
            // FUSE file systems do not receive `syncfs`, and kernels before 5.8 do not report its errors.
            () if is_fuse(dir) || kernel() < (5, 8) => Durability::Fsync,
            () => Durability::SyncFs,
        }
    }
}

fn is_fuse(dir: &Path) -> bool {
    kind(dir) == Some(FUSE)
}

/// Returns whether several workers may write one file at the same time. Local file systems lock the inode during a
/// write: the others would wait, and each hand-over costs more than the copy of a block.
pub(crate) fn shares_files(dir: &Path) -> bool {
    kind(dir).is_none_or(|kind| !LOCAL.contains(&kind))
}

/// Returns the file system's magic number.
fn kind(dir: &Path) -> Option<u32> {
    // Width and sign of the field depend on the architecture; the numbers have 32 bits.
    rustix::fs::statfs(dir).ok().map(|fs| fs.f_type as u32)
}

const FUSE: u32 = 0x6573_5546;
/// ext4, XFS, Btrfs, tmpfs, overlayfs, F2FS, ramfs: see linux/magic.h.
const LOCAL: [u32; 7] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630, 0xf2f5_2010, 0x8584_58f6];

fn kernel() -> (u32, u32) {
    let name = rustix::system::uname();
    version(&name.release().to_string_lossy())
}

fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// A file system that is synced as a whole. It is opened before the first write, because `syncfs` reports only errors
/// since the open.
#[derive(Debug)]
pub(crate) struct SyncedFs(File);

impl SyncedFs {
    pub(crate) fn open(dir: &Path) -> std::io::Result<SyncedFs> {
        crate::nofollow::open_dir(dir).map(SyncedFs)
    }

    pub(crate) fn sync(&self) -> std::io::Result<()> {
        Ok(rustix::fs::syncfs(&self.0)?)
    }
}

/// Small files that wait for the next sync.
#[derive(Default)]
pub(crate) struct SyncGroup {
    waiting: Mutex<(Vec<UnsyncedFile>, u64)>,
}

impl SyncGroup {
    /// Adds files; returns the group when it is complete.
    pub(crate) fn add(&self, sealed: Vec<UnsyncedFile>) -> Option<Vec<UnsyncedFile>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.1 += sealed.iter().map(|file| file.line.size).sum::<u64>();
        waiting.0.extend(sealed);
        (waiting.0.len() >= FILES_MAX || waiting.1 >= BYTES_MAX).then(|| std::mem::take(&mut *waiting).0)
    }

    /// Takes all waiting files.
    pub(crate) fn take(&self) -> Vec<UnsyncedFile> {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner)).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_kernels_are_read() {
        for (text, expected) in [
            ("6.18.0-rc1+", (6, 18)),
            ("5.8", (5, 8)),
            ("4.19.0-26-amd64", (4, 19)),
            ("", (0, 0)),
            ("x", (0, 0)),
        ] {
            assert_eq!(version(text), expected, "{text}");
        }
        assert!(kernel() > (2, 6));
    }

    #[test]
    fn the_file_systems_of_this_machine_are_known() {
        assert!(!shares_files(Path::new("/dev/shm")) || !Path::new("/dev/shm").exists());
        assert!(shares_files(Path::new("/proc")) && !is_fuse(Path::new("/proc")));
    }

    #[test]
    fn a_formation_needs_no_sync_and_another_target_one_per_group_or_file() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Durability::of(dir.path(), true, 1000), Durability::Acknowledged);
        assert_ne!(Durability::of(dir.path(), false, 1000), Durability::Acknowledged);
        assert_eq!(Durability::of(dir.path(), false, 1), Durability::Fsync);
        SyncedFs::open(dir.path()).unwrap().sync().unwrap();
    }
}
