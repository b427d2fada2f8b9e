//! A node: its parts, and what all that works on it needs to know of it.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use bivouac_ranks::Mutex;
use bivouac_store::{DataStore, Headroom, Records};
use bivouac_types::{ClientId, Errno, FsResult, Ino, NodeId, Slot, SpreadAt};
use bivouac_wire::{FormationMap, HostQuestion};

use crate::absent_peers::AbsentPeers;
use crate::advisory::Advisory;
use crate::alloc::Allocator;
use crate::callbacks::Callbacks;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::identity::node_as_client;
use crate::intent_record::Intents;
use crate::lending::Lending;
use crate::locks::Locks;
use crate::membership::Membership;
use crate::mirror_link::TendedMirror;
use crate::opens::Opens;
use crate::partitions::Partitions;
use crate::peers::PeerLane;
use crate::proxy_state::{LinkAccess, Proxy, SourceDecorator};
use crate::races::Races;
use crate::reaper::Reaper;
use crate::record::{number_of_key, table};
use crate::recorder::Recorder;
use crate::replicas::Replicas;
use crate::reply_cache::ReplyCache;
use crate::rounds::Rounds;
use crate::served::{ServedClient, ServedClients};
use crate::sessions::Sessions;
use crate::shards::{GatheredShards, Shards};
use crate::stale_tails::StaleTails;
use crate::sweeper::Sweeper;
use crate::tokens::Tokens;
use crate::users::DirectoryUsers;
use crate::uses::UsageTable;
use crate::watch::Watches;

/// Callback that answers a question about this host; see [`Node::on_asked`].
type AnswerForHost = Box<dyn Fn(&HostQuestion<'_>) -> FsResult<Vec<u8>> + Send + Sync>;

/// The volume that a node keeps its records on.
pub(crate) const RECORDS_VOLUME: u16 = 0;

/// Callbacks into the process that runs the node.
#[derive(Default)]
pub(crate) struct Hooks {
    /// Closes the connections of a client whose session was ended, so that it reconnects and reclaims its opens.
    pub forgotten: OnceLock<Box<dyn Fn(ClientId) + Send + Sync>>,
    /// Answers a question about this host.
    pub asked: OnceLock<AnswerForHost>,
    /// Gives memory that is free in this process back to the system.
    pub shrunk: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Ends the process.
    pub shutdown: Mutex<Option<Box<dyn Fn() + Send>>>,
}

/// A running node.
pub struct Node {
    /// For threads that must not keep the node alive; set when it starts.
    pub(crate) this: OnceLock<Weak<Node>>,
    /// The map that its daemon was started with: slots and targets stay as they are there.
    pub(crate) map: Arc<FormationMap>,
    /// The newest map, which says where nodes are.
    pub(crate) newest_map: Mutex<Arc<FormationMap>>,
    pub(crate) id: NodeId,
    pub(crate) records: Records,
    pub(crate) data: Arc<DataStore>,
    /// The mirror of its volumes, if they are mirrored.
    pub(crate) mirror: Option<TendedMirror>,
    /// Replicas of other nodes' volumes.
    pub(crate) replicas: Replicas,
    pub(crate) peers: Arc<PeerLane>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) allocator: Allocator,
    pub(crate) locks: Locks,
    pub(crate) shards: Shards,
    pub(crate) gathers: GatheredShards,
    /// Changes over several nodes that this one drives.
    pub(crate) intents: Intents,
    /// Entries at which a directory spreads.
    pub(crate) spread_at: SpreadAt,
    /// Settings of object stores, from the daemon's environment.
    pub(crate) objects: bivouac_source::Environment,
    /// Credentials for links to other formations.
    pub(crate) links: LinkAccess,
    /// Decorator of the sources of partitions, if any.
    pub(crate) around: Option<SourceDecorator>,
    /// The locks that programs take.
    pub(crate) advisory: Advisory,
    pub(crate) callbacks: Callbacks,
    /// The clients that this process serves.
    pub(crate) served: Arc<ServedClients>,
    pub(crate) users: DirectoryUsers,
    pub(crate) opens: Opens,
    pub(crate) sessions: Sessions,
    /// Replies to requests that change content.
    pub(crate) replies: ReplyCache,
    pub(crate) partitions: Partitions,
    /// The switch of each node, as far as that is known.
    pub(crate) switches: Vec<Option<u16>>,
    pub(crate) counters: Arc<Counters>,
    /// Usage statistics of files.
    pub(crate) uses: UsageTable,
    /// Memory kept by the supervisor that holds `counters` and `uses`, so that they survive a restart of the daemon.
    pub(crate) recorder: Recorder,
    pub(crate) reaper: Reaper,
    pub(crate) rounds: Rounds,
    /// The membership protocol: which nodes are alive.
    pub(crate) members: Arc<Membership>,
    pub(crate) hooks: Hooks,
    pub(crate) away: AbsentPeers,
    pub(crate) sweeper: Sweeper,
    pub(crate) stale_tails: StaleTails,
    pub(crate) proxy: Proxy,
    pub(crate) lending: Lending,
    /// Range tokens of strict files.
    pub(crate) tokens: Tokens,
    /// Races of all clients, if they are detected and this is the node that does it.
    pub(crate) races: Option<Races>,
    /// Inodes that checks of the running formation watch for changes.
    pub(crate) watches: Watches,
    pub(crate) files: AtomicU64,
    pub(crate) stopping: AtomicBool,
    pub(crate) started: Instant,
}

impl Node {
    /// Sets the callback of a shutdown request, which is invoked once the reply is on its way.
    pub fn on_shutdown(&self, act: impl Fn() + Send + 'static) {
        *self.hooks.shutdown.lock() = Some(Box::new(act));
    }

