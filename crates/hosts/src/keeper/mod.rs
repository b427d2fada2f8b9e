//! The keeper: the process that holds a formation over several hosts together. It has the hosts called, gathers them,
//! and holds the connections whose end is the end of each host's part, unless another keeper can be elected. One
//! thread, one poll; it never waits for a single peer.

mod arrivals;
mod departures;
mod forming;
pub(crate) mod group;
mod launched;
mod links;
mod lives;
mod loss;
mod node_moves;
mod past;
mod returns;
mod succession;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Instant;

use bivouac_launch::control::{Answer, Request, listen_at};
use bivouac_launch::handover::take_stdin;
use bivouac_launch::polling::timespec;
use bivouac_launch::purpose::Guard;
use bivouac_launch::recovery_notes::{forget_whole, remember_whole};
use bivouac_launch::standby::Standby;
use bivouac_launch::start::{not_by_hand, take_begin};
use bivouac_launch::{
    Callers, Environment, FormationState, HostLife, LaunchError, LaunchResult, NodeLife, Phases, ProcessId,
    Report, SECRET_LEN, Signals, Stage, StateDir, in_words, packets, raise_descriptor_limit, unix_ms,
};
use bivouac_net::{Auth, Message, NetError, Secret};
use bivouac_wire::Decode;
use bivouac_wire::rendezvous::{
    self, Join, Order, PreviousPart, Question, Reply, Report as HostReport, Resume,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::Signal;

use super::consensus::Proposal;
use super::contact::HostContact;
use super::inventory::Inventory;
use super::moves::MoveEvent;
use super::start::Plan;

use arrivals::Calls;
use departures::PendingDeparture;
use launched::Launched;
use links::Links;
use node_moves::SentOrders;

/// Time for hosts to report their state, in milliseconds.
const LOOK_MS: u64 = 2000;
/// Time for hosts to take their parts down, in milliseconds.
const DOWN_MS: u64 = 60_000;
/// Time for a launcher to end after the hosts that it reached, in milliseconds.
const LAUNCHER_MS: u64 = 3000;
/// Longest time-out of one poll, in milliseconds.
const WAIT_MS_MAX: u64 = 1 << 30;
/// Keeps a formation over several hosts together until it is told to end, or all hosts are gone.
///
/// # Errors
/// What kept it from doing so; the command that started it is told too.
pub fn keep(here: &Environment, dir: PathBuf) -> LaunchResult<()> {
    let report = take_stdin()?;
    // Signals of the terminal that the formation was started at are not for the keeper.
    let _already_a_leader = rustix::process::setsid();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    raise_descriptor_limit();
    let signals = Signals::catch(&[Signal::TERM, Signal::INT, Signal::HUP])
        .map_err(|e| LaunchError::system("signals", e))?;
    let mut handed = take_begin(&report)?.into_iter();
    let (lock, plan) = handed.next().zip(handed.next()).ok_or_else(not_by_hand)?;
    let plan = packets::from_memory(plan).map_err(|_| not_by_hand())?;
    let to_tell = report.try_clone().map_err(|e| LaunchError::system("keeper", e))?;
    let made = Keeper::new(here, StateDir::at(dir), [lock, report], signals, (plan, handed.next()));
    let keeper = made.inspect_err(|error| {
        let _nobody_waits = packets::send(&to_tell, &Report::Failed { message: error.to_string() }, &[]);
    })?;
    drop(to_tell);
    keeper.run()
}

/// Stage of a formation's life. It only goes forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum KeeperState {
    /// Hosts are called and report.
    Gathering,
    /// All are there, and start their daemons.
    Starting,
    /// Daemons serve, and mounts are made.
    Mounting,
    /// In use.
    Running,
    /// Hosts take their parts down.
    Ending,
}

/// State of a host beyond the state file.
#[derive(Clone, Debug, Default)]
struct HostSeen {
    /// Its connection.
    link: Option<u64>,
    /// True if it has done what the present step asks of it.
    done: bool,
    /// True if its report of its state is awaited.
    asked: bool,
    /// Remains of its part, as it reported them.
    left: Option<([u32; 4], Option<String>)>,
    /// Contact with it: when it was last heard, and until when it may reconnect.
    tie: HostContact,
    /// Version of the newest map that its daemons have, as it reported.
    map_known: u64,
    /// Orders sent over this connection.
    sent: SentOrders,
    /// Nodes of which it has complete replicas, as it says, with the mirror epochs of these.
    replicas: Vec<(u16, u32)>,
    /// True if it joins, and has yet to be told to start its daemons.
    awaits_begin: bool,
}

