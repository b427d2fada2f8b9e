//! Jobs: recorded copies, which can be resumed, cancelled and listed.
//!
//! ```text
//! DIR/
//! ├── promises            what is to be copied out before the formation goes down: SRC, tab, DST per line
//! ├── last                the highest number that a job has had
//! └── N/                  job N
//!     ├── order           what it is to do
//!     ├── lock            locked by the process that works on it
//!     ├── log             its journal
//!     └── manifest        every object and what became of it, when it ended
//! ```

mod manifest;
mod order;
mod preview;
mod required_outputs;
mod run;
mod sets;
mod undo;

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;

pub use order::{ChangeFilter, Direction, JobSpec};
pub use preview::Preview;
pub use required_outputs::UnstagedOutput;
pub use run::{JobOutcome, RunOptions};
pub(crate) use sets::FoundSet;

use crate::args::Transfer;
use crate::baseline::Baseline;
use crate::error::Failure;
use crate::journal::History;
use crate::manifest_line::{Line, LineKind};
use crate::paths::below;
use crate::rate_limit::Limiter;
use crate::summary::Totals;

/// Name of the file with the highest job number ever used.
const LAST: &str = "last";

/// The job directory of a formation.
#[derive(Clone, Debug)]
pub struct Jobs {
    dir: PathBuf,
}

/// A job that is locked by this process.
#[derive(Debug)]
pub struct LockedJob {
    /// Job number.
    pub number: u64,
    /// Specification.
    pub order: JobSpec,
    /// External rate limit, which replaces that of the specification.
    pub pace: Option<Arc<Limiter>>,
    jobs: Jobs,
    _lock: File,
}

/// State of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// A process holds its lock.
    Running,
    /// Interrupted; can be resumed or cancelled.
    Interrupted,
    /// Ended with failures; resuming retries them.
    Incomplete,
    /// Ended without failures.
    Done,
}

impl JobState {
    /// Returns the word shown to users.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            JobState::Running => "running",
            JobState::Interrupted => "interrupted",
            JobState::Incomplete => "incomplete",
            JobState::Done => "done",
        }
    }
}

/// Status of a job.
#[derive(Clone, Debug)]
pub struct JobStatus {
    /// Job number.
    pub number: u64,
    /// Specification.
    pub order: JobSpec,
    /// State.
    pub stage: JobState,
    /// Totals of the source, as far as it has been scanned.
    pub found: Totals,
    /// Totals at the target.
    pub done: Totals,
    /// Creation time, in seconds since 1970.
    pub begun_secs: u64,
    /// Path of the manifest, if the job has ended.
    pub manifest: Option<PathBuf>,
}

impl Jobs {
    /// Refers to a job directory, which is created when needed; but its parent must exist, so that the state of a
    /// removed formation does not reappear.
    #[must_use]
    pub fn at(dir: PathBuf) -> Jobs {
        Jobs { dir }
    }

