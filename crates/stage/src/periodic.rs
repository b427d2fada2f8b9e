//! Periodic copies out of a formation while applications write to it.
//!
//! Outputs are copied set by set: each entry of an output that is a directory is one, or the output itself. A set is
//! copied when nothing of it has changed for a while, no process here has anything of it open for writing, and no
//! client is in the middle of overwriting it.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bivouac_types::Errno;
use bivouac_types::units::{format_count, format_size};

use crate::jobs::{Direction, FoundSet, JobOutcome, JobSpec, Jobs, LockedJob, RunOptions};
use crate::{Cause, Failure, NoProgress, StageError, Summary, Totals, Transfer, UnixTime};

/// Minimum time without a change before a set counts as complete; half of the interval if that is less.
const SETTLE: Duration = Duration::from_secs(10);
/// Gone sets whose journals are kept, so that their copies at the target are not taken for foreign files.
const GONE_MAX: usize = 16;
/// Worker threads of a round. Few, because the processors belong to the command.
const WORKERS: usize = 4;
/// Niceness of copies while the command runs.
const NICE: i32 = 10;

/// Settings of periodic copies.
#[derive(Clone, Debug)]
pub struct PeriodicPlan {
    /// Time from the beginning of a round to that of the next.
    pub every: Duration,
    /// Outputs and their targets, which are absolute.
    pub transfers: Vec<Transfer>,
    /// Copies are read back and compared.
    pub verify: bool,
    /// Maximum rate in bytes per second; 0 for no limit.
    pub limit: u64,
}

/// A function that returns whether one of these inodes was open for writing when the check was made.
pub type WriterCheck<'a> = Box<dyn Fn(&[u64]) -> bool + 'a>;

