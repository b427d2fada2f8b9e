//! The directory in `/dev/shm` that holds the memory volumes of one formation. Memory outlives the directory of the
//! formation's state (which goes at log-out, for instance), so this one says by itself whose it is: a link leads to
//! the state's directory, a note says whose it is (`owner_note.rs`), and the supervisor has it locked.
//!
//! ```text
//! /dev/shm/bivouac-UID-NAME-XXXXXXXX/     0700; locked (flock, shared) by whoever starts or supervises the formation
//! ├── formation -> BASE/NAME
//! ├── owner -> NOTE
//! └── nI                                  volume of node I, locked by its daemon
//! ```

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bivouac_store::{StoreError, VolumeIdentity, claim_existing, remove_volume};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use crate::environment::{Environment, make_private_dir, remove_around};
use crate::memory::MEMORY_DIR;
use crate::owner_note::OwnerNote;
use crate::recovery_notes::why_volumes_are_kept;
use crate::state::FormationState;
use crate::state_dir::{StateDir, is_still};
use crate::{Kind, LaunchError, LaunchResult, grant_tables};

const LINK: &str = "formation";
const OWNER: &str = "owner";
/// A directory without a link that is younger than this may be under construction.
const YOUNG: Duration = Duration::from_secs(60);
/// Time that it may take others to look at one.
const LOOK_MAX: Duration = Duration::from_secs(2);
/// After how long it is tried again meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Returns the name of a formation's directory. `id` are the hexadecimal digits of the formation's.
pub(crate) fn name_of(here: &Environment, formation: &crate::FormationName, id: &str) -> String {
    // The name is taken in one runtime directory only, and all share this place.
    let unique = id.get(..8).unwrap_or(id);
    format!("{}{formation}-{unique}", prefix(here))
}

fn prefix(here: &Environment) -> String {
    format!("bivouac-{}-", here.uid)
}

/// Makes it.
///
/// # Errors
/// What the system refused.
pub(crate) fn make(root: &Path, home: &StateDir) -> LaunchResult<()> {
    make_private_dir(root)?;
    note_owner(root, home)?;
    let link = root.join(LINK);
    match symlink(home.path(), &link) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(LaunchError::path(&link, "make the link", error))
        }
        _ => Ok(()),
    }
}

fn note_owner(root: &Path, home: &StateDir) -> LaunchResult<()> {
    let link = root.join(OWNER);
    OwnerNote::at(home.path()).note(&link).map_err(|e| LaunchError::path(&link, "note whose it is", e))
}

/// Updates the link of a directory that was made for a formation, to where its state is now. Any other directory is
/// left alone.
///
/// # Errors
/// Those of the system.
pub(crate) fn adopt(root: &Path, home: &StateDir) -> LaunchResult<()> {
    match home_of(root) {
        Some(known) if known != home.path() => {
            note_owner(root, home)?;
            let (link, new) = (root.join(LINK), root.join(format!("{LINK}.tmp")));
            let _of_one_that_was_killed = std::fs::remove_file(&new);
            let replaced = symlink(home.path(), &new).and_then(|()| std::fs::rename(&new, &link));
            replaced.map_err(|e| LaunchError::path(&link, "replace the link", e))
        }
        _ => Ok(()),
    }
}

/// Returns whether the state of its formation is there, in whatever runtime directory.
pub(crate) fn has_state(root: &Path) -> bool {
    home_of(root).is_some_and(|home| home.join("state.json").exists())
}

/// Returns all such directories of this user.
pub(crate) fn all(here: &Environment) -> Vec<PathBuf> {
    let prefix = prefix(here);
    let entries = std::fs::read_dir(MEMORY_DIR).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| {
        let named = entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix));
        named && entry.metadata().is_ok_and(|seen| seen.is_dir() && seen.uid() == here.uid)
    });
    ours.map(|entry| entry.path()).collect()
}

/// Removes it, or any other directory that was made for a formation; one that is not empty then is left.
///
/// # Errors
/// What the system refused.
pub(crate) fn remove(root: &Path) -> LaunchResult<()> {
    if home_of(root).is_some() {
        // The link last: without it nobody takes the directory for a formation's and repeats the removal.
        for link in [OWNER, LINK].map(|link| root.join(link)) {
            match std::fs::remove_file(&link) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(LaunchError::path(&link, "remove it", error));
                }
                _ => {}
            }
        }
    }
    match std::fs::remove_dir(root) {
        Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => {
            Err(LaunchError::path(root, "remove the directory", error))
        }
        _ => {
            remove_around(root);
            Ok(())
        }
    }
}

/// Returns the present and former locations of the states of this user's memory.
pub(crate) fn homes(here: &Environment) -> Vec<PathBuf> {
    all(here).iter().filter_map(|root| home_of(root)).collect()
}

/// Returns the present or former location of the state of a directory's formation.
pub(crate) fn home_of(root: &Path) -> Option<PathBuf> {
    std::fs::read_link(root.join(LINK)).ok()
}

