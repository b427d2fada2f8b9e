//! Hosts that leave in order: a request is checked, decided like all else, and carried out step by step.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use bivouac_launch::control::Answer;
use bivouac_launch::{
    ArrivalStage, DepartureStage, FormationState, HostLife, HostState, StateDir, other_bases,
};
use bivouac_wire::rendezvous::{Order, Reply};

use super::{Keeper, KeeperState, RequestOrigin};
use crate::moves::MoveEvent;
use crate::network::addresses;
use crate::shrink::check_departure;

/// Pause between two looks at what hosts that leave wait for, in milliseconds.
const LOOK_MS: u64 = 500;
/// Time that a host may take to tell whether its mounts are in use, in milliseconds.
const TRIAL_MS: u64 = 15_000;

/// A request that waits for the hosts that are to leave.
#[derive(Clone, Debug)]
pub(super) struct PendingDeparture {
    origin: RequestOrigin,
    hosts: Vec<usize>,
    /// Hosts that have not answered yet.
    silent: BTreeSet<usize>,
    due_ms: u64,
}

impl Keeper {
    /// Takes a request that hosts leave. Nothing is changed before all is known that could refuse it.
    pub(super) fn shrink(&mut self, origin: RequestOrigin, names: &[String], is_forced: bool) {
        let hosts = match self.check_shrink(names) {
            Ok(hosts) => hosts,
            Err(text) => return self.answer(origin, Err(text)),
        };
        let is_new = |host: &usize| self.state.leaving().all(|known| known.host != *host);
        let silent: BTreeSet<usize> =
            hosts.iter().copied().filter(|host| is_new(host) && !is_forced).collect();
        if silent.is_empty() {
            return self.decide_departure(origin, &hosts, is_forced);
        }
        let due_ms = self.now_ms() + TRIAL_MS;
        self.pending.push(PendingDeparture { origin, hosts, silent, due_ms });
        self.tend_departures();
    }

    fn check_shrink(&self, names: &[String]) -> Result<Vec<usize>, String> {
        let name = &self.state.name;
        if self.step != KeeperState::Running {
            return Err(format!(
                "formation {name}: is not in use yet, or no more; look at it: bivouac status"
            ));
        }
        let hosts = check_departure(&self.state, names).map_err(|error| error.to_string())?;
        match hosts.iter().find(|host| self.possible_own_hosts.contains(host)) {
            Some(host) => Err(format!(
                "host {}: the keeper of formation {name} may run there, which does not move in order; \
                 let another host leave, or take the formation down: bivouac down",
                self.inventory.host(*host)
            )),
            None => Ok(hosts),
        }
    }

    /// A host tells whether programs use its mounts, or whether these are taken away.
    pub(super) fn note_unmounted(&mut self, host: usize, is_trial: bool, trouble: Option<String>) {
        if !is_trial {
            let unmounted = self.state.hosts.get_mut(host).filter(|_| trouble.is_none());
            if unmounted.is_some_and(|state| state.mount.take().is_some()) {
                self.write_state();
            }
            let is_due = self.state.leaving().any(|known| known.host == host);
            if is_due {
                self.move_event(MoveEvent::Unmounted { host, trouble });
            }
            return;
        }
        let (mine, others) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition::<Vec<_>, _>(|pending| pending.silent.contains(&host));
        self.pending = others;
        for mut pending in mine {
            pending.silent.remove(&host);
            match &trouble {
                Some(why) => {
                    let name = self.inventory.host(host);
                    let remedy = "end what uses it, or take it away from that: --force";
                    self.answer(pending.origin, Err(format!("host {name}: {why}; {remedy}")));
                }
                None if pending.silent.is_empty() => {
                    self.decide_departure(pending.origin, &pending.hosts, false);
                }
                None => self.pending.push(pending),
            }
        }
    }

    /// Refuses requests for which a host did not answer in time.
    pub(super) fn refuse_pending(&mut self, now: u64) {
        let (late, others) =
            std::mem::take(&mut self.pending).into_iter().partition::<Vec<_>, _>(|p| p.due_ms <= now);
        self.pending = others;
        for pending in late {
            let silent: Vec<&str> = pending.silent.iter().map(|host| self.inventory.host(*host)).collect();
            let text = format!(
                "host {}: did not tell within {} s whether its mounts are in use; look at it: bivouac status",
                silent.join(", "),
                TRIAL_MS / 1000
            );
            self.answer(pending.origin, Err(text));
        }
    }

