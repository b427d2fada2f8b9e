//! Answers requests: few threads, many connections.
//!
//! Each lane has an epoll set and threads of its own, so that handlers of the client lane may wait for
//! peers. A thread takes one ready connection, reads without waiting, serves every whole frame that it
//! has read, and gives the connection back to the epoll set. Sockets never block: parts of frames and of answers
//! stay with their connection, so neither a slow nor a hostile peer holds a thread.

mod buffers;
mod connection;
mod lane;
mod registry;
mod transfer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bivouac_types::ClientId;
use bivouac_types::limits::HANDSHAKE_MS_MAX;
use parking_lot::{Condvar, Mutex};

use crate::{Auth, LaneKind, Listener, NetError, Service, auth};
use buffers::{Buffers, Stalled};
use lane::Lane;
use registry::Clients;

/// Sizes of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// Threads that serve clients: as many requests as may wait for peers at once.
    pub threads_client: usize,
    /// Threads that serve peers.
    pub threads_peer: usize,
    /// Time that a connection has to prove itself, in milliseconds.
    pub handshake_ms: u64,
    /// How long [`Server::stop`] waits for running handlers, in milliseconds.
    pub stop_ms: u64,
    /// Most bytes of payload that connections without progress may hold; beyond it, the one that has made
    /// no progress for longest is closed.
    pub stalled_bytes_max: usize,
    /// Most bytes of payload buffers that are kept for later requests.
    pub idle_bytes_max: usize,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            threads_client: 8,
            threads_peer: 4,
            handshake_ms: HANDSHAKE_MS_MAX,
            stop_ms: 2_000,
            stalled_bytes_max: 256 << 20,
            idle_bytes_max: 8 << 20,
        }
    }
}

/// A running server. Dropping it stops it.
pub struct Server {
    shared: Arc<Shared>,
    lanes: Vec<Arc<Lane>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What all lanes have in common.
pub(crate) struct Shared {
    service: Arc<dyn Service>,
    auth: Auth,
    options: ServerOptions,
    // Random: tells this run from the one before a restart.
    instance: u64,
    buffers: Arc<Buffers>,
    stalled: Stalled,
    clients: Clients,
    stopping: AtomicBool,
    running: Mutex<usize>,
    ended: Condvar,
}

impl Server {
    /// Starts to answer on `listeners`.
    ///
    /// # Errors
    /// [`NetError::System`] when the kernel gives no epoll set, thread or random bytes.
    pub fn start(
        listeners: Vec<(Listener, LaneKind)>,
        service: Arc<dyn Service>,
        auth: Auth,
        options: ServerOptions,
    ) -> Result<Server, NetError> {
        let shared = Arc::new(Shared::new(service, auth, options)?);
        let (client, peer): (Vec<_>, Vec<_>) =
            listeners.into_iter().partition(|(_, kind)| *kind == LaneKind::Client);
        let mut server = Server { shared, lanes: Vec::new(), threads: Mutex::default() };
        server.open_lane(LaneKind::Client, client, options.threads_client)?;
        server.open_lane(LaneKind::Peer, peer, options.threads_peer)?;
        Ok(server)
    }

    fn open_lane(
        &mut self,
        kind: LaneKind,
        listeners: Vec<(Listener, LaneKind)>,
        threads: usize,
    ) -> Result<(), NetError> {
        if listeners.is_empty() {
            return Ok(());
        }
        let failed = |cause| NetError::System { what: "set up a server", cause };
        let listeners = listeners.into_iter().map(|(listener, _)| listener).collect();
        let lane = Arc::new(Lane::new(kind, Arc::clone(&self.shared), listeners).map_err(failed)?);
        self.lanes.push(Arc::clone(&lane));
        for number in 0..threads.max(1) {
            let thread = spawn(&lane, kind, number).map_err(failed)?;
            self.threads.lock().push(thread);
        }
        Ok(())
    }

    /// Proven connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.clients.connections()
    }

    /// What ends all connections of a client, which then has to connect again and to say who it is.
    pub fn hang_up(&self) -> impl Fn(ClientId) + Send + Sync + use<> {
        let lanes = self.lanes.clone();
        move |client| lanes.iter().for_each(|lane| lane.hang_up_on(client))
    }

    /// Ends all threads and closes all connections; listeners close with the server. Handlers that run get
    /// [`ServerOptions::stop_ms`] to finish; returns how many threads were left behind because they did not.
    pub fn stop(&self) -> usize {
        if self.shared.stopping.swap(true, Ordering::AcqRel) {
            return *self.shared.running.lock();
        }
        self.lanes.iter().for_each(|lane| lane.wake());
        let left = self.shared.await_end(Duration::from_millis(self.shared.options.stop_ms));
        let threads = std::mem::take(&mut *self.threads.lock());
        if left == 0 {
            // The threads have nothing left to do; a panic of one was logged when it happened.
            threads.into_iter().for_each(|thread| drop(thread.join()));
        } else {
            log::warn!("{left} requests still run; the server stops without waiting for them");
        }
        self.lanes.iter().for_each(|lane| lane.close_all());
        left
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn new(service: Arc<dyn Service>, auth: Auth, options: ServerOptions) -> Result<Shared, NetError> {
        let [a, b, c, d, e, f, g, h, ..] = auth::nonce()?;
        Ok(Shared {
            service,
            auth,
            options,
            instance: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            buffers: Buffers::new(options.idle_bytes_max),
            stalled: Stalled::new(options.stalled_bytes_max),
            clients: Clients::default(),
            stopping: AtomicBool::new(false),
            running: Mutex::new(0),
            ended: Condvar::new(),
        })
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    fn await_end(&self, patience: Duration) -> usize {
        let mut running = self.running.lock();
        self.ended.wait_while_for(&mut running, |running| *running > 0, patience);
        *running
    }
}

fn spawn(lane: &Arc<Lane>, kind: LaneKind, number: usize) -> std::io::Result<JoinHandle<()>> {
    let name = match kind {
        LaneKind::Client => format!("client-{number}"),
        LaneKind::Peer => format!("peer-{number}"),
    };
    *lane.shared().running.lock() += 1;
    let own = Arc::clone(lane);
    let spawned = std::thread::Builder::new().name(name).spawn(move || {
        let _running = Running(Arc::clone(&own));
        own.run();
    });
    if spawned.is_err() {
        *lane.shared().running.lock() -= 1;
    }
    spawned
}

/// Counts a thread as long as it runs, however it ends.
struct Running(Arc<Lane>);

impl Drop for Running {
    fn drop(&mut self) {
        *self.0.shared().running.lock() -= 1;
        self.0.shared().ended.notify_all();
    }
}
