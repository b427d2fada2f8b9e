//! `bivouac down`.

use std::process::ExitCode;

use bivouac_hosts::{look_elsewhere, take_down_hosts};
use bivouac_launch::mount_views::own_namespace;
use bivouac_launch::{
    Amount, CODE_KEEP, Environment, FormationName, FormationState, Kind, LaunchError, LaunchResult,
    Recoverable, StateDir, discard, recoverable, refuse_kept, settled, take_down,
};

use crate::asking::{Answer, answer, can_ask, what_goes};
use crate::closing::Closing;
use crate::environment;
use crate::failure::Failure;
use crate::forming_hosts::part_of;
use crate::options::{DatabaseArgs, DownArgs};
use crate::staging::enter_mounts;
use crate::unflushed::has_sources;
use crate::{unsaved, versions};

/// Takes a formation down and says what is left: nothing. Refuses while it holds what is nowhere else.
pub fn run(here: &Environment, args: &DownArgs) -> Result<ExitCode, Failure> {
    let (found, dir) = match StateDir::find_whole(here, args.which.name()) {
        Err(error) if error.kind() == Kind::NotRunning => {
            let name = here.meant_name(args.which.name());
            if StateDir::was_being_ended(here, &name)? {
                return Ok(ended_by_another(&name));
            }
            return discard_left(here, &name, args.discard, error);
        }
        found => found?,
    };
    let Some(state) = settled(&dir)? else { return Ok(ended_by_another(&found)) };
    let elsewhere = state.part.as_ref().and_then(|_| look_elsewhere(&dir, &state));
    let is_kept_elsewhere = elsewhere.is_some();
    let state = elsewhere.unwrap_or(state);
    if !state.is_over_hosts() {
        refuse_part(&state)?;
        // Where its mounts are it can be seen whether promises are kept, and they can be taken away. What cannot be
        // seen counts as not kept, so this may fail.
        let before = own_namespace();
        if let Err(failure) = enter_mounts(&dir, &state, Vec::new()) {
            // In the other namespace paths of volumes may be something else: nothing is removed by them.
            if own_namespace() != before {
                return Err(failure);
            }
            errln!("bivouac: {failure}");
        }
    }
    // What is refused whoever agrees is not asked for.
    if args.discard || !keeps(here, &dir, &state)? {
        agree(&dir, &state, args.yes || args.discard)?;
    }
    let waits =
        || errln!("bivouac: formation {}: another command takes it down; waiting for that", state.name);
    // Held to the end: a second `down` waits instead of taking away the same things.
    let Some(_ending) = dir.begin_end(&state.formation, waits)? else {
        return Ok(ended_by_another(&state.name));
    };
    // The other one may have changed something, and given up.
    let state = if is_kept_elsewhere { state } else { dir.read()?.unwrap_or(state) };
    // Looked at before: the state that says so goes with the formation.
    let (name, may_have_pools) = (state.name.clone(), has_sources(&dir, &state));
    let code = take_away(here, &dir, state, args.discard)?;
    if may_have_pools {
        let database = DatabaseArgs { db: environment::database() };
        versions::after(here, &database, name.as_str());
    }
    Ok(code)
}

/// Says what goes, and asks for it. A script that was not told to agree agrees to nothing.
fn agree(dir: &StateDir, state: &FormationState, was_said: bool) -> Result<(), Failure> {
    // To ask hundreds of hosts what they have takes longer than to take it away: only where somebody decides by it.
    let is_said = !state.is_over_hosts() || !was_said || can_ask();
    let Some(what) = is_said.then(|| what_goes(dir, state)).flatten() else { return Ok(()) };
    let name = &state.name;
    errln!("bivouac: formation {name}: {what}");
    let why = match answer(was_said) {
        Answer::Yes => return Ok(()),
        Answer::No => "nobody agreed",
        Answer::Unasked => "nobody can be asked without a terminal",
    };
    let text =
        format!("formation {name} was not taken down: {why}; say so with: bivouac down --name {name} --yes");
    Err(Failure::new(1, text))
}

fn ended_by_another(name: &FormationName) -> ExitCode {
    outln!("formation {name} is down: another command took it down");
    ExitCode::SUCCESS
}

/// Throws away what is left of a formation whose state is gone, if that is wished.
fn discard_left(
    here: &Environment,
    name: &FormationName,
    is_wished: bool,
    error: LaunchError,
) -> Result<ExitCode, Failure> {
    let mut left = recoverable(here);
    left.retain(|found| found.name == *name && found.dir.is_none());
    let Some(first) = left.first() else { return Err(error.into()) };
    if left.len() > 1 {
        let text = format!(
            "{} formations called {name} are left on this host; look at them: bivouac list --json",
            left.len()
        );
        return Err(Failure::new(2, text));
    }
    let amount = first.amount();
    // Volumes on a disk that is not mounted may hold something, and so may those that no state here tells of.
    let missing = first.missing();
    if !is_wished && (!amount.is_nothing() || !missing.is_empty() || first.is_over_hosts()) {
        let held = match missing.is_empty() {
            true => held_by(first, &amount),
            false => format!("{}; missing: {}", held_by(first, &amount), missing.join(", ")),
        };
        let text = format!(
            "formation {name}: was killed as a whole, and its state is gone; {held}; have it back: bivouac recover {name}; or throw it \
             away: bivouac down --name {name} --discard"
        );
        return Err(Failure::new(CODE_KEEP, text));
    }
    discard(here, first, &mut |text| errln!("bivouac: {text}"))?;
    match first.is_over_hosts() {
        false => outln!("formation {name} is thrown away; it held {amount}"),
        true => outln!(
            "formation {name} is thrown away on this host: {}; throw it away there: bivouac down --name {name} --discard",
            held_by(first, &amount)
        ),
    }
    Ok(ExitCode::SUCCESS)
}

