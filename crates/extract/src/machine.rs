//! Files and programs that sources read.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Most bytes of a file that are read.
const TEXT_MAX: u64 = 16 << 20;
/// Time that the server of a file system may take to say how full it is, in milliseconds: one that is gone never says
/// it.
const SPACE_WAIT_MS: u64 = 2000;

/// A machine that can be asked.
pub trait Machine {
    /// Returns the content of a file.
    fn text(&self, path: &str) -> Option<String>;
    /// Returns the names in a directory, sorted; none if there is no such directory.
    fn names(&self, dir: &str) -> Vec<String>;
    /// Returns the path that a path is after all symbolic links.
    fn real(&self, path: &str) -> Option<String>;
    /// Returns the space of a mounted file system.
    fn space(&self, path: &str) -> Option<FileSystemSpace>;
    /// Returns the standard output of a program, if it is there and succeeds.
    fn output(&self, program: &[&str]) -> Option<String>;
    /// Lets about so many milliseconds pass, and says how many it were.
    fn pass(&self, ms: u64) -> u64;
}

/// Room of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystemSpace {
    /// Bytes of all of it.
    pub size: u64,
    /// Bytes that this user can have.
    pub left: u64,
    /// Inodes, 0 where it does not count them.
    pub files: u64,
    /// Inodes that are free.
    pub files_left: u64,
}

/// The local machine, or one whose file system lies below a directory.
pub struct LocalMachine<'a> {
    root: PathBuf,
    run: &'a dyn Fn(&[&str]) -> Option<String>,
}

impl<'a> LocalMachine<'a> {
    /// Reads below `root`; programs are run by `run`.
    #[must_use]
    pub fn new(root: &Path, run: &'a dyn Fn(&[&str]) -> Option<String>) -> LocalMachine<'a> {
        LocalMachine { root: root.to_owned(), run }
    }

    fn below(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}

impl std::fmt::Debug for LocalMachine<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalMachine").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Machine for LocalMachine<'_> {
    fn text(&self, path: &str) -> Option<String> {
        let file = std::fs::File::open(self.below(path)).ok()?;
        let mut bytes = Vec::new();
        file.take(TEXT_MAX).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn names(&self, dir: &str) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.below(dir)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    fn real(&self, path: &str) -> Option<String> {
        let root = self.root.canonicalize().ok()?;
        let real = self.below(path).canonicalize().ok()?;
        // An absolute link of a tree that was copied leads out of it, and so is no answer.
        Some(format!("/{}", real.strip_prefix(root).ok()?.to_str()?))
    }

    fn space(&self, path: &str) -> Option<FileSystemSpace> {
        let (path, (tell, hear)) = (self.below(path), mpsc::channel());
        // Of its own, and left behind if the file system's server does not answer.
        let asking = move || {
            let _nobody_waits = tell.send(rustix::fs::statvfs(&path).ok());
        };
        // Without a thread, as at a limit of processes, there is no answer; `thread::spawn` would panic.
        std::thread::Builder::new().spawn(asking).ok()?;
        let found = hear.recv_timeout(Duration::from_millis(SPACE_WAIT_MS)).ok()??;
        Some(FileSystemSpace {
            size: found.f_blocks.saturating_mul(found.f_frsize),
            left: found.f_bavail.saturating_mul(found.f_frsize),
            files: found.f_files,
            files_left: found.f_favail,
        })
    }

    fn output(&self, program: &[&str]) -> Option<String> {
        (self.run)(program)
    }

    fn pass(&self, ms: u64) -> u64 {
        let begin = Instant::now();
        let (_silent, hear) = mpsc::channel::<()>();
        let _time_is_over = hear.recv_timeout(Duration::from_millis(ms));
        // Rates are divided by it.
        u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }
}
