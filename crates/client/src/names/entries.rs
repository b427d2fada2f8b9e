//! Cache of names and attributes in a process that is not a mount: replies of nodes of its machine, as long as their
//! leases run and no callback ends them. Callbacks are words in memory shared with the node ([`Invalidations`]), so
//! that using what is cached takes no message, no listening thread, and no lock that is held while a node is asked.
//! Correctness: docs/decisions/0073-leases.md.
//!
//! Of a directory in which names are looked up again and again, all names are fetched at once, which also makes their
//! absence known (docs/decisions/0017-local-direct-access.md).
//!
//! The process is a client of its own here, so that it is called back for its own changes as for any other's.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bivouac_direct::{Counts, Invalidations, PendingTimeCounters, Session};
use bivouac_layout::{entry_hash, slot_of_hash};
use bivouac_net::{Address, Identity, Line};
use bivouac_types::limits::{LEASE_MS, NAME_LEN_MAX, READDIR_BYTES_MAX};
use bivouac_types::{Attr, Errno, FsError, FsResult, Ino, NodeId, PartitionId, mode};
use bivouac_wire::{EntryName, FormationMap, InoOnly, Invalidation, Operation, ReadDirRequest, op};
use parking_lot::{Mutex, RwLock};

use crate::content::direct::open_session;
use crate::homes::spread::SpreadDirs;

const SHARDS: usize = 64;
/// Most entries of a shard; beyond that, those whose leases have ended are dropped, and if there are none, all.
const CACHED_MAX: usize = 256;
/// Most directories of which all names are cached.
const LISTED_MAX: usize = 64;
/// Entries of the largest of them.
const ENTRIES_MAX: u64 = 4096;
/// All names of a directory are asked for after so many questions about single ones within the time of a lease, and one
/// more for each so many entries: about when the questions have cost what the list will.
const QUESTIONS: u64 = 2;
const ENTRIES_PER_QUESTION: u64 = 32;
/// Pause before all names are fetched again after they could not be cached.
const UNLISTED: Duration = Duration::from_millis(4 * LEASE_MS);
/// Pause before a node is asked again that could not be reached.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest wait for a request of another thread; beyond that, going through the kernel is faster.
const TURN: Duration = Duration::from_millis(5);
/// Longest wait for an answer; then the same is asked as usual.
const WAIT: Duration = Duration::from_secs(10);

/// The entries that a process caches, of the nodes of its machine.
pub struct EntryCache {
    map: Arc<FormationMap>,
    nodes: HashMap<NodeId, NodeConnection>,
    spread: SpreadDirs,
    names: Cached<(Ino, u64), Entry>,
    attrs: Cached<Ino, CachedAttrs>,
    listings: Mutex<HashMap<Ino, Listing>>,
    /// Of those who look in the place of a kernel one asks at a time.
    turn: Mutex<()>,
}

/// A caller that stands in for a kernel: it checks permissions, and sees what its mount sees.
pub struct Looker<'a> {
    /// The mount's node.
    pub node: NodeId,
    /// Set if a symbolic link at the end of a path is to be followed.
    pub follow: bool,
    /// Returns true if the caller certainly may search a directory.
    pub may_search: &'a dyn Fn(&Attr) -> bool,
}

/// The way to a node, for one thread at a time: whoever finds it taken asks as everybody does.
struct NodeConnection {
    address: Address,
    identity: Identity,
    line: Mutex<ConnectionState>,
    /// Counters of times that the node's mounts have not sent, over this connection or the last one.
    untold: RwLock<Option<Arc<PendingTimeCounters>>>,
}

enum ConnectionState {
    Closed,
    Open(Box<Open>),
    NotBefore(Instant),
}

struct Open {
    line: Line,
    /// The session, for which the node raises the words.
    session: Session,
    words: Arc<Invalidations>,
    /// Values of the words before the last request.
    before: Counts,
}

/// Stamp of a reply that came with a lease.
#[derive(Clone)]
struct LeaseStamp {
    /// Words of the node that sent it.
    words: Arc<Invalidations>,
    key: u64,
    /// Value of its word before the request.
    count: u32,
    asked: Instant,
    until: Instant,
}

