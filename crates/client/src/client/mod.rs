//! The client: the mechanisms that it is made of, how it is made, and the calls of programs (in the files beside this
//! one), which put what mechanisms do together. No mechanism sees the client.

mod connect;
mod contract;
mod data;
pub mod join;
pub mod member;
mod names;
mod opens;
pub mod paths;
mod reported;
mod tree;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bivouac_direct::PendingTimeCounters;
use bivouac_layout::entry_hash;
use bivouac_net::{Address, Auth, Identity, InProcess, LaneKind, LivenessTable, Peer, Service, Transport};
use bivouac_types::{Attr, Ino, NodeId, TargetIndex};
use bivouac_wire::{Flags, FormationMap, Invalidation, NodeEntry};

use crate::connections::{Connections, address_of};
use crate::content::Content;
use crate::content::direct::Direct;
use crate::content::local::LocalFiles;
use crate::homes::Homes;
use crate::homes::known::KnownFiles;
use crate::homes::partitions::Partitions;
use crate::locks::{LockDesk, NodeLiveness};
use crate::names::Names;
use crate::names::entries::EntryCache;
use crate::nodes::Nodes;
use crate::opens::Opens;
use crate::opens::closings::Closings;
use crate::opens::watch::Keeper;
use crate::operation::OpCtx;
use crate::options::ClientOptions;
use crate::races::AccessReporter;
use crate::session::Sessions;
use crate::site::Site;
use crate::space_reclaimer::SpaceReclaimer;
use crate::tokens::{TokenTable, Tokens};
use connect::{Connector, keeper, token_table};

/// `O_TRUNC` of the kernel.
const O_TRUNC: u32 = 0o1000;
/// `O_RDWR` of the kernel.
const O_RDWR: u32 = 2;
/// Longest wait for a socket that is to be on this machine.
const PROBE: Duration = Duration::from_millis(200);

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
    /// Set if it existed before.
    pub existed: bool,
}

/// The node in the client's own process.
pub struct LocalNode {
    /// Its number.
    pub id: NodeId,
    /// Its server side.
    pub service: Arc<dyn Service>,
    /// Which nodes it holds for dead.
    pub liveness: Arc<LivenessTable>,
    /// Its content.
    pub files: Arc<dyn LocalFiles>,
    /// Counters by which other processes of the machine see that this client has times not sent yet, if there are such
    /// processes.
    pub untold: Option<Arc<PendingTimeCounters>>,
}

/// A formation, seen from one process: the calls of programs, made of what mechanisms do. None of those sees this.
pub struct Client {
    connections: Arc<Connections>,
    known: Arc<KnownFiles>,
    names: Names,
    opens: Opens,
    /// Attributes and sizes of inodes, as their homes report them.
    pub homes: Arc<Homes>,
    /// Known partitions.
    pub partitions: Arc<Partitions>,
    /// Access to the content of files.
    pub content: Arc<Content>,
    /// Write-behind and readahead.
    pub sessions: Arc<Sessions>,
    /// The locks that programs take.
    pub locks: Arc<LockDesk>,
    /// Range tokens, which make calls on strict files atomic.
    pub tokens: Arc<Tokens>,
    /// State of partitions at site storage.
    pub site: Site,
    /// Reports of accesses while races are detected.
    races: Option<Arc<AccessReporter>>,
    /// Nodes that are dead for good, of a guest.
    liveness: Option<Arc<LivenessTable>>,
}

/// Places of the nodes that a client is connected to.
#[derive(Clone)]
pub struct NodePlaces(Arc<Connections>);

impl NodePlaces {
    /// Like [`Client::take_map`].
    pub fn take_map(&self, map: &Arc<FormationMap>) -> bool {
        self.0.take_map(map)
    }
}

/// Parts of a client that need a node in its process, or threads.
struct LocalParts {
    files: Option<Arc<dyn LocalFiles>>,
    keeper: Option<Keeper>,
    closings: Option<Closings>,
    entries: Option<EntryCache>,
    tokens: Arc<TokenTable>,
}

impl LocalParts {
    /// Returns no parts but these tokens.
    fn of(tokens: Arc<TokenTable>) -> LocalParts {
        LocalParts { files: None, keeper: None, closings: None, entries: None, tokens }
    }
}

