//! Many nodes, a network that delays, loses and is cut, and nodes that die, stand still and come back.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use bivouac_members::{Command, Event, Members, Options};
use bivouac_types::{Liveness, MembershipUpdate, NodeId};
use proptest::prelude::*;

const DEAD_AFTER: u64 = 5_000;
/// How long a message is under way, in milliseconds.
const DELAY: u64 = 2;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Probe,
    Answer,
    AskFor(u16),
    Report(u16),
}

/// A message under way. The first field is when it arrives; the number makes all different.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Message {
    at: u64,
    number: u64,
    from: u16,
    to: u16,
    kind: Kind,
    news: Vec<(u16, u32, u8)>,
}

struct World {
    now: u64,
    nodes: Vec<Members>,
    alive: Vec<bool>,
    /// Until when a node does not run; what arrives meanwhile waits.
    still: Vec<u64>,
    /// On which side of a cut each node is.
    side: Vec<u8>,
    under_way: BinaryHeap<Reverse<Message>>,
    ticks: BinaryHeap<Reverse<(u64, u16)>>,
    sent: Vec<u64>,
    number: u64,
    /// Of so many messages one is lost.
    lose_one_of: u64,
    random: u64,
    accused: Vec<(u64, u16, Liveness)>,
}

fn pack(news: &[MembershipUpdate]) -> Vec<(u16, u32, u8)> {
    news.iter().map(|news| (news.node.0, news.incarnation, news.liveness as u8)).collect()
}

fn unpack(news: &[(u16, u32, u8)]) -> Vec<MembershipUpdate> {
    let one = |(node, incarnation, liveness): &(u16, u32, u8)| MembershipUpdate {
        node: NodeId(*node),
        incarnation: *incarnation,
        liveness: Liveness::from_number(*liveness).unwrap(),
    };
    news.iter().map(one).collect()
}

impl World {
    fn new(count: u16, seed: u64) -> World {
        let options = Options::dead_after(DEAD_AFTER);
        let node =
            |id: u16| Members::new(NodeId(id), usize::from(count), options, seed ^ (u64::from(id) << 32), 0);
        let nodes: Vec<Members> = (0..count).map(node).collect();
        let all = usize::from(count);
        let mut world = World {
            now: 0,
            nodes,
            alive: vec![true; all],
            still: vec![0; all],
            side: vec![0; all],
            under_way: BinaryHeap::new(),
            ticks: BinaryHeap::new(),
            sent: vec![0; all],
            number: 0,
            lose_one_of: u64::MAX,
            random: seed,
            accused: Vec::new(),
        };
        (0..count).for_each(|id| world.plan_tick(id));
        world
    }

    fn plan_tick(&mut self, id: u16) {
        if let Some(at) = self.nodes[usize::from(id)].next_tick() {
            self.ticks.push(Reverse((at.max(self.now), id)));
        }
    }

    fn runs(&self, id: u16) -> bool {
        self.alive[usize::from(id)] && self.still[usize::from(id)] <= self.now
    }

    fn post(&mut self, from: u16, to: u16, kind: Kind, news: Vec<MembershipUpdate>) {
        self.sent[usize::from(from)] += 1;
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let lost = self.lose_one_of != u64::MAX && (self.random >> 33).is_multiple_of(self.lose_one_of);
        if lost || self.side[usize::from(from)] != self.side[usize::from(to)] {
            return;
        }
        self.number += 1;
        let news = pack(&news);
        self.under_way.push(Reverse(Message {
            at: self.now + DELAY,
            number: self.number,
            from,
            to,
            kind,
            news,
        }));
    }

    fn act(&mut self, id: u16, event: &Event<'_>) {
        let commands = self.nodes[usize::from(id)].handle(self.now, event);
        for command in commands {
            match command {
                Command::Probe { to, news } | Command::Tell { to, news } => {
                    self.post(id, to.0, Kind::Probe, news)
                }
                Command::AskFor { to, target, news } => self.post(id, to.0, Kind::AskFor(target.0), news),
                Command::Report { to, target, news } => self.post(id, to.0, Kind::Report(target.0), news),
                Command::Accused(liveness) => self.accused.push((self.now, id, liveness)),
                Command::Changed(_) | Command::StoodStill(_) => {}
            }
        }
        self.plan_tick(id);
    }

    fn receive(&mut self, message: Message) {
        let (from, to) = (NodeId(message.from), message.to);
        self.act(to, &Event::Heard { from, news: &unpack(&message.news) });
        match message.kind {
            Kind::Probe => {
                let news = self.nodes[usize::from(to)].news_for(from);
                self.post(to, from.0, Kind::Answer, news);
            }
            Kind::Answer => self.act(to, &Event::Answered(from)),
            Kind::AskFor(target) => self.act(to, &Event::ProbeFor { asker: from, target: NodeId(target) }),
            Kind::Report(target) => self.act(to, &Event::Reached(NodeId(target))),
        }
    }

