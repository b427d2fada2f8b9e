//! The way from a command to a running formation.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bivouac_client::{Client, ClientOptions, OpCtx};
use bivouac_launch::mounts::{MountEntry, mount_of, mounted};
use bivouac_launch::{
    Environment, FormationName, Kind, LaunchError, State, StateDir, raise_descriptor_limit, random_bytes,
};
use bivouac_net::{Auth, Secret};
use bivouac_types::ClientId;
use bivouac_types::limits::PAGE_POOL_DEFAULT;

use crate::failure::Failure;

/// Highest bit of a client's number: set for nodes that are clients of their peers.
const NODE_BIT: u64 = 1 << 63;

/// As many nodes can be talked to with as few open files as a process is usually allowed.
const NODES_PLAIN_MAX: usize = 256;

/// Threads that ask nodes: at least one for each of as many nodes as have processes of their own on one machine.
const ASKERS_MAX: usize = 256;

/// Asks several at the same time; nothing of one whose thread failed.
pub fn at_once<T: Sync, A: Send>(all: &[T], ask: impl Fn(&T) -> A + Sync) -> Vec<Option<A>> {
    // One thread for several, so that a thousand nodes are not as many threads; those that answer do so at once.
    let share = all.len().div_ceil(ASKERS_MAX).max(1);
    let ask_some = |some: &[T]| some.iter().map(&ask).map(Some).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        let ask_some = &ask_some;
        let asking: Vec<_> =
            all.chunks(share).map(|some| (some.len(), scope.spawn(move || ask_some(some)))).collect();
        let none = |count: usize| (0..count).map(|_| None).collect();
        asking.into_iter().flat_map(|(count, thread)| thread.join().unwrap_or_else(|_| none(count))).collect()
    })
}

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
        "have it back: bivouac recover {0}; look at what it left: bivouac fsck --offline {0}; remove it: bivouac down --name {0}",
        state.name
    );
    Err(LaunchError::new(Kind::NotRunning, format_args!("formation {}", state.name), cause, &remedy).into())
}

/// The identity of the next change of this user's.
pub fn ctx(here: &Environment, client: &Client) -> OpCtx {
    client.new_op(0, here.uid, rustix::process::getegid().as_raw())
}

/// The formation's directory on a node's host, by the node's socket in it. Hosts of one name, as a test or containers
/// have them on one machine, have directories of their own.
pub fn host_dir(socket: &str) -> &str {
    socket.rsplit_once('/').map_or("", |(dir, _)| dir)
}

/// Something in a mounted formation, and the way there.
pub struct Reached {
    /// A client of the formation.
    pub client: Client,
    /// Its mount.
    pub entry: MountEntry,
    /// The path without symbolic links.
    pub resolved: PathBuf,
}

/// The formation that a path is mounted from.
///
/// # Errors
/// That there is nothing at the path, or no formation that runs.
pub fn of_path(here: &Environment, path: &Path, wait: Duration) -> Result<Reached, Failure> {
    let failed = |e| Failure::new(1, format_args!("{}: {e}; check its path", path.display()));
    let resolved = path.canonicalize().map_err(failed)?;
    let entry = mount_of(&resolved).ok_or_else(|| not_in_a_formation(path))?;
    let name: Option<FormationName> =
        entry.source.strip_prefix("bivouac:").and_then(|name| name.parse().ok());
    let (_, dir) = StateDir::find(here, name.as_ref())?;
    let client = client(&dir, &living(&dir)?, wait)?;
    Ok(Reached { client, entry, resolved })
}

/// That a path is below no mount, and which mounts there are.
pub fn not_in_a_formation(path: &Path) -> Failure {
    let places: Vec<String> = mounted().iter().map(|entry| entry.dir.display().to_string()).collect();
    let known = if places.is_empty() {
        "none is mounted; start one with: bivouac up".into()
    } else {
        format!("mounted are: {}", places.join(", "))
    };
    Failure::new(1, format_args!("{}: is not in a formation; {known}", path.display()))
}

/// A client of a formation, that waits for nodes for at most `wait`.
///
/// # Errors
/// When secret or map cannot be used.
pub fn client(dir: &StateDir, state: &State, wait: Duration) -> Result<Client, Failure> {
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
    let id = ClientId(u64::from_le_bytes(random_bytes()?) & !NODE_BIT);
    let options = ClientOptions { id, wait, near: None, incarnation: 0, page_pool: PAGE_POOL_DEFAULT };
    Ok(Client::nearby(Arc::new(map), &auth, &options))
}
