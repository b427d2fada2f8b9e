//! Balancing: nodes with content move to hosts that run fewer of them, and replicas to hosts that keep fewer.
//!
//! As long as one host runs two nodes more than another one, a node of the first moves to the second: nodes whose
//! replicas it has get other backups, its own backup becomes a node there, and when that has all, it moves by a planned
//! move. Then the same is done for replicas. One thing is done at a time, and only while every node has a complete
//! replica. Each move makes the sum of the squares of the numbers of nodes smaller, and so does each copy for those of
//! replicas, which later copies leave alone: balancing ends.

use std::collections::BTreeMap;

use bivouac_launch::ArrivalStage;
use bivouac_types::NodeId;

use super::{MoveCommand, MoveMachine};

/// A difference between two hosts that is evened out.
const DIFFERENCE_MIN: usize = 2;

impl MoveMachine {
    /// Does the next thing for hosts that join, once all of them are up.
    pub(super) fn balance(
        &mut self,
        now_unix_ms: u64,
        (complete, pinned): (&[u16], &[u16]),
        host_of: &impl Fn(u16) -> Option<usize>,
    ) -> Vec<MoveCommand> {
        if self.arrivals.iter().all(|known| known.stage != ArrivalStage::Balancing) {
            return Vec::new();
        }
        // Nodes that move now would move once more for a host that comes a moment later.
        let is_coming = self.arrivals.iter().any(|known| known.stage < ArrivalStage::Balancing);
        let (waits, commands) = if is_coming {
            (Some("other hosts that join are not up yet".into()), Vec::new())
        } else {
            self.balance_step(now_unix_ms, (complete, pinned), host_of)
        };
        let balancing = self.arrivals.iter_mut().filter(|known| known.stage == ArrivalStage::Balancing);
        for arrival in balancing {
            if waits.is_none() {
                arrival.stage = ArrivalStage::Done;
            }
            arrival.message.clone_from(&waits);
        }
        commands
    }

    /// One step of balancing; with what that waits for, nothing if all is balanced.
    fn balance_step(
        &mut self,
        now_unix_ms: u64,
        (complete, pinned): (&[u16], &[u16]),
        host_of: &impl Fn(u16) -> Option<usize>,
    ) -> (Option<String>, Vec<MoveCommand>) {
        if let Some(text) = self.under_way(complete, host_of) {
            return (Some(text), Vec::new());
        }
        let nodes = || 0..self.map.mirrors.len() as u16;
        let hosts = nodes().filter_map(host_of).filter(|host| !self.is_leaving(*host));
        let mut runs: BTreeMap<usize, usize> = hosts.map(|host| (host, 0)).collect();
        let mut keeps = runs.clone();
        for node in nodes().filter(|node| self.has_content(*node)) {
            let backup = self.map.mirror(NodeId(node)).and_then(|(backup, _)| host_of(backup.0));
            host_of(node).and_then(|host| runs.get_mut(&host)).into_iter().for_each(|count| *count += 1);
            backup.and_then(|host| keeps.get_mut(&host)).into_iter().for_each(|count| *count += 1);
        }
        for (from, to) in uneven(&runs) {
            if let Some(node) = self.node_to_move((from, to), pinned, host_of) {
                return self.lead_to(now_unix_ms, node, (from, to), pinned, host_of);
            }
        }
        for (from, to) in uneven(&keeps) {
            let is_there = |node: &u16| {
                let backup = self.map.mirror(NodeId(*node)).and_then(|(backup, _)| host_of(backup.0));
                self.has_content(*node)
                    && backup == Some(from)
                    && host_of(*node).is_some_and(|host| host != to)
            };
            if let Some(node) = nodes().find(is_there) {
                let backup = self.backup_on(to, pinned, host_of);
                return self.copy_to(node, backup);
            }
        }
        (None, Vec::new())
    }

    /// Returns the node that moves from one host to another with the fewest copies; of several, the first.
    fn node_to_move(
        &self,
        (from, to): (usize, usize),
        pinned: &[u16],
        host_of: &impl Fn(u16) -> Option<usize>,
    ) -> Option<u16> {
        let nodes = 0..self.map.mirrors.len() as u16;
        let copies = |node: &u16| {
            let backup = self.map.mirror(NodeId(*node)).and_then(|(backup, _)| host_of(backup.0));
            self.served_by(*node, host_of).count() + usize::from(backup != Some(to))
        };
        let may_move = |node: &u16| self.runs_content(*node, from, host_of) && !pinned.contains(node);
        nodes.filter(may_move).min_by_key(copies)
    }

    /// Returns the running nodes whose backup a node is.
    fn served_by(&self, backup: u16, host_of: &impl Fn(u16) -> Option<usize>) -> impl Iterator<Item = u16> {
        let is_its = move |node: &u16| {
            let mirror = self.map.mirror(NodeId(*node));
            host_of(*node).is_some() && mirror.is_some_and(|(known, _)| known.0 == backup)
        };
        (0..self.map.mirrors.len() as u16).filter(is_its)
    }

    /// The next step on the way of a node to another host. What it keeps for others, and its own replica, come first.
    fn lead_to(
        &mut self,
        now_unix_ms: u64,
        node: u16,
        (from, to): (usize, usize),
        pinned: &[u16],
        host_of: &impl Fn(u16) -> Option<usize>,
    ) -> (Option<String>, Vec<MoveCommand>) {
        let kept = self.served_by(node, host_of).next();
        if let Some(kept) = kept {
            let backup = self.choose_backup(kept, &[node], host_of);
            return self.copy_to(kept, backup);
        }
        let backup = self.map.mirror(NodeId(node)).and_then(|(backup, _)| host_of(backup.0));
        if backup != Some(to) {
            let backup = self.backup_on(to, pinned, host_of);
            return self.copy_to(node, backup);
        }
        self.plan_move(now_unix_ms, node, from, host_of)
    }

    /// Returns the node on a host that is to keep one more replica: one that does not move, if there is one.
    fn backup_on(
        &self,
        host: usize,
        pinned: &[u16],
        host_of: &impl Fn(u16) -> Option<usize>,
    ) -> Option<NodeId> {
        let there = (0..self.map.mirrors.len() as u16).filter(|node| host_of(*node) == Some(host));
        let key = |node: &u16| (!pinned.contains(node), self.replica_load(*node, host_of));
        there.min_by_key(key).map(NodeId)
    }
}

/// Returns pairs of hosts of which the first has at least two more than the second, the most uneven first.
fn uneven(counts: &BTreeMap<usize, usize>) -> Vec<(usize, usize)> {
    let pairs =
        counts.iter().flat_map(|(from, more)| counts.iter().map(move |(to, less)| (from, more, to, less)));
    let uneven = pairs.filter(|(_, more, _, less)| **more >= *less + DIFFERENCE_MIN);
    let mut uneven: Vec<(usize, usize, usize)> =
        uneven.map(|(from, more, to, less)| (more - less, *from, *to)).collect();
    uneven.sort_by_key(|(difference, from, to)| (std::cmp::Reverse(*difference), *from, *to));
    uneven.into_iter().map(|(_, from, to)| (from, to)).collect()
}
