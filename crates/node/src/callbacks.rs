//! The one callback: whoever has leases on what is about to change is asked to cache it no more. Handlers of the peer
//! lane ask too: who is asked waits for nobody.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bivouac_ranks::RwLock;
use bivouac_types::limits::LEASE_MS;
use bivouac_types::{ClientId, FsResult, Ino, Slot};
use bivouac_wire::{Encode, InvalidateRequest, Invalidation, Op, op};

use crate::leases::{Changing, Item};
use crate::namespace::Change;
use crate::node::Node;
use crate::peers::PeerRequest;

/// Shortest wait for a peer's answer that is worth the question.
const WAIT_MIN: Duration = Duration::from_millis(1);
/// How long who cannot tell may go on with what it was told.
const UNKNOWN: Duration = Duration::from_millis(LEASE_MS);

/// A client that this process serves, which caches what it is told, and whose kernel does.
pub trait Cache: Send + Sync {
    /// Takes nothing of this from its cache any more, nor from answers to what was asked before, for
    /// [`LEASE_MS`](bivouac_types::limits::LEASE_MS) from now on. For how long some of it may go on to be shown; zero if
    /// it surely is not. Waits for nobody.
    fn invalidate(&self, what: &[Invalidation]) -> Duration;
}

/// Those that this process serves.
#[derive(Default)]
pub struct Caches {
    served: RwLock<HashMap<ClientId, Arc<dyn Cache>>>,
}

impl Node {
    /// This process serves a client from now on that can be asked to cache nothing; or no more.
    pub fn serve_cache(&self, client: ClientId, by: Option<Arc<dyn Cache>>) {
        let mut served = self.caches.served.write();
        match by {
            Some(by) => drop(served.insert(client, by)),
            None => drop(served.remove(&client)),
        }
    }

    /// Changes that had to wait for leases.
    #[must_use]
    pub fn lease_waits(&self) -> u64 {
        self.leases.waits()
    }

    /// Asks a client that this process serves, or does not.
    pub(crate) fn invalidate(&self, client: ClientId, what: &[Invalidation]) -> Duration {
        self.served_here(client).map_or(UNKNOWN, |served| served.invalidate(what))
    }

    fn served_here(&self, client: ClientId) -> Option<Arc<dyn Cache>> {
        self.caches.served.read().get(&client).cloned()
    }

    /// Asks a client, whichever node serves it, and waits for its word no longer than so long.
    fn have_invalidated(
        &self,
        client: ClientId,
        what: Vec<Invalidation>,
        wait: Duration,
    ) -> Option<Duration> {
        if let Some(served) = self.served_here(client) {
            return Some(served.invalidate(&what));
        }
        let node = client.mounted_through(self.map.formation).filter(|node| *node != self.id)?;
        if usize::from(node.0) >= self.map.nodes.len() || wait < WAIT_MIN {
            return None;
        }
        let body = InvalidateRequest { client, what }.to_bytes();
        let request = PeerRequest::of_node(self.id, Op::Invalidate, &body);
        self.ask_within::<op::Invalidate>(Some(wait), node, &request)
            .inspect_err(|error| log::debug!(why:% = error; "{node} does not say what its mounts cache"))
            .ok()
            .map(|ms| Duration::from_millis(ms.into()))
    }

    /// A change of these items is about to begin. To be called before a size is locked: a kernel that is asked
    /// may wait for what its programs are writing.
    pub(crate) fn begin_change(&self, items: &[Item]) -> Option<Changing<'_>> {
        self.leases.change(items, &|client, what, wait| self.have_invalidated(client, what, wait))
    }

    /// A rename for a mount is about to have this name lead to something else: its kernel moves what it knows of the other
    /// name, with the time for which it shows that.
    pub(crate) fn moves_to(&self, origin: ClientId, name: Item) {
        if origin.mounted_through(self.map.formation).is_some() {
            self.leases.hold(origin, name);
        }
    }

    /// A change of an inode's attributes is about to begin; see [`Node::begin_change`].
    pub(crate) fn quieten(&self, ino: Ino) -> Option<Changing<'_>> {
        self.begin_change(&[Item::Attrs(ino)])
    }

    /// As [`Node::change`], where nothing but an inode's attributes changes, and who may cache them has been asked.
    pub(crate) fn change_of(&self, ino: Ino) -> FsResult<Change<'_>> {
        self.check_slot(ino.slot())?;
        let changing = self.leases.change(&[Item::Attrs(ino)], &|_, _, _| None);
        Ok(Change::begun(self, changing, &[ino.slot()]))
    }

    /// As [`Node::change`], where clients may cache nothing of what changes but these items.
    pub(crate) fn change_at(&self, slots: &[Slot], items: &[Item]) -> FsResult<Change<'_>> {
        slots.iter().try_for_each(|slot| self.check_slot(*slot))?;
        Ok(Change::begun(self, self.begin_change(items), slots))
    }
}
