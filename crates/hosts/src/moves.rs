//! Moves of nodes whose host was lost, leaves or runs too many, to the hosts of their backups: events in, commands out,
//! no input or output.
//!
//! A move has stages. The stage reached is in the state that the keeper records before it carries out a command. A
//! successor continues from that state, by [`MoveMachine::adoptions`] and the newest map. Each command may be carried
//! out again.
//!
//! | stage | what has been done | next event |
//! |---|---|---|
//! | sealing | the node is to go to the backup's host, in the next epoch | that host has sealed and listens |
//! | starting | a map says where the node is | its daemon serves |
//! | serving | all | |
//! | failed | the node is lost for good | |
//!
//! Of a host that leaves, see [`departure`]; of one that joins, [`arrival`] and [`balance`].

mod arrival;
mod balance;
mod departure;

use bivouac_launch::{Arrival, ArrivalStage, Departure, MoveStage, NodeMove};
use bivouac_types::NodeId;
use bivouac_wire::{FormationMap, NodeEntry};

pub(crate) use departure::HOSTS_LEFT_MIN;

/// Event that concerns moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MoveEvent {
    /// A host is lost, with the nodes that ran there.
    HostLost {
        /// Its position in the list of hosts.
        host: usize,
        /// The nodes.
        nodes: Vec<u16>,
    },
    /// A host has sealed the replicas of a node and opened its sockets.
    Adopted {
        /// The host's position.
        host: usize,
        /// The node.
        node: u16,
        /// Its new address; the epoch is the one decided for the move.
        place: NodeEntry,
    },
    /// A host cannot take a node over, in this epoch.
    NotAdopted {
        /// The host's position.
        host: usize,
        /// The node.
        node: u16,
        /// The epoch.
        epoch: u32,
        /// The reason.
        why: String,
    },
    /// The daemon of a node serves on a host.
    Serves {
        /// The host's position.
        host: usize,
        /// The node.
        node: u16,
    },
    /// The daemon of a node is not started again, on a host that lives.
    Failed {
        /// The node.
        node: u16,
    },
    /// Hosts are to leave in order.
    Leave {
        /// Each with the first of its nodes.
        hosts: Vec<(usize, u16)>,
        /// True if their mounts are taken away from programs that use them.
        is_forced: bool,
    },
    /// Which nodes have complete replicas at their present backups.
    Complete {
        /// The nodes.
        nodes: Vec<u16>,
        /// Nodes that stay where they are as long as their hosts do: each is the one by which its host is known.
        pinned: Vec<u16>,
    },
    /// A host that leaves has taken its mounts away, or could not.
    Unmounted {
        /// Its position.
        host: usize,
        /// Reason why it could not.
        trouble: Option<String>,
    },
    /// A host is to stay, whatever was decided.
    Stay {
        /// Its position.
        host: usize,
        /// The reason.
        why: String,
    },
    /// A host has left, and its part is down.
    Left {
        /// The nodes that ran there to the end.
        nodes: Vec<u16>,
    },
    /// Hosts are to join.
    Arrive {
        /// Their positions.
        hosts: Vec<usize>,
    },
    /// A host that joins has opened the sockets of its node.
    Joined {
        /// Its position.
        host: usize,
        /// Address of the node.
        place: NodeEntry,
    },
    /// A host that joins has reached a stage.
    Arrived {
        /// Its position.
        host: usize,
        /// The stage that begins.
        stage: ArrivalStage,
    },
    /// A host that was to join does not.
    NotJoined {
        /// Its position.
        host: usize,
        /// The reason.
        why: String,
    },
}

/// Action of the keeper, to be taken once the state is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MoveCommand {
    /// Order a host to take a node over.
    Adopt(NodeMove),
    /// Tell all hosts of the newest map.
    Publish,
    /// Tell all hosts that these nodes are dead for good.
    Dead(Vec<u16>),
}

/// The moves of a formation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MoveMachine {
    /// The newest map.
    pub map: FormationMap,
    /// The latest move of each node that was moved.
    pub moves: Vec<NodeMove>,
    /// Hosts that leave.
    pub departures: Vec<Departure>,
    /// Hosts that join, or have joined.
    pub arrivals: Vec<Arrival>,
}

