//! Where a map comes from: this host, others by way of the launcher, or files.

use std::path::Path;
use std::time::Duration;

use bivouac_extract::{Machine, Real, Record, Recorder, host, networks, places};
use bivouac_hosts::{HostArg, Inquiry, ask_hosts, hosts_of_job, parse_hosts, read_hostfile};
use bivouac_launch::{Environment, Launcher, StateDir, output_of};
use bivouac_sysmap::{Map, Nearest, Network, is_same_host, merge, nearest};
use bivouac_wire::FormationMap;

use crate::failure::Failure;
use crate::options::{SystemArgs, WhoseArgs};

/// How long a program may take that is asked about the machine.
const PROGRAM_BOUND: Duration = Duration::from_secs(20);
/// Most bytes of a file with a map.
const FILE_MAX: u64 = 1 << 30;

/// The map that is asked for, as far as it can be had; its notes say what is missing.
///
/// # Errors
/// What makes no sense, and that there is nothing at all.
pub fn gather(here: &Environment, args: &SystemArgs) -> Result<Map, Failure> {
    if !args.whose.from.is_empty() {
        let maps: Result<Vec<Map>, Failure> = args.whose.from.iter().map(|path| of_file(path)).collect();
        return Ok(merge(maps?));
    }
    let only_here = args.whose.here || args.root.is_some() || args.record.is_some();
    let hosts = if only_here { None } else { hosts(here, &args.whose)? };
    match hosts {
        Some((launcher, hosts)) => of_hosts(here, args, &launcher, &hosts),
        None => of_this_machine(here, args),
    }
}

/// Of this host alone, without what one host knows of the whole network.
#[must_use]
pub fn of_this_host(here: &Environment, load_ms: u64) -> Map {
    let run = |program: &[&str]| output_of(here, program, PROGRAM_BOUND);
    one(&Real::new(Path::new("/"), &run), &here.host, load_ms)
}

/// The part of this machine that the daemon of a node with these volumes is to run on, as far as that matters.
#[must_use]
pub fn near_to(map: &FormationMap, node: u16, volumes: &[String]) -> Option<Nearest> {
    let own = map.nodes.get(usize::from(node))?;
    let of_host = || (0_u16..).zip(&map.nodes).filter(|(_, entry)| entry.host == own.host);
    let (index, count) = (of_host().position(|(number, _)| number == node)?, of_host().count());
    if count < 2 {
        return None;
    }
    // Only files are read.
    let machine = places(&Real::new(Path::new("/"), &|_| None))?;
    let volumes: Vec<&str> = volumes.iter().map(String::as_str).collect();
    nearest(&machine, &volumes, index, count)
}

fn one(machine: &dyn Machine, name: &str, load_ms: u64) -> Map {
    let (host, network) = host(machine, name, load_ms);
    Map { hosts: vec![host], networks: network.into_iter().collect(), ..Map::default() }
}

fn of_this_machine(here: &Environment, args: &SystemArgs) -> Result<Map, Failure> {
    let is_whole = args.root.is_none();
    let run = |program: &[&str]| is_whole.then(|| output_of(here, program, PROGRAM_BOUND)).flatten();
    let root = args.root.as_deref().unwrap_or(Path::new("/"));
    let real = Real::new(root, &run);
    let recorder = Recorder::new(&real);
    let mut map = one(&recorder, &here.host, args.load.0);
    map.networks.extend(networks(&recorder));
    if let Some(path) = &args.record {
        let failed = |e| Failure::new(1, format_args!("{}: {e}; choose another path", path.display()));
        std::fs::write(path, recorder.into_text()).map_err(failed)?;
    }
    Ok(merge(vec![map]))
}

/// Over the launcher, in one round; the network as a whole is asked of this host.
fn of_hosts(
    here: &Environment,
    args: &SystemArgs,
    launcher: &Launcher,
    hosts: &[HostArg],
) -> Result<Map, Failure> {
    let arguments = ["tell".to_owned(), "--load".to_owned(), args.load.0.to_string()];
    let inquiry = Inquiry {
        hosts,
        launcher,
        program: args.whose.program.as_deref(),
        arguments: &arguments,
        bound: Duration::from_millis(args.whose.answer_timeout.0),
        live: None,
    };
    let (answers, fabric) = std::thread::scope(|scope| {
        let fabric = scope.spawn(|| fabric(here));
        (ask_hosts(here, &inquiry), fabric.join().unwrap_or_default())
    });
    let answers = answers?;
    let mut notes = answers.trouble;
    let mut maps = Vec::new();
    for (called, text) in answers.texts {
        match serde_json::from_str::<Map>(&text) {
            Ok(map) => maps.push(named(map, called.as_deref(), hosts)),
            Err(error) => notes.push(format!(
                "{}: its answer is not understood ({error}); use one release on all hosts",
                called.as_deref().unwrap_or("a host")
            )),
        }
    }
    let whole = merge(maps);
    silent(&whole, hosts, &mut notes);
    if whole.hosts.is_empty() {
        return Err(Failure::new(1, format_args!("no host answered:\n{}", notes.join("\n"))));
    }
    Ok(merge(vec![whole, Map { networks: fabric, notes, ..Map::default() }]))
}

