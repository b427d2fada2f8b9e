//! The one callback: whoever has leases on what is about to change is asked to cache it no more. Handlers of the peer
//! lane ask too: who is asked waits for nobody.

use std::sync::Arc;
use std::time::Duration;

use bivouac_types::limits::LEASE_MS;
use bivouac_types::{ClientId, FormationId, FsResult, Ino, Slot};
use bivouac_wire::{Encode, FormationMap, InvalidateRequest, Invalidation, Op, op};

use crate::dispatch::SYSTEM;
use crate::leases::{Changing, Item, Leases, Principal};
use crate::namespace::Change;
use crate::node::Node;
use crate::peers::{PeerLane, PeerRequest};
use crate::served::ServedClients;

/// Shortest wait for a peer's answer that is worth the question.
const WAIT_MIN: Duration = Duration::from_millis(1);
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

    /// Asks a client that this process serves, or does not.
    pub fn invalidate(&self, client: ClientId, what: &[Invalidation]) -> Duration {
        self.served.get(client).cache.map_or(UNKNOWN, |cache| cache.invalidate(what))
    }

    /// Asks a client, whichever node serves it, and waits for its word no longer than so long.
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

    /// A change of these items is about to begin. To be called before a size is locked: a kernel that is asked
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

impl Node {
    /// Changes that had to wait for leases.
    #[must_use]
    pub fn lease_waits(&self) -> u64 {
        self.callbacks.leases.waits()
    }

    /// A change of an inode's attributes is about to begin; see [`Callbacks::begin`].
    pub(crate) fn quieten(&self, ino: Ino) -> Option<Changing<'_>> {
        self.callbacks.begin(&[Item::Attrs(ino)])
    }

    /// As [`Node::quieten`], of a change that is nobody's: also who asked for what led to it may cache what was before.
    pub(crate) fn quieten_all(&self, ino: Ino) -> Option<Changing<'_>> {
        let _principal = Principal::on_behalf_of(SYSTEM);
        self.quieten(ino)
    }

    /// As [`Node::change`], where nothing but an inode's attributes changes, and who may cache them has been asked.
    pub(crate) fn change_of(&self, ino: Ino) -> FsResult<Change<'_>> {
        self.check_slot(ino.slot())?;
        let changing = self.callbacks.leases.change(&[Item::Attrs(ino)], &|_, _, _| None);
        Ok(Change::begun(self, changing, &[ino.slot()]))
    }

    /// As [`Node::change`], where clients may cache nothing of what changes but these items.
    pub(crate) fn change_at(&self, slots: &[Slot], items: &[Item]) -> FsResult<Change<'_>> {
        slots.iter().try_for_each(|slot| self.check_slot(*slot))?;
        Ok(Change::begun(self, self.callbacks.begin(items), slots))
    }
}
