//! Writes that a mirror makes after their caller has gone on: in order, those of several callers with one message, and
//! before anybody is answered who may have seen what they stand for.

use std::cell::Cell;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bivouac_ranks::{Mutex, rank};
use bivouac_wire::REPLICA_CHANGES_MAX;

use super::mirrored_volume::FileName;
use crate::VolumeFile;

/// Greatest number of bytes of deferred writes in one message.
const BATCH_MAX: usize = 1 << 20;
/// Greatest number of deferred writes in one message; a change that goes with them is one more.
const WRITES_MAX: usize = REPLICA_CHANGES_MAX - 1;

thread_local! {
    static DEFERS: Cell<bool> = const { Cell::new(false) };
}

/// Does something whose records the mirror may make later, if `defers`. The caller has them made before it answers or
/// asks anybody ([`MirroredVolumes::make_deferred`](crate::MirroredVolumes::make_deferred)).
pub fn with_deferred_writes<R>(defers: bool, act: impl FnOnce() -> R) -> R {
    struct RestoreOnDrop(bool);
    impl Drop for RestoreOnDrop {
        fn drop(&mut self) {
            DEFERS.set(self.0);
        }
    }
    let _before = RestoreOnDrop(DEFERS.replace(defers));
    act()
}

/// Returns whether the calling thread may leave writes to the mirror.
pub(super) fn may_defer() -> bool {
    DEFERS.get()
}

/// A write that neither side has yet.
#[derive(Debug)]
pub(super) struct DeferredWrite {
    pub volume: u16,
    pub name: String,
    pub file: Arc<dyn VolumeFile>,
    /// Kept as long as the write waits: it says that there is one.
    _entry: Arc<FileName>,
    pub offset: u64,
    pub bytes: Vec<u8>,
    /// Number of the last write that it contains.
    last: u64,
}

impl DeferredWrite {
    /// Returns its place in the file.
    pub fn extent(&self) -> (u64, u32) {
        // No more than `BATCH_MAX`.
        (self.offset, self.bytes.len() as u32)
    }

    fn is_followed_by(&self, volume: u16, name: &str, offset: u64) -> bool {
        (self.volume, self.name.as_str()) == (volume, name) && self.offset + self.bytes.len() as u64 == offset
    }
}

/// The deferred writes of a mirror.
#[derive(Debug)]
pub(super) struct DeferredWrites {
    waiting: Mutex<Vec<DeferredWrite>>,
    /// Number of the last write that was deferred, and of the last that was made.
    deferred: AtomicU64,
    made: AtomicU64,
    /// Held by who makes deferred writes, from when they are taken until they are made or back.
    pub turn: Mutex<()>,
}

impl Default for DeferredWrites {
    fn default() -> DeferredWrites {
        DeferredWrites {
            waiting: Mutex::new(rank::LEAF, Vec::new()),
            deferred: AtomicU64::new(0),
            made: AtomicU64::new(0),
            turn: Mutex::new(rank::MIRROR_DEFERRED, ()),
        }
    }
}

impl DeferredWrites {
    /// Returns the number of the last write that was deferred.
    pub fn last(&self) -> u64 {
        self.deferred.load(Ordering::Acquire)
    }

    /// Returns whether all writes up to this one are made.
    pub fn are_made(&self, last: u64) -> bool {
        self.made.load(Ordering::Acquire) >= last
    }

    /// Adds a write behind all others.
    pub fn add(
        &self,
        (volume, name): (u16, &str),
        (file, entry): (&Arc<dyn VolumeFile>, &Arc<FileName>),
        offset: u64,
        bytes: &[u8],
    ) {
        let mut waiting = self.waiting.lock();
        // Under the lock: whoever sees the number finds the write here, or with who has the turn.
        let last = self.deferred.fetch_add(1, Ordering::AcqRel) + 1;
        if let Some(before) = waiting.last_mut()
            && before.is_followed_by(volume, name, offset)
            && before.bytes.len() + bytes.len() <= BATCH_MAX
        {
            before.bytes.extend_from_slice(bytes);
            before.last = last;
            return;
        }
        let (name, file, _entry) = (name.to_owned(), Arc::clone(file), Arc::clone(entry));
        waiting.push(DeferredWrite { volume, name, file, _entry, offset, bytes: bytes.to_vec(), last });
    }

