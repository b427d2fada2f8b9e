//! Exercises one file at random, through several mounts in turn, and compares its content with a model after every
//! operation: what fsx does for one mount.

mod model;
mod operation;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::random::Random;
use crate::shrink;
use model::Model;
use operation::Operation;

/// How long and on what.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Directories through which the same file is reached.
    pub dirs: Vec<PathBuf>,
    /// The same seed makes the same operations.
    pub seed: u64,
    /// Ends after so many operations...
    pub operations: u64,
    /// ...or after so long.
    pub time: Duration,
    /// The file is never longer than this, in bytes.
    pub size_max: u64,
}

/// Runs a plan; answers how many operations were made.
///
/// # Errors
/// What differs, with the operations that led there, as a list.
pub fn exercise(plan: &Plan) -> Result<u64, String> {
    let mut model = Model::new(plan)?;
    let mut random = Random::new(plan.seed);
    let mut done: Vec<Operation> = Vec::new();
    let end = Instant::now() + plan.time;
    while (done.len() as u64) < plan.operations && Instant::now() < end {
        let operation = Operation::random(&mut random, plan, model.size());
        done.push(operation);
        model.apply(&operation).map_err(|text| report(plan, &done, &text))?;
    }
    model.remove()?;
    Ok(done.len() as u64)
}

/// Repeats a list of operations that has been found to fail.
///
/// # Errors
/// As [`exercise`].
fn replay(plan: &Plan, operations: &[Operation]) -> Result<(), String> {
    let mut model = Model::new(plan)?;
    let outcome = operations.iter().try_for_each(|operation| model.apply(operation));
    model.remove()?;
    outcome
}

/// The failure with the shortest list of operations that still fails.
fn report(plan: &Plan, done: &[Operation], text: &str) -> String {
    let enough = shrink::shortened(done, |fewer| replay(plan, fewer).is_err());
    shrink::report(text, plan.seed, done.len(), &enough)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn any_real_file_behaves_like_the_model() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = vec![dir.path().to_owned(), dir.path().join(".")];
        let plan = Plan { dirs, seed: 7, operations: 2000, time: Duration::from_secs(60), size_max: 100_000 };
        assert_eq!(exercise(&plan), Ok(2000));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
