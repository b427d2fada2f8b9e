//! `bivouac pool`.

use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bivouac_launch::Environment;
use bivouac_launch::mount_table::MountEntry;
use bivouac_launch::mounts::mounted;
use bivouac_pool::{
    Access, Attachment, Caller, ChangeOrigin, ExpiryAction, Grantee, Location, NewPool, Outcome, Pool,
    PoolError, PoolResult, PoolState, Pools, Version, is_url,
};
use bivouac_types::units::{format_count, format_size, format_utc};
use bivouac_types::{PartitionSettings, printable};
use rustix::fs::{Mode, OFlags};
use serde::Serialize;

use crate::commands::{pool_archive, pool_count, pool_remind, slots};
use crate::environment::around;
use crate::failure::Failure;
use crate::options::{
    DatabaseArgs, PoolArgs, PoolCommand, PoolCreateArgs, PoolDetachArgs, PoolExpireArgs, PoolPathArgs,
    PoolShareArgs,
};
use crate::pools::{forget_gone, is_known, now_s, open, who};
use crate::table::layout;
use crate::versions::{listing, origin};

/// By so many seconds clocks of a site may differ.
const CLOCKS_DIFFER_S: i64 = 600;
/// Versions of a pool that people are shown.
const VERSIONS_SHOWN: usize = 10;

/// Does what a command says.
pub fn run(here: &Environment, args: &PoolArgs) -> Result<ExitCode, Failure> {
    let who = who(here)?;
    match &args.command {
        PoolCommand::Create(args) => create(here, &who, args)?,
        PoolCommand::List(args) => {
            let pools = opened(here, &args.database)?;
            show_all(&pools.list(&who, args.all)?, &who, args.json)?;
        }
        PoolCommand::Find(args) => {
            let pools = opened(here, &args.database)?;
            show_all(&pools.search(&who, &args.words)?, &who, args.json)?;
        }
        PoolCommand::Show(args) => {
            let pools = opened(here, &args.database)?;
            let pool = pools.find(&who, &args.pool)?;
            let (attachments, versions) = (pools.attachments(&pool)?, pools.versions(&pool)?);
            if args.json {
                let state_now = pool.state_at(now_s());
                print_json(&PoolOutput { state_now, pool: &pool, attachments, versions: Some(versions) })?;
            } else {
                let mail = pool.mail.as_deref().filter(|_| pool.is_own(&who));
                out!("{}{}", text_of(&pool, &attachments, mail), text_of_versions(&versions));
            }
        }
        PoolCommand::Path(args) => return path(here, &who, args),
        PoolCommand::History(args) => {
            let pools = opened(here, &args.database)?;
            let events = pools.history(&pools.find(&who, &args.pool)?)?;
            if args.json {
                print_json(&events)?;
            } else {
                for event in &events {
                    outln!(
                        "{}  {:<8} by {}  {}",
                        time(event.at_s),
                        event.what,
                        event.uid,
                        plain(&event.detail)
                    );
                }
            }
        }
        PoolCommand::Extend(args) => {
            let mut pools = opened(here, &args.change.database)?;
            let pool =
                pools.extend(&changing(&who, &args.change.request.request), &args.change.pool, args.days)?;
            outln!(
                "pool {} is there until {}, {} extensions left",
                pool.name,
                time(pool.expires_s),
                pool.extensions_left
            );
        }
        PoolCommand::Release(args) => {
            let mut pools = opened(here, &args.database)?;
            let grace = pools.rules()?.grace_days;
            let pool = pools.release(&changing(&who, &args.request.request), &args.pool)?;
            outln!("pool {} is released; for {grace} days: bivouac pool restore {}", pool.name, pool.name);
        }
        PoolCommand::Restore(args) => {
            let mut pools = opened(here, &args.change.database)?;
            let found = pools.find(&who, &args.change.pool)?;
            if found.location == Location::Archive && found.state_at(now_s()) == PoolState::Live {
                pool_archive::bring_back(&mut pools, &who, &found, &args.change.request.request)?;
                return Ok(ExitCode::SUCCESS);
            }
            let pool =
                pools.restore(&changing(&who, &args.change.request.request), &args.change.pool, args.days)?;
            outln!("pool {} is there again, until {}", pool.name, time(pool.expires_s));
        }
        PoolCommand::Archive(args) => pool_archive::run(here, &who, args)?,
        PoolCommand::Count(args) => pool_count::run(here, &who, args)?,
        PoolCommand::Remind(args) => return pool_remind::remind(here, &who, args),
        PoolCommand::Reminder(args) => pool_remind::set(here, &who, args)?,
        PoolCommand::Ical(args) => pool_remind::ical(here, &who, args)?,
        PoolCommand::Detach(args) => detach(here, &who, args)?,
        PoolCommand::Share(args) => {
            let mut pools = opened(here, &args.change.database)?;
            share(&mut pools, &changing(&who, &args.change.request.request), args)?;
        }
        PoolCommand::Expire(args) => return expire(here, &who, args),
        other => return slots::run(here, &who, other),
    }
    Ok(ExitCode::SUCCESS)
}

