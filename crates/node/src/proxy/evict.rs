//! Room on a full volume: stripes that site storage has as well go, those of the subfiles first that were not used for
//! the longest time. What was written and not flushed stays, and so does what is pinned.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;
use std::time::Duration;

use bivouac_ranks::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, rank};
use bivouac_store::{Awaited, SpaceChange};
use bivouac_types::FsResult;

use super::bring::offset_in_file;
use super::marks::{BLOCK_STRIPES, Part, read_marks};
use crate::node::Node;
use crate::record::{Held, marks_of_key, table};

/// Least room that is made at once, in bytes, and as a part of the volume.
const ROOM_MIN: u64 = 16 << 20;
const ROOM_PART: u64 = 8;
/// Locks that all subfiles share.
const WRITING: usize = 64;
/// How long those who read may take before no room is made.
const READERS_WAIT: Duration = Duration::from_secs(2);

/// What is known of the use of stripes.
pub struct Uses {
    /// Held by who reads what is here, and taken alone by who makes room.
    here: RwLock<()>,
    clock: AtomicU64,
    last: Mutex<HashMap<Part, u64>>,
    /// What is being brought for somebody: it does not go again before he has it.
    wanted: Mutex<Vec<Want>>,
    /// Held by who writes, from the marks until the bytes are there, and taken alone by who turns the marks.
    writing: [RwLock<()>; WRITING],
}

/// What came of making room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evicted {
    /// There is some that was not.
    Some,
    /// There is none, and may be when those who read, or are about to, are done.
    Later,
    /// There is nothing that may go.
    Nothing,
}

/// While this lives, the marks of what is being written stay as they are.
pub struct Writing<'a> {
    _guard: RwLockReadGuard<'a, ()>,
}

/// Stripes that a thread wants.
type Want = (ThreadId, Part, Range<u64>);

/// While this lives, stripes that were brought for its owner do not go for others of his.
pub struct Wanted<'a> {
    uses: &'a Uses,
    what: Want,
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        let mut wanted = self.uses.wanted.lock();
        if let Some(at) = wanted.iter().position(|one| *one == self.what) {
            wanted.swap_remove(at);
        }
    }
}

/// While this lives, what is here stays.
pub struct Here<'a> {
    _guard: RwLockReadGuard<'a, ()>,
}

impl Default for Uses {
    fn default() -> Uses {
        let (clock, last, wanted) = Default::default();
        let writing = |number| RwLock::numbered(rank::PART_WRITES, number as u32, ());
        Uses {
            here: RwLock::new(rank::EVICTION, ()),
            clock,
            last,
            wanted,
            writing: std::array::from_fn(writing),
        }
    }
}

impl Uses {
    /// Nothing goes while the answer lives.
    pub fn stay(&self) -> Here<'_> {
        // Also while somebody waits to make room: who holds one may need another.
        Here { _guard: self.here.read_recursive() }
    }

    /// Somebody writes to a subfile.
    pub fn write(&self, part: Part) -> Writing<'_> {
        Writing { _guard: self.writing_of(part).read() }
    }

    /// Nobody writes to a subfile while the answer lives.
    pub fn no_writes(&self, part: Part) -> RwLockWriteGuard<'_, ()> {
        self.writing_of(part).write()
    }

    fn writing_of(&self, part: Part) -> &RwLock<()> {
        let [first, ..] = &self.writing;
        self.writing.get((part.ino.0 ^ u64::from(part.seat.0)) as usize % WRITING).unwrap_or(first)
    }

    /// This thread wants these stripes.
    pub fn want(&self, part: Part, stripes: Range<u64>) -> Wanted<'_> {
        let what = (std::thread::current().id(), part, stripes);
        self.wanted.lock().push(what.clone());
        Wanted { uses: self, what }
    }

    /// Whether a stripe is wanted, and then whether by another thread.
    fn wanted_by_another(&self, part: Part, stripe: u64) -> Option<bool> {
        let this = std::thread::current().id();
        let wanted = self.wanted.lock();
        let of_stripe = wanted.iter().filter(|(_, one, stripes)| *one == part && stripes.contains(&stripe));
        of_stripe.map(|(thread, ..)| *thread != this).max()
    }

    /// A subfile is used now.
    pub fn note(&self, part: Part) {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        self.last.lock().insert(part, now);
    }

    /// A subfile is gone.
    pub fn forget(&self, part: Part) {
        self.last.lock().remove(&part);
    }

    pub(super) fn last_of(&self, part: Part) -> u64 {
        self.last.lock().get(&part).copied().unwrap_or(0)
    }
}

