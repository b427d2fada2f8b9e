//! A formation that was killed as a whole, and is again: from its volumes as they are. See
//! docs/decisions/0053-recovery.md.
//!
//! Nothing is lost by a recovery that fails or is killed: the volumes stay as they are, and it can be made again.

mod part;
mod whole;

use std::path::PathBuf;
use std::time::Duration;

use bivouac_store::{StoreError, VolumeIdentity, claim_existing_within};

use crate::clock::unix_ms;
use crate::environment::Environment;
use crate::first_map::first_map;
use crate::forked::OwnChild;
use crate::hex::to_hex;
use crate::name::FormationName;
use crate::phases::Phases;
use crate::process::ProcessId;
use crate::recoverable::{self, Recoverable, recoverable};
use crate::recovery_notes::{forget, forget_whole, lives, remember, volume_note};
use crate::runtime_dirs::{states_elsewhere, way_to};
use crate::signals::Signals;
use crate::start::{GIVE_UP_MS, ReadyFormation, end_supervisor, start_supervisor, vanished, wait_ready};
use crate::state::{FormationState, NodeLife, Stage};
use crate::state_dir::{Claim, StateDir};
use crate::teardown::remove_volumes;
use crate::unmounting::unmount_all;
use crate::{Kind, LaunchError, LaunchResult, memory_root};

pub use part::{PartWish, part_again};
pub use whole::{WholeFormation, whole};

/// Time that others may look at a volume that is to be recovered.
const LOOK_WAIT: Duration = Duration::from_millis(1000);

/// A formation to recover, with the settings that it gets then.
#[derive(Clone, Debug, Default)]
pub struct Recovery {
    /// The formation's name; the only one that there is, if none is given.
    pub name: Option<FormationName>,
    /// Volumes, or directories with volumes in them; where they were, if none is given.
    pub volumes: Vec<PathBuf>,
    /// First port to listen on; the one that it had, if none is given.
    pub port: Option<u16>,
    /// The process that it ends with; what it was made for before is over.
    pub owner: Option<ProcessId>,
    /// Time that it lives, in milliseconds.
    pub ttl_ms: Option<u64>,
    /// True if volumes that are older than the others are taken as they are.
    pub with_older: bool,
}

/// Starts a formation again on the volumes that it has, and waits until every daemon serves. What fails leaves them as
/// they are.
///
/// # Errors
/// `NotRunning` when there is nothing to recover, `Running` for one that lives; what is missing, or in the way, or what
/// a daemon said.
pub fn recover(
    here: &Environment,
    wanted: &Recovery,
    bound: Duration,
    signals: &Signals,
    notice: &mut dyn FnMut(&str),
) -> LaunchResult<ReadyFormation> {
    let mut phases = Phases::begin();
    let old = choose(here, wanted)?;
    // Until the supervisor has it: what is looked at now must not be removed by who takes it for nobody's.
    let _held = memory_root::hold_all(&old)?;
    check_whole(&old)?;
    lives::check(&old, wanted.with_older)?;
    let claim = claim(here, &old)?;
    let unfinished = Unfinished { claim: &claim, is_new: claim.stale.is_none() };
    // With the name: until then another recovery could have begun with them.
    check_unused(&old)?;
    let state = again(here, &old, wanted, &claim.dir)?;
    unmount_all(here, &old, notice)?;
    // The name of a socket outlives its process, and nobody could bind to it.
    claim.dir.remove_sockets()?;
    for root in &state.own_dirs {
        memory_root::adopt(root, &claim.dir)?;
    }
    claim.dir.write(&state)?;
    // It has begun: from here on the directory stays, from whose state it can be made again.
    std::mem::forget(unfinished);
    // A new one shuts out programs that have survived with the old one.
    claim.dir.make_secret()?;
    remember(here, claim.dir.path(), &state);
    phases.end("volumes");
    let (report, child) = start_supervisor(here, &claim, "supervise", &[])?;
    drop(claim.lock);
    phases.end("supervisor");
    let steps = wait_ready(&report, signals, bound, &claim.dir).map_err(|error| {
        end_supervisor(&report, OwnChild::from(&child), GIVE_UP_MS);
        kept(&error)
    })?;
    phases.insert(steps);
    let state = claim.dir.read()?.ok_or_else(|| vanished(&state.name))?;
    Ok(ReadyFormation { name: state.name.clone(), dir: claim.dir, state, phases, tie: None })
}

