//! How the home of a spread directory follows its shards.
//!
//! Size, link count and times of a spread directory are kept by its home, which must not hear of every entry: then
//! it would be what limits all nodes. So a shard tells the home of its *first* change, before that is answered; the
//! home then knows that the shard is ahead (*dirty*), and asks it when somebody wants the attributes. Who is asked
//! tells of its next change again. So looking at a directory that nobody changes costs nothing, changing one that
//! nobody looks at costs nothing either, and who looks always sees every finished change.
//!
//! A shard's change that finds an earlier telling under way tells as well: it must not be answered before the home
//! knows. The home writes down the times when it is told and when it finds a shard changed, by its own clock.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bivouac_ranks::{Mutex, rank};
use bivouac_types::{ClientId, Errno, FsResult, Ino, NodeId, Slot};
use bivouac_wire::{DirChangedRequest, Encode, FormationMap, InoOnly, ShardState, op};

use crate::directory::shard_slot;
use crate::dispatch::SYSTEM;
use crate::namespace::decode;
use crate::node::Node;
use crate::peers::{Steps, is_peer};
use crate::reaper::Job;
use crate::record::{Folded, Inode, folded_key, shard_key};
use crate::session::Ctx;

/// The shards of this node: where they are counted, and whose homes know that they are ahead.
pub struct Shards {
    /// This node's slots.
    own: Vec<Slot>,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    /// Directories whose home was told: `None`; is being told: which time.
    dirs: HashMap<Ino, Option<u64>>,
    times: u64,
}

impl Shards {
    pub fn new(own: Vec<Slot>) -> Shards {
        Shards { own, told: Mutex::default() }
    }

    /// The slot of the record of a directory's shard.
    pub fn slot_of(&self, dir: Ino) -> Slot {
        shard_slot(&self.own, dir)
    }

    /// Whether the home has to be told; then, the how manieth time that is.
    fn begin(&self, dir: Ino) -> Option<u64> {
        let mut told = self.told.lock();
        if told.dirs.get(&dir) == Some(&None) {
            return None;
        }
        told.times += 1;
        let time = told.times;
        told.dirs.insert(dir, Some(time));
        Some(time)
    }

    /// The home was told, unless it has asked since.
    fn end(&self, dir: Ino, time: u64) {
        if let Some(state) = self.told.lock().dirs.get_mut(&dir)
            && *state == Some(time)
        {
            *state = None;
        }
    }

    /// The home asks: the next change is told.
    pub fn asked(&self, dir: Ino) {
        self.told.lock().dirs.remove(&dir);
    }
}

/// What this node knows of the shards of the directories of which it is the home.
pub struct Gathers {
    dirs: Mutex<HashMap<Ino, Arc<Gather>>>,
    /// The nodes that have shards: all that have slots.
    pub nodes: Vec<NodeId>,
}

struct Gather {
    /// Rounds of questions so far, the one under way included.
    begun: AtomicU64,
    /// The last round that has ended; held while shards are asked.
    turn: Mutex<u64>,
    known: Mutex<Known>,
}

struct Known {
    /// Shards that are ahead of what is known.
    dirty: BTreeSet<NodeId>,
    shards: BTreeMap<NodeId, ShardState>,
}

impl Gathers {
    pub fn new(map: &FormationMap) -> Gathers {
        let nodes: BTreeSet<NodeId> = map.slots.iter().copied().collect();
        Gathers { dirs: Mutex::default(), nodes: nodes.into_iter().collect() }
    }

    /// Nothing is known of a directory that was not asked for since the start.
    fn of(&self, dir: Ino) -> Arc<Gather> {
        let new = || {
            let known = Known { dirty: self.nodes.iter().copied().collect(), shards: BTreeMap::new() };
            Arc::new(Gather {
                begun: AtomicU64::new(0),
                turn: Mutex::new(rank::GATHER_TURN, 0),
                known: Mutex::new(rank::LEAF, known),
            })
        };
        Arc::clone(self.dirs.lock().entry(dir).or_insert_with(new))
    }

    /// A shard is ahead.
    pub fn is_ahead(&self, dir: Ino, node: NodeId) {
        self.of(dir).known.lock().dirty.insert(node);
    }

    /// The directory is gone.
    pub fn forget(&self, dir: Ino) {
        self.dirs.lock().remove(&dir);
    }
}

impl Node {
    /// This node's shard of a directory has changed: its home knows that when this returns.
    pub(crate) fn tell_home(&self, origin: ClientId, dir: Ino) {
        let Some(time) = self.shards.begin(dir) else { return };
        let outcome = self.tell(Steps::question(origin), dir, self.id, true);
        // While the home is away nobody can ask it. A restarted one asks all shards; for the other case it is told
        // later, so that not every change waits for it.
        self.shards.end(dir, time);
        if let Err(error) = outcome {
            log::warn!(why:% = error; "the home of directory {dir} is told later that it has changed");
            self.reaper.add_once(Job::Tell(dir));
        }
    }

    /// A change of this node's shard of a directory was made earlier, perhaps by a daemon that was killed before it
    /// could tell: its repetition must not be answered before the home knows.
    pub(crate) fn tell_again(&self, ctx: &Ctx<'_>, dir: Ino) {
        let book = self.shards.slot_of(dir);
        if self.records.read(book, &shard_key(dir), |shard| shard.is_some()) {
            self.tell_home(ctx.origin, dir);
        }
    }

