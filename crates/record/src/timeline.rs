//! Work by time, in a fixed number of intervals: when time goes on behind the last one, each becomes twice as long.
//! So has Darshan's heat map it: Snyder et al., "Modular HPC I/O characterization with Darshan", ESPT 2016.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Intervals of a timeline.
pub const BINS: usize = 60;
/// The shortest interval, in milliseconds.
const SHORTEST_MS: u64 = 1000;

/// Work in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bin {
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Reads and writes.
    pub ops: u64,
    /// Time that they took, in nanoseconds, all together.
    pub spent_ns: u64,
}

/// The intervals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// Length of each, in milliseconds.
    pub width_ms: u64,
    /// One after the other, [`BINS`] of them.
    pub bins: Vec<Bin>,
}

impl Default for Timeline {
    fn default() -> Timeline {
        Timeline { width_ms: SHORTEST_MS, bins: vec![Bin::default(); BINS] }
    }
}

impl Bin {
    /// Returns the values in the order of the fields.
    #[must_use]
    pub fn values(&self) -> [u64; 4] {
        [self.read, self.written, self.ops, self.spent_ns]
    }

    /// Creates a bin by values in that order.
    #[must_use]
    pub fn of([read, written, ops, spent_ns]: [u64; 4]) -> Bin {
        Bin { read, written, ops, spent_ns }
    }

    pub(crate) fn map(self, with: impl Fn(u64) -> u64) -> Bin {
        Bin::of(self.values().map(with))
    }

    pub(crate) fn zip(self, other: Bin, with: impl Fn(u64, u64) -> u64) -> Bin {
        let ([a, b, c, d], [e, f, g, h]) = (self.values(), other.values());
        Bin::of([with(a, e), with(b, f), with(c, g), with(d, h)])
    }

    /// Adds another.
    pub fn add(&mut self, other: Bin) {
        *self = self.zip(other, u64::saturating_add);
    }

    /// Returns the difference from an earlier one.
    #[must_use]
    pub fn since(self, earlier: Bin) -> Bin {
        self.zip(earlier, u64::saturating_sub)
    }
}

/// Divides `what` evenly among the intervals of `width` that overlap `time`, and returns each by its number; the last
/// one gets the remainder. Of more than `most` intervals only the last `most` get a share.
pub fn spread(time: Range<u64>, width: u64, most: u64, what: Bin) -> impl Iterator<Item = (u64, Bin)> {
    let width = width.max(1);
    let (first, last) = (time.start.min(time.end) / width, time.start.max(time.end) / width);
    let first = first.max((last + 1).saturating_sub(most.max(1)));
    let count = last - first + 1;
    // The shares add up to the whole: nothing that was done is counted twice or dropped.
    assert!((1..=most.max(1)).contains(&count), "{count} intervals of at most {most}");
    let share = what.map(|value| value / count);
    let rest = what.zip(share, |value, share| value - share * (count - 1));
    (first..=last).map(move |index| (index, if index == last { rest } else { share }))
}

impl Timeline {
    /// Adds what was done in a time: as much in each part of it. Times are milliseconds since the timeline began.
    pub fn add(&mut self, time: Range<u64>, what: Bin) {
        while time.end.max(time.start) / self.width_ms.max(1) >= BINS as u64 {
            self.double();
        }
        for (index, share) in spread(time, self.width_ms, BINS as u64, what) {
            if let Some(bin) = self.bins.get_mut(index as usize) {
                bin.add(share);
            }
        }
    }

    fn double(&mut self) {
        self.width_ms = self.width_ms.max(1).saturating_mul(2);
        for at in 0..BINS {
            let pair = [2 * at, 2 * at + 1].map(|from| self.bins.get(from).copied().unwrap_or_default());
            if let Some(bin) = self.bins.get_mut(at) {
                *bin = pair[0];
                bin.add(pair[1]);
            }
        }
    }

    /// Returns all of it.
    #[must_use]
    pub fn total(&self) -> Bin {
        let mut total = Bin::default();
        self.bins.iter().for_each(|bin| total.add(*bin));
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bin(written: u64) -> Bin {
        Bin { written, ops: 1, ..Bin::default() }
    }

    #[test]
    fn all_intervals_of_a_time_get_a_share() {
        let written = |time, most| -> Vec<_> {
            spread(time, 1000, most, bin(10)).map(|(index, bin)| (index, bin.written)).collect()
        };
        assert_eq!(written(1500..3999, 100), [(1, 3), (2, 3), (3, 4)]);
        assert_eq!(written(1500..3999, 2), [(2, 5), (3, 5)]);
        assert_eq!(written(7..7, 0), [(0, 10)]);
    }

    #[test]
    fn what_took_long_is_in_all_of_its_intervals() {
        let mut line = Timeline::default();
        line.add(1500..3999, bin(10));
        let written: Vec<u64> = line.bins.iter().map(|bin| bin.written).take(5).collect();
        assert_eq!((written, line.width_ms), (vec![0, 3, 3, 4, 0], 1000));
        assert_eq!(line.total(), bin(10));
    }

    #[test]
    fn intervals_become_longer_and_nothing_is_lost() {
        let mut line = Timeline::default();
        (0..60).for_each(|second| line.add(second * 1000..second * 1000, bin(1)));
        line.add(3_600_000..3_600_000, bin(5));
        assert_eq!((line.width_ms, line.bins.len()), (64_000, BINS));
        assert_eq!((line.bins[0].written, line.bins[56].written, line.total().written), (60, 5, 65));
    }

    proptest! {
        #[test]
        fn shares_add_up(start: u64, end: u64, width: u64, most in 0..100_u64, written: u64) {
            let all: Vec<(u64, Bin)> = spread(start..end, width.max(u64::MAX / 1000), most, bin(written)).collect();
            prop_assert_eq!(all.iter().map(|(_, bin)| bin.written).sum::<u64>(), written);
            prop_assert_eq!(all.last().unwrap().0, start.max(end) / width.max(u64::MAX / 1000));
        }

        #[test]
        fn sums_stay(times in proptest::collection::vec((any::<u32>(), any::<u32>(), 0..1_000_000_u64), 0..30)) {
            let (mut line, mut sum) = (Timeline::default(), 0);
            for (start, end, written) in times {
                line.add(u64::from(start)..u64::from(end), bin(written));
                sum += written;
            }
            prop_assert_eq!(line.total().written, sum);
        }

        #[test]
        fn any_time_ends(start in any::<u64>(), end in any::<u64>()) {
            let mut line = Timeline::default();
            line.add(start..end, bin(3));
            prop_assert_eq!(line.total().written, 3);
        }
    }
}
