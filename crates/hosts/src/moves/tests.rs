use super::*;
use std::collections::BTreeSet;

use bivouac_launch::DepartureStage;
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
    MoveMachine::new(map)
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

/// S840: step by step.
#[test]
fn a_host_that_leaves_gives_its_replicas_and_its_nodes_away() {
    let mut machine = machine(3);
    let all = vec![0, 1, 2];
    let complete = |machine: &mut MoveMachine, nodes: &[u16], place: [usize; 3]| {
        machine.handle(5, MoveEvent::Complete { nodes: nodes.to_vec(), pinned: Vec::new() }, move |node| {
            place.get(usize::from(node)).copied()
        })
    };
    let at = [0, 1, 2];
    machine.handle(5, MoveEvent::Leave { hosts: vec![(1, 1)], is_forced: false }, living(&[]));
    // Node 0 had its replicas there.
    assert_eq!(complete(&mut machine, &all, at), [MoveCommand::Publish]);
    assert_eq!(machine.map.mirror(NodeId(0)), Some((NodeId(2), 2)));
    assert_eq!(machine.departures[0].message.as_deref(), Some("node 0 is copied to host h2"));
    assert_eq!(complete(&mut machine, &[1, 2], at), []);
    assert_eq!(machine.departures[0].stage, DepartureStage::Copying);
    assert_eq!(complete(&mut machine, &all, at), []);
    assert_eq!(machine.departures[0].stage, DepartureStage::Unmounting);
    let busy = MoveEvent::Unmounted { host: 1, trouble: Some("/x is in use".into()) };
    machine.handle(5, busy, living(&[]));
    assert_eq!(machine.departures[0].message.as_deref(), Some("/x is in use"));
    assert_eq!(complete(&mut machine, &all, at), [], "it waits for its programs");
    machine.handle(5, MoveEvent::Unmounted { host: 1, trouble: None }, living(&[]));
    let commands = complete(&mut machine, &all, at);
    let [MoveCommand::Adopt(decided)] = commands.as_slice() else { panic!("{commands:?}") };
    assert_eq!((decided.node, decided.to, decided.epoch, decided.is_planned), (1, 2, 2, true));
    // It may take time until the replicas can be sealed; the node serves meanwhile.
    let refuse = MoveEvent::NotAdopted { host: 2, node: 1, epoch: 2, why: "not in sync".into() };
    assert_eq!(machine.handle(6, refuse, living(&[])), []);
    assert_eq!(machine.adoptions(2).count(), 1);
    let event = MoveEvent::Adopted { host: 2, node: 1, place: place(2, 2) };
    assert_eq!(machine.handle(6, event, living(&[])), [MoveCommand::Publish]);
    let now = |node: u16| Some([0, 2, 2][usize::from(node)]);
    assert_eq!(complete(&mut machine, &[0, 2], [0, 2, 2]), [], "its daemon starts");
    assert_eq!(machine.handle(7, MoveEvent::Serves { host: 2, node: 1 }, now), [MoveCommand::Publish]);
    assert_eq!(machine.map.mirror(NodeId(1)), Some((NodeId(0), 3)), "on a host that stays");
    assert_eq!(complete(&mut machine, &[0, 2], [0, 2, 2]), []);
    assert_eq!(machine.departures[0].stage, DepartureStage::Moving, "it has no second copy yet");
    complete(&mut machine, &all, [0, 2, 2]);
    // Node 2 had its replicas on host 0 all the time.
    assert_eq!((machine.departures[0].stage, machine.moves.len()), (DepartureStage::Leaving, 1));
}

/// S843.
#[test]
fn the_loss_of_the_host_that_a_node_was_to_move_to_leaves_it_where_it_is() {
    let mut machine = machine(4);
    machine.handle(5, MoveEvent::Leave { hosts: vec![(1, 1)], is_forced: false }, living(&[]));
    for _ in 0..4 {
        machine.handle(5, MoveEvent::Complete { nodes: vec![0, 1, 2, 3], pinned: Vec::new() }, living(&[]));
        machine.handle(5, MoveEvent::Unmounted { host: 1, trouble: None }, living(&[]));
    }
    assert_eq!(machine.adoptions(2).next().map(|m| (m.node, m.epoch)), Some((1, 2)));
    let commands = machine.handle(6, MoveEvent::HostLost { host: 2, nodes: vec![2] }, living(&[2]));
    assert!(!commands.contains(&MoveCommand::Dead(vec![1])), "{commands:?}");
    assert!(machine.moves.iter().all(|m| m.node != 1));
    // Behind the epoch of the seal, which may have been made.
    assert_eq!(machine.map.mirror(NodeId(1)).map(|(_, epoch)| epoch), Some(4));
    let late = MoveEvent::Adopted { host: 2, node: 1, place: place(2, 2) };
    assert_eq!(machine.handle(7, late, living(&[2])), []);
}

