//! Moves of nodes of lost hosts: decisions are written down before any host gets an order, and orders are repeated
//! until they are carried out.

use std::path::PathBuf;

use bivouac_launch::hex::to_hex;
use bivouac_launch::{FormationState, HostLife, MoveStage, NodeLife, unix_ms};
use bivouac_wire::rendezvous::{self, AdoptedPlace, NewMap, Order};
use bivouac_wire::{Encode, FormationMap, NodeEntry};

use super::{Keeper, KeeperState};
use crate::contact::SIGNS_OF_LIFE;
use crate::moves::{MoveCommand, MoveEvent, MoveMachine};

/// Pause before something is told again that has not been answered, in milliseconds.
const AGAIN_MS: u64 = 2000;
/// Number of signs of life that hosts with protected nodes are sent until a node that does not answer is dead.
const SIGNS_TILL_DEAD: u64 = 4;

/// Orders that a host was sent over its present connection.
#[derive(Clone, Debug, Default)]
pub(super) struct SentOrders {
    /// Version of the newest map.
    map: u64,
    /// Nodes that it was to take over, with their epochs.
    adoptions: Vec<(u16, u32)>,
    /// Questions for its departure that it has not answered yet.
    pub(super) unanswered: Unanswered,
    /// True if it was to mount the formation.
    pub(super) mount: bool,
}

/// Orders of a departure whose answers are awaited. A host that is slow is not to be given them over and over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unanswered {
    /// To tell the state of its nodes.
    look: bool,
    /// To tell whether its mounts are in use.
    trial: bool,
    /// To take its mounts away; true if by force.
    unmount: Option<bool>,
}

impl Unanswered {
    /// Notes an order that is to be given, and returns whether it is due: its answer is not awaited. Orders without an
    /// answer are always due.
    pub(super) fn ask(&mut self, order: &Order) -> bool {
        let former = *self;
        match order {
            Order::Look => self.look = true,
            Order::Unmount { is_trial: true, .. } => self.trial = true,
            // Force is another order, also while the one without is carried out.
            Order::Unmount { is_trial: false, is_forced } => {
                self.unmount = Some(self.unmount.unwrap_or(false) || *is_forced);
            }
            _ => return true,
        }
        *self != former
    }

    /// Notes the state of the nodes.
    pub(super) fn looked(&mut self) {
        self.look = false;
    }

    /// Notes what became of the mounts.
    pub(super) fn unmounted(&mut self, is_trial: bool) {
        if is_trial {
            self.trial = false;
        } else {
            self.unmount = None;
        }
    }
}

impl Keeper {
    /// Returns half of the time after which a silent host is lost, in milliseconds: shorter where its nodes go on
    /// elsewhere, once their daemons there are cut off.
    pub(super) fn silence_of(&self, host: usize) -> u64 {
        let silence_ms = self.plan.ticket.silence_ms;
        // For every sign of life of every host: the map is not decoded where nothing is mirrored.
        match self.is_protected(host).then(|| self.state.watching_ms()).flatten() {
            // Together three times as long as it takes until a node that does not answer is dead.
            Some(dead_after_ms) => silence_ms.min(dead_after_ms.saturating_mul(3) / 2),
            None => silence_ms,
        }
    }

    /// Returns the time between two signs of life, in milliseconds.
    pub(super) fn sign_ms(&self) -> u64 {
        let sign_ms = self.plan.ticket.silence_ms / SIGNS_OF_LIFE;
        match self.mirrored.then(|| self.state.watching_ms()).flatten() {
            Some(dead_after_ms) => sign_ms.min(dead_after_ms / SIGNS_TILL_DEAD),
            None => sign_ms,
        }
    }

    fn is_protected(&self, host: usize) -> bool {
        if !self.mirrored || self.step != KeeperState::Running {
            return false;
        }
        let nodes = self.state.hosts.get(host).map(|host| host.nodes.clone()).unwrap_or_default();
        self.machine().is_some_and(|machine| machine.protects(host, &nodes, |node| self.host_of(node)))
    }

    /// Returns the living host that a node runs on.
    pub(super) fn host_of(&self, node: u16) -> Option<usize> {
        let fails = self.state.nodes.get(usize::from(node)).is_none_or(|node| node.life == NodeLife::Failed);
        let runs = |(at, host): (usize, &bivouac_launch::HostState)| {
            let is_tied = self.hosts.get(at).is_some_and(super::HostSeen::is_tied);
            (host.life == HostLife::Up && is_tied && host.nodes.contains(&node)).then_some(at)
        };
        self.state.hosts.iter().enumerate().find_map(runs).filter(|_| !fails)
    }

