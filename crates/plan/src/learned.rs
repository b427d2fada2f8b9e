//! What outcomes taught: by how much predictions were off.

use serde::{Deserialize, Serialize};

/// Outcomes that are kept of each step.
pub const KEPT_MAX: usize = 9;
/// Nothing is corrected by more than this, in either direction: what is further off is no matter of a factor.
pub const FACTOR_MAX: f64 = 64.0;

/// Steps that are learned apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
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
pub struct Learned {
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

impl Learned {
    /// Learns an outcome, in seconds, of what the model alone predicted. What makes no ratio teaches nothing.
    pub fn learn(&mut self, step: Step, predicted: f64, outcome: f64) {
        let ratio = outcome / predicted;
        if !ratio.is_finite() || ratio <= 0.0 || predicted <= 0.0 {
            return;
        }
        let ratios = self.of(step);
        ratios.push(ratio.clamp(1.0 / FACTOR_MAX, FACTOR_MAX));
        let surplus = ratios.len().saturating_sub(KEPT_MAX);
        ratios.drain(..surplus);
    }

    fn of(&mut self, step: Step) -> &mut Vec<f64> {
        match step {
            Step::Start => &mut self.start,
            Step::In => &mut self.input,
            Step::Out => &mut self.output,
        }
    }

    /// What predictions are multiplied with: the least, the middle and the greatest of what was seen. The middle is the median, so
    /// that one odd run changes little. Nothing was seen: nothing, and the model's own doubt counts.
    #[must_use]
    pub fn factors(&self, step: Step) -> Option<[f64; 3]> {
        let mut ratios = match step {
            Step::Start => self.start.clone(),
            Step::In => self.input.clone(),
            Step::Out => self.output.clone(),
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
        Some([first, middle, last])
    }
}