    /// The commands that wait until hosts have told whether they can leave.
    pub(super) fn take_pending(&mut self) -> Vec<RequestOrigin> {
        std::mem::take(&mut self.pending).into_iter().map(|pending| pending.origin).collect()
    }

    fn decide_departure(&mut self, origin: RequestOrigin, hosts: &[usize], is_forced: bool) {
        // Much may have changed while hosts were asked.
        let names: Vec<String> =
            hosts.iter().filter_map(|host| Some(self.state.hosts.get(*host)?.name.clone())).collect();
        if let Err(text) = self.check_shrink(&names) {
            return self.answer(origin, Err(text));
        }
        let first = |host: &usize| Some((*host, *self.state.hosts.get(*host)?.nodes.first().unwrap_or(&0)));
        let hosts: Vec<(usize, u16)> = hosts.iter().filter_map(first).collect();
        log::warn!("hosts leave in order: {}", names.join(", "));
        self.move_event(MoveEvent::Leave { hosts, is_forced });
        if self.is_move_unrecorded {
            let text = "the departure cannot be written down yet, and is delayed; free some space where the formation was started";
            return self.answer(origin, Err(text.into()));
        }
        self.promise(origin);
    }

    /// Answers a command that waits.
    pub(super) fn answer(&mut self, origin: RequestOrigin, outcome: Result<(), String>) {
        match (origin, outcome) {
            (RequestOrigin::Local(token), Ok(())) => self.callers.answer(token, &Answer::Done),
            (RequestOrigin::Local(token), Err(message)) => {
                self.callers.answer(token, &Answer::Refused { message });
            }
            (RequestOrigin::Remote(link), Ok(())) => self.reply(link, &Reply::Done, Vec::new()),
            (RequestOrigin::Remote(link), Err(text)) => {
                self.reply(link, &Reply::Refused { text }, Vec::new())
            }
        }
    }

    /// Time when hosts that leave, or are to, are looked at next.
    pub(super) fn departures_due(&self) -> Option<u64> {
        let refusals = self.pending.iter().map(|pending| pending.due_ms);
        refusals.chain(self.departure_due).min()
    }

    /// Schedules a look at departures without delay, if there are any.
    pub(super) fn hasten_departures(&mut self) {
        let is_any = self.state.leaving().next().is_some() || !self.pending.is_empty();
        self.departure_due = (is_any && self.step == KeeperState::Running).then(|| self.now_ms());
    }

    /// Looks how far hosts are that leave, and tells them what they have to do.
    pub(super) fn tend_departures(&mut self) {
        self.departure_due = None;
        let is_any = self.state.leaving().next().is_some();
        if self.step != KeeperState::Running || (!is_any && self.pending.is_empty()) {
            return;
        }
        self.departure_due = Some(self.now_ms() + LOOK_MS);
        // Each look asks those that have not been asked yet: a host may have had no connection.
        let silent: BTreeSet<usize> =
            self.pending.iter().flat_map(|pending| &pending.silent).copied().collect();
        let trial = Order::Unmount { is_trial: true, is_forced: false };
        silent.into_iter().for_each(|host| self.ask(host, &trial));
        if !is_any {
            return;
        }
        // Which replicas are complete.
        (0..self.hosts.len()).for_each(|host| self.ask(host, &Order::Look));
        if !self.is_agreed() || self.is_move_unrecorded {
            return;
        }
        let steps: Vec<_> =
            self.state.leaving().map(|known| (known.host, known.stage, known.is_forced)).collect();
        for (host, stage, is_forced) in steps {
            let Some(link) = self.hosts.get(host).and_then(|seen| seen.link) else { continue };
            match stage {
                DepartureStage::Unmounting => self.ask(host, &Order::Unmount { is_trial: false, is_forced }),
                // Its vote is needed no more, and that is accepted.
                DepartureStage::Leaving if !self.votes(host) => self.order(link, &Order::Down),
                DepartureStage::Leaving => self.choose_voters(),
                _ => {}
            }
        }
    }

