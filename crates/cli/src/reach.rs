//! The way from a command to a running formation.

use std::sync::Arc;
use std::time::Duration;

use bivouac_client::{Client, ClientOptions};
use bivouac_launch::{Kind, LaunchError, State, StateDir, raise_descriptor_limit, random_bytes};
use bivouac_net::{Auth, Secret};
use bivouac_types::ClientId;
use bivouac_types::limits::PAGE_POOL_DEFAULT;

use crate::failure::Failure;

/// Highest bit of a client's number: set for nodes that are clients of their peers.
const NODE_BIT: u64 = 1 << 63;

/// As many nodes can be talked to with as few open files as a process is usually allowed.
const NODES_PLAIN_MAX: usize = 256;

/// The state of a formation of which at least one process lives.
///
/// # Errors
/// That it was taken down or killed.
pub fn living(dir: &StateDir) -> Result<State, Failure> {
    let gone = || LaunchError::said(Kind::NotRunning, "the formation was taken down meanwhile");
    let state = dir.read()?.ok_or_else(gone)?;
    if dir.is_held() {
        return Ok(state);
    }
    let cause = "was killed: none of its processes lives";
    let remedy = format!(
        "look at what it left: bivouac fsck --offline {0}; remove it: bivouac down --name {0}",
        state.name
    );
    Err(LaunchError::new(Kind::NotRunning, format_args!("formation {}", state.name), cause, &remedy).into())
}

/// How a client goes to the nodes of its own machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Over Unix sockets, and directly to the bytes.
    Best,
    /// As to any other.
    Network,
}

/// A client of a formation, that waits for nodes for at most `wait`.
///
/// # Errors
/// When secret or map cannot be used.
pub fn client(dir: &StateDir, state: &State, wait: Duration) -> Result<Client, Failure> {
    client_by(Way::Best, dir, state, wait)
}

/// As [`client`], in a way that is chosen.
///
/// # Errors
/// As [`client`].
pub fn client_by(way: Way, dir: &StateDir, state: &State, wait: Duration) -> Result<Client, Failure> {
    let damaged = || {
        let remedy = "take the formation down and up again";
        LaunchError::new(Kind::Refused, dir.path().display(), "has no usable map", remedy)
    };
    let map = state.map().ok_or_else(damaged)?;
    if map.nodes.len() > NODES_PLAIN_MAX {
        raise_descriptor_limit();
    }
    let auth = Auth { formation: map.formation, secret: Secret::new(dir.secret()?) };
    let id = ClientId(u64::from_le_bytes(random_bytes()?) & !NODE_BIT);
    let (map, options) =
        (Arc::new(map), ClientOptions { id, wait, near: None, incarnation: 0, page_pool: PAGE_POOL_DEFAULT });
    Ok(match way {
        Way::Best => Client::nearby(map, &auth, &options),
        Way::Network => Client::new(map, &auth, None, &options),
    })
}
