//! Requests that hosts leave a formation in order: what refuses them, and how the keeper is asked.

use bivouac_launch::control::{Request, ask};
use bivouac_launch::{
    FormationState, HostLife, HostState, Kind, LaunchError, LaunchResult, Protection, Stage, StateDir,
};
use bivouac_types::NodeId;
use bivouac_wire::rendezvous::Question;

use crate::elsewhere::decide_elsewhere;
use crate::list::same_host;
use crate::moves::{HOSTS_LEFT_MIN, MoveMachine};

/// Time the keeper may take to check and to decide, in milliseconds: it asks hosts, and voters.
pub(crate) const DECIDE_MS_MAX: u64 = 60_000;

/// Returns the positions of hosts that are to leave, if nothing that the state shows keeps them from it.
///
/// # Errors
/// `Usage` for a host that the formation does not have, otherwise `Refused`.
pub fn check_departure(state: &FormationState, names: &[String]) -> LaunchResult<Vec<usize>> {
    let formation = format!("formation {}", state.name);
    let refused = |object: &str, cause: String, remedy: &str| {
        Err(LaunchError::new(Kind::Refused, object, cause, remedy))
    };
    if state.stage != Stage::Running {
        return refused(&formation, "is not in use yet, or no more".into(), "look at it: bivouac status");
    }
    if state.protect == Protection::None || state.map().is_none_or(|map| map.mirrors.is_empty()) {
        let remedy = "only nodes with replicas can move: bivouac up --protect replicas=2";
        return refused(&formation, "is not protected, so no host can leave it".into(), remedy);
    }
    let mut hosts = Vec::new();
    for name in names {
        let Some(host) = position_of(state, name) else {
            let all: Vec<&str> = state.hosts.iter().map(|host| host.name.as_str()).collect();
            let remedy = format!("its hosts are {}", all.join(", "));
            let cause = format!("{formation} has no such host");
            return Err(LaunchError::usage(format_args!("--hosts {name}"), cause, &remedy));
        };
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    for host in &hosts {
        let Some(found) = state.hosts.get(*host) else { continue };
        check_host(state, *host, found)?;
    }
    let serves = |(at, host): &(usize, &HostState)| {
        let leaves = hosts.contains(at) || state.leaving().any(|known| known.host == *at);
        !leaves && host.nodes.iter().any(|node| host_of(state, *node) == Some(*at))
    };
    let left: Vec<&str> =
        state.hosts.iter().enumerate().filter(serves).map(|(_, host)| host.name.as_str()).collect();
    if left.len() < HOSTS_LEFT_MIN {
        let cause = match left.as_slice() {
            [] => "no host would be left".into(),
            hosts => format!("only host {} would be left, and replicas need two hosts", hosts.join(", ")),
        };
        return refused(&formation, cause, "let fewer hosts leave, or take it down: bivouac down");
    }
    Ok(hosts)
}

/// Returns the position of the host of a name. Of one that was lost or has left, and has joined again, there are
/// several: the latest counts.
pub(crate) fn position_of(state: &FormationState, name: &str) -> Option<usize> {
    state.hosts.iter().rposition(|host| same_host(&host.name, name))
}

fn check_host(state: &FormationState, at: usize, host: &HostState) -> LaunchResult<()> {
    let object = format!("host {}", host.name);
    let refused = |cause: String, remedy: &str| Err(LaunchError::new(Kind::Refused, &object, cause, remedy));
    let look = "look at the hosts: bivouac status";
    match host.life {
        HostLife::Left => return refused("has left already".into(), look),
        HostLife::Lost => return refused("is lost already".into(), "what is lost: bivouac status --lost"),
        HostLife::Missing | HostLife::Called => return refused("is not up".into(), look),
        HostLife::Up => {}
    }
    if state.keeper_host == Some(at) {
        let cause =
            format!("the keeper of formation {} runs there, which does not move in order", state.name);
        let remedy =
            "let it be the last one: bivouac down; of three hosts or more its loss is survived as any other";
        return refused(cause, remedy);
    }
    if let Some(failed) = host.nodes.iter().find(|node| state.is_given_up(**node)) {
        let cause = format!("node {failed} there is given up, and its volumes would go with the host");
        return refused(cause, "copy out what the others have, then take the formation down: bivouac down");
    }
    if state.in_process && host.nodes.len() > 1 {
        let cause = "its nodes share a process, so they cannot move one after the other".to_owned();
        return refused(cause, "start the formation without --in-process");
    }
    Ok(())
}

/// Returns the host of a node that is not given up.
fn host_of(state: &FormationState, node: u16) -> Option<usize> {
    let has = |host: &HostState| host.life == HostLife::Up && host.nodes.contains(&node);
    state.hosts.iter().position(has).filter(|_| !state.is_given_up(node))
}

/// Returns the copies that are made when hosts leave, as far as can be foreseen: a node, and its new backup.
#[must_use]
pub fn copies_of_departure(state: &FormationState, hosts: &[usize]) -> Vec<(NodeId, NodeId)> {
    let Some(map) = state.map() else { return Vec::new() };
    let under_way = state.leaving().map(|known| known.host);
    let hosts: Vec<usize> = hosts.iter().copied().chain(under_way).collect();
    let machine = MoveMachine::new(map);
    machine.copies_of_departure(&hosts, |node| host_of(state, node))
}

/// Asks the keeper, here or on another host, to have hosts leave; it is decided when this comes back. Hosts that leave
/// already go on.
///
/// # Errors
/// Refusals of the keeper, and `NotRunning` or a timeout where none answers.
pub fn shrink_hosts(dir: &StateDir, names: &[String], is_forced: bool) -> LaunchResult<()> {
    let hosts = names.to_vec();
    match dir.read()? {
        Some(state) if state.part.is_some() => {
            decide_elsewhere(dir, &state, Question::Shrink { hosts, is_forced }, DECIDE_MS_MAX)
        }
        _ => ask(dir, &Request::Shrink { hosts, is_forced }, &[], DECIDE_MS_MAX),
    }
}
