//! The client: its parts, and how it is made.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bivouac_layout::entry_hash;
use bivouac_net::{Address, Auth, Identity, InProcess, LaneKind, LivenessTable, Peer, Service, Transport};
use bivouac_types::{Attr, ClientId, Ino, NodeId, OpId, SeatIndex};
use bivouac_wire::{Flags, FormationMap, Invalidation, NodeEntry};

use crate::closings::Closings;
use crate::direct::Direct;
use crate::entries::EntryCache;
use crate::glimpse::Glimpses;
use crate::known::KnownFiles;
use crate::leases::Leases;
use crate::local::LocalFiles;
use crate::locks::{Heeded, LockDesk};
use crate::session::Sessions;
use crate::spread::SpreadDirs;
use crate::uses::Uses;
use crate::watch::Keeper;
use crate::ways::{Way, Ways, address_of, keeper};
use crate::whole::WholeDirs;

/// Longest wait for a socket that is to be on this machine.
const PROBE: Duration = Duration::from_millis(200);

/// Identity of one changing operation, so that it happens once however often it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpCtx {
    /// Unique within the client and channel.
    pub id: OpId,
    /// One changing operation at a time.
    pub channel: u16,
    /// Whether an earlier process of this client may have sent it before.
    pub retry: bool,
    /// Owner of what is made.
    pub uid: u32,
    /// Group of what is made.
    pub gid: u32,
    /// The process that asks.
    pub pid: u32,
}

/// An inode to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewInode<'a> {
    /// Type and permission bits, umask applied.
    pub mode: u32,
    /// Device number of a device node.
    pub rdev: u32,
    /// Target of a symbolic link.
    pub target: &'a [u8],
}

/// Outcome of an opening create.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// Attributes of the open file.
    pub attr: Attr,
    /// Whether it was there before.
    pub existed: bool,
}

/// What to seek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekKind {
    /// The next byte that is not in a hole.
    Data,
    /// The next hole.
    Hole,
}

/// The node in the client's own process.
pub struct LocalNode {
    /// Which it is.
    pub id: NodeId,
    /// Its server side.
    pub service: Arc<dyn Service>,
    /// Which nodes it knows to be dead.
    pub liveness: Arc<LivenessTable>,
    /// Its content.
    pub files: Arc<dyn LocalFiles>,
}

/// Settings of a client.
pub struct ClientOptions {
    /// Who this is; stable over restarts of its process if operations are to survive them.
    pub id: ClientId,
    /// How long to wait for a node that does not answer.
    pub wait: Duration,
    /// The node that "local" means: files of local placement go there.
    pub near: Option<NodeId>,
    /// How many processes have been this client before.
    pub incarnation: u32,
    /// Most bytes of pages under the session contract.
    pub page_pool: u64,
}

/// A formation, seen from one process.
pub struct Client {
    pub(crate) map: Arc<FormationMap>,
    pub(crate) ways: Arc<Ways>,
    pub(crate) local: Option<NodeId>,
    pub(crate) files: Option<Arc<dyn LocalFiles>>,
    pub(crate) known: Arc<KnownFiles>,
    pub(crate) direct: Direct,
    /// How often this process's ancestors had been forked when it was made.
    pub(crate) forks: u32,
    near: Vec<SeatIndex>,
    pub(crate) leases: Leases,
    pub(crate) spread: SpreadDirs,
    pub(crate) glimpses: Glimpses,
    pub(crate) whole: WholeDirs,
    /// How its files are used.
    pub(crate) uses: Uses,
    pub(crate) keeper: Option<Keeper>,
    /// Where threads may be started: what other nodes hear a little later.
    pub(crate) closings: Option<Closings>,
    pub(crate) locks: Arc<LockDesk>,
    pub(crate) partitions: crate::partitions::Known,
    pub(crate) sessions: Sessions,
    pub(crate) asked: crate::saving::Asked,
    /// In a process that is no node.
    pub(crate) entries: Option<EntryCache>,
}

