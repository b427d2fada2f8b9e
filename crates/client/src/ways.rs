//! The ways to the nodes, and what a client says on them: who it is, which operation it is, under which locks it began.

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bivouac_net::{
    Address, Auth, Identity, LaneKind, NetError, Peer, PeerOptions, Started, Transport, Watch,
};
use bivouac_types::{ClientId, Errno, FsError, FsResult, Ino, NodeId, OpId};
use bivouac_wire::{Flags, FormationMap, Frame, NodeEntry, Operation, op};

use crate::client::{ClientOptions, OpCtx};
use crate::homes::known::KnownFiles;
use crate::locks::{Doubts, Fenced};
use crate::opens::watch::Keeper;
use crate::traffic::count_message;

/// How long a client that ends waits for each node to hear it, in milliseconds.
const LEAVE_WAIT_MS: u32 = 1000;
/// First and longest pause before something that is on its way from site storage is asked for again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// How long something may be on its way before its asker fails.
const WAIT: Duration = Duration::from_secs(120);

/// A client's ways to the nodes of its formation, in the order of the map.
pub struct Ways {
    /// Whose they are.
    pub id: ClientId,
    /// What there is on the other side.
    pub map: Arc<FormationMap>,
    /// The node in the client's own process.
    pub local: Option<NodeId>,
    /// Of each request.
    flags: Flags,
    /// How often this process's ancestors had been forked when they were made.
    forks: u32,
    nodes: Vec<Arc<dyn Transport>>,
    is_spread_out: bool,
    next_op: AtomicU64,
    /// By node: whether it remembers what came of this client's changes.
    changed: Vec<AtomicBool>,
}

impl Ways {
    /// Those of a client whose requests have these flags, with the node in its own process.
    pub fn new(
        id: ClientId,
        flags: Flags,
        map: Arc<FormationMap>,
        nodes: Vec<Arc<dyn Transport>>,
        local: Option<NodeId>,
    ) -> Ways {
        let changed = nodes.iter().map(|_| AtomicBool::new(false)).collect();
        let is_spread_out = nodes.iter().any(|node| matches!(node.address(), Address::Tcp(_)));
        let (forks, next_op) = (bivouac_direct::forks(), AtomicU64::new(1));
        Ways { id, map, local, flags, forks, nodes, is_spread_out, next_op, changed }
    }

    /// Whether this process made them, rather than one that forked it.
    pub fn is_own(&self) -> bool {
        self.forks == bivouac_direct::forks()
    }

