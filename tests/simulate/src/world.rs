//! Nodes and clients of a run: real code on simulated hosts.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bivouac_client::{Client, ClientOptions, NewInode, OpCtx};
use bivouac_net::{
    Address, Auth, Identity, LaneKind, Listener, LivenessTable, Peer, PeerOptions, Secret, Server,
    ServerOptions, Transport,
};
use bivouac_node::{NetPeers, Node, NodeConfig, RecoveryHistory, Rounds, StandstillLimits, SystemClock};
use bivouac_sim_kernel as sim;
use bivouac_store::VolumeConfig;
use bivouac_types::limits::PAGE_POOL_MIN;
use bivouac_types::{
    ClientId, Contract, Errno, FormationId, FsError, FsResult, Ino, NodeId, OpId, SpreadAt, mode,
};
use bivouac_wire::{FormationMap, MirrorEntry, NodeEntry, TargetEntry};

use crate::history::Said;
use crate::keeper::{Keeper, Loss, next_time};
use crate::mounts::{self, Serving};
use crate::oracles::one_mark;
use crate::scenario::{BLOCKS, CHANGING, Deed, Mishap, NAMES, REGIONS, STRIPES, Scenario};
use crate::ways::{Ways, entry_on};

/// Bytes of a stripe; a block is a part of it.
const STRIPE: usize = 4096;
const BLOCK: usize = STRIPE / BLOCKS as usize;
/// Blocks of a region: two stripes and a half.
pub const REGION_BLOCKS: usize = BLOCKS as usize * 5 / 2;
const REGION: usize = REGION_BLOCKS * BLOCK;
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
pub(crate) struct State {
    history: Vec<Done>,
    /// By actor, what it has still to do, last first.
    todo: Vec<Vec<Deed>>,
    begun: u16,
    /// When the last deed began, in steps.
    begun_at: u64,
    marks: u32,
    /// By client: its process, and how many of its actors are not done.
    clients: Vec<(u32, usize)>,
    /// By client: how many processes it had before, of a mount.
    incarnations: Vec<u32>,
    /// By actor: its call that the kernel sends to the next process of its mount.
    under_way: Vec<Option<Call>>,
    /// Number of the last operation through a mount.
    mount_ops: u64,
    client_numbers: u64,
    pub nodes: Vec<Daemon>,
    /// Who decides where nodes are.
    pub keeper: Keeper,
    faults: Vec<crate::scenario::Fault>,
    /// What ends when: simulated time, and what.
    ends: Vec<(Duration, End)>,
    pub calm: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    Cut,
    Disk(u8),
}

pub(crate) struct Daemon {
    pub process: u32,
    pub start_at: Option<Duration>,
    /// Its server side, of the daemon that runs; never dropped.
    pub node: Option<&'static Serving>,
}

/// A call that is sent again if its daemon is killed.
#[derive(Clone, Copy)]
struct Call {
    /// Its place in the history.
    at: usize,
    ctx: OpCtx,
}

/// Who does things: an actor of a client.
struct Actor<'a> {
    number: usize,
    channel: u16,
    client: &'a Client,
    /// Whether the client is a mount.
    is_mount: bool,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);
/// Where those wait who look after nodes and clients.
pub(crate) const NEWS: usize = 1;

pub(crate) fn state() -> StateGuard {
    StateGuard(STATE.lock().unwrap_or_else(PoisonError::into_inner))
}

pub(crate) struct StateGuard(MutexGuard<'static, Option<State>>);

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
    pub(crate) scenario: Scenario,
    auth: Auth,
    /// Of each node, those of the hosts that it can be on.
    listeners: Vec<Vec<(Listener, Listener)>>,
}

/// Of a scenario's number: nodes first, then clients.
pub(crate) fn host(number: u8) -> u32 {
    u32::from(number) + 1
}

fn host_of_client(scenario: &Scenario, client: u8) -> u32 {
    u32::from(scenario.nodes) + 1 + u32::from(client)
}

