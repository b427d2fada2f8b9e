//! `bivouac node`: one daemon, put together: its nodes, their server, and the mounts that they serve. It is one node,
//! or, where nodes share a process, all of this machine.

mod host_peers;
mod near;
mod part;

use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::available_parallelism;

use bivouac_launch::handover::{
    DaemonConfig, FromNode, Handover, NodeHandles, NodeShare, Start, SupervisorMessage,
};
use bivouac_launch::{
    Environment, LaunchError, MemoryGauge, Phases, ProcessId, Signals, StateDir, inherit,
    raise_descriptor_limit, stacks_of_all_threads,
};
use bivouac_net::{Auth, NetError, Secret, Server, ServerOptions};
use bivouac_node::Rounds;
use bivouac_store::Headroom;
use bivouac_types::{FsError, NodeId};
use bivouac_wire::FormationMap;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Resource, Signal, getrlimit};

use crate::environment;
use crate::failure::Failure;
use crate::logging;
use host_peers::HostPeers;
use part::{Part, UnservedPart};

/// Descriptors that are left for connections and other things; half of the rest is for open subfiles.
const HANDLES_MIN: usize = 64;
const HANDLES_MAX: usize = 1 << 16;
/// Fewest open subfiles of a node that shares its process.
const HANDLES_SHARED_MIN: usize = 2;
/// Descriptors of a node that shares its process, open subfiles aside.
const DESCRIPTORS_PER_NODE: usize = 12;
/// Threads that serve the clients of many nodes: more requests wait for peers at once than at one node.
const THREADS_SHARED: usize = 32;
/// Threads that change replicas, where volumes are mirrored.
const THREADS_MIRROR: usize = 4;

/// Serves until told to end.
pub fn run(here: &Environment) -> Result<ExitCode, Failure> {
    // Before anybody can have taken its place.
    let starter = ProcessId::parent();
    logging::raise(here, "daemon");
    raise_descriptor_limit();
    let (handover, start) = Handover::from_stdin()?;
    let handover = Arc::new(handover);
    let only = <&[NodeShare; 1]>::try_from(start.config.nodes.as_slice()).ok();
    logging::write_as(start.config.log_format, only.map(|[share]| share.node));
    let signals = Signals::catch(&[Signal::TERM, Signal::INT, Signal::HUP])
        .map_err(|e| LaunchError::system("signals", e))?;
    let mut phases = Phases::begin();
    match Daemon::open(here, start, starter, &mut phases) {
        Ok(daemon) => {
            handover.tell(&FromNode::Ready { phases: phases.into_steps() });
            daemon.watch(&handover)?;
            daemon.serve(&handover, &signals)
        }
        Err(failure) => {
            handover.tell(&FromNode::Failed { message: failure.to_string() });
            Err(failure)
        }
    }
}

/// Parts that the nodes of a daemon share.
struct DaemonContext {
    map: Arc<FormationMap>,
    auth: Auth,
    config: DaemonConfig,
    /// Most subfiles that a node keeps open.
    handles_max: usize,
    owner: (u32, u32),
    /// Settings of object stores, from the environment.
    objects: bivouac_source::Environment,
    host_peers: Arc<HostPeers>,
    rounds: Rounds,
    /// Memory that is left for all nodes of this process.
    memory: Arc<dyn Headroom>,
}

/// The parts of a daemon.
struct Daemon {
    shared: Arc<DaemonContext>,
    parts: Vec<Part>,
    /// This program's file.
    program: PathBuf,
    /// The supervisor that has started it.
    starter: Option<ProcessId>,
    server: Server,
    /// Readable once a client asked for the end.
    shutdown: File,
    /// Shows that the formation lives as long as it is open.
    _lock: std::os::fd::OwnedFd,
}

