//! `bivouac grow`.

use std::process::ExitCode;
use std::time::Duration;

use bivouac_hosts::{JoiningHost, check_arrival, grow_hosts, parse_hosts, same_host};
use bivouac_launch::{
    Arrival, ArrivalStage, CAUGHT, Environment, FormationState, HostLife, LaunchError, Signals, StateDir,
};

use super::host_changes::{HostProgress, HostWait, Outcome, newest_state, whole_state};
use crate::failure::Failure;
use crate::options::GrowArgs;

/// Orders hosts to join a running formation. Returns once they have, and nodes and replicas are spread over all hosts.
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
    let wait = HostWait {
        again: format!("bivouac grow --name {name} --hosts {}", args.hosts),
        words: ("joining", "joined"),
        text: text_of,
        names: &names,
        is_json: args.json,
        timeout: args.timeout.map(|timeout| Duration::from_millis(timeout.0)),
    };
    wait.wait(&signals, |_| {
        // The keeper may be another one by now, on another host.
        let state = newest_state(here, &name)?;
        Ok(state.map(|state| names.iter().map(|name| progress_of(&state, name)).collect()))
    })
}

/// Returns how far the latest host of a name is.
fn progress_of(state: &FormationState, name: &str) -> HostProgress {
    let at = state.hosts.iter().rposition(|host| same_host(&host.name, name));
    let life = at.and_then(|at| state.hosts.get(at)).map(|host| host.life);
    let arrival: Option<&Arrival> = state.arrivals.iter().find(|known| Some(known.host) == at);
    let stage = arrival.map_or(ArrivalStage::GivenUp, |known| known.stage);
    let (outcome, stage) = match life {
        Some(HostLife::Lost) => (Outcome::Other, "lost"),
        Some(HostLife::Up) if stage == ArrivalStage::Done => (Outcome::Done, stage.name()),
        Some(_) if stage < ArrivalStage::Done => (Outcome::UnderWay, stage.name()),
        _ => (Outcome::Other, ArrivalStage::GivenUp.name()),
    };
    let message = arrival.and_then(|known| known.message.clone());
    HostProgress { host: name.to_owned(), outcome, stage, message }
}

fn text_of(stage: &'static str, message: Option<&str>) -> String {
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
