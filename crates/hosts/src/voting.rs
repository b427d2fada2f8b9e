//! A host's vote on who keeps the formation, and its attempts to become the keeper itself when nothing is heard of that.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};

use bivouac_launch::start::start_supervisor;
use bivouac_launch::{
    Claim, Environment, FormationName, KeeperPlace, LaunchError, LaunchResult, StateDir, packets,
};
use bivouac_net::{Auth, Identity, Link, Message, NetError};
use bivouac_wire::rendezvous::{self, RecordHead, Vote, VoteRequest};
use bivouac_wire::{Decode, Encode};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};

use crate::consensus::{Candidacy, Record, Voter, Voters};
use crate::keeper::group::RecordBody;

/// Greatest number of connected candidates; the oldest goes for a new one.
const CANDIDATES_MAX: usize = 16;

/// Times of elections, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ElectionTimes {
    /// Silence of the keeper after which another one may be elected.
    pub silence_ms: u64,
    /// Silence before which a voter follows no other one.
    pub follow_ms: u64,
    /// Time that an attempt may take, and between those of two hosts.
    pub attempt_ms: u64,
}

impl ElectionTimes {
    /// Half of the time in which the loss of a host is noticed: the other half is the new keeper's.
    pub fn of(dead_after_ms: u64) -> ElectionTimes {
        ElectionTimes {
            silence_ms: dead_after_ms.saturating_mul(3) / 2,
            follow_ms: dead_after_ms,
            attempt_ms: (dead_after_ms / 4).max(1),
        }
    }
}

/// Outcome of a look at votes.
pub(crate) enum VotingOutcome {
    /// Nothing that matters to the host's part.
    None,
    /// A later term than that of the present keeper was promised.
    Promised,
    /// This host is to run the keeper.
    Elected(Box<Victory>),
}

/// An election that was won.
pub(crate) struct Victory {
    term: u32,
    record: Record,
    claim: Claim,
}

/// A host's vote.
pub(crate) struct Voting {
    listener: TcpListener,
    /// Bound socket of the keeper, if it is to run here, so that the address is known. None once it has been started.
    keeper: Option<OwnedFd>,
    place: (String, String),
    auth: Auth,
    identity: Identity,
    times: ElectionTimes,
    voter: Voter,
    /// The host's position, and those of others with their addresses, as the newest record says.
    host: Option<u16>,
    others: Vec<KeeperPlace>,
    candidates: Vec<Link>,
    election: Option<Election>,
    /// The highest term that another voter has promised.
    known_term: u32,
    /// No attempt is made before.
    not_before_ms: u64,
}

/// An attempt of this host.
struct Election {
    candidacy: Candidacy,
    claim: Option<Claim>,
    calls: Vec<Call>,
    /// The voters that were called: whoever refuses is called again by the next attempt.
    called: BTreeSet<u16>,
    until_ms: u64,
}

/// A connection to a voter.
struct Call {
    host: u16,
    link: Link,
    asked: Option<VoteRequest>,
}

impl Voting {
    /// Opens the sockets at an address of this host.
    ///
    /// # Errors
    /// Refusals of the system.
    pub fn open(ip: IpAddr, identity: Identity, dead_after_ms: u64) -> io::Result<Voting> {
        let listener = TcpListener::bind(SocketAddr::new(ip, 0))?;
        listener.set_nonblocking(true)?;
        let family = if ip.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
        // Nobody is let in before there is a keeper here.
        let keeper = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        bind(&keeper, &SocketAddr::new(ip, 0))?;
        let keeper_address = SocketAddr::try_from(getsockname(&keeper)?)?;
        let place = (listener.local_addr()?.to_string(), keeper_address.to_string());
        Ok(Voting {
            listener,
            keeper: Some(keeper),
            place,
            auth: identity.auth.clone(),
            identity,
            times: ElectionTimes::of(dead_after_ms),
            voter: Voter::default(),
            host: None,
            others: Vec::new(),
            candidates: Vec::new(),
            election: None,
            known_term: 0,
            not_before_ms: 0,
        })
    }

