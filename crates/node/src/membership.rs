//! Which nodes live: the protocol's state machine (crate `members`), and what carries its messages.
//!
//! One thread, shared by the nodes of a process (`rounds.rs`), waits for time to pass. What is to be sent goes on threads that end with their answer: there are a few per
//! period, and a node that does not answer must hold up nobody. Nothing runs unless nodes watch each other.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use bivouac_members::{Command, Event, Members, Options};
use bivouac_net::LivenessTable;
use bivouac_ranks::{Mutex, rank};
use bivouac_types::{FsResult, Liveness, News, NodeId};
use bivouac_wire::{Encode, NewsList, Operation, ProbeForRequest, Silent, op};

use crate::node::Node;
use crate::peers::PeerRequest;
use crate::rounds::{Next, Place, Round};

/// Messages that may be under way at a time; further ones are taken for lost.
const UNDER_WAY_MAX: usize = 64;
const STACK: usize = 256 << 10;

/// This node's part in it.
pub struct Membership {
    state: Mutex<State>,
    /// Where somebody comes when time has passed.
    place: OnceLock<Place>,
    since: Instant,
    /// How long a message may take.
    patience: Duration,
    liveness: Arc<LivenessTable>,
    node: OnceLock<Weak<Node>>,
    under_way: AtomicUsize,
}

struct State {
    members: Members,
    /// Since when something else than life is known of a node.
    since: HashMap<NodeId, Instant>,
    /// What the node has not been told yet, in order.
    untold: VecDeque<Turn>,
    /// Whether a thread is telling it: one at a time does.
    telling: bool,
    stopping: bool,
}

/// What a node has to do something about.
#[derive(Clone, Copy)]
enum Turn {
    Died(NodeId),
    Back(NodeId),
    /// Others knew that this node is dead, or might be, and have been told otherwise, with this incarnation.
    Accused(Liveness, u32),
}

/// A message to another node.
enum Outgoing {
    Probe(Vec<News>),
    ProbeFor(ProbeForRequest),
    Reached(ProbeForRequest),
    Tell(Vec<News>),
}

impl Membership {
    /// The part of `id` among `count`. With `dead_after`, nodes watch each other; without, it is only known who is said
    /// to be dead.
    pub fn new(
        id: NodeId,
        count: usize,
        dead_after: Option<Duration>,
        liveness: Arc<LivenessTable>,
    ) -> Membership {
        let options = match dead_after {
            Some(after) => Options::dead_after(u64::try_from(after.as_millis()).unwrap_or(u64::MAX)),
            None => Options::never(),
        };
        let seed = u64::from(std::process::id()) << 16 ^ u64::from(id.0);
        let members = Members::new(id, count, options, seed, 0);
        Membership {
            state: Mutex::new(rank::LEAF, State::new(members)),
            place: OnceLock::new(),
            since: Instant::now(),
            patience: Duration::from_millis(options.period_ms),
            liveness,
            node: OnceLock::new(),
            under_way: AtomicUsize::new(0),
        }
    }

    /// Starts to watch, if there is anybody to watch.
    pub fn start(&self, node: &Arc<Node>, round: &Arc<Round>) -> std::io::Result<()> {
        // Told once.
        let _ = self.node.set(Arc::downgrade(node));
        if self.state.lock().members.next_tick().is_none() {
            return Ok(());
        }
        let weak = Arc::downgrade(node);
        let place = round.join(move || weak.upgrade().map_or(Next::Never, |node| node.members.tick()))?;
        // Begun once.
        let _ = self.place.set(place);
        Ok(())
    }

    /// Ends the watching.
    pub fn stop(&self) {
        self.state.lock().stopping = true;
        self.place.get().map(Place::call);
    }

    /// The epoch of a map of this version, and the nodes that do not answer.
    pub fn summary(&self, version: u64) -> (u64, Vec<Silent>) {
        let state = self.state.lock();
        let silent = |news: &News| {
            let since = state.since.get(&news.node).map_or(Duration::ZERO, Instant::elapsed);
            let for_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
            Silent { node: news.node, liveness: news.liveness, for_ms }
        };
        let known = state.members.known().iter().filter(|news| news.liveness != Liveness::Alive);
        (state.members.epoch(version), known.map(silent).collect())
    }

    /// Whether nodes watch each other, and none of them has found this one dead.
    pub fn sees(&self, node: NodeId) -> bool {
        let state = self.state.lock();
        let known = state.members.known().get(usize::from(node.0));
        state.members.next_tick().is_some() && known.is_some_and(|news| news.liveness != Liveness::Dead)
    }

