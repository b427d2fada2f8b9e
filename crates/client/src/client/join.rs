//! How a program that is not a node becomes a client.

use std::sync::Arc;
use std::time::Duration;

use bivouac_net::{Auth, Secret};
use bivouac_types::limits::PAGE_POOL_DEFAULT;
use bivouac_types::{ClientId, Errno, FsError, FsResult};
use bivouac_wire::{Decode, FormationMap};

use super::{Client, ClientOptions};

impl Client {
    /// Returns a client of the formation whose map and secret these are, as the files `map` and `secret` of its
    /// directory have them. It waits for nodes that do not answer for at most `wait`.
    ///
    /// # Errors
    /// `EINVAL` for bytes that are no map or secret; `EIO` without random numbers.
    pub fn join(map: &[u8], secret: &[u8], wait: Duration) -> FsResult<Client> {
        let (map, auth, options) = membership(map, secret, wait)?;
        Ok(Client::nearby(map, &auth, &options))
    }

    /// Joins over TCP alone, as if all nodes were on other machines.
    ///
    /// # Errors
    /// As [`Client::join`].
    pub fn join_over_network(map: &[u8], secret: &[u8], wait: Duration) -> FsResult<Client> {
        let (map, auth, options) = membership(map, secret, wait)?;
        Ok(Client::new(map, &auth, None, &options))
    }

    /// Returns true if this process created the client, rather than one that forked it. Connections and sessions cannot
    /// be used after a fork.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.connections.is_own()
    }
}

/// Notes that this process was forked. To be called in the child after a fork, before anything else: clients that were
/// made before are its parent's.
pub fn forked() {
    bivouac_direct::forked();
}

/// Returns what a client needs, from the files of the formation's directory.
fn membership(
    map: &[u8],
    secret: &[u8],
    wait: Duration,
) -> FsResult<(Arc<FormationMap>, Auth, ClientOptions)> {
    let invalid = |what: &str| {
        let text = format!("{what} is damaged, or of another release; take the formation down and up again");
        FsError::with(Errno::EINVAL, text)
    };
    let map = FormationMap::from_bytes(map).map_err(|_| invalid("map"))?;
    map.check().map_err(|cause| invalid(&format!("map ({cause})")))?;
    let secret = secret.try_into().map_err(|_| invalid("secret"))?;
    let auth = Auth { formation: map.formation, secret: Secret::new(secret), is_secure: map.is_secure };
    let id = ClientId::of_process(map.formation, random()?);
    let options = ClientOptions { id, wait, near: None, incarnation: 0, page_pool: PAGE_POOL_DEFAULT };
    Ok((Arc::new(map), auth, options))
}

fn random() -> FsResult<u64> {
    getrandom::u64().map_err(|error| FsError::with(Errno::EIO, format!("draw random bytes: {error}")))
}
