//! Departures: hosts that leave in order, while all that runs on them goes on elsewhere.
//!
//! One thing is done at a time, and only while every node has a complete replica: so no more than one node at any time
//! has none. A loss comes first; the departure goes on behind it, or is given up where fewer than two hosts would be
//! left.
//!
//! | stage | what is done | what leads on |
//! |---|---|---|
//! | copying | nodes with replicas on a host that leaves get other backups, one after the other | all are complete |
//! | unmounting | its mounts are taken away | there are none |
//! | moving | its nodes move to the hosts of their backups, one after the other, and get other backups | none runs there |
//! | leaving | it takes its part down | it says so |
//! | given up | it stays | |

use std::collections::BTreeSet;

use bivouac_launch::{ArrivalStage, Departure, DepartureStage, MoveStage, NodeMove};
use bivouac_types::NodeId;

use super::{MoveCommand, MoveMachine};

/// Fewest hosts that have to be left.
pub(crate) const HOSTS_LEFT_MIN: usize = 2;

impl MoveMachine {
    /// Returns whether a host leaves: it gets no replicas, and no nodes.
    pub fn is_leaving(&self, host: usize) -> bool {
        self.departures.iter().any(|known| known.host == host && known.stage != DepartureStage::GivenUp)
    }

    /// The nodes that get other backups when these hosts leave, each with its new backup, if all goes well: a
    /// rehearsal.
    pub fn copies_of_departure(
        mut self,
        hosts: &[usize],
        host_of: impl Fn(u16) -> Option<usize>,
    ) -> Vec<(NodeId, NodeId)> {
        let count = self.map.mirrors.len() as u16;
        let mut place: Vec<Option<usize>> = (0..count).map(&host_of).collect();
        self.leave(&hosts.iter().map(|host| (*host, 0)).collect::<Vec<_>>(), false);
        let mut copies = Vec::new();
        let all: Vec<u16> = (0..count).collect();
        // Each node gets one other backup for each host that leaves, and one when it moves, at most.
        for _ in 0..=(all.len() + 1) * (hosts.len() + 2) {
            let before = self.map.mirrors.clone();
            let at = place.clone();
            self.advance(0, (&all, &[]), |node| at.get(usize::from(node)).copied().flatten());
            hosts.iter().for_each(|host| self.unmounted(*host, None));
            for moved in std::mem::take(&mut self.moves).into_iter().filter(|m| m.is_planned) {
                if let Some(place) = place.get_mut(usize::from(moved.node)) {
                    *place = Some(moved.to);
                }
                if let Some(mirror) = self.map.mirrors.get_mut(usize::from(moved.node)) {
                    mirror.backup = None;
                }
                let at = place.clone();
                self.replace_backups(&[], |node| at.get(usize::from(node)).copied().flatten());
            }
            let changed =
                (0..count).zip(before).zip(&self.map.mirrors).filter(|((_, former), now)| former != *now);
            copies.extend(changed.filter_map(|((node, _), now)| Some((NodeId(node), now.backup?))));
        }
        copies
    }

    pub(super) fn leave(&mut self, hosts: &[(usize, u16)], is_forced: bool) {
        for (host, first_node) in hosts.iter().copied() {
            let under_way =
                |known: &&mut Departure| known.host == host && known.stage != DepartureStage::GivenUp;
            if let Some(known) = self.departures.iter_mut().find(under_way) {
                known.is_forced |= is_forced;
                continue;
            }
            let former = self.departures.iter().position(|known| known.host == host);
            // Of one that was given up, the first node may have moved.
            let first_node = former.map_or(first_node, |at| self.departures.swap_remove(at).first_node);
            let (stage, message) = (DepartureStage::Copying, None);
            self.departures.push(Departure { host, first_node, is_forced, stage, message });
        }
    }

    pub(super) fn unmounted(&mut self, host: usize, trouble: Option<String>) {
        let unmounts =
            |known: &&mut Departure| known.host == host && known.stage == DepartureStage::Unmounting;
        let Some(departure) = self.departures.iter_mut().find(unmounts) else { return };
        if trouble.is_none() {
            departure.stage = DepartureStage::Moving;
        }
        departure.message = trouble;
    }

    /// Gives departures up: those hosts stay, with the nodes that they have yet.
    pub(super) fn give_up(&mut self, why: &str, which: impl Fn(&Departure) -> bool) {
        let mut staying = BTreeSet::new();
        for departure in self.departures.iter_mut().filter(|known| which(known)) {
            (departure.stage, departure.message) = (DepartureStage::GivenUp, Some(why.into()));
            staying.insert(departure.host);
        }
        // A node that moved all the same could get where its own backup is by now.
        self.cancel_planned(|m| staying.contains(&m.from));
    }