/// A pool for scripts.
#[derive(Serialize)]
struct PoolOutput<'a> {
    #[serde(flatten)]
    pool: &'a Pool,
    /// Its present state, recorded or not.
    state_now: PoolState,
    attachments: Vec<Attachment>,
    /// Of one that is shown alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    versions: Option<Vec<Version>>,
}

pub(super) fn changing<'a>(who: &'a Caller, request: &'a Option<String>) -> ChangeOrigin<'a> {
    ChangeOrigin { who, now_s: now_s(), request: request.as_deref() }
}

/// Returns the database, in which what is attached is so. Who may only read it sees also what was.
pub(super) fn opened(here: &Environment, args: &DatabaseArgs) -> Result<Pools, Failure> {
    let mut pools = open(here, args)?;
    if let Err(failure) = forget_gone(here, &mut pools) {
        errln!("bivouac: {failure}");
    }
    Ok(pools)
}

fn create(here: &Environment, who: &Caller, args: &PoolCreateArgs) -> Result<(), Failure> {
    let mut pools = opened(here, &args.database)?;
    let source = args.from.as_ref().map(|from| source(from)).transpose()?;
    let directory = source.as_ref().filter(|source| !is_url(source));
    let held = match (directory, args.size) {
        (Some(dir), None) => Some(listing(Path::new(OsStr::from_bytes(dir)))?),
        _ => None,
    };
    let new = NewPool {
        name: args.name.clone(),
        gid: rustix::process::getegid().as_raw(),
        title: args.title.clone(),
        days: args.days,
        source,
        bytes: args.size.or(held.as_ref().map(|held| held.bytes)),
        files: held.as_ref().map(|held| held.files),
        reminder: pool_remind::wanted(&args.reminder),
    };
    let base = args.base.clone().unwrap_or_default();
    let make = |id: i64| make_dir(&base, &dir_name(who.uid, args.name.as_str(), id), who.uid);
    let pool = pools.create(&changing(who, &args.request.request), &new, make)?;
    // What a command finds that is asked again may be a later version.
    if let Some(held) = held.filter(|_| pools.versions(&pool).is_ok_and(|versions| versions.is_empty())) {
        pools.drained(&changing(who, &None), pool.id, &held, &origin("create"))?;
    }
    outln!("pool {} is there until {}: {}", pool.name, time(pool.expires_s), shown(&pool.source));
    Ok(())
}

/// Returns the place of data that is there: a directory by its real path, or a URL as partitions take it.
fn source(from: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |cause: &dyn std::fmt::Display| Failure::new(1, format_args!("{}: {cause}", from.display()));
    let bytes = from.as_os_str().as_bytes();
    if is_url(bytes) {
        let url = std::str::from_utf8(bytes).map_err(|error| failed(&error))?;
        PartitionSettings::default().assign("source", url).map_err(|error| failed(&error))?;
        return Ok(bytes.to_vec());
    }
    let real = from.canonicalize().map_err(|error| failed(&format_args!("{error}; check its path")))?;
    if !real.is_dir() {
        return Err(failed(&"is no directory; name the one that it is in"));
    }
    Ok(real.into_os_string().into_vec())
}

/// Returns the name of a directory that is made for a pool. What is removed has to have it.
pub(super) fn dir_name(uid: u32, name: &str, id: i64) -> String {
    format!("{uid}-{name}-{id}")
}

