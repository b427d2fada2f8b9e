//! Works on jobs that copy into the formation and out of it.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bivouac_client::FlushTarget;
use bivouac_launch::mount_views::{MountView, MountViews, SharedPaths, enter_namespace_of};
use bivouac_launch::mounts::is_dead;
use bivouac_launch::{FormationName, FormationState, MountState, NodeLife, Signals, StateDir};
use bivouac_monitor::connect;
use bivouac_stage::jobs::{Direction, JobOutcome, JobSpec, Jobs, LockedJob, RunOptions};
use bivouac_stage::{StageError, Totals};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;

use crate::failure::Failure;
use crate::options::TalkArgs;
use crate::progress::JobProgress;
use crate::unflushed::{ANSWER_WAIT, has_sources};

/// Reason why not everything was copied.
#[derive(Debug, PartialEq, Eq)]
pub struct CopyFailure {
    /// The files that were not copied and the reasons, in one line or more.
    pub text: String,
    /// The signal that interrupted it, if one did.
    pub signal: Option<i32>,
    /// The job, if it was written down.
    pub job: Option<u64>,
    /// True if it was stopped before its end, so that it counts as interrupted.
    pub is_stopped: bool,
}

impl CopyFailure {
    /// Returns a copy that a signal interrupted.
    pub fn interrupted(signal: i32) -> CopyFailure {
        let text = format!("interrupted by {}", bivouac_types::format_signal(signal));
        CopyFailure { text, signal: Some(signal), job: None, is_stopped: true }
    }
}

/// The mounts of a formation as this process can use them.
pub struct UsableMounts<'a> {
    /// Mounts that are at their paths and answer.
    pub mounts: Vec<&'a MountState>,
    /// The others, and why each is not used.
    pub left_out: Vec<(&'a MountState, String)>,
}

impl<'a> UsableMounts<'a> {
    /// Looks at all of them. A mount whose node is being started again counts only where there is no other.
    pub fn find(state: &'a FormationState) -> UsableMounts<'a> {
        let views = MountViews::of(state);
        let (mut mounts, mut left_out) = (Vec::new(), Vec::new());
        for mount in &state.mounts {
            match views.view(mount).trouble().or_else(|| failure_of(state, mount)) {
                None => mounts.push(mount),
                Some(why) => left_out.push((mount, why)),
            }
        }
        let is_ready = |mount: &&MountState| life_of(state, mount) == Some(NodeLife::Ready);
        if mounts.iter().any(is_ready) {
            mounts.retain(is_ready);
        }
        mounts.sort_by_key(|mount| mount.id);
        UsableMounts { mounts, left_out }
    }

    /// Returns one mount point per node, so that each node takes its share of a copy.
    pub fn places(&self, state: &FormationState) -> Result<Vec<PathBuf>, Failure> {
        let mut mounts = self.mounts.clone();
        // The sort is stable: of several mounts of a node the first one stays.
        mounts.sort_by_key(|mount| mount.node);
        mounts.dedup_by_key(|mount| mount.node);
        if mounts.is_empty() {
            return Err(self.refusal(state));
        }
        Ok(mounts.into_iter().map(|mount| mount.dir.clone()).collect())
    }

    fn refusal(&self, state: &FormationState) -> Failure {
        let name = &state.name;
        let why = self.left_out.iter().map(|(mount, why)| format!("mount {}: {why}; ", mount.dir.display()));
        let text = format!(
            "formation {name} is not mounted where this command is, so nothing can be copied; {}mount it: bivouac mount --name \
             {name} DIR",
            why.collect::<String>()
        );
        Failure::new(1, text)
    }
}

fn life_of(state: &FormationState, mount: &MountState) -> Option<NodeLife> {
    state.nodes.iter().find(|node| node.id == mount.node).map(|node| node.life)
}

/// Returns the reason why a mount that is at its path answers nothing.
fn failure_of(state: &FormationState, mount: &MountState) -> Option<String> {
    let is_given_up = matches!(life_of(state, mount), Some(NodeLife::Failed | NodeLife::Stopped));
    (is_given_up || is_dead(&mount.dir)).then(|| format!("node {}, which served it, has failed", mount.node))
}

/// Returns the places where a formation is mounted for this process: one per node that answers, so that each node takes
/// its share.
pub fn mounts_of(state: &FormationState) -> Result<Vec<PathBuf>, Failure> {
    UsableMounts::find(state).places(state)
}

/// Returns the mounts of a formation that copies go by now: a node may have failed meanwhile. Those of before if there
/// is none.
pub fn living_mounts(dir: &StateDir, before: &[PathBuf]) -> Vec<PathBuf> {
    let state = dir.read().ok().flatten();
    state.and_then(|state| mounts_of(&state).ok()).unwrap_or_else(|| before.to_owned())
}

/// Enters the mount namespace that a formation's mounts are in, unless one of them is seen from here. Its own directory
/// and the paths `outside` the formation have to name the same there. To be called while this process has only one
/// thread.
///
/// # Errors
/// That the namespace cannot be entered, or that a path is something else there.
pub fn enter_mounts(dir: &StateDir, state: &FormationState, outside: Vec<PathBuf>) -> Result<(), Failure> {
    let views = MountViews::of(state);
    let seen: Vec<MountView> = state.mounts.iter().map(|mount| views.view(mount)).collect();
    if seen.contains(&MountView::Here) {
        return Ok(());
    }
    let other = seen.iter().find_map(|view| match view {
        MountView::Namespace(pid) => Some(*pid),
        MountView::Here | MountView::Covered(_) | MountView::Gone => None,
    });
    let Some(pid) = other else { return Ok(()) };
    let shared = SharedPaths::note(outside.into_iter().chain([dir.path().to_owned()]));
    // The kernel refuses it to a process with threads, which share their working directory: setns(2).
    enter_namespace_of(pid, &shared).map_err(|error| {
        let text = format!("formation {} is mounted in another mount namespace; {error}", state.name);
        Failure::new(error.exit_code(), text)
    })
}

/// Settings of a copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct CopySettings {
    /// Tell scripts.
    pub json: bool,
    /// Amount of output for people.
    pub talk: TalkArgs,
    /// Refuse what certainly does not fit before anything is written.
    pub checks_room: bool,
}

