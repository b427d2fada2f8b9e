//! Moves of nodes whose host was lost to the hosts of their backups: a state machine without I/O.
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

use bivouac_launch::{MoveStage, NodeMove};
use bivouac_types::NodeId;
use bivouac_wire::{FormationMap, NodeEntry};

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
}

impl MoveMachine {
    /// Handles an event. `host_of` returns the living host of a running node.
    pub fn handle(
        &mut self,
        now_unix_ms: u64,
        event: MoveEvent,
        host_of: impl Fn(u16) -> Option<usize>,
    ) -> Vec<MoveCommand> {
        match event {
            MoveEvent::HostLost { host, nodes } => self.host_lost(now_unix_ms, host, &nodes, host_of),
            MoveEvent::Adopted { host, node, place } => self.adopted(host, node, place),
            MoveEvent::NotAdopted { host, node, epoch, why } => {
                let waits = |m: &NodeMove| (m.node, m.to, m.epoch) == (node, host, epoch);
                self.fail(&why, |m| waits(m) && m.stage == MoveStage::Sealing)
            }
            MoveEvent::Serves { host, node } => {
                let started =
                    |m: &&mut NodeMove| (m.node, m.to, m.stage) == (node, host, MoveStage::Starting);
                let Some(served) = self.moves.iter_mut().find(started) else { return Vec::new() };
                served.stage = MoveStage::Serving;
                self.replace_backups(&[], host_of)
            }
            MoveEvent::Failed { node } => {
                let mut commands = self.fail("the daemon that has the replicas is not started again", |m| {
                    m.backup == node && m.stage == MoveStage::Sealing
                });
                // The keeper announces this node's death itself, as for a node that has never moved.
                let _told = self.fail("its daemon is not started again", |m| m.node == node);
                commands.extend(self.replace_backups(&[node], host_of));
                commands
            }
        }
    }

    /// Returns the moves that a host has yet to begin or to answer.
    pub fn adoptions(&self, host: usize) -> impl Iterator<Item = &NodeMove> {
        self.moves.iter().filter(move |m| m.to == host && m.stage == MoveStage::Sealing)
    }

    /// Returns true if each of these nodes has a backup on a living host other than this one.
    pub fn protects(&self, host: usize, nodes: &[u16], host_of: impl Fn(u16) -> Option<usize>) -> bool {
        !nodes.is_empty() && nodes.iter().all(|node| self.refuge(*node, host, &host_of).is_some())
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
        let mut commands = self.fail("the host that it was to move to is lost, too", |m| {
            m.to == host && m.stage == MoveStage::Sealing
        });
        let mut dead = Vec::new();
        for node in nodes.iter().copied() {
            match self.refuge(node, host, &host_of) {
                Some((backup, epoch, to)) => {
                    // A node moves again from its new host: only its latest move counts.
                    self.moves.retain(|m| m.node != node);
                    let epoch = epoch.saturating_add(1);
                    let (stage, message) = (MoveStage::Sealing, None);
                    let decided = NodeMove {
                        node,
                        from: host,
                        to,
                        backup,
                        epoch,
                        since_unix_ms: now_unix_ms,
                        stage,
                        message,
                    };
                    commands.push(MoveCommand::Adopt(decided.clone()));
                    self.moves.push(decided);
                }
                None => {
                    let _told_below =
                        self.fail("its host is lost, and no replica is in use", |m| m.node == node);
                    dead.push(node);
                }
            }
        }
        commands.extend((!dead.is_empty()).then_some(MoveCommand::Dead(dead)));
        // Also for nodes on living hosts whose backup was lost.
        commands.extend(self.replace_backups(nodes, host_of));
        commands
    }