impl Client {
    /// A client of the formation that the map describes. Connections are made when they are needed.
    #[must_use]
    pub fn new(
        map: Arc<FormationMap>,
        auth: &Auth,
        local: Option<LocalNode>,
        options: &ClientOptions,
    ) -> Client {
        let known = Arc::new(KnownFiles::new(options.incarnation));
        let keeper = keeper(&map, &known);
        let doubts = Arc::new(OnceLock::new());
        let way = |(id, entry): (usize, &NodeEntry)| match &local {
            Some(node) if usize::from(node.id.0) == id => None,
            _ => {
                let doubts = Some(&doubts);
                let way = Way { map: &map, known: &known, auth, options, keeper: keeper.as_ref(), doubts };
                let host = local.as_ref().and_then(|node| map.nodes.get(usize::from(node.id.0)));
                let peer = way.to(NodeId(id as u16), address_of(entry, host));
                Some(Arc::new(match &local {
                    Some(node) => peer.heeding(&node.liveness),
                    None => peer,
                }))
            }
        };
        let peers: Vec<Option<Arc<Peer>>> = map.nodes.iter().enumerate().map(way).collect();
        if let Some((keeper, _)) = &keeper {
            keeper.keep(peers.iter().map(|peer| peer.as_ref().map(Arc::downgrade)).collect());
        }
        let transport = |peer: Option<Arc<Peer>>| -> Option<Arc<dyn Transport>> {
            let here = |node: &LocalNode| -> Arc<dyn Transport> {
                Arc::new(InProcess::new(Arc::clone(&node.service), LaneKind::Client))
            };
            peer.map(|peer| peer as Arc<dyn Transport>).or_else(|| local.as_ref().map(here))
        };
        let nodes: Vec<_> = peers.into_iter().filter_map(transport).collect();
        let closings = Some(Closings::new(options.id, Arc::clone(&known), &nodes));
        let (local, files) = local.map(|node| ((node.id, node.liveness), node.files)).unzip();
        let keeper = keeper.map(|(keeper, _)| keeper);
        let client = Client::over(map, nodes, local.as_ref().map(|(id, _)| *id), options);
        // Told once; no connection is made before.
        let _ = doubts.set(client.locks.doubts());
        if let Some((_, liveness)) = local {
            client.locks.heed(Heeded { liveness, wait: options.wait });
        }
        Client { known, keeper, closings, files, ..client }
    }

    /// A client in a process that is no node. Nodes of this machine are reached over their Unix sockets, and
    /// their subfiles directly; "local" means the first of them unless the options name another. It starts no
    /// threads, so nobody notices that a node was restarted while nothing is asked of it.
    #[must_use]
    pub fn nearby(map: Arc<FormationMap>, auth: &Auth, options: &ClientOptions) -> Client {
        let here: Vec<(NodeId, Address)> = (0..)
            .zip(&map.nodes)
            .filter(|(_, entry)| !entry.unix_path.is_empty())
            .map(|(id, entry)| (NodeId(id), Address::unix(&entry.unix_path)))
            .filter(|(_, address)| address.answers(PROBE))
            .collect();
        let near = options.near.or_else(|| here.first().map(|(id, _)| *id));
        let options = ClientOptions { near, ..*options };
        let known = Arc::new(KnownFiles::new(options.incarnation));
        let way = Way { map: &map, known: &known, auth, options: &options, keeper: None, doubts: None };
        let connect = |(id, entry): (u16, &NodeEntry)| -> Arc<dyn Transport> {
            let address = here.iter().find(|(node, _)| node.0 == id).map(|(_, address)| address.clone());
            let address = address.unwrap_or_else(|| Address::tcp(entry.client_address.clone()));
            Arc::new(way.to(NodeId(id), address))
        };
        let nodes = (0..).zip(&map.nodes).map(connect).collect();
        let identity = Identity { auth: auth.clone(), client: options.id, lane: LaneKind::Client };
        let looks = Identity { client: options.id.of_cache(), ..identity.clone() };
        let entries = Some(EntryCache::new(Arc::clone(&map), &here, &looks));
        let direct = Direct::with(here, &identity, options.wait);
        // There is no kernel to cache anything, and others' changes would wait for its leases. What this process caches
        // itself, it is told under another number.
        let ways = Ways::new(options.id, Flags::NO_LEASE, Arc::clone(&map), nodes);
        Client { known, direct, entries, ..Client::with(map, ways, None, &options) }
    }

    /// Whether some nodes are reached over a network. Bytes for those are summed up, so read by this process and not only by
    /// the kernel: a buffer that is not there would be no error but its end.
    #[must_use]
    pub fn is_spread_out(&self) -> bool {
        self.ways.is_spread_out()
    }

