//! Steps of a formation over hosts: they report, start, mount, and in the end take their parts down.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use bivouac_launch::control::Answer;
use bivouac_launch::hex::to_hex;
use bivouac_launch::{
    HostLife, LaunchError, LaunchResult, Network, NodeLife, NodeState, Report, Stage, StateDir, VolumeState,
    first_map, packets,
};
use bivouac_net::Secret;
use bivouac_wire::rendezvous::{self, FormationStart, Join, JoinNode, Order, Reply};
use bivouac_wire::{Encode, FormationMap};
use rustix::process::Signal;

use super::launched::Launched;
use super::{DOWN_MS, HostSeen, Keeper, KeeperState, LAUNCHER_MS, RequestOrigin};
use crate::contact::HostContact;
use crate::inventory::{Presence, Verdict};
use crate::network::addresses;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// Opens the socket that hosts report to; with the addresses that they may reach it at.
pub(super) fn listen(network: Option<&Network>, port: u16) -> LaunchResult<(TcpListener, Vec<String>)> {
    let ips = addresses(network)?;
    let any = if ips.iter().any(IpAddr::is_ipv6) {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    } else {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    };
    let wanted = if let (Some(_), [ip]) = (network, ips.as_slice()) { *ip } else { any };
    let refused = |e: std::io::Error| match port {
        0 => LaunchError::system("a port for the hosts to report at", e),
        port => LaunchError::system(&format!("port {port}, where the hosts meet"), e),
    };
    let listener = TcpListener::bind(SocketAddr::new(wanted, port))
        // Without IPv6 in the kernel there is still the other one.
        .or_else(|_| TcpListener::bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port)))
        .map_err(refused)?;
    rustix::net::listen(&listener, BACKLOG).map_err(|e| refused(e.into()))?;
    listener.set_nonblocking(true).map_err(refused)?;
    let port = listener.local_addr().map_err(refused)?.port();
    let addresses = ips.into_iter().map(|ip| SocketAddr::new(ip, port).to_string()).collect();
    Ok((listener, addresses))
}

/// Listens at the address that hosts were told of before this keeper was elected; with that address.
pub(super) fn listen_again(socket: OwnedFd) -> LaunchResult<(TcpListener, Vec<String>)> {
    let refused = |e: std::io::Error| LaunchError::system("the port of this host's keeper", e);
    rustix::net::listen(&socket, BACKLOG).map_err(|e| refused(e.into()))?;
    let listener = TcpListener::from(socket);
    listener.set_nonblocking(true).map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?.to_string();
    Ok((listener, vec![address]))
}

impl Keeper {
    /// Does what has become possible.
    pub(super) fn go_on(&mut self) {
        match self.step {
            KeeperState::Gathering => match self.inventory.verdict() {
                Verdict::Wait => {}
                Verdict::Go => self.begin(),
                Verdict::TooFew => {
                    let said: String = self.launched.iter().filter_map(Launched::of_no_host).collect();
                    let lost = self.what_is_missing();
                    self.give_up(self.inventory.too_few() + &lost + &said);
                }
            },
            KeeperState::Starting if self.all_done() => self.mount(),
            KeeperState::Mounting if self.all_done() => self.be_ready(),
            KeeperState::Starting | KeeperState::Mounting => {}
            KeeperState::Running => self.end_if_all_are_gone(),
            KeeperState::Ending => self.finish_if_all_have_ended(),
        }
        if !self.looking.is_empty() && self.hosts.iter().all(|host| !host.asked) {
            self.answer_lookers();
        }
    }

    fn all_done(&self) -> bool {
        self.hosts.iter().all(|host| host.done || !host.is_tied())
    }

    pub(super) fn look_at_clock(&mut self) {
        let now = self.now_ms();
        self.links.drop_late(self.since.elapsed());
        if self.step_due.is_some_and(|due| due <= now) {
            self.step_due = None;
            self.time_is_up();
        }
        if self.look_due.is_some_and(|due| due <= now) {
            self.answer_lookers();
        }
        if self.live_due.is_some_and(|due| due <= now) {
            self.live(now);
        }
        // Moves and lost hosts are another keeper's to decide.
        if self.has_resigned {
            return;
        }
        if self.move_due.is_some_and(|due| due <= now) {
            self.drive_moves(true);
        }
        if self.departures_due().is_some_and(|due| due <= now) {
            self.refuse_pending(now);
            self.tend_departures();
        }
        if self.arrivals_due().is_some_and(|due| due <= now) {
            self.tend_arrivals();
        }
        if self.return_due().is_some_and(|due| due <= now) {
            self.give_up_silent(HostSeen::is_away, now);
        }
    }

