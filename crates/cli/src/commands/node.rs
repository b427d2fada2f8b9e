//! `bivouac node`: one daemon, put together: server, mounts, and the client that serves them.

use std::fs::File;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bivouac_client::{Client, ClientOptions, LocalNode, LockDesk, LockWait};
use bivouac_direct::{Board, Gate};
use bivouac_launch::handover::{FromNode, Handover, NodeConfig, ServeMount, Start};
use bivouac_launch::{LaunchError, Phases, Signals, Surroundings};
use bivouac_mount::{Mount, Options};
use bivouac_net::{
    Address, Auth, Identity, LaneKind, Listener, NetError, Peer, PeerOptions, Secret, Server, ServerOptions,
    Transport,
};
use bivouac_node::{LockClient, NetPeers, Node, SystemClock};
use bivouac_store::VolumeConfig;
use bivouac_types::{ClientId, FsError, NodeId};
use bivouac_wire::FormationMap;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Resource, Signal, getegid, getrlimit};

use crate::failure::Failure;
use crate::logging;

/// Set in the number of a node that is a client of its peers.
const NODE_BIT: u64 = 1 << 63;
/// Bits of a mount's client number that hold the number of the mount, and above them those of the node.
const MOUNT_BITS: u32 = 32;
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
struct Told(Arc<LockDesk>);

impl LockClient for Told {
    fn granted(&self, tickets: &[u64]) {
        self.0.granted(tickets);
    }

    fn waits(&self, owners: &[u64]) -> Vec<LockWait> {
        self.0.waits(owners)
    }

    fn look_again(&self, ticket: u64) {
        self.0.look_again(ticket);
    }
}

/// The parts of a daemon.
struct Daemon {
    map: Arc<FormationMap>,
    auth: Auth,
    config: NodeConfig,
    node: Arc<Node>,
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
        let peers = NetPeers::new(peers_of(&map, &auth, &config));
        let made = Node::open(node_config(here, &map, &config), Arc::new(peers), Arc::new(SystemClock));
        let (node, recovery) = made?;
        log::info!("node {} of formation {} has its records: {recovery:?}", config.node, map.name);
        node.lend(board, stuck);
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
        node.start()?;
        phases.end("server");
        Ok(Daemon { map, auth, config, node, server, shutdown, _lock: lock })
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
                supervised = self.take_mount(handover);
            }
            if ready.get(1) == Some(&true) || asked_to_end(signals) {
                return Ok(self.end());
            }
        }
    }

    /// Takes the next mount; answers whether there is still a supervisor.
    fn take_mount(&self, handover: &Arc<Handover>) -> bool {
        match handover.next() {
            Ok(Some(mount)) => self.start_mount(handover, mount),
            Ok(None) => {
                log::warn!("the supervisor is gone; this daemon serves on, but nobody starts it again");
                return false;
            }
            Err(error) => log::error!("what the supervisor says makes no sense: {error}"),
        }
        true
    }

    /// Serves a mount in a thread of its own until it is unmounted.
    fn start_mount(&self, handover: &Arc<Handover>, mount: ServeMount) {
        let (number, dir) = (mount.mount, mount.dir.clone());
        let memory = File::from(mount.memory);
        let client = Arc::new(self.client_for(number, bivouac_mount::incarnations(&memory)));
        let id = ClientId(identity_of(&self.map, self.config.node, number));
        // Before the mount says what it has: from then on the homes know it, and may tell it.
        self.node.serves(id, Some(Arc::new(Told(Arc::clone(client.locks())))));
        let node = Arc::clone(&self.node);
        let options =
            Options { identity: identity_of(&self.map, self.config.node, number), ..Options::default() };
        let handover = Arc::clone(handover);
        let serve = move || {
            let message = match Mount::new(Arc::clone(&client), mount.device, memory, options) {
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
            if let Some(message) = &message {
                log::error!("mount {}: {message}", dir.display());
            }
            handover.tell(&FromNode::Ended { mount: number, message });
        };
        if let Err(error) = std::thread::Builder::new().name(format!("mount-{number}")).spawn(serve) {
            log::error!("mount {number} has no thread: {error}");
        }
    }

    fn client_for(&self, mount: u32, incarnation: u32) -> Client {
        let id = NodeId(self.config.node);
        let service: Arc<Node> = Arc::clone(&self.node);
        let local = LocalNode { id, service };
        let options = ClientOptions {
            id: ClientId(identity_of(&self.map, self.config.node, mount)),
            wait: Duration::from_millis(self.config.wait_ms),
            near: Some(id),
            incarnation,
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
    }
}

fn handles_max(descriptors: Option<u64>) -> usize {
    let descriptors = descriptors.and_then(|count| usize::try_from(count).ok()).unwrap_or(HANDLES_MAX * 2);
    (descriptors / 2).clamp(HANDLES_MIN, HANDLES_MAX)
}

/// Ways to all nodes but this one, over the peer lane.
fn peers_of(map: &FormationMap, auth: &Auth, config: &NodeConfig) -> Vec<Option<Arc<dyn Transport>>> {
    let client = ClientId(NODE_BIT | u64::from(config.node));
    let way = |(id, entry): (usize, &bivouac_wire::NodeEntry)| -> Option<Arc<dyn Transport>> {
        let identity = Identity { auth: auth.clone(), client, lane: LaneKind::Peer };
        let address = Address::tcp(entry.peer_address.clone());
        let other = id != usize::from(config.node);
        let options = PeerOptions { wait_ms: config.wait_ms };
        other.then(|| Arc::new(Peer::to(NodeId(id as u16), address, identity, options)) as Arc<dyn Transport>)
    };
    map.nodes.iter().enumerate().map(way).collect()
}

/// A mount's number as a client: the same after a restart of the daemon, and no other client's.
fn identity_of(map: &FormationMap, node: u16, mount: u32) -> u64 {
    let [a, b, ..] = map.formation.0;
    let salt = u64::from(u16::from_le_bytes([a, b])) << (MOUNT_BITS + 16);
    !NODE_BIT & (salt | u64::from(node) << MOUNT_BITS | u64::from(mount))
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
    use bivouac_types::FormationId;

    #[test]
    fn mounts_are_told_apart_and_from_nodes() {
        let map = FormationMap {
            version: 1,
            formation: FormationId([0xff; 16]),
            name: String::new(),
            slots: vec![NodeId(0)],
            nodes: vec![],
            seats: vec![],
            stripe: 4096,
            width: 0,
        };
        let numbers =
            [(0, 1), (0, 2), (1, 1), (4095, u32::MAX)].map(|(node, mount)| identity_of(&map, node, mount));
        assert!(numbers.iter().all(|number| number & NODE_BIT == 0));
        let apart: std::collections::BTreeSet<u64> = numbers.into_iter().collect();
        assert_eq!(apart.len(), numbers.len());
    }

    #[test]
    fn open_subfiles_leave_descriptors_for_others() {
        assert_eq!(handles_max(Some(1024)), 512);
        assert_eq!(handles_max(Some(10)), HANDLES_MIN);
        assert_eq!(handles_max(None), HANDLES_MAX);
    }
}
