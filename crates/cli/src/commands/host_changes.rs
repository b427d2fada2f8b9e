//! Hosts that join or leave a formation: its state as a whole, and the wait for the end of that.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bivouac_hosts::look_elsewhere;
use bivouac_launch::{
    Environment, FormationName, FormationState, Kind, LaunchError, LaunchResult, Signals, StateDir, settled,
};
use serde_json::json;

use super::status::is_over;
use crate::failure::Failure;

/// Pause between two looks at how far it is.
pub const LOOK_PAUSE: Duration = Duration::from_millis(300);

/// Returns the state of the whole of a formation over several hosts, from wherever its keeper is, for a command by which
/// a host is to `act`.
///
/// # Errors
/// That it is on one host alone, was taken down, or has no keeper that answers.
pub fn whole_state(dir: &StateDir, act: &str) -> LaunchResult<FormationState> {
    let gone = || LaunchError::said(Kind::NotRunning, "the formation was taken down meanwhile");
    let state = settled(dir)?.ok_or_else(gone)?;
    if state.part.is_none() {
        if !state.is_over_hosts() {
            let cause = format!("is on this host alone, so no host can {act} it");
            let remedy =
                "hosts leave and join where there are several: bivouac up --hosts, with --protect replicas=2";
            return Err(LaunchError::new(
                Kind::Refused,
                format_args!("formation {}", state.name),
                cause,
                remedy,
            ));
        }
        return Ok(state);
    }
    look_elsewhere(dir, &state).ok_or_else(|| {
        let cause = "has no keeper that can be asked from here";
        let remedy = "ask on the host where it was started; only with --protect replicas=2 others know of it";
        LaunchError::new(Kind::Refused, format_args!("formation {}", state.name), cause, remedy)
    })
}

/// Returns that state while the command waits; nothing while another keeper is being elected.
///
/// # Errors
/// That it was taken down.
pub fn newest_state(here: &Environment, name: &FormationName) -> LaunchResult<Option<FormationState>> {
    let (_, dir) = StateDir::find_whole(here, Some(name))?;
    let state = settled(&dir)?;
    Ok(match state {
        Some(part) if part.part.is_some() => look_elsewhere(&dir, &part),
        state => state,
    })
}

/// The end of a host's change, as far as it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It goes on.
    UnderWay,
    /// It is as it was asked for.
    Done,
    /// It is not, and will not be.
    Other,
}

/// A host that was asked to join or to leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostProgress {
    pub host: String,
    pub outcome: Outcome,
    /// Name of the stage.
    pub stage: &'static str,
    /// What that waits for, or why it has ended.
    pub message: Option<String>,
}

/// A command that waits for hosts, with its words.
pub struct HostWait<'a> {
    /// The command that waits for it again.
    pub again: String,
    /// What hosts are about to do, and have done: `joining`, `joined`.
    pub words: (&'static str, &'static str),
    /// The text of a stage, with what it waits for.
    pub text: fn(&'static str, Option<&str>) -> String,
    /// The hosts.
    pub names: &'a [String],
    pub is_json: bool,
    /// Longest wait.
    pub timeout: Option<Duration>,
}

/// The latest stage and text that were printed for each host.
pub type Told = BTreeMap<String, (&'static str, String)>;

impl HostWait<'_> {
    /// Prints how far hosts are until all have ended. `look` returns that, or nothing while nobody knows; it gets what
    /// was printed.
    ///
    /// # Errors
    /// Those of `look`; that it was interrupted, or has taken too long: hosts go on.
    pub fn wait(
        &self,
        signals: &Signals,
        mut look: impl FnMut(&Told) -> Result<Option<Vec<HostProgress>>, Failure>,
    ) -> Result<ExitCode, Failure> {
        let (mut told, (doing, done)) = (Told::new(), self.words);
        let begun = Instant::now();
        loop {
            if let Some(hosts) = look(&told)? {
                hosts.iter().for_each(|host| self.print(&mut told, host));
                if hosts.iter().all(|host| host.outcome != Outcome::UnderWay) {
                    let is_done = hosts.iter().all(|host| host.outcome == Outcome::Done);
                    return Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE });
                }
            }
            let why = if is_over(signals, LOOK_PAUSE) {
                "it was not waited for any longer".to_owned()
            } else if let Some(timeout) = self.timeout.filter(|timeout| begun.elapsed() >= *timeout) {
                format!("has not {done} within {} s", timeout.as_secs())
            } else {
                continue;
            };
            let message = self.names.iter().find_map(|name| told.get(name));
            let waits = message.map_or(String::new(), |(_, message)| format!(" ({message})"));
            let cause = format!("{why}; it goes on {doing}{waits}");
            let remedy = format!("wait for it again: {}", self.again);
            let hosts = format_args!("host {}", self.names.join(", "));
            return Err(LaunchError::new(Kind::Interrupted, hosts, cause, &remedy).into());
        }
    }

    /// Prints what has changed for a host.
    fn print(&self, told: &mut Told, progress: &HostProgress) {
        let HostProgress { host, outcome, stage, message } = progress;
        let text = (self.text)(stage, message.as_deref());
        if told.get(host).is_some_and(|(_, told)| *told == text) {
            return;
        }
        if self.is_json {
            let event = if *outcome == Outcome::UnderWay { "progress" } else { "ended" };
            outln!("{}", json!({"event": event, "host": host, "state": stage, "message": message}));
        } else if *outcome == Outcome::Done {
            outln!("host {host}: {text}");
        } else {
            errln!("bivouac: host {host}: {text}");
        }
        told.insert(host.clone(), (stage, text));
    }
}
