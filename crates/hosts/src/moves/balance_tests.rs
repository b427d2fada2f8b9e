use std::collections::BTreeSet;

use bivouac_launch::ArrivalStage;
use bivouac_types::FormationId;
use bivouac_wire::{MirrorEntry, TargetEntry};
use proptest::prelude::*;

use super::*;

fn place(host: usize, epoch: u32) -> NodeEntry {
    NodeEntry {
        host: format!("h{host}"),
        client_address: format!("10.1.0.{host}:{epoch}"),
        peer_address: format!("10.1.0.{host}:9"),
        unix_path: String::new(),
        epoch,
    }
}

/// A formation of the model: what hosts do is done at once, copies when they are asked for.
struct World {
    machine: MoveMachine,
    /// Nodes of each host, that by which it is known first; nothing for one that was lost.
    hosts: Vec<Vec<u16>>,
    dead: BTreeSet<u16>,
    /// Nodes whose present replicas are complete, with the mirror epochs of these.
    complete: BTreeSet<(u16, u32)>,
    copies: usize,
    moved: Vec<u16>,
}

impl World {
    /// Hosts with so many nodes each; the backup of each node is the next one on another host.
    fn new(counts: &[usize]) -> World {
        let mut hosts = Vec::new();
        let mut count = 0u16;
        for nodes in counts {
            hosts.push((count..count + *nodes as u16).collect::<Vec<u16>>());
            count += *nodes as u16;
        }
        let host_of = |node: u16| hosts.iter().position(|nodes| nodes.contains(&node)).unwrap();
        let backup = |node: u16| {
            let mut others = (1..count).map(|step| (node + step) % count);
            others.find(|other| host_of(*other) != host_of(node)).map(NodeId)
        };
        let mirrors = (0..count).map(|node| MirrorEntry { backup: backup(node), epoch: 1 }).collect();
        let map = FormationMap {
            version: 1,
            formation: FormationId([7; 16]),
            name: "x".into(),
            slots: (0..64).map(|slot| NodeId(slot % count)).collect(),
            nodes: (0..count).map(|node| place(host_of(node), 0)).collect(),
            targets: (0..count).map(|id| TargetEntry { node: NodeId(id), volume: 0 }).collect(),
            stripe: 4096,
            width: 0,
            is_secure: false,
            detects_races: false,
            mirrors,
        };
        assert_eq!(map.check(), Ok(()));
        let complete = (0..count).map(|node| (node, 1)).collect();
        let (dead, moved) = (BTreeSet::new(), Vec::new());
        World { machine: MoveMachine::new(map), hosts, dead, complete, copies: 0, moved }
    }

    fn host_of(&self, node: u16) -> Option<usize> {
        self.hosts.iter().position(|nodes| nodes.contains(&node))
    }

    fn handle(&mut self, event: MoveEvent) -> Vec<MoveCommand> {
        let hosts = self.hosts.clone();
        let host_of = |node: u16| hosts.iter().position(|nodes| nodes.contains(&node));
        let before = self.machine.map.clone();
        let commands = self.machine.handle(7, event, host_of);
        if self.machine.map != before {
            assert_eq!(self.machine.map.check_succeeds(&before), Ok(()));
            assert!(commands.contains(&MoveCommand::Publish));
        }
        for command in &commands {
            if let MoveCommand::Dead(nodes) = command {
                self.dead.extend(nodes.iter().filter(|node| before.has_content(NodeId(**node))));
                // The daemon of a node that was to move goes on until it is dead.
                nodes
                    .iter()
                    .for_each(|node| self.hosts.iter_mut().for_each(|host| host.retain(|n| n != node)));
            }
        }
        commands
    }

    /// Hosts join, and are up.
    fn join(&mut self, count: usize) {
        let first = self.hosts.len();
        self.handle(MoveEvent::Arrive { hosts: (first..first + count).collect() });
        for host in first..first + count {
            let node = self.machine.map.nodes.len() as u16;
            self.hosts.push(vec![node]);
            assert_eq!(
                self.handle(MoveEvent::Joined { host, place: place(host, 0) }),
                [MoveCommand::Publish]
            );
            assert!(!self.machine.map.has_content(NodeId(node)));
            self.handle(MoveEvent::Arrived { host, stage: ArrivalStage::Balancing });
        }
    }

