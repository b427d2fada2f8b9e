//! Ranges of the bytes of a page.

use std::ops::Range;

/// Ranges that are in order and neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans(Vec<Range<u32>>);

impl Spans {
    /// Takes a range in.
    pub fn add(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        // Ranges that touch count as well: what is one in the file is one range in the note.
        let from = self.0.partition_point(|span| span.end < range.start);
        let to = self.0.partition_point(|span| span.start <= range.end);
        let touched = self.0.get(from..to).unwrap_or_default();
        let start = touched.first().map_or(range.start, |span| span.start.min(range.start));
        let end = touched.last().map_or(range.end, |span| span.end.max(range.end));
        self.0.splice(from..to, std::iter::once(start..end));
        // Searches go by halves: they miss what is out of order.
        let is_behind = from.checked_sub(1).and_then(|at| self.0.get(at)).is_none_or(|span| span.end < start);
        let is_in_front = self.0.get(from + 1).is_none_or(|span| end < span.start);
        assert!(is_behind && is_in_front, "{start}..{end} is not apart from the other ranges: {:?}", self.0);
    }

    /// Takes a range out.
    pub fn remove(&mut self, range: Range<u32>) {
        let rest = |span: &Range<u32>| {
            let before = span.start..span.end.min(range.start);
            let behind = span.start.max(range.end)..span.end;
            if range.is_empty() { [span.clone(), 0..0] } else { [before, behind] }
        };
        self.0 = self.0.iter().flat_map(rest).filter(|span| !span.is_empty()).collect();
    }

    /// Returns the end of the span that `at` is in, `at` if there is none.
    #[must_use]
    pub fn reach(&self, at: u32) -> u32 {
        let index = self.0.partition_point(|span| span.end <= at);
        self.0.get(index).filter(|span| span.start <= at).map_or(at, |span| span.end)
    }

    /// Returns the parts of a range that are in no span.
    #[must_use]
    pub fn gaps(&self, within: Range<u32>) -> Spans {
        let mut gaps = Spans::default();
        gaps.add(within);
        self.0.iter().for_each(|span| gaps.remove(span.clone()));
        gaps
    }

    /// Returns the parts of a range that are in spans.
    pub fn within(&self, range: Range<u32>) -> impl Iterator<Item = Range<u32>> {
        let cut = move |span: &Range<u32>| span.start.max(range.start)..span.end.min(range.end);
        self.0.iter().map(cut).filter(|span| !span.is_empty())
    }

    /// Returns all of them.
    pub fn iter(&self) -> impl Iterator<Item = Range<u32>> {
        self.0.iter().cloned()
    }

    /// Returns the number of spans.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of bytes in all of them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|span| u64::from(span.end - span.start)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Writeback a set of bytes.
        #[test]
        fn they_are_the_bytes_that_were_added_and_not_removed(
            steps in proptest::collection::vec((any::<bool>(), 0u32..40, 0u32..12), 0..40),
            (from, len) in (0u32..40, 0u32..20),
        ) {
            let (mut spans, mut bytes) = (Spans::default(), [false; 64]);
            for (adds, start, len) in steps {
                let range = start..start + len;
                bytes[start as usize..(start + len) as usize].fill(adds);
                if adds { spans.add(range) } else { spans.remove(range) }
            }
            let in_spans = |spans: &Spans, at: u32| spans.iter().any(|span| span.contains(&at));
            let gaps = spans.gaps(from..from + len);
            for at in 0..64 {
                prop_assert_eq!(in_spans(&spans, at), bytes[at as usize]);
                let in_range = (from..from + len).contains(&at);
                prop_assert_eq!(in_spans(&gaps, at), in_range && !bytes[at as usize]);
                let within = spans.within(from..from + len).any(|span| span.contains(&at));
                prop_assert_eq!(within, in_range && bytes[at as usize]);
            }
            let ordered: Vec<_> = spans.iter().collect();
            prop_assert!(ordered.windows(2).all(|pair| pair[0].end < pair[1].start), "{:?}", ordered);
            prop_assert_eq!(spans.bytes(), bytes.iter().filter(|byte| **byte).count() as u64);
            let reach = (from as usize..64).find(|at| !bytes[*at]).unwrap_or(64) as u32;
            prop_assert_eq!(spans.reach(from), reach.max(from));
        }
    }
}
