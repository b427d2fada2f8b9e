//! A home and its clients, with messages that take their time and cross, and with processes that are killed: nobody uses what
//! somebody else uses, what was begun goes on first, nobody reads copies that are older than what they are copies of, and
//! every call ends. The seeds of a failure are printed; `BIVOUAC_TOKENS_SEED` runs one of them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use bivouac_tokens::{
    CallId, GiveBack, Grant, KeptTokens, Manager, Poll, RESUME, Recall, RequestOutcome, TokenRequest, Yielded,
};
use bivouac_types::{ByteRange, ClientId, Ino, TokenMode};

const FILE: Ino = Ino(9);

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// For which call of which client another one is asked: one question at a time.
type Question = (ClientId, CallId, ClientId);

/// Use of bytes, and the epoch of the file that it is of.
type Use = (TokenMode, ByteRange, u32);

/// A token by file, as it is reclaimed.
type Reclaimed = (Ino, u32, TokenMode, ByteRange);

/// A request of a process of a client.
#[derive(Clone, Debug)]
struct Asking {
    client: ClientId,
    process: u64,
    call: CallId,
    wanted: TokenRequest,
    renews: bool,
}

#[derive(Clone, Debug)]
enum Message {
    Ask(Asking),
    /// With the number of reclaims when it was asked, and the life that grants.
    Granted(Asking, (u64, u64), u32, Grant),
    /// The home has waited for long enough.
    Queued(Asking),
    Recall(Question, u64, Recall),
    Yielded(Question, u64, Recall, Yielded),
    GiveBack(ClientId, u64, GiveBack),
    EndCall(ClientId, u64, CallId),
    Cancel(ClientId, CallId, Vec<ByteRange>),
    Spoil(ClientId, u64, CallId, ByteRange),
    Spoiled(ClientId, u64, CallId, ByteRange),
    /// With the life and the last grant that were seen.
    Reclaim(ClientId, u64, (u64, u64), Vec<Reclaimed>),
    Reclaimed(ClientId, u64, (u64, u64), Vec<(Ino, TokenMode, ByteRange)>),
}

/// Copies of bytes, as they were after so many writes.
type Copies = Vec<(ByteRange, usize)>;

/// A call that reads, and what it may keep: bytes that tokens covered when it began, and the count of drops and of writes then.
type Reading = (ByteRange, u64, usize);

struct Client {
    holder: KeptTokens,
    process: u64,
    copies: Copies,
    /// Number of times that copies were dropped.
    drops: u64,
    reading: HashMap<CallId, Reading>,
    /// Calls that have not begun.
    waiting: Vec<CallId>,
    /// Calls that use their range.
    running: BTreeMap<CallId, Use>,
    /// All calls: what they use, and whether an earlier process has begun them.
    calls: HashMap<CallId, (TokenMode, ByteRange, bool)>,
    left: u32,
    epoch: u32,
    /// As of `Home` in the client.
    life: u64,
    seen: u64,
    reclaims: u64,
    is_reclaiming: bool,
}

/// Numbers of things that go wrong.
#[derive(Clone, Copy, Default)]
struct Faults {
    /// Clients that the home takes for lost.
    losses: u32,
    /// Clients that go on as another process.
    restarts: u32,
    /// Homes that go on as another process.
    home_restarts: u32,
    /// Connections that break.
    breaks: u32,
    /// Calls that fail with messages under way.
    spoils: u32,
    /// Calls that do not wait any more.
    cancels: u32,
    /// Recalls after which a client has a copy still: nothing may go wrong that way.
    forgotten: u32,
}

struct World {
    random: Random,
    manager: Manager,
    life: u64,
    /// Clients that have not reclaimed their tokens since the home was restarted.
    awaited: BTreeSet<ClientId>,
    opens_at: Instant,
    clients: BTreeMap<ClientId, Client>,
    messages: Vec<Message>,
    questions: HashSet<Question>,
    /// Requests at which the home has to look again.
    waiting: Vec<Asking>,
    now: Instant,
    epoch: u32,
    /// Messages under way of processes and calls that have ended.
    ghosts: Vec<Use>,
    /// Calls that were interrupted and go on first.
    half_done: Vec<(ClientId, TokenMode, ByteRange)>,
    /// Calls that run and have lost their tokens.
    uncovered: HashSet<(ClientId, CallId)>,
    /// What was written, in order.
    writes: Vec<ByteRange>,
    /// Reads that copies have served, at least in part.
    hits: u64,
    size: u64,
    /// Most bytes of a call.
    longest: u64,
    /// Calls that nobody has begun.
    left: u64,
    sent: u64,
    recalls: u64,
    faults: Faults,
}

