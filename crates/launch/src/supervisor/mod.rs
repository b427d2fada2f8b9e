//! The process that `up` leaves behind on a machine: it owns everything that must outlive a daemon, and restarts a
//! daemon that has died. One thread, one poll; it never waits for a single peer, and never touches a mount.

mod adoption;
mod callers;
mod daemon;
mod listeners;
mod part;
mod places;
mod succession;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use serde::{Deserialize, Serialize};

use crate::adopted::{AdoptedNode, Adoption};
use crate::clock::unix_ms;
use crate::control::{Answer, Request, listen_at};
use crate::fuse_connection::{abort, refuse_all};
use crate::handover::FromNode;
use crate::http;
use crate::memory::Killer;
use crate::memory_root::hold_all;
use crate::packets;
use crate::phases::{Phase, Phases, in_words};
use crate::polling::timespec;
use crate::process::ProcessId;
use crate::purpose::Guard;
use crate::recovery_notes::{begin_life, serve_life, write_notes};
use crate::restarts::{Command, DaemonState, Event, Policy, Restarts};
use crate::signals::Signals;
use crate::standby::Standby;
use crate::state::{
    FormationState, GatewayState, HttpState, MountState, NodeLife, NodeState, ServerState, Stage,
};
use crate::state_dir::{SECRET_LEN, StateDir};
use crate::{Kind, LaunchError, LaunchResult};

pub use callers::Callers;
use daemon::{Daemon, HeldMount, Server};
pub use part::PartBegins;
use places::MountWatch;

/// Pause before a state that could not be written is written again, in milliseconds.
const REWRITE_MS: u64 = 1000;
/// Interval of polling a process that is about to exit, in milliseconds.
const ENDING_MS: u64 = 20;
/// Pause before something is handed to a daemon again whose socket was full, in milliseconds.
const HAND_OVER_MS: u64 = 50;

/// Longest time-out of one poll, in milliseconds.
const WAIT_MS_MAX: u64 = 1 << 30;

/// Bits of a mount's number within a life of the formation. Mounts of different lives have different numbers, and so do
/// their clients.
const MOUNTS_BITS: u32 = 20;
/// Lives distinguished by that. In later ones, the clients of the life before are dropped all the same.
const RECOVERIES_TOLD: u32 = (1 << (u32::BITS - MOUNTS_BITS)) - 1;

/// Message from the supervisor to the `up` that started it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Report {
    /// Every daemon serves; with the durations of the start.
    Ready {
        /// The steps of the start.
        phases: Vec<Phase>,
    },
    /// For one host's part: its nodes can be reached, and it waits for [`PartBegins`].
    Bound {
        /// Client and peer lane of each node, `address:port`.
        addresses: Vec<(String, String)>,
    },
    /// A node of another host has been taken over, and waits for the map.
    Adopted {
        /// The node.
        adopted: AdoptedNode,
    },
    /// A node of another host cannot be taken over.
    NotAdopted {
        /// The node.
        node: u16,
        /// Epoch in which it was to be.
        epoch: u32,
        /// The reason.
        message: String,
    },
    /// A node of another host that was taken over serves.
    Serves,
    /// For one host's part: a node is dead for good, which the other hosts do not know yet.
    GaveUp,
    /// The formation cannot be started; the supervisor ends.
    Failed {
        /// The reason.
        message: String,
    },
}

/// Command line of daemons.
#[derive(Clone, Debug)]
pub struct DaemonProgram {
    /// The program.
    pub program: PathBuf,
    /// Its arguments, in front of formation and node.
    pub arguments: Vec<OsString>,
}

/// The supervisor of one formation on this machine.
#[derive(Debug)]
pub struct Supervisor {
    dir: StateDir,
    state: FormationState,
    secret: [u8; SECRET_LEN],
    program: DaemonProgram,
    lock: OwnedFd,
    /// Locks that show that the formation's memory is in use.
    _memory: Vec<OwnedFd>,
    signals: Signals,
    control: OwnedFd,
    /// Connection to the `up` that started this process, until that was told the outcome.
    report: Option<OwnedFd>,
    callers: Callers,
    places: MountWatch,
    killer: Killer,
    daemons: Vec<Daemon>,
    restarts: Restarts,
    since: Instant,
    phases: Option<Phases>,
    mounts_made: u32,
    guard: Guard,
    finished: bool,
    /// Nodes that were given up and are being restarted.
    revived: Vec<u16>,
    /// Nodes of other hosts whose replicas are being sealed.
    adoptions: Vec<Adoption>,
    /// True if the process that holds this host's part of a formation is gone.
    abandoned: bool,
    /// True if the state has to be written.
    changed: bool,
    /// True if the last attempt to write it failed.
    unwritten: bool,
    /// The copy that takes over if this process is killed.
    standby: Standby,
}