    /// Ends the present step, which took too long.
    fn time_is_up(&mut self) {
        let waited_s = self.plan.ticket.start_ms / 1000;
        match self.step {
            KeeperState::Gathering => {
                for host in 0..self.inventory.len() {
                    let words = self.launched.iter().find(|launched| launched.reaches(host));
                    let words = words.and_then(|launched| launched.words(host));
                    if let (Some(Presence::Called), Some(words)) = (self.inventory.presence(host), words) {
                        self.inventory
                            .miss(host, format!("did not report within {waited_s} s; it said: {words}"));
                    }
                }
                // After the launchers have been asked: their output says more than that a host is late.
                self.inventory.time_is_up(waited_s);
            }
            KeeperState::Starting | KeeperState::Mounting => {
                let slow: Vec<&str> = (0..self.hosts.len())
                    .filter(|host| self.hosts.get(*host).is_some_and(|seen| seen.is_tied() && !seen.done))
                    .map(|host| self.inventory.host(host))
                    .collect();
                let text = format!(
                    "not usable within {waited_s} s on: {}; give it more time with --start-timeout",
                    slow.join(", ")
                );
                self.give_up(text);
            }
            KeeperState::Running => {}
            KeeperState::Ending => self.end_launchers(),
        }
    }

    /// Makes the map and sends it: all hosts are there who will be.
    fn begin(&mut self) {
        let missing: Vec<(String, String)> =
            self.inventory.missing().map(|(host, reason)| (host.to_owned(), reason.to_owned())).collect();
        for state in &mut self.state.hosts {
            if let Some((_, reason)) = missing.iter().find(|(host, _)| *host == state.name) {
                (state.life, state.message) = (HostLife::Missing, Some(reason.clone()));
            }
        }
        // Nobody is let in any more: the one-time secret has done its work. Who is of the formation may come back.
        self.auth.secret = Secret::new(self.secret).to_resume();
        self.links.drop_strangers();
        self.launched.iter_mut().for_each(Launched::forget_ticket);
        let map = if self.plan.ticket.recovers { self.place_again() } else { self.place() };
        let map = match map.and_then(|map| map.check().map(|()| map)) {
            Ok(map) => map.to_bytes(),
            Err(error) => return self.give_up(error),
        };
        self.state.map = to_hex(&map);
        if let Err(error) = self.dir.write_map(&self.state) {
            return self.give_up(error.to_string());
        }
        self.send_begin(&map);
        self.enter(KeeperState::Starting, "hosts");
    }

    /// Returns the map of a new formation.
    fn place(&mut self) -> Result<FormationMap, String> {
        self.number_nodes();
        let formation = self.state.formation_id().ok_or("its id is damaged")?;
        Ok(first_map(&self.state, formation))
    }

    /// Ids in the order in which hosts were named, so that it is the same every time.
    fn number_nodes(&mut self) {
        let mut nodes = Vec::new();
        for (index, host, join) in self.inventory.here() {
            let first = nodes.len() as u16;
            nodes.extend(
                join.nodes.iter().zip(first..).map(|(node, id)| node_state(id, &host.name, join, node)),
            );
            if let Some(state) = self.state.hosts.get_mut(index) {
                state.life = HostLife::Up;
                state.nodes = (first..nodes.len() as u16).collect();
            }
        }
        // The map names nodes by their positions.
        let numbered = nodes.iter().zip(0..).all(|(node, id): (&NodeState, u16)| node.id == id);
        assert!(numbered && self.state.nodes.is_empty(), "nodes are numbered twice");
        self.state.nodes = nodes;
    }

