//! Takes the mounts of a formation away: those that are its own, told from others by the numbers of their connections,
//! and only where nothing of somebody else's is on top of them.

use std::os::fd::OwnedFd;
use std::path::Path;

use crate::environment::Environment;
use crate::fuse_connection::{abort, refuse_all};
use crate::mount_table::{MountEntry, MountPresence, Table};
use crate::mounts::{Unmounted, WhenBusy, is_dead, list_users, source_of, unmount};
use crate::process::users_of;
use crate::state::{FormationState, MountState, NodeLife};
use crate::{Kind, LaunchError, LaunchResult, StateDir};

/// Returns the mounts of a formation that are seen here, the latest last.
pub(crate) fn mounts_of(here: &Environment, state: &FormationState) -> Vec<MountEntry> {
    if state.is_over_hosts() {
        return Vec::new();
    }
    let source = source_of(&state.name);
    let named = |line: &&MountEntry| line.source == source && line.user.is_none_or(|user| user == here.uid);
    let table = Table::here();
    // Another formation may have the same name, in another runtime directory. What no formation serves any more was
    // made by a command that did not live long enough to say so.
    let ours = |line: &&MountEntry| known(state, line).is_some() || is_dead(&line.dir);
    table.formations().filter(named).filter(ours).cloned().collect()
}

/// Returns the mount of the state that a line shows, there or bound to another place.
fn known<'a>(state: &'a FormationState, line: &MountEntry) -> Option<&'a MountState> {
    state.mounts.iter().find(|mount| mount.connection == line.connection)
}

/// Unmounts all of them.
///
/// # Errors
/// What the system refused.
pub(crate) fn unmount_all(
    here: &Environment,
    state: &FormationState,
    notice: &mut dyn FnMut(&str),
) -> LaunchResult<()> {
    // The latest first: one may be inside another.
    for line in mounts_of(here, state).into_iter().rev() {
        let (dir, shown) = (line.dir.as_path(), line.dir.display());
        if let MountPresence::Covered(source) = Table::here().see(dir, line.connection) {
            let remedy = format!("take that away, then: bivouac unmount {shown}");
            notice(&format!("{shown} is left: another mount ({source}) is on it; {remedy}"));
            continue;
        }
        let served = known(state, &line).is_some_and(|mount| serves(state, mount.node));
        match unmount(here, dir, WhenBusy::Detach, !served) {
            Ok(Unmounted::Detached(users)) => {
                notice(&format!("{shown} was in use by {}; taken away from them", list_users(&users)));
            }
            Ok(Unmounted::Cleanly) => {}
            // It went with its directory, or by itself, meanwhile.
            Err(error) if error.kind() == Kind::Refused && !is_there(&line) => {}
            Err(error) => return Err(error),
        }
        remove_mount_point(state, dir);
    }
    Ok(())
}

/// Removes a mount point that was made for a formation as soon as nothing is mounted there: what a program that goes on
/// wrote there would be in no formation.
fn remove_mount_point(state: &FormationState, dir: &Path) {
    let is_default = dir.parent().map(|home| StateDir::at(home.to_owned())).is_some_and(|home| {
        home.default_mount() == dir
            && home.read().is_ok_and(|known| known.is_some_and(|known| known.formation == state.formation))
    });
    if is_default || state.own_dirs.iter().any(|own| own == dir) {
        // Where something was written it stays, and is told when the rest is removed.
        let _is_in_use = std::fs::remove_dir(dir);
    }
}

/// Reasons why mounts of a host's part cannot be taken away without anybody noticing, a text for each.
#[must_use]
pub fn mounts_in_use(here: &Environment, state: &FormationState) -> Vec<String> {
    let seen = mounts_of(here, state);
    let hidden =
        state.mounts.iter().filter(|mount| seen.iter().all(|line| line.connection != mount.connection));
    let hidden = hidden.map(|mount| hidden_text(&mount.dir));
    let (own, table) = (source_of(&state.name), Table::here());
    let used = seen.iter().filter_map(|line| {
        // One of our own is taken away first.
        if let Some(source) = cover_of(&table, line).filter(|source| *source != own) {
            return Some(covered_text(&line.dir, &source));
        }
        let users = users_of(&line.dir);
        (!users.is_empty()).then(|| format!("{} is in use by {}", line.dir.display(), list_users(&users)))
    });
    hidden.chain(used).collect()
}

