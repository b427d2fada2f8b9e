//! One node of a daemon, and the mounts that it serves.

use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bivouac_client::{
    Client, ClientOptions, Dirty, FenceRequest, FormationPlace, LocalFiles, LocalNode, LockDesk, LockWait,
    PoolStatus, SendPart,
};
use bivouac_direct::{Gate, GrantTable};
use bivouac_launch::handover::{FromNode, Handover, NodeHandles, NodeShare, ServeMount};
use bivouac_launch::{LaunchError, StateDir, give_memory_back};
use bivouac_mount::{Mount, MountError, Options};
use bivouac_net::{LaneKind, Listener, LivenessTable};
use bivouac_node::{Cache, LockClient, Node, NodeConfig, PagePool, Past, Served, SystemClock};
use bivouac_store::VolumeConfig;
use bivouac_types::limits::LEASE_MS;
use bivouac_types::{ClientId, Ino, NodeId, SeatIndex};
use bivouac_wire::Invalidation;
use log::Level;

use super::host_peers::peers_of;
use super::{Shared, failed};
use crate::failure::Failure;
use crate::host_notes;

/// How long a new daemon waits for each direct access that is under way.
const ACCESS_WAIT: Duration = Duration::from_millis(100);

/// One node.
pub struct Part {
    /// Which.
    pub id: NodeId,
    /// Its server side.
    pub node: Arc<Node>,
    liveness: Arc<LivenessTable>,
}

/// A node that is not served yet, and how it is to be.
pub type Made = (Part, bivouac_net::Served);

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

/// The page pool of a mount, while that is there.
struct Pages(Weak<Client>);

impl PagePool for Pages {
    fn status(&self) -> PoolStatus {
        self.0.upgrade().map(|client| client.sessions.status()).unwrap_or_default()
    }

    fn tell_unsent(&self, request: &FenceRequest) -> Vec<Dirty> {
        self.0.upgrade().map(|client| client.sessions.tell_unsent(request)).unwrap_or_default()
    }

    fn tell_uses(&self) {
        if let Some(client) = self.0.upgrade() {
            client.tell_uses();
        }
    }
}

/// What a mount's client and the kernel that it answers cache, while the mount is there.
struct Kernel(Weak<Mount<Client>>);

