//! Data in a formation that its partition's source lacks, for which the formation is not taken down.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use bivouac_client::{
    Client, FlushOptions, FlushOutcome, FlushTarget, PartitionState, Unsaved, flush_target,
};
use bivouac_launch::control::{Request, ask};
use bivouac_launch::{FormationState, StateDir};
use bivouac_monitor::connect;
use bivouac_types::units::{format_count, format_size};

use crate::failure::Failure;
use crate::partitioning::Plan;

/// Longest wait for the supervisor to record which partitions exist, in milliseconds.
const NOTE_WAIT_MS: u64 = 10_000;
/// Longest wait for a node's answer.
pub const ANSWER_WAIT: Duration = Duration::from_secs(30);
/// The same, when it does not matter much whether it does.
const LOOK_WAIT: Duration = Duration::from_secs(2);
/// Files that are named at most.
const NAMED_MAX: usize = 10;

/// Records that the formation has a source, so that it is taken down only after a check that everything is there, also
/// once all of its processes were killed.
pub fn note_source(dir: &StateDir, path: &str, source: &str) -> Result<(), Failure> {
    // The supervisor has one text, which each request replaces.
    let known = dir.read()?.and_then(|state| state.sources);
    let new = format!("{path} ({source})");
    let which = match known {
        Some(known) if known.split(", ").any(|one| one == new) => return Ok(()),
        Some(known) => format!("{known}, {new}"),
        None => new,
    };
    Ok(ask(dir, &Request::Sources { which: Some(which) }, &[], NOTE_WAIT_MS)?)
}

/// Records the source of a partition that is about to be made, if it is to have one.
pub fn note_source_of(dir: &StateDir, plan: &Plan) -> Result<(), Failure> {
    match &plan.settings.source {
        Some(source) => note_source(dir, &String::from_utf8_lossy(&plan.path), source.as_str()),
        None => Ok(()),
    }
}

/// Returns whether a formation stands in front of site storage. Of one over several hosts, one of its parts may have
/// been told so and not the whole; then its nodes know, if they can still be asked.
pub fn has_sources(dir: &StateDir, state: &FormationState) -> bool {
    if state.sources.is_some() || !state.is_over_hosts() || !dir.is_held() {
        return state.sources.is_some();
    }
    let Ok(client) = connect(dir, state, LOOK_WAIT) else { return false };
    let found = client.partitions.list();
    client.leave();
    found.is_ok_and(|all| all.iter().any(|partition| partition.settings.source.is_some()))
}

/// Returns what the sources lack, a line each; empty if nothing.
pub fn list(client: &Client) -> Result<Vec<String>, Failure> {
    let mut lines = shown(&unsaved(client)?);
    lines.extend(deletions(client)?);
    Ok(lines)
}

/// Like [`list`], for a directory and what is below it; without deletions.
pub fn list_of(client: &Client, subtree: &FlushTarget) -> Result<Vec<String>, Failure> {
    Ok(shown(&unsaved_of(client, subtree, &client.site.unsaved()?)?))
}

fn shown(unsaved: &[(PathBuf, u64)]) -> Vec<String> {
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
    lines
}

/// Returns what was deleted and still exists at the source, a line each.
fn deletions(client: &Client) -> Result<Vec<String>, Failure> {
    let (partitions, mut lines) = (client.partitions.list()?, Vec::new());
    if !partitions.iter().any(|partition| partition.settings.mirrors_deletes()) {
        return Ok(lines);
    }
    let left = client.site.removals()?.left;
    for removal in left.iter().take(NAMED_MAX) {
        let dir = partitions.iter().find(|known| known.id == removal.partition).map(|known| known.dir);
        let place = dir.map_or(Ok(None), |dir| client.path_of_dir(dir))?.unwrap_or_default();
        let path = PathBuf::from(place).join(OsStr::from_bytes(&removal.path));
        let why = if removal.why.is_empty() { String::new() } else { format!(": {}", removal.why) };
        lines.push(format!("  {}{why}", path.display()));
    }
    if left.len() > NAMED_MAX {
        lines.push(format!("  and {} more", left.len() - NAMED_MAX));
    }
    if !lines.is_empty() {
        lines.insert(0, format!("{} not made at the source:", format_count(left.len() as u64, "deletion")));
    }
    Ok(lines)
}

/// Returns the paths from the formation's own directory on, and about how many bytes.
fn unsaved(client: &Client) -> Result<Vec<(PathBuf, u64)>, Failure> {
    let unsaved = client.site.unsaved()?;
    let mut found = Vec::new();
    // Looking through whole partitions takes long, and mostly there is nothing.
    for subtree in if unsaved.is_empty() { Vec::new() } else { subtrees(client)? } {
        found.extend(unsaved_of(client, &subtree, &unsaved)?);
    }
    Ok(found)
}

fn unsaved_of(
    client: &Client,
    subtree: &FlushTarget,
    unsaved: &Unsaved,
) -> Result<Vec<(PathBuf, u64)>, Failure> {
    let plan = subtree.plan(client, unsaved)?;
    let all = plan.files.iter().chain(plan.dirs.iter().filter(|dir| unsaved.has(dir.attr.ino)));
    let shown = |one| (subtree.path_of(one), unsaved.bytes_of(one.attr.ino).min(one.attr.size));
    Ok(all.map(shown).collect())
}

/// Returns the directories of all partitions with a source.
fn subtrees(client: &Client) -> Result<Vec<FlushTarget>, Failure> {
    let mut targets = Vec::new();
    for partition in client.partitions.list()? {
        if partition.settings.source.is_none() || partition.state != PartitionState::Live {
            continue;
        }
        if let Some(path) = client.path_of_dir(partition.dir)? {
            targets.push(FlushTarget::of_partition(client, partition.dir, PathBuf::from(path))?);
        }
    }
    Ok(targets)
}

/// Brings everything of all partitions to their sources.
pub fn flush_all(dir: &StateDir, options: FlushOptions) -> Result<FlushOutcome, Failure> {
    let state = dir.read_living()?;
    // Without a source no node needs to answer, so `down` does not wait for one that is dead.
    if !has_sources(dir, &state) {
        return Ok(FlushOutcome::default());
    }
    let client = connect(dir, &state, ANSWER_WAIT)?;
    let outcome = flush_by(&client, options);
    client.leave();
    outcome
}

/// Like [`flush_all`], with a given client.
pub fn flush_by(client: &Client, options: FlushOptions) -> Result<FlushOutcome, Failure> {
    // What mounts hold back is unsaved as well, and homes do not know of it before it is sent.
    client.site.send_behind()?;
    flush_sent(client, options)
}

/// Like [`flush_by`], for content that mounts have sent already.
pub fn flush_sent(client: &Client, options: FlushOptions) -> Result<FlushOutcome, Failure> {
    let (mut all, unsaved) = (FlushOutcome::default(), client.site.unsaved()?);
    if !unsaved.is_empty()
        // Deletions are owed also where all content is at its source.
        || client.partitions.list()?.iter().any(|partition| partition.settings.mirrors_deletes())
    {
        for subtree in subtrees(client)? {
            all.add(flush_target(client, &subtree, &unsaved, options)?);
        }
    }
    Ok(all)
}
