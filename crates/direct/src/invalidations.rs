//! Callbacks for processes that only look: words in a grant table which the daemon raises.
//!
//! Who caches what it was told under a lease reads the word of it before it asks, and again whenever it goes by what it
//! caches: a word that was raised meanwhile ends that. Things share words; what is not meant is asked for once more.
//! Why it is sound is in docs/decisions/0073-leases.md.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use bivouac_types::limits::DIRECT_SESSIONS_MAX;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::retry_on_intr;

use crate::SESSION_LEN;
use crate::memory::Memory;

/// Number of words, as a power of two.
const BITS: u32 = 12;
/// Their offset in the grant table: behind all sessions.
const AT: usize = DIRECT_SESSIONS_MAX as usize * SESSION_LEN;
/// Their length in bytes. As much behind them is of changes that were not told.
const LEN: usize = size_of::<u32>() << BITS;

/// Position of the counters of untold changes, in words. Both kinds are mapped together, since pages may be as long as
/// a session.
const UNTOLD_AT: usize = 1 << BITS;
/// The words behind them: one that counts all changes, and one that is 1 where a mount counts at all.
const ALL: usize = 2 * UNTOLD_AT;
const COUNTED: usize = ALL + 1;
/// Length of all words, in bytes.
const UNTOLD_LEN: usize = (COUNTED + 1) * size_of::<u32>();

/// Counters of files with an overwrite that a mount has not reported to their homes yet. A process that looks at such a
/// file without the mount would see an earlier time than the mount's kernel shows. Counts of a killed daemon stay:
/// their files are looked up through the mount.
#[derive(Debug)]
pub struct PendingTimeCounters {
    memory: Memory,
}

/// Values of all words at a moment, or earlier.
#[derive(Debug, Default)]
pub struct Counts(Vec<u32>);

impl Counts {
    /// Returns the value of the word of a key.
    #[must_use]
    pub fn of(&self, key: u64) -> u32 {
        self.0.get(index(key)).copied().unwrap_or_default()
    }
}

