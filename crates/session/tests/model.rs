//! Two clients and a node that lose connections, messages and memory, as a model: requests stay under way over
//! connections that only the node believes in, and arrive behind their own retransmissions. What is asserted: an
//! acknowledged change was carried out once, any other one at most once; a retransmitted write undoes nothing that was
//! written since; a file that a client has open is known to be open, or that client is waited for; and in the end
//! nothing else seems to be open.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use bivouac_session::{
    ClientReplies, ClientTable, Connection, FloorOrder, GenerationMatch, KnownReply, NewestGeneration,
    OpenNumbers, OpenTable, OpensUnderWay, ReclaimedOpens, Verdict, Work, judge_request,
};
use bivouac_types::{ClientId, Ino, OpId, OpenId};

const CLIENTS: usize = 2;
const CHANNELS: usize = 3;
const INODES: u64 = 3;
const GRACE: Duration = Duration::from_secs(10);
const STEPS: u32 = 400;
/// Seeds that found faults: an open behind one that was under way was closed, and the close was lost.
const KEPT: [u64; 1] = [1_004_662];

/// A fault of the node that the model has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// Requests of superseded connections are carried out.
    AllGenerationsCount,
    /// Retransmitted changes are not looked for.
    NoOutcomes,
    /// Replies to writes are not kept.
    NoReplies,
    /// Opens that were overtaken count.
    NoFloor,
    /// What is open is not said again after connecting anew.
    NoReclaim,
    /// All opens from the floor on are taken for under way.
    OnlyTheFloor,
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    /// A change of records.
    Change,
    /// A write of the one shared block.
    Write,
    Open {
        ino: Ino,
        open: OpenId,
        floor: OpenId,
    },
    Close {
        ino: Ino,
        open: OpenId,
        floor: OpenId,
    },
}

#[derive(Clone, Copy, Debug)]
struct Message {
    client: usize,
    channel: usize,
    /// Number of the generation of its connection.
    generation: u64,
    op: OpId,
    is_retransmission: bool,
    body: Body,
}

/// An operation of a client's channel that awaits its answer.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    op: OpId,
    body: Body,
}

struct Client {
    generation: u64,
    next_op: u64,
    channels: [Option<Awaited>; CHANNELS],
    numbers: OpenNumbers,
    held: Vec<(Ino, OpenId)>,
    closed: Vec<(Ino, OpenId)>,
}

/// What a node has in memory.
#[derive(Default)]
struct Memory {
    newest: [NewestGeneration; CLIENTS],
    current: [u64; CLIENTS],
    replies: [ClientReplies<u64>; CLIENTS],
    sessions: ClientTable,
    opens: OpenTable,
}

struct World {
    random: Random,
    planted: Planted,
    now: Instant,
    clients: [Client; CLIENTS],
    node: Memory,
    /// Durable: the last change of each channel, and who may have files open.
    outcomes: HashMap<(usize, usize), OpId>,
    logged: HashSet<ClientId>,
    requests: Vec<Message>,
    /// Writes that are being carried out, and have yet to get their lock.
    running: Vec<Message>,
    answers: Vec<Message>,
    /// How often each operation was carried out.
    carried_out: BTreeMap<(usize, u64), u32>,
    /// Writes in the order in which they were acknowledged, and the last one that was carried out.
    block: Option<(usize, u64)>,
    overwritten: HashSet<(usize, u64)>,
    /// Writes that were under way when the node was killed: they may be carried out again.
    exempt: HashSet<(usize, u64)>,
}

fn id(client: usize) -> ClientId {
    ClientId(client as u64 + 1)
}

type Checked = Result<(), String>;

impl World {
    fn new(seed: u64, planted: Planted) -> World {
        let client = |_| Client {
            generation: 0,
            next_op: 1,
            channels: [None; CHANNELS],
            numbers: OpenNumbers::new(OpenId(2)),
            held: Vec::new(),
            closed: Vec::new(),
        };
        let mut world = World {
            random: Random(seed),
            planted,
            now: Instant::now(),
            clients: std::array::from_fn(client),
            node: Memory::default(),
            outcomes: HashMap::new(),
            logged: HashSet::new(),
            requests: Vec::new(),
            running: Vec::new(),
            answers: Vec::new(),
            carried_out: BTreeMap::new(),
            block: None,
            overwritten: HashSet::new(),
            exempt: HashSet::new(),
        };
        (0..CLIENTS).for_each(|client| world.connect(client));
        world
    }