    fn incomplete(&self) -> Vec<u16> {
        let is_incomplete = |node: &u16| {
            let entry = self.machine.map.mirrors[usize::from(*node)];
            let is_there = entry.backup.is_some_and(|backup| self.host_of(backup.0).is_some());
            !is_there || !self.complete.contains(&(*node, entry.epoch))
        };
        let content = 0..self.machine.map.content_count() as u16;
        content.filter(|node| self.host_of(*node).is_some()).filter(is_incomplete).collect()
    }

    fn copy(&mut self) {
        for node in self.incomplete() {
            let entry = self.machine.map.mirrors[usize::from(node)];
            if entry.backup.is_some() {
                self.complete.insert((node, entry.epoch));
                self.copies += 1;
            }
        }
    }

    /// Hosts take over the nodes that are to come to them.
    fn take_over(&mut self) {
        for host in 0..self.hosts.len() {
            loop {
                let due = self.machine.adoptions(host).next().cloned();
                let Some(due) = due else { break };
                let (node, epoch) = (due.node, due.epoch);
                if !self.complete.contains(&(node, epoch - 1)) {
                    assert!(!due.is_planned, "{due:?}");
                    let why = "not complete".to_owned();
                    self.handle(MoveEvent::NotAdopted { host, node, epoch, why });
                    continue;
                }
                self.hosts.iter_mut().for_each(|nodes| nodes.retain(|there| *there != node));
                self.hosts[host].push(node);
                self.moved.extend(due.is_planned.then_some(node));
                self.handle(MoveEvent::Adopted { host, node, place: place(host, epoch) });
                self.handle(MoveEvent::Serves { host, node });
            }
        }
    }

    /// One look of the keeper, and what hosts do for it. Returns false once nothing is left to do.
    fn step(&mut self) -> bool {
        let incomplete = self.incomplete();
        let all = 0..self.machine.map.content_count() as u16;
        let nodes = all.filter(|node| !incomplete.contains(node)).collect();
        let pinned = self.hosts.iter().filter_map(|nodes| nodes.first().copied()).collect();
        self.handle(MoveEvent::Complete { nodes, pinned });
        self.take_over();
        self.machine.arrivals.iter().any(|known| known.stage < ArrivalStage::Done)
    }

    fn balance(&mut self) {
        let mut steps = 0;
        while self.step() {
            self.copy();
            steps += 1;
            assert!(steps <= 200, "it does not end: {:?}", self.machine.arrivals);
        }
        self.copy();
    }

    fn lose(&mut self, host: usize) {
        let nodes = std::mem::take(&mut self.hosts[host]);
        self.handle(MoveEvent::HostLost { host, nodes });
        self.take_over();
    }

    /// Numbers of nodes with content, of hosts that are up.
    fn counts(&self) -> Vec<usize> {
        let with_content = |nodes: &Vec<u16>| {
            nodes.iter().filter(|node| self.machine.map.has_content(NodeId(**node))).count()
        };
        self.hosts.iter().filter(|nodes| !nodes.is_empty()).map(with_content).collect()
    }

    fn check_balanced(&self) {
        let counts = self.counts();
        assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() < 2, "{counts:?}");
        self.check_backups();
    }

    /// Each node that runs has its backup on another host.
    fn check_backups(&self) {
        for node in 0..self.machine.map.content_count() as u16 {
            let Some(host) = self.host_of(node) else { continue };
            let (backup, _) = self.machine.map.mirror(NodeId(node)).unwrap();
            assert!(self.host_of(backup.0).is_some_and(|other| other != host), "node {node}");
        }
    }
}

/// Returns the fewest moves after which no host has two nodes more than another one.
fn fewest_moves(counts: &[usize]) -> usize {
    let mut sorted = counts.to_vec();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    let (total, hosts) = (sorted.iter().sum::<usize>(), sorted.len());
    let share = |at: usize| total / hosts + usize::from(at < total % hosts);
    sorted.iter().enumerate().map(|(at, count)| count.saturating_sub(share(at))).sum()
}

