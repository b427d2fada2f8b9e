//! Sources of a map: this host, others by way of the launcher, or files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bivouac_extract::{LocalMachine, Machine, RecordedAnswers, Recorder, host, networks, places};
use bivouac_hosts::{HostArg, Inquiry, ask_hosts, hosts_of_job, parse_hosts, read_hostfile};
use bivouac_launch::{
    Environment, FormationName, Kind, LaunchError, LaunchResult, Launcher, StateDir, output_of,
};
use bivouac_sysmap::{Map, Network, NumaPlacement, is_same_host, merge, nearest};
use bivouac_wire::FormationMap;

/// Time that a program may take that is asked about the machine.
const PROGRAM_BOUND: Duration = Duration::from_secs(20);
/// Most bytes of a file with a map.
const FILE_MAX: u64 = 1 << 30;

/// The hosts that a map is of, and how they are asked. If none are named, they are those of the batch job.
#[derive(Clone, Debug)]
pub struct HostQuery {
    /// The hosts of this formation.
    pub formation: Option<FormationName>,
    /// These hosts: names as for ssh, ranges in brackets.
    pub hosts: Option<String>,
    /// The hosts of this file, one per line.
    pub hostfile: Option<PathBuf>,
    /// The launcher that starts processes there; none for the batch system's, else ssh.
    pub launcher: Option<Launcher>,
    /// Path of bivouac there; none for this program's own path.
    pub program: Option<String>,
    /// Maximum wait for all answers.
    pub answer_timeout: Duration,
    /// Time for which each host measures its load, in milliseconds.
    pub load_ms: u64,
}

/// Query of this machine.
#[derive(Clone, Copy, Debug)]
pub struct LocalQuery<'a> {
    /// A directory that is read instead of `/`; then no programs are run.
    pub root: Option<&'a Path>,
    /// File for everything that the machine answered.
    pub record: Option<&'a Path>,
    /// Time for which the load is measured, in milliseconds.
    pub load_ms: u64,
}

/// Merges the maps of files.
pub fn read_maps(paths: &[PathBuf]) -> LaunchResult<Map> {
    Ok(merge(paths.iter().map(|path| read_map(path)).collect::<LaunchResult<_>>()?))
}

/// Returns the map of the hosts that are meant, as far as it can be had; its notes say what is missing. `None` if only
/// this machine is meant.
///
/// # Errors
/// What makes no sense, and that there is nothing at all.
pub fn gather_hosts(here: &Environment, query: &HostQuery) -> LaunchResult<Option<Map>> {
    let Some((launcher, hosts)) = hosts(here, query)? else { return Ok(None) };
    ask(here, query, &launcher, &hosts).map(Some)
}

/// Returns the map of this host alone, without what one host knows of the whole network.
#[must_use]
pub fn map_of_this_host(here: &Environment, load_ms: u64) -> Map {
    let run = |program: &[&str]| output_of(here, program, PROGRAM_BOUND);
    one(&LocalMachine::new(Path::new("/"), &run), &here.host, load_ms)
}

/// Returns the part of this machine that the daemon of a node with these volumes is to run on, as far as that matters.
#[must_use]
pub fn near_to(map: &FormationMap, node: u16, volumes: &[String]) -> Option<NumaPlacement> {
    let own = map.nodes.get(usize::from(node))?;
    let of_host = || (0_u16..).zip(&map.nodes).filter(|(_, entry)| entry.host == own.host);
    let (index, count) = (of_host().position(|(number, _)| number == node)?, of_host().count());
    // One node alone has all of its host: a part of it would be less.
    if count < 2 {
        return None;
    }
    // Only files are read.
    let machine = places(&LocalMachine::new(Path::new("/"), &|_| None))?;
    let volumes: Vec<&str> = volumes.iter().map(String::as_str).collect();
    nearest(&machine, &volumes, index, count)
}

fn one(machine: &dyn Machine, name: &str, load_ms: u64) -> Map {
    let (host, network) = host(machine, name, load_ms);
    Map { hosts: vec![host], networks: network.into_iter().collect(), ..Map::default() }
}

