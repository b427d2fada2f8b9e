//! This host's part of a formation that hosts met to form: a child process, which the command leaves running once the
//! formation is usable.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bivouac_launch::polling::{timespec, wait_readable};
use bivouac_launch::{Environment, Kind, LaunchError, LaunchResult, ProcessId, Signals, unblock_in};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;

use crate::start::{HostsWishes, ticket_to_meet};

/// The line that a host's part writes once the formation can be used there.
const USABLE: &str = "usable";
/// Longest wait for a part to end before it is killed, in milliseconds.
const END_WAIT_MS: u64 = 30_000;

/// Brings this host's part to a meeting that another one gathers, and waits until the formation can be used here. The
/// part is left running then; it ends when the formation does.
///
/// # Errors
/// Why the formation did not start, or this host cannot take part; the signal that interrupted it.
pub fn attend(
    here: &Environment,
    wishes: &HostsWishes,
    bound: Duration,
    signals: &Signals,
) -> LaunchResult<()> {
    let ticket = ticket_to_meet(here, wishes, bound)?;
    let (mut child, said) = start_part(here, &ticket.to_line())?;
    // It knows the time by itself, and why it is over.
    let waited = wait_usable(&said, signals, bound + Duration::from_secs(5));
    if waited.is_err() {
        end_part(&mut child);
    }
    waited
}

fn start_part(here: &Environment, ticket: &str) -> LaunchResult<(Child, OwnedFd)> {
    let refused = |e: std::io::Error| LaunchError::system("this host's part", e);
    let (said, theirs) = std::io::pipe().map_err(refused)?;
    let mut command = Command::new(&here.program);
    command.arg0("bivouac").args(["join", "--meet"]).env("BIVOUAC_TICKET", ticket.trim_end());
    command.stdin(Stdio::null()).stdout(theirs.try_clone().map_err(refused)?).stderr(theirs);
    command.current_dir("/");
    unblock_in(&mut command);
    Ok((command.spawn().map_err(refused)?, said.into()))
}

/// Reads what a part says until it is usable; its end before that is a failure, with its last words.
fn wait_usable(said: &OwnedFd, signals: &Signals, bound: Duration) -> LaunchResult<()> {
    let deadline = Instant::now() + bound;
    let mut text = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // Rounded up: a wait of 0 ms would spin through the last millisecond.
        let timeout = timespec(u64::try_from(left.as_millis()).unwrap_or(u64::MAX).saturating_add(1));
        let mut polled = [PollFd::new(said, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
        retry_on_intr(|| poll(&mut polled, Some(&timeout))).map_err(|e| LaunchError::system("poll", e))?;
        let [heard, signalled] = polled.map(|polled| !polled.revents().is_empty());
        let mut buffer = [0; 4096];
        let ended = heard && {
            let len = retry_on_intr(|| rustix::io::read(said, &mut buffer)).unwrap_or(0);
            text.extend_from_slice(buffer.get(..len).unwrap_or_default());
            len == 0
        };
        let lines = String::from_utf8_lossy(&text);
        if lines.lines().any(|line| line == USABLE) {
            return Ok(());
        }
        if ended {
            let last = lines.lines().rev().find(|line| !line.trim().is_empty());
            let last = last.map_or("it ended and said nothing", |line| line.trim_start_matches("bivouac: "));
            return Err(LaunchError::said(Kind::Refused, last));
        }
        if signalled && let Some(signal) = signals.next() {
            let cause = format!("was interrupted by {}", bivouac_types::format_signal(signal.number));
            let remedy = "this host's part is removed again";
            return Err(LaunchError::new(Kind::Interrupted, "the formation's start", cause, remedy));
        }
        if left.is_zero() {
            let cause = format!("took longer than {} s", bound.as_secs_f64());
            let remedy = "give it more time with --start-timeout";
            return Err(LaunchError::new(Kind::Refused, "the formation's start", cause, remedy));
        }
    }
}

fn end_part(child: &mut Child) {
    if let Some(part) = ProcessId::of(child.id()) {
        part.signal(rustix::process::Signal::TERM);
        let ended = part.watch().is_none_or(|end| wait_readable(end.as_fd(), END_WAIT_MS));
        if !ended {
            part.signal(rustix::process::Signal::KILL);
        }
    }
    let _reaped = child.wait();
}

/// Tells the command in [`attend`] that the formation can be used here.
pub(crate) fn say_usable() {
    use std::io::Write;
    let _nobody_waits = writeln!(std::io::stdout(), "{USABLE}");
}