impl MoveMachine {
    /// Creates the machine of a formation in which nothing has moved yet.
    pub fn new(map: FormationMap) -> MoveMachine {
        MoveMachine { map, moves: Vec::new(), departures: Vec::new(), arrivals: Vec::new() }
    }

    /// Handles an event. `host_of` returns the living host of a running node.
    pub fn handle(
        &mut self,
        now_unix_ms: u64,
        event: MoveEvent,
        host_of: impl Fn(u16) -> Option<usize>,
    ) -> Vec<MoveCommand> {
        let version = self.map.version;
        let mut commands = self.take(now_unix_ms, event, host_of);
        if self.map.version != version && !commands.contains(&MoveCommand::Publish) {
            commands.push(MoveCommand::Publish);
        }
        commands
    }

    fn take(
        &mut self,
        now_unix_ms: u64,
        event: MoveEvent,
        host_of: impl Fn(u16) -> Option<usize>,
    ) -> Vec<MoveCommand> {
        match event {
            MoveEvent::HostLost { host, nodes } => self.host_lost(now_unix_ms, host, &nodes, host_of),
            MoveEvent::Adopted { host, node, place } => self.adopted(host, node, place),
            MoveEvent::NotAdopted { host, node, epoch, why } => {
                let waits = |m: &NodeMove| {
                    (m.node, m.to, m.epoch, m.stage) == (node, host, epoch, MoveStage::Sealing)
                };
                // The node serves where it is, or its replicas are whole: the host is asked again.
                if let Some(planned) = self.moves.iter_mut().find(|m| waits(m) && m.is_planned) {
                    planned.message = Some(why);
                    return Vec::new();
                }
                self.fail(&why, waits)
            }
            MoveEvent::Serves { host, node } => {
                let started =
                    |m: &&mut NodeMove| (m.node, m.to, m.stage) == (node, host, MoveStage::Starting);
                let Some(served) = self.moves.iter_mut().find(started) else { return Vec::new() };
                served.stage = MoveStage::Serving;
                self.replace_backups(&[], host_of)
            }
            MoveEvent::Failed { node } => {
                // The volumes that it had before are on the host that it came from.
                let is_moving =
                    |m: &&NodeMove| m.node == node && m.is_planned && m.stage == MoveStage::Starting;
                if let Some(from) = self.moves.iter().find(is_moving).map(|m| m.from) {
                    let why =
                        format!("node {node} failed where it moved to, and its former volumes are here");
                    self.give_up(&why, |departure| departure.host == from);
                }
                self.cancel_planned(|m| m.backup == node);
                let mut commands = self.fail("the daemon that has the replicas is not started again", |m| {
                    m.backup == node && m.stage == MoveStage::Sealing
                });
                // The keeper announces this node's death itself, as for a node that has never moved.
                let _told = self.fail("its daemon is not started again", |m| m.node == node);
                self.keep_two_hosts(&host_of);
                commands.extend(self.replace_backups(&[node], host_of));
                commands
            }
            MoveEvent::Leave { hosts, is_forced } => {
                self.leave(&hosts, is_forced);
                Vec::new()
            }
            MoveEvent::Complete { nodes, pinned } => self.advance(now_unix_ms, (&nodes, &pinned), host_of),
            MoveEvent::Left { nodes } => self.withdraw(&nodes),
            MoveEvent::Arrive { hosts } => {
                self.arrive(now_unix_ms, &hosts);
                Vec::new()
            }
            MoveEvent::Joined { host, place } => {
                self.joined(host, place);
                Vec::new()
            }
            MoveEvent::Arrived { host, stage } => {
                self.enter_arrival(host, stage);
                Vec::new()
            }
            MoveEvent::NotJoined { host, why } => self.not_joined(host, &why, host_of),
            MoveEvent::Unmounted { host, trouble } => {
                self.unmounted(host, trouble);
                Vec::new()
            }
            MoveEvent::Stay { host, why } => {
                self.give_up(&why, |departure| departure.host == host);
                Vec::new()
            }
        }
    }