/// Throws away what is left of a formation whose state is gone.
///
/// # Errors
/// What could not be removed.
pub fn discard(here: &Environment, left: &Recoverable, notice: &mut dyn FnMut(&str)) -> LaunchResult<()> {
    if left.is_over_hosts() {
        forget_whole(here, &left.formation);
    }
    let Some(state) = &left.state else {
        if left.is_over_hosts() {
            return Ok(());
        }
        let text =
            format!("formation {}: none of its volumes is here: {}", left.name, left.missing().join(", "));
        return Err(LaunchError::said(Kind::Refused, format!("{text}; it is not noted any more")))
            .inspect_err(|_| forget(here, &left.formation));
    };
    unmount_all(here, state, notice)?;
    remove_volumes(here, state, notice)
}

/// Removes a directory that was made for a recovery which did not begin.
struct Unfinished<'a> {
    claim: &'a Claim,
    is_new: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if self.is_new
            && let Err(error) = self.claim.dir.remove()
        {
            log::warn!(error:%; "{error}");
        }
    }
}

/// Returns the state of what is to be recovered, with its volumes where they are.
fn choose(here: &Environment, wanted: &Recovery) -> LaunchResult<FormationState> {
    if wanted.volumes.is_empty() {
        let found = by_name(here, wanted.name.as_ref())?;
        let missing = found.missing();
        return found.state.ok_or_else(|| {
            let remedy = "mount or bring back what they are on, or say where they are now: --volume DIR";
            let cause = format!("its volumes are missing: {}", missing.join(", "));
            LaunchError::new(Kind::Refused, format_args!("formation {}", found.name), cause, remedy)
        });
    }
    let volumes = volumes_in(&wanted.volumes)?;
    let formation = formation_of(&volumes)?;
    let known = recoverable(here).into_iter().find(|found| found.formation == formation);
    let state = known.and_then(|found| found.state).or_else(|| volume_note::newest(&volumes)).ok_or_else(|| {
        let cause = "no volume that was named says what it is part of, or none that can be read";
        let remedy =
            "name all volumes of the formation; what they hold is seen by: bivouac fsck --offline VOLUME...";
        LaunchError::new(Kind::Refused, format_args!("formation {formation}"), cause, remedy)
    })?;
    if let Some(name) = wanted.name.as_ref().filter(|name| **name != state.name) {
        let remedy = format!("write: bivouac recover {} --volume ...", state.name);
        let cause = format!("the volumes that were named are of formation {}", state.name);
        return Err(LaunchError::usage(format_args!("formation {name}"), cause, &remedy));
    }
    refuse_elsewhere(here, &formation)?;
    placed(state, &volumes)
}

/// Refuses one whose state is in another place: it would be there a second time, and go with what is left there.
fn refuse_elsewhere(here: &Environment, formation: &str) -> LaunchResult<()> {
    let is_it = |(_, other): &(StateDir, FormationState)| other.formation == formation;
    let Some((dir, state)) = states_elsewhere(here).into_iter().find(is_it) else { return Ok(()) };
    let way = way_to(here, &dir, &format!("recover {}", state.name));
    let object = format!("formation {}", state.name);
    let cause = format!("its state is in another runtime directory: {}", dir.path().display());
    Err(LaunchError::new(Kind::Refused, object, cause, &format!("write: {way}")))
}

