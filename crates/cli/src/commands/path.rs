//! `bivouac path`: where a formation is mounted, for scripts.

use std::process::ExitCode;

use bivouac_launch::{Environment, MountState, StateDir};

use crate::failure::Failure;
use crate::options::MountPathArgs;
use crate::staging::UsableMounts;

/// Prints the mount point, and nothing else.
pub fn run(here: &Environment, args: &MountPathArgs) -> Result<ExitCode, Failure> {
    let (_, dir) = StateDir::find(here, args.which.name())?;
    let state = dir.read_living()?;
    // A mount point without its mount is a directory of this host: what is written there is in no formation.
    let usable = UsableMounts::find(&state);
    let is_wanted = |mount: &MountState| args.node.is_none_or(|node| mount.node == node);
    let Some(mount) = usable.mounts.iter().find(|mount| is_wanted(mount)) else {
        if let Some((mount, why)) = usable.left_out.iter().find(|(mount, _)| is_wanted(mount)) {
            let text = format!("formation {}: mount {}: {why}", state.name, mount.dir.display());
            return Err(Failure::new(1, text));
        }
        let (name, of_node) = (&state.name, args.node.map(|node| format!(" --node {node}")));
        let through = args.node.map(|node| format!(" through node {node}")).unwrap_or_default();
        let text = format!(
            "formation {name} is not mounted on this host{through}; mount it: bivouac mount --name {name}{} DIR",
            of_node.unwrap_or_default()
        );
        return Err(Failure::new(1, text));
    };
    crate::output::write_path(&mount.dir);
    Ok(ExitCode::SUCCESS)
}
