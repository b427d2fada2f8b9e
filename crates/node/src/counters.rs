//! Requests per operation: served on each lane, and made to peers.

use std::sync::atomic::{AtomicU64, Ordering};

use bivouac_wire::{Op, OpCount};

/// The counters of one operation.
#[derive(Default)]
struct Counts {
    client: AtomicU64,
    peer: AtomicU64,
    calls: AtomicU64,
}

/// The counters of a node.
pub struct Counters {
    counts: Vec<Counts>,
    damaged: Counts,
}

impl Counters {
    pub fn new() -> Counters {
        let most = Op::ALL.iter().map(|op| *op as usize).max().unwrap_or(0);
        let counts = (0..=most).map(|_| Counts::default()).collect();
        Counters { counts, damaged: Counts::default() }
    }

    /// One more request from a client, or from a peer.
    pub fn add(&self, op: Op, from_peer: bool) {
        if let Some(counts) = self.counts.get(op as usize) {
            let counter = if from_peer { &counts.peer } else { &counts.client };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// One more request, or answer, that was changed on its way from or to a client, or a peer.
    pub fn add_damage(&self, from_peer: bool) {
        let counter = if from_peer { &self.damaged.peer } else { &self.damaged.client };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// What was changed on its way from and to others, if anything was.
    pub fn damaged(&self) -> Option<OpCount> {
        let [client, peer] = [&self.damaged.client, &self.damaged.peer].map(|c| c.load(Ordering::Relaxed));
        (client + peer > 0).then(|| OpCount { name: "Damaged".into(), client, peer, calls: 0 })
    }

    /// One more request to a peer.
    pub fn add_call(&self, op: Op) {
        if let Some(counts) = self.counts.get(op as usize) {
            counts.calls.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Every operation that was asked for, by anybody, in the order of the table.
    pub fn list(&self) -> Vec<OpCount> {
        let read = |op: &Op| {
            let counts = self.counts.get(*op as usize)?;
            let [client, peer, calls] =
                [&counts.client, &counts.peer, &counts.calls].map(|counter| counter.load(Ordering::Relaxed));
            (client + peer + calls > 0).then(|| OpCount { name: op.name().into(), client, peer, calls })
        };
        Op::ALL.iter().filter_map(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_asked_for_is_listed() {
        let counters = Counters::new();
        counters.add(Op::Read, false);
        counters.add(Op::Read, true);
        counters.add(Op::Trim, true);
        counters.add_call(Op::GetAttr);
        let list = counters.list();
        let names: Vec<_> = list.iter().map(|c| (c.name.as_str(), c.client, c.peer, c.calls)).collect();
        assert_eq!(counters.damaged(), None);
        [false, true, true].into_iter().for_each(|from_peer| counters.add_damage(from_peer));
        let damaged = counters.damaged().map(|count| (count.name, count.client, count.peer, count.calls));
        assert_eq!(damaged, Some(("Damaged".to_owned(), 1, 2, 0)));
        assert_eq!(names, [("GetAttr", 0, 0, 1), ("Read", 1, 1, 0), ("Trim", 0, 1, 0)]);
    }
}
