//! Requests of a node to its peers: steps on the peer lane, whose handlers ask no node.

use std::io::IoSlice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bivouac_net::{Address, LaneKind, Request, Transport};
use bivouac_ranks::{Mutex, RwLock, rank};
use bivouac_store::MirroredVolumes;
use bivouac_types::{ClientId, Errno, FsError, FsResult, NodeId, OpId};
use bivouac_wire::{Decode, Flags, FormationMap, Frame, NodeEntry, Op, Operation};

use crate::counters::Counters;
use crate::identity::{SYSTEM, node_as_client};

/// A step for a peer.
pub struct PeerRequest<'a> {
    /// Operation.
    pub op: Op,
    /// Identity of the step, which a retransmission repeats.
    pub id: OpId,
    /// The requesting node, as a client.
    pub client: ClientId,
    /// Channel of the intent that the step belongs to.
    pub channel: u16,
    /// Set if the step may have been carried out before.
    pub retry: bool,
    /// The client whose request makes the step necessary.
    pub origin: ClientId,
    /// Encoded request.
    pub body: &'a [u8],
    /// Bytes to write.
    pub payload: &'a [IoSlice<'a>],
}

impl<'a> PeerRequest<'a> {
    /// Creates an idempotent request that this node makes of its own accord.
    pub(crate) fn of_node(node: NodeId, op: Op, body: &'a [u8]) -> PeerRequest<'a> {
        PeerRequest {
            op,
            id: OpId(0),
            client: node_as_client(node),
            channel: 0,
            retry: false,
            origin: SYSTEM,
            body,
            payload: &[],
        }
    }
}

/// Transport of requests to peers.
pub trait Peers: Send + Sync {
    /// Carries a step to `node` and appends the encoded reply to `reply`.
    ///
    /// # Errors
    /// The peer's, or `EIO` when it does not answer within the bounded time.
    fn call(&self, node: NodeId, request: &PeerRequest<'_>, reply: &mut Vec<u8>) -> FsResult<()> {
        self.call_within(Duration::ZERO, node, request, reply)
    }

    /// Like [`Peers::call`], waiting for `wait` at most; zero leaves the limit to the transport.
    ///
    /// # Errors
    /// As [`Peers::call`].
    fn call_within(
        &self,
        wait: Duration,
        node: NodeId,
        request: &PeerRequest<'_>,
        reply: &mut Vec<u8>,
    ) -> FsResult<()>;

    /// Directs requests to the addresses in this map, for peers whose epoch in it is newer.
    fn take_map(&self, map: &FormationMap) {
        let _ = map;
    }
}

/// The identity of all steps of one intent.
#[derive(Clone, Copy)]
pub struct StepContext {
    /// Number of the intent.
    pub tx: u64,
    /// Channel that no other intent uses meanwhile.
    pub channel: u16,
    /// Set for a replay.
    pub retry: bool,
    /// The client whose request the intent is for.
    pub origin: ClientId,
    /// Set if no client waits: a peer that is away is not waited for either.
    pub background: bool,
}

impl StepContext {
    /// Returns the identity for requests that are idempotent, and need none of their own.
    pub fn question(origin: ClientId) -> StepContext {
        StepContext { tx: 0, channel: 0, retry: false, origin, background: false }
    }
}

/// Most steps of one intent: ids of steps are `tx * STEPS_MAX + step`.
pub const STEPS_MAX: u64 = 16;

/// Channels towards peers, each for one intent at a time.
#[derive(Default)]
pub struct Channels {
    // Channels that were put back, and the next that was never taken.
    free: Mutex<(Vec<u16>, u16)>,
}

impl Channels {
    /// Takes a channel that no intent uses. Give it back with [`Channels::put`].
    pub fn take(&self) -> u16 {
        let mut free = self.free.lock();
        // Used ones first: peers have records of each channel that ever was used.
        if let Some(channel) = free.0.pop() {
            return channel;
        }
        let channel = free.1;
        // The next one would be in use: two intents on one channel take each other's steps for retransmissions.
        assert!(channel < u16::MAX, "{channel} changes of several nodes are under way");
        free.1 = channel + 1;
        channel
    }

    /// Gives a channel back.
    pub fn put(&self, channel: u16) {
        let mut free = self.free.lock();
        // Two intents on one channel would take each other's steps for retransmissions.
        debug_assert!(!free.0.contains(&channel), "channel {channel} is given back once");
        free.0.push(channel);
    }

