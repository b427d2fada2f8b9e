//! Nodes and clients of a run: real code on simulated hosts.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bivouac_client::{Client, ClientOptions, NewInode};
use bivouac_net::{
    Address, Auth, Identity, LaneKind, Listener, LivenessTable, Peer, PeerOptions, Secret, Server,
    ServerOptions, Transport,
};
use bivouac_node::{NetPeers, Node, NodeConfig, Past, Patience, Rounds, SystemClock};
use bivouac_sim_kernel as sim;
use bivouac_store::VolumeConfig;
use bivouac_types::limits::PAGE_POOL_MIN;
use bivouac_types::{ClientId, Errno, FormationId, FsError, FsResult, Ino, NodeId, SpreadAt, mode};
use bivouac_wire::{FormationMap, NodeEntry, SeatEntry};

use crate::history::Said;
use crate::scenario::{BLOCKS, Deed, Mishap, NAMES, STRIPES, Scenario};

/// Bytes of a stripe; a block is a part of it.
const STRIPE: usize = 4096;
const BLOCK: usize = STRIPE / BLOCKS as usize;
/// Bytes of a record that is appended.
const RECORD: usize = 64;
/// How long clients and nodes wait for a node that does not answer.
const WAIT: Duration = Duration::from_secs(10);
/// How long clients that are gone may take to come back.
const GRACE: Duration = Duration::from_secs(12);
/// Longest simulated time that an operation may take.
const DEED_MAX: Duration = Duration::from_secs(300);
/// After how long a server notices at the latest that a connection is no more.
const UNNOTICED_MAX: Duration = Duration::from_secs(95);
const SLOTS: u16 = 64;

/// What an operation saw.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It is not known what came of it.
    Unknown,
    /// Nothing was changed, and nothing seen.
    Nothing,
    /// Done, or refused.
    Said(Said),
    /// An inode: its number, and whether it is a directory.
    Found(Option<(u64, bool)>),
    /// Marks of a stripe.
    Marks(Vec<u32>),
    /// The marks of all records.
    Records(Vec<u32>),
    /// A value, if it is there.
    Value(Option<u32>),
}

/// One operation of the run.
#[derive(Clone, Debug)]
pub struct Done {
    /// What was done.
    pub deed: Deed,
    /// The mark of what it wrote.
    pub mark: u32,
    /// Steps of its call and its return.
    pub call: u64,
    /// None while it is under way.
    pub ret: Option<u64>,
    /// What came of it.
    pub outcome: Outcome,
    /// What a name that was linked led to.
    pub linked: Option<(u64, bool)>,
}

/// What all threads of the run share. Taken for a moment only, in which nobody else goes on.
#[derive(Default)]
struct State {
    history: Vec<Done>,
    /// By actor, what it has still to do, last first.
    todo: Vec<Vec<Deed>>,
    begun: u16,
    /// When the last deed began, in steps.
    begun_at: u64,
    marks: u32,
    /// By client: its process, and how many of its actors are not done.
    clients: Vec<(u32, usize)>,
    client_numbers: u64,
    nodes: Vec<Daemon>,
    faults: Vec<crate::scenario::Fault>,
    /// What ends when: simulated time, and what.
    ends: Vec<(Duration, End)>,
    calm: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    Cut,
    Disk(u8),
}

