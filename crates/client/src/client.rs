//! The client and its ways to the nodes.

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bivouac_layout::entry_hash;
use bivouac_net::{
    Address, Auth, Identity, InProcess, LaneKind, LivenessTable, NetError, Peer, PeerOptions, Service,
    Started, Transport, Watch,
};
use bivouac_types::{Attr, ClientId, Errno, FsError, FsResult, Ino, NodeId, OpId, SeatIndex, Slot};
use bivouac_wire::{Flags, FormationMap, Frame, Invalidation, NodeEntry, Operation, op};

use crate::closings::Closings;
use crate::direct::Direct;
use crate::glimpse::Glimpses;
use crate::known::KnownFiles;
use crate::leases::{Leases, Moment, Run};
use crate::local::LocalFiles;
use crate::locks::{Doubts, Fenced, Heeded, LockDesk};
use crate::session::Sessions;
use crate::spread::SpreadDirs;
use crate::traffic::count_message;
use crate::uses::Uses;
use crate::watch::Keeper;
use crate::whole::WholeDirs;

/// How long a client that ends waits for each node to hear it, in milliseconds.
const LEAVE_WAIT_MS: u32 = 1000;

/// Longest wait for a socket that is to be on this machine.
const PROBE: Duration = Duration::from_millis(200);

/// Identity of one changing operation, so that it happens once however often it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpCtx {
    /// Unique within the client and channel.
    pub id: OpId,
    /// One changing operation at a time.
    pub channel: u16,
    /// Whether an earlier process of this client may have sent it before.
    pub retry: bool,
    /// Owner of what is made.
    pub uid: u32,
    /// Group of what is made.
    pub gid: u32,
    /// The process that asks.
    pub pid: u32,
}

/// An inode to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewInode<'a> {
    /// Type and permission bits, umask applied.
    pub mode: u32,
    /// Device number of a device node.
    pub rdev: u32,
    /// Target of a symbolic link.
    pub target: &'a [u8],
}

/// Outcome of an opening create.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// Attributes of the open file.
    pub attr: Attr,
    /// Whether it was there before.
    pub existed: bool,
}

/// What to seek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekKind {
    /// The next byte that is not in a hole.
    Data,
    /// The next hole.
    Hole,
}

/// The node in the client's own process.
pub struct LocalNode {
    /// Which it is.
    pub id: NodeId,
    /// Its server side.
    pub service: Arc<dyn Service>,
    /// Which nodes it knows to be dead.
    pub liveness: Arc<LivenessTable>,
    /// Its content.
    pub files: Arc<dyn LocalFiles>,
}

/// Settings of a client.
pub struct ClientOptions {
    /// Who this is; stable over restarts of its process if operations are to survive them.
    pub id: ClientId,
    /// How long to wait for a node that does not answer.
    pub wait: Duration,
    /// The node that "local" means: files of local placement go there.
    pub near: Option<NodeId>,
    /// How many processes have been this client before.
    pub incarnation: u32,
    /// Most bytes of pages under the session contract.
    pub page_pool: u64,
}

/// A formation, seen from one process.
pub struct Client {
    pub(crate) map: Arc<FormationMap>,
    pub(crate) id: ClientId,
    pub(crate) local: Option<NodeId>,
    pub(crate) files: Option<Arc<dyn LocalFiles>>,
    pub(crate) known: Arc<KnownFiles>,
    pub(crate) direct: Direct,
    /// Of each request.
    flags: Flags,
    /// How often this process's ancestors had been forked when it was made.
    pub(crate) forks: u32,
    nodes: Vec<Arc<dyn Transport>>,
    /// Whether some of them are reached over a network.
    is_spread_out: bool,
    near: Vec<SeatIndex>,
    next_op: AtomicU64,
    pub(crate) leases: Leases,
    pub(crate) spread: SpreadDirs,
    pub(crate) glimpses: Glimpses,
    pub(crate) whole: WholeDirs,
    /// By node: whether it remembers what came of this client's changes.
    changed: Vec<AtomicBool>,
    /// How its files are used.
    pub(crate) uses: Uses,
    pub(crate) keeper: Option<Keeper>,
    /// Where threads may be started: what other nodes hear a little later.
    pub(crate) closings: Option<Closings>,
    pub(crate) locks: Arc<LockDesk>,
    pub(crate) partitions: crate::partitions::Known,
    pub(crate) sessions: Sessions,
    pub(crate) asked: crate::saving::Asked,
}