/// Takes the mounts of a host's part away before its nodes move. Also from programs that use them if it `is_forced`;
/// they are named by `notice`. Otherwise it is done once the state has no mounts any more: their daemons have sent what
/// they had then.
///
/// # Errors
/// Mounts that are in use, or what the system refused.
pub fn unmount_part(
    here: &Environment,
    state: &FormationState,
    is_forced: bool,
    notice: &mut dyn FnMut(&str),
) -> LaunchResult<()> {
    if is_forced {
        return unmount_all(here, state, notice);
    }
    let used = mounts_in_use(here, state);
    if !used.is_empty() {
        return Err(LaunchError::said(Kind::Refused, used.join("; ")));
    }
    for line in mounts_of(here, state).into_iter().rev() {
        // The path leads to what is on top, which may be somebody else's, and new.
        if let Some(source) = cover_of(&Table::here(), &line) {
            return Err(LaunchError::said(Kind::Refused, covered_text(&line.dir, &source)));
        }
        unmount(here, &line.dir, WhenBusy::Refuse, false)?;
    }
    Ok(())
}

/// Returns the source of the mount that hides one of ours, if there is one.
fn cover_of(table: &Table, line: &MountEntry) -> Option<String> {
    match table.see(&line.dir, line.connection) {
        MountPresence::Covered(source) => Some(source),
        MountPresence::Here | MountPresence::Gone => None,
    }
}

fn covered_text(dir: &Path, source: &str) -> String {
    format!("{} is covered by another mount ({source})", dir.display())
}

/// The reason for a mount that the kernel's table does not show here. What was unmounted a moment ago looks the same as
/// what is seen by other processes only.
fn hidden_text(dir: &Path) -> String {
    format!("{} is not seen here: it is being flushed, or is in a mount namespace of its own", dir.display())
}

fn is_there(line: &MountEntry) -> bool {
    Table::here().formations().any(|other| other.id == line.id)
}

/// Fails everything that waits for the mounts of a formation, some of whose processes do not end otherwise. `devices`
/// are the FUSE devices of these mounts.
pub(crate) fn abort_all(state: &FormationState, devices: Vec<OwnedFd>) {
    let aborted = state.mounts.iter().filter(|mount| abort(mount.connection)).count();
    if aborted < state.mounts.len() {
        devices.into_iter().for_each(refuse_all);
    }
}

/// Returns the mount of a formation that a path is below, or that is below the path, as seen here.
#[must_use]
pub fn overlapping(state: &FormationState, path: &Path) -> Option<std::path::PathBuf> {
    let table = Table::here();
    let overlaps = |line: &&MountEntry| {
        known(state, line).is_some() && (path.starts_with(&line.dir) || line.dir.starts_with(path))
    };
    table.formations().find(overlaps).map(|line| line.dir.clone())
}

/// Returns whether a node answers, or will.
fn serves(state: &FormationState, node: u16) -> bool {
    let node = state.index_of(node).and_then(|index| state.nodes.get(index));
    let supervised = state.supervisor.is_some_and(|supervisor| supervisor.is_alive());
    node.is_some_and(|node| {
        let runs = node.process.is_some_and(|process| process.is_alive());
        runs || supervised && !matches!(node.life, NodeLife::Failed | NodeLife::Stopped)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::tests::environment;
    use crate::state::tests::sample;

    #[test]
    fn what_covers_a_mount_is_told() {
        let plain =
            "20 1 8:1 / / rw - ext4 /dev/sda rw\n40 20 0:54 / /m rw - fuse.bivouac bivouac:x rw,user_id=7\n";
        let cover = |more: &str| {
            let table = Table::parse(format!("{plain}{more}").as_bytes());
            let line = table.formations().next().cloned().unwrap();
            cover_of(&table, &line)
        };
        assert_eq!(cover(""), None);
        assert_eq!(cover("50 40 0:60 / /m rw - tmpfs on-it rw\n"), Some("on-it".into()));
    }

    #[test]
    fn a_mount_that_is_not_seen_is_a_reason_to_stay() {
        let dir = tempfile::tempdir().unwrap();
        let mut state = sample();
        assert!(mounts_in_use(&environment(None), &state).is_empty());
        let connection = 4_000_000;
        let dir = dir.path().to_owned();
        state.mounts.push(MountState { id: 1, dir: dir.clone(), node: 0, connection, trouble: None });
        assert_eq!(mounts_in_use(&environment(None), &state), [hidden_text(&dir)]);
    }

    #[test]
    fn a_mount_point_that_was_made_goes_with_its_mount() {
        let place = tempfile::tempdir().unwrap();
        let [own, used, others] = ["own", "used", "others"].map(|name| place.path().join(name));
        let home = StateDir::at(place.path().join("home"));
        for dir in [&own, &used, &others, &home.default_mount()] {
            std::fs::create_dir_all(dir).unwrap();
        }
        std::fs::write(used.join("f"), "written meanwhile").unwrap();
        let mut state = sample();
        state.own_dirs = vec![own.clone(), used.clone()];
        home.write(&state).unwrap();
        for dir in [&own, &used, &others, &home.default_mount()] {
            remove_mount_point(&state, dir);
        }
        assert!(!own.exists() && !home.default_mount().exists());
        assert!(used.join("f").exists() && others.exists());
    }
}
