//! Table of dead nodes, with the times of their deaths: written by who watches them, read by who waits for them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bivouac_types::NodeId;
use parking_lot::RwLock;

/// Liveness of the nodes of a formation.
#[derive(Debug)]
pub struct LivenessTable {
    since: Instant,
    /// By node: 0 if it lives, else when it became known that it does not, in milliseconds from `since`, and 1.
    dead: RwLock<Vec<AtomicU64>>,
    /// Incarnation of this process's own node: the number of times that it was suspected or taken for dead, and refuted
    /// it.
    own: AtomicU32,
}

impl LivenessTable {
    /// Creates the table of `count` nodes, all of which live.
    #[must_use]
    pub fn new(count: usize) -> LivenessTable {
        LivenessTable {
            since: Instant::now(),
            dead: RwLock::new((0..count).map(|_| AtomicU64::new(0)).collect()),
            own: AtomicU32::new(0),
        }
    }

    /// Adds nodes behind the others, all of which live, until there are `count`.
    pub fn extend(&self, count: usize) {
        let mut dead = self.dead.write();
        while dead.len() < count {
            dead.push(AtomicU64::new(0));
        }
    }

    /// Notes that a node is dead, or lives again.
    pub fn set_dead(&self, node: NodeId, dead: bool) {
        let known = self.dead.read();
        let Some(entry) = known.get(usize::from(node.0)) else { return };
        let now = if dead {
            u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
        } else {
            0
        };
        // One that is known to be dead already does not become so anew.
        let _it_was = entry.fetch_update(Ordering::AcqRel, Ordering::Acquire, |before| {
            (before == 0 || !dead).then_some(now)
        });
    }

    /// Returns for how long a node has been known to be dead; `None` if it is not.
    #[must_use]
    pub fn dead_for(&self, node: NodeId) -> Option<Duration> {
        let moment = self.dead.read().get(usize::from(node.0))?.load(Ordering::Acquire).checked_sub(1)?;
        Some(self.since.elapsed().saturating_sub(Duration::from_millis(moment)))
    }

    /// Returns the fencing token of what is begun under locks: others refuse it when they know of a higher incarnation
    /// of this node.
    #[must_use]
    pub fn token(&self) -> u32 {
        self.own.load(Ordering::Acquire).saturating_add(1)
    }

    /// Sets the incarnation of this process's own node. To be called once all locks are marked as doubtful.
    pub fn set_incarnation(&self, incarnation: u32) {
        self.own.store(incarnation, Ordering::Release);
    }

    /// Returns the nodes that are known to be dead.
    #[must_use]
    pub fn dead(&self) -> Vec<NodeId> {
        let known = self.dead.read();
        let dead = known.iter().enumerate().filter(|(_, entry)| entry.load(Ordering::Acquire) != 0);
        dead.map(|(node, _)| NodeId(node as u16)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dead_are_known_from_their_first_moment_on() {
        let liveness = LivenessTable::new(3);
        assert_eq!((liveness.dead_for(NodeId(1)), liveness.dead()), (None, vec![]));
        liveness.set_dead(NodeId(1), true);
        std::thread::park_timeout(Duration::from_millis(5));
        let first = liveness.dead_for(NodeId(1)).unwrap();
        liveness.set_dead(NodeId(1), true);
        assert!(liveness.dead_for(NodeId(1)).unwrap() >= first);
        assert_eq!((liveness.dead_for(NodeId(0)), liveness.dead()), (None, vec![NodeId(1)]));
        liveness.set_dead(NodeId(1), false);
        assert_eq!((liveness.dead_for(NodeId(1)), liveness.dead_for(NodeId(9))), (None, None));
        liveness.set_dead(NodeId(9), true);
        liveness.extend(10);
        liveness.set_dead(NodeId(9), true);
        assert_eq!(liveness.dead(), [NodeId(9)]);
        liveness.set_dead(NodeId(9), false);
        assert_eq!(liveness.token(), 1);
        liveness.set_incarnation(4);
        assert_eq!(liveness.token(), 5);
    }
}
