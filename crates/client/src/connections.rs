//! A client's connections to the nodes, and the headers of its requests: client, operation, fencing token.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bivouac_net::{Address, Started, Transport};
use bivouac_types::{ClientId, Errno, FsError, FsResult, Ino, NodeId, OpId};
use bivouac_wire::{Flags, FormationMap, Frame, NodeEntry, Operation, op};
use parking_lot::Mutex;

use crate::fencing_token::FencingScope;
use crate::operation::OpCtx;
use crate::options::ClientOptions;
use crate::traffic::count_message;

/// How long a client that ends waits for each node to hear it, in milliseconds.
const LEAVE_WAIT_MS: u32 = 1000;
/// First and longest pause before something that is on its way from site storage is asked for again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// How long something may be on its way before its asker fails.
const WAIT: Duration = Duration::from_secs(120);

/// A client's connections to the nodes of its formation, in the order of the map.
pub struct Connections {
    /// Whose they are.
    pub id: ClientId,
    /// The map that they were made from: slots and targets stay as they are there, places of nodes may have changed.
    pub map: Arc<FormationMap>,
    /// The newest map.
    newest: Mutex<Arc<FormationMap>>,
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

impl Connections {
    /// Those of a client whose requests have these flags, with the node in its own process.
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

    /// Whether this process made them, rather than one that forked it.
    pub fn is_own(&self) -> bool {
        self.forks == bivouac_direct::forks()
    }

    /// Follows nodes that have moved, if this map is newer than what is known. Returns whether it is.
    pub fn take_map(&self, map: &Arc<FormationMap>) -> bool {
        let mut newest = self.newest.lock();
        if let Err(why) = map.check_succeeds(&newest) {
            log::debug!(why:% = why; "a map is not taken");
            return false;
        }
        let here = self.local.and_then(|node| self.map.nodes.get(usize::from(node.0)));
        for (node, entry) in self.nodes.iter().zip(&map.nodes) {
            // Nothing happens where the node has not moved.
            node.redirect(entry.epoch, &address_of(entry, here));
        }
        *newest = Arc::clone(map);
        true
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

    /// Returns a number that rises with each request.
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
        retry_in_progress(|| bivouac_net::call::<O>(self.transport(node)?, self.question(), request, &[]))
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

    /// As [`Connections::ask`], with a number of its own for the request.
    pub fn ask_as<O: Operation>(
        &self,
        node: NodeId,
        id: OpId,
        request: &O::Request<'_>,
    ) -> FsResult<O::Reply> {
        let frame = || Frame { id, ..self.question() };
        retry_in_progress(|| bivouac_net::call::<O>(self.transport(node)?, frame(), request, &[]))
    }

    /// Notes that a node keeps something of this client: it is told when the client ends.
    pub fn note_kept_at(&self, node: NodeId) {
        if let Some(changed) = self.changed.get(usize::from(node.0)) {
            changed.store(true, Ordering::Relaxed);
        }
    }

    /// Has a node change something, once, however often it has to be asked.
    pub fn change<O: Operation>(
        &self,
        node: NodeId,
        ctx: &OpCtx,
        request: &O::Request<'_>,
        payload: &[IoSlice<'_>],
    ) -> FsResult<O::Reply> {
        // Before it is sent: a request whose answer is lost is remembered there as well.
        self.note_kept_at(node);
        let send =
            |ctx: &OpCtx| bivouac_net::call::<O>(self.transport(node)?, self.order(ctx), request, payload);
        retry_in_progress(ctx.repeatable(send))
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

    /// As [`Connections::start`], without waiting for the node to take the payload.
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

/// Returns the address of a node for a process of the node `here`: its Unix socket on the same machine, which is faster.
pub fn address_of(entry: &NodeEntry, here: Option<&NodeEntry>) -> Address {
    let same_host = here.is_some_and(|here| here.host == entry.host) && !entry.unix_path.is_empty();
    // Machines may have the same name.
    let near = same_host.then(|| Address::unix(&entry.unix_path)).filter(Address::is_on_this_machine);
    near.unwrap_or_else(|| Address::tcp(entry.client_address.clone()))
}

/// Draws the first number of this process's requests. Nodes keep the replies to earlier processes of a client by number, and
/// a request that had the number of such a one would not be carried out.
fn first_number() -> u64 {
    let drawn = getrandom::u64().unwrap_or_else(|error| {
        log::warn!(why:% = error; "numbers of requests begin at the clock's");
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
    });
    // Far from the end; and never 0, which requests have that any number of times is right for.
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