struct Daemon {
    process: u32,
    start_at: Option<Duration>,
    /// Its server side, of the daemon that runs; never dropped.
    node: Option<&'static Arc<Node>>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);
/// Where those wait who look after nodes and clients.
const NEWS: usize = 1;

fn state() -> StateGuard {
    StateGuard(STATE.lock().unwrap_or_else(PoisonError::into_inner))
}

struct StateGuard(MutexGuard<'static, Option<State>>);

impl std::ops::Deref for StateGuard {
    type Target = State;
    fn deref(&self) -> &State {
        self.0.as_ref().unwrap_or_else(|| sim::fail("there is no world"))
    }
}

impl std::ops::DerefMut for StateGuard {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().unwrap_or_else(|| sim::fail("there is no world"))
    }
}

/// What a run is made of.
pub struct World {
    scenario: Scenario,
    map: Arc<FormationMap>,
    auth: Auth,
    root: PathBuf,
    listeners: Vec<(Listener, Listener)>,
}

fn host_of_client(scenario: &Scenario, client: u8) -> u32 {
    u32::from(scenario.nodes) + 1 + u32::from(client)
}

impl World {
    /// Hosts, listeners and an empty formation. Volumes are below `root`.
    pub fn new(scenario: &Scenario, root: &Path) -> &'static World {
        let entry = |i: u8| NodeEntry {
            host: format!("n{i}"),
            client_address: format!("10.0.0.{}:7000", i + 1),
            peer_address: format!("10.0.0.{}:7001", i + 1),
            unix_path: String::new(),
        };
        let nodes = u16::from(scenario.nodes);
        let map = FormationMap {
            version: 1,
            formation: FormationId([3; 16]),
            name: "sim".into(),
            slots: (0..SLOTS).map(|slot| NodeId(slot % nodes)).collect(),
            nodes: (0..scenario.nodes).map(entry).collect(),
            seats: (0..nodes).map(|node| SeatEntry { node: NodeId(node), volume: 0 }).collect(),
            stripe: STRIPE as u32,
            width: 0,
            is_secure: false,
        };
        let auth = Auth { formation: map.formation, secret: Secret::new([7; 32]), is_secure: false };
        let bind = |address: &str| Listener::bind_tcp(address).unwrap_or_else(|e| sim::fail(&format!("{e}")));
        let listeners = map.nodes.iter().map(|n| (bind(&n.client_address), bind(&n.peer_address))).collect();
        let daemon = |_| Daemon { process: 0, start_at: Some(Duration::ZERO), node: None };
        let state = State { nodes: (0..nodes).map(daemon).collect(), ..State::default() };
        *STATE.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
        let world =
            World { scenario: scenario.clone(), map: Arc::new(map), auth, root: root.to_owned(), listeners };
        Box::leak(Box::new(world))
    }

    /// Where a node's volume is.
    pub fn volume(&self, node: u8) -> PathBuf {
        self.root.join(format!("n{node}"))
    }

    /// Does everything that is to be done, and waits until nothing is left; what was seen.
    pub fn run(&'static self) -> Vec<Done> {
        self.start_nodes();
        let setup = self.client_in("setup", self.scenario.nodes + self.scenario.clients, |world, client| {
            world.prepare(client)
        });
        self.await_process(setup);
        let actors = self.scenario.deeds.iter().map(|(actor, _)| usize::from(*actor) + 1).max().unwrap_or(0);
        let clients = usize::from(self.scenario.clients);
        {
            let mut state = state();
            state.todo = vec![Vec::new(); actors.max(clients)];
            for (actor, deed) in self.scenario.deeds.iter().rev() {
                state.todo[usize::from(*actor)].push(*deed);
            }
            state.clients = vec![(0, 0); clients];
            state.faults.clone_from(&self.scenario.faults);
            (state.begun, state.begun_at) = (0, sim::steps());
        }
        sim::advise(self.scenario.switch, self.scenario.latency);
        sim::with_hook(Box::new(|step| self.watch(step)));
        self.look_after();
        self.calm_down();
        state().history.clone()
    }

    /// At every step: what goes wrong now.
    fn watch(&'static self, step: u64) {
        let now = sim::now();
        let (due, ends) = {
            let mut state = state();
            if state.faults.is_empty() && state.ends.is_empty() {
                return;
            }
            let (begun, since) = (state.begun, step.saturating_sub(state.begun_at));
            let is_due = |fault: &crate::scenario::Fault| {
                begun > fault.deeds + 1 || begun == fault.deeds + 1 && since >= u64::from(fault.steps)
            };
            let due: Vec<_> = state.faults.extract_if(.., |fault| is_due(fault)).collect();
            let ends: Vec<_> = state.ends.extract_if(.., |(at, _)| *at <= now).map(|(_, end)| end).collect();
            (due, ends)
        };
        for end in ends {
            match end {
                End::Cut if !state().ends.iter().any(|(_, end)| *end == End::Cut) => sim::heal(),
                End::Cut => {}
                End::Disk(node) => {
                    sim::set_disk(state().nodes[usize::from(node)].process, sim::Disk::default())
                }
            }
        }
        due.into_iter().for_each(|fault| self.strike(fault.mishap));
    }

