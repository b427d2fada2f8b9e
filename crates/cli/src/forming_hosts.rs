//! A formation over several hosts: which they are, who starts processes there, and what it then looks like.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bivouac_extract::{LocalMachine, slurm_network};
use bivouac_hosts::{
    HostArg, HostsWishes, Rendezvous, attend, hosts_of_job, parse_hosts, read_hostfile, start_hosts,
    which_host,
};
use bivouac_launch::{
    Domains, Environment, FormationName, FormationState, HostLife, LaunchError, Launcher, ProcessId, Signals,
    StateDir, output_of,
};
use bivouac_survey::read_map;
use bivouac_sysmap::{Map, domains};
use bivouac_types::units::format_count;

use crate::failure::Failure;
use crate::forming::{RunningFormation, make_partitions, partitions_of};
use crate::options::{FileArgs, FormationArgs, HostsArgs, PlaceArgs, Topology};

/// Longest wait for the batch system to report the network's topology.
const TOPOLOGY_WAIT: Duration = Duration::from_secs(5);

/// Returns the hosts that are asked for, and what reaches them; `None` for a formation on this machine.
pub fn hosts(here: &Environment, args: &FormationArgs) -> Result<Option<(Launcher, Vec<HostArg>)>, Failure> {
    if let Some(nodes) = args.nodes {
        let hosts = hosts_of_job(here, 1)?.map_or(1, |(_, hosts)| hosts.len());
        if hosts > 1 {
            let all = format_count(nodes.into(), "node");
            errln!(
                "bivouac: {all} on this host alone, as --nodes says; without it, all {hosts} hosts of the job are used"
            );
        }
        return Ok(None);
    }
    let HostsArgs { hosts, hostfile, launcher, nodes_per_host, .. } = &args.hosts;
    let job = hosts_of_job(here, *nodes_per_host)?;
    let named = match (hosts, hostfile) {
        (Some(list), _) => Some(parse_hosts(list, *nodes_per_host)?),
        (None, Some(file)) => Some(read_hostfile(file, *nodes_per_host)?),
        (None, None) => None,
    };
    let launcher = args.hosts.meet.as_ref().map_or_else(|| launcher.clone(), |_| Some(Launcher::Meet));
    match (named, job, launcher) {
        (None, None, Some(Launcher::Meet)) => {
            let cause = "no hosts are named, and this is inside of no batch job";
            let remedy = "name the same ones on all of them: --hosts";
            Err(LaunchError::usage("--meet", cause, remedy).into())
        }
        (Some(hosts), job, launcher) => {
            let launcher = launcher.or(job.map(|(launcher, _)| launcher)).unwrap_or(Launcher::Ssh);
            Ok(Some((launcher, hosts)))
        }
        (None, Some((of_job, hosts)), launcher) => Ok(Some((launcher.unwrap_or(of_job), hosts))),
        (None, None, Some(launcher)) => {
            let cause = "no hosts are named, and this is inside of no batch job";
            Err(LaunchError::usage(format_args!("--launch {launcher}"), cause, "name them: --hosts").into())
        }
        (None, None, None) => match for_hosts_alone(&args.hosts) {
            None => Ok(None),
            Some(option) => {
                let cause = "is for several hosts; none are named, and this is inside of no batch job";
                Err(LaunchError::usage(option, cause, "name them: --hosts").into())
            }
        },
    }
}

/// Returns an option that was given and means nothing on one machine.
fn for_hosts_alone(args: &HostsArgs) -> Option<&'static str> {
    let given = [
        ("--nodes-per-host", args.nodes_per_host != 1),
        ("--send", args.send.is_some()),
        ("--program", args.program.is_some()),
        ("--min-nodes", args.min_nodes.is_some()),
        ("--network", args.network.is_some()),
        ("--topology", args.topology != Topology::Auto),
    ];
    given.into_iter().find_map(|(option, is_given)| is_given.then_some(option))
}

/// When a formation over hosts ends, apart from `down`.
#[derive(Clone, Copy, Debug)]
pub enum Lifetime {
    /// With this process, unless it lets go of the formation.
    WithUs,
    /// With a process on this machine, if one is named.
    With(Option<ProcessId>),
}

