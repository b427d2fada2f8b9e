//! Mounts a formation: the command that asks for it mounts, in its own name and where it is; the supervisor
//! keeps the device, and the node serves it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use bivouac_launch::control::{Request, ask};
use bivouac_launch::mount_table::Table;
use bivouac_launch::mounts::{WhenBusy, source_of, unmount};
use bivouac_launch::{
    Environment, FormationState, Guarded, Kind, LaunchError, MountWay, StateDir, cannot_mount, guarded,
    run_helper,
};
use bivouac_monitor::connect;
use bivouac_mount::{AttachOptions, check_mount_point, create_state, fusermount, mount_fuse_at};
use bivouac_types::mount_table::FORMATION_FS_TYPE;

use crate::failure::Failure;
use crate::partitioning::refuse_source;

/// Place and options of one node's mount.
#[derive(Clone, Copy, Debug)]
pub struct MountRequest<'a> {
    /// The node that serves it.
    pub node: u16,
    /// The mount point.
    pub dir: &'a Path,
    /// True if the directory is to be removed with the formation.
    pub own_dir: bool,
    /// True if other users may enter.
    pub allow_other: bool,
}

/// Mounts a formation, and returns the path of the mount.
///
/// # Errors
/// What is wrong with the mount point, the user's rights, or the node.
pub fn attach(
    here: &Environment,
    formation: &StateDir,
    state: &FormationState,
    wanted: MountRequest<'_>,
) -> Result<PathBuf, Failure> {
    let MountRequest { node, dir, own_dir, allow_other } = wanted;
    let place = place_of(dir)?;
    refuse_sources(formation, state, &place.path)?;
    let source = source_of(&state.name);
    let options = AttachOptions { source: source.clone(), allow_other, remote: state.part.is_some() };
    let device = open_device(here, &place, &options)?;
    let served = connection_at(&place.path, &source).and_then(|connection| {
        let request = Request::Mount { node, dir: place.path.clone(), own_dir, connection };
        let memory = create_state()?;
        let handed = ask(formation, &request, &[device.as_fd(), memory.as_fd()], state.wait_ms);
        if handed.is_err() {
            // Nobody serves it.
            let _the_first_failure_counts = unmount(here, &place.path, WhenBusy::Detach, true);
        }
        Ok(handed?)
    });
    served.map(|()| place.path)
}

/// Returns the place that a mount is to be made at: nobody else can put anything there, and nothing is mounted there.
fn place_of(dir: &Path) -> Result<Guarded, Failure> {
    let absolute = std::path::absolute(dir)?;
    // First by its name: to look at a mount may mean to wait for whoever serves it.
    refuse_mounted(&absolute)?;
    check_mount_point(&absolute).map_err(|error| Failure::new(1, error))?;
    let remedy = "name a directory of your own, which others cannot write to, with --mount or DIR";
    let place = guarded(&absolute, remedy)?;
    // Again by the path without links: that is what is mounted over.
    refuse_mounted(&place.path)?;
    Ok(place)
}

/// Refuses a mount point in what one of the formation's partitions stands in front of.
fn refuse_sources(formation: &StateDir, state: &FormationState, place: &Path) -> Result<(), Failure> {
    // Asked of the state as it is now: the caller's may be from before a partition was made.
    if formation.read()?.is_none_or(|state| state.sources.is_none()) {
        return Ok(());
    }
    let client = connect(formation, state, Duration::from_millis(state.wait_ms))?;
    let partitions = client.partitions.list();
    client.leave();
    let partitions = partitions?;
    let sources = partitions.iter().filter_map(|partition| partition.settings.source.as_ref());
    refuse_source(place, sources).map_err(|text| Failure::new(1, text))
}

/// Refuses a place that has a mount already, whoever's it is.
pub fn refuse_mounted(dir: &Path) -> Result<(), Failure> {
    let table = Table::here();
    let Some(mount) = table.at(dir) else { return Ok(()) };
    let cause = format!("has a mount already ({})", mount.source);
    let remedy =
        "name an empty directory below it or elsewhere; one of a formation goes with: bivouac unmount DIR";
    Err(LaunchError::new(Kind::Refused, dir.display(), cause, remedy).into())
}

/// Returns the number of the connection of the mount that has just been made.
fn connection_at(dir: &Path, source: &str) -> Result<u32, Failure> {
    let table = Table::here();
    let made = table.at(dir).filter(|mount| mount.kind == FORMATION_FS_TYPE && mount.source == source);
    made.map(|mount| mount.connection).ok_or_else(|| {
        let cause = "is not where it was made: somebody took it away or mounted over it at once";
        let remedy = "name a directory of your own, which others cannot write to";
        LaunchError::new(Kind::Refused, format_args!("mount {}", dir.display()), cause, remedy).into()
    })
}

/// Waits until the mount answers, for at most `bound`.
pub fn wait_usable(place: &Path, bound: Duration) -> Result<(), Failure> {
    let (done, answered) = mpsc::channel();
    let looked_at = place.to_owned();
    // A mount that does not answer holds this thread, not the command.
    std::thread::spawn(move || done.send(std::fs::metadata(looked_at).map(drop)));
    match answered.recv_timeout(bound) {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => {
            Err(Failure::new(1, format_args!("{}: {error}; see: bivouac status", place.display())))
        }
        Err(_) => {
            let text = format!(
                "{} does not answer within {} s; see: bivouac status",
                place.display(),
                bound.as_secs()
            );
            Err(Failure::new(1, text))
        }
    }
}

fn open_device(here: &Environment, place: &Guarded, options: &AttachOptions) -> Result<OwnedFd, Failure> {
    let dir = place.path.as_path();
    let refused = |error| Failure::new(1, error);
    match MountWay::choose(here, &fusermount::PROGRAMS) {
        MountWay::Direct => mount_fuse_at(place.dir.as_fd(), dir, options).map_err(refused),
        MountWay::Helper(program) => {
            let (arguments, call) = fusermount::prepare(dir, options).map_err(refused)?;
            run_helper(&program, &arguments, fusermount::ENVIRONMENT, call.helper_end)?;
            fusermount::receive_device(&call.our_end, dir).map_err(refused)
        }
        MountWay::Namespaces => Err(cannot_mount().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_answers_is_usable_and_what_is_not_there_is_said() {
        let dir = tempfile::tempdir().unwrap();
        wait_usable(dir.path(), Duration::from_secs(10)).unwrap();
        let failure = wait_usable(&dir.path().join("none"), Duration::from_secs(10)).unwrap_err();
        assert!(failure.to_string().contains("No such file"), "{failure}");
    }
}
