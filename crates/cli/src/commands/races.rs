//! `bivouac races`: conflicting accesses that nothing orders, and the weakest contract under which they are right.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bivouac_launch::{Environment, StateDir};

use crate::failure::Failure;
use crate::options::RacesArgs;
use crate::race_list::{ANSWER_WAIT, RaceList};
use crate::reach::{self, MountedPath};

/// Lists races; the exit code is 1 if there are any, 2 if there are none as far as is known and the list is not
/// complete.
pub fn run(here: &Environment, args: &RacesArgs) -> Result<ExitCode, Failure> {
    let list = match args.paths.first() {
        None => RaceList::of_formation(&StateDir::find_whole(here, args.which.name.as_ref())?.1)?,
        Some(first) => below(here, first, &args.paths)?,
    };
    if args.json {
        outln!("{}", crate::output::json(&list.to_report(), true)?);
    } else {
        out!("{}", list.to_text(args.all));
    }
    Ok(match (list.has_races(), list.is_complete()) {
        (true, _) => ExitCode::from(1),
        (false, false) => ExitCode::from(2),
        (false, true) => ExitCode::SUCCESS,
    })
}

/// Returns the races of files at or below some paths, all of the formation of the first.
fn below(here: &Environment, first: &Path, paths: &[PathBuf]) -> Result<RaceList, Failure> {
    let MountedPath { client, entry, .. } = reach::of_path(here, first, ANSWER_WAIT)?;
    let mut tops = Vec::new();
    for path in paths {
        let failed = |error| Failure::new(1, format_args!("{}: {error}; check its path", path.display()));
        let resolved = path.canonicalize().map_err(failed)?;
        let Ok(top) = resolved.strip_prefix(&entry.dir) else {
            let text = format!("{}: is not in the formation of {}", path.display(), first.display());
            return Err(Failure::new(1, text));
        };
        tops.push(top.to_owned());
    }
    let mut list = RaceList::ask(client)?;
    list.keep_below(&tops);
    Ok(list)
}
