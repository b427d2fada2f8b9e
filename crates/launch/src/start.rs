//! Brings a formation up: makes its directory, starts the supervisor, waits until it is usable.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bivouac_types::units::format_utc;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Resource, Rlimit, Signal};

use crate::amount::Amount;
use crate::environment::Environment;
use crate::forked::{OwnChild, fork};
use crate::handover::take_stdin;
use crate::name::FormationName;
use crate::packets;
use crate::phases::Phases;
use crate::plan::{FormationRequest, plan};
use crate::polling::timespec;
use crate::recoverable::without_state;
use crate::recovery_notes::remember;
use crate::signals::Signals;
use crate::state::FormationState;
use crate::state_dir::{Claim, StateDir};
use crate::supervisor::{DaemonProgram, Report, Supervisor};
use crate::teardown;
use crate::unmounting::unmount_all;
use crate::{Kind, LaunchError, LaunchResult, memory_root};

/// Time that a supervisor may take to take down again what it has started, in milliseconds: killed meanwhile, it would
/// leave daemons that nobody knows of.
pub const GIVE_UP_MS: u64 = 30_000;

/// A formation whose daemons all serve. Its mounts are the caller's next step.
#[derive(Debug)]
pub struct ReadyFormation {
    /// Its name.
    pub name: FormationName,
    /// Its directory.
    pub dir: StateDir,
    /// Its state when it became ready.
    pub state: FormationState,
    /// Times of the phases so far.
    pub phases: Phases,
    /// Of a formation over several hosts that ends with whoever started it: what is to be held as long as it shall
    /// live.
    pub tie: Option<OwnedFd>,
}

/// Starts a formation and waits until every daemon serves. What fails is taken down again.
///
/// # Errors
/// What makes no sense, what the system refused, what a daemon said, or that it took longer than `bound`.
pub fn start(
    here: &Environment,
    wishes: &FormationRequest,
    bound: Duration,
    signals: &Signals,
    notice: &mut dyn FnMut(&str),
) -> LaunchResult<ReadyFormation> {
    let mut phases = Phases::begin();
    wishes.check()?;
    let claim = claim(here, &wishes.name, notice)?;
    let mut attempt = Attempt { here, dir: claim.dir.clone(), done: false };
    wishes.protect.check(usize::from(wishes.nodes), 1)?;
    let state = plan(here, wishes, &claim.dir)?;
    write_first(&claim.dir, &state)?;
    claim.dir.make_secret()?;
    phases.end("volumes");
    let (report, child) = start_supervisor(here, &claim, "supervise", &[])?;
    // From here on the lock is the supervisor's.
    drop(claim.lock);
    phases.end("supervisor");
    let steps = wait_ready(&report, signals, bound, &claim.dir).inspect_err(|_| {
        end_supervisor(&report, (&child).into(), GIVE_UP_MS);
    })?;
    phases.insert(steps);
    let state = claim.dir.read()?.ok_or_else(|| vanished(&wishes.name))?;
    attempt.done = true;
    remember(here, claim.dir.path(), &state);
    Ok(ReadyFormation { name: wishes.name.clone(), dir: claim.dir, state, phases, tie: None })
}

/// Runs the supervisor's process: takes over what [`start()`] hands it, and supervises.
///
/// # Errors
/// What kept it from supervising; the command that started it is told too.
pub fn supervise(here: &Environment, dir: PathBuf, program: DaemonProgram) -> LaunchResult<()> {
    let report = take_stdin()?;
    let _already_a_leader = rustix::process::setsid();
    // It outlives its caller, and must not keep the caller's file system busy.
    std::env::set_current_dir("/").map_err(|e| LaunchError::system("/", e))?;
    // States, sockets and logs are this user's alone, whatever mask the caller has.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    raise_descriptor_limit();
    let signals = Signals::catch(&[Signal::TERM, Signal::INT, Signal::HUP])
        .map_err(|e| LaunchError::system("signals", e))?;
    let lock = take_lock(&report)?;
    let to_tell = report.try_clone().map_err(|e| LaunchError::system("supervisor", e))?;
    let dir = StateDir::at(dir);
    // Nobody is to begin with this name before the part is removed.
    let kept_lock = lock.try_clone().map_err(|e| LaunchError::system("supervisor", e))?;
    let made = Supervisor::new(dir.clone(), lock, report, signals, program);
    let supervisor = made.inspect_err(|error| {
        let _nobody_waits = packets::send(&to_tell, &Report::Failed { message: error.to_string() }, &[]);
        remove_part(here, &dir);
    })?;
    // The end of the supervisor's own must be seen on the other side.
    drop(to_tell);
    if supervisor.run()? {
        remove_part(here, &dir);
    }
    drop(kept_lock);
    Ok(())
}

