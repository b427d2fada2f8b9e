//! The grant tables of nodes, where processes that read and write subfiles themselves pass gates and tell sizes. They
//! are files in memory with names, so that they outlive a supervisor, too: who recovers the formation closes the gates
//! of programs that still run, and has the sizes that were told and not written down. A reboot takes them, and those
//! programs.
//!
//! ```text
//! /dev/shm/bivouac-UID-grants-FORMATION-nI     0600; locked (flock, shared) by the supervisor and the daemon of node I
//! /dev/shm/bivouac-UID-grants-FORMATION-nI.of  whose it is, also when all of them are dead: a note as in owner_note.rs
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bivouac_direct::GrantTable;
use rustix::fs::{FlockOperation, OFlags, flock};

use bivouac_types::TMPFS_MAGIC;

use crate::memory::MEMORY_DIR;
use crate::owner_note::OwnerNote;
use crate::state::FormationState;

/// Suffix of a note, behind the name of its grant table.
const OF: &str = ".of";
/// Attempts at opening one that somebody else removes at once.
const OPEN_TRIES: usize = 100;

/// A grant table that no process has.
#[derive(Debug)]
pub(crate) struct UnusedGrantTable {
    pub path: PathBuf,
    /// Its formation's id, hexadecimal.
    pub formation: String,
    /// Its owner, if that is recorded.
    pub owner: Option<OwnerNote>,
}

/// Opens the grant table of a node whose formation has its state in `home`, or makes it. Where there is no place for
/// names, it is a file without one.
///
/// # Errors
/// What the system says of memory without a name.
pub(crate) fn open(formation: &str, node: u16, home: &Path) -> io::Result<OwnedFd> {
    open_named(&path_of(formation, node), home).or_else(|error| {
        log::warn!(why:% = error; "node {node}: its memory for direct access does not outlive the supervisor");
        GrantTable::make()
    })
}

/// Removes those of a formation on this machine.
pub(crate) fn remove_all(state: &FormationState) {
    state.nodes.iter().for_each(|node| remove(&state.formation, node.id));
}

/// Removes that of one node.
pub(crate) fn remove(formation: &str, node: u16) {
    let path = path_of(formation, node);
    if let Err(error) = remove_at(&path) {
        log::warn!(why:% = error; "{}: is not removed", path.display());
    }
}

/// Removes one, and then the note of whose it was.
///
/// # Errors
/// What the system refused.
pub(crate) fn remove_at(path: &Path) -> io::Result<()> {
    for path in [path, &note_of(path)] {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Removes one if still no process has it. Whoever opens it meanwhile makes a new one.
///
/// # Errors
/// What the system refused.
pub(crate) fn remove_unused(path: &Path, uid: u32) -> io::Result<()> {
    let held = lock_unused(path, uid);
    if held.is_some() || !path.exists() { remove_at(path) } else { Ok(()) }
}

/// Returns this user's tables that no process has open, and those of which only the note is left.
pub(crate) fn unused(uid: u32) -> Vec<UnusedGrantTable> {
    let is_unused = |path: &Path| lock_unused(path, uid).is_some() || !path.exists();
    all(uid)
        .into_iter()
        .filter(|(path, _)| is_unused(path))
        .map(|(path, formation)| UnusedGrantTable {
            owner: OwnerNote::noted(&note_of(&path)),
            path,
            formation,
        })
        // A process that is removing one now has removed the note as well.
        .filter(|one| one.owner.is_some() || one.path.exists())
        .collect()
}

/// Returns the present and former locations of the states of this user's formations.
pub(crate) fn homes(uid: u32) -> BTreeSet<PathBuf> {
    all(uid).keys().filter_map(|path| Some(OwnerNote::noted(&note_of(path))?.home)).collect()
}

/// Returns the present or former location of the state of the formation that has the grant table of this node.
pub(crate) fn home_of(formation: &str, node: u16) -> Option<PathBuf> {
    OwnerNote::noted(&note_of(&path_of(formation, node))).map(|owner| owner.home)
}

fn all(uid: u32) -> BTreeMap<PathBuf, String> {
    let entries = std::fs::read_dir(MEMORY_DIR).into_iter().flatten().flatten();
    let ours = entries.filter_map(|entry| {
        let name = entry.file_name();
        let name = name.to_str()?;
        let table = name.strip_suffix(OF).unwrap_or(name);
        Some((Path::new(MEMORY_DIR).join(table), formation_of(table, uid)?))
    });
    ours.collect()
}

fn note_of(path: &Path) -> PathBuf {
    let mut note = path.as_os_str().to_owned();
    note.push(OF);
    note.into()
}

fn path_of(formation: &str, node: u16) -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    Path::new(MEMORY_DIR).join(format!("{}{formation}-n{node}", prefix(uid)))
}

fn prefix(uid: u32) -> String {
    format!("bivouac-{uid}-grants-")
}

fn formation_of(name: &str, uid: u32) -> Option<String> {
    let (formation, node) = name.strip_prefix(&prefix(uid))?.rsplit_once("-n")?;
    node.parse::<u16>().ok()?;
    crate::hex::formation_from_hex(formation).map(|_| formation.to_owned())
}

/// Locks a table that nobody uses. Until the result is dropped, nobody can begin to use it.
fn lock_unused(path: &Path, uid: u32) -> Option<File> {
    // Anybody may put a link or a FIFO there, which would lead elsewhere or wait for a writer.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let is_ours = file.metadata().is_ok_and(|seen| seen.is_file() && seen.uid() == uid);
    (is_ours && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()).then_some(file)
}

fn open_named(path: &Path, home: &Path) -> io::Result<OwnedFd> {
    let place = rustix::fs::statfs(MEMORY_DIR)?;
    if place.f_type as u64 != TMPFS_MAGIC {
        return Err(io::Error::other(format!("{MEMORY_DIR} is not in memory")));
    }
    for _ in 0..OPEN_TRIES {
        // The note first: a table without one may pass for nobody's.
        OwnerNote::at(home).note(&note_of(path))?;
        let file = open_own(path)?;
        // Shows reapers that somebody has it. They have it locked for a moment, and may have removed it then.
        rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockShared))?;
        if file.metadata()?.nlink() == 1 && OwnerNote::noted(&note_of(path)).is_some() {
            let file = OwnedFd::from(file);
            GrantTable::prepare(&file)?;
            return Ok(file);
        }
    }
    Err(io::Error::other("it is removed again and again"))
}