    /// Addresses of this host's vote and of a keeper here.
    pub fn place(&self) -> (String, String) {
        self.place.clone()
    }

    /// The highest term that this host has promised.
    pub fn promised(&self) -> u32 {
        self.voter.promised()
    }

    /// Accepts a record of the keeper.
    ///
    /// # Errors
    /// The later term that was promised to another one.
    pub fn accept(&mut self, head: RecordHead, body: Vec<u8>) -> Result<(), u32> {
        self.voter.accept(record_of(head, body))?;
        let body = self.voter.accepted().and_then(|record| decoded(&record.body));
        if let Some(group) = body.and_then(|body| body.state.keepers) {
            let own = group.places.iter().find(|place| place.vote_address == self.place.0);
            self.host = own.map(|place| place.host);
            self.others = group.places;
        }
        Ok(())
    }

    /// Socket that candidates connect to.
    pub fn listener(&self) -> &TcpListener {
        &self.listener
    }

    /// Connections of candidates, and to voters.
    pub fn links(&self) -> impl Iterator<Item = &Link> {
        let calls = self.election.iter().flat_map(|election| &election.calls);
        self.candidates.iter().chain(calls.map(|call| &call.link))
    }

    /// Time when there is something to do, if nothing is heard of the keeper since `heard_ms`.
    pub fn due_ms(&self, heard_ms: u64) -> Option<u64> {
        match &self.election {
            Some(election) => Some(election.until_ms),
            None => self.stands_ms(heard_ms),
        }
    }

    /// Time from which on this host stands for election.
    fn stands_ms(&self, heard_ms: u64) -> Option<u64> {
        let voters = &self.voter.accepted()?.voters.now;
        let rank = voters.iter().position(|host| Some(*host) == self.host)?;
        self.keeper.as_ref()?;
        // Not all at once.
        let rank_ms = self.times.attempt_ms.saturating_mul(rank as u64);
        let silent_ms = heard_ms.saturating_add(self.times.silence_ms).saturating_add(rank_ms);
        Some(silent_ms.max(self.not_before_ms))
    }

    /// Answers candidates, and goes on with an attempt of this host.
    pub fn attend(
        &mut self,
        (here, name): (&Environment, &FormationName),
        heard_ms: u64,
        now_ms: u64,
    ) -> VotingOutcome {
        let promised = self.voter.promised();
        self.take_candidates();
        self.answer_candidates(heard_ms, now_ms);
        if self.voter.promised() > promised {
            self.give_up(now_ms);
            return VotingOutcome::Promised;
        }
        self.attend_election(here, name, heard_ms, now_ms)
    }

    fn take_candidates(&mut self) {
        while let Ok(link) = Link::accept(&self.listener, &self.auth) {
            self.candidates.push(link);
            if self.candidates.len() > CANDIDATES_MAX {
                self.candidates.remove(0);
            }
        }
    }

    fn answer_candidates(&mut self, heard_ms: u64, now_ms: u64) {
        // Who hears the keeper follows no other one: a host that is cut off alone changes nothing.
        let is_kept = now_ms < heard_ms.saturating_add(self.times.follow_ms);
        for mut link in std::mem::take(&mut self.candidates) {
            match answer(&mut self.voter, &mut link, is_kept) {
                Ok(()) => self.candidates.push(link),
                Err(error) => log::debug!(error:%; "a candidate is gone: {error}"),
            }
        }
    }