    fn machine(&self) -> Option<MoveMachine> {
        let FormationState { moves, departures, arrivals, .. } = &self.state;
        let (moves, departures, arrivals) = (moves.clone(), departures.clone(), arrivals.clone());
        Some(MoveMachine { map: self.state.map()?, moves, departures, arrivals })
    }

    /// Notes whether anything is mirrored, and whether anything can be.
    pub(super) fn note_mirrors(&mut self) {
        let mirrors = self.state.map().map(|map| map.mirrors).unwrap_or_default();
        self.is_protected = !mirrors.is_empty();
        self.mirrored = mirrors.iter().any(|mirror| mirror.backup.is_some());
    }

    /// Takes an event that matters to moves; returns the map if that has changed.
    pub(super) fn move_event(&mut self, event: MoveEvent) -> Option<FormationMap> {
        if !self.is_protected || self.step != KeeperState::Running {
            return None;
        }
        let before = self.machine()?;
        let mut machine = before.clone();
        let commands = machine.handle(unix_ms(), event, |node| self.host_of(node));
        let is_changed = machine != before || !commands.is_empty();
        for dead in &commands {
            if let MoveCommand::Dead(nodes) = dead {
                nodes.iter().for_each(|node| self.set_node(*node, NodeLife::Failed, None));
            }
        }
        for decided in
            machine.moves.iter().filter(|m| !before.moves.contains(m) && m.stage == MoveStage::Sealing)
        {
            let to = self.state.hosts.get(decided.to).map_or("", |host| host.name.as_str());
            if decided.is_planned {
                // It serves until its replicas are sealed.
                log::warn!(
                    "node {}: it moves in order to host {to}, in epoch {}",
                    decided.node,
                    decided.epoch
                );
                continue;
            }
            let message = format!("its host is lost: it moves to host {to}");
            log::warn!("node {}: {message}, in epoch {}", decided.node, decided.epoch);
            self.set_node(decided.node, NodeLife::Restarting, Some(message));
        }
        let map = (machine.map != before.map).then(|| machine.map.clone());
        if let Some(map) = &map {
            self.state.map = to_hex(&map.to_bytes());
        }
        (self.state.moves, self.state.departures) = (machine.moves, machine.departures);
        self.state.arrivals = machine.arrivals;
        if is_changed {
            self.note_mirrors();
            self.record();
            self.hasten_departures();
            self.hasten_arrivals();
        }
        // Told by `drive_moves`, once the voters have accepted the record of these deaths.
        for command in commands {
            if let MoveCommand::Dead(nodes) = command {
                self.untold_lost.extend(nodes);
            }
        }
        self.drive_moves(false);
        map
    }

    fn set_node(&mut self, node: u16, life: NodeLife, message: Option<String>) {
        if let Some(node) = self.state.nodes.get_mut(usize::from(node)) {
            (node.life, node.process) = (life, None);
            node.message = message.or(node.message.take());
        }
    }

    /// Writes down what has been decided, and has the voters accept it. Nobody is told of it before that is done.
    pub(super) fn record(&mut self) {
        self.number_record();
        let written = self.dir.write(&self.state).and_then(|()| self.dir.write_map(&self.state));
        self.is_move_unrecorded = written.is_err();
        match written {
            Ok(()) => {
                self.standby.end_succession();
                self.remember();
                self.propose();
            }
            Err(error) => {
                log::error!(error:%; "moves of nodes wait until they can be written down: {error}");
                self.move_due = Some(self.now_ms() + AGAIN_MS);
            }
        }
        self.standby.outdate();
    }

    /// Records that a host has sealed the replicas of a node, and waits for the map that says so.
    pub(super) fn node_adopted(&mut self, host: usize, node: u16, epoch: u32, place: AdoptedPlace) {
        let first = self.state.hosts.get(host).and_then(|host| host.nodes.first().copied());
        let name =
            first.and_then(|first| self.state.nodes.get(usize::from(first))).map(|node| node.host.clone());
        let Some(name) = name else { return };
        let AdoptedPlace { client_address, peer_address, unix_path, volumes } = place;
        let entry = NodeEntry { host: name, client_address, peer_address, unix_path, epoch };
        let former = self.state.clone();
        // Where nodes are is one with the map: it is written down with it.
        self.place_node(host, node, &entry, &volumes);
        if self.move_event(MoveEvent::Adopted { host, node, place: entry }).is_none() {
            // No move has waited for this: nodes stay where the map says.
            self.state = former;
            self.standby.outdate();
        }
    }

