//! `bivouac metrics`.

use std::process::ExitCode;

use bivouac_launch::{Environment, StateDir};

use crate::failure::Failure;
use crate::metrics::render;
use crate::options::MetricsArgs;
use crate::status::look;

/// Writes the figures once. A formation that is degraded says so in them, not by the exit code: who gathers them would
/// otherwise throw them away just then.
pub fn run(here: &Environment, args: &MetricsArgs) -> Result<ExitCode, Failure> {
    let (_, dir) = StateDir::find_whole(here, args.which.name.as_ref())?;
    out!("{}", render(&look(&dir)?, args.format));
    Ok(ExitCode::SUCCESS)
}