/// Writes a new job down and does it, and says how much that was. Stops at a signal.
///
/// # Errors
/// Everything that was not copied.
pub fn copy_all(
    jobs: &Jobs,
    order: JobSpec,
    mounts: &[PathBuf],
    manner: CopySettings,
    signals: &Signals,
) -> Result<Totals, CopyFailure> {
    if order.transfers.is_empty() {
        return Ok(Totals::default());
    }
    let held = jobs.create(order).map_err(|failure| CopyFailure {
        text: failure.to_string(),
        signal: None,
        job: None,
        is_stopped: false,
    })?;
    let ended = work(&held, mounts, manner, signals)?;
    let copied = ended.transfers.iter().filter_map(|(_, outcome)| outcome.as_ref().ok());
    let all = copied.map(|summary| Totals { files: summary.files, bytes: summary.bytes });
    Ok(all.fold(Totals::default(), Totals::plus))
}

/// Does what of a job is not done yet. Goes on after a failure, so that as much as possible is copied; stops at a
/// signal.
///
/// # Errors
/// Everything that was not copied.
pub fn work(
    held: &LockedJob,
    mounts: &[PathBuf],
    manner: CopySettings,
    signals: &Signals,
) -> Result<JobOutcome, CopyFailure> {
    let told = JobProgress::new(held.order.way, held.order.verify, manner.json, manner.talk);
    let checks_room = manner.checks_room;
    if let (Some(other), false) = (held.conflicting_jobs().first(), manner.talk.quiet) {
        errln!(
            "{:>4} job {} waits for job {other}, which copies to the same place",
            held.order.way.word(),
            held.number
        );
    }
    let (ended, signal) = interruptible(signals, |cancel| {
        held.run(&RunOptions { mounts: mounts.to_vec(), checks_room, cancel }, &told)
    });
    // Before lines are printed, which the next drawing of a bar would overwrite.
    told.clear();
    let job = Some(held.number);
    let ended =
        ended.map_err(|failure| CopyFailure { text: failure.to_string(), signal, job, is_stopped: true })?;
    let mut failures: Vec<String> = failures(held, &ended);
    failures.extend(signal.map(|signal| format!("interrupted by {}", bivouac_types::format_signal(signal))));
    let ended_by = held.pace.as_ref().and_then(|pace| pace.ended()).filter(|_| ended.is_cancelled());
    failures.extend(ended_by.map(str::to_owned));
    let is_stopped = ended.is_cancelled();
    if failures.is_empty() {
        Ok(ended)
    } else {
        Err(CopyFailure { text: failures.join("\n"), signal, job, is_stopped })
    }
}

/// Brings directories that were copied into the formation to the source of their partition, where that is done at each
/// close: they were made under temporary names, which no source gets.
///
/// # Errors
/// Why they are not there; they are in the formation.
pub fn save_incoming(dir: &StateDir, order: &JobSpec) -> Result<(), Failure> {
    if order.way != Direction::In {
        return Ok(());
    }
    let state = dir.read_living()?;
    if !has_sources(dir, &state) {
        return Ok(());
    }
    let client = connect(dir, &state, ANSWER_WAIT)?;
    let saved = order.transfers.iter().try_for_each(|transfer| {
        let saved = FlushTarget::find(&client, Path::new("/"), &transfer.dst)
            .and_then(|found| client.save_tree(&found.top.attr));
        saved.map_err(|error| {
            let (name, place) = (&state.name, Path::new("/").join(&transfer.dst));
            let text = format!(
                "{}: is in formation {name}, but not at the source of its partition: {error}; bivouac flush tries again",
                place.display()
            );
            Failure::new(1, text)
        })
    });
    client.leave();
    saved
}