impl HostSeen {
    /// Returns true if it belongs to the formation: it has a connection, or may come back on a new one.
    fn is_tied(&self) -> bool {
        self.link.is_some() || self.is_away()
    }

    /// Returns true if it has no connection and may come back on a new one.
    fn is_away(&self) -> bool {
        self.tie.is_away()
    }
}

/// A command that waits for an answer.
#[derive(Clone, Copy, Debug)]
enum RequestOrigin {
    /// On this host.
    Local(u64),
    /// On another host, over a connection.
    Remote(u64),
}

struct Keeper {
    dir: StateDir,
    state: FormationState,
    secret: [u8; SECRET_LEN],
    plan: Plan,
    _lock: OwnedFd,
    signals: Signals,
    control: OwnedFd,
    /// Connection to the command that started this process; kept while that waits, or for ever if the formation ends
    /// with it.
    report: Option<OwnedFd>,
    callers: Callers,
    /// The socket that hosts connect to when they report and when they come back.
    listener: Option<TcpListener>,
    auth: Auth,
    links: Links,
    launched: Vec<Launched>,
    inventory: Inventory,
    hosts: Vec<HostSeen>,
    step: KeeperState,
    phases: Option<Phases>,
    /// Reason why the formation does not start.
    failure: Option<String>,
    /// Commands that wait until hosts have reported their state, or have taken their parts down.
    looking: Vec<RequestOrigin>,
    stopping: Vec<RequestOrigin>,
    /// Commands that wait until the voters have accepted what they were for.
    promised: Vec<RequestOrigin>,
    /// Commands that wait until hosts have told whether they can leave.
    pending: Vec<PendingDeparture>,
    /// The newest record for the voters, and how far it is.
    record: Vec<u8>,
    proposal: Proposal,
    /// The voters that all hosts were told of.
    told_voters: Option<Vec<u16>>,
    /// True if it ends so that another keeper can take over.
    has_resigned: bool,
    since: Instant,
    /// Times at which the present step, a look, and the next sign of life are due, in milliseconds.
    step_due: Option<u64>,
    look_due: Option<u64>,
    live_due: Option<u64>,
    /// Guard of the formation's purpose.
    guard: Guard,
    here: Environment,
    /// Former state of the hosts' parts, if they are being recovered.
    pasts: BTreeMap<usize, PreviousPart>,
    /// Nodes that a recovered formation goes on without.
    absent: Vec<u16>,
    /// True if the formation has been in use.
    was_usable: bool,
    finished: bool,
    /// True if the formation has mirrors: its nodes can move.
    is_protected: bool,
    /// True if volumes of some node are mirrored now.
    mirrored: bool,
    /// True if decided moves are not recorded yet.
    is_move_unrecorded: bool,
    /// Nodes that are dead for good; hosts are told once that is recorded.
    untold_lost: Vec<u16>,
    /// Time of the next check for orders about moves, in milliseconds.
    move_due: Option<u64>,
    /// Time when hosts that leave are looked at again, in milliseconds.
    departure_due: Option<u64>,
    /// Calls of hosts that join.
    calls: Calls,
    /// Hosts that this process may run on; none of them leaves.
    possible_own_hosts: Vec<usize>,
    /// The copy that takes over if this process is killed.
    standby: Standby,
}

/// Something that woke the keeper.
#[derive(Clone, Copy, Debug)]
enum Source {
    Signals,
    Control,
    Report,
    Caller(u64),
    Listener,
    Arrivals,
    Links,
    Launched(usize),
    Guard,
    Standby,
}