/// Opens a file of this user. Files of others are not used: anybody may make some in that place.
fn open_own(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).mode(0o600).custom_flags(flags).open(path)?;
    let seen = file.metadata()?;
    let ours = seen.is_file() && seen.uid() == rustix::process::geteuid().as_raw();
    if !ours || seen.nlink() != 1 || seen.mode() & 0o077 != 0 {
        return Err(io::Error::other(format!("{} is not ours alone", path.display())));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::sample;
    use bivouac_types::limits::DIRECT_SESSIONS_MAX;

    fn formation() -> String {
        crate::hex::to_hex(&crate::random::random_bytes::<16>().unwrap())
    }

    #[test]
    fn a_grant_table_outlives_who_made_it_and_goes_with_its_formation() {
        let uid = rustix::process::geteuid().as_raw();
        let state = FormationState { formation: formation(), ..sample() };
        let home = Path::new("/nonexistent/bivouac/x");
        let first = open(&state.formation, 0, home).unwrap();
        let grants = GrantTable::open(first.try_clone().unwrap()).unwrap();
        let gate = grants.gate(DIRECT_SESSIONS_MAX - 1, 5).unwrap();
        gate.mark([1, 2, 3]);
        let is_unused = || unused(uid).iter().any(|one| one.formation == state.formation);
        assert!(homes(uid).contains(home), "whose it is can be asked while it is in use");
        remove_unused(&path_of(&state.formation, 0), uid).unwrap();
        assert!(path_of(&state.formation, 0).exists(), "somebody has it");
        assert!(!is_unused());
        drop((gate, grants, first));
        // What another test starts just then has a copy of the lock for a moment.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !is_unused() {
            assert!(std::time::Instant::now() < until, "somebody has it");
            std::thread::yield_now();
        }
        let again = GrantTable::open(open(&state.formation, 0, home).unwrap()).unwrap();
        assert_eq!(again.gate(DIRECT_SESSIONS_MAX - 1, 5).unwrap().marked(), [1, 2, 3]);
        remove_all(&state);
        remove_all(&state);
        let path = path_of(&state.formation, 0);
        assert!(!path.exists() && !note_of(&path).is_symlink());
        OwnerNote::at(home).note(&note_of(&path)).unwrap();
        assert!(is_unused(), "the note is left of one whose removal was killed");
        remove_unused(&path, uid).unwrap();
        assert!(!is_unused());
    }

    #[test]
    fn what_is_not_ours_is_not_used() {
        let formation = formation();
        let path = path_of(&formation, 3);
        std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
        let home = Path::new("/nonexistent/bivouac/x");
        assert!(open_named(&path, home).is_err());
        assert!(open(&formation, 3, home).is_ok(), "without a name");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "x").unwrap();
        assert!(open_named(&path, home).is_err());
        remove_at(&path).unwrap();
        assert_eq!(formation_of("bivouac-1-grants-zz-n0", 1), None);
    }
}
