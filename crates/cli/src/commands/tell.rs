//! `bivouac tell`: what one host answers to `bivouac system` of another.

use std::process::ExitCode;

use bivouac_launch::{Environment, answer_lines};

use crate::failure::Failure;
use crate::options::TellArgs;
use crate::system::of_this_host;

/// Says what this host is.
pub fn run(here: &Environment, args: &TellArgs) -> Result<ExitCode, Failure> {
    let map = of_this_host(here, args.load);
    let text = serde_json::to_string(&map).map_err(std::io::Error::from)?;
    match &args.into {
        Some(dir) => {
            // Whole or not at all: whoever reads it does not know when it is done.
            let name: String = here.host.chars().map(|c| if c == '/' { '_' } else { c }).collect();
            std::fs::write(dir.join(format!("{name}.{}", std::process::id())), text)?;
        }
        None => out!("{}", answer_lines(&here.host, &text)),
    }
    Ok(ExitCode::SUCCESS)
}