impl Daemon {
    fn open(
        here: &Environment,
        start: Start,
        starter: Option<ProcessId>,
        phases: &mut Phases,
    ) -> Result<Daemon, Failure> {
        let Start { config, lock, nodes } = start;
        let map = Arc::new(config.map()?);
        // Before there are threads, which all run where this one does.
        near::settle(here, &config, &map);
        let auth = Auth {
            formation: map.formation,
            secret: Secret::new(config.secret()?),
            is_secure: map.is_secure,
        };
        let shared = Arc::new(DaemonContext {
            host_peers: Arc::new(HostPeers::new(config.nodes.iter().map(|node| NodeId(node.node)))),
            rounds: Rounds::default(),
            memory: Arc::new(MemoryGauge::default()),
            handles_max: handles_max(getrlimit(Resource::Nofile).current, config.nodes.len()),
            owner: (here.uid, rustix::process::getegid().as_raw()),
            objects: environment::objects(),
            map,
            auth,
            config,
        });
        let made = make_all(&shared, nodes)?;
        phases.end("records");
        let (parts, served): (Vec<Part>, Vec<_>) = made.into_iter().unzip();
        // Before the server starts: requests of nodes of this process are calls, and may come at once.
        shared.host_peers.meet(parts.iter().map(|part| (part.id, &part.node)));
        let shutdown = shutdown_pipe(&parts)?;
        let server = Server::start_all(
            served,
            shared.auth.clone(),
            server_options(parts.len(), !shared.map.mirrors.is_empty()),
        );
        let server = server.map_err(failed)?;
        for (position, Part { node, .. }) in parts.iter().enumerate() {
            node.on_forgotten(server.hang_up(position));
            node.start()?;
            shared.config.lost.iter().for_each(|lost| node.declare_lost(NodeId(*lost)));
        }
        phases.end("server");
        Ok(Daemon { shared, parts, program: here.program.clone(), starter, server, shutdown, _lock: lock })
    }

    /// Looks after the nodes: where one stands still, its process ends, and the supervisor starts another.
    fn watch(&self, handover: &Arc<Handover>) -> Result<(), Failure> {
        let nodes: Vec<_> = self.parts.iter().map(|part| Arc::clone(&part.node)).collect();
        let handover = Arc::clone(handover);
        let watch = move || {
            let what = bivouac_node::watch(&nodes, bivouac_node::StandstillLimits::default());
            let message =
                format!("it stood still and was ended: {what}; its log has the stacks of its threads");
            log::error!("{message}\n{}", stacks_of_all_threads());
            handover.tell(&FromNode::Failed { message });
            // Not in order: to end a node in order is to wait for what stands still.
            std::process::abort();
        };
        let thread = std::thread::Builder::new().name("watch".into()).spawn(watch);
        thread.map(drop).map_err(|e| LaunchError::system("a thread that looks after the nodes", e).into())
    }

    /// Waits for mounts to serve, and for the end.
    fn serve(self, handover: &Arc<Handover>, signals: &Signals) -> Result<ExitCode, Failure> {
        let mut supervised = true;
        loop {
            let mut polled =
                vec![PollFd::new(signals, PollFlags::IN), PollFd::new(&self.shutdown, PollFlags::IN)];
            if supervised {
                polled.push(PollFd::new(handover.as_ref(), PollFlags::IN));
            }
            retry_on_intr(|| poll(&mut polled, None)).map_err(|e| LaunchError::system("poll", e))?;
            let ready: Vec<bool> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
            if ready.get(2) == Some(&true) {
                supervised = self.take_told(handover);
            }
            if ready.get(1) == Some(&true) || asked_to_end(signals) {
                return Ok(self.end());
            }
        }
    }

    /// Takes what the supervisor says; answers whether there is still one.
    fn take_told(&self, handover: &Arc<Handover>) -> bool {
        match handover.next() {
            Ok(Some(SupervisorMessage::Serve(mount))) => {
                match self.parts.iter().find(|part| part.id == mount.node) {
                    Some(part) => part.start_mount(&self.shared, handover, mount),
                    None => log::error!("{} is none of this daemon: it serves no mount", mount.node),
                }
            }
            Ok(Some(SupervisorMessage::Lost(node))) => {
                self.parts.iter().for_each(|part| part.node.declare_lost(node))
            }
            Ok(Some(SupervisorMessage::Map(map))) => {
                let map = Arc::new(*map);
                self.parts.iter().for_each(|part| part.take_map(&map));
            }
            Ok(Some(SupervisorMessage::Seal { backup, node, epoch })) => {
                match self.parts.iter().find(|part| part.id == backup) {
                    Some(part) => part.seal(handover, node, epoch),
                    None => log::error!("{backup} is none of this daemon: it has no replicas of {node}"),
                }
            }
            Ok(Some(SupervisorMessage::Returned(node))) => {
                self.parts.iter().for_each(|part| part.node.declare_returned(node));
            }
            Ok(None) => {
                log::warn!("the supervisor is gone; this daemon serves on, but nobody starts it again");
                self.look_after_the_end();
                return false;
            }
            Err(error) => log::error!(why:% = error; "what the supervisor says makes no sense"),
        }
        true
    }

