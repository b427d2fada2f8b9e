//! The holes of a file whose size is lent. Who makes it longer tells how many bytes it wrote behind the size that it
//! knew; what the size has grown by beyond the bytes of all of them are holes. So several that write in turn leave
//! none, in whatever order they come.

use bivouac_types::Attr;

/// Basis for computing the holes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holes {
    epoch: u32,
    /// Size and holes at that moment, and the bytes that had been written by then.
    size: u64,
    holes: u64,
    before: u64,
    /// Bytes written behind the size by messages, and under loans that have ended.
    written: u64,
}

impl Holes {
    /// Creates the basis from attributes that are up to date.
    pub fn of(attr: &Attr) -> Holes {
        Holes { epoch: attr.epoch, size: attr.size, holes: attr.holes, before: 0, written: 0 }
    }

    /// Counts bytes written behind the size outside of a loan, or under one that has ended.
    pub fn add(&mut self, bytes: u64) {
        self.written = self.written.saturating_add(bytes);
    }

    /// Takes back what [`Holes::add`] has counted, and was not written after all.
    pub fn take_back(&mut self, bytes: u64) {
        self.written = self.written.saturating_sub(bytes);
    }

    /// Returns the basis of before a count, with what was written since.
    pub fn back_to(self, before: Holes) -> Holes {
        Holes { written: self.written, ..before }
    }

    /// Notes that the holes were counted; `told` is what loans say that was written.
    pub fn count(&mut self, attr: &Attr, told: u64) {
        let before = self.written.saturating_add(told);
        *self = Holes { before, written: self.written, ..Holes::of(attr) };
    }

    /// Returns the holes of a file that has this size by now; nothing if it was cut.
    pub fn at(&self, attr: &Attr, told: u64) -> Option<u64> {
        let written = self.written.saturating_add(told).saturating_sub(self.before);
        let grown = attr.size.saturating_sub(self.size);
        let holes = self.holes.saturating_add(grown).saturating_sub(written).min(attr.size);
        (attr.epoch == self.epoch).then_some(holes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::{Ino, Layout, TargetIndex, Timestamp};
    use proptest::prelude::*;

    fn attr(size: u64, holes: u64) -> Attr {
        let layout = Layout { stripe: 4096, width: 1, base: TargetIndex(0), targets: 1 };
        Attr { size, holes, epoch: 3, ..Attr::new(Ino(7), 0o100_644, layout, Timestamp::default()) }
    }

    #[test]
    fn one_that_leaves_a_hole_is_seen_at_once() {
        let holes = Holes::of(&attr(100, 7));
        assert_eq!(holes.at(&attr(100, 0), 0), Some(7));
        assert_eq!(holes.at(&attr(1000, 0), 10), Some(897));
        assert_eq!(holes.at(&Attr { epoch: 4, ..attr(50, 0) }, 10), None, "it was cut");
    }

    #[test]
    fn what_is_counted_is_the_new_beginning() {
        let mut holes = Holes::of(&attr(0, 0));
        holes.add(5);
        holes.count(&attr(100, 40), 20);
        assert_eq!(holes.at(&attr(100, 0), 20), Some(40));
        assert_eq!(holes.at(&attr(200, 0), 70), Some(90));
        holes.add(50);
        assert_eq!(holes.at(&attr(200, 0), 20), Some(90), "a loan that is over has told as much");
    }

    #[test]
    fn what_was_not_written_or_counted_after_all_leaves_no_trace() {
        let before = Holes::of(&attr(100, 7));
        let mut holes = before;
        holes.add(50);
        holes.take_back(50);
        assert_eq!(holes, before);
        holes.count(&attr(100, 40), 20);
        holes.add(30);
        let holes = holes.back_to(before);
        assert_eq!(holes.at(&attr(150, 0), 0), Some(27), "as without the count, with what was written since");
    }

    proptest! {
        /// Writers of blocks of their own, each of which knows of its own writes only, in any order.
        #[test]
        fn holes_are_what_nobody_has_written(order in Just((0..24u64).collect::<Vec<_>>()).prop_shuffle(),
                                             upto in 0..24usize, writers in 1..5u64) {
            let (mut known, mut told, mut size) = (vec![0u64; writers as usize], 0, 0u64);
            let mut later = Vec::new();
            for block in &order[..upto] {
                let (start, end) = (block * 10, block * 10 + 10);
                let mine = &mut known[(block % writers) as usize];
                // What lies within the size that its writer knows is counted at its close.
                if end > *mine {
                    told += end - start.max(*mine);
                    (*mine, size) = (end, size.max(end));
                } else {
                    later.push(*block);
                }
            }
            let real = size - (upto - later.len()) as u64 * 10;
            prop_assert_eq!(Holes::of(&attr(0, 0)).at(&attr(size, 0), told), Some(real));
        }
    }
}
