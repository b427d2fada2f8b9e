//! Nodes that a host takes over, as messages between its processes have them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A node that is to move to a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adoption {
    /// The node.
    pub node: u16,
    /// The node of the host that has the replicas.
    pub backup: u16,
    /// Mirror epoch of the node from then on.
    pub epoch: u32,
    /// Kind and capacity of each of its volumes.
    pub volumes: Vec<(String, u64)>,
}

/// Place of a node that moves to a host, once it is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptedNode {
    /// The node.
    pub node: u16,
    /// Its mirror epoch.
    pub epoch: u32,
    /// `address:port` of the client lane.
    pub client_address: String,
    /// `address:port` of the peer lane.
    pub peer_address: String,
    /// Unix socket of the client lane.
    pub unix_path: PathBuf,
    /// Directories of its volumes.
    pub volumes: Vec<PathBuf>,
}
