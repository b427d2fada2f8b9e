//! Starts the keeper of a formation over several hosts, and waits until the formation is usable.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use bivouac_launch::hex::to_hex;
use bivouac_launch::recovery::kept;
use bivouac_launch::recovery_notes::forget_former;
use bivouac_launch::start::{
    Attempt, GIVE_UP_MS, claim_whole, end_supervisor, start_supervisor, vanished, wait_ready,
};
use bivouac_launch::{
    Claim, Domains, Environment, FormationRequest, FormationState, HostAccess, HostLife, HostState, Kind,
    LaunchError, LaunchResult, Launcher, Network, Phases, RELEASE, ReadyFormation, Signals, StateDir,
    packets, random_bytes,
};
use serde::{Deserialize, Serialize};

use crate::election_times::check_times;
use crate::launcher::{MpiFamily, needs_input};
use crate::list::HostArg;
use crate::meeting::{Rendezvous, which_host};
use crate::network::addresses;
use crate::ticket::{TICKET_LEN_MAX, Ticket};

/// A user's request for a formation over several hosts.
#[derive(Clone, Debug)]
pub struct HostsWishes {
    /// The part that all formations have; its number of nodes is not used.
    pub wishes: FormationRequest,
    /// The hosts.
    pub hosts: Vec<HostArg>,
    /// The launcher that starts processes there.
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
    /// Domains that fail together, if they are known.
    pub domains: Option<Domains>,
    /// Mount point, on all hosts.
    pub mount: Option<PathBuf>,
    /// True if other users may enter.
    pub allow_other: bool,
    /// True if it ends with the process that starts it.
    pub tied: bool,
    /// Meeting place of the hosts, if they come by themselves; the launcher is then [`Launcher::Meet`].
    pub meeting: Option<Rendezvous>,
    /// Former state, if it is to be recovered: the hosts start their parts again, on the volumes that they have.
    pub past: Option<FormationState>,
    /// True if volumes that are older than the others are taken as they are then.
    pub with_older: bool,
}

/// Input of the keeper.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Ticket for every host, without addresses and the host's name.
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
    /// Family of the `mpiexec`, if that is the launcher.
    pub mpi: MpiFamily,
    /// A directory of the user's that all hosts see, for launchers that carry no secret.
    pub home: Option<PathBuf>,
    /// Term of a keeper that takes the place of one whose host was lost.
    pub elected: Option<u32>,
}

/// Starts a formation over several hosts and waits until all its nodes serve, and it is mounted where it is to
/// be. What fails is taken down again.
///
/// # Errors
/// What makes no sense; the hosts that did not come, and why; that it was interrupted.
pub fn start_hosts(
    here: &Environment,
    wishes: &HostsWishes,
    bound: Duration,
    signals: &Signals,
) -> LaunchResult<ReadyFormation> {
    let mut phases = Phases::begin();
    check(wishes)?;
    // Before anything is started that would fail for it.
    addresses(wishes.network.as_ref())?;
    let name = &wishes.wishes.name;
    let mut claim = match &wishes.past {
        Some(past) => claim_again(here, past)?,
        None => claim_whole(here, name)?,
    };
    let before = wishes.past.clone().or(claim.stale.take());
    let attempt = Attempt { here, dir: claim.dir.clone(), done: false };
    let attempt = StartRollback { attempt: Some(attempt), before, recovers: wishes.past.is_some() };
    let formation = formation_id(wishes)?;
    claim.dir.remove_sockets()?;
    let reach = reach(here, wishes)?;
    claim.dir.write(&first_state(here, wishes, &reach, &formation))?;
    claim.dir.make_secret()?;
    let plan = packets::to_memory(&keepers_plan(here, wishes, reach, &formation, bound)?)
        .map_err(|e| LaunchError::system("the keeper's plan", e))?;
    let (report, child) = start_supervisor(here, &claim, "keep", &[plan.as_fd()])?;
    // From here on the lock is the keeper's.
    drop(claim.lock);
    phases.end("keeper");
    // The keeper gives up at `bound` itself, and needs time to tell why.
    let wait = bound + Duration::from_millis(GIVE_UP_MS);
    let steps = wait_ready(&report, signals, wait, &claim.dir).map_err(|error| {
        end_supervisor(&report, (&child).into(), GIVE_UP_MS);
        if wishes.past.is_some() { kept(&error) } else { error }
    })?;
    phases.insert(steps);
    let state = claim.dir.read()?.ok_or_else(|| vanished(name))?;
    attempt.succeeded(&state);
    Ok(ReadyFormation {
        name: name.clone(),
        dir: claim.dir,
        state,
        phases,
        tie: wishes.tied.then_some(report),
    })
}

