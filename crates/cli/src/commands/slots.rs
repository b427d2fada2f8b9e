//! The commands of `bivouac pool` about slots for staging.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::ExitCode;

use bivouac_launch::Environment;
use bivouac_pool::{
    Access, Announcement, Caller, Direction, Pools, ScheduledStage, StartAnswer, StorageLimits, is_unset,
};
use bivouac_types::units::format_size;
use serde::Serialize;

use super::pool::{changing, opened, plain, print_json, time};
use super::{pool_count, stage};
use crate::failure::Failure;
use crate::options::{
    PoolAnnounceArgs, PoolBeginArgs, PoolCommand, PoolSlotArgs, PoolSlotsArgs, PoolStageAction,
    PoolStageArgs, PoolStorageArgs, StageAction, StageArgs, StageCopyArgs, StageOutArgs,
};
use crate::pools::{now_s, open};
use crate::queue;
use crate::slots::wait;
use crate::table::layout;

/// Columns of the chart.
const COLUMNS: i64 = 60;

/// Does what a command says.
pub fn run(here: &Environment, who: &Caller, command: &PoolCommand) -> Result<ExitCode, Failure> {
    match command {
        PoolCommand::Stage(args) => return staged(here, who, args),
        PoolCommand::Announce(args) => announce(here, who, args)?,
        PoolCommand::Withdraw(args) => {
            let slot = open(here, &args.database)?.withdraw(&changing(who, &None), args.id)?;
            outln!("slot {}: withdrawn", slot.id);
        }
        PoolCommand::Begin(args) => begin(here, who, args)?,
        PoolCommand::Done(PoolSlotArgs { id, database }) => {
            let slot = open(here, database)?.done(&changing(who, &None), *id)?;
            outln!("slot {id}: done{}", if slot.is_late() { ", after its deadline" } else { "" });
        }
        PoolCommand::Slots(args) => show(&open(here, &args.database)?, who, args)?,
        PoolCommand::Schedule(args) => draw(&open(here, &args.database)?, who, args)?,
        PoolCommand::Storage(args) => storage(here, who, args)?,
        PoolCommand::Follow(args) => queue::follow(here, who, &args.database)?,
        PoolCommand::Create(_)
        | PoolCommand::List(_)
        | PoolCommand::Find(_)
        | PoolCommand::Show(_)
        | PoolCommand::Path(_)
        | PoolCommand::Archive(_)
        | PoolCommand::Count(_)
        | PoolCommand::Remind(_)
        | PoolCommand::Reminder(_)
        | PoolCommand::Ical(_)
        | PoolCommand::History(_)
        | PoolCommand::Extend(_)
        | PoolCommand::Release(_)
        | PoolCommand::Restore(_)
        | PoolCommand::Detach(_)
        | PoolCommand::Share(_)
        | PoolCommand::Expire(_) => {}
    }
    Ok(ExitCode::SUCCESS)
}

fn announce(here: &Environment, who: &Caller, args: &PoolAnnounceArgs) -> Result<(), Failure> {
    let mut pools = opened(here, &args.database)?;
    let pool = args.pool.as_ref().map(|meant| pools.find(who, meant)).transpose()?;
    let known = |of_pool: Option<u64>, said: Option<u64>| said.or(of_pool);
    let bytes = known(pool.as_ref().and_then(|pool| pool.bytes), args.size);
    let unknown = || {
        let name = args.pool.as_ref().map(ToString::to_string).unwrap_or_default();
        Failure::new(
            1,
            format_args!(
                "pool {name}: its size is not known; name it: --size SIZE, or count it: bivouac pool count {name}"
            ),
        )
    };
    let now_s = now_s();
    let expected = args.job.as_deref().map(|job| queue::expected(here, who, job)).transpose()?;
    let deadline_s = match (args.by, expected.as_ref().and_then(|(_, job)| job.start_s)) {
        (Some(by), _) => by.at_s(now_s),
        (None, Some(start_s)) => start_s,
        (None, None) => {
            let remedy = "say by when, until it does: --by TIME";
            return Err(Failure::new(
                1,
                format_args!("the batch system does not expect the job to start at any time yet; {remedy}"),
            ));
        }
    };
    let what = Announcement {
        way: if args.is_in { Direction::In } else { Direction::Out },
        title: args.title.clone(),
        bytes: bytes.ok_or_else(unknown)?,
        files: known(pool.as_ref().and_then(|pool| pool.files), args.files).unwrap_or(1),
        pool: pool.map(|pool| pool.id),
        earliest_s: args.from.map_or(now_s, |from| from.at_s(now_s)),
        deadline_s,
        rate_max: args.rate,
        or_later: args.or_later,
        restarts: expected.as_ref().map_or(0, |(_, job)| job.restarts),
        job: expected.map(|(name, _)| name),
    };
    let slot = pools.announce(&changing(who, &args.request.request), &what)?;
    if args.json {
        return print_json(&slot);
    }
    outln!("{slot}");
    Ok(())
}

