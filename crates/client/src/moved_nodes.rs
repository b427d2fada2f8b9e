//! Nodes that move to another host: a newer map says where they are, and any other node has it.

use std::cell::Cell;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use bivouac_types::NodeId;
use bivouac_wire::op;
use parking_lot::Mutex;

use crate::connections::Connections;

/// Nodes that are asked for the map at a time.
const ASKED_MAX: usize = 3;
/// Longest wait for each of them, in milliseconds.
const ASK_MS: u32 = 250;
/// Time between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(500);

/// A seeker of newer maps, which asks other nodes for one while a node cannot be reached. Clients that no supervisor
/// tells of new maps have no other way to learn that the node has moved.
#[derive(Default)]
pub struct MapSeeker {
    /// Set once they are made; no connection is made before.
    connections: OnceLock<Weak<Connections>>,
    next: Mutex<Option<Instant>>,
}

impl MapSeeker {
    /// Sets the connections that are redirected.
    pub fn set(&self, connections: &Arc<Connections>) {
        let is_first = self.connections.set(Arc::downgrade(connections)).is_ok();
        assert!(is_first, "one seeker redirects the connections of two clients");
    }

    /// Looks for a newer map, unless that has been done a moment ago. Waits for a short time only.
    pub fn seek(&self, away: NodeId) {
        let Some(connections) = self.connections.get().and_then(Weak::upgrade) else { return };
        // A node that is asked here may be away, too.
        let Some(_asking) = Asking::begin() else { return };
        // Threads that wait here go by what the one before them has found.
        let mut next = self.next.lock();
        if next.is_some_and(|at| Instant::now() < at) {
            return;
        }
        // Those behind it come first: everybody would ask the first nodes otherwise. Nobody is there to answer for a node
        // that is withdrawn.
        let (behind, before): (Vec<NodeId>, Vec<NodeId>) =
            connections.node_ids().filter(|node| *node != away).partition(|node| node.0 > away.0);
        let others = behind.into_iter().chain(before);
        // The own node first: to ask it takes no message.
        let own = connections.local.filter(|own| *own != away);
        for node in own.into_iter().chain(others.filter(|other| Some(*other) != own)).take(ASKED_MAX) {
            match connections.try_asking::<op::GetMap>(node, &(), ASK_MS) {
                Ok(map) => {
                    connections.take_map(&Arc::new(map));
                    break;
                }
                Err(error) => log::debug!(why:% = error; "{node} does not say where {away} is"),
            }
        }
        // From the end of the search on: nodes that do not answer have taken time of their own.
        *next = Some(Instant::now() + LOOK_PAUSE);
    }
}

thread_local! {
    static IS_ASKING: Cell<bool> = const { Cell::new(false) };
}

/// A thread that asks for the map, as long as this is there.
struct Asking;

impl Asking {
    /// `None` if the thread asks already.
    fn begin() -> Option<Asking> {
        if IS_ASKING.replace(true) { None } else { Some(Asking) }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        IS_ASKING.set(false);
    }
}
