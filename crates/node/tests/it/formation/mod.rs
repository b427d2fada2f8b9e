//! A formation in one process: real nodes and clients, function calls instead of sockets.

#![allow(dead_code, reason = "each test uses a part of the harness")]

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bivouac_client::{Client, ClientOptions, OpCtx};
use bivouac_net::{InProcess, LaneKind, LivenessTable, Request, Transport};
use bivouac_node::{
    Node, NodeConfig, PeerRequest, Peers, RecoveryHistory, Rounds, SourceDecorator, SystemClock,
};
use bivouac_store::{DataOptions, DataStore, Records, RecordsOptions, VolumeConfig};
use bivouac_types::limits::SLOTS_DEFAULT;
use bivouac_types::{Checksum, ClientId, Errno, FormationId, FsError, FsResult, Ino, NodeId, Slot, SpreadAt};
use bivouac_wire::{Flags, FormationMap, Frame, MirrorEntry, NodeEntry, Op, TargetEntry};
use tempfile::TempDir;

/// The secret of formations of tests.
pub const SECRET: [u8; 32] = [5; 32];

/// Connects the nodes, and loses messages on purpose.
#[derive(Default)]
pub struct Switchboard {
    nodes: parking_lot::RwLock<Vec<Option<Arc<Node>>>>,
    /// One step of so many fails, half of them before they are carried out, half after. 0 is never.
    pub lose_every: AtomicU32,
    steps: AtomicU32,
    /// The answer to the next step with this number is lost.
    pub lose_reply: AtomicU32,
    /// The answer to the next step with this number is lost, and the way sends it again by itself.
    pub repeat: AtomicU32,
    /// Steps that may come once more.
    sent: parking_lot::Mutex<Vec<Sent>>,
    /// The next step with this number is lost before it is carried out.
    pub lose_request: AtomicU32,
    /// Steps with this number are answered so, and not carried out.
    pub refuse: parking_lot::Mutex<Option<(u16, Errno)>>,
    /// Runs once before the next step with this number is carried out.
    pub before: parking_lot::Mutex<Option<Interlude>>,
    /// Runs once after the next step with this number was carried out.
    pub after: parking_lot::Mutex<Option<Interlude>>,
    asked: parking_lot::Mutex<HashMap<u16, u32>>,
    held: parking_lot::Mutex<Option<NodeId>>,
    /// Nodes on the other side of a cut.
    pub beyond: parking_lot::RwLock<Vec<NodeId>>,
    released: parking_lot::Condvar,
}

/// A step that was carried out.
#[derive(Clone)]
pub struct Sent {
    node: NodeId,
    op: u16,
    frame: Frame,
    body: Vec<u8>,
}

/// Number of a step, and what happens before it.
pub type Interlude = (u16, Box<dyn FnOnce() + Send>);

impl Switchboard {
    /// How many steps with this number there were.
    pub fn asked(&self, op: Op) -> u32 {
        self.asked.lock().get(&(op as u16)).copied().unwrap_or(0)
    }

    /// The steps with this number that there were so far.
    pub fn sent(&self, op: Op) -> Vec<Sent> {
        let sent: Vec<Sent> = self.sent.lock().iter().filter(|sent| sent.op == op as u16).cloned().collect();
        assert!(!sent.is_empty(), "there was no {}", op.name());
        sent
    }

    /// Steps arrive once more, as first tries that were under way for long.
    pub fn come_late(&self, late: Vec<Sent>) {
        for Sent { node, frame, body, .. } in late {
            let target = self.nodes.read()[usize::from(node.0)].clone().unwrap();
            let transport = InProcess::new(target, LaneKind::Peer);
            transport.exchange(&Request::new(frame, &body, &[]), &mut Vec::new(), &mut []).unwrap();
        }
    }

    /// From now on a node does not answer what is asked in the background.
    pub fn hold(&self, node: NodeId) {
        *self.held.lock() = Some(node);
    }

    /// Ends [`Switchboard::hold`].
    pub fn release(&self) {
        *self.held.lock() = None;
        self.released.notify_all();
    }

    /// From now on a node does not answer its peers.
    pub fn unplug(&self, node: NodeId) -> Option<Arc<Node>> {
        self.nodes.write()[usize::from(node.0)].take()
    }

