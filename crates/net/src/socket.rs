//! Requests over sockets: a pool of proven connections to one address.

use std::io::IoSliceMut;
use std::sync::Arc;
use std::time::Duration;

use bivouac_types::NodeId;
use bivouac_types::limits::WAIT_MS_DEFAULT;
use parking_lot::Mutex;

use crate::connection::{Connection, Opened, Opening};
use crate::steps::{Steps, Wait, await_any};
use crate::transport::State;
use crate::watch::run_of;
use crate::{Address, Broken, Identity, NetError, Pending, ReplyHead, Request, Transport, Watch, hook};

/// How sockets are used.
#[derive(Clone, Copy, Debug)]
pub struct SocketOptions {
    /// Most connections that are kept open while no request uses them.
    pub idle_max: usize,
    /// How long to wait for an answer, in milliseconds, unless the request says otherwise.
    pub wait_ms: u64,
}

impl Default for SocketOptions {
    fn default() -> SocketOptions {
        SocketOptions { idle_max: 16, wait_ms: WAIT_MS_DEFAULT }
    }
}

/// Carries requests over TCP or a Unix socket. Every request under way has a connection of its own; the one
/// that was used last is used next. Nothing is sent again: that is [`crate::Peer`]'s business.
pub struct SocketTransport {
    address: Address,
    identity: Identity,
    options: SocketOptions,
    pool: Mutex<Pool>,
    /// Who is told when a connection breaks that nobody uses, and of which node.
    watch: Option<(Arc<Watch>, NodeId)>,
}

#[derive(Default)]
struct Pool {
    idle: Vec<Connection>,
    // The run of the server that requests are meant for.
    instance: Option<u64>,
    // How often this was decided anew.
    decided: u64,
}

impl SocketTransport {
    /// Connects when there is something to send.
    #[must_use]
    pub fn new(address: Address, identity: Identity, options: SocketOptions) -> SocketTransport {
        SocketTransport { address, identity, options, pool: Mutex::default(), watch: None }
    }

    /// The same, with its connections under watch as those to `node`.
    #[must_use]
    pub fn watched_by(self, watch: &Arc<Watch>, node: NodeId) -> SocketTransport {
        SocketTransport { watch: Some((Arc::clone(watch), node)), ..self }
    }

