//! What a node asks of its peers: steps on the peer lane, which call nobody themselves.

use std::io::IoSlice;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bivouac_net::{Address, LaneKind, Request, Transport};
use bivouac_ranks::Mutex;
use bivouac_store::Mirror;
use bivouac_types::{ClientId, Errno, FsError, FsResult, NodeId, OpId};
use bivouac_wire::{Decode, Flags, FormationMap, Frame, Op, Operation};

use crate::counters::Counters;
use crate::identity::{SYSTEM, node_as_client};

/// A step for a peer.
pub struct PeerRequest<'a> {
    /// What to do.
    pub op: Op,
    /// Identity of the step; a repeated step has the same.
    pub id: OpId,
    /// The asking node as a client.
    pub client: ClientId,
    /// Channel of the intent that the step belongs to.
    pub channel: u16,
    /// Whether the step may have been carried out before.
    pub retry: bool,
    /// The client whose request makes the step necessary.
    pub origin: ClientId,
    /// Encoded request.
    pub body: &'a [u8],
    /// Bytes to write.
    pub payload: &'a [IoSlice<'a>],
}

impl<'a> PeerRequest<'a> {
    /// One of a node of its own accord, which may be done twice without harm.
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

/// The way to the peers.
pub trait Peers: Send + Sync {
    /// Carries a step to `node` and appends the encoded reply to `reply`.
    ///
    /// # Errors
    /// The peer's, or `EIO` when it does not answer within the bounded time.
    fn call(&self, node: NodeId, request: &PeerRequest<'_>, reply: &mut Vec<u8>) -> FsResult<()> {
        self.call_within(Duration::ZERO, node, request, reply)
    }

    /// The same, waiting for `wait` at most; zero leaves it to the way.
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

    /// Goes where this map has the peers from now on, as far as it is newer.
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
    /// Whether this is a replay.
    pub retry: bool,
    /// The client who wants it.
    pub origin: ClientId,
    /// Whether nobody waits for it: then a peer that is away is not waited for either.
    pub background: bool,
}

impl StepContext {
    /// Identity of steps that change nothing, or may happen often, and so need none.
    pub fn question(origin: ClientId) -> StepContext {
        StepContext { tx: 0, channel: 0, retry: false, origin, background: false }
    }
}

/// Steps that one intent can have: ids of steps are `tx * STEPS_MAX + step`.
pub const STEPS_MAX: u64 = 16;

/// Channels towards peers, each for one intent at a time.
#[derive(Default)]
pub struct Channels {
    free: Mutex<(Vec<u16>, u16)>,
}

impl Channels {
    /// A channel that nobody uses. Give it back with [`Channels::put`].
    pub fn take(&self) -> u16 {
        let mut free = self.free.lock();
        if let Some(channel) = free.0.pop() {
            return channel;
        }
        let channel = free.1;
        free.1 = free.1.wrapping_add(1);
        channel
    }

    /// Gives a channel back.
    pub fn put(&self, channel: u16) {
        let mut free = self.free.lock();
        // Two intents on one channel would take each other's steps for repetitions.
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
    /// How many nodes there are.
    nodes: usize,
    way: Arc<dyn Peers>,
    counters: Arc<Counters>,
    /// The mirror of the node's volumes, if they are mirrored; it asks its backup over this lane.
    mirror: OnceLock<Weak<Mirror>>,
}

impl PeerLane {
    /// The lane of a node of the map; what is asked is counted.
    pub fn new(map: &FormationMap, id: NodeId, way: Arc<dyn Peers>, counters: Arc<Counters>) -> PeerLane {
        PeerLane { id, nodes: map.nodes.len(), way, counters, mirror: OnceLock::new() }
    }

    /// From now on nothing is asked that may tell of changes which this mirror has deferred.
    pub fn make_deferred_before_asking(&self, mirror: &Arc<Mirror>) {
        let is_first = self.mirror.set(Arc::downgrade(mirror)).is_ok();
        assert!(is_first, "{} has two mirrors", self.id);
    }

    /// Returns once all that was changed here before is on both sides of the mirror: before anybody is told of it.
    ///
    /// # Errors
    /// `EIO` if the backup does not answer in bounded time.
    pub fn make_deferred(&self) -> FsResult<()> {
        let Some(mirror) = self.mirror.get().and_then(Weak::upgrade) else { return Ok(()) };
        mirror.make_deferred().map_err(|error| FsError::from_io(&error, "the mirror of this node's volumes"))
    }

    /// The node whose peers they are.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// As [`Peers::take_map`].
    pub fn take_map(&self, map: &FormationMap) {
        self.way.take_map(map);
    }

    /// Whether this is a peer.
    pub fn has(&self, node: NodeId) -> bool {
        node != self.id && usize::from(node.0) < self.nodes
    }

    /// Asks a peer and decodes its answer.
    pub fn ask<O: Operation>(&self, target: NodeId, request: &PeerRequest<'_>) -> FsResult<O::Reply> {
        self.ask_within::<O>(None, target, request)
    }

    /// The same, waiting for so long at most.
    pub fn ask_within<O: Operation>(
        &self,
        wait: Option<Duration>,
        target: NodeId,
        request: &PeerRequest<'_>,
    ) -> FsResult<O::Reply> {
        if tells_of_changes(O::OP) {
            self.make_deferred()?;
        }
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

/// Returns whether a request to a peer may tell it of what is on the volumes of the node that asks. The others are about
/// who lives, about the mirror itself, or only have clients forget.
fn tells_of_changes(op: Op) -> bool {
    let is_about_nodes = matches!(op, Op::Ping | Op::GetMap | Op::Probe | Op::ProbeFor | Op::Reached);
    let is_of_mirrors = matches!(op, Op::BeginReplica | Op::ApplyChanges | Op::RenewReplica);
    !is_about_nodes && !is_of_mirrors && !matches!(op, Op::Invalidate | Op::RecallTokens)
}

/// The way over the network.
pub struct NetPeers {
    peers: Vec<Option<Arc<dyn Transport>>>,
    /// For changes of replicas, in connections of their own; none without mirrors.
    mirrors: Vec<Option<Arc<dyn Transport>>>,
}

impl NetPeers {
    /// Transports by node id; none for the node itself.
    #[must_use]
    pub fn new(peers: Vec<Option<Arc<dyn Transport>>>) -> NetPeers {
        NetPeers { peers, mirrors: Vec::new() }
    }

    /// The same with ways to backups.
    #[must_use]
    pub fn with_mirrors(self, mirrors: Vec<Option<Arc<dyn Transport>>>) -> NetPeers {
        NetPeers { mirrors, ..self }
    }

    /// Carries a step over one way.
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
        let way = ways.get(usize::from(node.0)).and_then(Option::as_ref).ok_or_else(unknown)?;
        NetPeers::exchange(way.as_ref(), wait, request, reply)
    }

    fn take_map(&self, map: &FormationMap) {
        for ways in [&self.peers, &self.mirrors] {
            for (way, entry) in ways.iter().zip(&map.nodes) {
                let address = Address::tcp(entry.peer_address.clone());
                let _or_older = way.as_ref().map(|way| way.redirect(entry.epoch, &address));
            }
        }
    }
}
