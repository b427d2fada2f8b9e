//! `bivouac pool archive`, and the way back.

mod bucket;
mod directory;

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bivouac_launch::{CAUGHT, Environment, LaunchError, Signals};
use bivouac_pool::{ArchiveCopy, Caller, Location, Pool, PoolRef, Pools, is_url};
use bivouac_stage::{Summary, remove_tree};
use bivouac_types::hex::to_hex;
use bivouac_types::units::{format_count, format_size};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use self::bucket::Bucket;
use super::pool::{changing, dir_name, opened, plain, remove_dir};
use crate::failure::Failure;
use crate::options::PoolArchiveArgs;
use crate::pools::now_s;
use crate::staging::interruptible;
use crate::versions::listing;

/// Signs of a digest that are in the name of a copy: those of another content have another name.
const SIGNS: usize = 16;
const DAMAGED: &str = "has other contents than its copy in the archive, with the same names, sizes and times: one of both is \
                       damaged, so nothing is replaced or removed; look at it";
const CHANGED: &str =
    "was changed while it was archived, so nothing is noted or removed; ask again when nobody writes there";

/// Request to archive a pool.
struct ArchiveRequest<'a> {
    meant: &'a PoolRef,
    pool: &'a Pool,
    site: &'a Path,
    /// Name of its copies, and of this copy.
    name: &'a str,
    signs: &'a str,
    /// Digest of names, sizes and times.
    before: &'a str,
}

/// An archive that is complete.
struct CompletedArchive {
    summary: Summary,
    /// Its path, or its URL.
    place: Vec<u8>,
}

impl ArchiveRequest<'_> {
    fn failed(&self, cause: impl Display) -> Failure {
        Failure::new(1, format_args!("pool {}: {cause}", self.meant))
    }

    /// Checks that what was copied to a place may be the pool's copy there.
    fn must_be_kept(&self, summary: &Summary, place: &[u8]) -> Result<(), Failure> {
        let noted = self.pool.archive_digest.as_ref().filter(|_| self.pool.archive.as_deref() == Some(place));
        if listing(self.site)?.digest() != self.before {
            return Err(self.failed(CHANGED));
        }
        if noted.is_some_and(|noted| *noted != to_hex(&summary.digest)) {
            return Err(self.failed(DAMAGED));
        }
        Ok(())
    }
}

