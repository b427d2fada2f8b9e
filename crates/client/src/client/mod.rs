//! The client: the mechanisms that it is made of, how it is made, and the calls of programs (in the files beside this
//! one), which put what mechanisms do together. No mechanism sees the client.

mod data;
pub mod join;
pub mod member;
mod names;
mod opens;
pub mod paths;
mod tree;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bivouac_direct::Untold;
use bivouac_layout::entry_hash;
use bivouac_net::{Address, Auth, Identity, InProcess, LaneKind, LivenessTable, Peer, Service, Transport};
use bivouac_types::{Attr, ClientId, Ino, NodeId, OpId, SeatIndex};
use bivouac_wire::{Flags, FormationMap, Invalidation, NodeEntry};

use crate::content::Content;
use crate::content::direct::Direct;
use crate::content::local::LocalFiles;
use crate::homes::Homes;
use crate::homes::known::KnownFiles;
use crate::homes::partitions::Partitions;
use crate::locks::{Heeded, LockDesk};
use crate::names::Names;
use crate::names::entries::EntryCache;
use crate::nodes::Nodes;
use crate::opens::Opens;
use crate::opens::closings::Closings;
use crate::opens::watch::Keeper;
use crate::room::Room;
use crate::session::Sessions;
use crate::site::Site;
use crate::ways::{Way, Ways, address_of, keeper};

/// `O_TRUNC` of the kernel.
const O_TRUNC: u32 = 0o1000;
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
    /// Where other processes of the machine see what this client has not told, if there is such a place.
    pub untold: Option<Arc<Untold>>,
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

/// A formation, seen from one process: the calls of programs, made of what mechanisms do. None of those sees this.
pub struct Client {
    ways: Arc<Ways>,
    known: Arc<KnownFiles>,
    names: Names,
    opens: Opens,
    /// What homes say of inodes.
    pub homes: Arc<Homes>,
    /// Which partitions there are.
    pub partitions: Arc<Partitions>,
    /// Where the bytes of files are.
    pub content: Arc<Content>,
    /// What is written behind and read ahead.
    pub sessions: Arc<Sessions>,
    /// The locks that programs take.
    pub locks: Arc<LockDesk>,
    /// What site storage behind partitions has.
    pub site: Site,
}

