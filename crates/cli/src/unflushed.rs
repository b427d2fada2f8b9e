//! What is in a formation and not at the source of its partition keeps the formation from being taken down.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use bivouac_client::{Client, Partition, PartitionState};
use bivouac_launch::control::{Request, ask};
use bivouac_launch::{State, StateDir};
use bivouac_types::MirrorDeletes;
use bivouac_types::units::{format_count, format_size};

use crate::failure::Failure;
use crate::flushing::{Manner, Outcome, Target, bring_all};
use crate::partitioning::path_of;
use crate::reach;

/// How long the supervisor may take to note which partitions there are, in milliseconds.
const NOTE_WAIT_MS: u64 = 10_000;
/// How long a node may take to answer.
pub const ANSWER_WAIT: Duration = Duration::from_secs(30);
/// The same, when it does not matter much whether it does.
const LOOK_WAIT: Duration = Duration::from_secs(2);
/// Files that are named at most.
const NAMED_MAX: usize = 10;

/// From now on the formation is taken down only by who has looked whether all is at the source, also after all of its
/// processes were killed.
///
/// # Errors
/// When the supervisor cannot note it.
pub fn note_source(dir: &StateDir, path: &str, source: &str) -> Result<(), Failure> {
    let known = dir.read()?.and_then(|state| state.sources);
    let which =
        [known, Some(format!("{path} ({source})"))].into_iter().flatten().collect::<Vec<_>>().join(", ");
    Ok(ask(dir, &Request::Sources { which: Some(which) }, &[], NOTE_WAIT_MS)?)
}

/// Whether a formation stands in front of site storage. Of one over several hosts, one of its parts may have been told so
/// and not the whole; then its nodes know, if they can still be asked.
pub fn has_sources(dir: &StateDir, state: &State) -> bool {
    if state.sources.is_some() || !state.is_over_hosts() || !dir.is_held() {
        return state.sources.is_some();
    }
    let Ok(client) = reach::client(dir, state, LOOK_WAIT) else { return false };
    let found = client.partitions.list();
    client.leave();
    found.is_ok_and(|all| all.iter().any(|partition| partition.settings.source.is_some()))
}

/// What is not at the source of its partition, a line each; empty if nothing is.
///
/// # Errors
/// When a node does not say what it has.
pub fn list(client: &Client) -> Result<Vec<String>, Failure> {
    let unsaved = unsaved(client)?;
    let shown = |(path, bytes): &(PathBuf, u64)| match bytes {
        0 => format!("  {}", path.display()),
        bytes => format!("  {} (about {})", path.display(), format_size(*bytes)),
    };
    let mut lines: Vec<String> = unsaved.iter().take(NAMED_MAX).map(shown).collect();
    if unsaved.len() > NAMED_MAX {
        lines.push(format!("  and {} more", unsaved.len() - NAMED_MAX));
    }
    if !lines.is_empty() {
        lines.insert(0, format!("{} not at the source:", format_count(unsaved.len() as u64, "file")));
    }
    lines.extend(deletions(client)?);
    Ok(lines)
}

/// What was deleted and is still at the source, a line each.
fn deletions(client: &Client) -> Result<Vec<String>, Failure> {
    let (partitions, mut lines) = (client.partitions.list()?, Vec::new());
    if !partitions.iter().any(mirrors) {
        return Ok(lines);
    }
    let left = client.site.removals()?.left;
    for removal in left.iter().take(NAMED_MAX) {
        let dir = partitions.iter().find(|known| known.id == removal.partition).map(|known| known.dir);
        let place = dir.map_or(Ok(None), |dir| path_of(client, dir))?.unwrap_or_default();
        let path = PathBuf::from(place).join(OsStr::from_bytes(&removal.path));
        let why = if removal.why.is_empty() { String::new() } else { format!(": {}", removal.why) };
        lines.push(format!("  {}{why}", path.display()));
    }
    if left.len() > NAMED_MAX {
        lines.push(format!("  and {} more", left.len() - NAMED_MAX));
    }
    if !lines.is_empty() {
        lines.insert(0, format!("{} deletions that were not made at their source:", left.len()));
    }
    Ok(lines)
}

/// Whether what is deleted in a partition is to be deleted at its source.
pub fn mirrors(partition: &Partition) -> bool {
    partition.settings.source.is_some() && partition.settings.mirror_deletes == MirrorDeletes::Yes
}

/// Paths from the formation's own directory on, and about how many bytes.
fn unsaved(client: &Client) -> Result<Vec<(PathBuf, u64)>, Failure> {
    let unsaved = client.site.unsaved()?;
    let mut found = Vec::new();
    for target in if unsaved.is_empty() { Vec::new() } else { targets(client)? } {
        let plan = target.plan(client, &unsaved)?;
        let all = plan.files.iter().chain(plan.dirs.iter().filter(|dir| unsaved.has(dir.attr.ino)));
        found.extend(all.map(|one| (target.path_of(one), unsaved.bytes_of(one.attr.ino).min(one.attr.size))));
    }
    Ok(found)
}

/// The directories of all partitions with a source.
fn targets(client: &Client) -> Result<Vec<Target>, Failure> {
    let mut targets = Vec::new();
    for partition in client.partitions.list()? {
        if partition.settings.source.is_none() || partition.state != PartitionState::Live {
            continue;
        }
        if let Some(path) = path_of(client, partition.dir)? {
            targets.push(Target::of_partition(client, partition.dir, PathBuf::from(path))?);
        }
    }
    Ok(targets)
}

/// Brings everything of all partitions to their sources.
///
/// # Errors
/// When it cannot be found out what there is.
pub fn flush_all(dir: &StateDir, manner: Manner) -> Result<Outcome, Failure> {
    let state = reach::living(dir)?;
    if !has_sources(dir, &state) {
        return Ok(Outcome::default());
    }
    let client = reach::client(dir, &state, ANSWER_WAIT)?;
    let outcome = flush_by(&client, manner);
    client.leave();
    outcome
}

/// As [`flush_all`], by a client.
///
/// # Errors
/// As [`flush_all`].
pub fn flush_by(client: &Client, manner: Manner) -> Result<Outcome, Failure> {
    client.site.send_behind()?;
    flush_sent(client, manner)
}

/// As [`flush_by`], of what has been sent.
///
/// # Errors
/// As [`flush_all`].
pub fn flush_sent(client: &Client, manner: Manner) -> Result<Outcome, Failure> {
    let (mut all, unsaved) = (Outcome::default(), client.site.unsaved()?);
    if !unsaved.is_empty() || client.partitions.list()?.iter().any(mirrors) {
        for target in targets(client)? {
            all.add(bring_all(client, &target, &unsaved, manner)?);
        }
    }
    Ok(all)
}
