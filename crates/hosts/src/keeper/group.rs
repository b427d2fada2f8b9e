//! The keeper of a protected formation is one of several: its decisions are written to the hosts that vote, and carried
//! out once a majority has accepted them. Without such hosts it decides alone.

use std::collections::BTreeSet;

use bivouac_launch::hex::to_hex;
use bivouac_launch::{FormationState, HostLife, KeeperGroup, KeeperPlace, Protection, Stage};
use bivouac_wire::Encode;
use bivouac_wire::rendezvous::{self, Order, RecordHead, Reply};
use serde::{Deserialize, Serialize};

use super::launched::Launched;
use super::{Keeper, KeeperState, RequestOrigin};
use crate::consensus::{Proposal, Voters, choose_voters};
use crate::contact::HostContact;
use crate::start::Plan;

/// Body of a record: all that a keeper has to know.
#[derive(Serialize, Deserialize)]
pub(crate) struct RecordBody {
    pub plan: Plan,
    pub state: FormationState,
}

/// Returns the hosts that vote, as the state names them.
pub(crate) fn voters_of(group: &KeeperGroup) -> Voters {
    Voters { now: group.voters.clone(), former: group.former.clone() }
}

impl Keeper {
    fn voters(&self) -> Voters {
        self.state.keepers.as_ref().map(voters_of).unwrap_or_default()
    }

    /// Returns whether hosts vote on the decisions of this keeper.
    pub(super) fn is_voted_on(&self) -> bool {
        !self.voters().all().is_empty()
    }

    /// Returns whether a host votes, or did before a change of voters that is not accepted yet.
    pub(super) fn votes(&self, host: usize) -> bool {
        self.voters().all().iter().any(|voter| usize::from(*voter) == host)
    }

    /// Returns whether the newest decisions may be carried out.
    pub(super) fn is_agreed(&self) -> bool {
        self.proposal.is_accepted(&self.voters())
    }

    /// Returns whether another keeper may be elected, or have been, by hosts that have not taken their parts down.
    pub(super) fn may_be_succeeded(&self) -> bool {
        let goes_on = (0u16..).zip(&self.hosts).filter(|(_, seen)| seen.left.is_none());
        self.voters().may_elect(&goes_on.map(|(host, _)| host).collect())
    }

    /// Notes where a host votes, and where a keeper on it would be.
    pub(super) fn note_place(&mut self, host: usize, vote_address: String, keeper_address: String) {
        let Ok(host) = u16::try_from(host) else { return };
        let group = self.state.keepers.get_or_insert_default();
        group.places.retain(|place| place.host != host);
        group.places.push(KeeperPlace { host, vote_address, keeper_address });
        group.places.sort_unstable_by_key(|place| place.host);
    }

    /// Begins a new record, before it is written down.
    pub(super) fn number_record(&mut self) {
        assert!(!self.has_resigned, "a keeper that has resigned decides something");
        let is_voted_on = self.is_voted_on();
        if let Some(group) = self.state.keepers.as_mut().filter(|_| is_voted_on) {
            group.version += 1;
            self.proposal = Proposal::default();
        }
    }

    /// Proposes the record that has been written down to the voters.
    pub(super) fn propose(&mut self) {
        let voters = self.voters().all();
        if voters.is_empty() {
            return;
        }
        let body = RecordBody { plan: self.plan.clone(), state: self.state.clone() };
        // Kept as it is: a record that is sent again is the same record.
        self.record = serde_json::to_vec(&body).unwrap_or_default();
        voters.into_iter().for_each(|host| self.send_record(host));
    }

    /// Sends the newest record to a host that has yet to accept it.
    pub(super) fn send_record(&mut self, host: u16) {
        let Some(group) = &self.state.keepers else { return };
        let link = self.hosts.get(usize::from(host)).and_then(|seen| seen.link);
        let is_due = self.proposal.lacks(host) && !self.record.is_empty() && !self.is_move_unrecorded;
        if let Some(link) = link.filter(|_| is_due && voters_of(group).all().contains(&host)) {
            let KeeperGroup { term, version, voters, former, .. } = group.clone();
            let head = RecordHead { term, version, voters, former };
            self.links.send(link, rendezvous::RECORD, head.to_bytes(), self.record.clone());
        }
    }