/// Inode and kind that a name leads to; nothing if there is no such name.
type Leads = Option<(Ino, u32)>;

/// A name in a directory.
#[derive(Clone)]
struct Entry {
    name: Box<[u8]>,
    leads: Leads,
    told: LeaseStamp,
}

/// Attributes. They are of what is in the root partition, which has no contract of its own.
#[derive(Clone)]
struct CachedAttrs {
    attr: Attr,
    told: LeaseStamp,
}

/// A directory in which names were asked for.
struct Listing {
    since: Instant,
    /// Questions about single names since then, and those that the list has spared.
    questions: u64,
    names: Option<CompleteListing>,
}

/// All names of a directory, as long as its attributes do not change.
struct CompleteListing {
    all: HashMap<Vec<u8>, (Ino, u32)>,
    told: LeaseStamp,
}

impl LeaseStamp {
    fn holds(&self) -> bool {
        self.words.count(self.key) == self.count && Instant::now() < self.until
    }

    /// Returns true if it came without a lease a moment ago.
    fn was_refused(&self) -> bool {
        self.until == self.asked && self.asked.elapsed() < Duration::from_millis(LEASE_MS)
    }
}

/// Things that are cached, and found under a key.
struct Cached<K, T> {
    shards: Vec<RwLock<HashMap<K, T>>>,
}

impl<K: Eq + Hash, T: Clone> Cached<K, T> {
    fn new() -> Cached<K, T> {
        Cached { shards: (0..SHARDS).map(|_| RwLock::default()).collect() }
    }

    fn get(&self, mixed: u64, key: &K) -> Option<T> {
        self.shards.get(mixed as usize % SHARDS)?.read().get(key).cloned()
    }

    fn put(&self, mixed: u64, key: K, cached: T, told: impl Fn(&T) -> &LeaseStamp) {
        let Some(shard) = self.shards.get(mixed as usize % SHARDS) else { return };
        let mut shard = shard.write();
        if shard.len() >= CACHED_MAX {
            let now = Instant::now();
            shard.retain(|_, cached| told(cached).until > now);
            if shard.len() >= CACHED_MAX {
                shard.clear();
            }
        }
        assert!(shard.len() < CACHED_MAX, "a shard of the cache has {} entries", shard.len());
        shard.insert(key, cached);
    }
}

/// Returns the key of an inode's attributes, which is well mixed in its highest bits.
fn key_of(ino: Ino) -> u64 {
    Invalidation { ino, name: None }.key()
}

impl Open {
    /// Returns the stamp of a reply for this key, requested after the words were noted.
    fn told(&self, key: u64, asked: Instant, lease_ms: u32) -> LeaseStamp {
        let until = asked + Duration::from_millis(lease_ms.into());
        LeaseStamp { words: Arc::clone(&self.words), key, count: self.before.of(key), asked, until }
    }
}

impl NodeConnection {
    /// Asks the node; `None` if it cannot be asked just now.
    fn ask<O: Operation, T>(
        &self,
        request: &O::Request<'_>,
        take: impl FnOnce(FsResult<O::Reply>, &Open, Instant) -> T,
    ) -> Option<T> {
        self.with_open(|open| {
            // Before the question: a change that the answer does not show raises a word behind this.
            open.words.note(&mut open.before);
            let asked = Instant::now();
            match open.line.ask::<O>(request) {
                // So says who does not answer, too.
                Err(error) if error.errno() == Errno::EIO => Err(error),
                said => Ok(take(said.map(|(reply, _)| reply), open, asked)),
            }
        })
    }

    /// Does something with the connection; `None` if there is none, another thread has it, or it fails.
    fn with_open<T>(&self, act: impl FnOnce(&mut Open) -> FsResult<T>) -> Option<T> {
        // Not waited for: a question of another thread may take as long as its node is away.
        let mut line = self.line.try_lock()?;
        let way = match std::mem::replace(&mut *line, ConnectionState::Closed) {
            ConnectionState::NotBefore(moment) if moment > Instant::now() => {
                *line = ConnectionState::NotBefore(moment);
                return None;
            }
            ConnectionState::Open(open) if open.session.is_own() => Ok(open),
            // Also behind a fork: the session's lock and the line are the parent's.
            _ => self.open().map(Box::new),
        };
        match way.and_then(|mut open| Ok((act(&mut open)?, open))) {
            Ok((done, open)) => {
                *line = ConnectionState::Open(open);
                Some(done)
            }
            Err(error) => {
                log::debug!(why:% = error; "{}: names are not cached", self.address);
                *line = ConnectionState::NotBefore(Instant::now() + PAUSE);
                None
            }
        }
    }

