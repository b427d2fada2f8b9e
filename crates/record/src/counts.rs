//! Counters of accesses.

use serde::{Deserialize, Serialize};

/// Way in which the kernel calls the command itself: what that copies into a formation and out of it is no use by
/// programs.
pub const OWN_PROGRAM: &str = "bivouac";
/// Ranges of sizes.
pub const SIZE_RANGES: usize = 9;
/// The largest size of each range, in bytes; the last range has all that are larger.
pub const SIZE_BOUNDS: [u64; SIZE_RANGES - 1] =
    [256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// Reads, or writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Number of them.
    pub ops: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Accesses that began where the one before ended, and the first.
    pub sequential: u64,
    /// Accesses at the same distance from the one before as that had from its predecessor. All others are random.
    pub strided: u64,
    /// Accesses that did not begin at a multiple of 4 KiB.
    pub off_page: u64,
    /// Accesses across the end of a stripe that would fit one stripe.
    pub crossing: u64,
    /// About how long they took, in nanoseconds: of small ones, one of several is measured.
    pub spent_ns: u64,
    /// Number of accesses of each range of sizes.
    pub sizes: [u64; SIZE_RANGES],
}

/// Counts of reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pattern {
    /// Reads.
    pub reads: Counts,
    /// Writes.
    pub writes: Counts,
}

impl Counts {
    /// Adds others.
    pub fn add(&mut self, other: &Counts) {
        let sums = [
            (&mut self.ops, other.ops),
            (&mut self.bytes, other.bytes),
            (&mut self.sequential, other.sequential),
            (&mut self.strided, other.strided),
            (&mut self.off_page, other.off_page),
            (&mut self.crossing, other.crossing),
            (&mut self.spent_ns, other.spent_ns),
        ];
        for (sum, more) in sums.into_iter().chain(self.sizes.iter_mut().zip(other.sizes)) {
            *sum = sum.saturating_add(more);
        }
    }

    /// Returns how many were sequential or strided.
    #[must_use]
    pub fn in_order(&self) -> u64 {
        self.sequential.saturating_add(self.strided)
    }

    /// Returns how many were neither sequential nor strided.
    #[must_use]
    pub fn random(&self) -> u64 {
        self.ops.saturating_sub(self.in_order())
    }

    /// Returns the range of the median size.
    #[must_use]
    pub fn median_range(&self) -> Option<usize> {
        let half = self.ops.div_ceil(2);
        let mut seen = 0_u64;
        let reaches = |count: &u64| {
            seen = seen.saturating_add(*count);
            *count > 0 && seen >= half
        };
        self.sizes.iter().position(reaches)
    }

    /// Returns the mean size, in bytes.
    #[must_use]
    pub fn mean_bytes(&self) -> u64 {
        self.bytes.checked_div(self.ops).unwrap_or(0)
    }

    /// Returns the mean duration, in nanoseconds.
    #[must_use]
    pub fn mean_ns(&self) -> u64 {
        self.spent_ns.checked_div(self.ops).unwrap_or(0)
    }

    /// Returns the part of them that `some` are.
    #[must_use]
    pub fn part(&self, some: u64) -> f64 {
        if self.ops == 0 { 0.0 } else { some as f64 / self.ops as f64 }
    }
}

impl Pattern {
    /// Adds others.
    pub fn add(&mut self, other: &Pattern) {
        self.reads.add(&other.reads);
        self.writes.add(&other.writes);
    }

    /// Reads and writes together.
    #[must_use]
    pub fn both(&self) -> Counts {
        let mut both = self.reads;
        both.add(&self.writes);
        both
    }

    /// Returns its weight in a list: bytes, and each call as if it had a KiB more.
    #[must_use]
    pub fn weight(&self) -> u64 {
        let both = self.both();
        both.bytes.saturating_add(both.ops.saturating_mul(1 << 10))
    }
}

/// Returns the range that a size counts in: each bound is four times the one before, so its bits say it.
pub fn range_of(len: u64) -> usize {
    let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
    let first = SIZE_BOUNDS[0].ilog2();
    let range = (bits.saturating_sub(first).div_ceil(2) as usize).min(SIZE_RANGES - 1);
    assert!(SIZE_BOUNDS.get(range).is_none_or(|bound| len <= *bound), "{len} bytes count in range {range}");
    range
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_a_range() {
        let ranges = [0, 256, 257, 4096, 4097, 1 << 20, (4 << 20) + 1, u64::MAX].map(range_of);
        assert_eq!(ranges, [0, 0, 1, 2, 3, 6, 8, 8]);
        for (range, bound) in SIZE_BOUNDS.into_iter().enumerate() {
            assert_eq!([bound - 1, bound, bound + 1].map(range_of), [range, range, range + 1]);
        }
    }

    #[test]
    fn the_median_is_where_half_of_them_are() {
        let counts =
            |sizes: [u64; SIZE_RANGES]| Counts { ops: sizes.iter().sum(), sizes, ..Counts::default() };
        assert_eq!(counts([0; 9]).median_range(), None);
        assert_eq!(counts([0, 0, 1, 0, 0, 0, 0, 0, 0]).median_range(), Some(2));
        assert_eq!(counts([5, 0, 0, 0, 0, 0, 0, 0, 5]).median_range(), Some(0));
        assert_eq!(counts([4, 0, 0, 0, 0, 0, 0, 0, 5]).median_range(), Some(8));
    }

    #[test]
    fn sums_end_at_the_largest_number() {
        let mut counts = Counts { bytes: u64::MAX - 1, ops: 1, ..Counts::default() };
        counts.add(&Counts { bytes: 5, ops: 2, sizes: [1; 9], ..Counts::default() });
        assert_eq!((counts.bytes, counts.ops, counts.sizes), (u64::MAX, 3, [1; 9]));
    }
}
