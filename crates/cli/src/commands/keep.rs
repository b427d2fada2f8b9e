//! `bivouac keep`: what `up` leaves behind where a formation over several hosts was started.

use std::process::ExitCode;

use bivouac_hosts::keep;
use bivouac_launch::{Environment, StateDir};

use crate::failure::Failure;
use crate::logging;
use crate::options::SuperviseArgs;

/// Keeps the hosts together until it is told to end.
pub fn run(here: &Environment, args: SuperviseArgs) -> Result<ExitCode, Failure> {
    logging::raise_at(here, "keeper", &StateDir::at(args.dir.clone()));
    keep(here, args.dir)?;
    Ok(ExitCode::SUCCESS)
}