impl Keeper {
    fn new(
        here: &Environment,
        dir: StateDir,
        [lock, report]: [OwnedFd; 2],
        signals: Signals,
        (mut plan, socket): (Plan, Option<OwnedFd>),
    ) -> LaunchResult<Keeper> {
        let mut phases = Phases::begin();
        let mut state = dir.read()?.ok_or_else(not_by_hand)?;
        state.supervisor = Some(ProcessId::current());
        let (formation, one_time) = plan.ticket.credentials()?;
        let (elected, secret) = (plan.elected.take(), dir.secret()?);
        let (listener, addresses) = match socket {
            Some(socket) => forming::listen_again(socket)?,
            None => forming::listen(plan.network.as_ref(), plan.port)?,
        };
        plan.ticket.addresses = addresses;
        let control = listen_at(&dir)?;
        let (launched, auth_secret) = match elected {
            // The hosts run already.
            Some(_) => (Vec::new(), Secret::new(secret).to_resume()),
            None => (launched::launch(&dir, &plan)?, Secret::new(one_time)),
        };
        phases.end("call hosts");
        let hosts = vec![HostSeen::default(); plan.hosts.len()];
        let mut keeper = Keeper {
            secret,
            control,
            _lock: lock,
            signals,
            report: Some(report),
            callers: Callers::default(),
            listener: Some(listener),
            auth: Auth { formation, secret: auth_secret, is_secure: plan.ticket.secure },
            links: Links::new().map_err(|e| LaunchError::system("the hosts' connections", e))?,
            launched,
            inventory: Inventory::new(plan.hosts.clone(), plan.min_nodes),
            hosts,
            step: KeeperState::Gathering,
            phases: Some(phases),
            failure: None,
            looking: Vec::new(),
            stopping: Vec::new(),
            promised: Vec::new(),
            pending: Vec::new(),
            record: Vec::new(),
            proposal: Proposal::default(),
            told_voters: None,
            has_resigned: false,
            since: Instant::now(),
            step_due: Some(plan.ticket.start_ms),
            look_due: None,
            // Also while others are waited for.
            live_due: Some(0),
            guard: Guard::of(&state),
            here: here.clone(),
            pasts: BTreeMap::new(),
            absent: Vec::new(),
            was_usable: false,
            finished: false,
            is_protected: false,
            mirrored: false,
            is_move_unrecorded: false,
            untold_lost: Vec::new(),
            move_due: None,
            departure_due: None,
            calls: Calls::default(),
            possible_own_hosts: Vec::new(),
            standby: Standby::default(),
            dir,
            state,
            plan,
        };
        match elected {
            Some(term) => keeper.take_office(term),
            None => keeper.write_state(),
        }
        Ok(keeper)
    }

    fn run(mut self) -> LaunchResult<()> {
        while !self.finished {
            for source in self.wait()? {
                self.take(source);
                // Whatever else woke this process is another keeper's to decide: an end above all.
                if self.has_resigned {
                    return Ok(());
                }
            }
            // What has arrived comes before what is due: a host that was heard just now is not given up.
            self.look_at_clock();
            if self.has_resigned {
                return Ok(());
            }
            self.end_when_over();
            // One step may complete the condition of the next.
            let mut before = None;
            while before != Some(self.step) {
                before = Some(self.step);
                self.go_on();
            }
            self.renew_standby();
        }
        self.take_leave()
    }

    fn wait(&self) -> LaunchResult<Vec<Source>> {
        let sources = self.sources();
        let mut polled: Vec<PollFd<'_>> = sources
            .iter()
            .map(|(_, descriptor, events)| PollFd::from_borrowed_fd(*descriptor, *events))
            .collect();
        let due = [
            self.step_due,
            self.look_due,
            self.live_due,
            self.return_due(),
            self.move_due,
            self.departures_due(),
            self.arrivals_due(),
        ];
        let due = due.into_iter().flatten();
        let left = due.map(|at| at.saturating_sub(self.now_ms()).saturating_add(1));
        let of_guard = self.guard.wait_ms().filter(|_| self.step != KeeperState::Ending);
        let timeout =
            left.chain(of_guard).chain(self.standby.wait_ms()).min().map(|ms| timespec(ms.min(WAIT_MS_MAX)));
        retry_on_intr(|| poll(&mut polled, timeout.as_ref())).map_err(|e| LaunchError::system("poll", e))?;
        let woken = polled.iter().zip(&sources).filter(|(polled, _)| !polled.revents().is_empty());
        Ok(woken.map(|(_, (source, ..))| *source).collect())
    }

