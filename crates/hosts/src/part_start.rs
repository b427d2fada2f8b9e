//! The state of a host's part before it has nodes: new, recovered, or in the place of one that was given up.

use std::io::Write;
use std::net::IpAddr;
use std::path::PathBuf;

use bivouac_launch::recovery::{PartWish, part_again};
use bivouac_launch::start::{Attempt, claim, write_first};
use bivouac_launch::{
    Claim, Environment, FormationRequest, FormationState, Kind, LaunchError, LaunchResult, PartState,
    ProcessId, StateDir, VolumeArg, plan, remove_leftovers,
};
use bivouac_wire::rendezvous::PreviousPart;

use crate::ticket::Ticket;

/// Returns the state of a part that has nothing yet, with what it takes to have it.
///
/// # Errors
/// What is in the way, or makes no sense here.
pub(crate) fn new_part(
    here: &Environment,
    ticket: &Ticket,
    ip: IpAddr,
) -> LaunchResult<(Claim, FormationState, Option<PreviousPart>)> {
    if ticket.joins {
        remove_former_part(here, ticket)?;
    }
    let claim = claim(here, &ticket.name, &mut say).map_err(|error| named_twice(here, ticket, error))?;
    let mut attempt = Attempt { here, dir: claim.dir.clone(), done: false };
    let mut state = plan(here, &wishes(here, ticket), &claim.dir)?;
    state.formation.clone_from(&ticket.formation);
    let started_from = ticket.addresses.first().cloned().unwrap_or_default();
    state.part = Some(PartState { bind: ip, started_from, leaves_volumes: false });
    state.reach.clone_from(&ticket.reach);
    // Its supervisor sees that it is gone; without one, so does a daemon.
    state.owner = Some(ProcessId::current());
    write_first(&claim.dir, &state)?;
    attempt.done = true;
    Ok((claim, state, None))
}

/// Removes what this host has of a formation that gave it up, and that it joins again: all of that is on other hosts.
fn remove_former_part(here: &Environment, ticket: &Ticket) -> LaunchResult<()> {
    let claim = StateDir::claim(here, &ticket.name).map_err(|error| {
        let cause = format!("still has a part of a formation of that name ({error})");
        let remedy = "a host that was given up takes its part down within --silence-max; then: bivouac grow";
        LaunchError::new(error.kind(), format_args!("machine {}", here.host), cause, remedy)
    })?;
    match claim.stale.as_ref().filter(|stale| stale.formation == ticket.formation) {
        Some(stale) => {
            if let Some(reason) = stale.why_kept() {
                let cause = format!("has a part of this formation whose data is to be kept: {reason}");
                let remedy = "throw it away there: bivouac down --discard; then: bivouac grow";
                let object = format_args!("machine {}", here.host);
                return Err(LaunchError::new(Kind::Keep, object, cause, remedy));
            }
            remove_leftovers(here, &claim.dir, stale, &mut say)
        }
        // Nothing is in it yet but the lock, or what another formation has left.
        None if claim.stale.is_none() => claim.dir.remove(),
        None => Ok(()),
    }
}

/// Returns the state of a part that is recovered, with what it takes to have it, and what it was.
///
/// # Errors
/// Why it cannot be recovered.
pub(crate) fn old_part(
    here: &Environment,
    ticket: &Ticket,
    ip: IpAddr,
) -> LaunchResult<(Claim, FormationState, Option<PreviousPart>)> {
    let volumes: Vec<PathBuf> = ticket.volumes.iter().map(|(dir, _)| dir.clone()).collect();
    let wish = PartWish {
        name: &ticket.name,
        formation: &ticket.formation,
        volumes: &volumes,
        with_older: ticket.with_older,
        bind: ip,
        port: ticket.port,
        started_from: ticket.addresses.first().map_or("", String::as_str),
        reach: ticket.reach.as_ref(),
    };
    part_again(here, &wish).map(|(claim, state, past)| (claim, state, Some(past)))
}

/// Returns the error for a host that was named twice, where what runs here already is this very formation.
fn named_twice(here: &Environment, ticket: &Ticket, error: LaunchError) -> LaunchError {
    let found = StateDir::find(here, Some(&ticket.name)).and_then(|(_, dir)| dir.read());
    if found.ok().flatten().is_none_or(|state| state.formation != ticket.formation) {
        return error;
    }
    let remedy = "name it once; several nodes on one host: NAME:COUNT, or --nodes-per-host";
    LaunchError::new(
        Kind::Running,
        format_args!("machine {}", here.host),
        "is named twice, under two names",
        remedy,
    )
}

/// Returns the request that a ticket makes on this host.
pub(crate) fn wishes(here: &Environment, ticket: &Ticket) -> FormationRequest {
    let called = ticket.host.as_deref().or(here.batch.slurm_node.as_deref());
    let names: Vec<&str> = called.into_iter().chain([here.host.as_str()]).collect();
    let volume =
        |(dir, capacity): &(PathBuf, Option<u64>)| VolumeArg { dir: dir.clone(), capacity: *capacity };
    FormationRequest {
        name: ticket.name.clone(),
        nodes: ticket.nodes_for(&names),
        volumes: ticket.volumes.iter().map(volume).collect(),
        stripe: u64::from(ticket.stripe),
        // It is of all hosts, so no host can judge it.
        width: 0,
        spread_at: ticket.spread_at,
        checksum: ticket.checksum,
        page_pool: ticket.page_pool,
        names_memory: ticket.names_memory,
        numa: ticket.numa,
        log_format: ticket.log_format,
        wait_ms: ticket.wait_ms,
        dead_after_ms: ticket.dead_after_ms,
        port: ticket.port,
        in_process: ticket.in_process,
        secure: ticket.secure,
        detect_races: ticket.detect_races,
        protect: ticket.protect,
        http: ticket.http.clone(),
        link_listen: ticket.link_listen,
        tolerance: ticket.tolerance,
        // The keeper sees to that, for all hosts at once.
        ttl_ms: None,
        owner: None,
    }
}

/// Writes to standard error. Unlike `eprintln!` it bears that nobody reads that any more.
pub(crate) fn say(text: &str) {
    let _nobody_reads = writeln!(std::io::stderr(), "bivouac: {}", bivouac_types::named(text));
}
