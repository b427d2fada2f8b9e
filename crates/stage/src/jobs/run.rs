//! Execution of a job, or of its remainder.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::args::Transfer;
use crate::baseline::Baseline;
use crate::error::{Failure, StageError};
use crate::journal::{Journal, Recorder, control};
use crate::mount_views::MountViews;
use crate::nofollow;
use crate::options::{CopyOptions, FormationSide};
use crate::paths::below;
use crate::progress::Progress;
use crate::rate_limit::Limiter;
use crate::resolve::{ResolvedPath, follow, follow_target};
use crate::summary::Summary;
use crate::tree::{CopyContext, QuiescentSet, copy_one};

use super::order::{ChangeFilter, Direction, JobSpec};
use super::{FoundSet, Jobs, LockedJob, manifest, sets, undo};

/// Interval at which a job that waits for another one checks whether it may start.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Run-time options of a job.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Mounts of the formation; at least one.
    pub mounts: Vec<PathBuf>,
    /// True to refuse what certainly does not fit before anything is written; false if space is freed during the copy.
    pub checks_room: bool,
    /// Cancels the job when set; it can be resumed.
    pub cancel: Arc<AtomicBool>,
}

/// Result of a run.
#[derive(Debug)]
pub struct JobOutcome {
    /// Result of each transfer that was started.
    pub transfers: Vec<(Transfer, Result<Summary, StageError>)>,
    /// Path of the manifest in the job directory.
    pub manifest: PathBuf,
    /// Failure to write a manifest or to remove temporary objects.
    pub end_failure: Option<Failure>,
}

impl JobOutcome {
    /// Returns whether everything is at the target.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.transfers.iter().all(|(_, outcome)| outcome.is_ok()) && self.end_failure.is_none()
    }

    /// Returns whether the run was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.transfers.iter().any(|(_, outcome)| matches!(outcome, Err(StageError::Cancelled)))
    }
}

impl Jobs {
    /// Returns the baseline that a transfer is compared with; `None` to copy everything.
    pub(super) fn baseline_for(&self, changed: ChangeFilter, transfer: &Transfer) -> Option<Baseline> {
        let below = |baseline: Baseline| Some(baseline.below(&transfer.src));
        match changed {
            ChangeFilter::All => None,
            ChangeFilter::SinceIn => below(self.baseline(None)),
            ChangeFilter::SinceStaged => below(self.baseline(Some(transfer))),
            ChangeFilter::Since(time) => Some(Baseline::since(time)),
        }
    }
}

impl LockedJob {
    /// Copies what is missing, and writes the manifest. Continues after failures of single objects.
    ///
    /// # Errors
    /// An unreadable journal, a failed write to it, or a malformed pattern.
    pub fn run(&self, conditions: &RunOptions, progress: &dyn Progress) -> Result<JobOutcome, Failure> {
        self.run_settled(conditions, progress, None)
    }

    /// Like [`LockedJob::run`], for one set: fails if the set differs from `set`, or `is_at_rest` reports a writer,
    /// before the copy or before its rename.
    ///
    /// # Errors
    /// As [`LockedJob::run`].
    pub(crate) fn run_set(
        &self,
        set: &FoundSet,
        is_at_rest: &dyn Fn() -> bool,
        conditions: &RunOptions,
        progress: &dyn Progress,
    ) -> Result<JobOutcome, Failure> {
        let settled = QuiescentSet { objects: &set.objects, is_at_rest };
        self.run_settled(conditions, progress, Some(&settled))
    }