/// Something that woke the supervisor.
#[derive(Clone, Copy, Debug)]
enum Source {
    Signals,
    Control,
    Report,
    Caller(u64),
    Said(usize),
    Died(usize),
    Guard,
    Mounts,
    Standby,
}

impl Source {
    /// Returns true if the event changes nothing by itself beyond what is written to the state, or what a copy
    /// releases: a command that has connected, for instance. The mount table changes with any mount on the machine.
    fn says_little(self) -> bool {
        matches!(self, Source::Control | Source::Mounts | Source::Guard | Source::Standby)
    }

    /// Returns the poll events of the source. The kernel's mount table is always readable, and signals a change by
    /// `POLLPRI`.
    fn events(self) -> PollFlags {
        if matches!(self, Source::Mounts) { PollFlags::PRI } else { PollFlags::IN }
    }
}

impl Supervisor {
    /// Opens all sockets of the formation whose state is in `dir`. `report` is told how its start goes; its end before
    /// that ends the supervisor as well.
    ///
    /// # Errors
    /// What cannot be opened.
    pub fn new(
        dir: StateDir,
        lock: OwnedFd,
        report: OwnedFd,
        signals: Signals,
        program: DaemonProgram,
    ) -> LaunchResult<Supervisor> {
        let mut phases = Phases::begin();
        let mut state = dir.read()?.ok_or_else(|| {
            LaunchError::new(
                Kind::Refused,
                dir.path().display(),
                "holds no formation",
                "start one with: bivouac up",
            )
        })?;
        state.supervisor = Some(ProcessId::current());
        let handles = match state.part {
            Some(_) => part::open(&dir, &mut state, &report)?,
            None => listeners::open(&mut state)?,
        };
        let mut daemons = Daemon::of_all(handles, state.in_process);
        if let Some(http) = &mut state.http {
            daemons.push(Daemon::of_server(state.nodes.len(), Server::Http, http::listen(http)?));
        }
        if let Some(gateway) = &mut state.gateway {
            let listener = http::listen_for_links(gateway)?;
            daemons.push(Daemon::of_server(state.nodes.len(), Server::Gateway, listener));
        }
        // Behind all sockets: the map tells the ports that they were given.
        dir.write_map(&state)?;
        phases.end("bind");
        let guard = Guard::in_supervisor(&state);
        let state_mounts = state.recoveries.min(RECOVERIES_TOLD) << MOUNTS_BITS;
        Ok(Supervisor {
            secret: dir.secret()?,
            control: listen_at(&dir)?,
            restarts: Restarts::new(
                daemons.len(),
                Policy { tolerance: state.tolerance, ..Policy::default() },
            ),
            _memory: hold_all(&state)?,
            dir,
            state,
            program,
            lock,
            signals,
            report: Some(report),
            callers: Callers::default(),
            places: MountWatch::default(),
            killer: Killer::watch(),
            daemons,
            since: Instant::now(),
            phases: Some(phases),
            mounts_made: state_mounts,
            guard,
            finished: false,
            revived: Vec::new(),
            adoptions: Vec::new(),
            abandoned: false,
            changed: true,
            unwritten: false,
            standby: Standby::default(),
        })
    }