/// Makes the directory of a pool. An empty one of this name was left by a command that was killed.
fn make_dir(base: &Path, name: &str, uid: u32) -> PoolResult<(Vec<u8>, u64)> {
    let failed = |path: &Path, cause: String, remedy: &str| PoolError::Path {
        path: path.to_owned(),
        cause,
        remedy: remedy.to_owned(),
    };
    let there = "name a directory where you may write: --base DIR";
    let base = base.canonicalize().map_err(|error| failed(base, error.to_string(), there))?;
    let path = base.join(name);
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        made => made.map_err(|error| failed(&path, error.to_string(), there))?,
    }
    let look = |error: std::io::Error| failed(&path, error.to_string(), there);
    let found = std::fs::symlink_metadata(&path).map_err(look)?;
    let is_empty = found.is_dir() && std::fs::read_dir(&path).map_err(look)?.next().is_none();
    if !is_empty || found.uid() != uid {
        let cause = "is in the way: it is not an empty directory of yours".to_owned();
        return Err(failed(&path, cause, "look at it, and move it away"));
    }
    Ok((path.into_os_string().into_vec(), found.ino()))
}

/// Removes the directory of a pool, if it is still the one that was made for it. That it is gone is fine.
pub(super) fn remove_dir(pool: &Pool, uid: u32) -> Result<(), String> {
    let path = Path::new(OsStr::from_bytes(&pool.source));
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found.map_err(|error| format!("{}: {error}", path.display()))?,
    };
    let named = path.file_name() == Some(OsStr::new(&dir_name(pool.owner, &pool.name, pool.id)));
    // A link on the way leads to something that was not made for this pool.
    let real = path.canonicalize().is_ok_and(|real| real == path);
    if !named || !real || !found.is_dir() || found.ino() != pool.inode || found.uid() != uid {
        return Err(format!(
            "{}: is not the directory that was made for it; nothing is removed",
            path.display()
        ));
    }
    let failed = |error: std::io::Error| format!("{}: {error}; try again", path.display());
    // By what was looked at, whatever somebody puts in its place meanwhile.
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
    let opened = rustix::fs::fstat(&dir).map_err(|error| failed(error.into()))?;
    if (opened.st_dev, opened.st_ino) != (found.dev(), found.ino()) {
        return Err(format!("{}: was replaced meanwhile; nothing is removed", path.display()));
    }
    let inside = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
    for entry in std::fs::read_dir(&inside).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let is_dir = entry.file_type().map_err(failed)?.is_dir();
        let removed =
            if is_dir { std::fs::remove_dir_all(entry.path()) } else { std::fs::remove_file(entry.path()) };
        removed.map_err(failed)?;
    }
    std::fs::remove_dir(path).map_err(failed)
}

/// Forgets attachments that cannot be seen from here, because somebody knows better.
fn detach(here: &Environment, who: &Caller, args: &PoolDetachArgs) -> Result<(), Failure> {
    let mut pools = opened(here, &args.database)?;
    let pool = pools.find(who, &args.pool)?;
    let is_meant =
        |one: &Attachment| args.formation.as_ref().is_none_or(|formation| *formation == one.formation);
    let meant: Vec<Attachment> = pools.attachments(&pool)?.into_iter().filter(is_meant).collect();
    let (known, unseen): (Vec<_>, Vec<_>) = meant.into_iter().partition(|one| is_known(here, one));
    if unseen.is_empty() {
        let cause = match known.first() {
            Some(one) => {
                format!("formation {0} is here; take it down: bivouac down --name {0}", one.formation)
            }
            None => "no such formation has it; see: bivouac pool show".to_owned(),
        };
        return Err(Failure::new(1, format_args!("pool {}: {cause}", args.pool)));
    }
    let ids: Vec<i64> = unseen.iter().map(|one| one.id).collect();
    pools.detach(&changing(who, &None), &ids)?;
    for one in unseen {
        outln!("pool {} is no longer attached to formation {} on {}", pool.name, one.formation, one.host);
    }
    Ok(())
}

fn share(pools: &mut Pools, change: &ChangeOrigin<'_>, args: &PoolShareArgs) -> Result<(), Failure> {
    let to = match (args.user, args.group) {
        (Some(uid), _) => Grantee::User(uid),
        (_, Some(gid)) => Grantee::Group(gid),
        _ => Grantee::All,
    };
    let access = match (args.ro, args.rw) {
        (true, _) => Some(Access::Ro),
        (_, true) => Some(Access::Rw),
        _ => None,
    };
    let pool = pools.share(change, &args.change.pool, to, access)?;
    let rights: Vec<String> = pool.shares.iter().map(ToString::to_string).collect();
    let rights = if rights.is_empty() { "nobody else".into() } else { rights.join(", ") };
    outln!("pool {}: {rights}; others name it {}", pool.name, pool.full_name());
    outln!("permissions of its files count besides: {}", shown(&pool.source));
    Ok(())
}

