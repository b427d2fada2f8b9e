//! A node of a daemon, and the mounts that it serves.

use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bivouac_client::{
    Client, ClientOptions, Dirty, FenceRequest, FormationPlace, LocalFiles, LocalNode, LockDesk, LockWait,
    PoolStatus, SendPart,
};
use bivouac_direct::{Gate, GrantTable};
use bivouac_launch::handover::{FromNode, Handover, NodeHandles, NodeShare, SealOutcome, ServeMount};
use bivouac_launch::{LaunchError, StateDir, give_memory_back};
use bivouac_monitor::answer_question;
use bivouac_mount::{Mount, MountError, Options};
use bivouac_net::{InProcess, LaneKind, Listener, LivenessTable};
use bivouac_node::{
    Cache, LockClient, Node, NodeConfig, PagePool, RecoveryHistory, ServedClient, SystemClock, TokenHolder,
};
use bivouac_store::VolumeConfig;
use bivouac_types::limits::LEASE_MS;
use bivouac_types::{ClientId, Errno, FsError, Ino, NodeId, OpId, TargetIndex};
use bivouac_wire::{
    FormationMap, Frame, Invalidation, MirrorEntry, RecallTokensRequest, RecalledTokens, SealReplicaRequest,
    SetBackupRequest, op,
};
use log::Level;
use parking_lot::Mutex;

use super::host_peers::peers_of;
use super::{DaemonContext, failed};
use crate::failure::Failure;

/// Longest wait of a new daemon for each direct access under way.
const ACCESS_WAIT: Duration = Duration::from_millis(100);

/// Pause before a node is told again who its backup is.
const BACKUP_PAUSE: Duration = Duration::from_secs(1);

/// A node.
pub struct Part {
    /// Its number.
    pub id: NodeId,
    /// Its server side.
    pub node: Arc<Node>,
    liveness: Arc<LivenessTable>,
    /// The clients of its mounts, as long as they are there.
    clients: Mutex<Vec<Weak<Client>>>,
}

/// A node that is not served yet, and how it is to be.
pub type UnservedPart = (Part, bivouac_net::ServiceListeners);

/// The client of a mount hears of its locks from the node in its process.
struct MountLocks(Arc<LockDesk>);

impl LockClient for MountLocks {
    fn granted(&self, tickets: &[u64]) {
        self.0.granted(tickets);
    }

    fn waits(&self, owners: &[u64]) -> Vec<LockWait> {
        self.0.waits(owners)
    }

    fn look_again(&self, ticket: u64) {
        self.0.look_again(ticket);
    }

    fn settle(&self) {
        self.0.settle();
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

    fn report_accesses(&self) {
        if let Some(client) = self.0.upgrade() {
            client.report_accesses();
        }
    }
}

/// Caches of a mount's client and of its kernel, as long as the mount exists.
struct KernelCaches(Weak<Mount<Client>>);

impl Cache for KernelCaches {
    fn invalidate(&self, what: &[Invalidation]) -> Duration {
        let Some(mount) = self.0.upgrade() else { return Duration::from_millis(LEASE_MS) };
        mount.file_system().invalidate(what);
        let goes_on = what.iter().map(|one| match one.name {
            Some(hash) => mount.invalidate_name(one.ino, hash),
            None => mount.invalidate_attrs(one.ino),
        });
        goes_on.max().unwrap_or_default()
    }

    fn has_grown(&self, ino: Ino, size: u64) {
        if let Some(mount) = self.0.upgrade() {
            mount.has_grown(ino, size);
        }
    }
}

/// The range tokens of a mount's client.
struct ClientTokens(Arc<bivouac_client::Tokens>);

impl TokenHolder for ClientTokens {
    fn recall(&self, request: &RecallTokensRequest) -> RecalledTokens {
        self.0.recall(request)
    }
}

/// The content that a node has, for the mounts of its process.
struct Files(Arc<Node>);

impl LocalFiles for Files {
    fn send_part(
        &self,
        ino: Ino,
        target: TargetIndex,
        epoch: u32,
        range: Range<u64>,
        send: &mut SendPart<'_>,
    ) -> bool {
        let len = (range.end - range.start) as usize;
        self.0.send_part(ino, target, epoch, &range, |file, offset| send(file, offset, len))
    }
}

impl Part {
    /// Opens a node's volumes and listeners; it is not served yet.
    pub fn open(
        shared: &DaemonContext,
        share: &NodeShare,
        handles: NodeHandles,
    ) -> Result<UnservedPart, Failure> {
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
        node.on_asked(move |question| answer_question(&dir, question));
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
        let clients = Mutex::default();
        Ok((Part { id, node, liveness, clients }, bivouac_net::ServiceListeners { listeners, service }))
    }

