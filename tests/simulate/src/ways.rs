//! Where nodes are, and the ways between them.

use std::time::Duration;

use bivouac_node::{NetPeers, PeerRequest, Peers};
use bivouac_sim_kernel as sim;
use bivouac_types::{FsResult, NodeId};
use bivouac_wire::{
    AppliedChanges, ApplyChangesRequest, Decode, Encode, FormationMap, NodeEntry, Op, ReplicaOutcome,
};

use crate::world::host;

/// A node's place in the map when it is on a host.
pub(crate) fn entry_on(node: u8, on: u8, epoch: u32) -> NodeEntry {
    let port = 7000 + 10 * u16::from(node);
    NodeEntry {
        host: format!("n{on}"),
        client_address: format!("10.0.0.{}:{port}", host(on)),
        peer_address: format!("10.0.0.{}:{}", host(on), port + 1),
        unix_path: String::new(),
        epoch,
    }
}

/// The ways to other nodes; to a backup, some changes get lost where the system lies about that.
pub(crate) struct Ways(pub NetPeers);

impl Peers for Ways {
    fn call_within(
        &self,
        wait: Duration,
        node: NodeId,
        request: &PeerRequest<'_>,
        reply: &mut Vec<u8>,
    ) -> FsResult<()> {
        if request.op == Op::ApplyChanges && sim::lies(sim::Lie::LostChanges, 10) {
            let made =
                ApplyChangesRequest::from_bytes(request.body).map_or(0, |request| request.changes.len());
            AppliedChanges { made: made as u16, outcome: ReplicaOutcome::Done }.encode(reply);
            return Ok(());
        }
        self.0.call_within(wait, node, request, reply)
    }

    fn take_map(&self, map: &FormationMap) {
        self.0.take_map(map);
    }
}