/// What a client has that is of the node in its own process, or may start threads.
#[derive(Default)]
struct Own {
    files: Option<Arc<dyn LocalFiles>>,
    keeper: Option<Keeper>,
    closings: Option<Closings>,
    entries: Option<EntryCache>,
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
        let untold = local.as_ref().and_then(|node| node.untold.clone());
        let known = Arc::new(KnownFiles::new(options.incarnation, untold));
        let keeper = keeper(&map, &known);
        let doubts = Arc::new(OnceLock::new());
        let (doubting, keeping) = (Some(&doubts), keeper.as_ref());
        let way = Way { map: &map, known: &known, auth, options, keeper: keeping, doubts: doubting };
        let host = local.as_ref().and_then(|node| map.nodes.get(usize::from(node.id.0)));
        let peer = |(id, entry): (u16, &NodeEntry)| match &local {
            Some(node) if node.id.0 == id => None,
            Some(node) => Some(way.to(NodeId(id), address_of(entry, host)).heeding(&node.liveness)),
            None => Some(way.to(NodeId(id), address_of(entry, None))),
        };
        let peers: Vec<Option<Arc<Peer>>> =
            (0..).zip(&map.nodes).map(|node| peer(node).map(Arc::new)).collect();
        if let Some((keeper, _)) = &keeper {
            keeper.keep(peers.iter().map(|peer| peer.as_ref().map(Arc::downgrade)).collect());
        }
        let here = |node: &LocalNode| InProcess::new(Arc::clone(&node.service), LaneKind::Client);
        let here = || local.as_ref().map(|node| Arc::new(here(node)) as Arc<dyn Transport>);
        let transport = |peer: Option<Arc<Peer>>| peer.map(|peer| peer as Arc<dyn Transport>).or_else(here);
        let nodes: Vec<_> = peers.into_iter().filter_map(transport).collect();
        let closings = Some(Closings::new(options.id, Arc::clone(&known), &nodes));
        let (local, files) = local.map(|node| ((node.id, node.liveness), node.files)).unzip();
        let keeper = keeper.map(|(keeper, _)| keeper);
        let own = local.as_ref().map(|(id, _)| *id);
        let ways = Ways::new(options.id, Flags::default(), map, nodes, own);
        let own = Own { files, keeper, closings, entries: None };
        let client = Client::with(ways, Direct::none(known), own, options);
        // Told once; no connection is made before.
        let _ = doubts.set(client.locks.doubts());
        if let Some((_, liveness)) = local {
            client.locks.heed(Heeded { liveness, wait: options.wait });
        }
        client
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
        let known = Arc::new(KnownFiles::new(options.incarnation, None));
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
        let direct = Direct::with(known, here, &identity, options.wait);
        // There is no kernel to cache anything, and others' changes would wait for its leases. What this process caches
        // itself, it is told under another number.
        let ways = Ways::new(options.id, Flags::NO_LEASE, Arc::clone(&map), nodes, None);
        Client::with(ways, direct, Own { entries, ..Own::default() }, &options)
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
        let ways = Ways::new(options.id, Flags::default(), map, nodes, local);
        let known = Arc::new(KnownFiles::new(options.incarnation, None));
        Client::with(ways, Direct::none(known), Own::default(), options)
    }

    fn with(ways: Ways, direct: Direct, own: Own, options: &ClientOptions) -> Client {
        let Own { files, keeper, closings, entries } = own;
        let (ways, closings, known) = (Arc::new(ways), closings.map(Arc::new), Arc::clone(&direct.known));
        let partitions = Arc::new(Partitions::new(ways.clone()));
        let homes = Arc::new(Homes::new(ways.clone(), known.clone(), partitions.clone()));
        let room = Room { ways: ways.clone(), closings: closings.clone() };
        let near = options.near.map_or(Vec::new(), |node| seats_of(&ways.map, node));
        let names = Names::new(ways.clone(), homes.clone(), room.clone(), near, entries);
        let opens = Opens::new(ways.clone(), known.clone(), keeper, closings);
        let locks = Arc::new(LockDesk::new(ways.clone()));
        let content = Content::new(ways.clone(), homes.clone(), partitions.clone(), room, direct, files);
        let content = Arc::new(content);
        let sessions = Arc::new(Sessions::new(content.clone(), locks.clone(), options.page_pool));
        let site = Site::new(ways.clone(), homes.clone(), partitions.clone());
        Client { ways, known, homes, partitions, names, opens, content, sessions, locks, site }
    }

    /// The map.
    #[must_use]
    pub fn map(&self) -> &Arc<FormationMap> {
        &self.ways.map
    }

    /// What nodes say of themselves.
    #[must_use]
    pub fn nodes(&self) -> Nodes<'_> {
        Nodes(&self.ways)
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
        let homes = &self.homes;
        if homes.spread.has(ino) { self.names.glimpses.left(ino) } else { homes.leases.left_of_attrs(ino) }
    }

    /// For how long what this thread was just told of a name, or of its absence, may be cached.
    #[must_use]
    pub fn entry_lease(&self, dir: Ino, name: &[u8]) -> Duration {
        self.homes.leases.left_of_name(dir, entry_hash(dir, name))
    }

    /// Takes nothing of this from what it knows any more. What a kernel knows is not its business.
    pub fn invalidate(&self, what: &[Invalidation]) {
        for one in what {
            match one.name {
                Some(_) => self.names.whole.forget(one.ino.slot()),
                None => self.known.invalidate(one.ino, self.homes.leases.now()),
            }
        }
    }

    /// Tells homes how files are used that are open; other nodes than the own one hear of it soon.
    pub fn tell_uses(&self) {
        self.opens.tell_used(self.opens.uses.take_all());
    }

    /// This client ends for good: the nodes need not remember any more what came of its changes. It must not be used
    /// afterwards, nor anybody else with its number. A node that cannot be told remembers them until the formation
    /// ends.
    pub fn leave(&self) {
        self.sessions.send_all();
        self.tell_uses();
        self.opens.send(None);
        self.ways.leave();
    }
}

fn seats_of(map: &FormationMap, node: NodeId) -> Vec<SeatIndex> {
    let own = |(seat, entry): (usize, &bivouac_wire::SeatEntry)| {
        (entry.node == node).then_some(SeatIndex(seat as u32))
    };
    map.seats.iter().enumerate().filter_map(own).collect()
}
