//! Prediction and outcome of a run, and what follows for later predictions.

use std::time::{Duration, Instant};

use bivouac_launch::Environment;
use bivouac_plan::{LearnedRatios, LearnedStep, Seconds, Site, staging};
use serde_json::json;

use super::{Amount, SiteFiles};
use crate::failure::Failure;
use crate::options::SiteArgs;
use crate::table::layout;

/// Watches a run.
#[derive(Debug)]
pub struct Watch {
    kept: SiteFiles,
    site: Site,
    learned: LearnedRatios,
    nodes: u32,
    seen: Vec<CompletedStep>,
}

/// A step that is over.
#[derive(Debug)]
struct CompletedStep {
    step: LearnedStep,
    amount: Amount,
    /// Prediction of the model alone.
    alone: Seconds,
    predicted: Seconds,
    took: f64,
}

impl Watch {
    /// Creates the watch over a run that begins.
    pub fn new(here: &Environment, args: &SiteArgs, nodes: u32) -> Result<Watch, Failure> {
        let kept = SiteFiles::of(here, args)?;
        let site = kept.site()?;
        let learned = kept.learned();
        Ok(Watch { kept, site, learned, nodes, seen: Vec::new() })
    }

    /// Notes that a step is over that began then.
    pub fn saw(&mut self, step: LearnedStep, amount: Amount, begin: Instant) {
        self.took(step, amount, begin.elapsed());
    }

    fn took(&mut self, step: LearnedStep, amount: Amount, took: Duration) {
        let (alone, predicted) =
            staging(&self.site, &self.learned, step, (amount.bytes, amount.files), self.nodes);
        // What has nothing to do teaches nothing.
        if alone.likely > 0.0 {
            self.seen.push(CompletedStep { step, amount, alone, predicted, took: took.as_secs_f64() });
        }
    }

    /// Returns prediction and outcome side by side, for people; and writes down what was learned.
    pub fn end(self) -> Result<String, Failure> {
        let row = |seen: &CompletedStep| {
            let Seconds { low, likely, high } = seen.predicted;
            vec![
                word(seen.step).to_owned(),
                seen.amount.files.to_string(),
                bivouac_types::units::format_size(seen.amount.bytes),
                format!("{likely:.2} s"),
                format!("{low:.2} to {high:.2} s"),
                format!("{:.2} s", seen.took),
                format!("{:+.0}%", (likely / seen.took.max(1e-9) - 1.0) * 100.0),
            ]
        };
        let rows: Vec<Vec<String>> = self.seen.iter().map(row).collect();
        let head = ["STEP", "FILES", "BYTES", "PREDICTED", "BETWEEN", "TOOK", "ERROR"];
        let text = layout(&head, &[1, 2, 3, 4, 5, 6], &rows);
        // Others may have learned meanwhile.
        let mut learned = self.kept.learned();
        for seen in &self.seen {
            learned.learn(seen.step, seen.alone.likely, seen.took);
        }
        self.kept.learn(&learned)?;
        Ok(text)
    }

    /// Returns prediction and outcome for programs.
    pub fn json(&self) -> String {
        let step = |seen: &CompletedStep| {
            json!({
                "step": word(seen.step),
                "files": seen.amount.files,
                "bytes": seen.amount.bytes,
                "predicted": seen.predicted,
                "took": seen.took,
            })
        };
        json!(self.seen.iter().map(step).collect::<Vec<_>>()).to_string()
    }
}

fn word(step: LearnedStep) -> &'static str {
    match step {
        LearnedStep::Start => "start",
        LearnedStep::In => "in",
        LearnedStep::Out => "out",
    }
}
