//! `bivouac end`: `down`, as the supervisor starts it when a formation's purpose is over.

use std::process::ExitCode;

use bivouac_launch::{Environment, StateDir};

use super::down::take_away;
use crate::failure::Failure;
use crate::options::EndArgs;

/// Takes a formation down, unless it holds data that is to be kept.
pub fn run(here: &Environment, args: EndArgs) -> Result<ExitCode, Failure> {
    let dir = StateDir::at(args.dir);
    match dir.read()? {
        Some(state) => match dir.begin_end(&state.formation, || ())? {
            Some(_ending) => take_away(here, &dir, state, false),
            None => Ok(ExitCode::SUCCESS),
        },
        None => Ok(ExitCode::SUCCESS),
    }
}
