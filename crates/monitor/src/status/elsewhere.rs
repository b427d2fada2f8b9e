//! Nodes of other hosts, as a host sees them that has only its own part: from the map, and from what they say.

use bivouac_launch::{FormationState, NodeLife, NodeState};

use super::{HostReport, NodeReport};
use crate::host_questions::host_dir;

/// Forgets those of a part's own nodes that have moved to other hosts.
pub fn forget_moved(state: &mut FormationState) {
    if state.part.is_some() {
        state.nodes = state.present_nodes().into_iter().cloned().collect();
    }
}

/// Adds them to a part's own nodes. What their daemons are only their hosts know.
pub fn add_nodes(state: &mut FormationState) {
    let Some(map) = state.map().filter(|_| state.part.is_some()) else { return };
    for (id, entry) in map.nodes.into_iter().enumerate() {
        let id = u16::try_from(id).unwrap_or(u16::MAX);
        if entry.is_withdrawn() || state.nodes.iter().any(|node| node.id == id) {
            continue;
        }
        let is_lost = state.lost_elsewhere.contains(&id);
        state.nodes.push(NodeState {
            id,
            host: entry.host,
            process: None,
            // Called ready until it is asked: only an answer tells more, and one that is not ready is not asked.
            life: if is_lost { NodeLife::Failed } else { NodeLife::Ready },
            message: is_lost.then(|| "it was given up".to_owned()),
            deaths: 0,
            client_address: entry.client_address,
            peer_address: entry.peer_address,
            unix_path: entry.unix_path.into(),
            epoch: entry.epoch,
            volumes: Vec::new(),
        });
    }
    state.nodes.sort_by_key(|node| node.id);
}

/// Returns whether a node is one that was added.
pub fn is_elsewhere(state: &FormationState, node: &NodeState) -> bool {
    state.part.is_some() && node.process.is_none() && node.volumes.is_empty()
}

/// Returns the hosts of all nodes. One of which no node answers is silent: what else is wrong with it, it cannot say.
pub fn hosts(nodes: &[NodeReport]) -> Vec<HostReport> {
    let mut hosts: Vec<HostReport> = Vec::new();
    for node in nodes {
        let place = hosts.iter().position(|host| host.is_of(node));
        match place.and_then(|place| hosts.get_mut(place)) {
            Some(host) => host.nodes.push(node.id),
            None => hosts.push(HostReport {
                name: node.host.clone(),
                dir: directory(node).to_owned(),
                state: "up",
                message: None,
                mount: None,
                nodes: vec![node.id],
            }),
        }
    }
    for host in &mut hosts {
        assert!(!host.nodes.is_empty(), "host {} is told without a node", host.name);
        let mut of_it = nodes.iter().filter(|node| host.is_of(node));
        if of_it.all(|node| node.files.is_none()) {
            host.state = "silent";
            host.message = Some("none of its nodes answers; look there: bivouac status".to_owned());
        }
    }
    hosts
}

impl HostReport {
    fn is_of(&self, node: &NodeReport) -> bool {
        self.name == node.host && self.dir == directory(node)
    }
}

fn directory(node: &NodeReport) -> &str {
    node.addresses.last().map_or("", |socket| host_dir(socket))
}
