//! Exercises a tree of names at random, through several mounts in turn, and compares it with a reference file system in
//! memory: what each call says, and what is there afterwards.

mod operation;
mod real;
mod reference;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::random::Random;
use crate::shrink;
use operation::Operation;
use real::Real;
use reference::Reference;

/// Looks at everything after so many operations.
const LOOK_EVERY: usize = 10;
/// Begins anew, in an empty directory, after so many.
const ROUND: usize = 200;

/// How long and on what.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Directories through which the same place is reached.
    pub dirs: Vec<PathBuf>,
    /// The same seed makes the same operations.
    pub seed: u64,
    /// Ends after so many operations...
    pub operations: u64,
    /// ...or after so long.
    pub time: Duration,
}

/// Runs a plan; answers how many operations were made.
///
/// # Errors
/// What differs, with the operations that led there, as a list.
pub fn exercise(plan: &Plan) -> Result<u64, String> {
    let mut random = Random::new(plan.seed);
    let (end, mut done) = (Instant::now() + plan.time, 0);
    while done < plan.operations && Instant::now() < end {
        let count = ROUND.min((plan.operations - done) as usize);
        let operations: Vec<Operation> =
            (0..count).map(|_| Operation::random(&mut random, plan.dirs.len())).collect();
        run(plan, &operations).map_err(|text| {
            let enough = shrink::shortened(&operations, |fewer| run(plan, fewer).is_err());
            shrink::report(&text, plan.seed, done as usize, &enough)
        })?;
        done += count as u64;
    }
    Ok(done)
}

/// Runs a list of operations in a directory of its own.
fn run(plan: &Plan, operations: &[Operation]) -> Result<(), String> {
    let mut reference = Reference::new();
    let mut real = Real::new(&plan.dirs)?;
    let outcome = compare(&mut reference, &mut real, operations);
    real.remove()?;
    outcome
}

fn compare(reference: &mut Reference, real: &mut Real, operations: &[Operation]) -> Result<(), String> {
    for (number, operation) in operations.iter().enumerate() {
        let mut tried = reference.clone();
        let Some(wanted) = tried.apply(operation) else { continue };
        let found = real.apply(operation)?;
        if found != wanted {
            return Err(format!("{operation:?}: {found:?}, should be {wanted:?}"));
        }
        *reference = tried;
        if number % LOOK_EVERY == LOOK_EVERY - 1 {
            real.look(reference, number)?;
        }
    }
    (0..real.mounts()).try_for_each(|mount| real.look(reference, mount))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_of_the_kernel_behaves_like_the_reference() {
        crate::runner::clear_umask();
        let dir = tempfile::tempdir().unwrap();
        let dirs = vec![dir.path().to_owned(), dir.path().join(".")];
        let plan = Plan { dirs, seed: 11, operations: 6000, time: Duration::from_secs(60) };
        exercise(&plan).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
