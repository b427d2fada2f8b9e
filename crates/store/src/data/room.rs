//! How much of a volume is taken: reserved before it is written, so that what does not fit is
//! refused before anything is harmed.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes and files of one volume.
#[derive(Debug)]
pub(super) struct Room {
    capacity: u64,
    used: AtomicU64,
    files: AtomicU64,
}

impl Room {
    /// Room for `capacity` bytes; 0 is without limit of its own.
    pub(super) fn new(capacity: u64) -> Room {
        let capacity = if capacity == 0 { u64::MAX } else { capacity };
        Room { capacity, used: AtomicU64::new(0), files: AtomicU64::new(0) }
    }

    /// The limit, if there is one.
    pub(super) fn limit(&self) -> Option<u64> {
        (self.capacity != u64::MAX).then_some(self.capacity)
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// What is left of the limit.
    pub(super) fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.used())
    }

    pub(super) fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Takes bytes, all or none; what is free if they do not fit.
    pub(super) fn reserve(&self, bytes: u64) -> Result<(), u64> {
        if bytes == 0 {
            return Ok(());
        }
        let take = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.capacity);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.map(drop).map_err(|used| self.capacity.saturating_sub(used))
    }

    /// Corrects an amount that was taken before to what it turned out to be, even beyond the limit.
    pub(super) fn correct(&self, taken: u64, real: u64) {
        if taken != real {
            let corrected = |used: u64| Some(used.saturating_add(real).saturating_sub(taken));
            let _ = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, corrected);
        }
    }

    pub(super) fn file_made(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn file_removed(&self) {
        let one_less = |files: u64| Some(files.saturating_sub(1));
        let _ = self.files.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_takes_nothing() {
        let room = Room::new(100);
        assert_eq!(room.reserve(60), Ok(()));
        assert_eq!(room.reserve(41), Err(40));
        assert_eq!(room.reserve(u64::MAX), Err(40));
        assert_eq!(room.reserve(40), Ok(()));
        room.correct(50, 20);
        assert_eq!(room.used(), 70);
        room.correct(0, 100);
        assert_eq!((room.used(), room.reserve(1)), (170, Err(0)));
    }

    #[test]
    fn no_limit_is_no_limit() {
        let room = Room::new(0);
        assert_eq!((room.limit(), room.reserve(1 << 60)), (None, Ok(())));
    }
}
