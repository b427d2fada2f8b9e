//! A node: its parts, and how it starts and ends.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bivouac_net::LivenessTable;
use bivouac_ranks::{Mutex, rank};
use bivouac_store::{DataOptions, DataStore, Headroom, Records, RecordsOptions, Recovery, VolumeConfig};
use bivouac_types::{
    Attr, Checksum, ClientId, FsError, FsResult, Ino, Layout, NodeId, Placement, SeatIndex, Slot, SpreadAt,
    mode,
};
use bivouac_wire::{Dirty, FenceRequest, FormationMap, HostQuestion, PoolStatus};

use crate::advisory::{Advisory, LockClient};
use crate::alloc::Allocator;
use crate::away::Away;
use crate::callbacks::Caches;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::direct::Lending;
use crate::ended::end_clients;
use crate::gather::{Gathers, Shards};
use crate::intent::Logged;
use crate::leases::Leases;
use crate::locks::{Dirs, Locks};
use crate::membership::Membership;
use crate::opens::Opens;
use crate::partitions::Partitions;
use crate::peers::{Channels, Peers};
use crate::proxy::{Around, Proxy};
use crate::reaper::{Job, Reaper};
use crate::record::Inode;
use crate::rounds::Rounds;
use crate::sessions::Sessions;
use crate::sizes::Sizes;
use crate::stale_tails::StaleTails;
use crate::sweep::Sweeper;
use crate::users::Users;
use crate::uses::Uses;
use crate::watch::Watches;

/// The page pool of a client in the node's process, and what that has gathered otherwise.
pub trait PagePool: Send + Sync {
    /// How it is.
    fn status(&self) -> PoolStatus;
    /// What was written behind in front of site storage and has not been sent; unless the token is 0 it is sent, and
    /// nothing more is written behind there for a while.
    fn tell_unsent(&self, request: &FenceRequest) -> Vec<Dirty>;
    /// Has the client tell how files are used that are open; homes that are other nodes hear of it soon.
    fn tell_uses(&self);
}

/// Answers what is asked of this host.
type AnswerForHost = Box<dyn Fn(&HostQuestion<'_>) -> FsResult<Vec<u8>> + Send + Sync>;

/// The volume that a node keeps its records on.
pub(crate) const RECORDS_VOLUME: u16 = 0;

/// What was before this daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// The formation was killed as a whole and is recovered just now: none of its clients lives.
    pub clients_ended: bool,
    /// That has happened at some time: files may have bytes behind their ends whose writers nobody remembers.
    pub was_recovered: bool,
}

/// What a node is made from.
pub struct NodeConfig {
    /// The map; gives this node its slots and seats.
    pub map: Arc<FormationMap>,
    /// Which node of the map this is.
    pub id: NodeId,
    /// The volumes it lends, in the map's order. The records are on the first.
    pub volumes: Vec<VolumeConfig>,
    /// Most subfiles that are kept open.
    pub handles_max: usize,
    /// Where blocks of new subfiles get checksums.
    pub checksum: Checksum,
    /// Owner of the root directory.
    pub owner: (u32, u32),
    /// How long clients that are gone may take to come back.
    pub grace: Duration,
    /// Entries at which a directory spreads over all nodes.
    pub spread_at: SpreadAt,
    /// After how long a node that does not answer is dead; without, nodes do not watch each other.
    pub dead_after: Option<Duration>,
    /// Where it is noted which nodes are dead.
    pub liveness: Arc<LivenessTable>,
    /// What the environment says of object stores.
    pub objects: bivouac_source::Environment,
    /// What is put around site storage.
    pub around: Option<Around>,
    /// The threads that it shares with other nodes of its process.
    pub rounds: Rounds,
    /// What was before this daemon.
    pub past: Past,
    /// The switch of each node of the map, by number, as far as that is known.
    pub switches: Vec<Option<u16>>,
}

