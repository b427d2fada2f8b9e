//! A host's vote on the keeper, and its candidacy when nothing is received from the keeper.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;

use bivouac_launch::start::start_supervisor;
use bivouac_launch::{
    Claim, Environment, FormationName, KeeperPlace, LaunchError, LaunchResult, StateDir, packets,
};
use bivouac_net::{Auth, Identity, Link, Message, NetError};
use bivouac_wire::rendezvous::{self, RecordHead, Vote, VoteRequest};
use bivouac_wire::{Decode, Encode, FormationMap};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};

use crate::candidates::Candidates;
use crate::consensus::{Candidacy, Record, VOTERS_MIN, Voter, Voters};
use crate::election_times::ElectionTimes;
use crate::keeper::group::RecordBody;

/// Returns true if a map has enough hosts to elect a keeper.
pub(crate) fn has_voters(map: &[u8]) -> bool {
    let Ok(map) = FormationMap::from_bytes(map) else { return false };
    let hosts: BTreeSet<&str> = map.nodes.iter().map(|node| node.host.as_str()).collect();
    hosts.len() >= VOTERS_MIN
}

/// Outcome of a look at votes.
pub(crate) enum VotingOutcome {
    /// Nothing that concerns the host's part.
    None,
    /// A later term than that of the present keeper was promised.
    Promised,
    /// This host has to run the keeper.
    Elected(Box<Victory>),
}

/// An election that was won.
pub(crate) struct Victory {
    term: u32,
    record: Record,
    post: KeeperPost,
}

/// Resources of a keeper on this host: the formation's name here, and a socket at the address that all hosts know.
struct KeeperPost {
    claim: Claim,
    socket: OwnedFd,
}

/// A host's vote.
pub(crate) struct Voting {
    listener: TcpListener,
    /// Reserves the address of a keeper here. It never listens: each keeper gets a socket of its own at this address.
    reserved: OwnedFd,
    /// The keeper that was started here last.
    keeper: Option<Child>,
    place: (String, String),
    auth: Auth,
    identity: Identity,
    times: ElectionTimes,
    voter: Voter,
    /// Position of this host, and addresses of the others, from the newest record.
    host: Option<u16>,
    others: Vec<KeeperPlace>,
    candidates: Candidates,
    election: Option<Election>,
    /// The highest term that another voter has promised.
    known_term: u32,
    /// Time of the next attempt, at the earliest.
    not_before_ms: u64,
}

