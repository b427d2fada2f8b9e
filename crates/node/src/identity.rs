//! Identities of those who ask a node for something: clients, and nodes as clients of their peers.

use bivouac_types::{ClientId, NodeId};

/// The origin of steps that no client's request makes necessary.
pub const SYSTEM: ClientId = ClientId(0);

/// Returns whether the client is a node.
pub fn is_peer(client: ClientId) -> bool {
    client.0 & ClientId::PEER_BIT != 0
}

/// Returns the node that the client is, if it is one.
pub fn peer_of(client: ClientId) -> Option<NodeId> {
    let number = u16::try_from(client.0 & !ClientId::PEER_BIT).ok();
    number.filter(|_| is_peer(client)).map(NodeId)
}

/// Returns a node's identity as a client of its peers.
pub fn node_as_client(id: NodeId) -> ClientId {
    ClientId(ClientId::PEER_BIT | u64::from(id.0))
}