/// Returns the map of this machine and of what it knows of the network.
///
/// # Errors
/// That the record cannot be written.
pub fn gather_local(here: &Environment, query: &LocalQuery<'_>) -> LaunchResult<Map> {
    let is_whole = query.root.is_none();
    // A directory of another machine: this one's programs would say something of this one.
    let run = |program: &[&str]| is_whole.then(|| output_of(here, program, PROGRAM_BOUND)).flatten();
    let root = query.root.unwrap_or(Path::new("/"));
    let real = LocalMachine::new(root, &run);
    let recorder = Recorder::new(&real);
    let mut map = one(&recorder, &here.host, query.load_ms);
    map.networks.extend(networks(&recorder));
    if let Some(path) = query.record {
        let failed = |e| refused(format!("{}: {e}; choose another path", path.display()));
        std::fs::write(path, recorder.into_text()).map_err(failed)?;
    }
    Ok(merge(vec![map]))
}

/// Asks hosts over the launcher, in one round; the network as a whole is asked of this host.
fn ask(here: &Environment, query: &HostQuery, launcher: &Launcher, hosts: &[HostArg]) -> LaunchResult<Map> {
    let arguments = ["tell".to_owned(), "--load".to_owned(), query.load_ms.to_string()];
    let inquiry = Inquiry {
        hosts,
        launcher,
        program: query.program.as_deref(),
        arguments: &arguments,
        bound: query.answer_timeout,
        live: None,
    };
    // The fabric is asked meanwhile: its tools can take as long as all hosts together.
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
        return Err(refused(format!("no host answered:\n{}", notes.join("\n"))));
    }
    Ok(merge(vec![whole, Map { networks: fabric, notes, ..Map::default() }]))
}

/// Networks that one host knows as a whole.
pub(crate) fn fabric(here: &Environment) -> Vec<Network> {
    let run = |program: &[&str]| output_of(here, program, PROGRAM_BOUND);
    networks(&LocalMachine::new(Path::new("/"), &run))
}

/// Notes the hosts of which nothing is known, not even why.
pub(crate) fn silent(whole: &Map, hosts: &[HostArg], notes: &mut Vec<String>) {
    for host in hosts.iter().filter(|host| !whole.hosts.iter().any(|known| known.name == host.name)) {
        if !notes.iter().any(|note| note.starts_with(&format!("host {}:", host.name))) {
            notes.push(format!("host {}: did not answer", host.name));
        }
    }
}

/// Returns the map under the name by which the user knows the host.
pub(crate) fn named(mut map: Map, called: Option<&str>, hosts: &[HostArg]) -> Map {
    let Some(own) = map.hosts.first().map(|host| host.name.clone()) else { return map };
    let listed = hosts.iter().find(|host| is_same_host(&host.name, &own)).map(|host| host.name.as_str());
    // The name as the user wrote it, by which all else is looked up; hosts may call themselves otherwise.
    if let Some(name) = called.or(listed).filter(|name| *name != own) {
        map.rename(&own, name);
    }
    map
}

/// Returns the hosts that are meant, and what reaches them; none for this one alone.
pub(crate) fn hosts(here: &Environment, query: &HostQuery) -> LaunchResult<Option<(Launcher, Vec<HostArg>)>> {
    let job = hosts_of_job(here, 1)?;
    let named = match (&query.formation, &query.hosts, &query.hostfile) {
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
    let launcher = query.launcher.clone().or(of_job).unwrap_or(Launcher::Ssh);
    Ok(named.or(job.map(|(_, hosts)| hosts)).map(|hosts| (launcher, hosts)))
}

/// Reads a map, or the record of a machine, which is named as its file.
///
/// # Errors
/// That it is neither, or cannot be read.
pub fn read_map(path: &Path) -> LaunchResult<Map> {
    let failed = |cause: String| refused(format!("{}: {cause}", path.display()));
    let size = std::fs::metadata(path).map_err(|e| failed(format!("{e}; check its path")))?.len();
    // Looked at before it is read, which takes as much memory.
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
    let record = RecordedAnswers::parse(&text).map_err(failed)?;
    let name = path.file_stem().map_or_else(|| "host".into(), |stem| stem.to_string_lossy().into_owned());
    let mut map = one(&record, &name, 1000);
    map.networks.extend(networks(&record));
    // What only a tool for the whole network said is no host.
    map.hosts.retain(|host| !host.sources.is_empty());
    Ok(map)
}

pub(crate) fn refused(text: String) -> LaunchError {
    LaunchError::said(Kind::Refused, text)
}
