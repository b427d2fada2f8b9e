//! Requests over sockets: a pool of proven connections to one address.

use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bivouac_types::NodeId;
use bivouac_types::limits::WAIT_MS_DEFAULT;
use parking_lot::Mutex;

use crate::connection::{Connection, Opened, Opening};
use crate::generation;
use crate::readiness::{Wait, await_any};
use crate::steps::ExchangeProgress;
use crate::transport::InFlightRequest;
use crate::watch::run_of;
use crate::{
    Address, BrokenConnection, DaemonId, Identity, NetError, PendingReply, ReplyHead, Request, Transport,
    Watch, hook,
};

/// Sockets that are noted before it is looked which of them are closed.
const OPENED_MIN: usize = 32;

/// Settings of sockets.
#[derive(Clone, Copy, Debug)]
pub struct SocketOptions {
    /// Most connections that are kept open while no request uses them.
    pub idle_max: usize,
    /// Time to wait for an answer, in milliseconds, unless the request says otherwise.
    pub wait_ms: u64,
}

impl Default for SocketOptions {
    fn default() -> SocketOptions {
        SocketOptions { idle_max: 16, wait_ms: WAIT_MS_DEFAULT }
    }
}

/// Carries requests over TCP or a Unix socket. Every request under way has a connection of its own; the one that was
/// used last is used next. Nothing is sent again: that is [`crate::Peer`]'s business. A client has one of these for
/// each node: [`Transport::connect`] begins a new [`crate::Generation`] of the client's connections there.
pub struct SocketTransport {
    identity: Identity,
    options: SocketOptions,
    pool: Mutex<Pool>,
    /// Watch that is told when an unused connection breaks, and the node that it led to.
    watch: Option<(Arc<Watch>, NodeId)>,
}

struct Pool {
    address: Address,
    /// The daemon that is meant; `None` for whoever answers.
    daemon: Option<DaemonId>,
    /// Sockets that were opened, as long as they are: those in use as well.
    opened: Vec<Weak<OwnedFd>>,
    /// Number of them at which those that are closed are dropped.
    opened_max: usize,
    idle: Vec<Connection>,
    // The run of the server that requests are meant for.
    instance: Option<u64>,
    // Number of the generation of its connections, which begins when this is decided anew.
    generation: u64,
}

impl SocketTransport {
    /// Connects when there is something to send.
    #[must_use]
    pub fn new(address: Address, identity: Identity, options: SocketOptions) -> SocketTransport {
        let pool = Pool {
            address,
            daemon: None,
            opened: Vec::new(),
            opened_max: OPENED_MIN,
            idle: Vec::new(),
            instance: None,
            generation: generation::next_number(0),
        };
        SocketTransport { identity, options, pool: Mutex::new(pool), watch: None }
    }

    /// Returns the transport with its connections under watch as those to `node`.
    #[must_use]
    pub fn watched_by(self, watch: &Arc<Watch>, node: NodeId) -> SocketTransport {
        SocketTransport { watch: Some((Arc::clone(watch), node)), ..self }
    }

    /// Returns the transport for the daemon of this node that came to the address in this epoch, and no other.
    #[must_use]
    pub fn of_daemon(self, daemon: DaemonId) -> SocketTransport {
        self.pool.lock().daemon = Some(daemon);
        self
    }

    fn open(&self, generation: u64, wait: Duration) -> Result<Connection, NetError> {
        hook::run();
        let opening = self.begin_opening(generation, wait)?;
        let address = opening.address().clone();
        let connection = opening.complete(|socket| self.register(socket, &address))?;
        self.watch(&connection);
        Ok(connection)
    }

    /// Begins to connect to the present address.
    fn begin_opening(&self, generation: u64, wait: Duration) -> Result<Box<Opening>, NetError> {
        let (address, daemon) = {
            let pool = self.pool.lock();
            (pool.address.clone(), pool.daemon)
        };
        let opening = Opening::begin(&address, &self.identity, daemon, generation, wait)?;
        self.register(opening.socket(), &address);
        Ok(opening)
    }

    /// Notes a socket, to be shut down when the node moves. If it has moved since the address was read, that is now.
    fn register(&self, socket: Weak<OwnedFd>, address: &Address) {
        let mut pool = self.pool.lock();
        // Under the lock that a redirection takes: it shuts down each socket, or this one is shut down here.
        if pool.address != *address {
            return shut_down(&socket);
        }
        if pool.opened.len() >= pool.opened_max {
            pool.opened.retain(|socket| socket.strong_count() > 0);
            pool.opened_max = OPENED_MIN.max(2 * pool.opened.len());
        }
        pool.opened.push(socket);
    }

