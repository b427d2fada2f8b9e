//! Assembly, start and end of a node.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use bivouac_net::LivenessTable;
use bivouac_ranks::{Mutex, rank};
use bivouac_store::{DataOptions, DataStore, Records, RecordsOptions, Recovery, VolumeConfig, open_volumes};
use bivouac_types::{
    Attr, Checksum, FsError, FsResult, Ino, Layout, NodeId, Placement, Slot, SpreadAt, TargetIndex, mode,
};
use bivouac_wire::FormationMap;

use crate::absent_peers::AbsentPeers;
use crate::advisory::Advisory;
use crate::alloc::Allocator;
use crate::callbacks::Callbacks;
use crate::clock::Clock;
use crate::ended::end_clients;
use crate::intent_record::Intents;
use crate::lending::Lending;
use crate::locks::Locks;
use crate::membership::{Membership, MembershipObserver};
use crate::mirror_link::{mirror_note_of, mirror_volumes};
use crate::namespace::unless_absent;
use crate::node::{Hooks, Node, RECORDS_VOLUME, slots_of};
use crate::opens::Opens;
use crate::partitions::Partitions;
use crate::peers::{PeerLane, Peers};
use crate::proxy_state::{LinkAccess, Proxy, SourceDecorator};
use crate::races::Races;
use crate::reaper::{Job, Reaper};
use crate::record::Inode;
use crate::recorder::Recorder;
use crate::replicas::Replicas;
use crate::reply_cache::ReplyCache;
use crate::rounds::Rounds;
use crate::served::ServedClients;
use crate::sessions::Sessions;
use crate::shards::{GatheredShards, Shards};
use crate::stale_tails::StaleTails;
use crate::sweeper::Sweeper;
use crate::tokens::Tokens;
use crate::users::DirectoryUsers;
use crate::uses::UsageTable;
use crate::watch::Watches;

/// Fate of the daemons before this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryHistory {
    /// The whole formation was killed and is being recovered: none of its clients is alive.
    pub clients_ended: bool,
    /// A recovery of the whole formation has happened at some time: files may have bytes behind their ends whose
    /// writers are unknown.
    pub was_recovered: bool,
}

