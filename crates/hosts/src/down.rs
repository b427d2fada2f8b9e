//! Requests of commands to the keeper of a formation over several hosts.

use std::fmt;
use std::os::fd::AsFd;

use bivouac_launch::control::{Answer, Request, ask, ask_for};
use bivouac_launch::polling::wait_readable;
use bivouac_launch::recovery_notes::forget_whole;
use bivouac_launch::{
    Environment, FormationState, Kind, LaunchError, LaunchResult, LeftoverCounts, StateDir, refuse_kept,
    remove_leftovers, settled,
};

use crate::elsewhere::{DOWN_MS_MAX, LOOK_MS_MAX, take_down_elsewhere};

/// Time the keeper may take to end after its last answer, in milliseconds.
const END_MS_MAX: u64 = 10_000;

/// Remains of a formation on all its hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOnHosts {
    /// The sum of what hosts say, if any of them says it.
    pub remains: Option<LeftoverCounts>,
    /// Hosts that could not say so, and why.
    pub notes: Vec<String>,
}

impl LeftOnHosts {
    /// Returns whether there is nothing, and all say so.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.remains.as_ref().is_some_and(LeftoverCounts::is_nothing) && self.notes.is_empty()
    }
}

impl fmt::Display for LeftOnHosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.remains {
            Some(remains) => write!(f, "is down on all its hosts; {remains}")?,
            None => {
                f.write_str(
                    "has no process that keeps its hosts together any more; no host says what it has",
                )?;
            }
        }
        self.notes.iter().try_for_each(|note| write!(f, "\n{note}"))
    }
}

/// Takes a formation over several hosts down on all of them, by its keeper here or on another host.
///
/// # Errors
/// `Keep` when its data was to be kept and `is_void` is not set; that the keeper does not answer.
pub fn take_down_hosts(
    here: &Environment,
    dir: &StateDir,
    is_void: bool,
    discard: bool,
) -> LaunchResult<LeftOnHosts> {
    let Some(state) = settled(dir)? else {
        return Err(LaunchError::said(Kind::NotRunning, "the formation is gone already"));
    };
    if state.part.is_some() {
        let (remains, notes) = take_down_elsewhere(dir, &state, is_void)?;
        return Ok(LeftOnHosts { remains: Some(remains), notes });
    }
    refuse_kept(&state, is_void)?;
    let Some(end) = state.supervisor.and_then(|keeper| keeper.watch()) else {
        return without_keeper(here, dir, &state, discard);
    };
    match ask_for(dir, &Request::Stop, &[], DOWN_MS_MAX)? {
        Answer::Down { left: [processes, mounts, files, sockets], notes } => {
            // At its end it removes its directory: only then it shows whether anything is left of it.
            let _ended = wait_readable(end.as_fd(), END_MS_MAX);
            if discard {
                // A recovery that was under way has left what it was for.
                forget_whole(here, &state.formation);
                if dir.read()?.is_some_and(|left| left.formation == state.formation) && !dir.is_held() {
                    dir.remove()?;
                }
            }
            Ok(LeftOnHosts { remains: Some(LeftoverCounts { processes, mounts, files, sockets }), notes })
        }
        _ => Err(LaunchError::new(
            Kind::Refused,
            "the formation's keeper",
            "says something else than is expected",
            "use the release that started it",
        )),
    }
}

/// Takes a formation down whose keeper was killed: the hosts have noticed, as their connections ended. What their disks
/// may still have is forgotten only where it is thrown away.
fn without_keeper(
    here: &Environment,
    dir: &StateDir,
    state: &FormationState,
    discard: bool,
) -> LaunchResult<LeftOnHosts> {
    remove_leftovers(here, dir, state, &mut |_| {})?;
    if discard {
        forget_whole(here, &state.formation);
    }
    let hosts = state.hosts.iter().filter(|host| !host.nodes.is_empty());
    let note = format!(
        "takes its part down by itself, unless all was killed there as well: then what it has is still there (bivouac list); \
         throw it away there: bivouac down --name {} --discard",
        state.name
    );
    let notes: Vec<String> = hosts.map(|host| format!("host {}: {note}", host.name)).collect();
    let remains = notes.is_empty().then(LeftoverCounts::default);
    Ok(LeftOnHosts { remains, notes })
}

/// Makes the keeper ask all hosts for their state, and returns the result.
///
/// # Errors
/// The state cannot be read. If the keeper is gone, its last state is returned.
pub fn look_at_hosts(dir: &StateDir, state: FormationState) -> LaunchResult<FormationState> {
    if let Err(error) = ask(dir, &Request::Look, &[], LOOK_MS_MAX) {
        log::info!(error:%; "{error}");
        return Ok(state);
    }
    Ok(dir.read()?.unwrap_or(state))
}
