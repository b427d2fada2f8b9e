//! Which nodes live: the protocol's state machine (crate `members`), and what carries its messages.
//!
//! One thread, shared by the nodes of a process (`rounds.rs`), waits for time to pass. What is to be sent goes on threads that end with their answer: there are a few per
//! period, and a node that does not answer must hold up nobody. Nothing runs unless nodes watch each other.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use bivouac_members::{Command, Event, Members, Options};
use bivouac_net::Fates;
use bivouac_ranks::{Mutex, rank};
use bivouac_types::{Fate, FsResult, News, NodeId};
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
    fates: Arc<Fates>,
    node: OnceLock<Weak<Node>>,
    under_way: AtomicUsize,
}

struct State {
    members: Members,
    /// Since when something else than life is believed of a node.
    since: HashMap<NodeId, Instant>,
    stopping: bool,
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
    pub fn new(id: NodeId, count: usize, dead_after: Option<Duration>, fates: Arc<Fates>) -> Membership {
        let options = match dead_after {
            Some(after) => Options::dead_after(u64::try_from(after.as_millis()).unwrap_or(u64::MAX)),
            None => Options::never(),
        };
        let seed = u64::from(std::process::id()) << 16 ^ u64::from(id.0);
        let members = Members::new(id, count, options, seed, 0);
        Membership {
            state: Mutex::new(rank::LEAF, State { members, since: HashMap::new(), stopping: false }),
            place: OnceLock::new(),
            since: Instant::now(),
            patience: Duration::from_millis(options.period_ms),
            fates,
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
            Silent { node: news.node, fate: news.fate, for_ms }
        };
        let believed = state.members.believed().iter().filter(|news| news.fate != Fate::Alive);
        (state.members.epoch(version), believed.map(silent).collect())
    }

    /// Whether nodes watch each other, and none of them has found this one dead.
    pub fn sees(&self, node: NodeId) -> bool {
        let state = self.state.lock();
        let believed = state.members.believed().get(usize::from(node.0));
        state.members.next_tick().is_some() && believed.is_some_and(|news| news.fate != Fate::Dead)
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
            (before, state.members.next_tick())
        };
        if let (Some(place), Some(at)) = (self.place.get(), after.filter(|_| after < before)) {
            place.call_at(self.moment(at));
        }
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
            Command::Changed(news) => self.note(news),
            Command::Accused(fate) => self.defend(fate),
            Command::StoodStill(ms) => log::debug!("this node did not run for {ms} ms"),
        }
    }

    /// Others believed that this node is dead, or might be, and have been told otherwise. What it has locked may belong to
    /// somebody else: first that is in doubt, and only then does what is begun count as begun later.
    fn defend(&self, accused: Fate) {
        if accused != Fate::Alive {
            log::warn!("other nodes took this one for {}", name(accused));
        }
        if let Some(node) = self.node.get().and_then(Weak::upgrade) {
            node.advisory.doubt();
        }
        let incarnation = self.state.lock().members.incarnation();
        self.fates.set_incarnation(incarnation);
    }

    /// Whether something may be done that a client of a node began under locks, with this token.
    pub fn admits(&self, node: NodeId, fence: u32) -> bool {
        let state = self.state.lock();
        let believed = state.members.believed().get(usize::from(node.0));
        believed.is_none_or(|news| news.fate != Fate::Dead && fence > news.incarnation)
    }

    /// Something else is believed of a node than before.
    fn note(&self, news: News) {
        {
            let since = &mut self.state.lock().since;
            match news.fate {
                Fate::Alive => drop(since.remove(&news.node)),
                Fate::Suspect | Fate::Dead => drop(since.insert(news.node, Instant::now())),
            }
        }
        let was_dead = self.fates.dead_for(news.node).is_some();
        self.fates.set_dead(news.node, news.fate == Fate::Dead);
        let Some(node) = self.node.get().and_then(Weak::upgrade) else { return };
        match news.fate {
            Fate::Dead => {
                log::error!("{} is dead: files that need it give EIO, others go on", news.node);
                node.peer_is_dead(news.node);
            }
            Fate::Alive if was_dead => {
                log::warn!("{} is back", news.node);
                node.peer_is_alive(news.node);
            }
            Fate::Alive | Fate::Suspect => log::debug!("{} is {}", news.node, name(news.fate)),
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
                log::debug!("{to} was not reached: {error}");
                if probe {
                    self.members.handle(&[Event::Failed(to)]);
                }
            }
        }
    }

    fn exchange<O: Operation>(&self, to: NodeId, request: &O::Request<'_>) -> FsResult<O::Reply> {
        let body = request.to_bytes();
        let request = PeerRequest::of_node(self.id, O::OP, &body);
        self.ask_within::<O>(Some(self.members.patience), to, &request)
    }
}

fn name(fate: Fate) -> &'static str {
    match fate {
        Fate::Alive => "alive",
        Fate::Suspect => "perhaps dead",
        Fate::Dead => "dead",
    }
}