    /// Starts all daemons and looks after them until they are told to end. Returns true if this process has to remove
    /// what is left, because the process that held this host's part of a formation is gone.
    ///
    /// # Errors
    /// When the system refuses to poll.
    pub fn run(mut self) -> LaunchResult<bool> {
        // All at once: a start waits for disks, not for other starts.
        (0..self.daemons.len()).for_each(|index| self.start(index));
        if let Some(phases) = &mut self.phases {
            phases.end("spawn");
        }
        // Written once all processes are started, not as each gets ready: the last of many nodes would wait for as many
        // writes.
        self.try_write_state();
        // Nobody waits for the daemon of a node that has moved, and a killed process still writes until it has ended.
        while !self.finished || self.daemons.iter().any(|daemon| daemon.running.is_some()) {
            self.tell_when_ready();
            // Nor as each ends.
            if self.phases.is_none() && self.changed && self.state.stage != Stage::Stopping {
                self.try_write_state();
            }
            self.renew_standby();
            for source in self.wait()? {
                if !source.says_little() {
                    self.standby.outdate();
                }
                self.take(source);
            }
            let ending = |(index, daemon): (usize, &Daemon)| daemon.is_ending().then_some(index);
            let ending: Vec<usize> = self.daemons.iter().enumerate().filter_map(ending).collect();
            ending.into_iter().for_each(|index| self.take_death(index));
            self.daemons.iter_mut().for_each(Daemon::hand_over);
            self.event(Event::Tick);
            self.end_when_over();
        }
        self.state.stage = Stage::Stopping;
        self.try_write_state();
        Ok(self.abandoned)
    }

    /// Writes the state. A full disk must not end the process that looks after the daemons: on failure the write is
    /// repeated later.
    fn write_state(&mut self) -> LaunchResult<()> {
        self.standby.outdate();
        let written = self.dir.write(&self.state);
        self.changed = written.is_err();
        if let Err(error) = &written
            && !self.unwritten
        {
            log::error!(error:%; "{error}");
        }
        self.unwritten = written.is_err();
        if written.is_ok() {
            self.standby.end_succession();
        }
        written
    }

    /// Like [`Supervisor::write_state`], where a failure delays nothing.
    fn try_write_state(&mut self) {
        // Logged in there, and tried again.
        let _ = self.write_state();
    }

    /// Changes what a take-down of the formation depends on, and answers once that is on disk; on failure the state
    /// stays as it was.
    fn change_purpose(&mut self, token: u64, change: impl FnOnce(&mut FormationState)) {
        // The whole state, since `change` may touch any of it; a change that is not on disk must not stay in memory.
        let before = self.state.clone();
        change(&mut self.state);
        let answer = match self.write_state() {
            Ok(()) => {
                write_notes(&self.state);
                Answer::Done
            }
            Err(error) => {
                self.state = before;
                Answer::Refused { message: format!("it cannot be written down: {error}") }
            }
        };
        self.callers.answer(token, &answer);
    }

    /// Waits until an event arrives or something is due.
    fn wait(&self) -> LaunchResult<Vec<Source>> {
        let sources = self.sources();
        let mut polled: Vec<PollFd<'_>> = sources
            .iter()
            .map(|(source, descriptor)| PollFd::from_borrowed_fd(*descriptor, source.events()))
            .collect();
        let tick = self.restarts.next_tick().map(|at| at.saturating_sub(self.now_ms()));
        let rewrite = self.unwritten.then_some(REWRITE_MS);
        let ending = self.daemons.iter().any(Daemon::is_ending).then_some(ENDING_MS);
        let hand_over = self.daemons.iter().any(Daemon::has_more_to_hand_over).then_some(HAND_OVER_MS);
        let timeout = tick
            .into_iter()
            .chain(self.guard.wait_ms())
            .chain(self.standby.wait_ms())
            .chain(rewrite)
            .chain(ending)
            .chain(hand_over)
            .min()
            .map(|ms| timespec(ms.min(WAIT_MS_MAX)));
        retry_on_intr(|| poll(&mut polled, timeout.as_ref())).map_err(|e| LaunchError::system("poll", e))?;
        let woken = polled.iter().zip(&sources).filter(|(polled, _)| !polled.revents().is_empty());
        Ok(woken.map(|(_, (source, _))| *source).collect())
    }

