//! The nodes of a host's part, as it tells the keeper of them.

use bivouac_launch::{NodeState, ProcessId, VolumeState};
use bivouac_wire::rendezvous::{JoinNode, JoinVolume, NodeReport};

/// Returns what a host tells of a node when it joins: its addresses, for clients and for peers, and its volumes.
pub(crate) fn join_node(node: &NodeState, (client_address, peer_address): (String, String)) -> JoinNode {
    let volume = |volume: &VolumeState| JoinVolume {
        path: volume.path.display().to_string(),
        kind: volume.kind.clone(),
        capacity_bytes: volume.capacity_bytes,
    };
    JoinNode { client_address, peer_address, volumes: node.volumes.iter().map(volume).collect() }
}

/// Reports of nodes. Of one that has come back to the host only the latest counts: its former life there tells nothing.
pub(crate) fn node_reports(nodes: Vec<NodeState>) -> Vec<NodeReport> {
    let ids: Vec<u16> = nodes.iter().map(|node| node.id).collect();
    let is_latest = |position: usize, id: u16| ids.iter().rposition(|known| *known == id) == Some(position);
    let latest = nodes.into_iter().enumerate().filter(|(position, node)| is_latest(*position, node.id));
    let report = |(_, node): (usize, NodeState)| NodeReport {
        node: node.id,
        pid: node.process.filter(ProcessId::is_alive).map_or(0, |process| process.pid),
        life: node.life.name().into(),
        message: node.message,
        deaths: node.deaths,
    };
    latest.map(report).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_launch::NodeLife;

    fn node(id: u16, epoch: u32, life: NodeLife) -> NodeState {
        NodeState {
            id,
            host: "h".into(),
            process: None,
            life,
            message: None,
            deaths: 0,
            client_address: String::new(),
            peer_address: String::new(),
            unix_path: std::path::PathBuf::new(),
            epoch,
            volumes: Vec::new(),
        }
    }

    #[test]
    fn of_a_node_that_has_come_back_the_latest_life_is_reported() {
        let nodes =
            vec![node(1, 0, NodeLife::Failed), node(2, 0, NodeLife::Ready), node(1, 8, NodeLife::Starting)];
        let reports = node_reports(nodes);
        let told: Vec<(u16, &str)> =
            reports.iter().map(|report| (report.node, report.life.as_str())).collect();
        assert_eq!(told, [(2, "ready"), (1, "starting")]);
    }
}