    /// Returns whether all that are not made are with who has the turn.
    pub fn none_waits(&self) -> bool {
        self.waiting.lock().is_empty()
    }

    /// Takes the first ones, as many as fit a message. The caller has the turn.
    pub fn take(&self) -> Vec<DeferredWrite> {
        let mut waiting = self.waiting.lock();
        let mut bytes = 0;
        let fits = |write: &&DeferredWrite| {
            bytes += write.bytes.len();
            bytes <= BATCH_MAX
        };
        let count = waiting.iter().take(WRITES_MAX).take_while(fits).count();
        // Each write is at most a message long; otherwise the first would never fit, and all behind it wait for ever.
        assert!(
            count > 0 || waiting.is_empty(),
            "the first deferred write of {} fits no message",
            waiting.len()
        );
        if count == waiting.len() { mem::take(&mut waiting) } else { waiting.drain(..count).collect() }
    }

    /// Notes that the first `made` of those that were taken are made; the others come back in front. The caller has the
    /// turn.
    pub fn end(&self, mut taken: Vec<DeferredWrite>, made: usize) {
        let rest = taken.split_off(made.min(taken.len()));
        if let Some(last) = taken.last() {
            let before = self.made.swap(last.last, Ordering::AcqRel);
            assert!(before < last.last, "write {} is made behind write {before}", last.last);
        }
        if !rest.is_empty() {
            let mut waiting = self.waiting.lock();
            waiting.splice(0..0, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::mirrored_volume::MirroredFiles;
    use crate::{MemVolume, OpenMode, Volume};

    fn add(deferred: &DeferredWrites, name: &str, offset: u64, bytes: &[u8]) {
        let file = MemVolume::default().open("f", OpenMode::Create).unwrap();
        deferred.add((0, name), (&file, &MirroredFiles::default().entry(0, name)), offset, bytes);
    }

    #[test]
    fn writes_that_follow_each_other_become_one_and_keep_their_order() {
        let deferred = DeferredWrites::default();
        for (name, offset) in [("a", 0), ("a", 2), ("b", 0), ("a", 4)] {
            add(&deferred, name, offset, b"xy");
        }
        let taken = deferred.take();
        let parts: Vec<_> = taken.iter().map(|write| (write.name.as_str(), write.bytes.len())).collect();
        assert_eq!(parts, [("a", 4), ("b", 2), ("a", 2)]);
        add(&deferred, "a", 6, b"z");
        deferred.end(taken, 1);
        assert!(deferred.are_made(2) && !deferred.are_made(3));
        let rest = deferred.take();
        assert_eq!(rest.iter().map(|write| write.offset).collect::<Vec<_>>(), [0, 4, 6]);
        deferred.end(rest, 3);
        assert!(deferred.are_made(deferred.last()) && deferred.take().is_empty());
    }

    #[test]
    fn a_message_has_a_bounded_number_of_them() {
        let deferred = DeferredWrites::default();
        (0..100).for_each(|at| add(&deferred, "f", at * 10, b"x"));
        let first = deferred.take();
        assert_eq!(first.len(), WRITES_MAX);
        deferred.end(first, WRITES_MAX);
        assert_eq!(deferred.take().len(), 100 - WRITES_MAX);
    }

    #[test]
    fn only_who_says_so_leaves_writes() {
        assert!(!may_defer());
        with_deferred_writes(true, || {
            // As one node asks another one in its own process.
            with_deferred_writes(false, || assert!(!may_defer()));
            assert!(may_defer());
        });
        assert!(!may_defer());
    }
}
