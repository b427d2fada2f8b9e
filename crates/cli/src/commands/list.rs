//! `bivouac list`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bivouac_launch::mount_views::MountViews;
use bivouac_launch::{
    Amount, Environment, FormationName, FormationState, HostLife, NodeLife, Recoverable, Stage, StateDir,
    other_bases, recoverable, settled,
};
use bivouac_types::units::format_utc;
use serde::Serialize;

use crate::failure::Failure;
use crate::options::ListAllArgs;
use crate::start_report::MountLocation;
use crate::table::layout;

/// Directories of formations, by name.
type FormationDirs = Vec<(FormationName, StateDir)>;

/// A formation as it is shown.
#[derive(Debug, Default, Serialize)]
struct FormationListing {
    name: String,
    formation: String,
    state: &'static str,
    created_unix_ms: u64,
    nodes: usize,
    hosts: Vec<String>,
    directory: Option<PathBuf>,
    /// Value of `BIVOUAC_RUNTIME_DIR` for commands on it, if it is in another place than this one.
    runtime_dir: Option<PathBuf>,
    /// Mounts that this process reaches at these paths.
    mounts: Vec<MountLocation>,
    /// Mount points whose mount it does not reach there: what is written to such a path goes elsewhere.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreachable: Vec<Unreachable>,
    /// The recoverable remains of a formation that has no living process.
    left: Option<RecoverableRow>,
}

#[derive(Debug, Serialize)]
struct Unreachable {
    dir: PathBuf,
    why: String,
}

#[derive(Debug, Serialize)]
struct RecoverableRow {
    files: u64,
    bytes: u64,
    changed_unix_ms: u64,
    volumes: Vec<PathBuf>,
    missing: Vec<String>,
    unreadable: Vec<String>,
    why_kept: Option<String>,
    #[serde(skip)]
    text: String,
}

