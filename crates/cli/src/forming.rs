//! Common part of `up` and `run`: from nothing to a mounted formation.

use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bivouac_hosts::take_down_hosts;
use bivouac_launch::{
    Environment, FormationName, FormationState, Kind, LaunchError, Phase, ProcessId, Signals, StateDir,
    make_mount_point, start, take_down,
};
use bivouac_monitor::connect;

use crate::attach::{MountRequest, attach, refuse_mounted, wait_usable};
use crate::bringing::bring_at_start;
use crate::failure::Failure;
use crate::formation_file::read;
use crate::options::{FileArgs, FormationArgs, PlaceArgs};
use crate::partitioning::{PartitionMaker, Plan};
use crate::pools;
use crate::unflushed;

/// Default directory of pools. Its parent is the formation's root, so it is made without being asked for.
const POOLS: &[u8] = b"/pools";
const POOLS_BELOW: &[u8] = b"/pools/";

/// A formation in use.
#[derive(Debug)]
pub struct RunningFormation {
    pub name: FormationName,
    /// Its directory.
    pub dir: StateDir,
    /// Its mount points.
    pub mounts: Vec<PathBuf>,
    /// Durations of the steps of its start.
    pub steps: Vec<Phase>,
    /// Of a formation over several hosts: the directory of the whole; `dir` is then that of this host's part, if it has
    /// one.
    pub whole: Option<StateDir>,
    /// Held as long as a formation over several hosts shall live that ends with this process.
    pub _tie: Option<OwnedFd>,
}

impl RunningFormation {
    /// Takes it down.
    ///
    /// # Errors
    /// What could not be ended or removed, or is left.
    pub fn take_down(&self, here: &Environment) -> Result<(), String> {
        if let Some(whole) = &self.whole {
            let left = take_down_hosts(here, whole, true, true).map_err(|e| e.to_string())?;
            return if left.is_nothing() { Ok(()) } else { Err(left.to_string()) };
        }
        let down = take_down(here, &self.dir, true, &mut |text| errln!("bivouac: {text}"));
        let remains = down.map_err(|e| e.to_string())?;
        if remains.is_nothing() { Ok(()) } else { Err(remains.to_string()) }
    }

    /// Takes it down because of a failure, which is what is answered.
    pub fn give_up(&self, here: &Environment, failure: Failure) -> Failure {
        if let Err(text) = self.take_down(here) {
            errln!("bivouac: {text}");
        }
        failure
    }
}

/// Starts and mounts a formation; without `place` it is not mounted. What fails is taken down again. It ends with
/// the process `owner`, if there is one.
///
/// # Errors
/// What cannot be started or mounted, or the signal that interrupted it.
pub fn form(
    here: &Environment,
    name: FormationName,
    args: &FormationArgs,
    file: &FileArgs,
    place: Option<&PlaceArgs>,
    owner: Option<ProcessId>,
    signals: &Signals,
) -> Result<RunningFormation, Failure> {
    let bound = Duration::from_millis(args.start_timeout.0);
    // First, while nothing has been started: what is wrong with the file costs only the message.
    let partitions = partitions_of(here, &name, file)?;
    let mut started =
        start(here, &args.wishes(name, 1, owner), bound, signals, &mut |text| errln!("bivouac: {text}"))?;
    let mounted = make_partitions(here, &started.dir, &started.state, &partitions).and_then(|()| {
        if !partitions.is_empty() {
            started.phases.end("partitions");
        }
        mount_all(here, &started.dir, &started.state, place)
    });
    let mounted = mounted.and_then(|mounts| {
        started.phases.end("mount");
        mounts.iter().try_for_each(|mount| wait_usable(mount, bound))?;
        started.phases.end("ready");
        // None of the steps since the start has looked at signals.
        interrupted(signals)?;
        Ok(mounts)
    });
    match mounted {
        Ok(mounts) => {
            let steps = started.phases.into_steps();
            Ok(RunningFormation {
                name: started.name,
                dir: started.dir,
                mounts,
                steps,
                whole: None,
                _tie: None,
            })
        }
        Err(failure) => {
            if let Err(error) = take_down(here, &started.dir, true, &mut |_| {}) {
                errln!("bivouac: {error}");
            }
            Err(failure)
        }
    }
}

