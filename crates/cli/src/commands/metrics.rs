//! `bivouac metrics`.

use std::process::ExitCode;

use bivouac_launch::{Environment, StateDir};
use bivouac_monitor::render_metrics;
use bivouac_monitor::status::look;

use crate::failure::Failure;
use crate::options::MetricsArgs;

/// Writes the figures once. A formation that is degraded says so in them, not by the exit code: who gathers them would
/// otherwise throw them away just then.
pub fn run(here: &Environment, args: &MetricsArgs) -> Result<ExitCode, Failure> {
    let (_, dir) = StateDir::find_whole(here, args.which.name())?;
    out!("{}", render_metrics(&look(&dir)?, args.format.into()));
    Ok(ExitCode::SUCCESS)
}