/// Says what a formation holds that was killed. What other hosts have is not seen from here.
fn held_by(left: &Recoverable, amount: &Amount) -> String {
    match (left.is_over_hosts(), &left.state) {
        (false, _) => format!("its volumes here hold {amount}"),
        (true, Some(_)) => {
            format!("its volumes here hold {amount}, and each other host has what it has itself")
        }
        (true, None) => "each of its hosts has what it has itself".to_owned(),
    }
}

/// Takes a formation down whose state is in `dir`, or all that a host has of it. Refuses while it holds what is nowhere
/// else, unless that is to be thrown away.
///
/// # Errors
/// That it is kept, or what could not be ended or removed.
pub fn take_away(
    here: &Environment,
    dir: &StateDir,
    state: FormationState,
    discard: bool,
) -> Result<ExitCode, Failure> {
    let mut notice = |text: &str| errln!("bivouac: {text}");
    let name = &state.name;
    let is_void = discard || !keeps(here, dir, &state)?;
    if !is_void {
        // Before any job is cancelled: a formation that stays keeps the jobs that can still bring its data out.
        refuse_kept(&state, discard)?;
    }
    let closing = if is_void && !discard { Closing::decide(name, dir, &state)? } else { None };
    unsaved::cancel_jobs(&copied_at(here, dir, &state), &mut notice);
    let down = end(here, dir, &state, is_void, discard, &mut notice);
    if let (Err(_), Some(closing)) = (&down, closing) {
        // Everybody may write again: the formation goes on.
        closing.lift();
    }
    down
}

fn end(
    here: &Environment,
    dir: &StateDir,
    state: &FormationState,
    is_void: bool,
    discard: bool,
    notice: &mut dyn FnMut(&str),
) -> Result<ExitCode, Failure> {
    let name = &state.name;
    if state.is_over_hosts() {
        let left = take_down_hosts(here, dir, is_void, discard)?;
        outln!("formation {name} {left}");
        return Ok(if left.is_nothing() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    // Counted before anything is removed, for what is said behind it.
    let killed = (!dir.is_held()).then(|| Amount::of(state)).filter(|amount| !amount.is_nothing());
    let remains = take_down(here, dir, is_void, notice)?;
    if let Some(amount) = killed {
        let missing = amount.missing_clause();
        notice(&format!("formation {name} had been killed; what it held was removed: {amount}{missing}"));
    }
    outln!("formation {name} is down; {remains}");
    Ok(if remains.is_nothing() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the directory of whatever copies: what is copied goes through this host's part, and is written down there.
fn copied_at(here: &Environment, dir: &StateDir, state: &FormationState) -> StateDir {
    let part = if state.is_over_hosts() { part_of(here, &state.name, &state.formation) } else { None };
    part.unwrap_or_else(|| dir.clone())
}

/// Returns whether something keeps the formation that only `--discard` overrides. Refuses while something is not copied
/// out.
fn keeps(here: &Environment, dir: &StateDir, state: &FormationState) -> Result<bool, Failure> {
    let kept = state.keep.as_deref();
    Ok(!promises_are_kept(&state.name, dir, &copied_at(here, dir, state), kept)? && kept.is_some())
}

/// Refuses while something is not copied out; otherwise says whether all that keeps the formation is promises, which
/// are kept now.
fn promises_are_kept(
    name: &FormationName,
    dir: &StateDir,
    copied_at: &StateDir,
    keep: Option<&str>,
) -> Result<bool, Failure> {
    let Some(state) = copied_at.read()? else { return Ok(false) };
    let unsaved = unsaved::list(copied_at, &state);
    if unsaved.is_empty() {
        // Promises are known on the host where they were made: on others it cannot be seen that they are kept. Where
        // all was killed nobody can keep them any more.
        let is_promise = keep.is_some_and(|reason| reason.starts_with(unsaved::PROMISED));
        return Ok(is_promise && (unsaved::has_promises(copied_at) || !dir.is_held()));
    }
    let text = format!(
        "formation {name} holds data that is nowhere else:\n{}\ncopy it out (bivouac stage out, bivouac stage resume), or throw it \
         away: bivouac down --name {name} --discard",
        unsaved.join("\n")
    );
    Err(Failure::new(CODE_KEEP, text))
}

/// Refuses to take down one host's part of a running formation; what is left of a dead one may be removed.
fn refuse_part(state: &FormationState) -> LaunchResult<()> {
    let Some(part) = &state.part else { return Ok(()) };
    if !state.supervisor.is_some_and(|supervisor| supervisor.is_alive()) {
        return Ok(());
    }
    let (name, from) = (&state.name, &part.started_from);
    let cause = format!("is over several hosts, and was started elsewhere ({from})");
    let remedy = format!("there: bivouac down --name {name}");
    Err(LaunchError::new(Kind::Refused, format_args!("formation {name}"), cause, &remedy))
}