    /// Gives departures up where fewer than two hosts that run nodes would be left: one alone protects nothing.
    pub(super) fn keep_two_hosts(&mut self, host_of: &impl Fn(u16) -> Option<usize>) {
        let hosts: BTreeSet<usize> = (0..self.map.mirrors.len() as u16).filter_map(host_of).collect();
        let stays = |host: &usize| !self.is_leaving(*host) && !self.is_coming_up(*host);
        if hosts.into_iter().filter(stays).count() < HOSTS_LEFT_MIN {
            self.give_up("fewer than two hosts that serve would be left", |known| {
                known.stage < DepartureStage::Leaving
            });
        }
    }

    /// Forgets moves of nodes that go on where they are. Their replicas may have been sealed, so their mirrors go on
    /// behind the epoch of that.
    pub(super) fn cancel_planned(&mut self, which: impl Fn(&NodeMove) -> bool) {
        let is_cancelled = |m: &NodeMove| m.is_planned && m.stage == MoveStage::Sealing && which(m);
        for cancelled in self.moves.iter().filter(|m| is_cancelled(m)) {
            if let Some(mirror) = self.map.mirrors.get_mut(usize::from(cancelled.node)) {
                mirror.epoch = mirror.epoch.max(cancelled.epoch.saturating_add(1));
                self.map.version += 1;
            }
        }
        self.moves.retain(|m| !is_cancelled(m));
    }

    /// Does the next thing, if it is time for that: hosts that leave come before those that join. `complete` are the
    /// nodes with complete replicas at their present backups, `pinned` those that stay with their hosts.
    pub(super) fn advance(
        &mut self,
        now_unix_ms: u64,
        (complete, pinned): (&[u16], &[u16]),
        host_of: impl Fn(u16) -> Option<usize>,
    ) -> Vec<MoveCommand> {
        self.keep_two_hosts(&host_of);
        let is_next = |known: &Departure| known.stage < DepartureStage::Leaving;
        let next = self.departures.iter().position(is_next);
        if let Some((text, commands)) = self.give_backups(next, &host_of) {
            let waiting = next.and_then(|next| self.departures.get_mut(next)).map(|known| &mut known.message);
            let balancing = self.arrivals.iter_mut().filter(|known| known.stage == ArrivalStage::Balancing);
            for message in waiting.into_iter().chain(balancing.map(|known| &mut known.message)) {
                *message = Some(text.clone());
            }
            return commands;
        }
        let Some(next) = next else {
            return self.balance(now_unix_ms, (complete, pinned), &host_of);
        };
        let (waits, commands) = self.take_step(now_unix_ms, next, complete, &host_of);
        if let Some(departure) = self.departures.get_mut(next).filter(|_| waits.is_some()) {
            departure.message = waits;
        }
        commands
    }

    /// Gives backups to nodes that have none, once there is another host that is up; with what that waits for. Nothing
    /// happens while a node moves, and where no host leaves or joins.
    fn give_backups(
        &mut self,
        leaves: Option<usize>,
        host_of: &impl Fn(u16) -> Option<usize>,
    ) -> Option<(String, Vec<MoveCommand>)> {
        let is_balancing = self.arrivals.iter().any(|known| known.stage == ArrivalStage::Balancing);
        if (leaves.is_none() && !is_balancing) || self.moves.iter().any(is_under_way) {
            return None;
        }
        let before = self.map.mirrors.clone();
        let commands = self.replace_backups(&[], host_of);
        let mut changed = (0u16..).zip(before.iter().zip(&self.map.mirrors));
        let (node, _) = changed.find(|(_, (former, now))| former != now)?;
        Some((self.copy_text(node), commands))
    }

