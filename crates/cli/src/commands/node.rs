//! `bivouac node`: one daemon, put together: server, mounts, and the client that serves them.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bivouac_client::{
    Client, ClientOptions, FormationPlace, LocalFiles, LocalNode, LockDesk, LockWait, SendPart,
};
use bivouac_direct::{Board, Gate};
use bivouac_launch::handover::{FromNode, Handover, NodeConfig, ServeMount, Start, Told};
use bivouac_launch::{LaunchError, Phases, Signals, StateDir, Surroundings, inherit};
use bivouac_mount::{Mount, MountError, Options};
use bivouac_net::{
    Address, Auth, Fates, Identity, LaneKind, Listener, NetError, Peer, PeerOptions, Secret, Server,
    ServerOptions, Transport,
};
use bivouac_node::{LockClient, NetPeers, Node, SystemClock};
use bivouac_store::VolumeConfig;
use bivouac_types::{ClientId, FsError, Ino, NodeId, SeatIndex};
use bivouac_wire::FormationMap;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Resource, Signal, getegid, getrlimit};

use crate::environment;
use crate::failure::Failure;
use crate::logging;

/// Descriptors that are left for connections and other things; half of the rest is for open subfiles.
const HANDLES_MIN: usize = 64;
const HANDLES_MAX: usize = 1 << 16;
/// How long a new daemon waits for each direct access that is under way.
const ACCESS_WAIT: Duration = Duration::from_millis(100);

/// Serves until told to end.
pub fn run(here: &Surroundings) -> Result<ExitCode, Failure> {
    logging::raise(here.log_level.as_deref());
    let (handover, start) = Handover::from_stdin()?;
    let handover = Arc::new(handover);
    let signals = Signals::catch(&[Signal::TERM, Signal::INT, Signal::HUP])
        .map_err(|e| LaunchError::system("signals", e))?;
    let mut phases = Phases::begin();
    match Daemon::open(here, start, &mut phases) {
        Ok(daemon) => {
            handover.tell(&FromNode::Ready { phases: phases.into_steps() });
            daemon.serve(&handover, &signals)
        }
        Err(failure) => {
            handover.tell(&FromNode::Failed { message: failure.to_string() });
            Err(failure)
        }
    }
}

/// The client of a mount hears of its locks from the node in its process.
struct Desk(Arc<LockDesk>);

impl LockClient for Desk {
    fn granted(&self, tickets: &[u64]) {
        self.0.granted(tickets);
    }

    fn waits(&self, owners: &[u64]) -> Vec<LockWait> {
        self.0.waits(owners)
    }

    fn look_again(&self, ticket: u64) {
        self.0.look_again(ticket);
    }

    fn doubt(&self) {
        self.0.doubt();
    }
}

/// The content that a node has, for the mounts of its process.
struct Files(Arc<Node>);

impl LocalFiles for Files {
    fn send_part(
        &self,
        ino: Ino,
        seat: SeatIndex,
        epoch: u32,
        range: Range<u64>,
        send: &mut SendPart<'_>,
    ) -> bool {
        let len = (range.end - range.start) as usize;
        self.0.send_part(ino, seat, epoch, &range, |file, offset| send(file, offset, len))
    }
}

/// The parts of a daemon.
struct Daemon {
    map: Arc<FormationMap>,
    auth: Auth,
    config: NodeConfig,
    /// This program's own file.
    program: PathBuf,
    node: Arc<Node>,
    fates: Arc<Fates>,
    server: Server,
    /// Readable once a client asked for the end.
    shutdown: File,
    /// Shows that the formation lives as long as it is open.
    _lock: std::os::fd::OwnedFd,
}