    fn send_begin(&mut self, map: &[u8]) {
        let first: Vec<(usize, u16)> = self
            .state
            .hosts
            .iter()
            .enumerate()
            .filter_map(|(i, host)| Some((i, *host.nodes.first()?)))
            .collect();
        for (position, (host, first_node)) in first.iter().enumerate() {
            // Everyone looks at the next: a network that does not connect all is found before anything is stored.
            let next = first.get((position + 1) % first.len()).filter(|(next, _)| next != host);
            let next = next.and_then(|(_, node)| self.state.nodes.get(usize::from(*node)));
            let reach = next.into_iter().map(|node| node.client_address.clone()).collect();
            let Some(id) = self.hosts.get(*host).and_then(|seen| seen.link) else { continue };
            let Some(sealed_secret) = self.links.link(id).map(|link| link.seal(&self.secret)) else {
                continue;
            };
            let keepers = self.plan.ticket.addresses.clone();
            let begin = FormationStart { first_node: *first_node, sealed_secret, reach, keepers };
            self.links.send(id, rendezvous::BEGIN, begin.to_bytes(), map.to_vec());
        }
        let version = self.state.map().map_or(0, |map| map.version);
        self.hosts.iter_mut().for_each(|seen| seen.map_known = version);
        self.note_mirrors();
    }

    fn mount(&mut self) {
        if !self.absent.is_empty() {
            let nodes = self.absent.clone();
            self.order_all(&Order::Lost { nodes });
        }
        if self.plan.ticket.mount.is_none() {
            return self.be_ready();
        }
        self.order_all(&Order::Mount);
        self.enter(KeeperState::Mounting, "daemons");
    }

    fn be_ready(&mut self) {
        self.state.stage = Stage::Running;
        self.was_usable = true;
        self.state.before = None;
        self.note_own_host();
        self.write_state();
        self.remember();
        if self.plan.ticket.recovers {
            self.order_all(&Order::Recovered);
        }
        let name = if self.step == KeeperState::Mounting { "mount" } else { "daemons" };
        self.enter(KeeperState::Running, name);
        self.step_due = None;
        if let (Some(report), Some(phases)) = (&self.report, self.phases.take())
            && let Err(error) = packets::send(report, &Report::Ready { phases: phases.into_steps() }, &[])
        {
            log::warn!(why:% = error; "the command that started this formation does not hear");
        }
        if !self.plan.tied {
            self.report = None;
        }
        self.choose_voters();
    }

    fn enter(&mut self, step: KeeperState, ended: &str) {
        self.phases.iter_mut().for_each(|phases| phases.end(ended));
        // Hosts that are taking their parts down would be told to start, or to mount, what is going.
        assert!(step > self.step, "{step:?} after {:?}", self.step);
        self.step = step;
        self.hosts.iter_mut().for_each(|host| host.done = false);
        self.write_state();
    }

    pub(super) fn give_up(&mut self, why: String) {
        log::error!(why:% = why; "the formation does not start");
        if self.failure.is_none() {
            self.failure = Some(why);
        }
        self.end();
    }

    /// Ends the formation: all hosts take their parts down, once the voters agree.
    pub(super) fn end(&mut self) {
        let is_any_up = self.state.hosts.iter().any(|host| host.life == HostLife::Up);
        if self.step != KeeperState::Running || !self.is_voted_on() || !is_any_up {
            return self.end_now();
        }
        if self.state.stage != Stage::Stopping {
            self.state.stage = Stage::Stopping;
            self.record();
        }
    }

    pub(super) fn end_now(&mut self) {
        if self.step == KeeperState::Ending {
            return;
        }
        self.standby.dismiss();
        self.state.stage = Stage::Stopping;
        if self.step == KeeperState::Running && self.plan.ticket.recovers {
            self.order_all(&Order::Recovered);
        }
        self.step = KeeperState::Ending;
        self.write_state();
        if self.state.nodes.is_empty() {
            self.listener = None;
        }
        // The state is on the disk before any host is told: a keeper that is killed here is followed by one that
        // goes on with it.
        self.order_all(&Order::Down);
        // Those that are on their way find nobody, and end.
        for launched in self.launched.iter_mut().filter(|_| self.state.nodes.is_empty()) {
            launched.close();
        }
        self.step_due = Some(self.now_ms() + DOWN_MS);
        self.live_due = None;
    }

