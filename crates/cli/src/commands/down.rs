//! `bivouac down`.

use std::process::ExitCode;

use bivouac_hosts::take_down_hosts;
use bivouac_launch::{
    Amount, CODE_KEEP, Environment, FormationName, Kind, LaunchError, LaunchResult, State, StateDir, discard,
    recoverable, settled, take_down,
};

use crate::asking::{can_ask, is_agreed, what_goes};
use crate::closing::Closing;
use crate::environment;
use crate::failure::Failure;
use crate::forming_hosts::part_of;
use crate::options::{DatabaseArgs, DownArgs};
use crate::unflushed::has_sources;
use crate::{unsaved, versions};

/// Takes a formation down and says what is left: nothing. Refuses while it holds what is nowhere else.
pub fn run(here: &Environment, args: &DownArgs) -> Result<ExitCode, Failure> {
    let (found, dir) = match StateDir::find_whole(here, args.which.name.as_ref()) {
        Err(error) if error.kind() == Kind::NotRunning => {
            let name = args.which.name.clone().map_or_else(|| "default".parse(), Ok);
            return match name {
                Ok(name) if StateDir::was_being_ended(here, &name)? => Ok(ended_by_another(&name)),
                _ => discard_left(here, args, error),
            };
        }
        found => found?,
    };
    let Some(state) = settled(&dir)? else { return Ok(ended_by_another(&found)) };
    if !state.is_over_hosts() {
        refuse_part(&state)?;
    }
    // To ask hundreds of hosts what they have takes longer than to take it away: only where somebody decides by it.
    let is_said = !state.is_over_hosts() || can_ask();
    if let Some(what) = is_said.then(|| what_goes(&dir, &state)).flatten() {
        errln!("bivouac: formation {}: {what}", state.name);
        if !is_agreed(args.yes || args.discard) {
            let text =
                format!("formation {} was not taken down: nobody agreed; say so with --yes", state.name);
            return Err(Failure::new(1, text));
        }
    }
    let waits =
        || errln!("bivouac: formation {}: another command takes it down; waiting for that", state.name);
    let Some(_ending) = dir.begin_end(&state.formation, waits)? else {
        return Ok(ended_by_another(&state.name));
    };
    // The other one may have changed something, and given up.
    let state = dir.read()?.unwrap_or(state);
    let (name, may_have_pools) = (state.name.clone(), has_sources(&dir, &state));
    let code = take_away(here, &dir, state, args.discard)?;
    if may_have_pools {
        let database = DatabaseArgs { db: environment::database() };
        versions::after(here, &database, name.as_str());
    }
    Ok(code)
}

fn ended_by_another(name: &FormationName) -> ExitCode {
    outln!("formation {name} is down: another command took it down");
    ExitCode::SUCCESS
}

/// Throws away what is left of a formation whose state is gone, if that is wished.
fn discard_left(here: &Environment, args: &DownArgs, error: LaunchError) -> Result<ExitCode, Failure> {
    let name = args.which.name.as_ref().map_or("default", FormationName::as_str);
    let mut left = recoverable(here);
    left.retain(|found| found.name.as_str() == name && found.dir.is_none());
    let Some(first) = left.first() else { return Err(error.into()) };
    if left.len() > 1 {
        let text = format!(
            "{} formations called {name} are left on this host; look at them: bivouac list --json",
            left.len()
        );
        return Err(Failure::new(2, text));
    }
    let amount = first.amount();
    if !args.discard && (!amount.is_nothing() || first.is_over_hosts()) {
        let hosts = if first.is_over_hosts() { ", each of its hosts has what it has itself" } else { "" };
        let text = format!(
            "formation {name}: was killed as a whole, and its state is gone; its volumes here hold {amount}{hosts}; have it back: bivouac \
             recover {name}; or throw it away: bivouac down --name {name} --discard"
        );
        return Err(Failure::new(CODE_KEEP, text));
    }
    discard(here, first, &mut |text| errln!("bivouac: {text}"))?;
    outln!("formation {name} is thrown away; it held {amount}");
    Ok(ExitCode::SUCCESS)
}

/// Takes a formation down whose state is in `dir`, or all that a host has of it. Refuses while it holds what is nowhere else,
/// unless that is to be thrown away.
///
/// # Errors
/// That it is kept, or what could not be ended or removed.
pub fn take_away(
    here: &Environment,
    dir: &StateDir,
    state: State,
    discard: bool,
) -> Result<ExitCode, Failure> {
    let mut notice = |text: &str| errln!("bivouac: {text}");
    let name = &state.name;
    // What is copied goes through this host's part, and is written down there.
    let part = if state.is_over_hosts() { part_of(here, name, &state.formation) } else { None };
    let copied_at = part.as_ref().unwrap_or(dir);
    let kept = state.keep.as_deref();
    let is_void = discard || promises_are_kept(name, copied_at, kept)? || kept.is_none();
    // What is kept for another reason is refused below.
    let closing = if is_void && !discard { Closing::decide(name, dir, &state)? } else { None };
    unsaved::cancel_jobs(copied_at, &mut notice);
    let down = end(here, dir, &state, is_void, discard, &mut notice);
    if let (Err(_), Some(closing)) = (&down, closing) {
        closing.lift();
    }
    down
}

fn end(
    here: &Environment,
    dir: &StateDir,
    state: &State,
    is_void: bool,
    discard: bool,
    notice: &mut dyn FnMut(&str),
) -> Result<ExitCode, Failure> {
    let name = &state.name;
    if state.is_over_hosts() {
        let left = take_down_hosts(here, dir, is_void, discard)?;
        outln!("formation {name} is down on all its hosts; {left}");
        return Ok(if left.is_nothing() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let killed = (!dir.is_held()).then(|| Amount::of(state)).filter(|amount| !amount.is_nothing());
    let remains = take_down(here, dir, is_void, notice)?;
    if let Some(amount) = killed {
        notice(&format!("formation {name} had been killed; what it held was removed: {amount}"));
    }
    outln!("formation {name} is down; {remains}");
    Ok(if remains.is_nothing() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Refuses while something is not copied out; otherwise says whether all that keeps the formation is promises, which are
/// kept now.
fn promises_are_kept(
    name: &FormationName,
    copied_at: &StateDir,
    keep: Option<&str>,
) -> Result<bool, Failure> {
    let Some(state) = copied_at.read()? else { return Ok(false) };
    let unsaved = unsaved::list(copied_at, &state);
    if unsaved.is_empty() {
        return Ok(keep.is_some_and(|reason| reason.starts_with(unsaved::PROMISED)));
    }
    let text = format!(
        "formation {name} holds data that is nowhere else:\n{}\ncopy it out (bivouac stage out, bivouac stage resume), or throw it \
         away: bivouac down --name {name} --discard",
        unsaved.join("\n")
    );
    Err(Failure::new(CODE_KEEP, text))
}

/// One host's part of a formation is not taken from the others by accident; what is left of a dead one may be removed.
fn refuse_part(state: &State) -> LaunchResult<()> {
    let Some(part) = &state.part else { return Ok(()) };
    if !state.supervisor.is_some_and(|supervisor| supervisor.is_alive()) {
        return Ok(());
    }
    let (name, from) = (&state.name, &part.started_from);
    let cause = format!("is over several hosts, and was started elsewhere ({from})");
    let remedy = format!("there: bivouac down --name {name}");
    Err(LaunchError::new(Kind::Refused, format_args!("formation {name}"), cause, &remedy))
}