    fn attend_election(
        &mut self,
        here: &Environment,
        name: &FormationName,
        heard_ms: u64,
        now_ms: u64,
    ) -> VotingOutcome {
        let is_due = self.stands_ms(heard_ms).is_some_and(|due| due <= now_ms);
        let is_over = self.election.as_ref().is_some_and(|election| {
            election.until_ms <= now_ms || (election.candidacy.is_trial() && !is_due)
        });
        if is_over {
            self.give_up(now_ms);
            return VotingOutcome::None;
        }
        let Some(host) = self.host.filter(|_| is_due || self.election.is_some()) else {
            return VotingOutcome::None;
        };
        if self.election.is_none() {
            let until_ms = now_ms.saturating_add(2 * self.times.attempt_ms);
            let begun = Candidacy::begin(&self.voter, host, self.known_term);
            let begin = |candidacy| Election {
                candidacy,
                claim: None,
                calls: Vec::new(),
                called: BTreeSet::from([host]),
                until_ms,
            };
            self.election = begun.map(begin);
        }
        let Some(mut election) = self.election.take() else { return VotingOutcome::None };
        election.call(&self.others, &self.identity);
        self.known_term = self.known_term.max(election.hear());
        let stood = election.stand(&mut self.voter, host, || {
            StateDir::claim_whole(here, name)
                .inspect_err(|error| log::warn!(why:% = error; "this host cannot run the keeper"))
        });
        match stood {
            Err(()) => {
                self.not_before_ms = now_ms.saturating_add(4 * self.times.attempt_ms);
                return VotingOutcome::None;
            }
            Ok(true) => election.ask(),
            Ok(false) => {}
        }
        if let Some(record) = election.candidacy.elected().cloned()
            && let Some(claim) = election.claim.take()
        {
            let term = election.candidacy.term();
            return VotingOutcome::Elected(Box::new(Victory { term, record, claim }));
        }
        self.election = Some(election);
        if matches!(stood, Ok(true)) { VotingOutcome::Promised } else { VotingOutcome::None }
    }

    /// Ends an attempt; others have the time to make one.
    fn give_up(&mut self, now_ms: u64) {
        let rank = u64::from(self.host.unwrap_or_default() % 5);
        self.not_before_ms = now_ms.saturating_add(self.times.attempt_ms.saturating_mul(1 + rank));
        if let Some(claim) = self.election.take().and_then(|election| election.claim) {
            unclaim(&claim);
        }
    }

    /// Starts the keeper on this host.
    ///
    /// # Errors
    /// Refusals of the system; then others elect another keeper.
    pub fn start_keeper(
        &mut self,
        here: &Environment,
        part: &StateDir,
        victory: &Victory,
    ) -> LaunchResult<()> {
        let started = self.try_start(here, part, victory);
        started.inspect_err(|_| unclaim(&victory.claim))
    }

    fn try_start(&mut self, here: &Environment, part: &StateDir, victory: &Victory) -> LaunchResult<()> {
        let Victory { term, record, claim } = victory;
        let refused = |e: io::Error| LaunchError::system("the keeper's plan", e);
        let body = decoded(&record.body).ok_or_else(|| refused(io::ErrorKind::InvalidData.into()))?;
        let RecordBody { mut plan, mut state } = body;
        let socket = self.keeper.take().ok_or_else(|| refused(io::ErrorKind::AddrInUse.into()))?;
        plan.elected = Some(*term);
        if let Some(group) = &mut state.keepers {
            (group.term, group.version) = (*term, record.version);
            (group.voters, group.former) = (record.voters.now.clone(), record.voters.former.clone());
        }
        claim.dir.remove_sockets()?;
        claim.dir.write_secret(&part.secret()?)?;
        claim.dir.write(&state)?;
        claim.dir.write_map(&state)?;
        let plan = packets::to_memory(&plan).map_err(refused)?;
        let (_report, _child) = start_supervisor(here, claim, "keep", &[plan.as_fd(), socket.as_fd()])?;
        Ok(())
    }
}

/// What was there before is the state of a keeper that was killed.
fn unclaim(claim: &Claim) {
    if claim.stale.is_none()
        && let Err(error) = claim.dir.remove()
    {
        log::warn!("{error}");
    }
}

fn decoded(body: &[u8]) -> Option<RecordBody> {
    serde_json::from_slice(body)
        .inspect_err(|error| log::error!(why:% = error; "a record makes no sense"))
        .ok()
}

fn record_of(head: RecordHead, body: Vec<u8>) -> Record {
    let RecordHead { term, version, voters, former } = head;
    Record { term, version, voters: Voters { now: voters, former }, body }
}

