//! Jobs: copies that are written down, so that they can be resumed, undone, and looked at.
//!
//! ```text
//! DIR/
//! ├── promises            what is to be copied out before the formation goes down: SRC, tab, DST per line
//! └── N/                  job N
//!     ├── order           what it is to do
//!     ├── lock            locked by the process that works on it
//!     ├── log             its journal
//!     └── manifest        every object and what became of it, when it ended
//! ```

mod manifest;
mod order;
mod preview;
mod promises;
mod run;
mod undo;

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;

pub use order::{Changed, Order, Way};
pub use preview::Preview;
pub use promises::Unstaged;
pub use run::{Conditions, Ended};

use crate::Limiter;
use crate::journal::History;
use crate::scan::below;
use crate::{Baseline, Failure, Line, LineKind, Totals, Transfer};

/// The jobs of a formation.
#[derive(Clone, Debug)]
pub struct Jobs {
    dir: PathBuf,
}

/// A job that this process works on.
#[derive(Debug)]
pub struct Held {
    /// Its number.
    pub number: u64,
    /// What it is to do.
    pub order: Order,
    /// What says how fast it may go while it does, instead of its order.
    pub pace: Option<Arc<Limiter>>,
    jobs: Jobs,
    _lock: File,
}

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A process works on it.
    Running,
    /// It was interrupted, and can be resumed or cancelled.
    Interrupted,
    /// It ended, but not everything is at the target; what is not can be tried again by resuming.
    Incomplete,
    /// It ended, and everything is at the target.
    Done,
}

impl Stage {
    /// As users read it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Stage::Running => "running",
            Stage::Interrupted => "interrupted",
            Stage::Incomplete => "incomplete",
            Stage::Done => "done",
        }
    }
}

/// What is known of a job.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its number.
    pub number: u64,
    /// What it is to do.
    pub order: Order,
    /// How far it is.
    pub stage: Stage,
    /// What there is to copy, as far as it has looked.
    pub found: Totals,
    /// What is at the target.
    pub done: Totals,
    /// When it was begun, in seconds since 1970.
    pub begun_secs: u64,
    /// Its manifest, if it ended.
    pub manifest: Option<PathBuf>,
}

impl Jobs {
    /// The jobs that are kept in a directory, which need not exist; but the one that it is in must: that of a formation
    /// that has been taken down meanwhile does not come back.
    #[must_use]
    pub fn at(dir: PathBuf) -> Jobs {
        Jobs { dir }
    }