    /// Lets the world run until a moment.
    fn run_until(&mut self, end: u64) {
        loop {
            let message = self.under_way.peek().map(|Reverse(message)| message.at);
            let tick = self.ticks.peek().map(|Reverse((at, _))| *at);
            let Some(next) = message.into_iter().chain(tick).min().filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            if message == Some(next) {
                let Reverse(mut message) = self.under_way.pop().unwrap();
                if self.runs(message.to) {
                    self.receive(message);
                } else if self.alive[usize::from(message.to)] {
                    message.at = self.still[usize::from(message.to)];
                    self.under_way.push(Reverse(message));
                }
            } else {
                let Reverse((_, id)) = self.ticks.pop().unwrap();
                if self.runs(id) {
                    if self.nodes[usize::from(id)].next_tick().is_some_and(|at| at <= self.now) {
                        self.act(id, &Event::Tick);
                    }
                } else if self.alive[usize::from(id)] {
                    self.ticks.push(Reverse((self.still[usize::from(id)], id)));
                }
            }
        }
        self.now = end;
    }

    fn run(&mut self, ms: u64) {
        self.run_until(self.now + ms);
    }

    /// How many of those that live, and hold, know this of a node.
    fn informed(&self, of: u16, liveness: Liveness, holds: impl Fn(u16) -> bool) -> (usize, usize) {
        let all =
            (0..self.nodes.len() as u16).filter(|id| self.alive[usize::from(*id)] && *id != of && holds(*id));
        let (mut know, mut count) = (0, 0);
        for id in all {
            count += 1;
            know += usize::from(self.nodes[usize::from(id)].known()[usize::from(of)].liveness == liveness);
        }
        (know, count)
    }

    fn is_known(&self, of: u16, liveness: Liveness) -> bool {
        let (know, count) = self.informed(of, liveness, |_| true);
        know == count
    }

    fn epochs(&self) -> Vec<u64> {
        let living = self.nodes.iter().zip(&self.alive).filter(|(_, alive)| **alive);
        let mut epochs: Vec<u64> = living.map(|(node, _)| node.epoch(1)).collect();
        epochs.dedup();
        epochs
    }
}

#[test]
fn a_thousand_nodes_watch_each_other_for_a_few_messages_a_second_each() {
    for count in [2, 10, 100, 1000] {
        let mut world = World::new(count, 1);
        let seconds = 20;
        world.run(seconds * 1000);
        assert_eq!(world.epochs(), [1], "nobody is taken for dead");
        assert_eq!(world.accused, []);
        // A probe per period, and about as many answers.
        let periods = seconds * 1000 / (DEAD_AFTER / 5);
        let most = world.sent.iter().max().unwrap();
        let all: u64 = world.sent.iter().sum();
        assert!(all <= 2 * (periods + 1) * u64::from(count), "{count} nodes sent {all}");
        assert!(*most <= 4 * periods, "one of {count} nodes sent {most}");
    }
}

#[test]
fn one_of_a_thousand_that_dies_is_known_to_all_within_seconds() {
    for seed in [1, 2] {
        let mut world = World::new(1000, seed);
        world.run(4 * DEAD_AFTER);
        world.alive[500] = false;
        let mut took = 0;
        while !world.is_known(500, Liveness::Dead) {
            world.run(100);
            took += 100;
            assert!(took <= 3 * DEAD_AFTER, "{:?}", world.informed(500, Liveness::Dead, |_| true));
        }
        assert!((0..1000).all(|id| id == 500 || world.is_known(id, Liveness::Alive)));
        assert_eq!(world.epochs(), [2]);
    }
}

#[test]
fn many_that_take_long_to_start_suspect_nobody() {
    let mut world = World::new(256, 3);
    (0..256).for_each(|id| world.still[id] = id as u64 * 40);
    world.run(60_000);
    assert_eq!((world.accused.len(), world.epochs()), (0, vec![1]));
    let most = world.sent.iter().max().unwrap();
    assert!(*most <= 4 * 60, "one sent {most}");
}

#[test]
fn a_tenth_that_dies_at_once_is_known_to_all() {
    let mut world = World::new(300, 4);
    world.run(4 * DEAD_AFTER);
    (0..30).for_each(|id| world.alive[id * 10] = false);
    world.run(10 * DEAD_AFTER);
    assert!(
        (0..300).all(|id| world.is_known(id, if id % 10 == 0 { Liveness::Dead } else { Liveness::Alive }))
    );
    assert_eq!(world.epochs(), [31]);
}

