//! Starts the keeper of a formation over several hosts, and waits until the formation is usable.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::launcher::{Launcher, Remote, Sent, needs_input};
use super::list::HostArg;
use super::meet::{Meeting, which_host};
use super::network::{Network, addresses};
use super::ticket::Ticket;
use crate::hex::to_hex;
use crate::packets;
use crate::phases::Phases;
use crate::plan::Wishes;
use crate::random::random_bytes;
use crate::signals::Signals;
use crate::start::{Attempt, GIVE_UP_MS, Started, claim_whole, end_supervisor, start_supervisor, wait_ready};
use crate::state::{HostLife, HostState, RELEASE, State};
use crate::surroundings::Surroundings;
use crate::{Kind, LaunchError, LaunchResult};

/// What the user asks for, of a formation over several hosts.
#[derive(Clone, Debug)]
pub struct HostsWishes {
    /// What all formations have; its number of nodes is not used.
    pub wishes: Wishes,
    /// The hosts.
    pub hosts: Vec<HostArg>,
    /// What starts processes there.
    pub launcher: Launcher,
    /// A program to send there, instead of using the one that is there.
    pub send: Option<PathBuf>,
    /// Path of the program there, if it is not that of this one here.
    pub program: Option<String>,
    /// Fewest nodes to start with; all if not given.
    pub min_nodes: Option<u16>,
    /// The network to use.
    pub network: Option<Network>,
    /// Silence after which a host takes its part down, in milliseconds.
    pub silence_ms: u64,
    /// Where to mount it, on all hosts.
    pub mount: Option<PathBuf>,
    /// Whether other users may enter.
    pub allow_other: bool,
    /// Whether it ends with the process that starts it.
    pub tied: bool,
    /// Where the hosts meet, if they come by themselves; the launcher is then [`Launcher::Meet`].
    pub meeting: Option<Meeting>,
}

/// What the keeper is told.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    /// For every host, but for addresses and the host's name.
    pub ticket: Ticket,
    pub hosts: Vec<HostArg>,
    pub launcher: Launcher,
    pub send: Option<PathBuf>,
    pub program: String,
    pub min_nodes: Option<u16>,
    pub network: Option<Network>,
    /// The port where hosts report; 0 for any.
    pub port: u16,
    pub tied: bool,
    /// Whether `mpiexec` is that of Open MPI.
    pub open_mpi: bool,
    /// A directory of the user's that all hosts see, for launchers that carry no secret.
    pub home: Option<PathBuf>,
}

/// Starts a formation over several hosts and waits until all its nodes serve, and it is mounted where it is to
/// be. What fails is taken down again.
///
/// # Errors
/// What makes no sense; the hosts that did not come, and why; that it was interrupted.
pub fn start_hosts(
    here: &Surroundings,
    wishes: &HostsWishes,
    bound: Duration,
    signals: &Signals,
    notice: &mut dyn FnMut(&str),
) -> LaunchResult<Started> {
    let mut phases = Phases::begin();
    check(wishes)?;
    // Before anything is started that would fail for it.
    addresses(wishes.network.as_ref())?;
    let name = &wishes.wishes.name;
    let claim = claim_whole(here, name, notice)?;
    let mut attempt = Attempt { here, dir: claim.dir.clone(), done: false };
    let formation = wishes.meeting.as_ref().map_or_else(random_bytes, |meeting| Ok(meeting.formation))?;
    claim.dir.write(&first_state(here, wishes, &formation))?;
    claim.dir.make_secret()?;
    let plan = packets::to_memory(&keepers_plan(here, wishes, &formation, bound)?)
        .map_err(|e| LaunchError::system("the keeper's plan", e))?;
    let (report, child) = start_supervisor(here, &claim, "keep", Some(plan.as_fd()))?;
    drop(claim.lock);
    phases.end("keeper");
    let wait = bound + Duration::from_millis(GIVE_UP_MS);
    let steps = wait_ready(&report, signals, wait, &claim.dir).inspect_err(|_| {
        end_supervisor(&report, (&child).into(), GIVE_UP_MS);
    })?;
    phases.insert(steps);
    let state = claim.dir.read()?.ok_or_else(|| crate::start::vanished(name))?;
    attempt.done = true;
    Ok(Started { name: name.clone(), dir: claim.dir, state, phases, tie: wishes.tied.then_some(report) })
}

fn check(wishes: &HostsWishes) -> LaunchResult<()> {
    let nodes: usize = wishes.hosts.iter().map(|host| usize::from(host.nodes)).sum();
    let seats = nodes * wishes.wishes.volumes.len().max(1);
    if usize::from(wishes.wishes.width) > seats {
        let cause = format!("there are only {seats} seats (volumes of all nodes)");
        return Err(LaunchError::usage(
            format_args!("--width {}", wishes.wishes.width),
            cause,
            "use less, or 0 for all",
        ));
    }
    if nodes > bivouac_types::limits::NODES_MAX {
        let cause = format!("a formation has at most {} nodes", bivouac_types::limits::NODES_MAX);
        return Err(LaunchError::usage(format!("{nodes} nodes"), cause, "use less"));
    }
    if let Some(min) = wishes.min_nodes.filter(|min| usize::from(*min) > nodes || *min == 0) {
        let cause = format!("there are {nodes} nodes");
        return Err(LaunchError::usage(format!("--min-nodes {min}"), cause, "use 1 to that many"));
    }
    if wishes.send.is_some() {
        needs_input(&wishes.launcher)?;
    }
    Wishes { nodes: 1, width: 0, ..wishes.wishes.clone() }.check()
}

