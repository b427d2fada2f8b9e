//! What all workers fight for: a log that all append to, a name that all replace, a lock file.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::kill_loop::model::Shown;

/// Directories that all workers use.
pub const SHARED_DIRS: [&str; 4] = ["s0", "s1", "s2", "s3"];

const LOG: &str = "log";
const TARGET: &str = "s1/target";
const LOCK: &str = "s2/lock";
const NO_WORKER: usize = usize::MAX;

/// What is known of the things that all share.
pub struct Shared {
    /// Who has the lock.
    holder: AtomicUsize,
    /// By worker: appended records that were acknowledged.
    appended: Mutex<BTreeMap<usize, usize>>,
    /// By worker: the last value that it gave the target.
    target: Mutex<BTreeMap<usize, usize>>,
}

impl Shared {
    pub fn new() -> Shared {
        Shared { holder: AtomicUsize::new(NO_WORKER), appended: Mutex::default(), target: Mutex::default() }
    }

    /// One record; only its own worker knows how many there are of it.
    pub fn append(&self, mount: &Path, worker: usize) -> io::Result<()> {
        let turn = self.appended.lock().unwrap().get(&worker).copied().unwrap_or(0);
        let record = format!("{worker} {turn} {}\n", "x".repeat(turn % 300));
        let mut file = OpenOptions::new().append(true).create(true).open(mount.join(LOG))?;
        if file.write(record.as_bytes())? != record.len() {
            return Err(io::Error::other("a short write"));
        }
        self.appended.lock().unwrap().insert(worker, turn + 1);
        Ok(())
    }

    /// The target's content becomes another in one step: readers always find a whole one, and none of its
    /// own that this worker has already replaced.
    pub fn replace(&self, mount: &Path, worker: usize, value: usize) -> io::Result<()> {
        let new = mount.join(format!("s0/new-{worker}"));
        fs::write(&new, format!("{worker} {value}\n{}", "y".repeat(6000)))?;
        fs::rename(&new, mount.join(TARGET))?;
        self.target.lock().unwrap().insert(worker, value);
        let text = fs::read_to_string(mount.join(TARGET))?;
        let (by, found) =
            parse(&text).ok_or_else(|| io::Error::other(format!("the target is torn: {text:.30}")))?;
        match by == worker && found != value {
            true => Err(io::Error::other(format!("the target has {found} again, after {value}"))),
            false => Ok(()),
        }
    }

    /// Whoever makes the file has the lock, alone.
    pub fn lock(&self, mount: &Path, worker: usize) -> io::Result<()> {
        match OpenOptions::new().write(true).create_new(true).open(mount.join(LOCK)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            outcome => outcome?,
        };
        let before = self.holder.swap(worker, Ordering::SeqCst);
        fs::metadata(mount.join(LOCK))?;
        let meanwhile = self.holder.swap(NO_WORKER, Ordering::SeqCst);
        fs::remove_file(mount.join(LOCK))?;
        if before != NO_WORKER || meanwhile != worker {
            return Err(io::Error::other(format!(
                "has other holders too: {before:x} before, {meanwhile:x} then"
            )));
        }
        Ok(())
    }

    /// Checks what the workers shared, and takes it from what was found.
    pub fn check_and_forget(&self, mount: &Path, found: &mut BTreeMap<PathBuf, Shown>) {
        if let Some(Shown::File { content, .. }) = found.remove(Path::new(LOG)) {
            self.check_log(&String::from_utf8(content).unwrap(), mount);
        }
        let target = found.remove(Path::new(TARGET));
        if let Some(Shown::File { content, .. }) = target {
            let (by, value) = parse(&String::from_utf8(content).unwrap()).unwrap();
            assert_eq!(self.target.lock().unwrap().get(&by), Some(&value), "the target's last value by {by}");
        }
    }

    /// Every record is there once, whole, and in the order of its worker.
    fn check_log(&self, text: &str, mount: &Path) {
        let mut next: BTreeMap<usize, usize> = BTreeMap::new();
        for line in text.lines() {
            let mut words = line.split(' ');
            let mut number = || words.next().and_then(|word| word.parse::<usize>().ok());
            let (Some(worker), Some(turn)) = (number(), number()) else { panic!("a torn record: {line:?}") };
            let expected = next.entry(worker).or_default();
            assert_eq!(turn, *expected, "records of worker {worker} through {}", mount.display());
            assert_eq!(words.next().map(str::len), Some(turn % 300), "{line}");
            *expected += 1;
        }
        assert_eq!(next, *self.appended.lock().unwrap(), "records that were acknowledged");
    }
}

fn parse(text: &str) -> Option<(usize, usize)> {
    let (head, rest) = text.split_once('\n')?;
    let (by, value) = head.split_once(' ')?;
    let whole = rest.len() == 6000 && rest.bytes().all(|byte| byte == b'y');
    whole.then_some((by.parse().ok()?, value.parse().ok()?))
}
