//! Origin of a report.

use bivouac_types::{ClientId, NodeId};

/// A client that reports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reporter {
    /// Its number.
    pub client: ClientId,
    /// Its host.
    pub host: String,
    /// The node that serves it, if it is a mount.
    pub node: Option<NodeId>,
}