impl Node {
    /// Makes room on a volume.
    pub(crate) fn evict(&self, volume: u16) -> Evicted {
        let capacity = self.data.usage().get(usize::from(volume)).map_or(0, |usage| usage.capacity);
        let wanted = ROOM_MIN.min((capacity / ROOM_PART).max(1));
        let (mut freed, is_read) = (0, Cell::new(false));
        for part in self.by_use(volume) {
            match self.evict_part(part, wanted - freed, &is_read) {
                Ok(Some(bytes)) => freed += bytes,
                Ok(None) => {
                    is_read.set(true);
                    break;
                }
                Err(error) => log::warn!(why:% = error; "inode {}: nothing of it made room", part.ino),
            }
            if freed >= wanted {
                break;
            }
        }
        match freed {
            0 if is_read.get() => Evicted::Later,
            0 => Evicted::Nothing,
            _ => Evicted::Some,
        }
    }

    /// Subfiles of a volume that have something that came from site storage and may go, the one first that was not used for longest.
    fn by_use(&self, volume: u16) -> Vec<Part> {
        let mut parts = BTreeMap::new();
        for slot in self.own_slots() {
            self.records.scan(slot, &table(b'Q'), &table(b'Q'), |key, value| {
                if let Some((ino, seat, _)) = marks_of_key(key)
                    && read_marks(Some(value), ino).is_ok_and(|marks| marks.has_clean())
                {
                    parts.insert((ino, seat), Part { ino, seat });
                }
                ControlFlow::Continue(())
            });
        }
        let may_go = |part: &Part| {
            self.subfile(part.ino, part.seat).is_ok_and(|subfile| subfile.volume == volume)
                && self.is_part_pinned(*part).is_ok_and(|pinned| !pinned)
        };
        let mut parts: Vec<Part> = parts.into_values().filter(may_go).collect();
        parts.sort_by_key(|part| self.proxy.uses.last_of(*part));
        parts
    }

    /// Frees about so many bytes of a subfile, from its beginning on. Answers how many; nothing while it is read for long.
    /// Notes whether something stays because another request has had it brought and is about to read it.
    fn evict_part(&self, part: Part, wanted: u64, is_read: &Cell<bool>) -> FsResult<Option<u64>> {
        let Some(_alone) = self.proxy.uses.here.try_write_for(READERS_WAIT) else { return Ok(None) };
        // It may have been pinned until now.
        let Some(held) = self.stored_held(part)?.filter(|held| !held.whence.is_pinned()) else {
            return Ok(Some(0));
        };
        if held.epoch < self.subfile_epoch(part)? {
            return Ok(Some(0));
        }
        let (stripe_len, mut freed, mut first) = (u64::from(held.whence.layout.stripe), 0, 0);
        while freed < wanted
            && offset_in_file(&held.whence, part.seat, first).is_some_and(|at| at < held.whence.limit)
        {
            let most = (wanted - freed).div_ceil(stripe_len.max(1));
            let gone = self.take_clean(part, &held, first, most, is_read)?;
            for run in gone.chunk_by(|one, next| one + 1 == *next) {
                self.free_stripes(part, &held, run)?;
            }
            freed += gone.len() as u64 * stripe_len;
            first += BLOCK_STRIPES;
        }
        Ok(Some(freed))
    }

    /// Stripes of a block that are not present any more. The marks go first: what is marked is there.
    fn take_clean(
        &self,
        part: Part,
        held: &Held,
        first: u64,
        most: u64,
        is_read: &Cell<bool>,
    ) -> FsResult<Vec<u64>> {
        let len = self.data.stat(self.subfile(part.ino, part.seat)?)?.map_or(0, |stat| stat.len);
        let stripe_len = u64::from(held.whence.layout.stripe);
        // Bytes behind the limit are here only: a write whose end the home has yet to hear of.
        let is_there = |stripe: u64| {
            offset_in_file(&held.whence, part.seat, stripe).is_some_and(|at| {
                at < held.whence.limit
                    && len.min((stripe + 1) * stripe_len) <= stripe * stripe_len + (held.whence.limit - at)
            })
        };
        let marks = self.marks(part, first)?;
        let is_free = |stripe: &u64| {
            let may_go = marks.is_clean(*stripe) && is_there(*stripe);
            let wanted = if may_go { self.proxy.uses.wanted_by_another(part, *stripe) } else { None };
            is_read.set(is_read.get() || wanted == Some(true));
            may_go && wanted.is_none()
        };
        let clean = (first..first + BLOCK_STRIPES).filter(is_free);
        let clean: Vec<u64> = clean.take(usize::try_from(most).unwrap_or(usize::MAX)).collect();
        if clean.is_empty() {
            return Ok(clean);
        }
        self.take_present(part, first, &clean)
    }

    /// Frees consecutive stripes.
    fn free_stripes(&self, part: Part, held: &Held, stripes: &[u64]) -> FsResult<()> {
        let stripe_len = u64::from(held.whence.layout.stripe);
        let (offset, len) =
            (stripes.first().map_or(0, |first| first * stripe_len), stripes.len() as u64 * stripe_len);
        let awaited = Awaited::ALWAYS;
        let change = SpaceChange { epoch: held.epoch, offset, len, grow: 0, ticket: 0, awaited };
        self.data.punch(self.subfile(part.ino, part.seat)?, &change)?;
        Ok(())
    }
}
