//! From nothing to a mounted formation: what `up` and `run` have in common.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bivouac_launch::{
    FormationName, Kind, LaunchError, Phase, Signals, State, StateDir, Surroundings, start, take_down,
};

use crate::attach::{Wanted, attach, wait_usable};
use crate::failure::Failure;
use crate::options::{FormationArgs, PlaceArgs};

/// A formation in use.
#[derive(Debug)]
pub struct Formed {
    /// Its name.
    pub name: FormationName,
    /// Its directory.
    pub dir: StateDir,
    /// Where it is mounted.
    pub mounts: Vec<PathBuf>,
    /// Where the time went.
    pub steps: Vec<Phase>,
}

/// Starts and mounts a formation; without `place` it is not mounted. What fails is taken down again.
///
/// # Errors
/// What cannot be started or mounted, or the signal that interrupted it.
pub fn form(
    here: &Surroundings,
    name: FormationName,
    args: &FormationArgs,
    place: Option<&PlaceArgs>,
    signals: &Signals,
) -> Result<Formed, Failure> {
    let bound = Duration::from_millis(args.start_timeout.0);
    let mut started =
        start(here, &args.wishes(name), bound, signals, &mut |text| eprintln!("bivouac: {text}"))?;
    let mounted = mount_all(here, &started.dir, &started.state, place).and_then(|mounts| {
        started.phases.end("mount");
        mounts.iter().try_for_each(|mount| wait_usable(mount, bound))?;
        started.phases.end("ready");
        interrupted(signals)?;
        Ok(mounts)
    });
    match mounted {
        Ok(mounts) => {
            let steps = started.phases.into_steps();
            Ok(Formed { name: started.name, dir: started.dir, mounts, steps })
        }
        Err(failure) => {
            if let Err(error) = take_down(here, &started.dir, true, &mut |_| {}) {
                eprintln!("bivouac: {error}");
            }
            Err(failure)
        }
    }
}

fn mount_all(
    here: &Surroundings,
    dir: &StateDir,
    state: &State,
    place: Option<&PlaceArgs>,
) -> Result<Vec<PathBuf>, Failure> {
    let Some(place) = place else { return Ok(Vec::new()) };
    let mount = |node: u16, at: &Path, own_dir: bool| {
        attach(here, dir, state, Wanted { node, dir: at, own_dir, allow_other: place.allow_other })
    };
    if let Some(parent) = &place.each {
        let one = |node: u16| {
            let at = parent.join(node.to_string());
            let own_dir = make_dir(&at)?;
            mount(node, &at, own_dir).inspect_err(|_| {
                if own_dir {
                    let _in_the_way = std::fs::remove_dir(&at);
                }
            })
        };
        return state.nodes.iter().map(|node| one(node.id)).collect();
    }
    match &place.dir {
        Some(at) => Ok(vec![mount(0, at, false)?]),
        None => {
            let at = dir.default_mount();
            make_dir(&at)?;
            Ok(vec![mount(0, &at, false)?])
        }
    }
}

/// Makes a directory for this user only; answers whether it was not there before.
fn make_dir(path: &Path) -> Result<bool, Failure> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(LaunchError::path(path, "make the mount point", error).into()),
    }
}

fn interrupted(signals: &Signals) -> Result<(), Failure> {
    signals.next().map_or(Ok(()), |signal| {
        let cause = format!("was interrupted by signal {}", signal.number);
        let remedy = "everything is removed again";
        Err(LaunchError::new(Kind::Interrupted, "the formation's start", cause, remedy).into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_that_were_made_are_ours() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("0");
        assert!(make_dir(&place).unwrap());
        assert!(!make_dir(&place).unwrap());
        let failure = make_dir(&dir.path().join("none/0")).unwrap_err();
        assert!(failure.to_string().contains("could not make the mount point"), "{failure}");
    }
}
