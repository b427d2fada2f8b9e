//! Hosts that join a running formation: a request is checked, decided like all else, and carried out step by step.

use std::collections::BTreeMap;
use std::net::TcpListener;

use bivouac_launch::hex::to_hex;
use bivouac_launch::{ArrivalStage, HostLife, HostState, LaunchResult, NodeLife, random_bytes, unix_ms};
use bivouac_net::{Auth, Secret};
use bivouac_types::limits::NODES_MAX;
use bivouac_wire::rendezvous::{self, FormationStart, Join, JoinNode, Order};
use bivouac_wire::{Encode, NodeEntry};
use rustix::process::Signal;

use super::forming::{listen, node_state};
use super::launched::{Launched, launch};
use super::{HostSeen, Keeper, KeeperState, RequestOrigin};
use crate::contact::HostContact;
use crate::grow::{JoiningHost, check_arrival};
use crate::inventory::{shares_directory, trouble};
use crate::list::{HostArg, parse_hosts, same_host};
use crate::moves::MoveEvent;
use crate::start::Plan;
use crate::ticket::Ticket;

/// Pause between two looks at what hosts that join wait for, in milliseconds.
const LOOK_MS: u64 = 500;
/// Pause before a host is called again, in milliseconds.
const AGAIN_MS: u64 = 2000;

/// Calls of hosts that join. A keeper that follows another one begins them anew.
#[derive(Debug, Default)]
pub(super) struct Calls {
    port: Option<ArrivalPort>,
    /// Hosts that are called again, with the times of that in milliseconds.
    again: BTreeMap<usize, u64>,
    /// True if a former keeper may have called hosts: what it has begun there ends, and may be in the way for a moment.
    is_successor: bool,
    due: Option<u64>,
}

/// The port where hosts that join report, and what proves that they were called.
#[derive(Debug)]
struct ArrivalPort {
    listener: TcpListener,
    auth: Auth,
    secret: [u8; 32],
    addresses: Vec<String>,
}

impl Calls {
    /// Calls of a keeper that follows another one.
    pub(super) fn of_successor() -> Calls {
        Calls { is_successor: true, ..Calls::default() }
    }

    /// Returns the socket where hosts that join report, if any may.
    pub(super) fn listener(&self) -> Option<&TcpListener> {
        self.port.as_ref().map(|port| &port.listener)
    }
}

impl Keeper {
    /// Takes a request that hosts join.
    pub(super) fn grow(&mut self, origin: RequestOrigin, names: &[String]) {
        let hosts = match self.check_grow(names) {
            Ok(hosts) => hosts,
            Err(text) => return self.answer(origin, Err(text)),
        };
        log::warn!("hosts join: {}", names.join(", "));
        let hosts = hosts.into_iter().map(|host| match host {
            JoiningHost::Known(at) => at,
            JoiningHost::New(name) => self.add_host(&name),
        });
        let hosts = hosts.collect();
        self.move_event(MoveEvent::Arrive { hosts });
        if self.is_move_unrecorded {
            let text = "the arrival cannot be written down yet, and is delayed; free some space where the formation was started";
            return self.answer(origin, Err(text.into()));
        }
        self.promise(origin);
    }

    fn check_grow(&self, names: &[String]) -> Result<Vec<JoiningHost>, String> {
        if self.step != KeeperState::Running {
            let name = &self.state.name;
            return Err(format!(
                "formation {name}: is not in use yet, or no more; look at it: bivouac status"
            ));
        }
        let hosts = parse_hosts(&names.join(","), 1).map_err(|error| error.to_string())?;
        check_arrival(&self.state, &hosts).map_err(|error| error.to_string())
    }

    /// Adds a host behind the others. It has no part yet.
    fn add_host(&mut self, name: &str) -> usize {
        let at = self.hosts.len();
        let one = at == self.state.hosts.len() && at == self.plan.hosts.len() && at == self.inventory.len();
        assert!(one, "the lists of hosts are not of one length");
        let host = HostArg { name: name.into(), nodes: 1, position: at };
        self.inventory.add(host.clone());
        self.plan.hosts.push(host);
        self.hosts.push(HostSeen::default());
        self.state.hosts.push(HostState {
            name: name.into(),
            life: HostLife::Called,
            message: None,
            nodes: Vec::new(),
            mount: None,
        });
        at
    }

    /// Brings the lists of hosts to what the state says, which is newer than the copy of a keeper that was killed.
    pub(super) fn know_hosts(&mut self) {
        let count = self.state.hosts.len();
        self.plan.hosts.truncate(count);
        self.hosts.truncate(count);
        self.inventory.truncate(count);
        for at in self.hosts.len()..count {
            let name = self.state.hosts.get(at).map(|host| host.name.clone()).unwrap_or_default();
            let host = HostArg { name, nodes: 1, position: at };
            self.inventory.add(host.clone());
            self.plan.hosts.push(host);
            self.hosts.push(HostSeen::default());
        }
    }