impl World {
    fn new(seed: u64, clients: u64, calls: u32, (size, longest): (u64, u64), faults: Faults) -> World {
        let now = Instant::now();
        // Every third one keeps nothing between its calls, as programs with the library do.
        let client = |id: u64| Client {
            holder: KeptTokens::new(!id.is_multiple_of(3), 0),
            process: 0,
            copies: Copies::new(),
            drops: 0,
            reading: HashMap::new(),
            waiting: Vec::new(),
            running: BTreeMap::new(),
            calls: HashMap::new(),
            left: calls,
            epoch: 0,
            life: 0,
            seen: 0,
            reclaims: 0,
            is_reclaiming: false,
        };
        World {
            random: Random(seed),
            manager: Manager::default(),
            life: 1,
            awaited: BTreeSet::new(),
            opens_at: now,
            clients: (1..=clients).map(|id| (ClientId(id), client(id))).collect(),
            messages: Vec::new(),
            questions: HashSet::new(),
            waiting: Vec::new(),
            now,
            epoch: 0,
            ghosts: Vec::new(),
            half_done: Vec::new(),
            uncovered: HashSet::new(),
            writes: Vec::new(),
            hits: 0,
            size,
            longest,
            left: clients * u64::from(calls),
            sent: 0,
            recalls: 0,
            faults,
        }
    }

    fn send(&mut self, message: Message) {
        self.sent += 1;
        self.recalls += u64::from(matches!(message, Message::Recall(..)));
        self.messages.push(message);
    }

    /// Nobody who is in the present epoch uses what somebody else uses; who is not is refused by the targets.
    fn check(&self) {
        let running = self.clients.values().flat_map(|client| client.running.values());
        let current: Vec<&Use> = running.chain(&self.ghosts).filter(|one| one.2 == self.epoch).collect();
        for (index, one) in current.iter().enumerate() {
            for other in &current[index + 1..] {
                let conflict = one.0.conflicts(other.0) && one.1.overlaps(&other.1);
                assert!(!conflict, "{one:?} and {other:?} at a time");
            }
        }
    }

    fn begin(&mut self, id: ClientId) {
        let mode = if self.random.below(2) == 0 { TokenMode::Read } else { TokenMode::Write };
        let (start, len) = (self.random.below(self.size), 1 + self.random.below(self.longest));
        let client = self.clients.get_mut(&id).unwrap();
        client.left -= 1;
        self.begin_call(id, (mode, ByteRange::at(start, len)), false);
        self.poll(id);
    }

    fn begin_call(&mut self, id: ClientId, (mode, range): (TokenMode, ByteRange), resumes: bool) {
        let client = self.clients.get_mut(&id).unwrap();
        let call = client.holder.begin(FILE, client.epoch, (mode, range), resumes);
        client.calls.insert(call, (mode, range, resumes));
        client.waiting.push(call);
        self.drop_uncovered(id);
    }

    /// Copies are dropped of what tokens have ceased to cover.
    fn drop_uncovered(&mut self, id: ClientId) {
        let uncovered = self.clients.get_mut(&id).unwrap().holder.take_uncovered();
        uncovered.into_iter().for_each(|(_, range)| self.drop_copies(id, range));
    }

    fn drop_copies(&mut self, id: ClientId, range: ByteRange) {
        let client = self.clients.get_mut(&id).unwrap();
        if self.faults.forgotten > 0 && client.copies.iter().any(|(copy, _)| copy.overlaps(&range)) {
            self.faults.forgotten -= 1;
            return;
        }
        client.drops += 1;
        let left = |(copy, at): (ByteRange, usize)| copy.without(&range).map(|part| (part, at));
        let copies = std::mem::take(&mut client.copies).into_iter().flat_map(left);
        client.copies = copies.filter(|(copy, _)| !copy.is_empty()).collect();
    }