    /// Sets the callback that answers questions about this host. The process decides what it discloses. To be called
    /// once.
    pub fn on_asked(&self, answer: impl Fn(&HostQuestion<'_>) -> FsResult<Vec<u8>> + Send + Sync + 'static) {
        let is_first = self.hooks.asked.set(Box::new(answer)).is_ok();
        assert!(is_first, "two answer what is asked of the host of {}", self.id);
    }

    /// Sets the callback that closes all connections of a client whose session was ended. To be called once.
    pub fn on_forgotten(&self, act: impl Fn(ClientId) + Send + Sync + 'static) {
        let is_first = self.hooks.forgotten.set(Box::new(act)).is_ok();
        assert!(is_first, "two end the connections of clients that {} forgets", self.id);
    }

    /// Limits the memory of records (names, attributes and the like) to `max` bytes, and to the headroom in `left`.
    /// Existing records stay. `give_back` is called when so much was removed that free memory should return to the
    /// system.
    pub fn bound_names(
        &self,
        max: u64,
        left: Option<Arc<dyn Headroom>>,
        give_back: impl Fn() + Send + Sync + 'static,
    ) {
        self.records.bound_memory(max, left);
        // Set once, by the creator of the node.
        let _ = self.hooks.shrunk.set(Box::new(give_back));
    }

    /// Declares a node dead that, as the caller knows, will not come back.
    pub fn declare_lost(&self, node: NodeId) {
        self.members.lost(node);
    }

    /// Records that a node declared dead was restarted, and serves again.
    pub fn declare_returned(&self, node: NodeId) {
        self.members.returned(node);
    }

    /// Returns the number of bytes of subfiles on this node's volumes.
    #[must_use]
    pub fn usage(&self) -> u64 {
        self.data.usage().iter().map(|volume| volume.used).sum()
    }

    /// Returns the map that its daemon was started with. Nodes may have moved since.
    #[must_use]
    pub fn map(&self) -> &Arc<FormationMap> {
        &self.map
    }

    /// Returns the newest map.
    #[must_use]
    pub fn newest_map(&self) -> Arc<FormationMap> {
        Arc::clone(&self.newest_map.lock())
    }

    /// Installs a newer map: requests to peers that have moved go to their new addresses, and connections of their
    /// former daemons are closed and refused. Returns false, and changes nothing, if `map` does not succeed the present
    /// map.
    pub fn take_map(&self, map: &Arc<FormationMap>) -> bool {
        let moved: Vec<NodeId> = {
            let mut newest = self.newest_map.lock();
            if let Err(why) = map.check_succeeds(&newest) {
                log::debug!(why:% = why; "a map is not taken");
                return false;
            }
            let moved = map.moved_since(&newest).collect();
            *newest = Arc::clone(map);
            moved
        };
        // Not under the lock of the map: of two maps that come here in the wrong order the older one redirects nothing.
        self.peers.take_map(map);
        // Behind that: it is watched over the lane.
        self.members.extend(map.nodes.len());
        // From here on they are not admitted; what they sent before must not be carried out either.
        let hang_up = self.hooks.forgotten.get();
        hang_up.iter().for_each(|hang_up| moved.iter().for_each(|node| hang_up(node_as_client(*node))));
        true
    }

    /// Returns the epoch in which this node came to the host of its daemon.
    pub(crate) fn own_epoch(&self) -> u32 {
        self.map.nodes.get(usize::from(self.id.0)).map_or(0, |entry| entry.epoch)
    }

    /// Changes what a client of this process can be asked about.
    pub fn serve(&self, client: ClientId, act: impl FnOnce(&mut ServedClient)) {
        self.served.change(client, act);
    }

    /// Calls `look` with slot, key and value of each record of this node's slots whose key begins with `prefix`.
    pub(crate) fn each_record(&self, prefix: &[u8], mut look: impl FnMut(Slot, &[u8], &[u8])) {
        for slot in self.own_slots() {
            self.records.scan(slot, prefix, prefix, |key, value| {
                look(slot, key, value);
                ControlFlow::Continue(())
            });
        }
    }

    /// Returns the slots that this node holds.
    pub(crate) fn own_slots(&self) -> impl Iterator<Item = Slot> + '_ {
        slots_of(&self.map, self.id)
    }
}

pub(crate) fn slots_of(map: &FormationMap, id: NodeId) -> impl Iterator<Item = Slot> + '_ {
    let own = move |(slot, node): (usize, &NodeId)| (*node == id).then_some(Slot(slot as u16));
    map.slots.iter().enumerate().filter_map(own)
}

impl Node {
    /// Returns this node's identity as a client of its peers.
    pub(crate) fn as_client(&self) -> ClientId {
        node_as_client(self.id)
    }

    /// Returns the node that an inode's record belongs to.
    pub(crate) fn home_of(&self, ino: Ino) -> FsResult<NodeId> {
        self.map.home(ino).ok_or_else(|| Errno::ESTALE.into())
    }

    /// Returns how many changes have had to wait for leases.
    #[must_use]
    pub fn lease_waits(&self) -> u64 {
        self.callbacks.leases.waits()
    }
}

impl Node {
    /// Returns slot and number of each record whose key is `letter` and a number.
    pub(crate) fn numbers(&self, letter: u8) -> Vec<(Slot, u64)> {
        let mut found = Vec::new();
        self.each_record(&table(letter), |slot, key, _| {
            found.extend(number_of_key(key).map(|number| (slot, number)));
        });
        found
    }

    /// Returns the inodes that were open when they lost their last name.
    pub(crate) fn orphans(&self) -> Vec<Ino> {
        self.numbers(b'O').into_iter().map(|(_, ino)| Ino(ino)).collect()
    }
}