#[test]
fn lost_messages_make_nobody_dead() {
    let mut world = World::new(100, 5);
    world.lose_one_of = 10;
    world.run(120_000);
    assert!((0..100).all(|id| world.informed(id, Liveness::Dead, |_| true).0 == 0));
    assert!(!world.accused.iter().any(|(_, _, liveness)| *liveness == Liveness::Dead));
}

#[test]
fn one_that_stands_still_is_dead_and_returns_and_blames_nobody() {
    let mut world = World::new(50, 6);
    world.run(4 * DEAD_AFTER);
    world.still[7] = world.now + 60_000;
    world.run(30_000);
    assert!(world.is_known(7, Liveness::Dead));
    world.run(30_000 + DEAD_AFTER);
    assert!(world.is_known(7, Liveness::Alive));
    assert!(world.accused.iter().all(|(_, id, _)| *id == 7), "{:?}", world.accused);
    assert!(!world.accused.is_empty(), "it hears of it");
    world.run(DEAD_AFTER);
    assert_eq!(world.epochs().len(), 1);
}

#[test]
fn both_halves_of_a_cut_take_each_other_for_dead_and_find_each_other_again() {
    for count in [2u16, 3, 40] {
        let mut world = World::new(count, 8);
        world.run(4 * DEAD_AFTER);
        (0..count / 2).for_each(|id| world.side[usize::from(id)] = 1);
        world.run(12 * DEAD_AFTER);
        let sides = world.side.clone();
        for id in 0..count {
            let other = |of: u16| sides[usize::from(of)] != sides[usize::from(id)];
            let (know, all) = world.informed(id, Liveness::Dead, other);
            assert_eq!(know, all, "node {id} of {count} is dead to the other side");
            assert_eq!(world.informed(id, Liveness::Dead, |of| !other(of)).0, 0, "and to nobody on its own");
        }
        world.side.fill(0);
        world.run(4 * DEAD_AFTER);
        assert!((0..count).all(|id| world.is_known(id, Liveness::Alive)));
        assert_eq!(world.epochs().len(), 1, "all know the same");
    }
}

#[derive(Clone, Debug)]
enum Blow {
    Kill(u16),
    Halt(u16, u64),
    Cut(u16),
    Heal,
    Pass(u64),
}

fn blows() -> impl Strategy<Value = Vec<Blow>> {
    let blow = prop_oneof![
        1 => (0u16..8).prop_map(Blow::Kill),
        3 => (0u16..8, 0u64..30_000).prop_map(|(id, ms)| Blow::Halt(id, ms)),
        3 => (0u16..8).prop_map(Blow::Cut),
        2 => Just(Blow::Heal),
        6 => (0u64..20_000).prop_map(Blow::Pass),
    ];
    proptest::collection::vec(blow, 0..20)
}

/// Whatever happens: epochs never fall, the dead do not return, and when all is well again all agree on who lives.
fn agree_in_the_end(blows: Vec<Blow>, seed: u64, loss: u64) {
    let mut world = World::new(8, seed);
    world.lose_one_of = loss;
    let mut epochs = vec![1; 8];
    for blow in blows {
        match blow {
            Blow::Kill(id) if world.alive.iter().filter(|alive| **alive).count() > 2 => {
                world.alive[usize::from(id)] = false;
            }
            Blow::Kill(_) => {}
            Blow::Halt(id, ms) => world.still[usize::from(id)] = world.now + ms,
            Blow::Cut(id) => world.side[usize::from(id)] ^= 1,
            Blow::Heal => world.side.fill(0),
            Blow::Pass(ms) => world.run(ms),
        }
        for (node, epoch) in world.nodes.iter().zip(&mut epochs) {
            assert!(node.epoch(1) >= *epoch);
            *epoch = node.epoch(1);
        }
    }
    world.side.fill(0);
    world.lose_one_of = u64::MAX;
    world.run(30_000 + 20 * DEAD_AFTER);
    for id in 0..8 {
        let liveness = if world.alive[usize::from(id)] { Liveness::Alive } else { Liveness::Dead };
        assert!(world.is_known(id, liveness), "node {id} is not {liveness:?} to all");
    }
    assert_eq!(world.epochs().len(), 1);
}

/// The others know a later incarnation of a dead node than one that was cut off, and had said so often enough long ago.
#[test]
fn one_that_was_cut_off_hears_what_was_said_meanwhile() {
    let blows = [Blow::Cut(0), Blow::Halt(4, 2273), Blow::Pass(2277), Blow::Kill(4), Blow::Pass(4045)];
    agree_in_the_end(blows.to_vec(), 14_459_736_785_189_700_649, 24);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn they_agree_in_the_end(blows in blows(), seed: u64, loss in 4u64..50) {
        agree_in_the_end(blows, seed, loss);
    }
}
