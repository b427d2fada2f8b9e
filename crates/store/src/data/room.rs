//! Accounts of a volume's space: bytes are reserved before they are written, so that what does not fit is
//! refused before anything is harmed.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::{StoreError, StoreResult};

/// Part of a volume with records that subfiles may not take: with it, files can be cut and removed
/// however full the volume is.
const RESERVE_SHARE: u64 = 16;
/// Upper limit of the reserve, in bytes.
const RESERVE_MAX: u64 = 8 << 20;

/// Bytes and files of one volume, or of one partition on it.
#[derive(Debug)]
pub(super) struct SpaceAccount {
    /// Most bytes; `u64::MAX` is without limit of its own.
    capacity: AtomicU64,
    /// Of a partition, the volume's: what is taken here is taken there too.
    volume: Option<Arc<SpaceAccount>>,
    used: AtomicU64,
    files: AtomicU64,
    /// Bytes of those used that replicas of other nodes' volumes take.
    replicas: AtomicU64,
    /// Bytes of the records on it.
    records: AtomicU64,
    /// Bytes that only records may take.
    reserve: AtomicU64,
    /// Of a volume in memory, what is left of that.
    headroom: OnceLock<Arc<dyn Headroom>>,
}

/// Memory that is shared with others, who take it without asking.
pub trait Headroom: fmt::Debug + Send + Sync {
    /// Returns the number of bytes that may be taken now.
    fn left(&self) -> u64;

    /// Takes bytes, all or none.
    ///
    /// # Errors
    /// What is left, if that is less.
    fn take(&self, bytes: u64) -> Result<(), u64>;
}

/// The records' part of their volume's capacity.
#[derive(Clone, Debug)]
pub struct RecordsRoom {
    pub(super) room: Arc<SpaceAccount>,
    pub(super) path: PathBuf,
}

/// Space of a volume that replicas of other nodes' volumes take.
#[derive(Clone, Debug)]
pub struct ReplicaRoom(pub(super) Arc<SpaceAccount>);

impl ReplicaRoom {
    /// Takes bytes, all or none; what is free if they do not fit.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<(), u64> {
        self.0.reserve(bytes)?;
        self.count(0, bytes);
        Ok(())
    }

    /// Corrects an amount that was taken before to what it turned out to be.
    pub(crate) fn correct(&self, taken: u64, real: u64) {
        self.0.correct(taken, real);
        self.count(taken, real);
    }

    fn count(&self, taken: u64, real: u64) {
        let corrected = |bytes: u64| Some(bytes.saturating_add(real).saturating_sub(taken));
        let _ = self.0.replicas.fetch_update(Ordering::Relaxed, Ordering::Relaxed, corrected);
    }
}

impl RecordsRoom {
    /// Counts records against the volume from now on, and reserves a part of it for them.
    pub(crate) fn begin(&self, bytes: u64) {
        let reserve = self.room.limit().map_or(0, |limit| (limit / RESERVE_SHARE).min(RESERVE_MAX));
        self.room.reserve.store(reserve, Ordering::Relaxed);
        self.set(bytes);
    }

    /// Sets the bytes of all records.
    pub(crate) fn set(&self, bytes: u64) {
        self.room.records.store(bytes, Ordering::Relaxed);
    }

    /// Takes bytes for more records. Those that must fit may take half of what is kept for records, the others
    /// all there is and more: they may be what makes room.
    pub(crate) fn take(&self, bytes: u64, must_fit: bool) -> StoreResult<()> {
        let SpaceAccount { used, reserve, records, .. } = &*self.room;
        // Half for what must fit, the other half for removals: on a full volume files can still be removed, which
        // takes records first.
        let kept = reserve.load(Ordering::Relaxed) / 2;
        // Not one step with the addition below: commits of several threads may exceed this by an entry each, for which
        // the other half is there.
        let taken = used.load(Ordering::Relaxed).saturating_add(records.load(Ordering::Relaxed));
        let free = self.room.capacity.load(Ordering::Relaxed).saturating_sub(kept).saturating_sub(taken);
        if must_fit && bytes > free {
            return Err(StoreError::NoSpace { path: self.path.clone(), needed: bytes, free });
        }
        match self.room.take_memory(bytes) {
            Err(free) if must_fit => {
                return Err(StoreError::NoSpace { path: self.path.clone(), needed: bytes, free });
            }
            _ => records.fetch_add(bytes, Ordering::Relaxed),
        };
        Ok(())
    }