    /// Gives an order to a host, unless its answer is still awaited over this connection.
    pub(super) fn ask(&mut self, host: usize, order: &Order) {
        let Some(seen) = self.hosts.get_mut(host) else { return };
        let Some(link) = seen.link else { return };
        if seen.sent.unanswered.ask(order) {
            self.order(link, order);
        }
    }

    /// Does the next thing for hosts that leave, as far as the latest decision is accepted.
    pub(super) fn advance_departures(&mut self) {
        let leaves = self.state.leaving().any(|known| known.stage < DepartureStage::Leaving);
        let is_any = leaves || self.state.arriving().any(|known| known.stage == ArrivalStage::Balancing);
        if !is_any || self.step != KeeperState::Running || !self.is_agreed() || self.is_move_unrecorded {
            return;
        }
        // A node that is given up does not move, and its volumes would go with the host.
        let failed_at = |host: usize| {
            let mut nodes = self.state.hosts.get(host)?.nodes.iter().copied();
            nodes.find(|node| self.state.is_given_up(*node))
        };
        let leaving = self.state.leaving().filter(|known| known.stage < DepartureStage::Leaving);
        let staying: Vec<(usize, u16)> =
            leaving.filter_map(|known| Some((known.host, failed_at(known.host)?))).collect();
        for (host, node) in staying {
            let why = format!("node {node} is given up, and its volumes are here");
            self.move_event(MoveEvent::Stay { host, why });
        }
        let (nodes, pinned) = (self.complete_nodes(), self.pinned_nodes());
        self.move_event(MoveEvent::Complete { nodes, pinned });
    }

    /// Nodes whose present backups have all of their volumes, as the hosts of these say.
    fn complete_nodes(&self) -> Vec<u16> {
        let mirrors = self.state.map().map(|map| map.mirrors).unwrap_or_default();
        let is_complete = |(node, mirror): &(u16, bivouac_wire::MirrorEntry)| {
            let host = mirror.backup.and_then(|backup| self.host_of(backup.0));
            let seen = host.and_then(|host| self.hosts.get(host));
            seen.is_some_and(|seen| seen.link.is_some() && seen.replicas.contains(&(*node, mirror.epoch)))
        };
        (0u16..).zip(mirrors).filter(is_complete).map(|(node, _)| node).collect()
    }

    /// Returns whether no node runs on a host any more that leaves.
    pub(super) fn has_gone(&self, host: usize) -> bool {
        let is_gone =
            |known: &bivouac_launch::Departure| known.host == host && known.stage == DepartureStage::Leaving;
        self.step == KeeperState::Running && self.state.leaving().any(is_gone)
    }

    /// A host has left; with what is to be said of that.
    pub(super) fn note_left(&mut self, host: usize, message: Option<String>) {
        log::warn!("host {} has left", self.inventory.host(host));
        if let Some(seen) = self.hosts.get_mut(host) {
            (seen.link, seen.tie, seen.asked) = (None, Default::default(), false);
        }
        if let Some(state) = self.state.hosts.get_mut(host) {
            (state.life, state.message, state.mount) = (HostLife::Left, message, None);
        }
        self.state.departures.retain(|known| known.host != host);
        self.state.arrivals.retain(|known| known.host != host);
        if let Some(group) = &mut self.state.keepers {
            group.places.retain(|place| usize::from(place.host) != host);
        }
        let nodes = self.state.hosts.get_mut(host).map(|host| std::mem::take(&mut host.nodes));
        let version = self.state.map().map(|map| map.version);
        self.move_event(MoveEvent::Left { nodes: nodes.unwrap_or_default() });
        if self.state.map().map(|map| map.version) == version {
            self.record();
        }
        self.choose_voters();
    }

    /// Notes which host this keeper runs on. That one does not leave.
    pub(super) fn note_own_host(&mut self) {
        let hosts = self.own_hosts();
        self.state.keeper_host = hosts.first().copied().filter(|_| hosts.len() == 1);
        self.possible_own_hosts = hosts;
        if let Some(host) = self.state.keeper_host.filter(|_| self.step == KeeperState::Running) {
            self.move_event(MoveEvent::Stay { host, why: "it keeps the formation now".into() });
        }
    }