fn begin(here: &Environment, who: &Caller, args: &PoolBeginArgs) -> Result<(), Failure> {
    let mut pools = open(here, &args.slot.database)?;
    let id = args.slot.id;
    let rate = if args.no_wait {
        match pools.begin(&changing(who, &None), id)? {
            StartAnswer::Now(slot) => slot.rate,
            StartAnswer::NotYet(slot) => {
                let text =
                    format_args!("slot {id}: begins at {}; wait for it, or come again", time(slot.begin_s))
                        .to_string();
                return Err(Failure::new(1, text));
            }
        }
    } else {
        wait(pools, who.clone(), id, false)?.slot.rate
    };
    outln!("{rate}");
    Ok(())
}

fn show(pools: &Pools, who: &Caller, args: &PoolSlotsArgs) -> Result<(), Failure> {
    let all = pools.slots(who, now_s(), args.all)?;
    if args.json {
        return print_json(&all);
    }
    if all.is_empty() {
        outln!("nothing is announced");
        return Ok(());
    }
    let row = |slot: &ScheduledStage| {
        let late = if slot.is_late() { ", late" } else { "" };
        vec![
            slot.id.to_string(),
            slot.uid.to_string(),
            slot.way.word().to_owned(),
            format!("{}{late}", slot.state.word()),
            time(slot.begin_s),
            time(slot.end_s),
            time(slot.deadline_s),
            format!("{}/s", format_size(slot.rate)),
            format_size(slot.bytes),
            plain(&what(slot)),
        ]
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    let head = ["SLOT", "USER", "WAY", "STATE", "BEGINS", "ENDS", "BY", "RATE", "SIZE", "WHAT"];
    out!("{}", layout(&head, &[0, 7, 8], &rows));
    Ok(())
}

fn what(slot: &ScheduledStage) -> String {
    let parts = [slot.pool_name.clone(), slot.job.clone(), Some(slot.title.clone())];
    let parts: Vec<String> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
    parts.join(" ")
}

/// The chart, for scripts.
#[derive(Serialize)]
struct Chart<'a> {
    now_s: i64,
    storage: StorageLimits,
    slots: &'a [ScheduledStage],
}

fn draw(pools: &Pools, who: &Caller, args: &PoolSlotsArgs) -> Result<(), Failure> {
    let (now_s, limits) = (now_s(), pools.storage()?);
    let all = pools.slots(who, now_s, args.all)?;
    if args.json {
        return print_json(&Chart { now_s, storage: limits, slots: &all });
    }
    outln!("{}", in_words(&limits));
    out!("{}", chart(&all, now_s));
    Ok(())
}

