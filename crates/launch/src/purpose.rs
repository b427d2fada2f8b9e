//! Purpose of a formation: the process that it was made for, and the time that it was given. When the first
//! of them ends, so does the formation, unless it holds data that is nowhere else.
//!
//! The supervisor sees to that. After its death one of the daemons does, its [successor](inherit): a daemon serves on
//! without its supervisor, but not without a purpose.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;
use rustix::process::{Signal, getpid, kill_process};

use crate::clock::left_ms;
use crate::polling::{timespec, wait_readable};
use crate::process::ProcessId;
use crate::spawned::Spawned;
use crate::standby::settled;
use crate::state::FormationState;
use crate::state_dir::StateDir;
use crate::{CODE_KEEP, LaunchError, LaunchResult};

/// Pause until taking the formation down is tried again, if it failed.
const AGAIN: Duration = Duration::from_secs(30);
/// Pause until an owner is looked at again that could not be watched, in milliseconds.
const WATCH_AGAIN_MS: u64 = 1000;
/// Time for which a supervisor is waited for that may be about to end although it does not look so, in milliseconds.
const ENDING_MS: u64 = 200;
/// And one that does, until it is looked at again.
const ENDING_MS_MAX: u64 = 60_000;
/// Longest time that is waited for at once, in milliseconds: poll takes 32 bits of them.
const POLL_MS_MAX: u64 = 1 << 30;

/// Sees when a formation has no purpose any more, and has it taken down then.
#[derive(Debug, Default)]
pub struct Guard {
    /// Becomes readable when the process ends that the formation was made for.
    owner: Option<OwnedFd>,
    owner_ended: bool,
    /// The process that the formation was made for, if it cannot be watched yet for want of a descriptor.
    unwatched: Option<ProcessId>,
    ends: Option<Instant>,
    /// The process that takes the formation down.
    ender: Option<Spawned>,
    /// Time of the next attempt, at the earliest.
    again: Option<Instant>,
}

impl Guard {
    /// Watches over what the state says.
    pub fn of(state: &FormationState) -> Guard {
        let mut guard = Guard {
            unwatched: state.owner,
            ends: state.ends_unix_ms.map(|ends| Instant::now() + Duration::from_millis(left_ms(ends))),
            ..Guard::default()
        };
        if let Err(error) = guard.watch_owner() {
            log::warn!(why:% = error; "the process that the formation was made for cannot be watched yet");
        }
        guard
    }

    /// Watches the owner, if it is not watched yet. A shortage of descriptors does not say that it has ended.
    fn watch_owner(&mut self) -> std::io::Result<()> {
        let Some(owner) = self.unwatched else { return Ok(()) };
        self.owner = owner.try_watch()?;
        self.owner_ended = self.owner.is_none();
        self.unwatched = None;
        Ok(())
    }

    /// Takes over the purpose that a state says now, in a supervisor. A process that takes the formation down already
    /// goes on, and stays the only one.
    pub(crate) fn renew(&mut self, state: &FormationState) {
        *self = Guard { ender: self.ender.take(), again: self.again, ..Guard::in_supervisor(state) };
    }

    /// Like [`Guard::of`], for the supervisor of a host's part, where it watches nothing: the end of the process that
    /// holds the part is noticed there at once.
    pub(crate) fn in_supervisor(state: &FormationState) -> Guard {
        if state.part.is_some() { Guard::default() } else { Guard::of(state) }
    }

