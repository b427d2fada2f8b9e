//! Requests per operation and lane.

use std::sync::atomic::{AtomicU64, Ordering};

use bivouac_wire::{Op, OpCount};

/// The counters of a node: two per operation.
pub struct Counters {
    counts: Vec<[AtomicU64; 2]>,
}

impl Counters {
    pub fn new() -> Counters {
        let most = Op::ALL.iter().map(|op| *op as usize).max().unwrap_or(0);
        Counters { counts: (0..=most).map(|_| Default::default()).collect() }
    }

    /// One more request.
    pub fn add(&self, op: Op, from_peer: bool) {
        if let Some(pair) = self.counts.get(op as usize) {
            pair[usize::from(from_peer)].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Every operation that was asked for, in the order of the table.
    pub fn list(&self) -> Vec<OpCount> {
        let read = |op: &Op| {
            let [client, peer] = &self.counts[*op as usize];
            let (client, peer) = (client.load(Ordering::Relaxed), peer.load(Ordering::Relaxed));
            (client + peer > 0).then(|| OpCount { name: op.name().into(), client, peer })
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
        let list = counters.list();
        let names: Vec<_> = list.iter().map(|c| (c.name.as_str(), c.client, c.peer)).collect();
        assert_eq!(names, [("Read", 1, 1), ("Trim", 0, 1)]);
    }
}