impl Client {
    /// A client of the formation that the map describes. Connections are made when they are needed.
    #[must_use]
    pub fn new(
        map: Arc<FormationMap>,
        auth: &Auth,
        local: Option<LocalNode>,
        options: &ClientOptions,
    ) -> Client {
        let known = Arc::new(KnownFiles::new(options.incarnation));
        let keeper = keeper(&map, &known);
        let doubts = Arc::new(OnceLock::new());
        let way = |(id, entry): (usize, &NodeEntry)| match &local {
            Some(node) if usize::from(node.id.0) == id => None,
            _ => {
                let doubts = Some(&doubts);
                let way = Way { map: &map, known: &known, auth, options, keeper: keeper.as_ref(), doubts };
                let host = local.as_ref().and_then(|node| map.nodes.get(usize::from(node.id.0)));
                let peer = way.to(NodeId(id as u16), address_of(entry, host));
                Some(Arc::new(match &local {
                    Some(node) => peer.heeding(&node.liveness),
                    None => peer,
                }))
            }
        };
        let peers: Vec<Option<Arc<Peer>>> = map.nodes.iter().enumerate().map(way).collect();
        if let Some((keeper, _)) = &keeper {
            keeper.keep(peers.iter().map(|peer| peer.as_ref().map(Arc::downgrade)).collect());
        }
        let transport = |peer: Option<Arc<Peer>>| -> Option<Arc<dyn Transport>> {
            let here = |node: &LocalNode| -> Arc<dyn Transport> {
                Arc::new(InProcess::new(Arc::clone(&node.service), LaneKind::Client))
            };
            peer.map(|peer| peer as Arc<dyn Transport>).or_else(|| local.as_ref().map(here))
        };
        let nodes: Vec<_> = peers.into_iter().filter_map(transport).collect();
        let closings = Some(Closings::new(options.id, Arc::clone(&known), &nodes));
        let (local, files) = local.map(|node| ((node.id, node.liveness), node.files)).unzip();
        let keeper = keeper.map(|(keeper, _)| keeper);
        let client = Client::over(map, nodes, local.as_ref().map(|(id, _)| *id), options);
        // Told once; no connection is made before.
        let _ = doubts.set(client.locks.doubts());
        if let Some((_, liveness)) = local {
            client.locks.heed(Heeded { liveness, wait: options.wait });
        }
        Client { known, keeper, closings, files, ..client }
    }

    /// A client in a process that is no node. Nodes of this machine are reached over their Unix sockets, and
    /// their subfiles directly; "local" means the first of them unless the options name another. It starts no
    /// threads, so nobody notices that a node was restarted while nothing is asked of it.
    #[must_use]
    pub fn nearby(map: Arc<FormationMap>, auth: &Auth, options: &ClientOptions) -> Client {
        let here: Vec<(NodeId, Address)> = (0..)
            .zip(&map.nodes)
            .filter(|(_, entry)| !entry.unix_path.is_empty())
            .map(|(id, entry)| (NodeId(id), Address::unix(&entry.unix_path)))
            .filter(|(_, address)| address.answers(PROBE))
            .collect();
        let near = options.near.or_else(|| here.first().map(|(id, _)| *id));
        let options = ClientOptions { near, ..*options };
        let known = Arc::new(KnownFiles::new(options.incarnation));
        let way = Way { map: &map, known: &known, auth, options: &options, keeper: None, doubts: None };
        let connect = |(id, entry): (u16, &NodeEntry)| -> Arc<dyn Transport> {
            let address = here.iter().find(|(node, _)| node.0 == id).map(|(_, address)| address.clone());
            let address = address.unwrap_or_else(|| Address::tcp(entry.client_address.clone()));
            Arc::new(way.to(NodeId(id), address))
        };
        let nodes = (0..).zip(&map.nodes).map(connect).collect();
        let identity = Identity { auth: auth.clone(), client: options.id, lane: LaneKind::Client };
        let direct = Direct::with(here, &identity, options.wait);
        // There is no kernel to cache anything, and others' changes would wait for its leases.
        let flags = Flags::NO_LEASE;
        Client { known, direct, flags, ..Client::over(map, nodes, None, &options) }
    }

