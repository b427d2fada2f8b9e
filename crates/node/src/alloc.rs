//! Numbers that are never given out twice, over restarts too: for inodes and for intents.

use bivouac_ranks::{Mutex, rank};
use bivouac_store::Records;
use bivouac_types::limits::{INO_COUNTER_BITS, INO_COUNTER_FIRST};
use bivouac_types::{Errno, FsError, FsResult, Ino, NodeId, Slot};
use bivouac_wire::{Decode, DecodeError, Encode};

use crate::record::ALLOCATOR_KEY;

/// Numbers reserved by one record; what is left of them is skipped by a restart.
const BLOCK: u64 = 1 << 16;

/// Gives out numbers in blocks that are reserved in the records first.
pub struct Allocator {
    node: NodeId,
    /// Slot of the record that holds the first number not reserved.
    slot: Slot,
    range: Mutex<std::ops::Range<u64>>,
}

impl Allocator {
    /// Goes on behind the numbers that earlier daemons reserved.
    ///
    /// # Errors
    /// `EIO` for a mark that is damaged.
    pub fn open(records: &Records, node: NodeId, slot: Slot) -> FsResult<Allocator> {
        // Not taken for none: numbers that were given out before would be used twice.
        let damaged = |error: DecodeError| {
            FsError::with(Errno::EIO, format!("the mark of used numbers is damaged: {error}"))
        };
        let mark = records.read(slot, ALLOCATOR_KEY, |value| {
            value.map(|bytes| u64::from_bytes(bytes).map_err(damaged)).transpose()
        });
        let first = mark?.unwrap_or(INO_COUNTER_FIRST);
        Ok(Allocator { node, slot, range: Mutex::new(rank::ALLOCATOR, first..first) })
    }

    /// Returns the next number. The caller must not be inside a transaction.
    pub fn next(&self, records: &Records) -> FsResult<u64> {
        let mut range = self.range.lock();
        if range.is_empty() {
            let end = range.start + BLOCK;
            // A restarted daemon must not give out any of them, whether or not this one comes to do so.
            let mut txn = records.txn(&[self.slot]);
            let former = txn.get(self.slot, ALLOCATOR_KEY).and_then(|value| u64::from_bytes(value).ok());
            assert!(former.is_none_or(|former| former < end), "numbers up to {end} are reserved twice");
            txn.put(self.slot, ALLOCATOR_KEY, &end.to_bytes());
            txn.commit()?;
            // Only once it is logged.
            range.end = end;
        }
        let number = range.start;
        // Behind the mark of the records, the next daemon would give it out again.
        assert!(number < range.end, "number {number} is not reserved");
        range.start += 1;
        Ok(number)
    }

    /// Returns the first number that this daemon gives out, or a later one.
    pub fn first(&self) -> u64 {
        self.range.lock().start
    }

    /// Returns true if this number may have been given out, by this daemon or an earlier one.
    pub fn has_given(&self, number: u64) -> bool {
        number < self.range.lock().start
    }

    /// Returns a new inode number in `slot`.
    ///
    /// # Errors
    /// `ENOSPC` when an inode number has no bits for the counter any more.
    pub fn next_ino(&self, records: &Records, slot: Slot) -> FsResult<Ino> {
        let number = self.next(records)?;
        // `Ino::new` would cut it off, to a number that was given out before.
        if number >> INO_COUNTER_BITS != 0 {
            return Err(FsError::with(
                Errno::ENOSPC,
                format!("{} has given out all inode numbers", self.node),
            ));
        }
        let ino = Ino::new(slot, self.node, number);
        let parts = (ino.slot(), ino.allocator());
        assert_eq!(parts, (slot, self.node), "inode {ino} is of another slot or node than it is made for");
        Ok(ino)
    }
}