    /// Descriptors that become readable when there is something to do.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let owner = self.owner.as_ref().filter(|_| !self.owner_ended);
        owner.map(AsFd::as_fd).into_iter().chain(self.ender.as_ref().map(AsFd::as_fd))
    }

    /// Returns after how many milliseconds there is something to do, if only time has to pass.
    pub fn wait_ms(&self) -> Option<u64> {
        let now = Instant::now();
        let moment = match (&self.ender, self.why_over(now)) {
            (Some(_), _) => None,
            (None, Some(_)) => Some(self.again.unwrap_or(now)),
            (None, None) => self.ends,
        };
        // Not a moment too early.
        let wait = moment.map(|moment| moment.saturating_duration_since(now).as_millis() as u64 + 1);
        wait.into_iter().chain(self.unwatched.map(|_| WATCH_AGAIN_MS)).min()
    }

    /// Returns the reason why the formation is to be taken down now, if it is: asked whenever something may have
    /// happened.
    pub fn due(&mut self) -> Option<&'static str> {
        let now = Instant::now();
        // Said when it first failed; tried again with the next look.
        let _shortage = self.watch_owner();
        self.owner_ended |= self.owner.as_ref().is_some_and(is_readable);
        if self.ender.is_some() || self.again.is_some_and(|again| again > now) {
            return None;
        }
        self.why_over(now)
    }

    fn why_over(&self, now: Instant) -> Option<&'static str> {
        match self.ends {
            _ if self.owner_ended => Some("the process that it was made for has ended"),
            Some(ends) if ends <= now => Some("its life time (--ttl) is over"),
            _ => None,
        }
    }

    /// Takes the formation down when its purpose is over. Returns the reason if that was tried, and refused because of
    /// data to be kept.
    pub fn attend(&mut self, program: &Path, dir: &StateDir) -> Option<&'static str> {
        let kept = self.look();
        if let Some(why) = self.due() {
            if self.again.is_none() {
                log::warn!("{why}: the formation ends");
            }
            self.end(program, dir);
        }
        self.why_over(Instant::now()).filter(|_| kept)
    }

    /// Begins to take the formation down, by a process that may wait and may look at mounts.
    fn end(&mut self, program: &Path, dir: &StateDir) {
        assert!(self.ender.is_none(), "the formation is taken down by two processes");
        // Before the start: one that fails would be tried again at once, and so on.
        self.again = Some(Instant::now() + AGAIN);
        match start_ender(program, dir) {
            Ok(ender) => self.ender = Some(ender),
            Err(error) => log::error!("{error}; tried again in {} s", AGAIN.as_secs()),
        }
    }

    /// Looks whether the process that takes the formation down has failed: then that is tried again later. Whether it
    /// is the formation's data that kept it from that.
    fn look(&mut self) -> bool {
        let Some(end) = self.ender.as_mut().and_then(Spawned::look) else { return false };
        self.ender = None;
        self.again = Some(Instant::now() + AGAIN);
        let kept = end.code() == Some(i32::from(CODE_KEEP));
        if !kept {
            log::error!("taking the formation down failed ({end}); tried again in {} s", AGAIN.as_secs());
        }
        kept
    }
}

fn start_ender(program: &Path, dir: &StateDir) -> LaunchResult<Spawned> {
    let refused = |e: std::io::Error| LaunchError::system("the process that ends the formation", e);
    let log = StateDir::open_log(&dir.supervisor_log())?;
    let mut command = Command::new(program);
    // Its working directory must not keep a mount of the formation busy.
    command.arg("end").arg(dir.path()).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.spawn().and_then(Spawned::watch).map_err(refused)
}

/// Does the work of a thread of a daemon whose supervisor is gone: one of them becomes the successor, which sees to it
/// that the formation ends with its purpose. Comes back when there is nothing, or nothing more, to see to.
///
/// # Errors
/// What the system refused.
pub fn inherit(dir: &StateDir, program: &Path, starter: Option<ProcessId>) -> LaunchResult<()> {
    end_if_unknown(dir, starter)?;
    let _until_this_process_ends = become_successor(&dir.successor_path())?;
    loop {
        let Some(state) = dir.read()? else { return Ok(()) };
        let mut guard = Guard::of(&state);
        let has_owner = guard.owner.is_some() || guard.owner_ended || guard.unwatched.is_some();
        if !has_owner && guard.ends.is_none() {
            return Ok(());
        }
        log::info!("this daemon sees to it that the formation ends with its purpose");
        wait_for_end(dir, program, &mut guard)?;
    }
}

/// Comes back when there is no supervisor. If somebody has taken the place of the one that has started this daemon, and
/// does not know of it, that one was killed just after it had started it: the daemon ends as if it had been killed with
/// it.
fn end_if_unknown(dir: &StateDir, starter: Option<ProcessId>) -> LaunchResult<()> {
    while let Some(supervisor) = settled(dir)?.and_then(|state| state.supervisor) {
        let Ok(end) = supervisor.try_watch() else {
            // A shortage of descriptors, which will pass: it is not known to be gone.
            std::thread::park_timeout(Duration::from_millis(WATCH_AGAIN_MS));
            continue;
        };
        let Some(end) = end else { return Ok(()) };
        let is_unknown = starter != Some(supervisor) && !supervisor.is_ending();
        if wait_readable(end.as_fd(), if is_unknown { ENDING_MS } else { ENDING_MS_MAX }) {
            continue;
        }
        if is_unknown {
            log::warn!("another supervisor does not know of this daemon, and starts one in its place");
            let _ends_here = kill_process(getpid(), Signal::KILL);
        }
    }
    Ok(())
}

/// Waits until the formation has no purpose any more, and takes it down: then this process is told to end. What is kept
/// stays, and is looked at again later.
fn wait_for_end(dir: &StateDir, program: &Path, guard: &mut Guard) -> LaunchResult<()> {
    loop {
        let mut polled: Vec<PollFd<'_>> =
            guard.descriptors().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let timeout = guard.wait_ms().map(|ms| timespec(ms.min(POLL_MS_MAX)));
        retry_on_intr(|| poll(&mut polled, timeout.as_ref())).map_err(|e| LaunchError::system("poll", e))?;
        if dir.read()?.is_none() {
            return Ok(());
        }
        guard.attend(program, dir);
    }
}

