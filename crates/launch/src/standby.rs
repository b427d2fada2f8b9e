//! A copy of a process that waits for its end, and takes its place then. No process that is started anew could: the
//! copy has what is open, and knows what was known.
//!
//! What changes makes a copy old, and another one takes its place. Who is killed in between is followed by the older
//! one.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::Signal;

use crate::forked::{OwnChild, copy};
use crate::polling::wait_readable;
use crate::process::{ProcessId, pidfd};
use crate::signals::Signals;
use crate::state::FormationState;
use crate::state_dir::StateDir;
use crate::{LaunchError, LaunchResult};

/// Time for which a process that took over has no copy: a program that kills all processes of a formation in turn is to
/// succeed, and so is one that kills whoever does this work.
const PAUSE: Duration = Duration::from_secs(2);
/// Copies that may end in a row soon after they were made; further ones are made after longer waits.
const SHORT_LIVED_MAX: u32 = 8;
/// Time that it may take to look whether there is a copy.
const LOOKED_AT: Duration = Duration::from_millis(5);
/// Time that a copy may take to take the place, in milliseconds.
const TAKE_OVER_MS_MAX: u64 = 5000;

/// The copy that waits, if there is one.
#[derive(Debug, Default)]
pub struct Standby {
    waiting: Option<Copied>,
    /// True if it is as this process.
    is_current: bool,
    /// Earliest time of the next one.
    not_before: Option<Instant>,
    /// Time when this process took the place.
    succeeded: Option<Instant>,
    /// Set until the takeover is recorded.
    turn: Option<TurnToSucceed>,
    /// Copies in a row that ended a moment after they were made.
    short_lived: u32,
    /// True if the work of this process ends with it.
    over: bool,
}

#[derive(Debug)]
struct Copied {
    child: OwnChild,
    end: OwnedFd,
    made: Instant,
}

/// Resources of a copy until its turn comes.
#[derive(Debug)]
pub struct Waiting {
    former: ProcessId,
    end: OwnedFd,
    sign: File,
}

/// A copy's turn has come. As long as this is there, others wait until the state says who has taken the place.
#[derive(Debug)]
pub struct TurnToSucceed {
    /// The process whose place is taken.
    pub former: ProcessId,
    _sign: File,
    _turn: File,
}

impl Standby {
    /// Becomes readable when the copy has ended.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.waiting.as_ref().map(|copied| copied.end.as_fd())
    }

    /// Returns whether there is a copy that waits.
    pub fn is_there(&self) -> bool {
        self.descriptor().is_some_and(|end| !wait_readable(end, 0))
    }

    /// Returns after how many milliseconds there may be a copy, if there may not be one now.
    pub fn wait_ms(&self) -> Option<u64> {
        let now = Instant::now();
        let moment = self.not_before.filter(|moment| *moment > now)?;
        Some(moment.saturating_duration_since(now).as_millis() as u64 + 1)
    }

    /// Forgets a copy that has ended, whose descriptor would wake this process again and again. Returns whether a new
    /// one may be made now.
    fn reap_copy(&mut self) -> bool {
        let now = Instant::now();
        if let Some(ended) = self.waiting.take_if(|copied| wait_readable(copied.end.as_fd(), 0)) {
            self.short_lived = if ended.made.elapsed() < PAUSE { self.short_lived + 1 } else { 0 };
            if self.short_lived >= SHORT_LIVED_MAX {
                self.not_before = Some(now + PAUSE);
            }
            ended.child.wait();
        }
        self.not_before = self.not_before.filter(|moment| *moment > now);
        self.not_before.is_none() && self.turn.is_none() && !self.over
    }

    /// Ends the copy, and makes no other: the end of this process is now that of what it does.
    pub fn dismiss(&mut self) {
        self.over = true;
        self.not_before = None;
        self.waiting.take().into_iter().for_each(|copied| copied.child.end_within(0));
    }

    /// Notes that something changes that a copy has to know: the one there is is old.
    pub fn outdate(&mut self) {
        self.is_current = false;
    }

    /// Sees to it that a copy waits that is as this process, if there may be one already. In the copy this answers what
    /// it waits with.
    pub fn keep_up(&mut self, dir: &StateDir) -> Option<Waiting> {
        if (self.is_current && self.is_there()) || !self.reap_copy() {
            return None;
        }
        self.renew(dir).unwrap_or_else(|error| {
            log::warn!(why:% = error; "nobody takes this process's place if it is killed");
            None
        })
    }

    /// Makes a copy of this process as it is now, in place of the one there is, which stays where that fails.
    fn renew(&mut self, dir: &StateDir) -> io::Result<Option<Waiting>> {
        match self.try_renew(dir) {
            // Somebody looks just now whether there is one.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.not_before = Some(Instant::now() + LOOKED_AT);
                Ok(None)
            }
            // What the system refuses now it refuses at the next event, too.
            renewed => renewed.inspect_err(|_| self.not_before = Some(Instant::now() + PAUSE)),
        }
    }

    fn try_renew(&mut self, dir: &StateDir) -> io::Result<Option<Waiting>> {
        let former = ProcessId::current();
        // Before the copy is made: when it runs, the number may be another process's.
        let end = pidfd(former.pid)?;
        let sign = dir.sign_succession()?;
        let Some(child) = copy()? else {
            // It was the former one's child. When this one's turn comes, its number may be somebody else's.
            self.waiting = None;
            return Ok(Some(Waiting { former, end, sign }));
        };
        let end = match child.watch() {
            Ok(end) => end,
            // Nobody would look after it.
            Err(error) => {
                child.end_within(0);
                return Err(error);
            }
        };
        let copied = Copied { end, child, made: Instant::now() };
        self.is_current = true;
        // There is always one: of two, one takes the place.
        if let Some(old) = self.waiting.replace(copied) {
            old.child.end_within(0);
        }
        Ok(None)
    }

    /// Records that this process took the place of another one, which it is about to write into the state file.
    pub fn begin_succession(&mut self, turn: TurnToSucceed) {
        let now = Instant::now();
        (self.succeeded, self.not_before) = (Some(now), Some(now + PAUSE));
        (self.turn, self.short_lived) = (Some(turn), 0);
    }

    /// Ends the succession: the state file names this process as supervisor, so that others need not wait for that any
    /// more.
    pub fn end_succession(&mut self) {
        self.turn = None;
    }

    /// Returns whether that was a moment ago: as long as it has no copy for that reason.
    pub fn is_new(&self) -> bool {
        self.succeeded.is_some_and(|moment| moment.elapsed() < PAUSE)
    }
}

