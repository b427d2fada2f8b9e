//! Connections to running formations.

use std::sync::Arc;
use std::time::Duration;

use bivouac_client::{Client, ClientOptions};
use bivouac_launch::{
    FormationState, Kind, LaunchError, LaunchResult, StateDir, raise_descriptor_limit, random_bytes,
};
use bivouac_net::{Auth, Secret};
use bivouac_types::limits::PAGE_POOL_DEFAULT;
use bivouac_types::{ClientId, NodeId};

/// Number of nodes for which the usual limit of open files suffices.
const NODES_PLAIN_MAX: usize = 256;

/// Returns a client of a formation that waits for a node at most `wait`.
///
/// # Errors
/// When secret or map cannot be used.
pub fn connect(dir: &StateDir, state: &FormationState, wait: Duration) -> LaunchResult<Client> {
    let damaged = || {
        let remedy = "take the formation down and up again";
        LaunchError::new(Kind::Refused, dir.path().display(), "has no usable map", remedy)
    };
    let map = state.map().ok_or_else(damaged)?;
    if map.nodes.len() > NODES_PLAIN_MAX {
        raise_descriptor_limit();
    }
    let auth =
        Auth { formation: map.formation, secret: Secret::new(dir.secret()?), is_secure: map.is_secure };
    // Any other random number could be a mount's, of which homes ask that mount's node whether it lives.
    let id = ClientId::of_process(map.formation, u64::from_le_bytes(random_bytes()?));
    let options = ClientOptions { id, wait, near: None, incarnation: 0, page_pool: PAGE_POOL_DEFAULT };
    let client = Client::nearby(Arc::new(map), &auth, &options);
    // Else each question would first wait for a node that is known to be gone.
    if let Some(liveness) = client.liveness() {
        state.lost().for_each(|node| liveness.set_dead(NodeId(node), true));
    }
    Ok(client)
}
