//! Factors by which predictions were off, learned from outcomes.

use serde::{Deserialize, Serialize};

/// Outcomes that are kept of each step.
pub const KEPT_MAX: usize = 9;
/// Largest correction, in either direction: a greater error is not a matter of a factor.
pub const FACTOR_MAX: f64 = 64.0;

/// Steps that are learned apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LearnedStep {
    /// Starting the formation.
    Start,
    /// Copying in.
    In,
    /// Copying out.
    Out,
}

/// Outcomes divided by what the site's model alone predicted, the latest last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnedRatios {
    /// Of starting.
    #[serde(default)]
    pub start: Vec<f64>,
    /// Of copying in.
    #[serde(default, rename = "in")]
    pub input: Vec<f64>,
    /// Of copying out.
    #[serde(default, rename = "out")]
    pub output: Vec<f64>,
}

impl LearnedRatios {
    /// Learns an outcome, in seconds, of what the model alone predicted. What makes no ratio teaches nothing.
    pub fn learn(&mut self, step: LearnedStep, predicted: f64, outcome: f64) {
        let ratio = outcome / predicted;
        if !ratio.is_finite() || ratio <= 0.0 || predicted <= 0.0 {
            return;
        }
        let ratios = self.of(step);
        ratios.push(ratio.clamp(1.0 / FACTOR_MAX, FACTOR_MAX));
        // The latest count: a site changes, and what it did a year ago says little.
        let surplus = ratios.len().saturating_sub(KEPT_MAX);
        ratios.drain(..surplus);
    }

    fn of(&mut self, step: LearnedStep) -> &mut Vec<f64> {
        match step {
            LearnedStep::Start => &mut self.start,
            LearnedStep::In => &mut self.input,
            LearnedStep::Out => &mut self.output,
        }
    }

    /// Factors of predictions: the least, the middle and the greatest of what was seen. The middle is the median, so
    /// that one odd run changes little. Nothing was seen: nothing, and the model's own doubt counts.
    #[must_use]
    pub fn factors(&self, step: LearnedStep) -> Option<[f64; 3]> {
        let mut ratios = match step {
            LearnedStep::Start => self.start.clone(),
            LearnedStep::In => self.input.clone(),
            LearnedStep::Out => self.output.clone(),
        };
        // What was read from a file may be anything.
        ratios.retain(|ratio| ratio.is_finite() && *ratio > 0.0);
        ratios.sort_by(f64::total_cmp);
        let bound = |ratio: &f64| ratio.clamp(1.0 / FACTOR_MAX, FACTOR_MAX);
        let (first, last) = (ratios.first().map(bound)?, ratios.last().map(bound)?);
        let middle = match ratios.len() {
            odd if odd % 2 == 1 => ratios.get(odd / 2).map(bound)?,
            even => ratios.get(even / 2 - 1).map(bound)?.midpoint(ratios.get(even / 2).map(bound)?),
        };
        assert!(first <= middle && middle <= last, "factors {first}, {middle}, {last}");
        Some([first, middle, last])
    }
}
