//! `bivouac pool archive`, and the way back.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bivouac_launch::{CAUGHT, Environment, LaunchError, Signals};
use bivouac_pool::{Copy, Location, Pool, PoolRef, Pools, Who};
use bivouac_stage::{CopyOptions, Silent, Summary, copy_tree};
use bivouac_types::units::{format_count, format_size};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::pool::{changing, dir_name, is_url, opened, remove_dir};
use crate::failure::Failure;
use crate::options::PoolArchiveArgs;
use crate::pools::now_s;
use crate::staging::interruptible;
use crate::versions::listing;

/// Signs of a digest that are in the name of a copy: those of another content have another name.
const SIGNS: usize = 16;

/// Copies a pool into an archive, and gives up its copy on site storage, if that is wished.
///
/// # Errors
/// Why it is not archived: then it is as it was, but for a copy that the next command of the same content goes on with.
pub fn run(here: &Environment, who: &Who, args: &PoolArchiveArgs) -> Result<(), Failure> {
    let mut pools = opened(here, &args.change.database)?;
    let meant = &args.change.pool;
    let found = pools.find(who, meant)?;
    if args.free && found.location == Location::Archive && found.is_own(who) {
        return freed(who, &found);
    }
    let pool = pools.archivable(&changing(who, &None), meant)?;
    let failed = |cause: &dyn std::fmt::Display| Failure::new(1, format_args!("pool {meant}: {cause}"));
    if is_url(&pool.source) || is_url(args.to.as_os_str().as_bytes()) {
        let text =
            "is archived from a directory into a directory; buckets are not archived or used as archives";
        return Err(Failure::new(2, format_args!("pool {meant}: {text}")));
    }
    let to = args.to.canonicalize();
    let to = to.map_err(|error| {
        Failure::new(1, format_args!("--to {}: {error}; check its path", args.to.display()))
    })?;
    let site = PathBuf::from(OsStr::from_bytes(&pool.source));
    if to.starts_with(&site) {
        return Err(failed(&"an archive in the pool itself is none; name a directory elsewhere: --to DIR"));
    }
    let _alone = alone(&site)?;
    let before = listing(&site)?.digest();
    let name = dir_name(pool.owner, &pool.name, pool.id);
    let copy = to.join(format!("{name}-{}", before.get(..SIGNS).unwrap_or(&before)));
    let at = |error: std::io::Error| failed(&format_args!("{}: {error}; check its path", to.display()));
    sweep(&to, &name).map_err(at)?;
    let fresh = beside(&copy, NEW);
    let summary = copied(&site, &fresh)?;
    let digest = hex(&summary.digest);
    let cause = if listing(&site)?.digest() != before {
        Some(CHANGED)
    } else if pool.archive.as_deref() == Some(copy.as_os_str().as_bytes())
        && pool.archive_digest.as_ref() != Some(&digest)
    {
        Some(DAMAGED)
    } else {
        None
    };
    if let Some(cause) = cause {
        std::fs::remove_dir_all(&fresh).map_err(at)?;
        return Err(failed(&cause));
    }
    put_in_place(&fresh, &copy).map_err(at)?;
    let noted = Copy { path: copy.as_os_str().as_bytes(), digest: &digest };
    pools.archived(&changing(who, &args.change.request.request), meant, &noted)?;
    outln!(
        "pool {} is archived, {} in {}: {}",
        pool.name,
        format_size(summary.bytes),
        format_count(summary.files, "file"),
        copy.display()
    );
    if args.free {
        free(&mut pools, who, &pool, &before)?;
        outln!(
            "its directory is removed: {}; get it back with: bivouac pool restore {}",
            site.display(),
            pool.name
        );
    }
    Ok(())
}

/// What a copy is called until it is whole and compared.
const NEW: &str = ".new";
const DAMAGED: &str = "has other contents than its copy in the archive, with the same names, sizes and times: one of both is \
                       damaged, so nothing is replaced or removed; look at it";
const CHANGED: &str =
    "was changed while it was archived, so nothing is noted or removed; ask again when nobody writes there";

