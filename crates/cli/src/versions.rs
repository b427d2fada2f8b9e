//! Versions of pools: looks through their directories, and notes what formations have left there.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bivouac_launch::Environment;
use bivouac_pool::{Access, Attachment, Caller, ChangeOrigin, Entry, Listing, Origin, Pools, is_url};

use crate::environment;
use crate::failure::Failure;
use crate::options::DatabaseArgs;
use crate::pools::{is_there, now_s, open, who};

/// Lists everything in a directory, without following links. Only names, sizes and times are read.
pub fn listing(root: &Path) -> Result<Listing, Failure> {
    let mut listing = Listing::default();
    let mut rest = vec![PathBuf::new()];
    while let Some(dir) = rest.pop() {
        let at = root.join(&dir);
        let failed = |error| Failure::new(1, format_args!("{}: {error}; check its path", at.display()));
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&at).map_err(failed)? {
            names.push(entry.map_err(failed)?.file_name());
        }
        // In order, so that the same tree gives the same digest.
        names.sort();
        let mut dirs = Vec::new();
        for name in names {
            let path = dir.join(&name);
            let found = match std::fs::symlink_metadata(root.join(&path)) {
                // Removed since its name was read.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                found => found.map_err(failed)?,
            };
            if found.is_dir() {
                dirs.push(path);
                continue;
            }
            let changed = (found.mtime(), u32::try_from(found.mtime_nsec()).unwrap_or(0));
            listing.add(
                path.as_os_str().as_bytes(),
                Entry { is_file: found.is_file(), size: found.len(), changed },
            );
        }
        // The last one is looked at first.
        rest.extend(dirs.into_iter().rev());
    }
    Ok(listing)
}

/// Returns the origin of a version: by what, and in which job of a batch system.
pub fn origin(what: impl Into<String>) -> Origin {
    Origin { what: what.into(), job: environment::job().unwrap_or_default() }
}

/// Notes what the pools hold that a formation had to write, now that all of it is there. The formation has ended either
/// way, so what goes wrong is said.
pub fn after(here: &Environment, database: &DatabaseArgs, formation: &str) {
    // Opening the user's own database would make it, for somebody who has no pools.
    if !is_there(here, database) {
        return;
    }
    if let Err(failure) = note(here, database, formation) {
        errln!("bivouac: {failure}; what its pools hold now is not noted: bivouac pool count");
    }
}

fn note(here: &Environment, database: &DatabaseArgs, formation: &str) -> Result<(), Failure> {
    let (mut pools, who) = (open(here, database)?, who(here)?);
    let had = pools.attachments_on(&here.host, here.uid)?;
    let mut failures = Vec::new();
    for one in had.iter().filter(|one| one.formation == formation && one.access == Access::Rw) {
        if let Err(failure) = note_one(&mut pools, &who, one) {
            failures.push(failure.to_string());
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(Failure::new(1, failures.join("\n"))) }
}

fn note_one(pools: &mut Pools, who: &Caller, one: &Attachment) -> Result<(), Failure> {
    // It may be released since.
    let Some(pool) = pools.numbered(who, one.pool)? else { return Ok(()) };
    if is_url(&pool.source) {
        return Ok(());
    }
    // Outside of the change: looking through a large tree takes minutes.
    let listing = listing(Path::new(OsStr::from_bytes(&pool.source)))?;
    let change = ChangeOrigin { who, now_s: now_s(), request: None };
    pools.drained(&change, pool.id, &listing, &origin(format!("drain of {}", one.formation)))?;
    Ok(())
}