    fn run(mut self) -> Checked {
        for _ in 0..STEPS {
            self.step()?;
            self.check_opens()?;
        }
        self.settle()
    }

    fn step(&mut self) -> Checked {
        let client = self.random.below(CLIENTS);
        match self.random.below(20) {
            0..=6 => self.send_new(client),
            7..=11 => self.deliver()?,
            12..=14 => self.finish_write()?,
            15..=17 => self.hear_answer(),
            18 => match self.random.below(4) {
                0..=2 => self.connect(client),
                _ => self.expire(client),
            },
            _ if self.random.below(4) == 0 => self.kill_node(),
            _ => self.lose_something(),
        }
        Ok(())
    }

    /// A channel without an operation begins one.
    fn send_new(&mut self, client: usize) {
        let channel = self.random.below(CHANNELS);
        if self.clients[client].channels[channel].is_some() {
            return;
        }
        let kind = self.random.below(5);
        let ino = Ino(self.random.below(INODES as usize) as u64 + 1);
        let this = &mut self.clients[client];
        let body = match kind {
            0 | 1 => Body::Change,
            2 => Body::Write,
            3 => {
                let open = this.numbers.begin(false);
                Body::Open { ino, open, floor: this.numbers.floor() }
            }
            _ => {
                let Some((ino, open)) = this.held.pop() else { return };
                this.closed.push((ino, open));
                Body::Close { ino, open, floor: this.numbers.floor() }
            }
        };
        let op = OpId(this.next_op);
        this.next_op += 1;
        // Nobody waits for a close.
        if !matches!(body, Body::Close { .. }) {
            this.channels[channel] = Some(Awaited { op, body });
        }
        let generation = this.generation;
        self.requests.push(Message { client, channel, generation, op, is_retransmission: false, body });
    }

