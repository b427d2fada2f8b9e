//! One host's part of a formation: the process that the launcher starts on the host, in the foreground.
//!
//! It reports to the keeper, starts the part's supervisor, mounts, and takes everything down when it is told to, when
//! the launcher's connection ends, or when it has not heard from the keeper for too long. It holds what keeps the
//! supervisor alive, so that nothing is left if it is killed.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bivouac_launch::control::{Request, ask};
use bivouac_launch::forked::{OwnChild, go_apart};
use bivouac_launch::hex::to_hex;
use bivouac_launch::polling::{timespec, wait_readable};
use bivouac_launch::recovery_notes::{forget_whole, remember};
use bivouac_launch::start::{
    Attempt, GIVE_UP_MS, end_supervisor, fork_supervisor, not_by_hand, take_report, wait_for_report,
};
use bivouac_launch::{
    AdoptedNode, Adoption, Environment, FormationState, Kind, LaunchError, LaunchResult, LeftoverCounts,
    LogFormat, PartBegins, Protection, RELEASE, Report as SupervisorReport, Signals, StateDir,
    complete_replicas, leave, make_mount_point, mounts_in_use, packets, raise_descriptor_limit,
    remove_around, remove_leftovers, take_down, unix_ms, unmount_part,
};
use bivouac_net::{Address, Auth, Identity, LaneKind, Link, Message, Secret};
use bivouac_types::ClientId;
use bivouac_types::limits::DEAD_AFTER_MS_DEFAULT;
use bivouac_wire::rendezvous::{
    self, AdoptedPlace, FormationStart, Join, JoinNode, NewMap, Order, PreviousPart, RecordHead, Report,
};
use bivouac_wire::{Decode, Encode};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::Signal;

use crate::contact::{Contact, ContactAction, ContactLoss};
use crate::node_reports::{join_node, node_reports};
use crate::own_part::say_usable;
use crate::part_start::{new_part, old_part, say};
use crate::resume::{ResumeAttempts, ResumeOutcome};
use crate::ticket::{Ticket, read_line};
use crate::voting::{Voting, VotingOutcome, has_voters};

/// Time one address may take to answer.
const REPORT_WAIT: Duration = Duration::from_secs(5);
/// Pause before the host that gathers the others is tried again, in milliseconds.
const MEET_PAUSE_MS: u64 = 100;
/// Time another host may take to answer, once it is there.
const REACH_WAIT: Duration = Duration::from_secs(5);
/// Time the supervisor may take to hear of dead nodes, in milliseconds.
const LOST_MS: u64 = 2000;
/// Time the last words may take to be heard, in milliseconds.
const FAREWELL_MS: u64 = 5000;

/// Options of [`join`], from its command line.
#[derive(Clone, Debug, Default)]
pub struct JoinOptions {
    /// File that holds the ticket; it is removed.
    pub ticket: Option<PathBuf>,
    /// Directory that this program was put into to be started from; it is removed.
    pub sent: Option<PathBuf>,
    /// True if it comes by itself: it tries until it is let in, and says when the formation can be used here.
    pub meet: bool,
    /// True if what started it may end it without meaning it: `mpiexec` ends all that it has started when one of them
    /// ends badly.
    pub apart: bool,
}

/// Mounting, which is not this crate's business.
pub trait Mounter {
    /// Writes what is logged in this form from now on.
    fn write_logs_as(&self, format: LogFormat);

    /// Checks that a mount can be made here.
    ///
    /// # Errors
    /// Why not.
    fn check(&self) -> LaunchResult<()>;

    /// Mounts a part's first node at a directory, which is to be removed in the end if it is its own.
    ///
    /// # Errors
    /// Why that is not possible.
    fn mount(
        &self,
        dir: &StateDir,
        state: &FormationState,
        at: &Path,
        own_dir: bool,
        allow_other: bool,
    ) -> Result<PathBuf, String>;
}