/// Prints one path: of this formation, of another that is mounted here, or of site storage.
fn path(here: &Environment, who: &Caller, args: &PoolPathArgs) -> Result<ExitCode, Failure> {
    let pools = opened(here, &args.database)?;
    let pool = pools.find(who, &args.pool)?;
    pool_lives(&pool, args)?;
    pool.must_be_on_site()?;
    let around = around().0.and_then(|name| name.into_string().ok());
    let mut attachments = pools.attachments(&pool)?;
    // The formation around first: what its job writes is there, and not yet at the source.
    attachments.sort_by_key(|one| (Some(&one.formation) != around.as_ref(), -one.since_s));
    let mounts = mounted();
    let best = attachments.iter().find_map(|one| inside(one, &mounts));
    let site = PathBuf::from(OsStr::from_bytes(&pool.source));
    let is_there = is_url(&pool.source) || site.is_dir();
    let chosen = match best {
        Some(path) => path,
        None if is_there => site,
        None => {
            let remedy = "put it back, or release the pool";
            return Err(Failure::new(
                1,
                format_args!("pool {}: {} is gone; {remedy}", pool.name, site.display()),
            ));
        }
    };
    outln!("{}", chosen.display());
    Ok(ExitCode::SUCCESS)
}

fn pool_lives(pool: &Pool, args: &PoolPathArgs) -> Result<(), Failure> {
    match pool.state_at(now_s()) {
        PoolState::Live => Ok(()),
        state => Err(PoolError::Ended { name: args.pool.clone(), state }.into()),
    }
}

/// Returns the path of an attached pool on this host, if its formation is mounted here.
fn inside(attachment: &Attachment, mounts: &[MountEntry]) -> Option<PathBuf> {
    let source = format!("bivouac:{}", attachment.formation);
    let mounted = mounts.iter().filter(|mount| mount.source == source);
    let mut paths = mounted.map(|mount| mount.dir.join(attachment.path.trim_start_matches('/')));
    paths.find(|path| path.is_dir())
}

