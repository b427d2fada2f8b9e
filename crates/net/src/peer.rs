//! A node from a caller's view: it may go away for a while and come back.
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
    Address, BrokenConnection, DaemonId, Damage, Identity, LivenessTable, NetError, PendingReply, ReplyHead,
    Request, SocketOptions, SocketTransport, Transport, Wait, Watch, hook, slices,
};

/// Called after a loss, before anything else is sent to the node. It may use the given transport, which neither waits
/// nor resends. An error means that the node is away again.
pub type OnReconnect = dyn Fn(NodeId, &dyn Transport) -> Result<(), NetError> + Send + Sync;

type OnAway = dyn Fn() + Send + Sync;

/// Settings of a peer's waiting.
#[derive(Clone, Copy, Debug)]
pub struct PeerOptions {
    /// Time to wait for a node that is away, in milliseconds, unless the request says otherwise.
    pub wait_ms: u64,
    /// True for a client in a program of others: it does not wait for descriptors, which may never be free, nor for a
    /// formation that has been taken down.
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
    // Episodes below this have ended with a loss. Raised without the lock, which a long send holds meanwhile: what is
    // sent after a loss must not use connections from before it.
    lost_below: AtomicU64,
    // Number of times that the node's address was replaced.
    redirections: AtomicU64,
    on_away: OnceLock<Box<OnAway>>,
    closed: Mutex<bool>,
    closing: Condvar,
}

struct Link {
    // Redirections taken into account: connections from before later ones lead to a former daemon.
    redirections: u64,
    // Raised by every reconnection, so that a late report of an old loss has no effect.
    episode: u64,
    on_reconnect: Option<Box<OnReconnect>>,
}

impl Peer {
    /// Creates a peer over any transport.
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

    /// Creates a peer over sockets.
    #[must_use]
    pub fn to(node: NodeId, address: Address, identity: Identity, options: PeerOptions) -> Peer {
        let sockets = SocketOptions { wait_ms: options.wait_ms, ..SocketOptions::default() };
        let transport =
            SocketTransport::new(address, identity, sockets).of_daemon(DaemonId { node, epoch: 0 });
        Peer::new(node, Arc::new(transport), options)
    }

    /// Like [`Peer::to`], with its connections watched: [`Peer::revive`] is to be called when one of them breaks.
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

    /// Sets the table of dead nodes. While the node is dead, requests wait for it until the bounded time since its
    /// death is over, and hardly at all after that.
    #[must_use]
    pub fn heeding(self, liveness: &Arc<LivenessTable>) -> Peer {
        Peer { liveness: Some(Arc::clone(liveness)), ..self }
    }

    /// Sets the epoch in which the node came to the address.
    #[must_use]
    pub fn since(self, epoch: u32) -> Peer {
        self.transport.redirect(epoch, &self.transport.address());
        self
    }

    /// Reconnects after a connection broke that was not in use, and calls the reconnect callback, unless another thread
    /// has done so since.
    ///
    /// # Errors
    /// When the node is still away after `wait`.
    pub fn revive(&self, broken: &BrokenConnection, wait: Duration) -> Result<(), NetError> {
        let mut patience = RetryBudget::new(millis(wait));
        let link = self.link.try_read_until(patience.deadline).ok_or_else(|| self.busy(&patience))?;
        let episode = link.episode;
        drop(link);
        // The report may come after a request has noticed the same loss and reconnected: the new connections are fine.
        if self.transport.leads_to(broken) {
            self.lost(episode);
        }
        self.enter(&mut patience).map(drop)
    }

    /// Sets the callback after a loss: it is called once per loss, not once per connection. It is also called when
    /// another daemon than before answers at the address, and when the first connection had to be waited for.
    pub fn on_reconnect(
        &self,
        callback: impl Fn(NodeId, &dyn Transport) -> Result<(), NetError> + Send + Sync + 'static,
    ) {
        self.link.write().on_reconnect = Some(Box::new(callback));
    }