/// A running node.
pub struct Node {
    pub(crate) map: Arc<FormationMap>,
    pub(crate) id: NodeId,
    pub(crate) records: Records,
    pub(crate) data: DataStore,
    pub(crate) peers: Arc<dyn Peers>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) allocator: Allocator,
    pub(crate) locks: Locks,
    pub(crate) dirs: Dirs,
    pub(crate) shards: Shards,
    pub(crate) gathers: Gathers,
    /// Changes over several nodes that wait to be finished, by their numbers: what they keep locked.
    pub(crate) postponed: Mutex<HashMap<u64, Logged>>,
    /// Directories that could not spread, and whose shards are still to be removed.
    pub(crate) unspreading: Mutex<HashSet<Ino>>,
    /// Entries at which a directory spreads.
    pub(crate) spread_at: SpreadAt,
    /// What the environment says of object stores.
    pub(crate) objects: bivouac_source::Environment,
    /// What is put around site storage.
    pub(crate) around: Option<Around>,
    /// The locks that programs take.
    pub(crate) advisory: Advisory,
    pub(crate) leases: Leases,
    pub(crate) caches: Caches,
    pub(crate) users: Users,
    pub(crate) opens: Opens,
    pub(crate) sessions: Sessions,
    pub(crate) partitions: Partitions,
    /// The switch of each node, as far as that is known.
    pub(crate) switches: Vec<Option<u16>>,
    pub(crate) channels: Channels,
    pub(crate) counters: Counters,
    /// How files are used.
    pub(crate) uses: Uses,
    pub(crate) reaper: Reaper,
    /// Inodes whose subfiles became garbage once more, perhaps while they were removed.
    pub(crate) discarded_again: Mutex<HashSet<Ino>>,
    pub(crate) rounds: Rounds,
    /// Who lives.
    pub(crate) members: Membership,
    /// Ends the connections of a client that was forgotten, so that it says again what it has open.
    pub(crate) on_forgotten: OnceLock<Box<dyn Fn(ClientId) + Send + Sync>>,
    /// Answers what is asked of this host.
    pub(crate) on_asked: OnceLock<AnswerForHost>,
    /// Gives memory that is free in this process back to the system.
    pub(crate) on_shrunk: OnceLock<Box<dyn Fn() + Send + Sync>>,
    pub(crate) away: Away,
    pub(crate) sweeper: Sweeper,
    pub(crate) stale_tails: StaleTails,
    pub(crate) proxy: Proxy,
    pub(crate) lending: Lending,
    pub(crate) sizes: Sizes,
    /// What checks of the running formation look at.
    pub(crate) watches: Watches,
    pub(crate) files: AtomicU64,
    pub(crate) stopping: AtomicBool,
    pub(crate) on_shutdown: Mutex<Option<Box<dyn Fn() + Send>>>,
    /// By client of this process: its page pool.
    pub(crate) pages: Mutex<HashMap<ClientId, Arc<dyn PagePool>>>,
    pub(crate) started: Instant,
}

