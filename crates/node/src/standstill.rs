//! Watchdog over the nodes of a process: it reports a lock that cannot be taken any more.

use std::sync::Arc;
use std::time::Duration;

use crate::node::Node;
use crate::pulse::StandstillLimits;

/// Watches nodes that share a process until one of them stands still, and says what.
#[must_use]
pub fn watch(nodes: &[Arc<Node>], patience: StandstillLimits) -> String {
    let Some(first) = nodes.first() else { return "no node is watched".to_owned() };
    first.rounds.pulse.watch(patience, |lock| nodes.iter().find_map(|node| node.standstill(lock)))
}

impl Node {
    /// Returns a lock of this node that cannot be had within a time.
    fn standstill(&self, patience: Duration) -> Option<String> {
        let stuck = self.stuck_lock(patience)?;
        Some(format!("{}: the lock of {stuck} could not be had for {} s", self.id, patience.as_secs_f32()))
    }

    fn stuck_lock(&self, patience: Duration) -> Option<&'static str> {
        let tables: [(&'static str, &dyn Fn(Duration) -> bool); 7] = [
            ("locks of entries", &|time| self.locks.can_be_taken(time)),
            ("programs' locks", &|time| self.advisory.can_be_taken(time)),
            ("records", &|time| self.records.can_be_taken(time)),
            ("opens", &|time| self.opens.can_be_taken(time)),
            ("sessions", &|time| self.sessions.can_be_taken(time)),
            ("leases", &|time| self.callbacks.leases.can_be_taken(time)),
            ("the agenda", &|time| self.reaper.can_be_taken(time)),
        ];
        tables.into_iter().find(|(_, can_be_taken)| !can_be_taken(patience)).map(|(name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const SOON: StandstillLimits = StandstillLimits {
        period: Duration::from_millis(1),
        request: Duration::ZERO,
        lock: Duration::from_millis(20),
    };

    /// S392.
    #[test]
    fn a_lock_that_nobody_gives_up_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let node = crate::testing::alone(dir.path());
        // Longer than anybody on a busy machine has a lock that is given up.
        let long = Duration::from_secs(60);
        assert_eq!(node.standstill(long), None);
        let (held, begun) = (Arc::clone(&node), mpsc::channel());
        let (end, ended) = mpsc::channel::<()>();
        let holder = std::thread::spawn(move || {
            let txn = held.records.txn(&[bivouac_types::Slot(1)]);
            begun.0.send(()).unwrap();
            let _ = ended.recv();
            drop(txn);
        });
        begun.1.recv().unwrap();
        let _beat = node.rounds.pulse.begin();
        let what = watch(&[Arc::clone(&node)], SOON);
        assert!(what.starts_with("node 0: the lock of records could not be had"), "{what}");
        drop(end);
        holder.join().unwrap();
        assert_eq!(node.standstill(long), None);
    }
}