    /// Gives back what was taken and not needed.
    pub(crate) fn give_back(&self, bytes: u64) {
        // A compaction may have set the count meanwhile, and not to more than there is on the volume.
        let less = |taken: u64| Some(taken.saturating_sub(bytes));
        let _ = self.room.records.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

impl SpaceAccount {
    /// Creates room for `capacity` bytes; 0 is without limit of its own.
    pub(super) fn new(capacity: u64) -> SpaceAccount {
        let capacity = AtomicU64::new(if capacity == 0 { u64::MAX } else { capacity });
        let zero = AtomicU64::default;
        let headroom = OnceLock::new();
        SpaceAccount {
            capacity,
            volume: None,
            used: zero(),
            files: zero(),
            replicas: zero(),
            records: zero(),
            reserve: zero(),
            headroom,
        }
    }

    /// Takes bytes of this headroom too from now on.
    pub(super) fn share(&self, headroom: &Arc<dyn Headroom>) {
        // A partition's bytes are its volume's too, and would be taken twice.
        assert!(self.volume.is_none(), "memory is shared by volumes, not by partitions");
        let _once = self.headroom.set(Arc::clone(headroom));
    }

    /// Returns the number of bytes that the memory below has left.
    pub(super) fn memory_left(&self) -> u64 {
        self.headroom.get().map_or(u64::MAX, |headroom| headroom.left())
    }

    fn take_memory(&self, bytes: u64) -> Result<(), u64> {
        self.headroom.get().map_or(Ok(()), |headroom| headroom.take(bytes))
    }

    /// Returns the room for a partition on a volume, without limit of its own.
    pub(super) fn within(volume: &Arc<SpaceAccount>) -> SpaceAccount {
        assert!(volume.volume.is_none(), "a partition within a partition");
        SpaceAccount { volume: Some(Arc::clone(volume)), ..SpaceAccount::new(0) }
    }

    /// Changes the limit; none is that of the volume. What is taken stays taken.
    pub(super) fn set_limit(&self, limit: Option<u64>) {
        self.capacity.store(limit.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns the limit, if there is one.
    pub(super) fn limit(&self) -> Option<u64> {
        Some(self.capacity.load(Ordering::Relaxed)).filter(|capacity| *capacity != u64::MAX)
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that subfiles cannot have because of the records.
    pub(super) fn kept(&self) -> u64 {
        self.records.load(Ordering::Relaxed).saturating_add(self.reserve.load(Ordering::Relaxed))
    }

    /// Returns the number of bytes that subfiles may still take.
    pub(super) fn free(&self) -> u64 {
        let own = match self.limit() {
            Some(limit) => limit.saturating_sub(self.kept()).saturating_sub(self.used()),
            None => u64::MAX,
        }
        .min(self.memory_left());
        self.volume.as_ref().map_or(own, |volume| own.min(volume.free()))
    }

    /// Returns whether so many bytes do not fit because of the partition's limit, not the volume's.
    pub(super) fn is_over_quota(&self, bytes: u64) -> bool {
        self.volume.is_some() && self.limit().is_some_and(|limit| self.used().saturating_add(bytes) > limit)
    }

    pub(super) fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Takes bytes, all or none; what is free if they do not fit.
    pub(super) fn reserve(&self, bytes: u64) -> Result<(), u64> {
        if bytes == 0 {
            return Ok(());
        }
        let capacity = self.limit().map_or(u64::MAX, |limit| limit.saturating_sub(self.kept()));
        let take = |used: u64| used.checked_add(bytes).filter(|used| *used <= capacity);
        // The partition first: what its limit refuses never shows in the volume, where others would be refused for it.
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.map_err(|used| capacity.saturating_sub(used))?;
        let taken = self.volume.as_ref().map_or(Ok(()), |volume| volume.reserve(bytes));
        let outcome = taken.and_then(|()| self.take_memory(bytes));
        outcome.inspect_err(|_| self.correct_own(bytes, 0))
    }

    /// Corrects an amount that was taken before to what it turned out to be, even beyond the limit.
    pub(super) fn correct(&self, taken: u64, real: u64) {
        self.correct_own(taken, real);
        self.volume.iter().for_each(|volume| volume.correct(taken, real));
    }

    fn correct_own(&self, taken: u64, real: u64) {
        if taken != real {
            // Not below nothing: what was counted for a file that others have changed since may be less than it has
            // now.
            let corrected = |used: u64| Some(used.saturating_add(real).saturating_sub(taken));
            let _ = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, corrected);
        }
    }

    /// Bytes of those used that replicas of other nodes' volumes take.
    pub(super) fn replicas(&self) -> u64 {
        self.replicas.load(Ordering::Relaxed)
    }

    pub(super) fn file_made(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.volume.iter().for_each(|volume| volume.file_made());
    }

    pub(super) fn file_removed(&self) {
        // Not below nothing: files that others put back or took away since the start were never counted.
        let one_less = |files: u64| Some(files.saturating_sub(1));
        let _ = self.files.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        self.volume.iter().for_each(|volume| volume.file_removed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_takes_nothing() {
        let room = SpaceAccount::new(100);
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
    fn records_take_room_and_what_makes_room_always_may() {
        let room = Arc::new(SpaceAccount::new(1600));
        let records = RecordsRoom { room: room.clone(), path: "/v".into() };
        records.begin(200);
        assert_eq!((room.kept(), room.free(), room.reserve(1301)), (300, 1300, Err(1300)));
        room.reserve(1300).unwrap();
        let refusal = records.take(51, true).unwrap_err();
        assert!(matches!(refusal, StoreError::NoSpace { needed: 51, free: 50, .. }), "{refusal}");
        records.take(50, true).unwrap();
        records.take(5000, false).unwrap();
        assert_eq!(room.reserve(1), Err(0));
        records.give_back(5000);
        room.correct(1300, 0);
        assert_eq!(room.free(), 1250);
        records.set(0);
        assert_eq!(room.free(), 1500);
    }

    #[test]
    fn a_partition_takes_from_its_volume_within_its_own_limit() {
        let volume = Arc::new(SpaceAccount::new(100));
        let (one, other) = (SpaceAccount::within(&volume), SpaceAccount::within(&volume));
        one.set_limit(Some(60));
        assert_eq!((one.reserve(50), one.reserve(11), one.is_over_quota(11)), (Ok(()), Err(10), true));
        assert_eq!((other.free(), other.reserve(51), other.is_over_quota(51)), (50, Err(50), false));
        assert_eq!((other.used(), volume.used()), (0, 50));
        assert_eq!((other.reserve(45), one.reserve(10), one.is_over_quota(10)), (Ok(()), Err(5), false));
        assert_eq!((one.used(), one.free()), (50, 5));
        one.correct(50, 20);
        one.file_made();
        assert_eq!((one.used(), volume.used(), volume.files()), (20, 65, 1));
        one.set_limit(Some(10));
        assert_eq!((one.free(), one.reserve(1)), (0, Err(0)));
        one.file_removed();
        assert_eq!((one.files(), volume.files()), (0, 0));
    }

    #[test]
    #[should_panic(expected = "a partition within a partition")]
    fn partitions_are_parts_of_volumes() {
        let _ = SpaceAccount::within(&Arc::new(SpaceAccount::within(&Arc::new(SpaceAccount::new(0)))));
    }

    #[derive(Debug)]
    struct Left(AtomicU64);

    impl Headroom for Left {
        fn left(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }

        fn take(&self, bytes: u64) -> Result<(), u64> {
            let less = |left: u64| left.checked_sub(bytes);
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).map(drop)
        }
    }

    /// S327.
    #[test]
    fn memory_that_others_took_is_not_there() {
        let (room, left) = (Arc::new(SpaceAccount::new(1000)), Arc::new(Left(AtomicU64::new(100))));
        room.share(&(Arc::clone(&left) as Arc<dyn Headroom>));
        let part = SpaceAccount::within(&room);
        assert_eq!((part.free(), part.reserve(101), part.reserve(60)), (100, Err(100), Ok(())));
        assert_eq!((room.used(), room.free()), (60, 40));
        let records = RecordsRoom { room: room.clone(), path: "/v".into() };
        assert!(matches!(records.take(41, true), Err(StoreError::NoSpace { free: 40, .. })));
        records.take(41, false).unwrap();
        left.0.store(1000, Ordering::Relaxed);
        records.take(41, true).unwrap();
        assert_eq!(part.reserve(500), Ok(()));
    }

    #[test]
    fn no_limit_is_no_limit() {
        let room = SpaceAccount::new(0);
        assert_eq!((room.limit(), room.reserve(1 << 60)), (None, Ok(())));
    }
}