    /// Takes a particular channel that an intent of an earlier daemon used, before any other is taken.
    pub fn reserve(&self, channel: u16) {
        let mut free = self.free.lock();
        let next = free.1;
        free.0.extend(next..channel);
        free.0.retain(|free| *free != channel);
        free.1 = next.max(channel.wrapping_add(1));
    }
}

/// A node's end of the lane to its peers.
pub struct PeerLane {
    id: NodeId,
    /// Number of nodes of the formation.
    nodes: AtomicUsize,
    way: Arc<dyn Peers>,
    counters: Arc<Counters>,
    /// The mirror of the node's volumes, if they are mirrored; it asks its backup over this lane.
    mirror: OnceLock<Weak<MirroredVolumes>>,
}

impl PeerLane {
    /// Creates the lane of a node of the map. `counters` counts its requests.
    pub fn new(map: &FormationMap, id: NodeId, way: Arc<dyn Peers>, counters: Arc<Counters>) -> PeerLane {
        let nodes = AtomicUsize::new(map.nodes.len());
        PeerLane { id, nodes, way, counters, mirror: OnceLock::new() }
    }

    /// Makes every later request wait until changes that the mirror has deferred are on both sides.
    pub fn make_deferred_before_asking(&self, mirror: &Arc<MirroredVolumes>) {
        let is_first = self.mirror.set(Arc::downgrade(mirror)).is_ok();
        assert!(is_first, "{} has two mirrors", self.id);
    }

    /// Waits until all earlier changes here are on both sides of the mirror. To be called before anything of them is
    /// disclosed.
    ///
    /// # Errors
    /// `EIO` if the backup does not answer in bounded time.
    pub fn make_deferred(&self) -> FsResult<()> {
        let Some(mirror) = self.mirror.get().and_then(Weak::upgrade) else { return Ok(()) };
        mirror.make_deferred().map_err(|error| FsError::from_io(&error, "the mirror of this node's volumes"))
    }

    /// Like [`PeerLane::make_deferred`], if a request of this kind tells a peer of changes here.
    ///
    /// # Errors
    /// As [`PeerLane::make_deferred`].
    pub fn make_deferred_for(&self, op: Op) -> FsResult<()> {
        // What the peer is told must outlive this node: its changes have to be on both sides of the mirror first.
        if tells_of_changes(op) { self.make_deferred() } else { Ok(()) }
    }

    /// Returns the node whose lane it is.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Like [`Peers::take_map`].
    pub fn take_map(&self, map: &FormationMap) {
        self.way.take_map(map);
        // Maps only go forward, so the number never falls.
        self.nodes.fetch_max(map.nodes.len(), Ordering::AcqRel);
    }

    /// Returns true if this is another node of the formation.
    pub fn has(&self, node: NodeId) -> bool {
        node != self.id && usize::from(node.0) < self.nodes.load(Ordering::Acquire)
    }

    /// Sends a request to a peer and decodes its reply.
    pub fn ask<O: Operation>(&self, target: NodeId, request: &PeerRequest<'_>) -> FsResult<O::Reply> {
        self.ask_within::<O>(None, target, request)
    }