    fn sources(&self) -> Vec<(Source, BorrowedFd<'_>)> {
        let mut sources = vec![(Source::Signals, self.signals.as_fd())];
        // A command that is not accepted yet waits; one whose connection is closed reports that the supervisor is gone.
        sources.extend((!self.callers.is_full()).then(|| (Source::Control, self.control.as_fd())));
        sources.extend(self.report.as_ref().map(|report| (Source::Report, report.as_fd())));
        sources.extend(self.callers.iter().map(|(token, socket)| (Source::Caller(token), socket)));
        sources.extend(self.places.descriptor().map(|table| (Source::Mounts, table)));
        sources.extend(self.standby.descriptor().map(|end| (Source::Standby, end)));
        sources.extend(self.guard.descriptors().map(|descriptor| (Source::Guard, descriptor)));
        for (index, running) in
            self.daemons.iter().enumerate().filter_map(|(i, d)| Some((i, d.running.as_ref()?)))
        {
            sources.extend(running.socket.as_ref().map(|socket| (Source::Said(index), socket.as_fd())));
            sources.push((Source::Died(index), running.process.as_fd()));
        }
        for (index, daemon) in self.daemons.iter().enumerate() {
            sources.extend(daemon.former.iter().map(|former| (Source::Died(index), former.as_fd())));
        }
        sources
    }

    fn take(&mut self, source: Source) {
        match source {
            Source::Signals => self.take_signals(),
            Source::Control => self.callers.accept(&self.control),
            Source::Report => self.take_report_end(),
            Source::Caller(token) => self.take_request(token),
            Source::Said(index) => self.take_said(index),
            Source::Died(index) => self.take_death(index),
            Source::Mounts => self.look_at_places(),
            // Looked at after everything else.
            Source::Guard | Source::Standby => {}
        }
    }

    fn take_signals(&mut self) {
        while let Some(signal) = self.signals.next() {
            if signal.number != rustix::process::Signal::HUP.as_raw() {
                log::info!("{}: ending all daemons", bivouac_types::format_signal(signal.number));
                self.event(Event::Stop);
            }
        }
    }

    /// Handles the end of the `up` that started this process before the formation was ready, or of the process that
    /// holds this host's part.
    fn take_report_end(&mut self) {
        self.report = None;
        if self.state.part.is_some() {
            log::warn!("the process that holds this host's part of the formation is gone: taking it down");
            self.abandoned = true;
            if self.standby.is_new() {
                self.leave_what_was_killed();
            }
            self.event(Event::Stop);
        }
        if self.phases.take().is_some() {
            log::info!("the command that started this formation ended early");
            self.event(Event::Stop);
        }
    }

    fn take_request(&mut self, token: u64) {
        let Some((request, descriptors)) = self.callers.receive(token) else { return };
        log::info!("asked: {}", request.describe());
        match request {
            Request::Mount { node, dir, own_dir, connection } => {
                self.add_mount(token, node, (dir, own_dir, connection), descriptors);
            }
            Request::Sources { which } => self.change_purpose(token, |state| state.sources = which),
            Request::Keep { reason } => self.change_purpose(token, |state| state.keep = reason),
            Request::Leave { ttl_ms } => {
                self.change_purpose(token, |state| {
                    state.owner = None;
                    state.ends_unix_ms = ttl_ms.map(|ttl| unix_ms().saturating_add(ttl));
                });
                self.guard.renew(&self.state);
            }
            Request::Lost { nodes } => {
                self.lost_elsewhere(nodes);
                // A successor of this process has to know it too.
                self.try_write_state();
                self.callers.answer(token, &Answer::Done);
            }
            Request::Adopt { adoption } => {
                let answer = match self.adopt(adoption) {
                    Ok(()) => Answer::Done,
                    Err(message) => Answer::Refused { message },
                };
                self.callers.answer(token, &answer);
            }
            Request::Map => {
                let taken = match descriptors.into_iter().next() {
                    Some(memory) => self.take_map(memory),
                    None => Err("a map comes with a descriptor".into()),
                };
                let answer = taken.map_or_else(|message| Answer::Refused { message }, |()| Answer::Done);
                self.callers.answer(token, &answer);
            }
            Request::Recovered => {
                self.note_life(serve_life);
                self.change_purpose(token, |state| {
                    state.part.iter_mut().for_each(|part| part.leaves_volumes = false);
                });
            }
            Request::Revive { node } => {
                let answer = self.revive(node);
                self.callers.answer(token, &answer);
            }
            Request::Listen { wish } => {
                let taken = self.serve_links(wish);
                let answer = taken.map_or_else(|message| Answer::Refused { message }, |()| Answer::Done);
                self.callers.answer(token, &answer);
            }
            Request::Look => self.callers.answer(token, &Answer::Done),
            Request::Shrink { .. } | Request::Grow { .. } => {
                let message = "this is one host's part; ask the keeper of the whole".into();
                self.callers.answer(token, &Answer::Refused { message });
            }
            Request::Stop => {
                self.callers.answer(token, &Answer::Done);
                self.event(Event::Stop);
            }
        }
    }