    /// A client over given ways to the nodes, in the order of the map. They must wait for nodes that are
    /// away, if anybody is to.
    #[must_use]
    pub fn over(
        map: Arc<FormationMap>,
        nodes: Vec<Arc<dyn Transport>>,
        local: Option<NodeId>,
        options: &ClientOptions,
    ) -> Client {
        let ways = Ways::new(options.id, Flags::default(), Arc::clone(&map), nodes);
        Client::with(map, ways, local, options)
    }

    fn with(map: Arc<FormationMap>, ways: Ways, local: Option<NodeId>, options: &ClientOptions) -> Client {
        let ways = Arc::new(ways);
        let near = options.near.map_or(Vec::new(), |node| seats_of(&map, node));
        let known = Arc::new(KnownFiles::new(options.incarnation));
        let leases = Leases::new(map.slot_count());
        let locks = Arc::new(LockDesk::new(local, Arc::clone(&map), Arc::clone(&ways)));
        let (direct, forks) = (Direct::default(), bivouac_direct::forks());
        let (spread, glimpses, whole, partitions, asked) = Default::default();
        Client {
            map,
            ways,
            local,
            files: None,
            known,
            direct,
            forks,
            near,
            leases,
            spread,
            glimpses,
            whole,
            uses: Uses::new(),
            keeper: None,
            closings: None,
            locks,
            partitions,
            sessions: Sessions::new(options.page_pool),
            asked,
            entries: None,
        }
    }

    /// The map.
    #[must_use]
    pub fn map(&self) -> &Arc<FormationMap> {
        &self.map
    }

    /// The locks that programs take through this client.
    #[must_use]
    pub fn locks(&self) -> &Arc<LockDesk> {
        &self.locks
    }

    /// An identity for a changing operation of a front end that has none of its own, for instance a tool:
    /// `channel` must be used by one thread at a time.
    #[must_use]
    pub fn new_op(&self, channel: u16, uid: u32, gid: u32) -> OpCtx {
        OpCtx { id: self.ways.next_id(), channel, retry: false, uid, gid, pid: std::process::id() }
    }

    /// For how long the attributes that this thread has just been told may be cached: this client is asked before
    /// anybody else changes them. The attributes of a spread directory may always be cached for a moment: the kernel looks at its
    /// owner and mode for every entry, and if its home were asked each time, it would be what limits all nodes. The
    /// moment begins when the home is asked, also for what was [glanced](Client::glance) at later.
    #[must_use]
    pub fn lease(&self, ino: Ino) -> Duration {
        if self.spread.has(ino) { self.glimpses.left(ino) } else { self.leases.left_of_attrs(ino) }
    }

    /// For how long what this thread was just told of a name, or of its absence, may be cached.
    #[must_use]
    pub fn entry_lease(&self, dir: Ino, name: &[u8]) -> Duration {
        self.leases.left_of_name(dir, entry_hash(dir, name))
    }

    /// Takes nothing of this from what it knows any more. What a kernel knows is not its business.
    pub fn invalidate(&self, what: &[Invalidation]) {
        for one in what {
            match one.name {
                Some(_) => self.whole.forget(one.ino.slot()),
                None => self.known.invalidate(one.ino, self.leases.now()),
            }
        }
    }

    /// A seat of the near node; files take turns.
    pub(crate) fn near_seat(&self) -> Option<SeatIndex> {
        let turn = self.ways.asked() as usize;
        self.near.get(turn.checked_rem(self.near.len())?).copied()
    }

    /// This client ends for good: the nodes need not remember any more what came of its changes. It must not be used
    /// afterwards, nor anybody else with its number. A node that cannot be told remembers them until the formation
    /// ends.
    pub fn leave(&self) {
        self.send_all();
        self.tell_uses();
        self.closings.iter().for_each(Closings::send_all);
        self.ways.leave();
    }
}

fn seats_of(map: &FormationMap, node: NodeId) -> Vec<SeatIndex> {
    let own = |(seat, entry): (usize, &bivouac_wire::SeatEntry)| {
        (entry.node == node).then_some(SeatIndex(seat as u32))
    };
    map.seats.iter().enumerate().filter_map(own).collect()
}
