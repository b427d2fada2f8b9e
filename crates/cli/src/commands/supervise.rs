//! `bivouac supervise`: what `up` leaves behind.

use std::path::PathBuf;
use std::process::ExitCode;

use bivouac_launch::{DaemonProgram, Environment, LaunchResult, StateDir, supervise};

use crate::failure::Failure;
use crate::logging;
use crate::options::SuperviseArgs;

/// Supervises until it is told to end.
pub fn run(here: &Environment, args: SuperviseArgs) -> Result<ExitCode, Failure> {
    supervise_at(here, args.dir)?;
    Ok(ExitCode::SUCCESS)
}

/// Supervises the formation of this directory.
///
/// # Errors
/// What kept it from supervising.
pub fn supervise_at(here: &Environment, dir: PathBuf) -> LaunchResult<()> {
    logging::raise_at(here, "supervisor", &StateDir::at(dir.clone()));
    let daemon = DaemonProgram { program: here.program.clone(), arguments: vec!["node".into()] };
    supervise(here, dir, daemon)
}