    /// Starts the thread by which a daemon without a supervisor sees to it that the formation ends when it should.
    fn look_after_the_end(&self) {
        let (dir, program) = (StateDir::at(self.shared.config.dir.clone()), self.program.clone());
        let starter = self.starter;
        let inherit = move || {
            if let Err(error) = inherit(&dir, &program, starter) {
                log::error!(why:% = error; "nobody sees to it that the formation ends when it should");
            }
        };
        if let Err(error) = std::thread::Builder::new().name("successor".into()).spawn(inherit) {
            log::error!(why:% = error; "there is no thread to see to the formation's end");
        }
    }

    fn end(self) -> ExitCode {
        log::info!("ending");
        // First: a request that comes while a node stops would find half of it.
        self.server.stop();
        for part in &self.parts {
            if let Err(error) = part.node.stop() {
                log::error!(why:% = error; "{}", part.id);
            }
        }
        ExitCode::SUCCESS
    }
}

/// Opens all nodes, several at a time.
fn make_all(shared: &DaemonContext, handles: Vec<NodeHandles>) -> Result<Vec<UnservedPart>, Failure> {
    // It is looked for in several files, so not for one node.
    let processors = || available_parallelism().map_or(1, usize::from);
    let threads = if handles.len() == 1 { 1 } else { processors().min(handles.len()).max(1) };
    let each = handles.len().div_ceil(threads);
    let mut todo = shared.config.nodes.iter().zip(handles);
    let make = |some: Vec<(&NodeShare, NodeHandles)>| -> Result<Vec<UnservedPart>, Failure> {
        some.into_iter().map(|(share, handles)| Part::open(shared, share, handles)).collect()
    };
    let panicked = || Failure::new(1, "a node could not be opened: it panicked");
    std::thread::scope(|scope| {
        // In order: the server knows nodes by their positions.
        let own: Vec<_> = todo.by_ref().take(each).collect();
        let others: Vec<Vec<_>> = (1..threads).map(|_| todo.by_ref().take(each).collect()).collect();
        let others: Vec<_> = others.into_iter().map(|some| scope.spawn(move || make(some))).collect();
        let mut made = make(own)?;
        for other in others {
            made.extend(other.join().unwrap_or_else(|_| Err(panicked()))?);
        }
        Ok(made)
    })
}

/// Returns the options of the server. The default threads suffice for one node; those of several are shared.
fn server_options(nodes: usize, is_mirrored: bool) -> ServerOptions {
    let mut options = ServerOptions::default();
    if nodes > 1 {
        options.threads_client = THREADS_SHARED;
    }
    if is_mirrored {
        options.threads_mirror = THREADS_MIRROR;
    }
    options
}

/// Returns how many subfiles a node may keep open, with so many descriptors for so many nodes.
fn handles_max(descriptors: Option<u64>, nodes: usize) -> usize {
    let descriptors = descriptors.and_then(|count| usize::try_from(count).ok()).unwrap_or(HANDLES_MAX * 2);
    if nodes == 1 {
        return (descriptors / 2).clamp(HANDLES_MIN, HANDLES_MAX);
    }
    let left = descriptors.saturating_sub(nodes * DESCRIPTORS_PER_NODE);
    (left / 2 / nodes).clamp(HANDLES_SHARED_MIN, HANDLES_MAX)
}

/// Returns a pipe that a client's request to shut down makes readable.
fn shutdown_pipe(parts: &[Part]) -> Result<File, Failure> {
    let (readable, writable) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(std::io::Error::from)?;
    let writable = Arc::new(writable);
    for part in parts {
        let writable = Arc::clone(&writable);
        part.node.on_shutdown(move || {
            if let Err(error) = rustix::io::write(&*writable, &[1]) {
                log::error!(why:% = error; "the request to end is lost");
            }
        });
    }
    Ok(readable.into())
}

fn asked_to_end(signals: &Signals) -> bool {
    // A hang-up is that of the terminal at which the formation was started, which it outlives.
    std::iter::from_fn(|| signals.next()).any(|signal| signal.number != Signal::HUP.as_raw())
}

fn failed(error: NetError) -> Failure {
    Failure::from(FsError::from(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_subfiles_leave_descriptors_for_others() {
        assert_eq!(handles_max(Some(1024), 1), 512);
        assert_eq!(handles_max(Some(10), 1), HANDLES_MIN);
        assert_eq!(handles_max(None, 1), HANDLES_MAX);
        assert_eq!(handles_max(Some(20_000), 1000), 4);
        assert_eq!(handles_max(Some(12_200), 1000), HANDLES_SHARED_MIN);
    }
}
