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
}

impl Counters {
    pub fn new() -> Counters {
        let most = Op::ALL.iter().map(|op| *op as usize).max().unwrap_or(0);
        Counters { counts: (0..=most).map(|_| Counts::default()).collect() }
    }

    /// One more request from a client, or from a peer.
    pub fn add(&self, op: Op, from_peer: bool) {
        if let Some(counts) = self.counts.get(op as usize) {
            let counter = if from_peer { &counts.peer } else { &counts.client };
            counter.fetch_add(1, Ordering::Relaxed);
        }
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
        assert_eq!(names, [("GetAttr", 0, 0, 1), ("Read", 1, 1, 0), ("Trim", 0, 1, 0)]);
    }
}
