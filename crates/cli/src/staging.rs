//! Works on jobs that copy into the formation and out of it.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bivouac_launch::{FormationName, Signals, State};
use bivouac_stage::jobs::{Conditions, Ended, Held, Jobs, Order};
use bivouac_stage::{StageError, Totals};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;

use crate::failure::Failure;
use crate::options::TalkArgs;
use crate::progress::{Told, name};

/// Why not everything was copied.
#[derive(Debug, PartialEq, Eq)]
pub struct NotCopied {
    /// What was not, and why; one line or more.
    pub text: String,
    /// The signal that interrupted it, if one did.
    pub signal: Option<i32>,
    /// The job, if it was written down.
    pub job: Option<u64>,
    /// Whether it was stopped before its end, so that it counts as interrupted.
    pub is_stopped: bool,
}

/// The places where a formation is mounted: one per node, so that each node takes its share.
///
/// # Errors
/// That there is none.
pub fn mounts_of(state: &State) -> Result<Vec<PathBuf>, Failure> {
    let mut mounts: Vec<_> = state.mounts.iter().collect();
    mounts.sort_by_key(|mount| (mount.node, mount.id));
    mounts.dedup_by_key(|mount| mount.node);
    let places: Vec<PathBuf> = mounts.into_iter().map(|mount| mount.dir.clone()).collect();
    if places.is_empty() {
        let text = format!(
            "formation {0} is not mounted, so nothing can be copied; mount it: bivouac mount --name {0} DIR",
            state.name
        );
        return Err(Failure::new(1, text));
    }
    Ok(places)
}

/// How a job is worked on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manner {
    /// Tell scripts.
    pub json: bool,
    /// How much people are told.
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
    order: Order,
    mounts: &[PathBuf],
    manner: Manner,
    signals: &Signals,
) -> Result<Totals, NotCopied> {
    if order.transfers.is_empty() {
        return Ok(Totals::default());
    }
    let held = jobs.create(order).map_err(|failure| NotCopied {
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

/// Does what of a job is not done yet. Goes on after a failure, so that as much as possible is copied; stops at a signal.
///
/// # Errors
/// Everything that was not copied.
pub fn work(held: &Held, mounts: &[PathBuf], manner: Manner, signals: &Signals) -> Result<Ended, NotCopied> {
    let told = Told::new(held.order.way, held.order.verify, manner.json, manner.talk);
    let checks_room = manner.checks_room;
    if let (Some(other), false) = (held.ahead().first(), manner.talk.quiet) {
        errln!(
            "{:>4} job {} waits for job {other}, which copies to the same place",
            held.order.way.word(),
            held.number
        );
    }
    let (ended, signal) = interruptible(signals, |cancel| {
        held.run(&Conditions { mounts: mounts.to_vec(), checks_room, cancel }, &told)
    });
    told.clear();
    let job = Some(held.number);
    let ended =
        ended.map_err(|failure| NotCopied { text: failure.to_string(), signal, job, is_stopped: true })?;
    let mut failures: Vec<String> = failures(held, &ended);
    failures.extend(signal.map(|signal| format!("interrupted by {}", bivouac_types::format_signal(signal))));
    let ended_by = held.pace.as_ref().and_then(|pace| pace.ended()).filter(|_| ended.is_cancelled());
    failures.extend(ended_by.map(str::to_owned));
    let is_stopped = ended.is_cancelled();
    if failures.is_empty() {
        Ok(ended)
    } else {
        Err(NotCopied { text: failures.join("\n"), signal, job, is_stopped })
    }
}

/// How to go on with a job that is not complete.
pub fn way_on(formation: &FormationName, job: u64) -> String {
    format!(
        "job {job} is kept: bivouac stage resume --name {formation} {job} does what is missing, \
         bivouac stage cancel --name {formation} {job} removes what is unfinished"
    )
}

fn failures(held: &Held, ended: &Ended) -> Vec<String> {
    let failed = ended.transfers.iter().filter_map(|(transfer, outcome)| {
        let error = outcome.as_ref().err().filter(|error| !matches!(error, StageError::Cancelled))?;
        Some(format!("{}: {error}", name(held.order.way, transfer)))
    });
    failed.chain(ended.manifest_failure.iter().map(ToString::to_string)).collect()
}

/// Does something that can be cancelled while looking out for a signal, which it answers.
pub fn interruptible<T>(signals: &Signals, work: impl FnOnce(Arc<AtomicBool>) -> T) -> (T, Option<i32>) {
    let cancel = Arc::new(AtomicBool::new(false));
    let Ok((working, done)) = UnixStream::pair() else { return (work(cancel), None) };
    std::thread::scope(|scope| {
        let watched = Arc::clone(&cancel);
        let watch = scope.spawn(move || {
            let signal = wait_for_either(signals, &done);
            watched.store(signal.is_some(), Ordering::Relaxed);
            signal
        });
        let result = work(cancel);
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
    use bivouac_stage::jobs::Way;
    use std::path::Path;

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
        let error =
            copy_all(&jobs, Order::new(Way::Out, outputs), &mounts, Manner::default(), &signals).unwrap_err();
        assert!(error.text.starts_with("/missing to ") && error.text.contains("no such file"), "{error:?}");
        assert_eq!((error.text.lines().count(), error.signal, error.job), (1, None, Some(1)));
        assert_eq!(std::fs::read(site.join("res/a")).unwrap(), b"result");
        let inputs = vec![transfer(&site.join("res"), Path::new("in/again"))];
        copy_all(&jobs, Order::new(Way::In, inputs), &mounts, Manner::default(), &signals).unwrap();
        assert_eq!(std::fs::read(mount.join("in/again/a")).unwrap(), b"result");
    }

    #[test]
    fn work_that_nobody_interrupts_ends_by_itself() {
        let signals = Signals::catch(&[]).unwrap();
        assert_eq!(interruptible(&signals, |cancel| cancel.load(Ordering::Relaxed)), (false, None));
    }
}
