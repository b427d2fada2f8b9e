//! `bivouac shrink`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use bivouac_hosts::{check_departure, copies_of_departure, parse_hosts, shrink_hosts};
use bivouac_launch::{
    CAUGHT, DepartureStage, Environment, FormationState, HostLife, Kind, LaunchError, NodeLife, Signals,
    StateDir,
};
use bivouac_monitor::status::{NodeReport, look};
use bivouac_types::units::format_size;

use super::host_changes::{HostProgress, HostWait, LOOK_PAUSE, Outcome, newest_state, whole_state};
use super::status::is_over;
use crate::failure::Failure;
use crate::options::ShrinkArgs;

/// Time that nodes may take to tell what is on them.
const SPACE_WAIT: Duration = Duration::from_secs(30);

/// Orders hosts to leave a formation, and waits until they have left.
pub fn run(here: &Environment, args: &ShrinkArgs) -> Result<ExitCode, Failure> {
    let signals = Signals::catch(&CAUGHT).map_err(|e| LaunchError::system("signals", e))?;
    let (name, dir) = StateDir::find_whole(here, args.which.name())?;
    let state = whole_state(&dir, "leave")?;
    let names: Vec<String> = parse_hosts(&args.hosts, 1)?.into_iter().map(|host| host.name).collect();
    let hosts = check_departure(&state, &names)?;
    let is_under_way = |host: &usize| state.leaving().any(|known| known.host == *host);
    // Copies that are under way have taken room already, which would be asked for a second time.
    if !hosts.iter().all(is_under_way) {
        check_space(&signals, &dir, &state, &hosts)?;
    }
    // As the formation calls them.
    let names: Vec<String> =
        hosts.iter().filter_map(|host| state.hosts.get(*host)).map(|host| host.name.clone()).collect();
    assert_eq!(names.len(), hosts.len(), "a host that is to leave is none of formation {name}");
    shrink_hosts(&dir, &names, args.force)?;
    let wait = HostWait {
        again: format!("bivouac shrink --name {name} --hosts {}", args.hosts),
        words: ("leaving", "left"),
        text: text_of,
        names: &names,
        is_json: args.json,
        timeout: args.timeout.map(|timeout| Duration::from_millis(timeout.0)),
    };
    wait.wait(&signals, |told| {
        let left = |host: &String| HostProgress {
            host: host.clone(),
            outcome: Outcome::Done,
            stage: "left",
            message: None,
        };
        let all_leave =
            !told.is_empty() && told.values().all(|(stage, _)| *stage == DepartureStage::Leaving.name());
        // The keeper may be another one by now, on another host.
        Ok(match newest_state(here, &name) {
            // This host is the one that has left.
            Err(error) if error.kind() == Kind::NotRunning && all_leave => {
                Some(names.iter().map(left).collect())
            }
            state => state?.map(|state| {
                hosts.iter().zip(&names).map(|(at, name)| progress_of(&state, *at, name)).collect()
            }),
        })
    })
}

/// Refuses where a copy that has to be made does not fit.
fn check_space(
    signals: &Signals,
    dir: &StateDir,
    state: &FormationState,
    hosts: &[usize],
) -> Result<(), Failure> {
    let copies = copies_of_departure(state, hosts);
    let known = |nodes: &[NodeReport]| {
        let needed = copies.iter().flat_map(|(node, backup)| [node.0, backup.0]);
        needed.filter(|id| nodes.iter().any(|node| node.id == *id && taken(node).is_none())).min()
    };
    let deadline = Instant::now() + SPACE_WAIT;
    let nodes = loop {
        let nodes = look(dir)?.nodes;
        match known(&nodes) {
            None => break nodes,
            // A node that starts just now has no figures yet: it is waited for.
            Some(_) if Instant::now() < deadline && !is_over(signals, LOOK_PAUSE) => {}
            Some(silent) => {
                let cause = "does not answer, so it is not known whether what is to be copied fits";
                let remedy = "look at it: bivouac status";
                return Err(
                    LaunchError::new(Kind::Refused, format_args!("node {silent}"), cause, remedy).into()
                );
            }
        }
    };
    let space = |node: &NodeReport| NodeSpace {
        node: node.id,
        host: node.host.clone(),
        own: taken(node).unwrap_or(0).saturating_sub(replicas(node)),
        taken: taken(node).unwrap_or(0),
        capacity: node.volumes.iter().map(|volume| volume.capacity_bytes).sum(),
    };
    let spaces: Vec<NodeSpace> = nodes.iter().map(space).collect();
    let copies: Vec<(u16, u16)> = copies.iter().map(|(node, backup)| (node.0, backup.0)).collect();
    let Some((full, needed)) = missing_space(&copies, &spaces) else { return Ok(()) };
    let free = full.capacity.saturating_sub(full.taken);
    let cause =
        format!("{} have to be copied there, and {} are free", format_size(needed), format_size(free));
    let object = format!("node {} on host {}", full.node, full.host);
    let remedy = "remove files from the formation, or let fewer hosts leave";
    Err(LaunchError::new(Kind::Refused, object, cause, remedy).into())
}

