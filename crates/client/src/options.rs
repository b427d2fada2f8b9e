//! Settings of a client.

use std::time::Duration;

use bivouac_types::{ClientId, NodeId};

/// Settings of a client.
pub struct ClientOptions {
    /// The client's number; the same over restarts of its process if operations are to survive them.
    pub id: ClientId,
    /// Maximum wait for a node that does not answer.
    pub wait: Duration,
    /// The node that "local" means: files of local placement go there.
    pub near: Option<NodeId>,
    /// Number of earlier processes of this client.
    pub incarnation: u32,
    /// Maximum size of the page pool of the session contract, in bytes.
    pub page_pool: u64,
}