    /// A request arrives: any of those under way, since each has a connection of its own.
    fn deliver(&mut self) -> Checked {
        if self.requests.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.requests.len());
        let message = self.requests.remove(at);
        let Message { client, channel, op, is_retransmission, body, .. } = message;
        let is_superseded = self.is_superseded(&message);
        self.node.sessions.finish_reclaim(id(client));
        match body {
            Body::Change => {
                let last = self.outcomes.get(&(client, channel)).copied();
                let found = last.filter(|last| *last == op && self.planted != Planted::NoOutcomes);
                match judge_request(is_superseded, is_retransmission, || found.map(|op| op.0)) {
                    Verdict::Superseded => return Ok(()),
                    Verdict::Replay(value) => assert_eq!(value, op.0),
                    Verdict::CarryOut => {
                        self.outcomes.insert((client, channel), op);
                        self.carry_out(client, op)?;
                    }
                }
                self.answers.push(message);
            }
            Body::Write => match self.node.replies[client].find(op) {
                KnownReply::Given(reply) => {
                    assert_eq!(reply, op.0.to_le_bytes());
                    self.answers.push(message);
                }
                // It waits, here for ever: its client asks again.
                KnownReply::Awaited => {}
                KnownReply::None => {
                    self.node.replies[client].begin(op);
                    self.running.push(message);
                }
            },
            Body::Open { ino, open, floor } => {
                self.note(client);
                self.raise_floor(client, floor);
                let is_below = open < self.node.sessions.floor(id(client));
                if (is_superseded || is_below) && self.planted != Planted::NoFloor {
                    return Ok(());
                }
                self.node.opens.add(ino, id(client), open);
                self.answers.push(message);
            }
            Body::Close { ino, open, floor } => {
                self.raise_floor(client, floor);
                self.node.opens.remove(ino, id(client), open);
            }
        }
        Ok(())
    }

    /// A write gets its lock.
    fn finish_write(&mut self) -> Checked {
        if self.running.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.running.len());
        let message = self.running.remove(at);
        let Message { client, channel, generation, op, .. } = message;
        let is_superseded = self.is_superseded(&message);
        if is_superseded {
            self.node.replies[client].end(op);
            return Ok(());
        }
        if !self.exempt.contains(&(client, op.0)) {
            self.carry_out(client, op)?;
            if self.overwritten.contains(&(client, op.0)) {
                return Err(format!("write {} of client {client} undoes a later one", op.0));
            }
        }
        self.overwritten.extend(self.block.replace((client, op.0)));
        let slot = channel as i32;
        let over = Connection { slot, generation: &generation, is_superseded };
        if self.planted == Planted::NoReplies {
            self.node.replies[client].end(op);
        } else {
            self.node.replies[client].answer(over, op, op.0.to_le_bytes().to_vec(), (self.now, GRACE));
        }
        self.answers.push(message);
        Ok(())
    }

    fn carry_out(&mut self, client: usize, op: OpId) -> Checked {
        let times = self.carried_out.entry((client, op.0)).or_default();
        *times += 1;
        if *times == 1 {
            Ok(())
        } else {
            Err(format!("request {} of client {client} is carried out twice", op.0))
        }
    }

    /// A client gets an answer, over a connection that it still has.
    fn hear_answer(&mut self) {
        if self.answers.is_empty() {
            return;
        }
        let at = self.random.below(self.answers.len());
        let Message { client, channel, generation, op, .. } = self.answers.remove(at);
        let this = &mut self.clients[client];
        let awaited =
            this.channels[channel].filter(|awaited| awaited.op == op && generation == this.generation);
        let Some(Awaited { body, .. }) = awaited else { return };
        this.channels[channel] = None;
        if let Body::Open { ino, open, .. } = body {
            this.held.push((ino, open));
            this.numbers.end(open);
        }
    }

    /// A client lost its connections, or believes so, and connects anew. What was under way over the others may be
    /// lost, or arrive later.
    fn connect(&mut self, client: usize) {
        let this = &mut self.clients[client];
        this.generation += 1;
        let generation = this.generation;
        match self.node.newest[client].join((0, generation)) {
            GenerationMatch::Newer => self.node.current[client] = generation,
            joined => assert_eq!(joined, GenerationMatch::Newer, "its number is above all before"),
        }
        self.node.sessions.connect(id(client));
        if self.planted != Planted::NoReclaim {
            self.reclaim(client);
        }
        for channel in 0..CHANNELS {
            let Some(Awaited { op, body }) = self.clients[client].channels[channel] else { continue };
            self.requests.push(Message { client, channel, generation, op, is_retransmission: true, body });
        }
    }

    /// A client says what it has open.
    fn reclaim(&mut self, client: usize) {
        let (held, mut under_way) =
            (self.clients[client].held.clone(), self.clients[client].numbers.under_way());
        if self.planted == Planted::OnlyTheFloor {
            under_way = OpensUnderWay::above(under_way.floor);
        }
        if !held.is_empty() {
            self.note(client);
        }
        let id = id(client);
        assert!(self.node.sessions.begin(id, Work::Reclaim), "nobody else is at work");
        self.node.sessions.tell(id, true, held).unwrap();
        let told = self.node.sessions.take_told(id);
        self.raise_floor(client, under_way.floor);
        self.replace(client, &told, &under_way);
        self.node.sessions.end_work(id);
    }

    fn replace(&mut self, client: usize, told: &ReclaimedOpens, under_way: &OpensUnderWay) {
        let stays = |ino: Ino, open: OpenId| under_way.may_have(open) || told.contains(&(ino, open));
        self.node.opens.retain_of(id(client), stays);
        told.iter().for_each(|(ino, open)| self.node.opens.add(*ino, id(client), *open));
        self.node.sessions.finish_reclaim(id(client));
    }

    fn raise_floor(&mut self, client: usize, floor: OpenId) {
        let order = self.node.sessions.raise_floor(id(client), floor);
        assert_ne!(order, FloorOrder::OfAnotherProcess, "there is one");
    }

    fn note(&mut self, client: usize) {
        if !self.node.sessions.is_logged(id(client)) {
            self.logged.insert(id(client));
            self.node.sessions.log(id(client));
        }
    }

    fn is_superseded(&self, message: &Message) -> bool {
        message.generation != self.node.current[message.client]
            && self.planted != Planted::AllGenerationsCount
    }

    /// The node takes a client for gone, whose connections carry nothing for so long; it connects anew.
    fn expire(&mut self, client: usize) {
        self.node.sessions.disconnect(id(client), self.now + GRACE);
        self.now += 2 * GRACE;
        while let Some(ended) = self.node.sessions.expire(self.now) {
            let gone = ended.0 as usize - 1;
            self.node.current[gone] = 0;
            self.node.opens.retain_of(ended, |_, _| false);
            self.node.replies[gone].forget();
            self.logged.remove(&ended);
            self.node.sessions.remove(ended);
            self.node.sessions.end_work(ended);
        }
        // So long nobody waits for an answer: what is under way is given up, with its connection.
        for client in 0..CLIENTS {
            for channel in 0..CHANNELS {
                let this = &mut self.clients[client];
                if let Some(Awaited { body: Body::Open { open, .. }, .. }) = this.channels[channel].take() {
                    this.numbers.end(open);
                }
            }
            self.connect(client);
        }
    }

    /// The node's daemon is killed, and started again. What was under way is lost with the connections.
    fn kill_node(&mut self) {
        for (client, this) in self.clients.iter().enumerate() {
            let writes = this.channels.iter().flatten().filter(|awaited| awaited.body == Body::Write);
            self.exempt.extend(writes.map(|awaited| (client, awaited.op.0)));
        }
        self.node = Memory::default();
        self.logged.iter().for_each(|client| self.node.sessions.adopt(*client, self.now + GRACE));
        for under_way in [&mut self.requests, &mut self.running, &mut self.answers] {
            under_way.clear();
        }
        (0..CLIENTS).for_each(|client| self.connect(client));
    }

    /// A message of a connection that its client does not have any more is lost.
    fn lose_something(&mut self) {
        let clients = &self.clients;
        let is_former = |message: &Message| message.generation != clients[message.client].generation;
        if let Some(at) = self.requests.iter().position(is_former) {
            self.requests.remove(at);
        }
    }

    /// What a client has open is not removed: it is known to be open, or the client is waited for.
    fn check_opens(&self) -> Checked {
        let awaited = self.node.sessions.awaiting();
        for (client, this) in self.clients.iter().enumerate() {
            let is_known =
                |ino: Ino| self.node.opens.is_held(ino, id(client)) || awaited.contains(&id(client));
            if let Some((ino, _)) = this.held.iter().find(|(ino, _)| !is_known(*ino)) {
                return Err(format!("inode {ino}, which client {client} has open, does not seem to be open"));
            }
        }
        Ok(())
    }

    /// Nothing is lost any more, and the clients close everything.
    fn settle(mut self) -> Checked {
        let is_busy = |world: &World| {
            let awaits =
                world.clients.iter().flat_map(|client| client.channels).any(|awaited| awaited.is_some());
            awaits || !world.requests.is_empty() || !world.running.is_empty()
        };
        let mut turns = 0;
        while is_busy(&self) {
            self.deliver()?;
            self.finish_write()?;
            self.hear_answer();
            turns += 1;
            // A retransmission that waits for one that was refused.
            if turns % 100 == 0 {
                (0..CLIENTS).for_each(|client| self.connect(client));
            }
            if turns > 100_000 {
                return Err("an operation gets no answer".into());
            }
        }
        // A close that was lost went with its connection: the client has said since what it has open.
        let held: usize = self.clients.iter().map(|client| client.held.len()).sum();
        if self.node.opens.opens() != held {
            return Err(format!("{held} files are open, and {} seem to be", self.node.opens.opens()));
        }
        let unfinished = |(client, this): (usize, &Client)| {
            let carried_out = &self.carried_out;
            (1..this.next_op).find(|op| carried_out.get(&(client, *op)).is_some_and(|times| *times != 1))
        };
        match self.clients.iter().enumerate().find_map(unfinished) {
            Some(op) => Err(format!("request {op} was not carried out once")),
            None => Ok(()),
        }
    }
}

#[test]
fn requests_are_carried_out_once_and_opens_end() {
    for seed in (0..4000).chain(KEPT) {
        World::new(seed, Planted::Nothing).run().unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn planted_faults_are_found() {
    use Planted::{AllGenerationsCount, NoFloor, NoOutcomes, NoReclaim, NoReplies, OnlyTheFloor};
    for planted in [AllGenerationsCount, NoOutcomes, NoReplies, NoFloor, NoReclaim, OnlyTheFloor] {
        let found = KEPT.into_iter().chain(0..4000).any(|seed| World::new(seed, planted).run().is_err());
        assert!(found, "{planted:?}");
    }
}
