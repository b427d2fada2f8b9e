//! A node as a caller sees it: it may go away for a while and come back.
//!
//! A request whose connection broke is sent again with [`Flags::RETRY`] if it may have been carried out,
//! until the caller's patience ends. After a loss, one thread connects again and runs the reconnect
//! callback; every other request waits until that is done, so nothing overtakes it.

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bivouac_types::NodeId;
use bivouac_types::limits::WAIT_MS_DEFAULT;
use bivouac_wire::{Flags, Op};
use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};

use crate::transport::InFlightRequest;
use crate::{
    Address, Broken, DaemonId, Damage, Identity, LivenessTable, NetError, Pending, ReplyHead, Request,
    SocketOptions, SocketTransport, Transport, Wait, Watch, hook, slices,
};

/// Runs after a loss, before anything else is sent to the node; it may use the given transport, which
/// neither waits nor resends. An error means that the node is away again.
pub type OnReconnect = dyn Fn(NodeId, &dyn Transport) -> Result<(), NetError> + Send + Sync;

type OnAway = dyn Fn() + Send + Sync;

/// Settings of a peer's waiting.
#[derive(Clone, Copy, Debug)]
pub struct PeerOptions {
    /// Time to wait for a node that is away, in milliseconds, unless the request says otherwise.
    pub wait_ms: u64,
    /// True if this is a program of others: it does not wait until it may open something again, which may be never, nor
    /// for a formation that has been taken down.
    pub is_guest: bool,
}

impl Default for PeerOptions {
    fn default() -> PeerOptions {
        PeerOptions { wait_ms: WAIT_MS_DEFAULT, is_guest: false }
    }
}

/// First pause between attempts to connect, in milliseconds; it doubles from there.
const BACKOFF_MS_FIRST: u64 = 5;
/// Longest pause between attempts to connect, in milliseconds.
const BACKOFF_MS_MAX: u64 = 250;

/// Maximum of transmissions of a request that is damaged on the way each time.
const DAMAGED_MAX: u32 = 8;

/// A transport to one node that waits for it when it is away.
pub struct Peer {
    node: NodeId,
    transport: Arc<dyn Transport>,
    options: PeerOptions,
    liveness: Option<Arc<LivenessTable>>,
    // Sending holds the lock shared, reconnecting holds it exclusively.
    link: RwLock<Link>,
    // Episodes below this have ended with a loss. Noted without the lock: whoever sends at length holds that, and what is
    // sent after a loss must not go over connections of before it.
    lost_below: AtomicU64,
    // Number of times that the node's address was replaced.
    redirections: AtomicU64,
    on_away: OnceLock<Box<OnAway>>,
    closed: Mutex<bool>,
    closing: Condvar,
}

struct Link {
    // Redirections that it has seen: connections of before lead to a former daemon.
    redirections: u64,
    // Raised by every reconnection, so that late news of an old loss does no harm.
    episode: u64,
    on_reconnect: Option<Box<OnReconnect>>,
}

impl Peer {
    /// A peer over any transport.
    #[must_use]
    pub fn new(node: NodeId, transport: Arc<dyn Transport>, options: PeerOptions) -> Peer {
        let link = Link { redirections: 0, episode: 0, on_reconnect: None };
        Peer {
            node,
            transport,
            options,
            liveness: None,
            link: RwLock::new(link),
            lost_below: AtomicU64::new(0),
            redirections: AtomicU64::new(0),
            on_away: OnceLock::new(),
            closed: Mutex::new(false),
            closing: Condvar::new(),
        }
    }

    /// A peer over sockets.
    #[must_use]
    pub fn to(node: NodeId, address: Address, identity: Identity, options: PeerOptions) -> Peer {
        let sockets = SocketOptions { wait_ms: options.wait_ms, ..SocketOptions::default() };
        let transport =
            SocketTransport::new(address, identity, sockets).of_daemon(DaemonId { node, epoch: 0 });
        Peer::new(node, Arc::new(transport), options)
    }

