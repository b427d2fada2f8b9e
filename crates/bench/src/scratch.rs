//! Directories to measure in: made, never larger than there is room for, and removed.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use bivouac_types::units::format_size;

use crate::{BenchError, BenchResult};

/// A directory in memory, unless another one is chosen.
pub const MEMORY_DIR: &str = "/dev/shm";

static NEXT: AtomicU32 = AtomicU32::new(0);
/// `f_type` of file systems that keep data in memory, or may do so: tmpfs, ramfs, FUSE.
const IN_MEMORY: [u64; 3] = [0x0102_1994, 0x8584_58f6, 0x6573_5546];
/// Part of the available memory that a measurement may take, in per cent.
const MEMORY_PERCENT: u64 = 80;

/// A directory of its own that goes away with this value.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes one in `parent`.
    ///
    /// # Errors
    /// When `parent` is no directory that can be written to.
    pub fn new(parent: &Path) -> BenchResult<Scratch> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("bivouac-bench-{}-{number}", std::process::id()));
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700);
        builder.create(&path).map_err(|error| {
            let remedy = "name a directory that exists and can be written to";
            BenchError::usage(
                parent.display(),
                format_args!("cannot hold a scratch directory: {error}"),
                remedy,
            )
        })?;
        Ok(Scratch { path })
    }

    /// One that somebody else makes, or does not.
    #[must_use]
    pub fn of(path: PathBuf) -> Scratch {
        Scratch { path }
    }

    /// Its location.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a directory in it.
    pub fn subdir(&self, name: &str) -> BenchResult<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir(&path).map_err(BenchError::system(path.display()))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            log::error!(why:% = error, remedy = "remove it by hand"; "{}: cannot be removed", self.path.display());
        }
    }
}

/// Refuses what would not fit: into the file system, and into memory if that is where the data goes.
///
/// # Errors
/// A usage error that says how much there is.
pub fn check_room(dir: &Path, bytes: u64) -> BenchResult<()> {
    let refused = || BenchError::system::<rustix::io::Errno>(dir.display());
    let room = rustix::fs::statvfs(dir).map_err(refused())?;
    let kind = rustix::fs::statfs(dir).map_err(refused())?.f_type as u64;
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    enough(dir, "free space", bytes, free)?;
    if IN_MEMORY.contains(&kind) {
        enough(dir, "memory to spare", bytes, available_memory()? / 100 * MEMORY_PERCENT)?;
    }
    Ok(())
}

fn enough(dir: &Path, what: &str, wanted: u64, there: u64) -> BenchResult<()> {
    if wanted <= there {
        return Ok(());
    }
    let cause = format!("needs {} and has {} of {what}", format_size(wanted), format_size(there));
    Err(BenchError::usage(dir.display(), cause, "measure with a smaller --size, or fewer --procs or --files"))
}

fn available_memory() -> BenchResult<u64> {
    let text = fs::read_to_string("/proc/meminfo").map_err(BenchError::system("/proc/meminfo"))?;
    kib_of(&text, "MemAvailable:").ok_or_else(|| BenchError::refused("/proc/meminfo", "has no MemAvailable"))
}

/// The bytes of a line `Name:   1234 kB`.
pub fn kib_of(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.trim().trim_end_matches("kB").trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn a_scratch_directory_goes_with_its_content() {
        let parent = tempfile::tempdir().unwrap();
        let (one, two) = (Scratch::new(parent.path()).unwrap(), Scratch::new(parent.path()).unwrap());
        assert_ne!(one.path(), two.path());
        fs::write(one.subdir("a").unwrap().join("b"), b"x").unwrap();
        drop((one, two));
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
        let error = Scratch::new(&parent.path().join("none")).unwrap_err();
        assert_eq!(error.kind(), Kind::Usage);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(check_room(dir.path(), 1), Ok(()));
        let error = check_room(dir.path(), 1 << 60).unwrap_err().to_string();
        assert!(error.contains("needs 1024 PiB and has ") && error.contains("smaller --size"), "{error}");
        assert!(enough(Path::new("/d"), "memory to spare", 2048, 1024).is_err());
    }

    #[test]
    fn the_kernels_tables_are_read() {
        assert_eq!(kib_of("VmPeak:\t9 kB\nVmRSS:\t   1204 kB\n", "VmRSS:"), Some(1204 * 1024));
        assert_eq!(kib_of("VmRSS:\tx kB\n", "VmRSS:"), None);
        assert_eq!(kib_of("", "VmRSS:"), None);
        assert!(available_memory().unwrap() > 1 << 20);
    }
}
