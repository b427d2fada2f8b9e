//! A fence before all changes: whoever takes the formation down holds it while it looks whether site storage has
//! everything. Who wants to change something asks again, and goes on when the fence is lifted or has run out.

use std::time::{Duration, Instant};

use bivouac_ranks::{RwLock, RwLockReadGuard, rank};
use bivouac_types::{Errno, FsError, FsResult};
use bivouac_wire::FenceRequest;

/// Longest wait for changes under way to end.
const PASSING_WAIT: Duration = Duration::from_secs(5);

/// The fence of a node: open, or held by somebody up to a time.
pub struct ChangesFence(RwLock<Option<FenceHolder>>);

impl Default for ChangesFence {
    fn default() -> ChangesFence {
        ChangesFence(RwLock::new(rank::CHANGES_FENCE, None))
    }
}

struct FenceHolder {
    token: u64,
    until: Instant,
}

/// While this lives, the fence does not close.
pub struct FencePass<'a> {
    _guard: RwLockReadGuard<'a, Option<FenceHolder>>,
}

impl ChangesFence {
    /// Lets a change for a client pass while nobody holds the fence; who wants to hold it waits until the result is
    /// dropped.
    ///
    /// # Errors
    /// `EINPROGRESS` while somebody holds the fence.
    pub fn pass(&self) -> FsResult<FencePass<'_>> {
        // Held as long as the change is: whoever wants the fence waits for all of these.
        let guard = self.0.read();
        if guard.as_ref().is_some_and(|held| held.until > Instant::now()) {
            return Err(FsError::with(Errno::EINPROGRESS, "the formation is about to be taken down"));
        }
        Ok(FencePass { _guard: guard })
    }

    /// Holds the fence, or lifts it. When this answers, all changes that were under way have ended. Whether it had been
    /// held with this token until now.
    ///
    /// # Errors
    /// `EBUSY` while somebody else holds it; `EINPROGRESS` while changes under way do not end.
    pub fn hold(&self, request: &FenceRequest) -> FsResult<bool> {
        let ending = || FsError::with(Errno::EINPROGRESS, "changes are under way");
        let mut held = self.0.try_write_for(PASSING_WAIT).ok_or_else(ending)?;
        let now = Instant::now();
        let live = held.as_ref().filter(|held| held.until > now);
        if live.is_some_and(|held| held.token != request.token) {
            return Err(FsError::with(Errno::EBUSY, "somebody else is taking the formation down"));
        }
        let was_held = live.is_some();
        *held = (request.hold_ms > 0).then(|| FenceHolder {
            token: request.token,
            until: now + Duration::from_millis(u64::from(request.hold_ms)),
        });
        Ok(was_held)
    }
}