    /// The same, with its connections under watch: [`Peer::revive`] is for when one of them breaks.
    #[must_use]
    pub fn watched(
        node: NodeId,
        address: Address,
        identity: Identity,
        options: PeerOptions,
        watch: &Arc<Watch>,
    ) -> Peer {
        let sockets = SocketOptions { wait_ms: options.wait_ms, ..SocketOptions::default() };
        let transport = SocketTransport::new(address, identity, sockets)
            .of_daemon(DaemonId { node, epoch: 0 })
            .watched_by(watch, node);
        Peer::new(node, Arc::new(transport), options)
    }

    /// The same, heeding what is known of the node: when it is dead, requests wait for it until the bounded time from
    /// then on is over, and behind that next to not at all.
    #[must_use]
    pub fn heeding(self, liveness: &Arc<LivenessTable>) -> Peer {
        Peer { liveness: Some(Arc::clone(liveness)), ..self }
    }

    /// The same, of a node that came to the address in this epoch.
    #[must_use]
    pub fn since(self, epoch: u32) -> Peer {
        self.transport.redirect(epoch, &self.transport.address());
        self
    }

    /// Connects again after a connection broke that nobody used, and runs the reconnect callback, unless somebody
    /// else has done so since.
    ///
    /// # Errors
    /// When the node is still away after `wait`.
    pub fn revive(&self, broken: &Broken, wait: Duration) -> Result<(), NetError> {
        let mut patience = RetryBudget::new(millis(wait));
        let link = self.link.try_read_until(patience.deadline).ok_or_else(|| self.busy(&patience))?;
        let episode = link.episode;
        drop(link);
        if self.transport.leads_to(broken) {
            self.lost(episode);
        }
        self.enter(&mut patience).map(drop)
    }

    /// Sets what runs after a loss: once per loss, not once per connection. It also runs when another daemon
    /// than before answers at the address, and when the first connection had to be waited for.
    pub fn on_reconnect(
        &self,
        callback: impl Fn(NodeId, &dyn Transport) -> Result<(), NetError> + Send + Sync + 'static,
    ) {
        self.link.write().on_reconnect = Some(Box::new(callback));
    }

    /// Sets what is called, without locks, before each pause between attempts to reach the node, and when an answer did not
    /// come in time: it may look elsewhere for where the node is, and [redirect](Transport::redirect) this. To be set once.
    pub fn on_away(&self, look: impl Fn() + Send + Sync + 'static) {
        assert!(self.on_away.set(Box::new(look)).is_ok(), "{} is looked for twice", self.node);
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Ends all waiting for the node: requests that would wait fail at once, now and later.
    pub fn close(&self) {
        *self.closed.lock() = true;
        self.closing.notify_all();
    }

    /// Time that the request may take, in milliseconds; 0 if it is over before it begins, since it is known that nobody
    /// would answer.
    fn wait_ms(&self, request: &Request<'_>) -> u64 {
        let wanted = match request.frame.wait_ms {
            0 => self.options.wait_ms,
            wait_ms => u64::from(wait_ms),
        };
        match self.dead_for().filter(|_| !is_for_the_dead(request)) {
            // A guest is told of those alone that will not be started again.
            Some(_) if self.options.is_guest => 0,
            // Counted from its death, not from the request: programs that make many calls wait once for a dead
            // node, and not once for each.
            Some(dead) => wanted.min(self.options.wait_ms.saturating_sub(millis(dead))),
            None => wanted,
        }
    }

    fn dead_for(&self) -> Option<Duration> {
        self.liveness.as_ref()?.dead_for(self.node)
    }

    fn start_by<'t>(
        &'t self,
        request: &Request<'_>,
        start: impl Fn(&Request<'_>) -> Pending<'t>,
    ) -> Pending<'t> {
        // Waiting for a node that is away is left to `finish`, so that others can be started meanwhile.
        let wait_ms = u32::try_from(self.wait_ms(request)).unwrap_or(u32::MAX);
        let hopeless = wait_ms == 0 && self.dead_for().is_some();
        let started = self.link.try_read().filter(|link| self.is_up(link) && !hopeless).map(|link| {
            let frame = bivouac_wire::Frame { wait_ms, ..request.frame };
            (start(&Request { frame, ..*request }), link.episode)
        });
        Pending::new(PeerRequest { peer: self, started })
    }