/// Configuration of a node.
pub struct NodeConfig {
    /// The map; gives this node its slots and targets.
    pub map: Arc<FormationMap>,
    /// This node's number in the map.
    pub id: NodeId,
    /// The volumes that it lends, in the map's order. Records are on the first.
    pub volumes: Vec<VolumeConfig>,
    /// Most subfiles that are kept open.
    pub handles_max: usize,
    /// Rule for checksums of blocks of new subfiles.
    pub checksum: Checksum,
    /// Owner of the root directory.
    pub owner: (u32, u32),
    /// Maximum time for a client without a connection to come back.
    pub grace: Duration,
    /// Entries at which a directory spreads over all nodes.
    pub spread_at: SpreadAt,
    /// Time without an answer after which a node is dead; `None` switches failure detection off.
    pub dead_after: Option<Duration>,
    /// Table of dead nodes.
    pub liveness: Arc<LivenessTable>,
    /// Settings of object stores from the environment.
    pub objects: bivouac_source::Environment,
    /// The formation's secret, which opens the keys of its links.
    pub secret: [u8; 32],
    /// A wrapper around site storage, for tests.
    pub around: Option<SourceDecorator>,
    /// The threads that it shares with other nodes of its process.
    pub rounds: Rounds,
    /// The daemon before this one.
    pub past: RecoveryHistory,
    /// Memory for statistics that outlives the daemon; `None` uses memory of this process.
    pub recorded: Option<OwnedFd>,
    /// The switch of each node of the map, by number, as far as that is known.
    pub switches: Vec<Option<u16>>,
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
        let recorder = Recorder::open(config.recorded)
            .map_err(|error| FsError::from_io(&error, "memory for what is recorded"))?;
        let counters = Arc::new(recorder.counters());
        let lane = Arc::new(PeerLane::new(&config.map, config.id, Arc::clone(&peers), Arc::clone(&counters)));
        let first = config.volumes.first().map(|volume| volume.path.as_path());
        let note = first.map(mirror_note_of).transpose()?.flatten();
        // A mirrored node that has run before must not begin with an empty volume: the map, and its replica, have
        // content.
        let lent = |volume: &VolumeConfig| VolumeConfig {
            create: volume.create && note.is_none(),
            ..volume.clone()
        };
        let lent: Vec<_> = config.volumes.iter().map(lent).collect();
        let volumes = open_volumes(&lent, formation, config.id)?;
        let waits = (config.dead_after, config.grace);
        let (volumes, mirror) = mirror_volumes(&config.map, (first, note), &lane, waits, volumes)?;
        if let Some(tended) = &mirror {
            // Peers may act on a request: what it was derived from has to be mirrored first.
            lane.make_deferred_before_asking(&tended.mirror);
        }
        let data = Arc::new(DataStore::with_volumes(volumes, formation, &options)?);
        let capacity = config.volumes.first().map_or(0, |volume| volume.capacity);
        let (records, recovery) =
            Records::open(data.volume(0)?, formation, config.id, records_options(&config.map, capacity))?;
        // Content and records of the first volume share its capacity.
        records.count_in(data.records_room(RECORDS_VOLUME)?);
        let slot = first_slot(&config.map, config.id);
        // Before sessions are read: those of ended clients would await reclaim for the whole grace time.
        if config.past.clients_ended {
            end_clients(&records, slots_of(&config.map, config.id))?;
        }
        let (shards, gathers) =
            (Shards::new(slots_of(&config.map, config.id).collect()), GatheredShards::new(&config.map));
        let served = Arc::<ServedClients>::default();
        let restarted = recovery.records > 0;
        let callbacks = Callbacks::new(&config.map, restarted, Arc::clone(&served), Arc::clone(&lane));
        let allocator = Allocator::open(&records, config.id, slot)?;
        let sessions = Sessions::open(&records, slot, config.grace);
        let partitions = Partitions::open(&records, slot, &config.map)?;
        let own = slots_of(&config.map, config.id);
        // Clients that may be gone may have written behind an end that they never published.
        let had_opens = config.past.was_recovered || !sessions.awaiting().is_empty();
        let members = Membership::new(config.id, config.map.nodes.len(), config.dead_after, config.liveness);
        let node = Node {
            this: OnceLock::new(),
            advisory: Advisory::open(&records, config.id, own, peers, Arc::clone(&served)),
            stale_tails: StaleTails::new(config.id, allocator.first(), had_opens),
            sweeper: Sweeper::default(),
            proxy: Proxy::default(),
            lending: Lending::new(Arc::clone(&data)),
            tokens: Tokens::new(new_life()?, had_opens),
            races: Races::new(&config.map, config.id, clock.now(), restarted),
            allocator,
            sessions,
            replies: ReplyCache::new(config.grace),
            partitions,
            switches: config.switches,
            reaper: Reaper::new(config.grace),
            rounds: config.rounds,
            members: Arc::new(members),
            hooks: Hooks::default(),
            away: AbsentPeers::new(config.grace),
            watches: Watches::default(),
            newest_map: Mutex::new(rank::LEAF, Arc::clone(&config.map)),
            map: config.map,
            id: config.id,
            records,
            data,
            peers: lane,
            mirror,
            replicas: Replicas::default(),
            clock,
            locks: Locks::new(config.grace),
            shards,
            gathers,
            intents: Intents::default(),
            spread_at: config.spread_at,
            objects: config.objects,
            links: LinkAccess::new(formation, config.id, config.secret, config.owner),
            around: config.around,
            callbacks,
            served,
            users: DirectoryUsers::default(),
            opens: Opens::new(),
            counters,
            uses: UsageTable::open(&recorder),
            recorder,
            files: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            started: Instant::now(),
        };
        node.count_files();
        node.limit_partitions();
        node.make_root(config.owner)?;
        // Before anything is served: entries that an unfinished change touches are locked by then.
        node.adopt_intents()?;
        // An earlier daemon may have held the turn at moving directories, and nobody else gives it back.
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
    /// The system refuses a thread.
    pub fn start(self: &Arc<Self>) -> std::io::Result<()> {
        assert!(self.this.set(Arc::downgrade(self)).is_ok(), "{} is started twice", self.id);
        if let Some(tended) = &self.mirror {
            tended.start()?;
        }
        // Each of these holds the node weakly: a node ends although its threads wait.
        let weak: Weak<Node> = Arc::downgrade(self);
        let _ = self.proxy.mirror.target.set(weak.clone());
        self.resume_site_work();
        self.sweeper.start(weak.clone());
        // An earlier daemon may have been killed between the end of a client and its sweep.
        if self.data.usage().iter().any(|volume| volume.files > 0) {
            self.sweeper.request();
        }
        let observer = weak.clone();
        self.data.on_doubtful(move || {
            if let Some(node) = weak.upgrade() {
                node.reaper.add_once(Job::Sums);
            }
        });
        self.members.start(Arc::clone(&self.peers), observer, &self.rounds.members)?;
        self.start_background()
    }