    /// Takes a newer map, with the clients of all mounts.
    pub fn take_map(&self, map: &Arc<FormationMap>) {
        let mirror = |map: &FormationMap| map.mirrors.get(usize::from(self.id.0)).copied();
        let former = mirror(&self.node.newest_map());
        // First: a mount that is made meanwhile has its map from the node.
        if !self.node.take_map(map) {
            return;
        }
        if let Some(entry) =
            mirror(map).filter(|entry| former.is_none_or(|former| entry.epoch > former.epoch))
        {
            self.set_backup(entry);
        }
        self.discard_replicas();
        let clients: Vec<_> = self.clients.lock().iter().filter_map(Weak::upgrade).collect();
        for client in clients {
            client.take_map(map);
        }
    }

    /// Removes replicas of nodes that have another backup by now, once none of them can be in use.
    fn discard_replicas(&self) {
        let node = Arc::downgrade(&self.node);
        let discard = move || {
            // The node may end meanwhile.
            while let Some(wait) = node.upgrade().and_then(|node| node.discard_replicas()) {
                bivouac_net::pause(wait);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("replicas".into()).spawn(discard) {
            log::error!(why:% = error; "there is no thread to remove former replicas");
        }
    }

    /// Gives the node another backup, or none. It may have to wait for changes that are under way.
    fn set_backup(&self, MirrorEntry { backup, epoch }: MirrorEntry) {
        let (id, node, service) = (self.id, Arc::clone(&self.node), Arc::<Node>::clone(&self.node));
        let set = move || {
            let way = InProcess::new(service, LaneKind::Client);
            let request = SetBackupRequest { epoch, backup };
            // The map says so: what fails is done again, unless another thread has more recent orders.
            let is_newest = || {
                let map = node.newest_map();
                map.mirrors.get(usize::from(id.0)).is_none_or(|mirror| mirror.epoch <= epoch)
            };
            let mut failed = false;
            while is_newest() {
                match bivouac_net::call::<op::SetBackup>(&way, own_request(), &request, &[]) {
                    Ok(()) => {
                        return log::warn!("the backup of {id} is {backup:?} from now on, in epoch {epoch}");
                    }
                    Err(_) if node.is_sealed_in_vain() => {
                        // The next daemon begins in the epoch of this map.
                        log::error!("{id} does not move after all: its daemon is started again");
                        std::process::abort();
                    }
                    Err(error) if stays_refused(&error) => {
                        return log::error!(why:% = error; "the backup of {id} stays as it was");
                    }
                    Err(error) => {
                        if !std::mem::replace(&mut failed, true) {
                            log::error!(why:% = error; "the backup of {id} cannot be changed yet; tried again");
                        }
                        bivouac_net::pause(BACKUP_PAUSE);
                    }
                }
            }
        };
        // A thread for it: the supervisor is to be heard meanwhile.
        if let Err(error) = std::thread::Builder::new().name("backup".into()).spawn(set) {
            log::error!(why:% = error; "there is no thread to set the backup of {id}");
        }
    }

    /// Seals the replicas that this node has of another node's volumes, and tells the supervisor where they are once
    /// the other node's former daemon serves nothing any more.
    pub fn seal(&self, handover: &Arc<Handover>, node: NodeId, epoch: u32) {
        let (service, told) = (Arc::<Node>::clone(&self.node), Arc::clone(handover));
        let tell = move |outcome: Result<Vec<PathBuf>, String>| {
            told.tell(&FromNode::Sealed { sealed: SealOutcome { node: node.0, epoch, outcome } });
        };
        let seal = move || {
            let way = InProcess::new(service, LaneKind::Client);
            let request = SealReplicaRequest { node, epoch };
            tell(loop {
                match bivouac_net::call::<op::SealReplica>(&way, own_request(), &request, &[]) {
                    Ok(sealed) if sealed.wait_ms == 0 => {
                        break Ok(sealed.volumes.into_iter().map(PathBuf::from).collect());
                    }
                    Ok(sealed) => bivouac_net::pause(Duration::from_millis(u64::from(sealed.wait_ms))),
                    Err(error) if refuses_seal(&error) => {
                        break Err(format!("its replicas cannot be used: {error}"));
                    }
                    // The replicas may be whole: whoever wants them asks again.
                    Err(error) => {
                        return log::error!(why:% = error; "the replicas of {node} are not sealed yet");
                    }
                }
            });
        };
        if let Err(error) = std::thread::Builder::new().name("seal".into()).spawn(seal) {
            log::error!(why:% = error; "there is no thread to seal the replicas of {node}");
        }
    }

    /// Serves a mount in a thread of its own until it is unmounted.
    pub fn start_mount(&self, shared: &DaemonContext, handover: &Arc<Handover>, mount: ServeMount) {
        let (number, dir) = (mount.mount, mount.dir.clone());
        let memory = File::from(mount.memory);
        let client = {
            // Under the lock: a newer map is either in the node before this client is made, or comes to it behind that.
            let mut clients = self.clients.lock();
            let client = Arc::new(self.client_for(shared, number, bivouac_mount::incarnations(&memory)));
            clients.retain(|client| client.strong_count() > 0);
            clients.push(Arc::downgrade(&client));
            client
        };
        let id = ClientId::of_mount(shared.map.formation, self.id, number);
        // Before the mount says what it has: from then on the homes know it, and may tell it.
        self.node.serve(id, |served| {
            served.locks = Some(Arc::new(MountLocks(Arc::clone(&client.locks))));
            served.pages = Some(Arc::new(Pages(Arc::downgrade(&client))));
            served.tokens = Some(Arc::new(ClientTokens(Arc::clone(&client.tokens))));
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
                    node.serve(id, |served| {
                        // Before it serves anything: what the kernel is told from then on can be recalled.
                        served.cache = Some(Arc::new(KernelCaches(Arc::downgrade(&mounted))))
                    });
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
            node.serve(id, |served| *served = ServedClient::default());
            if let Some(message) = &message {
                log::error!(why:% = message; "mount {}", dir.display());
            }
            handover.tell(&FromNode::Ended { mount: number, message });
        };
        if let Err(error) = std::thread::Builder::new().name(format!("mount-{number}")).spawn(serve) {
            log::error!(why:% = error; "mount {number} has no thread");
        }
    }

    /// Returns where processes of this machine find the formation: beside the socket of this node.
    fn place(&self, shared: &DaemonContext) -> Option<Arc<FormationPlace>> {
        let node = shared.map.nodes.get(usize::from(self.id.0))?;
        let directory = Path::new(&node.unix_path).parent()?.to_owned();
        let (id, node, wait_ms) = (shared.map.formation, self.id, shared.config.wait_ms);
        Some(Arc::new(FormationPlace { id, node, wait_ms, directory }))
    }

    fn client_for(&self, shared: &DaemonContext, mount: u32, incarnation: u32) -> Client {
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
        Client::new(self.node.newest_map(), &shared.auth, Some(local), &options)
    }
}

/// Returns whether replicas are not to be used: of an error of the system it is not known.
fn refuses_seal(error: &FsError) -> bool {
    matches!(error.errno(), Errno::EAGAIN | Errno::ESTALE | Errno::EINVAL)
}

/// Returns whether it is of no use to say again who the backup is.
fn stays_refused(error: &FsError) -> bool {
    matches!(error.errno(), Errno::ESTALE | Errno::EINVAL | Errno::EOPNOTSUPP)
}

/// Returns the header of a request that a daemon makes of its own node.
fn own_request() -> Frame {
    Frame::request(0, OpId(0), ClientId(0), 0)
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

fn config_of(shared: &DaemonContext, share: &NodeShare, liveness: &Arc<LivenessTable>) -> NodeConfig {
    let has_moved = shared.map.nodes.get(usize::from(share.node)).is_some_and(|entry| entry.epoch > 0);
    let volume = |volume: &bivouac_launch::VolumeState| VolumeConfig {
        path: volume.path.clone(),
        capacity: volume.capacity_bytes,
        // A replica that is not there must not become an empty volume.
        create: volume.own_dir && !has_moved,
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
        secret: *shared.auth.secret.expose(),
        around: None,
        rounds: shared.rounds.clone(),
        past: RecoveryHistory {
            clients_ended: shared.config.recovering,
            was_recovered: shared.config.was_recovered,
        },
        switches: switches(shared),
        recorded: None,
    }
}

/// Returns the switch of each node, as a number.
fn switches(shared: &DaemonContext) -> Vec<Option<u16>> {
    let Some(domains) = &shared.config.domains else { return Vec::new() };
    let switches = domains.switches();
    let number = |name: &str| u16::try_from(switches.iter().position(|known| *known == name)?).ok();
    shared.map.nodes.iter().map(|node| number(domains.switch_of(&node.host)?)).collect()
}