    /// All nodes.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.map.nodes.len()).map(|id| NodeId(id as u16))
    }

    /// Whether some nodes are reached over a network.
    pub fn is_spread_out(&self) -> bool {
        self.is_spread_out
    }

    /// Whether nodes give leases to this client at all.
    pub fn take_leases(&self) -> bool {
        self.flags.wants_lease()
    }

    /// How many requests there were, about.
    pub fn asked(&self) -> u64 {
        self.next_op.load(Ordering::Relaxed)
    }

    /// The number of the next operation.
    pub fn next_id(&self) -> OpId {
        OpId(self.next_op.fetch_add(1, Ordering::Relaxed))
    }

    /// The node that an inode's record belongs to.
    pub fn home(&self, ino: Ino) -> FsResult<NodeId> {
        self.map.home(ino).ok_or_else(|| {
            FsError::with(Errno::ESTALE, format!("inode {ino} is not of formation '{}'", self.map.name))
        })
    }

    /// The way to a node, on which a message is about to go.
    pub fn transport(&self, node: NodeId) -> FsResult<&dyn Transport> {
        count_message();
        let transport = self.nodes.get(usize::from(node.0)).map(AsRef::as_ref);
        transport.ok_or_else(|| FsError::with(Errno::ESTALE, format!("{node} is not in the map")))
    }

    /// Asks a node something that changes nothing.
    pub fn ask<O: Operation>(&self, node: NodeId, request: &O::Request<'_>) -> FsResult<O::Reply> {
        when_here(|| bivouac_net::call::<O>(self.transport(node)?, self.question(), request, &[]))
    }

    /// Asks all nodes, page after page: `take` says where the next one begins, unless that was the last one of a node.
    pub fn ask_pages<'r, O: Operation, A>(
        &self,
        request: impl Fn(Option<A>) -> O::Request<'r>,
        mut take: impl FnMut(O::Reply) -> Option<A>,
    ) -> FsResult<()> {
        for node in self.node_ids() {
            let mut next = take(self.ask::<O>(node, &request(None))?);
            while next.is_some() {
                next = take(self.ask::<O>(node, &request(next))?);
            }
        }
        Ok(())
    }

    /// As [`Ways::ask`], with a number of its own for the request.
    pub fn ask_as<O: Operation>(
        &self,
        node: NodeId,
        id: OpId,
        request: &O::Request<'_>,
    ) -> FsResult<O::Reply> {
        let frame = || Frame { id, ..self.question() };
        when_here(|| bivouac_net::call::<O>(self.transport(node)?, frame(), request, &[]))
    }

    /// Has a node change something, once.
    pub fn change<O: Operation>(
        &self,
        node: NodeId,
        ctx: &OpCtx,
        request: &O::Request<'_>,
        payload: &[IoSlice<'_>],
    ) -> FsResult<O::Reply> {
        if let Some(changed) = self.changed.get(usize::from(node.0)) {
            changed.store(true, Ordering::Relaxed);
        }
        when_here(|| bivouac_net::call::<O>(self.transport(node)?, self.order(ctx), request, payload))
    }

    /// Asks a node what is asked again if no answer comes: it is waited for so long, or as long as for anything else if
    /// 0.
    pub fn try_asking<O: Operation>(
        &self,
        node: NodeId,
        request: &O::Request<'_>,
        wait_ms: u32,
    ) -> FsResult<O::Reply> {
        let transport = self.nodes.get(usize::from(node.0)).ok_or(FsError::new(Errno::ESTALE))?;
        bivouac_net::call::<O>(&**transport, self.attempt(wait_ms), request, &[])
    }

    /// The frame of such a request.
    pub fn attempt(&self, wait_ms: u32) -> Frame {
        Frame { wait_ms, ..Frame::request(0, OpId(0), self.id, 0) }
    }

    /// Tells all nodes that have changed something for this client that it ends.
    pub fn leave(&self) {
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
    pub fn start<'a, O: Operation>(
        &'a self,
        node: NodeId,
        request: &O::Request<'_>,
        payload: &'a [IoSlice<'a>],
    ) -> FsResult<Started<'a, O>> {
        Ok(bivouac_net::start::<O>(self.transport(node)?, self.question(), request, payload))
    }

    /// As [`Ways::start`], without waiting for the node to take the payload.
    pub fn begin<'a, O: Operation>(
        &'a self,
        node: NodeId,
        request: &O::Request<'_>,
        payload: &'a [IoSlice<'a>],
    ) -> FsResult<Started<'a, O>> {
        Ok(bivouac_net::begin::<O>(self.transport(node)?, self.question(), request, payload))
    }

    /// Asks a node, with buffers for the payload of its answer.
    pub fn ask_into<O: Operation>(
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

/// Repeats what cannot be done yet because site storage is slow.
pub fn when_here<T>(mut act: impl FnMut() -> FsResult<T>) -> FsResult<T> {
    let (mut begun, mut pause) = (None, PAUSES.0);
    loop {
        match act() {
            Err(error) if error.errno() == Errno::EINPROGRESS => {
                if begun.get_or_insert_with(Instant::now).elapsed() > WAIT {
                    let text = format!("{error}: nothing came of it for {} s", WAIT.as_secs());
                    return Err(FsError::with(Errno::EIO, text));
                }
                bivouac_net::pause(pause);
                pause = (pause * 2).min(PAUSES.1);
            }
            outcome => return outcome,
        }
    }
}

/// Where a node is reached from a process of the node `here`: over its Unix socket on the same machine, which is
/// quicker.
pub fn address_of(entry: &NodeEntry, here: Option<&NodeEntry>) -> Address {
    let same_host = here.is_some_and(|here| here.host == entry.host) && !entry.unix_path.is_empty();
    // Machines may have the same name.
    let near = same_host.then(|| Address::unix(&entry.unix_path)).filter(Address::is_on_this_machine);
    near.unwrap_or_else(|| Address::tcp(entry.client_address.clone()))
}

/// What keeps connections alive where something is open, and what watches them.
pub fn keeper(map: &Arc<FormationMap>, known: &Arc<KnownFiles>) -> Option<(Keeper, Arc<Watch>)> {
    let watch = Watch::new();
    let watch = watch.inspect_err(|error| log::error!(why:% = error; "restarts of nodes are noticed late"));
    let watch = Arc::new(watch.ok()?);
    let (map, known) = (Arc::clone(map), Arc::clone(known));
    let wanted = move |node| known.has_any(|ino| map.home(ino) == Some(node));
    Some((Keeper::new(Arc::clone(&watch), wanted), watch))
}

/// What ways to nodes of other processes are made from.
pub struct Way<'a> {
    pub map: &'a Arc<FormationMap>,
    pub known: &'a Arc<KnownFiles>,
    pub auth: &'a Auth,
    pub options: &'a ClientOptions,
    pub keeper: Option<&'a (Keeper, Arc<Watch>)>,
    /// Where it is noted that a home may have dropped locks.
    pub doubts: Option<&'a Arc<OnceLock<Arc<Doubts>>>>,
}

impl Way<'_> {
    /// The way to a node. After a loss, what this client has open there is told first.
    pub fn to(&self, id: NodeId, address: Address) -> Peer {
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
