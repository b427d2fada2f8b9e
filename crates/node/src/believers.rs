//! Clients whose kernels believe what they were told, and who can be asked not to: then a change of a file's own
//! attributes need not wait until their leases are over.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bivouac_ranks::RwLock;
use bivouac_types::{ClientId, FsResult, Ino};
use bivouac_wire::{DisbeliefRequest, Encode, Op, op};

use crate::leases::Changing;
use crate::namespace::Change;
use crate::node::Node;
use crate::peers::PeerRequest;

/// Shortest wait for a peer's answer that is worth the question.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// A client that this process serves, and that a kernel believes.
pub trait Believer: Send + Sync {
    /// Has the kernel believe nothing of an inode's attributes, whatever it was told and will be, for
    /// [`LEASE_MS`](bivouac_types::limits::LEASE_MS) from now on. Whether it surely does not.
    fn disbelieve(&self, ino: Ino) -> bool;
}

/// Those that this process serves.
#[derive(Default)]
pub struct Believers {
    served: RwLock<HashMap<ClientId, Arc<dyn Believer>>>,
}

impl Node {
    /// This process serves a client from now on whose kernel can be asked to believe nothing; or no more.
    pub fn is_believed_through(&self, client: ClientId, by: Option<Arc<dyn Believer>>) {
        let mut served = self.believers.served.write();
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

    /// Has a client that this process serves believe nothing of an inode's attributes; whether it surely does not.
    pub(crate) fn disbelieve(&self, client: ClientId, ino: Ino) -> bool {
        self.served_here(client).is_some_and(|served| served.disbelieve(ino))
    }

    fn served_here(&self, client: ClientId) -> Option<Arc<dyn Believer>> {
        self.believers.served.read().get(&client).cloned()
    }

    /// Has a client believe nothing of an inode's attributes, whichever node serves it, and waits for its word no
    /// longer than so long; whether it surely does not.
    fn have_disbelieved(&self, client: ClientId, ino: Ino, wait: Duration) -> bool {
        if let Some(served) = self.served_here(client) {
            return served.disbelieve(ino);
        }
        let node = client.mounted_through(self.map.formation).filter(|node| *node != self.id);
        let node = node.filter(|node| usize::from(node.0) < self.map.nodes.len() && wait >= WAIT_MIN);
        node.is_some_and(|node| {
            let body = DisbeliefRequest { client, ino }.to_bytes();
            let request = PeerRequest::of_node(self.id, Op::Disbelieve, &body);
            self.ask_within::<op::Disbelieve>(Some(wait), node, &request)
                .inspect_err(|error| log::debug!("{node} does not say what its mounts believe: {error}"))
                .unwrap_or(false)
        })
    }

    /// A change of nothing but a file's own attributes is about to begin: who may believe them is asked not to. To be
    /// called before anything is locked: a kernel that is asked may wait for what its programs are doing.
    pub(crate) fn quieten(&self, ino: Ino) -> Option<Changing<'_>> {
        let ask = |client, wait| self.regular_file(ino).is_ok() && self.have_disbelieved(client, ino, wait);
        self.leases.change_of(ino, ask)
    }

    /// As [`Node::change`], where nothing but a file's own attributes changes.
    pub(crate) fn change_of(&self, ino: Ino) -> FsResult<Change<'_>> {
        self.check_slot(ino.slot())?;
        let changing = self.leases.change_of(ino, |_, _| false);
        Ok(Change::begun(self, changing, &[ino.slot()]))
    }
}