/// Shows, as long as the result is there, that a formation's memory belongs to somebody who lives.
///
/// # Errors
/// When it is just being removed by somebody who took it for dead.
pub(crate) fn hold_all(state: &FormationState) -> LaunchResult<Vec<OwnedFd>> {
    state.own_dirs.iter().filter(|dir| home_of(dir).is_some()).map(|dir| hold(dir)).collect()
}

fn hold(root: &Path) -> LaunchResult<OwnedFd> {
    let refused = |error| LaunchError::path(root, "take hold of it", error);
    let begun = Instant::now();
    loop {
        match lock(root, FlockOperation::NonBlockingLockShared) {
            // Others take it for a moment to look whether anybody has it, or to remove it, which shows by then.
            Err(Errno::WOULDBLOCK) if begun.elapsed() < LOOK_MAX => std::thread::park_timeout(LOOK_AGAIN),
            Ok(held) if is_still(&held, root) => return Ok(held),
            Ok(_) => return Err(refused(Errno::NOENT)),
            Err(error) => return Err(refused(error)),
        }
    }
}

fn lock(root: &Path, how: FlockOperation) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let dir = rustix::fs::open(root, flags, Mode::empty())?;
    flock(&dir, how)?;
    Ok(dir)
}

/// Memory that no formation uses any more.
#[derive(Debug)]
pub(crate) struct Abandoned {
    root: PathBuf,
    volumes: Vec<(PathBuf, VolumeIdentity)>,
    /// While this is there, nobody can begin to use it.
    _lock: OwnedFd,
}

impl Abandoned {
    /// Returns the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.root
    }

    /// Returns the number of volumes that it has.
    pub(crate) fn volumes(&self) -> usize {
        self.volumes.len()
    }

    /// Removes it.
    ///
    /// # Errors
    /// What could not be removed.
    pub(crate) fn remove(&self) -> LaunchResult<()> {
        for (path, identity) in &self.volumes {
            remove_volume(path, identity.formation, true)
                .map_err(|error| LaunchError::said(Kind::Refused, error.to_string()))?;
            grant_tables::remove(&crate::hex::to_hex(&identity.formation.0), identity.node.0);
        }
        for entry in std::fs::read_dir(&self.root).into_iter().flatten().flatten() {
            // A volume that its daemon had only made, or nothing of ours: then it stays.
            let _not_empty = std::fs::remove_dir(entry.path());
        }
        remove(&self.root)
    }
}

/// Returns this user's memory whose formation has neither a state nor a process any more. Doubtful cases are left out,
/// and passed to `doubt`.
pub(crate) fn abandoned(here: &Environment, doubt: &mut dyn FnMut(String)) -> Vec<Abandoned> {
    let prefix = prefix(here);
    let entries = std::fs::read_dir(MEMORY_DIR).into_iter().flatten().flatten();
    let ours =
        entries.filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix)));
    ours.filter_map(|entry| look_at(here, entry.path(), doubt)).collect()
}

fn look_at(here: &Environment, root: PathBuf, doubt: &mut dyn FnMut(String)) -> Option<Abandoned> {
    let seen =
        std::fs::symlink_metadata(&root).ok().filter(|seen| seen.is_dir() && seen.uid() == here.uid)?;
    match owner_of(&root) {
        // Its own state says more, and goes first.
        Some(owner) if owner.home.exists() => return None,
        Some(owner) if !owner.is_seen() => {
            let text = "nobody uses it here, but it cannot be told whether its data is to be kept";
            doubt(format!("{}: {text}: its state was in {}", root.display(), owner.home.display()));
            return None;
        }
        Some(_) => {}
        None if seen.modified().is_ok_and(|made| made.elapsed().is_ok_and(|age| age > YOUNG)) => {}
        None => return None,
    }
    let lock = lock(&root, FlockOperation::NonBlockingLockExclusive).ok()?;
    let volumes = unused_volumes(&root)?;
    if let Some(why) = why_volumes_are_kept(&volumes) {
        let text = "nobody uses it, and its state is gone, but it holds data that is nowhere else";
        doubt(format!("{}: {text}: {why}", root.display()));
        return None;
    }
    Some(Abandoned { root, volumes, _lock: lock })
}

/// Returns the owner of a directory, by its note if that fits the link.
fn owner_of(root: &Path) -> Option<OwnerNote> {
    let home = home_of(root)?;
    let noted = OwnerNote::noted(&root.join(OWNER)).filter(|owner| owner.home == home);
    Some(noted.unwrap_or_else(|| OwnerNote::unseen(home)))
}

fn is_volume(entry: &OsStr) -> bool {
    entry != LINK && entry != OWNER
}

/// Returns the volumes, if no daemon has any of them.
fn unused_volumes(root: &Path) -> Option<Vec<(PathBuf, VolumeIdentity)>> {
    let mut volumes = Vec::new();
    for entry in std::fs::read_dir(root).ok()?.flatten().filter(|entry| is_volume(&entry.file_name())) {
        match claim_existing(&entry.path()) {
            Ok((_not_in_use, identity)) => volumes.push((entry.path(), identity)),
            Err(StoreError::InUse { .. }) => return None,
            Err(_) => {}
        }
    }
    Some(volumes)
}
