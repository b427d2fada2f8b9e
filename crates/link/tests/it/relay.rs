//! A relay of connections in this process: it delays, limits and cuts what goes through.

#![allow(dead_code, reason = "every test file uses a part of it")]

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Bytes that are passed on at once, and those that may be under way in one direction.
const CHUNK: usize = 64 << 10;
const UNDER_WAY_MAX: usize = 64 << 20;

/// How a relay passes bytes on; it can be changed while it does.
#[derive(Clone, Copy, Default)]
struct Line {
    /// Of one direction.
    delay: Duration,
    /// Bytes per second of one direction, for all connections; 0 for no limit.
    rate: u64,
    is_cut: bool,
}

struct Shared {
    line: Mutex<Line>,
    changed: Condvar,
    /// Both ends of each connection.
    sockets: Mutex<Vec<[TcpStream; 2]>>,
    /// Connections that hold what they have got: those before this one.
    frozen: Mutex<Frozen>,
    thawed: Condvar,
    /// When the line is free again, of each direction.
    free_at: [Mutex<Instant>; 2],
}

/// Connections that pass nothing on to the far side for a while.
#[derive(Default)]
struct Frozen {
    /// Those with a smaller number.
    before: usize,
    /// Number of the next connection.
    next: usize,
    /// Pieces that were held.
    held: usize,
}

/// A relay.
pub struct Relay {
    shared: Arc<Shared>,
    address: SocketAddr,
}

type Pipe = Arc<(Mutex<(VecDeque<(Instant, Vec<u8>)>, usize, bool)>, Condvar)>;

impl Relay {
    /// A relay to an address.
    pub fn to(address: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap();
        let now = Instant::now();
        let shared = Arc::new(Shared {
            line: Mutex::default(),
            changed: Condvar::new(),
            sockets: Mutex::default(),
            frozen: Mutex::default(),
            thawed: Condvar::new(),
            free_at: [Mutex::new(now), Mutex::new(now)],
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                if accepting.line.lock().is_cut {
                    continue;
                }
                let Ok(far) = TcpStream::connect(address) else { continue };
                [&near, &far].into_iter().for_each(|socket| socket.set_nodelay(true).unwrap());
                accepting.sockets.lock().push([near.try_clone().unwrap(), far.try_clone().unwrap()]);
                let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                let number = {
                    let mut frozen = accepting.frozen.lock();
                    frozen.next += 1;
                    frozen.next - 1
                };
                accepting.pass(near, far, 0, Some(number));
                accepting.pass(far_too, near_too, 1, None);
            }
        });
        Relay { shared, address: own }
    }

    /// The address that stands for the other.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// With a delay in each direction.
    pub fn delayed(self, delay: Duration) -> Relay {
        self.shared.line.lock().delay = delay;
        self
    }

    /// With a limit in bytes per second for each direction.
    pub fn limited(self, rate: u64) -> Relay {
        self.shared.line.lock().rate = rate;
        self
    }

    /// Ends all connections, and lets none come about until it is healed.
    pub fn cut(&self) {
        self.shared.line.lock().is_cut = true;
        self.reset();
    }

    /// Ends all connections.
    pub fn reset(&self) {
        for socket in self.shared.sockets.lock().drain(..).flatten() {
            let _ended = socket.shutdown(Shutdown::Both);
        }
    }

    /// Ends all connections for the near side alone: the far one sees nothing of it.
    pub fn reset_near(&self) {
        for [near, _] in &*self.shared.sockets.lock() {
            let _ended = near.shutdown(Shutdown::Both);
        }
    }

    /// Holds what comes for the far side over the connections that there are.
    pub fn freeze(&self) {
        let mut frozen = self.shared.frozen.lock();
        frozen.before = frozen.next;
    }

    /// Waits until something is held.
    pub fn wait_for_frozen(&self) {
        let mut frozen = self.shared.frozen.lock();
        while frozen.held == 0 {
            self.shared.thawed.wait(&mut frozen);
        }
    }

    /// Passes on what was held.
    pub fn thaw(&self) {
        self.shared.frozen.lock().before = 0;
        self.shared.thawed.notify_all();
    }

    /// Lets connections come about again.
    pub fn heal(&self) {
        self.shared.line.lock().is_cut = false;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn pass(
        self: &Arc<Self>,
        mut from: TcpStream,
        mut to: TcpStream,
        direction: usize,
        number: Option<usize>,
    ) {
        let waiting = Arc::clone(self);
        let pipe: Pipe = Arc::default();
        let (filling, shared) = (Arc::clone(&pipe), Arc::clone(self));
        std::thread::spawn(move || {
            let mut buffer = vec![0; CHUNK];
            loop {
                let len = from.read(&mut buffer).unwrap_or(0);
                let due = shared.due(len, direction);
                let (queue, changed) = &*filling;
                let mut queue = queue.lock();
                while queue.1 > UNDER_WAY_MAX && !queue.2 {
                    changed.wait(&mut queue);
                }
                queue.2 |= len == 0;
                queue.1 += len;
                queue.0.push_back((due, buffer[..len].to_vec()));
                changed.notify_all();
                if queue.2 {
                    return;
                }
            }
        });
        std::thread::spawn(move || {
            loop {
                let (queue, changed) = &*pipe;
                let mut all = queue.lock();
                while all.0.is_empty() {
                    changed.wait(&mut all);
                }
                let (due, bytes) = all.0.pop_front().unwrap();
                all.1 -= bytes.len();
                changed.notify_all();
                drop(all);
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                waiting.wait_while_frozen(number);
                if bytes.is_empty() || to.write_all(&bytes).is_err() {
                    let _ended = to.shutdown(Shutdown::Both);
                    queue.lock().2 = true;
                    changed.notify_all();
                    return;
                }
            }
        });
    }

    fn wait_while_frozen(&self, number: Option<usize>) {
        let mut frozen = self.frozen.lock();
        let is_frozen = |frozen: &Frozen| number.is_some_and(|number| number < frozen.before);
        if is_frozen(&frozen) {
            frozen.held += 1;
            self.thawed.notify_all();
        }
        while is_frozen(&frozen) {
            self.thawed.wait(&mut frozen);
        }
    }

    /// When bytes that come now arrive at the other end.
    fn due(&self, len: usize, direction: usize) -> Instant {
        let line = *self.line.lock();
        let now = Instant::now();
        let mut free_at = self.free_at[direction].lock();
        let begins = (*free_at).max(now);
        let takes = match line.rate {
            0 => Duration::ZERO,
            rate => Duration::from_nanos(len as u64 * 1_000_000_000 / rate),
        };
        *free_at = begins + takes;
        begins + takes + line.delay
    }
}
