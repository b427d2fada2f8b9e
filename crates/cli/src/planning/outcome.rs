//! What was predicted of a run, what came of it, and what that teaches.

use std::time::{Duration, Instant};

use bivouac_launch::Environment;
use bivouac_plan::{Learned, Seconds, Site, Step, staging};
use serde_json::json;

use super::{Amount, Kept};
use crate::failure::Failure;
use crate::options::SiteArgs;
use crate::table::layout;

/// Watches a run.
#[derive(Debug)]
pub struct Watch {
    kept: Kept,
    site: Site,
    learned: Learned,
    nodes: u32,
    seen: Vec<Seen>,
}

/// A step that is over.
#[derive(Debug)]
struct Seen {
    step: Step,
    amount: Amount,
    /// What the model alone said.
    alone: Seconds,
    predicted: Seconds,
    took: f64,
}

impl Watch {
    /// Of a run that begins.
    ///
    /// # Errors
    /// That there is no model of the site.
    pub fn new(here: &Environment, args: &SiteArgs, nodes: u32) -> Result<Watch, Failure> {
        let kept = Kept::of(here, args)?;
        let site = kept.site()?;
        let learned = kept.learned();
        Ok(Watch { kept, site, learned, nodes, seen: Vec::new() })
    }

    /// A step is over that began then.
    pub fn saw(&mut self, step: Step, amount: Amount, begin: Instant) {
        self.took(step, amount, begin.elapsed());
    }

    fn took(&mut self, step: Step, amount: Amount, took: Duration) {
        let (alone, predicted) =
            staging(&self.site, &self.learned, step, (amount.bytes, amount.files), self.nodes);
        // What has nothing to do teaches nothing.
        if alone.likely > 0.0 {
            self.seen.push(Seen { step, amount, alone, predicted, took: took.as_secs_f64() });
        }
    }

    /// Prediction and outcome side by side, for people; and writes down what was learned.
    ///
    /// # Errors
    /// That it cannot be written down.
    pub fn end(self) -> Result<String, Failure> {
        let row = |seen: &Seen| {
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

    /// The same for programs.
    pub fn json(&self) -> String {
        let step = |seen: &Seen| {
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

fn word(step: Step) -> &'static str {
    match step {
        Step::Start => "start",
        Step::In => "in",
        Step::Out => "out",
    }
}
