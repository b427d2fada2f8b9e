//! What was done in each second of the last half hour, and in each minute of a whole life.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::timeline::{Bin, Timeline};

/// A second, in milliseconds.
pub const SECOND_MS: u64 = 1000;
/// How many of them are known.
pub const SECONDS: usize = 1800;
/// A minute, in milliseconds: the first length of an interval of a life.
pub const MINUTE_MS: u64 = 60_000;
/// Intervals of a life. When there are more, each becomes twice as long.
pub const MINUTES: usize = 1440;

/// What was done in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// When it began, in milliseconds since the history did.
    pub at_ms: u64,
    /// What was done in it.
    #[serde(flatten)]
    pub bin: Bin,
}

/// What was done when; nothing was in intervals that are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// How long the intervals of the whole life are, in milliseconds.
    pub minute_ms: u64,
    /// Each second of the last half hour, in order.
    pub seconds: Vec<Slot>,
    /// Each interval of the whole life, in order.
    pub minutes: Vec<Slot>,
}

/// The intervals of `width` that a time lies in, by number, and what of it was done in each: as much in all of them,
/// and in the last one what is left. Where there are more than `most`, the last ones have all of it.
pub fn spread(time: Range<u64>, width: u64, most: u64, what: Bin) -> impl Iterator<Item = (u64, Bin)> {
    let width = width.max(1);
    let (first, last) = (time.start.min(time.end) / width, time.start.max(time.end) / width);
    let first = first.max((last + 1).saturating_sub(most.max(1)));
    let count = last - first + 1;
    let share = what.map(|value| value / count);
    let rest = what.zip(share, |value, share| value - share * (count - 1));
    (first..=last).map(move |index| (index, if index == last { rest } else { share }))
}

impl History {
    /// Adds those of another one, which began so many milliseconds later.
    pub fn merge(&mut self, other: &History, later_ms: u64) {
        self.minute_ms = self.minute_ms.max(other.minute_ms).max(MINUTE_MS);
        self.seconds = merged(&self.seconds, &other.seconds, later_ms, SECOND_MS);
        self.minutes = merged(&self.minutes, &other.minutes, later_ms, self.minute_ms);
    }

    /// As a line: by seconds while they are the whole life.
    #[must_use]
    pub fn timeline(&self) -> Timeline {
        let end = self.minutes.last().map_or(0, |slot| slot.at_ms.saturating_add(self.minute_ms));
        let is_short = end <= SECONDS as u64 * SECOND_MS;
        let (slots, width) =
            if is_short { (&self.seconds, SECOND_MS) } else { (&self.minutes, self.minute_ms) };
        let mut line = Timeline::default();
        for slot in slots {
            line.add(slot.at_ms..slot.at_ms.saturating_add(width.saturating_sub(1)), slot.bin);
        }
        line
    }
}

fn merged(own: &[Slot], others: &[Slot], later_ms: u64, width: u64) -> Vec<Slot> {
    let mut sums = BTreeMap::<u64, Bin>::new();
    let later = others.iter().map(|slot| (slot.at_ms.saturating_add(later_ms), slot.bin));
    for (at, bin) in own.iter().map(|slot| (slot.at_ms, slot.bin)).chain(later) {
        sums.entry(at - at % width.max(1)).or_default().add(bin);
    }
    sums.into_iter().map(|(at_ms, bin)| Slot { at_ms, bin }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slots(all: &[(u64, u64)]) -> Vec<Slot> {
        all.iter().map(|(at_ms, written)| Slot { at_ms: *at_ms, bin: bin(*written) }).collect()
    }

    fn bin(written: u64) -> Bin {
        Bin { written, ..Bin::default() }
    }

    #[test]
    fn what_took_long_is_in_all_of_its_intervals() {
        let written = |time, most| -> Vec<_> {
            spread(time, 1000, most, bin(10)).map(|(index, bin)| (index, bin.written)).collect()
        };
        assert_eq!(written(1500..3999, 100), [(1, 3), (2, 3), (3, 4)]);
        assert_eq!(written(1500..3999, 2), [(2, 5), (3, 5)]);
        assert_eq!(written(7..7, 0), [(0, 10)]);
    }

    #[test]
    fn histories_of_nodes_are_put_together_by_their_times() {
        let mut all =
            History { minute_ms: MINUTE_MS, seconds: slots(&[(0, 1), (2000, 2)]), minutes: slots(&[(0, 3)]) };
        let later = History {
            minute_ms: 2 * MINUTE_MS,
            seconds: slots(&[(1000, 5)]),
            minutes: slots(&[(0, 5), (120_000, 7)]),
        };
        all.merge(&later, 1500);
        assert_eq!(all.seconds, slots(&[(0, 1), (2000, 7)]));
        assert_eq!((all.minute_ms, all.minutes.clone()), (2 * MINUTE_MS, slots(&[(0, 8), (120_000, 7)])));
    }

    #[test]
    fn a_line_is_of_seconds_as_long_as_all_are_known() {
        let short = History { minute_ms: MINUTE_MS, seconds: slots(&[(3000, 5)]), minutes: slots(&[(0, 5)]) };
        let line = short.timeline();
        assert_eq!((line.width_ms, line.bins[3].written, line.total().written), (1000, 5, 5));
        let long = History { minutes: slots(&[(0, 5), (7_200_000, 9)]), ..short };
        let line = long.timeline();
        assert_eq!((line.total().written, line.bins[0].written), (14, 5));
    }

    proptest! {
        #[test]
        fn sums_stay(start: u64, end: u64, width: u64, most in 0..100_u64, written: u64) {
            let all: Vec<(u64, Bin)> = spread(start..end, width.max(u64::MAX / 1000), most, bin(written)).collect();
            prop_assert_eq!(all.iter().map(|(_, bin)| bin.written).sum::<u64>(), written);
            prop_assert_eq!(all.last().unwrap().0, start.max(end) / width.max(u64::MAX / 1000));
        }
    }
}