    /// It is back.
    pub fn plug(&self, id: NodeId, node: Option<Arc<Node>>) {
        self.nodes.write()[usize::from(id.0)] = node;
    }
}

impl Peers for Switchboard {
    fn call_within(
        &self,
        wait: Duration,
        node: NodeId,
        request: &PeerRequest<'_>,
        reply: &mut Vec<u8>,
    ) -> FsResult<()> {
        let deadline = Instant::now() + wait;
        let mut held = self.held.lock();
        while *held == Some(node) {
            if self.released.wait_until(&mut held, deadline).timed_out() {
                return Err(FsError::with(Errno::EIO, format!("{node} does not answer")));
            }
        }
        drop(held);
        self.call(node, request, reply)
    }

    fn call(&self, node: NodeId, request: &PeerRequest<'_>, reply: &mut Vec<u8>) -> FsResult<()> {
        *self.asked.lock().entry(request.op as u16).or_default() += 1;
        let due = |interlude: &Interlude| interlude.0 == request.op as u16;
        let interlude = self.before.lock().take_if(|interlude| due(interlude));
        if let Some((_, act)) = interlude {
            // What happens meanwhile happens in other threads.
            bivouac_ranks::on_behalf_of_peer(act);
        }
        let target = self.nodes.read().get(usize::from(node.0)).cloned().flatten();
        let lost = || FsError::with(Errno::EIO, format!("{node} is away"));
        let asker = NodeId(request.client.0 as u16);
        let beyond = self.beyond.read();
        if beyond.contains(&asker) != beyond.contains(&node) {
            return Err(lost());
        }
        drop(beyond);
        let target = target.ok_or_else(lost)?;
        if let Some((_, errno)) = self.refuse.lock().filter(|(op, _)| *op == request.op as u16) {
            return Err(errno.into());
        }
        let (number, seen) = (u32::from(request.op as u16), Ordering::SeqCst);
        if self.lose_request.compare_exchange(number, 0, seen, seen).is_ok() {
            return Err(lost());
        }
        let every = self.lose_every.load(Ordering::Relaxed);
        let turn = self.steps.fetch_add(1, Ordering::Relaxed) + 1;
        // Scattered, so that the losses do not keep step with the retries.
        let dice = scatter(turn);
        let lose = every > 0 && dice.is_multiple_of(every);
        if lose && !(dice >> 20).is_multiple_of(2) {
            return Err(lost());
        }
        let mut frame = Frame::request(request.op as u16, request.id, request.client, request.channel);
        frame.origin = request.origin;
        frame.flags = if request.retry { Flags::RETRY } else { Flags::default() };
        let transport = InProcess::new(target, LaneKind::between_nodes(request.op));
        let body = request.body.to_vec();
        self.sent.lock().push(Sent { node, op: request.op as u16, frame, body });
        let mut head =
            transport.exchange(&Request::new(frame, request.body, request.payload), reply, &mut [])?;
        if self.repeat.compare_exchange(number, 0, seen, seen).is_ok() {
            reply.clear();
            frame.flags = Flags::RETRY;
            head = transport.exchange(&Request::new(frame, request.body, request.payload), reply, &mut [])?;
        }
        let (op, none) = (u32::from(request.op as u16), Ordering::SeqCst);
        // Where it is refused because another node is meant, it has not arrived.
        let elsewhere = Errno::from_code(head.status) == Errno::EREMOTE;
        let lose = lose || !elsewhere && self.lose_reply.compare_exchange(op, 0, none, none).is_ok();
        let interlude = self.after.lock().take_if(|interlude| due(interlude));
        if let Some((_, act)) = interlude {
            // What happens meanwhile happens in other threads.
            bivouac_ranks::on_behalf_of_peer(act);
        }
        match head.status {
            _ if lose => Err(lost()),
            0 => Ok(()),
            status => Err(FsError::with(Errno::from_code(status), String::from_utf8_lossy(reply))),
        }
    }
}

/// A number that looks random, as splitmix64 makes them.
fn scatter(turn: u32) -> u32 {
    let mut z = u64::from(turn).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ z >> 31) as u32
}

/// Clients that a formation has from its start, at most.
const CLIENTS_MAX: usize = 64;

