//! A client's connections to the nodes, and the headers of its requests: client, operation, fencing token.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bivouac_net::{Address, StartedCall, Transport};
use bivouac_types::{ClientId, Errno, FsError, FsResult, Ino, NodeId, OpId};
use bivouac_wire::{Flags, FormationMap, Frame, NodeEntry, Operation, op};
use parking_lot::Mutex;

use crate::fencing_token::FencingScope;
use crate::operation::OpCtx;
use crate::options::ClientOptions;
use crate::traffic::count_message;

/// Time in milliseconds that a client which ends gives each node to answer.
const LEAVE_WAIT_MS: u32 = 1000;
/// First and longest pause before something that is on its way from site storage is asked for again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// Longest time that content may be on its way from site storage before a request for it fails.
const WAIT: Duration = Duration::from_secs(120);

/// A client's connections to the nodes of its formation, in the order of the map.
pub struct Connections {
    /// The client.
    pub id: ClientId,
    /// The map that they were made from. Slots and targets stay as they are there; addresses of nodes may have changed.
    pub map: Arc<FormationMap>,
    /// The newest map.
    newest: Mutex<Arc<FormationMap>>,
    /// The node in the client's own process.
    pub local: Option<NodeId>,
    /// Flags of each request.
    flags: Flags,
    /// How many forks there were in this process's ancestry when they were made.
    forks: u32,
    nodes: Vec<Arc<dyn Transport>>,
    is_spread_out: bool,
    next_op: AtomicU64,
    /// By node, true if it keeps results of this client's changes.
    changed: Vec<AtomicBool>,
}

impl Connections {
    /// Creates the connections of a client whose requests have these flags, with the node in its own process, if there
    /// is one.
    pub fn new(
        options: &ClientOptions,
        flags: Flags,
        map: Arc<FormationMap>,
        nodes: Vec<Arc<dyn Transport>>,
        local: Option<NodeId>,
    ) -> Connections {
        let changed = nodes.iter().map(|_| AtomicBool::new(false)).collect();
        let is_spread_out = nodes.iter().any(|node| matches!(node.address(), Address::Tcp(_)));
        let (id, forks) = (options.id, bivouac_direct::forks());
        let next_op = AtomicU64::new(first_number());
        let newest = Mutex::new(Arc::clone(&map));
        Connections { id, map, newest, local, flags, forks, nodes, is_spread_out, next_op, changed }
    }

    /// Returns true if this process made them, rather than one that forked it.
    pub fn is_own(&self) -> bool {
        self.forks == bivouac_direct::forks()
    }

    /// Directs requests to nodes that have moved, if this map is newer. Returns true if it is.
    pub fn take_map(&self, map: &Arc<FormationMap>) -> bool {
        let mut newest = self.newest.lock();
        // Under the lock: of two maps at a time the older one must not redirect behind the newer.
        if let Err(why) = map.check_succeeds(&newest) {
            log::debug!(why:% = why; "a map is not taken");
            return false;
        }
        let here = self.local.and_then(|node| self.map.nodes.get(usize::from(node.0)));
        for (node, entry) in self.nodes.iter().zip(&map.nodes) {
            // Does nothing for a node that has not moved.
            node.redirect(entry.epoch, &address_of(entry, here));
        }
        *newest = Arc::clone(map);
        true
    }

