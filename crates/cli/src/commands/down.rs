//! `bivouac down`.

use std::process::ExitCode;

use bivouac_launch::{StateDir, Surroundings, take_down};

use crate::failure::Failure;
use crate::options::DownArgs;

/// Takes a formation down and says what is left: nothing.
pub fn run(here: &Surroundings, args: &DownArgs) -> Result<ExitCode, Failure> {
    let (name, dir) = StateDir::find(here, args.which.name.as_ref())?;
    let remains = take_down(here, &dir, args.discard, &mut |text| eprintln!("bivouac: {text}"))?;
    println!("formation {name} is down; {remains}");
    Ok(if remains.is_nothing() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
