//! `bivouac mount`.

use std::process::ExitCode;

use bivouac_launch::{Environment, StateDir};

use crate::attach::{Wanted, attach};
use crate::failure::Failure;
use crate::options::MountArgs;
use crate::reach;

/// Mounts a running formation at one more place.
pub fn run(here: &Environment, args: &MountArgs) -> Result<ExitCode, Failure> {
    let (_, dir) = StateDir::find(here, args.which.name.as_ref())?;
    let state = reach::living(&dir)?;
    let first = state.nodes.first().map_or(0, |node| node.id);
    let node = args.node.unwrap_or(first);
    let wanted = Wanted { node, dir: &args.dir, own_dir: false, allow_other: args.allow_other };
    let place = attach(here, &dir, &state, wanted)?;
    outln!("{}", place.display());
    Ok(ExitCode::SUCCESS)
}