    fn open(&self) -> FsResult<Open> {
        let (line, session) = open_session(&self.address, &self.identity, WAIT)?;
        let refused = |error| FsError::from_io(&error, "a session to be called back by");
        let words = Arc::new(session.invalidations().map_err(refused)?);
        // Without it nobody looks in the place of a kernel: then it is tried again.
        *self.untold.write() = session.untold().ok().map(Arc::new);
        Ok(Open { line, session, words, before: Counts::default() })
    }

    /// Returns the counters of times that the node's mounts have not sent; `None` if they cannot be had.
    fn untold(&self) -> Option<Arc<PendingTimeCounters>> {
        let known = self.untold.read().clone();
        known.or_else(|| {
            self.with_open(|open| {
                let mut known = self.untold.write();
                if known.is_none() {
                    *known = open.session.untold().ok().map(Arc::new);
                }
                Ok(known.clone())
            })
            .flatten()
        })
    }
}

impl EntryCache {
    /// Creates the sessions at these nodes of this machine, which know this process by `identity` and by no other that
    /// changes anything.
    pub fn new(map: Arc<FormationMap>, here: &[(NodeId, Address)], identity: &Identity) -> EntryCache {
        let door = |(node, address): &(NodeId, Address)| {
            let (address, identity) = (address.clone(), identity.clone());
            (
                *node,
                NodeConnection {
                    address,
                    identity,
                    line: Mutex::new(ConnectionState::Closed),
                    untold: RwLock::default(),
                },
            )
        };
        let nodes = here.iter().map(door).collect();
        let (names, attrs, listings, spread) =
            (Cached::new(), Cached::new(), Mutex::default(), SpreadDirs::default());
        EntryCache { map, nodes, spread, names, attrs, listings, turn: Mutex::default() }
    }

    /// Looks a path up below a directory, if all of it is cached or, with `may_ask`, is at nodes of this machine and no
    /// link is on the way. Returns `None` if it has to be looked up as usual.
    pub fn find(
        &self,
        top: Ino,
        path: &[u8],
        may_ask: bool,
        looker: Option<&Looker<'_>>,
    ) -> Option<FsResult<Attr>> {
        if !may_ask || looker.is_none() {
            return self.walk(top, path, may_ask, looker);
        }
        self.walk(top, path, false, looker).or_else(|| {
            // Another thread may be fetching what this one lacks.
            let _turn = self.turn.try_lock_for(TURN)?;
            self.walk(top, path, true, looker)
        })
    }

