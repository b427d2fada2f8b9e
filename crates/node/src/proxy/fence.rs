//! A fence before all changes: whoever takes the formation down holds it while it looks whether site storage has
//! everything. Who wants to change something asks again, and goes on when the fence is lifted or has run out.

use std::time::{Duration, Instant};

use bivouac_ranks::{RwLock, RwLockReadGuard, rank};
use bivouac_types::{Errno, FsError, FsResult};
use bivouac_wire::FenceRequest;

use crate::node::Node;

/// How long changes that are under way may take to end.
const PASSING_WAIT: Duration = Duration::from_secs(5);

/// The fence of a node: open, or held by somebody up to a time.
pub struct Fence(RwLock<Option<Held>>);

impl Default for Fence {
    fn default() -> Fence {
        Fence(RwLock::new(rank::CHANGES_FENCE, None))
    }
}

struct Held {
    token: u64,
    until: Instant,
}

/// While this lives, the fence does not close.
pub struct Passing<'a> {
    _guard: RwLockReadGuard<'a, Option<Held>>,
}

impl Node {
    /// Before something is changed for a client.
    ///
    /// # Errors
    /// `EINPROGRESS` while somebody holds the fence.
    pub(crate) fn pass_fence(&self) -> FsResult<Passing<'_>> {
        let guard = self.proxy.fence.0.read();
        if guard.as_ref().is_some_and(|held| held.until > Instant::now()) {
            return Err(FsError::with(Errno::EINPROGRESS, "the formation is about to be taken down"));
        }
        Ok(Passing { _guard: guard })
    }

    /// Holds the fence, or lifts it. When this answers, all changes that were under way have ended. Whether it had been held
    /// with this token until now.
    ///
    /// # Errors
    /// `EBUSY` while somebody else holds it; `EINPROGRESS` while changes under way do not end.
    pub(crate) fn hold_fence(&self, request: &FenceRequest) -> FsResult<bool> {
        let ending = || FsError::with(Errno::EINPROGRESS, "changes are under way");
        let mut held = self.proxy.fence.0.try_write_for(PASSING_WAIT).ok_or_else(ending)?;
        let now = Instant::now();
        let live = held.as_ref().filter(|held| held.until > now);
        if live.is_some_and(|held| held.token != request.token) {
            return Err(FsError::with(Errno::EBUSY, "somebody else is taking the formation down"));
        }
        let was_held = live.is_some();
        *held = (request.hold_ms > 0).then(|| Held {
            token: request.token,
            until: now + Duration::from_millis(u64::from(request.hold_ms)),
        });
        Ok(was_held)
    }
}