    /// Time when hosts that join are looked at next.
    pub(super) fn arrivals_due(&self) -> Option<u64> {
        self.calls.due
    }

    /// Schedules a look at arrivals without delay, if there are any.
    pub(super) fn hasten_arrivals(&mut self) {
        let is_any = self.state.arriving().next().is_some();
        self.calls.due = (is_any && self.step == KeeperState::Running).then(|| self.now_ms());
    }

    /// Looks how far hosts are that join, and does what comes next for each.
    pub(super) fn tend_arrivals(&mut self) {
        self.calls.due = None;
        let arriving: Vec<_> = self.state.arriving().cloned().collect();
        if arriving.iter().all(|known| known.stage != ArrivalStage::Calling) {
            self.calls.port = None;
        }
        if self.step != KeeperState::Running || arriving.is_empty() {
            return;
        }
        self.calls.due = Some(self.now_ms() + LOOK_MS);
        if !self.is_agreed() || self.is_move_unrecorded {
            return;
        }
        if arriving.iter().any(|known| known.stage == ArrivalStage::Balancing) {
            // Which replicas are complete.
            (0..self.hosts.len()).for_each(|host| self.ask(host, &Order::Look));
        }
        for known in arriving {
            let deadline = known.since_unix_ms.saturating_add(self.plan.ticket.start_ms);
            let is_late = known.stage < ArrivalStage::Balancing && unix_ms() >= deadline;
            match known.stage {
                _ if is_late => self.end_late(known.host),
                ArrivalStage::Calling => self.call(known.host),
                ArrivalStage::Starting => self.begin_arrival(known.host, known.node),
                ArrivalStage::Mounting => self.mount_arrival(known.host),
                ArrivalStage::Balancing | ArrivalStage::Done | ArrivalStage::GivenUp => {}
            }
        }
    }

    fn end_late(&mut self, host: usize) {
        let words = self.launched.iter().find(|launched| launched.reaches(host));
        let words = words.and_then(|launched| launched.words(host));
        let words = words.map_or(String::new(), |words| format!("; it said: {words}"));
        let waited_s = self.plan.ticket.start_ms / 1000;
        self.not_joined(host, format!("did not come up within {waited_s} s{words}"));
    }

    /// Has the launcher start the part of a host that joins, unless it does that already.
    fn call(&mut self, host: usize) {
        let is_called = self.launched.iter().any(|launched| launched.reaches(host));
        if is_called || self.calls.again.get(&host).is_some_and(|at| *at > self.now_ms()) {
            return;
        }
        match self.start_call(host) {
            Ok(mut launched) => {
                launched.iter_mut().for_each(|one| one.set_host(host));
                self.launched.append(&mut launched);
                // A successor has to have the launcher's input, whose end is the end of the part.
                self.standby.outdate();
            }
            Err(error) => self.not_joined(host, error.to_string()),
        }
    }

    fn start_call(&mut self, host: usize) -> LaunchResult<Vec<Launched>> {
        let Some(known) = self.plan.hosts.get(host).cloned() else { return Ok(Vec::new()) };
        if self.calls.port.is_none() {
            self.calls.port = Some(self.open_port()?);
        }
        let Some(port) = &self.calls.port else { return Ok(Vec::new()) };
        let ticket = Ticket {
            secret: to_hex(&port.secret),
            addresses: port.addresses.clone(),
            host: Some(known.name.clone()),
            nodes: 1,
            nodes_of: vec![(known.name.clone(), 1)],
            recovers: false,
            joins: true,
            ..self.plan.ticket.clone()
        };
        launch(&self.dir, &Plan { ticket, hosts: vec![known], ..self.plan.clone() })
    }

    /// Opens a port of its own for hosts that join, with a secret that is of no use elsewhere.
    fn open_port(&self) -> LaunchResult<ArrivalPort> {
        let (listener, addresses) = listen(self.plan.network.as_ref(), 0)?;
        let secret = random_bytes()?;
        let Auth { formation, is_secure, .. } = &self.auth;
        let auth = Auth { formation: *formation, secret: Secret::new(secret), is_secure: *is_secure };
        Ok(ArrivalPort { listener, auth, secret, addresses })
    }

    /// Accepts the connection of a host that joins.
    pub(super) fn take_arrival_connection(&mut self) {
        let Some(port) = &self.calls.port else { return };
        if let Err(error) = self.links.accept_joining(&port.listener, &port.auth, self.since.elapsed()) {
            log::warn!(why:% = error; "a host that joins could not connect");
        }
    }