impl Daemon {
    fn open(here: &Surroundings, start: Start, phases: &mut Phases) -> Result<Daemon, Failure> {
        let Start { config, client, peer, unix, lock, board } = start;
        let map = Arc::new(config.map()?);
        let auth = Auth { formation: map.formation, secret: Secret::new(config.secret()?) };
        let (board, stuck) = take_board(board)?;
        let fates = Arc::new(Fates::new(map.nodes.len()));
        let peers = NetPeers::new(peers_of(&map, &auth, &config, &fates));
        let made =
            Node::open(node_config(here, &map, &config, &fates), Arc::new(peers), Arc::new(SystemClock));
        let (node, recovery) = made?;
        log::info!("node {} of formation {} has its records: {recovery:?}", config.node, map.name);
        node.lend(board, stuck).map_err(|e| LaunchError::system("memory for direct access", e))?;
        phases.end("records");
        let shutdown = shutdown_pipe(&node)?;
        let listeners = [
            (client.into(), LaneKind::Client),
            (unix.into(), LaneKind::Client),
            (peer.into(), LaneKind::Peer),
        ];
        let listen = |(socket, lane)| Listener::from_fd(socket).map(|listener| (listener, lane));
        let listeners = listeners.into_iter().map(listen).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let service = Arc::<Node>::clone(&node);
        let server =
            Server::start(listeners, service, auth.clone(), ServerOptions::default()).map_err(failed)?;
        node.on_forgotten(server.hang_up());
        node.start()?;
        config.lost.iter().for_each(|lost| node.is_lost(NodeId(*lost)));
        phases.end("server");
        Ok(Daemon {
            map,
            auth,
            config,
            program: here.program.clone(),
            node,
            fates,
            server,
            shutdown,
            _lock: lock,
        })
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
            Ok(Some(Told::Serve(mount))) => self.start_mount(handover, mount),
            Ok(Some(Told::Lost(node))) => self.node.is_lost(node),
            Ok(None) => {
                log::warn!("the supervisor is gone; this daemon serves on, but nobody starts it again");
                self.look_after_the_end();
                return false;
            }
            Err(error) => log::error!("what the supervisor says makes no sense: {error}"),
        }
        true
    }

    /// Without a supervisor, a daemon sees to it that the formation ends when it should.
    fn look_after_the_end(&self) {
        let (dir, program) = (StateDir::at(self.config.dir.clone()), self.program.clone());
        let inherit = move || {
            if let Err(error) = inherit(&dir, &program) {
                log::error!("nobody sees to it that the formation ends when it should: {error}");
            }
        };
        if let Err(error) = std::thread::Builder::new().name("heir".into()).spawn(inherit) {
            log::error!("there is no thread to see to the formation's end: {error}");
        }
    }

    /// Serves a mount in a thread of its own until it is unmounted.
    fn start_mount(&self, handover: &Arc<Handover>, mount: ServeMount) {
        let (number, dir) = (mount.mount, mount.dir.clone());
        let memory = File::from(mount.memory);
        let client = Arc::new(self.client_for(number, bivouac_mount::incarnations(&memory)));
        let id = ClientId::of_mount(self.map.formation, NodeId(self.config.node), number);
        // Before the mount says what it has: from then on the homes know it, and may tell it.
        self.node.serves(id, Some(Arc::new(Desk(Arc::clone(client.locks())))));
        let pool = Arc::downgrade(&client);
        let look = move || pool.upgrade().map(|client| client.page_pool()).unwrap_or_default();
        self.node.shows_pages(id, Some(Box::new(look)));
        let node = Arc::clone(&self.node);
        let options = Options { identity: id.0, formation: self.place(), ..Options::default() };
        let handover = Arc::clone(handover);
        let serve = move || {
            let pages = memory.try_clone();
            let mounted = Mount::new(Arc::clone(&client), mount.device, memory, options);
            let message = match mounted.and_then(|mounted| keep_pages(&client, pages).map(|()| mounted)) {
                Ok(mounted) => {
                    handover.tell(&FromNode::Serving { mount: number });
                    let outcome = mounted.run();
                    if outcome.is_ok() {
                        // Unmounted: no daemon will serve this mount again.
                        client.leave();
                    }
                    outcome.err().map(|error| error.to_string())
                }
                Err(error) => Some(error.to_string()),
            };
            node.serves(id, None);
            node.shows_pages(id, None);
            if let Some(message) = &message {
                log::error!("mount {}: {message}", dir.display());
            }
            handover.tell(&FromNode::Ended { mount: number, message });
        };
        if let Err(error) = std::thread::Builder::new().name(format!("mount-{number}")).spawn(serve) {
            log::error!("mount {number} has no thread: {error}");
        }
    }

    /// Where processes of this machine find the formation: beside the socket of this node.
    fn place(&self) -> Option<Arc<FormationPlace>> {
        let node = self.map.nodes.get(usize::from(self.config.node))?;
        let directory = Path::new(&node.unix_path).parent()?.to_owned();
        let (id, wait_ms) = (self.map.formation, self.config.wait_ms);
        Some(Arc::new(FormationPlace { id, wait_ms, directory }))
    }

    fn client_for(&self, mount: u32, incarnation: u32) -> Client {
        let id = NodeId(self.config.node);
        let service: Arc<Node> = Arc::clone(&self.node);
        let files = Arc::new(Files(Arc::clone(&self.node)));
        let local = LocalNode { id, service, files, fates: Arc::clone(&self.fates) };
        let options = ClientOptions {
            id: ClientId::of_mount(self.map.formation, id, mount),
            wait: Duration::from_millis(self.config.wait_ms),
            near: Some(id),
            incarnation,
            page_pool: self.config.page_pool,
        };
        Client::new(Arc::clone(&self.map), &self.auth, Some(local), &options)
    }

    fn end(self) -> ExitCode {
        log::info!("ending");
        self.server.stop();
        if let Err(error) = self.node.stop() {
            log::error!("{error}");
        }
        ExitCode::SUCCESS
    }
}