/// Removes one host's part that nobody else will.
fn remove_part(here: &Environment, dir: &StateDir) {
    let Some(state) = dir.read().ok().flatten().filter(|state| state.part.is_some()) else { return };
    let notice = &mut |text: &str| log::warn!(error:% = text; "{text}");
    let removed = match state.leaves_volumes() {
        true => unmount_all(here, &state, notice),
        false => teardown::remove_leftovers(here, dir, &state, notice),
    };
    if let Err(error) = removed {
        log::error!(error:%; "{error}");
    }
}

/// Takes the name, and removes what a killed formation with that name left, if that is nothing.
///
/// # Errors
/// That the name is taken, or what there is of a killed formation that is not to be lost.
pub fn claim(here: &Environment, name: &FormationName, notice: &mut dyn FnMut(&str)) -> LaunchResult<Claim> {
    let claim = StateDir::claim(here, name)?;
    let Some(stale) = claim.stale.as_ref() else {
        return refuse_others(here, name, &claim).map(|()| claim);
    };
    refuse_stale(stale)?;
    let amount = Amount::of(stale);
    if !amount.is_nothing() {
        return Err(would_lose(stale, &amount));
    }
    notice(&format!(
        "formation {name} was killed earlier (none of its processes lives): removing what it left"
    ));
    teardown::remove_leftovers(here, &claim.dir, stale, notice)?;
    // Its directory is gone, and the lock was in it.
    drop(claim);
    StateDir::claim(here, name)
}

/// Like [`claim`], for a formation over several hosts, the whole. What a killed one left is found on its hosts; until
/// they have reported, its state may have to be put back.
///
/// # Errors
/// As [`claim`].
pub fn claim_whole(here: &Environment, name: &FormationName) -> LaunchResult<Claim> {
    let claim = StateDir::claim_whole(here, name)?;
    match claim.stale.as_ref() {
        Some(stale) => refuse_stale(stale)?,
        None => refuse_others(here, name, &claim)?,
    }
    Ok(claim)
}

fn refuse_stale(stale: &FormationState) -> LaunchResult<()> {
    let Some(reason) = stale.why_kept() else { return Ok(()) };
    let cause = format!("was killed, and its data was to be kept: {reason}");
    Err(LaunchError::new(Kind::Keep, format_args!("formation {}", stale.name), cause, &ways_on(stale)))
}

/// Returns advice for a formation of which no process lives.
pub(crate) fn ways_on(state: &FormationState) -> String {
    let name = &state.name;
    let on = if state.part.is_some() || state.is_over_hosts() { ", on each of its hosts" } else { "" };
    format!(
        "have it back: bivouac recover {name}; or throw it away: bivouac down --name {name} --discard{on}"
    )
}

/// Returns the error for a formation that was killed and holds something: a new one is not made in its place.
fn would_lose(state: &FormationState, amount: &Amount) -> LaunchError {
    let made = format_utc(state.created_unix_ms / 1000);
    let cause = format!(
        "was killed as a whole (none of its processes lives); made {made}Z, it holds {amount}{}",
        amount.missing_clause()
    );
    LaunchError::new(Kind::Keep, format_args!("formation {}", state.name), cause, &ways_on(state))
}

