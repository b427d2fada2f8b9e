//! `bivouac unmount`.

use std::process::ExitCode;

use bivouac_launch::mount_table::Table;
use bivouac_launch::mounts::{WhenBusy, mounted, unmount};
use bivouac_launch::{Environment, Kind, LaunchError};
use bivouac_types::mount_table::FORMATION_FS_TYPE;

use crate::failure::Failure;
use crate::options::UnmountArgs;

/// Takes one mount away; the node that served it, and the others, go on.
pub fn run(here: &Environment, args: &UnmountArgs) -> Result<ExitCode, Failure> {
    let dir = std::path::absolute(&args.dir)?;
    // A dead mount cannot be resolved, so the kernel's list is asked before the path is.
    let listed = |dir: &std::path::Path| mounted().iter().any(|entry| entry.dir == dir);
    let dir = if listed(&dir) { dir } else { dir.canonicalize().unwrap_or(dir) };
    // This very process must not be what keeps it busy.
    std::env::set_current_dir("/")?;
    let table = Table::here();
    if let Some(top) = table.at(&dir).filter(|top| top.kind != FORMATION_FS_TYPE) {
        let cause = format!("is a mount of something else ({})", top.source);
        let remedy = "unmount that first if a formation's is below it";
        return Err(LaunchError::new(Kind::Refused, dir.display(), cause, remedy).into());
    }
    unmount(here, &dir, WhenBusy::Refuse, false)?;
    Ok(ExitCode::SUCCESS)
}
