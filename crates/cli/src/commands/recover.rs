//! `bivouac recover`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bivouac_hosts::{HostArg, HostsWishes, hosts_of, parse_hosts, read_hostfile, start_hosts};
use bivouac_launch::control::{Request, ask};
use bivouac_launch::{
    CAUGHT, Environment, LaunchError, MountWay, NodeLife, ReadyFormation, Recovery, Signals, StateDir,
    WholeFormation, cannot_mount, recover, whole,
};
use bivouac_monitor::connect;
use bivouac_mount::fusermount;
use bivouac_types::NodeId;
use bivouac_types::units::format_count;

use super::up::owner;
use crate::attach::wait_usable;
use crate::failure::Failure;
use crate::forming::mount_all;
use crate::forming_hosts::{mount_of_hosts, say_who_is_missing};
use crate::options::{AgainArgs, RecoverArgs};
use crate::output;
use crate::start_report::StartReport;

/// Longest wait for the supervisor's answer, in milliseconds.
const ASK_MS: u64 = 10_000;
/// Pause between two looks whether a node serves.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Longest wait for a node to report what it lacks.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// Starts a formation again that was killed as a whole, and mounts it.
pub fn run(here: &Environment, args: &RecoverArgs) -> Result<ExitCode, Failure> {
    if let Some(node) = args.node {
        return revive(here, args, node);
    }
    let signals = Signals::catch(&CAUGHT).map_err(|e| LaunchError::system("signals", e))?;
    let wanted = Recovery {
        name: args.formation.clone().or_else(|| args.name.clone()),
        volumes: args.volumes.clone(),
        port: args.port,
        owner: args.owner.map(owner).transpose()?,
        ttl_ms: args.ttl.map(|ttl| ttl.0),
        with_older: args.with_older,
    };
    let bound = Duration::from_millis(args.start_timeout.0);
    if let Some(whole) = whole(here, &wanted)? {
        return over_hosts(here, args, whole, &wanted, bound, &signals);
    }
    // Before anything is started: a formation that cannot be mounted is not brought back half.
    if !args.no_mount && MountWay::choose(here, &fusermount::PROGRAMS) == MountWay::Namespaces {
        return Err(cannot_mount().into());
    }
    let mut notice = |text: &str| errln!("bivouac: {text}");
    let mut started = recover(here, &wanted, bound, &signals, &mut notice)?;
    let place = (!args.no_mount).then_some(&args.place);
    let mounted = mount_all(here, &started.dir, &started.state, place).and_then(|mounts| {
        started.phases.end("mount");
        mounts.iter().try_for_each(|mount| wait_usable(mount, bound))?;
        started.phases.end("ready");
        Ok(mounts)
    });
    // It is not taken down again, as `up` does: data has come back, and only a mount is missing.
    let mounts = mounted.map_err(|failure| {
        let name = &started.name;
        Failure::new(
            failure.exit_code(),
            format_args!("formation {name} runs again, but is not mounted: {failure}; bivouac mount --name {name} DIR does that"),
        )
    })?;
    say_what_is_lost(&started);
    show(args.json, started, &mounts)?;
    Ok(ExitCode::SUCCESS)
}