impl Client {
    /// Creates a client of the formation that the map describes. Connections are made when they are needed.
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
        let mut connector = Connector::new(&map, &known, auth, options);
        (connector.keeper, connector.doubts) = (keeper.as_ref(), Some(&doubts));
        let (tokens, seeker) = (Arc::clone(&connector.tokens), Arc::clone(&connector.seeker));
        let host = local.as_ref().and_then(|node| map.nodes.get(usize::from(node.id.0)));
        let peer = |(id, entry): (u16, &NodeEntry)| match &local {
            Some(node) if node.id.0 == id => None,
            Some(node) => {
                Some(connector.to(NodeId(id), entry.epoch, address_of(entry, host)).heeding(&node.liveness))
            }
            None => Some(connector.to(NodeId(id), entry.epoch, address_of(entry, None))),
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
        // The own node hears of a close by a call: that queue stays empty.
        let closings = Some(Closings::new(options.id, Arc::clone(&known), &nodes));
        let (local, files) = local.map(|node| ((node.id, node.liveness), node.files)).unzip();
        let keeper = keeper.map(|(keeper, _)| keeper);
        let own = local.as_ref().map(|(id, _)| *id);
        let connections = Connections::new(options, Flags::default(), map, nodes, own);
        let own = LocalParts { files, keeper, closings, entries: None, tokens };
        let client = Client::with(connections, Direct::none(known), own, options);
        seeker.set(&client.connections);
        // No connection is made before.
        assert!(doubts.set(client.locks.doubts()).is_ok(), "locks of two clients are doubted together");
        if let Some((_, liveness)) = local {
            client.locks.heed(NodeLiveness { liveness, wait: options.wait });
        }
        client
    }