    /// Ends the background work, and what processes do by themselves, and makes everything durable.
    ///
    /// # Errors
    /// The records cannot be synced.
    pub fn stop(&self) -> FsResult<()> {
        self.members.stop();
        // Replies are not sent any more, and the backup may have ended already.
        self.mirror.iter().for_each(|tended| tended.end());
        self.reaper.dismiss();
        // From here on processes ask, and are refused, rather than write files that nobody reads back.
        self.lending.close_all();
        let written = self.write_down_sizes();
        self.records.sync()?;
        written
    }

    /// Ends the background work and nothing else, as a kill would.
    pub fn halt(&self) {
        self.members.stop();
        self.reaper.stop();
        self.sweeper.stop();
        self.mirror.iter().for_each(|tended| tended.halt());
    }

    fn make_root(&self, owner: (u32, u32)) -> FsResult<()> {
        if self.map.home(Ino::ROOT) != Some(self.id) {
            return Ok(());
        }
        let mut change = self.change(&[Ino::ROOT.slot()])?;
        if unless_absent(change.inode(Ino::ROOT))?.is_some() {
            return Ok(());
        }
        let targets = self.map.target_count();
        let width = if self.map.width == 0 { targets } else { self.map.width.min(targets) };
        let layout = Layout { stripe: self.map.stripe, width, base: TargetIndex(0), targets };
        let attr = Attr {
            uid: owner.0,
            gid: owner.1,
            ..Attr::new(Ino::ROOT, mode::DIR | 0o755, layout, change.now)
        };
        change.add_inode(&Inode { attr, parent: Ino::ROOT, placement: Some(Placement::Striped) });
        change.commit()
    }
}

impl MembershipObserver for Node {
    fn peer_is_dead(&self, node: NodeId) {
        self.cut_off_mounts(node);
    }

    fn peer_is_alive(&self, node: NodeId) {
        self.reach_mounts(node);
        Node::peer_answers(self, node);
    }

    fn peer_answers(&self, node: NodeId) {
        Node::peer_answers(self, node);
    }

    fn doubt_locks(&self) {
        self.served.all().into_iter().filter_map(|served| served.locks).for_each(|locks| locks.doubt());
    }
}

/// Options of the record log. On a small volume the log is compacted earlier, so that it never takes much of it.
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

/// Returns a random number for this daemon's life, unlike that of any earlier one.
fn new_life() -> FsResult<u64> {
    getrandom::u64()
        .map_err(|error| FsError::with(bivouac_types::Errno::EIO, format!("draw random bytes: {error}")))
}
