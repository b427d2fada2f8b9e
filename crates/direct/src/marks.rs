//! Places where a process writes to a subfile whose blocks have checksums, told in the memory of its gate: the daemon
//! makes these anew when the grant is over, and keeps all others.

use std::sync::atomic::Ordering;

use crate::gate::Gate;

/// Double words of the map: a bit for each part of the subfile, which begins again behind the last one.
pub const MAP_WORDS: usize = 4;
const MAP_BITS: u64 = MAP_WORDS as u64 * 64;
/// Word of the gate that says how long a part is, behind inode and target: one more than the power of two, or 0.
const SHIFT: usize = 5;
/// First word of the map.
const MAP: usize = 8;

impl Gate {
    /// Sets whether those who pass mark where they write, in parts of this power of two. To be called before anybody
    /// knows of the grant.
    pub fn track(&self, shift: Option<u32>) {
        // Of a longer part nobody could say where in it was written.
        assert!(shift.is_none_or(|shift| shift < u64::BITS), "parts of 2^{shift:?} bytes");
        (0..MAP_WORDS).for_each(|index| self.double(MAP + 2 * index).store(0, Ordering::Relaxed));
        self.word(SHIFT).store(shift.map_or(0, |shift| shift + 1), Ordering::Release);
    }

    /// Marks where bytes are about to be written. To be called inside.
    pub fn mark_written(&self, offset: u64, len: u64) {
        let Some(shift) = self.shift().filter(|_| len > 0) else { return };
        let (first, last) = (offset >> shift, offset.saturating_add(len - 1) >> shift);
        for part in first..=last.min(first + MAP_BITS - 1) {
            let bit = part % MAP_BITS;
            let word = self.double(MAP + 2 * (bit / 64) as usize);
            let mask = 1 << (bit % 64);
            // Mostly it is: then the line need not be had alone.
            if word.load(Ordering::Relaxed) & mask == 0 {
                word.fetch_or(mask, Ordering::SeqCst);
            }
        }
    }

    /// Returns the power of two and the map, lowest bits first; `None` if nobody was to mark anything.
    #[must_use]
    pub fn written(&self) -> Option<(u32, [u64; MAP_WORDS])> {
        let map = std::array::from_fn(|index| self.double(MAP + 2 * index).load(Ordering::SeqCst));
        self.shift().map(|shift| (shift, map))
    }

    fn shift(&self) -> Option<u32> {
        self.word(SHIFT).load(Ordering::Acquire).checked_sub(1).filter(|shift| *shift < u64::BITS)
    }
}

#[cfg(test)]
mod tests {
    use crate::{GrantTable, Session};

    #[test]
    fn what_is_marked_is_seen_by_the_daemon_until_the_next_grant() {
        let grants = GrantTable::open(GrantTable::make().unwrap()).unwrap();
        let (index, file) = grants.new_session().unwrap().unwrap();
        let session = Session::take(file, index).unwrap();
        let gate = grants.gate(index, 3).unwrap();
        gate.close();
        let ours = gate.open_next();
        ours.mark([1, 2, 3]);
        ours.track(None);
        let theirs = session.gate(3, ours.turn()).unwrap();
        theirs.mark_written(0, 10);
        assert_eq!(ours.written(), None);
        ours.track(Some(16));
        theirs.mark_written(0, 0);
        theirs.mark_written(10, 1);
        theirs.mark_written((65 << 16) - 1, 2);
        assert_eq!(ours.written(), Some((16, [1, 0b11, 0, 0])));
        theirs.mark_written(256 << 16, 1);
        assert_eq!(ours.written(), Some((16, [1, 0b11, 0, 0])), "it begins again");
        theirs.mark_written(7, u64::MAX);
        assert_eq!(ours.written(), Some((16, [u64::MAX; 4])));
        assert_eq!(ours.marked(), [1, 2, 3]);
        ours.track(Some(20));
        assert_eq!(ours.written(), Some((20, [0; 4])));
    }
}