impl Cache for Kernel {
    fn invalidate(&self, what: &[Invalidation]) -> Duration {
        let Some(mount) = self.0.upgrade() else { return Duration::from_millis(LEASE_MS) };
        mount.file_system().invalidate(what);
        let goes_on = what.iter().map(|one| match one.name {
            Some(hash) => mount.invalidate_name(one.ino, hash),
            None => mount.invalidate_attrs(one.ino),
        });
        goes_on.max().unwrap_or_default()
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

impl Part {
    /// Opens a node's volumes and listeners; it is not served yet.
    ///
    /// # Errors
    /// What cannot be opened.
    pub fn open(shared: &Shared, share: &NodeShare, handles: NodeHandles) -> Result<Made, Failure> {
        let NodeHandles { client, peer, unix, grants, recorded } = handles;
        let id = NodeId(share.node);
        let (grants, stuck) = take_grant_table(grants)?;
        let liveness = Arc::new(LivenessTable::new(shared.map.nodes.len()));
        let peers = peers_of(shared, id, &liveness);
        let config = NodeConfig { recorded: Some(recorded), ..config_of(shared, share, &liveness) };
        let made = Node::open(config, peers, Arc::new(SystemClock));
        let (node, recovery) = made?;
        // A thousand such lines would say less than those between them.
        let level = if shared.config.nodes.len() == 1 { Level::Info } else { Level::Debug };
        log::log!(level, "{id} of formation {} has its records: {recovery}", shared.map.name);
        let dir = StateDir::at(shared.config.dir.clone());
        node.on_asked(move |question| host_notes::answer(&dir, question));
        node.shares_memory(&shared.memory);
        node.bound_names(shared.config.names_memory, Some(Arc::clone(&shared.memory)), give_memory_back);
        node.lend(grants, stuck).map_err(|e| LaunchError::system("memory for direct access", e))?;
        let listeners = [
            (client.into(), LaneKind::Client),
            (unix.into(), LaneKind::Client),
            (peer.into(), LaneKind::Peer),
        ];
        let listen = |(socket, lane)| Listener::from_fd(socket).map(|listener| (listener, lane));
        let listeners = listeners.into_iter().map(listen).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let service = Arc::<Node>::clone(&node);
        Ok((Part { id, node, liveness }, bivouac_net::Served { listeners, service }))
    }

    /// Serves a mount in a thread of its own until it is unmounted.
    pub fn start_mount(&self, shared: &Shared, handover: &Arc<Handover>, mount: ServeMount) {
        let (number, dir) = (mount.mount, mount.dir.clone());
        let memory = File::from(mount.memory);
        let client = Arc::new(self.client_for(shared, number, bivouac_mount::incarnations(&memory)));
        let id = ClientId::of_mount(shared.map.formation, self.id, number);
        // Before the mount says what it has: from then on the homes know it, and may tell it.
        self.node.serve(id, |served| {
            served.locks = Some(Arc::new(Desk(Arc::clone(&client.locks))));
            served.pages = Some(Arc::new(Pages(Arc::downgrade(&client))));
        });
        client.sessions.write_back();
        let node = Arc::clone(&self.node);
        let options = Options { identity: id.0, formation: self.place(shared), ..Options::default() };
        let handover = Arc::clone(handover);
        let serve = move || {
            let pages = memory.try_clone();
            let mounted = Mount::new(Arc::clone(&client), mount.device, memory, options);
            let message = match mounted.and_then(|mounted| keep_pages(&client, pages).map(|()| mounted)) {
                Ok(mounted) => {
                    let mounted = Arc::new(mounted);
                    node.serve(id, |served| served.cache = Some(Arc::new(Kernel(Arc::downgrade(&mounted)))));
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
            node.serve(id, |served| *served = Served::default());
            if let Some(message) = &message {
                log::error!(why:% = message; "mount {}", dir.display());
            }
            handover.tell(&FromNode::Ended { mount: number, message });
        };
        if let Err(error) = std::thread::Builder::new().name(format!("mount-{number}")).spawn(serve) {
            log::error!(why:% = error; "mount {number} has no thread");
        }
    }

    /// Where processes of this machine find the formation: beside the socket of this node.
    fn place(&self, shared: &Shared) -> Option<Arc<FormationPlace>> {
        let node = shared.map.nodes.get(usize::from(self.id.0))?;
        let directory = Path::new(&node.unix_path).parent()?.to_owned();
        let (id, node, wait_ms) = (shared.map.formation, self.id, shared.config.wait_ms);
        Some(Arc::new(FormationPlace { id, node, wait_ms, directory }))
    }

    fn client_for(&self, shared: &Shared, mount: u32, incarnation: u32) -> Client {
        let service: Arc<Node> = Arc::clone(&self.node);
        let files = Arc::new(Files(Arc::clone(&self.node)));
        let (liveness, untold) = (Arc::clone(&self.liveness), self.node.untold());
        let local = LocalNode { id: self.id, service, files, liveness, untold };
        let options = ClientOptions {
            id: ClientId::of_mount(shared.map.formation, self.id, mount),
            wait: Duration::from_millis(shared.config.wait_ms),
            near: Some(self.id),
            incarnation,
            page_pool: shared.config.page_pool,
        };
        Client::new(Arc::clone(&shared.map), &shared.auth, Some(local), &options)
    }
}

/// Pages of a mount's files outlive this daemon, in the memory that its supervisor keeps.
fn keep_pages(client: &Client, memory: std::io::Result<File>) -> Result<(), MountError> {
    Ok(client.sessions.keep(memory?, bivouac_mount::PAGES_AT)?)
}

/// Ends the accesses that an earlier daemon allowed, before anything is counted or served.
fn take_grant_table(grants: OwnedFd) -> Result<(GrantTable, Vec<(u32, Gate)>), Failure> {
    let refused = |error| LaunchError::system("memory for direct access", error);
    let grants = GrantTable::open(grants).map_err(refused)?;
    let stuck = grants.close_all(ACCESS_WAIT).map_err(refused)?;
    Ok((grants, stuck))
}

fn config_of(shared: &Shared, share: &NodeShare, liveness: &Arc<LivenessTable>) -> NodeConfig {
    let volume = |volume: &bivouac_launch::VolumeState| VolumeConfig {
        path: volume.path.clone(),
        capacity: volume.capacity_bytes,
        create: volume.own_dir,
    };
    NodeConfig {
        map: Arc::clone(&shared.map),
        id: NodeId(share.node),
        volumes: share.volumes.iter().map(volume).collect(),
        handles_max: shared.handles_max,
        owner: shared.owner,
        grace: Duration::from_millis(shared.config.wait_ms),
        spread_at: shared.config.spread_at,
        checksum: shared.config.checksum,
        dead_after: shared.config.dead_after_ms.map(Duration::from_millis),
        liveness: Arc::clone(liveness),
        objects: shared.objects.clone(),
        around: None,
        rounds: shared.rounds.clone(),
        past: Past { clients_ended: shared.config.recovering, was_recovered: shared.config.was_recovered },
        switches: switches(shared),
        recorded: None,
    }
}

/// The switch of each node, as a number.
fn switches(shared: &Shared) -> Vec<Option<u16>> {
    let Some(domains) = &shared.config.domains else { return Vec::new() };
    let switches = domains.switches();
    let number = |name: &str| u16::try_from(switches.iter().position(|known| *known == name)?).ok();
    shared.map.nodes.iter().map(|node| number(domains.switch_of(&node.host)?)).collect()
}