impl Node {
    /// Opens the volumes, reads the records back, and finishes what a killed daemon left half done as far as
    /// it is this node's alone. [`Node::start`] does the rest.
    ///
    /// # Errors
    /// A volume that is missing, foreign or full; records that are damaged: with object, cause and remedy.
    pub fn open(
        config: NodeConfig,
        peers: Arc<dyn Peers>,
        clock: Arc<dyn Clock>,
    ) -> FsResult<(Arc<Node>, Recovery)> {
        config.map.check().map_err(|text| FsError::with(bivouac_types::Errno::EINVAL, text))?;
        let formation = config.map.formation;
        let options = DataOptions { handles_max: config.handles_max, checksum: config.checksum };
        let data = DataStore::open(&config.volumes, formation, config.id, &options)?;
        let capacity = config.volumes.first().map_or(0, |volume| volume.capacity);
        let (records, recovery) =
            Records::open(data.volume(0)?, formation, config.id, records_options(&config.map, capacity))?;
        records.count_in(data.records_room(RECORDS_VOLUME)?);
        let slot = first_slot(&config.map, config.id);
        if config.past.clients_ended {
            end_clients(&records, slots_of(&config.map, config.id))?;
        }
        let (shards, gathers) =
            (Shards::new(slots_of(&config.map, config.id).collect()), Gathers::new(&config.map));
        let leases = Leases::new(config.map.slot_count(), recovery.records > 0);
        let allocator = Allocator::open(&records, config.id, slot);
        let sessions = Sessions::open(&records, slot, config.grace);
        let partitions = Partitions::open(&records, slot, &config.map)?;
        let own = slots_of(&config.map, config.id);
        let had_opens = config.past.was_recovered || !sessions.awaiting().is_empty();
        let node = Node {
            advisory: Advisory::open(&records, config.id, own, Arc::clone(&peers)),
            stale_tails: StaleTails::new(config.id, allocator.first(), had_opens),
            sweeper: Sweeper::default(),
            proxy: Proxy::default(),
            allocator,
            sessions,
            partitions,
            switches: config.switches,
            reaper: Reaper::new(config.grace),
            discarded_again: Mutex::default(),
            rounds: config.rounds,
            members: Membership::new(config.id, config.map.nodes.len(), config.dead_after, config.liveness),
            on_forgotten: OnceLock::new(),
            on_asked: OnceLock::new(),
            on_shrunk: OnceLock::new(),
            away: Away::new(config.grace),
            watches: Watches::default(),
            map: config.map,
            id: config.id,
            records,
            data,
            peers,
            clock,
            locks: Locks::new(config.grace),
            dirs: Dirs::new(config.grace),
            shards,
            gathers,
            postponed: Mutex::default(),
            unspreading: Mutex::default(),
            spread_at: config.spread_at,
            objects: config.objects,
            around: config.around,
            leases,
            caches: Caches::default(),
            users: Users::default(),
            opens: Opens::new(),
            channels: Channels::default(),
            counters: Counters::new(),
            uses: Uses::default(),
            lending: Lending::default(),
            sizes: Sizes::default(),
            files: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            on_shutdown: Mutex::new(rank::LEAF, None),
            pages: Mutex::default(),
            started: Instant::now(),
        };
        node.count_files();
        node.limit_partitions();
        node.make_root(config.owner)?;
        node.adopt_intents()?;
        if recovery.records > 0 {
            node.adopt_moves_lock()?;
        }
        node.adopt_partitions();
        node.adopt_shards();
        node.adopt_garbage();
        Ok((Arc::new(node), recovery))
    }

    /// Begins the background work: intents that were left half done, garbage, compaction.
    ///
    /// # Errors
    /// When there is no thread for it.
    pub fn start(self: &Arc<Self>) -> std::io::Result<()> {
        self.proxy.serve(self);
        self.sweeper.start(self);
        if self.data.usage().iter().any(|volume| volume.files > 0) {
            self.sweeper.request();
        }
        let weak = Arc::downgrade(self);
        self.data.on_doubtful(move || {
            if let Some(node) = weak.upgrade() {
                node.reaper.add_once(Job::Sums);
            }
        });
        self.members.start(self, &self.rounds.members)?;
        self.reaper.start(self, &self.rounds.reaper)
    }

    /// What a request to shut down calls, after its answer is on its way.
    pub fn on_shutdown(&self, act: impl Fn() + Send + 'static) {
        *self.on_shutdown.lock() = Some(Box::new(act));
    }