    fn open(&self, wait: Duration) -> Result<Connection, NetError> {
        hook::run();
        let connection = Connection::open(&self.address, &self.identity, wait)?;
        self.watch(&connection);
        Ok(connection)
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

    fn begin_steps(&self, request: &Request<'_>) -> Result<Stepwise<'_>, NetError> {
        request.check()?;
        let wait = self.wait_of(request);
        let stage = match self.take_idle(wait)? {
            Some(connection) => {
                let mut steps = Steps::new(&connection, request);
                steps.send(&connection, request).inspect_err(|_| self.forget_idle())?;
                Stage::Open(connection, steps)
            }
            None => {
                // A connection of this machine, or the name of another one, may have to be waited for.
                hook::run();
                let decided = self.pool.lock().decided;
                Stage::Opening(Opening::begin(&self.address, &self.identity, wait)?, decided)
            }
        };
        Ok(Stepwise { transport: self, stage, outcome: None })
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
        let connection = self.open(wait)?;
        self.admit(&connection, &mut self.pool.lock())?;
        Ok(connection)
    }

    fn take_idle(&self, wait: Duration) -> Result<Option<Connection>, NetError> {
        let idle = self.pool.lock().idle.pop();
        idle.map(|mut connection| connection.set_wait(wait).map(|()| connection)).transpose()
    }

    /// Takes the run of the server that a new connection leads to for the one that requests are meant for, unless that is
    /// known to be another one.
    fn admit(&self, connection: &Connection, pool: &mut Pool) -> Result<(), NetError> {
        // What clients registered with the former daemon must be told to this one before anything else.
        if *pool.instance.get_or_insert(connection.instance()) != connection.instance() {
            pool.idle.clear();
            return Err(NetError::Restarted { address: self.address.clone() });
        }
        Ok(())
    }

    /// As [`SocketTransport::admit`], of a connection that was begun when it had been decided so often which run requests
    /// are meant for. Where that has changed since, the new daemon may be about to be told what the former one knew.
    fn admit_begun(&self, connection: &Connection, decided: u64) -> Result<(), NetError> {
        self.watch(connection);
        let mut pool = self.pool.lock();
        if pool.decided != decided {
            return Err(NetError::Restarted { address: self.address.clone() });
        }
        self.admit(connection, &mut pool)
    }

    fn give_back(&self, connection: Connection) {
        let mut pool = self.pool.lock();
        if pool.instance == Some(connection.instance()) && pool.idle.len() < self.options.idle_max {
            pool.idle.push(connection);
        }
    }

    /// Where one connection broke, the others are probably dead too.
    fn forget_idle(&self) {
        self.pool.lock().idle.clear();
    }
}

impl Transport for SocketTransport {
    fn start(&self, request: &Request<'_>) -> Pending<'_> {
        match self.send(request) {
            Ok(connection) => Pending(State::Socket(InFlight { transport: self, connection })),
            Err(error) => Pending::failed(error),
        }
    }

    fn begin(&self, request: &Request<'_>) -> Pending<'_> {
        match self.begin_steps(request) {
            Ok(stepwise) => Pending(State::Stepwise(Box::new(stepwise))),
            Err(error) => Pending::failed(error),
        }
    }

    fn connect(&self, wait: Duration) -> Result<(), NetError> {
        let connection = self.open(wait)?;
        let mut pool = self.pool.lock();
        pool.decided += 1;
        if pool.instance.replace(connection.instance()) != Some(connection.instance()) {
            pool.idle.clear();
        }
        pool.idle.push(connection);
        Ok(())
    }

    fn leads_to(&self, broken: &Broken) -> bool {
        self.pool.lock().instance.is_none_or(|instance| run_of(instance) == broken.run)
    }

    fn address(&self) -> Address {
        self.address.clone()
    }
}

/// A request that was sent.
pub(crate) struct InFlight<'t> {
    transport: &'t SocketTransport,
    connection: Connection,
}

impl InFlight<'_> {
    pub fn finish(
        self,
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
pub(crate) struct Stepwise<'t> {
    transport: &'t SocketTransport,
    stage: Stage,
    outcome: Option<Result<ReplyHead, NetError>>,
}

/// How far it is.
#[allow(clippy::large_enum_variant, reason = "what it is in is in a box")]
enum Stage {
    /// Its connection is being made. It had been decided so often which run of the server it is meant for.
    Opening(Box<Opening>, u64),
    /// It is on its way.
    Open(Connection, Steps),
    /// There is no connection.
    Failed,
}

impl Stepwise<'_> {
    pub fn is_sent(&self) -> bool {
        self.outcome.is_some() || matches!(&self.stage, Stage::Open(_, steps) if steps.is_sent())
    }

    pub fn wait(&self) -> Option<Wait<'_>> {
        match &self.stage {
            _ if self.outcome.is_some() => None,
            Stage::Opening(opening, _) => Some(opening.wait()),
            Stage::Open(connection, steps) => Some(steps.wait(connection)),
            Stage::Failed => None,
        }
    }

    /// Does what goes without waiting; whether it is over.
    pub fn advance(&mut self, request: &Request<'_>, into: &mut [IoSliceMut<'_>]) -> bool {
        if self.outcome.is_none() {
            self.outcome = self.go_on(request, into).transpose();
        }
        self.outcome.is_some()
    }

    fn go_on(
        &mut self,
        request: &Request<'_>,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<Option<ReplyHead>, NetError> {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Failed) {
            Stage::Opening(opening, decided) => match opening.advance()? {
                Opened::NotYet(opening) => Stage::Opening(opening, decided),
                Opened::Connection(connection) => {
                    self.transport.admit_begun(&connection, decided)?;
                    let steps = Steps::new(&connection, request);
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

    pub fn finish(
        mut self,
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
                if matches!(stage, Stage::Open(..)) {
                    self.transport.forget_idle();
                }
                Err(error)
            }
            // It is over only with an outcome, and with an answer only over a connection.
            (_, _) => Err(NetError::Restarted { address: self.transport.address.clone() }),
        }
    }
}