    pub(super) fn record_accepted(&mut self, host: usize, term: u32, version: u64) {
        let Some(group) = &self.state.keepers else { return };
        let Ok(host) = u16::try_from(host) else { return };
        if (group.term, group.version) != (term, version) || self.is_agreed() {
            return;
        }
        self.proposal.accepts(host);
        if self.is_agreed() {
            self.carry_out();
        }
    }

    /// Carries out what was decided: a majority has accepted the newest record.
    fn carry_out(&mut self) {
        for origin in std::mem::take(&mut self.promised) {
            self.answer(origin, Ok(()));
        }
        self.tell_keepers();
        self.drive_moves(false);
        self.hasten_arrivals();
        if self.state.stage == Stage::Stopping && self.step == KeeperState::Running {
            return self.end_now();
        }
        let Some(group) = &mut self.state.keepers else { return };
        if group.former.is_empty() {
            return self.choose_voters();
        }
        // A candidate needs those before as long as a record names them.
        group.former.clear();
        let is_alone = group.voters.is_empty();
        self.record();
        if is_alone {
            self.told_voters = None;
            self.tell_keepers();
        }
    }

    /// Changes who votes, where hosts were lost.
    pub(super) fn choose_voters(&mut self) {
        let is_used = self.step == KeeperState::Running && self.state.stage == Stage::Running;
        let is_protected = self.plan.ticket.protect != Protection::None;
        if !is_used || !is_protected || !self.is_agreed() || self.is_move_unrecorded {
            return;
        }
        let living: Vec<u16> = (0u16..)
            .zip(self.state.hosts.iter().zip(&self.hosts))
            .filter(|(_, (state, seen))| state.life == HostLife::Up && seen.is_tied())
            .map(|(host, _)| host)
            .filter(|host| !self.has_gone(usize::from(*host)))
            .collect();
        let joined: BTreeSet<usize> = self.state.arrivals.iter().map(|known| known.host).collect();
        let Some(group) = &mut self.state.keepers else { return };
        let can_keep = |host: &u16| group.places.iter().any(|place| place.host == *host);
        // Where the first hosts were too few to vote, what comes later does not: nobody else knows what the keeper has
        // decided alone, and `--silence-max` was not checked for an election.
        let is_first = group.version == 0;
        let may_vote = |host: &u16| !is_first || !joined.contains(&usize::from(*host));
        let living: Vec<u16> = living.into_iter().filter(|host| can_keep(host) && may_vote(host)).collect();
        let chosen = choose_voters(&group.voters, &living);
        // Who decides alone goes on alone: nobody else knows what it has decided.
        let is_alone = group.version > 0 && group.voters.is_empty();
        if is_alone || chosen == group.voters {
            return;
        }
        log::info!("hosts {chosen:?} vote on who keeps the formation; before it were {:?}", group.voters);
        group.former = std::mem::replace(&mut group.voters, chosen);
        self.record();
    }

    /// Returns the words that a host hears first, if somebody may succeed this keeper, or it has succeeded somebody.
    pub(super) fn keepers_order(&self) -> Option<Order> {
        let group = self.state.keepers.as_ref().filter(|group| group.version > 0)?;
        let voters = voters_of(group).all();
        let successors = group.places.iter().filter(|place| voters.contains(&place.host));
        let own = self.plan.ticket.addresses.iter();
        let addresses: Vec<String> =
            own.chain(successors.map(|place| &place.keeper_address)).cloned().collect();
        // Until it is accepted that the keeper decides alone, the former voters are needed.
        Some(Order::Keepers { term: group.term, addresses, is_succeeded: !voters.is_empty() })
    }

    fn tell_keepers(&mut self) {
        let voters = self.voters().now;
        if self.told_voters.as_ref() != Some(&voters)
            && let Some(order) = self.keepers_order()
        {
            self.told_voters = Some(voters);
            self.order_all(&order);
        }
    }