    fn watch(&self, connection: &Connection) {
        if let Some((watch, node)) = &self.watch {
            watch.add(connection, *node, connection.instance());
        }
    }

    fn send(&self, request: &Request<'_>) -> Result<Connection, NetError> {
        request.check()?;
        let connection = self.take(self.wait_of(request))?;
        let sent = connection.send(request);
        sent.inspect_err(|_| self.forget_idle())?;
        Ok(connection)
    }

    fn begin_steps(&self, request: &Request<'_>) -> Result<StepwiseRequest<'_>, NetError> {
        request.check()?;
        let wait = self.wait_of(request);
        let stage = match self.take_idle(wait)? {
            Some(connection) => {
                let mut steps = ExchangeProgress::new(&connection, request);
                steps.send(&connection, request).inspect_err(|_| self.forget_idle())?;
                Stage::Open(connection, steps)
            }
            None => {
                // A connection of this machine, or the name of another one, may have to be waited for.
                hook::run();
                let generation = self.pool.lock().generation;
                Stage::Opening(self.begin_opening(generation, wait)?)
            }
        };
        Ok(StepwiseRequest { transport: self, stage, outcome: None })
    }

    fn wait_of(&self, request: &Request<'_>) -> Duration {
        Duration::from_millis(match request.frame.wait_ms {
            0 => self.options.wait_ms,
            wait_ms => u64::from(wait_ms),
        })
    }

    fn take(&self, wait: Duration) -> Result<Connection, NetError> {
        if let Some(connection) = self.take_idle(wait)? {
            return Ok(connection);
        }
        let generation = self.pool.lock().generation;
        let connection = self.open(generation, wait)?;
        self.admit(&connection)?;
        Ok(connection)
    }

    fn take_idle(&self, wait: Duration) -> Result<Option<Connection>, NetError> {
        let idle = self.pool.lock().idle.pop();
        idle.map(|mut connection| connection.set_wait(wait).map(|()| connection)).transpose()
    }

    /// Takes the run of the server that a new connection leads to for the one that requests are meant for, unless that
    /// is known to be another one, or was decided anew since the connection was begun.
    fn admit(&self, connection: &Connection) -> Result<(), NetError> {
        let mut pool = self.pool.lock();
        if pool.generation != connection.generation() {
            return Err(NetError::Restarted { address: pool.address.clone() });
        }
        // What clients registered with the former daemon must be told to this one before anything else.
        if *pool.instance.get_or_insert(connection.instance()) != connection.instance() {
            pool.idle.clear();
            return Err(NetError::Restarted { address: pool.address.clone() });
        }
        Ok(())
    }

    fn give_back(&self, connection: Connection) {
        let mut pool = self.pool.lock();
        let is_current =
            (pool.instance, pool.generation) == (Some(connection.instance()), connection.generation());
        if is_current && pool.idle.len() < self.options.idle_max {
            pool.idle.push(connection);
        }
    }

    /// Closes the other idle connections: where one broke, they are probably dead too.
    fn forget_idle(&self) {
        self.pool.lock().idle.clear();
    }
}

impl Transport for SocketTransport {
    fn start(&self, request: &Request<'_>) -> PendingReply<'_> {
        match self.send(request) {
            Ok(connection) => PendingReply::new(SentRequest { transport: self, connection }),
            Err(error) => PendingReply::failed(error),
        }
    }

    fn begin(&self, request: &Request<'_>) -> PendingReply<'_> {
        match self.begin_steps(request) {
            Ok(stepwise) => PendingReply::new(stepwise),
            Err(error) => PendingReply::failed(error),
        }
    }

    fn connect(&self, wait: Duration) -> Result<(), NetError> {
        // The node supersedes the former generation before it answers: what was sent over that, and is sent again, is
        // carried out once.
        let generation = {
            let mut pool = self.pool.lock();
            pool.idle.clear();
            pool.generation = generation::next_number(pool.generation);
            pool.generation
        };
        let connection = self.open(generation, wait)?;
        let mut pool = self.pool.lock();
        // Otherwise the node has moved meanwhile, and the caller, which compares redirections, connects again.
        if pool.generation == generation {
            pool.instance = Some(connection.instance());
            pool.idle.push(connection);
        }
        Ok(())
    }

    fn leads_to(&self, broken: &BrokenConnection) -> bool {
        self.pool.lock().instance.is_none_or(|instance| run_of(instance) == broken.run)
    }

    fn redirect(&self, epoch: u32, address: &Address) -> bool {
        let mut pool = self.pool.lock();
        let Some(daemon) = pool.daemon.filter(|daemon| epoch > daemon.epoch) else { return false };
        pool.daemon = Some(DaemonId { epoch, ..daemon });
        pool.address = address.clone();
        // Of another daemon, and perhaps over connections that nobody will ever answer.
        pool.idle.clear();
        pool.instance = None;
        pool.generation = generation::next_number(pool.generation);
        std::mem::take(&mut pool.opened).iter().for_each(shut_down);
        true
    }

    fn address(&self) -> Address {
        self.pool.lock().address.clone()
    }
}

/// Ends what is under way over a socket, if it is still open.
fn shut_down(socket: &Weak<OwnedFd>) {
    if let Some(socket) = socket.upgrade() {
        // It may be gone, or not be connected yet: then it does not matter.
        let _nothing_to_end = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
    }
}

/// A request that was sent.
struct SentRequest<'t> {
    transport: &'t SocketTransport,
    connection: Connection,
}

impl InFlightRequest for SentRequest<'_> {
    fn finish(
        self: Box<Self>,
        request: &Request<'_>,
        body: &mut Vec<u8>,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<ReplyHead, NetError> {
        match self.connection.receive(request, body, into) {
            Ok(head) => {
                self.transport.give_back(self.connection);
                Ok(head)
            }
            Err(error) => {
                self.transport.forget_idle();
                Err(error)
            }
        }
    }
}

/// A request that is carried on without waiting.
struct StepwiseRequest<'t> {
    transport: &'t SocketTransport,
    stage: Stage,
    outcome: Option<Result<ReplyHead, NetError>>,
}

/// Stage of the exchange.
#[allow(clippy::large_enum_variant, reason = "what it is in is in a box")]
enum Stage {
    /// Its connection is being established.
    Opening(Box<Opening>),
    /// The request is under way.
    Open(Connection, ExchangeProgress),
    /// There is no connection.
    Failed,
}

impl InFlightRequest for StepwiseRequest<'_> {
    fn is_sent(&self) -> bool {
        self.outcome.is_some() || matches!(&self.stage, Stage::Open(_, steps) if steps.is_sent())
    }