/// Refuses a formation in place of one whose state is gone, for instance since a reboot, but not its volumes.
fn refuse_others(here: &Environment, name: &FormationName, claim: &Claim) -> LaunchResult<()> {
    let refused = without_state(here, name).into_iter().find_map(|other| {
        let (state, amount) = (other.state.as_ref()?, other.amount());
        (!amount.is_nothing()).then(|| would_lose(state, &amount))
    });
    let Some(error) = refused else { return Ok(()) };
    // Nothing is in it yet but the lock.
    if let Err(left) = claim.dir.remove() {
        log::warn!("{left}");
    }
    Err(error)
}

/// Writes the first state, and makes the directories that it names. Whoever is killed in between leaves nothing that
/// no state tells of.
///
/// # Errors
/// What the system refused.
pub fn write_first(dir: &StateDir, state: &FormationState) -> LaunchResult<()> {
    dir.write(state)?;
    state.own_dirs.iter().try_for_each(|root| memory_root::make(root, dir))
}

/// Removes what a failed start has made.
pub struct Attempt<'a> {
    /// The user and machine.
    pub here: &'a Environment,
    /// The directory that was claimed for it.
    pub dir: StateDir,
    /// True if it has succeeded: then all of it stays.
    pub done: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.done || !self.dir.path().exists() {
            return;
        }
        let removed = match self.dir.read() {
            Ok(Some(state)) => teardown::remove_leftovers(self.here, &self.dir, &state, &mut |_| {}),
            Ok(None) => self.dir.remove(),
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            log::error!(why:% = error; "what the failed start has made is not all removed");
        }
    }
}