/// Waits until no other daemon is the successor.
fn become_successor(path: &Path) -> LaunchResult<File> {
    let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
    let file = opened.map_err(|e| LaunchError::path(path, "open it", e))?;
    let locked = retry_on_intr(|| flock(&file, FlockOperation::LockExclusive));
    locked.map_err(|e| LaunchError::path(path, "lock it", e))?;
    Ok(file)
}

fn is_readable(descriptor: &OwnedFd) -> bool {
    wait_readable(descriptor.as_fd(), 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::unix_ms;
    use crate::process::ProcessId;
    use crate::state::tests::sample;

    #[test]
    fn a_formation_without_limits_is_never_over() {
        let mut guard = Guard::of(&sample());
        assert_eq!((guard.due(), guard.wait_ms(), guard.descriptors().count()), (None, None, 0));
    }

    #[test]
    fn its_time_ends_it() {
        let mut state = sample();
        state.ends_unix_ms = Some(unix_ms() + 3_600_000);
        let mut guard = Guard::of(&state);
        assert_eq!(guard.due(), None);
        assert!((3_000_000..=3_600_001).contains(&guard.wait_ms().unwrap()));
        state.ends_unix_ms = Some(1);
        let mut guard = Guard::of(&state);
        assert_eq!(guard.due(), Some("its life time (--ttl) is over"));
        state.ends_unix_ms = Some(u64::MAX);
        assert_eq!(Guard::of(&state).due(), None);
    }

    #[test]
    fn its_owners_end_ends_it() {
        let mut owner = Command::new("sleep").arg("1000").spawn().unwrap();
        let mut state = sample();
        state.owner = ProcessId::of(owner.id());
        let mut guard = Guard::of(&state);
        assert_eq!((guard.due(), guard.descriptors().count()), (None, 1));
        owner.kill().unwrap();
        let mut polled: Vec<_> =
            guard.descriptors().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        poll(&mut polled, None).unwrap();
        assert_eq!(guard.due(), Some("the process that it was made for has ended"));
        owner.wait().unwrap();
        assert!(Guard::of(&state).due().is_some(), "one that ended earlier is no owner either");
    }

    #[test]
    fn an_owner_that_cannot_be_watched_yet_has_not_ended() {
        let mut guard = Guard { unwatched: Some(ProcessId::current()), ..Guard::default() };
        assert_eq!(guard.wait_ms(), Some(WATCH_AGAIN_MS));
        assert_eq!((guard.due(), guard.wait_ms(), guard.descriptors().count()), (None, None, 1));
    }

    #[test]
    fn a_new_purpose_leaves_the_process_that_ends_the_formation() {
        let dir = tempfile::tempdir().unwrap();
        let mut state = sample();
        state.ends_unix_ms = Some(1);
        let mut guard = Guard::of(&state);
        guard.end(Path::new("/bin/false"), &StateDir::at(dir.path().into()));
        guard.renew(&state);
        assert_eq!((guard.due(), guard.descriptors().count()), (None, 1), "there is one already");
        state.part = Some(crate::state::PartState {
            bind: std::net::Ipv4Addr::LOCALHOST.into(),
            started_from: "h".into(),
            leaves_volumes: false,
        });
        guard.renew(&state);
        assert_eq!(guard.ends, None, "a part's supervisor watches nothing");
    }

    #[test]
    fn what_cannot_be_started_is_tried_again_later() {
        let dir = tempfile::tempdir().unwrap();
        let mut state = sample();
        state.ends_unix_ms = Some(1);
        let mut guard = Guard::of(&state);
        guard.end(Path::new("/nonexistent/program"), &StateDir::at(dir.path().into()));
        assert_eq!((guard.due(), guard.descriptors().count()), (None, 0));
        guard.end(Path::new("/bin/false"), &StateDir::at(dir.path().into()));
        let mut polled: Vec<_> =
            guard.descriptors().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        poll(&mut polled, None).unwrap();
        assert!(!guard.look());
        assert!(guard.descriptors().count() == 0 && guard.due().is_none() && guard.wait_ms().unwrap() > 1000);
    }

    #[test]
    fn there_is_one_successor_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("successor");
        let first = become_successor(&path).unwrap();
        let other = File::open(&path).unwrap();
        assert_eq!(
            flock(&other, FlockOperation::NonBlockingLockExclusive),
            Err(rustix::io::Errno::WOULDBLOCK)
        );
        drop(first);
        become_successor(&path).unwrap();
    }
}