    /// Takes in the report of a host that joins: its node becomes part of the map.
    pub(super) fn take_arrival(&mut self, id: u64, join: &Join) {
        let calling = self.state.arriving().filter(|known| known.stage == ArrivalStage::Calling);
        let is_named = |name: &str| same_host(name, &join.host) || same_host(name, &join.machine);
        let name = |host: usize| self.state.hosts.get(host).map_or("", |host| host.name.as_str());
        let named = calling.map(|known| known.host).find(|host| is_named(name(*host)));
        let Some(host) = named else {
            return self.links.refuse(id, format!("host {} ({}) was not called", join.host, join.machine));
        };
        let Some(node) = join.nodes.first().filter(|_| join.trouble.is_none()) else {
            let text = join.trouble.clone().unwrap_or_else(|| "brings no node".into());
            self.links.refuse(id, text.clone());
            return self.call_failed(host, text);
        };
        if let Some(text) = trouble(join, unix_ms()).or_else(|| self.same_machine(join, node)) {
            self.links.refuse(id, text.clone());
            return self.call_failed(host, text);
        }
        let is_full = self.state.map().is_none_or(|map| map.nodes.len() >= NODES_MAX);
        if is_full {
            let text = "the map has no room for another node".to_owned();
            self.links.refuse(id, text.clone());
            return self.call_failed(host, text);
        }
        let now = self.now_ms();
        self.links.belongs(id, host);
        if let Some(seen) = self.hosts.get_mut(host) {
            *seen = HostSeen { link: Some(id), tie: HostContact::new(now), ..HostSeen::default() };
            seen.awaits_begin = true;
        }
        self.calls.again.remove(&host);
        let number = self.state.nodes.len() as u16;
        let Some(known) = self.state.hosts.get_mut(host) else { return };
        (known.life, known.nodes, known.message) = (HostLife::Up, vec![number], None);
        let state = node_state(number, &known.name, join, node);
        let place = NodeEntry {
            host: known.name.clone(),
            client_address: state.client_address.clone(),
            peer_address: state.peer_address.clone(),
            unix_path: state.unix_path.display().to_string(),
            epoch: 0,
        };
        self.state.nodes.push(state);
        self.move_event(MoveEvent::Joined { host, place });
        let nodes = self.state.map().map_or(0, |map| map.nodes.len());
        assert!(nodes == self.state.nodes.len(), "{nodes} nodes in the map, {number} before");
    }

    /// Returns the reason why a host is refused that has the part of another one in the same directory.
    fn same_machine(&self, join: &Join, node: &JoinNode) -> Option<String> {
        let up = self.state.hosts.iter().filter(|host| host.life == HostLife::Up);
        let is_same = |host: &&HostState| {
            let first = host.nodes.first().and_then(|node| self.state.nodes.get(usize::from(*node)));
            first.is_some_and(|first| {
                let directory = first.unix_path.parent().map(|path| path.display().to_string());
                let there = (directory.unwrap_or_default(), first.client_address.clone());
                shares_directory((&there.0, &there.1), (&join.directory, &node.client_address))
            })
        };
        let other = up.into_iter().find(is_same)?;
        Some(format!("is the same machine as {}, which is up", other.name))
    }

    /// Handles that what was to start a host's part has ended, or the host refuses.
    pub(super) fn call_failed(&mut self, host: usize, why: String) {
        let calls =
            |known: &bivouac_launch::Arrival| known.host == host && known.stage == ArrivalStage::Calling;
        if self.step != KeeperState::Running || !self.state.arriving().any(calls) {
            return;
        }
        if !self.calls.is_successor {
            return self.not_joined(host, why);
        }
        // The part that the former keeper called may just be ending there.
        log::warn!(why:%; "host {} is called again", self.inventory.host(host));
        self.launched.retain(|launched| !launched.reaches(host));
        self.calls.again.insert(host, self.now_ms() + AGAIN_MS);
        for known in self.state.arrivals.iter_mut().filter(|known| known.host == host) {
            known.message = Some(why.clone());
        }
    }

    /// Gives up a host that was to join: the formation is as before.
    pub(super) fn not_joined(&mut self, host: usize, why: String) {
        log::error!(why:%; "host {} does not join", self.inventory.host(host));
        let link = self.hosts.get(host).and_then(|seen| seen.link);
        match link {
            Some(link) => self.order(link, &Order::Down),
            None => self.launched.iter_mut().filter(|launched| launched.reaches(host)).for_each(|launched| {
                launched.close();
                launched.kill(Signal::TERM);
            }),
        }
        if let Some(seen) = self.hosts.get_mut(host) {
            seen.awaits_begin = false;
        }
        if let Some(state) = self.state.hosts.get_mut(host) {
            (state.life, state.message, state.mount) = (HostLife::Missing, Some(why.clone()), None);
            state.nodes.clear();
        }
        self.move_event(MoveEvent::NotJoined { host, why });
    }