/// Starts and mounts a formation over hosts.
///
/// # Errors
/// What cannot be started or mounted, with the hosts that it is for; the signal that interrupted it.
pub fn form(
    here: &Environment,
    name: FormationName,
    (args, file): (&FormationArgs, &FileArgs),
    (launcher, hosts): (Launcher, Vec<HostArg>),
    place: Option<&PlaceArgs>,
    ends: Lifetime,
    signals: &Signals,
) -> Result<RunningFormation, Failure> {
    let partitions = partitions_of(here, &name, file)?;
    let domains = domains_of(here, &args.hosts.topology, &launcher, &hosts)?;
    let mount = place.map(|place| mount_of_hosts(here, &name, place)).transpose()?;
    let owner = match ends {
        Lifetime::WithUs => Some(ProcessId::current()),
        Lifetime::With(owner) => owner,
    };
    let wishes = HostsWishes {
        with_older: false,
        wishes: args.wishes(name.clone(), hosts.len(), owner),
        launcher,
        send: args.hosts.send.clone(),
        program: args.hosts.program.clone(),
        min_nodes: args.hosts.min_nodes,
        network: args.hosts.network.clone(),
        silence_ms: args.hosts.silence_max.0.max(1000),
        domains,
        mount: mount.clone(),
        allow_other: place.is_some_and(|place| place.allow_other),
        tied: matches!(ends, Lifetime::WithUs),
        meeting: meeting(args, &name, &hosts)?,
        hosts,
        past: None,
    };
    let bound = Duration::from_millis(args.start_timeout.0);
    // The same command runs on all of these hosts, and the first one of the list forms for all.
    if wishes.meeting.is_some() && which_host(here, &wishes.hosts)?.0 != 0 {
        attend(here, &wishes, bound, signals)?;
        return formed_by_another(here, name, mount);
    }
    let started = start_hosts(here, &wishes, bound, signals)?;
    say_who_is_missing(&started.state);
    // This host need not be one of the formation's.
    let dir = part_of(here, &name, &started.state.formation).unwrap_or_else(|| started.dir.clone());
    let (mounts, steps) = (mount.into_iter().collect(), started.phases.into_steps());
    let formed =
        RunningFormation { name, dir, mounts, steps, whole: Some(started.dir.clone()), _tie: started.tie };
    make_partitions(here, &started.dir, &started.state, &partitions)
        .map_err(|failure| formed.give_up(here, failure))?;
    Ok(formed)
}

/// Returns which hosts are behind one switch, if that is known and distinguishes them.
fn domains_of(
    here: &Environment,
    topology: &Topology,
    launcher: &Launcher,
    hosts: &[HostArg],
) -> Result<Option<Domains>, Failure> {
    let (map, source) = match topology {
        Topology::None => return Ok(None),
        Topology::File(path) => (read_map(path)?, path.display().to_string()),
        // Of the batch systems only Slurm describes its network.
        Topology::Auto if *launcher != Launcher::Slurm => return Ok(None),
        Topology::Auto => {
            let run = |program: &[&str]| output_of(here, program, TOPOLOGY_WAIT);
            let Some(network) = slurm_network(&LocalMachine::new(Path::new("/"), &run)) else {
                return Ok(None);
            };
            let source = network.source.clone();
            (Map { networks: vec![network], ..Map::default() }, source)
        }
    };
    let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    let switches = domains(&map, &names).into_iter().zip(hosts);
    let of: BTreeMap<String, String> =
        switches.filter_map(|(switch, host)| Some((host.name.clone(), switch?))).collect();
    if of.is_empty() && matches!(topology, Topology::File(_)) {
        errln!(
            "bivouac: --topology {source}: it does not tell these hosts apart, so targets are placed without it"
        );
    }
    Ok((!of.is_empty()).then_some(Domains { source, of }))
}

/// Says which hosts did not come, and why.
pub fn say_who_is_missing(state: &FormationState) {
    for host in state.hosts.iter().filter(|host| host.life != HostLife::Up) {
        errln!("bivouac: host {} is missing: {}", host.name, host.message.as_deref().unwrap_or("?"));
    }
}

/// Returns where the hosts meet, if they come by themselves.
fn meeting(
    args: &FormationArgs,
    name: &FormationName,
    hosts: &[HostArg],
) -> Result<Option<Rendezvous>, Failure> {
    let given = args.hosts.meet.clone().zip(args.hosts.meet_secret.as_deref());
    Ok(given.map(|(place, secret)| Rendezvous::new(place, secret, name.as_str(), hosts)).transpose()?)
}

/// Returns this host's view of a formation that the first host has gathered.
fn formed_by_another(
    here: &Environment,
    name: FormationName,
    mount: Option<PathBuf>,
) -> Result<RunningFormation, Failure> {
    let (_, dir) = StateDir::find(here, Some(&name))?;
    Ok(RunningFormation {
        name,
        dir,
        mounts: mount.into_iter().collect(),
        steps: Vec::new(),
        whole: None,
        _tie: None,
    })
}

/// Returns this host's part of a formation, if it has one: another formation on this machine may have the same name.
pub fn part_of(here: &Environment, name: &FormationName, formation: &str) -> Option<StateDir> {
    let (_, dir) = StateDir::find(here, Some(name)).ok()?;
    let state = dir.read().ok().flatten()?;
    (state.part.is_some() && state.formation == formation).then_some(dir)
}

/// Returns the mount point, the same path on every host; the formation's directory would not be the same.
pub fn mount_of_hosts(
    here: &Environment,
    name: &FormationName,
    place: &PlaceArgs,
) -> Result<PathBuf, Failure> {
    if place.each.is_some() {
        let remedy = "write --mount DIR: it is mounted there on each host";
        return Err(LaunchError::usage("--mount-each", "is for several nodes on this machine", remedy).into());
    }
    match &place.dir {
        Some(dir) => Ok(std::path::absolute(dir)?),
        None => Ok(here.hosts_mount(name)),
    }
}
