//! Counts of requests by kind.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::Opcode;

/// Requests of one kind since the mount began to be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The operation.
    pub operation: &'static str,
    /// Requests.
    pub requests: u64,
}

/// Counters, one per operation.
#[derive(Debug)]
pub struct Stats {
    requests: [AtomicU64; Opcode::ALL.len()],
}

impl Default for Stats {
    fn default() -> Stats {
        Stats { requests: [const { AtomicU64::new(0) }; Opcode::ALL.len()] }
    }
}

impl Stats {
    /// Counts a request.
    pub fn count(&self, op: Opcode) {
        if let Some(counter) = self.requests.get(op.index()) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Operations that were asked for at least once.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Count> {
        let counts = Opcode::ALL.iter().zip(&self.requests);
        let counts =
            counts.map(|(op, n)| Count { operation: op.name(), requests: n.load(Ordering::Relaxed) });
        counts.filter(|count| count.requests > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_was_asked_for() {
        let stats = Stats::default();
        Opcode::ALL.iter().for_each(|&op| stats.count(op));
        stats.count(Opcode::Write);
        let counts = stats.snapshot();
        assert_eq!(counts.len(), Opcode::ALL.len());
        assert!(counts.iter().all(|c| c.requests == 1 + u64::from(c.operation == "Write")));
    }
}
