//! What was done when, in a fixed number of intervals: when time goes on behind the last one, each becomes twice as long.
//! So has Darshan's heat map it: Snyder et al., "Modular HPC I/O characterization with Darshan", ESPT 2016.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Intervals of a timeline.
pub const BINS: usize = 60;
/// The shortest interval, in milliseconds.
const SHORTEST_MS: u64 = 1000;

/// What was done in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bin {
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Reads and writes.
    pub ops: u64,
    /// How long they took, in nanoseconds, all together.
    pub spent_ns: u64,
}

/// The intervals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// How long each is, in milliseconds.
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
    fn values(&mut self) -> [&mut u64; 4] {
        [&mut self.read, &mut self.written, &mut self.ops, &mut self.spent_ns]
    }

    fn add(&mut self, mut other: Bin) {
        for (sum, more) in self.values().into_iter().zip(other.values()) {
            *sum = sum.saturating_add(*more);
        }
    }
}

impl Timeline {
    /// Adds what was done in a time: as much in each part of it. Times are milliseconds since the timeline began.
    pub fn add(&mut self, time: Range<u64>, what: Bin) {
        while time.end.max(time.start) / self.width_ms.max(1) >= BINS as u64 {
            self.double();
        }
        let bin = |ms: u64| (ms / self.width_ms.max(1)) as usize;
        let bins = bin(time.start.min(time.end))..=bin(time.end.max(time.start));
        let count = (bins.end() - bins.start() + 1) as u64;
        let Some(bins) = self.bins.get_mut(bins) else { return };
        let mut left = what;
        for (index, bin) in (0..).zip(bins) {
            let mut share = left;
            // The last one has what is left.
            share.values().into_iter().for_each(|value| *value /= count - index);
            for (rest, taken) in left.values().into_iter().zip(share.values()) {
                *rest -= *taken;
            }
            bin.add(share);
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

    /// Adds those of another one, which began so many milliseconds later.
    pub fn merge(&mut self, other: &Timeline, later_ms: u64) {
        for (index, bin) in (0..).zip(&other.bins).filter(|(_, bin)| **bin != Bin::default()) {
            let start = later_ms.saturating_add(other.width_ms.saturating_mul(index));
            self.add(start..start.saturating_add(other.width_ms.saturating_sub(1)), *bin);
        }
    }

    /// All of it.
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
        fn sums_stay(times in proptest::collection::vec((any::<u32>(), any::<u32>(), 0..1_000_000_u64), 0..30), later in any::<u32>()) {
            let (mut line, mut sum) = (Timeline::default(), 0);
            for (start, end, written) in times {
                line.add(u64::from(start)..u64::from(end), bin(written));
                sum += written;
            }
            prop_assert_eq!(line.total().written, sum);
            let mut merged = Timeline::default();
            merged.merge(&line, later.into());
            prop_assert_eq!(merged.total(), line.total());
        }

        #[test]
        fn any_time_ends(start in any::<u64>(), end in any::<u64>()) {
            let mut line = Timeline::default();
            line.add(start..end, bin(3));
            prop_assert_eq!(line.total().written, 3);
        }
    }
}
