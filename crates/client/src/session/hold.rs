//! Holding up that writes to files in front of site storage are acknowledged before they are sent: whoever flushes, or takes
//! the formation down, is to see all that was acknowledged.

use std::time::{Duration, Instant};

use bivouac_types::{FsResult, Ino};
use bivouac_wire::{Dirty, FenceRequest, op};
use parking_lot::{RwLock, RwLockReadGuard};

use crate::client::Client;

/// For how long writes go through if the process that asks for it says no more, in milliseconds.
const HOLD_MS: u32 = 5000;
/// First and longest pause before it is looked again what is unsent.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// How long what was written behind may take to be sent before it is said what is left.
const WAIT: Duration = Duration::from_secs(120);

/// Who holds it up, and until when.
#[derive(Default)]
pub struct Holds(RwLock<Vec<(u64, Instant)>>);

/// While this lives nobody begins to hold it up.
pub struct Allowed<'a> {
    _guard: RwLockReadGuard<'a, Vec<(u64, Instant)>>,
}

impl Holds {
    /// Before something is acknowledged that was not sent: nothing if that is held up for this file.
    pub fn allow(&self, is_concerned: impl FnOnce() -> bool) -> Option<Allowed<'_>> {
        let guard = self.0.read();
        let is_held = !guard.is_empty() && {
            let now = Instant::now();
            guard.iter().any(|(_, until)| *until > now)
        };
        (!is_held || !is_concerned()).then_some(Allowed { _guard: guard })
    }

    /// Holds it up, or lets it go on. Whether this one had not held it up before.
    fn take(&self, request: &FenceRequest) -> bool {
        let (now, mut holds) = (Instant::now(), self.0.write());
        holds.retain(|(_, until)| *until > now);
        let known = holds.len();
        holds.retain(|(token, _)| *token != request.token);
        let is_new = known == holds.len();
        if request.hold_ms > 0 {
            holds.push((request.token, now + Duration::from_millis(u64::from(request.hold_ms))));
        }
        is_new
    }
}

impl Client {
    /// What this client has written behind to files in front of site storage and not sent, as far as that can be: with why
    /// it could not be sent. Unless the token is 0 it is sent now, and nothing more is written behind there for so many
    /// milliseconds; 0 lets that go on.
    #[must_use]
    pub fn tell_unsent(&self, request: &FenceRequest) -> Vec<Dirty> {
        let is_new = request.token != 0 && self.sessions.holds.take(request) && request.hold_ms > 0;
        let Some(pool) = self.pool().filter(|pool| pool.unsent() > 0) else { return Vec::new() };
        let mut left = Vec::new();
        for file in pool.files().iter().filter(|file| self.may_be_bound(file.ino)) {
            let mut state = file.state.lock();
            if state.unsent() == 0 {
                continue;
            }
            if is_new {
                state.failure = None;
            }
            let why = state.failure.as_ref().map_or(String::new(), ToString::to_string);
            left.push(Dirty { ino: file.ino, bytes: state.unsent(), why });
            drop(state);
            if is_new && let Some(beside) = self.sessions.beside.get() {
                beside.urge(file.ino);
            }
        }
        left
    }

    /// Whether a file is in front of site storage, or may be.
    pub(crate) fn may_be_bound(&self, ino: Ino) -> bool {
        let Some(known) = self.known.get(ino) else { return true };
        let partition = self.partition(known.layout.partition());
        partition.map_or(true, |found| found.is_some_and(|found| found.settings.source.is_some()))
    }

    /// Asks all mounts what they have written behind and not sent; as [`Client::tell_unsent`].
    ///
    /// # Errors
    /// `EIO` when a node cannot be reached.
    pub fn ask_unsent(&self, token: u64, hold_ms: u32) -> FsResult<Vec<Dirty>> {
        let (request, mut left) = (FenceRequest { token, hold_ms }, Vec::new());
        for node in self.node_ids() {
            left.extend(self.ways.ask::<op::SendUnsent>(node, &request)?);
        }
        Ok(left)
    }

    /// Has all mounts send what was written behind in front of site storage; until they hear otherwise, or this process
    /// says nothing for a while, nothing more is. What is left has failed.
    ///
    /// # Errors
    /// As [`Client::ask_unsent`].
    pub fn hold_behind(&self, token: u64, hold_ms: u32) -> FsResult<Vec<Dirty>> {
        let (begun, mut pause) = (Instant::now(), PAUSES.0);
        loop {
            let left = self.ask_unsent(token, hold_ms)?;
            if left.iter().all(|file| !file.why.is_empty()) || begun.elapsed() > WAIT {
                return Ok(left);
            }
            bivouac_net::pause(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Has all mounts send what was written behind in front of site storage up to now. What is left has failed.
    ///
    /// # Errors
    /// As [`Client::ask_unsent`].
    pub fn send_behind(&self) -> FsResult<Vec<Dirty>> {
        let left = self.hold_behind(self.ways.id.0, HOLD_MS);
        // After an error they go on by themselves.
        left.and_then(|left| self.ask_unsent(self.ways.id.0, 0).map(|_| left))
    }
}