/// Plays one host's part until that is over. `supervise` is what its supervisor does, in a copy of this process.
///
/// # Errors
/// Why this host cannot take part, or what is left of its part.
pub fn join(
    here: &Environment,
    options: &JoinOptions,
    mounter: &dyn Mounter,
    supervise: &dyn Fn(PathBuf) -> LaunchResult<()>,
) -> LaunchResult<()> {
    if let Some(dir) = &options.sent {
        forget_program(dir);
    }
    if options.apart && !go_apart().map_err(|e| LaunchError::system("fork", e))? {
        return Ok(());
    }
    if options.meet {
        // What ends the script that started it is not its end.
        let _already_a_leader = rustix::process::setsid();
    }
    let (ticket, lifeline) = take_ticket(here, options)?;
    mounter.write_logs_as(ticket.log_format);
    let signals = Signals::catch(&[Signal::TERM, Signal::INT, Signal::HUP])
        .map_err(|e| LaunchError::system("signals", e))?;
    raise_descriptor_limit();
    let mut link = report_in(&ticket, options.meet, &signals)?;
    let ip = link.local_ip().filter(|ip| !ip.is_unspecified());
    let ip =
        ip.ok_or_else(|| LaunchError::system("this host's address", std::io::ErrorKind::NotConnected))?;
    match Part::prepare(here, &ticket, ip, &signals, (mounter, supervise)) {
        Ok((part, nodes, past)) => {
            let join = introduce(here, &ticket, &part.dir, nodes);
            let payload = past.map(|past| past.to_bytes()).unwrap_or_default();
            let told = link.send(&Message { op: rendezvous::JOIN, body: join.to_bytes(), payload });
            let attempts = ResumeAttempts::to(&ticket, link.peer());
            let part = Part { link: Some(link), lifeline, meet: options.meet, attempts, ..part };
            match told {
                Ok(()) => part.run(),
                Err(error) => part.end(Some(error.to_string())),
            }
        }
        Err(error) => {
            let dir = StateDir::at(PathBuf::new());
            let join =
                Join { trouble: Some(error.to_string()), ..introduce(here, &ticket, &dir, Vec::new()) };
            let _nobody_hears_it = send(&mut link, rendezvous::JOIN, &join);
            say_farewell(&mut link);
            Err(error)
        }
    }
}

/// Removes the program's file: it runs, so that the file is needed no more, not even to start daemons from.
fn forget_program(dir: &Path) {
    let removed = std::fs::remove_file(dir.join("bivouac")).and_then(|()| std::fs::remove_dir(dir));
    if let Err(error) = removed {
        log::warn!(why:% = error; "{}", dir.display());
    }
}

/// Returns the ticket; and standard input, if the ticket came from there and its end means something.
fn take_ticket(here: &Environment, options: &JoinOptions) -> LaunchResult<(Ticket, Option<OwnedFd>)> {
    if let Some(path) = &options.ticket {
        let text =
            std::fs::read_to_string(path).map_err(|e| LaunchError::path(path, "read the ticket", e))?;
        return Ok((Ticket::parse(&text)?, None));
    }
    if let Some(text) = &here.batch.ticket {
        return Ok((Ticket::parse(text)?, None));
    }
    let input = std::io::stdin();
    let ticket = Ticket::parse(&read_line(input.as_fd())?)?;
    let lifeline =
        input.as_fd().try_clone_to_owned().map_err(|e| LaunchError::system("standard input", e))?;
    Ok((ticket, Some(lifeline)))
}

/// Connects to the first address that lets us in; `patient`, tries until the time for the start is over.
fn report_in(ticket: &Ticket, patient: bool, signals: &Signals) -> LaunchResult<Link> {
    let (formation, secret) = ticket.credentials()?;
    let auth = Auth { formation, secret: Secret::new(secret), is_secure: ticket.secure };
    let identity = Identity { auth, client: ClientId(0), lane: LaneKind::Peer, epoch: 0 };
    let until = Instant::now() + Duration::from_millis(if patient { ticket.start_ms } else { 0 });
    loop {
        let mut refusals = Vec::new();
        for address in &ticket.addresses {
            match Link::connect(&Address::tcp(address.clone()), &identity, REPORT_WAIT) {
                Ok(link) => return Ok(link),
                Err(error) => refusals.push(error.to_string()),
            }
        }
        let interrupted = signals_within(signals, if patient { MEET_PAUSE_MS } else { 0 });
        if interrupted || Instant::now() >= until {
            let remedy = "name a network that all hosts reach: --network; or open the firewall between them";
            let who = "the host that gathers the others";
            return Err(LaunchError::new(Kind::Refused, who, refusals.join("; "), remedy));
        }
    }
}

/// Returns whether a signal to end comes within this time.
fn signals_within(signals: &Signals, wait_ms: u64) -> bool {
    let mut polled = [PollFd::new(signals, PollFlags::IN)];
    let came = retry_on_intr(|| poll(&mut polled, Some(&timespec(wait_ms))));
    came.is_ok_and(|came| came > 0) && signals.next().is_some_and(|s| s.number != Signal::HUP.as_raw())
}

fn introduce(here: &Environment, ticket: &Ticket, dir: &StateDir, nodes: Vec<JoinNode>) -> Join {
    let called = ticket.host.clone().or_else(|| here.batch.slurm_node.clone());
    Join {
        release: RELEASE.into(),
        host: called.unwrap_or_else(|| here.host.clone()),
        machine: here.host.clone(),
        now_unix_ms: unix_ms(),
        directory: dir.path().display().to_string(),
        trouble: None,
        nodes,
    }
}