/// S851: step by step.
#[test]
fn a_node_moves_to_a_host_that_joins() {
    let mut world = World::new(&[2, 1]);
    world.join(1);
    // Node 1 has its replicas on node 2, and keeps those of none: node 2 has its own on node 0.
    let step = |world: &mut World| {
        world.copy();
        world.step();
        world.machine.arrivals[0].clone()
    };
    assert_eq!(step(&mut world).message.as_deref(), Some("node 1 is copied to host h2"));
    assert_eq!(world.machine.map.mirror(NodeId(1)), Some((NodeId(3), 2)));
    assert_eq!(world.incomplete(), [1]);
    let pinned = vec![0, 2, 3];
    let nodes = vec![0, 2];
    world.handle(MoveEvent::Complete { nodes, pinned });
    assert!(world.machine.moves.is_empty(), "it waits for the copy");
    assert_eq!(step(&mut world).message.as_deref(), Some("node 1 moves to host h2"));
    assert_eq!((world.moved.as_slice(), world.counts()), ([1].as_slice(), vec![1, 1, 1]));
    while step(&mut world).stage != ArrivalStage::Done {}
    world.check_balanced();
    // The same again finds nothing to do.
    let before = world.machine.map.clone();
    world.handle(MoveEvent::Arrive { hosts: vec![2] });
    assert_eq!(world.machine.arrivals[0].stage, ArrivalStage::Balancing);
    assert!(!world.step() && world.machine.map == before);
}

/// S851: hosts that join end that nodes go alone, also where all others were lost.
#[test]
fn a_node_without_a_backup_gets_one_on_a_host_that_joins() {
    for joining in [1, 2] {
        let mut world = World::new(&[1, 1]);
        world.lose(1);
        assert_eq!(world.machine.map.mirror(NodeId(0)), None, "there is no other host");
        world.join(joining);
        world.step();
        assert_eq!(world.machine.arrivals[0].message.as_deref(), Some("node 0 is copied to host h2"));
        world.balance();
        assert!(
            world.dead.is_empty() && world.machine.arrivals.iter().all(|a| a.stage == ArrivalStage::Done)
        );
        world.check_balanced();
        // The formation is protected again.
        world.lose(0);
        assert!(world.dead.is_empty() && world.counts().iter().sum::<usize>() == 2);
    }
}

/// S853: a host that is not up yet keeps nothing, so that nothing is lost with it.
#[test]
fn a_host_that_is_not_up_is_no_backup() {
    let mut world = World::new(&[1, 1, 1]);
    world.handle(MoveEvent::Arrive { hosts: vec![3] });
    world.hosts.push(vec![3]);
    world.handle(MoveEvent::Joined { host: 3, place: place(3, 0) });
    world.lose(1);
    world.copy();
    let backups = || world.machine.map.mirrors.iter().filter_map(|mirror| mirror.backup);
    assert!(backups().all(|backup| backup != NodeId(3)), "{:?}", world.machine.map.mirrors);
    world.lose(2);
    assert_eq!(world.machine.map.mirror(NodeId(0)), None, "rather than one there");
    world.handle(MoveEvent::Arrived { host: 3, stage: ArrivalStage::Balancing });
    world.balance();
    world.check_balanced();
    assert!(world.dead.is_empty());
}

/// S814: until a node serves where it has moved to, its former volumes stay, as no map names a backup.
#[test]
fn a_node_that_starts_has_no_backup_before_it_serves() {
    let mut world = World::new(&[1, 1, 1, 1]);
    let nodes = std::mem::take(&mut world.hosts[1]);
    world.handle(MoveEvent::HostLost { host: 1, nodes });
    let due = world.machine.adoptions(2).next().cloned().unwrap();
    world.hosts[2].push(1);
    world.handle(MoveEvent::Adopted { host: 2, node: 1, place: place(2, due.epoch) });
    let nodes = std::mem::take(&mut world.hosts[3]);
    world.handle(MoveEvent::HostLost { host: 3, nodes });
    assert_eq!(world.machine.map.mirror(NodeId(1)), None);
    world.handle(MoveEvent::Serves { host: 2, node: 1 });
    assert!(world.machine.map.mirror(NodeId(1)).is_some());
    world.take_over();
    world.check_backups();
}