/// N nodes and as many clients as that, client i on node i.
pub struct Formation {
    pub nodes: Vec<Arc<Node>>,
    pub clients: Vec<Client>,
    pub switchboard: Arc<Switchboard>,
    pub map: Arc<FormationMap>,
    root: TempDir,
    capacity: u64,
    spread_at: SpreadAt,
    /// After how long nodes take each other for dead, if they watch each other.
    dead_after: Option<Duration>,
    /// The switches that nodes are told of when they are started.
    pub switches: Vec<Option<u16>>,
    /// What nodes are told of object stores when they are started.
    pub objects: bivouac_source::Environment,
    /// What nodes put around site storage when they are started.
    pub around: Option<SourceDecorator>,
    /// How often it was started: a new process is a new client.
    starts: u64,
    /// Clients that were made so far.
    processes: AtomicU32,
    /// What its nodes share.
    rounds: Rounds,
}

impl Formation {
    pub fn new(nodes: u16, stripe: u32) -> Formation {
        Formation::with_capacity(nodes, stripe, 0)
    }

    pub fn with_capacity(nodes: u16, stripe: u32, capacity: u64) -> Formation {
        Formation::with(nodes, stripe, capacity, SpreadAt::default(), None)
    }

    /// A formation whose nodes watch each other.
    pub fn watching(nodes: u16, dead_after: Duration) -> Formation {
        Formation::with(nodes, 4096, 0, SpreadAt::default(), Some(dead_after))
    }

    /// A formation whose directories spread when they have two entries.
    pub fn spreading(nodes: u16) -> Formation {
        Formation::spreading_at(nodes, 2)
    }

    /// A formation whose directories spread when they have so many entries.
    pub fn spreading_at(nodes: u16, entries: u64) -> Formation {
        Formation::with(nodes, 4096, 0, SpreadAt::entries(entries), None)
    }

    /// A formation whose directories spread when they have two entries, and `alone` if one client has them for itself.
    pub fn spreading_later(nodes: u16, alone: u64) -> Formation {
        Formation::with(nodes, 4096, 0, SpreadAt { shared: 2, alone }, None)
    }

    /// A formation in which the next node keeps replicas of each node's volumes.
    pub fn mirrored(nodes: u16) -> Formation {
        let mut formation = Formation::unstarted(nodes, 4096, 0, SpreadAt::default(), None);
        let backup = |node| Some(NodeId((node + 1) % nodes));
        let mirror = |node| MirrorEntry { backup: backup(node), epoch: 1 };
        let map =
            FormationMap { mirrors: (0..nodes).map(mirror).collect(), ..FormationMap::clone(&formation.map) };
        map.check().unwrap();
        formation.map = Arc::new(map);
        formation.start();
        formation
    }

    fn with(
        nodes: u16,
        stripe: u32,
        capacity: u64,
        spread_at: SpreadAt,
        dead_after: Option<Duration>,
    ) -> Formation {
        let mut formation = Formation::unstarted(nodes, stripe, capacity, spread_at, dead_after);
        formation.start();
        formation
    }

    fn unstarted(
        nodes: u16,
        stripe: u32,
        capacity: u64,
        spread_at: SpreadAt,
        dead_after: Option<Duration>,
    ) -> Formation {
        let entry = |i: u16| NodeEntry {
            host: format!("n{i}"),
            client_address: String::new(),
            peer_address: String::new(),
            unix_path: String::new(),
            epoch: 0,
        };
        let slots = if nodes <= 64 { 64 } else { SLOTS_DEFAULT };
        let map = FormationMap {
            version: 1,
            formation: FormationId([3; 16]),
            name: "test".into(),
            slots: (0..slots).map(|slot| NodeId(slot % nodes)).collect(),
            nodes: (0..nodes).map(entry).collect(),
            targets: (0..nodes).map(|node| TargetEntry { node: NodeId(node), volume: 0 }).collect(),
            stripe,
            width: 0,
            is_secure: false,
            detects_races: false,
            mirrors: Vec::new(),
        };
        // What a full volume gives back costs a disk its time, and so do many.
        let memory = std::path::Path::new("/dev/shm");
        let root = if (capacity > 0 || nodes > 64) && memory.is_dir() {
            TempDir::new_in(memory)
        } else {
            TempDir::new()
        };
        let root = root.unwrap();
        let switchboard = Arc::new(Switchboard::default());
        let (nodes, clients) = (Vec::new(), Vec::new());
        Formation {
            nodes,
            clients,
            switchboard,
            map: Arc::new(map),
            root,
            capacity,
            spread_at,
            dead_after,
            switches: Vec::new(),
            objects: bivouac_source::Environment::default(),
            around: None,
            starts: 0,
            processes: AtomicU32::new(0),
            rounds: Rounds::default(),
        }
    }