    /// Whether some nodes are reached over a network. Bytes for those are summed up, so read by this process and not only by
    /// the kernel: a buffer that is not there would be no error but its end.
    #[must_use]
    pub fn is_spread_out(&self) -> bool {
        self.is_spread_out
    }

    /// A client over given ways to the nodes, in the order of the map. They must wait for nodes that are
    /// away, if anybody is to.
    #[must_use]
    pub fn over(
        map: Arc<FormationMap>,
        nodes: Vec<Arc<dyn Transport>>,
        local: Option<NodeId>,
        options: &ClientOptions,
    ) -> Client {
        let near = options.near.map_or(Vec::new(), |node| seats_of(&map, node));
        let known = Arc::new(KnownFiles::new(options.incarnation));
        let leases = Leases::new(map.slot_count());
        let locks = Arc::new(LockDesk::new(options.id, local, Arc::clone(&map), nodes.clone()));
        let changed = nodes.iter().map(|_| AtomicBool::new(false)).collect();
        let (direct, forks) = (Direct::default(), bivouac_direct::forks());
        let (keeper, closings, next_op) = (None, None, AtomicU64::new(1));
        let (spread, glimpses, whole, partitions, asked) = Default::default();
        let is_spread_out = nodes.iter().any(|node| matches!(node.address(), Address::Tcp(_)));
        let sessions = Sessions::new(options.page_pool);
        Client {
            map,
            id: options.id,
            local,
            files: None,
            known,
            direct,
            flags: Flags::default(),
            forks,
            nodes,
            is_spread_out,
            near,
            next_op,
            leases,
            spread,
            glimpses,
            whole,
            changed,
            uses: Uses::new(),
            keeper,
            closings,
            locks,
            partitions,
            sessions,
            asked,
        }
    }

    /// The map.
    #[must_use]
    pub fn map(&self) -> &Arc<FormationMap> {
        &self.map
    }

    /// The locks that programs take through this client.
    #[must_use]
    pub fn locks(&self) -> &Arc<LockDesk> {
        &self.locks
    }

    /// An identity for a changing operation of a front end that has none of its own, for instance a tool:
    /// `channel` must be used by one thread at a time.
    #[must_use]
    pub fn new_op(&self, channel: u16, uid: u32, gid: u32) -> OpCtx {
        OpCtx { id: self.next_id(), channel, retry: false, uid, gid, pid: std::process::id() }
    }

    /// A seat of the near node; files take turns.
    pub(crate) fn near_seat(&self) -> Option<SeatIndex> {
        let turn = self.next_op.load(Ordering::Relaxed) as usize;
        self.near.get(turn.checked_rem(self.near.len())?).copied()
    }

    /// For how long the attributes that this thread has just been told may be cached: this client is asked before
    /// anybody else changes them. The attributes of a spread directory may always be cached for a moment: the kernel looks at its
    /// owner and mode for every entry, and if its home were asked each time, it would be what limits all nodes. The
    /// moment begins when the home is asked, also for what was [glanced](Client::glance) at later.
    #[must_use]
    pub fn lease(&self, ino: Ino) -> Duration {
        if self.spread.has(ino) { self.glimpses.left(ino) } else { self.leases.left_of_attrs(ino) }
    }

    /// For how long what this thread was just told of a name, or of its absence, may be cached.
    #[must_use]
    pub fn entry_lease(&self, dir: Ino, name: &[u8]) -> Duration {
        self.leases.left_of_name(dir, entry_hash(dir, name))
    }

    /// Takes nothing of this from what it knows any more. What a kernel knows is not its business.
    pub fn invalidate(&self, what: &[Invalidation]) {
        what.iter().filter(|one| one.name.is_some()).for_each(|one| self.whole.forget(one.ino.slot()));
    }

    /// When a question is about to be asked: leases of its answer count from here.
    pub(crate) fn now(&self) -> Moment {
        self.leases.now()
    }