    /// Returns whether a host is on its way to be part of the formation. It holds nothing yet: before it is up it is
    /// nobody's backup (`MoveMachine::choose_backup`), and no node moves there.
    pub(super) fn is_coming_up(&self, host: usize) -> bool {
        self.state.arriving().any(|known| known.host == host && known.stage < ArrivalStage::Balancing)
    }

    /// Has the daemons of a host that joins started, once all others have the map that says where they are.
    fn begin_arrival(&mut self, host: usize, node: Option<u16>) {
        let Some(map) = self.state.map() else { return };
        let Some(node) = node else { return };
        let link = self.hosts.get(host).filter(|seen| seen.awaits_begin).and_then(|seen| seen.link);
        let Some(link) = link else { return };
        let lacks_map = |(at, seen): (usize, &HostSeen)| {
            at != host && seen.link.is_some() && !seen.awaits_begin && seen.map_known < map.version
        };
        if self.hosts.iter().enumerate().any(lacks_map) {
            return;
        }
        let Some(sealed_secret) = self.links.link(link).map(|link| link.seal(&self.secret)) else { return };
        // A network that does not connect all is found before anything is stored there.
        let others = self.state.hosts.iter().enumerate();
        let others = others.filter(|(at, known)| *at != host && known.life == HostLife::Up);
        let first = others.filter_map(|(_, known)| self.state.nodes.get(usize::from(*known.nodes.first()?)));
        let reach = first.map(|node| node.client_address.clone()).collect();
        // The port where it has reported is closed once nobody joins any more.
        let keepers = self.plan.ticket.addresses.clone();
        let begin = FormationStart { first_node: node, sealed_secret, reach, keepers };
        self.links.send(link, rendezvous::BEGIN, begin.to_bytes(), map.to_bytes());
        if let Some(seen) = self.hosts.get_mut(host) {
            (seen.awaits_begin, seen.map_known) = (false, map.version);
        }
        if let Some(order) = self.keepers_order() {
            self.order(link, &order);
        }
        let lost = self.dead_nodes();
        if !lost.is_empty() {
            self.order(link, &Order::Lost { nodes: lost });
        }
    }

    fn mount_arrival(&mut self, host: usize) {
        let Some(seen) = self.hosts.get_mut(host) else { return };
        let Some(link) = seen.link.filter(|_| !std::mem::replace(&mut seen.sent.mount, true)) else { return };
        self.order(link, &Order::Mount);
    }

    /// The daemons of a host serve.
    pub(super) fn arrival_serves(&mut self, host: usize) {
        let starts =
            |known: &bivouac_launch::Arrival| known.host == host && known.stage == ArrivalStage::Starting;
        if !self.state.arriving().any(starts) {
            return;
        }
        self.set_nodes(host, NodeLife::Ready);
        let stage = match self.plan.ticket.mount {
            Some(_) => ArrivalStage::Mounting,
            None => ArrivalStage::Balancing,
        };
        self.enter_arrival(host, stage);
    }

    /// The formation is mounted on a host.
    pub(super) fn arrival_mounted(&mut self, host: usize) {
        if self.is_coming_up(host) {
            self.enter_arrival(host, ArrivalStage::Balancing);
        }
    }

    fn enter_arrival(&mut self, host: usize, stage: ArrivalStage) {
        self.move_event(MoveEvent::Arrived { host, stage });
        if stage == ArrivalStage::Balancing {
            log::warn!("host {} has joined", self.inventory.host(host));
            // It can vote from now on.
            self.choose_voters();
        }
    }

    /// Returns the first nodes of all hosts, by which hosts say who they are: they stay where they are.
    pub(super) fn pinned_nodes(&self) -> Vec<u16> {
        let up = self.state.hosts.iter().filter(|host| host.life == HostLife::Up);
        up.filter_map(|host| host.nodes.first().copied()).collect()
    }

    /// Forgets calls of a former keeper: what it has begun ends, and is begun anew.
    pub(super) fn call_anew(&mut self) {
        self.calls = Calls::of_successor();
        let calling = self.state.arriving().filter(|known| known.stage == ArrivalStage::Calling);
        let calling: Vec<usize> = calling.map(|known| known.host).collect();
        self.launched.retain(|launched| !calling.iter().any(|host| launched.reaches(*host)));
        self.hasten_arrivals();
    }
}
