//! Memory of the records: counted with each change, so that what does not fit is refused before it is made.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bivouac_types::limits::XATTR_VALUE_LEN_MAX;

use crate::{Headroom, StoreError, StoreResult};

/// Share of the bound that is left for changes which move records, and take a little more memory for them.
const SPARE_SHARE: u64 = 32;
/// Upper limit of that share, in bytes.
const SPARE_MAX: u64 = 4 << 20;
/// Memory is worth to be given back once so many bytes were removed,
const SHRUNK_MIN: u64 = 8 << 20;
/// and this part of what there was.
const SHRUNK_SHARE: u64 = 4;

/// Part of the memory that a change may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// Creates something.
    Making,
    /// Moves something, and may use the share spared for that.
    Moving,
}

/// Bytes of memory that the records of a node take, reservations included, and may take.
#[derive(Debug, Default)]
pub(super) struct MemoryUse {
    taken: AtomicU64,
    /// Maximum since memory was last given back.
    peak: AtomicU64,
    bound: OnceLock<Bound>,
}

#[derive(Debug)]
struct Bound {
    max: u64,
    left: Option<Arc<dyn Headroom>>,
}

impl Bound {
    fn of(&self, level: Level) -> u64 {
        let spare = (self.max / SPARE_SHARE).min(SPARE_MAX);
        if level == Level::Moving { self.max } else { self.max - spare }
    }
}

impl MemoryUse {
    /// Refuses to [reserve](MemoryUse::reserve) beyond this from now on.
    pub(super) fn bound(&self, max: u64, left: Option<Arc<dyn Headroom>>) {
        // Only the first call counts: a node has one bound as long as it lives.
        let _once = self.bound.set(Bound { max, left });
    }

    pub(super) fn max(&self) -> u64 {
        self.bound.get().map_or(u64::MAX, |bound| bound.max)
    }

    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Takes bytes, all or none.
    pub(super) fn reserve(&self, bytes: u64, level: Level) -> StoreResult<()> {
        let Some(bound) = self.bound.get().filter(|_| bytes > 0) else {
            self.taken.fetch_add(bytes, Ordering::Relaxed);
            return Ok(());
        };
        let max = bound.of(level);
        let full = |free| StoreError::NamesFull { needed: bytes, free, max: bound.max };
        let take = |taken: u64| taken.checked_add(bytes).filter(|taken| *taken <= max);
        // Counted before the shared memory is asked: of two that race for the last bytes of the bound, one is refused
        // here.
        let taken = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.map_err(|taken| full(max.saturating_sub(taken)))?;
        // The bound alone is not enough: other processes of the job take memory, too, and the kernel would end this
        // one.
        let left = bound.left.as_ref().map_or(Ok(()), |left| left.take(bytes));
        left.map_err(|left| {
            self.change(0, bytes);
            full(left)
        })
    }

    /// Notes that the records have become larger or smaller; of that, so many bytes were reserved.
    pub(super) fn change(&self, by: i64, reserved: u64) {
        // Two's complement: adding a negative number wraps to a subtraction.
        let by = (by as u64).wrapping_sub(reserved);
        let before = self.taken.fetch_add(by, Ordering::Relaxed);
        let taken = before.wrapping_add(by);
        assert!(
            before.checked_add_signed(by as i64).is_some(),
            "{before} bytes taken, and {} more",
            by as i64
        );
        if taken > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(taken, Ordering::Relaxed);
        }
    }

    /// Returns whether one of the longest attributes, with what belongs to it, is refused.
    pub(super) fn is_full(&self) -> bool {
        let Some(bound) = self.bound.get() else { return false };
        bound.of(Level::Making).saturating_sub(self.taken()) < 2 * XATTR_VALUE_LEN_MAX as u64
    }

    pub(super) fn has_shrunk(&self) -> bool {
        let peak = self.peak.load(Ordering::Relaxed);
        peak.saturating_sub(self.taken()) >= SHRUNK_MIN.max(peak / SHRUNK_SHARE)
    }

    pub(super) fn note_given_back(&self) {
        self.peak.store(self.taken(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_things_has_a_little_more_than_what_makes_them() {
        let memory = MemoryUse::default();
        memory.reserve(1 << 40, Level::Making).unwrap();
        memory.change(3200, 1 << 40);
        memory.bound(6400, None);
        assert_eq!((memory.taken(), memory.max()), (3200, 6400));
        let refusal = memory.reserve(3001, Level::Making).unwrap_err();
        assert!(
            matches!(refusal, StoreError::NamesFull { needed: 3001, free: 3000, max: 6400 }),
            "{refusal}"
        );
        memory.reserve(3000, Level::Making).unwrap();
        memory.reserve(0, Level::Making).unwrap();
        memory.reserve(201, Level::Moving).unwrap_err();
        memory.reserve(200, Level::Moving).unwrap();
        // What makes room, or was begun, is not asked for.
        memory.change(10_000, 0);
        assert_eq!(memory.taken(), 16_400);
        memory.change(-16_400, 0);
        memory.reserve(6200, Level::Making).unwrap();
    }

    #[test]
    #[should_panic(expected = "100 bytes taken, and -101 more")]
    fn more_than_was_taken_is_not_given_back() {
        let memory = MemoryUse::default();
        memory.change(100, 0);
        memory.change(-101, 0);
    }

    #[test]
    fn memory_is_worth_to_be_given_back_after_much_was_removed() {
        let memory = MemoryUse::default();
        memory.change(100 << 20, 0);
        assert!(!memory.has_shrunk());
        memory.change(-(24 << 20), 0);
        assert!(!memory.has_shrunk());
        memory.change(-(1 << 20), 0);
        assert!(memory.has_shrunk());
        memory.note_given_back();
        assert!(!memory.has_shrunk());
        memory.change(-(75 << 20), 0);
        assert!(memory.has_shrunk());
    }
}