    /// Gives a backup on another host, if there is one, to each running node that has none or whose backup is among
    /// `gone`.
    fn replace_backups(&mut self, gone: &[u16], host_of: impl Fn(u16) -> Option<usize>) -> Vec<MoveCommand> {
        let mut changed = false;
        for node in 0..self.map.mirrors.len() as u16 {
            let Some(entry) = self.map.mirrors.get(usize::from(node)).copied() else { continue };
            let lasting = entry.backup.filter(|backup| !gone.contains(&backup.0));
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

    /// Returns the node on another host that is backup of the fewest; of several, the next in order.
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
        let usable =
            others.filter(|other| !gone.contains(other) && host_of(*other).is_some_and(|host| host != own));
        let load = |other: &u16| {
            self.map.mirrors.iter().filter(|mirror| mirror.backup == Some(NodeId(*other))).count()
        };
        usable.min_by_key(load).map(NodeId)
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
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use bivouac_types::{FormationId, Slot};
    use bivouac_wire::{MirrorEntry, TargetEntry};
    use proptest::prelude::*;

    /// A node on each host; the backup of each is the next.
    fn machine(hosts: u16) -> MoveMachine {
        let node = |id: u16| NodeEntry {
            host: format!("h{id}"),
            client_address: format!("10.0.0.{id}:1"),
            peer_address: format!("10.0.0.{id}:2"),
            unix_path: String::new(),
            epoch: 0,
        };
        let mirror = |id: u16| MirrorEntry { backup: Some(NodeId((id + 1) % hosts)), epoch: 1 };
        let map = FormationMap {
            version: 1,
            formation: FormationId([7; 16]),
            name: "x".into(),
            slots: (0..4).map(|slot| NodeId(Slot(slot).0 % hosts)).collect(),
            nodes: (0..hosts).map(node).collect(),
            targets: (0..hosts).map(|id| TargetEntry { node: NodeId(id), volume: 0 }).collect(),
            stripe: 4096,
            width: 0,
            is_secure: false,
            detects_races: false,
            mirrors: (0..hosts).map(mirror).collect(),
        };
        assert_eq!(map.check(), Ok(()));
        MoveMachine { map, moves: Vec::new() }
    }

    fn place(host: usize, epoch: u32) -> NodeEntry {
        NodeEntry {
            host: format!("h{host}"),
            client_address: format!("10.1.0.{host}:{epoch}"),
            peer_address: format!("10.1.0.{host}:9"),
            unix_path: String::new(),
            epoch,
        }
    }

    fn living(lost: &[usize]) -> impl Fn(u16) -> Option<usize> {
        let lost = lost.to_vec();
        move |node| Some(usize::from(node)).filter(|host| !lost.contains(host))
    }

    /// S813.
    #[test]
    fn a_node_goes_to_the_host_of_its_backup_in_the_next_epoch() {
        let mut machine = machine(3);
        let commands = machine.handle(5, MoveEvent::HostLost { host: 1, nodes: vec![1] }, living(&[1]));
        let [MoveCommand::Adopt(decided), MoveCommand::Publish] = commands.as_slice() else {
            panic!("{commands:?}")
        };
        assert_eq!((decided.node, decided.to, decided.backup, decided.epoch), (1, 2, 2, 2));
        // Node 0 had its replicas there, and has them elsewhere from now on.
        assert_eq!(machine.map.mirror(NodeId(0)), Some((NodeId(2), 2)));
        assert_eq!(machine.adoptions(2).count(), 1);
        // Where it is counts only from the host that was asked, and in the epoch that was decided.
        for (host, epoch) in [(0, 2), (2, 1), (2, 3)] {
            let event = MoveEvent::Adopted { host, node: 1, place: place(host, epoch) };
            assert_eq!(machine.handle(6, event, living(&[1])), []);
        }
        let version = machine.map.version;
        let event = MoveEvent::Adopted { host: 2, node: 1, place: place(2, 2) };
        assert_eq!(machine.handle(6, event.clone(), living(&[1])), [MoveCommand::Publish]);
        assert_eq!(machine.handle(6, event, living(&[1])), [], "it may be said again");
        assert_eq!((machine.map.version, &machine.map.nodes[1]), (version + 1, &place(2, 2)));
        assert_eq!(machine.map.mirrors[1], MirrorEntry { backup: None, epoch: 2 });
        let now = |node: u16| if node == 1 { Some(2) } else { living(&[1])(node) };
        assert_eq!(machine.handle(7, MoveEvent::Serves { host: 2, node: 1 }, now), [MoveCommand::Publish]);
        assert_eq!(machine.moves[0].stage, MoveStage::Serving);
        assert_eq!(machine.map.mirror(NodeId(1)), Some((NodeId(0), 3)), "not on its own host");
        assert_eq!(machine.handle(8, MoveEvent::Serves { host: 2, node: 1 }, now), [], "it is known");
    }

    /// S815.
    #[test]
    fn what_has_no_replica_is_dead() {
        let mut machine = machine(2);
        machine.map.mirrors[1].backup = None;
        assert!(!machine.protects(1, &[1], living(&[])) && machine.protects(0, &[0], living(&[])));
        let commands = machine.handle(5, MoveEvent::HostLost { host: 1, nodes: vec![1] }, living(&[1]));
        assert_eq!(commands, [MoveCommand::Dead(vec![1]), MoveCommand::Publish]);
        // There is no other host: node 0 goes on alone, and its replicas went with the host that was lost.
        assert_eq!((machine.map.mirror(NodeId(0)), machine.map.mirrors[0].epoch), (None, 2));
        let commands = machine.handle(5, MoveEvent::HostLost { host: 0, nodes: vec![0] }, living(&[0, 1]));
        assert_eq!(commands, [MoveCommand::Dead(vec![0])]);
        assert!(machine.moves.is_empty());
    }

    #[test]
    fn a_host_that_is_lost_with_a_node_on_its_way_there_takes_both() {
        let mut machine = machine(3);
        machine.handle(5, MoveEvent::HostLost { host: 1, nodes: vec![1] }, living(&[1]));
        let commands = machine.handle(6, MoveEvent::HostLost { host: 2, nodes: vec![2] }, living(&[1, 2]));
        assert_eq!(commands.first(), Some(&MoveCommand::Dead(vec![1])));
        assert!(
            matches!(commands.get(1), Some(MoveCommand::Adopt(NodeMove { node: 2, to: 0, .. }))),
            "{commands:?}"
        );
        assert_eq!(machine.moves[0].stage, MoveStage::Failed);
        let event = MoveEvent::Adopted { host: 2, node: 1, place: place(2, 2) };
        assert_eq!(machine.handle(7, event, living(&[1, 2])), [], "it is too late");
    }

    #[test]
    fn a_replica_that_cannot_be_used_ends_the_move() {
        let mut machine = machine(2);
        machine.handle(5, MoveEvent::HostLost { host: 1, nodes: vec![1] }, living(&[1]));
        let refuse = |epoch| MoveEvent::NotAdopted { host: 0, node: 1, epoch, why: "not in sync".into() };
        assert_eq!(machine.handle(6, refuse(1), living(&[1])), [], "of another attempt");
        assert_eq!(machine.handle(6, refuse(2), living(&[1])), [MoveCommand::Dead(vec![1])]);
        assert_eq!(machine.moves[0].message.as_deref(), Some("not in sync"));
    }

    /// A formation of the model: where nodes run, what hosts have done, and messages that are under way.
    #[derive(Clone)]
    struct World {
        machine: MoveMachine,
        runs_on: Vec<Option<usize>>,
        lost: BTreeSet<usize>,
        dead: BTreeSet<u16>,
        /// Nodes that hosts have adopted, with their epochs.
        adopted: BTreeSet<(usize, u16, u32)>,
        /// Newest version of the map that each host has.
        maps: Vec<FormationMap>,
        now: u64,
    }

    impl World {
        fn new(hosts: u16) -> World {
            let machine = machine(hosts);
            World {
                runs_on: (0..usize::from(hosts)).map(Some).collect(),
                lost: BTreeSet::new(),
                dead: BTreeSet::new(),
                adopted: BTreeSet::new(),
                maps: vec![machine.map.clone(); usize::from(hosts)],
                machine,
                now: 0,
            }
        }

        fn handle(&mut self, event: MoveEvent) {
            self.now += 1;
            let (runs_on, lost) = (self.runs_on.clone(), self.lost.clone());
            let host_of = |node: u16| runs_on[usize::from(node)].filter(|host| !lost.contains(host));
            let before = self.machine.map.clone();
            let commands = self.machine.handle(self.now, event, host_of);
            if self.machine.map != before {
                assert_eq!(self.machine.map.check_succeeds(&before), Ok(()));
                assert!(commands.contains(&MoveCommand::Publish));
            }
            for command in commands {
                if let MoveCommand::Dead(nodes) = command {
                    self.dead.extend(nodes);
                }
            }
        }

        fn lose(&mut self, host: usize) {
            if self.lost.insert(host) {
                let there = |(node, at): (usize, &Option<usize>)| (*at == Some(host)).then_some(node as u16);
                let nodes: Vec<u16> = self.runs_on.iter().enumerate().filter_map(there).collect();
                nodes.iter().for_each(|node| self.runs_on[usize::from(*node)] = None);
                self.handle(MoveEvent::HostLost { host, nodes });
            }
        }

        /// A host does one thing of what it has been told; `heard` is whether the keeper hears of it.
        fn step(&mut self, host: usize, what: u8, heard: bool) {
            if self.lost.contains(&host) {
                return;
            }
            match what {
                0 => {
                    let Some(due) = self.machine.adoptions(host).next().cloned() else { return };
                    self.adopted.insert((host, due.node, due.epoch));
                    if heard {
                        let place = place(host, due.epoch);
                        self.handle(MoveEvent::Adopted { host, node: due.node, place });
                        // The node is where the map says.
                        self.runs_on[usize::from(due.node)] = Some(host);
                    }
                }
                1 => {
                    if self.machine.map.check_succeeds(&self.maps[host]).is_ok() {
                        self.maps[host] = self.machine.map.clone();
                    }
                }
                _ => {
                    let map = &self.maps[host];
                    let started = self.adopted.iter().find(|(at, node, epoch)| {
                        *at == host && map.nodes[usize::from(*node)].epoch == *epoch
                    });
                    let Some((_, node, _)) = started.copied().filter(|_| heard) else { return };
                    self.handle(MoveEvent::Serves { host, node });
                }
            }
        }

        fn check(&self) {
            for node in 0..self.runs_on.len() as u16 {
                let m = self.machine.moves.iter().find(|m| m.node == node);
                let on_the_way =
                    m.is_some_and(|m| m.stage == MoveStage::Sealing && !self.lost.contains(&m.to));
                let runs = self.runs_on[usize::from(node)].is_some_and(|host| !self.lost.contains(&host));
                let states = [runs, on_the_way, self.dead.contains(&node)];
                assert_eq!(states.iter().filter(|is| **is).count(), 1, "node {node}: {states:?}, {m:?}");
                // No two hosts can start the node in one epoch.
                let started = |host: &usize| {
                    let epoch = self.maps[*host].nodes[usize::from(node)].epoch;
                    epoch > 0
                        && self.adopted.contains(&(*host, node, epoch))
                        && epoch == self.machine.map.nodes[usize::from(node)].epoch
                };
                assert!((0..self.maps.len()).filter(started).count() <= 1, "node {node} is started twice");
            }
        }
    }

    proptest! {
        /// S814: losses at every step, messages that get lost, and keepers that go on from what was written down.
        #[test]
        fn every_node_runs_is_on_its_way_or_is_dead(
            hosts in 2u16..6,
            steps in proptest::collection::vec((0usize..6, 0u8..6, any::<bool>()), 0..60),
        ) {
            let mut world = World::new(hosts);
            for (host, what, heard) in steps {
                let host = host % usize::from(hosts);
                match what {
                    5 if world.lost.len() + 1 < usize::from(hosts) => world.lose(host),
                    4 => {
                        // The keeper is killed; its standby has the state.
                        let MoveMachine { map, moves } = world.machine.clone();
                        world.machine = MoveMachine { map, moves };
                    }
                    what => world.step(host, what % 3, heard),
                }
                world.check();
            }
            // Hosts that are left do what they are told, and all of it is heard.
            for host in 0..usize::from(hosts) {
                while !world.lost.contains(&host) && world.machine.adoptions(host).next().is_some() {
                    world.step(host, 0, true);
                }
                world.step(host, 1, true);
            }
            world.check();
            prop_assert!(world.machine.moves.iter().all(|m| m.stage != MoveStage::Sealing));
            let left = (0..hosts).filter(|node| !world.dead.contains(node));
            prop_assert!(left.into_iter().all(|node| world.runs_on[usize::from(node)].is_some()));
        }

        /// S814: one loss costs nobody a node.
        #[test]
        fn one_lost_host_costs_no_node(hosts in 2u16..6, lost in 0usize..6) {
            let mut world = World::new(hosts);
            world.lose(lost % usize::from(hosts));
            prop_assert!(world.dead.is_empty());
            for host in 0..usize::from(hosts) {
                (0..3).for_each(|what| world.step(host, what, true));
            }
            world.check();
            prop_assert!(world.machine.moves.iter().all(|m| m.stage == MoveStage::Serving));
        }
    }
}
