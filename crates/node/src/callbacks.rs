//! Recall of leases: clients that may cache what is about to change are asked to invalidate it. Handlers of the peer lane
//! ask, too: a client answers without waiting for any node.

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

/// Shortest wait for a peer's answer that is worth the question.
const WAIT_MIN: Duration = Duration::from_millis(1);
/// Longest wait for a mount's kernel to learn of a size.
const GROWTH_WAIT: Duration = Duration::from_millis(LEASE_MS);
/// How long who cannot tell may go on with what it was told.
const UNKNOWN: Duration = Duration::from_millis(LEASE_MS);

/// What clients may cache of what this node told them, and the way to ask them to forget it.
pub struct Callbacks {
    /// What they may cache.
    pub leases: Leases,
    formation: FormationId,
    served: Arc<ServedClients>,
    peers: Arc<PeerLane>,
}

impl Callbacks {
    /// Nothing is cached but what an earlier daemon may have allowed, if there was one.
    pub fn new(
        map: &FormationMap,
        restarted: bool,
        served: Arc<ServedClients>,
        peers: Arc<PeerLane>,
    ) -> Callbacks {
        let leases = Leases::new(map.slot_count(), restarted);
        Callbacks { leases, formation: map.formation, served, peers }
    }

    /// Has a client of this process invalidate entries of its cache. Returns how long it may still use them.
    pub fn invalidate(&self, client: ClientId, what: &[Invalidation]) -> Duration {
        self.served.get(client).cache.map_or(UNKNOWN, |cache| cache.invalidate(what))
    }

    /// The same of a client of any node, whose answer is waited for as long as `wait`. `None` if none came.
    fn have_invalidated(
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

    /// Tells a mount that this process serves, or does not, of the size of a file that it has open.
    pub fn has_grown(&self, client: ClientId, ino: Ino, size: u64) {
        if let Some(cache) = self.served.get(client).cache {
            bivouac_net::before_waiting();
            if let Err(error) = self.peers.make_deferred() {
                log::debug!(why:% = error; "a mount is not told of the size of {ino}");
                return;
            }
            cache.has_grown(ino, size);
        }
    }

    /// Tells mounts, whichever nodes serve them, of the size of a file that was made longer through another one. Waits for
    /// each no longer than [`GROWTH_WAIT`].
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

    /// Recalls the leases on items that are about to change. To be called before a size is locked: a kernel that is asked
    /// may wait for what its programs are writing.
    pub fn begin(&self, items: &[Item]) -> Option<Changing<'_>> {
        self.leases.change(items, &|client, what, wait| self.have_invalidated(client, what, wait))
    }

    /// A rename for a mount is about to have this name lead to something else: its kernel moves what it knows of the other
    /// name, with the time for which it shows that.
    pub fn moves_to(&self, origin: ClientId, name: Item) {
        if origin.mounted_through(self.formation).is_some() {
            self.leases.hold(origin, name);
        }
    }
}