/// Starts this program's `command`, which is to look after the claimed directory, and hands it the lock and what
/// else it needs.
///
/// # Errors
/// What the system says.
pub fn start_supervisor(
    here: &Environment,
    claim: &Claim,
    command: &str,
    more: &[BorrowedFd<'_>],
) -> LaunchResult<(OwnedFd, Child)> {
    let (report, theirs, log) = prepare_supervisor(claim, more)?;
    let mut process = Command::new(&here.program);
    process.arg0("bivouac").arg(command).arg(claim.dir.path());
    process.stdin(theirs).stdout(Stdio::null()).stderr(log);
    let child = process.spawn().map_err(|e| LaunchError::system("the supervisor's process", e))?;
    Ok((report, child))
}

/// Like [`start_supervisor`], by a fork of this process, which must have one thread; `supervise` is the work of the
/// fork.
///
/// # Errors
/// Those of the system, also if this process has other threads.
pub fn fork_supervisor(
    claim: &Claim,
    supervise: &dyn Fn(PathBuf) -> LaunchResult<()>,
) -> LaunchResult<(OwnedFd, OwnChild)> {
    let (report, theirs, log) = prepare_supervisor(claim, &[])?;
    let act = || match supervise(claim.dir.path().to_owned()) {
        Ok(()) => 0,
        Err(error) => {
            log::error!(error:%; "{error}");
            i32::from(error.exit_code())
        }
    };
    let forked = fork(theirs.as_fd(), &log, act);
    Ok((report, forked.map_err(|e| LaunchError::system("the supervisor's process", e))?))
}

/// Returns the socket where a supervisor is heard, the one that it begins with, and its log.
fn prepare_supervisor(claim: &Claim, more: &[BorrowedFd<'_>]) -> LaunchResult<(OwnedFd, OwnedFd, File)> {
    let refused = |e: std::io::Error| LaunchError::system("the supervisor's process", e);
    let (report, theirs) = packets::pair().map_err(refused)?;
    let descriptors: Vec<_> = [claim.lock.as_fd()].iter().chain(more).copied().collect();
    packets::send(&report, &"lock", &descriptors).map_err(refused)?;
    Ok((report, theirs, StateDir::open_log(&claim.dir.supervisor_log())?))
}

fn take_lock(report: &OwnedFd) -> LaunchResult<OwnedFd> {
    take_begin(report)?.pop().ok_or_else(not_by_hand)
}

/// Takes what [`start_supervisor`] hands over: the lock, and what else it was given.
///
/// # Errors
/// That nobody handed anything over.
pub fn take_begin(report: &OwnedFd) -> LaunchResult<Vec<OwnedFd>> {
    let received = packets::receive::<String>(report).map_err(|_| not_by_hand())?;
    received.map(|(_, descriptors)| descriptors).ok_or_else(not_by_hand)
}

/// Returns the error for somebody who starts by hand what only this program starts.
#[must_use]
pub fn not_by_hand() -> LaunchError {
    LaunchError::usage("bivouac supervise", "is what `bivouac up` starts", "write: bivouac up")
}

/// Waits until everything serves; where the time went.
///
/// # Errors
/// Why it does not, that it was interrupted, or that it took longer than `bound`.
pub fn wait_ready(
    report: &OwnedFd,
    signals: &Signals,
    bound: Duration,
    dir: &StateDir,
) -> LaunchResult<Vec<crate::phases::Phase>> {
    match wait_for_report(report, signals, bound, dir)? {
        Report::Ready { phases } => Ok(phases),
        Report::Failed { message } => Err(LaunchError::said(Kind::Refused, message)),
        _ => Err(not_by_hand()),
    }
}

/// Waits for the next report of a supervisor.
///
/// # Errors
/// That it is gone, that waiting was interrupted, or that it took longer than `bound`.
pub fn wait_for_report(
    report: &OwnedFd,
    signals: &Signals,
    bound: Duration,
    dir: &StateDir,
) -> LaunchResult<Report> {
    let deadline = Instant::now() + bound;
    let object = "the formation's start";
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // Rounded up: a wait of 0 ms would spin through the last millisecond.
        let timeout = timespec(u64::try_from(left.as_millis()).unwrap_or(u64::MAX).saturating_add(1));
        let mut polled = [PollFd::new(report, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
        retry_on_intr(|| poll(&mut polled, Some(&timeout))).map_err(|e| LaunchError::system("poll", e))?;
        let [said, signalled] = polled.map(|polled| !polled.revents().is_empty());
        if said {
            return take_report(report, dir);
        }
        if signalled && let Some(signal) = signals.next() {
            let cause = format!("was interrupted by {}", bivouac_types::format_signal(signal.number));
            return Err(LaunchError::new(Kind::Interrupted, object, cause, "everything is removed again"));
        }
        if left.is_zero() {
            let cause = format!("took longer than {} s", bound.as_secs_f64());
            return Err(LaunchError::new(
                Kind::Refused,
                object,
                cause,
                "give it more time with --start-timeout",
            ));
        }
    }
}

/// Returns the report that has come.
///
/// # Errors
/// That the supervisor is gone.
pub fn take_report(report: &OwnedFd, dir: &StateDir) -> LaunchResult<Report> {
    match packets::receive::<Report>(report) {
        Ok(Some((report, _))) => Ok(report),
        Ok(None) | Err(_) => {
            let log = std::fs::read_to_string(dir.supervisor_log()).unwrap_or_default();
            let cause = format!("ended early: {}", log.lines().last().unwrap_or("it said nothing before"));
            Err(LaunchError::new(Kind::Refused, "the supervisor", cause, "try again"))
        }
    }
}

/// Ends the supervisor, which ends its daemons and itself when nobody listens to its report. One that has just said
/// that all is ready looks at that no more, so it is told by a signal, too.
pub fn end_supervisor(report: &OwnedFd, supervisor: OwnChild, wait_ms: u64) {
    let _ends_listening = rustix::net::shutdown(report, rustix::net::Shutdown::Both);
    supervisor.tell_to_end();
    supervisor.end_within(wait_ms);
}

/// Raises the limit of open descriptors to the user's maximum: there are a few per node, mount and connection.
pub fn raise_descriptor_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = rustix::process::setrlimit(Resource::Nofile, raised) {
        log::warn!(why:% = error; "the limit of open files stays at {:?}", limit.current);
    }
}

/// Returns the error for a formation that somebody has taken down while it was started.
#[must_use]
pub fn vanished(name: &FormationName) -> LaunchError {
    LaunchError::new(
        Kind::Refused,
        format_args!("formation {name}"),
        "was taken down meanwhile",
        "start it again",
    )
}