/// Returns the partitions that a formation file asks for, and those of pools, which count as attached to the formation
/// from now on.
///
/// # Errors
/// What is wrong with the file, or why a pool cannot be attached.
pub fn partitions_of(
    here: &Environment,
    name: &FormationName,
    file: &FileArgs,
) -> Result<Vec<Plan>, Failure> {
    let mut plans = match &file.config {
        Some(path) => read(path)?.partitions,
        None => Vec::new(),
    };
    let attached = pools::attach(here, name, &file.attach, &plans)?;
    // Pools have what the file says of their directories.
    plans.retain(|plan| attached.iter().all(|pool| pool.path != plan.path));
    plans.extend(attached);
    Ok(plans)
}

/// Makes the partitions that a formation file asks for, before anybody can see the formation without them.
pub fn make_partitions(
    here: &Environment,
    dir: &StateDir,
    state: &FormationState,
    plans: &[Plan],
) -> Result<(), Failure> {
    if plans.is_empty() {
        return Ok(());
    }
    let client = connect(dir, state, Duration::from_millis(state.wait_ms))?;
    // What is mounted by now, if anything is.
    let state = dir.read()?.unwrap_or_else(|| state.clone());
    let maker = PartitionMaker {
        client: &client,
        uid: here.uid,
        gid: rustix::process::getegid().as_raw(),
        state: &state,
    };
    if plans.iter().any(|plan| plan.path.starts_with(POOLS_BELOW)) {
        maker.directory(POOLS)?;
    }
    for plan in plans {
        unflushed::note_source_of(dir, plan)?;
        for made in maker.make(plan)? {
            made.reason.iter().for_each(|reason| errln!("bivouac: partition {}: {reason}", made.path));
            if made.partition.settings.source.is_some() {
                bring_at_start(&client, &made.partition, &made.path)?;
            }
        }
    }
    // Behind a failure the formation is taken down, with what nodes keep of this client's changes.
    client.leave();
    Ok(())
}

/// Mounts a formation at its places; without `place` nowhere.
pub fn mount_all(
    here: &Environment,
    dir: &StateDir,
    state: &FormationState,
    place: Option<&PlaceArgs>,
) -> Result<Vec<PathBuf>, Failure> {
    let Some(place) = place else { return Ok(Vec::new()) };
    let mount = |node: u16, at: &Path, own_dir: bool| {
        attach(here, dir, state, MountRequest { node, dir: at, own_dir, allow_other: place.allow_other })
    };
    let mount_at = |node: u16, at: &Path, own_dir: bool| {
        mount(node, at, own_dir).inspect_err(|_| {
            if own_dir {
                let _in_the_way = std::fs::remove_dir(at);
            }
        })
    };
    if let Some(parent) = &place.each {
        let one = |node: u16| {
            let at = parent.join(node.to_string());
            let own_dir = make_dir(&at)?;
            mount_at(node, &at, own_dir)
        };
        return state.nodes.iter().map(|node| one(node.id)).collect();
    }
    match &place.dir {
        Some(at) => {
            let at = std::path::absolute(at)?;
            // First by its name: to look at a mount may mean to wait for whoever serves it.
            refuse_mounted(&at)?;
            let own_dir = if at.exists() { false } else { make_mount_point(&at)? };
            Ok(vec![mount_at(0, &at, own_dir)?])
        }
        None => {
            let at = dir.default_mount();
            make_dir(&at)?;
            // Not one of its own: it goes with the formation's directory, which it is in.
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
        let cause = format!("was interrupted by {}", bivouac_types::format_signal(signal.number));
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
