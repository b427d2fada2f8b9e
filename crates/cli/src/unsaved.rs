//! Data of a formation that exists nowhere else and would be lost with it: one list from all sources of that knowledge.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use bivouac_launch::control;
use bivouac_launch::{FormationState, StateDir};
use bivouac_stage::Transfer;
use bivouac_stage::jobs::{Direction, JobState, JobStatus, Jobs};

use crate::failure::Failure;
use crate::staging::mounts_of;

/// Reason why a formation with promises is to be kept, in front of what they are; also while none of its processes
/// lives.
pub const PROMISED: &str = "what was named with --out is to be copied out first";
/// Longest wait for the supervisor to record that data is to be kept, in milliseconds.
pub const KEEP_WAIT_MS: u64 = 10_000;
/// Paths that are shown of one promise.
const SHOWN: usize = 20;

/// Returns the reason why a formation is to be kept whose outputs did not come out.
pub fn reason(job: Option<u64>, text: &str) -> String {
    let first = text.lines().next().unwrap_or_default();
    format!("{}outputs were not copied out: {first}", job.map(prefix).unwrap_or_default())
}

fn prefix(job: u64) -> String {
    format!("job {job}: ")
}

/// Marks a formation, so that nobody takes it down by accident, or takes the mark away.
pub fn keep(dir: &StateDir, reason: Option<String>) -> Result<(), Failure> {
    Ok(control::keep(dir, reason, KEEP_WAIT_MS)?)
}

/// Notes that a job came to its end after all: what was kept for it need not be kept any longer.
pub fn drained(dir: &StateDir, job: u64) -> Result<(), Failure> {
    let kept = dir.read()?.and_then(|state| state.keep);
    if kept.is_some_and(|reason| reason.starts_with(&prefix(job))) { keep(dir, None) } else { Ok(()) }
}

/// Returns what would be lost, a line each; empty if nothing.
pub fn list(dir: &StateDir, state: &FormationState) -> Vec<String> {
    let jobs = Jobs::at(dir.stage_path());
    let known = jobs.list();
    let mount = mounts_of(state).ok().and_then(|mounts| mounts.into_iter().next());
    let unfinished = known.iter().filter(|job| job.stage != JobState::Done);
    let unfinished =
        unfinished.filter(|job| !is_of_nothing(job, mount.as_deref())).filter_map(unfinished_job);
    let unreadable = jobs.unreadable().into_iter().map(|(number, error)| {
        let at = dir.stage_path().join(number.to_string());
        format!("job {number}: whether it is copied out is not known: {}: {error}", at.display())
    });
    unfinished.chain(unreadable).chain(promised(&jobs, state)).collect()
}

/// Returns whether this is where it was written down what is to be copied out before the end.
pub fn has_promises(dir: &StateDir) -> bool {
    Jobs::at(dir.stage_path()).promises().is_ok_and(|promises| !promises.is_empty())
}

/// Returns whether a job was to copy out what is not there, and never was, or is not there any more: nothing of that
/// can be lost.
fn is_of_nothing(job: &JobStatus, mount: Option<&Path>) -> bool {
    let is_missing = |transfer: &Transfer| {
        let seen = mount.map(|mount| mount.join(&transfer.src).symlink_metadata());
        seen.is_some_and(|seen| seen.is_err_and(|error| error.kind() == ErrorKind::NotFound))
    };
    job.order.way == Direction::Out
        && job.stage != JobState::Running
        && job.order.transfers.iter().all(is_missing)
}

/// Returns an unfinished job: one that copies in is no loss, unless it is under way; nor is a round of `run
/// --out-every`: what it was to copy is owed by the run, or not at all.
fn unfinished_job(job: &JobStatus) -> Option<String> {
    let what: Vec<_> = job.order.transfers.iter().map(|transfer| job.order.way.describe(transfer)).collect();
    let is_owed = job.order.way == Direction::Out && !job.order.is_set();
    let is_loss = is_owed || job.stage == JobState::Running;
    is_loss.then(|| {
        format!("job {} ({} {}) is {}", job.number, job.order.way.word(), what.join(", "), job.stage.word())
    })
}

fn promised(jobs: &Jobs, state: &FormationState) -> Vec<String> {
    let promises = match jobs.promises() {
        Ok(promises) if promises.is_empty() => return Vec::new(),
        Ok(promises) => promises,
        Err(failure) => return vec![failure.to_string()],
    };
    let unknown = |why: String| {
        let what: Vec<_> = promises.iter().map(|promise| Direction::Out.describe(promise)).collect();
        vec![format!("{}: whether it is copied out cannot be seen: {why}", what.join(", "))]
    };
    let mounts = match mounts_of(state) {
        Ok(mounts) => mounts,
        Err(failure) => return unknown(failure.to_string()),
    };
    let mount = mounts.first().map_or(Path::new(""), PathBuf::as_path);
    match jobs.unstaged(mount) {
        Err(failure) => unknown(failure.to_string()),
        Ok(unstaged) => unstaged
            .iter()
            .map(|left| {
                format!(
                    "{}: {} not copied out:{}",
                    Direction::Out.describe(&left.transfer),
                    left.paths.len(),
                    shown(&left.paths)
                )
            })
            .collect(),
    }
}

fn shown(paths: &[PathBuf]) -> String {
    let mut text: String = paths.iter().take(SHOWN).map(|path| format!("\n  /{}", path.display())).collect();
    if paths.len() > SHOWN {
        text.push_str(&format!("\n  and {} more", paths.len() - SHOWN));
    }
    text
}

/// Removes what unfinished jobs left outside the formation, as far as that is possible.
pub fn cancel_jobs(dir: &StateDir, notice: &mut dyn FnMut(&str)) {
    let jobs = Jobs::at(dir.stage_path());
    let unfinished = jobs.list().into_iter().filter(|job| job.order.way == Direction::Out);
    for job in unfinished.filter(|job| matches!(job.stage, JobState::Interrupted | JobState::Incomplete)) {
        let cancelled = jobs.take(job.number).and_then(|held| held.map_or(Ok(0), |held| held.cancel(None)));
        if let Err(failure) = cancelled {
            notice(&format!("job {}: {failure}", job.number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_cut_and_say_so() {
        let paths: Vec<PathBuf> = (0..25).map(|number| PathBuf::from(format!("f{number}"))).collect();
        let text = shown(&paths);
        assert!(text.starts_with("\n  /f0\n") && text.ends_with("and 5 more"), "{text}");
    }
}
