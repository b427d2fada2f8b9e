//! The order of repetitions: targets alternate, so that what drifts on the machine touches all alike.

use crate::report::{Collector, Figure, Row};
use crate::{BenchError, BenchResult, Host};

/// Most processes of a measurement.
pub const PROCS_MAX: u64 = 1024;
/// Most repetitions.
const REPS_MAX: u32 = 1000;

/// Measures every target once without looking, then all of them `reps` times, forwards and backwards in turn.
///
/// The first round touches the memory that is used later: memory that the machine has to fetch from
/// its host first is slower by an order of magnitude.
///
/// # Errors
/// The first failure.
pub fn alternate(
    host: &Host<'_>,
    targets: &[String],
    reps: u32,
    mut once: impl FnMut(usize) -> BenchResult<Vec<Figure>>,
) -> BenchResult<Vec<Row>> {
    check_reps(reps)?;
    let mut collector = Collector::new(targets);
    for index in 0..targets.len() {
        once(index)?;
    }
    for rep in 0..reps {
        host.say(&format!("repetition {} of {reps}", rep + 1));
        for turn in 0..targets.len() {
            // So that none always comes behind the same other one, and bears what that leaves.
            let index = if rep % 2 == 0 { turn } else { targets.len() - 1 - turn };
            collector.add(index, once(index)?);
        }
    }
    Ok(collector.rows())
}

/// Refuses no repetitions, and absurdly many.
///
/// # Errors
/// A usage error.
pub fn check_reps(reps: u32) -> BenchResult<()> {
    in_range("--reps", u64::from(reps), 1, u64::from(REPS_MAX))
}

/// Refuses what is not within a range.
///
/// # Errors
/// A usage error that names the option and the range.
pub fn in_range(option: &str, value: u64, least: u64, most: u64) -> BenchResult<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let remedy = format!("write a value from {least} to {most}");
    Err(BenchError::usage(format_args!("{option} {value}"), "is out of range", remedy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Unit;
    use crate::tests::host;

    #[test]
    fn targets_alternate_after_a_first_round() {
        let mut order = Vec::new();
        let targets = ["a".to_owned(), "b".to_owned()];
        let rows = alternate(&host(), &targets, 3, |index| {
            order.push(index);
            Ok(vec![Figure::new("x", Unit::PerSecond, order.len() as f64)])
        })
        .unwrap();
        assert_eq!(order, [0, 1, 0, 1, 1, 0, 0, 1]);
        assert_eq!(rows[0].of("a").unwrap().values, [3.0, 6.0, 7.0]);
        assert_eq!(rows[0].of("b").unwrap().values, [4.0, 5.0, 8.0]);
    }

    #[test]
    fn the_first_failure_ends_it() {
        let mut calls = 0;
        let outcome = alternate(&host(), &["a".to_owned()], 3, |_| {
            calls += 1;
            if calls == 2 { Err(BenchError::refused("x", "y")) } else { Ok(Vec::new()) }
        });
        assert_eq!((outcome.unwrap_err().to_string(), calls), ("x: y".to_owned(), 2));
    }

    #[test]
    fn ranges_are_kept() {
        assert_eq!(check_reps(1), Ok(()));
        let error = check_reps(0).unwrap_err().to_string();
        assert_eq!(error, "--reps 0: is out of range; write a value from 1 to 1000");
        assert!(in_range("--procs", 9, 1, 8).is_err());
    }
}