/// S853.
#[test]
fn a_host_that_does_not_come_up_leaves_nothing_but_an_entry() {
    let mut world = World::new(&[1, 1, 1]);
    world.handle(MoveEvent::Arrive { hosts: vec![3] });
    let not_joined = || MoveEvent::NotJoined { host: 3, why: "no route".into() };
    let mut early = world.machine.clone();
    assert_eq!(early.handle(5, not_joined(), |node| Some(usize::from(node))), []);
    assert_eq!((early.arrivals[0].stage, early.map.nodes.len()), (ArrivalStage::GivenUp, 3));
    world.hosts.push(vec![3]);
    world.handle(MoveEvent::Joined { host: 3, place: place(3, 0) });
    world.hosts[3].clear();
    let commands = world.handle(not_joined());
    assert_eq!(commands, [MoveCommand::Dead(vec![3]), MoveCommand::Publish]);
    assert!(world.machine.map.is_withdrawn(NodeId(3)));
    assert_eq!(world.machine.arrivals[0].message.as_deref(), Some("no route"));
    assert_eq!(world.handle(not_joined()), [], "it is known");
    // Its name joins again as another host.
    world.handle(MoveEvent::Arrive { hosts: vec![4] });
    world.hosts.push(vec![4]);
    world.handle(MoveEvent::Joined { host: 4, place: place(4, 0) });
    assert_eq!((world.machine.arrivals[1].node, world.machine.map.nodes.len()), (Some(4), 5));
}

/// S856: a host that has joined and is lost takes nothing with it but what it kept for others.
#[test]
fn the_node_of_a_host_that_joined_is_withdrawn_with_it() {
    let mut world = World::new(&[2, 2]);
    world.join(1);
    while world.step() {
        world.copy();
    }
    world.copy();
    assert_eq!(world.moved.len(), 1);
    assert!(world.machine.protects(2, &world.hosts[2].clone(), |node| world.host_of(node)));
    world.lose(2);
    assert!(world.dead.is_empty() && world.machine.map.is_withdrawn(NodeId(4)));
    assert!(world.machine.arrivals.is_empty());
    assert_eq!(world.counts().iter().sum::<usize>(), 4);
    world.check_backups();
}

proptest! {
    /// S851: balancing ends, each node moves once at most, no more nodes than have to, and one node at a time has no
    /// complete replica.
    #[test]
    fn balancing_ends_with_the_fewest_moves(
        counts in proptest::collection::vec(1usize..5, 2..5), joining in 1usize..4, lazy in any::<bool>(),
    ) {
        let mut world = World::new(&counts);
        world.join(joining);
        let most = 8 * counts.iter().sum::<usize>() + 8;
        let mut steps = 0;
        while world.step() {
            prop_assert!(world.incomplete().len() <= 1, "{:?}", world.incomplete());
            if !lazy || steps % 2 == 0 {
                world.copy();
            }
            steps += 1;
            prop_assert!(steps <= 2 * most, "it does not end: {:?}", world.machine.arrivals);
        }
        world.check_balanced();
        let wanted: Vec<usize> = counts.iter().copied().chain(std::iter::repeat_n(0, joining)).collect();
        prop_assert_eq!(world.moved.len(), fewest_moves(&wanted));
        let once: BTreeSet<u16> = world.moved.iter().copied().collect();
        prop_assert_eq!(once.len(), world.moved.len());
        prop_assert!(world.dead.is_empty());
    }

    /// S854: a loss at any moment comes first, costs no more than the node that has no complete replica, and balancing
    /// goes on behind it.
    #[test]
    fn a_loss_comes_first_and_balancing_goes_on(
        counts in proptest::collection::vec(1usize..5, 3..5), joining in 1usize..3,
        at in 0usize..12, lost in 0usize..8, copied in any::<bool>(),
    ) {
        let mut world = World::new(&counts);
        world.join(joining);
        for _ in 0..at {
            if world.step() {
                world.copy();
            }
        }
        if !copied {
            world.step();
        }
        let lost = lost % world.hosts.len();
        world.lose(lost);
        prop_assert!(world.dead.len() <= 1, "{:?}", world.dead);
        world.copy();
        let others: Vec<usize> = world.machine.arrivals.iter().map(|known| known.host).collect();
        world.handle(MoveEvent::Arrive { hosts: others });
        let mut steps = 0;
        while world.step() {
            world.copy();
            steps += 1;
            prop_assert!(steps <= 200, "it does not end: {:?}", world.machine.arrivals);
        }
        world.copy();
        if world.machine.arrivals.iter().any(|known| known.stage == ArrivalStage::Done) {
            world.check_balanced();
        }
    }
}