    fn sources(&self) -> Vec<(Source, BorrowedFd<'_>, PollFlags)> {
        let input = PollFlags::IN;
        let mut sources = vec![
            (Source::Signals, self.signals.as_fd(), input),
            (Source::Control, self.control.as_fd(), input),
        ];
        sources.extend(self.report.iter().map(|report| (Source::Report, report.as_fd(), input)));
        let guard = self.guard.descriptors().filter(|_| self.step != KeeperState::Ending);
        sources.extend(guard.map(|descriptor| (Source::Guard, descriptor, input)));
        sources.extend(self.listener.iter().map(|listener| (Source::Listener, listener.as_fd(), input)));
        sources.extend(self.calls.listener().map(|listener| (Source::Arrivals, listener.as_fd(), input)));
        sources.extend(self.callers.iter().map(|(token, socket)| (Source::Caller(token), socket, input)));
        sources.extend(self.standby.descriptor().map(|end| (Source::Standby, end, input)));
        sources.push((Source::Links, self.links.as_fd(), input));
        for (index, launched) in self.launched.iter().enumerate() {
            sources.extend(launched.descriptors().map(|(fd, events)| (Source::Launched(index), fd, events)));
        }
        sources
    }

    fn take(&mut self, source: Source) {
        match source {
            Source::Signals => self.take_signals(),
            Source::Control => self.callers.accept(&self.control),
            Source::Report => self.take_report_end(),
            Source::Caller(token) => self.take_request(token),
            Source::Listener => self.take_newcomer(),
            Source::Arrivals => self.take_arrival_connection(),
            Source::Links => {
                for id in self.links.ready() {
                    self.take_messages(id);
                    if self.has_resigned {
                        return;
                    }
                }
            }
            Source::Launched(index) => self.take_launched(index),
            // Looked at after everything else.
            Source::Guard | Source::Standby => {}
        }
    }

    fn take_signals(&mut self) {
        while let Some(signal) = self.signals.next() {
            if signal.number != Signal::HUP.as_raw() {
                log::info!("{}: taking the formation down", bivouac_types::format_signal(signal.number));
                if self.step == KeeperState::Running && !self.plan.tied {
                    self.report_loss(&bivouac_types::format_signal(signal.number));
                }
                self.end();
            }
        }
    }

    /// Handles the end of the command that started this process: it was not told that the formation is up, or the
    /// formation ends with it.
    fn take_report_end(&mut self) {
        self.report = None;
        if self.step != KeeperState::Running || self.plan.tied {
            log::info!("the command that started this formation is gone: taking it down");
            self.end();
        }
    }

    fn take_request(&mut self, token: u64) {
        let Some((request, _)) = self.callers.receive(token) else { return };
        log::info!("asked: {}", request.describe());
        match request {
            Request::Stop => {
                self.stopping.push(RequestOrigin::Local(token));
                self.end();
            }
            Request::Look => self.look(RequestOrigin::Local(token)),
            Request::Shrink { hosts, is_forced } => {
                self.shrink(RequestOrigin::Local(token), &hosts, is_forced)
            }
            Request::Grow { hosts } => self.grow(RequestOrigin::Local(token), &hosts),
            Request::Keep { reason: Some(_) } if self.state.stage == Stage::Stopping => {
                let message = "the formation is being taken down".into();
                self.callers.answer(token, &Answer::Refused { message });
            }
            Request::Sources { which } => {
                self.state.sources = which;
                self.write_state();
                self.propose_and_promise(token);
            }
            Request::Keep { reason } => {
                // Once kept, it does not end with the command that started it.
                if reason.is_some() && std::mem::take(&mut self.plan.tied) {
                    self.report = None;
                }
                self.state.keep = reason;
                self.write_state();
                self.propose_and_promise(token);
            }
            Request::Leave { ttl_ms } => {
                self.leave(ttl_ms);
                self.propose_and_promise(token);
            }
            Request::Mount { .. }
            | Request::Lost { .. }
            | Request::Adopt { .. }
            | Request::Map
            | Request::Revive { .. }
            | Request::Listen { .. }
            | Request::Recovered => {
                let message = "this is no host's part; ask on a host of the formation".into();
                self.callers.answer(token, &Answer::Refused { message });
            }
        }
    }

    /// Answers a command once a successor of this process would know of its change.
    fn propose_and_promise(&mut self, token: u64) {
        if self.is_voted_on() {
            self.promised.push(RequestOrigin::Local(token));
            return self.record();
        }
        self.remember();
        self.renew_standby();
        self.answer(RequestOrigin::Local(token), Ok(()));
    }

