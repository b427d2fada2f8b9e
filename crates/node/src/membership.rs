//! Failure detection among nodes: the protocol's state machine (crate `members`), and the threads that carry its
//! messages.
//!
//! One thread, shared by the nodes of a process (`rounds.rs`), calls the state machine when a time-out is due. Each
//! message is sent by a thread that ends with the answer: there are a few per period, and a node that does not answer
//! must not delay the others. Nothing runs unless nodes watch each other.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use bivouac_members::{Command, Event, Members, Options};
use bivouac_net::LivenessTable;
use bivouac_ranks::{Mutex, rank};
use bivouac_types::{Errno, FsResult, Liveness, MembershipUpdate, NodeId};
use bivouac_wire::{Encode, NewsList, Operation, ProbeForRequest, UnresponsiveNode, op};
use scopeguard::guard_on_unwind;

use crate::peers::{PeerLane, PeerRequest};
use crate::rounds::{NextVisit, Round, RoundPlace};

/// Messages that may be under way at a time; further ones are taken for lost.
const UNDER_WAY_MAX: usize = 64;
const STACK: usize = 256 << 10;
/// Time limit of a message where nodes do not watch each other.
const PATIENCE: Duration = Duration::from_secs(2);

/// Reactions of a node to the death or return of another one.
pub trait MembershipObserver: Send + Sync {
    /// Called when a node was declared dead.
    fn peer_is_dead(&self, node: NodeId);
    /// Called when a node that was declared dead is alive.
    fn peer_is_alive(&self, node: NodeId);
    /// Called after each answer of a node.
    fn peer_answers(&self, node: NodeId);
    /// Called when other nodes took this one for dead: the locks of its programs may have been granted to others.
    fn doubt_locks(&self);
}

/// The peers and the observer, which are there from the start of the node on.
struct Links {
    own: Weak<Membership>,
    peers: Arc<PeerLane>,
    observer: Weak<dyn MembershipObserver>,
}

/// One node in the membership protocol.
pub struct Membership {
    state: Mutex<MembershipState>,
    /// Registration with the thread that calls `tick` when a time-out is due.
    place: OnceLock<RoundPlace>,
    since: Instant,
    /// Time limit of a message.
    patience: Duration,
    liveness: Arc<LivenessTable>,
    links: OnceLock<Links>,
    under_way: AtomicUsize,
}

struct MembershipState {
    members: Members,
    /// When a node last became suspect or dead. Nodes that are alive are absent.
    since: HashMap<NodeId, Instant>,
    /// Notices that the observer has not been given yet, in order.
    pending: VecDeque<Notice>,
    /// Set while a thread gives notices to the observer; one at a time does.
    notifying: bool,
    stopping: bool,
}

/// A change that the observer or this node has to react to.
#[derive(Clone, Copy)]
enum Notice {
    Died(NodeId),
    Back(NodeId),
    /// Others took this node for suspect or dead, which was refuted with this incarnation.
    Accused(Liveness, u32),
}

/// A message under way. It is counted off however its thread ends, also by a panic.
struct CountedMessage(Arc<Membership>);

impl Drop for CountedMessage {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A message to another node.
enum Outgoing {
    Probe(Vec<MembershipUpdate>),
    ProbeFor(ProbeForRequest),
    Reached(ProbeForRequest),
    Tell(Vec<MembershipUpdate>),
}

impl Membership {
    /// Creates the state of `id` among `count` nodes. With `dead_after`, nodes watch each other; without, they only
    /// pass on which nodes are said to be dead.
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
        // Nodes of one process share its number, and are to probe others in orders of their own.
        let seed = u64::from(std::process::id()) << 16 ^ u64::from(id.0);
        let members = Members::new(id, count, options, seed, 0);
        Membership {
            state: Mutex::new(rank::LEAF, MembershipState::new(members)),
            place: OnceLock::new(),
            since: Instant::now(),
            // Who does not watch has something to say all the same: to a node that was started again.
            patience: if options.period_ms == 0 {
                PATIENCE
            } else {
                Duration::from_millis(options.period_ms)
            },
            liveness,
            links: OnceLock::new(),
            under_way: AtomicUsize::new(0),
        }
    }

