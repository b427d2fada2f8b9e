//! The replicas that this node keeps of other nodes' volumes.

use std::collections::BTreeMap;
use std::sync::Arc;

use bivouac_ranks::Mutex;
use bivouac_store::{DataStore, Replica, ReplicaDirs};
use bivouac_types::{FormationId, FsError, FsResult, NodeId};

use crate::mirror_link::monotonic_now;

/// Replicas by the node whose volumes they are of.
#[derive(Default)]
pub struct Replicas(Mutex<BTreeMap<NodeId, Arc<Replica>>>);

impl Replicas {
    /// Returns the replicas of a node's volumes as an earlier daemon left them, new ones if there are none.
    ///
    /// # Errors
    /// A note that cannot be read.
    pub fn of(&self, (formation, node): (FormationId, NodeId), data: &DataStore) -> FsResult<Arc<Replica>> {
        // Over the reading, too: two replicas of one node would each go by an epoch of their own.
        let mut replicas = self.0.lock();
        if let Some(replica) = replicas.get(&node) {
            return Ok(Arc::clone(replica));
        }
        let dirs = ReplicaDirs::new(formation, node, data.replica_rooms());
        let noted = dirs.load().map_err(|error| FsError::from_io(&error, &format!("replica of {node}")))?;
        let replica = Arc::new(Replica::new(Box::new(dirs), noted, monotonic_now));
        replicas.insert(node, Arc::clone(&replica));
        Ok(replica)
    }
}
