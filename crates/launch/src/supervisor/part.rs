//! One host's part of a formation: its ports are open before it is decided which nodes it has.

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use super::Report;
use super::listeners::{open_here, open_ports};
use crate::handover::NodeHandles;
use crate::hex::from_hex;
use crate::packets;
use crate::state::FormationState;
use crate::state_dir::StateDir;
use crate::{Kind, LaunchError, LaunchResult};

/// The input that a part waits for, in memory that its packet brings.
#[derive(Debug, Serialize, Deserialize)]
pub struct PartBegins {
    /// Id of its first node.
    pub first_node: u16,
    /// The formation's secret, hexadecimal.
    pub secret: String,
    /// The formation's map, hexadecimal.
    pub map: String,
}

/// Opens ports, says which, waits until the nodes are known, and opens the rest.
pub(super) fn open(
    dir: &StateDir,
    state: &mut FormationState,
    report: &OwnedFd,
) -> LaunchResult<Vec<NodeHandles>> {
    let ports = open_ports(state)?;
    // From here on whoever takes this part down knows of this process.
    dir.write(state)?;
    let addresses = state.nodes.iter().map(|node| (node.client_address.clone(), node.peer_address.clone()));
    let bound = Report::Bound { addresses: addresses.collect() };
    packets::send(report, &bound, &[]).map_err(|e| LaunchError::system("the supervisor's report", e))?;
    let begins = wait(report)?;
    let secret = from_hex(&begins.secret).and_then(|secret| secret.try_into().ok()).ok_or_else(given_up)?;
    dir.write_secret(&secret)?;
    state.map = begins.map;
    for (node, id) in state.nodes.iter_mut().zip(begins.first_node..) {
        node.id = id;
        node.unix_path = dir.node_socket(id);
    }
    open_here(state, ports)
}

fn wait(report: &OwnedFd) -> LaunchResult<PartBegins> {
    let received = packets::receive::<String>(report).map_err(|_| given_up())?;
    let memory = received.and_then(|(_, mut descriptors)| descriptors.pop()).ok_or_else(given_up)?;
    packets::from_memory(memory).map_err(|_| given_up())
}

fn given_up() -> LaunchError {
    let remedy = "look at what `bivouac up` says where it was started";
    LaunchError::new(Kind::Refused, "the formation's start", "was given up", remedy)
}
