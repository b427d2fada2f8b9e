//! A node: its parts, and how it starts and ends.

use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bivouac_net::LivenessTable;
use bivouac_ranks::Mutex;
use bivouac_store::{DataOptions, DataStore, Headroom, Records, RecordsOptions, Recovery, VolumeConfig};
use bivouac_types::{
    Attr, Checksum, ClientId, FsError, FsResult, Ino, Layout, NodeId, Placement, SeatIndex, Slot, SpreadAt,
    mode,
};
use bivouac_wire::{FormationMap, HostQuestion};

use crate::advisory::Advisory;
use crate::alloc::Allocator;
use crate::away::Away;
use crate::callbacks::Callbacks;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::direct::Lending;
use crate::ended::end_clients;
use crate::gather::{Gathers, Shards};
use crate::intent::Intents;
use crate::locks::Locks;
use crate::membership::Membership;
use crate::opens::Opens;
use crate::partitions::Partitions;
use crate::peers::{PeerLane, Peers};
use crate::proxy::{Around, Proxy};
use crate::reaper::{Job, Reaper};
use crate::record::Inode;
use crate::recorder::Recorder;
use crate::rounds::Rounds;
use crate::served::{Served, ServedClients};
use crate::sessions::Sessions;
use crate::stale_tails::StaleTails;
use crate::sweep::Sweeper;
use crate::users::Users;
use crate::uses::Uses;
use crate::watch::Watches;

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
    /// Memory for what is recorded, which outlives daemons; without it, this one's.
    pub recorded: Option<OwnedFd>,
    /// The switch of each node of the map, by number, as far as that is known.
    pub switches: Vec<Option<u16>>,
}

/// What the process does for its node.
#[derive(Default)]
pub(crate) struct Hooks {
    /// Ends the connections of a client that was forgotten, so that it says again what it has open.
    pub forgotten: OnceLock<Box<dyn Fn(ClientId) + Send + Sync>>,
    /// Answers what is asked of this host.
    pub asked: OnceLock<AnswerForHost>,
    /// Gives memory that is free in this process back to the system.
    pub shrunk: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Ends the process.
    pub shutdown: Mutex<Option<Box<dyn Fn() + Send>>>,
}

/// A running node.
pub struct Node {
    pub(crate) map: Arc<FormationMap>,
    pub(crate) id: NodeId,
    pub(crate) records: Records,
    pub(crate) data: Arc<DataStore>,
    pub(crate) peers: Arc<PeerLane>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) allocator: Allocator,
    pub(crate) locks: Locks,
    pub(crate) shards: Shards,
    pub(crate) gathers: Gathers,
    /// Changes over several nodes that this one drives.
    pub(crate) intents: Intents,
    /// Entries at which a directory spreads.
    pub(crate) spread_at: SpreadAt,
    /// What the environment says of object stores.
    pub(crate) objects: bivouac_source::Environment,
    /// What is put around site storage.
    pub(crate) around: Option<Around>,
    /// The locks that programs take.
    pub(crate) advisory: Advisory,
    pub(crate) callbacks: Callbacks,
    /// The clients that this process serves.
    pub(crate) served: Arc<ServedClients>,
    pub(crate) users: Users,
    pub(crate) opens: Opens,
    pub(crate) sessions: Sessions,
    pub(crate) partitions: Partitions,
    /// The switch of each node, as far as that is known.
    pub(crate) switches: Vec<Option<u16>>,
    pub(crate) counters: Arc<Counters>,
    /// How files are used.
    pub(crate) uses: Uses,
    /// The memory that has both.
    pub(crate) recorder: Recorder,
    pub(crate) reaper: Reaper,
    pub(crate) rounds: Rounds,
    /// Who lives.
    pub(crate) members: Membership,
    pub(crate) hooks: Hooks,
    pub(crate) away: Away,
    pub(crate) sweeper: Sweeper,
    pub(crate) stale_tails: StaleTails,
    pub(crate) proxy: Proxy,
    pub(crate) lending: Lending,
    /// What checks of the running formation look at.
    pub(crate) watches: Watches,
    pub(crate) files: AtomicU64,
    pub(crate) stopping: AtomicBool,
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
        let data = Arc::new(DataStore::open(&config.volumes, formation, config.id, &options)?);
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
        let recorder = Recorder::open(config.recorded)
            .map_err(|error| FsError::from_io(&error, "memory for what is recorded"))?;
        let (served, counters) = (Arc::<ServedClients>::default(), Arc::new(recorder.counters()));
        let lane = Arc::new(PeerLane::new(&config.map, config.id, Arc::clone(&peers), Arc::clone(&counters)));
        let restarted = recovery.records > 0;
        let callbacks = Callbacks::new(&config.map, restarted, Arc::clone(&served), Arc::clone(&lane));
        let allocator = Allocator::open(&records, config.id, slot);
        let sessions = Sessions::open(&records, slot, config.grace);
        let partitions = Partitions::open(&records, slot, &config.map)?;
        let own = slots_of(&config.map, config.id);
        let had_opens = config.past.was_recovered || !sessions.awaiting().is_empty();
        let node = Node {
            advisory: Advisory::open(&records, config.id, own, peers, Arc::clone(&served)),
            stale_tails: StaleTails::new(config.id, allocator.first(), had_opens),
            sweeper: Sweeper::default(),
            proxy: Proxy::default(),
            lending: Lending::new(Arc::clone(&data)),
            allocator,
            sessions,
            partitions,
            switches: config.switches,
            reaper: Reaper::new(config.grace),
            rounds: config.rounds,
            members: Membership::new(config.id, config.map.nodes.len(), config.dead_after, config.liveness),
            hooks: Hooks::default(),
            away: Away::new(config.grace),
            watches: Watches::default(),
            map: config.map,
            id: config.id,
            records,
            data,
            peers: lane,
            clock,
            locks: Locks::new(config.grace),
            shards,
            gathers,
            intents: Intents::default(),
            spread_at: config.spread_at,
            objects: config.objects,
            around: config.around,
            callbacks,
            served,
            users: Users::default(),
            opens: Opens::new(),
            counters,
            uses: Uses::open(&recorder),
            recorder,
            files: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            started: Instant::now(),
        };
        node.count_files();
        node.limit_partitions();
        node.make_root(config.owner)?;
        node.adopt_intents()?;
        if restarted {
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
        *self.hooks.shutdown.lock() = Some(Box::new(act));
    }

    /// What answers what is asked of this host: it is the process's affair what it shows of it.
    pub fn on_asked(&self, answer: impl Fn(&HostQuestion<'_>) -> FsResult<Vec<u8>> + Send + Sync + 'static) {
        // Told once, by whom opened the node.
        let _ = self.hooks.asked.set(Box::new(answer));
    }

    /// What ends the connections of a client that was forgotten.
    pub fn on_forgotten(&self, act: impl Fn(ClientId) + Send + Sync + 'static) {
        // Told once, by whom made the server.
        let _ = self.hooks.forgotten.set(Box::new(act));
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
        let _ = self.hooks.shrunk.set(Box::new(give_back));
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

    /// Changes what a client of this process can be asked about.
    pub fn serve(&self, client: ClientId, act: impl FnOnce(&mut Served)) {
        self.served.change(client, act);
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

    /// Looks at all records of this node's slots whose keys begin so.
    pub(crate) fn each_record(&self, prefix: &[u8], mut look: impl FnMut(Slot, &[u8], &[u8])) {
        for slot in self.own_slots() {
            self.records.scan(slot, prefix, prefix, |key, value| {
                look(slot, key, value);
                ControlFlow::Continue(())
            });
        }
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