/// From when it is noted nobody attaches it; what has come in between keeps it.
fn free(pools: &mut Pools, who: &Who, pool: &Pool, before: &str) -> Result<(), Failure> {
    let meant = meant(pool)?;
    pools.set_location(&changing(who, &None), &meant, Location::Archive, None)?;
    let site = Path::new(OsStr::from_bytes(&pool.source));
    if listing(site)?.digest() != before {
        pools.set_location(&changing(who, &None), &meant, Location::Both, None)?;
        return Err(Failure::new(1, format_args!("pool {meant}: {CHANGED}")));
    }
    remove_dir(pool, who.uid).map_err(|cause| not_removed(pool, &cause))
}

/// What was asked for before: what a command has left that was killed goes as well.
fn freed(who: &Who, pool: &Pool) -> Result<(), Failure> {
    remove_dir(pool, who.uid).map_err(|cause| not_removed(pool, &cause))?;
    let archive = String::from_utf8_lossy(pool.archive.as_deref().unwrap_or_default());
    outln!("pool {} is in its archive alone: {}", pool.name, super::pool::plain(&archive));
    Ok(())
}

fn not_removed(pool: &Pool, cause: &str) -> Failure {
    let text = "is in its archive, and its directory is not removed";
    Failure::new(1, format_args!("pool {}: {text}: {cause}", pool.full_name()))
}

/// Brings a pool back that is in its archive alone. Killed at any time, it is there alone still, and can be asked
/// again.
///
/// # Errors
/// That it cannot be copied, or that the archive does not hold what it held.
pub fn bring_back(
    pools: &mut Pools,
    who: &Who,
    pool: &Pool,
    request: &Option<String>,
) -> Result<(), Failure> {
    let failed =
        |cause: &dyn std::fmt::Display| Failure::new(1, format_args!("pool {}: {cause}", pool.full_name()));
    if !pool.is_own(who) {
        return Err(failed(&"is another user's, and only they and root get it back; ask them"));
    }
    let archive = PathBuf::from(OsStr::from_bytes(pool.archive.as_deref().unwrap_or_default()));
    let site = PathBuf::from(OsStr::from_bytes(&pool.source));
    let named = site.file_name() == Some(OsStr::new(&dir_name(pool.owner, &pool.name, pool.id)));
    if !named || !pool.is_made {
        return Err(failed(&format_args!("{} is not the directory that was made for it", site.display())));
    }
    let _alone = alone(&archive)?;
    // What a removal has left that was killed, or a way back.
    remove_dir(pool, who.uid).map_err(|cause| failed(&cause))?;
    // Beside it first: what does not fit the digest never gets its name.
    let beside = beside(&site, ".restored");
    let at = |error: std::io::Error| {
        failed(&format_args!("{}: {error}; look at it, and try again", site.display()))
    };
    let summary = copied(&archive, &beside)?;
    if pool.archive_digest.as_deref() != Some(hex(&summary.digest).as_str()) {
        std::fs::remove_dir_all(&beside).map_err(at)?;
        let text = "does not hold any more what was archived, so nothing is brought back; look at it, or put a copy back";
        return Err(failed(&format_args!("{} {text}", archive.display())));
    }
    // It keeps its number with its name, so that whoever is killed in between has it removed by the next command.
    let inode = std::fs::symlink_metadata(&beside).map_err(at)?.ino();
    let meant = meant(pool)?;
    pools.set_location(&changing(who, &None), &meant, Location::Archive, Some(inode))?;
    std::fs::rename(&beside, &site).map_err(at)?;
    File::open(site.parent().unwrap_or(&site)).and_then(|dir| dir.sync_all()).map_err(at)?;
    pools.set_location(&changing(who, request), &meant, Location::Both, None)?;
    outln!("pool {} is on site storage again: {}", pool.name, site.display());
    Ok(())
}

fn meant(pool: &Pool) -> Result<PoolRef, Failure> {
    format!("{}#{}", pool.full_name(), pool.id).parse().map_err(|error: String| Failure::new(1, error))
}

/// Of several commands that copy from a directory, one does.
fn alone(dir: &Path) -> Result<File, Failure> {
    let failed =
        |cause: std::io::Error| Failure::new(1, format_args!("{}: {cause}; check its path", dir.display()));
    let opened = File::open(dir).map_err(failed)?;
    match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            let text = "another command copies it; wait for that";
            Err(Failure::new(1, format_args!("{}: {text}", dir.display())))
        }
        // Where there are no locks, nobody knows of the others.
        Ok(()) | Err(Errno::NOTSUP | Errno::NOLCK) => Ok(opened),
        Err(error) => Err(failed(error.into())),
    }
}