    fn run_settled(
        &self,
        conditions: &RunOptions,
        progress: &dyn Progress,
        settled: Option<&QuiescentSet<'_>>,
    ) -> Result<JobOutcome, Failure> {
        // Two jobs with overlapping targets would each find the other's temporary names in the way.
        while !self.conflicting_jobs().is_empty() && !self.stops(conditions) {
            std::thread::park_timeout(LOOK_EVERY);
        }
        let dir = self.jobs.path(self.number);
        let log = dir.join("log");
        let failed = |error| Failure::io("use the job's journal", &log, error);
        let (journal, mut history) = Journal::open(&log).map_err(failed)?;
        let was_begun = !history.dirs.is_empty();
        let mount = conditions.mounts.first().cloned().unwrap_or_default();
        let mounted = nofollow::canonical(&mount);
        // Recorded first: paths below the mount in the journal are translated by it if the formation is mounted
        // elsewhere later.
        journal.note(&control("mount", &mounted)).map_err(failed)?;
        let opts = self.options(conditions);
        let known = (opts.verify && self.order.way == Direction::Out).then(|| self.jobs.digests());
        let mut transfers = Vec::new();
        for (number, transfer) in self.order.transfers.iter().enumerate() {
            // Before anything of the transfer, also of one that is done: it ends the result of the last run.
            journal.note(&format!("#transfer\t{number}\n")).map_err(failed)?;
            progress.transfer(transfer);
            let baseline = self.baseline(transfer);
            let known_there = self.order.is_set.then(|| self.jobs.known_at_target(transfer));
            let select = self.order.select(transfer).map_err(|text| self.misunderstood(text))?;
            let opts = CopyOptions { select, ..opts.clone() };
            let context = CopyContext {
                recorder: &journal,
                past: history.past(number),
                tag: &self.order.tag,
                is_resumable: true,
                baseline: baseline.as_ref(),
                is_followed: true,
                known: known.as_ref(),
                set: known_there.as_ref(),
                settled,
            };
            let outcome = self.copy(transfer, &mount, &opts, progress, context);
            progress.transferred(transfer, &outcome);
            transfers.push((transfer.clone(), outcome));
            if self.stops(conditions) {
                break;
            }
        }
        let mut ended = JobOutcome { transfers, manifest: dir.join("manifest"), end_failure: None };
        if !ended.is_cancelled() {
            // Temporary objects of an earlier run are of no use now: the object may have been copied by another job
            // since, or its source may be gone.
            let removed =
                if was_begun { undo::remove_drafts(&self.order, &history, Some(&mounted)) } else { Ok(0) };
            ended.end_failure = self.write_manifests(&ended).err().or(removed.err());
            // The end is recorded after the manifests, so a job that is complete always has one.
            let word = if ended.is_complete() { "done" } else { "incomplete" };
            journal.note(&format!("#end\t{word}\n")).map_err(failed)?;
        }
        Ok(ended)
    }

    fn stops(&self, conditions: &RunOptions) -> bool {
        conditions.cancel.load(Ordering::Relaxed)
            || self.pace.as_ref().is_some_and(|pace| pace.ended().is_some())
    }

    fn copy(
        &self,
        transfer: &Transfer,
        mount: &Path,
        opts: &CopyOptions,
        progress: &dyn Progress,
        context: CopyContext<'_>,
    ) -> Result<Summary, StageError> {
        match self.order.way {
            Direction::In => {
                let dst = follow_target(mount, &transfer.dst).map_err(StageError::Root)?;
                copy_one(&transfer.src, &resolve_mount(mount, &dst), opts, progress, &context)
            }
            Direction::Out if self.order.is_set => {
                let path = sets::place(mount, &transfer.src).map_err(StageError::Root)?;
                copy_one(&resolve_mount(mount, &path), &transfer.dst, opts, progress, &context)
            }
            Direction::Out => {
                let ResolvedPath { path, .. } = follow(mount, &transfer.src).map_err(StageError::Root)?;
                copy_one(&resolve_mount(mount, &path), &transfer.dst, opts, progress, &context)
            }
        }
    }

    fn misunderstood(&self, text: String) -> Failure {
        let error = std::io::Error::new(std::io::ErrorKind::InvalidInput, text);
        Failure::io("understand the patterns", &self.jobs.path(self.number), error)
    }

    fn options(&self, conditions: &RunOptions) -> CopyOptions {
        let JobSpec { way, verify, jobs, limit, .. } = self.order;
        CopyOptions {
            jobs,
            verify,
            side: if way == Direction::In { FormationSide::Target } else { FormationSide::Source },
            checks_room: conditions.checks_room,
            limit: self.pace.clone().or_else(|| (limit > 0).then(|| Arc::new(Limiter::new(limit)))),
            views: MountViews::new(conditions.mounts.clone()),
            cancel: Arc::clone(&conditions.cancel),
            ..CopyOptions::default()
        }
    }

    fn baseline(&self, transfer: &Transfer) -> Option<Baseline> {
        self.jobs.baseline_for(self.order.changed, transfer)
    }

    fn write_manifests(&self, ended: &JobOutcome) -> Result<(), Failure> {
        assert!(ended.transfers.len() <= self.order.transfers.len(), "a job has more results than transfers");
        let outcomes: Vec<_> = ended.transfers.iter().map(|(_, outcome)| outcome).collect();
        let wanted = std::iter::once(&ended.manifest).chain(&self.order.manifest);
        let failed = |error| Failure::io("read the job's journal", &ended.manifest, error);
        let history = self.jobs.history(self.number).map_err(failed)?;
        for path in wanted {
            manifest::write(path, &self.order, &history, &outcomes)
                .map_err(|error| Failure::io("write the manifest", path, error))?;
        }
        Ok(())
    }
}

/// Resolves the links in a path up to the mount; the part below it has none.
pub(super) fn resolve_mount(mount: &Path, path: &Path) -> PathBuf {
    let rest = path.strip_prefix(mount).ok();
    rest.map_or_else(|| path.to_owned(), |rest| below(&nofollow::canonical(mount), rest))
}