fn expire(here: &Environment, who: &Caller, args: &PoolExpireArgs) -> Result<ExitCode, Failure> {
    // Not `opened`, which forgets attachments: by a wrong clock nothing is changed.
    let mut pools = open(here, &args.database)?;
    refuse_wrong_clock(&pools)?;
    forget_gone(here, &mut pools)?;
    let outcomes = pools.expire(&changing(who, &None), args.dry_run, |pool| remove_dir(pool, who.uid))?;
    for Outcome { pool, due, failed } in &outcomes {
        let would = if args.dry_run { "would be " } else { "is " };
        let text = match (due, failed) {
            (_, Some(cause)) => format!("is not removed: {cause}"),
            (ExpiryAction::Ends, None) => format!("{would}noted as expired"),
            (ExpiryAction::Removal, None) if pool.is_made => {
                format!("{would}removed, with {}", shown(&pool.source))
            }
            (ExpiryAction::Removal, None) => {
                format!("{would}forgotten; its data stays: {}", shown(&pool.source))
            }
            (ExpiryAction::Attached, None) => "stays: a formation has it attached".to_owned(),
            (ExpiryAction::Owner, None) => format!("is for user {}: bivouac pool expire", pool.owner),
            (ExpiryAction::Revives, None) => {
                format!("{would}there again: the clock was ahead when its end was noted")
            }
            (ExpiryAction::Unsure, None) => "is removed by the next look that finds the same".to_owned(),
        };
        outln!("pool {}: {text}", pool.full_name());
        if let (ExpiryAction::Removal, Some(archive)) = (due, pool_archive::said(pool)) {
            outln!("pool {}: its copy in the archive stays: {}", pool.full_name(), plain(&archive));
        }
    }
    let failed = outcomes.iter().any(|outcome| outcome.failed.is_some());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Refuses to remove anything by a clock that differs from the server's.
fn refuse_wrong_clock(pools: &Pools) -> Result<(), Failure> {
    // A file has no clock of its own.
    let Some(server_s) = pools.clock_s()? else { return Ok(()) };
    let ahead_s = now_s().saturating_sub(server_s);
    if ahead_s.abs() <= CLOCKS_DIFFER_S {
        return Ok(());
    }
    let which = if ahead_s > 0 { "ahead of" } else { "behind" };
    let text = format!(
        "the clock of this host is {} s {which} that of {}, so nobody knows what has ended; set the clocks",
        ahead_s.abs(),
        pools.place()
    );
    Err(Failure::new(1, text))
}

fn show_all(all: &[Pool], who: &Caller, json: bool) -> Result<(), Failure> {
    let now_s = now_s();
    if json {
        let shown = |pool| PoolOutput {
            state_now: Pool::state_at(pool, now_s),
            pool,
            attachments: Vec::new(),
            versions: None,
        };
        return print_json(&all.iter().map(shown).collect::<Vec<_>>());
    }
    if all.is_empty() {
        outln!("no pool of yours, and none that is shared with you");
        return Ok(());
    }
    let row = |pool: &Pool| {
        let mut name = if pool.owner == who.uid { pool.name.clone() } else { pool.full_name() };
        // Of those that have ended there may be several of a name.
        if pool.state != PoolState::Live {
            name.push_str(&format!("#{}", pool.id));
        }
        let bytes = pool.bytes.map_or_else(|| "?".into(), format_size);
        let state = pool.state_at(now_s).word().to_owned();
        let place = match &pool.archive {
            Some(archive) if pool.location == Location::Archive => format!("{} (archive)", shown(archive)),
            _ => shown(&pool.source),
        };
        vec![name, state, bytes, time(pool.expires_s), place, plain(&pool.title)]
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    out!("{}", layout(&["NAME", "STATE", "SIZE", "UNTIL", "SOURCE", "TITLE"], &[2], &rows));
    Ok(())
}

fn text_of(pool: &Pool, attachments: &[Attachment], mail: Option<&str>) -> String {
    let rights: Vec<String> = pool.shares.iter().map(ToString::to_string).collect();
    let files = pool.files.map_or_else(|| "? files".into(), |files| format_count(files, "file"));
    let mut rows = vec![
        ("pool", pool.full_name()),
        ("title", plain(&pool.title)),
        ("state", pool.state_at(now_s()).word().to_owned()),
        ("made", time(pool.created_s)),
        (
            "until",
            format!(
                "{}, {} left",
                time(pool.expires_s),
                format_count(pool.extensions_left.into(), "extension")
            ),
        ),
        ("source", shown(&pool.source)),
        ("holds", format!("{}, {}", pool.bytes.map_or_else(|| "?".into(), format_size), files)),
        ("shared with", if rights.is_empty() { "nobody".into() } else { rights.join(", ") }),
    ];
    if let (Some(days), Some(mail)) = (pool.remind_days, mail) {
        rows.push(("reminds", format!("{}, {} before", plain(mail), format_count(days.into(), "day"))));
    }
    if let Some(archive) = pool_archive::said(pool) {
        let alone = if pool.location == Location::Archive { "; only there" } else { "" };
        rows.push(("archive", plain(&archive) + alone));
    }
    for one in attachments {
        let at =
            format!("formation {} on {}, at {}, {}", one.formation, one.host, one.path, one.access.word());
        rows.push(("attached to", at));
    }
    rows.iter().map(|(name, text)| format!("{name:<12} {text}\n")).collect()
}

/// Returns the last versions, the latest first.
fn text_of_versions(versions: &[Version]) -> String {
    let row = |version: &Version| {
        let job = if version.job.is_empty() { String::new() } else { format!(", job {}", version.job) };
        let count = |count: Option<u64>, what: &str| {
            format!("{} {what}", count.map_or("?".into(), |n| n.to_string()))
        };
        let [added, changed, removed] = [
            count(version.added, "added"),
            count(version.changed, "changed"),
            count(version.removed, "removed"),
        ];
        plain(&format!(
            "{} at {} by {}, {}{job}: {added}, {changed}, {removed}; {} in {}",
            version.number,
            time(version.at_s),
            version.uid,
            version.what,
            format_size(version.bytes),
            format_count(version.files, "file"),
        ))
    };
    let mut text: String = versions
        .iter()
        .rev()
        .take(VERSIONS_SHOWN)
        .map(|version| format!("{:<12} {}\n", "version", row(version)))
        .collect();
    if let Some(more) = versions.len().checked_sub(VERSIONS_SHOWN).filter(|more| *more > 0) {
        text.push_str(&format!("{:<12} {more} earlier ones: --json\n", ""));
    }
    text
}

pub(super) fn time(at_s: i64) -> String {
    format!("{}Z", format_utc(u64::try_from(at_s).unwrap_or(0)))
}

fn shown(bytes: &[u8]) -> String {
    plain(&String::from_utf8_lossy(bytes))
}

/// Returns the text that does nothing to a terminal.
pub(super) fn plain(text: &str) -> String {
    printable(text).into_owned()
}

pub(super) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    outln!("{}", crate::output::json(value, true)?);
    Ok(())
}
