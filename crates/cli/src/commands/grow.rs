//! `bivouac grow`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bivouac_hosts::{JoiningHost, check_arrival, grow_hosts, parse_hosts, same_host};
use bivouac_launch::{
    Arrival, ArrivalStage, CAUGHT, Environment, FormationState, HostLife, Kind, LaunchError, Signals,
    StateDir,
};
use serde_json::json;

use super::status::is_over;
use super::whole_state::{newest_state, whole_state};
use crate::failure::Failure;
use crate::options::GrowArgs;

/// Pause between two looks at how far it is.
const LOOK_PAUSE: Duration = Duration::from_millis(300);

/// Has hosts join a running formation, and waits until they have, and nodes and replicas are spread over all hosts.
pub fn run(here: &Environment, args: &GrowArgs) -> Result<ExitCode, Failure> {
    let signals = Signals::catch(&CAUGHT).map_err(|e| LaunchError::system("signals", e))?;
    let (name, dir) = StateDir::find_whole(here, args.which.name())?;
    let state = whole_state(&dir, "join")?;
    let hosts = parse_hosts(&args.hosts, 1)?;
    let joining = check_arrival(&state, &hosts)?;
    // As the formation calls those that it has already.
    let names: Vec<String> = joining
        .into_iter()
        .filter_map(|host| match host {
            JoiningHost::New(name) => Some(name),
            JoiningHost::Known(at) => state.hosts.get(at).map(|host| host.name.clone()),
        })
        .collect();
    grow_hosts(&dir, &names)?;
    let mut progress = Progress { is_json: args.json, told: BTreeMap::new() };
    let deadline = args.timeout.map(|timeout| Instant::now() + Duration::from_millis(timeout.0));
    let goes_on = |why: &str, message: Option<String>| {
        let waits = message.map_or(String::new(), |message| format!(" ({message})"));
        let cause = format!("{why}; it goes on joining{waits}");
        let remedy = format!("wait for it again: bivouac grow --name {name} --hosts {}", args.hosts);
        LaunchError::new(Kind::Interrupted, format_args!("host {}", names.join(", ")), cause, &remedy)
    };
    loop {
        // The keeper may be another one by now, on another host.
        if let Some(state) = newest_state(here, &name)? {
            let outcomes: Vec<Outcome> = names.iter().map(|name| progress.look(&state, name)).collect();
            if outcomes.iter().all(|outcome| *outcome != Outcome::Joins) {
                return Ok(if outcomes.iter().all(|outcome| *outcome == Outcome::Joined) {
                    ExitCode::SUCCESS
                } else {
                    ExitCode::FAILURE
                });
            }
        }
        let message = || progress.told.values().next().cloned();
        if is_over(&signals, LOOK_PAUSE) {
            return Err(goes_on("it was not waited for any longer", message()).into());
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            let waited = args.timeout.map_or(0, |timeout| timeout.0 / 1000);
            return Err(goes_on(&format!("has not joined within {waited} s"), message()).into());
        }
    }
}

/// State of a host that was asked to join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It joins.
    Joins,
    /// It has joined.
    Joined,
    /// It does not, or was lost.
    Other,
}

/// Output while hosts join.
struct Progress {
    is_json: bool,
    /// The latest text that was printed for each host.
    told: BTreeMap<String, String>,
}

impl Progress {
    /// Prints what has changed for a host.
    fn look(&mut self, state: &FormationState, name: &str) -> Outcome {
        let (outcome, stage, message) = outcome_of(state, name);
        let text = text_of(stage, message.as_deref());
        if self.told.get(name).is_none_or(|told| *told != text) {
            if self.is_json {
                let event = if outcome == Outcome::Joins { "progress" } else { "ended" };
                outln!("{}", json!({"event": event, "host": name, "state": stage, "message": message}));
            } else if outcome == Outcome::Joined {
                outln!("host {name}: {text}");
            } else {
                errln!("bivouac: host {name}: {text}");
            }
            self.told.insert(name.to_owned(), text);
        }
        outcome
    }
}

/// Returns how far the latest host of a name is, with the name of that stage, and what is to be said of it.
fn outcome_of(state: &FormationState, name: &str) -> (Outcome, &'static str, Option<String>) {
    let Some(at) = state.hosts.iter().rposition(|host| same_host(&host.name, name)) else {
        return (Outcome::Other, ArrivalStage::GivenUp.name(), None);
    };
    let arrival: Option<&Arrival> = state.arrivals.iter().find(|known| known.host == at);
    let life = state.hosts.get(at).map(|host| host.life);
    match (life, arrival) {
        (Some(HostLife::Lost), arrival) => {
            let message = arrival.and_then(|known| known.message.clone());
            (Outcome::Other, "lost", message)
        }
        (Some(HostLife::Up), Some(known)) if known.stage == ArrivalStage::Done => {
            (Outcome::Joined, known.stage.name(), known.message.clone())
        }
        (_, Some(known)) if known.stage < ArrivalStage::Done => {
            (Outcome::Joins, known.stage.name(), known.message.clone())
        }
        (_, known) => {
            (Outcome::Other, ArrivalStage::GivenUp.name(), known.and_then(|known| known.message.clone()))
        }
    }
}

fn text_of(stage: &str, message: Option<&str>) -> String {
    let message = message.map_or(String::new(), |message| format!(": {message}"));
    match stage {
        "joined" => format!("has joined{message}"),
        "given-up" => format!("does not join{message}"),
        "lost" => format!("was lost before all was done{message}; see: bivouac status --lost"),
        stage => format!("{stage}{message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_is_said() {
        assert_eq!(text_of("joined", None), "has joined");
        assert_eq!(text_of("given-up", Some("no room")), "does not join: no room");
        let text = "node 1 moves to host n5";
        assert_eq!(text_of("balancing", Some(text)), "balancing: node 1 moves to host n5");
    }
}