    fn strike(&'static self, mishap: Mishap) {
        let later = |ms: u16| sim::now() + Duration::from_millis(u64::from(ms));
        let host = |number: u8| u32::from(number) + 1;
        let disk = |node: u8, ms: u16, disk: sim::Disk| {
            let process = state().nodes[usize::from(node)].process;
            sim::log_line(&format!("disk of node {node}: {disk:?} for {ms} ms"));
            sim::set_disk(process, disk);
            state().ends.push((later(ms), End::Disk(node)));
        };
        match mishap {
            Mishap::KillNode(node, ms) => self.kill_node(node, later(ms)),
            Mishap::KillClient(client) => {
                let process = state().clients.get(usize::from(client)).map_or(0, |(process, _)| *process);
                if process != 0 {
                    sim::kill(process);
                    sim::wake_all(NEWS);
                }
            }
            Mishap::Cut(from, to, ms) => {
                sim::cut(host(from), host(to));
                state().ends.push((later(ms), End::Cut));
            }
            Mishap::WriteFails(node, one_in, ms) => {
                disk(node, ms, sim::Disk { write_fails: u64::from(one_in), ..sim::Disk::default() });
            }
            Mishap::Full(node, one_in, ms) => {
                disk(node, ms, sim::Disk { full: u64::from(one_in), ..sim::Disk::default() });
            }
            Mishap::SyncFails(node, one_in, ms) => {
                disk(node, ms, sim::Disk { sync_fails: u64::from(one_in), ..sim::Disk::default() });
            }
            Mishap::Slow(node, one_in, ms) => {
                disk(node, ms, sim::Disk { slow: u64::from(one_in), ..sim::Disk::default() });
            }
        }
    }

    fn kill_node(&'static self, node: u8, start_at: Duration) {
        let process = {
            let mut state = state();
            let daemon = &mut state.nodes[usize::from(node)];
            if daemon.process == 0 || daemon.start_at.is_some() {
                return;
            }
            (daemon.start_at, daemon.node) = (Some(start_at), None);
            daemon.process
        };
        sim::kill(process);
        sim::wake_all(NEWS);
    }

    /// Starts daemons and clients that are due, until all clients are done.
    fn look_after(&'static self) {
        loop {
            self.start_nodes();
            self.start_clients();
            let is_done = {
                let state = state();
                state.todo.iter().all(Vec::is_empty) && state.clients.iter().all(|(process, _)| *process == 0)
            };
            if is_done {
                return;
            }
            let now = sim::now();
            let next = state().nodes.iter().filter_map(|daemon| daemon.start_at).min();
            let time = next.map(|at| at.saturating_sub(now) + Duration::from_micros(1));
            sim::wait_on("news of nodes and clients", NEWS, time);
        }
    }

    fn start_nodes(&'static self) {
        for node in 0..self.scenario.nodes {
            let now = sim::now();
            let is_due = state().nodes[usize::from(node)].start_at.is_some_and(|at| at <= now);
            if !is_due {
                continue;
            }
            let process = sim::new_process(&format!("node{node}"), u32::from(node) + 1);
            {
                let mut state = state();
                let daemon = &mut state.nodes[usize::from(node)];
                (daemon.process, daemon.start_at) = (process, None);
            }
            let thread = std::thread::Builder::new().name("main".into());
            let started = sim::spawn_in(process, || thread.spawn(move || self.serve(node)));
            drop(started);
        }
    }