    /// One step of the departure at this position; with what that waits for.
    fn take_step(
        &mut self,
        now_unix_ms: u64,
        next: usize,
        complete: &[u16],
        host_of: &impl Fn(u16) -> Option<usize>,
    ) -> (Option<String>, Vec<MoveCommand>) {
        let nodes = || 0..self.map.mirrors.len() as u16;
        if let Some(text) = self.under_way(complete, host_of) {
            return (Some(text), Vec::new());
        }
        let is_misplaced = |node: &u16| {
            let backup = self.map.mirror(NodeId(*node)).map(|(backup, _)| backup.0);
            host_of(*node).is_some() && backup.and_then(host_of).is_some_and(|host| self.is_leaving(host))
        };
        if let Some(node) = nodes().find(is_misplaced) {
            // There is one, as two hosts that run nodes stay.
            let backup = self.choose_backup(node, &[], host_of);
            return self.copy_to(node, backup);
        }
        let Some(departure) = self.departures.get(next) else { return (None, Vec::new()) };
        let host = departure.host;
        match departure.stage {
            DepartureStage::Copying => {
                self.enter(host, DepartureStage::Unmounting);
                (Some("its mounts are taken away".into()), Vec::new())
            }
            DepartureStage::Moving => match nodes().find(|node| self.runs_content(*node, host, host_of)) {
                Some(node) => self.plan_move(now_unix_ms, node, host, host_of),
                None => {
                    self.enter(host, DepartureStage::Leaving);
                    (Some("it takes its part down".into()), Vec::new())
                }
            },
            DepartureStage::Unmounting | DepartureStage::Leaving | DepartureStage::GivenUp => {
                (None, Vec::new())
            }
        }
    }

    /// Returns what is under way already, if anything is: a move, or a copy.
    pub(super) fn under_way(
        &self,
        complete: &[u16],
        host_of: &impl Fn(u16) -> Option<usize>,
    ) -> Option<String> {
        if let Some(moving) = self.moves.iter().find(|m| is_under_way(m)) {
            let cause = moving.message.as_ref().map_or(String::new(), |why| format!(": {why}"));
            return Some(format!(
                "node {} moves to host {}{cause}",
                moving.node,
                self.host_name(moving.backup)
            ));
        }
        let is_incomplete =
            |node: &u16| self.has_content(*node) && host_of(*node).is_some() && !complete.contains(node);
        (0..self.map.mirrors.len() as u16).find(is_incomplete).map(|node| self.copy_text(node))
    }

    /// Gives a node another backup, which gets a copy; with what that waits for.
    pub(super) fn copy_to(
        &mut self,
        node: u16,
        backup: Option<NodeId>,
    ) -> (Option<String>, Vec<MoveCommand>) {
        let Some(mirror) = self.map.mirrors.get_mut(usize::from(node)).filter(|_| backup.is_some()) else {
            return (Some(format!("node {node} has no other backup")), Vec::new());
        };
        (mirror.backup, mirror.epoch) = (backup, mirror.epoch.saturating_add(1));
        self.map.version += 1;
        (Some(self.copy_text(node)), vec![MoveCommand::Publish])
    }

    /// Returns whether a node with content runs on a host.
    pub(super) fn runs_content(
        &self,
        node: u16,
        host: usize,
        host_of: &impl Fn(u16) -> Option<usize>,
    ) -> bool {
        self.has_content(node) && host_of(node) == Some(host)
    }

    fn enter(&mut self, host: usize, stage: DepartureStage) {
        for departure in self.departures.iter_mut().filter(|known| known.host == host) {
            assert!(
                stage > departure.stage,
                "the departure of host {host} is {stage:?} after {:?}",
                departure.stage
            );
            departure.stage = stage;
        }
    }

    pub(super) fn plan_move(
        &mut self,
        now_unix_ms: u64,
        node: u16,
        host: usize,
        host_of: &impl Fn(u16) -> Option<usize>,
    ) -> (Option<String>, Vec<MoveCommand>) {
        let Some(refuge) = self.refuge(node, host, host_of) else {
            return (Some(self.copy_text(node)), Vec::new());
        };
        let (backup, _, to) = refuge;
        assert!(!self.is_leaving(to), "node {node} moves to host {to}, which leaves");
        let text = format!("node {node} moves to host {}", self.host_name(backup));
        (Some(text), vec![self.decide(now_unix_ms, (node, host), refuge, true)])
    }

    fn copy_text(&self, node: u16) -> String {
        match self.map.mirror(NodeId(node)) {
            Some((backup, _)) => format!("node {node} is copied to host {}", self.host_name(backup.0)),
            None => format!("node {node} waits for a backup"),
        }
    }

    fn host_name(&self, node: u16) -> &str {
        self.map.nodes.get(usize::from(node)).map_or("?", |entry| entry.host.as_str())
    }
}

/// Returns whether a node is on its way to another host.
fn is_under_way(m: &NodeMove) -> bool {
    matches!(m.stage, MoveStage::Sealing | MoveStage::Starting)
}