    /// Returns all nodes, but for those that are withdrawn.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        // Those that joined since these connections were made hold nothing that a client asks for.
        let (count, newest) = (self.map.nodes.len(), Arc::clone(&self.newest.lock()));
        (0..count).map(|id| NodeId(id as u16)).filter(move |node| !newest.is_withdrawn(*node))
    }

    /// Returns the nodes that have slots or targets.
    pub fn content_node_ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.map.content_count()).map(|id| NodeId(id as u16))
    }

    /// Returns true if some nodes are reached over a network.
    pub fn is_spread_out(&self) -> bool {
        self.is_spread_out
    }

    /// Returns true if this client asks nodes for leases.
    pub fn take_leases(&self) -> bool {
        self.flags.wants_lease()
    }

    /// Returns a number that rises with each request.
    pub fn asked(&self) -> u64 {
        self.next_op.load(Ordering::Relaxed)
    }

    /// Returns the number of the next operation.
    pub fn next_id(&self) -> OpId {
        OpId(self.next_op.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the node that an inode's record belongs to.
    pub fn home(&self, ino: Ino) -> FsResult<NodeId> {
        self.map.home(ino).ok_or_else(|| {
            FsError::with(Errno::ESTALE, format!("inode {ino} is not of formation '{}'", self.map.name))
        })
    }

    /// Returns the transport to a node, and counts a message over it.
    pub fn transport(&self, node: NodeId) -> FsResult<&dyn Transport> {
        count_message();
        let transport = self.nodes.get(usize::from(node.0)).map(AsRef::as_ref);
        transport.ok_or_else(|| FsError::with(Errno::ESTALE, format!("{node} is not in the map")))
    }

    /// Sends a node a request that changes nothing.
    pub fn ask<O: Operation>(&self, node: NodeId, request: &O::Request<'_>) -> FsResult<O::Reply> {
        retry_in_progress(|| bivouac_net::call::<O>(self.transport(node)?, self.question(), request, &[]))
    }

    /// Sends requests to all nodes, page after page: `take` returns where the next page begins, `None` at a node's last
    /// one.
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

    /// Like [`Connections::ask`], with this number for the request.
    pub fn ask_as<O: Operation>(
        &self,
        node: NodeId,
        id: OpId,
        request: &O::Request<'_>,
    ) -> FsResult<O::Reply> {
        let frame = || Frame { id, ..self.question() };
        retry_in_progress(|| bivouac_net::call::<O>(self.transport(node)?, frame(), request, &[]))
    }

    /// Notes that a node keeps something for this client, and has to be told when the client ends.
    pub fn note_kept_at(&self, node: NodeId) {
        if let Some(changed) = self.changed.get(usize::from(node.0)) {
            changed.store(true, Ordering::Relaxed);
        }
    }

    /// Sends a change to a node, which carries it out exactly once, however often it is transmitted.
    pub fn change<O: Operation>(
        &self,
        node: NodeId,
        ctx: &OpCtx,
        request: &O::Request<'_>,
        payload: &[IoSlice<'_>],
    ) -> FsResult<O::Reply> {
        // Before it is sent: a node keeps the result also of a request whose reply is lost.
        self.note_kept_at(node);
        let send =
            |ctx: &OpCtx| bivouac_net::call::<O>(self.transport(node)?, self.order(ctx), request, payload);
        retry_in_progress(ctx.repeatable(send))
    }

    /// Sends a node a request that is repeated anyway if no reply comes. Waits `wait_ms` milliseconds, the usual time
    /// if 0.
    pub fn try_asking<O: Operation>(
        &self,
        node: NodeId,
        request: &O::Request<'_>,
        wait_ms: u32,
    ) -> FsResult<O::Reply> {
        let transport = self.nodes.get(usize::from(node.0)).ok_or(FsError::new(Errno::ESTALE))?;
        bivouac_net::call::<O>(&**transport, self.attempt(wait_ms), request, &[])
    }

    /// Returns the frame of such a request.
    pub fn attempt(&self, wait_ms: u32) -> Frame {
        Frame { wait_ms, ..Frame::request(0, OpId(0), self.id, 0) }
    }

    /// Tells all nodes that keep results for this client that it ends.
    pub fn leave(&self) {
        let frame = Frame { wait_ms: LEAVE_WAIT_MS, ..self.question() };
        // All at once: one that does not answer must not delay the others.
        let told: Vec<_> = (self.changed.iter().zip(&self.nodes))
            .filter(|(changed, _)| changed.swap(false, Ordering::Relaxed))
            .map(|(_, node)| bivouac_net::start::<op::Leave>(&**node, frame, &(), &[]))
            .collect();
        for error in told.into_iter().filter_map(|told| told.finish(&mut []).err()) {
            log::debug!(why:% = error; "a node was not told that this client ends");
        }
    }

    /// Starts a request that changes nothing, to be finished together with others.
    pub fn start<'a, O: Operation>(
        &'a self,
        node: NodeId,
        request: &O::Request<'_>,
        payload: &'a [IoSlice<'a>],
    ) -> FsResult<StartedCall<'a, O>> {
        Ok(bivouac_net::start::<O>(self.transport(node)?, self.question(), request, payload))
    }

    /// Like [`Connections::start`], without waiting for the node to take the payload.
    pub fn begin<'a, O: Operation>(
        &'a self,
        node: NodeId,
        request: &O::Request<'_>,
        payload: &'a [IoSlice<'a>],
    ) -> FsResult<StartedCall<'a, O>> {
        Ok(bivouac_net::begin::<O>(self.transport(node)?, self.question(), request, payload))
    }

    /// Sends a request, with buffers for the payload of its reply.
    pub fn ask_into<O: Operation>(
        &self,
        node: NodeId,
        request: &O::Request<'_>,
        into: &mut [IoSliceMut<'_>],
    ) -> FsResult<(O::Reply, usize)> {
        bivouac_net::call_into::<O>(self.transport(node)?, self.question(), request, &[], into)
    }

    fn question(&self) -> Frame {
        Frame {
            flags: self.flags,
            fence: FencingScope::token(),
            ..Frame::request(0, self.next_id(), self.id, 0)
        }
    }

    fn order(&self, ctx: &OpCtx) -> Frame {
        let flags = if ctx.retry { self.flags.with(Flags::RETRY) } else { self.flags };
        Frame { flags, fence: FencingScope::token(), ..Frame::request(0, ctx.id, self.id, ctx.channel) }
    }
}

/// Returns the address of a node for a process of the node `here`: its Unix socket on the same machine, which is
/// faster.
pub fn address_of(entry: &NodeEntry, here: Option<&NodeEntry>) -> Address {
    let same_host = here.is_some_and(|here| here.host == entry.host) && !entry.unix_path.is_empty();
    // Machines may have the same name: the socket has to exist here.
    let near = same_host.then(|| Address::unix(&entry.unix_path)).filter(Address::is_on_this_machine);
    near.unwrap_or_else(|| Address::tcp(entry.client_address.clone()))
}

/// Draws the first number of this process's requests. Nodes keep the replies to earlier processes of a client by
/// number, and a request that had the number of such a one would not be carried out.
fn first_number() -> u64 {
    // Unlike a count it needs no place that outlives the process.
    let drawn = getrandom::u64().unwrap_or_else(|error| {
        log::warn!(why:% = error; "numbers of requests begin at the clock's");
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
    });
    // Far from the end; and never 0, the number of idempotent requests.
    (drawn >> 2) | 1
}

/// Repeats a request while its answer is EINPROGRESS: content or entries are on their way from site storage.
///
/// # Errors
/// `EIO` after two minutes of that; others of `act`.
pub fn retry_in_progress<T>(mut act: impl FnMut() -> FsResult<T>) -> FsResult<T> {
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
