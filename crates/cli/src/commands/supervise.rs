//! `bivouac supervise`: what `up` leaves behind.

use std::process::ExitCode;

use bivouac_launch::{DaemonProgram, Surroundings, supervise};

use crate::failure::Failure;
use crate::logging;
use crate::options::SuperviseArgs;

/// Supervises until it is told to end.
pub fn run(here: &Surroundings, args: SuperviseArgs) -> Result<ExitCode, Failure> {
    logging::raise(here.log_level.as_deref());
    let daemon = DaemonProgram { program: here.program.clone(), arguments: vec!["node".into()] };
    supervise(here, args.dir, daemon)?;
    Ok(ExitCode::SUCCESS)
}