fn first_state(here: &Surroundings, wishes: &HostsWishes, formation: &[u8; 16]) -> State {
    let host = |host: &HostArg| HostState {
        name: host.name.clone(),
        life: HostLife::Called,
        message: None,
        nodes: Vec::new(),
        mount: None,
    };
    State {
        kept_on: Some(here.host.clone()),
        hosts: wishes.hosts.iter().map(host).collect(),
        ..wishes.wishes.first_state(to_hex(formation))
    }
}

fn keepers_plan(
    here: &Surroundings,
    wishes: &HostsWishes,
    formation: &[u8; 16],
    bound: Duration,
) -> LaunchResult<Plan> {
    let secret = wishes.meeting.as_ref().map_or_else(random_bytes, |meeting| Ok(meeting.secret))?;
    let ticket = first_ticket(wishes, formation, &secret, bound);
    Ok(Plan {
        ticket,
        hosts: wishes.hosts.clone(),
        launcher: wishes.launcher.clone(),
        send: wishes.send.clone(),
        program: program(here, wishes)?,
        min_nodes: wishes.min_nodes,
        network: wishes.network.clone(),
        port: wishes.meeting.as_ref().map_or(0, |meeting| meeting.place.port),
        tied: wishes.tied,
        open_mpi: wishes.launcher == Launcher::Mpi && is_open_mpi(),
        home: here.batch.home.clone(),
    })
}

/// What all hosts are told alike, but for where to report.
fn first_ticket(wishes: &HostsWishes, formation: &[u8; 16], secret: &[u8; 32], bound: Duration) -> Ticket {
    let asked = &wishes.wishes;
    Ticket {
        release: RELEASE.into(),
        formation: to_hex(formation),
        secret: to_hex(secret),
        addresses: Vec::new(),
        host: None,
        name: asked.name.clone(),
        nodes: 1,
        nodes_of: wishes.hosts.iter().map(|host| (host.name.clone(), host.nodes)).collect(),
        volumes: asked.volumes.iter().map(|volume| (volume.dir.clone(), volume.capacity)).collect(),
        mount: wishes.mount.clone(),
        allow_other: wishes.allow_other,
        port: asked.port,
        in_process: asked.in_process,
        wait_ms: asked.wait_ms,
        dead_after_ms: asked.dead_after_ms,
        stripe: asked.stripe as u32,
        width: asked.width,
        spread_at: asked.spread_at,
        page_pool: asked.page_pool,
        tolerance: asked.tolerance,
        silence_ms: wishes.silence_ms,
        start_ms: u64::try_from(bound.as_millis()).unwrap_or(u64::MAX),
    }
}

/// What this host would be told if the first one could start it.
///
/// # Errors
/// That this host is none of those named, or what else makes no sense.
pub(super) fn ticket_to_meet(
    here: &Surroundings,
    wishes: &HostsWishes,
    bound: Duration,
) -> LaunchResult<Ticket> {
    check(wishes)?;
    let not_met = || LaunchError::usage("--meet", "is missing", "say where the hosts meet");
    let meeting = wishes.meeting.as_ref().ok_or_else(not_met)?;
    let first = wishes.hosts.first().ok_or_else(not_met)?;
    let (_, this) = which_host(here, &wishes.hosts)?;
    let gathers = meeting.place.host.as_deref().unwrap_or(&first.name);
    Ok(Ticket {
        addresses: vec![format!("{gathers}:{}", meeting.place.port)],
        host: Some(this.name.clone()),
        ..first_ticket(wishes, &meeting.formation, &meeting.secret, bound)
    })
}

fn program(here: &Surroundings, wishes: &HostsWishes) -> LaunchResult<String> {
    if let Some(program) = &wishes.program {
        return Ok(program.clone());
    }
    let program = std::fs::canonicalize(&here.program)
        .map_err(|e| LaunchError::path(&here.program, "look for this program", e))?;
    Ok(program.to_string_lossy().into_owned())
}

fn is_open_mpi() -> bool {
    let output = std::process::Command::new("mpiexec").arg("--version").output();
    output.is_ok_and(|output| {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.contains("Open MPI") || text.contains("OpenRTE") || text.contains("PRTE")
    })
}

/// The program to send, and what is to be started to receive it.
pub(super) fn read_program(path: &Path) -> LaunchResult<(Vec<u8>, Remote)> {
    let content = std::fs::read(path).map_err(|e| LaunchError::path(path, "read the program to send", e))?;
    if !content.starts_with(b"\x7fELF") {
        return Err(LaunchError::new(
            Kind::Refused,
            path.display(),
            "is no program",
            "send a build of bivouac",
        ));
    }
    let sent = Sent { len: content.len(), digest: to_hex(&Sha256::digest(&content)) };
    Ok((content, Remote::sent(&sent)))
}
