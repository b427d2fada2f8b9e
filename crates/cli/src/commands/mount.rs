//! `bivouac mount`.

use std::process::ExitCode;

use bivouac_launch::{Environment, StateDir};

use crate::attach::{MountRequest, attach};
use crate::failure::Failure;
use crate::options::MountArgs;

/// Mounts a running formation at one more place.
pub fn run(here: &Environment, args: &MountArgs) -> Result<ExitCode, Failure> {
    let (_, dir) = StateDir::find(here, args.which.name.as_ref())?;
    let state = dir.read_living()?;
    let first = state.nodes.first().map_or(0, |node| node.id);
    let node = args.node.unwrap_or(first);
    let wanted = MountRequest { node, dir: &args.dir, own_dir: false, allow_other: args.allow_other };
    let place = attach(here, &dir, &state, wanted)?;
    crate::output::write_path(&place);
    Ok(ExitCode::SUCCESS)
}