/// A candidacy of this host.
struct Election {
    candidacy: Candidacy,
    post: Option<KeeperPost>,
    calls: Vec<Call>,
    /// Voters that were called. One that refuses is called again by the next candidacy.
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
        let reserved = bind_shared(SocketAddr::new(ip, 0))?;
        let keeper_address = SocketAddr::try_from(getsockname(&reserved)?)?;
        let place = (listener.local_addr()?.to_string(), keeper_address.to_string());
        Ok(Voting {
            listener,
            reserved,
            keeper: None,
            place,
            auth: identity.auth.clone(),
            identity,
            times: ElectionTimes::of(dead_after_ms),
            voter: Voter::default(),
            host: None,
            others: Vec::new(),
            candidates: Candidates::default(),
            election: None,
            known_term: 0,
            not_before_ms: 0,
        })
    }

    /// Returns the addresses of this host's vote and of a keeper here.
    pub fn place(&self) -> (String, String) {
        self.place.clone()
    }

    /// Returns the highest term that this host has promised.
    pub fn promised(&self) -> u32 {
        self.voter.promised()
    }

    /// Accepts a record of the keeper.
    ///
    /// # Errors
    /// The later term that was promised to another keeper.
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

    /// Returns the socket that candidates connect to.
    pub fn listener(&self) -> &TcpListener {
        &self.listener
    }

    /// Returns the connections of candidates, and those to voters.
    pub fn links(&self) -> impl Iterator<Item = &Link> {
        let calls = self.election.iter().flat_map(|election| &election.calls);
        self.candidates.links().chain(calls.map(|call| &call.link))
    }

    /// Returns when there is something to do, if nothing was received from the keeper since `heard_ms`.
    pub fn due_ms(&self, heard_ms: u64) -> Option<u64> {
        let election = match &self.election {
            Some(election) => Some(election.until_ms),
            None => self.stands_ms(heard_ms),
        };
        election.into_iter().chain(self.candidates.due_ms()).min()
    }

    /// Returns when this host stands for election; `None` if it has no vote.
    fn stands_ms(&self, heard_ms: u64) -> Option<u64> {
        let rank_ms = self.times.attempt_ms.saturating_mul(self.rank()?);
        let silent_ms = heard_ms.saturating_add(self.times.silence_ms).saturating_add(rank_ms);
        Some(silent_ms.max(self.not_before_ms))
    }

    /// Answers candidates, and proceeds with a candidacy of this host.
    pub fn attend(
        &mut self,
        (here, name): (&Environment, &FormationName),
        heard_ms: u64,
        now_ms: u64,
    ) -> VotingOutcome {
        let promised = self.voter.promised();
        self.await_keeper();
        self.answer_candidates(heard_ms, now_ms);
        // Having promised another candidate, this host must not compete with it.
        if self.voter.promised() > promised {
            self.give_up(now_ms);
            return VotingOutcome::Promised;
        }
        self.attend_election(here, name, heard_ms, now_ms)
    }

    /// Reaps a keeper that was started here and has ended.
    fn await_keeper(&mut self) {
        let has_ended = |keeper: &mut Child| !matches!(keeper.try_wait(), Ok(None));
        self.keeper.take_if(has_ended);
    }

    fn answer_candidates(&mut self, heard_ms: u64, now_ms: u64) {
        let places = self.others.iter().filter_map(|place| place.vote_address.parse::<SocketAddr>().ok());
        let voters: Vec<IpAddr> = places.map(|address| address.ip()).collect();
        self.candidates.accept(&self.listener, &self.auth, &voters, now_ms);
        // A voter that receives from the keeper follows no other: a host that is cut off alone changes nothing.
        let is_kept = now_ms < heard_ms.saturating_add(self.times.follow_ms);
        self.candidates.answer(|link, messages| answer(&mut self.voter, link, messages, is_kept));
    }

    fn attend_election(
        &mut self,
        here: &Environment,
        name: &FormationName,
        heard_ms: u64,
        now_ms: u64,
    ) -> VotingOutcome {
        let is_due = self.stands_ms(heard_ms).is_some_and(|due| due <= now_ms);
        // The keeper was heard again: a candidacy that has only asked is dropped.
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
                post: None,
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
            take_post(here, name, &self.reserved)
                .inspect_err(|error| log::warn!(why:% = error; "this host cannot run the keeper"))
        });
        match stood {
            // This host cannot run a keeper now: others get several attempts before.
            Err(()) => {
                self.not_before_ms = now_ms.saturating_add(4 * self.times.attempt_ms);
                return VotingOutcome::None;
            }
            Ok(true) => election.ask(),
            Ok(false) => {}
        }
        if let Some(record) = election.candidacy.elected().cloned()
            && let Some(post) = election.post.take()
        {
            let term = election.candidacy.term();
            return VotingOutcome::Elected(Box::new(Victory { term, record, post }));
        }
        self.election = Some(election);
        if matches!(stood, Ok(true)) { VotingOutcome::Promised } else { VotingOutcome::None }
    }

    /// Returns this host's place among the voters. Candidates stand for election one after the other by it, so that
    /// they do not split the votes.
    fn rank(&self) -> Option<u64> {
        let voters = &self.voter.accepted()?.voters.now;
        voters.iter().position(|host| Some(*host) == self.host).map(|rank| rank as u64)
    }

    /// Ends a candidacy, and gives others time for theirs.
    fn give_up(&mut self, now_ms: u64) {
        let pause = 1 + self.rank().unwrap_or_default();
        self.not_before_ms = now_ms.saturating_add(self.times.attempt_ms.saturating_mul(pause));
        if let Some(post) = self.election.take().and_then(|election| election.post) {
            unclaim(&post.claim);
        }
    }

    /// Starts the keeper on this host.
    ///
    /// # Errors
    /// Those of the system; others then elect another keeper.
    pub fn start_keeper(
        &mut self,
        here: &Environment,
        part: &StateDir,
        victory: &Victory,
        now_ms: u64,
    ) -> LaunchResult<()> {
        let started = self.try_start(here, part, victory);
        if started.is_err() {
            unclaim(&victory.post.claim);
            // Longer than the attempts of all other voters take.
            self.not_before_ms = now_ms.saturating_add(8 * self.times.attempt_ms);
        }
        started
    }

    fn try_start(&mut self, here: &Environment, part: &StateDir, victory: &Victory) -> LaunchResult<()> {
        let Victory { term, record, post: KeeperPost { claim, socket } } = victory;
        let refused = |e: io::Error| LaunchError::system("the keeper's plan", e);
        let body = decoded(&record.body).ok_or_else(|| refused(io::ErrorKind::InvalidData.into()))?;
        let RecordBody { mut plan, mut state } = body;
        plan.elected = Some(*term);
        if let Some(group) = &mut state.keepers {
            (group.term, group.version) = (*term, record.version);
            (group.voters, group.former) = (record.voters.now.clone(), record.voters.former.clone());
        }
        // Sockets of a keeper that was killed here would answer nobody.
        claim.dir.remove_sockets()?;
        claim.dir.write_secret(&part.secret()?)?;
        claim.dir.write(&state)?;
        claim.dir.write_map(&state)?;
        let plan = packets::to_memory(&plan).map_err(refused)?;
        let (_report, child) = start_supervisor(here, claim, "keep", &[plan.as_fd(), socket.as_fd()])?;
        self.keeper = Some(child);
        Ok(())
    }
}