/// Removes what a start that failed has made, and puts back the state of the one that was killed before.
struct StartRollback<'a> {
    attempt: Option<Attempt<'a>>,
    before: Option<FormationState>,
    recovers: bool,
}

impl StartRollback<'_> {
    /// Ends the start well: the hosts have nothing of an earlier one any more, or it is this one.
    fn succeeded(mut self, now: &FormationState) {
        if let Some(mut attempt) = self.attempt.take() {
            attempt.done = true;
            forget_former(attempt.here, now);
        }
    }
}

impl Drop for StartRollback<'_> {
    fn drop(&mut self) {
        let Some(mut attempt) = self.attempt.take() else { return };
        let here = attempt.here;
        let Some(before) = &self.before else { return };
        // What there is of it is what a recovery goes on with; of another one, what the new one has made.
        attempt.done = self.recovers;
        drop(attempt);
        let put_back = StateDir::claim_whole(here, &before.name).and_then(|claim| claim.dir.write(before));
        if let Err(error) = put_back {
            log::error!(why:% = error; "what is known of the formation that was killed is not written down again");
        }
    }
}

/// Takes the name of a formation that is to be recovered.
fn claim_again(here: &Environment, past: &FormationState) -> LaunchResult<Claim> {
    let claim = StateDir::claim_whole(here, &past.name)?;
    match claim.stale.as_ref().filter(|stale| stale.formation != past.formation) {
        None => Ok(claim),
        Some(stale) => {
            let name = &past.name;
            let cause =
                format!("another one of that name was killed, and its state is here ({})", stale.formation);
            let remedy = format!(
                "first recover that (bivouac recover {name}) or throw it away (bivouac down --name {name})"
            );
            Err(LaunchError::new(Kind::Refused, format_args!("formation {name}"), cause, &remedy))
        }
    }
}

fn formation_id(wishes: &HostsWishes) -> LaunchResult<[u8; 16]> {
    if let Some(past) = &wishes.past {
        let damaged = || {
            let remedy = "name its volumes: bivouac recover --volume DIR";
            LaunchError::new(Kind::Refused, format_args!("formation {}", past.name), "has no id", remedy)
        };
        return past.formation_id().map(|id| id.0).ok_or_else(damaged);
    }
    wishes.meeting.as_ref().map_or_else(random_bytes, |meeting| Ok(meeting.formation))
}