    /// Ends where others may have elected another keeper: when no majority of voters has been heard for so long. `due`
    /// is when this look was due.
    pub(super) fn resign_if_cut_off(&mut self, due: u64, now: u64) {
        let voters = self.voters();
        if self.step != KeeperState::Running || voters.all().is_empty() {
            return;
        }
        let dead_after_ms = self.state.watching_ms().unwrap_or_default();
        // Hosts speak when they are asked: a keeper that stood still itself has asked them only now.
        if now > due.saturating_add(dead_after_ms) {
            return;
        }
        let heard = |seen: &super::HostSeen| now < seen.tie.heard_ms().saturating_add(2 * dead_after_ms);
        let heard: BTreeSet<u16> =
            (0u16..).zip(&self.hosts).filter(|(_, seen)| heard(seen)).map(|(host, _)| host).collect();
        if !voters.accept(&heard) {
            self.resign("no majority of the hosts that vote is connected");
        }
    }

    /// Ends without a word to the hosts: they have another keeper, or will have one.
    pub(super) fn resign(&mut self, why: &str) {
        log::error!("this keeper ends: {why}; another host's keeper goes on");
        let message = format!(
            "{why}: this keeper cannot decide any more; ask on another host of the formation, or wait until that has a keeper"
        );
        let askers = std::mem::take(&mut self.stopping).into_iter().chain(std::mem::take(&mut self.looking));
        let askers: Vec<RequestOrigin> =
            askers.chain(std::mem::take(&mut self.promised)).chain(self.take_pending()).collect();
        for origin in askers {
            self.answer(origin, Err(message.clone()));
        }
        self.standby.dismiss();
        // The hosts' parts go on without those who have started them.
        self.launched.iter_mut().for_each(Launched::leave_running);
        if let Err(error) = self.dir.remove() {
            log::error!(error:%; "{error}");
        }
        (self.finished, self.has_resigned) = (true, true);
    }

    /// Takes the place of a keeper whose host was lost.
    pub(super) fn take_office(&mut self, term: u32) {
        let now = self.now_ms();
        log::warn!(
            "this host keeps the formation from now on, in term {term}; before it was {}",
            self.state.kept_on.as_deref().unwrap_or("another one")
        );
        self.state.kept_on = Some(self.here.host.clone());
        (self.step, self.was_usable) = (KeeperState::Running, true);
        (self.phases, self.report, self.step_due) = (None, None, None);
        // A map of any former keeper is older than those of this one.
        if let Some(mut map) = self.state.map() {
            map.version = map.version.saturating_add(1).max(u64::from(term) << 32);
            self.state.map = to_hex(&map.to_bytes());
        }
        self.await_hosts(now);
        self.note_mirrors();
        // They had half of their time before this keeper was elected.
        self.reckon_absence(now, 2);
        self.note_own_host();
        self.record();
        self.hasten_departures();
        self.call_anew();
        if std::mem::take(&mut self.plan.tied) && self.state.why_kept().is_none() {
            log::warn!("the command that the formation was made for was on the host of its former keeper");
            self.end();
        }
    }

    /// Makes all hosts come back as after a cut, but for those that are lost.
    pub(super) fn await_hosts(&mut self, now: u64) {
        let silence_ms = self.plan.ticket.silence_ms;
        for (seen, host) in self.hosts.iter_mut().zip(&self.state.hosts) {
            *seen = super::HostSeen::default();
            if host.life == HostLife::Up {
                seen.tie = HostContact::new(now);
                seen.tie.broke(false, silence_ms, now);
            }
        }
    }

    /// Gives hosts the time to come back that their protection allows, or a share of it.
    pub(super) fn reckon_absence(&mut self, now: u64, share: u64) {
        let up =
            |(host, state): (usize, &bivouac_launch::HostState)| (state.life == HostLife::Up).then_some(host);
        // Which hosts' nodes go on elsewhere shows only once all are known.
        let up: Vec<usize> = self.state.hosts.iter().enumerate().filter_map(up).collect();
        for host in up {
            let silence_ms = self.silence_of(host) / share;
            if let Some(seen) = self.hosts.get_mut(host) {
                seen.tie.broke(false, silence_ms, now);
            }
        }
    }

    pub(super) fn reply(&mut self, link: u64, reply: &Reply, payload: Vec<u8>) {
        self.links.send(link, rendezvous::REPLY, reply.to_bytes(), payload);
    }
}
