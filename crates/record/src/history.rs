//! History of work in each second of the last half hour, and in each minute of a whole life.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::timeline::{Bin, Timeline};

/// A second, in milliseconds.
pub const SECOND_MS: u64 = 1000;
/// Number of seconds that are kept.
pub const SECONDS: usize = 1800;
/// A minute, in milliseconds: the first length of an interval of a life.
pub const MINUTE_MS: u64 = 60_000;
/// Intervals of a life. When there are more, each becomes twice as long.
pub const MINUTES: usize = 1440;

/// Work in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryInterval {
    /// Time when it began, in milliseconds since the history did.
    pub at_ms: u64,
    /// The work.
    #[serde(flatten)]
    pub bin: Bin,
}

/// Work by time; intervals that are left out had none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// Time that the intervals of the whole life are, in milliseconds.
    pub minute_ms: u64,
    /// Each second of the last half hour, in order.
    pub seconds: Vec<HistoryInterval>,
    /// Each interval of the whole life, in order.
    pub minutes: Vec<HistoryInterval>,
}

impl History {
    /// Adds those of another one, which began so many milliseconds later.
    pub fn merge(&mut self, other: &History, later_ms: u64) {
        self.minute_ms = self.minute_ms.max(other.minute_ms).max(MINUTE_MS);
        self.seconds = merged(&self.seconds, &other.seconds, later_ms, SECOND_MS);
        self.minutes = merged(&self.minutes, &other.minutes, later_ms, self.minute_ms);
    }

    /// Returns it as a timeline: by seconds if they cover the whole life.
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

fn merged(
    own: &[HistoryInterval],
    others: &[HistoryInterval],
    later_ms: u64,
    width: u64,
) -> Vec<HistoryInterval> {
    let mut sums = BTreeMap::<u64, Bin>::new();
    let later = others.iter().map(|slot| (slot.at_ms.saturating_add(later_ms), slot.bin));
    for (at, bin) in own.iter().map(|slot| (slot.at_ms, slot.bin)).chain(later) {
        // Nodes do not begin in the same millisecond; put on one grid, what they did at the same time is in one
        // interval.
        sums.entry(at - at % width.max(1)).or_default().add(bin);
    }
    sums.into_iter().map(|(at_ms, bin)| HistoryInterval { at_ms, bin }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(all: &[(u64, u64)]) -> Vec<HistoryInterval> {
        all.iter().map(|(at_ms, written)| HistoryInterval { at_ms: *at_ms, bin: bin(*written) }).collect()
    }

    fn bin(written: u64) -> Bin {
        Bin { written, ..Bin::default() }
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
}