fn beside(path: &Path, what: &str) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(what);
    PathBuf::from(beside)
}

/// Nothing is written into a copy that is there: killed in the middle, that would be neither the old one nor the new
/// one.
fn put_in_place(fresh: &Path, copy: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(copy) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::fs::rename(fresh, copy)?;
    File::open(copy.parent().unwrap_or(copy))?.sync_all()
}

/// Removes copies of a pool that were not whole when their command was killed.
fn sweep(archive: &Path, name: &str) -> std::io::Result<()> {
    for entry in std::fs::read_dir(archive)? {
        let entry = entry?;
        if is_unfinished(&entry.file_name(), name) && entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Whether a name is that of a copy of a pool, with what it is called until it is whole. Of no other pool: their names
/// may begin like this one's.
fn is_unfinished(entry: &OsStr, name: &str) -> bool {
    let Some(text) = entry.to_str() else { return false };
    let rest =
        text.strip_prefix('.').unwrap_or(text).strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
    let parts = rest.and_then(|rest| rest.split_at_checked(SIGNS));
    parts.is_some_and(|(signs, rest)| {
        let is_new =
            rest.strip_prefix(NEW).is_some_and(|rest| rest.is_empty() || rest.starts_with(".bivouac-"));
        signs.bytes().all(|sign| sign.is_ascii_hexdigit()) && is_new
    })
}

/// Removes what copies to this path have left that were killed, whole or not.
fn remove_left(to: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(to) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let (Some(dir), Some(name)) = (to.parent(), to.file_name()) else { return Ok(()) };
    let mut left = OsString::from(".");
    left.push(name);
    left.push(".bivouac-");
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().as_bytes().starts_with(left.as_bytes()) && entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// A whole tree, verified; interrupted by a signal, with nothing unfinished left.
fn copied(from: &Path, to: &Path) -> Result<Summary, Failure> {
    let left = |error| Failure::new(1, format_args!("{}: {error}; check its path", to.display()));
    remove_left(to).map_err(left)?;
    let signals = Signals::catch(&CAUGHT).map_err(|error| LaunchError::system("signals", error))?;
    let (copied, signal) = interruptible(&signals, |cancel| {
        copy_tree(from, to, &CopyOptions { cancel, ..CopyOptions::default() }, &Silent)
    });
    let failed = |cause: &dyn std::fmt::Display| {
        Failure::new(1, format_args!("{} to {}: {cause}", from.display(), to.display()))
    };
    if let Some(signal) = signal {
        return Err(failed(&format_args!("interrupted by {}", bivouac_types::format_signal(signal))));
    }
    let summary = copied.map_err(|error| failed(&error))?;
    if let Some(first) = summary.skipped.first() {
        let text =
            format!("{} cannot be copied, so this is no whole copy; move it away", first.path.display());
        return Err(failed(&text));
    }
    Ok(summary)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Where the copy of a pool in an archive is, for people.
pub fn said(pool: &Pool) -> Option<String> {
    let path = String::from_utf8_lossy(pool.archive.as_deref()?);
    let at_s = pool.archived_s.unwrap_or_else(now_s);
    Some(format!("{path}, as of {}", super::pool::time(at_s)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unfinished_copies_of_the_same_pool_are_swept() {
        let is = |entry: &str| is_unfinished(OsStr::new(entry), "0-mesh-1");
        assert!(is("0-mesh-1-0123456789abcdef.new") && is(".0-mesh-1-0123456789abcdef.new.bivouac-1"));
        for other in [
            "0-mesh-1-0123456789abcdef",
            "0-mesh-1-2-0123456789abcdef.new",
            "0-mesh-12-0123456789abcdef.new",
            "0-mesh-1-0123456789abcdeg.new",
            "0-mesh-1-0123456789abcdef.newer",
            "0-mesh-1-.new",
            "0-mesh-1-é",
        ] {
            assert!(!is(other), "{other}");
        }
    }
}
