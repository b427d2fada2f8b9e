//! `bivouac pool remind`, `reminder` and `ical`: of the ends of pools.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use bivouac_launch::{Environment, feed};
use bivouac_pool::{Caller, Pool, Pools, Reminder, calendar};
use bivouac_types::units::format_size;

use super::pool::{changing, opened, plain, time};
use crate::failure::Failure;
use crate::options::{PoolIcalArgs, PoolRemindArgs, PoolReminderArgs, ReminderArgs};
use crate::pools::{now_s, open};

/// Longest wait for a program to take mail.
const SENDING: Duration = Duration::from_secs(120);

/// Returns the reminder that the options ask for.
pub fn wanted(args: &ReminderArgs) -> Option<Reminder> {
    let (days, mail) = (args.remind?, args.mail.clone()?);
    Some(Reminder { days, mail })
}

/// Sends the reminders that are due.
pub fn remind(here: &Environment, who: &Caller, args: &PoolRemindArgs) -> Result<ExitCode, Failure> {
    let mut pools = open(here, &args.database)?;
    let mut has_failed = false;
    for pool in pools.to_remind(&changing(who, &None))? {
        let mail = plain(pool.mail.as_deref().unwrap_or_default());
        if args.dry_run {
            outln!(
                "pool {}: {mail} would be reminded of its end at {}",
                pool.full_name(),
                time(pool.expires_s)
            );
            continue;
        }
        match remind_of(&mut pools, who, &pool, args) {
            Ok(true) => {
                outln!("pool {}: {mail} is reminded of its end at {}", pool.full_name(), time(pool.expires_s))
            }
            Ok(false) => {}
            Err(failure) => {
                has_failed = true;
                errln!("bivouac: pool {}: {mail} is not reminded: {failure}", pool.full_name());
            }
        }
    }
    Ok(if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Takes it on, sends, and notes how that went. Killed in between, it is sent again an hour later at the earliest.
fn remind_of(pools: &mut Pools, who: &Caller, pool: &Pool, args: &PoolRemindArgs) -> Result<bool, Failure> {
    let Some(pool) = pools.begin_reminder(&changing(who, &None), pool)? else { return Ok(false) };
    let sent = send(&pool, &args.sendmail);
    // Noted also if it failed: then it is due again, and not only in an hour.
    pools.end_reminder(&changing(who, &None), &pool, sent.is_ok())?;
    sent.map(|()| true)
}

fn send(pool: &Pool, sendmail: &Path) -> Result<(), Failure> {
    let stored = pool.mail.as_deref().unwrap_or_default();
    // Whoever may write the database can write anything there.
    let mail: bivouac_pool::Address = stored.parse().map_err(|cause| {
        let text = format!("its address {cause}; set it: bivouac pool reminder {}", pool.name);
        Failure::new(1, text)
    })?;
    let arguments = ["-i", "--", mail.as_str()].map(OsString::from);
    Ok(feed(sendmail, &arguments, message(pool, mail.as_str(), now_s()).as_bytes(), SENDING)?)
}

/// Returns the mail. Names of pools and addresses are plain; what else users write is in the body, each in a line of
/// its own.
fn message(pool: &Pool, mail: &str, now_s: i64) -> String {
    let (name, end) = (&pool.name, time(pool.expires_s));
    let (verb, way) = if pool.is_over(now_s) {
        ("ended", format!("For a time of grace it can be had back:\n\n    bivouac pool restore {name}\n"))
    } else {
        (
            "ends",
            format!(
                "More time, and what else there is to it:\n\n    bivouac pool extend {name}\n    bivouac pool show {name}\n"
            ),
        )
    };
    let size = pool.bytes.map_or_else(String::new, |bytes| format!(" It holds {}.", format_size(bytes)));
    format!(
        "To: {mail}\nSubject: Pool {name} {verb} at {end}\nAuto-Submitted: auto-generated\nMIME-Version: 1.0\n\
         Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: 8bit\n\n\
         Pool {name} {verb} at {end}.{size}\n\n    {}\n    {}\n\n{way}",
        plain(&pool.title),
        plain(&String::from_utf8_lossy(&pool.source)),
    )
}

/// Sets or ends the reminder of a pool.
pub fn set(here: &Environment, who: &Caller, args: &PoolReminderArgs) -> Result<(), Failure> {
    let mut pools = opened(here, &args.change.database)?;
    let reminder = wanted(&args.reminder);
    let change = changing(who, &args.change.request.request);
    let pool = pools.set_reminder(&change, &args.change.pool, reminder.as_ref())?;
    match reminder {
        Some(Reminder { days, mail }) => outln!(
            "pool {} ends at {}; {mail} is reminded {days} days before, by: bivouac pool remind",
            pool.name,
            time(pool.expires_s)
        ),
        None => outln!("pool {}: nobody is reminded of its end", pool.name),
    }
    Ok(())
}

/// Prints the end of a pool as an entry of a calendar.
pub fn ical(here: &Environment, who: &Caller, args: &PoolIcalArgs) -> Result<(), Failure> {
    let pool = opened(here, &args.database)?.find(who, &args.pool)?;
    out!("{}", calendar::entry(&pool, &here.host, now_s()));
    Ok(())
}