    /// Answers a command when the newest record is accepted, which whoever takes this process's place goes on from.
    fn promise(&mut self, origin: RequestOrigin) {
        if self.is_agreed() {
            self.answer(origin, Ok(()));
        } else {
            self.promised.push(origin);
        }
    }

    /// Asks all hosts for their state.
    fn look(&mut self, origin: RequestOrigin) {
        self.looking.push(origin);
        for host in &mut self.hosts {
            // A host without a connection cannot answer; nobody should wait for it.
            host.asked = host.link.is_some();
        }
        self.order_all(&Order::Look);
        self.look_due = Some(self.now_ms() + LOOK_MS);
    }

    fn take_newcomer(&mut self) {
        let Some(listener) = &self.listener else { return };
        match self.links.accept(listener, &self.auth, self.since.elapsed()) {
            Ok(()) => {}
            Err(error) => log::warn!(why:% = error; "a host could not connect"),
        }
    }

    fn take_messages(&mut self, id: u64) {
        let heard = self.links.receive(id);
        let host = self.links.host(id);
        match heard {
            Ok(messages) => {
                for message in messages {
                    // Anew for each: an earlier one of these may have been what tells the host.
                    let host = self.links.host(id);
                    if let Err(text) = self.take_message(id, host, &message) {
                        log::warn!(why:% = text; "{}", self.name(host));
                        self.links.drop(id);
                        host.into_iter().for_each(|host| self.lost(host, text.clone()));
                        // What follows on a connection that said something wrong is not looked at.
                        return;
                    }
                    if self.has_resigned {
                        return;
                    }
                }
            }
            Err(error) => {
                self.links.drop(id);
                match (host, error) {
                    (Some(host), error) => self.left(host, &error),
                    (None, error @ NetError::Refused { .. }) => log::warn!(error:%; "{error}"),
                    (None, error) => log::info!(why:% = error; "who did not prove itself is gone"),
                }
            }
        }
    }

    /// # Errors
    /// What makes no sense.
    fn take_message(&mut self, id: u64, host: Option<usize>, message: &Message) -> Result<(), String> {
        let (op, body) = (message.op, &message.body);
        match (op, host) {
            (rendezvous::JOIN, None) => {
                let join = Join::from_bytes(body).map_err(|e| e.to_string())?;
                let is_past = self.step == KeeperState::Gathering && self.plan.ticket.recovers;
                let past = match join.trouble.is_none() && is_past {
                    true => Some(PreviousPart::from_bytes(&message.payload).map_err(|e| e.to_string())?),
                    false => None,
                };
                self.take_join(id, join, past);
                Ok(())
            }
            // The ticket of a host that joins is less than the formation's secret.
            (rendezvous::RESUME | rendezvous::ASK, None) if self.links.only_joins(id) => {
                Err(format!("was called to join, and says something else ({op})"))
            }
            (rendezvous::RESUME, None) => {
                let resume = Resume::from_bytes(body).map_err(|e| e.to_string())?;
                self.take_resume(id, resume);
                Ok(())
            }
            (rendezvous::REPORT, Some(host)) => {
                let report = HostReport::from_bytes(body).map_err(|e| e.to_string())?;
                self.take_report(host, report);
                Ok(())
            }
            (rendezvous::ASK, None) => {
                match Question::from_bytes(body).map_err(|e| e.to_string())? {
                    Question::Look => self.look(RequestOrigin::Remote(id)),
                    Question::Shrink { hosts, is_forced } => {
                        log::info!("asked on another host: have hosts leave: {}", hosts.join(", "));
                        self.shrink(RequestOrigin::Remote(id), &hosts, is_forced);
                    }
                    Question::Grow { hosts } => {
                        log::info!("asked on another host: have hosts join: {}", hosts.join(", "));
                        self.grow(RequestOrigin::Remote(id), &hosts);
                    }
                    Question::Down => {
                        log::info!("asked on another host: end");
                        self.stopping.push(RequestOrigin::Remote(id));
                        self.end();
                    }
                }
                Ok(())
            }
            _ => Err(format!("says something else ({op}) than is expected")),
        }
    }