/// Claims what a keeper here needs. Fails while a former one is still running, which holds it.
fn take_post(here: &Environment, name: &FormationName, reserved: &OwnedFd) -> LaunchResult<KeeperPost> {
    let claim = StateDir::claim_whole(here, name)?;
    let bound = bind_as(reserved).inspect_err(|_| unclaim(&claim));
    let socket = bound.map_err(|e| LaunchError::system("the port of this host's keeper", e))?;
    Ok(KeeperPost { claim, socket })
}

/// Binds another socket to the address of one.
fn bind_as(reserved: &OwnedFd) -> io::Result<OwnedFd> {
    bind_shared(SocketAddr::try_from(getsockname(reserved)?)?)
}

/// Creates a socket at an address that others of this host may have bound too, as long as none of them listens.
fn bind_shared(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Also permits a port with connections of a former keeper in TIME_WAIT.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    Ok(socket)
}

/// Removes the state directory again, unless it holds the state of a keeper that was killed.
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
fn answer(voter: &mut Voter, link: &mut Link, messages: Vec<Message>, is_kept: bool) -> Result<(), NetError> {
    for message in messages.into_iter().filter(|message| message.op == rendezvous::VOTE) {
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
    /// Connects to all voters that were not called yet.
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

    /// Sends requests over new connections, and handles votes; returns the highest term that a voter has promised.
    fn hear(&mut self) -> u32 {
        self.ask();
        let mut promised = 0;
        for mut call in std::mem::take(&mut self.calls) {
            match call.hear() {
                Ok(messages) => {
                    for message in messages.into_iter().filter(|message| message.op == rendezvous::VOTED) {
                        let Ok(vote) = Vote::from_bytes(&message.body) else { continue };
                        promised = promised.max(vote.promised);
                        // A vote on an earlier request of this candidacy, trial or not, counts for nothing.
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

    /// Asks for promises once they would be given and this host can run the keeper. Returns true if it has begun to.
    ///
    /// # Errors
    /// This host cannot run the keeper.
    fn stand(
        &mut self,
        voter: &mut Voter,
        host: u16,
        take_post: impl FnOnce() -> LaunchResult<KeeperPost>,
    ) -> Result<bool, ()> {
        if !self.candidacy.would_be_elected() {
            return Ok(false);
        }
        // Before this host's own promise: a term that nobody can lead would only depose the keeper.
        self.post = Some(take_post().map_err(drop)?);
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

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    fn listen(socket: OwnedFd) -> io::Result<TcpListener> {
        rustix::net::listen(&socket, 8)?;
        Ok(TcpListener::from(socket))
    }

    /// S817: a host can run the keeper again, at the address that all hosts know.
    #[test]
    fn a_keeper_gets_the_port_of_a_former_one_and_only_one_has_it() {
        let reserved = bind_shared(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = SocketAddr::try_from(getsockname(&reserved).unwrap()).unwrap();
        assert!(TcpStream::connect(address).is_err(), "nobody is let in before there is a keeper");
        for _ in 0..3 {
            let keeper = listen(bind_as(&reserved).unwrap()).unwrap();
            assert_eq!(keeper.local_addr().unwrap(), address);
            let host = TcpStream::connect(address).unwrap();
            let (link, _) = keeper.accept().unwrap();
            assert!(bind_as(&reserved).and_then(listen).is_err(), "two keepers have one port");
            // Closed here first, it stays in the kernel for a while.
            drop((link, keeper, host));
            // What another test starts just then has a copy of the socket for a moment.
            let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while TcpStream::connect(address).is_ok() {
                assert!(std::time::Instant::now() < until, "somebody listens");
                std::thread::yield_now();
            }
        }
    }
}
