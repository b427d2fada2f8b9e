//! Connections that break while nobody uses them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use bivouac_types::NodeId;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// Number of the event that ends the waiting.
const KEY_WAKE: u64 = u64::MAX;
/// Bits of an event's number that tell the run of a server; above them is the node.
const RUN_BITS: u32 = 48;

/// A waiter for connections to break, without a wake-up as long as none does.
pub struct Watch {
    epoll: OwnedFd,
    wake: OwnedFd,
    closed: AtomicBool,
}

/// A connection that broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenConnection {
    /// The node that it led to.
    pub node: NodeId,
    /// The run of the node's server, as far as it is known here.
    pub(crate) run: u64,
}

impl Watch {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// When the kernel gives no epoll set.
    pub fn new() -> io::Result<Watch> {
        let watch = Watch {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            closed: AtomicBool::new(false),
        };
        epoll::add(&watch.epoll, &watch.wake, EventData::new_u64(KEY_WAKE), EventFlags::IN)?;
        Ok(watch)
    }

    /// Watches a connection to a node until its descriptor is closed on this side.
    pub(crate) fn add(&self, socket: impl AsFd, node: NodeId, instance: u64) {
        let key = u64::from(node.0) << RUN_BITS | run_of(instance);
        // Not `IN`: answers arrive on these sockets too, and each would wake the watch.
        let flags = EventFlags::RDHUP | EventFlags::ONESHOT;
        if let Err(error) = epoll::add(&self.epoll, socket, EventData::new_u64(key), flags) {
            log::warn!(why:% = error; "a connection to {node} is not watched");
        }
    }

    /// Waits until a connection breaks; nothing when the watch was closed.
    pub fn next(&self) -> Option<BrokenConnection> {
        let mut events: Vec<Event> = Vec::with_capacity(1);
        while !self.closed.load(Ordering::Acquire) {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    log::error!(why:% = error; "connections are not watched any more");
                    return None;
                }
            }
            let key = events.first().map(|event| event.data.u64()).filter(|key| *key != KEY_WAKE);
            if let Some(key) = key {
                let run = key & run_of(u64::MAX);
                return Some(BrokenConnection { node: NodeId((key >> RUN_BITS) as u16), run });
            }
        }
        None
    }

    /// Ends the waiting, now and later.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // Cannot fail: the counter is far from its end.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// Returns the part of the random number of a server's run that a watch keeps.
pub(crate) fn run_of(instance: u64) -> u64 {
    instance & ((1 << RUN_BITS) - 1)
}