    /// Returns a client in a process that is no node. Nodes of this machine are reached over their Unix sockets, and
    /// their subfiles directly; "local" means the first of them unless the options name another. It starts no threads,
    /// so nobody notices that a node was restarted while nothing is asked of it.
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
        let connector = Connector::new(&map, &known, auth, &options);
        let (tokens, seeker) = (Arc::clone(&connector.tokens), Arc::clone(&connector.seeker));
        let liveness = Arc::new(LivenessTable::new(map.nodes.len()));
        let connect = |(id, entry): (u16, &NodeEntry)| -> Arc<dyn Transport> {
            let address = here.iter().find(|(node, _)| node.0 == id).map(|(_, address)| address.clone());
            let address = address.unwrap_or_else(|| Address::tcp(entry.client_address.clone()));
            Arc::new(connector.to(NodeId(id), entry.epoch, address).heeding(&liveness))
        };
        let nodes = (0..).zip(&map.nodes).map(connect).collect();
        let identity = Identity { auth: auth.clone(), client: options.id, lane: LaneKind::Client, epoch: 0 };
        // A number of its own, so that a node calls this process back for its own changes as well.
        let looks = Identity { client: options.id.of_cache(), ..identity.clone() };
        let entries = Some(EntryCache::new(Arc::clone(&map), &here, &looks));
        let direct = Direct::with(known, here, &identity, options.wait);
        // There is no kernel to cache anything, and others' changes would wait for its leases. What this process caches
        // itself, it is told under another number.
        let connections = Connections::new(&options, Flags::NO_LEASE, Arc::clone(&map), nodes, None);
        let client =
            Client::with(connections, direct, LocalParts { entries, ..LocalParts::of(tokens) }, &options);
        seeker.set(&client.connections);
        Client { liveness: Some(liveness), ..client }
    }

    /// Returns the table of dead nodes of a client made by [`Client::nearby`], which sends them nothing. Only the
    /// caller marks nodes there.
    #[must_use]
    pub fn liveness(&self) -> Option<&Arc<LivenessTable>> {
        self.liveness.as_ref()
    }

    /// Returns a client over given ways to the nodes, in the order of the map. They must wait for nodes that are away,
    /// if anybody is to.
    #[must_use]
    pub fn over(
        map: Arc<FormationMap>,
        nodes: Vec<Arc<dyn Transport>>,
        local: Option<NodeId>,
        options: &ClientOptions,
    ) -> Client {
        let connections = Connections::new(options, Flags::default(), map, nodes, local);
        let known = Arc::new(KnownFiles::new(options.incarnation, None));
        let own = LocalParts::of(token_table(&connections.map, options));
        Client::with(connections, Direct::none(known), own, options)
    }

    fn with(connections: Connections, direct: Direct, own: LocalParts, options: &ClientOptions) -> Client {
        let LocalParts { files, keeper, closings, entries, tokens } = own;
        let (connections, closings, known) =
            (Arc::new(connections), closings.map(Arc::new), Arc::clone(&direct.known));
        let partitions = Arc::new(Partitions::new(connections.clone()));
        let homes = Arc::new(Homes::new(connections.clone(), known.clone(), partitions.clone()));
        let reclaimer = SpaceReclaimer { connections: connections.clone(), closings: closings.clone() };
        // Once: targets stay with their nodes, wherever these move.
        let near = options.near.map_or(Vec::new(), |node| targets_of(&connections.map, node));
        let names = Names::new(connections.clone(), homes.clone(), reclaimer.clone(), near, entries);
        let opens = Opens::new(connections.clone(), known.clone(), keeper, closings);
        let locks = Arc::new(LockDesk::new(connections.clone()));
        let content =
            Content::new(connections.clone(), homes.clone(), partitions.clone(), reclaimer, direct, files);
        let content = Arc::new(content);
        let sessions =
            Arc::new(Sessions::new(content.clone(), locks.clone(), tokens.clone(), options.page_pool));
        let tokens = Tokens::new(connections.clone(), homes.clone(), partitions.clone(), tokens);
        let site = Site::new(connections.clone(), homes.clone(), partitions.clone());
        let was_killed = options.incarnation > 0;
        let races = AccessReporter::new(&connections, &known, &partitions, options.near, was_killed);
        Client {
            connections,
            known,
            homes,
            partitions,
            names,
            opens,
            content,
            sessions,
            locks,
            tokens: Arc::new(tokens),
            site,
            races: races.map(Arc::new),
            liveness: None,
        }
    }

    /// Returns the map that it was made from. Nodes may have moved since.
    #[must_use]
    pub fn map(&self) -> &Arc<FormationMap> {
        &self.connections.map
    }

    /// Follows nodes that have moved, if this map is newer than what is known; returns whether it is. Requests that are
    /// under way at their former hosts are sent again.
    pub fn take_map(&self, map: &Arc<FormationMap>) -> bool {
        self.connections.take_map(map)
    }

    /// Returns the places of its nodes, to be changed by others than its owner.
    #[must_use]
    pub fn places(&self) -> NodePlaces {
        NodePlaces(Arc::clone(&self.connections))
    }

    /// Returns requests about nodes themselves.
    #[must_use]
    pub fn nodes(&self) -> Nodes<'_> {
        Nodes(&self.connections)
    }

    /// Returns an identity for a changing operation of a front end that has none of its own, for instance a tool:
    /// `channel` must be used by one thread at a time.
    #[must_use]
    pub fn new_op(&self, channel: u16, uid: u32, gid: u32) -> OpCtx {
        OpCtx { id: self.connections.next_id(), channel, retry: false, uid, gid, pid: std::process::id() }
    }

    /// Returns for how long the attributes that this thread has just got may be cached: no other client changes them
    /// before this one was asked. Those of a spread directory may always be cached for a moment, which begins when the
    /// home is asked, also for what [`Client::getattr_cached`] returns later. The kernel checks owner and mode of the
    /// directory for each entry, and its home would limit all nodes if it were asked each time.
    #[must_use]
    pub fn lease(&self, ino: Ino) -> Duration {
        let homes = &self.homes;
        if homes.spread.has(ino) { self.names.spread_dirs.left(ino) } else { homes.leases.left_of_attrs(ino) }
    }

    /// Returns for how long what this thread has just got for a name, or its absence, may be cached.
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

    /// Ends this client for good: nodes need not keep the results of its changes any more. It must not be used
    /// afterwards, nor its number by any other client. A node that cannot be reached keeps them until the formation
    /// ends.
    pub fn leave(&self) {
        // Before `Leave`, behind which nothing of this client may arrive.
        self.sessions.send_all();
        self.tell_uses();
        self.report_accesses();
        self.opens.send(None);
        self.connections.leave();
    }
}

fn targets_of(map: &FormationMap, node: NodeId) -> Vec<TargetIndex> {
    let own = |(target, entry): (usize, &bivouac_wire::TargetEntry)| {
        (entry.node == node).then_some(TargetIndex(target as u32))
    };
    map.targets.iter().enumerate().filter_map(own).collect()
}
