//! What a process that is no mount caches of names and attributes: what nodes of its machine say of them, as long as their
//! leases run and no callback ends it. Callbacks are words in memory that the process shares with the node
//! ([`Invalidations`]), so going by what is cached takes no message, no thread that listens, and no lock that is held while
//! anybody is asked. Why it is right: docs/decisions/0116-callbacks-without-a-message.md.
//!
//! The process is a client of its own here: so it is called back for what it changes itself, as for anybody's change.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bivouac_direct::{Invalidations, Session};
use bivouac_layout::{entry_hash, slot_of_hash};
use bivouac_net::{Address, Identity, Line};
use bivouac_types::{Attr, Errno, FsError, FsResult, Ino, NodeId, PartitionId, mode};
use bivouac_wire::{EntryName, FormationMap, Found, Invalidation, op};
use parking_lot::{Mutex, RwLock};

use crate::content::direct::open_session;
use crate::homes::spread::SpreadDirs;

const SHARDS: usize = 64;
/// Most entries of a shard; then those go whose leases are over, and if there are none, all.
const ENTRIES_MAX: usize = 256;
/// How long a node is not asked again after it could not be.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest wait for an answer; then the same is asked as usual.
const WAIT: Duration = Duration::from_secs(10);

/// The entries that a process caches, of the nodes of its machine.
pub struct EntryCache {
    map: Arc<FormationMap>,
    nodes: HashMap<NodeId, Door>,
    spread: SpreadDirs,
    shards: Vec<RwLock<HashMap<(Ino, u64), Entry>>>,
}

/// The way to a node, for one thread at a time: whoever finds it taken asks as everybody does.
struct Door {
    address: Address,
    identity: Identity,
    line: Mutex<Way>,
}

enum Way {
    Closed,
    Open(Open),
    NotBefore(Instant),
}

struct Open {
    line: Line,
    /// For which the node raises the words.
    session: Session,
    words: Arc<Invalidations>,
}

/// A name in a directory, and where it leads.
struct Entry {
    name: Box<[u8]>,
    /// Of the node that told it.
    words: Arc<Invalidations>,
    ino: Ino,
    kind: u32,
    told: Told,
    /// Of what is in the root partition, which has no contract of its own, and is no link.
    attr: Option<(Attr, Told)>,
}

/// That something was told under a lease.
#[derive(Clone, Copy)]
struct Told {
    key: u64,
    /// What its word was before it was asked for.
    count: u32,
    until: Instant,
}

impl Told {
    fn holds(&self, words: &Invalidations, now: Instant) -> bool {
        now < self.until && words.count(self.key) == self.count
    }
}

/// What a node said, with what the words of these keys were before it was asked, and when that was.
struct Answer<const N: usize> {
    said: FsResult<Found>,
    words: Arc<Invalidations>,
    counts: [u32; N],
    asked: Instant,
}

impl Door {
    /// Asks where a name leads; `None` if nobody can be asked just now.
    fn ask<const N: usize>(&self, parent: Ino, name: &[u8], keys: [u64; N]) -> Option<Answer<N>> {
        let mut line = self.line.try_lock()?;
        let way = match std::mem::replace(&mut *line, Way::Closed) {
            Way::NotBefore(moment) if moment > Instant::now() => {
                *line = Way::NotBefore(moment);
                return None;
            }
            Way::Open(open) if open.session.is_own() => Ok(open),
            _ => self.open(),
        };
        let asked = Instant::now();
        let answer = way.and_then(|open| {
            let (words, counts) = (Arc::clone(&open.words), keys.map(|key| open.words.count(key)));
            let said = open.line.ask::<op::Lookup>(&EntryName { parent, name }).map(|(found, _)| found);
            match said {
                // So says who does not answer, too.
                Err(error) if error.errno() == Errno::EIO => Err(error),
                said => Ok((open, Answer { said, words, counts, asked })),
            }
        });
        match answer {
            Ok((open, answer)) => {
                *line = Way::Open(open);
                Some(answer)
            }
            Err(error) => {
                log::debug!(why:% = error; "{}: names are not cached", self.address);
                *line = Way::NotBefore(Instant::now() + PAUSE);
                None
            }
        }
    }

    fn open(&self) -> FsResult<Open> {
        let (line, session) = open_session(&self.address, &self.identity, WAIT)?;
        let words = session.invalidations();
        let words = words.map_err(|error| FsError::from_io(&error, "a session to be called back by"))?;
        Ok(Open { line, session, words: Arc::new(words) })
    }
}