    fn take_join(&mut self, id: u64, join: Join, past: Option<PreviousPart>) {
        if self.step == KeeperState::Running && self.state.arriving().next().is_some() {
            return self.take_arrival(id, &join);
        }
        let came = match self.step {
            KeeperState::Gathering => self.inventory.came(join, unix_ms()),
            _ => Err("the formation has started without it".into()),
        };
        let now = self.now_ms();
        match came {
            Ok(host) => {
                self.links.belongs(id, host);
                self.pasts.extend(past.map(|past| (host, past)));
                if let Some(seen) = self.hosts.get_mut(host) {
                    assert!(seen.link.is_none(), "host {host} is there twice");
                    (seen.link, seen.tie) = (Some(id), HostContact::new(now));
                }
            }
            Err(text) => {
                log::warn!(why:% = text; "a host is not let in");
                self.links.refuse(id, text);
            }
        }
    }

    fn take_report(&mut self, host: usize, report: HostReport) {
        let now = self.now_ms();
        let Some(seen) = self.hosts.get_mut(host) else { return };
        seen.tie.heard(now);
        match report {
            HostReport::Alive => {}
            HostReport::CanKeep { vote_address, keeper_address } => {
                self.note_place(host, vote_address, keeper_address);
            }
            HostReport::Accepted { term, version } => self.record_accepted(host, term, version),
            HostReport::Deposed { term } => {
                self.resign(&format!("the hosts have promised to follow another one, in term {term}"));
            }
            HostReport::HasMap { version } => seen.map_known = seen.map_known.max(version),
            HostReport::Adopted { node, epoch, place } => self.node_adopted(host, node, epoch, place),
            HostReport::NotAdopted { node, epoch, text } => {
                log::error!(why:% = text; "host {} cannot take node {node} over", self.inventory.host(host));
                self.move_event(MoveEvent::NotAdopted { host, node, epoch, why: text });
            }
            HostReport::Ready { steps } => {
                let steps = in_words(steps.iter().map(|(name, us)| (name, *us)));
                log::info!("{}: ready: {steps}", self.inventory.host(host));
                // Said again over a new connection, it is older than what is known of the nodes.
                if self.step == KeeperState::Starting {
                    seen.done = true;
                    self.set_nodes(host, NodeLife::Ready);
                }
                self.arrival_serves(host);
            }
            HostReport::Mounted { dir } => {
                seen.done |= self.step == KeeperState::Mounting;
                if let Some(state) = self.state.hosts.get_mut(host) {
                    state.mount = Some(dir.into());
                }
                self.arrival_mounted(host);
            }
            HostReport::Failed { text } => self.failed(host, &text),
            HostReport::Nodes { nodes, replicas, trouble } => {
                (seen.asked, seen.replicas) = (false, replicas);
                seen.sent.unanswered.looked();
                self.note_nodes(host, &nodes, trouble);
                self.advance_departures();
            }
            HostReport::Unmounted { is_trial, trouble } => {
                seen.sent.unanswered.unmounted(is_trial);
                self.note_unmounted(host, is_trial, trouble);
            }
            HostReport::Down { left, trouble } => {
                seen.left = Some((left, trouble.clone()));
                let link = seen.link.take();
                link.into_iter().for_each(|link| self.links.drop(link));
                if self.has_gone(host) {
                    let is_left = left.iter().any(|count| *count > 0);
                    self.note_left(host, trouble.or(is_left.then(|| text_of_remains(left))));
                } else if self.step != KeeperState::Ending {
                    self.lost(host, "it has taken its part down".into());
                }
            }
        }
    }

    /// Handles that a host cannot do what it is to do.
    fn failed(&mut self, host: usize, text: &str) {
        match self.step {
            KeeperState::Starting | KeeperState::Mounting => {
                self.give_up(format!("host {}: {text}", self.inventory.host(host)));
            }
            KeeperState::Running if self.is_coming_up(host) => self.not_joined(host, text.into()),
            _ => log::warn!(why:% = text; "host {}", self.inventory.host(host)),
        }
    }

    /// Handles the loss of a host.
    fn lost(&mut self, host: usize, text: String) {
        if let Some(seen) = self.hosts.get_mut(host) {
            (seen.link, seen.tie) = (None, HostContact::default());
            seen.asked = false;
        }
        // Its launcher knows better, if it has ended already.
        let text = self.last_words(host).unwrap_or(text);
        log::warn!(why:% = text; "host {} is gone", self.inventory.host(host));
        match self.step {
            KeeperState::Gathering => self.inventory.miss(host, text),
            KeeperState::Starting | KeeperState::Mounting => {
                self.give_up(format!("host {} is gone: {text}", self.inventory.host(host)));
            }
            KeeperState::Running => self.note_lost(host, text),
            KeeperState::Ending => {}
        }
    }