/// The formation that is copied out of.
pub trait WrittenFormation: Sync {
    /// Returns the mounts that work now, one per node.
    fn mounts(&self) -> Vec<PathBuf>;
    /// Captures which files are open for writing now.
    fn writers(&self) -> WriterCheck<'_>;
    /// Reports to the user.
    fn report(&self, event: &PeriodicEvent<'_>);
}

/// A report to the user.
#[derive(Debug)]
pub enum PeriodicEvent<'a> {
    /// A set was copied.
    Copied(&'a Transfer, &'a Summary),
    /// A failure that the next round retries: reported once per kind and output, until a round succeeds.
    Failed(&'a str),
    /// The temporary objects of a failed job could not be removed.
    JobLeft(u64, &'a Failure),
}

/// Copier of sets, in rounds.
pub struct PeriodicCopies<F> {
    plan: PeriodicPlan,
    formation: F,
    jobs: Jobs,
    /// Cancels the copy in progress.
    cancel: Arc<AtomicBool>,
    /// Set when the command has ended: no further copy of a round begins.
    is_ending: AtomicBool,
    tally: Mutex<RoundStats>,
}

/// Totals of all rounds.
#[derive(Debug, Default)]
struct RoundStats {
    rounds: u64,
    failed_rounds: u64,
    sets: u64,
    totals: Totals,
    newest: Option<(UnixTime, String)>,
    /// Failures that have been reported, by output, and are not reported again until a round succeeds.
    said: HashSet<(usize, String)>,
    last_failure: Option<String>,
}

/// A set and the index of its output.
type OutputSet = (usize, FoundSet);

/// Result of copying a set.
enum SetOutcome {
    Whole(Summary),
    /// It changed during the copy; a later round retries it.
    Changed,
    Cancelled,
    Failed {
        /// Kind of the failure, equal for all sets.
        kind: String,
        text: String,
        is_full: bool,
    },
}

impl<F: WrittenFormation> PeriodicCopies<F> {
    /// Creates the copier of a formation.
    pub fn new(formation: F, jobs: Jobs, plan: PeriodicPlan) -> PeriodicCopies<F> {
        let (cancel, is_ending, tally) = (Arc::default(), AtomicBool::new(false), Mutex::default());
        PeriodicCopies { plan, formation, jobs, cancel, is_ending, tally }
    }

    /// Starts no further copy of a round.
    pub fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    /// Cancels the copy in progress.
    pub fn cancel(&self) {
        self.cancel.store(true, Ordering::Relaxed);
    }

    /// Runs rounds until the sender of `ended` is dropped.
    pub fn repeat(&self, ended: &Receiver<()>) {
        // Threads that it makes are as nice.
        let _or_as_nice_as_before = rustix::process::nice(NICE);
        let settle = SETTLE.min(self.plan.every / 2);
        let is_over = |wait: Duration| ended.recv_timeout(wait) != Err(RecvTimeoutError::Timeout);
        let mut wait = self.plan.every.saturating_sub(settle);
        while !is_over(wait) {
            let begun = Instant::now();
            let before = self.look(&self.cancel);
            // What does not change between the two looks is settled.
            if is_over(settle) {
                return;
            }
            self.round(before);
            // A round that took longer is followed by a pause all the same: the next one waits for what settles.
            wait = self.plan.every.saturating_sub(begun.elapsed());
        }
    }

    fn round(&self, before: Vec<OutputSet>) {
        let before: HashMap<Transfer, FoundSet> =
            before.into_iter().map(|(_, set)| (set.transfer.clone(), set)).collect();
        let now = self.look(&self.cancel);
        self.condense(&now, GONE_MAX);
        let is_written = self.formation.writers();
        let is_settled = |set: &FoundSet| {
            before.get(&set.transfer).is_some_and(|before| set.is_as(before)) && !is_written(&set.inodes)
        };
        let due = sets_to_copy(now, is_settled);
        drop(is_written);
        // Asked anew for each set: between two of them there may be minutes of copying.
        let is_at_rest = |set: &FoundSet| !self.formation.writers()(&set.inodes);
        let has_failed = self.copy_sets(due, &self.cancel, &self.is_ending, &is_at_rest);
        let mut tally = self.tally();
        tally.rounds += 1;
        tally.failed_rounds += u64::from(has_failed);
    }

    fn condense(&self, found: &[OutputSet], gone_max: usize) {
        let there = found.iter().map(|(_, set)| set.transfer.src.clone()).collect();
        if let Err(failure) = self.jobs.condense_sets(&there, gone_max) {
            self.say_failure(0, "journal", &failure.to_string());
        }
    }

    /// Copies everything that the target lacks after the command has ended; unless `is_whole`, only sets it never had,
    /// because a failed command may have left others half changed. Returns the omitted paths. Failures are left to the
    /// final copy of everything.
    pub fn copy_rest(&self, is_whole: bool, cancel: &Arc<AtomicBool>) -> Vec<PathBuf> {
        let found = self.look(cancel);
        // Nothing is said in the end of what the command has removed.
        self.condense(&found, 0);
        let is_left = |set: &FoundSet| !is_whole && set.was_out && !set.is_out;
        let (left, rest): (Vec<_>, Vec<_>) = found.into_iter().partition(|(_, set)| is_left(set));
        self.copy_sets(sets_to_copy(rest, |_| true), cancel, &AtomicBool::new(false), &|_| true);
        left.into_iter().map(|(_, set)| set.transfer.src).collect()
    }

    /// Returns a summary of all rounds, and whether one has failed.
    pub fn summary(&self) -> (String, bool) {
        let tally = self.tally();
        (tally.text(), tally.failed_rounds > 0)
    }

    fn tally(&self) -> MutexGuard<'_, RoundStats> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the sets of all outputs.
    fn look(&self, cancel: &Arc<AtomicBool>) -> Vec<OutputSet> {
        let (mounts, mut found) = (self.formation.mounts(), Vec::new());
        let Some(mount) = mounts.first() else { return found };
        for (number, transfer) in self.plan.transfers.iter().enumerate() {
            match self.jobs.find_sets(transfer, mount, cancel) {
                Ok(sets) => found.extend(sets.into_iter().map(|set| (number, set))),
                Err(failure) => self.say_failure(number, &kind_of(&failure), &failure.to_string()),
            }
        }
        found
    }

    /// Copies sets in order until `cancel` or `is_ending` is set. Returns whether one failed.
    fn copy_sets(
        &self,
        sets: Vec<OutputSet>,
        cancel: &Arc<AtomicBool>,
        is_ending: &AtomicBool,
        is_at_rest: &dyn Fn(&FoundSet) -> bool,
    ) -> bool {
        let (mut full, mut failed, mut missing) = (HashSet::new(), HashSet::new(), HashSet::new());
        let mut tried = HashSet::new();
        for (number, set) in sets {
            if cancel.load(Ordering::Relaxed) || is_ending.load(Ordering::Relaxed) {
                return !failed.is_empty();
            }
            let src = &set.transfer.src;
            // Older sets would take the room that the newest one waits for.
            let leads_to = set.leads_to.as_ref().map(|name| src.with_file_name(name));
            if full.contains(&number) || leads_to.is_some_and(|to| missing.contains(&to)) {
                continue;
            }
            tried.insert(number);
            match self.copy(number, &set, cancel, &|| is_at_rest(&set)) {
                SetOutcome::Whole(summary) => self.note_copied(&set, &summary),
                SetOutcome::Cancelled => return !failed.is_empty(),
                SetOutcome::Changed => {
                    missing.insert(src.clone());
                }
                SetOutcome::Failed { kind, text, is_full } => {
                    missing.insert(src.clone());
                    failed.insert(number);
                    full.extend(is_full.then_some(number));
                    self.say_failure(number, &kind, &text);
                }
            }
        }
        // An output of which nothing was tried has not succeeded either: its failures are not reported once more.
        self.tally().said.retain(|(number, _)| failed.contains(number) || !tried.contains(number));
        !failed.is_empty()
    }

    fn copy(
        &self,
        number: usize,
        set: &FoundSet,
        cancel: &Arc<AtomicBool>,
        is_at_rest: &dyn Fn() -> bool,
    ) -> SetOutcome {
        // Asked anew: one may have failed since.
        let mounts = self.formation.mounts();
        self.make_target(number, &mounts);
        let mut order = JobSpec::of_set(set.transfer.clone());
        (order.verify, order.limit, order.jobs) = (self.plan.verify, self.plan.limit, WORKERS);
        let held = match self.jobs.create(order) {
            Ok(held) => held,
            Err(failure) => return self.failed(set, &failure),
        };
        let conditions = RunOptions { mounts: mounts.clone(), checks_room: true, cancel: Arc::clone(cancel) };
        let failure = match held.run_set(set, is_at_rest, &conditions, &NoProgress).map(whole) {
            Ok(Ok(summary)) => return SetOutcome::Whole(summary),
            Ok(Err(None)) => {
                self.forget(held, &mounts);
                return SetOutcome::Cancelled;
            }
            Ok(Err(Some(failure))) | Err(failure) => failure,
        };
        // The next round begins anew.
        self.forget(held, &mounts);
        if cancel.load(Ordering::Relaxed) {
            return SetOutcome::Cancelled;
        }
        // Somebody may write to it without having changed anything that is seen.
        let is_changed = matches!(failure.cause, Cause::Changed);
        match is_changed || !self.is_unchanged(number, set, &mounts, cancel) {
            true => SetOutcome::Changed,
            false => self.failed(set, &failure),
        }
    }

    /// Creates a missing target with mode and owner of its source, because sets are renamed into it one by one.
    /// Failures are reported by the copy itself.
    fn make_target(&self, number: usize, mounts: &[PathBuf]) {
        let (Some(transfer), Some(mount)) = (self.plan.transfers.get(number), mounts.first()) else { return };
        let Ok(source) = std::fs::metadata(mount.join(&transfer.src)) else { return };
        if !source.is_dir() || transfer.dst.exists() || std::fs::create_dir_all(&transfer.dst).is_err() {
            return;
        }
        if rustix::process::geteuid().is_root() {
            let _keeps_roots = chown(&transfer.dst, Some(source.uid()), Some(source.gid()));
        }
        let mode = std::fs::Permissions::from_mode(source.mode() & 0o7777);
        let _keeps_its_own = std::fs::set_permissions(&transfer.dst, mode);
    }

    fn forget(&self, held: LockedJob, mounts: &[PathBuf]) {
        let number = held.number;
        if let Err(failure) = held.cancel(mounts.first().map(PathBuf::as_path)) {
            self.formation.report(&PeriodicEvent::JobLeft(number, &failure));
        }
    }

    fn is_unchanged(
        &self,
        number: usize,
        set: &FoundSet,
        mounts: &[PathBuf],
        cancel: &Arc<AtomicBool>,
    ) -> bool {
        let (Some(transfer), Some(mount)) = (self.plan.transfers.get(number), mounts.first()) else {
            return true;
        };
        match self.jobs.find_sets(transfer, mount, cancel) {
            Ok(sets) => sets.iter().any(|now| now.is_as(set)),
            // The mount itself may be what failed.
            Err(_) => true,
        }
    }

    fn failed(&self, set: &FoundSet, failure: &Failure) -> SetOutcome {
        SetOutcome::Failed {
            kind: kind_of(failure),
            text: format!("{}: {failure}", Direction::Out.describe(&set.transfer)),
            is_full: matches!(failure.errno(), Some(Errno::ENOSPC | Errno::EDQUOT)),
        }
    }

    fn note_copied(&self, set: &FoundSet, summary: &Summary) {
        let copied = Totals { files: summary.files, bytes: summary.bytes };
        self.formation.report(&PeriodicEvent::Copied(&set.transfer, summary));
        let mut tally = self.tally();
        tally.totals = tally.totals.plus(copied);
        tally.sets += 1;
        if !set.is_link() && tally.newest.as_ref().is_none_or(|(newest, _)| *newest <= set.newest) {
            tally.newest = Some((set.newest, Direction::Out.describe(&set.transfer)));
        }
    }

    /// Reports a failure once per kind and output until a round succeeds.
    fn say_failure(&self, number: usize, kind: &str, text: &str) {
        let mut tally = self.tally();
        tally.last_failure = Some(text.to_owned());
        if tally.said.insert((number, kind.to_owned())) {
            drop(tally);
            self.formation.report(&PeriodicEvent::Failed(text));
        }
    }
}

impl RoundStats {
    fn text(&self) -> String {
        let rounds = format_count(self.rounds, "round");
        let mut text = if self.sets == 0 {
            format!("nothing was copied out in {rounds}")
        } else {
            let (sets, files) = (format_count(self.sets, "set"), format_count(self.totals.files, "file"));
            format!("{sets} copied out ({files}, {}), {rounds}", format_size(self.totals.bytes))
        };
        if let Some((_, what)) = &self.newest {
            text.push_str(&format!("; the newest: {what}"));
        }
        if self.failed_rounds > 0 {
            let last = self.last_failure.as_deref().unwrap_or("?");
            text.push_str(&format!("; {} failed, last by {last}", format_count(self.failed_rounds, "round")));
        }
        text
    }
}

/// Returns the summary of a complete copy, or its first failure; `None` if it was cancelled.
fn whole(ended: JobOutcome) -> Result<Summary, Option<Failure>> {
    let outcome = ended.transfers.into_iter().next().map(|(_, outcome)| outcome);
    match (outcome, ended.end_failure) {
        (Some(Ok(summary)), None) => Ok(summary),
        (Some(Err(StageError::Root(failure))), _) | (Some(Ok(_)), Some(failure)) => Err(Some(failure)),
        (Some(Err(StageError::Incomplete { failures, .. })), _) => Err(failures.into_iter().next()),
        (Some(Err(StageError::Cancelled)) | None, _) => Err(None),
    }
}

fn kind_of(failure: &Failure) -> String {
    failure.errno().map_or_else(|| failure.cause.to_string(), |errno| errno.to_string())
}

/// Returns the sets to copy, newest first; links last, and only if their target is or will be copied.
fn sets_to_copy(found: Vec<OutputSet>, is_settled: impl Fn(&FoundSet) -> bool) -> Vec<OutputSet> {
    let (mut links, sets): (Vec<_>, Vec<_>) = found.into_iter().partition(|(_, set)| set.is_link());
    let sets: Vec<_> = sets.into_iter().filter(|(_, set)| !set.is_out).collect();
    let (mut due, waiting): (Vec<_>, Vec<_>) = sets.into_iter().partition(|(_, set)| is_settled(set));
    let waiting: HashSet<&Path> = waiting.iter().map(|(_, set)| set.transfer.src.as_path()).collect();
    due.sort_by_key(|(_, set)| std::cmp::Reverse(set.newest));
    links.retain(|(_, link)| {
        let leads_to = link.leads_to.as_ref().map(|name| link.transfer.src.with_file_name(name));
        !link.is_out && is_settled(link) && !leads_to.is_some_and(|to| waiting.contains(to.as_path()))
    });
    due.extend(links);
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sets(names: &[&str]) -> Vec<OutputSet> {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for name in names {
            match name.split_once("->") {
                Some((link, to)) => std::os::unix::fs::symlink(to, root.join(link)).unwrap(),
                None => std::fs::write(root.join(name), name).unwrap(),
            }
        }
        let transfer = Transfer { src: PathBuf::new(), dst: "/site".into() };
        let jobs = Jobs::at(root.join(".jobs"));
        let found = jobs.find_sets(&transfer, &root, &Arc::default()).unwrap();
        found.into_iter().map(|set| (0, set)).collect()
    }

    fn names(due: &[OutputSet]) -> Vec<String> {
        due.iter().map(|(_, set)| set.transfer.src.display().to_string()).collect()
    }

    #[test]
    fn the_newest_is_first_and_links_are_last() {
        let mut found = sets(&["a", "b", "c", "latest->b"]);
        for (number, (_, set)) in found.iter_mut().enumerate() {
            set.newest = ([5, 9, 7, 10][number], 0);
        }
        assert_eq!(names(&sets_to_copy(found.clone(), |_| true)), ["b", "c", "a", "latest"]);
        let settled = |set: &FoundSet| !set.transfer.src.ends_with("b");
        assert_eq!(
            names(&sets_to_copy(found.clone(), settled)),
            ["c", "a"],
            "the link waits for what it leads to"
        );
        found[1].1.is_out = true;
        assert_eq!(names(&sets_to_copy(found, settled)), ["c", "a", "latest"]);
    }

    #[test]
    fn the_end_says_what_came_of_it() {
        let mut tally = RoundStats { rounds: 1, ..RoundStats::default() };
        assert_eq!(tally.text(), "nothing was copied out in 1 round");
        (tally.rounds, tally.sets, tally.totals) = (3, 1, Totals { files: 2, bytes: 1 << 20 });
        tally.newest = Some(((1, 0), "/c1 to /site/c1".into()));
        (tally.failed_rounds, tally.last_failure) = (1, Some("/c0: full".into()));
        assert_eq!(
            tally.text(),
            "1 set copied out (2 files, 1 MiB), 3 rounds; the newest: /c1 to /site/c1; 1 round failed, last by /c0: full"
        );
    }
}