/// Starts a node of a running formation once more that was given up, and waits until it serves.
fn revive(here: &Environment, args: &RecoverArgs, node: u16) -> Result<ExitCode, Failure> {
    let name = args.formation.as_ref().or(args.name.as_ref());
    let (name, dir) = StateDir::find(here, name)?;
    dir.read_living()?;
    ask(&dir, &Request::Revive { node }, &[], ASK_MS)?;
    let deadline = Instant::now() + Duration::from_millis(args.start_timeout.0);
    loop {
        let state = dir.read_living()?;
        let found = state.nodes.iter().find(|found| found.id == node);
        let message = || found.and_then(|found| found.message.clone()).unwrap_or_default();
        match found.map(|found| found.life) {
            Some(NodeLife::Ready) => break,
            Some(NodeLife::Failed) => {
                let text = format!("node {node} of formation {name} does not start: {}", message());
                return Err(Failure::new(
                    1,
                    format_args!("{text}; its log: {}", dir.node_log(node).display()),
                ));
            }
            _ if Instant::now() >= deadline => {
                let text = "has not come up in time; see: bivouac status; wait longer: --start-timeout";
                return Err(Failure::new(1, format_args!("node {node} of formation {name} {text}")));
            }
            _ => std::thread::park_timeout(LOOK_EVERY),
        }
    }
    if args.json {
        outln!("{}", output::json(&serde_json::json!({ "name": name.to_string(), "node": node }), false)?);
    } else {
        outln!("node {node} of formation {name} serves again, with what its volumes have");
        outln!(
            "mounts that it served are gone for good: bivouac unmount DIR, then bivouac mount --name {name} DIR"
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Says that volumes came back without a part of what they had. Who does not answer is asked by `status` again.
fn say_what_is_lost(started: &ReadyFormation) {
    let Ok(client) = connect(&started.dir, &started.state, ANSWER_WAIT) else { return };
    let nodes = started.state.nodes.iter().filter_map(|node| client.nodes().status(NodeId(node.id)).ok());
    let lost: u64 = nodes.map(|status| status.damage.lost).sum();
    client.leave();
    if lost > 0 {
        errln!(
            "bivouac: {} that the volumes had are not there any more: parts of files cannot be read; \
             bivouac fsck {} names them",
            format_count(lost, "subfile"),
            started.name
        );
    }
}

/// Recovers a formation on all hosts that it was over.
fn over_hosts(
    here: &Environment,
    args: &RecoverArgs,
    whole: WholeFormation,
    wanted: &Recovery,
    bound: Duration,
    signals: &Signals,
) -> Result<ExitCode, Failure> {
    let again = &args.hosts;
    let mount = (!args.no_mount).then(|| mount_of_hosts(here, &whole.state.name, &args.place)).transpose()?;
    let wishes = HostsWishes {
        wishes: whole.wishes(wanted),
        launcher: again.launcher.clone().unwrap_or(whole.reach.launcher),
        send: again.send.clone().or(whole.reach.send),
        program: Some(again.program.clone().unwrap_or(whole.reach.program)),
        min_nodes: again.min_nodes,
        network: again.network.clone().or(whole.reach.network),
        silence_ms: whole.reach.silence_ms,
        domains: whole.reach.domains,
        mount: mount.clone(),
        allow_other: args.place.allow_other,
        tied: false,
        meeting: None,
        hosts: hosts(again, &hosts_of(&whole.state))?,
        past: Some(whole.state),
        with_older: args.with_older,
    };
    let started = start_hosts(here, &wishes, bound, signals)?;
    say_who_is_missing(&started.state);
    say_what_is_lost(&started);
    let mounts: Vec<PathBuf> = mount.into_iter().collect();
    show(args.json, started, &mounts)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the named hosts, or those of the former formation; each with as many nodes as it had.
fn hosts(args: &AgainArgs, before: &[HostArg]) -> Result<Vec<HostArg>, Failure> {
    let mut hosts = match (&args.hosts, &args.hostfile) {
        (Some(list), _) => parse_hosts(list, 1)?,
        (None, Some(file)) => read_hostfile(file, 1)?,
        (None, None) => before.to_vec(),
    };
    for host in &mut hosts {
        host.nodes =
            before.iter().find(|known| known.name == host.name).map_or(host.nodes, |known| known.nodes);
    }
    Ok(hosts)
}

fn show(json: bool, started: ReadyFormation, mounts: &[PathBuf]) -> Result<(), Failure> {
    let whole = started.state.is_over_hosts().then_some(&started.dir);
    let steps = started.phases.into_steps();
    let report = StartReport::new(&started.name, &started.dir, whole, mounts, &steps)?;
    if json {
        outln!("{}", output::json(&report, true)?);
    } else {
        out!("{}{}", report.to_text("is recovered"), report.time_text());
    }
    Ok(())
}