    fn take_launched(&mut self, index: usize) {
        let Some(launched) = self.launched.get_mut(index) else { return };
        launched.attend();
        let has_ended = launched.has_ended();
        for (host, said) in self.launched.get_mut(index).map(Launched::ended_hosts).unwrap_or_default() {
            // One that is connected is lost with its connection, not before.
            match self.hosts.get(host) {
                Some(seen) if seen.tie.is_away() => self.launcher_of_away_ended(host, said),
                Some(seen) if seen.link.is_none() && self.step == KeeperState::Gathering => {
                    self.inventory.miss(host, said);
                }
                Some(seen) if seen.link.is_none() => self.call_failed(host, said),
                _ => {}
            }
        }
        if has_ended {
            log::info!("a launcher has ended");
        }
    }

    /// Returns the last output of a host's launcher, if it has ended.
    fn last_words(&mut self, host: usize) -> Option<String> {
        let launched = self.launched.iter_mut().find(|launched| launched.reaches(host))?;
        launched.attend();
        launched.reason(host)
    }

    fn name(&self, host: Option<usize>) -> String {
        host.map_or_else(|| "somebody".into(), |host| format!("host {}", self.inventory.host(host)))
    }

    /// Writes the state file. A full disk must not end what keeps the hosts together.
    fn write_state(&mut self) {
        match self.dir.write(&self.state) {
            Ok(()) => self.standby.end_succession(),
            Err(error) => log::error!(error:%; "{error}"),
        }
        self.standby.outdate();
    }

    /// Keeps the state for a recovery after a reboot of this host.
    fn remember(&self) {
        remember_whole(&self.here, self.dir.path(), &self.state);
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Removes what is this process's own. Who waits is told last.
    fn take_leave(mut self) -> LaunchResult<()> {
        self.state.stage = Stage::Stopping;
        let (left, notes) = self.what_is_left();
        // A recovery that did not come so far can be made again, also where nobody is left who asked for it.
        let removed = match self.state.before.take() {
            Some(before) => self.dir.remove_sockets().and_then(|()| self.dir.write(&before)),
            None => self.dir.remove(),
        };
        if self.was_usable {
            forget_whole(&self.here, &self.state.formation);
        }
        for origin in std::mem::take(&mut self.stopping) {
            match origin {
                RequestOrigin::Local(token) => {
                    self.callers.answer(token, &Answer::Down { left, notes: notes.clone() });
                }
                RequestOrigin::Remote(link) => {
                    let left = left.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
                    self.reply(link, &Reply::Down { left, notes: notes.clone() }, Vec::new());
                }
            }
        }
        if let (Some(message), Some(report)) = (&self.failure, &self.report) {
            let _nobody_waits = packets::send(report, &Report::Failed { message: message.clone() }, &[]);
        }
        removed
    }

    fn what_is_left(&self) -> ([usize; 4], Vec<String>) {
        let mut sum = [0usize; 4];
        let mut notes = Vec::new();
        for (host, seen) in self.hosts.iter().enumerate() {
            let is_counted =
                |life: HostLife| !matches!(life, HostLife::Missing | HostLife::Left | HostLife::Called);
            let was_there = self.state.hosts.get(host).is_some_and(|host| is_counted(host.life));
            match &seen.left {
                Some((left, trouble)) => {
                    sum.iter_mut().zip(left).for_each(|(sum, left)| *sum += *left as usize);
                    notes.extend(
                        trouble
                            .as_ref()
                            .map(|trouble| format!("host {}: {trouble}", self.inventory.host(host))),
                    );
                }
                None if was_there && self.step == KeeperState::Ending && !self.state.map.is_empty() => {
                    let text = "its connection ended before it said that nothing is left there; it takes its part down by itself";
                    notes.push(format!("host {}: {text}", self.inventory.host(host)));
                }
                None => {}
            }
        }
        (sum, notes)
    }
}

fn text_of_remains([processes, mounts, files, sockets]: [u32; 4]) -> String {
    format!("left there: {processes} processes, {mounts} mounts, {files} files, {sockets} sockets")
}
