//! Answers requests: few threads, many connections.
//!
//! Each lane has an epoll set and threads of its own, so that handlers of the client lane may wait for peers. A thread
//! takes one ready connection, reads without waiting, serves every whole frame that it has read, and gives the
//! connection back to the epoll set. The last thread that waits starts another one before it serves, as long as there
//! may be more: where little happens, there are few. Sockets never block: parts of frames and of answers stay with
//! their connection, so neither a slow nor a hostile peer holds a thread. Several services of one process share lanes
//! and threads; a connection belongs to the service whose listener accepted it.

mod buffers;
mod connection;
mod lane;
mod lane_threads;
mod registry;
mod transfer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bivouac_ranks::{Condvar, Mutex};
use bivouac_types::ClientId;
use bivouac_types::limits::HANDSHAKE_MS_MAX;

use crate::{Auth, LaneKind, Listener, NetError, Service, auth};
use buffers::{Buffers, StalledConnections};
use lane::Lane;
use registry::Clients;

/// Sizes of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// Most threads that serve clients: as many requests as may wait for peers at once.
    pub threads_client: usize,
    /// Most threads that serve peers.
    pub threads_peer: usize,
    /// Greatest number of threads that change replicas; 0 where this node keeps none.
    pub threads_mirror: usize,
    /// Time that a connection has to prove itself, in milliseconds.
    pub handshake_ms: u64,
    /// Time that [`Server::stop`] waits for running handlers, in milliseconds.
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
            threads_mirror: 0,
            handshake_ms: HANDSHAKE_MS_MAX,
            stop_ms: 2_000,
            stalled_bytes_max: 256 << 20,
            idle_bytes_max: 8 << 20,
        }
    }
}

/// One of the services of a server's threads.
pub struct ServiceListeners {
    /// Its listeners.
    pub listeners: Vec<(Listener, LaneKind)>,
    /// The service that answers.
    pub service: Arc<dyn Service>,
}

/// A running server. Dropping it stops it.
pub struct Server {
    shared: Arc<Shared>,
    hosted: Vec<Arc<Hosted>>,
    lanes: Vec<Arc<Lane>>,
}

/// A service, and who is connected to it.
pub(crate) struct Hosted {
    service: Arc<dyn Service>,
    clients: Clients,
}

/// State that all lanes share.
pub(crate) struct Shared {
    auth: Auth,
    options: ServerOptions,
    // Random: tells this run from the one before a restart.
    instance: u64,
    buffers: Arc<Buffers>,
    stalled: StalledConnections,
    stopping: AtomicBool,
    running: Mutex<usize>,
    ended: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
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
        Server::start_all(vec![ServiceListeners { listeners, service }], auth, options)
    }

    /// Starts to answer for several services, with the same threads.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_all(
        services: Vec<ServiceListeners>,
        auth: Auth,
        options: ServerOptions,
    ) -> Result<Server, NetError> {
        let shared = Arc::new(Shared::new(auth, options)?);
        let (mut hosted, mut client, mut peer) = (Vec::new(), Vec::new(), Vec::new());
        for ServiceListeners { listeners, service } in services {
            let own = Arc::new(Hosted { service, clients: Clients::default() });
            for (listener, kind) in listeners {
                let lane = if kind == LaneKind::Client { &mut client } else { &mut peer };
                lane.push((listener, Arc::clone(&own)));
            }
            hosted.push(own);
        }
        let mut server = Server { shared, hosted, lanes: Vec::new() };
        server.open_lane(LaneKind::Client, client, None, options.threads_client)?;
        if options.threads_mirror == 0 {
            server.open_lane(LaneKind::Peer, peer, None, options.threads_peer)?;
            return Ok(server);
        }
        // All peers are let in by threads that wait for nobody: where all others wait for backups, these can still
        // come.
        let failed = |cause| NetError::System { what: "set up a server", cause };
        let lane =
            Lane::new(LaneKind::Peer, Arc::clone(&server.shared), Vec::new(), None, options.threads_peer);
        let lane = Arc::new(lane.map_err(failed)?);
        server.lanes.push(Arc::clone(&lane));
        server.open_lane(LaneKind::Mirror, peer, Some(lane), options.threads_mirror)?;
        Ok(server)
    }

    fn open_lane(
        &mut self,
        kind: LaneKind,
        listeners: Vec<(Listener, Arc<Hosted>)>,
        others: Option<Arc<Lane>>,
        threads: usize,
    ) -> Result<(), NetError> {
        if listeners.is_empty() {
            return Ok(());
        }
        let failed = |cause| NetError::System { what: "set up a server", cause };
        let lane = Lane::new(kind, Arc::clone(&self.shared), listeners, others, threads).map_err(failed)?;
        let lane = Arc::new(lane);
        self.lanes.push(Arc::clone(&lane));
        lane.add_thread().map_err(failed)
    }

    /// Returns the number of proven connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.hosted.iter().map(|hosted| hosted.clients.connections()).sum()
    }

    /// Returns a function that ends all connections of a client to one of the services, by its position among them; the
    /// client then has to connect again and to say who it is.
    pub fn hang_up(&self, service: usize) -> impl Fn(ClientId) + Send + Sync + use<> {
        let (lanes, hosted) = (self.lanes.clone(), self.hosted.get(service).cloned());
        move |client| {
            if let Some(hosted) = &hosted {
                // First: what is under way over them is not to be done any more.
                hosted.clients.supersede(client);
                lanes.iter().for_each(|lane| lane.hang_up_on(hosted, client));
            }
        }
    }

    /// Ends all threads and closes all connections; listeners close with the server. Handlers that run get
    /// [`ServerOptions::stop_ms`] to finish; returns how many threads were left behind because they did not.
    pub fn stop(&self) -> usize {
        if self.shared.stopping.swap(true, Ordering::AcqRel) {
            return *self.shared.running.lock();
        }
        self.lanes.iter().for_each(|lane| lane.wake());
        let left = self.shared.await_end(Duration::from_millis(self.shared.options.stop_ms));
        let threads = std::mem::take(&mut *self.shared.threads.lock());
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
    fn new(auth: Auth, options: ServerOptions) -> Result<Shared, NetError> {
        let [a, b, c, d, e, f, g, h, ..] = auth::nonce()?;
        Ok(Shared {
            auth,
            options,
            instance: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            buffers: Buffers::new(options.idle_bytes_max),
            stalled: StalledConnections::new(options.stalled_bytes_max),
            stopping: AtomicBool::new(false),
            running: Mutex::default(),
            ended: Condvar::new(),
            threads: Mutex::default(),
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

/// Counts a thread as long as it runs, however it ends.
struct RunningThread(Arc<Shared>);

impl RunningThread {
    fn new(shared: &Arc<Shared>) -> RunningThread {
        *shared.running.lock() += 1;
        RunningThread(Arc::clone(shared))
    }
}

impl Drop for RunningThread {
    fn drop(&mut self) {
        *self.0.running.lock() -= 1;
        self.0.ended.notify_all();
    }
}