    /// Begins to serve links; the gateway is looked after like one from the start.
    fn serve_links(&mut self, wish: SocketAddr) -> Result<(), String> {
        if let Some(gateway) = &self.state.gateway {
            let address = gateway.address.unwrap_or(gateway.wish);
            return Err(format!("links are served already, at {address}"));
        }
        let mut gateway = GatewayState::from(wish);
        let listener = http::listen_for_links(&mut gateway).map_err(|error| error.to_string())?;
        self.state.gateway = Some(gateway);
        // Behind all nodes; nodes taken over later come behind it.
        self.daemons.push(Daemon::of_server(self.state.nodes.len(), Server::Gateway, listener));
        let index = self.restarts.add(false);
        assert!(index + 1 == self.daemons.len(), "daemon {index} of {}", self.daemons.len());
        self.event(Event::Begin(index));
        self.changed = true;
        self.try_write_state();
        Ok(())
    }

    /// Records that nodes of other hosts are dead for good, and tells all daemons, also those that start later.
    fn lost_elsewhere(&mut self, nodes: Vec<u16>) {
        for node in nodes {
            if !self.state.lost_elsewhere.contains(&node) && !self.state.has_here(node) {
                self.state.lost_elsewhere.push(node);
                self.changed = true;
                self.daemons.iter().for_each(|daemon| daemon.tell_dead(node, true));
            }
        }
    }

    /// Restarts a node that was given up. The outcome will be in the state.
    fn revive(&mut self, node: u16) -> Answer {
        let refuse = |message: String| Answer::Refused { message };
        if self.state.part.is_some() {
            let text = "the other hosts have given it up for good; copy out what is needed, take the formation down, and have it back as a whole: bivouac recover";
            return refuse(format!("node {node}: {text}"));
        }
        let index =
            self.daemon_of(node).filter(|index| self.restarts.life(*index) == Some(DaemonState::Failed));
        let Some(index) = index else {
            return refuse(format!("node {node} has not failed, or is none; see: bivouac status"));
        };
        let revived: Vec<u16> = self.nodes_of(index).iter().map(|node| node.id).collect();
        self.revived.extend(revived);
        self.event(Event::Revive(index));
        self.try_write_state();
        Answer::Done
    }

    /// Tells all daemons about nodes of a daemon that serve again, after they were given up.
    fn tell_revived(&mut self, index: usize) {
        let ready: Vec<u16> = self.nodes_of(index).iter().map(|node| node.id).collect();
        let (back, rest): (Vec<u16>, Vec<u16>) =
            std::mem::take(&mut self.revived).into_iter().partition(|node| ready.contains(node));
        self.revived = rest;
        back.iter().for_each(|node| self.daemons.iter().for_each(|daemon| daemon.tell_dead(*node, false)));
    }

    /// Takes the formation down when its purpose is over.
    fn end_when_over(&mut self) {
        if self.state.stage == Stage::Stopping {
            return;
        }
        if self.phases.is_some() {
            if let Some(why) = self.guard.due() {
                self.phases = None;
                let message = format!("before the formation was usable, {why}");
                self.state.message = Some(message.clone());
                self.tell(&Report::Failed { message });
                self.event(Event::Stop);
            }
            return;
        }
        if let Some(why) = self.guard.attend(&self.program.program, &self.dir) {
            self.state.message = Some(format!("{why}, but its data is kept"));
            self.changed = true;
        }
    }