/// Pages of a mount's files outlive this daemon, in the memory that its supervisor keeps.
fn keep_pages(client: &Client, memory: std::io::Result<File>) -> Result<(), MountError> {
    Ok(client.keep_pages(memory?, bivouac_mount::PAGES_AT)?)
}

/// Ends the accesses that an earlier daemon allowed, before anything is counted or served.
fn take_board(board: std::os::fd::OwnedFd) -> Result<(Board, Vec<(u32, Gate)>), Failure> {
    let refused = |error| LaunchError::system("memory for direct access", error);
    let board = Board::open(board).map_err(refused)?;
    let stuck = board.close_all(ACCESS_WAIT).map_err(refused)?;
    Ok((board, stuck))
}

fn node_config(
    here: &Surroundings,
    map: &Arc<FormationMap>,
    config: &NodeConfig,
    fates: &Arc<Fates>,
) -> bivouac_node::NodeConfig {
    let volume = |volume: &bivouac_launch::VolumeState| VolumeConfig {
        path: volume.path.clone(),
        capacity: volume.capacity_bytes,
        create: volume.own_dir,
    };
    bivouac_node::NodeConfig {
        map: Arc::clone(map),
        id: NodeId(config.node),
        volumes: config.volumes.iter().map(volume).collect(),
        handles_max: handles_max(getrlimit(Resource::Nofile).current),
        owner: (here.uid, getegid().as_raw()),
        grace: Duration::from_millis(config.wait_ms),
        spread_at: config.spread_at,
        dead_after: config.dead_after_ms.map(Duration::from_millis),
        fates: Arc::clone(fates),
        objects: environment::objects(),
    }
}

fn handles_max(descriptors: Option<u64>) -> usize {
    let descriptors = descriptors.and_then(|count| usize::try_from(count).ok()).unwrap_or(HANDLES_MAX * 2);
    (descriptors / 2).clamp(HANDLES_MIN, HANDLES_MAX)
}

/// Ways to all nodes but this one, over the peer lane.
fn peers_of(
    map: &FormationMap,
    auth: &Auth,
    config: &NodeConfig,
    fates: &Arc<Fates>,
) -> Vec<Option<Arc<dyn Transport>>> {
    let client = ClientId(ClientId::PEER_BIT | u64::from(config.node));
    let way = |(id, entry): (usize, &bivouac_wire::NodeEntry)| -> Option<Arc<dyn Transport>> {
        let identity = Identity { auth: auth.clone(), client, lane: LaneKind::Peer };
        let address = Address::tcp(entry.peer_address.clone());
        let other = id != usize::from(config.node);
        let options = PeerOptions { wait_ms: config.wait_ms };
        let peer = || Peer::to(NodeId(id as u16), address, identity, options).heeding(fates);
        other.then(|| Arc::new(peer()) as Arc<dyn Transport>)
    };
    map.nodes.iter().enumerate().map(way).collect()
}

/// A pipe that a client's request to shut down makes readable.
fn shutdown_pipe(node: &Node) -> Result<File, Failure> {
    let (readable, writable) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(std::io::Error::from)?;
    node.on_shutdown(move || {
        if let Err(error) = rustix::io::write(&writable, &[1]) {
            log::error!("the request to end is lost: {error}");
        }
    });
    Ok(readable.into())
}

fn asked_to_end(signals: &Signals) -> bool {
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
        assert_eq!(handles_max(Some(1024)), 512);
        assert_eq!(handles_max(Some(10)), HANDLES_MIN);
        assert_eq!(handles_max(None), HANDLES_MAX);
    }
}