    /// What answers what is asked of this host: it is the process's affair what it shows of it.
    pub fn on_asked(&self, answer: impl Fn(&HostQuestion<'_>) -> FsResult<Vec<u8>> + Send + Sync + 'static) {
        // Told once, by whom opened the node.
        let _ = self.on_asked.set(Box::new(answer));
    }

    /// What ends the connections of a client that was forgotten.
    pub fn on_forgotten(&self, act: impl Fn(ClientId) + Send + Sync + 'static) {
        // Told once, by whom made the server.
        let _ = self.on_forgotten.set(Box::new(act));
    }

    /// Names, attributes and what else records are take at most so much memory from now on, and no more than `left` has.
    /// What there is stays. `give_back` is called when so much of it was removed that the system should have it back.
    pub fn bound_names(
        &self,
        max: u64,
        left: Option<Arc<dyn Headroom>>,
        give_back: impl Fn() + Send + Sync + 'static,
    ) {
        self.records.bound_memory(max, left);
        // Told once, by whom made the node.
        let _ = self.on_shrunk.set(Box::new(give_back));
    }

    /// Takes a node for dead of which the caller knows that it will not come back.
    pub fn is_lost(&self, node: NodeId) {
        self.members.lost(node);
    }

    /// Ends the background work, and what processes do by themselves, and makes everything durable.
    ///
    /// # Errors
    /// When the records cannot be synced.
    pub fn stop(&self) -> FsResult<()> {
        self.members.stop();
        self.reaper.dismiss();
        // From here on they ask, and hear that nobody is there, rather than go on in files that nobody looks at.
        self.lending.close_all();
        self.write_down_sizes()?;
        Ok(self.records.sync()?)
    }

    /// Ends the background work and nothing else, as a kill would.
    pub fn halt(&self) {
        self.members.stop();
        self.reaper.stop();
        self.sweeper.stop();
    }

    /// Bytes of subfiles on this node's volumes.
    #[must_use]
    pub fn usage(&self) -> u64 {
        self.data.usage().iter().map(|volume| volume.used).sum()
    }

    /// The map.
    #[must_use]
    pub fn map(&self) -> &Arc<FormationMap> {
        &self.map
    }

    /// This process serves a client from now on, which is to hear of its locks; or no more.
    pub fn serves(&self, client: ClientId, by: Option<Arc<dyn LockClient>>) {
        self.advisory.serve(client, by);
    }

    /// A client of this process has a page pool from now on, or no more.
    pub fn shows_pages(&self, client: ClientId, pool: Option<Arc<dyn PagePool>>) {
        let mut pages = self.pages.lock();
        match pool {
            Some(pool) => drop(pages.insert(client, pool)),
            None => drop(pages.remove(&client)),
        }
    }

    /// The page pools of clients of this process.
    pub(crate) fn page_pools(&self) -> Vec<Arc<dyn PagePool>> {
        self.pages.lock().values().map(Arc::clone).collect()
    }

    fn make_root(&self, owner: (u32, u32)) -> FsResult<()> {
        if self.map.home(Ino::ROOT) != Some(self.id) {
            return Ok(());
        }
        let mut change = self.change(&[Ino::ROOT.slot()])?;
        if change.inode(Ino::ROOT).is_ok() {
            return Ok(());
        }
        let seats = self.map.seat_count();
        let width = if self.map.width == 0 { seats } else { self.map.width.min(seats) };
        let layout = Layout { stripe: self.map.stripe, width, base: SeatIndex(0), seats };
        let attr = Attr {
            ino: Ino::ROOT,
            mode: mode::DIR | 0o755,
            nlink: 2,
            uid: owner.0,
            gid: owner.1,
            rdev: 0,
            size: 0,
            atime: change.now,
            mtime: change.now,
            ctime: change.now,
            epoch: 0,
            layout,
            holes: 0,
        };
        change.add_inode(&Inode { attr, parent: Ino::ROOT, placement: Some(Placement::Striped) });
        change.commit()
    }

    /// Slots that this node holds.
    pub(crate) fn own_slots(&self) -> impl Iterator<Item = Slot> + '_ {
        slots_of(&self.map, self.id)
    }
}

fn slots_of(map: &FormationMap, id: NodeId) -> impl Iterator<Item = Slot> + '_ {
    let own = move |(slot, node): (usize, &NodeId)| (*node == id).then_some(Slot(slot as u16));
    map.slots.iter().enumerate().filter_map(own)
}

/// The log of a small volume is compacted before it takes much of it.
fn records_options(map: &FormationMap, capacity: u64) -> RecordsOptions {
    let mut options = RecordsOptions { slots: map.slot_count(), ..RecordsOptions::default() };
    if capacity > 0 {
        options.compact_log_bytes_min = options.compact_log_bytes_min.min(capacity / 16).max(1 << 16);
    }
    options
}

fn first_slot(map: &FormationMap, id: NodeId) -> Slot {
    Slot(map.slots.iter().position(|node| *node == id).unwrap_or(0) as u16)
}