/// Returns the volumes that are meant by directories: themselves, or all in them.
fn volumes_in(dirs: &[PathBuf]) -> LaunchResult<Vec<(PathBuf, VolumeIdentity)>> {
    let mut all: Vec<(PathBuf, VolumeIdentity)> = Vec::new();
    for dir in dirs {
        let resolved = dir.canonicalize().map_err(|e| LaunchError::path(dir, "find the volume", e))?;
        let (mut of_itself, mut of_others) = (Vec::new(), Vec::new());
        let mut here = volume_note::volumes_at([resolved.clone()], &mut |doubt| of_itself.push(doubt));
        // In a volume that cannot be used there are no others to look for.
        if here.is_empty() && of_itself.is_empty() {
            here = volume_note::volumes_at(recoverable::below(&resolved), &mut |doubt| of_others.push(doubt));
        }
        if here.is_empty() {
            let cause = of_itself.pop().unwrap_or_else(|| none_in(&of_others));
            return Err(LaunchError::usage(dir.display(), cause, "name the volumes of the formation"));
        }
        all.extend(here);
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    // One may be named itself, and by the directory that it is in.
    all.dedup_by(|a, b| a.0 == b.0);
    Ok(all)
}

/// Returns the error for a directory without volumes, some of whose directories could not be looked at.
fn none_in(doubts: &[String]) -> String {
    let none = "is no volume, nor has any in it";
    match doubts {
        [] => none.into(),
        [one] => format!("{none} that can be used ({one})"),
        [first, others @ ..] => format!("{none} that can be used ({first}; and {} more)", others.len()),
    }
}

/// Returns the formation that all of them are of.
fn formation_of(volumes: &[(PathBuf, VolumeIdentity)]) -> LaunchResult<String> {
    let Some((path, first)) = volumes.first() else {
        return Err(LaunchError::usage("--volume", "names no volume", "name the volumes of the formation"));
    };
    match volumes.iter().find(|(_, other)| other.formation != first.formation) {
        None => Ok(to_hex(&first.formation.0)),
        Some((other, identity)) => {
            let (a, b) = (path.display(), other.display());
            let cause =
                format!("{a} is of formation {}, {b} of formation {}", first.formation, identity.formation);
            Err(LaunchError::usage("volumes of several formations", cause, "name those of one"))
        }
    }
}

/// Returns a state whose volumes are where these are.
fn placed(mut state: FormationState, volumes: &[(PathBuf, VolumeIdentity)]) -> LaunchResult<FormationState> {
    for (path, identity) in volumes {
        if let Some((twin, _)) = volumes.iter().find(|(other, same)| same == identity && other != path) {
            let (index, node) = (identity.index, identity.node);
            let cause = format!("{} and {} both say that they are that", path.display(), twin.display());
            return Err(LaunchError::usage(
                format_args!("volume {index} of {node}"),
                cause,
                "name one of them",
            ));
        }
        let node = state.nodes.iter_mut().find(|node| node.id == identity.node.0);
        let Some(known) = node.and_then(|node| node.volumes.get_mut(usize::from(identity.index))) else {
            let cause = format!(
                "is volume {} of {}, which the formation does not have",
                identity.index, identity.node
            );
            return Err(LaunchError::usage(path.display(), cause, "name the formation's own volumes"));
        };
        if known.path != *path {
            // Not a directory that the formation made.
            (known.path, known.own_dir) = (path.clone(), false);
        }
    }
    Ok(state)
}

fn by_name(here: &Environment, name: Option<&FormationName>) -> LaunchResult<Recoverable> {
    let mut found = recoverable(here);
    let names: Vec<String> = found.iter().map(|one| one.name.to_string()).collect();
    match name {
        Some(name) => found.retain(|one| one.name == *name),
        None if found.len() > 1 => {
            let is_there = |name: &FormationName| found.iter().any(|one| one.name == *name);
            let Some(name) = Some(here.default_name()).filter(is_there) else {
                let cause = format!("several formations could be recovered: {}", names.join(", "));
                return Err(LaunchError::usage("the name is missing", cause, "write: bivouac recover NAME"));
            };
            found.retain(|one| one.name == name);
        }
        None => {}
    }
    if found.len() > 1 {
        let which: Vec<String> = found.iter().map(describe).collect();
        let cause = format!("{} formations have that name: {}", found.len(), which.join("; "));
        let remedy = "name the volumes of the one that is meant: bivouac recover --volume DIR";
        return Err(LaunchError::usage(format_args!("formation {}", found[0].name), cause, remedy));
    }
    found.pop().ok_or_else(|| nothing(here, name, &names))
}

fn describe(found: &Recoverable) -> String {
    let paths = found.state.iter().flat_map(|state| &state.nodes).flat_map(|node| &node.volumes);
    let paths: Vec<String> = paths.take(3).map(|volume| volume.path.display().to_string()).collect();
    format!("{} on {}", found.formation, paths.join(", "))
}

/// Returns the error that there is no formation with that name, or none at all.
fn nothing(here: &Environment, name: Option<&FormationName>, others: &[String]) -> LaunchError {
    if let Some(name) = name
        && StateDir::list(here).iter().any(|(known, dir)| known == name && dir.is_held())
    {
        return living(here, name);
    }
    let named = |(_, state): &(StateDir, FormationState)| name.is_some_and(|name| *name == state.name);
    if let Some((_, state)) = states_elsewhere(here).into_iter().find(named)
        && let Err(error) = refuse_elsewhere(here, &state.formation)
    {
        return error;
    }
    let what = name.map_or("no formation".to_owned(), |name| format!("formation {name}: nothing"));
    let others = match others {
        [] => String::new(),
        others => format!("; what can be: {}", others.join(", ")),
    };
    let remedy = "if its volumes are on this host, name them: bivouac recover --volume DIR";
    LaunchError::said(
        Kind::NotRunning,
        format!("{what} is known here that could be recovered{others}; {remedy}"),
    )
}

/// Returns the error for a formation that is running, perhaps without its supervisor.
fn living(here: &Environment, name: &FormationName) -> LaunchError {
    let dir = StateDir::list(here).into_iter().find(|(known, _)| known == name).map(|(_, dir)| dir);
    let state = dir.and_then(|dir| dir.read().ok().flatten());
    let orphaned = state.filter(|state| !state.supervisor.is_some_and(|supervisor| supervisor.is_alive()));
    let daemons: Vec<String> = orphaned
        .iter()
        .flat_map(FormationState::processes)
        .filter(ProcessId::is_alive)
        .map(|process| process.pid.to_string())
        .collect();
    let object = format!("formation {name}");
    if daemons.is_empty() {
        let remedy =
            format!("mount it with: bivouac mount --name {name} DIR; or look: bivouac status --name {name}");
        return LaunchError::new(Kind::Running, object, "is running", &remedy);
    }
    let cause =
        format!("its supervisor is gone, but daemons of it still serve (processes {})", daemons.join(", "));
    let remedy = format!("use it as it is, or end them (kill {}) and repeat", daemons.join(" "));
    LaunchError::new(Kind::Running, object, cause, &remedy)
}

/// Refuses what cannot be brought back whole.
fn check_whole(state: &FormationState) -> LaunchResult<()> {
    let object = format!("formation {}", state.name);
    if state.nodes.is_empty() || state.nodes.iter().any(|node| node.volumes.is_empty()) {
        let cause = "what is left of it does not say which volumes it has";
        return Err(LaunchError::new(
            Kind::Refused,
            object,
            cause,
            "name them: bivouac recover --volume DIR",
        ));
    }
    let missing = recoverable::missing(state);
    if missing.is_empty() {
        return Ok(());
    }
    let which: Vec<String> = missing.iter().map(ToString::to_string).collect();
    // A node's first volume has its records.
    let homes: Vec<String> =
        missing.iter().filter(|gone| gone.index == 0).map(|gone| gone.node.to_string()).collect();
    let names = match homes.is_empty() {
        true => String::new(),
        false => format!("all names, attributes and sizes that node {} keeps, and ", homes.join(", ")),
    };
    let targets: usize = state.nodes.iter().map(|node| node.volumes.len()).sum();
    let cause = format!(
        "missing: {}; without that, {names}{} of {targets} parts of the content of files would be lost",
        which.join(", "),
        missing.len()
    );
    let remedy =
        "mount or bring back what it is on, or say where it is now: --volume DIR; nothing was changed";
    Err(LaunchError::new(Kind::Refused, object, cause, remedy))
}

/// Takes the name.
fn claim(here: &Environment, old: &FormationState) -> LaunchResult<Claim> {
    let claim = StateDir::claim(here, &old.name).map_err(|error| match error.kind() {
        Kind::Running => living(here, &old.name),
        _ => error,
    })?;
    match claim.stale.as_ref().filter(|stale| stale.formation != old.formation) {
        None => Ok(claim),
        Some(stale) => {
            let name = &old.name;
            let cause =
                format!("another one of that name was killed, and its state is here ({})", stale.formation);
            let remedy = format!(
                "first recover that (bivouac recover {name}) or throw it away (bivouac down --name {name})"
            );
            Err(LaunchError::new(Kind::Refused, format_args!("formation {name}"), cause, &remedy))
        }
    }
}

/// Refuses volumes that somebody has.
fn check_unused(state: &FormationState) -> LaunchResult<()> {
    for volume in state.nodes.iter().flat_map(|node| &node.volumes) {
        match claim_existing_within(&volume.path, LOOK_WAIT) {
            Ok(_not_in_use) => {}
            Err(error @ StoreError::InUse { .. }) => {
                let cause = error.to_string();
                let remedy = "the formation may run in another runtime directory (BIVOUAC_RUNTIME_DIR)";
                return Err(LaunchError::new(
                    Kind::Running,
                    format_args!("formation {}", state.name),
                    cause,
                    remedy,
                ));
            }
            Err(error) => return Err(LaunchError::said(Kind::Refused, error.to_string())),
        }
    }
    Ok(())
}

/// Returns the state of a formation that is about to be started again.
fn again(
    here: &Environment,
    old: &FormationState,
    wanted: &Recovery,
    dir: &StateDir,
) -> LaunchResult<FormationState> {
    let mut state = anew(here, old, dir);
    state.owner = wanted.owner;
    state.ends_unix_ms = wanted.ttl_ms.map(|ttl| unix_ms().saturating_add(ttl));
    state.port = wanted.port.unwrap_or(old.port);
    let formation = state.formation_id().ok_or_else(|| damaged(&state, "names no formation"))?;
    // The map is made anew, and clients find files by it.
    let new = first_map(&state, formation);
    new.check().map_err(|error| damaged(&state, &error.to_string()))?;
    let same = old.map().is_none_or(|map| (map.slots, map.targets) == (new.slots, new.targets));
    if !same {
        return Err(damaged(&state, "was made by a release that placed files in another way; use that one"));
    }
    Ok(state)
}

/// Refuses a formation of which a node has moved to another host: what its former host has is older than what it went
/// on with, and which volumes belong together is noted nowhere.
fn check_unmoved(state: &FormationState) -> LaunchResult<()> {
    let moved = state.moves.iter().map(|moved| moved.node);
    let map = state.map().map(|map| map.nodes).unwrap_or_default();
    let there = (0u16..).zip(&map).filter(|(_, entry)| entry.epoch > 0).map(|(node, _)| node);
    let Some(node) = moved.chain(there).next() else { return Ok(()) };
    let cause =
        format!("node {node} had moved to another host, and volumes of two hosts do not say which are newer");
    let remedy = "rebuild files from its volumes: bivouac fsck --from-subfiles VOLUME... --out DIR";
    Err(LaunchError::new(Kind::Refused, format_args!("formation {}", state.name), cause, remedy))
}

/// Returns a state with all that ended with the processes as at the beginning, on this host.
fn anew(here: &Environment, old: &FormationState, dir: &StateDir) -> FormationState {
    let mut state = old.clone();
    state.stage = Stage::Starting;
    (state.supervisor, state.message) = (None, None);
    // They are taken away before it starts: their connections ended with the processes.
    state.mounts.clear();
    state.lost_elsewhere.clear();
    state.recoveries = old.recoveries.saturating_add(1);
    state.recovering = true;
    if let Some(http) = &mut state.http {
        (http.process, http.life, http.message, http.deaths) = (None, NodeLife::Starting, None, 0);
    }
    if let Some(gateway) = &mut state.gateway {
        (gateway.process, gateway.life, gateway.message, gateway.deaths) =
            (None, NodeLife::Starting, None, 0);
    }
    for node in &mut state.nodes {
        node.host = here.host.clone();
        (node.process, node.life, node.message, node.deaths) = (None, NodeLife::Starting, None, 0);
        node.unix_path = dir.node_socket(node.id);
    }
    state
}

fn damaged(state: &FormationState, cause: &str) -> LaunchError {
    let remedy = "name its volumes: bivouac recover --volume DIR";
    LaunchError::new(Kind::Refused, format_args!("formation {}", state.name), cause, remedy)
}

/// Returns a failure, and that nothing is lost by it.
pub fn kept(error: &LaunchError) -> LaunchError {
    let text = error.to_string();
    let text = text.strip_suffix("; everything is removed again").unwrap_or(&text);
    LaunchError::said(
        error.kind(),
        format!("{text}; the volumes are as they were, and it can be tried again"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::sample;
    use bivouac_types::{FormationId, NodeId};

    fn identity(formation: u8, node: u16) -> VolumeIdentity {
        VolumeIdentity { formation: FormationId([formation; 16]), node: NodeId(node), index: 0 }
    }

    #[test]
    fn what_would_be_lost_with_a_missing_volume_is_said() {
        let error = check_whole(&sample()).unwrap_err().to_string();
        let says = "formation sample: missing: volume 0 of node 0 (/dev/shm/x/n0); without that, all names, attributes and \
                    sizes that node 0 keeps, and 1 of 1 parts of the content of files would be lost; mount or";
        assert!(error.starts_with(says), "{error}");
        let none = FormationState { nodes: Vec::new(), ..sample() };
        assert!(check_whole(&none).unwrap_err().to_string().contains("does not say which volumes"));
    }

    #[test]
    fn volumes_are_those_of_one_formation_each_once() {
        let at = |path: &str, identity| (PathBuf::from(path), identity);
        let mixed = [at("/a", identity(7, 0)), at("/b", identity(8, 0))];
        assert!(formation_of(&mixed).unwrap_err().to_string().contains("/a is of formation 0707"));
        assert_eq!(formation_of(&mixed[..1]).unwrap(), "07".repeat(16));
        assert!(formation_of(&[]).is_err());
        let twice = [at("/a", identity(7, 0)), at("/b", identity(7, 0))];
        let error = placed(sample(), &twice).unwrap_err().to_string();
        assert!(error.contains("/a and /b both say that they are that"), "{error}");
        let error = placed(sample(), &[at("/a", identity(7, 1))]).unwrap_err().to_string();
        assert!(error.contains("which the formation does not have"), "{error}");
        let moved = placed(sample(), &twice[..1]).unwrap();
        let volume = &moved.nodes[0].volumes[0];
        assert_eq!((volume.path.to_str(), volume.own_dir), (Some("/a"), false));
        assert!(
            placed(sample(), &[at("/dev/shm/x/n0", identity(7, 0))]).unwrap().nodes[0].volumes[0].own_dir
        );
    }

    #[test]
    fn what_is_started_again_is_the_same_formation_with_a_new_life() {
        let dir = tempfile::tempdir().unwrap();
        let here = crate::environment::tests::environment(Some(dir.path()));
        let home = StateDir::at(dir.path().join("x"));
        let mut old =
            FormationState { keep: Some("why".into()), ends_unix_ms: Some(1), port: 700, ..sample() };
        old.owner = Some(ProcessId { pid: 1, started_ticks: 1 });
        old.nodes[0].deaths = 3;
        let new = again(&here, &old, &Recovery { ttl_ms: Some(1000), ..Recovery::default() }, &home).unwrap();
        assert_eq!((new.recoveries, new.recovering, new.owner, new.port), (1, true, None, 700));
        assert_eq!((&new.keep, new.nodes[0].deaths, new.supervisor), (&old.keep, 0, None));
        assert!(new.ends_unix_ms.is_some_and(|ends| ends > 1000));
        assert_eq!(new.nodes[0].unix_path, home.node_socket(0));
        let gone = FormationState { formation: "zz".into(), ..old };
        assert!(again(&here, &gone, &Recovery::default(), &home).is_err());
    }
}