impl EntryCache {
    /// Of these nodes of this machine, which know this process by `identity` and by no other that changes anything.
    pub fn new(map: Arc<FormationMap>, here: &[(NodeId, Address)], identity: &Identity) -> EntryCache {
        let door = |(node, address): &(NodeId, Address)| {
            let (address, identity) = (address.clone(), identity.clone());
            (*node, Door { address, identity, line: Mutex::new(Way::Closed) })
        };
        let nodes = here.iter().map(door).collect();
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        EntryCache { map, nodes, spread: SpreadDirs::default(), shards }
    }

    fn shard(&self, hash: u64) -> Option<&RwLock<HashMap<(Ino, u64), Entry>>> {
        self.shards.get(hash as usize % SHARDS)
    }

    /// Inode and kind of what a name in a directory leads to, with its attributes as far as they are cached.
    fn cached(&self, dir: Ino, hash: u64, name: &[u8]) -> Option<(Ino, u32, Option<Attr>)> {
        let shard = self.shard(hash)?.read();
        let entry = shard.get(&(dir, hash)).filter(|entry| *entry.name == *name)?;
        let (words, now) = (&entry.words, Instant::now());
        let attr = entry.attr.filter(|(_, told)| told.holds(words, now)).map(|(attr, _)| attr);
        entry.told.holds(words, now).then_some((entry.ino, entry.kind, attr))
    }

    /// Asks where a name leads, and caches that. `None` if it is to be asked as usual.
    fn ask(&self, dir: Ino, hash: u64, name: &[u8]) -> Option<FsResult<(Ino, u32, Option<Attr>)>> {
        let slot = match self.spread.has(dir) {
            true => slot_of_hash(hash, self.map.slot_count()),
            false => dir.slot(),
        };
        let node = self.map.slot_node(slot)?;
        let door = self.nodes.get(&node)?;
        let shard = self.shard(hash)?;
        // What a word was before can be told only of an inode that is known before.
        let before = shard.read().get(&(dir, hash)).map(|entry| entry.ino);
        let key = Invalidation { ino: dir, name: Some(hash) }.key();
        let attr_key = Invalidation { ino: before.unwrap_or(dir), name: None }.key();
        let Answer { said, words, counts: [count, attr_count], asked } =
            door.ask(dir, name, [key, attr_key])?;
        let found = match said {
            Ok(found) if found.is_there() => found,
            Ok(_) => return Some(Err(Errno::ENOENT.into())),
            Err(error) if error.errno() == Errno::ENOENT => return Some(Err(error)),
            Err(error) => {
                if error.errno() == Errno::EREMOTE {
                    self.spread.add(dir);
                }
                return None;
            }
        };
        let until = |lease_ms: u32| asked + Duration::from_millis(lease_ms.into());
        let told = Told { key, count, until: until(found.lease_ms) };
        let attr_told = Told { key: attr_key, count: attr_count, until: until(found.attr_lease_ms) };
        let is_plain = |attr: &Attr| found.kind != mode::LINK && attr.layout.partition() == PartitionId::ROOT;
        let plain = found.attr.filter(is_plain);
        let attr = plain.filter(|_| before == Some(found.ino)).map(|attr| (attr, attr_told));
        let entry = Entry { name: name.into(), words, ino: found.ino, kind: found.kind, told, attr };
        let mut shard = shard.write();
        if shard.len() >= ENTRIES_MAX {
            let now = Instant::now();
            shard.retain(|_, entry| entry.told.until > now);
            if shard.len() >= ENTRIES_MAX {
                shard.clear();
            }
        }
        shard.insert((dir, hash), entry);
        Some(Ok((found.ino, found.kind, plain)))
    }

    /// What is at a path below a directory, if all of it is cached, or, where it may ask, is at nodes of this machine and no
    /// link is on the way. `None` if it is to be looked for as usual.
    pub fn find(&self, top: Ino, path: &[u8], may_ask: bool) -> Option<FsResult<Attr>> {
        let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).peekable();
        let mut dir = top;
        while let Some(name) = names.next() {
            if matches!(name, b"." | b"..") {
                return None;
            }
            let is_last = names.peek().is_none();
            let hash = entry_hash(dir, name);
            let cached = self.cached(dir, hash, name).filter(|(_, _, attr)| attr.is_some() || !is_last);
            let (ino, kind, attr) = match cached {
                Some(cached) => cached,
                None if may_ask => match self.ask(dir, hash, name)? {
                    Ok(found) => found,
                    Err(error) => return Some(Err(error)),
                },
                None => return None,
            };
            if is_last {
                return attr.filter(|attr| attr.is_dir() || path.last() != Some(&b'/')).map(Ok);
            }
            if kind != mode::DIR {
                return None;
            }
            dir = ino;
        }
        None
    }
}