impl PendingTimeCounters {
    /// Maps the counters of a grant table.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn of(file: BorrowedFd<'_>) -> io::Result<PendingTimeCounters> {
        retry_on_intr(|| fallocate(file, FallocateFlags::empty(), AT as u64, UNTOLD_LEN as u64))?;
        Ok(PendingTimeCounters { memory: Memory::map(file, AT, UNTOLD_LEN)? })
    }

    /// Says that mounts count here.
    pub(crate) fn enable(&self) {
        if let Some(word) = self.memory.word(COUNTED) {
            word.store(1, Ordering::Release);
        }
    }

    fn is_zero(&self, index: usize) -> bool {
        let is =
            |index, value| self.memory.word(index).is_some_and(|word| word.load(Ordering::Acquire) == value);
        is(COUNTED, 1) && is(index, 0)
    }

    /// Returns whether there are none of any kind.
    #[must_use]
    pub fn are_none(&self) -> bool {
        self.is_zero(ALL)
    }

    /// Notes that a change under this key is about to be acknowledged before it is told, or is being told.
    pub fn begin(&self, key: u64) {
        for word in self.at(key) {
            word.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Ends an update, which must have been begun.
    pub fn end(&self, key: u64) {
        for word in self.at(key) {
            word.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn at(&self, key: u64) -> impl Iterator<Item = &AtomicU32> {
        [UNTOLD_AT + index(key), ALL].into_iter().filter_map(|word| self.memory.word(word))
    }

    /// Returns whether there is any under this key, or one that shares its word.
    #[must_use]
    pub fn has(&self, key: u64) -> bool {
        !self.is_zero(UNTOLD_AT + index(key))
    }
}

/// The words of a grant table, of the daemon and of all who look.
#[derive(Debug)]
pub struct Invalidations {
    memory: Memory,
}

impl Invalidations {
    /// Maps the words of a grant table, which has memory for them from then on: without it, touching them would raise a
    /// signal.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn of(file: BorrowedFd<'_>) -> io::Result<Invalidations> {
        retry_on_intr(|| fallocate(file, FallocateFlags::empty(), AT as u64, LEN as u64))?;
        Ok(Invalidations { memory: Memory::map(file, AT, LEN)? })
    }

    /// Returns the number of invalidations of this key, and of those that share its word. Keys must be well mixed in
    /// their highest bits.
    #[must_use]
    pub fn count(&self, key: u64) -> u32 {
        self.memory.word(index(key)).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Takes down what all words are.
    pub fn note(&self, counts: &mut Counts) {
        let words = (0..LEN / size_of::<u32>()).filter_map(|index| self.memory.word(index));
        counts.0.clear();
        counts.0.extend(words.map(|word| word.load(Ordering::Acquire)));
    }

    /// Invalidates cached entries for this key in every process.
    pub fn raise(&self, key: u64) {
        if let Some(word) = self.memory.word(index(key)) {
            word.fetch_add(1, Ordering::AcqRel);
        }
    }
}

fn index(key: u64) -> usize {
    (key >> (u64::BITS - BITS)) as usize
}

#[cfg(test)]
mod tests {
    use super::Counts;
    use crate::{GrantTable, Session};

    #[test]
    fn who_looks_sees_what_the_daemon_raises() {
        let table = GrantTable::open(GrantTable::make().unwrap()).unwrap();
        let daemons = table.invalidations().unwrap();
        let looks = || {
            let (index, file) = table.new_session().unwrap().unwrap();
            Session::take(file, index).unwrap().invalidations().unwrap()
        };
        let (a, b) = (looks(), looks());
        let (key, shares, other) = (7 << 52, 7 << 52 | 5, 8 << 52);
        let before = [a.count(key), a.count(other)];
        daemons.raise(shares);
        assert_eq!([a.count(key), a.count(other)], [before[0] + 1, before[1]]);
        assert_eq!(b.count(key), a.count(key));
        daemons.raise(u64::MAX);
        daemons.raise(0);
        assert_eq!(a.count(u64::MAX), 1);
        let mut counts = Counts::default();
        assert_eq!(counts.of(other), 0);
        a.note(&mut counts);
        daemons.raise(other);
        assert_eq!([counts.of(key), counts.of(other), counts.of(u64::MAX)], [before[0] + 1, before[1], 1]);
    }

    #[test]
    fn what_is_not_told_is_seen_until_it_is() {
        let table = GrantTable::open(GrantTable::make().unwrap()).unwrap();
        let (index, file) = table.new_session().unwrap().unwrap();
        let looks = Session::take(file, index).unwrap().untold().unwrap();
        assert!(!looks.are_none() && looks.has(9), "nobody counts");
        let (mount, words) = (table.untold().unwrap(), table.invalidations().unwrap());
        let (key, shares, other) = (7 << 52, 7 << 52 | 5, 8 << 52);
        mount.begin(key);
        mount.begin(shares);
        mount.end(key);
        assert!(looks.has(key) && looks.has(shares) && !looks.has(other) && !looks.are_none());
        mount.end(shares);
        assert!(!looks.has(key) && looks.are_none());
        mount.begin(u64::MAX);
        assert!((0..4096_u64).all(|key| words.count(key << 52) == 0), "these are other words");
    }

    #[test]
    fn sessions_and_words_do_not_meet() {
        let table = GrantTable::open(GrantTable::make().unwrap()).unwrap();
        let words = table.invalidations().unwrap();
        let (index, file) = table.new_session().unwrap().unwrap();
        let session = Session::take(file, index).unwrap();
        (0..4096_u64).for_each(|key| words.raise(key << 52));
        let last = table.gate(bivouac_types::limits::DIRECT_SESSIONS_MAX - 1, 1023).unwrap();
        assert_eq!((last.turn(), last.marked()), (0, [0, 0, 0]));
        assert!((0..4096_u64).all(|key| session.invalidations().unwrap().count(key << 52) == 1));
        assert!(table.sizes().unwrap().is_empty(), "words are no sizes that were lent");
    }
}
