//! TimedPart parts of the work of several processes, and their rates together.

use serde::{Deserialize, Serialize};

use crate::stats::per_second;

/// A timed part of a member's work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimedPart {
    /// The step.
    pub what: String,
    /// Bytes or operations.
    pub units: u64,
    /// Time when it began, by the machine's clock.
    pub start_ns: u64,
    /// Time when it ended.
    pub end_ns: u64,
}

/// Units per second of all processes together: from the earliest start to the latest end.
#[must_use]
pub fn rate(parts: &[&TimedPart]) -> f64 {
    let start = parts.iter().map(|part| part.start_ns).min().unwrap_or(0);
    let end = parts.iter().map(|part| part.end_ns).max().unwrap_or(0);
    per_second(parts.iter().map(|part| part.units).sum(), end.saturating_sub(start))
}

/// The rates of everything that all processes did, in the order of the first's list.
#[must_use]
pub fn rates(outcomes: &[Vec<TimedPart>]) -> Vec<(String, f64)> {
    let of = |what: &str| -> Vec<&TimedPart> {
        outcomes.iter().flatten().filter(|timed| timed.what == what).collect()
    };
    let first = outcomes.first().map(Vec::as_slice).unwrap_or_default();
    first.iter().map(|timed| (timed.what.clone(), rate(&of(&timed.what)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(what: &str, units: u64, start_ns: u64, end_ns: u64) -> TimedPart {
        TimedPart { what: what.into(), units, start_ns, end_ns }
    }

    #[test]
    fn a_rate_counts_from_the_earliest_start_to_the_latest_end() {
        let outcomes = [
            vec![timed("write", 600, 1_000, 2_000), timed("read", 5, 0, 1_000_000_000)],
            vec![timed("write", 400, 1_500, 3_000), timed("read", 5, 0, 500_000_000)],
        ];
        assert_eq!(rates(&outcomes), [("write".to_owned(), 5e8), ("read".to_owned(), 10.0)]);
        assert_eq!(rates(&[]), []);
        assert_eq!(rate(&[]), 0.0);
    }
}