    /// Writes a new job down and takes it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn create(&self, order: Order) -> Result<Held, Failure> {
        let failed = |error| Failure::io("write the job", &self.dir, error);
        self.make_dir().map_err(failed)?;
        // One at a time: of two with the same target, the one with the higher number sees the other whole.
        let alone = File::open(&self.dir).map_err(failed)?;
        retry_on_intr(|| flock(&alone, FlockOperation::LockExclusive))
            .map_err(|error| failed(error.into()))?;
        let mut number = self.numbers().last().map_or(1, |last| last + 1);
        while let Err(error) = private_dir(&self.path(number)) {
            if error.kind() != ErrorKind::AlreadyExists {
                return Err(failed(error));
            }
            number += 1;
        }
        let lock = self.lock(number).map_err(failed)?;
        let lock = lock.ok_or_else(|| failed(ErrorKind::ResourceBusy.into()))?;
        write_whole(&self.path(number).join("order"), &order.encode()).map_err(failed)?;
        Ok(Held { number, order, pace: None, jobs: self.clone(), _lock: lock })
    }

    /// Takes a job; `None` if another process works on it.
    ///
    /// # Errors
    /// When there is no such job, or it cannot be read.
    pub fn take(&self, number: u64) -> Result<Option<Held>, Failure> {
        let path = self.path(number);
        let order = self.order(number).map_err(|error| Failure::io("read the job", &path, error))?;
        let lock = self.lock(number).map_err(|error| Failure::io("take the job", &path, error))?;
        Ok(lock.map(|lock| Held { number, order, pace: None, jobs: self.clone(), _lock: lock }))
    }

    /// All jobs, oldest first. One that was not written down completely has done nothing and is left out.
    #[must_use]
    pub fn list(&self) -> Vec<Known> {
        self.numbers().into_iter().filter_map(|number| self.known(number).ok()).collect()
    }

    fn make_dir(&self) -> io::Result<()> {
        match private_dir(&self.dir) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    }

    fn known(&self, number: u64) -> io::Result<Known> {
        let order = self.order(number)?;
        // First: of one that ends in between, what is read afterwards says how.
        let is_running = self.lock(number)?.is_none();
        let history = self.history(number)?;
        let stage = match history.end.as_deref() {
            _ if is_running => Stage::Running,
            Some("done") => Stage::Done,
            Some(_) => Stage::Incomplete,
            None => Stage::Interrupted,
        };
        let sum = |each: fn(&crate::journal::Past) -> Totals| {
            history.transfers.iter().map(each).fold(Totals::default(), Totals::plus)
        };
        let begun = fs::metadata(self.path(number).join("order"))?.modified()?;
        let manifest = self.path(number).join("manifest");
        Ok(Known {
            number,
            order,
            stage,
            found: sum(|past| past.totals),
            done: sum(crate::journal::Past::done),
            begun_secs: begun.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            manifest: Some(manifest).filter(|path| path.exists()),
        })
    }

    /// What was staged in. With `out`, of that only what came from where `out` would bring it, and what was staged out to
    /// the same place: what is unchanged since is at the target.
    pub(crate) fn baseline(&self, out: Option<&Transfer>) -> Baseline {
        let mut baseline = Baseline::default();
        for number in self.numbers() {
            let (Ok(order), Ok(history)) = (self.order(number), self.history(number)) else { continue };
            for (transfer, past) in order.transfers.iter().zip(&history.transfers) {
                let lines = past.lines.values();
                let mut marks = match order.way {
                    Way::In => crate::baseline::marks(lines, &transfer.dst, |line| line.target),
                    Way::Out if Some(transfer) == out => {
                        crate::baseline::marks(lines, &transfer.src, |line| line.source)
                    }
                    Way::Out => continue,
                };
                if let (Way::In, Some(out)) = (order.way, out) {
                    marks.retain(|(path, _)| goes_back(path, transfer, out));
                }
                marks.into_iter().for_each(|(path, mark)| baseline.add(path, mark));
            }
        }
        baseline
    }

    /// What the bytes of files in the formation were when they were staged.
    pub(crate) fn digests(&self) -> Baseline {
        let mut known = Baseline::default();
        for number in self.numbers() {
            let (Ok(order), Ok(history)) = (self.order(number), self.history(number)) else { continue };
            let lines = history.transfers.iter().flat_map(|past| past.lines.values());
            let of = |line: &Line| {
                let mark = if order.way == Way::In { line.target } else { line.source };
                Some((line.kind == LineKind::HardLink, mark?, line.digest?))
            };
            let mut found: Vec<_> = lines.filter_map(of).collect();
            // Making a further name changes the file: what was noted then is what counts.
            found.sort_by_key(|(is_late, mark, _)| (*is_late, mark.ctime));
            found.into_iter().for_each(|(_, mark, digest)| known.add_digest(mark, digest));
        }
        known
    }

    fn numbers(&self) -> Vec<u64> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let mut numbers: Vec<u64> =
            entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        numbers.sort_unstable();
        numbers
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(number.to_string())
    }

    fn order(&self, number: u64) -> io::Result<Order> {
        let text = fs::read_to_string(self.path(number).join("order"))?;
        Order::decode(&text).ok_or_else(|| ErrorKind::InvalidData.into())
    }

    fn history(&self, number: u64) -> io::Result<History> {
        match fs::read(self.path(number).join("log")) {
            Ok(bytes) => Ok(History::read(&bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(History::default()),
            Err(error) => Err(error),
        }
    }

    /// `None` if another process has it.
    fn lock(&self, number: u64) -> io::Result<Option<File>> {
        let path = self.path(number).join("lock");
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Held {
    /// Removes what an interrupted job left at its targets, and the job; what is complete stays. Answers how many
    /// objects it removed.
    ///
    /// # Errors
    /// What could not be removed; then the job stays.
    pub fn cancel(self, mount: Option<&Path>) -> Result<u64, Failure> {
        let path = self.jobs.path(self.number);
        let failed = |error| Failure::io("remove the job", &path, error);
        let history = self.jobs.history(self.number).map_err(failed)?;
        let removed = undo::undo(&self.order, &history, mount)?;
        fs::remove_dir_all(&path).map_err(failed)?;
        Ok(removed)
    }

    /// Older jobs under way that copy to where this one copies to, or into that or around it.
    #[must_use]
    pub fn ahead(&self) -> Vec<u64> {
        let older = self.jobs.numbers().into_iter().take_while(|number| *number < self.number);
        let meets = |number: &u64| {
            self.jobs.order(*number).is_ok_and(|other| {
                let targets =
                    |order: &Order| order.transfers.iter().map(|t| t.dst.clone()).collect::<Vec<_>>();
                let (ours, theirs) = (targets(&self.order), targets(&other));
                let meet = |a: &PathBuf, b: &PathBuf| a.starts_with(b) || b.starts_with(a);
                other.way == self.order.way
                    && ours.iter().any(|our| theirs.iter().any(|their| meet(our, their)))
            })
        };
        older
            .filter(meets)
            .filter(|number| self.jobs.lock(*number).is_ok_and(|lock| lock.is_none()))
            .collect()
    }

    /// Seconds since 1970.
    #[must_use]
    pub fn now_secs() -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }
}

/// Whether `out` brings a path of the formation to where `into` brought it from.
fn goes_back(path: &Path, into: &Transfer, out: &Transfer) -> bool {
    let came_from = path.strip_prefix(&into.dst).map(|name| below(&into.src, name));
    let goes_to = path.strip_prefix(&out.src).map(|name| below(&out.dst, name));
    matches!((came_from, goes_to), (Ok(from), Ok(to)) if from == to)
}

fn private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(path)
}

fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let beside = path.with_extension("new");
    fs::write(&beside, text)?;
    fs::rename(beside, path)
}
