//! `bivouac poll`: what keeps processors from going idle while a daemon serves small requests.

use std::process::ExitCode;

use crate::failure::Failure;
use crate::options::PollArgs;

/// Polls until the daemon ends.
pub fn run(args: &PollArgs) -> Result<ExitCode, Failure> {
    bivouac_launch::idle_poll::serve(args.daemon)?;
    Ok(ExitCode::SUCCESS)
}