/// Copies a pool into an archive, and gives up its copy on site storage, if that is wished.
///
/// # Errors
/// Why it is not archived: then it is as it was, but for a copy that the next command of the same content goes on with.
pub fn run(here: &Environment, who: &Caller, args: &PoolArchiveArgs) -> Result<(), Failure> {
    let mut pools = opened(here, &args.change.database)?;
    let meant = &args.change.pool;
    let found = pools.find(who, meant)?;
    if args.free && found.location == Location::Archive && found.is_own(who) {
        return freed(who, &found);
    }
    let pool = pools.archivable(&changing(who, &None), meant)?;
    let refused = |cause: &dyn Display| Failure::new(2, format_args!("pool {meant}: {cause}"));
    if is_url(&pool.source) {
        return Err(refused(&"is archived from a directory; buckets are not archived"));
    }
    let to = args.to.as_os_str();
    let bucket = match (is_url(to.as_bytes()), to.to_str()) {
        (false, _) => None,
        (true, Some(url)) => Some(Bucket::parse(url).map_err(|cause| refused(&format!("--to: {cause}")))?),
        (true, None) => return Err(refused(&"--to: a URL is UTF-8; write s3://BUCKET/PREFIX")),
    };
    let site = PathBuf::from(OsStr::from_bytes(&pool.source));
    let _alone = alone(&site)?;
    let before = listing(&site)?.digest();
    let name = dir_name(pool.owner, &pool.name, pool.id);
    let signs = before.get(..SIGNS).unwrap_or(&before);
    let asked = ArchiveRequest { meant, pool: &pool, site: &site, name: &name, signs, before: &before };
    let CompletedArchive { summary, place } = match &bucket {
        Some(bucket) => bucket.put(&asked)?,
        None => directory::put(&args.to, &asked)?,
    };
    let noted = ArchiveCopy { path: &place, digest: &to_hex(&summary.digest) };
    pools.archived(&changing(who, &args.change.request.request), meant, &noted)?;
    outln!(
        "pool {} is archived, {} in {}: {}",
        pool.name,
        format_size(summary.bytes),
        format_count(summary.files, "file"),
        plain(&String::from_utf8_lossy(&place))
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

/// Frees the space of an archived pool. From the record on nobody attaches it; if it was changed before that, it stays.
fn free(pools: &mut Pools, who: &Caller, pool: &Pool, before: &str) -> Result<(), Failure> {
    let meant = meant(pool)?;
    pools.set_location(&changing(who, &None), &meant, Location::Archive, None)?;
    let site = Path::new(OsStr::from_bytes(&pool.source));
    if listing(site)?.digest() != before {
        pools.set_location(&changing(who, &None), &meant, Location::Both, None)?;
        return Err(Failure::new(1, format_args!("pool {meant}: {CHANGED}")));
    }
    remove_dir(pool, who.uid).map_err(|cause| not_removed(pool, &cause))
}

/// Completes the removal for a pool that is in its archive alone: a killed command may have left some of it.
fn freed(who: &Caller, pool: &Pool) -> Result<(), Failure> {
    remove_dir(pool, who.uid).map_err(|cause| not_removed(pool, &cause))?;
    let archive = String::from_utf8_lossy(pool.archive.as_deref().unwrap_or_default());
    outln!("pool {} is in its archive alone: {}", pool.name, plain(&archive));
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
    who: &Caller,
    pool: &Pool,
    request: &Option<String>,
) -> Result<(), Failure> {
    let failed = |cause: &dyn Display| Failure::new(1, format_args!("pool {}: {cause}", pool.full_name()));
    if !pool.is_own(who) {
        return Err(failed(&"is another user's, and only they and root get it back; ask them"));
    }
    let site = PathBuf::from(OsStr::from_bytes(&pool.source));
    let named = site.file_name() == Some(OsStr::new(&dir_name(pool.owner, &pool.name, pool.id)));
    if !named || !pool.is_made {
        return Err(failed(&format_args!("{} is not the directory that was made for it", site.display())));
    }
    let workshop = AssemblyDir::open(&site, who.uid)?;
    // Another command may have done it until then.
    let pool = pools.find(who, &meant(pool)?)?;
    if pool.location == Location::Archive {
        put_back(pools, who, &pool, request, &workshop)?;
    }
    outln!("pool {} is on site storage again: {}", pool.name, site.display());
    Ok(())
}

fn put_back(
    pools: &mut Pools,
    who: &Caller,
    pool: &Pool,
    request: &Option<String>,
    workshop: &AssemblyDir,
) -> Result<(), Failure> {
    let failed = |cause: &dyn Display| Failure::new(1, format_args!("pool {}: {cause}", pool.full_name()));
    let (site, tree) = (&workshop.site, &workshop.tree);
    let at = |error: std::io::Error| {
        failed(&format_args!("{}: {error}; look at it, and try again", site.display()))
    };
    // What a removal has left that was killed, or a way back.
    remove_dir(pool, who.uid).map_err(|cause| failed(&cause))?;
    let archive = pool.archive.as_deref().unwrap_or_default();
    let shown = plain(&String::from_utf8_lossy(archive));
    let summary = match str::from_utf8(archive) {
        Ok(url) if is_url(archive) => {
            Bucket::parse(url).map_err(|cause| failed(&cause))?.fetch(pool.archive_digest.as_deref(), tree)?
        }
        _ => directory::copied(Path::new(OsStr::from_bytes(archive)), tree)?,
    };
    if pool.archive_digest.as_deref() != Some(to_hex(&summary.digest).as_str()) {
        let text = "does not hold any more what was archived, so nothing is brought back; look at it, or put a copy back";
        return Err(failed(&format_args!("{shown} {text}")));
    }
    // It keeps its number with its name, so that whoever is killed in between has it removed by the next command.
    let inode = std::fs::symlink_metadata(tree).map_err(at)?.ino();
    let meant = meant(pool)?;
    pools.set_location(&changing(who, &None), &meant, Location::Archive, Some(inode))?;
    std::fs::rename(tree, site).map_err(at)?;
    File::open(site.parent().unwrap_or(site)).and_then(|dir| dir.sync_all()).map_err(at)?;
    pools.set_location(&changing(who, request), &meant, Location::Both, None)?;
    Ok(())
}

/// The directory beside a pool's, in which one command at a time puts its tree together: what does not fit the digest
/// never gets its name. It goes when this does.
struct AssemblyDir {
    site: PathBuf,
    tree: PathBuf,
    dir: PathBuf,
    _alone: File,
}

impl AssemblyDir {
    fn open(site: &Path, uid: u32) -> Result<AssemblyDir, Failure> {
        let mut dir = OsString::from(site);
        dir.push(".restored");
        let dir = PathBuf::from(dir);
        let failed = |cause: &dyn Display| Failure::new(1, format_args!("{}: {cause}", dir.display()));
        let system = |error: std::io::Error| failed(&format_args!("{error}; check its path"));
        match DirBuilder::new().mode(0o700).create(&dir) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => made.map_err(system)?,
        }
        let found = std::fs::symlink_metadata(&dir).map_err(system)?;
        let dir = dir.canonicalize().map_err(system)?;
        if !found.is_dir() || found.uid() != uid {
            return Err(failed(&"is in the way: it is no directory of yours; look at it, and move it away"));
        }
        let alone = alone(&dir)?;
        // Whoever had it may have removed it.
        let locked = alone.metadata().map_err(system)?;
        let is_there = std::fs::symlink_metadata(&dir).is_ok_and(|there| there.ino() == locked.ino());
        if !is_there {
            return Err(failed(&"another command has just brought it back; ask again"));
        }
        // What a command has left that was killed.
        for entry in std::fs::read_dir(&dir).map_err(system)? {
            remove_tree(&entry.map_err(system)?.path()).map_err(system)?;
        }
        let tree = dir.join(site.file_name().unwrap_or_default());
        Ok(AssemblyDir { site: site.to_owned(), tree, dir, _alone: alone })
    }
}

impl Drop for AssemblyDir {
    fn drop(&mut self) {
        // The next command removes what stays.
        let _ = remove_tree(&self.dir);
    }
}

fn meant(pool: &Pool) -> Result<PoolRef, Failure> {
    format!("{}#{}", pool.full_name(), pool.id).parse().map_err(|error: String| Failure::new(1, error))
}

/// Locks a directory, so that of several commands that copy from it, or into it, one does.
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

/// Does something that a signal can end.
fn unless_interrupted<T>(what: &str, work: impl FnOnce(Arc<AtomicBool>) -> T) -> Result<T, Failure> {
    let signals = Signals::catch(&CAUGHT).map_err(|error| LaunchError::system("signals", error))?;
    match interruptible(&signals, work) {
        (done, None) => Ok(done),
        (_, Some(signal)) => {
            let signal = bivouac_types::format_signal(signal);
            Err(Failure::new(1, format_args!("{what}: interrupted by {signal}")))
        }
    }
}

/// Returns whether a text is what a digest begins with in the name of a copy.
fn is_signs(text: &str) -> bool {
    text.len() == SIGNS && text.bytes().all(|sign| sign.is_ascii_hexdigit())
}

/// Returns the place of a pool's copy in an archive, for people.
pub fn said(pool: &Pool) -> Option<String> {
    let path = String::from_utf8_lossy(pool.archive.as_deref()?);
    let at_s = pool.archived_s.unwrap_or_else(now_s);
    Some(format!("{path}, as of {}", super::pool::time(at_s)))
}
