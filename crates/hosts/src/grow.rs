//! Requests that hosts join a running formation: what refuses them, and how the keeper is asked.

use bivouac_launch::control::{Request, ask};
use bivouac_launch::{
    ArrivalStage, FormationState, HostLife, Kind, LaunchError, LaunchResult, Launcher, Protection, Stage,
    StateDir,
};
use bivouac_types::limits::NODES_MAX;
use bivouac_wire::rendezvous::Question;

use crate::elsewhere::decide_elsewhere;
use crate::list::{HOSTS_MAX, HostArg};
use crate::shrink::{DECIDE_MS_MAX, position_of};

/// A host that is to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoiningHost {
    /// It is not one of the formation's, or was.
    New(String),
    /// It joins already, or has joined: its position.
    Known(usize),
}

/// Returns the hosts that are to join, if nothing that the state shows keeps them from it.
///
/// # Errors
/// `Usage` for more than one node on a host, otherwise `Refused`.
pub fn check_arrival(state: &FormationState, hosts: &[HostArg]) -> LaunchResult<Vec<JoiningHost>> {
    let formation = format!("formation {}", state.name);
    let refused = |object: &str, cause: String, remedy: &str| {
        Err(LaunchError::new(Kind::Refused, object, cause, remedy))
    };
    if state.stage != Stage::Running {
        return refused(&formation, "is not in use yet, or no more".into(), "look at it: bivouac status");
    }
    let Some(map) = state.map().filter(|map| !map.mirrors.is_empty() && state.protect != Protection::None)
    else {
        let remedy = "only nodes with replicas can move: bivouac up --protect replicas=2";
        return refused(&formation, "is not protected, so no host can join it".into(), remedy);
    };
    if state.in_process {
        let cause = "has nodes that share processes, so they cannot move one by one".to_owned();
        return refused(&formation, cause, "start the formation without --in-process");
    }
    check_launcher(state)?;
    let joining = hosts.iter().map(|host| check_host(state, host)).collect::<LaunchResult<Vec<_>>>()?;
    let more = joining.iter().filter(|host| matches!(host, JoiningHost::New(_))).count();
    // Those that were called have no node in the map yet, but will.
    let calling = state.arrivals.iter().filter(|known| known.stage == ArrivalStage::Calling).count();
    let room = NODES_MAX.saturating_sub(map.nodes.len() + calling);
    let most = room.min(HOSTS_MAX.saturating_sub(state.hosts.len()));
    if more > most {
        let cause = format!("has room for {most} more hosts in its map, those that have gone included");
        return refused(&formation, cause, "let fewer hosts join, or start a new formation");
    }
    Ok(joining)
}

/// Refuses launchers that start all hosts at once, or none.
fn check_launcher(state: &FormationState) -> LaunchResult<()> {
    let Some(reach) = &state.reach else { return Ok(()) };
    match &reach.launcher {
        Launcher::Ssh | Launcher::Slurm | Launcher::Custom(_) => Ok(()),
        launcher => {
            let cause = format!("was started by {launcher}, which reaches no further host by itself");
            let remedy = "start it so that hosts can join: --launch ssh, slurm, or a command with {host}";
            Err(LaunchError::new(Kind::Refused, format_args!("formation {}", state.name), cause, remedy))
        }
    }
}

fn check_host(state: &FormationState, host: &HostArg) -> LaunchResult<JoiningHost> {
    let HostArg { name, nodes, .. } = host;
    if *nodes != 1 {
        let remedy = "name it without a number; nodes that are elsewhere move there as far as that is even";
        return Err(LaunchError::usage(
            format_args!("--hosts {name}:{nodes}"),
            "a host joins with one node",
            remedy,
        ));
    }
    let Some(at) = position_of(state, name) else { return Ok(JoiningHost::New(name.clone())) };
    let life = state.hosts.get(at).map(|host| host.life);
    let arrival = state.arrivals.iter().find(|known| known.host == at);
    match (life, arrival) {
        (_, Some(arrival)) if arrival.stage < ArrivalStage::Done => Ok(JoiningHost::Known(at)),
        (Some(HostLife::Up), Some(_)) => Ok(JoiningHost::Known(at)),
        (Some(HostLife::Up | HostLife::Called), _) => Err(LaunchError::new(
            Kind::Refused,
            format_args!("host {name}"),
            format_args!("is up already, as one of the first hosts of formation {}", state.name),
            "look at the hosts: bivouac status",
        )),
        _ => Ok(JoiningHost::New(name.clone())),
    }
}

/// Asks the keeper, here or on another host, to have hosts join; it is decided when this comes back. Hosts that join
/// already go on.
///
/// # Errors
/// Refusals of the keeper, and `NotRunning` or a timeout where none answers.
pub fn grow_hosts(dir: &StateDir, names: &[String]) -> LaunchResult<()> {
    let hosts = names.to_vec();
    match dir.read()? {
        Some(state) if state.part.is_some() => {
            decide_elsewhere(dir, &state, Question::Grow { hosts }, DECIDE_MS_MAX)
        }
        _ => ask(dir, &Request::Grow { hosts }, &[], DECIDE_MS_MAX),
    }
}
