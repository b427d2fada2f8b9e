//! One lane: its listeners, an epoll set, and the loop of its threads.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bivouac_ranks::{Mutex, RwLock, rank};
use bivouac_types::ClientId;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, sockopt};

use super::connection::{Connection, Interest, Worker};
use super::lane_threads::LaneThreads;
use super::registry::Handshakes;
use super::{Hosted, RunningThread, Shared};
use crate::handshake::{self, ServerSide};
use crate::{HandshakeRefusal, LaneKind, Listener, auth, looking_max, on_block, retransmission};

/// Number of the event that ends the threads.
const KEY_WAKE: u64 = 0;
/// Number of the first listener's event.
const KEY_LISTENERS: u64 = 1;
/// Number of the first connection's event.
const KEY_CONNECTIONS: u64 = 1 << 16;
/// Most connections that are accepted in a row.
const ACCEPTS_MAX: usize = 64;
/// Longest queue of connections that wait to be accepted.
const BACKLOG: i32 = 4096;
/// Pause before accepting is tried again when descriptors have run out, in milliseconds.
const STARVED_MS: u64 = 500;
/// Silence after which the kernel asks a connection's other side whether it lives.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Time between two such questions.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Unanswered questions after which a connection is dead.
const KEEPALIVE_COUNT: u32 = 3;

/// Listeners of one kind with everything that connects to them.
pub(super) struct Lane {
    kind: LaneKind,
    shared: Arc<Shared>,
    epoll: OwnedFd,
    wake: OwnedFd,
    listeners: Vec<(Listener, Arc<Hosted>)>,
    /// The lane that connections go on to which have come here and belong to another one.
    others: Option<Arc<Lane>>,
    connections: RwLock<HashMap<u64, Arc<Connection>>>,
    handshakes: Mutex<Handshakes>,
    next_key: AtomicU64,
    // Descriptors have run out: listeners are not armed.
    starved: AtomicBool,
    threads: LaneThreads,
    /// Threads that wait for something to do.
    idle: AtomicUsize,
    /// Threads that look for the next request of the connection that they have served.
    looking: AtomicUsize,
    /// Most threads that poll busily: programs have the other processors.
    looking_max: usize,
}

impl Lane {
    /// Arms the listeners; nothing happens before [`Lane::run`].
    pub fn new(
        kind: LaneKind,
        shared: Arc<Shared>,
        listeners: Vec<(Listener, Arc<Hosted>)>,
        others: Option<Arc<Lane>>,
        threads_max: usize,
    ) -> io::Result<Lane> {
        let limit = Duration::from_millis(shared.options.handshake_ms);
        let lane = Lane {
            kind,
            shared,
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            listeners,
            others,
            connections: RwLock::default(),
            handshakes: Mutex::new(rank::LEAF, Handshakes::new(limit)),
            next_key: AtomicU64::new(KEY_CONNECTIONS),
            starved: AtomicBool::new(false),
            threads: LaneThreads::new(threads_max),
            idle: AtomicUsize::new(0),
            looking: AtomicUsize::new(0),
            looking_max: looking_max(),
        };
        epoll::add(&lane.epoll, &lane.wake, EventData::new_u64(KEY_WAKE), EventFlags::IN)?;
        for (key, (listener, _)) in (KEY_LISTENERS..).zip(&lane.listeners) {
            rustix::io::ioctl_fionbio(listener, true)?;
            // Again, also for a socket that listens already: the standard library chose a smaller backlog for it.
            rustix::net::listen(listener, BACKLOG)?;
            // One shot, here and for connections: an event wakes one thread, and no other gets it before this one
            // has rearmed it.
            epoll::add(&lane.epoll, listener, EventData::new_u64(key), EventFlags::IN | EventFlags::ONESHOT)?;
        }
        Ok(lane)
    }