    fn add_mount(
        &mut self,
        token: u64,
        node: u16,
        (dir, own_dir, connection): (PathBuf, bool, u32),
        descriptors: Vec<OwnedFd>,
    ) {
        let index = self.daemon_of(node).unwrap_or(usize::MAX);
        let refuse = |message: String| Answer::Refused { message };
        let life = self.restarts.life(index);
        let Some(daemon) = self.daemons.get_mut(index).filter(|_| life.is_some()) else {
            let id = |node: Option<&NodeState>| node.map_or(0, |node| node.id);
            let (first, last) = (id(self.state.nodes.first()), id(self.state.nodes.last()));
            let here = if self.state.part.is_some() { " on this host" } else { "" };
            let message = format!("there is no node {node}{here}; nodes are {first} to {last}");
            return self.callers.answer(token, &refuse(message));
        };
        if matches!(life, Some(DaemonState::Failed | DaemonState::Stopped)) {
            return self
                .callers
                .answer(token, &refuse(format!("node {node} has failed; see: bivouac status")));
        }
        let Ok([device, memory]) = <[OwnedFd; 2]>::try_from(descriptors) else {
            return self.callers.answer(token, &refuse("a mount comes with two descriptors".into()));
        };
        self.mounts_made += 1;
        let id = self.mounts_made;
        let caller = Some(token);
        daemon.mounts.push(HeldMount { id, node, dir: dir.clone(), device, memory, caller, connection });
        self.places.watch(id, &dir, connection);
        // Once, however often a mount is made there: the list is written with each state.
        if own_dir && !self.state.own_dirs.contains(&dir) {
            self.state.own_dirs.push(dir.clone());
        }
        self.state.mounts.push(MountState { id, dir, node, connection, trouble: None });
        self.changed = true;
        // Else the daemon is given all its mounts once it is ready.
        if life == Some(DaemonState::Ready) {
            daemon.serve(id);
        }
    }

    /// Returns the daemon of a node.
    fn daemon_of(&self, node: u16) -> Option<usize> {
        let index = self.state.index_of(node)?;
        self.daemons.iter().position(|daemon| daemon.nodes.contains(&index))
    }

    /// Returns the nodes of a daemon.
    fn nodes_of(&mut self, index: usize) -> &mut [NodeState] {
        let nodes = self.daemons.get(index).map_or(0..0, |daemon| daemon.nodes.clone());
        self.state.nodes.get_mut(nodes).unwrap_or_default()
    }

