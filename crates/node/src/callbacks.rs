//! Recall of leases: clients that may cache what is about to change are asked to invalidate it. Handlers of the peer
//! lane ask, too: a client answers without waiting for any node.

use std::sync::Arc;
use std::time::Duration;

use bivouac_types::limits::LEASE_MS;
use bivouac_types::{ClientId, FormationId, Ino};
use bivouac_wire::{Encode, FormationMap, HasGrownRequest, InvalidateRequest, Invalidation, Op, op};

use crate::at_once::each_at_once;
use crate::leases::{Changing, Leases};
use crate::peers::{PeerLane, PeerRequest};
use crate::served::ServedClients;
use bivouac_session::Item;

/// Below this, a peer is not asked: its answer could not come in time.
const WAIT_MIN: Duration = Duration::from_millis(1);
/// Longest wait for a mount's kernel to take note of a size.
const GROWTH_WAIT: Duration = Duration::from_millis(LEASE_MS);
/// Time for which a client of unknown state may still use what it caches.
const UNKNOWN: Duration = Duration::from_millis(LEASE_MS);

/// Leases of this node's clients, and the means to recall them.
pub struct Callbacks {
    /// Leases granted.
    pub leases: Leases,
    formation: FormationId,
    served: Arc<ServedClients>,
    peers: Arc<PeerLane>,
}

impl Callbacks {
    /// Creates the leases; after a restart, those that an earlier daemon may have granted count until they expire.
    pub fn new(
        map: &FormationMap,
        restarted: bool,
        served: Arc<ServedClients>,
        peers: Arc<PeerLane>,
    ) -> Callbacks {
        let leases = Leases::new(map.slot_count(), restarted);
        Callbacks { leases, formation: map.formation, served, peers }
    }

    /// Makes a client that this process serves invalidate entries of its cache. Returns for how long it may still use
    /// them.
    pub fn invalidate(&self, client: ClientId, what: &[Invalidation]) -> Duration {
        self.served.get(client).cache.map_or(UNKNOWN, |cache| cache.invalidate(what))
    }

    /// Like [`Callbacks::invalidate`], for a client of any node, whose answer is awaited for `wait` at most. `None` if
    /// none came.
    fn ask_to_invalidate(
        &self,
        client: ClientId,
        what: Vec<Invalidation>,
        wait: Duration,
    ) -> Option<Duration> {
        if let Some(cache) = self.served.get(client).cache {
            return Some(cache.invalidate(&what));
        }
        let node = client.mounted_through(self.formation).filter(|node| self.peers.has(*node))?;
        if wait < WAIT_MIN {
            return None;
        }
        let body = InvalidateRequest { client, what }.to_bytes();
        let request = PeerRequest::of_node(self.peers.id(), Op::Invalidate, &body);
        self.peers
            .ask_within::<op::Invalidate>(Some(wait), node, &request)
            .inspect_err(|error| log::debug!(why:% = error; "{node} does not say what its mounts cache"))
            .ok()
            .map(|ms| Duration::from_millis(ms.into()))
    }

    /// Notifies a mount of the size of a file that it has open, if this process serves that mount.
    pub fn has_grown(&self, client: ClientId, ino: Ino, size: u64) {
        if let Some(cache) = self.served.get(client).cache {
            bivouac_net::before_waiting();
            // The size must be on both sides of the mirror before it is disclosed.
            if let Err(error) = self.peers.make_deferred() {
                log::debug!(why:% = error; "a mount is not told of the size of {ino}");
                return;
            }
            cache.has_grown(ino, size);
        }
    }

    /// Notifies mounts, on whichever nodes, of the size of a file that another one has made longer. Waits
    /// [`GROWTH_WAIT`] at most for each, and for all at once.
    pub fn tell_growth(&self, mounts: &[ClientId], ino: Ino, size: u64) {
        let tell = |client: ClientId| {
            if self.served.get(client).cache.is_some() {
                return self.has_grown(client, ino, size);
            }
            let Some(node) = client.mounted_through(self.formation).filter(|node| self.peers.has(*node))
            else {
                return;
            };
            let body = HasGrownRequest { client, ino, size }.to_bytes();
            let request = PeerRequest::of_node(self.peers.id(), Op::HasGrown, &body);
            if let Err(error) = self.peers.ask_within::<op::HasGrown>(Some(GROWTH_WAIT), node, &request) {
                log::debug!(why:% = error; "{node} does not say that its mount knows the size of {ino}");
            }
        };
        each_at_once(mounts, |client| tell(*client));
    }

    /// Recalls the leases on items that are about to change, and refuses new ones until the result is dropped. To be
    /// called before a size is locked: a kernel that is asked may wait for its programs' writes.
    pub fn begin(&self, items: &[Item]) -> Option<Changing<'_>> {
        self.leases.change(items, &|client, what, wait| self.ask_to_invalidate(client, what, wait))
    }

    /// Records a lease for the name that a mount's rename creates: the kernel moves its cached dentry there, with the
    /// time for which that is valid.
    pub fn moves_to(&self, origin: ClientId, name: Item) {
        if origin.mounted_through(self.formation).is_some() {
            self.leases.hold(origin, name);
        }
    }
}