fn check(wishes: &HostsWishes) -> LaunchResult<()> {
    let nodes: usize = wishes.hosts.iter().map(|host| usize::from(host.nodes)).sum();
    let targets = nodes * wishes.wishes.volumes.len().max(1);
    if wishes.past.is_none() && usize::from(wishes.wishes.width) > targets {
        let cause = format!("there are only {targets} targets (volumes of all nodes)");
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
    let asked = &wishes.wishes;
    asked.protect.check(nodes, wishes.hosts.len())?;
    // One that is recovered has the times that it had.
    if wishes.past.is_none() {
        check_times(asked.protect, wishes.hosts.len(), asked.dead_after_ms, wishes.silence_ms)?;
    }
    if wishes.send.is_some() {
        needs_input(&wishes.launcher)?;
    }
    FormationRequest { nodes: 1, width: 0, ..wishes.wishes.clone() }.check()
}

fn first_state(
    here: &Environment,
    wishes: &HostsWishes,
    reach: &HostAccess,
    formation: &[u8; 16],
) -> FormationState {
    let host = |host: &HostArg| HostState {
        name: host.name.clone(),
        life: HostLife::Called,
        message: None,
        nodes: Vec::new(),
        mount: None,
    };
    let new = FormationState {
        kept_on: Some(here.host.clone()),
        hosts: wishes.hosts.iter().map(host).collect(),
        reach: Some(reach.clone()),
        ..wishes.wishes.first_state(to_hex(formation))
    };
    let Some(past) = &wishes.past else { return new };
    FormationState {
        created_unix_ms: past.created_unix_ms,
        keep: past.keep.clone(),
        http: past.http.clone(),
        gateway: past.gateway.clone(),
        sources: past.sources.clone(),
        recoveries: past.recoveries.saturating_add(1),
        before: Some(Box::new(FormationState { before: None, ..past.clone() })),
        ..new
    }
}

fn keepers_plan(
    here: &Environment,
    wishes: &HostsWishes,
    reach: HostAccess,
    formation: &[u8; 16],
    bound: Duration,
) -> LaunchResult<Plan> {
    let secret = wishes.meeting.as_ref().map_or_else(random_bytes, |meeting| Ok(meeting.secret))?;
    let program = reach.program.clone();
    let reach = HostAccess { domains: reach.domains.filter(is_short), ..reach };
    let ticket = Ticket { reach: Some(reach), ..first_ticket(wishes, formation, &secret, bound) };
    Ok(Plan {
        ticket,
        hosts: wishes.hosts.clone(),
        launcher: wishes.launcher.clone(),
        send: wishes.send.clone(),
        program,
        min_nodes: wishes.min_nodes,
        network: wishes.network.clone(),
        port: wishes.meeting.as_ref().map_or(0, |meeting| meeting.place.port),
        tied: wishes.tied,
        mpi: if wishes.launcher == Launcher::Mpi { MpiFamily::installed() } else { MpiFamily::Other },
        home: here.batch.home.clone(),
        elected: None,
    })
}

/// Returns the part of the ticket that is the same for all hosts, but for the place to report to.
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
        secure: asked.secure,
        detect_races: asked.detect_races,
        protect: asked.protect,
        http: asked.http.clone(),
        link_listen: asked.link_listen,
        wait_ms: asked.wait_ms,
        dead_after_ms: asked.dead_after_ms,
        stripe: asked.stripe as u32,
        width: asked.width,
        spread_at: asked.spread_at,
        checksum: asked.checksum,
        page_pool: asked.page_pool,
        names_memory: asked.names_memory,
        numa: asked.numa,
        log_format: asked.log_format,
        tolerance: asked.tolerance,
        silence_ms: wishes.silence_ms,
        start_ms: u64::try_from(bound.as_millis()).unwrap_or(u64::MAX),
        reach: None,
        recovers: wishes.past.is_some(),
        with_older: wishes.with_older,
        joins: false,
    }
}

/// Returns true if a ticket has room for it. Where it is longer, targets are placed by it all the same, and only the
/// hosts do not know.
fn is_short(domains: &Domains) -> bool {
    domains.of.iter().map(|(host, switch)| host.len() + switch.len() + 8).sum::<usize>() < TICKET_LEN_MAX / 4
}

fn reach(here: &Environment, wishes: &HostsWishes) -> LaunchResult<HostAccess> {
    Ok(HostAccess {
        launcher: wishes.launcher.clone(),
        program: program(here, wishes)?,
        send: wishes.send.clone(),
        network: wishes.network.clone(),
        silence_ms: wishes.silence_ms,
        domains: wishes.domains.clone(),
    })
}

/// Returns the ticket that the first host would have sent if it could start this one.
///
/// # Errors
/// That this host is none of those named, or what else makes no sense.
pub(crate) fn ticket_to_meet(
    here: &Environment,
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

fn program(here: &Environment, wishes: &HostsWishes) -> LaunchResult<String> {
    if let Some(program) = &wishes.program {
        return Ok(program.clone());
    }
    let program = std::fs::canonicalize(&here.program)
        .map_err(|e| LaunchError::path(&here.program, "look for this program", e))?;
    Ok(program.to_string_lossy().into_owned())
}
