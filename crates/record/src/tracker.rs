//! Tracker of one program's successive accesses to one file.

use crate::counts::{Pattern, range_of};

const PAGE: u64 = 4096;

/// Position in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessPosition {
    /// From this byte on.
    At(u64),
    /// Behind its end, wherever that is.
    End,
}

/// A read or a write.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// True if it writes.
    pub writes: bool,
    /// The location.
    pub place: AccessPosition,
    /// Bytes.
    pub len: u64,
    /// Time that it took, with the weight of those that are not measured, in nanoseconds.
    pub spent_ns: u64,
}

/// A stream of accesses that the next one is compared with.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Beginning of the last one, and its end.
    last: u64,
    end: u64,
    /// Distance from the one before.
    step: u64,
}

/// Counts accesses, of fixed size.
#[derive(Clone, Debug)]
pub struct Tracker {
    pattern: Pattern,
    reads: Stream,
    writes: Stream,
    /// Bytes of a stripe, which are a power of two, and which.
    stripe: u64,
    shift: u32,
    has_begun: [bool; 2],
}

impl Tracker {
    /// Creates the tracker of a file with stripes of so many bytes: the largest power of two that is not more.
    #[must_use]
    pub fn new(stripe: u64) -> Tracker {
        let ((reads, writes), shift) = (Default::default(), stripe.max(1).ilog2());
        let (pattern, has_begun) = (Pattern::default(), [false; 2]);
        Tracker { pattern, reads, writes, stripe: 1 << shift, shift, has_begun }
    }

    /// Notes an access.
    pub fn note(&mut self, access: &Access) {
        let (counts, stream) = match access.writes {
            true => (&mut self.pattern.writes, &mut self.writes),
            false => (&mut self.pattern.reads, &mut self.reads),
        };
        let first = !std::mem::replace(&mut self.has_begun[usize::from(access.writes)], true);
        let (at, known) = match access.place {
            AccessPosition::At(at) => (at, true),
            AccessPosition::End => (stream.end, false),
        };
        // Backwards too: programs read matrices from their last column to their first.
        let step = at.wrapping_sub(stream.last);
        if first || at == stream.end {
            counts.sequential += 1;
        } else if step == stream.step && step != 0 {
            counts.strided += 1;
        }
        let end = at.saturating_add(access.len);
        *stream = Stream { last: at, end, step };
        counts.ops += 1;
        counts.bytes = counts.bytes.saturating_add(access.len);
        counts.spent_ns = counts.spent_ns.saturating_add(access.spent_ns);
        counts.sizes[range_of(access.len)] += 1;
        assert!(counts.in_order() <= counts.ops, "more accesses are in order than there are");
        if known {
            counts.off_page += u64::from(!at.is_multiple_of(PAGE));
            // What lies in one stripe has the same bits above those within.
            let crosses = (at ^ end.saturating_sub(1)) >> self.shift != 0;
            counts.crossing += u64::from(crosses && access.len <= self.stripe && access.len > 0);
        }
    }

    /// Takes the counts since the last time.
    pub fn take(&mut self) -> Pattern {
        std::mem::take(&mut self.pattern)
    }

    /// Returns whether anything was counted since.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pattern.reads.ops == 0 && self.pattern.writes.ops == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::Counts;
    use proptest::prelude::*;

    fn track(stripe: u64, accesses: impl IntoIterator<Item = (bool, u64, u64)>) -> Pattern {
        let mut tracker = Tracker::new(stripe);
        for (writes, at, len) in accesses {
            tracker.note(&Access { writes, place: AccessPosition::At(at), len, spent_ns: 7 });
        }
        tracker.take()
    }

    #[test]
    fn what_goes_on_is_sequential() {
        let pattern = track(1 << 20, (0..100).map(|i| (true, i * 4096, 4096)));
        let writes = pattern.writes;
        assert_eq!((writes.ops, writes.bytes, writes.sequential, writes.strided), (100, 409_600, 100, 0));
        assert_eq!((writes.random(), writes.off_page, writes.crossing, writes.spent_ns), (0, 0, 0, 700));
        assert_eq!(
            (writes.sizes[2], writes.median_range(), pattern.reads),
            (100, Some(2), Counts::default())
        );
    }

    #[test]
    fn constant_distances_are_strides_also_backwards() {
        for step in [3 * 4096_u64, 8192_u64.wrapping_neg()] {
            let place = |i: u64| (1_u64 << 30).wrapping_add(i.wrapping_mul(step));
            let reads = track(1 << 20, (0..100).map(|i| (false, place(i), 4096))).reads;
            assert_eq!((reads.sequential, reads.strided, reads.random()), (1, 98, 1));
        }
    }

    #[test]
    fn the_rest_is_random() {
        let places = [7_u64, 3, 11, 2, 19, 5, 23, 1];
        let reads = track(1 << 20, places.map(|at| (false, at * 8192, 100))).reads;
        assert_eq!((reads.sequential, reads.strided, reads.random()), (1, 0, 7));
        assert_eq!((reads.off_page, reads.sizes[0]), (0, 8));
    }

    #[test]
    fn reads_between_writes_do_not_break_them() {
        let both = (0..10).flat_map(|i| [(true, i * 100, 100), (false, i * 1000, 50)]);
        let pattern = track(4096, both);
        assert_eq!((pattern.writes.sequential, pattern.reads.strided), (10, 8));
    }

    #[test]
    fn stripes_are_crossed_only_by_what_fits_into_one() {
        let writes = track(
            4096,
            [(true, 4000, 96), (true, 4095, 2), (true, 0, 4096), (true, 1, 4096), (true, 0, 9000)],
        );
        assert_eq!((writes.writes.crossing, writes.writes.off_page), (2, 3));
    }

    #[test]
    fn appends_are_sequential_wherever_they_go() {
        let mut tracker = Tracker::new(4096);
        for _ in 0..5 {
            tracker.note(&Access { writes: true, place: AccessPosition::End, len: 3000, spent_ns: 0 });
        }
        let writes = tracker.take().writes;
        assert_eq!(
            (writes.sequential, writes.off_page, writes.crossing, tracker.is_empty()),
            (5, 0, 0, true)
        );
    }

    proptest! {
        #[test]
        fn nothing_overflows_and_all_are_counted(
            stripe in any::<u64>(),
            accesses in proptest::collection::vec((any::<bool>(), any::<u64>(), any::<u64>()), 0..50)
        ) {
            let count = accesses.len() as u64;
            let both = track(stripe, accesses).both();
            prop_assert_eq!(both.ops, count);
            prop_assert_eq!(both.sizes.iter().sum::<u64>(), count);
            prop_assert_eq!(both.sequential + both.strided + both.random(), count);
        }
    }
}