fn head_of(record: &Record) -> RecordHead {
    let Record { term, version, voters: Voters { now, former }, .. } = record.clone();
    RecordHead { term, version, voters: now, former }
}

/// Answers the requests of a candidate.
fn answer(voter: &mut Voter, link: &mut Link, is_kept: bool) -> Result<(), NetError> {
    link.flush()?;
    for message in link.receive()?.into_iter().filter(|message| message.op == rendezvous::VOTE) {
        let Ok(request) = VoteRequest::from_bytes(&message.body) else { continue };
        let record = match request.is_trial {
            true => voter.accepted().cloned().filter(|_| !is_kept && voter.would_promise(request.term)),
            false => voter.promise(request.term).ok(),
        };
        if !request.is_trial {
            log::info!("term {} is asked for; promised: {}", request.term, record.is_some());
        }
        let promised = voter.promised();
        let body = Vote { request, promised, record: record.as_ref().map(head_of) }.to_bytes();
        let payload = record.map(|record| record.body).unwrap_or_default();
        link.send(&Message { op: rendezvous::VOTED, body, payload })?;
    }
    Ok(())
}

impl Election {
    /// Connects to all voters.
    fn call(&mut self, places: &[KeeperPlace], identity: &Identity) {
        for host in self.candidacy.voters() {
            if !self.called.insert(host) {
                continue;
            }
            let place = places.iter().find(|place| place.host == host);
            let Some(address) = place.and_then(|place| place.vote_address.parse().ok()) else { continue };
            match Link::reach(address, identity) {
                Ok(link) => self.calls.push(Call { host, link, asked: None }),
                Err(error) => log::debug!(error:%; "{error}"),
            }
        }
    }

    /// Asks those who are connected, and hears what they say; the highest term that one of them has promised.
    fn hear(&mut self) -> u32 {
        self.ask();
        let mut promised = 0;
        for mut call in std::mem::take(&mut self.calls) {
            match call.hear() {
                Ok(messages) => {
                    for message in messages.into_iter().filter(|message| message.op == rendezvous::VOTED) {
                        let Ok(vote) = Vote::from_bytes(&message.body) else { continue };
                        promised = promised.max(vote.promised);
                        let is_meant = vote.request == request(&self.candidacy);
                        if let Some(head) = vote.record.filter(|_| is_meant) {
                            self.candidacy.agrees(call.host, record_of(head, message.payload));
                        }
                    }
                    self.calls.push(call);
                }
                Err(error) => log::debug!(error:%; "{error}"),
            }
        }
        promised
    }

    fn ask(&mut self) {
        let wanted = request(&self.candidacy);
        for call in self.calls.iter_mut().filter(|call| call.link.is_proven() && call.asked != Some(wanted)) {
            let message = Message { op: rendezvous::VOTE, body: wanted.to_bytes(), payload: Vec::new() };
            call.asked = Some(wanted);
            if let Err(error) = call.link.send(&message) {
                log::debug!(error:%; "{error}");
            }
        }
    }

    /// Stands in earnest once that would succeed, and this host can run the keeper. Returns whether it has begun to.
    fn stand(
        &mut self,
        voter: &mut Voter,
        host: u16,
        claim: impl FnOnce() -> LaunchResult<Claim>,
    ) -> Result<bool, ()> {
        if !self.candidacy.would_be_elected() {
            return Ok(false);
        }
        self.claim = Some(claim().map_err(drop)?);
        if self.candidacy.stand(voter, host) {
            log::info!("this host asks to keep the formation, in term {}", self.candidacy.term());
            return Ok(true);
        }
        Ok(false)
    }
}

fn request(candidacy: &Candidacy) -> VoteRequest {
    VoteRequest { term: candidacy.term(), is_trial: candidacy.is_trial() }
}

impl Call {
    fn hear(&mut self) -> Result<Vec<Message>, NetError> {
        self.link.flush()?;
        self.link.receive()
    }
}
