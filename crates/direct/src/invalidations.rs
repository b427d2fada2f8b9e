//! Callbacks for processes that only look: words in a grant table which the daemon raises.
//!
//! Who caches what it was told under a lease reads the word of it before it asks, and again whenever it goes by what it
//! caches: a word that was raised meanwhile ends that. Things share words; what is not meant is asked for once more.
//! Why it is sound is in docs/decisions/0116-callbacks-without-a-message.md.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use bivouac_types::limits::DIRECT_SESSIONS_MAX;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::retry_on_intr;

use crate::SESSION_LEN;
use crate::memory::Memory;

/// How many there are, as a power of two.
const BITS: u32 = 12;
/// Where they begin in the grant table: behind all sessions.
const AT: usize = DIRECT_SESSIONS_MAX as usize * SESSION_LEN;
/// How long they are, in bytes.
const LEN: usize = size_of::<u32>() << BITS;

/// The words of a grant table, of the daemon and of all who look.
#[derive(Debug)]
pub struct Invalidations {
    memory: Memory,
}

impl Invalidations {
    /// Those of a grant table, which has memory for them from then on: without it, who touches them would get a signal.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn of(file: BorrowedFd<'_>) -> io::Result<Invalidations> {
        retry_on_intr(|| fallocate(file, FallocateFlags::empty(), AT as u64, LEN as u64))?;
        Ok(Invalidations { memory: Memory::map(file, AT, LEN)? })
    }

    /// How often what is under this key was invalidated, and what shares its word. Keys must be well mixed in their highest
    /// bits.
    #[must_use]
    pub fn count(&self, key: u64) -> u32 {
        self.memory.word(index(key)).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Has nobody go by what is cached under this key.
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