    /// Sets the callback for a node that is away. It is called without locks, before each pause between attempts to
    /// connect, and when a reply is overdue. It may look up where the node is, and [redirect](Transport::redirect) this
    /// peer. To be set once.
    pub fn on_away(&self, look: impl Fn() + Send + Sync + 'static) {
        assert!(self.on_away.set(Box::new(look)).is_ok(), "{} is looked for twice", self.node);
    }

    /// Returns the node.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Ends all waiting for the node: requests that would wait fail at once, from now on.
    pub fn close(&self) {
        *self.closed.lock() = true;
        self.closing.notify_all();
    }

    /// Returns for how long the request may take, in milliseconds; 0 if it need not be tried, since the node is known
    /// to be dead.
    fn wait_ms(&self, request: &Request<'_>) -> u64 {
        let wanted = match request.frame.wait_ms {
            0 => self.options.wait_ms,
            wait_ms => u64::from(wait_ms),
        };
        match self.dead_for().filter(|_| !is_for_the_dead(request)) {
            // A guest's table only has nodes that will not be restarted.
            Some(_) if self.options.is_guest => 0,
            // From its death, not from the request: a program that makes many calls waits once for a dead node, not
            // once per call.
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
        start: impl Fn(&Request<'_>) -> PendingReply<'t>,
    ) -> PendingReply<'t> {
        // Waiting for a node that is away is left to `finish`, so that others can be started meanwhile.
        let wait_ms = u32::try_from(self.wait_ms(request)).unwrap_or(u32::MAX);
        let hopeless = wait_ms == 0 && self.dead_for().is_some();
        // `try_read`: a reconnection under way holds the lock, and is waited for in `finish` too.
        let started = self.link.try_read().filter(|link| self.is_up(link) && !hopeless).map(|link| {
            let frame = bivouac_wire::Frame { wait_ms, ..request.frame };
            (start(&Request { frame, ..*request }), link.episode)
        });
        PendingReply::new(PeerRequest { peer: self, started })
    }

    /// Sends the request until it is answered or its time is over.
    fn persist(
        &self,
        first: Option<(NetError, u64)>,
        request: &Request<'_>,
        body: &mut Vec<u8>,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<ReplyHead, NetError> {
        let mut patience = RetryBudget::new(self.wait_ms(request));
        // Known to be dead for long: not even one attempt is made.
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
            // Not 0, which stands for the transport's own time.
            request.frame.wait_ms = u32::try_from(patience.left().as_millis()).unwrap_or(u32::MAX).max(1);
            // Without a copy as long as nothing was damaged: large payloads are sent from the program's own pages.
            let outcome = if patience.damages == 0 {
                // Begun under the lock, so that no reconnection comes between the check and the send; the reply is
                // awaited without it.
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

    /// Makes one attempt with buffers of its own. A program that changes its buffer while it is being sent makes each
    /// transmission look damaged.
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

    /// Decides whether a failed request is sent again, and pauses before all attempts but the first repetition.
    fn judge(
        &self,
        cause: NetError,
        episode: u64,
        request: &mut Request<'_>,
        patience: &mut RetryBudget,
    ) -> Result<(), NetError> {
        let cause = patience.count(cause);
        // Other connections to the node are probably dead too, and each request over them would have to find that out
        // by itself.
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
            // The node has moved, and its former host was silent rather than gone: the request gets its whole time
            // again.
            *patience = RetryBudget { damages: patience.damages, ..RetryBudget::new(millis(patience.wait)) };
            request.frame.flags = request.frame.flags.with(Flags::RETRY);
            return Ok(());
        }
        if !self.is_passing(&cause) || patience.damages >= DAMAGED_MAX {
            return Err(cause);
        }
        // The server counts damage at its own side; of damaged replies it learns by this flag.
        let told = Flags::ANSWER_DAMAGED;
        let is_told = matches!(cause, NetError::Damaged { what: Damage::Answer, .. });
        let flags = request.frame.flags;
        request.frame.flags = if is_told { flags.with(told) } else { flags.without(told) };
        if cause.maybe_sent() {
            request.frame.flags = request.frame.flags.with(Flags::RETRY);
        }
        patience.failures += 1;
        // The first time without a pause: the supervisor keeps the listener, so a restarted daemon accepts at once.
        if patience.failures > 1 { self.pause(cause, patience) } else { Ok(()) }
    }

    /// Waits until requests may be sent, reconnecting if no other thread does.
    fn enter(&self, patience: &mut RetryBudget) -> Result<RwLockReadGuard<'_, Link>, NetError> {
        loop {
            let link = self.link.try_read_until(patience.deadline).ok_or_else(|| self.busy(patience))?;
            if self.is_up(&link) {
                return Ok(link);
            }
            drop(link);
            // Exclusive: the callback tells the node what this client has open, and no request may overtake that.
            let mut link = self.link.try_write_until(patience.deadline).ok_or_else(|| self.busy(patience))?;
            // Between the two locks another thread may have reconnected.
            if !self.is_up(&link) {
                self.reconnect(&mut link, patience)?;
            }
        }
    }

    fn reconnect(&self, link: &mut Link, patience: &mut RetryBudget) -> Result<(), NetError> {
        loop {
            // Read before connecting: a redirection during the connection attempt has to lead to another attempt.
            let redirections = self.redirections.load(Ordering::Acquire);
            let outcome = self.transport.connect(patience.left()).and_then(|()| match &link.on_reconnect {
                Some(callback) => callback(self.node, &*self.transport),
                None => Ok(()),
            });
            match outcome {
                Ok(()) => {
                    link.episode += 1;
                    // If there was one meanwhile, the caller reconnects.
                    link.redirections = redirections;
                    // Nobody has seen this episode, so nobody can have lost it: otherwise requests would reconnect for
                    // ever.
                    let is_lost = link.episode < self.lost_below.load(Ordering::Acquire);
                    assert!(!is_lost, "episode {} of {} is lost already", link.episode, self.node);
                    log::info!("{} at {} is back", self.node, self.transport.address());
                    return Ok(());
                }
                // A time-out of the attempt or of the callback leaves the node another attempt, within the budget.
                Err(cause) if self.is_passing(&cause) || matches!(cause, NetError::TimedOut { .. }) => {
                    patience.failures += 1;
                    self.pause(cause, patience)?;
                }
                Err(cause) => return Err(cause),
            }
        }
    }

    /// Pauses before the next attempt to reach the node. Nothing signals that a process is back, so the pauses grow.
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

    /// Refuses to send anything before a reconnection, unless there was one since that episode.
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

/// Returns true if a request is sent to nodes held for dead too, to find out whether they are.
fn is_for_the_dead(request: &Request<'_>) -> bool {
    Op::from_number(request.frame.op).is_some_and(Op::seeks_life)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Time budget of a request from its first failure on, with the number of failures so far.
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

    /// Counts damage, and puts the count into the error.
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
    fn start(&self, request: &Request<'_>) -> PendingReply<'_> {
        self.start_by(request, |request| self.transport.start(request))
    }

    fn begin(&self, request: &Request<'_>) -> PendingReply<'_> {
        self.start_by(request, |request| self.transport.begin(request))
    }

    fn connect(&self, wait: Duration) -> Result<(), NetError> {
        let wait_ms = millis(wait);
        drop(self.enter(&mut RetryBudget::new(wait_ms))?);
        self.transport.connect(wait)
    }

    fn redirect(&self, epoch: u32, address: &Address) -> bool {
        // In this order: a thread that has seen the new number connects to the new address.
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

/// A request given to a peer; not sent yet if the peer was away.
struct PeerRequest<'t> {
    peer: &'t Peer,
    started: Option<(PendingReply<'t>, u64)>,
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
        // The node was away when the request was started; waiting for it was left to this call.
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
        // A request that is given up closes its connection, perhaps the node's last one.
        if let Some((pending, episode)) = self.started.take() {
            drop(pending);
            self.peer.lost(episode);
        }
    }
}