    /// Starts a thread that serves until the server stops, unless there are as many as there may be.
    pub fn add_thread(self: &Arc<Lane>) -> io::Result<()> {
        let Some(number) = self.threads.join() else { return Ok(()) };
        let name = match self.kind {
            LaneKind::Client => format!("client-{number}"),
            LaneKind::Peer => format!("peer-{number}"),
            LaneKind::Mirror => format!("replicas-{number}"),
        };
        let (own, running) = (Arc::clone(self), RunningThread::new(&self.shared));
        let spawned = std::thread::Builder::new().name(name).spawn(move || {
            let _running = running;
            own.run();
        });
        match spawned {
            Ok(thread) => {
                let mut threads = self.shared.threads.lock();
                // Threads come and go: handles of those that have ended must not pile up.
                threads.retain(|thread| !thread.is_finished());
                threads.push(thread);
            }
            Err(error) => {
                self.threads.leave();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Notes that a thread's request is about to wait: requests that come meanwhile do not wait with it.
    fn begin_waiting(self: &Arc<Lane>) {
        self.threads.begin_waiting();
        self.leave_one();
    }

    /// Leaves a thread that waits, for a thread that is about to be busy.
    fn leave_one(self: &Arc<Lane>) {
        if self.idle.load(Ordering::Acquire) == 0
            && let Err(error) = self.add_thread()
        {
            log::warn!(why:% = error; "requests wait for each other: there is no thread for more at once");
        }
    }

    /// Serves until the server stops. Several threads run this.
    fn run(self: &Arc<Lane>) {
        let mut worker = Worker::default();
        let mut events = Vec::with_capacity(1);
        let waits = Rc::new(Cell::new(false));
        on_block(Some(Rc::new({
            let (lane, waits) = (Arc::clone(self), Rc::clone(&waits));
            move || {
                if !waits.replace(true) {
                    lane.begin_waiting();
                }
            }
        })));
        while !self.shared.is_stopping() {
            self.idle.fetch_add(1, Ordering::AcqRel);
            let event = self.next_event(&mut events);
            self.idle.fetch_sub(1, Ordering::AcqRel);
            // Before the request is read: the handler may wait for a peer whose answer needs a thread of this lane.
            if event.is_some_and(|key| key >= KEY_CONNECTIONS) {
                self.leave_one();
            }
            match event {
                Some(KEY_WAKE) => break,
                Some(key) if key < KEY_CONNECTIONS => self.accept_some(key),
                Some(key) => self.serve_caught(key, &mut worker, &waits),
                None => self.retry_accepting(),
            }
            // Another thread has taken this one’s place while it waited; of the two one is enough.
            if waits.take() && self.threads.end_waiting() {
                break;
            }
            self.sweep();
        }
    }

    /// Ends all waiting threads.
    pub fn wake(&self) {
        // Cannot fail: the counter is far from its end.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Ends all connections of a client to one service.
    pub fn hang_up_on(&self, hosted: &Arc<Hosted>, client: ClientId) {
        let connections = self.connections.read();
        connections.values().filter(|known| known.is_of(hosted, client)).for_each(|own| own.hang_up());
    }

    /// Closes everything; for the end.
    pub fn close_all(&self) {
        self.connections.write().drain().for_each(|(_, connection)| connection.hang_up());
        for (listener, _) in &self.listeners {
            let _ = epoll::delete(&self.epoll, listener);
        }
    }

    fn next_event(&self, events: &mut Vec<Event>) -> Option<u64> {
        events.clear();
        // One event per wait: a thread that is busy with one connection must not sit on another.
        match epoll::wait(&self.epoll, spare_capacity(events), self.timeout().as_ref()) {
            Ok(_) => events.first().map(|event| event.data.u64()),
            Err(_) => None,
        }
    }

    /// Returns how long threads sleep: until something happens, except while there are handshakes to time out or
    /// descriptors to wait for.
    fn timeout(&self) -> Option<Timespec> {
        let deadline = self.handshakes.lock().next_deadline();
        let handshake = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let starved = self.starved.load(Ordering::Acquire).then_some(Duration::from_millis(STARVED_MS));
        let wait = handshake.into_iter().chain(starved).min()?;
        // Rounded up, so that the deadline has passed when the wait ends.
        Timespec::try_from(wait + Duration::from_millis(1)).ok()
    }

    /// Does what time demands.
    fn sweep(&self) {
        loop {
            let expired = {
                let mut handshakes = self.handshakes.lock();
                if handshakes.next_deadline().is_none() {
                    break;
                }
                handshakes.expired(Instant::now())
            };
            match expired {
                Some(key) => self.hang_up(key),
                None => break,
            }
        }
    }

    /// Listens again after descriptors had run out: some time has passed, or one was closed.
    fn retry_accepting(&self) {
        // All of them: which ones were left disarmed is not noted, and arming one that is armed changes nothing.
        if self.starved.swap(false, Ordering::AcqRel) {
            let keyed = (KEY_LISTENERS..).zip(&self.listeners);
            keyed.for_each(|(key, (listener, _))| self.arm(listener, key, EventFlags::IN));
        }
    }

    fn accept_some(&self, key: u64) {
        let Some((listener, hosted)) =
            usize::try_from(key - KEY_LISTENERS).ok().and_then(|at| self.listeners.get(at))
        else {
            return;
        };
        for _ in 0..ACCEPTS_MAX {
            match rustix::net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(socket) => self.welcome(socket, listener, hosted),
                Err(Errno::AGAIN) => break,
                // The other side was gone before it was accepted; others wait behind it.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => return self.starve(listener, error),
            }
        }
        // Also if more wait: their event comes at once, and any thread can take it.
        self.arm(listener, key, EventFlags::IN);
    }

    /// Leaves a listener disarmed until a connection is closed or the pause is over: without descriptors a ready one
    /// would keep the threads spinning.
    fn starve(&self, listener: &Listener, error: Errno) {
        log::warn!(
            why:% = error, remedy = "raise the limit of open files";
            "cannot accept connections on {}",
            listener.address()
        );
        self.starved.store(true, Ordering::Release);
    }

    fn welcome(&self, socket: OwnedFd, listener: &Listener, hosted: &Arc<Hosted>) {
        // The user of a Unix socket's other side is told by the kernel, before any handshake costs anything.
        if listener.is_unix() && !is_own_process(&socket) {
            log::warn!("refused another user's process on {}", listener.address());
            let _ = rustix::net::send(
                &socket,
                &handshake::refusal(HandshakeRefusal::User),
                rustix::net::SendFlags::NOSIGNAL,
            );
            return;
        }
        if !listener.is_unix() {
            tune(&socket);
        }
        // Without random numbers nobody can be let in safely, and the client tries again.
        let Ok(nonce) = auth::nonce() else { return };
        let key = self.next_key.fetch_add(1, Ordering::Relaxed);
        // The lane of replicas lets all peers in: only their handshake says which of the two lanes they want.
        let asked = if self.kind == LaneKind::Client { LaneKind::Client } else { LaneKind::Peer };
        let handshake = ServerSide::new(asked, self.shared.auth.way(listener.is_unix()), nonce);
        let connection = Arc::new(Connection::new(key, socket, Arc::clone(hosted), handshake));
        // Known before it is watched: an event of an unknown connection is dropped, and would not come again.
        self.connections.write().insert(key, Arc::clone(&connection));
        // Strangers can open connections as fast as they like; so many at a time are kept, the newest, each for a
        // bounded time.
        let surplus = self.handshakes.lock().begin(key, Instant::now());
        if let Some(surplus) = surplus {
            self.hang_up(surplus);
        }
        let (data, flags) = (EventData::new_u64(key), EventFlags::IN | EventFlags::ONESHOT);
        if let Err(error) = epoll::add(&self.epoll, connection.as_fd(), data, flags) {
            log::warn!(why:% = error; "cannot watch a new connection, which is closed");
            self.close(&connection);
        }
    }

    /// Like [`Lane::serve`]. A panic closes the connection that caused it; the thread goes on with others.
    fn serve_caught(&self, key: u64, worker: &mut Worker, waits: &Cell<bool>) {
        if catch_unwind(AssertUnwindSafe(|| self.serve(key, worker, waits))).is_ok() {
            return;
        }
        let connection = self.connections.read().get(&key).cloned();
        if let Some(connection) = connection {
            log::error!("a connection is closed, since the daemon failed while it worked on it");
            connection.hang_up();
            self.close(&connection);
        }
    }

    fn serve(&self, key: u64, worker: &mut Worker, waits: &Cell<bool>) {
        let connection = self.connections.read().get(&key).cloned();
        let Some(connection) = connection else { return };
        let mut advance =
            || connection.advance(&self.shared, self.kind, worker, || self.handshakes.lock().end(key));
        let mut next = advance();
        let is_of_another_lane = || connection.lane().is_some_and(|lane| lane != self.kind);
        // A client that asks one thing after the other is served by one thread without a sleep in between: to be
        // woken costs more than the request.
        while next == Interest::Read && !is_of_another_lane() && !waits.get() && self.has_more(&connection) {
            next = advance();
        }
        if next != Interest::Close && is_of_another_lane() {
            return self.pass_on(&connection, next);
        }
        match next {
            Interest::Read => self.arm(connection.as_fd(), key, EventFlags::IN),
            Interest::Write => self.arm(connection.as_fd(), key, EventFlags::OUT),
            Interest::Close => self.close(&connection),
        }
    }

    /// Gives a connection to the lane that it belongs to. Its key is unique there, since all come from here.
    fn pass_on(&self, connection: &Arc<Connection>, next: Interest) {
        let Some(other) = &self.others else { return self.close(connection) };
        // Before the other set has it: two threads of two lanes must not get an event of one connection.
        let _ = epoll::delete(&self.epoll, connection);
        let key = connection.key();
        // Known there before it is watched there, as in `welcome`.
        other.connections.write().insert(key, Arc::clone(connection));
        self.connections.write().remove(&key);
        let direction = if next == Interest::Write { EventFlags::OUT } else { EventFlags::IN };
        let (data, flags) = (EventData::new_u64(key), direction | EventFlags::ONESHOT);
        if let Err(error) = epoll::add(&other.epoll, connection.as_fd(), data, flags) {
            log::warn!(why:% = error; "cannot watch a new connection, which is closed");
            return other.close(connection);
        }
        // It may have no thread yet: it starts without one, and this is the first connection that it gets.
        other.leave_one();
    }

    /// Looks for the next request of a connection for a moment, if nothing else waits for the calling thread.
    fn has_more(&self, connection: &Connection) -> bool {
        let is_free = self.idle.load(Ordering::Acquire) > 0 && !self.shared.is_stopping();
        // Counted before it is decided, so that two threads that come at once do not both take the last place.
        let looks = self.looking.fetch_add(1, Ordering::Relaxed) < self.looking_max;
        let has_more = is_free && looks && connection.has_more();
        self.looking.fetch_sub(1, Ordering::Relaxed);
        has_more
    }

    fn arm(&self, source: impl AsFd, key: u64, flags: EventFlags) {
        let armed = epoll::modify(&self.epoll, source, EventData::new_u64(key), flags | EventFlags::ONESHOT);
        if let Err(error) = armed {
            log::warn!(why:% = error; "cannot watch a socket any more");
        }
    }

    /// Ends a connection that no thread may be working on: the event that follows closes it.
    fn hang_up(&self, key: u64) {
        if let Some(connection) = self.connections.read().get(&key) {
            connection.hang_up();
        }
    }

    fn close(&self, connection: &Arc<Connection>) {
        let _ = epoll::delete(&self.epoll, connection.as_fd());
        // Out of the set first: an event that another thread has got already finds no connection then.
        self.connections.write().remove(&connection.key());
        self.handshakes.lock().end(connection.key());
        connection.end(&self.shared);
        // A descriptor has become free.
        self.retry_accepting();
    }
}

fn is_own_process(socket: &OwnedFd) -> bool {
    let own = rustix::process::geteuid();
    sockopt::socket_peercred(socket).is_ok_and(|peer| peer.uid == own || peer.uid.is_root())
}

/// Options that make TCP quicker or safer; without them it works too.
fn tune(socket: &OwnedFd) {
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL);
    let _ = sockopt::set_tcp_keepcnt(socket, KEEPALIVE_COUNT);
    retransmission::bound_retransmission(socket);
}
