//! Reasons for the placement of targets in a formation over several hosts, and how hosts reach each other.

use std::net::{IpAddr, SocketAddr};

use bivouac_hosts::local_addresses;
use bivouac_launch::FormationState;
use bivouac_survey::near_to;
use bivouac_sysmap::{Address, NumaPlacement};
use bivouac_wire::FormationMap;
use serde::Serialize;

use crate::system::speed;

/// Reasons for the places of targets and daemons of a formation over several hosts.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct PlacementReason {
    /// Source of the knowledge which hosts fail together.
    #[serde(skip_serializing_if = "Option::is_none")]
    switches: Option<SwitchSource>,
    /// By which of its interfaces this host is reached by the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<HostNetwork>,
    /// Part of its host that the daemon of the mount runs on, if it was chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<NodePlacement>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct NodePlacement {
    node: u16,
    parts: Vec<u32>,
    processors: String,
    disk: Option<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct SwitchSource {
    count: usize,
    source: String,
}

/// The network by which other hosts reach this one.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct HostNetwork {
    interface: String,
    address: IpAddr,
    speed_bits: Option<u64>,
    /// Value of `--network`, if given.
    chosen: Option<String>,
}

impl PlacementReason {
    /// Returns the placement of a formation as this host knows it, by a node of this host; nothing of one on this
    /// machine alone.
    pub fn of(state: &FormationState, map: &FormationMap, node: Option<u16>) -> Option<PlacementReason> {
        let part = node.filter(|_| state.numa && !state.in_process).and_then(|node| part(state, map, node));
        let Some(reach) = state.reach.as_ref() else {
            return part.map(|part| PlacementReason { switches: None, network: None, part: Some(part) });
        };
        let switches = state
            .domains()
            .map(|domains| SwitchSource { count: domains.switches().len(), source: domains.source.clone() });
        let own = node.and_then(|node| map.nodes.get(usize::from(node)));
        let own: Option<SocketAddr> = own.and_then(|entry| entry.client_address.parse().ok());
        // Whoever asks where a file is shall hear it also if this host does not tell its addresses.
        let here = local_addresses(None).unwrap_or_default();
        let network = own.and_then(|own| between(own.ip(), &here));
        let chosen = reach.network.as_ref().map(ToString::to_string);
        let network = network.map(|network| HostNetwork { chosen, ..network });
        let is_known = switches.is_some() || network.is_some() || part.is_some();
        is_known.then_some(PlacementReason { switches, network, part })
    }

    pub fn to_text(&self) -> String {
        let mut text = String::new();
        if let Some(SwitchSource { count, source }) = &self.switches {
            text.push_str(&format!(
                "targets take turns between {count} switches, by {source}, so that neighbours do not fail together; \
                 up --topology none leaves that out\n"
            ));
        }
        if let Some(HostNetwork { interface, address, speed_bits, chosen }) = &self.network {
            let why = match (chosen, speed_bits) {
                (Some(network), _) => format!("as --network {network} says"),
                (None, Some(bits)) => {
                    format!(
                        "{}; the fastest by which the hosts were gathered, --network chooses another",
                        speed(*bits as f64)
                    )
                }
                (None, None) => "it does not say how fast it is; --network chooses another".to_owned(),
            };
            text.push_str(&format!("others reach this host over {interface}, {address}: {why}\n"));
        }
        if let Some(NodePlacement { node, parts, processors, disk }) = &self.part {
            let parts: Vec<String> = parts.iter().map(u32::to_string).collect();
            let why = disk.as_ref().map_or_else(
                || "the host's daemons take turns over its parts".to_owned(),
                |disk| format!("the disk of its volumes, {disk}, is there"),
            );
            text.push_str(&format!(
                "the daemon of node {node} runs on processors {processors} of NUMA part {}: {why}; up --numa=false lets it run \
                 anywhere\n",
                parts.join(",")
            ));
        }
        text
    }
}

fn part(state: &FormationState, map: &FormationMap, node: u16) -> Option<NodePlacement> {
    let own = state.nodes.iter().find(|known| known.id == node)?;
    let volumes: Vec<String> = own.volumes.iter().map(|volume| volume.path.display().to_string()).collect();
    let NumaPlacement { parts, processors, disk } = near_to(map, node, &volumes)?;
    Some(NodePlacement { node, parts, processors, disk })
}

fn between(own: IpAddr, here: &[Address]) -> Option<HostNetwork> {
    let Address { interface, ip, speed_bits, .. } = here.iter().find(|address| address.ip == own)?.clone();
    Some(HostNetwork { interface, address: ip, speed_bits, chosen: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S538, S539.
    #[test]
    fn what_decided_is_said_with_how_to_have_it_otherwise() {
        let network = |speed_bits, chosen: Option<&str>| HostNetwork {
            interface: "ib0".into(),
            address: "10.1.0.2".parse().unwrap(),
            speed_bits,
            chosen: chosen.map(str::to_owned),
        };
        let text = |network| PlacementReason { switches: None, network: Some(network), part: None }.to_text();
        let says = "others reach this host over ib0, 10.1.0.2: 100 Gbit/s; the fastest by which the hosts were gathered, \
                    --network chooses another\n";
        assert_eq!(text(network(Some(100_000_000_000), None)), says);
        assert!(text(network(None, None)).contains("does not say how fast it is; --network chooses another"));
        assert!(text(network(Some(1), Some("10.1.0.0/16"))).ends_with("as --network 10.1.0.0/16 says\n"));
        let switches = Some(SwitchSource { count: 2, source: "scontrol".into() });
        let text = PlacementReason { switches, network: None, part: None }.to_text();
        assert!(
            text.starts_with("targets take turns between 2 switches, by scontrol")
                && text.contains("--topology none")
        );
        let part =
            NodePlacement { node: 1, parts: vec![1], processors: "4-7".into(), disk: Some("nvme0n1".into()) };
        let text = PlacementReason { switches: None, network: None, part: Some(part) }.to_text();
        let says = "the daemon of node 1 runs on processors 4-7 of NUMA part 1: the disk of its volumes, nvme0n1, is there; \
                    up --numa=false lets it run anywhere\n";
        assert_eq!(text, says);
    }
}