    /// A node gave a lease on a slot with its answer to what was asked at `asked`. The run that it belongs to, if it
    /// is not over yet.
    pub(crate) fn leased(&self, slot: Slot, asked: Moment, lease_ms: u32) -> Option<Run> {
        self.leases.renew(slot, asked, lease_ms)
    }

    /// The run of a slot's lease, while it lasts.
    pub(crate) fn lease_run(&self, slot: Slot) -> Option<Run> {
        self.leases.run(slot)
    }

    /// Whether nodes give it leases at all.
    pub(crate) fn takes_leases(&self) -> bool {
        self.flags.wants_lease()
    }

    pub(crate) fn next_id(&self) -> OpId {
        OpId(self.next_op.fetch_add(1, Ordering::Relaxed))
    }

    /// The node that an inode's record belongs to.
    pub(crate) fn home(&self, ino: Ino) -> FsResult<NodeId> {
        self.map.home(ino).ok_or_else(|| {
            FsError::with(Errno::ESTALE, format!("inode {ino} is not of formation '{}'", self.map.name))
        })
    }

    pub(crate) fn transport(&self, node: NodeId) -> FsResult<&dyn Transport> {
        count_message();
        let transport = self.nodes.get(usize::from(node.0)).map(AsRef::as_ref);
        transport.ok_or_else(|| FsError::with(Errno::ESTALE, format!("{node} is not in the map")))
    }

    /// Asks a node something that changes nothing.
    pub(crate) fn ask<O: Operation>(&self, node: NodeId, request: &O::Request<'_>) -> FsResult<O::Reply> {
        self.when_here(|| bivouac_net::call::<O>(self.transport(node)?, self.question(), request, &[]))
    }

    /// As [`Client::ask`], with a number of its own for the request.
    pub(crate) fn ask_as<O: Operation>(
        &self,
        node: NodeId,
        id: OpId,
        request: &O::Request<'_>,
    ) -> FsResult<O::Reply> {
        let frame = || Frame { id, ..self.question() };
        self.when_here(|| bivouac_net::call::<O>(self.transport(node)?, frame(), request, &[]))
    }

    /// Has a node change something, once.
    pub(crate) fn change<O: Operation>(
        &self,
        node: NodeId,
        ctx: &OpCtx,
        request: &O::Request<'_>,
        payload: &[IoSlice<'_>],
    ) -> FsResult<O::Reply> {
        if let Some(changed) = self.changed.get(usize::from(node.0)) {
            changed.store(true, Ordering::Relaxed);
        }
        self.when_here(|| bivouac_net::call::<O>(self.transport(node)?, self.order(ctx), request, payload))
    }

    /// This client ends for good: the nodes need not remember any more what came of its changes. It must not be used
    /// afterwards, nor anybody else with its number. A node that cannot be told remembers them until the formation
    /// ends.
    pub fn leave(&self) {
        self.send_all();
        self.tell_uses();
        self.closings.iter().for_each(Closings::send_all);
        let frame = Frame { wait_ms: LEAVE_WAIT_MS, ..self.question() };
        let told: Vec<_> = (self.changed.iter().zip(&self.nodes))
            .filter(|(changed, _)| changed.swap(false, Ordering::Relaxed))
            .map(|(_, node)| bivouac_net::start::<op::Leave>(&**node, frame, &(), &[]))
            .collect();
        for error in told.into_iter().filter_map(|told| told.finish(&mut []).err()) {
            log::debug!(why:% = error; "a node was not told that this client ends");
        }
    }

    /// Starts a question, to be finished together with others.
    pub(crate) fn start<'a, O: Operation>(
        &'a self,
        node: NodeId,
        request: &O::Request<'_>,
        payload: &'a [IoSlice<'a>],
    ) -> FsResult<Started<'a, O>> {
        Ok(bivouac_net::start::<O>(self.transport(node)?, self.question(), request, payload))
    }

    /// As [`Client::start`], without waiting for the node to take the payload.
    pub(crate) fn begin<'a, O: Operation>(
        &'a self,
        node: NodeId,
        request: &O::Request<'_>,
        payload: &'a [IoSlice<'a>],
    ) -> FsResult<Started<'a, O>> {
        Ok(bivouac_net::begin::<O>(self.transport(node)?, self.question(), request, payload))
    }

    /// Asks a node, with buffers for the payload of its answer.
    pub(crate) fn ask_into<O: Operation>(
        &self,
        node: NodeId,
        request: &O::Request<'_>,
        into: &mut [IoSliceMut<'_>],
    ) -> FsResult<(O::Reply, usize)> {
        bivouac_net::call_into::<O>(self.transport(node)?, self.question(), request, &[], into)
    }

    fn question(&self) -> Frame {
        Frame { flags: self.flags, fence: Fenced::token(), ..Frame::request(0, self.next_id(), self.id, 0) }
    }

    fn order(&self, ctx: &OpCtx) -> Frame {
        let flags = if ctx.retry { self.flags.with(Flags::RETRY) } else { self.flags };
        Frame { flags, fence: Fenced::token(), ..Frame::request(0, ctx.id, self.id, ctx.channel) }
    }
}