    /// Creates a job and locks it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn create(&self, order: JobSpec) -> Result<LockedJob, Failure> {
        let failed = |error| Failure::io("write the job", &self.dir, error);
        self.make_dir().map_err(failed)?;
        // Creations are serialized, so that of two jobs with the same target the later one sees the specification of
        // the earlier.
        let alone = File::open(&self.dir).map_err(failed)?;
        retry_on_intr(|| flock(&alone, FlockOperation::LockExclusive))
            .map_err(|error| failed(error.into()))?;
        let number = self.last().map_err(failed)?.checked_add(1).ok_or_else(|| failed(overflow()))?;
        // The number is recorded before the job exists: results refer to jobs by number, so that of a cancelled job
        // must not be used again.
        write_whole(&self.dir.join(LAST), &number.to_string()).map_err(failed)?;
        private_dir(&self.path(number)).map_err(failed)?;
        // Locked before the specification is there: a job that can be read is never one that nobody works on yet.
        let lock = self.lock(number).map_err(failed)?;
        let lock = lock.ok_or_else(|| failed(ErrorKind::ResourceBusy.into()))?;
        write_whole(&self.path(number).join("order"), &order.encode()).map_err(failed)?;
        // A job that is resumed does what this file says, not what was asked for.
        let recorded = JobSpec::decode(&order.encode());
        assert_eq!(recorded.as_ref(), Some(&order), "a job specification does not read back");
        Ok(LockedJob { number, order, pace: None, jobs: self.clone(), _lock: lock })
    }

    /// Locks a job; `None` if another process holds its lock.
    ///
    /// # Errors
    /// No such job, or an unreadable one.
    pub fn take(&self, number: u64) -> Result<Option<LockedJob>, Failure> {
        let path = self.path(number);
        let order = self.order(number).map_err(|error| Failure::io("read the job", &path, error))?;
        let lock = self.lock(number).map_err(|error| Failure::io("take the job", &path, error))?;
        Ok(lock.map(|lock| LockedJob { number, order, pace: None, jobs: self.clone(), _lock: lock }))
    }

    /// Returns all jobs, oldest first. A job without a complete specification has not started and is omitted.
    #[must_use]
    pub fn list(&self) -> Vec<JobStatus> {
        self.numbers().into_iter().filter_map(|number| self.known(number).ok()).collect()
    }

    /// Returns jobs whose record cannot be read, with the error.
    #[must_use]
    pub fn unreadable(&self) -> Vec<(u64, io::Error)> {
        let failed =
            self.numbers().into_iter().filter_map(|number| Some((number, self.known(number).err()?)));
        // A job without a specification has not started.
        failed.filter(|(_, error)| error.kind() != ErrorKind::NotFound).collect()
    }

    fn make_dir(&self) -> io::Result<()> {
        match private_dir(&self.dir) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    }

    fn known(&self, number: u64) -> io::Result<JobStatus> {
        let order = self.order(number)?;
        // The lock is tested before the journal is read: if the job ends in between, the journal has its result.
        let is_running = self.lock(number)?.is_none();
        let history = self.history(number)?;
        let stage = match history.end.as_deref() {
            _ if is_running => JobState::Running,
            Some("done") => JobState::Done,
            Some(_) => JobState::Incomplete,
            None => JobState::Interrupted,
        };
        let sum = |each: fn(&crate::journal::TransferHistory) -> Totals| {
            history.transfers.iter().map(each).fold(Totals::default(), Totals::plus)
        };
        let begun = fs::metadata(self.path(number).join("order"))?.modified()?;
        let manifest = self.path(number).join("manifest");
        Ok(JobStatus {
            number,
            order,
            stage,
            found: sum(|past| past.totals),
            done: sum(crate::journal::TransferHistory::done),
            begun_secs: begun.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            manifest: Some(manifest).filter(|path| path.exists()),
        })
    }

    /// Returns versions of objects that were staged in. With `out`, only of those whose copy is already at the target
    /// of `out`: staged in from there, or staged out to there.
    pub(crate) fn baseline(&self, out: Option<&Transfer>) -> Baseline {
        let mut baseline = Baseline::default();
        for number in self.numbers() {
            let (Ok(order), Ok(history)) = (self.order(number), self.history(number)) else { continue };
            // A set is renamed as a whole, so an incomplete one has left nothing at the target.
            if order.is_set && !history.is_done() {
                continue;
            }
            for (transfer, past) in order.transfers.iter().zip(&history.transfers) {
                let lines = past.lines.values();
                let mut marks = match order.way {
                    Direction::In => {
                        crate::baseline::manifest_versions(lines, &transfer.dst, |line| line.target)
                    }
                    Direction::Out if out.is_some() => {
                        crate::baseline::manifest_versions(lines, &transfer.src, |line| line.source)
                    }
                    Direction::Out => continue,
                };
                match (order.way, out) {
                    (Direction::In, Some(out)) => {
                        marks.retain(|(path, _)| is_round_trip(path, transfer, out))
                    }
                    (Direction::Out, Some(out)) => {
                        marks.retain(|(path, _)| has_same_target(path, transfer, out))
                    }
                    (_, None) => {}
                }
                marks.into_iter().for_each(|(path, version)| baseline.add(path, version));
            }
        }
        baseline
    }

    /// Returns the digests of files in the formation by version.
    pub(crate) fn digests(&self) -> Baseline {
        let mut known = Baseline::default();
        for number in self.numbers() {
            let (Ok(order), Ok(history)) = (self.order(number), self.history(number)) else { continue };
            let lines = history.transfers.iter().flat_map(|past| past.lines.values());
            let of = |line: &Line| {
                let version = if order.way == Direction::In { line.target } else { line.source };
                Some((line.kind == LineKind::HardLink, version?, line.digest?))
            };
            let mut found: Vec<_> = lines.filter_map(of).collect();
            // A hard link changes the ctime of the file, so the lines of links are later than those of files.
            found.sort_by_key(|(is_late, version, _)| (*is_late, version.ctime));
            found.into_iter().for_each(|(_, version, digest)| known.add_digest(version, digest));
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

    /// Returns the highest job number ever used; 0 if there is none.
    fn last(&self) -> io::Result<u64> {
        let noted = match fs::read_to_string(self.dir.join(LAST)) {
            Ok(text) => text.trim().parse().map_err(|_| io::Error::from(ErrorKind::InvalidData))?,
            Err(error) if error.kind() == ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        Ok(self.numbers().last().copied().unwrap_or(0).max(noted))
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(number.to_string())
    }

    fn order(&self, number: u64) -> io::Result<JobSpec> {
        let text = fs::read_to_string(self.path(number).join("order"))?;
        JobSpec::decode(&text).ok_or_else(|| ErrorKind::InvalidData.into())
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
        // The lock belongs to the open file: it ends with the process, however that ends.
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl LockedJob {
    /// Removes the job and its temporary objects at the targets; complete objects stay. Returns the number of removed
    /// objects.
    ///
    /// # Errors
    /// The first object that could not be removed; the job stays then.
    pub fn cancel(self, mount: Option<&Path>) -> Result<u64, Failure> {
        let path = self.jobs.path(self.number);
        let failed = |error| Failure::io("remove the job", &path, error);
        let history = self.jobs.history(self.number).map_err(failed)?;
        // Temporary objects are removed before the job: without its record nothing would refer to them.
        let removed = undo::undo(&self.order, &history, mount)?;
        fs::remove_dir_all(&path).map_err(failed)?;
        Ok(removed)
    }

    /// Returns older running jobs whose targets overlap with those of this job.
    #[must_use]
    pub fn conflicting_jobs(&self) -> Vec<u64> {
        let older = self.jobs.numbers().into_iter().take_while(|number| *number < self.number);
        let meets = |number: &u64| {
            self.jobs.order(*number).is_ok_and(|other| {
                let targets =
                    |order: &JobSpec| order.transfers.iter().map(|t| t.dst.clone()).collect::<Vec<_>>();
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

    /// Returns the seconds since 1970.
    #[must_use]
    pub fn now_secs() -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }
}

/// Returns whether `out` copies a path to where `into` copied it from.
fn is_round_trip(path: &Path, into: &Transfer, out: &Transfer) -> bool {
    let came_from = path.strip_prefix(&into.dst).map(|name| below(&into.src, name));
    let goes_to = path.strip_prefix(&out.src).map(|name| below(&out.dst, name));
    matches!((came_from, goes_to), (Ok(from), Ok(to)) if from == to)
}

/// Returns whether `out` copies a path to the same target as the earlier transfer `other`.
fn has_same_target(path: &Path, other: &Transfer, out: &Transfer) -> bool {
    let goes_to = |transfer: &Transfer| {
        let name = path.strip_prefix(&transfer.src).ok()?;
        Some(below(&transfer.dst, name))
    };
    matches!((goes_to(other), goes_to(out)), (Some(other), Some(out)) if other == out)
}

fn overflow() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "no number is left for a job; look at the file `last` there")
}

fn private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(path)
}

fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let beside = path.with_extension("new");
    fs::write(&beside, text)?;
    fs::rename(beside, path)
}