    /// Tells the home of a spread directory that its shard on `node` has changed, or may have.
    pub(crate) fn tell(&self, steps: Steps, dir: Ino, node: NodeId, certain: bool) -> FsResult<()> {
        let request = DirChangedRequest { dir, node, certain };
        self.step::<op::DirChanged>(self.home_of(dir)?, steps, 0, request)
    }

    /// Tells what an earlier attempt could not tell, or an earlier daemon did not come to tell.
    pub(crate) fn tell_pending(&self, dir: Ino) -> FsResult<()> {
        let steps = Steps { background: true, ..Steps::question(SYSTEM) };
        self.tell(steps, dir, self.id, false)
    }

    /// The directories whose shards an earlier daemon may have changed without telling.
    pub(crate) fn adopt_shards(&self) {
        self.numbers(b'S').into_iter().for_each(|(_, dir)| self.reaper.add_once(Job::Tell(Ino(dir))));
    }

    /// An inode; of a spread directory with all finished changes. Peers, who must not make this node wait for
    /// others, get what is known.
    pub(crate) fn gathered(&self, ctx: &Ctx<'_>, ino: Ino) -> FsResult<Inode> {
        let inode = self.inode(ino)?;
        if !inode.attr.is_spread() || is_peer(ctx.client) {
            return Ok(inode);
        }
        self.gather(ctx.origin, ino)?;
        self.inode(ino)
    }

    /// Asks the shards that are ahead, and writes down what they say. One that does not answer stays ahead.
    pub(crate) fn gather(&self, origin: ClientId, dir: Ino) -> FsResult<()> {
        let gather = self.gathers.of(dir);
        let arrived = gather.begun.load(Ordering::SeqCst);
        let mut ended = gather.turn.try_lock().unwrap_or_else(|| {
            bivouac_net::before_waiting();
            gather.turn.lock()
        });
        if *ended > arrived {
            // A round that began after this question has told everything.
            return Ok(());
        }
        let round = gather.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let outcome = self.ask_shards(origin, dir, &gather);
        *ended = round;
        outcome
    }

    fn ask_shards(&self, origin: ClientId, dir: Ino, gather: &Gather) -> FsResult<()> {
        let dirty = std::mem::take(&mut gather.known.lock().dirty);
        if dirty.is_empty() {
            return Ok(());
        }
        for node in dirty {
            match self.step::<op::FoldShard>(node, Steps::question(origin), 0, InoOnly { ino: dir }) {
                Ok(state) => drop(gather.known.lock().shards.insert(node, state)),
                Err(error) => {
                    gather.known.lock().dirty.insert(node);
                    log::warn!(why:% = error; "{node} does not say what it has of directory {dir}");
                }
            }
        }
        let shards: Vec<ShardState> = gather.known.lock().shards.values().cloned().collect();
        if shards.len() == self.gathers.nodes.len() { self.fold(dir, &shards) } else { Ok(()) }
    }

    fn fold(&self, dir: Ino, shards: &[ShardState]) -> FsResult<()> {
        let slot = dir.slot();
        let mut change = self.change_at(&[slot], &[])?;
        let mut inode = change.inode(dir)?;
        let known = change.txn.get(slot, &folded_key(dir));
        let known: Folded = known.map_or(Ok(Folded::default()), |bytes| decode(bytes, "shards", dir))?;
        let versions = shards.iter().fold(0_u64, |sum, shard| sum.wrapping_add(shard.version));
        if versions == known.versions {
            return Ok(());
        }
        let subdirs = shards.iter().fold(2_u32, |sum, shard| sum.saturating_add(shard.subdirs));
        inode.attr.size = shards.iter().fold(0, |sum, shard| sum.saturating_add(shard.entries));
        inode.attr.nlink = subdirs;
        (inode.attr.mtime, inode.attr.ctime) = (change.now, change.now);
        change.put_inode(&inode);
        change.txn.put(slot, &folded_key(dir), &Folded { versions }.to_bytes());
        change.commit()
    }

    /// What this node's shard adds to its directory; the next change is told.
    pub(crate) fn shard_state(&self, dir: Ino) -> FsResult<ShardState> {
        self.shards.asked(dir);
        let book = self.shards.slot_of(dir);
        self.check_slot(book)?;
        self.records.read(book, &shard_key(dir), |bytes| match bytes {
            None => Err(Errno::ENOENT.into()),
            Some(bytes) => {
                let shard: crate::record::Shard = decode(bytes, "shard", dir)?;
                let (entries, subdirs, version) = (shard.entries, shard.subdirs, shard.version);
                Ok(ShardState { entries, subdirs, version })
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_change_after_a_question_is_told() {
        let (shards, dir) = (Shards::new(vec![Slot(3), Slot(9)]), Ino(77));
        let time = shards.begin(dir).unwrap();
        shards.end(dir, time);
        assert_eq!(shards.begin(dir), None, "told");
        shards.asked(dir);
        assert!(shards.begin(dir).is_some());
    }

    #[test]
    fn who_meets_a_telling_under_way_tells_too() {
        let (shards, dir) = (Shards::new(vec![Slot(0)]), Ino(77));
        let first = shards.begin(dir).unwrap();
        let second = shards.begin(dir).unwrap();
        assert!(second > first);
        shards.end(dir, first);
        assert!(shards.begin(dir).is_some(), "the second is still under way");
    }

    #[test]
    fn a_telling_that_was_overtaken_by_a_question_does_not_count() {
        let (shards, dir) = (Shards::new(vec![Slot(0)]), Ino(77));
        let time = shards.begin(dir).unwrap();
        shards.asked(dir);
        shards.end(dir, time);
        assert!(shards.begin(dir).is_some());
    }
}