    /// Where a node's volume is.
    pub fn volume(&self, node: u16) -> PathBuf {
        self.root.path().join(format!("n{node}"))
    }

    /// The map.
    pub fn map(&self) -> &Arc<FormationMap> {
        &self.map
    }

    /// Starts nodes and clients on what the volumes hold.
    pub fn start(&mut self) {
        for id in 0..self.map.nodes.len() as u16 {
            let volume = VolumeConfig { path: self.volume(id), capacity: self.capacity, create: true };
            let config = NodeConfig {
                rounds: self.rounds.clone(),
                map: self.map.clone(),
                id: NodeId(id),
                volumes: vec![volume],
                handles_max: 64,
                // As users have it: on disks.
                checksum: Checksum::Auto,
                owner: (0, 0),
                grace: Duration::from_secs(30),
                spread_at: self.spread_at,
                dead_after: self.dead_after,
                liveness: Arc::new(LivenessTable::new(self.map.nodes.len())),
                objects: self.objects.clone(),
                secret: SECRET,
                around: self.around.clone(),
                past: RecoveryHistory::default(),
                recorded: None,
                switches: self.switches.clone(),
            };
            let peers: Arc<dyn Peers> = self.switchboard.clone();
            self.nodes.push(Node::open(config, peers, Arc::new(SystemClock)).unwrap().0);
        }
        *self.switchboard.nodes.write() = self.nodes.iter().cloned().map(Some).collect();
        self.nodes.iter().for_each(|node| node.start().unwrap());
        self.clients = (0..self.nodes.len().min(CLIENTS_MAX)).map(|i| self.client(i)).collect();
    }

    /// A client through node `i`.
    pub fn client(&self, i: usize) -> Client {
        self.client_as(i, 100 * self.starts + i as u64)
    }

    /// The same with a number of its own.
    pub fn client_as(&self, i: usize, number: u64) -> Client {
        self.client_over(i, number, |transport| transport)
    }

    /// The same over transports that are wrapped.
    pub fn client_through(
        &self,
        i: usize,
        wrap: impl Fn(Arc<dyn Transport>) -> Arc<dyn Transport>,
    ) -> Client {
        self.client_over(i, 100 * self.starts + i as u64, wrap)
    }

    /// The same with a number of its own.
    pub fn client_over(
        &self,
        i: usize,
        number: u64,
        wrap: impl Fn(Arc<dyn Transport>) -> Arc<dyn Transport>,
    ) -> Client {
        let to = |node: &Arc<Node>| -> Arc<dyn Transport> {
            wrap(Arc::new(InProcess::new(node.clone(), LaneKind::Client)))
        };
        let id = NodeId(i as u16);
        let options = ClientOptions {
            id: ClientId(1 + number),
            wait: Duration::from_secs(30),
            near: Some(id),
            incarnation: self.processes.fetch_add(1, Ordering::Relaxed),
            page_pool: bivouac_types::limits::PAGE_POOL_MIN,
        };
        Client::over(self.map.clone(), self.nodes.iter().map(to).collect(), Some(id), &options)
    }

    /// Ends all nodes without a goodbye and starts them again on what their volumes hold.
    pub fn restart(&mut self) {
        self.starts += 1;
        self.restart_as_the_same_clients();
    }

    /// As [`Formation::restart`], for clients whose processes live on.
    pub fn restart_as_the_same_clients(&mut self) {
        self.stop();
        self.start();
    }