    /// What a daemon does.
    fn serve(&'static self, node: u8) {
        match self.open(node) {
            Ok(served) => {
                let process = sim::process();
                let current = {
                    let mut state = state();
                    let daemon = &mut state.nodes[usize::from(node)];
                    let current = daemon.process == process && daemon.start_at.is_none();
                    if current {
                        daemon.node = Some(served);
                    }
                    current
                };
                if current {
                    sim::log_line("serves");
                }
                sim::wake_all(NEWS);
                let what = bivouac_node::watch(&[Arc::clone(served)], Patience::default());
                sim::fail(&format!("node {node} stands still: {what}"));
            }
            Err(error) => {
                sim::log_line(&format!("cannot start: {error}"));
                if state().calm {
                    sim::fail(&format!("node {node} cannot start, with nothing going wrong: {error}"));
                }
                self.kill_node(node, sim::now() + Duration::from_millis(100));
            }
        }
    }

    fn open(&'static self, number: u8) -> FsResult<&'static Arc<Node>> {
        let (id, count) = (NodeId(u16::from(number)), self.map.nodes.len());
        let liveness = Arc::new(LivenessTable::new(count));
        let way = |(other, entry): (u16, &NodeEntry)| -> Option<Arc<dyn Transport>> {
            let client = ClientId(ClientId::PEER_BIT | u64::from(id.0));
            let identity = Identity { auth: self.auth.clone(), client, lane: LaneKind::Peer };
            let options = PeerOptions { wait_ms: WAIT.as_millis() as u64, ..PeerOptions::default() };
            let peer =
                || Peer::to(NodeId(other), Address::tcp(entry.peer_address.clone()), identity, options);
            (other != id.0).then(|| Arc::new(peer().heeding(&liveness)) as Arc<dyn Transport>)
        };
        let ways = (0..).zip(&self.map.nodes).map(way).collect();
        let dead_after = Some(self.scenario.dead_after).filter(|ms| *ms > 0).map(Duration::from_millis);
        let config = NodeConfig {
            map: Arc::clone(&self.map),
            id,
            volumes: vec![VolumeConfig { path: self.volume(number), capacity: 0, create: true }],
            handles_max: 64,
            checksum: bivouac_types::Checksum::Off,
            owner: (0, 0),
            grace: GRACE,
            spread_at: SpreadAt::entries(self.scenario.spread),
            dead_after,
            liveness,
            objects: bivouac_source::Environment::default(),
            around: None,
            rounds: Rounds::default(),
            past: Past::default(),
            recorded: None,
            switches: Vec::new(),
        };
        let (node, recovery) = Node::open(config, Arc::new(NetPeers::new(ways)), Arc::new(SystemClock))?;
        sim::log_line(&format!("has its records: {recovery:?}"));
        let (client, peer) = &self.listeners[usize::from(number)];
        let listeners = vec![(client.try_clone()?, LaneKind::Client), (peer.try_clone()?, LaneKind::Peer)];
        let service = Arc::<Node>::clone(&node);
        let server = Server::start(listeners, service, self.auth.clone(), ServerOptions::default())?;
        node.on_forgotten(server.hang_up(0));
        node.start().map_err(|e| FsError::with(Errno::EIO, e.to_string()))?;
        // A daemon ends by being killed: nothing of it is dropped.
        std::mem::forget(server);
        Ok(Box::leak(Box::new(node)))
    }

    fn client(&self, near: Option<NodeId>) -> Client {
        let number = {
            let mut state = state();
            state.client_numbers += 1;
            state.client_numbers
        };
        let options = ClientOptions {
            id: ClientId(number),
            wait: WAIT,
            near,
            incarnation: 0,
            page_pool: PAGE_POOL_MIN,
        };
        if self.scenario.leases {
            Client::new(Arc::clone(&self.map), &self.auth, None, &options)
        } else {
            Client::nearby(Arc::clone(&self.map), &self.auth, &options)
        }
    }

    /// A process that is a client, does something, and leaves.
    fn client_in(
        &'static self,
        name: &str,
        number: u8,
        act: impl FnOnce(&'static World, &Client) + Send + 'static,
    ) -> u32 {
        let process = sim::new_process(name, host_of_client(&self.scenario, number - self.scenario.nodes));
        let thread = std::thread::Builder::new().name("main".into());
        let run = move || {
            let client = self.client(None);
            act(self, &client);
            client.leave();
            drop(client);
            sim::wake_all(NEWS);
            sim::exit();
        };
        drop(sim::spawn_in(process, || thread.spawn(run)));
        process
    }

    fn await_process(&'static self, process: u32) {
        while sim::is_alive(process) {
            self.start_nodes();
            let next = state().nodes.iter().filter_map(|daemon| daemon.start_at).min();
            let time = next.map(|at| at.saturating_sub(sim::now()) + Duration::from_micros(1));
            sim::wait_on("a process' end", NEWS, time);
        }
    }

    fn prepare(&'static self, client: &Client) {
        let done = || -> FsResult<()> {
            let op = || client.new_op(0, 0, 0);
            let new = |mode: u32| NewInode { mode, rdev: 0, target: b"" };
            client.mknod(&op(), Ino::ROOT, b"d", &new(mode::DIR | 0o755))?;
            let file = client.create(&op(), Ino::ROOT, b"data", &new(mode::FILE | 0o644), true, false)?.attr;
            client.write(&op(), file.ino, 0, &vec![0; STRIPE * usize::from(STRIPES)], false)?;
            client.close(file.ino);
            let file = client.create(&op(), Ino::ROOT, b"log", &new(mode::FILE | 0o644), true, false)?.attr;
            client.close(file.ino);
            Ok(())
        };
        if let Err(error) = done() {
            sim::fail(&format!("nothing goes wrong yet, and something does: {error}"));
        }
    }

    fn start_clients(&'static self) {
        let clients = usize::from(self.scenario.clients);
        for number in 0..clients {
            let (process, is_wanted) = {
                let state = state();
                let mine = state.todo.iter().skip(number).step_by(clients);
                (state.clients[number].0, mine.into_iter().any(|todo| !todo.is_empty()))
            };
            if process != 0 && !sim::is_alive(process) {
                state().clients[number].0 = 0;
            } else if process != 0 {
                continue;
            }
            if !is_wanted {
                continue;
            }
            let host = host_of_client(&self.scenario, number as u8);
            let process = sim::new_process(&format!("client{number}"), host);
            let actors = {
                let mut state = state();
                let actors: Vec<usize> = (number..state.todo.len()).step_by(clients).collect();
                state.clients[number] = (process, actors.len());
                actors
            };
            let begin = move || {
                let near = NodeId(number as u16 % u16::from(self.scenario.nodes));
                let client = Arc::new(self.client(Some(near)));
                let threads: Vec<_> = actors
                    .into_iter()
                    .map(|actor| {
                        let client = Arc::clone(&client);
                        let name = std::thread::Builder::new().name(format!("actor{actor}"));
                        name.spawn(move || self.act(actor, &client))
                    })
                    .collect();
                threads.into_iter().flatten().for_each(|thread| drop(thread.join()));
                client.leave();
                drop(client);
                sim::wake_all(NEWS);
                sim::exit();
            };
            let thread = std::thread::Builder::new().name("main".into());
            drop(sim::spawn_in(process, || thread.spawn(begin)));
        }
    }

    /// What one actor does, one after the other.
    fn act(&'static self, actor: usize, client: &Client) {
        let channel = (actor / usize::from(self.scenario.clients)) as u16;
        loop {
            let next = {
                let mut state = state();
                let next = state.todo[actor].pop();
                if next.is_some() {
                    (state.begun, state.begun_at) = (state.begun + 1, sim::steps());
                }
                next
            };
            match next {
                Some(deed) => drop(self.carry_out(client, channel, deed)),
                None => return,
            }
        }
    }

    /// Does something, and notes what came of it.
    fn carry_out(&'static self, client: &Client, channel: u16, deed: Deed) -> Outcome {
        let (at, mark) = {
            let mut state = state();
            state.marks += 1;
            let mark = state.marks;
            let done =
                Done { deed, mark, call: sim::steps(), ret: None, outcome: Outcome::Unknown, linked: None };
            state.history.push(done);
            (state.history.len() - 1, mark)
        };
        sim::log_line(&format!("#{at} {deed} ({mark})"));
        let begun = sim::now();
        let outcome = self.attempt(client, channel, at, deed, mark);
        let took = sim::now() - begun;
        sim::log_line(&format!("#{at} {deed}: {outcome:?}"));
        let mut state = state();
        let done = &mut state.history[at];
        (done.ret, done.outcome) = (Some(sim::steps()), outcome.clone());
        drop(state);
        if took > DEED_MAX {
            sim::fail(&format!("#{at} {deed} took {took:?}"));
        }
        outcome
    }

    fn attempt(&'static self, client: &Client, channel: u16, at: usize, deed: Deed, mark: u32) -> Outcome {
        let outcome = match deed {
            Deed::Link(from, to) => match self.look_up(client, from) {
                Ok(Some(found)) => {
                    // Noted now: whoever is killed later has seen it.
                    state().history[at].linked = Some(found);
                    self.link(client, channel, found.0, to)
                }
                Ok(None) => Ok(Outcome::Found(None)),
                Err(error) => {
                    // Nothing was asked for that changes anything.
                    sim::log_line(&error.to_string());
                    Ok(Outcome::Nothing)
                }
            },
            other => self.do_it(client, channel, other, mark),
        };
        outcome.unwrap_or_else(|error| {
            sim::log_line(&format!("{error}"));
            match (error.errno(), deed) {
                (Errno::EIO | Errno::ENOSPC | Errno::ETIMEDOUT, _) => Outcome::Unknown,
                (Errno::EBUSY, Deed::Rename(..)) => Outcome::Nothing,
                (Errno::ENOENT, Deed::Make(_) | Deed::Mkdir(_)) => {
                    sim::fail(&format!("{deed}: a directory that nobody removes is not there: {error}"))
                }
                (Errno::ENOENT, _) => Outcome::Said(Said::Absent),
                (Errno::EEXIST, _) => Outcome::Said(Said::Exists),
                (Errno::EISDIR, _) => Outcome::Said(Said::IsDir),
                (Errno::ENOTDIR, _) => Outcome::Said(Said::NotDir),
                (Errno::EPERM, Deed::Link(..)) => Outcome::Said(Said::Refused),
                _ => sim::fail(&format!("{deed}: nothing explains this error: {error}")),
            }
        })
    }

    fn place<'n>(&self, client: &Client, name: &'n str) -> FsResult<(Ino, &'n [u8])> {
        match name.strip_prefix("d/") {
            Some(inside) => Ok((client.lookup(Ino::ROOT, b"d")?.ino, inside.as_bytes())),
            None => Ok((Ino::ROOT, name.as_bytes())),
        }
    }

    fn look_up(&self, client: &Client, name: u8) -> FsResult<Option<(u64, bool)>> {
        let (dir, name) = self.place(client, NAMES[usize::from(name)])?;
        match client.lookup(dir, name) {
            Ok(attr) => Ok(Some((attr.ino.0, attr.is_dir()))),
            Err(error) if error.errno() == Errno::ENOENT => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn link(&self, client: &Client, channel: u16, ino: u64, to: u8) -> FsResult<Outcome> {
        let (dir, name) = self.place(client, NAMES[usize::from(to)])?;
        client.link(&client.new_op(channel, 0, 0), Ino(ino), dir, name)?;
        Ok(Outcome::Said(Said::Ok))
    }

    fn do_it(&self, client: &Client, channel: u16, deed: Deed, mark: u32) -> FsResult<Outcome> {
        let op = || client.new_op(channel, 0, 0);
        let name = |name: u8| self.place(client, NAMES[usize::from(name)]);
        let new = |mode: u32| NewInode { mode, rdev: 0, target: b"" };
        let file = |name: &[u8]| -> FsResult<Ino> {
            Ok(client.open(&op(), client.lookup(Ino::ROOT, name)?.ino, 0)?.ino)
        };
        match deed {
            Deed::Make(n) => {
                let (dir, name) = name(n)?;
                let made = client.create(&op(), dir, name, &new(mode::FILE | 0o644), true, false)?.attr;
                client.close(made.ino);
                Ok(Outcome::Found(Some((made.ino.0, false))))
            }
            Deed::Mkdir(n) => {
                let (dir, name) = name(n)?;
                let made = client.mknod(&op(), dir, name, &new(mode::DIR | 0o755))?;
                Ok(Outcome::Found(Some((made.ino.0, true))))
            }
            Deed::Unlink(n) => {
                let (dir, name) = name(n)?;
                client.unlink(&op(), dir, name)?;
                Ok(Outcome::Said(Said::Ok))
            }
            Deed::Rmdir(n) => {
                let (dir, name) = name(n)?;
                client.rmdir(&op(), dir, name)?;
                Ok(Outcome::Said(Said::Ok))
            }
            Deed::Rename(n, m) => {
                let ((dir, from), (to_dir, to)) = (name(n)?, name(m)?);
                client.rename(&op(), dir, from, to_dir, to, 0)?;
                Ok(Outcome::Said(Said::Ok))
            }
            Deed::Stat(n) => Ok(Outcome::Found(self.look_up(client, n)?)),
            Deed::Write(stripe, block, count) => {
                let ino = file(b"data")?;
                let bytes = mark.to_le_bytes().repeat(BLOCK / 4 * usize::from(count));
                let at = usize::from(stripe) * STRIPE + usize::from(block) * BLOCK;
                let written = client.write(&op(), ino, at as u64, &bytes, false);
                client.close(ino);
                written.map(|_| Outcome::Said(Said::Ok))
            }
            Deed::Read(stripe) => {
                let ino = file(b"data")?;
                let mut bytes = vec![0xee; STRIPE];
                let read = client.read(ino, (usize::from(stripe) * STRIPE) as u64, &mut bytes);
                client.close(ino);
                if read? != STRIPE {
                    sim::fail("a read of what is there came back short");
                }
                Ok(Outcome::Marks(bytes.chunks_exact(BLOCK).map(one_mark).collect()))
            }
            Deed::Append => {
                let ino = file(b"log")?;
                let bytes = mark.to_le_bytes().repeat(RECORD / 4);
                let written = client.write(&op(), ino, 0, &bytes, true);
                client.close(ino);
                written.map(|_| Outcome::Said(Said::Ok))
            }
            Deed::Records => {
                let ino = file(b"log")?;
                let mut bytes = vec![0xee; 1 << 16];
                let read = client.read(ino, 0, &mut bytes);
                client.close(ino);
                bytes.truncate(read?);
                if bytes.len() % RECORD != 0 {
                    sim::fail(&format!("the log ends in the middle of a record, at {}", bytes.len()));
                }
                Ok(Outcome::Records(bytes.chunks_exact(RECORD).map(one_mark).collect()))
            }
            Deed::Set(key) => {
                let ino = client.lookup(Ino::ROOT, b"data")?.ino;
                client.setxattr(&op(), ino, format!("user.{key}").as_bytes(), &mark.to_le_bytes(), 0)?;
                Ok(Outcome::Said(Said::Ok))
            }
            Deed::Unset(key) => {
                let ino = client.lookup(Ino::ROOT, b"data")?.ino;
                match client.removexattr(&op(), ino, format!("user.{key}").as_bytes()) {
                    Ok(()) => Ok(Outcome::Said(Said::Ok)),
                    Err(error) if error.errno() == Errno::ENODATA => Ok(Outcome::Said(Said::Absent)),
                    Err(error) => Err(error),
                }
            }
            Deed::Get(key) => {
                let ino = client.lookup(Ino::ROOT, b"data")?.ino;
                match client.getxattr(ino, format!("user.{key}").as_bytes()) {
                    Ok(value) => Ok(Outcome::Value(Some(one_mark(&value)))),
                    Err(error) if error.errno() == Errno::ENODATA => Ok(Outcome::Value(None)),
                    Err(error) => Err(error),
                }
            }
            Deed::Rest(ms) => {
                sim::sleep(Duration::from_millis(u64::from(ms)));
                Ok(Outcome::Nothing)
            }
            Deed::Link(..) => Ok(Outcome::Nothing),
        }
    }

    /// Nothing goes wrong any more: all daemons run, and everything that is under way comes to its end. Then everything is
    /// looked at once more, and must be at rest.
    fn calm_down(&'static self) {
        sim::log_line("from now on nothing goes wrong");
        sim::heal();
        {
            let mut state = state();
            state.faults.clear();
            state.ends.clear();
            state.calm = true;
        }
        for node in 0..self.scenario.nodes {
            sim::set_disk(state().nodes[usize::from(node)].process, sim::Disk::default());
        }
        sim::advise(64, (20, 60));
        loop {
            self.start_nodes();
            let next = state().nodes.iter().filter_map(|daemon| daemon.start_at).min();
            let all_serve = state().nodes.iter().all(|daemon| daemon.node.is_some());
            if next.is_none() && all_serve {
                break;
            }
            let time = next.map(|at| at.saturating_sub(sim::now()) + Duration::from_micros(1));
            sim::wait_on("daemons to serve", NEWS, time);
        }
        // Connections that ended behind a cut are noticed, sessions of those who were killed end, what was postponed is done.
        sim::sleep(UNNOTICED_MAX + GRACE * 3);
        for turn in 0.. {
            let nodes: Vec<_> = state().nodes.iter().filter_map(|daemon| daemon.node).collect();
            let unfinished: u64 = nodes.iter().map(|node| node.unfinished()).sum();
            if unfinished == 0 {
                break;
            }
            if turn == 60 {
                sim::fail(&format!("{unfinished} changes over several nodes are never finished"));
            }
            sim::sleep(Duration::from_secs(10));
        }
        let last = self.client_in("last", self.scenario.nodes + self.scenario.clients, |world, client| {
            let everything = (0..STRIPES).map(Deed::Read).chain((0..NAMES.len() as u8).map(Deed::Stat));
            let everything =
                everything.chain([Deed::Records]).chain((0..crate::scenario::KEYS).map(Deed::Get));
            for deed in everything {
                if matches!(world.carry_out(client, 0, deed), Outcome::Unknown) {
                    sim::fail(&format!("{deed} fails with nothing going wrong"));
                }
            }
        });
        self.await_process(last);
        sim::sleep(Duration::from_secs(5));
        let left = self.client_in("census", self.scenario.nodes + self.scenario.clients, |world, client| {
            for node in 0..world.scenario.nodes {
                match client.nodes().status(NodeId(u16::from(node))) {
                    Ok(status) if status.open_files > 0 => {
                        sim::fail(&format!("node {node} has {} files open for nobody", status.open_files))
                    }
                    Ok(_) => {}
                    Err(error) => sim::fail(&format!("node {node} has no status: {error}")),
                }
            }
        });
        self.await_process(left);
        sim::sleep(Duration::from_secs(5));
        for node in 0..self.scenario.nodes {
            let process = state().nodes[usize::from(node)].process;
            sim::kill(process);
        }
    }

    /// The map, for who looks at the volumes.
    pub fn map(&self) -> &FormationMap {
        &self.map
    }
}

/// The mark that all of a block has.
fn one_mark(block: &[u8]) -> u32 {
    let marks: Vec<u32> =
        block.chunks(4).map(|mark| mark.try_into().map_or(u32::MAX, u32::from_le_bytes)).collect();
    let first = marks.first().copied().unwrap_or(u32::MAX);
    if marks.iter().any(|mark| *mark != first) {
        sim::fail(&format!("a block is torn: {first} and others of {} marks", marks.len()));
    }
    first
}
