//! The sockets that clients and peers reach the nodes at. They are the supervisor's, so that a
//! daemon's death changes no port, and who connects meanwhile waits instead of being refused.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;

use bivouac_direct::Memory;
use bivouac_wire::Encode;

use crate::control::for_this_user_only;
use crate::first_map::first_map;
use crate::handover::NodeHandles;
use crate::hex::to_hex;
use crate::state::{FormationState, NodeState};
use crate::{Kind, LaunchError, LaunchResult, grant_tables};

/// Most connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// The sockets of one node that other hosts reach: client lane, peer lane.
pub(super) type Ports = (TcpListener, TcpListener);

/// Opens the sockets of all nodes, and writes addresses and map into the state.
pub(super) fn open(state: &mut FormationState) -> LaunchResult<Vec<NodeHandles>> {
    let ports = open_ports(state)?;
    let all = open_here(state, ports)?;
    write_map(state)?;
    Ok(all)
}

/// Opens the ports of all nodes, and writes their addresses into the state.
pub(super) fn open_ports(state: &mut FormationState) -> LaunchResult<Vec<Ports>> {
    let ip = state.part.as_ref().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |part| part.bind);
    let mut port = state.port;
    let mut tcp = || {
        let opened = listen(SocketAddr::new(ip, port));
        // Nothing is opened behind the last port: that they fit below 65536 was checked with the request.
        port = if port == 0 { 0 } else { port.wrapping_add(1) };
        opened
    };
    let mut open = |node: &mut NodeState| {
        let ((client, client_address), (peer, peer_address)) = (tcp()?, tcp()?);
        (node.client_address, node.peer_address) = (client_address, peer_address);
        Ok((client, peer))
    };
    state.nodes.iter_mut().map(&mut open).collect()
}

/// Opens what is for this machine alone, of nodes whose ports are open.
pub(super) fn open_here(state: &FormationState, ports: Vec<Ports>) -> LaunchResult<Vec<NodeHandles>> {
    let open = |(node, (client, peer)): (&NodeState, Ports)| {
        let unix = UnixListener::bind(&node.unix_path)
            .map_err(|e| LaunchError::path(&node.unix_path, "listen there", e))?;
        for_this_user_only(&node.unix_path)?;
        let home = node.unix_path.parent().unwrap_or(&node.unix_path);
        let grants = grant_tables::open(&state.formation, node.id, home)
            .map_err(|e| LaunchError::system("memory for direct access", e))?;
        let recorded = Memory::make("bivouac-record")
            .map_err(|e| LaunchError::system("memory for what is recorded", e))?;
        Ok(NodeHandles { client, peer, unix, grants, recorded })
    };
    assert_eq!(ports.len(), state.nodes.len(), "nodes with ports");
    state.nodes.iter().zip(ports).map(open).collect()
}

fn write_map(state: &mut FormationState) -> LaunchResult<()> {
    let formation = state.formation_id().ok_or_else(|| {
        LaunchError::new(
            Kind::Refused,
            "state",
            "has no formation id",
            "take the formation down and up again",
        )
    })?;
    state.map = to_hex(&first_map(state, formation).to_bytes());
    Ok(())
}

fn listen(wanted: SocketAddr) -> LaunchResult<(TcpListener, String)> {
    let refused = |e: std::io::Error| LaunchError::system(&wanted.to_string(), e);
    let listener = TcpListener::bind(wanted).map_err(refused)?;
    // The standard library chooses the length of the queue itself; a second call changes it.
    rustix::net::listen(&listener, BACKLOG).map_err(|e| refused(e.into()))?;
    let address = listener.local_addr().map_err(refused)?.to_string();
    Ok((listener, address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::sample;

    #[test]
    fn addresses_and_map_are_written_down() {
        let dir = tempfile::tempdir().unwrap();
        let mut state = sample();
        state.nodes[0].unix_path = dir.path().join("n0");
        let listeners = open(&mut state).unwrap();
        grant_tables::remove_all(&state);
        let map = state.map().unwrap();
        let address = listeners[0].client.local_addr().unwrap().to_string();
        assert_eq!(map.nodes[0].client_address, address);
        assert_eq!(map.nodes[0].unix_path, dir.path().join("n0").display().to_string());
        assert_ne!(map.nodes[0].client_address, map.nodes[0].peer_address);
    }

    #[test]
    fn a_port_in_use_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut state = sample();
        state.port = taken.local_addr().unwrap().port();
        let error = open(&mut state).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("127.0.0.1:{}: address already in use (EADDRINUSE)", state.port)),
            "{error}"
        );
        assert!(error.contains("choose another port"), "{error}");
    }
}
