//! Nodes that share a process: what they ask of each other is a function call, as a request of a mount to its own node
//! is. Over sockets, each of a thousand nodes that talks to all others would be a million connections.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bivouac_net::{
    Address, Identity, InProcess, LaneKind, LivenessTable, Peer, PeerOptions, Service, Transport,
};
use bivouac_node::{NetPeers, Node, PeerRequest, Peers};
use bivouac_types::{ClientId, Errno, FsError, FsResult, NodeId};
use bivouac_wire::FormationMap;

use super::DaemonContext;

/// The nodes of this process.
pub struct HostPeers(BTreeMap<NodeId, OnceLock<Weak<Node>>>);

impl HostPeers {
    /// Creates the table of nodes that will be in this process.
    pub fn new(nodes: impl Iterator<Item = NodeId>) -> HostPeers {
        HostPeers(nodes.map(|node| (node, OnceLock::new())).collect())
    }

    /// Sets the nodes, before any request between them.
    pub fn meet<'n>(&self, nodes: impl Iterator<Item = (NodeId, &'n Arc<Node>)>) {
        for (id, node) in nodes {
            if let Some(place) = self.0.get(&id) {
                // Set once.
                // Weak: nodes have their ways to each other, and would keep each other alive.
                let _ = place.set(Arc::downgrade(node));
            }
        }
    }
}

/// The way to all nodes, for one of them.
struct PeerRoutes {
    host_peers: Arc<HostPeers>,
    others: NetPeers,
}

impl Peers for PeerRoutes {
    fn call_within(
        &self,
        wait: Duration,
        node: NodeId,
        request: &PeerRequest<'_>,
        reply: &mut Vec<u8>,
    ) -> FsResult<()> {
        let Some(host_peer) = self.host_peers.0.get(&node) else {
            return self.others.call_within(wait, node, request, reply);
        };
        let ending = || FsError::with(Errno::EIO, format!("{node} is ending"));
        let service: Arc<dyn Service> = host_peer.get().and_then(Weak::upgrade).ok_or_else(ending)?;
        let way = InProcess::new(service, LaneKind::between_nodes(request.op));
        NetPeers::exchange(&way, wait, request, reply)
    }

    fn take_map(&self, map: &FormationMap) {
        self.others.take_map(map);
    }
}

/// Ways from a node to all others: over the peer lane to those of other processes.
pub fn peers_of(shared: &DaemonContext, id: NodeId, liveness: &Arc<LivenessTable>) -> Arc<dyn Peers> {
    let has_others = shared.host_peers.0.len() < shared.map.nodes.len();
    let ways = |lane, are_needed: bool| {
        if are_needed && has_others { over_network(shared, (id, lane), liveness) } else { Vec::new() }
    };
    let mirrors = ways(LaneKind::Mirror, !shared.map.mirrors.is_empty());
    let others = NetPeers::new(ways(LaneKind::Peer, true)).with_mirrors(mirrors);
    Arc::new(PeerRoutes { host_peers: Arc::clone(&shared.host_peers), others })
}

fn over_network(
    shared: &DaemonContext,
    (own, lane): (NodeId, LaneKind),
    liveness: &Arc<LivenessTable>,
) -> Vec<Option<Arc<dyn Transport>>> {
    let client = ClientId(ClientId::PEER_BIT | u64::from(own.0));
    let epoch = shared.map.nodes.get(usize::from(own.0)).map_or(0, |entry| entry.epoch);
    let way = |(id, entry): (u16, &bivouac_wire::NodeEntry)| -> Option<Arc<dyn Transport>> {
        let identity = Identity { auth: shared.auth.clone(), client, lane, epoch };
        let address = Address::tcp(entry.peer_address.clone());
        let options = PeerOptions { wait_ms: shared.config.wait_ms, ..PeerOptions::default() };
        let peer = || Peer::to(NodeId(id), address, identity, options).since(entry.epoch).heeding(liveness);
        let is_host_peer = shared.host_peers.0.contains_key(&NodeId(id));
        (!is_host_peer).then(|| Arc::new(peer()) as Arc<dyn Transport>)
    };
    (0..).zip(&shared.map.nodes).map(way).collect()
}