/// Returns a line per slot: `=` waits, `#` is copied, `-` is over or was missed, `|` has to be done.
fn chart(all: &[ScheduledStage], now_s: i64) -> String {
    let begin_s = all.iter().map(|slot| slot.begin_s).fold(now_s, i64::min);
    let end_s = all.iter().map(|slot| slot.end_s).fold(now_s.saturating_add(COLUMNS), i64::max);
    // Rounded up, so that the last second is in it.
    let step_s = (end_s.saturating_sub(begin_s) / COLUMNS).saturating_add(1);
    assert!(step_s > 0, "a column of the chart is {step_s} s wide");
    let columns = || (0..COLUMNS).map(|column| begin_s.saturating_add(column.saturating_mul(step_s)));
    let is_in =
        |slot: &ScheduledStage, at_s: i64| slot.begin_s < at_s.saturating_add(step_s) && slot.end_s > at_s;
    let bar = |slot: &ScheduledStage| -> String {
        let sign = match slot.state.word() {
            "waiting" => '=',
            "running" => '#',
            _ => '-',
        };
        let at = |at_s: i64| match (is_in(slot, at_s), slot.deadline_s) {
            (true, _) => sign,
            (false, by_s) if (at_s..at_s.saturating_add(step_s)).contains(&by_s) => '|',
            (false, _) => '.',
        };
        columns().map(at).collect()
    };
    let row = |slot: &ScheduledStage| {
        let late = if slot.is_late() { " late" } else { "" };
        vec![
            slot.id.to_string(),
            slot.uid.to_string(),
            slot.way.word().to_owned(),
            bar(slot),
            format!("{}/s{late}", format_size(slot.rate)),
            plain(&what(slot)),
        ]
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    let over = format!("{} to {}", time(begin_s), time(end_s));
    layout(&["SLOT", "USER", "WAY", &over, "RATE", "WHAT"], &[0], &rows)
}

fn storage(here: &Environment, who: &Caller, args: &PoolStorageArgs) -> Result<(), Failure> {
    let mut pools = open(here, &args.database)?;
    let now = pools.storage()?;
    let wanted = StorageLimits {
        bandwidth: args.bandwidth.unwrap_or(now.bandwidth),
        user_percent: args.user_share.unwrap_or(now.user_percent),
        file_bytes: args.file_cost.unwrap_or(now.file_bytes),
    };
    if wanted != now {
        if !sets_rules(&pools, who)? {
            let text =
                format!("{}: only its owner and root say what site storage gives; ask them", pools.place());
            return Err(Failure::new(1, text));
        }
        if is_unset(&wanted) {
            return Err(Failure::new(
                2,
                "--bandwidth: is above 0; say how many bytes per second stages may have",
            ));
        }
        pools.set_storage(&changing(who, &None), &wanted)?;
    }
    if args.json {
        return print_json(&wanted);
    }
    outln!("{}", in_words(&wanted));
    Ok(())
}

/// Returns whether a user sets the rules: the owner of the file, and root; at a server whoever owns the tables.
fn sets_rules(pools: &Pools, who: &Caller) -> Result<bool, Failure> {
    let Some(file) = pools.file() else { return Ok(pools.is_ruled_by_role()?) };
    let owner = std::fs::metadata(file)?.uid();
    Ok(who.uid == owner || who.uid == 0)
}

fn in_words(limits: &StorageLimits) -> String {
    if is_unset(limits) {
        return "no bandwidth is set for stages; set it: bivouac pool storage --bandwidth RATE".into();
    }
    format!(
        "site storage gives {}/s to stages, {} % of it to one user; a file counts as {}",
        format_size(limits.bandwidth),
        limits.user_percent,
        format_size(limits.file_bytes)
    )
}

/// Copies between a pool's own place and a formation.
fn staged(here: &Environment, who: &Caller, args: &PoolStageArgs) -> Result<ExitCode, Failure> {
    let (args, way) = match &args.action {
        PoolStageAction::In(args) => (args, Direction::In),
        PoolStageAction::Out(args) => (args, Direction::Out),
    };
    let pools = opened(here, &args.how.slot.database)?;
    let access = if way == Direction::In { Access::Ro } else { Access::Rw };
    let pool = pools.usable(who, &args.pool, access, now_s())?;
    // Not held while it is copied, which takes hours: the database is everybody's.
    drop(pools);
    let site = PathBuf::from(OsStr::from_bytes(&pool.source));
    let inside = args.at.clone().unwrap_or_else(|| PathBuf::from("/").join(&pool.name));
    let (which, how) = (args.which.clone(), args.how.clone());
    let action = match way {
        Direction::In => StageAction::In(StageCopyArgs { which, paths: vec![site, inside], how }),
        Direction::Out => {
            StageAction::Out(StageOutArgs { which, paths: vec![inside, site], changed_since: None, how })
        }
    };
    let code = stage::run(here, &StageArgs { action })?;
    if way == Direction::Out && code == ExitCode::SUCCESS {
        // All is out: that it was not counted is no reason to copy it again.
        let counted = pool_count::count(here, who, &args.how.slot.database, &args.pool, &None, "stage out");
        if let Err(failure) = counted {
            errln!(
                "bivouac: {failure}; everything is copied, but not counted: bivouac pool count {}",
                args.pool
            );
        }
    }
    Ok(code)
}
