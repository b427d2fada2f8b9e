//! Nodes that share a process: what they ask of each other is a function call, as a request of a mount to its own node
//! is. Over sockets, each of a thousand nodes that talks to all others would be a million connections.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bivouac_net::{
    Address, Identity, InProcess, LaneKind, LivenessTable, Peer, PeerOptions, Service, Transport,
};
use bivouac_node::{Connector, NetPeers, Node, PeerRequest, Peers};
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
    let is_mirrored = !shared.map.mirrors.is_empty();
    let has_others = is_mirrored || shared.host_peers.0.len() < shared.map.nodes.len();
    let connector = connector(shared, id, liveness);
    let ways = |lane, are_needed: bool| -> Vec<Option<Arc<dyn Transport>>> {
        let nodes = shared.map.nodes.iter().filter(|_| are_needed && has_others);
        (0..).map(NodeId).zip(nodes).map(|(node, entry)| connector(node, entry, lane)).collect()
    };
    let (peers, mirrors) = (ways(LaneKind::Peer, true), ways(LaneKind::Mirror, is_mirrored));
    let others = NetPeers::new(peers);
    let others = if is_mirrored { others.with_mirrors(mirrors, connector) } else { others };
    Arc::new(PeerRoutes { host_peers: Arc::clone(&shared.host_peers), others })
}

/// What creates the way from a node to another one, over the network.
fn connector(shared: &DaemonContext, own: NodeId, liveness: &Arc<LivenessTable>) -> Box<Connector> {
    let client = ClientId(ClientId::PEER_BIT | u64::from(own.0));
    let own_epoch = shared.map.nodes.get(usize::from(own.0)).map_or(0, |entry| entry.epoch);
    let options = PeerOptions { wait_ms: shared.config.wait_ms, ..PeerOptions::default() };
    let (auth, host_peers) = (shared.auth.clone(), Arc::clone(&shared.host_peers));
    let liveness = Arc::clone(liveness);
    Box::new(move |node, entry, lane| {
        let identity = Identity { auth: auth.clone(), client, lane, epoch: own_epoch };
        let address = Address::tcp(entry.peer_address.clone());
        let peer = || Peer::to(node, address, identity, options).since(entry.epoch).heeding(&liveness);
        let is_host_peer = host_peers.0.contains_key(&node);
        (!is_host_peer).then(|| Arc::new(peer()) as Arc<dyn Transport>)
    })
}