    /// Returns the moves that a host has yet to begin or to answer.
    pub fn adoptions(&self, host: usize) -> impl Iterator<Item = &NodeMove> {
        self.moves.iter().filter(move |m| m.to == host && m.stage == MoveStage::Sealing)
    }

    /// Returns true if each of these nodes that has content has a backup on a living host other than this one.
    pub fn protects(&self, host: usize, nodes: &[u16], host_of: impl Fn(u16) -> Option<usize>) -> bool {
        let mut with_content = nodes.iter().filter(|node| self.has_content(**node));
        !nodes.is_empty() && with_content.all(|node| self.refuge(*node, host, &host_of).is_some())
    }

    /// Returns whether anything is lost with a node: one of a host that joined has neither slots nor targets.
    fn has_content(&self, node: u16) -> bool {
        self.map.has_content(NodeId(node))
    }

    /// Returns the backup of a node, the present epoch of its mirror, and the host that it can move to from `host`.
    fn refuge(
        &self,
        node: u16,
        host: usize,
        host_of: &impl Fn(u16) -> Option<usize>,
    ) -> Option<(u16, u32, usize)> {
        let (backup, epoch) = self.map.mirror(NodeId(node))?;
        let to = host_of(backup.0).filter(|to| *to != host)?;
        Some((backup.0, epoch, to))
    }

    fn host_lost(
        &mut self,
        now_unix_ms: u64,
        host: usize,
        nodes: &[u16],
        host_of: impl Fn(u16) -> Option<usize>,
    ) -> Vec<MoveCommand> {
        self.departures.retain(|departure| departure.host != host);
        self.arrival_lost(host);
        self.cancel_planned(|m| m.to == host);
        let mut commands = self.fail("the host that it was to move to is lost, too", |m| {
            m.to == host && m.stage == MoveStage::Sealing
        });
        let mut dead = Vec::new();
        for node in nodes.iter().copied() {
            if !self.has_content(node) {
                continue;
            }
            match self.refuge(node, host, &host_of) {
                Some(refuge) => commands.push(self.decide(now_unix_ms, (node, host), refuge, false)),
                None => {
                    let _told_below =
                        self.fail("its host is lost, and no replica is in use", |m| m.node == node);
                    dead.push(node);
                }
            }
        }
        commands.extend((!dead.is_empty()).then_some(MoveCommand::Dead(dead)));
        commands.extend(self.withdraw(nodes));
        // Also for nodes on living hosts whose backup was lost.
        self.keep_two_hosts(&host_of);
        commands.extend(self.replace_backups(nodes, host_of));
        commands
    }

    /// Decides that a node moves from a host to its refuge, see [`MoveMachine::refuge`].
    fn decide(
        &mut self,
        now_unix_ms: u64,
        (node, from): (u16, usize),
        (backup, epoch, to): (u16, u32, usize),
        is_planned: bool,
    ) -> MoveCommand {
        // A node moves again from its new host: only its latest move counts.
        self.moves.retain(|m| m.node != node);
        let decided = NodeMove {
            node,
            from,
            to,
            backup,
            epoch: epoch.saturating_add(1),
            since_unix_ms: now_unix_ms,
            stage: MoveStage::Sealing,
            message: None,
            is_planned,
        };
        self.moves.push(decided.clone());
        MoveCommand::Adopt(decided)
    }

