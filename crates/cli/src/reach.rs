//! The way from a command to a running formation.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bivouac_client::{Client, OpCtx};
use bivouac_launch::mount_table::MountEntry;
use bivouac_launch::mounts::{mount_of, mounted};
use bivouac_launch::{Environment, FormationName, FormationState, StateDir};
use bivouac_monitor::connect;

use crate::failure::Failure;

/// Returns the identity of the next change of this user's.
pub fn ctx(here: &Environment, client: &Client) -> OpCtx {
    client.new_op(0, here.uid, rustix::process::getegid().as_raw())
}

/// Something in a mounted formation, and the way there.
pub struct MountedPath {
    /// A client of the formation.
    pub client: Client,
    /// Its mount.
    pub entry: MountEntry,
    /// The path without symbolic links.
    pub resolved: PathBuf,
}

/// Returns the formation that a path is mounted from.
///
/// # Errors
/// That there is nothing at the path, or no formation that runs.
pub fn of_path(here: &Environment, path: &Path, wait: Duration) -> Result<MountedPath, Failure> {
    let failed = |e| Failure::new(1, format_args!("{}: {e}; check its path", path.display()));
    let resolved = path.canonicalize().map_err(failed)?;
    let entry = mount_of(&resolved).ok_or_else(|| not_in_a_formation(path))?;
    let (dir, state) = behind(here, &entry, path)?;
    let client = connect(&dir, &state, wait)?;
    Ok(MountedPath { client, entry, resolved })
}

/// Returns the formation that a mount is of. Another one may have the same name, in another runtime directory, and so
/// may an earlier one, whose mount was left: they are told apart by the numbers of their connections.
///
/// # Errors
/// That the mount is of no formation that is known here, or of one of which no process lives.
pub fn behind(
    here: &Environment,
    entry: &MountEntry,
    path: &Path,
) -> Result<(StateDir, FormationState), Failure> {
    let name = entry.source.strip_prefix("bivouac:").and_then(|name| name.parse::<FormationName>().ok());
    let Some(name) = name else {
        let text = format!(
            "{}: the mount's source '{}' names no formation; is it a mount of another program?",
            path.display(),
            entry.source
        );
        return Err(Failure::new(1, text));
    };
    let (_, dir) = StateDir::find(here, Some(&name))?;
    let state = dir.read_living()?;
    if state.mounts.iter().any(|mount| mount.connection == entry.connection) {
        return Ok((dir, state));
    }
    let text = format!(
        "{}: is in a mount of another formation called {name} than the one in {}; set BIVOUAC_RUNTIME_DIR as for that one \
         (bivouac list shows it), or take a dead mount away: bivouac reap",
        path.display(),
        dir.path().display()
    );
    Err(Failure::new(1, text))
}

/// Returns the error that a path is below no mount, with the mounts that exist.
pub fn not_in_a_formation(path: &Path) -> Failure {
    let places: Vec<String> = mounted().iter().map(|entry| entry.dir.display().to_string()).collect();
    let known = if places.is_empty() {
        "none is mounted; start one with: bivouac up".into()
    } else {
        format!("mounted are: {}", places.join(", "))
    };
    Failure::new(1, format_args!("{}: is not in a formation; {known}", path.display()))
}
