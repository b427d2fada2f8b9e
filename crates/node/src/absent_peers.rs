//! Peers that do not answer. What a node finishes by itself does not wait for them again and again: it asks one
//! that is away for a short time, then leaves it alone for a while.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bivouac_ranks::Mutex;
use bivouac_types::{Errno, FsError, FsResult, NodeId};

/// First and longest wait for a peer that may be away; it doubles in between, for one that is alive but slow.
const WAIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(4));
/// First and longest time without a request to such a peer; it doubles in between.
pub const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(2));

thread_local! {
    // An error does not say which peer it is about, and passes through code that does not know.
    static BLAMED: Cell<Option<NodeId>> = const { Cell::new(None) };
}

/// The peers that did not answer.
pub struct AbsentPeers {
    nodes: Mutex<HashMap<NodeId, Absence>>,
    /// True if any peer is away; read without the lock.
    any: AtomicBool,
    /// Longest wait for anything.
    bound: Duration,
}

struct Absence {
    failures: u32,
    until: Instant,
    /// Set while a request to it is under way.
    asked: bool,
}

impl AbsentPeers {
    /// Creates an empty table; `bound` limits each wait.
    pub fn new(bound: Duration) -> AbsentPeers {
        AbsentPeers { nodes: Mutex::default(), any: AtomicBool::new(false), bound }
    }

    /// Returns how long background work may wait for a peer.
    ///
    /// # Errors
    /// `EIO` when it has to be left alone.
    pub fn admit(&self, node: NodeId) -> FsResult<Duration> {
        let mut nodes = self.nodes.lock();
        let Some(absence) = nodes.get_mut(&node) else { return Ok(WAIT.0.min(self.bound)) };
        if absence.asked || absence.until > Instant::now() {
            BLAMED.set(Some(node));
            return Err(FsError::with(Errno::EIO, format!("{node} is away and is asked again later")));
        }
        absence.asked = true;
        Ok(doubled(WAIT, absence.failures).min(self.bound))
    }

    /// Notes that work which nobody waits for has not been answered.
    pub fn is_silent(&self, node: NodeId) {
        BLAMED.set(Some(node));
        let mut nodes = self.nodes.lock();
        let now = Instant::now();
        let absence = nodes.entry(node).or_insert(Absence { failures: 0, until: now, asked: false });
        absence.until = now + doubled(PAUSE, absence.failures);
        absence.failures = absence.failures.saturating_add(1);
        absence.asked = false;
        self.any.store(true, Ordering::Release);
    }

    /// Notes that a peer has answered something, or has called. Returns true if it was away.
    pub fn is_here(&self, node: NodeId) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let mut nodes = self.nodes.lock();
        let was_away = nodes.remove(&node).is_some();
        self.any.store(!nodes.is_empty(), Ordering::Release);
        was_away
    }

    /// Returns for how long no request is to be sent to a peer.
    pub fn pause(&self, node: NodeId) -> Duration {
        let nodes = self.nodes.lock();
        let until = nodes.get(&node).map(|absence| absence.until);
        until.map_or(PAUSE.0, |until| until.saturating_duration_since(Instant::now()).max(PAUSE.0))
    }
}

/// Returns the peer for which work of this thread failed last, if any.
pub fn take_blamed() -> Option<NodeId> {
    BLAMED.take()
}

fn doubled(limits: (Duration, Duration), times: u32) -> Duration {
    // The shift must stay within 32 bits; the limits are reached long before.
    limits.0.saturating_mul(1 << times.min(16)).min(limits.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(3);

    #[test]
    fn who_is_away_is_left_alone_and_asked_by_one_at_a_time() {
        let away = AbsentPeers::new(Duration::from_secs(30));
        assert_eq!((away.admit(NODE).unwrap(), away.is_here(NODE)), (WAIT.0, false));
        let begun = Instant::now();
        (0..20).for_each(|_| away.is_silent(NODE));
        assert_eq!(take_blamed(), Some(NODE));
        let until = |moment| std::mem::replace(&mut away.nodes.lock().get_mut(&NODE).unwrap().until, moment);
        // Longer than a busy machine may take for what follows.
        assert!(until(Instant::now() + Duration::from_secs(3600)) >= begun + PAUSE.1);
        assert!(away.admit(NODE).is_err() && away.pause(NODE) > WAIT.0);
        assert_eq!(take_blamed(), Some(NODE));
        assert!(away.admit(NodeId(4)).is_ok(), "others are not concerned");
        until(Instant::now());
        assert_eq!(away.admit(NODE).unwrap(), WAIT.1);
        assert!(away.admit(NODE).is_err(), "somebody asks it already");
        assert!(away.is_here(NODE) && away.admit(NODE).is_ok());
        assert_eq!(take_blamed(), Some(NODE));
    }

    #[test]
    fn nobody_is_waited_for_longer_than_the_bound() {
        let away = AbsentPeers::new(Duration::from_millis(40));
        assert_eq!(away.admit(NODE).unwrap(), Duration::from_millis(40));
        assert_eq!(doubled(PAUSE, u32::MAX), PAUSE.1);
    }
}