    fn walk(
        &self,
        top: Ino,
        path: &[u8],
        may_ask: bool,
        looker: Option<&Looker<'_>>,
    ) -> Option<FsResult<Attr>> {
        let untold = match looker {
            Some(looker) => Some(self.nodes.get(&looker.node)?.untold()?),
            None => None,
        };
        // What was told before now is in all that is said from now on.
        let is_told = untold.as_ref().is_none_or(|untold| untold.are_none());
        let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).peekable();
        let (mut ino, mut fresh) = (top, None);
        while let Some(name) = names.next() {
            // Where `..` leads is no entry: the usual way knows it.
            if matches!(name, b"." | b"..") || name.len() > NAME_LEN_MAX {
                return None;
            }
            if let Some(looker) = looker {
                let seen = fresh.take().or_else(|| self.attr(ino, may_ask))?;
                // Where there are no leases, as behind changes, each name would take two questions.
                if !seen.told.holds() || !seen.attr.is_dir() || !(looker.may_search)(&seen.attr) {
                    return None;
                }
            }
            let (leads, seen) = self.name(ino, name, may_ask)?;
            let Some((next, kind)) = leads else { return Some(Err(Errno::ENOENT.into())) };
            let is_followed = looker.is_none_or(|looker| looker.follow);
            match names.peek() {
                Some(_) if kind != mode::DIR => return None,
                // Its target is read the usual way, and nothing of it is cached here.
                None if kind == mode::LINK && is_followed => return None,
                _ => (ino, fresh) = (next, seen),
            }
        }
        if !is_told && untold.is_some_and(|untold| untold.has(key_of(ino))) {
            return None;
        }
        let attr = fresh.filter(|_| is_told).or_else(|| self.attr(ino, may_ask))?.attr;
        (attr.is_dir() || path.last() != Some(&b'/')).then_some(Ok(attr))
    }

    /// Returns the inode and kind of what a name in a directory leads to, if there is such a name, and its attributes
    /// where it was asked for just now. `None` if that is to be asked as usual.
    fn name(&self, dir: Ino, name: &[u8], may_ask: bool) -> Option<(Leads, Option<CachedAttrs>)> {
        let hash = entry_hash(dir, name);
        let cached = self.names.get(hash, &(dir, hash)).filter(|entry| *entry.name == *name);
        if let Some(entry) = cached.filter(|entry| entry.told.holds()) {
            return Some((entry.leads, None));
        }
        if let Some(leads) = self.listed(dir, name) {
            return Some((leads, None));
        }
        if !may_ask {
            return None;
        }
        if self.is_to_be_listed(dir) {
            self.list(dir);
            if let Some(leads) = self.listed(dir, name) {
                return Some((leads, None));
            }
        }
        self.ask_name(dir, hash, name)
    }

    fn ask_name(&self, dir: Ino, hash: u64, name: &[u8]) -> Option<(Leads, Option<CachedAttrs>)> {
        let slot = match self.spread.has(dir) {
            true => slot_of_hash(hash, self.map.slot_count()),
            false => dir.slot(),
        };
        let door = self.nodes.get(&self.map.slot_node(slot)?)?;
        let key = Invalidation { ino: dir, name: Some(hash) }.key();
        door.ask::<op::Lookup, _>(&EntryName { parent: dir, name }, |said, open, asked| {
            let (leads, seen, lease_ms) = match said {
                Ok(found) if found.is_there() => {
                    let told = open.told(key_of(found.ino), asked, found.attr_lease_ms);
                    let seen = found.attr.and_then(|attr| self.saw(attr, told));
                    (Some((found.ino, found.kind)), seen, found.lease_ms)
                }
                Ok(found) => (None, None, found.lease_ms),
                // No lease comes with it: it holds for this call only.
                Err(error) if error.errno() == Errno::ENOENT => return Some((None, None)),
                Err(error) => {
                    if error.errno() == Errno::EREMOTE {
                        // The next question goes to the entry's shard; this one is answered the usual way.
                        self.spread.add(dir);
                    }
                    return None;
                }
            };
            let entry = Entry { name: name.into(), leads, told: open.told(key, asked, lease_ms) };
            self.names.put(hash, (dir, hash), entry, |entry| &entry.told);
            Some((leads, seen))
        })?
    }

    /// Returns the attributes of an inode. `None` if they are to be asked for as usual.
    fn attr(&self, ino: Ino, may_ask: bool) -> Option<CachedAttrs> {
        let key = key_of(ino);
        let cached = self.attrs.get(key >> 32, &ino);
        // Of a directory that was not leased a moment ago nobody asks again.
        let is_known =
            |seen: &CachedAttrs| seen.told.holds() || seen.attr.is_dir() && seen.told.was_refused();
        if !may_ask || cached.as_ref().is_some_and(is_known) {
            return cached.filter(|seen| seen.told.holds());
        }
        let door = self.nodes.get(&self.map.home(ino)?)?;
        door.ask::<op::GetAttr, _>(&InoOnly { ino }, |said, open, asked| {
            let seen = said.ok()?;
            self.saw(seen.attr, open.told(key, asked, seen.lease_ms))
        })?
    }

    /// Caches attributes, if they are what all see. What was told with them is believed for this once in any case.
    fn saw(&self, attr: Attr, told: LeaseStamp) -> Option<CachedAttrs> {
        if attr.layout.partition() != PartitionId::ROOT || attr.is_spread() {
            self.spread.note(&attr);
            return None;
        }
        let seen = CachedAttrs { attr, told };
        self.attrs.put(seen.told.key >> 32, attr.ino, seen.clone(), |seen| &seen.told);
        Some(seen)
    }

    /// Looks a name up in the list of a directory, if there is a valid one.
    fn listed(&self, dir: Ino, name: &[u8]) -> Option<Leads> {
        let mut listings = self.listings.lock();
        let listing = listings.get_mut(&dir)?;
        let names = listing.names.as_ref().filter(|names| names.told.holds())?;
        // Counted also when they are spared: they pay for the next list.
        listing.questions += 1;
        Some(names.all.get(name).copied())
    }

    /// Notes that a name is about to be asked for. Returns true if all names are to be.
    fn is_to_be_listed(&self, dir: Ino) -> bool {
        let (now, lease) = (Instant::now(), Duration::from_millis(LEASE_MS));
        let questions = {
            let mut listings = self.listings.lock();
            if listings.len() >= LISTED_MAX && !listings.contains_key(&dir) {
                listings.retain(|_, listing| now < listing.since + 2 * lease);
                if listings.len() >= LISTED_MAX {
                    listings.clear();
                }
            }
            assert!(
                listings.len() < LISTED_MAX || listings.contains_key(&dir),
                "the names of {} directories are cached",
                listings.len()
            );
            let new = Listing { since: now, questions: 0, names: None };
            let listing = listings.entry(dir).or_insert(new);
            // A list that has spared enough questions is worth another one.
            if listing.names.take().is_none() && now > listing.since + lease {
                (listing.since, listing.questions) = (now, 0);
            }
            if now < listing.since {
                return false;
            }
            listing.questions += 1;
            listing.questions
        };
        let is_due =
            |entries: u64| entries <= ENTRIES_MAX && questions > QUESTIONS + entries / ENTRIES_PER_QUESTION;
        questions > QUESTIONS && self.attr(dir, true).is_some_and(|seen| is_due(seen.attr.size))
    }

    /// Asks for all names of a directory, with their attributes.
    fn list(&self, dir: Ino) {
        let door = self.map.home(dir).and_then(|home| self.nodes.get(&home));
        let names = door.and_then(|door| door.with_open(|open| self.names_of(dir, open))?);
        // Without leases, as behind changes, a list is worth nothing for a while.
        let since = Instant::now() + if names.is_some() { Duration::ZERO } else { UNLISTED };
        if let Some(listing) = self.listings.lock().get_mut(&dir) {
            *listing = Listing { since, questions: 0, names };
        }
    }

    fn names_of(&self, dir: Ino, open: &mut Open) -> FsResult<Option<CompleteListing>> {
        open.words.note(&mut open.before);
        let (mut all, mut cookie, asked) = (HashMap::new(), 0, Instant::now());
        let mut lease = None;
        loop {
            let max_bytes = READDIR_BYTES_MAX as u32;
            let of_page = ReadDirRequest {
                ino: dir,
                cookie,
                max_bytes,
                attrs: true,
                shard: false,
                here: false,
                each: true,
            };
            let page = match open.line.ask::<op::ReadDir>(&of_page) {
                Ok((page, _)) => page,
                Err(error) if error.errno() == Errno::EIO => return Err(error),
                // Then names are asked for one by one.
                Err(_) => return Ok(None),
            };
            // The list is good for as long as the page with the shortest lease.
            let lease_ms = lease.map_or(page.lease_ms, |lease: u32| lease.min(page.lease_ms));
            lease = Some(lease_ms);
            if lease_ms == 0 || all.len() + page.entries.len() > 2 * ENTRIES_MAX as usize {
                return Ok(None);
            }
            cookie = page.entries.last().map_or(cookie, |entry| entry.cookie);
            let is_last = page.end || page.entries.is_empty();
            for entry in page.entries {
                entry.attr.map(|attr| self.saw(attr, open.told(key_of(entry.ino), asked, lease_ms)));
                all.insert(entry.name, (entry.ino, entry.kind));
            }
            if is_last {
                return Ok(Some(CompleteListing { all, told: open.told(key_of(dir), asked, lease_ms) }));
            }
        }
    }
}