    fn finish_if_all_have_ended(&mut self) {
        if self.hosts.iter().any(HostSeen::is_tied) {
            return;
        }
        if self.launched.iter().all(Launched::has_ended) {
            assert!(
                self.step == KeeperState::Ending,
                "the keeper ends while the formation is {:?}",
                self.step
            );
            self.finished = true;
            return;
        }
        // The hosts have ended, so their launchers are about to.
        self.launched.iter_mut().for_each(Launched::close);
        let due = self.now_ms() + LAUNCHER_MS;
        self.step_due = Some(self.step_due.map_or(due, |at| at.min(due)));
    }

    /// Ends the launchers, whose hosts have had their time.
    fn end_launchers(&mut self) {
        let patient = self.hosts.iter().any(HostSeen::is_tied);
        self.hosts.iter_mut().for_each(|host| (host.link, host.tie) = (None, HostContact::default()));
        self.launched.iter_mut().for_each(Launched::close);
        self.launched
            .iter()
            .for_each(|launched| launched.kill(if patient { Signal::TERM } else { Signal::KILL }));
        self.step_due = Some(self.now_ms() + LAUNCHER_MS);
    }

    fn end_if_all_are_gone(&mut self) {
        let is_any_up = self.state.hosts.iter().any(|host| host.life == HostLife::Up);
        // Of a keeper that is cut off, all hosts are lost for itself only.
        if is_any_up || (!self.is_agreed() && self.may_be_succeeded()) {
            return;
        }
        log::warn!("no host of this formation is left");
        if !self.plan.tied {
            self.report_loss("none of its hosts is left");
        }
        self.end();
    }

    pub(super) fn order(&mut self, id: u64, order: &Order) {
        self.links.send(id, rendezvous::ORDER, order.to_bytes(), Vec::new());
    }

    pub(super) fn order_all(&mut self, order: &Order) {
        assert!(!self.has_resigned, "a keeper that has resigned gives orders: {order:?}");
        let links: Vec<u64> = self.hosts.iter().filter_map(|host| host.link).collect();
        links.into_iter().for_each(|id| self.order(id, order));
    }

    /// Tells all that this process lives, and sees who has not been heard for so long that it is gone.
    fn live(&mut self, now: u64) {
        self.order_all(&Order::Live);
        let due = self.live_due.replace(now + self.sign_ms());
        self.resign_if_cut_off(due.unwrap_or(now), now);
        if !self.has_resigned {
            self.give_up_silent(HostSeen::is_tied, now);
        }
    }

    fn answer_lookers(&mut self) {
        self.look_due = None;
        let silent: Vec<usize> =
            self.hosts.iter().enumerate().filter(|(_, s)| s.asked).map(|(i, _)| i).collect();
        for host in silent {
            if let Some(state) = self.state.hosts.get_mut(host) {
                state.message = Some("did not answer its keeper within 2 s".into());
            }
        }
        self.hosts.iter_mut().for_each(|host| host.asked = false);
        self.write_state();
        for origin in std::mem::take(&mut self.looking) {
            match origin {
                RequestOrigin::Local(token) => self.callers.answer(token, &Answer::Done),
                RequestOrigin::Remote(link) => {
                    let state = serde_json::to_vec(&self.state).unwrap_or_default();
                    self.reply(link, &Reply::State, state);
                }
            }
        }
    }
}

pub(super) fn node_state(id: u16, host: &str, join: &Join, node: &JoinNode) -> NodeState {
    let volume = |volume: &rendezvous::JoinVolume| VolumeState {
        path: PathBuf::from(&volume.path),
        kind: volume.kind.clone(),
        capacity_bytes: volume.capacity_bytes,
        own_dir: false,
    };
    NodeState {
        id,
        host: host.into(),
        process: None,
        life: NodeLife::Starting,
        message: None,
        deaths: 0,
        client_address: node.client_address.clone(),
        peer_address: node.peer_address.clone(),
        unix_path: StateDir::at(PathBuf::from(&join.directory)).node_socket(id),
        epoch: 0,
        volumes: node.volumes.iter().map(volume).collect(),
    }
}