    /// A call that reads has gone on: as far as tokens cover it and what is behind it, what it reads may be kept.
    fn begin_reading(&mut self, id: ClientId, call: CallId, range: ByteRange) {
        let more = self.random.below(2 * self.longest);
        let client = self.clients.get_mut(&id).unwrap();
        let range = ByteRange { end: range.end + more, ..range };
        let end = client.holder.covered_to(FILE, range);
        let kept = ByteRange { end, ..range };
        client.reading.insert(call, (kept, client.drops, self.writes.len()));
    }

    /// The targets have done a call of the present epoch.
    fn carry_out(&mut self, id: ClientId, call: CallId, (mode, range): (TokenMode, ByteRange)) {
        if mode == TokenMode::Write {
            self.writes.push(range);
            return self.drop_copies(id, range);
        }
        let client = self.clients.get_mut(&id).unwrap();
        let read = client.copies.iter().filter(|(copy, _)| copy.overlaps(&range));
        for (copy, at) in read.clone() {
            let is_newer = |write: &&ByteRange| write.overlaps(&copy.and(&range));
            let newer = self.writes[*at..].iter().find(is_newer);
            assert_eq!(newer, None, "{id:?} reads a stale copy of {copy}");
        }
        self.hits += u64::from(read.count() > 0);
        if let Some((kept, drops, at)) = client.reading.remove(&call)
            && drops == client.drops
        {
            let of_copies = client.copies.iter().map(|(copy, _)| *copy).collect::<Vec<_>>();
            let mut new = vec![kept];
            for copy in of_copies {
                new = new.iter().flat_map(|range| range.without(&copy)).collect();
            }
            client.copies.extend(new.into_iter().filter(|range| !range.is_empty()).map(|range| (range, at)));
        }
    }

    /// The file gets a new epoch: what was under way arrives before that, or never.
    fn fence(&mut self) {
        self.epoch += 1;
        let arrived = self.ghosts.drain(..).filter(|ghost| ghost.0 == TokenMode::Write);
        self.writes.extend(arrived.map(|ghost| ghost.1));
    }

    fn poll(&mut self, id: ClientId) {
        let client = self.clients.get_mut(&id).unwrap();
        let (mut sent, mut begun) = (Vec::new(), Vec::new());
        for call in std::mem::take(&mut client.waiting) {
            let (mode, range, resumes) = client.calls[&call];
            match client.holder.poll(FILE, call) {
                Poll::Go => {
                    client.running.insert(call, (mode, range, client.holder.epoch(FILE)));
                    begun.push((call, mode, range));
                    sent.push(Message::EndCall(id, client.process, call));
                }
                Poll::Ask(wanted) => {
                    let (process, renews) = (client.process, resumes);
                    sent.push(Message::Ask(Asking { client: id, process, call, wanted, renews }));
                }
                Poll::Wait => client.waiting.push(call),
            }
        }
        for (_, mode, range) in &begun {
            let goes_first = |one: &&(ClientId, TokenMode, ByteRange)| {
                one.0 != id && one.1.conflicts(*mode) && one.2.overlaps(range)
            };
            assert_eq!(self.half_done.iter().find(goes_first), None, "{id:?} comes first with {range}");
        }
        if !begun.is_empty() {
            self.check();
        }
        for (call, _, range) in begun.into_iter().filter(|(_, mode, _)| *mode == TokenMode::Read) {
            self.begin_reading(id, call, range);
        }
        sent.into_iter().for_each(|message| self.send(message));
    }

    fn give_back(&mut self, id: ClientId, given: Vec<GiveBack>) {
        self.drop_uncovered(id);
        let life = self.clients[&id].life;
        given.into_iter().for_each(|one| self.send(Message::GiveBack(id, life, one)));
    }

