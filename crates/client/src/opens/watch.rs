//! Noticing that the home of open files was restarted, also when nothing is asked of it: it must hear again what is
//! open there before it takes this client for gone.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bivouac_net::{BrokenConnection, Peer, Watch};
use bivouac_types::NodeId;
use parking_lot::{Condvar, Mutex};

/// Threads that connect again at most; more nodes than that take turns.
const REVIVERS_MAX: usize = 16;
/// Longest wait of a thread for one node, and pause after a failure.
const TURN: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(100);
const STACK: usize = 256 << 10;

type NodeFilter = dyn Fn(NodeId) -> bool + Send + Sync;

/// Keeps the connections to nodes where something is open.
pub struct Keeper(Arc<Inner>);

struct Inner {
    watch: Arc<Watch>,
    /// The filter of nodes at which anything is open.
    wanted: Box<NodeFilter>,
    peers: OnceLock<Vec<Option<Weak<Peer>>>>,
    started: AtomicBool,
    queue: Mutex<Queue>,
    closing: Condvar,
}

#[derive(Default)]
struct Queue {
    away: VecDeque<BrokenConnection>,
    threads: usize,
    closed: bool,
}

impl Keeper {
    /// Creates the keeper of the connections of `watch`.
    pub fn new(watch: Arc<Watch>, wanted: impl Fn(NodeId) -> bool + Send + Sync + 'static) -> Keeper {
        let (queue, closing) = (Mutex::default(), Condvar::new());
        let (peers, started) = (OnceLock::new(), AtomicBool::new(false));
        Keeper(Arc::new(Inner { watch, wanted: Box::new(wanted), peers, started, queue, closing }))
    }

    /// Says by whom to connect again: for each node of the map, none for the own.
    pub fn keep(&self, peers: Vec<Option<Weak<Peer>>>) {
        assert!(self.0.peers.set(peers).is_ok(), "connections are kept by two sets of peers");
    }

    /// Starts to watch connections before something is opened: from now on they matter also while they are idle.
    pub fn start(&self) {
        // Mostly a load is enough, which leaves the cache line to all threads.
        if self.0.started.load(Ordering::Acquire) || self.0.started.swap(true, Ordering::AcqRel) {
            return;
        }
        let inner = Arc::clone(&self.0);
        let spawned = thread("watch").spawn(move || {
            while let Some(broken) = inner.watch.next() {
                inner.add(broken);
            }
        });
        if let Err(error) = spawned {
            log::error!(why:% = error; "restarts of nodes are noticed late, there is no thread to watch them");
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.watch.close();
        self.0.queue.lock().closed = true;
        self.0.closing.notify_all();
    }
}

fn thread(name: &str) -> std::thread::Builder {
    std::thread::Builder::new().name(name.into()).stack_size(STACK)
}

impl Inner {
    /// Queues a broken connection for the reconnecting thread, if anything is open at the node.
    fn add(self: &Arc<Inner>, broken: BrokenConnection) {
        let mut queue = self.queue.lock();
        if !(self.wanted)(broken.node) || queue.away.contains(&broken) {
            return;
        }
        queue.away.push_back(broken);
        if queue.threads >= REVIVERS_MAX {
            return;
        }
        let inner = Arc::clone(self);
        match thread("revive").spawn(move || inner.revive_all()) {
            Ok(_) => queue.threads += 1,
            Err(error) => log::error!(why:% = error; "{} is not connected again by itself", broken.node),
        }
    }

    /// Connects to nodes that are away, in turn, until none is left.
    fn revive_all(&self) {
        let mut queue = self.queue.lock();
        while let Some(broken) = queue.away.pop_front().filter(|_| !queue.closed) {
            drop(queue);
            let back = self.revive(&broken);
            queue = self.queue.lock();
            if !back && !queue.closed {
                // Others that are away get their turn before it.
                queue.away.push_back(broken);
                self.closing.wait_for(&mut queue, PAUSE);
            }
        }
        assert!(queue.threads > 0, "a thread ends that was not counted");
        queue.threads -= 1;
    }

    /// Reconnects to a node. Returns true if that is done, or not needed any more.
    fn revive(&self, broken: &BrokenConnection) -> bool {
        let peers = self.peers.get().map(Vec::as_slice).unwrap_or_default();
        let peer = peers.get(usize::from(broken.node.0)).and_then(Option::as_ref).and_then(Weak::upgrade);
        // Asked again: it may all have been closed while this one waited for its turn.
        match peer.filter(|_| (self.wanted)(broken.node)) {
            None => true,
            Some(peer) => match peer.revive(broken, TURN) {
                Ok(()) => true,
                Err(error) => {
                    log::debug!(why:% = error; "{} has not heard again yet what is open", broken.node);
                    false
                }
            },
        }
    }
}
