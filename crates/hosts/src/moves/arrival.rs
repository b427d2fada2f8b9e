//! Arrivals: hosts that join a running formation, each with a node that has neither slots nor targets. The node keeps
//! replicas and serves a mount; nodes with content come there by [balancing](super::balance).
//!
//! | stage | what is done | what leads on |
//! |---|---|---|
//! | calling | the launcher starts the host's part | it has opened the sockets of its node |
//! | starting | a map says where the node is, and its daemon starts | it serves |
//! | mounting | the formation is mounted there, if it is on all hosts | it is |
//! | balancing | nodes and replicas are spread over all hosts | they are |
//! | joined | nothing | |
//! | given up | it did not come up, or was lost | |
//!
//! The node of a host that has gone is withdrawn: its entry in the map has no address any more, and nothing is lost.

use bivouac_launch::{Arrival, ArrivalStage};
use bivouac_types::NodeId;
use bivouac_types::limits::NODES_MAX;
use bivouac_wire::{MirrorEntry, NodeEntry};

use super::{MoveCommand, MoveMachine};

impl MoveMachine {
    /// Begins the arrivals of hosts. One that has joined already balances again.
    pub(super) fn arrive(&mut self, now_unix_ms: u64, hosts: &[usize]) {
        for host in hosts.iter().copied() {
            match self.arrivals.iter_mut().find(|known| known.host == host) {
                Some(known) if known.stage == ArrivalStage::Done => known.stage = ArrivalStage::Balancing,
                Some(_) => {}
                None => self.arrivals.push(Arrival {
                    host,
                    node: None,
                    stage: ArrivalStage::Calling,
                    message: None,
                    since_unix_ms: now_unix_ms,
                }),
            }
        }
    }

    /// Adds the node of a host that joins to the map.
    pub(super) fn joined(&mut self, host: usize, place: NodeEntry) {
        let calls = |known: &&mut Arrival| known.host == host && known.stage == ArrivalStage::Calling;
        let Some(arrival) = self.arrivals.iter_mut().find(calls) else { return };
        let node = self.map.nodes.len();
        // The keeper refuses such a host before.
        if node >= NODES_MAX {
            return;
        }
        self.map.nodes.push(place);
        self.map.mirrors.push(MirrorEntry { backup: None, epoch: 0 });
        self.map.version += 1;
        (arrival.node, arrival.stage) = (Some(node as u16), ArrivalStage::Starting);
    }

    /// Notes that an arrival has come further.
    pub(super) fn enter_arrival(&mut self, host: usize, stage: ArrivalStage) {
        let is_before = |known: &&mut Arrival| known.host == host && known.stage < stage;
        if let Some(arrival) = self.arrivals.iter_mut().find(is_before) {
            (arrival.stage, arrival.message) = (stage, None);
        }
    }

    /// Returns whether a host joins and is not up yet: it gets no replicas, and no nodes.
    pub fn is_coming_up(&self, host: usize) -> bool {
        self.arrivals.iter().any(|known| known.host == host && known.stage < ArrivalStage::Balancing)
    }

    /// Gives an arrival up: nothing has a replica there yet.
    pub(super) fn not_joined(
        &mut self,
        host: usize,
        why: &str,
        host_of: impl Fn(u16) -> Option<usize>,
    ) -> Vec<MoveCommand> {
        let is_under_way = |known: &&mut Arrival| known.host == host && known.stage < ArrivalStage::Done;
        let Some(arrival) = self.arrivals.iter_mut().find(is_under_way) else { return Vec::new() };
        (arrival.stage, arrival.message) = (ArrivalStage::GivenUp, Some(why.into()));
        let nodes: Vec<u16> = arrival.node.into_iter().collect();
        self.cancel_planned(|m| m.to == host);
        let mut commands = self.withdraw(&nodes);
        commands.extend(self.replace_backups(&nodes, host_of));
        commands
    }

    /// Notes the loss of a host that joins, or has joined.
    pub(super) fn arrival_lost(&mut self, host: usize) {
        self.arrivals.retain(|known| known.host != host || known.stage != ArrivalStage::Done);
        for arrival in self.arrivals.iter_mut().filter(|known| known.host == host) {
            if arrival.stage != ArrivalStage::GivenUp {
                (arrival.stage, arrival.message) = (ArrivalStage::GivenUp, Some("it was lost".into()));
            }
        }
    }

    /// Takes nodes without content out of the map, as far as that goes: their ids are not used again.
    pub(super) fn withdraw(&mut self, nodes: &[u16]) -> Vec<MoveCommand> {
        let mut gone = Vec::new();
        for node in nodes.iter().copied() {
            let is_empty = !self.map.has_content(NodeId(node));
            let Some(entry) = self.map.nodes.get_mut(usize::from(node)) else { continue };
            if is_empty && !entry.is_withdrawn() {
                *entry = entry.withdrawn();
                self.map.version += 1;
                gone.push(node);
            }
        }
        if gone.is_empty() { Vec::new() } else { vec![MoveCommand::Dead(gone)] }
    }
}
