//! Holding up that writes to files in front of site storage are acknowledged before they are sent: whoever flushes, or
//! takes the formation down, is to see all that was acknowledged.

use std::time::{Duration, Instant};

use bivouac_wire::{Dirty, FenceRequest};
use parking_lot::{RwLock, RwLockReadGuard};

use super::Sessions;

/// Processes that hold up write-behind, and until when.
#[derive(Default)]
pub struct Holds(RwLock<Vec<(u64, Instant)>>);

/// While this lives nobody begins to hold it up.
type Allowed<'a> = RwLockReadGuard<'a, Vec<(u64, Instant)>>;

impl Holds {
    /// Allows to acknowledge something that was not sent; `None` if that is held up for this file.
    pub fn allow(&self, is_concerned: impl FnOnce() -> bool) -> Option<Allowed<'_>> {
        let guard = self.0.read();
        let is_held = !guard.is_empty() && {
            let now = Instant::now();
            guard.iter().any(|(_, until)| *until > now)
        };
        // The guard stays with the writer: `take` waits until what was allowed is among the unsent.
        (!is_held || !is_concerned()).then_some(guard)
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

impl Sessions {
    /// Returns what this client has written behind to files in front of site storage and not sent, with the reason if
    /// sending failed. Unless the token is 0, it is sent now, and nothing more is written behind there for `hold_ms`
    /// milliseconds; 0 ends that.
    #[must_use]
    pub fn tell_unsent(&self, request: &FenceRequest) -> Vec<Dirty> {
        let is_new = request.token != 0 && self.holds.take(request) && request.hold_ms > 0;
        let Some(pool) = self.pool().filter(|pool| pool.unsent() > 0) else { return Vec::new() };
        let mut left = Vec::new();
        for file in pool.files().iter().filter(|file| self.homes.may_be_bound(file.ino)) {
            let mut state = file.state.lock();
            if state.unsent() == 0 {
                continue;
            }
            // A flush that begins tries again what failed before it.
            if is_new {
                state.failure = None;
            }
            let why = state.failure.as_ref().map_or(String::new(), ToString::to_string);
            left.push(Dirty { ino: file.ino, bytes: state.unsent(), why, is_temporary: false });
            drop(state);
            if is_new && let Some(beside) = self.beside.get() {
                beside.urge(file.ino);
            }
        }
        left
    }
}