    /// Returns the state of a server, if the daemon is one.
    fn server_of(&mut self, index: usize) -> Option<ServerState<'_>> {
        match self.daemons.get(index).and_then(Daemon::server)? {
            Server::Http => self.state.http.as_mut().map(HttpState::server),
            Server::Gateway => self.state.gateway.as_mut().map(GatewayState::server),
        }
    }

    /// Returns the name of a daemon, for messages.
    fn called(&self, index: usize) -> String {
        match self.daemons.get(index).and_then(Daemon::server) {
            Some(Server::Http) => "the server for HTTP".into(),
            Some(Server::Gateway) => "the gateway of links".into(),
            None => format!("the daemon of node {}", self.first_node(index)),
        }
    }

    /// Returns the first node of a daemon, for messages and its log.
    fn first_node(&self, index: usize) -> u16 {
        let first = self.daemons.get(index).map_or(0, |daemon| daemon.nodes.start);
        self.state.nodes.get(first).map_or(0, |node| node.id)
    }

    fn take_said(&mut self, index: usize) {
        for message in self.daemons.get_mut(index).map(Daemon::hear).unwrap_or_default() {
            match message {
                FromNode::Ready { phases } => self.node_ready(index, &phases),
                FromNode::Failed { message } => self.node_failed(index, message),
                FromNode::Sealed { sealed } => self.replica_sealed(&sealed),
                FromNode::Serving { mount } => self.mount_served(index, mount),
                FromNode::Ended { mount, message } => self.mount_ended(index, mount, message),
            }
        }
    }

    fn node_ready(&mut self, index: usize, phases: &[Phase]) {
        log::info!(
            "{} is ready: {}",
            self.called(index),
            in_words(phases.iter().map(|phase| (&phase.name, phase.us)))
        );
        self.set_life(index, NodeLife::Ready, None);
        self.event(Event::Ready(index));
        if let Some(daemon) = self.daemons.get_mut(index) {
            daemon.serve_all();
        }
        self.tell_revived(index);
        if self.nodes_of(index).iter().any(|node| node.epoch > 0) {
            // The recipient of the report reads the state of its nodes.
            self.try_write_state();
            self.tell(&Report::Serves);
        }
    }

    fn node_failed(&mut self, index: usize, message: String) {
        if let Some(running) = self.daemons.get_mut(index).and_then(|daemon| daemon.running.as_mut()) {
            running.failure = Some(message);
        }
    }

    fn mount_served(&mut self, index: usize, mount: u32) {
        let held =
            self.daemons.get_mut(index).and_then(|daemon| daemon.mounts.iter_mut().find(|m| m.id == mount));
        if let Some(token) = held.and_then(|held| held.caller.take()) {
            self.callers.answer(token, &Answer::Done);
        }
    }

    fn mount_ended(&mut self, index: usize, mount: u32, message: Option<String>) {
        log::info!("mount {mount} is over: {}", message.as_deref().unwrap_or("unmounted"));
        let caller = self.daemons.get_mut(index).and_then(|daemon| daemon.drop_mount(mount));
        self.state.mounts.retain(|known| known.id != mount);
        self.places.forget(mount);
        self.changed = true;
        if let Some(token) = caller {
            let message = message.unwrap_or_else(|| "it was unmounted again".into());
            self.callers.answer(token, &Answer::Refused { message });
        }
    }

    fn take_death(&mut self, index: usize) {
        // Its last messages come first: why it failed, or that a mount has ended.
        self.take_said(index);
        let server = self.daemons.get(index).and_then(Daemon::server);
        let node_log = || self.dir.node_log(self.first_node(index));
        let log = server.map_or_else(node_log, |server| server.log(&self.dir));
        let Some(death) = self.daemons.get_mut(index).and_then(|daemon| daemon.bury(&log)) else { return };
        if self.restarts.life(index) == Some(DaemonState::Failed) {
            // Its node has moved: the message about that stays.
            self.nodes_of(index).iter_mut().for_each(|node| node.process = None);
            self.changed = true;
            self.discard_moved();
            return;
        }
        // A kill for want of memory, or a start that reports a failure, is no fault of the daemon: one that was
        // ready before is restarted without limit.
        let starved = if death.may_be_killed { self.killer.explains() } else { None };
        let cannot_begin = death.is_said && self.restarts.life(index) == Some(DaemonState::Starting);
        let is_hindered = starved.is_some() || cannot_begin;
        let how = starved.unwrap_or(death.how);
        log::warn!(cause:% = how; "{} ended", self.called(index));
        if let Some(server) = self.server_of(index) {
            *server.process = None;
            *server.deaths += 1;
        }
        for node in self.nodes_of(index) {
            node.process = None;
            node.deaths += 1;
        }
        self.set_life(index, NodeLife::Restarting, Some(how.clone()));
        self.event(if is_hindered { Event::Hindered(index, how) } else { Event::Died(index, how) });
        if self.restarts.life(index) == Some(DaemonState::Stopped) {
            self.set_life(index, NodeLife::Stopped, None);
        }
    }

    fn event(&mut self, event: Event) {
        if event == Event::Stop {
            self.standby.dismiss();
        }
        for command in self.restarts.handle(self.now_ms(), event) {
            match command {
                Command::Start(index) => self.start(index),
                Command::Wait(_) => {}
                Command::Terminate(index) => self.signal(index, rustix::process::Signal::TERM),
                Command::Kill(index) => self.kill(index),
                Command::GiveUp(index, reason) => self.give_up(index, reason),
                Command::Finish => {
                    self.finished = true;
                    // What is waited for yet has lost its node: nothing of it is needed, and its mounts go.
                    (0..self.daemons.len()).for_each(|index| self.kill(index));
                }
            }
        }
    }

    fn start(&mut self, index: usize) {
        let started = match self.daemons.get_mut(index) {
            Some(daemon) => daemon.start(&self.program, &self.dir, &self.state, &self.secret, &self.lock),
            None => return,
        };
        match started {
            Ok(process) => {
                for node in self.nodes_of(index) {
                    node.process = Some(process);
                    node.life = NodeLife::Starting;
                }
                if let Some(server) = self.server_of(index) {
                    (*server.process, *server.life) = (Some(process), NodeLife::Starting);
                }
                self.changed = true;
            }
            // No process could be created: a shortage outside of the daemon, which will pass.
            Err(error) => {
                let why = error.to_string();
                log::warn!(why:% = why; "{} cannot be started", self.called(index));
                self.set_life(index, NodeLife::Restarting, Some(why.clone()));
                // Retried with growing delays, so this does not loop.
                self.event(Event::Hindered(index, why));
            }
        }
    }

    fn give_up(&mut self, index: usize, reason: String) {
        let called = self.called(index);
        log::error!(why:% = reason; "{called} is not started again");
        // Without the device, programs on its mounts get an error instead of waiting for ever.
        if let Some(daemon) = self.daemons.get_mut(index) {
            daemon.drop_mounts();
        }
        self.set_life(index, NodeLife::Failed, Some(reason.clone()));
        let lost: Vec<u16> = self.nodes_of(index).iter().map(|node| node.id).collect();
        self.revived.retain(|node| !lost.contains(node));
        lost.iter().for_each(|id| self.daemons.iter().for_each(|daemon| daemon.tell_dead(*id, true)));
        if self.phases.is_none() && self.state.part.is_some() && !lost.is_empty() {
            // The recipient of the report reads the state of its nodes.
            self.try_write_state();
            self.tell(&Report::GaveUp);
        }
        if self.phases.is_some() {
            self.phases = None;
            let message = format!("{}: {reason}", called.trim_start_matches("the daemon of "));
            self.state.message = Some(message.clone());
            self.tell(&Report::Failed { message });
            self.event(Event::Stop);
        }
    }

    /// Kills a daemon, also one that waits for itself in a mount of this formation: only the kernel can end such a
    /// request.
    fn kill(&mut self, index: usize) {
        self.signal(index, rustix::process::Signal::KILL);
        // Another daemon may be waiting in a mount of this one.
        for mount in self.daemons.iter().flat_map(|daemon| &daemon.mounts) {
            if !abort(mount.connection)
                && let Ok(device) = mount.device.try_clone()
            {
                refuse_all(device);
            }
        }
    }

    fn look_at_places(&mut self) {
        for (id, trouble) in self.places.look() {
            let Some(mount) = self.state.mounts.iter_mut().find(|mount| mount.id == id) else { continue };
            match &trouble {
                Some(trouble) => log::error!(why:% = trouble; "mount {}", mount.dir.display()),
                None => log::info!("mount {} is at its place again", mount.dir.display()),
            }
            mount.trouble = trouble;
            self.changed = true;
        }
    }

    fn signal(&mut self, index: usize, signal: rustix::process::Signal) {
        if let Some(running) = self.daemons.get(index).and_then(|daemon| daemon.running.as_ref()) {
            let _gone_meanwhile = rustix::process::pidfd_send_signal(&running.process, signal);
        }
        if self.state.stage != Stage::Stopping {
            self.state.stage = Stage::Stopping;
            self.try_write_state();
        }
    }

    fn set_life(&mut self, index: usize, life: NodeLife, message: Option<String>) {
        for node in self.nodes_of(index) {
            node.life = life;
            node.message = message.clone().or(node.message.take());
        }
        if let Some(server) = self.server_of(index) {
            *server.life = life;
            *server.message = message.or(server.message.take());
        }
        self.changed = true;
    }

    /// Tells the `up` that waits, as soon as the state file says so too.
    fn tell_when_ready(&mut self) {
        if self.phases.is_none() || !self.restarts.all_ready() {
            return;
        }
        if self.state.stage == Stage::Starting {
            self.state.stage = Stage::Running;
            // From now on there may be clients again.
            self.state.recovering = false;
            // Before programs can change anything: it tells these volumes from older copies.
            self.note_life(begin_life);
        }
        // Repeated on failure: a formation whose state says that it never started would be removed as one.
        if self.write_state().is_err() {
            return;
        }
        let Some(mut phases) = self.phases.take() else { return };
        phases.end("daemons");
        write_notes(&self.state);
        self.tell(&Report::Ready { phases: phases.into_steps() });
    }

    /// Notes something of the life that a recovery began; the first one needs no note.
    fn note_life(&self, note: fn(&FormationState, &[u8; SECRET_LEN])) {
        if self.state.recoveries > 0 {
            note(&self.state, &self.secret);
        }
    }

    fn tell(&mut self, report: &Report) {
        if let Some(socket) = &self.report
            && let Err(error) = packets::send(socket, report, &[])
        {
            log::warn!(why:% = error; "the command that started this formation does not hear");
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