    /// The home gets a request, or looks at it again.
    fn ask(&mut self, asking: Asking) {
        let id = asking.client;
        if self.clients[&id].process != asking.process {
            return;
        }
        let is_open = self.awaited.is_empty() && (self.opens_at <= self.now || asking.renews);
        if self.clients[&id].is_reclaiming || !is_open {
            return self.waiting.push(asking);
        }
        let Asking { call, wanted, renews, .. } = &asking;
        match self.manager.ask(FILE, id, call.0, (wanted, *renews), self.now) {
            RequestOutcome::Granted(grant) => {
                let of = (self.clients[&id].reclaims, self.life);
                self.send(Message::Granted(asking, of, self.epoch, grant));
            }
            RequestOutcome::Fence(fence) => {
                self.fence();
                self.manager.fenced(FILE, fence);
                self.waiting.push(asking);
            }
            RequestOutcome::Recall(recalls) => {
                for recall in recalls {
                    let question = (id, *call, recall.client);
                    if self.questions.insert(question) {
                        self.send(Message::Recall(question, self.life, recall));
                    }
                }
                self.wait(asking);
            }
            RequestOutcome::Queued { .. } | RequestOutcome::Inherited { .. } => self.wait(asking),
        }
    }

    /// A request waits at the home, or has waited for long enough.
    fn wait(&mut self, asking: Asking) {
        match self.random.below(8) {
            0 => self.send(Message::Queued(asking)),
            _ => self.waiting.push(asking),
        }
    }

    fn fail(&mut self) -> bool {
        if self.random.below(100) != 0 {
            return false;
        }
        let id = ClientId(1 + self.random.below(self.clients.len() as u64));
        let kind = self.random.below(4);
        let left = match kind {
            0 => &mut self.faults.losses,
            1 => &mut self.faults.restarts,
            2 => &mut self.faults.home_restarts,
            _ => &mut self.faults.breaks,
        };
        if *left == 0 {
            return false;
        }
        *left -= 1;
        match kind {
            0 => self.lose(id),
            1 => self.restart(id),
            2 => self.restart_home(),
            _ => self.reclaim(id),
        }
        true
    }

    /// A message arrives, any of them: they overtake each other.
    fn step(&mut self) {
        self.now += Duration::from_micros(1);
        if self.left > 0 && (self.messages.is_empty() || self.random.below(8) == 0) {
            let number = self.clients.len() as u64;
            let first = self.random.below(number);
            let ids = (0..number).map(|step| ClientId(1 + (first + step) % number));
            let id = ids.into_iter().find(|id| self.clients[id].left > 0).unwrap();
            self.left -= 1;
            return self.begin(id);
        }
        if self.fail() {
            return;
        }
        if !self.waiting.is_empty() && (self.messages.is_empty() || self.random.below(16) == 0) {
            if self.messages.is_empty() {
                self.now += RESUME / 10;
            }
            let at = self.random.below(self.waiting.len() as u64) as usize;
            let asking = self.waiting.swap_remove(at);
            return self.ask(asking);
        }
        if self.messages.is_empty() {
            return;
        }
        let at = self.random.below(self.messages.len() as u64) as usize;
        let message = self.messages.swap_remove(at);
        self.arrive(message);
    }