/// Returns how to continue an incomplete job, as text.
pub fn way_on(formation: &FormationName, job: u64) -> String {
    format!(
        "job {job} is kept: bivouac stage resume --name {formation} {job} does what is missing, \
         bivouac stage cancel --name {formation} {job} removes what is unfinished"
    )
}

fn failures(held: &LockedJob, ended: &JobOutcome) -> Vec<String> {
    let failed = ended.transfers.iter().filter_map(|(transfer, outcome)| {
        let error = outcome.as_ref().err().filter(|error| !matches!(error, StageError::Cancelled))?;
        Some(format!("{}: {error}", held.order.way.describe(transfer)))
    });
    failed.chain(ended.end_failure.iter().map(ToString::to_string)).collect()
}

/// Does something that can be cancelled while looking out for a signal, which it answers.
pub fn interruptible<T>(signals: &Signals, work: impl FnOnce(Arc<AtomicBool>) -> T) -> (T, Option<i32>) {
    let cancel = Arc::new(AtomicBool::new(false));
    // Without sockets a signal waits until the work is done, which is better than no work.
    let Ok((working, done)) = UnixStream::pair() else { return (work(cancel), None) };
    std::thread::scope(|scope| {
        let watched = Arc::clone(&cancel);
        let watch = scope.spawn(move || {
            let signal = wait_for_either(signals, &done);
            watched.store(signal.is_some(), Ordering::Relaxed);
            signal
        });
        let result = work(cancel);
        // Its end wakes the watching thread, which the scope waits for.
        drop(working);
        (result, watch.join().unwrap_or(None))
    })
}

/// Waits for a signal that asks to end, or for the other end of `done` to close.
fn wait_for_either(signals: &Signals, done: &UnixStream) -> Option<i32> {
    loop {
        let mut polled = [PollFd::new(signals, PollFlags::IN), PollFd::new(done, PollFlags::IN)];
        retry_on_intr(|| poll(&mut polled, None)).ok()?;
        let is_done = !polled[1].revents().is_empty();
        // A signal that comes together with the end counts: whoever sent it waits for what it does.
        match std::iter::from_fn(|| signals.next()).find(|signal| bivouac_launch::asks_to_end(*signal)) {
            Some(signal) => return Some(signal.number),
            None if is_done => return None,
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_stage::Transfer;

    fn transfer(src: &Path, dst: &Path) -> Transfer {
        Transfer { src: src.to_owned(), dst: dst.to_owned() }
    }

    #[test]
    fn what_can_be_copied_is_and_the_rest_is_listed() {
        let dir = tempfile::tempdir().unwrap();
        let (mount, site) = (dir.path().join("mount"), dir.path().join("site"));
        std::fs::create_dir_all(mount.join("res")).unwrap();
        std::fs::create_dir(&site).unwrap();
        std::fs::write(mount.join("res/a"), "result").unwrap();
        let (signals, jobs) = (Signals::catch(&[]).unwrap(), Jobs::at(dir.path().join("jobs")));
        let mounts = [mount.clone()];
        let outputs = vec![
            transfer(Path::new("missing"), &site.join("x")),
            transfer(Path::new("res"), &site.join("res")),
        ];
        let error = copy_all(
            &jobs,
            JobSpec::new(Direction::Out, outputs),
            &mounts,
            CopySettings::default(),
            &signals,
        )
        .unwrap_err();
        assert!(error.text.starts_with("/missing to ") && error.text.contains("no such file"), "{error:?}");
        assert_eq!((error.text.lines().count(), error.signal, error.job), (1, None, Some(1)));
        assert_eq!(std::fs::read(site.join("res/a")).unwrap(), b"result");
        let inputs = vec![transfer(&site.join("res"), Path::new("in/again"))];
        copy_all(&jobs, JobSpec::new(Direction::In, inputs), &mounts, CopySettings::default(), &signals)
            .unwrap();
        assert_eq!(std::fs::read(mount.join("in/again/a")).unwrap(), b"result");
    }

    #[test]
    fn work_that_nobody_interrupts_ends_by_itself() {
        let signals = Signals::catch(&[]).unwrap();
        assert_eq!(interruptible(&signals, |cancel| cancel.load(Ordering::Relaxed)), (false, None));
    }
}
