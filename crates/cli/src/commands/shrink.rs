//! `bivouac shrink`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bivouac_hosts::{check_departure, copies_of_departure, parse_hosts, shrink_hosts};
use bivouac_launch::{
    CAUGHT, DepartureStage, Environment, FormationState, HostLife, Kind, LaunchError, NodeLife, Signals,
    StateDir,
};
use bivouac_monitor::status::{NodeReport, look};
use bivouac_types::units::format_size;
use serde_json::json;

use super::status::is_over;
use super::whole_state::{newest_state, whole_state};
use crate::failure::Failure;
use crate::options::ShrinkArgs;

/// Pause between two looks at how far it is.
const LOOK_PAUSE: Duration = Duration::from_millis(300);
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
    let mut progress = Progress { is_json: args.json, told: BTreeMap::new() };
    let deadline = args.timeout.map(|timeout| Instant::now() + Duration::from_millis(timeout.0));
    let goes_on = |why: &str, message: Option<String>| {
        let waits = message.map_or(String::new(), |message| format!(" ({message})"));
        let cause = format!("{why}; it goes on leaving{waits}");
        let remedy = format!("wait for it again: bivouac shrink --name {name} --hosts {}", args.hosts);
        LaunchError::new(Kind::Interrupted, format_args!("host {}", names.join(", ")), cause, &remedy)
    };
    loop {
        // The keeper may be another one by now, on another host.
        let state = match newest_state(here, &name) {
            // This host is the one that has left.
            Err(error) if error.kind() == Kind::NotRunning && progress.all_take_their_parts_down() => {
                names.iter().for_each(|name| progress.tell_left(name));
                return Ok(ExitCode::SUCCESS);
            }
            state => state?,
        };
        if let Some(state) = state {
            let outcomes: Vec<Outcome> =
                hosts.iter().map(|host| progress.look(&state, *host)).collect::<Result<_, _>>()?;
            if outcomes.iter().all(|outcome| *outcome != Outcome::Leaves) {
                return Ok(if outcomes.iter().all(|outcome| *outcome == Outcome::Left) {
                    ExitCode::SUCCESS
                } else {
                    ExitCode::FAILURE
                });
            }
        }
        let message = || progress.told.values().next().map(|(_, text)| text.clone());
        if is_over(&signals, LOOK_PAUSE) {
            return Err(goes_on("it was not waited for any longer", message()).into());
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            let waited = args.timeout.map_or(0, |timeout| timeout.0 / 1000);
            return Err(goes_on(&format!("has not left within {waited} s"), message()).into());
        }
    }
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

/// State of a host that was asked to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It leaves.
    Leaves,
    /// It has left.
    Left,
    /// It stays, or was lost.
    Other,
}

/// Output while hosts leave.
struct Progress {
    is_json: bool,
    /// The latest stage and text that were printed for each host.
    told: BTreeMap<usize, (&'static str, String)>,
}

impl Progress {
    /// Returns true if all of the hosts take their parts down.
    fn all_take_their_parts_down(&self) -> bool {
        let leaving = DepartureStage::Leaving.name();
        !self.told.is_empty() && self.told.values().all(|(stage, _)| *stage == leaving)
    }

    /// Prints that a host has left.
    fn tell_left(&self, host: &str) {
        if self.is_json {
            outln!("{}", json!({"event": "ended", "host": host, "state": "left", "message": null}));
        } else {
            outln!("host {host}: has left");
        }
    }

    /// Prints what has changed for a host.
    fn look(&mut self, state: &FormationState, host: usize) -> Result<Outcome, Failure> {
        let Some(found) = state.hosts.get(host) else { return Ok(Outcome::Other) };
        let departure = state.departures.iter().find(|known| known.host == host);
        let (outcome, stage, message) = match (found.life, departure) {
            (HostLife::Left, _) => (Outcome::Left, "left", found.message.clone()),
            (HostLife::Up, Some(departure)) if departure.stage != DepartureStage::GivenUp => {
                (Outcome::Leaves, departure.stage.name(), departure.message.clone())
            }
            (HostLife::Up, departure) => {
                let why = departure.and_then(|departure| departure.message.clone());
                (Outcome::Other, DepartureStage::GivenUp.name(), why)
            }
            _ => (Outcome::Other, "lost", Some(loss_text(state, host))),
        };
        let text = text_of(stage, message.as_deref());
        if self.told.get(&host).is_none_or(|(_, told)| *told != text) {
            if self.is_json {
                let event = if outcome == Outcome::Leaves { "progress" } else { "ended" };
                outln!("{}", json!({"event": event, "host": found.name, "state": stage, "message": message}));
            } else if outcome == Outcome::Left {
                outln!("host {}: {text}", found.name);
            } else {
                errln!("bivouac: host {}: {text}", found.name);
            }
            self.told.insert(host, (stage, text));
        }
        Ok(outcome)
    }
}

fn text_of(stage: &str, message: Option<&str>) -> String {
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
