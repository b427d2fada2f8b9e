//! The state of the whole of a formation, for commands about its hosts.

use bivouac_hosts::look_elsewhere;
use bivouac_launch::{
    Environment, FormationName, FormationState, Kind, LaunchError, LaunchResult, StateDir, settled,
};

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