    /// The host that this keeper runs on, if that is known; several if it may be any of them.
    fn own_hosts(&self) -> Vec<usize> {
        let own = StateDir::list(&self.here).iter().find_map(|(_, dir)| self.host_in(dir));
        // Hosts leave protected formations only: for others this is not worth a look at all that runs here.
        if own.is_some() || !self.is_protected {
            return own.into_iter().collect();
        }
        // The part may have another runtime directory than the command that started the keeper.
        let beside: BTreeSet<usize> = other_bases(&self.here)
            .iter()
            .flat_map(|base| StateDir::list_in(base))
            .filter(|(_, dir)| dir.is_held())
            .filter_map(|(_, dir)| self.host_in(&dir))
            .collect();
        // It may also be one of another user, which shows nothing but where its nodes listen.
        let local = hosts_at(&self.state, &addresses(None).unwrap_or_default());
        possible_hosts(&beside, &local)
    }

    /// The host whose part a directory has, if that is one of this formation.
    fn host_in(&self, dir: &StateDir) -> Option<usize> {
        let part = dir.read().ok().flatten()?;
        let is_part = part.part.is_some() && part.formation == self.state.formation;
        host_of_part(&self.state, part.nodes.first().filter(|_| is_part)?.id)
    }
}

/// The hosts with nodes at one of these addresses.
fn hosts_at(state: &FormationState, addresses: &[IpAddr]) -> BTreeSet<usize> {
    let is_there = |node: &u16| {
        let known = state.nodes.get(usize::from(*node));
        let address = known.and_then(|node| node.client_address.parse::<SocketAddr>().ok());
        address.is_some_and(|address| addresses.contains(&address.ip().to_canonical()))
    };
    let has = |(_, host): &(usize, &HostState)| host.life == HostLife::Up && host.nodes.iter().any(is_there);
    state.hosts.iter().enumerate().filter(has).map(|(at, _)| at).collect()
}

/// The hosts that may be that of a keeper which has no part in its own runtime directory: `beside` are those with a
/// part in another runtime directory of its machine, `local` those with an address of that.
fn possible_hosts(beside: &BTreeSet<usize>, local: &BTreeSet<usize>) -> Vec<usize> {
    let both: Vec<usize> = beside.intersection(local).copied().collect();
    match beside.len() {
        0 => local.iter().copied().collect(),
        1 => beside.iter().copied().collect(),
        // Containers that share directories: addresses tell them apart.
        _ if both.len() == 1 => both,
        // Each host is a runtime directory of this machine, and none is that of the keeper.
        _ => Vec::new(),
    }
}

/// The host whose part began with this node. Of one that leaves, that may have moved.
pub(super) fn host_of_part(state: &FormationState, first_node: u16) -> Option<usize> {
    let leaves = |host: usize| state.departures.iter().find(|known| known.host == host);
    let begins = |(at, host): &(usize, &bivouac_launch::HostState)| match leaves(*at) {
        Some(departure) => departure.first_node == first_node,
        None => host.nodes.first() == Some(&first_node),
    };
    state.hosts.iter().enumerate().find(begins).map(|(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keepers_host_is_found_also_in_another_runtime_directory() {
        let possible = |beside: &[usize], local: &[usize]| {
            possible_hosts(&beside.iter().copied().collect(), &local.iter().copied().collect())
        };
        assert_eq!(possible(&[2], &[]), [2]);
        assert_eq!(possible(&[2], &[0, 1, 2]), [2], "one part on a machine with an address of others");
        assert_eq!(possible(&[], &[1]), [1], "a part of another user");
        assert_eq!(possible(&[], &[0, 1]), [0, 1], "it may be any of them");
        assert_eq!(possible(&[0, 1, 2], &[1]), [1]);
        assert!(possible(&[], &[]).is_empty(), "it runs on none of the hosts");
        assert!(possible(&[0, 1, 2], &[0, 1, 2]).is_empty(), "hosts that are directories");
    }
}