/// Lists all formations of this user on this host: those that run, and those that could be recovered.
pub fn run(here: &Environment, args: &ListAllArgs) -> Result<ExitCode, Failure> {
    if args.names {
        names(here).iter().for_each(|name| outln!("{name}"));
        return Ok(ExitCode::SUCCESS);
    }
    let mut all = living(StateDir::list(here), StateDir::wholes_kept_here(here));
    all.extend(recoverable(here).iter().map(dead));
    all.extend(other_bases(here).iter().flat_map(|base| elsewhere(here, base)));
    all.sort_by(|a, b| (&a.name, a.created_unix_ms).cmp(&(&b.name, b.created_unix_ms)));
    if args.json {
        outln!("{}", crate::output::json_value(&all, true)?);
    } else {
        out!("{}", text(&all));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the names alone. What they hold is not looked at: a shell that completes a word waits for it.
fn names(here: &Environment) -> BTreeSet<String> {
    let known = StateDir::list(here).into_iter().chain(StateDir::wholes(here));
    let living = known.filter(|(_, dir)| dir.is_held()).map(|(name, _)| name.to_string());
    living.chain(recoverable(here).iter().map(|found| found.name.to_string())).collect()
}

/// Lists formations with living processes; of one over several hosts that was started here the whole, not this host's
/// part.
fn living(parts: FormationDirs, wholes: FormationDirs) -> Vec<FormationListing> {
    // Of a whole and this host's part with one name the whole says more.
    let parts = parts.into_iter().filter(|(name, _)| !wholes.iter().any(|whole| whole.0 == *name));
    let held = parts.chain(wholes.iter().cloned()).filter(|(_, dir)| dir.is_held());
    held.filter_map(|(_, dir)| {
        // Taken down meanwhile: there is nothing to be listed.
        let state = settled(&dir).ok()??;
        let (mounts, unreachable) = seen(&state);
        let running = if is_whole(&state) { "running" } else { "degraded" };
        Some(FormationListing {
            state: match state.stage {
                Stage::Starting => "starting",
                Stage::Stopping => "stopping",
                Stage::Running => running,
            },
            mounts,
            unreachable,
            directory: Some(dir.path().to_owned()),
            ..listed(&state)
        })
    })
    .collect()
}

/// Returns the mounts that are at their places, as this process sees them, and the others.
fn seen(state: &FormationState) -> (Vec<MountLocation>, Vec<Unreachable>) {
    let views = MountViews::of(state);
    let (mut here, mut others) = (Vec::new(), Vec::new());
    for mount in &state.mounts {
        match views.view(mount).trouble() {
            None => here.push(MountLocation { dir: mount.dir.clone(), node: Some(mount.node) }),
            Some(why) => others.push(Unreachable { dir: mount.dir.clone(), why }),
        }
    }
    (here, others)
}

/// Lists formations of this user in another place. Dead ones are only named: their contents are examined from that
/// place.
fn elsewhere(here: &Environment, base: &Path) -> Vec<FormationListing> {
    let (parts, wholes) = (StateDir::list_in(base), StateDir::wholes_in(base));
    let dead = parts.iter().chain(&wholes).filter(|(_, dir)| !dir.is_held()).filter_map(|(_, dir)| {
        Some(FormationListing { directory: Some(dir.path().to_owned()), ..listed(&dir.read().ok()??) })
    });
    let mut all: Vec<FormationListing> = dead.collect();
    all.extend(living(parts, wholes));
    all.iter_mut().for_each(|one| one.runtime_dir = Some(here.runtime_dir_of(base)));
    all
}

fn is_whole(state: &FormationState) -> bool {
    let is_well = |life: HostLife| matches!(life, HostLife::Up | HostLife::Left);
    let mut present = state.hosts.iter().enumerate().filter(|(at, _)| !state.is_former_host(*at));
    let hosts = present.all(|(_, host)| is_well(host.life));
    let nodes = state.present_nodes().iter().all(|node| node.life == NodeLife::Ready);
    hosts && nodes && state.supervisor.is_some_and(|supervisor| supervisor.is_alive())
}

fn listed(state: &FormationState) -> FormationListing {
    let mut hosts: Vec<String> = match state.hosts.as_slice() {
        // Of a part, all that the whole is over.
        [] => match state.map() {
            Some(map) => {
                map.nodes.into_iter().map(|node| node.host).filter(|host| !host.is_empty()).collect()
            }
            None => state.nodes.iter().map(|node| node.host.clone()).collect(),
        },
        hosts => {
            let present = hosts.iter().enumerate().filter(|(at, _)| !state.is_former_host(*at));
            present.map(|(_, host)| host.name.clone()).collect()
        }
    };
    hosts.dedup();
    let over_hosts: usize = state.hosts.iter().map(|host| host.nodes.len()).sum();
    FormationListing {
        name: state.name.to_string(),
        formation: state.formation.clone(),
        state: "dead",
        created_unix_ms: state.created_unix_ms,
        nodes: state.nodes.len().max(over_hosts),
        hosts,
        ..FormationListing::default()
    }
}

/// Lists a formation without living processes.
fn dead(found: &Recoverable) -> FormationListing {
    let (amount, missing) = (found.amount(), found.missing());
    let volumes = found.state.iter().flat_map(|state| &state.nodes).flat_map(|node| &node.volumes);
    let left = RecoverableRow {
        files: amount.files,
        bytes: amount.bytes,
        changed_unix_ms: amount.changed_unix_ms,
        volumes: volumes.map(|volume| volume.path.clone()).collect(),
        unreadable: amount.unreadable.clone(),
        why_kept: found.state.as_ref().and_then(FormationState::why_kept),
        text: said(&amount, &missing, found.is_over_hosts()),
        missing,
    };
    let base = found.whole.as_ref().or(found.state.as_ref()).map(listed);
    let base = base.unwrap_or_else(|| FormationListing {
        name: found.name.to_string(),
        formation: found.formation.clone(),
        state: "dead",
        created_unix_ms: found.created_unix_ms,
        ..FormationListing::default()
    });
    FormationListing {
        state: match &left {
            left if !left.missing.is_empty() => "incomplete",
            _ => "recoverable",
        },
        directory: found.dir.as_ref().map(|dir| dir.path().to_owned()),
        left: Some(left),
        ..base
    }
}

/// Returns what a formation holds, as text. Of one over several hosts each says what it has itself.
fn said(amount: &Amount, missing: &[String], is_over_hosts: bool) -> String {
    let mut text = match (is_over_hosts, amount.volumes) {
        (false, _) => amount.to_string(),
        (true, 0) => "what its hosts have".to_owned(),
        (true, _) => format!("{amount}, on this one of its hosts"),
    };
    if !missing.is_empty() {
        text.push_str(&format!("; missing: {}", missing.join(", ")));
    }
    text
}

fn text(all: &[FormationListing]) -> String {
    if all.is_empty() {
        return "no formation of this user is running or could be recovered on this host\n".into();
    }
    let row = |one: &FormationListing| {
        vec![
            one.name.clone(),
            one.state.to_owned(),
            one.nodes.to_string(),
            format!("{}Z", format_utc(one.created_unix_ms / 1000)),
            one.left.as_ref().map_or_else(|| at(one), |left| left.text.clone()),
        ]
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    let mut text = layout(&["NAME", "STATE", "NODES", "MADE", "MOUNTED AT, OR HOLDS"], &[2], &rows);
    if all.iter().any(|one| one.state == "recoverable") {
        text.push_str(
            "have one back: bivouac recover NAME; throw it away: bivouac down --name NAME --discard\n",
        );
    }
    let others: BTreeSet<&Path> = all.iter().filter_map(|one| one.runtime_dir.as_deref()).collect();
    for runtime in others {
        let runtime = runtime.display();
        let _never_fails =
            writeln!(text, "another runtime directory: BIVOUAC_RUNTIME_DIR={runtime} bivouac list");
    }
    text
}

fn at(one: &FormationListing) -> String {
    let mut at: Vec<String> = one.mounts.iter().map(|mount| mount.dir.display().to_string()).collect();
    at.extend(one.unreachable.iter().map(|one| format!("{} ({})", one.dir.display(), one.why)));
    if let (Some(_), Some(dir)) = (&one.runtime_dir, &one.directory) {
        at.push(format!("its state is in {}", dir.display()));
    }
    at.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_and_something_are_said() {
        assert!(text(&[]).starts_with("no formation"));
        let one = FormationListing {
            name: "x".into(),
            formation: "07".into(),
            state: "recoverable",
            created_unix_ms: 951_782_400_000,
            nodes: 2,
            hosts: Vec::new(),
            directory: None,
            runtime_dir: None,
            mounts: Vec::new(),
            unreachable: Vec::new(),
            left: Some(RecoverableRow {
                files: 1,
                bytes: 2,
                changed_unix_ms: 0,
                volumes: Vec::new(),
                missing: Vec::new(),
                unreadable: Vec::new(),
                why_kept: None,
                text: said(&Amount::default(), &["volume 0".into()], false),
            }),
        };
        let text = text(&[one]);
        assert!(
            text.contains("x     recoverable      2  2000-02-29T00:00:00Z  0 files and directories"),
            "{text}"
        );
        assert!(text.contains("; missing: volume 0\nhave one back: bivouac recover NAME"), "{text}");
    }
}