/// A host's part.
struct Part<'a> {
    here: &'a Environment,
    ticket: &'a Ticket,
    signals: &'a Signals,
    mounter: &'a dyn Mounter,
    dir: StateDir,
    /// The supervisor's socket; `None` once it is gone.
    report: Option<OwnedFd>,
    supervisor: Option<OwnChild>,
    link: Option<Link>,
    lifeline: Option<OwnedFd>,
    /// True if somebody is to be told when the formation can be used here.
    meet: bool,
    since: Instant,
    contact: Contact,
    /// Attempts to connect to the keeper anew.
    attempts: ResumeAttempts,
    /// Reports of this part's progress to the keeper, to be sent again over another connection.
    told: Vec<Report>,
    /// Trouble on this host that the whole can go on with.
    trouble: Option<String>,
    /// True if its supervisor was told to start the daemons.
    has_begun: bool,
    /// True if the whole is being recovered, and is not again yet.
    leaves_volumes: bool,
    /// This host's vote on the keeper, if the formation is protected.
    voting: Option<Voting>,
    /// The latest term of a keeper that was heard of.
    term: u32,
}

/// Reason why a part ends.
enum Outcome {
    GoOn,
    /// Told to, or the formation's start was given up.
    Over(Option<String>),
}

impl<'a> Part<'a> {
    /// Makes the part's directory and volumes and starts its supervisor; what fails is removed again.
    fn prepare(
        here: &'a Environment,
        ticket: &'a Ticket,
        ip: IpAddr,
        signals: &'a Signals,
        (mounter, supervise): (&'a dyn Mounter, &dyn Fn(PathBuf) -> LaunchResult<()>),
    ) -> LaunchResult<(Part<'a>, Vec<JoinNode>, Option<PreviousPart>)> {
        if ticket.mount.is_some() {
            mounter.check()?;
        }
        let (claim, state, past) = match ticket.recovers {
            true => old_part(here, ticket, ip)?,
            false => new_part(here, ticket, ip)?,
        };
        // What a recovery began with is to be there when it fails.
        let mut attempt = Attempt { here, dir: claim.dir.clone(), done: past.is_some() };
        let (report, supervisor) = fork_supervisor(&claim, supervise)?;
        // From here on the lock is the supervisor's.
        drop(claim.lock);
        let bound = Duration::from_millis(ticket.start_ms);
        let addresses = match wait_for_report(&report, signals, bound, &claim.dir) {
            Ok(SupervisorReport::Bound { addresses }) => Ok(addresses),
            Ok(SupervisorReport::Failed { message }) => Err(LaunchError::said(Kind::Refused, message)),
            Ok(_) => Err(not_by_hand()),
            Err(error) => Err(error),
        };
        let addresses = match addresses {
            Ok(addresses) => addresses,
            Err(error) => {
                end_supervisor(&report, supervisor, GIVE_UP_MS);
                return Err(error);
            }
        };
        attempt.done = true;
        let nodes =
            state.nodes.iter().zip(addresses).map(|(node, addresses)| join_node(node, addresses)).collect();
        let part = Part {
            here,
            ticket,
            signals,
            mounter,
            dir: claim.dir.clone(),
            report: Some(report),
            supervisor: Some(supervisor),
            link: None,
            lifeline: None,
            meet: false,
            since: Instant::now(),
            contact: Contact::new(ticket.silence_ms, 0),
            attempts: ResumeAttempts::default(),
            told: Vec::new(),
            trouble: None,
            has_begun: false,
            leaves_volumes: past.is_some(),
            voting: None,
            term: 0,
        };
        Ok((part, nodes, past))
    }

    /// Does what it is told until it is over.
    fn run(mut self) -> LaunchResult<()> {
        loop {
            let outcome = self.attend_contact().and_then(|outcome| match outcome {
                Outcome::GoOn => self.look_around(),
                over => Ok(over),
            });
            match outcome {
                Ok(Outcome::GoOn) => {}
                Ok(Outcome::Over(reason)) => return self.end(reason),
                Err(error) => return self.end(Some(error.to_string())),
            }
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Does what keeps the keeper in contact, or waits until there is something to do.
    fn attend_contact(&mut self) -> LaunchResult<Outcome> {
        match self.contact.next(self.now_ms()) {
            ContactAction::Wait { until_ms } => self.wait(until_ms)?,
            ContactAction::Try { turn } => self.attempts.add(turn),
            ContactAction::End(ending) => return self.end_unless_heard(ending),
        }
        Ok(Outcome::GoOn)
    }

    /// Ends unless a message has come meanwhile: this process may have been busy, or have stood still.
    fn end_unless_heard(&mut self, ending: ContactLoss) -> LaunchResult<Outcome> {
        // Messages that came while this process stood still are in the socket, and count as heard.
        if let Outcome::Over(reason) = self.look_around()? {
            return Ok(Outcome::Over(reason));
        }
        let silence = self.ticket.silence_ms / 1000;
        Ok(match self.contact.next(self.now_ms()) {
            ContactAction::End(_) => Outcome::Over(Some(match ending {
                ContactLoss::Silence => {
                    format!("nothing was heard of the formation's keeper for {silence} s")
                }
                ContactLoss::Gone => "the formation's keeper is gone".into(),
            })),
            _ => Outcome::GoOn,
        })
    }

    fn wait(&self, until_ms: u64) -> LaunchResult<()> {
        let mut polled = vec![PollFd::new(self.signals, PollFlags::IN)];
        polled.extend(self.lifeline.iter().map(|input| PollFd::new(input, PollFlags::IN)));
        polled.extend(self.report.iter().map(|report| PollFd::new(report, PollFlags::IN)));
        let votes = self.voting.iter().flat_map(|voting| voting.links());
        let links = self.link.iter().chain(self.attempts.links()).chain(votes);
        polled.extend(links.map(|link| PollFd::new(link, wanted(link))));
        polled.extend(self.voting.iter().map(|voting| PollFd::new(voting.listener(), PollFlags::IN)));
        let election = self.voting.as_ref().and_then(|voting| voting.due_ms(self.contact.heard_ms()));
        let until_ms = election.map_or(until_ms, |due| due.min(until_ms));
        let timeout = timespec(until_ms.saturating_sub(self.now_ms()).saturating_add(1));
        retry_on_intr(|| poll(&mut polled, Some(&timeout))).map_err(|e| LaunchError::system("poll", e))?;
        Ok(())
    }

    fn look_around(&mut self) -> LaunchResult<Outcome> {
        if let Some(signal) =
            std::iter::from_fn(|| self.signals.next()).find(|s| s.number != Signal::HUP.as_raw())
        {
            return Ok(Outcome::Over(Some(format!(
                "it was ended by {}",
                bivouac_types::format_signal(signal.number)
            ))));
        }
        if self.lifeline.as_ref().is_some_and(|input| has_ended(input.as_fd())) {
            return Ok(Outcome::Over(Some("the launcher's connection has ended".into())));
        }
        if let Outcome::Over(reason) = self.hear_supervisor() {
            return Ok(Outcome::Over(reason));
        }
        let outcome = match self.hear_keeper()? {
            Outcome::GoOn => self.hear_attempts()?,
            over => return Ok(over),
        };
        self.attend_votes();
        Ok(outcome)
    }

    /// Votes, and runs the keeper here if this host is elected.
    fn attend_votes(&mut self) {
        let (now, heard) = (self.now_ms(), self.contact.heard_ms());
        let Some(voting) = &mut self.voting else { return };
        match voting.attend((self.here, &self.ticket.name), heard, now) {
            VotingOutcome::None => {}
            VotingOutcome::Promised => self.leave_keeper("another one is elected"),
            VotingOutcome::Elected(victory) => {
                if let Err(error) = voting.start_keeper(self.here, &self.dir, &victory, now) {
                    log::error!(why:% = error; "the keeper does not start on this host");
                }
                self.leave_keeper("this host was elected");
            }
        }
    }

    /// Ends the connection to the present keeper.
    fn leave_keeper(&mut self, why: &str) {
        if self.link.take().is_some() {
            log::warn!(why:% = why; "this host leaves the formation's keeper");
            self.contact.broke();
        }
    }

    /// Notes who keeps the formation, and who may succeed it. Another keeper may have been elected meanwhile: then this
    /// one is not obeyed any more.
    fn take_keepers(&mut self, term: u32, addresses: &[String], is_succeeded: bool) {
        if term < self.latest_term() {
            return self.leave_keeper("its successor is known here");
        }
        self.term = term;
        self.attempts.know(addresses);
        let dead_after_ms = self.ticket.dead_after_ms.unwrap_or(DEAD_AFTER_MS_DEFAULT);
        self.contact.succeeded(is_succeeded.then_some(dead_after_ms));
        if is_succeeded {
            // The launcher's end may be that of the keeper's host.
            self.lifeline = None;
        } else {
            // A majority has accepted that the keeper decides alone: nobody is elected any more.
            self.term = self.latest_term();
            self.voting = None;
        }
        if let Err(error) = self.dir.write_keepers(addresses) {
            log::warn!(error:%; "{error}");
        }
    }

    fn latest_term(&self) -> u32 {
        self.term.max(self.voting.as_ref().map_or(0, Voting::promised))
    }

    /// Returns whether this is the answer of a keeper that was deposed.
    fn is_deposed(&self, messages: &[Message]) -> bool {
        let order = messages.first().filter(|message| message.op == rendezvous::ORDER);
        match order.map(|message| Order::from_bytes(&message.body)) {
            Some(Ok(Order::Keepers { term, .. })) => term < self.latest_term(),
            _ => false,
        }
    }

    /// Accepts a record of the keeper, unless another one was promised to be followed.
    fn accept(&mut self, head: RecordHead, body: &[u8]) {
        let (term, version) = (head.term, head.version);
        // One that does not vote any more knows that the keeper decides alone. Its standby may not know it yet.
        let known = self.term;
        let accepted = match &mut self.voting {
            Some(voting) => voting.accept(head, body.to_vec()),
            None if term < known => Err(known),
            None => Ok(()),
        };
        match accepted {
            Ok(()) => self.tell(&Report::Accepted { term, version }),
            Err(term) => self.tell(&Report::Deposed { term }),
        }
    }

    /// Opens what it takes to vote, if keepers are elected, and tells the keeper where.
    fn open_voting(&mut self, identity: &Identity, map: &[u8]) {
        let is_elected = self.ticket.protect != Protection::None && has_voters(map);
        let ip = self.link.as_ref().and_then(Link::local_ip);
        let Some(ip) = ip.filter(|_| is_elected) else { return };
        let dead_after_ms = self.ticket.dead_after_ms.unwrap_or(DEAD_AFTER_MS_DEFAULT);
        match Voting::open(ip, identity.clone(), dead_after_ms) {
            Ok(voting) => {
                let (vote_address, keeper_address) = voting.place();
                self.voting = Some(voting);
                self.tell_for_good(Report::CanKeep { vote_address, keeper_address });
            }
            Err(error) => log::error!(why:% = error; "this host does not vote on who keeps the formation"),
        }
    }

    fn hear_supervisor(&mut self) -> Outcome {
        let Some(report) = self.report.as_ref().filter(|report| wait_readable(report.as_fd(), 0)) else {
            return Outcome::GoOn;
        };
        match take_report(report, &self.dir) {
            Ok(SupervisorReport::Ready { phases }) => {
                let steps = phases.into_iter().map(|phase| (phase.name, phase.us)).collect();
                self.tell_for_good(Report::Ready { steps });
                self.usable(self.ticket.mount.is_none());
                if let Ok(Some(state)) = self.dir.read() {
                    remember(self.here, self.dir.path(), &state);
                }
                Outcome::GoOn
            }
            Ok(SupervisorReport::Failed { message }) => {
                self.tell(&Report::Failed { text: message.clone() });
                Outcome::Over(Some(message))
            }
            Ok(SupervisorReport::GaveUp | SupervisorReport::Serves) => {
                self.tell_nodes();
                Outcome::GoOn
            }
            Ok(SupervisorReport::Adopted { adopted }) => {
                let AdoptedNode { node, epoch, client_address, peer_address, unix_path, volumes } = adopted;
                let place = AdoptedPlace {
                    client_address,
                    peer_address,
                    unix_path: unix_path.display().to_string(),
                    volumes: volumes.iter().map(|dir| dir.display().to_string()).collect(),
                };
                self.tell(&Report::Adopted { node, epoch, place });
                Outcome::GoOn
            }
            Ok(SupervisorReport::NotAdopted { node, epoch, message }) => {
                self.tell(&Report::NotAdopted { node, epoch, text: message });
                Outcome::GoOn
            }
            Ok(SupervisorReport::Bound { .. }) => Outcome::GoOn,
            Err(error) => {
                // Its daemons serve on; what is to be saved can still be saved.
                log::warn!(error:%; "{error}");
                self.report = None;
                self.trouble = Some("its supervisor is gone: nothing is restarted there".into());
                self.tell_nodes();
                Outcome::GoOn
            }
        }
    }

    fn hear_keeper(&mut self) -> LaunchResult<Outcome> {
        let Some(link) = &mut self.link else { return Ok(Outcome::GoOn) };
        match link.flush().and_then(|()| link.receive()) {
            Ok(messages) => self.obey_all(&messages),
            Err(error) => {
                log::warn!(why:% = error; "the connection to the formation's keeper has ended");
                self.link = None;
                self.contact.broke();
                Ok(Outcome::GoOn)
            }
        }
    }

    /// Looks at the attempts to reach the keeper: the first that is answered takes the connection's place.
    fn hear_attempts(&mut self) -> LaunchResult<Outcome> {
        match self.attempts.attend() {
            ResumeOutcome::Pending => Ok(Outcome::GoOn),
            ResumeOutcome::Refused => {
                self.contact.refused();
                Ok(Outcome::GoOn)
            }
            ResumeOutcome::Answer(mut link, messages) if self.is_deposed(&messages) => {
                // It may not know it, and would give this host up for lost.
                let deposed = Report::Deposed { term: self.latest_term() };
                let _told_again_by_the_next_attempt = send(&mut link, rendezvous::REPORT, &deposed);
                Ok(Outcome::GoOn)
            }
            ResumeOutcome::Answer(link, messages) => {
                log::info!("connected to the formation's keeper anew, at {}", link.address());
                self.link = Some(link);
                self.contact.resumed(self.now_ms());
                // The keeper may have lost what was sent over the former connection; it takes each report once,
                // whenever it comes.
                for report in self.told.clone() {
                    self.tell(&report);
                }
                self.tell_nodes();
                self.obey_all(&messages)
            }
        }
    }

    fn obey_all(&mut self, messages: &[Message]) -> LaunchResult<Outcome> {
        for message in messages {
            // Any message is a sign of life, so a busy keeper need not send others.
            self.contact.heard(self.now_ms());
            if let Outcome::Over(reason) = self.obey(message)? {
                return Ok(Outcome::Over(reason));
            }
        }
        Ok(Outcome::GoOn)
    }

    fn obey(&mut self, message: &Message) -> LaunchResult<Outcome> {
        let alien = |_| {
            LaunchError::new(
                Kind::Refused,
                "the formation's keeper",
                "says what makes no sense",
                "use one release on all hosts",
            )
        };
        match message.op {
            rendezvous::BEGIN => {
                let begin = FormationStart::from_bytes(&message.body).map_err(alien)?;
                if let Err(error) = self.begin(&begin, &message.payload) {
                    self.tell(&Report::Failed { text: error.to_string() });
                    return Ok(Outcome::Over(Some(error.to_string())));
                }
            }
            rendezvous::ORDER => match Order::from_bytes(&message.body).map_err(alien)? {
                Order::Live => self.tell(&Report::Alive),
                Order::Look => self.tell_nodes(),
                Order::Mount => self.mount(),
                Order::Down => return Ok(Outcome::Over(None)),
                Order::Lost { nodes } => self.tell_lost(nodes),
                Order::Recovered => self.be_recovered(),
                Order::Adopt { node, backup, epoch, volumes } => {
                    self.adopt(Adoption { node, backup, epoch, volumes });
                }
                Order::Unmount { is_trial, is_forced } => self.unmount(is_trial, is_forced),
                Order::Keepers { term, addresses, is_succeeded } => {
                    self.take_keepers(term, &addresses, is_succeeded);
                }
            },
            rendezvous::RECORD => {
                let head = RecordHead::from_bytes(&message.body).map_err(alien)?;
                self.accept(head, &message.payload);
            }
            rendezvous::MAP => {
                let NewMap { version } = NewMap::from_bytes(&message.body).map_err(alien)?;
                self.take_map(version, &message.payload);
            }
            // A refusal.
            rendezvous::REPORT => {
                if let Report::Failed { text } = Report::from_bytes(&message.body).map_err(alien)? {
                    return Ok(Outcome::Over(Some(text)));
                }
            }
            _ => {}
        }
        Ok(Outcome::GoOn)
    }

    /// Tells the supervisor to start the daemons, now that all hosts are there, if the others can be reached.
    fn begin(&mut self, begin: &FormationStart, map: &[u8]) -> LaunchResult<()> {
        for address in &begin.reach {
            // Before any daemon starts: a firewall between two hosts would otherwise show as a formation that
            // hangs.
            if !Address::tcp(address.clone()).answers(REACH_WAIT) {
                let remedy =
                    "choose a network that connects all hosts (--network), or open the firewall between them";
                return Err(LaunchError::new(
                    Kind::Refused,
                    format_args!("the node at {address} of another host"),
                    "cannot be reached from here",
                    remedy,
                ));
            }
        }
        let Some(link) = &self.link else { return Ok(()) };
        // Sent hidden, since without encryption everybody on the network could read the one secret that all daemons
        // go by.
        let secret = link.seal(&begin.sealed_secret);
        let (formation, _) = self.ticket.credentials()?;
        let auth = Auth { formation, secret: Secret::new(secret).to_resume(), is_secure: self.ticket.secure };
        let identity = Identity { auth, client: ClientId(0), lane: LaneKind::Peer, epoch: 0 };
        // Before the first attempt: the addresses of its ticket are of a port that only hosts that join report at.
        let peer = link.peer();
        if self.ticket.joins {
            self.attempts.replace(&begin.keepers, peer);
        }
        self.open_voting(&identity, map);
        self.attempts.allow(identity, begin.first_node);
        self.contact.allow();
        self.has_begun = true;
        let Some(report) = &self.report else { return Ok(()) };
        let begins = PartBegins { first_node: begin.first_node, secret: to_hex(&secret), map: to_hex(map) };
        let refused = |e: std::io::Error| LaunchError::system("the supervisor", e);
        let memory = packets::to_memory(&begins).map_err(refused)?;
        packets::send(report, &"begin", &[memory.as_fd()]).map_err(refused)
    }

    fn mount(&mut self) {
        // Told again, as it is not known whether this was heard: what came of it was told with the connection.
        if self.told.iter().any(|told| matches!(told, Report::Mounted { .. } | Report::Failed { .. })) {
            return;
        }
        let report = match self.try_mount() {
            Ok(dir) => Report::Mounted { dir: dir.display().to_string() },
            Err(text) => Report::Failed { text },
        };
        self.usable(matches!(report, Report::Mounted { .. }));
        self.tell_for_good(report);
    }

    /// Says so once, if that is what is waited for.
    fn usable(&mut self, is_usable: bool) {
        if is_usable && std::mem::take(&mut self.meet) {
            say_usable();
        }
    }

    fn try_mount(&self) -> Result<PathBuf, String> {
        let Some(at) = &self.ticket.mount else { return Err("no mount point was given".into()) };
        let state = self.dir.read().map_err(|e| e.to_string())?;
        let state = state.ok_or("its part was taken down meanwhile")?;
        let own_dir = make_mount_point(at).map_err(|e| e.to_string())?;
        let mounted = self.mounter.mount(&self.dir, &state, at, own_dir, self.ticket.allow_other);
        mounted.inspect_err(|_| {
            if own_dir {
                let _in_the_way = std::fs::remove_dir(at);
                remove_around(at);
            }
        })
    }

    /// Takes the mounts away before the nodes here move, or looks whether that could be done. It is ordered again until
    /// it is.
    fn unmount(&mut self, is_trial: bool, is_forced: bool) {
        let state = match self.dir.read() {
            Ok(Some(state)) => state,
            // The keeper waits for an answer.
            Ok(None) => {
                return self.tell_unmounted(is_trial, Some("its part was taken down meanwhile".into()));
            }
            Err(error) => return self.tell_unmounted(is_trial, Some(error.to_string())),
        };
        let trouble = if is_trial {
            let used = mounts_in_use(self.here, &state);
            (!used.is_empty()).then(|| used.join("; "))
        } else {
            match unmount_part(self.here, &state, is_forced, &mut say) {
                Ok(()) => {
                    let served = self.dir.read().ok().flatten().map_or(0, |state| state.mounts.len());
                    // Their daemons have yet to send what they hold.
                    (served > 0 && !is_forced).then(|| "its mounts are flushed".to_owned())
                }
                Err(error) => Some(error.to_string()),
            }
        };
        self.tell_unmounted(is_trial, trouble);
    }

    fn tell_unmounted(&mut self, is_trial: bool, trouble: Option<String>) {
        if !is_trial && trouble.is_none() {
            // Said again over a new connection, it would not be so any more.
            self.told.retain(|told| !matches!(told, Report::Mounted { .. }));
        }
        self.tell(&Report::Unmounted { is_trial, trouble });
    }

    /// Tells the supervisor of lost nodes. Without one, the nodes hear of it from each other.
    fn tell_lost(&self, nodes: Vec<u16>) {
        if self.report.is_some()
            && let Err(error) = ask(&self.dir, &Request::Lost { nodes }, &[], LOST_MS)
        {
            log::warn!(error:%; "{error}");
        }
    }

    /// Passes the order to take a node over to the supervisor, which reports the result; it is repeated until then.
    fn adopt(&self, adoption: Adoption) {
        let node = adoption.node;
        if let Err(error) = ask(&self.dir, &Request::Adopt { adoption }, &[], LOST_MS) {
            log::warn!(error:%; "node {node} is not taken over yet: {error}");
        }
    }

    /// Passes a newer map to all daemons; it is repeated until that is reported.
    fn take_map(&mut self, version: u64, map: &[u8]) {
        let memory = packets::to_memory(&map).map_err(|e| LaunchError::system("the supervisor", e));
        let taken = memory.and_then(|memory| ask(&self.dir, &Request::Map, &[memory.as_fd()], LOST_MS));
        match taken {
            Ok(()) => self.tell(&Report::HasMap { version }),
            Err(error) => log::warn!(error:%; "version {version} of the map is not taken yet: {error}"),
        }
    }

    /// Marks the volumes as the formation's own again, so that they are removed with it.
    fn be_recovered(&mut self) {
        if !self.leaves_volumes {
            return;
        }
        match ask(&self.dir, &Request::Recovered, &[], LOST_MS) {
            Ok(()) => self.leaves_volumes = false,
            // Repeated with the order to go down.
            Err(error) => log::warn!(error:%; "{error}"),
        }
    }

    fn tell_nodes(&mut self) {
        let state = self.dir.read().ok().flatten();
        let replicas = state.as_ref().map(complete_replicas).unwrap_or_default();
        let nodes = state.map(|state| node_reports(state.nodes)).unwrap_or_default();
        self.tell(&Report::Nodes { nodes, replicas, trouble: self.trouble.clone() });
    }

    /// Tells what is to be known also after a connection that took it with it.
    fn tell_for_good(&mut self, report: Report) {
        self.tell(&report);
        self.told.push(report);
    }

    /// Sends a report. A keeper that does not hear it is noticed where something is received.
    fn tell(&mut self, report: &Report) {
        if let Some(link) = &mut self.link {
            let _noticed_there = send(link, rendezvous::REPORT, report);
        }
    }

    /// Takes the part down, and tells what is left.
    fn end(mut self, reason: Option<String>) -> LaunchResult<()> {
        if let Some(reason) = &reason {
            log::info!(why:% = reason; "taking this host's part of the formation down");
        }
        let down = self.take_down().and_then(|remains| match reason {
            None if self.term > 0 => forget_keeper(self.here, self.ticket).map(|()| remains),
            _ => Ok(remains),
        });
        let (left, trouble) = match &down {
            Ok(remains) => (*remains, None),
            Err(error) => (LeftoverCounts::default(), Some(error.to_string())),
        };
        let counts = [left.processes, left.mounts, left.files, left.sockets];
        let left = counts.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        // Also where something could not be removed: the user is told by the keeper, on the host where `down` was
        // called.
        self.tell(&Report::Down { left, trouble });
        if let Some(link) = &mut self.link {
            say_farewell(link);
        }
        let remains = down?;
        match reason {
            Some(reason) => Err(LaunchError::said(Kind::Interrupted, format!("{reason}; {remains}"))),
            None => Ok(()),
        }
    }

    fn take_down(&mut self) -> LaunchResult<LeftoverCounts> {
        if self.leaves_volumes {
            if !self.has_begun {
                drop(self.report.take());
                self.supervisor.take().into_iter().for_each(OwnChild::wait);
            }
            return leave(self.here, &self.dir, &mut say).map(|()| LeftoverCounts::default());
        }
        match self.dir.read()? {
            Some(state) if state.map.is_empty() => {
                // Its daemons never began: the supervisor waits, and ends when nobody is there any more.
                drop(self.report.take());
                self.supervisor.take().into_iter().for_each(OwnChild::wait);
                // It has removed everything, unless it was killed.
                let left = self.dir.read()?.map(|_| remove_leftovers(self.here, &self.dir, &state, &mut say));
                left.unwrap_or(Ok(())).map(|()| LeftoverCounts::default())
            }
            _ => take_down(self.here, &self.dir, true, &mut say),
        }
    }
}

/// Removes what a former keeper has left on this host of a formation that an elected one has taken down. A keeper that
/// runs here does that itself.
fn forget_keeper(here: &Environment, ticket: &Ticket) -> LaunchResult<()> {
    let of_former = StateDir::wholes(here).into_iter().find(|(name, _)| *name == ticket.name);
    if let Some((_, dir)) = of_former {
        if dir.is_held() {
            return Ok(());
        }
        if dir.read()?.is_some_and(|state| state.formation == ticket.formation) {
            dir.remove()?;
        }
    }
    forget_whole(here, &ticket.formation);
    Ok(())
}

fn send(link: &mut Link, op: u16, body: &impl Encode) -> Result<(), bivouac_net::NetError> {
    link.send(&Message { op, body: body.to_bytes(), payload: Vec::new() })
}

/// Waits until all is sent, and the other side has had the time to hear it.
fn say_farewell(link: &mut Link) {
    let deadline = Instant::now() + Duration::from_millis(FAREWELL_MS);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || link.flush().is_err() || link.receive().is_err() {
            return;
        }
        let events = wanted(link);
        let timeout = timespec(u64::try_from(left.as_millis()).unwrap_or(FAREWELL_MS));
        let _time_is_looked_at = poll(&mut [PollFd::new(link, events)], Some(&timeout));
    }
}

fn wanted(link: &Link) -> PollFlags {
    if link.wants_to_send() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
}

/// Returns whether nothing more will come. What comes has no meaning.
fn has_ended(input: BorrowedFd<'_>) -> bool {
    let mut rest = [0; 4096];
    wait_readable(input, 0) && matches!(rustix::io::read(input, &mut rest), Ok(0) | Err(_))
}