    fn place_node(&mut self, host: usize, node: u16, entry: &NodeEntry, volumes: &[String]) {
        for (at, state) in self.state.hosts.iter_mut().enumerate() {
            state.nodes.retain(|there| *there != node || at == host);
            if at == host && !state.nodes.contains(&node) {
                state.nodes.push(node);
            }
        }
        let Some(state) = self.state.nodes.get_mut(usize::from(node)) else { return };
        state.host.clone_from(&entry.host);
        state.client_address.clone_from(&entry.client_address);
        state.peer_address.clone_from(&entry.peer_address);
        state.unix_path = PathBuf::from(&entry.unix_path);
        state.epoch = entry.epoch;
        for (volume, dir) in state.volumes.iter_mut().zip(volumes) {
            volume.path = PathBuf::from(dir);
        }
    }

    /// Tells hosts what they have to do for moves; `again`, also what they were told and have not answered.
    pub(super) fn drive_moves(&mut self, again: bool) {
        self.move_due = None;
        // Without protection the first map is the only one.
        if !self.is_protected || self.step != KeeperState::Running {
            return;
        }
        if self.is_move_unrecorded {
            self.record();
        }
        // Done once a majority has accepted it.
        if !self.is_agreed() {
            return;
        }
        let Some(machine) = self.machine().filter(|_| !self.is_move_unrecorded) else {
            self.move_due = Some(self.now_ms() + AGAIN_MS);
            return;
        };
        let lost = std::mem::take(&mut self.untold_lost);
        self.tell_lost(lost);
        let bytes = machine.map.to_bytes();
        let mut is_pending = false;
        for host in 0..self.hosts.len() {
            let Some(seen) = self.hosts.get_mut(host) else { continue };
            let Some(link) = seen.link.filter(|_| !seen.awaits_begin) else { continue };
            if seen.map_known < machine.map.version {
                is_pending = true;
                if again || seen.sent.map < machine.map.version {
                    seen.sent.map = machine.map.version;
                    let news = NewMap { version: machine.map.version };
                    self.links.send(link, rendezvous::MAP, news.to_bytes(), bytes.clone());
                }
            }
            for due in machine.adoptions(host) {
                is_pending = true;
                let key = (due.node, due.epoch);
                let Some(seen) = self.hosts.get_mut(host) else { continue };
                if again || !seen.sent.adoptions.contains(&key) {
                    seen.sent.adoptions.retain(|known| *known != key);
                    seen.sent.adoptions.push(key);
                    let volumes =
                        self.state.nodes.get(usize::from(due.node)).map_or(&[][..], |node| &node.volumes);
                    let volumes = volumes.iter().map(|v| (v.kind.clone(), v.capacity_bytes)).collect();
                    let order =
                        Order::Adopt { node: due.node, backup: due.backup, epoch: due.epoch, volumes };
                    self.order(link, &order);
                }
            }
        }
        self.move_due = is_pending.then(|| self.now_ms() + AGAIN_MS);
    }

    /// Returns the reason why a host that was given up, and comes back, is not let in again, if nodes of it have moved.
    pub(super) fn moved_from(&self, first_node: u16) -> Option<String> {
        let first = self.state.moves.iter().find(|m| m.node == first_node)?;
        let moved = self.state.moves.iter().filter(|m| m.from == first.from && m.stage != MoveStage::Failed);
        let name = |host: usize| self.state.hosts.get(host).map_or("", |host| host.name.as_str());
        let moved: Vec<String> = moved
            .map(|m| format!("node {} has moved to host {} in epoch {}", m.node, name(m.to), m.epoch))
            .collect();
        (!moved.is_empty()).then(|| format!("this host was given up: {}", moved.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_given_again_only_behind_its_answer() {
        let mut sent = Unanswered::default();
        let unmount = |is_trial, is_forced| Order::Unmount { is_trial, is_forced };
        for order in [Order::Look, unmount(true, false), unmount(false, false)] {
            assert_eq!((sent.ask(&order), sent.ask(&order)), (true, false), "{order:?}");
        }
        assert!(sent.ask(&unmount(false, true)), "by force");
        assert!(!sent.ask(&unmount(false, true)) && !sent.ask(&unmount(false, false)));
        sent.unmounted(false);
        assert!(
            sent.ask(&unmount(false, true)) && !sent.ask(&unmount(true, false)) && !sent.ask(&Order::Look)
        );
        sent.unmounted(true);
        sent.looked();
        assert!(sent.ask(&unmount(true, false)) && sent.ask(&Order::Look));
        assert!(sent.ask(&Order::Live) && sent.ask(&Order::Live), "no answer is awaited");
    }
}