    /// Starts to watch, if there is anybody to watch.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(
        self: &Arc<Self>,
        peers: Arc<PeerLane>,
        observer: Weak<dyn MembershipObserver>,
        round: &Arc<Round>,
    ) -> std::io::Result<()> {
        let own = Arc::downgrade(self);
        let is_first = self.links.set(Links { own: Weak::clone(&own), peers, observer }).is_ok();
        assert!(is_first, "a node takes part in the membership protocol twice");
        if self.state.lock().members.next_tick().is_none() {
            return Ok(());
        }
        let place = round.join(move || own.upgrade().map_or(NextVisit::Never, |own| own.tick()))?;
        assert!(self.place.set(place).is_ok(), "time passes twice for one node");
        Ok(())
    }

    /// Stops failure detection.
    pub fn stop(&self) {
        self.state.lock().stopping = true;
        self.place.get().map(RoundPlace::call);
    }

    /// Returns the epoch of a map of this version, and the nodes that are suspect or dead.
    pub fn summary(&self, version: u64) -> (u64, Vec<UnresponsiveNode>) {
        let state = self.state.lock();
        let silent = |news: &MembershipUpdate| {
            let since = state.since.get(&news.node).map_or(Duration::ZERO, Instant::elapsed);
            let for_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
            UnresponsiveNode { node: news.node, liveness: news.liveness, for_ms }
        };
        let known = state.members.known().iter().filter(|news| news.liveness != Liveness::Alive);
        (state.members.epoch(version), known.map(silent).collect())
    }

    /// Returns true if nodes watch each other and `node` is not known to be dead.
    pub fn sees(&self, node: NodeId) -> bool {
        let state = self.state.lock();
        let known = state.members.known().get(usize::from(node.0));
        state.members.next_tick().is_some() && known.is_some_and(|news| news.liveness != Liveness::Dead)
    }

    /// Records, for a caller that is certain of it, that a node is dead and will not come back.
    pub fn lost(&self, node: NodeId) {
        self.handle(&[Event::Lost(node)]);
    }

    /// Records that a node declared dead was restarted. It is told so, and refutes its death itself.
    pub fn returned(&self, node: NodeId) {
        self.handle(&[Event::Returned(node)]);
    }

    /// Records that the formation has so many nodes now.
    pub fn extend(&self, count: usize) {
        if count > self.state.lock().members.known().len() {
            self.liveness.extend(count);
            self.handle(&[Event::Joined(count)]);
        }
    }

    /// Returns the nodes that are known to be dead.
    pub fn dead(&self) -> Vec<NodeId> {
        self.liveness.dead()
    }

    /// Takes in updates of `from` and another event, if any; returns the updates that `from` lacks.
    pub fn hear(
        &self,
        from: NodeId,
        news: &[MembershipUpdate],
        also: Option<Event<'_>>,
    ) -> Vec<MembershipUpdate> {
        let heard = Event::Heard { from, news };
        self.handle(&[Some(heard), also].into_iter().flatten().collect::<Vec<_>>());
        self.state.lock().members.news_for(from)
    }

    /// Handles a time-out that is due, and returns when to call again.
    fn tick(&self) -> NextVisit {
        let due = {
            let state = self.state.lock();
            if state.stopping {
                return NextVisit::Never;
            }
            state.members.next_tick()
        };
        if due.is_some_and(|due| due <= self.now()) {
            self.handle(&[Event::Tick]);
        }
        self.state.lock().members.next_tick().map_or(NextVisit::Called, |at| NextVisit::At(self.moment(at)))
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
        // Only an earlier time-out has to wake the thread: a later one it finds when it wakes anyway.
        if let (Some(place), Some(at)) = (self.place.get(), after.filter(|_| after < before)) {
            place.call_at(self.moment(at));
        }
        self.notify();
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

    /// Reacts to an accusation that was refuted. Locks of this node's clients may have been granted to others
    /// meanwhile, so they become doubtful first. Only then does the incarnation rise, which is the fencing token of
    /// operations begun from now on: the other way round, an operation under a lost lock would carry a valid token. It
    /// rises before the next accusation is handled, which raises doubts of its own.
    fn defend(&self, accused: Liveness, incarnation: u32) {
        if accused != Liveness::Alive {
            log::warn!("other nodes took this one for {}", name(accused));
        }
        self.observer().inspect(|observer| observer.doubt_locks());
        self.liveness.set_incarnation(incarnation);
    }

    /// Returns true if an operation may be carried out that a client of `node` began under locks, with the fencing
    /// token `fence`: the node is not dead, and the token is newer than the node's last known incarnation.
    pub fn admits(&self, node: NodeId, fence: u32) -> bool {
        let state = self.state.lock();
        let known = state.members.known().get(usize::from(node.0));
        known.is_none_or(|news| news.liveness != Liveness::Dead && fence > news.incarnation)
    }

    /// Gives pending notices to the observer, in order. If another thread is doing so, returns at once: that thread
    /// gives these too.
    fn notify(&self) {
        let mut told = false;
        loop {
            // The state is not locked during the call: the observer may look at it.
            let notice = self.state.lock().next_notice(told);
            let Some(notice) = notice else { return };
            told = true;
            // Another thread goes on with the rest then.
            let _end = guard_on_unwind((), |()| self.state.lock().notifying = false);
            let observer = self.observer();
            match notice {
                Notice::Accused(liveness, incarnation) => self.defend(liveness, incarnation),
                Notice::Died(dead) => {
                    log::error!("{dead} is dead: files that need it give EIO, others go on");
                    observer.inspect(|observer| observer.peer_is_dead(dead));
                }
                Notice::Back(back) => {
                    log::warn!("{back} is back");
                    observer.inspect(|observer| observer.peer_is_alive(back));
                }
            }
        }
    }

    fn observer(&self) -> Option<Arc<dyn MembershipObserver>> {
        self.links.get().and_then(|links| links.observer.upgrade())
    }

    fn send(&self, to: NodeId, message: Outgoing) {
        // Nothing is sent for a node that has not started, or is gone.
        let Some(own) = self.links.get().and_then(|links| links.own.upgrade()) else { return };
        if self.under_way.fetch_add(1, Ordering::AcqRel) >= UNDER_WAY_MAX {
            self.under_way.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let own = CountedMessage(own);
        let thread = std::thread::Builder::new().name("probe".into()).stack_size(STACK);
        let work = move || {
            let counted = own;
            counted.0.carry(to, &message);
        };
        if let Err(error) = thread.spawn(work) {
            log::debug!(why:% = error; "{to} is not asked: no thread");
        }
    }

    fn moment(&self, at_ms: u64) -> Instant {
        self.since.checked_add(Duration::from_millis(at_ms)).unwrap_or_else(Instant::now)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl MembershipState {
    fn new(members: Members) -> MembershipState {
        MembershipState {
            members,
            since: HashMap::new(),
            pending: VecDeque::new(),
            notifying: false,
            stopping: false,
        }
    }

    /// Records a change in `since` and in `table`, and queues the notice of it.
    fn note(&mut self, command: &Command, table: &LivenessTable) {
        let news = match command {
            Command::Changed(news) => news,
            Command::Accused(liveness) => {
                let notice = Notice::Accused(*liveness, self.members.incarnation());
                return self.pending.push_back(notice);
            }
            _ => return,
        };
        let (node, is_dead) = (news.node, news.liveness == Liveness::Dead);
        match news.liveness {
            Liveness::Alive => drop(self.since.remove(&node)),
            Liveness::Suspect | Liveness::Dead => drop(self.since.insert(node, Instant::now())),
        }
        // Suspicion alone is no notice: only transitions to and from *dead* end waiting and locks.
        let was_dead = table.dead_for(node).is_some();
        table.set_dead(node, is_dead);
        match (was_dead, news.liveness) {
            (false, Liveness::Dead) => self.pending.push_back(Notice::Died(node)),
            (true, Liveness::Alive | Liveness::Suspect) => self.pending.push_back(Notice::Back(node)),
            _ => {}
        }
    }

    /// Returns the next notice for the calling thread, `None` if there is none or another thread is notifying. `told`
    /// says that the caller is the notifying thread, and has delivered its last notice.
    fn next_notice(&mut self, told: bool) -> Option<Notice> {
        assert!(self.notifying || !told, "two threads give the observer notices, in whichever order");
        if self.notifying && !told {
            return None;
        }
        let notice = self.pending.pop_front();
        self.notifying = notice.is_some();
        notice
    }
}

impl Membership {
    /// Sends a message, and feeds its answer or its failure to the state machine.
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
                self.handle(&[Some(heard), answered].into_iter().flatten().collect::<Vec<_>>());
                self.observer().inspect(|observer| observer.peer_answers(to));
            }
            Err(error) => {
                log::debug!(why:% = error; "{to} was not reached");
                if probe {
                    self.handle(&[Event::Failed(to)]);
                }
            }
        }
    }

    fn exchange<O: Operation>(&self, to: NodeId, request: &O::Request<'_>) -> FsResult<O::Reply> {
        let links = self.links.get().ok_or(Errno::ENOTCONN)?;
        let body = request.to_bytes();
        let request = PeerRequest::of_node(links.peers.id(), O::OP, &body);
        links.peers.ask_within::<O>(Some(self.patience), to, &request)
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
                let lives = MembershipUpdate { node: other, incarnation, liveness: Liveness::Alive };
                // The same of this one, which has itself told.
                let accused = MembershipUpdate {
                    node: NodeId(0),
                    incarnation: 2 * incarnation,
                    liveness: Liveness::Dead,
                };
                members.hear(other, &[lives, accused], None);
            });
            let known = members.state.lock().members.known()[1].liveness;
            assert_eq!(table.dead_for(other).is_some(), known == Liveness::Dead, "round {incarnation}");
            assert_eq!(table.token(), 2 * incarnation + 2);
        }
    }

    struct PanicsOnce(AtomicUsize);

    impl MembershipObserver for PanicsOnce {
        fn peer_is_dead(&self, _: NodeId) {
            assert!(self.0.fetch_add(1, Ordering::AcqRel) > 0, "a test's first notice");
        }
        fn peer_is_alive(&self, _: NodeId) {}
        fn peer_answers(&self, _: NodeId) {}
        fn doubt_locks(&self) {}
    }

    /// The thread that gave the notices was gone and counted as there: no death ended any waiting any more.
    #[test]
    fn a_notice_that_panics_keeps_back_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let peers = Arc::clone(&crate::testing::alone(dir.path()).peers);
        let members = Membership::new(NodeId(0), 3, None, Arc::new(LivenessTable::new(3)));
        let seen = Arc::new(PanicsOnce(AtomicUsize::new(0)));
        let observer: Arc<dyn MembershipObserver> = Arc::<PanicsOnce>::clone(&seen);
        let links = Links { own: Weak::new(), peers, observer: Arc::downgrade(&observer) };
        assert!(members.links.set(links).is_ok());
        std::thread::scope(|scope| scope.spawn(|| members.lost(NodeId(1))).join().unwrap_err());
        members.lost(NodeId(2));
        assert_eq!(seen.0.load(Ordering::Acquire), 2);
    }
}