    fn arrive(&mut self, message: Message) {
        match message {
            Message::Ask(asking) => self.ask(asking),
            Message::Granted(asking, of, epoch, grant) => self.granted(asking, of, epoch, &grant),
            Message::Queued(asking) => {
                let client = self.clients.get_mut(&asking.client).unwrap();
                if client.process != asking.process {
                    return;
                }
                if self.faults.cancels > 0 && !asking.renews {
                    self.faults.cancels -= 1;
                    let ranges = client.holder.give_up(FILE, asking.call);
                    let cancel = Message::Cancel(asking.client, asking.call, ranges);
                    self.send(cancel);
                    return self.ended(asking.client, asking.call);
                }
                let given = client.holder.queued(FILE, asking.call);
                client.holder.asks_again(FILE, asking.call);
                self.give_back(asking.client, given);
                self.poll(asking.client);
                self.send(Message::Ask(asking));
            }
            Message::Recall(question, life, recall) => {
                let yielded = self.recalled(question.2, life, &recall);
                self.drop_uncovered(question.2);
                self.send(Message::Yielded(question, life, recall, yielded));
            }
            Message::Yielded(question, life, recall, yielded) => {
                let id = question.2;
                self.questions.remove(&question);
                if life == self.life {
                    let given = yielded.given(&recall.wanted);
                    self.manager.yielded(FILE, id, recall.upto, recall.wanted.mode, &given);
                    if !yielded.gives_back {
                        self.manager.recall_ended(FILE, id);
                    }
                }
            }
            Message::GiveBack(id, life, given) if life == self.life => {
                self.manager.yielded(FILE, id, given.upto, given.mode, &given.ranges);
            }
            Message::GiveBack(..) => {}
            Message::Cancel(id, call, ranges) => self.manager.cancel(FILE, id, call.0, &ranges),
            Message::EndCall(id, process, call) if self.clients[&id].process == process => {
                self.end_call(id, call);
            }
            Message::EndCall(..) => {}
            Message::Spoil(id, process, call, range) => {
                if self.clients[&id].process == process {
                    self.manager.spoil(FILE, id, &[range]);
                    self.uncovered.insert((id, call));
                    self.send(Message::Spoiled(id, process, call, range));
                }
            }
            Message::Spoiled(id, process, call, range) if self.clients[&id].process == process => {
                let client = self.clients.get_mut(&id).unwrap();
                self.ghosts.extend(client.running.remove(&call));
                client.holder.spoil(FILE, range);
                self.ended(id, call);
            }
            Message::Spoiled(..) => {}
            Message::Reclaim(id, process, (life, seen), tokens) => {
                if self.clients[&id].process != process {
                    return;
                }
                let is_same = life == self.life;
                let tokens = tokens.into_iter().filter(|token| is_same || token.1 == self.epoch);
                let tokens: Vec<_> = tokens.map(|(ino, _, mode, range)| (ino, mode, range)).collect();
                let (serial, left) = self.manager.reclaim(id, is_same.then_some(seen), &tokens);
                self.heard(id);
                self.send(Message::Reclaimed(id, process, (self.life, serial), left));
            }
            Message::Reclaimed(id, process, (life, serial), tokens) => {
                let client = self.clients.get_mut(&id).unwrap();
                if client.process == process && life == self.life {
                    let given = client.holder.reclaimed(|_| true, serial, &tokens);
                    (client.life, client.seen, client.is_reclaiming) = (life, serial, false);
                    self.give_back(id, given);
                }
            }
        }
    }

    fn granted(&mut self, asking: Asking, of: (u64, u64), epoch: u32, grant: &Grant) {
        let (id, call) = (asking.client, asking.call);
        let client = self.clients.get_mut(&id).unwrap();
        if client.process != asking.process {
            return;
        }
        if client.reclaims != of.0 || ![0, of.1].contains(&client.life) {
            if client.life == of.1 {
                client.holder.discards(FILE, grant.serial);
            }
            client.holder.asks_again(FILE, call);
            return self.send(Message::Ask(asking));
        }
        (client.life, client.seen) = (of.1, client.seen.max(grant.serial));
        self.uncovered.remove(&(id, call));
        client.epoch = client.epoch.max(epoch);
        let given = client.holder.granted(FILE, call, epoch, grant);
        client.waiting.push(call);
        self.drop_uncovered(id);
        self.poll(id);
        // What it knows is what came with the grant: targets refuse what is older than they are.
        if let Some(running) = self.clients.get_mut(&id).unwrap().running.get_mut(&call) {
            running.2 = epoch;
        }
        self.give_back(id, given);
    }

    fn recalled(&mut self, id: ClientId, life: u64, recall: &Recall) -> Yielded {
        let waiting: Vec<CallId> = recall.waiting.iter().map(|id| CallId(*id)).collect();
        let client = self.clients.get_mut(&id).unwrap();
        let has_nothing = client.life == 0 && !client.is_reclaiming && !client.holder.is_asking(FILE);
        let is_elsewhere = client.is_reclaiming || client.life != life;
        // Processes with the library cannot be asked.
        if client.holder.keeps_nothing() || !has_nothing && is_elsewhere {
            let kept = [vec![recall.wanted.required], recall.wanted.desired.clone()].concat();
            return Yielded { kept, gives_back: false };
        }
        match has_nothing {
            true => Yielded::default(),
            false => client.holder.recall(FILE, recall.upto, &recall.wanted, &waiting),
        }
    }