impl Waiting {
    /// Comes back when the process has ended of which this one is a copy, and no other copy of it was faster: else this
    /// one ends, as it does when it is told to, or when the system refuses what it needs. What the former process has
    /// promised since the copy was made is in the state that this answers.
    pub fn wait(self, dir: &StateDir, signals: &Signals) -> (FormationState, TurnToSucceed) {
        self.try_wait(dir, signals).unwrap_or_else(|error| give_up(&error))
    }

    fn try_wait(self, dir: &StateDir, signals: &Signals) -> LaunchResult<(FormationState, TurnToSucceed)> {
        while !wait_readable(self.end.as_fd(), 0) {
            let mut polled = [PollFd::new(&self.end, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
            retry_on_intr(|| poll(&mut polled, None)).map_err(|e| LaunchError::system("poll", e))?;
            let [end, _] = &polled;
            if end.revents().is_empty() && is_told_to_end(signals) {
                std::process::exit(0)
            }
        }
        // Of several copies, or of a daemon that waits for the same, one takes the place; the others find it taken.
        let turn = dir.take_turn()?;
        match dir.read()?.filter(|state| state.supervisor == Some(self.former)) {
            Some(promised) => {
                Ok((promised, TurnToSucceed { former: self.former, _sign: self.sign, _turn: turn }))
            }
            None => std::process::exit(0),
        }
    }
}

fn is_told_to_end(signals: &Signals) -> bool {
    std::iter::from_fn(|| signals.next()).any(|signal| signal.number != Signal::HUP.as_raw())
}

/// Ends a copy that can be of no use.
pub fn give_up(error: &dyn std::error::Error) -> ! {
    log::error!(why:% = error; "this copy cannot take its place");
    std::process::exit(1)
}

/// Returns the state of a formation. If its supervisor was killed just now, and somebody is about to take its place,
/// this waits until that is written down.
///
/// # Errors
/// That it cannot be read.
pub fn settled(dir: &StateDir) -> LaunchResult<Option<FormationState>> {
    let state = dir.read()?;
    let is_supervised = |state: &FormationState| state.supervisor.is_some_and(|process| process.is_alive());
    if state.as_ref().is_none_or(is_supervised) {
        return Ok(state);
    }
    // Whoever takes a place says so in the state before it stops to show that it does.
    if !dir.wait_succeeded(TAKE_OVER_MS_MAX) {
        log::warn!("nobody has taken the place of a supervisor that was killed within {TAKE_OVER_MS_MAX} ms");
    }
    dir.read()
}
