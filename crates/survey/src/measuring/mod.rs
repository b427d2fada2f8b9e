//! Measurement of the bandwidth between hosts: each opens a station and says over the launcher where; this command
//! gives them orders, and judges by the map what came of it.

mod contest;
mod figures;
mod messages;
mod station;
mod transfer;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use bivouac_hosts::{AnswerStream, HostAnswer, HostArg, Inquiry, ask_hosts};
use bivouac_launch::hex::{formation_from_hex, from_hex};
use bivouac_launch::{
    Environment, Kind, LaunchError, LaunchResult, Launcher, Network as AddressRange, parallel_map,
};
use bivouac_net::{Address, Auth, Identity, LaneKind, Link, Secret};
use bivouac_sysmap::{Map, MeasuredHost, Network, common, merge};
use bivouac_types::ClientId;

pub use messages::StationAnswer;
pub use station::{OpenStation, open_station};

use crate::gathering::{HostQuery, fabric, hosts, named, refused, silent};
use contest::{Participant, play};
use figures::{halves, measured, network_of, remarks};
use messages::{MeasuredConnection, StationAddress};

/// Most hosts that are measured at once: each has a launcher and a connection of this command's.
const HOSTS_MAX: usize = 512;
/// Time that a host's station may take to let this command in, by each of its addresses.
const CONNECT: Duration = Duration::from_secs(3);
/// Time for which stations wait for this command when all have answered that do so in time.
const COME: Duration = Duration::from_secs(30);
/// Time that stations may take to end.
const END: Duration = Duration::from_secs(5);
/// Overhead of measuring besides its rounds, at most.
const BESIDES: Duration = Duration::from_secs(120);

/// Settings of the measurement of links.
#[derive(Clone, Debug)]
pub struct MeasureQuery {
    /// Time that transfers between pairs may take altogether.
    pub bound: Duration,
    /// The network that is measured; none for the fastest that the hosts have in common.
    pub network: Option<AddressRange>,
}

/// Returns the map of hosts, with what flows between them.
///
/// # Errors
/// That there are no two hosts, or none that answers.
pub fn measure(here: &Environment, query: &HostQuery, links: &MeasureQuery) -> LaunchResult<Map> {
    let (launcher, hosts) = hosts(here, query)?.filter(|(_, hosts)| hosts.len() > 1).ok_or_else(|| {
        let cause = "one host alone has no link to another one";
        usage(format!("--measure: {cause}; name two or more: --hosts, --hostfile or --name"))
    })?;
    if hosts.len() > HOSTS_MAX {
        return Err(usage(format!(
            "--measure: {} hosts are more than {HOSTS_MAX} at once; name a part of them",
            hosts.len()
        )));
    }
    let (answer, bound) = (query.answer_timeout, links.bound);
    let arguments = arguments(query, links, answer + COME);
    let stop = AtomicBool::new(false);
    let (tell, heard) = channel();
    let hear = |what: HostAnswer| {
        let _nobody_listens_any_more = tell.send(what);
    };
    let inquiry = Inquiry {
        hosts: &hosts,
        launcher: &launcher,
        program: query.program.as_deref(),
        arguments: &arguments,
        bound: answer + bound + BESIDES,
        live: Some(AnswerStream { hear: &hear, stop: &stop }),
    };
    std::thread::scope(|scope| {
        // Beside the hosts: what the fabric's tools say is not needed before all have answered.
        let fabric = scope.spawn(|| fabric(here));
        let asking = scope.spawn(|| ask_hosts(here, &inquiry));
        let mut answers = collect(&heard, &hosts, answer);
        let fabric = fabric.join().unwrap_or_default();
        let map = conduct(&mut answers, &hosts, fabric, bound);
        // Their connections are closed, so they end.
        await_end(&heard, answers.stations.len(), &launcher);
        stop.store(true, Ordering::Relaxed);
        match asking.join() {
            // A launcher that could not be started is why there are too few hosts, and is nearer to the cause.
            Ok(Err(error)) => Err(error),
            _ => map,
        }
    })
}