    /// Sends the request again and again until it is answered or patience ends.
    fn persist(
        &self,
        first: Option<(NetError, u64)>,
        request: &Request<'_>,
        body: &mut Vec<u8>,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<ReplyHead, NetError> {
        let mut patience = RetryBudget::new(self.wait_ms(request));
        if patience.wait.is_zero() && first.is_none() && self.dead_for().is_some() {
            return Err(self.busy(&patience));
        }
        let (mut request, mut failure) = (*request, first);
        loop {
            if let Some((cause, episode)) = failure {
                self.judge(cause, episode, &mut request, &mut patience)?;
            }
            hook::run();
            let link = self.enter(&mut patience)?;
            let episode = link.episode;
            request.frame.wait_ms = u32::try_from(patience.left().as_millis()).unwrap_or(u32::MAX).max(1);
            // Without a copy as long as nothing was damaged: large payloads go from the program’s own pages.
            let outcome = if patience.damages == 0 {
                let pending = self.transport.start(&request);
                drop(link);
                pending.finish(&request, body, into)
            } else {
                self.steadily(link, &request, body, into)
            };
            match outcome {
                Ok(head) => return Ok(head),
                Err(cause) => failure = Some((cause, episode)),
            }
        }
    }

    /// Carries out one attempt with memory of our own. A program may change its buffer while it is being sent, which
    /// looks like damage on the way each time.
    fn steadily(
        &self,
        link: RwLockReadGuard<'_, Link>,
        request: &Request<'_>,
        body: &mut Vec<u8>,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<ReplyHead, NetError> {
        let (payload, mut came) = (slices::joined(request.payload), vec![0; slices::total_mut(into)]);
        let parts = [IoSlice::new(&payload)];
        let request = Request { payload: &parts, ..*request };
        let pending = self.transport.start(&request);
        drop(link);
        let head = pending.finish(&request, body, &mut [IoSliceMut::new(&mut came)])?;
        slices::scatter(came.get(..head.payload_len).unwrap_or_default(), into);
        Ok(head)
    }

    /// Decides whether a failed request is worth another attempt, and pauses before all but the first.
    fn judge(
        &self,
        cause: NetError,
        episode: u64,
        request: &mut Request<'_>,
        patience: &mut RetryBudget,
    ) -> Result<(), NetError> {
        let cause = patience.count(cause);
        // The other connections are probably dead too, and a request over them would only find out one after the
        // other.
        if cause.is_passing() || cause.maybe_sent() {
            self.lost(episode);
        }
        if matches!(cause, NetError::TimedOut { .. }) {
            let before = self.redirections.load(Ordering::Acquire);
            if let Some(look) = self.on_away.get() {
                look();
            }
            if self.redirections.load(Ordering::Acquire) == before {
                return Err(self.unreachable(cause, patience.wait));
            }
            // The node has moved, and its former host is neither there nor gone: the request has all of its time again.
            *patience = RetryBudget { damages: patience.damages, ..RetryBudget::new(millis(patience.wait)) };
            request.frame.flags = request.frame.flags.with(Flags::RETRY);
            return Ok(());
        }
        if !self.is_passing(&cause) || patience.damages >= DAMAGED_MAX {
            return Err(cause);
        }
        let told = Flags::ANSWER_DAMAGED;
        let is_told = matches!(cause, NetError::Damaged { what: Damage::Answer, .. });
        let flags = request.frame.flags;
        request.frame.flags = if is_told { flags.with(told) } else { flags.without(told) };
        if cause.maybe_sent() {
            request.frame.flags = request.frame.flags.with(Flags::RETRY);
        }
        patience.failures += 1;
        if patience.failures > 1 { self.pause(cause, patience) } else { Ok(()) }
    }

    /// Waits until requests may be sent, reconnecting if nobody else does.
    fn enter(&self, patience: &mut RetryBudget) -> Result<RwLockReadGuard<'_, Link>, NetError> {
        loop {
            let link = self.link.try_read_until(patience.deadline).ok_or_else(|| self.busy(patience))?;
            if self.is_up(&link) {
                return Ok(link);
            }
            drop(link);
            // Exclusive: the callback of a reconnection tells the node what this client has open, and no request
            // may overtake that.
            let mut link = self.link.try_write_until(patience.deadline).ok_or_else(|| self.busy(patience))?;
            if !self.is_up(&link) {
                self.reconnect(&mut link, patience)?;
            }
        }
    }

    fn reconnect(&self, link: &mut Link, patience: &mut RetryBudget) -> Result<(), NetError> {
        loop {
            let redirections = self.redirections.load(Ordering::Acquire);
            let outcome = self.transport.connect(patience.left()).and_then(|()| match &link.on_reconnect {
                Some(callback) => callback(self.node, &*self.transport),
                None => Ok(()),
            });
            match outcome {
                Ok(()) => {
                    link.episode += 1;
                    // If there was one meanwhile, the caller connects anew.
                    link.redirections = redirections;
                    // Nobody has seen this episode, so nobody can have lost it: requests would reconnect for ever.
                    let is_lost = link.episode < self.lost_below.load(Ordering::Acquire);
                    assert!(!is_lost, "episode {} of {} is lost already", link.episode, self.node);
                    log::info!("{} at {} is back", self.node, self.transport.address());
                    return Ok(());
                }
                Err(cause) if self.is_passing(&cause) || matches!(cause, NetError::TimedOut { .. }) => {
                    patience.failures += 1;
                    self.pause(cause, patience)?;
                }
                Err(cause) => return Err(cause),
            }
        }
    }

    /// Lets a dead peer alone for a while. Nothing tells when a process lives again, so the pauses grow.
    fn pause(&self, cause: NetError, patience: &RetryBudget) -> Result<(), NetError> {
        let left = patience.left();
        if left.is_zero() {
            return Err(self.unreachable(cause, patience.wait));
        }
        if let Some(look) = self.on_away.get() {
            look();
        }
        let mut closed = self.closed.lock();
        if !*closed {
            self.closing.wait_for(&mut closed, patience.pause().min(left));
        }
        if *closed { Err(NetError::Closed { address: self.transport.address() }) } else { Ok(()) }
    }

    fn is_passing(&self, cause: &NetError) -> bool {
        cause.is_passing() && !(self.options.is_guest && (cause.is_starved() || cause.is_gone()))
    }

    /// Has nothing more sent before a reconnection, unless there was one since that episode.
    fn lost(&self, episode: u64) {
        self.lost_below.fetch_max(episode + 1, Ordering::AcqRel);
    }

    fn is_up(&self, link: &Link) -> bool {
        link.episode >= self.lost_below.load(Ordering::Acquire)
            && link.redirections == self.redirections.load(Ordering::Acquire)
    }

    fn unreachable(&self, cause: NetError, waited: Duration) -> NetError {
        let (node, address) = (self.node, self.transport.address());
        let cause = match self.dead_for() {
            Some(dead) => NetError::Dead { dead_s: dead.as_secs(), sent: cause.maybe_sent() },
            None => cause,
        };
        NetError::Unreachable { node, address, waited_s: waited.as_secs_f32(), cause: Box::new(cause) }
    }

    fn busy(&self, patience: &RetryBudget) -> NetError {
        let waited_ms = millis(patience.wait);
        self.unreachable(NetError::TimedOut { address: self.transport.address(), waited_ms }, patience.wait)
    }
}

/// Returns whether a request is sent to nodes that are taken for dead as well: to find out whether they are.
fn is_for_the_dead(request: &Request<'_>) -> bool {
    Op::from_number(request.frame.op).is_some_and(Op::seeks_life)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The time that a request may take from its first failure on, and its failures so far.
struct RetryBudget {
    wait: Duration,
    deadline: Instant,
    failures: u32,
    /// Number of times that the request or its answer was damaged on the way.
    damages: u32,
}

impl RetryBudget {
    fn new(wait_ms: u64) -> RetryBudget {
        let wait = Duration::from_millis(wait_ms);
        let now = Instant::now();
        RetryBudget { wait, deadline: now.checked_add(wait).unwrap_or(now), failures: 0, damages: 0 }
    }

    /// Counts damage; it says how much there was.
    fn count(&mut self, cause: NetError) -> NetError {
        let NetError::Damaged { address, what, .. } = cause else { return cause };
        self.damages += 1;
        log::warn!("{what} {address} was damaged on the way ({} of {DAMAGED_MAX} times)", self.damages);
        NetError::Damaged { address, what, times: self.damages }
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn pause(&self) -> Duration {
        let doubled = BACKOFF_MS_FIRST << self.failures.saturating_sub(1).min(16);
        Duration::from_millis(doubled.min(BACKOFF_MS_MAX))
    }
}

impl Transport for Peer {
    fn start(&self, request: &Request<'_>) -> Pending<'_> {
        self.start_by(request, |request| self.transport.start(request))
    }

    fn begin(&self, request: &Request<'_>) -> Pending<'_> {
        self.start_by(request, |request| self.transport.begin(request))
    }

    fn connect(&self, wait: Duration) -> Result<(), NetError> {
        let wait_ms = millis(wait);
        drop(self.enter(&mut RetryBudget::new(wait_ms))?);
        self.transport.connect(wait)
    }

    fn redirect(&self, epoch: u32, address: &Address) -> bool {
        // In this order: whoever has seen the new number connects to the new address.
        let is_new = self.transport.redirect(epoch, address);
        if is_new {
            log::info!("{} is at {address} from now on, in epoch {epoch}", self.node);
            self.redirections.fetch_add(1, Ordering::AcqRel);
        }
        is_new
    }

    fn address(&self) -> Address {
        self.transport.address()
    }
}

/// A request that was given to a peer; not yet sent if the peer was away.
struct PeerRequest<'t> {
    peer: &'t Peer,
    started: Option<(Pending<'t>, u64)>,
}

impl InFlightRequest for PeerRequest<'_> {
    fn advance(&mut self, request: &Request<'_>, into: &mut [IoSliceMut<'_>]) -> bool {
        self.started.as_mut().is_none_or(|(pending, _)| pending.advance(request, into))
    }

    fn is_sent(&self) -> bool {
        self.started.as_ref().is_none_or(|(pending, _)| pending.is_sent())
    }

    fn wait(&self) -> Option<Wait<'_>> {
        self.started.as_ref().and_then(|(pending, _)| pending.wait())
    }

    fn finish(
        mut self: Box<Self>,
        request: &Request<'_>,
        body: &mut Vec<u8>,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<ReplyHead, NetError> {
        // It was away when the request was started; waiting for it was left to this call.
        let Some((pending, episode)) = self.started.take() else {
            return self.peer.persist(None, request, body, into);
        };
        match pending.finish(request, body, into) {
            Ok(head) => Ok(head),
            Err(cause) => self.peer.persist(Some((cause, episode)), request, body, into),
        }
    }
}

impl Drop for PeerRequest<'_> {
    fn drop(&mut self) {
        // A request that was given up takes its connection with it, perhaps the last one.
        if let Some((pending, episode)) = self.started.take() {
            drop(pending);
            self.peer.lost(episode);
        }
    }
}