    /// Gives a backup on another host, if there is one, to each running node that has none or whose backup is among
    /// `gone`.
    fn replace_backups(&mut self, gone: &[u16], host_of: impl Fn(u16) -> Option<usize>) -> Vec<MoveCommand> {
        let mut changed = false;
        for node in 0..self.map.mirrors.len() as u16 {
            let Some(entry) = self.map.mirrors.get(usize::from(node)).copied() else { continue };
            // A node that starts elsewhere gets a backup once it serves: its former volumes are all that there is else,
            // and go with the word of that backup.
            let starts = |m: &NodeMove| m.node == node && m.stage == MoveStage::Starting;
            if !self.has_content(node) || self.moves.iter().any(starts) {
                continue;
            }
            // One that came to the host of its backup, or its backup to its host, has two copies there and none
            // elsewhere.
            let is_here = |backup: &NodeId| host_of(backup.0).is_some() && host_of(backup.0) == host_of(node);
            let lasting = entry.backup.filter(|backup| !gone.contains(&backup.0) && !is_here(backup));
            // A node that is moving keeps the epoch that was decided; its backup is alive.
            let backup = lasting.or_else(|| self.choose_backup(node, gone, &host_of));
            if let Some(changing) =
                self.map.mirrors.get_mut(usize::from(node)).filter(|_| backup != entry.backup)
            {
                (changing.backup, changing.epoch) = (backup, entry.epoch.saturating_add(1));
                changed = true;
            }
        }
        self.map.version += u64::from(changed);
        if changed { vec![MoveCommand::Publish] } else { Vec::new() }
    }

    /// Returns the node on another host that is backup of the fewest, on the host that keeps the fewest replicas; of
    /// several, the next in order.
    fn choose_backup(
        &self,
        node: u16,
        gone: &[u16],
        host_of: &impl Fn(u16) -> Option<usize>,
    ) -> Option<NodeId> {
        // None for a node that does not run: it gets a backup once it serves again.
        let own = host_of(node)?;
        let count = self.map.mirrors.len() as u16;
        let others = (1..count).map(|step| (node + step) % count);
        // One that is not up yet may never be, and takes what it has down with it then.
        let is_usable = |host: usize| host != own && !self.is_leaving(host) && !self.is_coming_up(host);
        let usable = others.filter(|other| !gone.contains(other) && host_of(*other).is_some_and(is_usable));
        usable.min_by_key(|other| self.replica_load(*other, host_of)).map(NodeId)
    }

    /// Returns how many replicas are kept on the host of a node, and by the node itself.
    fn replica_load(&self, node: u16, host_of: &impl Fn(u16) -> Option<usize>) -> (usize, usize) {
        let backups = || self.map.mirrors.iter().filter_map(|mirror| mirror.backup);
        let host = host_of(node);
        (
            backups().filter(|backup| host_of(backup.0) == host).count(),
            backups().filter(|b| b.0 == node).count(),
        )
    }

    fn adopted(&mut self, host: usize, node: u16, place: NodeEntry) -> Vec<MoveCommand> {
        let waits = |m: &&mut NodeMove| (m.node, m.to, m.epoch) == (node, host, place.epoch);
        let Some(found) = self.moves.iter_mut().find(waits).filter(|m| m.stage == MoveStage::Sealing) else {
            return Vec::new();
        };
        let index = usize::from(node);
        let (Some(entry), Some(mirror)) = (self.map.nodes.get_mut(index), self.map.mirrors.get_mut(index))
        else {
            return Vec::new();
        };
        assert!(
            place.epoch > entry.epoch,
            "node {node} moves in epoch {} after {}",
            place.epoch,
            entry.epoch
        );
        // The replica that it starts from was its backup. It gets another one once it serves.
        (mirror.backup, mirror.epoch) = (None, place.epoch);
        *entry = place;
        found.stage = MoveStage::Starting;
        self.map.version += 1;
        vec![MoveCommand::Publish]
    }

    /// Gives up moves: their nodes are dead.
    fn fail(&mut self, why: &str, which: impl Fn(&NodeMove) -> bool) -> Vec<MoveCommand> {
        let mut dead = Vec::new();
        for given_up in self.moves.iter_mut().filter(|m| m.stage != MoveStage::Failed && which(m)) {
            (given_up.stage, given_up.message) = (MoveStage::Failed, Some(why.into()));
            dead.push(given_up.node);
        }
        if dead.is_empty() { Vec::new() } else { vec![MoveCommand::Dead(dead)] }
    }
}

#[cfg(test)]
mod balance_tests;
#[cfg(test)]
mod tests;
