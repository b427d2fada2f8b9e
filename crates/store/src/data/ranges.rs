//! Ranges of bytes that do not overlap.

use std::collections::BTreeMap;
use std::ops::Range;

/// Most ranges that are kept. Users must tolerate that further ones are forgotten.
const RANGES_MAX: usize = 4096;

/// A set of bytes, as few ranges as possible.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// Ends by starts.
    ends: BTreeMap<u64, u64>,
}

impl Ranges {
    /// Adds a range; a set that has too many parts stays as it is.
    pub(super) fn add(&mut self, range: &Range<u64>) {
        let Range { mut start, mut end } = *range;
        if start >= end {
            return;
        }
        // Neighbours that only touch are joined as well: a file written from front to back stays one range.
        while let Some((&at, &stop)) = self.ends.range(..=end).next_back().filter(|(_, stop)| **stop >= start)
        {
            (start, end) = (start.min(at), end.max(stop));
            self.ends.remove(&at);
        }
        if self.ends.len() < RANGES_MAX {
            self.ends.insert(start, end);
        }
    }

    /// Takes a range out.
    pub(super) fn remove(&mut self, range: &Range<u64>) {
        let Range { start, end } = *range;
        if start >= end {
            return;
        }
        while let Some((&at, &stop)) = self.ends.range(..end).next_back().filter(|(_, stop)| **stop > start) {
            self.ends.remove(&at);
            if at < start {
                self.ends.insert(at, start);
            }
            if stop > end {
                self.ends.insert(end, stop);
            }
        }
    }

    /// Returns the parts of `range` that are not in the set, in order.
    pub(super) fn missing(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let (mut at, mut missing) = (range.start, Vec::new());
        // The range that begins before `at` may reach into it.
        let first = self.ends.range(..=at).next_back().map_or(at, |(start, _)| *start);
        for (&start, &end) in self.ends.range(first..range.end.max(first)) {
            if start > at {
                missing.push(at..start);
            }
            at = at.max(end);
        }
        if at < range.end {
            missing.push(at..range.end);
        }
        missing
    }

    /// Returns all of it.
    pub(super) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ends.iter().map(|(start, end)| *start..*end)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_a_set_of_bytes(steps in proptest::collection::vec((any::<bool>(), 0u64..60, 0u64..20), 0..40)) {
            let (mut ranges, mut model) = (Ranges::default(), [false; 100]);
            for (add, start, len) in steps {
                let range = start..start + len;
                if add { ranges.add(&range) } else { ranges.remove(&range) }
                model[start as usize..(start + len) as usize].fill(add);
                let missing: Vec<u64> = ranges.missing(&(10..90)).into_iter().flatten().collect();
                let expected: Vec<u64> = (10..90).filter(|at| !model[*at as usize]).collect();
                prop_assert_eq!(missing, expected);
                let parts: Vec<_> = ranges.iter().collect();
                prop_assert!(parts.windows(2).all(|pair| pair[0].end < pair[1].start), "{:?}", parts);
                prop_assert_eq!(ranges.is_empty(), model.iter().all(|has| !has));
            }
        }
    }
}
