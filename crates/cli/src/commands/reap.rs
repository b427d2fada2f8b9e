//! `bivouac reap`.

use std::process::ExitCode;

use bivouac_launch::{Environment, find_leftovers};

use crate::failure::Failure;
use crate::options::ReapArgs;

/// Names what dead formations left, and removes it unless only asked for the names.
pub fn run(here: &Environment, args: &ReapArgs) -> Result<ExitCode, Failure> {
    let found = find_leftovers(here)?;
    let mut failed = false;
    for left in &found.dead {
        if args.dry_run {
            outln!("would remove {}", left.describe());
            continue;
        }
        match left.remove(here, &mut |text| errln!("bivouac: {text}")) {
            Ok(()) => outln!("removed {}", left.describe()),
            Err(error) => {
                failed = true;
                errln!("bivouac: {}: {error}", left.describe());
            }
        }
    }
    for kept in &found.kept {
        outln!("left {kept}");
    }
    if found.dead.is_empty() && found.kept.is_empty() {
        outln!("nothing is left of dead formations");
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
