//! Mounts a formation: the command that asks for it mounts, in its own name and where it is; the supervisor
//! keeps the device, and the node serves it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use bivouac_launch::control::{Request, ask};
use bivouac_launch::mounts::{WhenBusy, source_of, unmount};
use bivouac_launch::{MountWay, State, StateDir, Surroundings, cannot_mount, run_helper};
use bivouac_mount::{AttachOptions, create_state, fusermount, mount_fuse};

use crate::failure::Failure;

/// Where and how one node's mount is to be made.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The node that serves it.
    pub node: u16,
    /// The mount point.
    pub dir: &'a Path,
    /// Whether the directory is to be removed with the formation.
    pub own_dir: bool,
    /// Whether other users may enter.
    pub allow_other: bool,
}

/// Mounts, and answers the place.
///
/// # Errors
/// What is wrong with the mount point, the user's rights, or the node.
pub fn attach(
    here: &Surroundings,
    formation: &StateDir,
    state: &State,
    wanted: Wanted<'_>,
) -> Result<PathBuf, Failure> {
    let Wanted { node, dir, own_dir, allow_other } = wanted;
    // One that cannot be resolved has its message from the attempt to mount there.
    let dir = dir.canonicalize().or_else(|_| std::path::absolute(dir))?;
    let device = open_device(here, &dir, &AttachOptions { source: source_of(&state.name), allow_other })?;
    let served = hand_over(formation, state, node, &dir, own_dir, &device);
    if served.is_err() {
        // Nobody serves it.
        let _the_first_failure_counts = unmount(here, &dir, WhenBusy::Detach, true);
    }
    served.map(|()| dir)
}

/// Waits until the mount answers, for at most `bound`.
///
/// # Errors
/// That it does not.
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

fn open_device(here: &Surroundings, dir: &Path, options: &AttachOptions) -> Result<OwnedFd, Failure> {
    let refused = |error| Failure::new(1, error);
    match MountWay::choose(here, &fusermount::PROGRAMS) {
        MountWay::Direct => mount_fuse(dir, options).map_err(refused),
        MountWay::Helper(program) => {
            let (arguments, call) = fusermount::prepare(dir, options).map_err(refused)?;
            run_helper(&program, &arguments, fusermount::ENVIRONMENT, call.helper_end)?;
            fusermount::receive_device(&call.our_end, dir).map_err(refused)
        }
        MountWay::Namespaces => Err(cannot_mount().into()),
    }
}

fn hand_over(
    formation: &StateDir,
    state: &State,
    node: u16,
    dir: &Path,
    own_dir: bool,
    device: &OwnedFd,
) -> Result<(), Failure> {
    let memory = create_state()?;
    let request = Request::Mount { node, dir: dir.to_owned(), own_dir };
    Ok(ask(formation, &request, &[device.as_fd(), memory.as_fd()], state.wait_ms)?)
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