/// S842: a node that moved all the same would get to the host of the node whose backup it has become.
#[test]
fn who_stays_keeps_the_node_that_was_to_move() {
    for is_elected in [false, true] {
        let mut machine = machine(3);
        machine.handle(5, MoveEvent::Leave { hosts: vec![(1, 1)], is_forced: false }, living(&[]));
        for _ in 0..4 {
            machine.handle(5, MoveEvent::Complete { nodes: vec![0, 1, 2], pinned: Vec::new() }, living(&[]));
            machine.handle(5, MoveEvent::Unmounted { host: 1, trouble: None }, living(&[]));
        }
        let sealing = machine.adoptions(2).next().map(|m| (m.node, m.epoch));
        let Some((1, epoch)) = sealing else { panic!("{sealing:?}") };
        if is_elected {
            let why = "it keeps the formation now".into();
            let commands = machine.handle(6, MoveEvent::Stay { host: 1, why }, living(&[]));
            assert_eq!(commands, [MoveCommand::Publish]);
        }
        machine.handle(6, MoveEvent::HostLost { host: 0, nodes: vec![0] }, living(&[0]));
        assert_eq!(machine.departures[0].stage, DepartureStage::GivenUp);
        let late = MoveEvent::Adopted { host: 2, node: 1, place: place(2, epoch) };
        assert_eq!(machine.handle(7, late, living(&[0])), [], "its replicas may have been sealed");
        let mirror = machine.map.mirror(NodeId(1)).unwrap();
        assert!(mirror.0 == NodeId(2) && mirror.1 > epoch, "{mirror:?}");
        assert_eq!(machine.map.mirror(NodeId(2)).map(|(backup, _)| backup), Some(NodeId(1)));
    }
}

/// S840: the volumes of a node that failed where it moved to are on the host that it came from.
#[test]
fn a_host_whose_node_fails_where_it_moved_to_stays() {
    let mut machine = machine(3);
    machine.handle(5, MoveEvent::Leave { hosts: vec![(1, 1)], is_forced: false }, living(&[]));
    for _ in 0..4 {
        machine.handle(5, MoveEvent::Complete { nodes: vec![0, 1, 2], pinned: Vec::new() }, living(&[]));
        machine.handle(5, MoveEvent::Unmounted { host: 1, trouble: None }, living(&[]));
    }
    let Some((1, epoch)) = machine.adoptions(2).next().map(|m| (m.node, m.epoch)) else { panic!("no move") };
    machine.handle(6, MoveEvent::Adopted { host: 2, node: 1, place: place(2, epoch) }, living(&[]));
    let dead = |node: u16| living(&[])(node).filter(|_| node != 1);
    machine.handle(7, MoveEvent::Failed { node: 1 }, dead);
    machine.handle(8, MoveEvent::Complete { nodes: vec![0, 2], pinned: Vec::new() }, dead);
    assert_eq!(machine.departures[0].stage, DepartureStage::GivenUp, "{:?}", machine.departures);
}

/// S843: the loss of the host that leaves is one as any other.
#[test]
fn a_host_that_is_lost_while_it_leaves_is_lost() {
    let mut machine = machine(3);
    machine.handle(5, MoveEvent::Leave { hosts: vec![(1, 1)], is_forced: false }, living(&[]));
    for _ in 0..4 {
        machine.handle(5, MoveEvent::Complete { nodes: vec![0, 1, 2], pinned: Vec::new() }, living(&[]));
        machine.handle(5, MoveEvent::Unmounted { host: 1, trouble: None }, living(&[]));
    }
    assert!(machine.moves[0].is_planned && machine.moves[0].stage == MoveStage::Sealing);
    let commands = machine.handle(6, MoveEvent::HostLost { host: 1, nodes: vec![1] }, living(&[1]));
    let Some(MoveCommand::Adopt(decided)) = commands.first() else { panic!("{commands:?}") };
    // The same move, but now nobody serves meanwhile.
    assert_eq!((decided.to, decided.epoch, decided.is_planned), (2, 2, false));
    assert_eq!((machine.moves.len(), machine.departures.len()), (1, 0));
}