/// Networks that one host knows as a whole.
pub(super) fn fabric(here: &Environment) -> Vec<Network> {
    let run = |program: &[&str]| output_of(here, program, PROGRAM_BOUND);
    networks(&Real::new(Path::new("/"), &run))
}

/// Notes the hosts of which nothing is known, not even why.
pub(super) fn silent(whole: &Map, hosts: &[HostArg], notes: &mut Vec<String>) {
    for host in hosts.iter().filter(|host| !whole.hosts.iter().any(|known| known.name == host.name)) {
        if !notes.iter().any(|note| note.starts_with(&format!("host {}:", host.name))) {
            notes.push(format!("host {}: did not answer", host.name));
        }
    }
}

/// Under the name by which the user knows the host.
pub(super) fn named(mut map: Map, called: Option<&str>, hosts: &[HostArg]) -> Map {
    let Some(own) = map.hosts.first().map(|host| host.name.clone()) else { return map };
    let listed = hosts.iter().find(|host| is_same_host(&host.name, &own)).map(|host| host.name.as_str());
    if let Some(name) = called.or(listed).filter(|name| *name != own) {
        map.rename(&own, name);
    }
    map
}

/// The hosts that are meant, and what reaches them; none for this one alone.
pub(super) fn hosts(
    here: &Environment,
    whose: &WhoseArgs,
) -> Result<Option<(Launcher, Vec<HostArg>)>, Failure> {
    let job = hosts_of_job(here, 1)?;
    let named = match (&whose.name, &whose.hosts, &whose.hostfile) {
        (Some(name), ..) => {
            // This host may have no part of it.
            let (_, dir) = StateDir::find_whole(here, Some(name))?;
            let state = dir.read()?;
            let names: Vec<String> = state
                .map(|state| state.hosts.into_iter().map(|host| host.name).collect())
                .unwrap_or_default();
            if names.is_empty() {
                return Ok(None);
            }
            Some(parse_hosts(&names.join(","), 1)?)
        }
        (None, Some(list), _) => Some(parse_hosts(list, 1)?),
        (None, None, Some(file)) => Some(read_hostfile(file, 1)?),
        (None, None, None) => None,
    };
    let of_job = job.as_ref().map(|(launcher, _)| launcher.clone());
    let launcher = whose.launcher.clone().or(of_job).unwrap_or(Launcher::Ssh);
    Ok(named.or(job.map(|(_, hosts)| hosts)).map(|hosts| (launcher, hosts)))
}

/// A map, or the record of a machine, which is named as its file.
///
/// # Errors
/// That it is neither, or cannot be read.
pub fn of_file(path: &Path) -> Result<Map, Failure> {
    let failed = |cause: String| Failure::new(1, format_args!("{}: {cause}", path.display()));
    let size = std::fs::metadata(path).map_err(|e| failed(format!("{e}; check its path")))?.len();
    if size > FILE_MAX {
        return Err(failed(format!("has {size} bytes, which is too much for a map")));
    }
    let text = std::fs::read_to_string(path).map_err(|e| failed(e.to_string()))?;
    if text.trim_start().starts_with('{') {
        let not_ours = |e| failed(format!("is no map ({e}); write one with: bivouac system --json"));
        let map: Map = serde_json::from_str(&text).map_err(not_ours)?;
        if map.schema != bivouac_sysmap::SCHEMA {
            return Err(failed(format!("is a map of another form, {}", map.schema)));
        }
        return Ok(map);
    }
    let record = Record::parse(&text).map_err(failed)?;
    let name = path.file_stem().map_or_else(|| "host".into(), |stem| stem.to_string_lossy().into_owned());
    let mut map = one(&record, &name, 1000);
    map.networks.extend(networks(&record));
    // What only a tool for the whole network said is no host.
    map.hosts.retain(|host| !host.sources.is_empty());
    Ok(map)
}
