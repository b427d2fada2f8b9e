//! The subfiles that are open: found by id, bounded in number.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bivouac_ranks::{Mutex, RwLock, rank};

use super::SubfileId;
use super::subfile::OpenSubfile;
use crate::group_sync::GroupSync;

const SHARDS_MAX: usize = 64;

/// The place of one subfile: its lock, and its handle while there is one. There is at most one place per
/// subfile, so that the lock is *the* lock of that subfile.
#[derive(Debug)]
pub(super) struct SubfileHandle {
    /// `None` while it is not open, be there a file or not.
    pub(super) state: RwLock<Option<OpenSubfile>>,
    /// True if it was asked for since the clock's hand passed.
    used: AtomicBool,
    /// Order of the threads that sync it. Taken before the state.
    pub(super) sync: GroupSync,
}

impl Default for SubfileHandle {
    fn default() -> SubfileHandle {
        let (state, used) = (RwLock::new(rank::SUBFILE, None), AtomicBool::default());
        SubfileHandle { state, used, sync: GroupSync::new(rank::SUBFILE_SYNC) }
    }
}

/// Called with the handle of a subfile that leaves the cache.
type Leave<'a> = &'a dyn Fn(SubfileId, &OpenSubfile);

#[derive(Debug)]
pub(super) struct Cache {
    shards: Box<[Mutex<Shard>]>,
    places_max: usize,
}

#[derive(Debug, Default)]
struct Shard {
    places: HashMap<SubfileId, Arc<SubfileHandle>, BuildHasherDefault<IdHasher>>,
    /// The ids of `places`, in the order in which the clock's hand meets them.
    clock: VecDeque<SubfileId>,
}

impl Cache {
    /// Creates a cache of about `places_max` subfiles; those in use are never closed, so it may be more.
    pub(super) fn new(places_max: usize) -> Cache {
        Cache::with_shards(places_max, places_max.clamp(1, SHARDS_MAX).next_power_of_two())
    }

    fn with_shards(places_max: usize, count: usize) -> Cache {
        assert!(count.is_power_of_two(), "{count} shards, of which a mask selects one");
        let shards = (0..count).map(|_| Mutex::new(rank::SUBFILE_CACHE, Shard::default())).collect();
        Cache { shards, places_max: places_max.div_ceil(count).max(1) }
    }

    /// Returns the place of a subfile, made if there is none.
    pub(super) fn place(&self, id: SubfileId, leave: Leave<'_>) -> Arc<SubfileHandle> {
        let mut closed = Vec::new();
        let mut shard = self.shard(id).lock();
        if let Some(place) = shard.places.get(&id) {
            place.used.store(true, Ordering::Relaxed);
            return place.clone();
        }
        // Held by this call as well, so that the search for something to close below cannot choose the new place
        // itself.
        let place = Arc::new(SubfileHandle::default());
        shard.places.insert(id, place.clone());
        shard.clock.push_back(id);
        if shard.places.len() > self.places_max {
            // Two rounds: the first may only find places that were used.
            let hand_max = shard.clock.len() * 2;
            shard.evict(1, hand_max, leave, &mut closed);
        }
        assert!(shard.clock.len() == shard.places.len(), "the clock has not met each subfile once");
        // Descriptors are closed outside of the lock.
        drop(shard);
        place
    }

    /// Closes everything that is not in use.
    pub(super) fn close_unused(&self, leave: Leave<'_>) {
        // One shard at a time: a thread that runs out of descriptors must not stop the look-ups of all others.
        for shard in &self.shards {
            let mut closed = Vec::new();
            let mut shard = shard.lock();
            let all = shard.clock.len();
            shard.evict(all, all * 2, leave, &mut closed);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().places.len()).sum()
    }

    fn shard(&self, id: SubfileId) -> &Mutex<Shard> {
        let mut hasher = IdHasher::default();
        id.hash(&mut hasher);
        // The map uses the low and the topmost bits.
        let index = (hasher.finish() >> 32) as usize & (self.shards.len() - 1);
        &self.shards[index]
    }
}

impl Shard {
    /// Closes up to `count` places that nobody uses, moving the clock's hand at most `hand_max` times.
    fn evict(
        &mut self,
        count: usize,
        hand_max: usize,
        leave: Leave<'_>,
        closed: &mut Vec<Arc<SubfileHandle>>,
    ) {
        for _ in 0..hand_max {
            if closed.len() == count {
                return;
            }
            let Some(id) = self.clock.pop_front() else { return };
            match self.close(id, leave) {
                Some(place) => closed.push(place),
                // In use, or used since the hand came by: it stays for another round.
                None => self.clock.push_back(id),
            }
        }
    }

    fn close(&mut self, id: SubfileId, leave: Leave<'_>) -> Option<Arc<SubfileHandle>> {
        let place = self.places.get_mut(&id)?;
        // Nobody gets a new reference while the shard is locked: what is unused now stays so.
        let unused = Arc::get_mut(place)?;
        // A second chance: only what was not asked for during a whole round is closed.
        if std::mem::take(unused.used.get_mut()) {
            return None;
        }
        if let Some(open) = unused.state.get_mut() {
            leave(id, open);
        }
        self.places.remove(&id)
    }
}

/// Multiplies; ids are small numbers that nobody chooses to collide.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u16(&mut self, value: u16) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::{Ino, TargetIndex};
    use std::collections::HashSet;

    fn id(ino: u64) -> SubfileId {
        SubfileId { volume: 0, ino: Ino(ino), target: TargetIndex(0) }
    }

    #[test]
    fn it_is_bounded_but_never_forgets_what_is_in_use() {
        let cache = Cache::new(8);
        let held: Vec<_> = (0..100).map(|ino| (ino, cache.place(id(ino), &|_, _| ()))).collect();
        assert_eq!(cache.len(), 100);
        for (ino, place) in &held {
            assert!(Arc::ptr_eq(place, &cache.place(id(*ino), &|_, _| ())));
        }
        drop(held);
        (100..400).for_each(|ino| drop(cache.place(id(ino), &|_, _| ())));
        cache.close_unused(&|_, _| ());
        assert_eq!(cache.len(), 0);
        (0..400).for_each(|ino| drop(cache.place(id(ino), &|_, _| ())));
        assert!(cache.len() <= 8, "{}", cache.len());
    }

    #[test]
    fn what_is_asked_for_often_stays() {
        let cache = Cache::with_shards(2, 1);
        for ino in [1, 2, 1, 3] {
            drop(cache.place(id(ino), &|_, _| ()));
        }
        let mut left: Vec<u64> = cache.shards[0].lock().places.keys().map(|id| id.ino.0).collect();
        left.sort_unstable();
        assert_eq!(left, [1, 3]);
    }

    #[test]
    fn ids_spread() {
        let hash = |id: SubfileId| {
            let mut hasher = IdHasher::default();
            id.hash(&mut hasher);
            hasher.finish()
        };
        let low: HashSet<u64> = (0..1024).map(|ino| hash(id(ino)) & 1023).collect();
        let shards: HashSet<u64> = (0..1024).map(|ino| hash(id(ino)) >> 32 & 63).collect();
        assert!(low.len() > 500 && shards.len() == 64, "{} {}", low.len(), shards.len());
    }
}
