//! The grant tables of nodes, where processes that read and write subfiles themselves pass gates and tell sizes. They are files in
//! memory with names, so that they outlive a supervisor, too: who recovers the formation closes the gates of programs that
//! still run, and has the sizes that were told and not written down. A reboot takes them, and those programs.
//!
//! ```text
//! /dev/shm/bivouac-UID-grants-FORMATION-nI     0600; locked (flock, shared) by the supervisor and the daemon of node I
//! ```

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bivouac_direct::GrantTable;
use rustix::fs::{FlockOperation, OFlags, flock};

use crate::memory_root::MEMORY_DIR;
use crate::state::State;

const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Opens the grant table of a node, or makes it. Where there is no place for names, it is a file without one.
///
/// # Errors
/// What the system says of memory without a name.
pub(crate) fn open(formation: &str, node: u16) -> io::Result<OwnedFd> {
    open_named(&path_of(formation, node)).or_else(|error| {
        log::warn!("node {node}: its memory for direct access does not outlive the supervisor: {error}");
        GrantTable::make()
    })
}

/// Removes those of a formation on this machine.
pub(crate) fn remove_all(state: &State) {
    state.nodes.iter().for_each(|node| remove(&state.formation, node.id));
}

/// Removes that of one node.
pub(crate) fn remove(formation: &str, node: u16) {
    let path = path_of(formation, node);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            log::warn!("{}: is not removed: {error}", path.display());
        }
        _ => {}
    }
}

/// GrantTables of this user that no process has: each with its formation's id, hexadecimal.
pub(crate) fn unused(uid: u32) -> Vec<(PathBuf, String)> {
    let entries = std::fs::read_dir(MEMORY_DIR).into_iter().flatten().flatten();
    let ours = entries.filter_map(|entry| {
        let formation = formation_of(entry.file_name().to_str()?, uid)?;
        Some((entry.path(), formation))
    });
    ours.filter(|(path, _)| is_unused(path, uid)).collect()
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

fn is_unused(path: &Path, uid: u32) -> bool {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(path) else { return false };
    file.metadata().is_ok_and(|seen| seen.is_file() && seen.uid() == uid)
        && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

fn open_named(path: &Path) -> io::Result<OwnedFd> {
    let place = rustix::fs::statfs(MEMORY_DIR)?;
    if place.f_type as u64 != TMPFS_MAGIC {
        return Err(io::Error::other(format!("{MEMORY_DIR} is not in memory")));
    }
    let file = open_own(path)?;
    // Shows reapers that somebody has it. They have it locked for a moment.
    rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockShared))?;
    let file = OwnedFd::from(file);
    GrantTable::prepare(&file)?;
    Ok(file)
}

/// What others put there is not used: anybody may make files in that place.
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
        let state = State { formation: formation(), ..sample() };
        let first = open(&state.formation, 0).unwrap();
        let grants = GrantTable::open(first.try_clone().unwrap()).unwrap();
        let gate = grants.gate(DIRECT_SESSIONS_MAX - 1, 5).unwrap();
        gate.mark([1, 2, 3]);
        let is_unused = || unused(uid).iter().any(|(_, formation)| *formation == state.formation);
        assert!(!is_unused());
        drop((gate, grants, first));
        // What another test starts just then has a copy of the lock for a moment.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !is_unused() && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
        assert!(is_unused());
        let again = GrantTable::open(open(&state.formation, 0).unwrap()).unwrap();
        assert_eq!(again.gate(DIRECT_SESSIONS_MAX - 1, 5).unwrap().marked(), [1, 2, 3]);
        remove_all(&state);
        remove_all(&state);
        assert!(!path_of(&state.formation, 0).exists());
    }

    #[test]
    fn what_is_not_ours_is_not_used() {
        let formation = formation();
        let path = path_of(&formation, 3);
        std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
        assert!(open_named(&path).is_err());
        assert!(open(&formation, 3).is_ok(), "without a name");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "x").unwrap();
        assert!(open_named(&path).is_err());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(formation_of("bivouac-1-grants-zz-n0", 1), None);
    }
}
