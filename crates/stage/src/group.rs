//! Groups of small files that reach stable storage together: one request to the file system instead of one per file.

use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::small::Sealed;

/// A group is published when it has so many files …
const FILES_MAX: usize = 4096;
/// … or so many bytes.
const BYTES_MAX: u64 = 512 << 20;
/// So few files are made safe one by one.
const FEW: u64 = 32;
/// Files that are put in place by one worker at a time.
pub(crate) const BATCH: usize = 64;

/// How what was written becomes safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// It is as safe as it gets once it is written: the target is a formation.
    Acknowledged,
    /// All files of a group by one request for the whole file system.
    Together,
    /// Each file by itself.
    Each,
}

impl Durability {
    /// What the target's file system and this kernel can do.
    pub(crate) fn of(dir: &Path, is_formation: bool, files: u64) -> Durability {
        match () {
            () if is_formation => Durability::Acknowledged,
            // What others have written there would have to be waited for.
            () if files <= FEW => Durability::Each,
            // The kernel does not pass the request on to FUSE file systems, and before 5.8 loses errors.
            () if is_fuse(dir) || kernel() < (5, 8) => Durability::Each,
            () => Durability::Together,
        }
    }
}

fn is_fuse(dir: &Path) -> bool {
    kind(dir) == Some(FUSE)
}

/// Whether several workers may write one file at once. File systems of one machine let only one writer into a file:
/// the others would wait, and each hand-over costs more than the copy of a piece.
pub(crate) fn shares_files(dir: &Path) -> bool {
    kind(dir).is_none_or(|kind| !LOCAL.contains(&kind))
}

/// The number of the file system's type.
fn kind(dir: &Path) -> Option<u32> {
    // The field's width and sign differ between machines; the numbers have 32 bits.
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

/// A file system whose files are made safe together. Opened before the first is written, so that no error is missed.
#[derive(Debug)]
pub(crate) struct Storage(File);

impl Storage {
    pub(crate) fn open(dir: &Path) -> std::io::Result<Storage> {
        crate::straight::open_dir(dir).map(Storage)
    }

    pub(crate) fn sync(&self) -> std::io::Result<()> {
        Ok(rustix::fs::syncfs(&self.0)?)
    }
}

/// The files that wait to be published.
#[derive(Default)]
pub(crate) struct Group {
    waiting: Mutex<(Vec<Sealed>, u64)>,
}

impl Group {
    /// Adds files; answers a group that is full.
    pub(crate) fn add(&self, sealed: Vec<Sealed>) -> Option<Vec<Sealed>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.1 += sealed.iter().map(|file| file.line.size).sum::<u64>();
        waiting.0.extend(sealed);
        (waiting.0.len() >= FILES_MAX || waiting.1 >= BYTES_MAX).then(|| std::mem::take(&mut *waiting).0)
    }

    /// All that wait.
    pub(crate) fn take(&self) -> Vec<Sealed> {
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
        assert_eq!(Durability::of(dir.path(), false, 1), Durability::Each);
        Storage::open(dir.path()).unwrap().sync().unwrap();
    }
}