    /// The targets have done what a call wanted, or refuse it.
    fn end_call(&mut self, id: ClientId, call: CallId) {
        let spoils = self.faults.spoils > 0 && self.random.below(10) == 0;
        let client = self.clients.get_mut(&id).unwrap();
        let Some((mode, range, epoch)) = client.running.get(&call).copied() else { return };
        let process = client.process;
        if epoch != self.epoch {
            // It goes on in front of all others, if it has lost nothing.
            client.running.remove(&call);
            client.calls.insert(call, (mode, range, true));
            let wanted = TokenRequest { mode, required: range, desired: vec![range] };
            return self.send(Message::Ask(Asking { client: id, process, call, wanted, renews: true }));
        }
        if spoils && mode == TokenMode::Write {
            self.faults.spoils -= 1;
            return self.send(Message::Spoil(id, process, call, range));
        }
        client.running.remove(&call);
        self.carry_out(id, call, (mode, range));
        self.ended(id, call);
    }

    fn ended(&mut self, id: ClientId, call: CallId) {
        let client = self.clients.get_mut(&id).unwrap();
        let (mode, range, _) = client.calls.remove(&call).unwrap();
        let given = client.holder.end(FILE, call);
        let half_done = self.half_done.iter().position(|one| *one == (id, mode, range));
        half_done.map(|at| self.half_done.swap_remove(at));
        self.give_back(id, given);
        self.poll(id);
    }

    /// The home takes a client for lost, and the client finds out when it sees the epoch.
    fn lose(&mut self, id: ClientId) {
        self.manager.lose(id);
        if self.awaited.contains(&id) {
            self.manager.lose_unknown();
        }
        self.half_done.retain(|one| one.0 != id);
        self.uncovered.extend(self.clients[&id].running.keys().map(|call| (id, *call)));
    }

    /// A client goes on as another process, which does once more what the earlier one had not finished.
    fn restart(&mut self, id: ClientId) {
        let client = self.clients.get_mut(&id).unwrap();
        if client.holder.keeps_nothing() {
            return;
        }
        client.process += 1;
        (client.copies, client.reading) = Default::default();
        client.holder = KeptTokens::new(true, client.process << 32);
        let running = std::mem::take(&mut client.running);
        let calls = std::mem::take(&mut client.calls);
        (client.life, client.seen, client.is_reclaiming) = (0, 0, false);
        client.waiting.clear();
        self.half_done.retain(|one| one.0 != id);
        // What it had lost was nobody's to go on with; and of an earlier daemon of the home nobody has reclaimed it.
        if self.awaited.is_empty() {
            let is_covered = |(call, one): &(&CallId, &Use)| {
                one.2 == self.epoch && !self.uncovered.contains(&(id, **call))
            };
            let covered = running.iter().filter(is_covered);
            self.half_done.extend(covered.map(|(_, (mode, range, _))| (id, *mode, *range)));
        }
        self.ghosts.extend(running.into_values());
        self.manager.restart(id, self.now);
        self.heard(id);
        let mut calls: Vec<_> = calls.into_iter().collect();
        calls.sort_by_key(|(call, _)| *call);
        for (_, (mode, range, _)) in calls {
            self.begin_call(id, (mode, range), true);
        }
        self.poll(id);
    }

    fn restart_home(&mut self) {
        self.manager = Manager::default();
        self.manager.lose_unknown();
        self.life += 1;
        self.questions.clear();
        self.half_done.clear();
        let is_at_home = |message: &Message| matches!(message, Message::Reclaim(..) | Message::Reclaimed(..));
        self.messages.retain(|message| !is_at_home(message));
        // Who waits there asks again.
        let waiting = std::mem::take(&mut self.waiting);
        waiting.into_iter().for_each(|asking| self.send(Message::Ask(asking)));
        self.awaited = self.clients.keys().copied().collect();
        for id in self.awaited.clone() {
            self.reclaim(id);
        }
    }

    /// A connection is made anew.
    fn reclaim(&mut self, id: ClientId) {
        let client = self.clients.get_mut(&id).unwrap();
        client.reclaims += 1;
        client.is_reclaiming = true;
        let tokens = client.holder.tokens(|_| true, 4096);
        let message = Message::Reclaim(id, client.process, (client.life, client.seen), tokens);
        self.send(message);
    }

