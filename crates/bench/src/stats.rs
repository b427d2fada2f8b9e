//! Statistics of repeated figures: least, median, greatest; percentiles; ratios with their spread.

use serde::{Deserialize, Serialize};

/// Least, median and greatest of some repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The least.
    pub min: f64,
    /// The one in the middle, or the mean of the two there.
    pub median: f64,
    /// The greatest.
    pub max: f64,
}

impl Summary {
    /// Sums up; `None` for no figures, or for one that is not a number.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Summary> {
        if values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        // First: without values there is no middle, and nothing is taken from their number below.
        let upper = *sorted.get(sorted.len() / 2)?;
        let lower = *sorted.get((sorted.len() - 1) / 2)?;
        Some(Summary { min: *sorted.first()?, median: (lower + upper) / 2.0, max: *sorted.last()? })
    }
}

/// The figure below or at which this many thousandths of the sorted ones lie (nearest rank); `None` for none.
#[must_use]
pub fn percentile(sorted: &[u64], thousandths: usize) -> Option<u64> {
    let rank = (sorted.len() * thousandths).div_ceil(1000);
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
}

/// Each figure beside the limit's of the same repetition.
#[must_use]
pub fn ratios(values: &[f64], limits: &[f64]) -> Vec<f64> {
    values
        .iter()
        .zip(limits)
        // A limit of nothing has no ratio, and one infinite figure would void the summary of all.
        .filter(|(_, limit)| **limit != 0.0)
        .map(|(value, limit)| value / limit)
        .collect()
}

/// Units per second; 0 for a time that could not be told from none.
#[must_use]
pub fn per_second(units: u64, ns: u64) -> f64 {
    if ns == 0 { 0.0 } else { units as f64 * 1e9 / ns as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_middle_is_the_median() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
        assert_eq!(Summary::of(&[3.0]), Some(Summary { min: 3.0, median: 3.0, max: 3.0 }));
        assert_eq!(Summary::of(&[9.0, 1.0, 2.0]), Some(Summary { min: 1.0, median: 2.0, max: 9.0 }));
        assert_eq!(Summary::of(&[4.0, 1.0, 2.0, 9.0]).map(|s| s.median), Some(3.0));
    }

    #[test]
    fn percentiles_are_figures_that_were_measured() {
        let sorted: Vec<u64> = (1..=1000).collect();
        for (part, value) in [(500, 500), (900, 900), (990, 990), (999, 999), (1000, 1000), (0, 1)] {
            assert_eq!(percentile(&sorted, part), Some(value));
        }
        assert_eq!(percentile(&[7], 999), Some(7));
        assert_eq!(percentile(&[], 500), None);
    }

    #[test]
    fn ratios_are_taken_within_a_repetition() {
        assert_eq!(ratios(&[1.0, 3.0, 5.0], &[2.0, 2.0, 0.0]), [0.5, 1.5]);
        assert_eq!(per_second(1_000, 500_000_000), 2000.0);
        assert_eq!(per_second(1, 0), 0.0);
    }

    proptest! {
        #[test]
        fn a_summary_is_in_order(values in prop::collection::vec(0.0f64..1e12, 1..50)) {
            let summary = Summary::of(&values).unwrap();
            prop_assert!(summary.min <= summary.median && summary.median <= summary.max);
            prop_assert!(values.contains(&summary.min) && values.contains(&summary.max));
        }
    }
}
