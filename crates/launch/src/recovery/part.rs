//! One host's part of a formation that is recovered on several hosts: the same nodes as before, on the volumes of this
//! host.

use std::net::IpAddr;
use std::path::PathBuf;

use bivouac_store::VolumeIdentity;
use bivouac_wire::rendezvous::PreviousPart;

use super::{Unfinished, anew, check_unmoved, check_unused, check_whole, claim, damaged, living, placed};
use crate::environment::Environment;
use crate::name::FormationName;
use crate::process::ProcessId;
use crate::reach::HostAccess;
use crate::recoverable::{below, of_formation, recoverable};
use crate::recovery_notes::lives::CommonLives;
use crate::recovery_notes::{index, lives, volume_note};
use crate::state::{FormationState, PartState};
use crate::state_dir::{Claim, StateDir};
use crate::unmounting::unmount_all;
use crate::{Kind, LaunchError, LaunchResult, memory_root};

/// A request for a host's part of a formation.
#[derive(Clone, Copy, Debug)]
pub struct PartWish<'a> {
    /// The formation's name.
    pub name: &'a FormationName,
    /// Its id, hexadecimal.
    pub formation: &'a str,
    /// Directories where its volumes may be, besides those that are noted.
    pub volumes: &'a [PathBuf],
    /// True if volumes that are older than the others are taken as they are.
    pub with_older: bool,
    /// The address of this host that the nodes listen at.
    pub bind: IpAddr,
    /// First port to listen on; 0 for any.
    pub port: u16,
    /// Host that the formation is started from, for messages.
    pub started_from: &'a str,
    /// Way in which all hosts are reached.
    pub reach: Option<&'a HostAccess>,
}

/// Takes this host's part of a formation, with the state that its supervisor is to begin with, and what
/// it was. Nothing on its volumes is changed.
///
/// # Errors
/// That nothing of it is here, that it lives, or what is missing.
pub fn part_again(
    here: &Environment,
    wish: &PartWish<'_>,
) -> LaunchResult<(Claim, FormationState, PreviousPart)> {
    let old = find(here, wish)?;
    // Until the supervisor has it: what is looked at now must not be removed by who takes it for nobody's.
    let memory = memory_root::hold_all(&old)?;
    check_unmoved(&old)?;
    check_whole(&old)?;
    let past = past_of(&old, lives::check(&old, wish.with_older)?)?;
    let mut claim = claim(here, &old)?;
    claim.memory = memory;
    let unfinished = Unfinished { claim: &claim, is_new: claim.stale.is_none() };
    check_unused(&old)?;
    unmount_all(here, &old, &mut |text| log::warn!(error:% = text; "{text}"))?;
    let mut state = anew(here, &old, &claim.dir);
    let started_from = wish.started_from.to_owned();
    // Until the whole is recovered, whatever ends this part must leave its volumes for another attempt.
    state.part = Some(PartState { bind: wish.bind, started_from, leaves_volumes: true });
    // Its supervisor sees that it is gone; without one, so does a daemon.
    state.owner = Some(ProcessId::current());
    state.ends_unix_ms = None;
    state.port = wish.port;
    state.reach = wish.reach.cloned();
    claim.dir.remove_sockets()?;
    for root in &state.own_dirs {
        memory_root::adopt(root, &claim.dir)?;
    }
    claim.dir.write(&state)?;
    std::mem::forget(unfinished);
    index::remember(here, claim.dir.path(), &state);
    Ok((claim, state, past))
}

/// Finds its former state here, with its volumes where they are.
fn find(here: &Environment, wish: &PartWish<'_>) -> LaunchResult<FormationState> {
    let volumes = volumes(here, wish);
    let known = recoverable(here).into_iter().find(|found| found.formation == wish.formation);
    let state = known.and_then(|found| found.state).or_else(|| volume_note::newest(&volumes));
    if let Some(state) = state {
        return placed(state, &volumes);
    }
    let is_held = |(name, dir): &(_, StateDir)| name == wish.name && dir.is_held();
    if StateDir::list(here).iter().any(is_held) {
        return Err(living(here, wish.name));
    }
    let cause = "nothing of it is on this host";
    let remedy = "mount or bring back what its volumes are on, or say where they are now: --volume DIR";
    Err(LaunchError::new(Kind::NotRunning, format_args!("formation {}", wish.name), cause, remedy))
}

/// Volumes of it at the places that were named and where they are noted to be.
fn volumes(here: &Environment, wish: &PartWish<'_>) -> Vec<(PathBuf, VolumeIdentity)> {
    let noted = index::entries(here).into_iter().filter(|entry| entry.formation == wish.formation);
    let mut places: Vec<PathBuf> = noted.flat_map(|entry| entry.volumes).collect();
    for dir in wish.volumes {
        let dir = dir.canonicalize().unwrap_or_else(|_| dir.clone());
        places.extend(below(&dir));
        places.push(dir);
    }
    places.sort();
    places.dedup();
    let found = volume_note::volumes_at(places, &mut |doubt| log::warn!(error:% = doubt; "{doubt}"));
    of_formation(found, wish.formation)
}

/// Returns its nodes, their map, and the lives of the formation that it took part in.
fn past_of(old: &FormationState, common: CommonLives) -> LaunchResult<PreviousPart> {
    let map = old.map().ok_or_else(|| damaged(old, "what is left of it does not have its map"))?;
    let ids: Vec<u16> = old.nodes.iter().map(|node| node.id).collect();
    let first_node = ids.first().copied().unwrap_or_default();
    // A part is told the number of its first node alone.
    if !ids.iter().copied().eq(first_node..first_node.saturating_add(ids.len() as u16)) {
        return Err(damaged(old, "the numbers of its nodes do not follow each other"));
    }
    Ok(PreviousPart { first_node, map, lives: common.lives, served: common.served })
}
