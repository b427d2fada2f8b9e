//! Stripes from site storage that are in use, so that they are not evicted.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;

use bivouac_ranks::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, rank};

use super::Part;

/// Locks that all subfiles share.
const WRITING: usize = 64;

/// Use of stripes in front of site storage.
pub struct StripeUse {
    /// Held by who reads what is here, and taken alone by who makes room.
    pub here: RwLock<()>,
    clock: AtomicU64,
    last: Mutex<HashMap<Part, u64>>,
    /// Ranges that are being brought for a thread; not evicted before it has read them.
    wanted: Mutex<Vec<WantedRange>>,
    /// Held by who writes, from the marks until the bytes are there, and taken alone by who turns the marks.
    writing: [RwLock<()>; WRITING],
}

/// While this lives, the marks of what is being written stay as they are.
pub struct WritePass<'a> {
    _guard: RwLockReadGuard<'a, ()>,
}

/// Stripes that a thread wants.
type WantedRange = (ThreadId, Part, Range<u64>);

/// While this lives, stripes that were brought for its owner do not go for others of his.
pub struct WantedStripes<'a> {
    uses: &'a StripeUse,
    what: WantedRange,
}

impl Drop for WantedStripes<'_> {
    fn drop(&mut self) {
        let mut wanted = self.uses.wanted.lock();
        let at = wanted.iter().position(|one| *one == self.what);
        assert!(at.is_some(), "stripes {:?} were wanted, and are not among those that are", self.what);
        at.map(|at| wanted.swap_remove(at));
    }
}

/// While this lives, what is here stays.
pub struct PresentStripes<'a> {
    _guard: RwLockReadGuard<'a, ()>,
}

impl Default for StripeUse {
    fn default() -> StripeUse {
        let (clock, last, wanted) = Default::default();
        let writing = |number| RwLock::numbered(rank::PART_WRITES, number as u32, ());
        StripeUse {
            here: RwLock::new(rank::EVICTION, ()),
            clock,
            last,
            wanted,
            writing: std::array::from_fn(writing),
        }
    }
}

impl StripeUse {
    /// Prevents all eviction until the result is dropped.
    pub fn stay(&self) -> PresentStripes<'_> {
        // Recursive, also while a thread waits to evict: a holder may need another one.
        PresentStripes { _guard: self.here.read_recursive() }
    }

    /// Registers a writer of a subfile.
    pub fn write(&self, part: Part) -> WritePass<'_> {
        WritePass { _guard: self.writing_of(part).read() }
    }

    /// Keeps writers out of a subfile until the result is dropped.
    pub fn no_writes(&self, part: Part) -> RwLockWriteGuard<'_, ()> {
        self.writing_of(part).write()
    }

    fn writing_of(&self, part: Part) -> &RwLock<()> {
        let [first, ..] = &self.writing;
        self.writing.get((part.ino.0 ^ u64::from(part.target.0)) as usize % WRITING).unwrap_or(first)
    }

    /// Registers these stripes as wanted by this thread.
    pub fn want(&self, part: Part, stripes: Range<u64>) -> WantedStripes<'_> {
        let what = (std::thread::current().id(), part, stripes);
        self.wanted.lock().push(what.clone());
        WantedStripes { uses: self, what }
    }

    /// Returns whether a wanted stripe is wanted by another thread; `None` if it is not wanted.
    pub fn wanted_by_another(&self, part: Part, stripe: u64) -> Option<bool> {
        let this = std::thread::current().id();
        let wanted = self.wanted.lock();
        let of_stripe = wanted.iter().filter(|(_, one, stripes)| *one == part && stripes.contains(&stripe));
        // Several may want it: one other thread is enough for it to be waited for.
        of_stripe.map(|(thread, ..)| *thread != this).max()
    }

    /// Notes that a subfile is used now.
    pub fn note(&self, part: Part) {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        self.last.lock().insert(part, now);
    }

    /// Forgets a subfile that is gone.
    pub fn forget(&self, part: Part) {
        self.last.lock().remove(&part);
    }

    pub fn last_of(&self, part: Part) -> u64 {
        self.last.lock().get(&part).copied().unwrap_or(0)
    }
}