/// S842.
#[test]
fn a_departure_is_given_up_where_one_host_would_be_left() {
    let mut machine = machine(3);
    machine.handle(5, MoveEvent::Leave { hosts: vec![(1, 1)], is_forced: false }, living(&[]));
    machine.handle(6, MoveEvent::HostLost { host: 2, nodes: vec![2] }, living(&[2]));
    assert_eq!(machine.departures[0].stage, DepartureStage::GivenUp);
    assert_eq!(machine.map.mirror(NodeId(0)).map(|(backup, _)| backup), Some(NodeId(1)), "it stays");
    // Asked again once there is another host.
    machine.handle(7, MoveEvent::Leave { hosts: vec![(1, 9)], is_forced: true }, living(&[]));
    let again = &machine.departures[0];
    assert_eq!((again.stage, again.first_node, again.is_forced), (DepartureStage::Copying, 1, true));
    machine.handle(8, MoveEvent::Stay { host: 1, why: "it keeps the formation now".into() }, living(&[]));
    assert_eq!(machine.departures[0].stage, DepartureStage::GivenUp);
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
    /// Seals of replicas that hosts have noted: the node, and the epoch below which its primary serves nothing.
    seals: BTreeSet<(u16, u32)>,
    /// Nodes whose present replicas are complete, with the mirror epochs of these.
    complete: BTreeSet<(u16, u32)>,
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
            seals: BTreeSet::new(),
            complete: (0..hosts).map(|node| (node, 1)).collect(),
            machine,
            now: 0,
        }
    }

    fn handle(&mut self, event: MoveEvent) {
        self.now += 1;
        let (runs_on, lost) = (self.runs_on.clone(), self.lost.clone());
        let host_of = |node: u16| runs_on[usize::from(node)].filter(|host| !lost.contains(host));
        let before = self.machine.map.clone();
        let is_loss = matches!(event, MoveEvent::HostLost { .. } | MoveEvent::Failed { .. });
        let commands = self.machine.handle(self.now, event, host_of);
        if self.machine.map != before {
            // What was cancelled is published with the backup that follows, which there is.
            assert_eq!(self.machine.map.check_succeeds(&before), Ok(()));
            assert!(commands.contains(&MoveCommand::Publish));
        }
        for (node, (entry, former)) in self.machine.map.mirrors.iter().zip(&before.mirrors).enumerate() {
            let backup = entry.backup.filter(|_| entry != former).and_then(|backup| host_of(backup.0));
            assert!(
                backup.is_none_or(|host| !self.machine.is_leaving(host)),
                "node {node} gets a backup on a host that leaves"
            );
        }
        for command in commands {
            match command {
                MoveCommand::Dead(nodes) => self.dead.extend(nodes),
                MoveCommand::Adopt(decided) if !is_loss => {
                    assert!(decided.is_planned && !self.machine.is_leaving(decided.to), "{decided:?}");
                    let epoch = before.mirrors[usize::from(decided.node)].epoch;
                    assert!(self.complete.contains(&(decided.node, epoch)), "{decided:?}");
                }
                MoveCommand::Adopt(_) | MoveCommand::Publish => {}
            }
        }
    }

    /// Returns whether a host's daemon of a node acknowledges changes, as far as it knows.
    fn serves(&self, host: usize, node: u16) -> bool {
        let (entry, mirror) =
            (&self.maps[host].nodes[usize::from(node)], self.maps[host].mirrors[usize::from(node)]);
        let is_placed = match entry.epoch {
            0 => host == usize::from(node),
            epoch => self.adopted.contains(&(host, node, epoch)),
        };
        is_placed && !self.seals.iter().any(|(sealed, epoch)| *sealed == node && *epoch > mirror.epoch)
    }

    /// The nodes whose replicas are complete, as the keeper is told.
    fn complete_nodes(&self) -> Vec<u16> {
        let is_complete = |node: &u16| {
            let entry = self.machine.map.mirrors[usize::from(*node)];
            let runs =
                |node: u16| self.runs_on[usize::from(node)].is_some_and(|host| !self.lost.contains(&host));
            entry.backup.is_some_and(|backup| runs(backup.0)) && self.complete.contains(&(*node, entry.epoch))
        };
        (0..self.runs_on.len() as u16).filter(is_complete).collect()
    }

    /// All copies that are under way are done.
    fn copy(&mut self) {
        let mirrors = self.machine.map.mirrors.clone();
        for (node, entry) in (0u16..).zip(mirrors) {
            if self.runs_on[usize::from(node)].is_some() && entry.backup.is_some() {
                self.complete.insert((node, entry.epoch));
            }
        }
    }

    fn leave(&mut self, host: usize, hosts: u16) {
        let staying = (0..usize::from(hosts)).filter(|other| {
            let serves = self.runs_on.contains(&Some(*other));
            *other != host && serves && !self.lost.contains(other) && !self.machine.is_leaving(*other)
        });
        if staying.count() >= HOSTS_LEFT_MIN && !self.lost.contains(&host) {
            self.handle(MoveEvent::Leave { hosts: vec![(host, host as u16)], is_forced: false });
        }
    }

    /// The daemon of a node is not started again.
    fn fail(&mut self, node: u16) {
        if self.runs_on[usize::from(node)].take().is_some() {
            self.dead.insert(node);
            self.handle(MoveEvent::Failed { node });
        }
    }

    /// All that is left to do is done, and heard.
    fn settle(&mut self, hosts: u16) {
        for _ in 0..usize::from(hosts) * 16 {
            for host in (0..usize::from(hosts)).filter(|host| !self.lost.contains(host)).collect::<Vec<_>>() {
                while self.machine.adoptions(host).next().is_some() {
                    self.step(host, 0, true);
                }
                self.step(host, 1, true);
                for node in 0..hosts {
                    if self.runs_on[usize::from(node)] == Some(host) {
                        self.handle(MoveEvent::Serves { host, node });
                    }
                }
                self.handle(MoveEvent::Unmounted { host, trouble: None });
            }
            self.copy();
            let nodes = self.complete_nodes();
            self.handle(MoveEvent::Complete { nodes, pinned: Vec::new() });
            self.check();
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
                // No replica is sealed that is not complete.
                let is_complete = self.complete.contains(&(due.node, due.epoch - 1));
                if !is_complete && !self.seals.contains(&(due.node, due.epoch)) {
                    let why = "not complete".to_owned();
                    let (node, epoch) = (due.node, due.epoch);
                    return self.handle(MoveEvent::NotAdopted { host, node, epoch, why });
                }
                self.seals.insert((due.node, due.epoch));
                self.adopted.insert((host, due.node, due.epoch));
                if heard {
                    let place = place(host, due.epoch);
                    // The node is where the map says.
                    self.runs_on[usize::from(due.node)] = Some(host);
                    self.handle(MoveEvent::Adopted { host, node: due.node, place });
                }
            }
            1 => {
                if self.machine.map.check_succeeds(&self.maps[host]).is_ok() {
                    self.maps[host] = self.machine.map.clone();
                }
            }
            _ => {
                let map = &self.maps[host];
                let started = self
                    .adopted
                    .iter()
                    .find(|(at, node, epoch)| *at == host && map.nodes[usize::from(*node)].epoch == *epoch);
                let Some((_, node, _)) = started.copied().filter(|_| heard) else { return };
                self.handle(MoveEvent::Serves { host, node });
            }
        }
    }

    /// Once nothing is under way, no node has its backup on its own host.
    fn check_backups(&self) {
        for node in 0..self.runs_on.len() as u16 {
            let Some((backup, _)) = self.machine.map.mirror(NodeId(node)) else { continue };
            let [at, other] = [node, backup.0].map(|node| self.runs_on[usize::from(node)]);
            assert!(at.is_none() || at != other, "node {node} and its backup {} are on one host", backup.0);
        }
    }

    fn check(&self) {
        for node in 0..self.runs_on.len() as u16 {
            let m = self.machine.moves.iter().find(|m| m.node == node);
            let on_the_way = m.is_some_and(|m| {
                m.stage == MoveStage::Sealing && !m.is_planned && !self.lost.contains(&m.to)
            });
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
            // No two daemons of it acknowledge anything, also on hosts that are only cut off.
            let serving: Vec<usize> = (0..self.maps.len()).filter(|host| self.serves(*host, node)).collect();
            assert!(serving.len() <= 1, "node {node} is served on hosts {serving:?}");
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
                    let MoveMachine { map, moves, departures, arrivals } = world.machine.clone();
                    world.machine = MoveMachine { map, moves, departures, arrivals };
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

    /// S840, S842, S843: hosts leave, are lost, and daemons fail at every step; messages get lost, and copies take
    /// their time.
    #[test]
    fn a_node_has_one_owner_whatever_leaves_or_is_lost(
        hosts in 3u16..7,
        steps in proptest::collection::vec((0usize..7, 0u8..12, any::<bool>()), 0..120),
    ) {
        let mut world = World::new(hosts);
        for (host, what, heard) in steps {
            let host = host % usize::from(hosts);
            match what {
                11 if world.lost.len() + 1 < usize::from(hosts) => world.lose(host),
                10 => world.leave(host, hosts),
                9 if heard => world.fail(host as u16),
                8 | 7 => {
                    let nodes = world.complete_nodes();
                    world.handle(MoveEvent::Complete { nodes, pinned: Vec::new() });
                }
                6 => world.copy(),
                9 => world.handle(MoveEvent::Stay { host, why: "it keeps the formation now".into() }),
                5 => {
                    let trouble = (!heard).then(|| "in use".to_owned());
                    world.handle(MoveEvent::Unmounted { host, trouble });
                }
                what => world.step(host, what % 3, heard),
            }
            world.check();
        }
        world.settle(hosts);
        world.check_backups();
        // Whoever was to leave has no node any more, or stays.
        for departure in &world.machine.departures {
            let is_over = matches!(departure.stage, DepartureStage::Leaving | DepartureStage::GivenUp);
            prop_assert!(is_over, "{:?} {:?}", departure, world.machine.moves);
            if departure.stage == DepartureStage::Leaving {
                prop_assert!(world.runs_on.iter().all(|at| *at != Some(departure.host)));
            }
        }
    }

    /// S840: of hosts that leave, and none is lost, no node is lost, and each has a complete replica on a host that
    /// stays.
    #[test]
    fn a_departure_costs_no_node(hosts in 3u16..7, first in 0usize..7, second in 0usize..7) {
        let mut world = World::new(hosts);
        let leaving = [first % usize::from(hosts), second % usize::from(hosts)];
        leaving.iter().for_each(|host| world.leave(*host, hosts));
        let rehearsed = World::new(hosts).machine.copies_of_departure(
            &world.machine.departures.iter().map(|known| known.host).collect::<Vec<_>>(),
            |node| Some(usize::from(node)),
        );
        world.settle(hosts);
        prop_assert!(world.dead.is_empty());
        let gone: Vec<usize> = world.machine.departures.iter().map(|known| known.host).collect();
        prop_assert!(world.machine.departures.iter().all(|known| known.stage == DepartureStage::Leaving));
        for node in 0..hosts {
            let place = world.runs_on[usize::from(node)].unwrap();
            let (backup, epoch) = world.machine.map.mirror(NodeId(node)).unwrap();
            let other = world.runs_on[usize::from(backup.0)].unwrap();
            prop_assert!(place != other && !gone.contains(&place) && !gone.contains(&other));
            prop_assert!(world.complete.contains(&(node, epoch)));
            // Where its last copy went was foreseen.
            let last = rehearsed.iter().rfind(|(copied, _)| *copied == NodeId(node));
            prop_assert!(last.is_none_or(|(_, foreseen)| *foreseen == backup), "{node}: {rehearsed:?}, {backup}");
        }
    }

    /// S843: as long as one thing is done at a time, no more than one node has no complete replica.
    #[test]
    fn at_most_one_node_has_no_complete_replica(hosts in 3u16..7, first in 0usize..7, order in proptest::collection::vec((0usize..7, 0u8..6), 0..150)) {
        let mut world = World::new(hosts);
        world.leave(first % usize::from(hosts), hosts);
        for (host, what) in order {
            let host = host % usize::from(hosts);
            match what {
                3 => world.copy(),
                4 => world.handle(MoveEvent::Unmounted { host, trouble: None }),
                5 => {
                    let nodes = world.complete_nodes();
                    world.handle(MoveEvent::Complete { nodes, pinned: Vec::new() });
                }
                what => world.step(host, what, true),
            }
            world.check();
            prop_assert!(world.complete_nodes().len() + 1 >= usize::from(hosts));
        }
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
