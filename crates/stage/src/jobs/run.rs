//! Does what a job is to do, or what of it is not done yet.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::beneath::{Beneath, follow, follow_target};
use crate::journal::{Journal, Recorder, control};
use crate::scan::below;
use crate::straight;
use crate::tree::{Way as Going, copy_one};
use crate::{Baseline, CopyOptions, Failure, Limiter, Progress, Side, StageError, Summary, Transfer, Views};

use super::order::{Changed, Order, Way};
use super::{Held, Jobs, manifest};

/// How often a job looks whether it may begin that waits for another one.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Under what conditions a job is worked on.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Where the formation is mounted: at least once.
    pub mounts: Vec<PathBuf>,
    /// Whether what certainly does not fit is refused before anything is written: not where room is made while it is copied.
    pub checks_room: bool,
    /// Set it to stop; the job can be resumed then.
    pub cancel: Arc<AtomicBool>,
}

/// What became of a job.
#[derive(Debug)]
pub struct Ended {
    /// Of each transfer that was begun, what became of it.
    pub transfers: Vec<(Transfer, Result<Summary, StageError>)>,
    /// The manifest that the job keeps.
    pub manifest: PathBuf,
    /// Why the manifest is not where it should be.
    pub manifest_failure: Option<Failure>,
}

impl Ended {
    /// Whether everything is at the target.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.transfers.iter().all(|(_, outcome)| outcome.is_ok()) && self.manifest_failure.is_none()
    }

    /// Whether it was stopped.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.transfers.iter().any(|(_, outcome)| matches!(outcome, Err(StageError::Cancelled)))
    }
}

impl Jobs {
    /// Against what a transfer is compared, if only what changed is wanted.
    pub(super) fn baseline_for(&self, changed: Changed, transfer: &Transfer) -> Option<Baseline> {
        let below = |baseline: Baseline| Some(baseline.below(&transfer.src));
        match changed {
            Changed::All => None,
            Changed::SinceIn => below(self.baseline(None)),
            Changed::SinceStaged => below(self.baseline(Some(transfer))),
            Changed::Since(time) => Some(Baseline::since(time)),
        }
    }
}

impl Held {
    /// Copies what is not copied yet, and leaves a manifest. Goes on after a failure, so that as much as possible is copied.
    ///
    /// # Errors
    /// When the job's journal cannot be read or written, or its order makes no sense.
    pub fn run(&self, conditions: &Conditions, progress: &dyn Progress) -> Result<Ended, Failure> {
        // Two that made the same names at once would refuse each other's.
        while !self.ahead().is_empty() && !self.stops(conditions) {
            std::thread::park_timeout(LOOK_EVERY);
        }
        let dir = self.jobs.path(self.number);
        let log = dir.join("log");
        let failed = |error| Failure::io("use the job's journal", &log, error);
        let (journal, mut history) = Journal::open(&log).map_err(failed)?;
        let mount = conditions.mounts.first().cloned().unwrap_or_default();
        journal.note(&control("mount", &straight::canonical(&mount))).map_err(failed)?;
        let opts = self.options(conditions)?;
        let known = (opts.verify && self.order.way == Way::Out).then(|| self.jobs.digests());
        let mut transfers = Vec::new();
        for (number, transfer) in self.order.transfers.iter().enumerate() {
            journal.note(&format!("#transfer\t{number}\n")).map_err(failed)?;
            progress.transfer(transfer);
            let baseline = self.baseline(transfer);
            let going = Going {
                recorder: &journal,
                past: history.past(number),
                tag: &self.order.tag,
                is_resumable: true,
                baseline: baseline.as_ref(),
                is_followed: true,
                known: known.as_ref(),
            };
            let outcome = self.copy(transfer, &mount, &opts, progress, going);
            progress.transferred(transfer, &outcome);
            transfers.push((transfer.clone(), outcome));
            if self.stops(conditions) {
                break;
            }
        }
        let mut ended = Ended { transfers, manifest: dir.join("manifest"), manifest_failure: None };
        if !ended.is_cancelled() {
            ended.manifest_failure = self.write_manifests(&ended).err();
            let word = if ended.is_complete() { "done" } else { "incomplete" };
            journal.note(&format!("#end\t{word}\n")).map_err(failed)?;
        }
        Ok(ended)
    }

    fn stops(&self, conditions: &Conditions) -> bool {
        conditions.cancel.load(Ordering::Relaxed)
            || self.pace.as_ref().is_some_and(|pace| pace.ended().is_some())
    }

    fn copy(
        &self,
        transfer: &Transfer,
        mount: &Path,
        opts: &CopyOptions,
        progress: &dyn Progress,
        going: Going<'_>,
    ) -> Result<Summary, StageError> {
        match self.order.way {
            Way::In => {
                let dst = follow_target(mount, &transfer.dst).map_err(StageError::Root)?;
                copy_one(&transfer.src, &of_mount(mount, &dst), opts, progress, &going)
            }
            Way::Out => {
                let Beneath { path, .. } = follow(mount, &transfer.src).map_err(StageError::Root)?;
                copy_one(&of_mount(mount, &path), &transfer.dst, opts, progress, &going)
            }
        }
    }

    fn options(&self, conditions: &Conditions) -> Result<CopyOptions, Failure> {
        let Order { way, verify, jobs, limit, .. } = self.order;
        let wrong = |text: String| {
            let error = std::io::Error::new(std::io::ErrorKind::InvalidInput, text);
            Failure::io("understand the patterns", &self.jobs.path(self.number), error)
        };
        Ok(CopyOptions {
            jobs,
            verify,
            side: if way == Way::In { Side::Target } else { Side::Source },
            select: self.order.select().map_err(wrong)?,
            checks_room: conditions.checks_room,
            limit: self.pace.clone().or_else(|| (limit > 0).then(|| Arc::new(Limiter::new(limit)))),
            views: Views::new(conditions.mounts.clone()),
            cancel: Arc::clone(&conditions.cancel),
            ..CopyOptions::default()
        })
    }

    fn baseline(&self, transfer: &Transfer) -> Option<Baseline> {
        self.jobs.baseline_for(self.order.changed, transfer)
    }

    fn write_manifests(&self, ended: &Ended) -> Result<(), Failure> {
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

/// A path below the mount, which has no links below it, without those that lead to the mount.
fn of_mount(mount: &Path, path: &Path) -> PathBuf {
    let rest = path.strip_prefix(mount).ok();
    rest.map_or_else(|| path.to_owned(), |rest| below(&straight::canonical(mount), rest))
}