/// Where a node is reached from a process of the node `here`: over its Unix socket on the same machine, which is quicker.
fn address_of(entry: &NodeEntry, here: Option<&NodeEntry>) -> Address {
    let same_host = here.is_some_and(|here| here.host == entry.host) && !entry.unix_path.is_empty();
    // Machines may have the same name.
    let near = same_host.then(|| Address::unix(&entry.unix_path)).filter(Address::is_on_this_machine);
    near.unwrap_or_else(|| Address::tcp(entry.client_address.clone()))
}

fn seats_of(map: &FormationMap, node: NodeId) -> Vec<SeatIndex> {
    let own = |(seat, entry): (usize, &bivouac_wire::SeatEntry)| {
        (entry.node == node).then_some(SeatIndex(seat as u32))
    };
    map.seats.iter().enumerate().filter_map(own).collect()
}

/// What keeps connections alive where something is open, and what watches them.
fn keeper(map: &Arc<FormationMap>, known: &Arc<KnownFiles>) -> Option<(Keeper, Arc<Watch>)> {
    let watch = Watch::new();
    let watch = watch.inspect_err(|error| log::error!(why:% = error; "restarts of nodes are noticed late"));
    let watch = Arc::new(watch.ok()?);
    let (map, known) = (Arc::clone(map), Arc::clone(known));
    let wanted = move |node| known.has_any(|ino| map.home(ino) == Some(node));
    Some((Keeper::new(Arc::clone(&watch), wanted), watch))
}

/// What ways to nodes of other processes are made from.
struct Way<'a> {
    map: &'a Arc<FormationMap>,
    known: &'a Arc<KnownFiles>,
    auth: &'a Auth,
    options: &'a ClientOptions,
    keeper: Option<&'a (Keeper, Arc<Watch>)>,
    /// Where it is noted that a home may have dropped locks.
    doubts: Option<&'a Arc<OnceLock<Arc<Doubts>>>>,
}

impl Way<'_> {
    /// The way to a node. After a loss, what this client has open there is told first.
    fn to(&self, id: NodeId, address: Address) -> Peer {
        let identity = Identity { auth: self.auth.clone(), client: self.options.id, lane: LaneKind::Client };
        let wait_ms = u64::try_from(self.options.wait.as_millis()).unwrap_or(u64::MAX);
        let options = PeerOptions { wait_ms, is_guest: self.keeper.is_none() };
        let peer = match self.keeper {
            Some((_, watch)) => Peer::watched(id, address, identity, options, watch),
            None => Peer::to(id, address, identity, options),
        };
        let (client, map, known) = (self.options.id, Arc::clone(self.map), Arc::clone(self.known));
        let doubts = self.doubts.cloned();
        peer.on_reconnect(move |node: NodeId, transport: &dyn Transport| -> Result<(), NetError> {
            if let Some(doubts) = doubts.as_ref().and_then(|doubts| doubts.get()) {
                doubts.add(node);
            }
            // The floor first: what is answered between the two is in the list.
            let floor = known.under_way.floor();
            let opens = known.opens(|ino| map.home(ino) == Some(node));
            crate::opens::reassert(transport, client, floor, opens)
        });
        peer
    }
}