    /// Like [`PeerLane::ask`], waiting for `wait` at most.
    pub fn ask_within<O: Operation>(
        &self,
        wait: Option<Duration>,
        target: NodeId,
        request: &PeerRequest<'_>,
    ) -> FsResult<O::Reply> {
        self.make_deferred_for(O::OP)?;
        let mut reply = Vec::new();
        self.counters.add_call(O::OP);
        match wait {
            Some(wait) => self.way.call_within(wait, target, request, &mut reply)?,
            None => self.way.call(target, request, &mut reply)?,
        }
        O::Reply::from_bytes(&reply).map_err(|e| {
            let text = format!("{target} answered {} with bytes that do not decode: {e}", O::OP.name());
            FsError::with(Errno::EPROTO, text)
        })
    }
}

/// Returns true if a request may disclose what is on this node's volumes. The others concern the liveness of nodes or
/// the mirror itself, or only have clients invalidate what they cache.
fn tells_of_changes(op: Op) -> bool {
    let is_about_nodes = matches!(op, Op::Ping | Op::GetMap | Op::Probe | Op::ProbeFor | Op::Reached);
    let is_of_mirrors = matches!(op, Op::BeginReplica | Op::ApplyChanges | Op::RenewReplica);
    !is_about_nodes && !is_of_mirrors && !matches!(op, Op::Invalidate | Op::RecallTokens)
}

/// Transports by node id; `None` for the node itself.
type Transports = Vec<Option<Arc<dyn Transport>>>;

/// Creates the transport to a node on a lane; `None` for a node of this process.
pub type Connector = dyn Fn(NodeId, &NodeEntry, LaneKind) -> Option<Arc<dyn Transport>> + Send + Sync;

/// Transport of requests to peers over the network.
pub struct NetPeers {
    peers: RwLock<Transports>,
    /// For changes of replicas, in connections of their own; none without mirrors.
    mirrors: RwLock<Transports>,
    /// For nodes of hosts that join a running formation; none if there cannot be any.
    connector: Option<Box<Connector>>,
}

impl NetPeers {
    /// Creates it from transports by node id; `None` for the node itself.
    #[must_use]
    pub fn new(peers: Vec<Option<Arc<dyn Transport>>>) -> NetPeers {
        let mirrors = RwLock::new(rank::LEAF, Vec::new());
        NetPeers { peers: RwLock::new(rank::LEAF, peers), mirrors, connector: None }
    }

    /// Adds transports to backups, which have connections of their own, and what creates both for nodes that join.
    #[must_use]
    pub fn with_mirrors(
        self,
        mirrors: Vec<Option<Arc<dyn Transport>>>,
        connector: Box<Connector>,
    ) -> NetPeers {
        NetPeers { mirrors: RwLock::new(rank::LEAF, mirrors), connector: Some(connector), ..self }
    }

    /// Sends a request over one transport.
    ///
    /// # Errors
    /// As [`Peers::call_within`].
    pub fn exchange(
        way: &dyn Transport,
        wait: Duration,
        request: &PeerRequest<'_>,
        reply: &mut Vec<u8>,
    ) -> FsResult<()> {
        let mut frame = Frame::request(request.op as u16, request.id, request.client, request.channel);
        frame.origin = request.origin;
        // 0 leaves it to the transport.
        frame.wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        if request.retry {
            frame.flags = Flags::RETRY;
        }
        let request = Request::new(frame, request.body, request.payload);
        let head = way.exchange(&request, reply, &mut [])?;
        if head.status == 0 {
            return Ok(());
        }
        let text = String::from_utf8_lossy(reply).into_owned();
        let errno = Errno::from_code(head.status);
        Err(if text.is_empty() { errno.into() } else { FsError::with(errno, text) })
    }
}

impl Peers for NetPeers {
    fn call_within(
        &self,
        wait: Duration,
        node: NodeId,
        request: &PeerRequest<'_>,
        reply: &mut Vec<u8>,
    ) -> FsResult<()> {
        let unknown = || FsError::with(Errno::ESTALE, format!("{node} is not a peer"));
        let ways = match LaneKind::between_nodes(request.op) {
            LaneKind::Mirror => &self.mirrors,
            _ => &self.peers,
        };
        // Not held while an answer is awaited: a map that comes meanwhile adds nodes.
        let way = ways.read().get(usize::from(node.0)).and_then(Clone::clone).ok_or_else(unknown)?;
        NetPeers::exchange(way.as_ref(), wait, request, reply)
    }

    fn take_map(&self, map: &FormationMap) {
        for (ways, lane) in [(&self.peers, LaneKind::Peer), (&self.mirrors, LaneKind::Mirror)] {
            let known = ways.read().clone();
            for (way, entry) in known.iter().zip(&map.nodes) {
                let address = Address::tcp(entry.peer_address.clone());
                let _or_older = way.as_ref().map(|way| way.redirect(entry.epoch, &address));
            }
            let Some(connector) = &self.connector else { continue };
            let added = (0..).map(NodeId).zip(&map.nodes).skip(known.len());
            let added: Transports = added.map(|(node, entry)| connector(node, entry, lane)).collect();
            let mut ways = ways.write();
            // Another thread may have taken a map meanwhile.
            let surplus = ways.len().saturating_sub(known.len());
            ways.extend(added.into_iter().skip(surplus));
        }
    }
}
