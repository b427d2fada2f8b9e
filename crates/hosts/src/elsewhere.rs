//! Requests of commands to a keeper on another host, from where only this host's part is.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bivouac_launch::polling::wait_readable;
use bivouac_launch::{
    FormationState, Kind, LaunchError, LaunchResult, LeftoverCounts, StateDir, hex::formation_from_hex,
    refuse_kept,
};
use bivouac_net::{Address, Auth, Identity, LaneKind, Link, Message, Secret};
use bivouac_types::ClientId;
use bivouac_wire::rendezvous::{self, Question, Reply};
use bivouac_wire::{Decode, Encode};

/// Time all hosts may take to take their parts down, in milliseconds: more than the keeper gives them.
pub(crate) const DOWN_MS_MAX: u64 = 90_000;
/// Time a look at all hosts may take, in milliseconds.
pub(crate) const LOOK_MS_MAX: u64 = 5000;
/// Time that an address may take to answer.
const CONNECT_WAIT: Duration = Duration::from_secs(1);

/// Returns the whole of the formation of which `dir` has one host's part, as its keeper on another host says. Nothing
/// if none answers, or the formation is such that it is kept on one host only.
#[must_use]
pub fn look_elsewhere(dir: &StateDir, part: &FormationState) -> Option<FormationState> {
    ask_keepers(dir, part).map(|(state, _)| state)
}

/// Returns the state with the latest term, and the keeper's address: one that was deposed may not know it yet.
fn ask_keepers(dir: &StateDir, part: &FormationState) -> Option<(FormationState, String)> {
    let ask = |address: String| {
        let (reply, payload) = ask_at(dir, part, &address, Question::Look, LOOK_MS_MAX)
            .inspect_err(|error| log::debug!(error:%; "no keeper at {address}: {error}"))
            .ok()?;
        let state = FormationState::parse(&payload, dir.path()).ok()?;
        (reply == Reply::State && state.formation == part.formation).then_some((state, address))
    };
    let states = dir.keepers().into_iter().filter_map(ask);
    states.max_by_key(|(state, _)| state.keepers.as_ref().map_or(0, |group| group.term))
}

/// Takes a formation down by its keeper on another host; what is left, and notes of hosts that could not say so.
///
/// # Errors
/// `Keep` when its data was to be kept and `is_void` is not set; that no keeper answers, or what it refuses.
pub(crate) fn take_down_elsewhere(
    dir: &StateDir,
    part: &FormationState,
    is_void: bool,
) -> LaunchResult<(LeftoverCounts, Vec<String>)> {
    let (state, address) = ask_keepers(dir, part).ok_or_else(|| no_keeper(part))?;
    refuse_kept(&state, is_void)?;
    match ask_at(dir, part, &address, Question::Down, DOWN_MS_MAX)?.0 {
        Reply::Down { left, notes } => {
            let [processes, mounts, files, sockets] = left.map(|count| count as usize);
            Ok((LeftoverCounts { processes, mounts, files, sockets }, notes))
        }
        Reply::Refused { text } => Err(LaunchError::said(Kind::Refused, text)),
        Reply::State | Reply::Done => Err(no_keeper(part)),
    }
}

/// Asks a keeper on another host to have hosts leave, or join; it is decided when this comes back.
///
/// # Errors
/// That no keeper answers, or what it refuses.
pub(crate) fn decide_elsewhere(
    dir: &StateDir,
    part: &FormationState,
    question: Question,
    wait_ms: u64,
) -> LaunchResult<()> {
    let (_, address) = ask_keepers(dir, part).ok_or_else(|| no_keeper(part))?;
    match ask_at(dir, part, &address, question, wait_ms)?.0 {
        Reply::Done => Ok(()),
        Reply::Refused { text } => Err(LaunchError::said(Kind::Refused, text)),
        Reply::State | Reply::Down { .. } => Err(no_keeper(part)),
    }
}

fn no_keeper(part: &FormationState) -> LaunchError {
    let remedy =
        "wait until the hosts have elected another one; without one they take their parts down by themselves";
    LaunchError::new(
        Kind::Refused,
        format_args!("the keeper of formation {}", part.name),
        "does not answer, on any host",
        remedy,
    )
}

fn ask_at(
    dir: &StateDir,
    part: &FormationState,
    address: &str,
    question: Question,
    wait_ms: u64,
) -> LaunchResult<(Reply, Vec<u8>)> {
    let refused = |error: &dyn std::fmt::Display| {
        let remedy = "ask on another host of the formation";
        LaunchError::new(Kind::Refused, format_args!("the formation's keeper at {address}"), error, remedy)
    };
    let formation = formation_from_hex(&part.formation).ok_or_else(|| refused(&"has no id"))?;
    let secret = Secret::new(dir.secret()?).to_resume();
    let auth = Auth { formation, secret, is_secure: part.secure };
    let identity = Identity { auth, client: ClientId(0), lane: LaneKind::Peer, epoch: 0 };
    let mut link =
        Link::connect(&Address::tcp(address), &identity, CONNECT_WAIT).map_err(|error| refused(&error))?;
    let message = Message { op: rendezvous::ASK, body: question.to_bytes(), payload: Vec::new() };
    link.send(&message).map_err(|error| refused(&error))?;
    let deadline = Instant::now() + Duration::from_millis(wait_ms);
    loop {
        link.flush().map_err(|error| refused(&error))?;
        let messages = link.receive().map_err(|error| refused(&error))?;
        if let Some(message) = messages.into_iter().find(|message| message.op == rendezvous::REPLY) {
            let reply = Reply::from_bytes(&message.body).map_err(|error| refused(&error))?;
            return Ok((reply, message.payload));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || !wait_readable(link.as_fd(), u64::try_from(left.as_millis()).unwrap_or(1)) {
            return Err(refused(&"does not answer"));
        }
    }
}