    fn wait(&self) -> Option<Wait<'_>> {
        match &self.stage {
            _ if self.outcome.is_some() => None,
            Stage::Opening(opening) => Some(opening.wait()),
            Stage::Open(connection, steps) => Some(steps.wait(connection)),
            Stage::Failed => None,
        }
    }

    /// Does what goes without waiting; whether it is over.
    fn advance(&mut self, request: &Request<'_>, into: &mut [IoSliceMut<'_>]) -> bool {
        if self.outcome.is_none() {
            self.outcome = self.go_on(request, into).transpose();
        }
        self.outcome.is_some()
    }

    fn finish(
        mut self: Box<Self>,
        request: &Request<'_>,
        body: &mut Vec<u8>,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<ReplyHead, NetError> {
        while !self.advance(request, into) {
            let waits: Vec<Wait<'_>> = self.wait().into_iter().collect();
            let _it_is_the_only_one = await_any(&waits, true);
        }
        match (self.outcome, self.stage) {
            (Some(Ok(head)), Stage::Open(connection, steps)) => {
                self.transport.give_back(connection);
                *body = steps.body();
                Ok(head)
            }
            (Some(Err(error)), stage) => {
                // An attempt to connect that failed says nothing about connections that are open.
                if matches!(stage, Stage::Open(..)) {
                    self.transport.forget_idle();
                }
                Err(error)
            }
            // It is over only with an outcome, and with an answer only over a connection.
            (_, _) => Err(NetError::Restarted { address: self.transport.address() }),
        }
    }
}

impl StepwiseRequest<'_> {
    fn go_on(
        &mut self,
        request: &Request<'_>,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<Option<ReplyHead>, NetError> {
        // An error on the way leaves it failed.
        self.stage = match std::mem::replace(&mut self.stage, Stage::Failed) {
            Stage::Opening(opening) => match opening.advance()? {
                Opened::NotYet(opening) => Stage::Opening(opening),
                Opened::Elsewhere(opening) => {
                    self.transport.register(opening.socket(), opening.address());
                    Stage::Opening(opening)
                }
                Opened::Connection(connection) => {
                    self.transport.watch(&connection);
                    self.transport.admit(&connection)?;
                    let steps = ExchangeProgress::new(&connection, request);
                    Stage::Open(connection, steps)
                }
            },
            stage => stage,
        };
        match &mut self.stage {
            Stage::Open(connection, steps) => steps.advance(connection, request, into),
            Stage::Opening(..) | Stage::Failed => Ok(None),
        }
    }
}
