//! `bivouac unmount`.

use std::process::ExitCode;

use bivouac_launch::Surroundings;
use bivouac_launch::mounts::{WhenBusy, mounted, unmount};

use crate::failure::Failure;
use crate::options::UnmountArgs;

/// Takes one mount away; the node that served it, and the others, go on.
pub fn run(here: &Surroundings, args: &UnmountArgs) -> Result<ExitCode, Failure> {
    let dir = std::path::absolute(&args.dir)?;
    // A dead mount cannot be resolved, so the kernel's list is asked before the path is.
    let listed = |dir: &std::path::Path| mounted().iter().any(|entry| entry.dir == dir);
    let dir = if listed(&dir) { dir } else { dir.canonicalize().unwrap_or(dir) };
    // This very process must not be what keeps it busy.
    std::env::set_current_dir("/")?;
    unmount(here, &dir, WhenBusy::Refuse, false)?;
    Ok(ExitCode::SUCCESS)
}
