//! Times of the phases of a start.

use std::fmt::Write;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// A step and its duration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// The step.
    pub name: String,
    /// Time that it took, in microseconds.
    pub us: u64,
}

/// Steps and their microseconds in a sentence.
pub fn in_words<'s>(steps: impl IntoIterator<Item = (&'s String, u64)>) -> String {
    let words = steps.into_iter().map(|(name, us)| format!("{name} {:.1} ms", us as f64 / 1000.0));
    words.collect::<Vec<_>>().join(", ")
}

/// The steps of something, in order.
#[derive(Debug)]
pub struct Phases {
    since: Instant,
    steps: Vec<Phase>,
}

impl Phases {
    /// Begins now.
    #[must_use]
    pub fn begin() -> Phases {
        Phases { since: Instant::now(), steps: Vec::new() }
    }

    /// Ends the step that began with the last one's end.
    pub fn end(&mut self, name: &str) {
        let now = Instant::now();
        self.steps.push(Phase { name: name.into(), us: micros(now - self.since) });
        self.since = now;
    }

    /// Adds steps that somebody else timed within the running one, whose time begins after them.
    pub fn insert(&mut self, steps: Vec<Phase>) {
        self.steps.extend(steps);
        self.since = Instant::now();
    }

    /// Returns the steps so far.
    #[must_use]
    pub fn into_steps(self) -> Vec<Phase> {
        self.steps
    }
}

/// Returns a table of the steps with their sum.
#[must_use]
pub fn table(steps: &[Phase]) -> String {
    let width = steps.iter().map(|step| step.name.chars().count()).max().unwrap_or(0).max(5);
    let total = steps.iter().map(|step| step.us).sum::<u64>();
    let mut text = String::from("where the time went:\n");
    for (name, us) in steps.iter().map(|step| (step.name.as_str(), step.us)).chain([("total", total)]) {
        let _infallible = writeln!(text, "  {name:width$}  {:>9.1} ms", us as f64 / 1000.0);
    }
    text
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_every_step_and_the_sum() {
        let step = |name: &str, us| Phase { name: name.into(), us };
        let text = table(&[step("supervisor", 1500), step("daemons", 12_340)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "where the time went:",
                "  supervisor        1.5 ms",
                "  daemons          12.3 ms",
                "  total            13.8 ms",
            ]
        );
    }

    #[test]
    fn steps_of_others_are_put_in_order() {
        let mut phases = Phases::begin();
        phases.end("a");
        phases.insert(vec![Phase { name: "b".into(), us: 7 }]);
        phases.end("c");
        let names: Vec<String> = phases.into_steps().into_iter().map(|step| step.name).collect();
        assert_eq!(names, ["a", "b", "c"]);
    }
}
