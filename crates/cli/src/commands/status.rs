//! `bivouac status`.

use std::process::ExitCode;

use bivouac_launch::{StateDir, Surroundings};

use crate::failure::Failure;
use crate::options::StatusArgs;
use crate::status::look;

/// Shows a formation.
pub fn run(here: &Surroundings, args: &StatusArgs) -> Result<ExitCode, Failure> {
    let (_, dir) = StateDir::find_whole(here, args.which.name.as_ref())?;
    let report = look(&dir)?;
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&report).map_err(std::io::Error::from)?);
    } else {
        out!("{}", report.to_text(args.operations));
    }
    Ok(if report.state == "dead" { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