fn arguments(query: &HostQuery, links: &MeasureQuery, patience: Duration) -> Vec<String> {
    let mut arguments = vec!["tell".to_owned(), "--load".to_owned(), query.load_ms.to_string()];
    arguments.extend(["--station".to_owned(), patience.as_millis().to_string()]);
    if let Some(network) = &links.network {
        arguments.extend(["--network".to_owned(), network.to_string()]);
    }
    arguments
}

fn usage(text: String) -> LaunchError {
    LaunchError::said(Kind::Usage, text)
}

/// Answers of hosts.
#[derive(Debug, Default)]
struct Answers {
    maps: Vec<Map>,
    stations: Vec<(String, StationAddress)>,
    /// Hosts, as they were called, whose answer was not understood.
    unclear: Vec<String>,
    notes: Vec<String>,
}

/// Hears all hosts, until each has answered or will not.
fn collect(heard: &Receiver<HostAnswer>, hosts: &[HostArg], bound: Duration) -> Answers {
    let until = Instant::now() + bound;
    let mut answers = Answers::default();
    let mut gone = 0;
    while answers.stations.len() + gone < hosts.len() {
        match heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(HostAnswer::Answer(called, text)) => answers.take(called.as_deref(), &text, hosts, &mut gone),
            Ok(HostAnswer::Ended(host, trouble)) => {
                answers.notes.extend(trouble);
                // One that has answered may end at once, if it takes no orders.
                let has_answered = |host: &String| answers.stations.iter().any(|(name, _)| name == host);
                // One whose answer was not understood is counted, and would end the wait for another one's.
                let is_counted = |host: &String| has_answered(host) || answers.unclear.contains(host);
                gone += host.map_or(hosts.len(), |host| usize::from(!is_counted(&host)));
            }
            Err(RecvTimeoutError::Timeout) => {
                let late = format!("did not answer within {} s; see --answer-timeout", bound.as_secs());
                let is_late = |host: &&HostArg| !answers.stations.iter().any(|(name, _)| *name == host.name);
                let late = hosts.iter().filter(is_late).map(|host| format!("host {}: {late}", host.name));
                let late: Vec<String> = late.collect();
                answers.notes.extend(late);
                break;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    answers
}

impl Answers {
    fn take(&mut self, called: Option<&str>, text: &str, hosts: &[HostArg], gone: &mut usize) {
        match serde_json::from_str::<StationAnswer>(text) {
            Ok(StationAnswer { map, station }) => {
                let map = named(map, called, hosts);
                let name = map.hosts.first().map_or_else(String::new, |host| host.name.clone());
                self.maps.push(map);
                self.stations.push((name, station));
            }
            Err(error) => {
                let whom = called.unwrap_or("a host");
                self.notes.push(format!(
                    "{whom}: its answer is not understood ({error}); use one release on all hosts"
                ));
                self.unclear.extend(called.map(str::to_owned));
                *gone += 1;
            }
        }
    }
}

/// Waits until the stations have ended, for a limited time.
fn await_end(heard: &Receiver<HostAnswer>, stations: usize, launcher: &Launcher) {
    let until = Instant::now() + END;
    // One launcher of all ends once, after the last of them.
    let wanted = if launcher.is_per_host() { stations } else { 1.min(stations) };
    let mut ended = 0;
    while ended < wanted {
        match heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(HostAnswer::Ended(..)) => ended += 1,
            Ok(HostAnswer::Answer(..)) => {}
            Err(_) => return,
        }
    }
}

/// Connects to all, and has them measured.
fn conduct(
    answers: &mut Answers,
    hosts: &[HostArg],
    fabric: Vec<Network>,
    bound: Duration,
) -> LaunchResult<Map> {
    let mut map = merge(std::mem::take(&mut answers.maps));
    let mut notes = std::mem::take(&mut answers.notes);
    silent(&map, hosts, &mut notes);
    map = merge(vec![map, Map { networks: fabric, ..Map::default() }]);
    let (mut players, known) = reach(&answers.stations, &map, &mut notes);
    if players.len() < 2 {
        let why = notes.join("\n");
        let few = if players.is_empty() { "no host takes part" } else { "only one host takes part" };
        return Err(refused(format!("--measure: {few}, and it takes two:\n{why}")));
    }
    let network = network_of(&map, &known);
    let halves = halves(network, &known);
    let outcome = play(&mut players, &known, network, &halves, bound);
    // Closed before they are judged: each station ends with its connection, and is awaited later.
    drop(players);
    notes.extend(outcome.notes.iter().cloned());
    let measured = measured(network, known, &halves, outcome);
    notes.extend(remarks(&measured));
    map.measured = Some(measured);
    map.notes.extend(notes);
    Ok(merge(vec![map]))
}

/// Returns the stations that can be reached, in the order of the map, each at the address at which it is measured.
fn reach(
    stations: &[(String, StationAddress)],
    map: &Map,
    notes: &mut Vec<String>,
) -> (Vec<Participant>, Vec<MeasuredHost>) {
    let mut able: Vec<&(String, StationAddress)> = Vec::new();
    for host in &map.hosts {
        let Some(one) = stations.iter().find(|(name, _)| *name == host.name) else { continue };
        match &one.1.trouble {
            Some(trouble) => notes.push(format!("host {}: {trouble}", host.name)),
            None => able.push(one),
        }
    }
    let addresses: Vec<Vec<_>> = able.iter().map(|(_, station)| station.addresses.clone()).collect();
    let chosen = common(&addresses).unwrap_or_else(|| {
        if able.len() > 1 {
            notes.push("the hosts have no network in common; each is measured at its first address".into());
        }
        vec![0; able.len()]
    });
    let (mut players, mut known) = (Vec::new(), Vec::new());
    let ways: Vec<(&StationAddress, usize)> = able.iter().map(|(_, station)| station).zip(chosen).collect();
    let lines = parallel_map(&ways, |(station, at)| connect(station, *at));
    for (((name, _), (station, at)), line) in able.into_iter().zip(&ways).zip(lines) {
        let Some(address) = station.addresses.get(*at) else { continue };
        match line.unwrap_or_else(|| Err("its thread panicked".into())) {
            Ok(line) => {
                let to = SocketAddr::new(address.ip, station.data_port);
                players.push(Participant { name: name.clone(), address: to, line: Some(line) });
                known.push(MeasuredHost {
                    name: name.clone(),
                    address: address.ip.to_string(),
                    interface: address.interface.clone(),
                    expected_bits: address.speed_bits,
                    sends_bits: None,
                    receives_bits: None,
                });
            }
            Err(why) => notes.push(format!("host {name}: {why}")),
        }
    }
    (players, known)
}

/// Connects by the address that is measured if that is possible, else by any other one of the host: this one may not be
/// on that network.
fn connect(station: &StationAddress, at: usize) -> Result<MeasuredConnection, String> {
    let secret = from_hex(&station.secret).and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    let (Some(formation), Some(secret)) = (formation_from_hex(&station.id), secret) else {
        return Err("its answer makes no sense; use one release on all hosts".into());
    };
    let auth = Auth { formation, secret: Secret::new(secret), is_secure: true };
    let identity = Identity { auth, client: ClientId(0), lane: LaneKind::Peer, epoch: 0 };
    let first = station.addresses.get(at).into_iter();
    let others = station.addresses.iter().enumerate();
    let others = others.filter(|(index, one)| *index != at && !one.ip.is_loopback()).map(|(_, one)| one);
    let mut refusals: Vec<String> = Vec::new();
    for address in first.chain(others) {
        let to = Address::tcp(SocketAddr::new(address.ip, station.port).to_string());
        match Link::connect(&to, &identity, CONNECT) {
            Ok(link) => return Ok(MeasuredConnection::over(link)),
            Err(error) => refusals.push(error.to_string()),
        }
    }
    let refusals = refusals.join("; ");
    Err(format!(
        "it started, but is not reached: {refusals}; open the firewall, or use another network: --network"
    ))
}