    /// Goes on from copies of all volumes, which were made by [`copy_all`] at the moment of a kill.
    pub fn go_on_from(&mut self, copy: &std::path::Path) {
        self.starts += 1;
        self.stop();
        for entry in std::fs::read_dir(self.root.path()).unwrap() {
            std::fs::remove_dir_all(entry.unwrap().path()).unwrap();
        }
        copy_all(copy, self.root.path());
        self.start();
    }

    /// The directory of all volumes.
    pub fn volumes(&self) -> PathBuf {
        self.root.path().to_owned()
    }

    /// Ends all nodes without a goodbye; their volumes are free then.
    pub fn stop(&mut self) {
        self.clients.clear();
        self.switchboard.nodes.write().clear();
        // All of them first: the background work of one may be asking another.
        self.nodes.iter().for_each(|node| node.halt());
        for node in self.nodes.drain(..) {
            // What is flushed in the background ends first.
            wait_until("nobody else holds the node", || Arc::strong_count(&node) == 1);
        }
    }

    /// How many records of each table there are on all nodes together: looked at while the nodes are stopped.
    pub fn census(&mut self) -> BTreeMap<char, usize> {
        wait_until("every change is finished", || self.nodes.iter().all(|node| node.unfinished() == 0));
        self.starts += 1;
        self.stop();
        let mut census = BTreeMap::new();
        for id in 0..self.map.nodes.len() as u16 {
            let volume = VolumeConfig { path: self.volume(id), capacity: self.capacity, create: false };
            let (formation, id) = (self.map.formation, NodeId(id));
            let options = DataOptions { handles_max: 4, ..DataOptions::default() };
            let data = DataStore::open(&[volume], formation, id, &options).unwrap();
            let slots = self.map.slot_count();
            let options = RecordsOptions { slots, ..RecordsOptions::default() };
            let (records, _) = Records::open(data.volume(0).unwrap(), formation, id, options).unwrap();
            for slot in (0..slots).map(Slot) {
                records.scan(slot, b"", b"", |key, _| {
                    *census.entry(char::from(key[0])).or_default() += 1;
                    ControlFlow::Continue(())
                });
            }
        }
        self.start();
        census
    }

    /// Inodes on all nodes together.
    pub fn files(&self) -> u64 {
        self.nodes_status().map(|status| status.files).sum()
    }

    fn nodes_status(&self) -> impl Iterator<Item = bivouac_client::NodeStatus> {
        (0..self.nodes.len()).map(|node| self.clients[0].nodes().status(NodeId(node as u16)).unwrap())
    }

    /// Requests of clients for this operation that a node has served.
    pub fn served(&self, node: usize, op: Op) -> u64 {
        let status = self.clients[0].nodes().status(NodeId(node as u16)).unwrap();
        status.operations.iter().find(|count| count.name == op.name()).map_or(0, |count| count.client)
    }
}

/// Copies everything in a directory, holes as holes.
pub fn copy_all(from: &std::path::Path, to: &std::path::Path) {
    let copied = std::process::Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status().unwrap();
    assert!(copied.success());
}

/// Writes all of it.
pub fn write(client: &Client, ino: Ino, offset: usize, data: &[u8]) {
    assert_eq!(client.write(&op(client), ino, offset as u64, data, false).unwrap(), data.len());
}

/// The first page of a file, which may seem to be very long.
pub fn first_page(path: impl AsRef<std::path::Path>) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    let file = std::fs::File::open(path).unwrap();
    let len = std::os::unix::fs::FileExt::read_at(&file, &mut bytes, 0).unwrap();
    bytes.truncate(len);
    bytes
}

/// What is there of so many bytes.
pub fn read(client: &Client, ino: Ino, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    let read = client.read(ino, offset as u64, &mut bytes).unwrap();
    bytes.truncate(read);
    bytes
}

/// An operation's identity for tests that do not care.
pub fn op(client: &Client) -> OpCtx {
    client.new_op(0, 0, 0)
}

/// Its nodes and the switchboard know each other: neither would go by itself.
impl Drop for Formation {
    fn drop(&mut self) {
        self.clients.clear();
        self.switchboard.release();
        self.switchboard.nodes.write().clear();
        self.nodes.iter().for_each(|node| node.halt());
    }
}

/// Waits for something that other threads bring about.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !done() {
        assert!(std::time::Instant::now() < deadline, "{what}: not within a minute");
        std::thread::yield_now();
    }
}