impl World {
    /// Hosts, listeners and an empty formation. Volumes are below `root`.
    pub fn new(scenario: &Scenario, root: &Path) -> &'static World {
        let entry = |node: u8| entry_on(node, node, 0);
        let backup =
            |node: u16, count: u16| MirrorEntry { backup: Some(NodeId((node + 1) % count)), epoch: 1 };
        let nodes = u16::from(scenario.nodes);
        let map = FormationMap {
            version: 1,
            formation: FormationId([3; 16]),
            name: "sim".into(),
            slots: (0..SLOTS).map(|slot| NodeId(slot % nodes)).collect(),
            nodes: (0..scenario.nodes).map(entry).collect(),
            targets: (0..nodes).map(|node| TargetEntry { node: NodeId(node), volume: 0 }).collect(),
            stripe: STRIPE as u32,
            width: 0,
            is_secure: false,
            detects_races: false,
            mirrors: (0..if scenario.mirrored { nodes } else { 0 }).map(|node| backup(node, nodes)).collect(),
        };
        let auth = Auth { formation: map.formation, secret: Secret::new([7; 32]), is_secure: false };
        let bind = |address: &str| Listener::bind_tcp(address).unwrap_or_else(|e| sim::fail(&format!("{e}")));
        let bind_on = |node: u8, host: u8| {
            let entry = entry_on(node, host, 0);
            (bind(&entry.client_address), bind(&entry.peer_address))
        };
        let hosts = |node: u8| if scenario.mirrored { 0..scenario.nodes } else { node..node + 1 };
        let listeners =
            (0..scenario.nodes).map(|node| hosts(node).map(|host| bind_on(node, host)).collect()).collect();
        let daemon = |_| Daemon { process: 0, start_at: Some(Duration::ZERO), node: None };
        let volumes = (0..scenario.nodes).map(|node| root.join(format!("n{node}"))).collect();
        let keeper = Keeper::new(map, volumes);
        let state = State { nodes: (0..nodes).map(daemon).collect(), keeper, ..State::default() };
        *STATE.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
        Box::leak(Box::new(World { scenario: scenario.clone(), auth, listeners }))
    }

    /// Where a node's volume is.
    pub fn volume(&self, node: u8) -> PathBuf {
        state().keeper.volumes[usize::from(node)].clone()
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
            state.incarnations = vec![0; clients];
            state.under_way = vec![None; state.todo.len()];
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
                if process != 0 && client >= self.scenario.mounts {
                    sim::kill(process);
                    sim::wake_all(NEWS);
                }
            }
            Mishap::Cut(from, to, ms) => {
                sim::cut(host(from), host(to));
                state().ends.push((later(ms), End::Cut));
            }
            Mishap::HalfOpen(from, to, ms) => {
                sim::leave_half_open(host(from), host(to), Duration::from_millis(u64::from(ms)));
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
            Mishap::LoseHost(host, ms) => self.ask_for_loss(Loss { host, ms, is_cut_off: false }),
            Mishap::CutOffHost(host, ms) => self.ask_for_loss(Loss { host, ms, is_cut_off: true }),
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
            self.keep();
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
            sim::wait_on("news of nodes and clients", NEWS, next_time(now));
        }
    }

    fn start_nodes(&'static self) {
        for node in 0..self.scenario.nodes {
            let now = sim::now();
            let is_due = state().nodes[usize::from(node)].start_at.is_some_and(|at| at <= now);
            if !is_due {
                continue;
            }
            let place = state().keeper.places[usize::from(node)];
            let process = sim::new_process(&format!("node{node}"), host(place));
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
                // Nodes may have moved since it was begun.
                served.node.take_map(&self.map());
                sim::wake_all(NEWS);
                let what = bivouac_node::watch(&[Arc::clone(&served.node)], StandstillLimits::default());
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

    fn open(&'static self, number: u8) -> FsResult<&'static Serving> {
        let (map, place, volume, has_moved) = state().keeper.place_of(number);
        let (id, epoch) = (NodeId(u16::from(number)), map.nodes[usize::from(number)].epoch);
        let liveness = Arc::new(LivenessTable::new(map.nodes.len()));
        let way = |lane: LaneKind, (other, entry): (u16, &NodeEntry)| -> Option<Arc<dyn Transport>> {
            let client = ClientId(ClientId::PEER_BIT | u64::from(id.0));
            let identity = Identity { auth: self.auth.clone(), client, lane, epoch };
            let options = PeerOptions { wait_ms: WAIT.as_millis() as u64, ..PeerOptions::default() };
            let address = Address::tcp(entry.peer_address.clone());
            let peer = || Peer::to(NodeId(other), address, identity, options).since(entry.epoch);
            (other != id.0).then(|| Arc::new(peer().heeding(&liveness)) as Arc<dyn Transport>)
        };
        let ways = |lane| (0..).zip(&map.nodes).map(|node| way(lane, node)).collect();
        let peers = NetPeers::new(ways(LaneKind::Peer));
        let ways = peers.with_mirrors(ways(LaneKind::Mirror), Box::new(|_, _, _| None));
        let dead_after = Some(self.scenario.dead_after).filter(|ms| *ms > 0).map(Duration::from_millis);
        let config = NodeConfig {
            map,
            id,
            volumes: vec![VolumeConfig { path: volume, capacity: 0, create: !has_moved }],
            handles_max: 64,
            checksum: bivouac_types::Checksum::Off,
            owner: (0, 0),
            grace: GRACE,
            spread_at: SpreadAt::entries(self.scenario.spread),
            dead_after,
            liveness: Arc::clone(&liveness),
            objects: bivouac_source::Environment::default(),
            secret: [0; 32],
            around: None,
            rounds: Rounds::default(),
            past: RecoveryHistory::default(),
            recorded: None,
            switches: Vec::new(),
        };
        let (node, recovery) = Node::open(config, Arc::new(Ways(ways)), Arc::new(SystemClock))?;
        sim::log_line(&format!("has its records: {recovery:?}"));
        let of_node = &self.listeners[usize::from(number)];
        let (client, peer) = &of_node[if self.scenario.mirrored { usize::from(place) } else { 0 }];
        let listeners = vec![(client.try_clone()?, LaneKind::Client), (peer.try_clone()?, LaneKind::Peer)];
        let service = Arc::<Node>::clone(&node);
        let threads_mirror = if self.scenario.mirrored { 4 } else { 0 };
        let options = ServerOptions { threads_mirror, ..ServerOptions::default() };
        let server = Server::start(listeners, service, self.auth.clone(), options)?;
        node.on_forgotten(server.hang_up(0));
        node.start().map_err(|e| FsError::with(Errno::EIO, e.to_string()))?;
        // A daemon ends by being killed: nothing of it is dropped.
        std::mem::forget(server);
        Ok(Box::leak(Box::new(Serving { id, node, liveness })))
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
            Client::new(self.map(), &self.auth, None, &options)
        } else {
            Client::nearby(self.map(), &self.auth, &options)
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
            self.keep();
            self.start_nodes();
            sim::wait_on("a process' end", NEWS, next_time(sim::now()));
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
            if self.scenario.strict {
                let strict = Some(Contract::Strict);
                let dir = client.mknod(&op(), Ino::ROOT, b"s", &new(mode::DIR | 0o755))?.ino;
                client.set_contract(&op(), dir, strict)?;
                let made = client.create(&op(), dir, b"whole", &new(mode::FILE | 0o644), true, false)?.attr;
                client.write(&op(), made.ino, 0, &[0; 2 * REGION], false)?;
                client.close(made.ino);
                let made =
                    client.create(&op(), dir, b"changing", &new(mode::FILE | 0o644), true, false)?.attr;
                client.write(&op(), made.ino, 0, &[0; REGION], false)?;
                client.close(made.ino);
            }
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
                let mut mine = (number..state.todo.len()).step_by(clients);
                let is_wanted =
                    mine.any(|actor| !state.todo[actor].is_empty() || state.under_way[actor].is_some());
                (state.clients[number].0, is_wanted)
            };
            if process != 0 && !sim::is_alive(process) {
                state().clients[number].0 = 0;
            } else if process != 0 {
                continue;
            }
            if !is_wanted {
                continue;
            }
            if number < usize::from(self.scenario.mounts) {
                self.start_mount(number);
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
                        name.spawn(move || self.act(actor, &client, false))
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

    /// Starts a mount in the daemon of its node, once that serves.
    fn start_mount(&'static self, number: usize) {
        let clients = usize::from(self.scenario.clients);
        let id = NodeId(number as u16 % u16::from(self.scenario.nodes));
        let (process, node, incarnation, actors) = {
            let mut state = state();
            let Daemon { process, node, .. } = state.nodes[usize::from(id.0)];
            let Some(node) = node else { return };
            let actors: Vec<usize> = (number..state.todo.len()).step_by(clients).collect();
            state.clients[number] = (process, actors.len());
            state.incarnations[number] += 1;
            (process, node, state.incarnations[number] - 1, actors)
        };
        let options = ClientOptions {
            id: ClientId::of_mount(self.map().formation, id, number as u32 + 1),
            wait: WAIT,
            near: Some(id),
            incarnation,
            page_pool: PAGE_POOL_MIN,
        };
        let begin = move || {
            let mount = mounts::start(&self.map(), &self.auth, node, &options);
            let threads: Vec<_> = actors
                .into_iter()
                .map(|actor| {
                    let client = Arc::clone(&mount);
                    let name = std::thread::Builder::new().name(format!("actor{actor}"));
                    name.spawn(move || self.act(actor, &client, true))
                })
                .collect();
            threads.into_iter().flatten().for_each(|thread| drop(thread.join()));
            mounts::end(&mount, node, options.id);
            drop(mount);
            state().clients[number].0 = 0;
            sim::wake_all(NEWS);
        };
        let thread = std::thread::Builder::new().name(format!("mount{number}"));
        drop(sim::spawn_in(process, || thread.spawn(begin)));
    }

    /// What one actor does, one after the other.
    fn act(&'static self, number: usize, client: &Client, is_mount: bool) {
        let channel = (number / usize::from(self.scenario.clients)) as u16;
        let actor = Actor { number, channel, client, is_mount };
        let interrupted = state().under_way[number];
        if let Some(call) = interrupted {
            let deed = state().history[call.at].deed;
            sim::log_line(&format!("#{} {deed} once more", call.at));
            self.go_on(&actor, call.at);
        }
        loop {
            let next = {
                let mut state = state();
                let next = state.todo[number].pop();
                if next.is_some() {
                    (state.begun, state.begun_at) = (state.begun + 1, sim::steps());
                }
                next
            };
            match next {
                Some(deed) => drop(self.carry_out(&actor, deed)),
                None => return,
            }
        }
    }

    /// Does something, and notes what came of it.
    fn carry_out(&'static self, actor: &Actor<'_>, deed: Deed) -> Outcome {
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
        self.go_on(actor, at)
    }

    /// Does what was noted.
    fn go_on(&'static self, actor: &Actor<'_>, at: usize) -> Outcome {
        let (deed, mark) = {
            let state = state();
            (state.history[at].deed, state.history[at].mark)
        };
        let begun = sim::now();
        let outcome = self.attempt(actor, at, deed, mark);
        let took = sim::now() - begun;
        sim::log_line(&format!("#{at} {deed}: {outcome:?}"));
        let mut state = state();
        let done = &mut state.history[at];
        (done.ret, done.outcome) = (Some(sim::steps()), outcome.clone());
        if actor.is_mount {
            state.under_way[actor.number] = None;
        }
        drop(state);
        if took > DEED_MAX {
            sim::fail(&format!("#{at} {deed} took {took:?}"));
        }
        outcome
    }

    /// The identity of an operation: of a mount's, the same when it is sent again.
    fn op(&self, actor: &Actor<'_>) -> OpCtx {
        if !actor.is_mount {
            return actor.client.new_op(actor.channel, 0, 0);
        }
        let mut state = state();
        state.mount_ops += 1;
        // As of a mount's threads: those of the last processes are not used.
        let incarnation = state.incarnations[actor.number % usize::from(self.scenario.clients)] as u16;
        let channel = incarnation % 64 * 16 + actor.channel;
        OpCtx { id: OpId(1 << 32 | state.mount_ops), channel, retry: false, uid: 0, gid: 0, pid: 1 }
    }

    /// Writes a region. Through a mount, the kernel sends every second one once more if the daemon is killed; of the others
    /// the program is killed as well.
    fn fill(&self, actor: &Actor<'_>, at: usize, region: u8, mark: u32) -> FsResult<Outcome> {
        let ino = self.open_region(actor, region)?;
        let again = state().under_way[actor.number].map(|call| OpCtx { retry: true, ..call.ctx });
        let ctx = again.unwrap_or_else(|| self.op(actor));
        if actor.is_mount && mark.is_multiple_of(2) {
            state().under_way[actor.number] = Some(Call { at, ctx });
        }
        let bytes = mark.to_le_bytes().repeat(REGION / 4);
        let written = actor.client.write(&ctx, ino, place_of(region), &bytes, false);
        actor.client.close(ino);
        written.map(|_| Outcome::Said(Said::Ok))
    }

    fn open_region(&self, actor: &Actor<'_>, region: u8) -> FsResult<Ino> {
        let dir = actor.client.lookup(Ino::ROOT, b"s")?.ino;
        let name: &[u8] = if region == CHANGING { b"changing" } else { b"whole" };
        Ok(actor.client.open(&self.op(actor), actor.client.lookup(dir, name)?.ino, 0)?.ino)
    }

    fn attempt(&'static self, actor: &Actor<'_>, at: usize, deed: Deed, mark: u32) -> Outcome {
        let client = actor.client;
        let outcome = match deed {
            Deed::Link(from, to) => match self.look_up(client, from) {
                Ok(Some(found)) => {
                    // Noted now: whoever is killed later has seen it.
                    state().history[at].linked = Some(found);
                    self.link(actor, found.0, to)
                }
                Ok(None) => Ok(Outcome::Found(None)),
                Err(error) => {
                    // Nothing was asked for that changes anything.
                    sim::log_line(&error.to_string());
                    Ok(Outcome::Nothing)
                }
            },
            Deed::Fill(region) => self.fill(actor, at, region, mark),
            other => self.do_it(actor, other, mark),
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

    fn link(&self, actor: &Actor<'_>, ino: u64, to: u8) -> FsResult<Outcome> {
        let (dir, name) = self.place(actor.client, NAMES[usize::from(to)])?;
        actor.client.link(&self.op(actor), Ino(ino), dir, name)?;
        Ok(Outcome::Said(Said::Ok))
    }

    fn do_it(&self, actor: &Actor<'_>, deed: Deed, mark: u32) -> FsResult<Outcome> {
        let client = actor.client;
        let op = || self.op(actor);
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
            Deed::Look(region) => {
                let ino = self.open_region(actor, region)?;
                let mut bytes = vec![0xee; REGION];
                let read = client.read(ino, place_of(region), &mut bytes);
                client.close(ino);
                if read? != REGION {
                    sim::fail("a read of what is there came back short");
                }
                Ok(Outcome::Marks(bytes.chunks_exact(BLOCK).map(one_mark).collect()))
            }
            Deed::Contract(strict) => {
                let dir = client.lookup(Ino::ROOT, b"s")?.ino;
                let ino = client.lookup(dir, b"changing")?.ino;
                let contract = if strict { Contract::Strict } else { Contract::Coherent };
                client.set_contract(&op(), ino, Some(contract))?;
                Ok(Outcome::Said(Said::Ok))
            }
            Deed::Link(..) | Deed::Fill(_) => Ok(Outcome::Nothing),
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
            self.keep();
            self.start_nodes();
            let (all_serve, rests) = {
                let state = state();
                let all_serve =
                    state.nodes.iter().all(|daemon| daemon.start_at.is_none() && daemon.node.is_some());
                (all_serve, state.keeper.rests())
            };
            if all_serve && rests {
                break;
            }
            sim::wait_on("daemons to serve", NEWS, next_time(sim::now()));
        }
        // Connections that ended behind a cut are noticed, sessions of those who were killed end, what was postponed is done.
        sim::sleep(UNNOTICED_MAX + GRACE * 3);
        for turn in 0.. {
            let nodes: Vec<_> = state().nodes.iter().filter_map(|daemon| daemon.node).collect();
            let unfinished: u64 = nodes.iter().map(|serving| serving.node.unfinished()).sum();
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
            let regions = if world.scenario.strict { REGIONS } else { 0 };
            let actor = Actor { number: 0, channel: 0, client, is_mount: false };
            for deed in everything.chain((0..regions).map(Deed::Look)) {
                if matches!(world.carry_out(&actor, deed), Outcome::Unknown) {
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
        let former = state().keeper.former.clone();
        former.into_iter().for_each(sim::kill);
    }

    /// The newest map.
    pub fn map(&self) -> Arc<FormationMap> {
        Arc::clone(&state().keeper.map)
    }
}

/// Where a region begins in its file.
fn place_of(region: u8) -> u64 {
    if region == CHANGING { 0 } else { u64::from(region) * REGION as u64 }
}

/// The blocks of a region that are in each stripe.
pub fn stripes_of(region: u8) -> Vec<Range<usize>> {
    let first = place_of(region) as usize / BLOCK;
    let mut stripes: Vec<Range<usize>> = Vec::new();
    for block in 0..REGION_BLOCKS {
        match stripes.last_mut().filter(|_| !(first + block).is_multiple_of(usize::from(BLOCKS))) {
            Some(stripe) => stripe.end = block + 1,
            None => stripes.push(block..block + 1),
        }
    }
    stripes
}
