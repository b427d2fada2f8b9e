//! Requests that hosts join a running formation: what refuses them, and how the keeper is asked.

use bivouac_launch::control::{Request, ask};
use bivouac_launch::{
    ArrivalStage, FormationState, HostLife, Kind, LaunchError, LaunchResult, Launcher, MoveStage, Protection,
    Stage, StateDir,
};
use bivouac_types::NodeId;
use bivouac_types::limits::NODES_MAX;
use bivouac_wire::rendezvous::Question;

use crate::elsewhere::decide_elsewhere;
use crate::list::{HOSTS_MAX, HostArg, same_host};
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
        _ => match needed_there(state, name) {
            Some(node) => Err(LaunchError::new(
                Kind::Refused,
                format_args!("host {name}"),
                format_args!(
                    "has what there is of node {node}, which does not serve elsewhere; to join would remove it"
                ),
                "wait for a move: bivouac status --lost; if it is given up, copy out what the others have, then \
                 take the formation down: bivouac down",
            )),
            None => Ok(JoiningHost::New(name.clone())),
        },
    }
}

/// Returns a node with content that a host of this name had when it was lost, and that serves nowhere: the volumes
/// there may be its only copy.
fn needed_there(state: &FormationState, name: &str) -> Option<u16> {
    let map = state.map()?;
    let is_former = |host: usize| state.hosts.get(host).is_some_and(|host| same_host(&host.name, name));
    let former = state.hosts.iter().filter(|host| same_host(&host.name, name));
    let given_up = former.flat_map(|host| host.nodes.iter().copied()).filter(|node| state.is_given_up(*node));
    let moves = state.moves.iter().filter(|m| m.stage != MoveStage::Serving && is_former(m.from));
    given_up.chain(moves.map(|m| m.node)).find(|node| map.has_content(NodeId(*node)))
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

#[cfg(test)]
mod tests {
    use bivouac_launch::hex::to_hex;
    use bivouac_launch::{Arrival, HostState, NodeLife, NodeMove, NodeState};
    use bivouac_types::FormationId;
    use bivouac_wire::{Encode, FormationMap, MirrorEntry, NodeEntry, TargetEntry};

    use super::*;
    use crate::list::parse_hosts;
    use crate::part_start::wishes;
    use crate::tests::environment;
    use crate::ticket::{Ticket, tests::sample};

    fn node(id: u16) -> NodeState {
        NodeState {
            id,
            host: format!("n{id}"),
            process: None,
            life: NodeLife::Ready,
            message: None,
            deaths: 0,
            client_address: String::new(),
            peer_address: String::new(),
            unix_path: "/run/n".into(),
            epoch: 0,
            volumes: Vec::new(),
        }
    }

    /// A protected formation on two hosts, each with a node; the second one is lost.
    fn state(count: u16) -> FormationState {
        let entry = |id: u16| NodeEntry {
            host: format!("n{id}"),
            client_address: format!("10.0.0.1:{id}"),
            peer_address: format!("10.0.0.2:{id}"),
            unix_path: String::new(),
            epoch: 0,
        };
        let map = FormationMap {
            version: 1,
            formation: FormationId([7; 16]),
            name: "x".into(),
            slots: (0..16).map(|slot| NodeId(slot % 2)).collect(),
            nodes: (0..count).map(entry).collect(),
            targets: (0..2).map(|node| TargetEntry { node: NodeId(node), volume: 0 }).collect(),
            stripe: 1 << 20,
            width: 0,
            is_secure: false,
            detects_races: false,
            mirrors: vec![MirrorEntry { backup: None, epoch: 2 }; usize::from(count)],
        };
        let host = |id: u16, life: HostLife| HostState {
            name: format!("n{id}"),
            life,
            message: None,
            nodes: vec![id],
            mount: None,
        };
        let ticket = Ticket { protect: Protection::Replicas, ..sample() };
        FormationState {
            stage: Stage::Running,
            map: to_hex(&map.to_bytes()),
            nodes: (0..count).map(node).collect(),
            hosts: vec![host(0, HostLife::Up), host(1, HostLife::Lost)],
            ..wishes(&environment(), &ticket).first_state("07".repeat(16))
        }
    }

    /// S855, S857: the only copy of a node is not removed.
    #[test]
    fn a_host_with_what_nobody_else_has_does_not_join() {
        let hosts = parse_hosts("n1.cluster", 1).unwrap();
        let join = |state: &FormationState| check_arrival(state, &hosts);
        let moved = |stage| NodeMove {
            node: 1,
            from: 1,
            to: 0,
            backup: 0,
            epoch: 2,
            since_unix_ms: 1,
            stage,
            message: None,
            is_planned: false,
        };
        let mut state = state(2);
        state.nodes[1].life = NodeLife::Failed;
        let error = join(&state).unwrap_err().to_string();
        assert!(error.contains("host n1.cluster: has what there is of node 1"), "{error}");
        // It has a new place already, where it may fail yet.
        (state.nodes[1].life, state.hosts[1].nodes) = (NodeLife::Restarting, Vec::new());
        for stage in [MoveStage::Sealing, MoveStage::Starting, MoveStage::Failed] {
            state.moves = vec![moved(stage)];
            assert!(join(&state).is_err(), "{stage:?}");
        }
        state.moves = vec![moved(MoveStage::Serving)];
        assert_eq!(join(&state), Ok(vec![JoiningHost::New("n1.cluster".into())]));
    }

    #[test]
    fn hosts_that_are_called_count_for_the_room_of_the_map() {
        let hosts = parse_hosts("n7", 1).unwrap();
        let mut state = state(NODES_MAX as u16 - 1);
        assert!(check_arrival(&state, &hosts).is_ok());
        let (stage, since_unix_ms) = (ArrivalStage::Calling, 1);
        state.arrivals = vec![Arrival { host: 2, node: None, stage, message: None, since_unix_ms }];
        let error = check_arrival(&state, &hosts).unwrap_err().to_string();
        assert!(error.contains("has room for 0 more hosts"), "{error}");
    }
}