    /// A client has said to a new daemon of the home what it has.
    fn heard(&mut self, id: ClientId) {
        if self.awaited.remove(&id) && self.awaited.is_empty() {
            self.opens_at = self.now + RESUME;
        }
    }

    fn run_to_end(mut self, steps_max: u64) -> World {
        for _ in 0..steps_max {
            if self.left == 0 && self.waiting.is_empty() && self.messages.is_empty() {
                let is_over = |client: &Client| client.waiting.is_empty() && client.calls.is_empty();
                assert!(self.clients.values().all(is_over), "a call waits for nothing");
                return self;
            }
            self.step();
        }
        panic!("calls do not end: {:?} {:?}", self.messages, self.waiting);
    }
}

fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("BIVOUAC_TOKENS_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..count).collect(),
    }
}

fn run(seed: u64, world: World, steps_max: u64) -> World {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run_to_end(steps_max)));
    outcome.unwrap_or_else(|cause| {
        eprintln!("BIVOUAC_TOKENS_SEED={seed} shows it");
        std::panic::resume_unwind(cause)
    })
}

/// Number of reads that copies have served in some runs.
fn hits(worlds: impl IntoIterator<Item = World>) -> u64 {
    worlds.into_iter().map(|world| world.hits).sum()
}

fn small(seed: u64, faults: Faults) -> World {
    World::new(seed, 2 + seed % 4, 12, (16, 5), faults)
}

#[test]
fn no_two_clients_use_the_same_bytes_and_every_call_ends() {
    let all = seeds(200);
    let count = all.len() as u64;
    let hits = hits(all.into_iter().map(|seed| run(seed, small(seed, Faults::default()), 200_000)));
    assert!(hits > count, "{hits} reads by copies in {count} runs");
}

#[test]
fn a_copy_that_outlives_a_recall_is_found() {
    let faults = Faults { forgotten: 1, ..Faults::default() };
    let is_found = |seed: u64| {
        let run = std::panic::AssertUnwindSafe(|| small(seed, faults).run_to_end(200_000));
        let cause = std::panic::catch_unwind(run).err();
        cause.is_some_and(|cause| cause.downcast_ref::<String>().is_some_and(|why| why.contains("stale")))
    };
    let found = (0..50).filter(|seed| is_found(*seed)).count();
    assert!(found >= 5, "a copy too many is found by {found} of 50 runs");
}

#[test]
fn who_is_lost_is_fenced_first() {
    for seed in seeds(200) {
        run(seed, small(seed, Faults { losses: 3, ..Faults::default() }), 200_000);
    }
}

#[test]
fn what_another_process_goes_on_with_comes_first() {
    for seed in seeds(150) {
        run(seed, small(seed, Faults { restarts: 3, ..Faults::default() }), 200_000);
    }
}

#[test]
fn failed_calls_are_fenced_before_their_bytes_are_used() {
    for seed in seeds(200) {
        run(seed, small(seed, Faults { spoils: 4, ..Faults::default() }), 200_000);
    }
}

#[test]
fn who_does_not_wait_any_more_is_not_waited_for() {
    for seed in seeds(150) {
        run(seed, small(seed, Faults { cancels: 6, ..Faults::default() }), 200_000);
    }
}

#[test]
fn tokens_outlive_connections_and_daemons() {
    for seed in seeds(150) {
        run(seed, small(seed, Faults { home_restarts: 2, breaks: 4, ..Faults::default() }), 400_000);
    }
}

#[test]
fn all_may_go_wrong_at_once() {
    for seed in seeds(150) {
        let faults = Faults {
            losses: 2,
            restarts: 2,
            home_restarts: 2,
            breaks: 3,
            spoils: 3,
            cancels: 3,
            forgotten: 0,
        };
        run(seed, small(seed, faults), 400_000);
    }
}

#[test]
fn a_thousand_clients_of_one_file() {
    for seed in seeds(2) {
        run(seed, World::new(seed, 1000, 2, (1 << 20, 1 << 11), Faults::default()), 50_000_000);
    }
}