/// Bytes of a node's volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NodeSpace {
    node: u16,
    host: String,
    /// Bytes of the node itself, which each copy of it takes.
    own: u64,
    /// Bytes of the node and of replicas of others.
    taken: u64,
    capacity: u64,
}

/// Returns the bytes on a node's volumes; nothing if it does not answer.
fn taken(node: &NodeReport) -> Option<u64> {
    node.volumes.iter().map(|volume| Some(volume.used_bytes?.saturating_add(volume.records_bytes?))).sum()
}

/// Returns how many of those bytes are replicas of other nodes.
fn replicas(node: &NodeReport) -> u64 {
    node.volumes.iter().filter_map(|volume| volume.replica_bytes).sum()
}

/// Returns the first node with too little space for these copies, each of a node to another one, and the bytes that
/// would come there.
fn missing_space<'a>(copies: &[(u16, u16)], nodes: &'a [NodeSpace]) -> Option<(&'a NodeSpace, u64)> {
    let size_of = |id: u16| nodes.iter().find(|node| node.node == id).map_or(0, |node| node.own);
    let needed = |node: &NodeSpace| -> u64 {
        copies.iter().filter(|(_, backup)| *backup == node.node).map(|(of, _)| size_of(*of)).sum()
    };
    let is_full = |node: &&NodeSpace| needed(node) > node.capacity.saturating_sub(node.taken);
    nodes.iter().find(is_full).map(|node| (node, needed(node)))
}

/// Returns how far a host is.
fn progress_of(state: &FormationState, at: usize, host: &str) -> HostProgress {
    let departure = state.departures.iter().find(|known| known.host == at);
    let found = state.hosts.get(at);
    let (outcome, stage, message) = match (found.map(|host| host.life), departure) {
        (Some(HostLife::Left), _) => (Outcome::Done, "left", found.and_then(|host| host.message.clone())),
        (Some(HostLife::Up), Some(departure)) if departure.stage != DepartureStage::GivenUp => {
            (Outcome::UnderWay, departure.stage.name(), departure.message.clone())
        }
        (Some(HostLife::Up), departure) => {
            let why = departure.and_then(|departure| departure.message.clone());
            (Outcome::Other, DepartureStage::GivenUp.name(), why)
        }
        _ => (Outcome::Other, "lost", Some(loss_text(state, at))),
    };
    HostProgress { host: host.to_owned(), outcome, stage, message }
}

fn text_of(stage: &'static str, message: Option<&str>) -> String {
    let message = message.map_or(String::new(), |message| format!(": {message}"));
    match stage {
        "left" => format!("has left{message}"),
        "given-up" => format!("stays{message}"),
        "lost" => format!("was lost before it had left{message}"),
        stage => format!("{stage}{message}"),
    }
}

/// Returns what the loss of a host that was to leave means.
fn loss_text(state: &FormationState, host: usize) -> String {
    let moves = state.moves.iter().filter(|moved| moved.from == host);
    let is_dead =
        |node: u16| state.nodes.iter().any(|known| known.id == node && known.life == NodeLife::Failed);
    let there = state.hosts.get(host).map(|host| host.nodes.clone()).unwrap_or_default();
    let dead = there.into_iter().chain(moves.map(|moved| moved.node)).find(|node| is_dead(*node));
    match dead {
        Some(node) => format!("node {node} is lost for good; see: bivouac status --lost"),
        None => "its nodes go on elsewhere; see: bivouac status --lost".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S841.
    #[test]
    fn copies_have_to_fit_where_they_go() {
        let space =
            |node: u16, own, taken| NodeSpace { node, host: format!("n{node}"), own, taken, capacity: 100 };
        let nodes = [space(0, 20, 40), space(1, 30, 50), space(2, 10, 40)];
        assert_eq!(missing_space(&[(0, 2), (1, 2)], &nodes), None, "replicas are not copied with the node");
        assert_eq!(missing_space(&[(0, 2), (1, 2), (0, 2)], &nodes), Some((&nodes[2], 70)));
        assert_eq!(missing_space(&[], &[space(0, 120, 120)]), None, "nothing comes there");
    }

    #[test]
    fn what_happens_is_said() {
        assert_eq!(text_of("left", None), "has left");
        assert_eq!(text_of("given-up", Some("too few")), "stays: too few");
        assert_eq!(
            text_of("copying", Some("node 0 is copied to host n3")),
            "copying: node 0 is copied to host n3"
        );
    }
}