    /// Somebody who knows says that a node is dead and will not come back.
    pub fn lost(&self, node: NodeId) {
        self.handle(&[Event::Lost(node)]);
    }

    /// Takes what a node says, and answers with what there is to say to it.
    pub fn hear(&self, from: NodeId, news: &[News], also: Option<Event<'_>>) -> Vec<News> {
        let heard = Event::Heard { from, news };
        self.handle(&[Some(heard), also].into_iter().flatten().collect::<Vec<_>>());
        self.state.lock().members.news_for(from)
    }

    /// Does what is due; when to do so again.
    fn tick(&self) -> Next {
        let due = {
            let state = self.state.lock();
            if state.stopping {
                return Next::Never;
            }
            state.members.next_tick()
        };
        if due.is_some_and(|due| due <= self.now()) {
            self.handle(&[Event::Tick]);
        }
        self.state.lock().members.next_tick().map_or(Next::Called, |at| Next::At(self.moment(at)))
    }

    fn handle(&self, events: &[Event<'_>]) {
        let mut commands = Vec::new();
        let (before, after) = {
            let mut state = self.state.lock();
            let before = state.members.next_tick();
            let now = self.now();
            events.iter().for_each(|event| commands.extend(state.members.handle(now, event)));
            // In the order in which it became known: what is noted last is what counts.
            commands.iter().for_each(|command| state.note(command, &self.liveness));
            (before, state.members.next_tick())
        };
        if let (Some(place), Some(at)) = (self.place.get(), after.filter(|_| after < before)) {
            place.call_at(self.moment(at));
        }
        self.tell_node();
        commands.into_iter().for_each(|command| self.act(command));
    }

    fn act(&self, command: Command) {
        match command {
            Command::Probe { to, news } => self.send(to, Outgoing::Probe(news)),
            Command::Tell { to, news } => self.send(to, Outgoing::Tell(news)),
            Command::AskFor { to, target, news } => {
                self.send(to, Outgoing::ProbeFor(ProbeForRequest { target, news }));
            }
            Command::Report { to, target, news } => {
                self.send(to, Outgoing::Reached(ProbeForRequest { target, news }));
            }
            Command::Changed(_) | Command::Accused(_) => {} // noted
            Command::StoodStill(ms) => log::debug!("this node did not run for {ms} ms"),
        }
    }

    /// Others known that this node is dead, or might be, and have been told otherwise. What it has locked may belong to
    /// somebody else: first that is in doubt, and only then does what is begun count as begun later. Not later than that:
    /// the next accusation casts doubt of its own.
    fn defend(&self, accused: Liveness, incarnation: u32) {
        if accused != Liveness::Alive {
            log::warn!("other nodes took this one for {}", name(accused));
        }
        if let Some(node) = self.node.get().and_then(Weak::upgrade) {
            node.served.all().into_iter().filter_map(|served| served.locks).for_each(|locks| locks.doubt());
        }
        self.liveness.set_incarnation(incarnation);
    }

    /// Whether something may be done that a client of a node began under locks, with this token.
    pub fn admits(&self, node: NodeId, fence: u32) -> bool {
        let state = self.state.lock();
        let known = state.members.known().get(usize::from(node.0));
        known.is_none_or(|news| news.liveness != Liveness::Dead && fence > news.incarnation)
    }

    /// Tells the node what it has to do something about, unless another thread is at it: that one goes on.
    fn tell_node(&self) {
        let mut told = false;
        loop {
            // Not held while the node does something about it.
            let turn = self.state.lock().next_turn(told);
            let Some(turn) = turn else { return };
            told = true;
            let node = self.node.get().and_then(Weak::upgrade);
            match turn {
                Turn::Accused(liveness, incarnation) => self.defend(liveness, incarnation),
                Turn::Died(dead) => {
                    log::error!("{dead} is dead: files that need it give EIO, others go on");
                    node.inspect(|node| node.peer_is_dead(dead));
                }
                Turn::Back(back) => {
                    log::warn!("{back} is back");
                    node.inspect(|node| node.peer_is_alive(back));
                }
            }
        }
    }

    fn send(&self, to: NodeId, message: Outgoing) {
        let Some(node) = self.node.get().and_then(Weak::upgrade) else { return };
        if self.under_way.fetch_add(1, Ordering::AcqRel) >= UNDER_WAY_MAX {
            self.under_way.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let thread = std::thread::Builder::new().name("probe".into()).stack_size(STACK);
        let sent = thread.spawn({
            let node = Arc::clone(&node);
            move || {
                node.carry(to, &message);
                node.members.under_way.fetch_sub(1, Ordering::AcqRel);
            }
        });
        if sent.is_err() {
            self.under_way.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn moment(&self, at_ms: u64) -> Instant {
        self.since.checked_add(Duration::from_millis(at_ms)).unwrap_or_else(Instant::now)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl State {
    fn new(members: Members) -> State {
        State { members, since: HashMap::new(), untold: VecDeque::new(), telling: false, stopping: false }
    }

    /// Writes down what is known now.
    fn note(&mut self, command: &Command, table: &LivenessTable) {
        let news = match command {
            Command::Changed(news) => news,
            Command::Accused(liveness) => {
                let turn = Turn::Accused(*liveness, self.members.incarnation());
                return self.untold.push_back(turn);
            }
            _ => return,
        };
        let (node, is_dead) = (news.node, news.liveness == Liveness::Dead);
        match news.liveness {
            Liveness::Alive => drop(self.since.remove(&node)),
            Liveness::Suspect | Liveness::Dead => drop(self.since.insert(node, Instant::now())),
        }
        let was_dead = table.dead_for(node).is_some();
        table.set_dead(node, is_dead);
        match (was_dead, news.liveness) {
            (false, Liveness::Dead) => self.untold.push_back(Turn::Died(node)),
            (true, Liveness::Alive | Liveness::Suspect) => self.untold.push_back(Turn::Back(node)),
            _ => {}
        }
    }

    /// What the node is to be told next by the thread that asks, which may have told it something just now.
    fn next_turn(&mut self, told: bool) -> Option<Turn> {
        if self.telling && !told {
            return None;
        }
        let turn = self.untold.pop_front();
        self.telling = turn.is_some();
        turn
    }
}

impl Node {
    /// Sends a message and takes its answer.
    fn carry(&self, to: NodeId, message: &Outgoing) {
        let (answer, probe) = match message {
            Outgoing::Probe(news) => (self.exchange::<op::Probe>(to, &NewsList { news: news.clone() }), true),
            Outgoing::Tell(news) => (self.exchange::<op::Probe>(to, &NewsList { news: news.clone() }), false),
            Outgoing::ProbeFor(request) => (self.exchange::<op::ProbeFor>(to, request), false),
            Outgoing::Reached(request) => (self.exchange::<op::Reached>(to, request), false),
        };
        match answer {
            Ok(NewsList { news }) => {
                let heard = Event::Heard { from: to, news: &news };
                let answered = probe.then_some(Event::Answered(to));
                self.members.handle(&[Some(heard), answered].into_iter().flatten().collect::<Vec<_>>());
                self.peer_answers(to);
            }
            Err(error) => {
                log::debug!(why:% = error; "{to} was not reached");
                if probe {
                    self.members.handle(&[Event::Failed(to)]);
                }
            }
        }
    }

    fn exchange<O: Operation>(&self, to: NodeId, request: &O::Request<'_>) -> FsResult<O::Reply> {
        let body = request.to_bytes();
        let request = PeerRequest::of_node(self.id, O::OP, &body);
        self.peers.ask_within::<O>(Some(self.members.patience), to, &request)
    }
}

fn name(liveness: Liveness) -> &'static str {
    match liveness {
        Liveness::Alive => "alive",
        Liveness::Suspect => "perhaps dead",
        Liveness::Dead => "dead",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// A node that is just found dead may say at that moment that it lives, to another thread.
    #[test]
    fn what_came_last_is_what_counts() {
        let (other, table) = (NodeId(1), Arc::new(LivenessTable::new(2)));
        let members = Membership::new(NodeId(0), 2, None, Arc::clone(&table));
        for incarnation in 1..=500 {
            let begun = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    begun.store(true, Ordering::Release);
                    members.lost(other);
                });
                while !begun.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                let lives = News { node: other, incarnation, liveness: Liveness::Alive };
                // The same of this one, which has itself told.
                let accused =
                    News { node: NodeId(0), incarnation: 2 * incarnation, liveness: Liveness::Dead };
                members.hear(other, &[lives, accused], None);
            });
            let known = members.state.lock().members.known()[1].liveness;
            assert_eq!(table.dead_for(other).is_some(), known == Liveness::Dead, "round {incarnation}");
            assert_eq!(table.token(), 2 * incarnation + 2);
        }
    }
}
