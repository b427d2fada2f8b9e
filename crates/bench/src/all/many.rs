//! Many processes on one mount: taking turns in one file, and more and more of them.

use std::path::Path;

use super::steps::Size;
use crate::io::{self, Api, Arrangement, IoOp, IoPlan, Mode};
use crate::measure::alternate;
use crate::report::{Report, procs_name};
use crate::{BenchResult, Host};

/// Blocks of the processes in turn.
pub const STRIDED: &str = "strided";
/// The blocks of a process one behind the other.
pub const SEGMENTED: &str = "segmented";
/// Processes that take turns.
const PROCS: u32 = 8;
/// Bytes of their calls.
const TURN: u64 = 64 << 10;
/// Numbers of processes of one node, the largest first: what is measured last is what others are measured beside.
const COUNTS: [u32; 5] = [12, 8, 4, 2, 1];

/// One shared file: strided beside segmented.
pub fn strided(host: &Host<'_>, dir: &Path, size: &Size) -> BenchResult<Report> {
    let plan = |arrangement| IoPlan {
        procs: PROCS,
        mode: Mode::Shared,
        arrangement,
        transfer: TURN,
        // Bytes of each process, so that all together write as much as one does elsewhere.
        size: size.large / u64::from(PROCS),
        ops: vec![IoOp::Write, IoOp::Rewrite, IoOp::Read],
        api: Api::Calls,
        verify: false,
    };
    let plans = [plan(Arrangement::Strided), plan(Arrangement::Segmented)];
    let names = [STRIDED, SEGMENTED].map(str::to_owned);
    let title =
        format!("{PROCS} processes in one file on the mount, calls of 64 KiB, {} repetitions", size.reps);
    compare(host, dir, &names, &plans, title, size.reps)
}

/// A file each, by more and more processes.
pub fn clients(host: &Host<'_>, dir: &Path, size: &Size) -> BenchResult<Report> {
    let plan = |procs: u32| IoPlan {
        procs,
        mode: Mode::Own,
        arrangement: Arrangement::Segmented,
        transfer: 1 << 20,
        size: size.large / 8,
        ops: vec![IoOp::Write, IoOp::Read],
        api: Api::Calls,
        verify: false,
    };
    let names = COUNTS.map(procs_name);
    let title =
        format!("1 to 12 processes with a file each on the mount, calls of 1 MiB, {} repetitions", size.reps);
    compare(host, dir, &names, &COUNTS.map(plan), title, size.reps)
}

fn compare(
    host: &Host<'_>,
    dir: &Path,
    names: &[String],
    plans: &[IoPlan],
    title: String,
    reps: u32,
) -> BenchResult<Report> {
    let rows = alternate(host, names, reps, |index| match plans.get(index) {
        Some(plan) => io::once(host, &[dir.to_owned()], plan),
        None => Ok(Vec::new()),
    })?;
    Ok(Report { title, notes: Vec::new(), rows })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_write_whole_calls() {
        for size in [Size::quick(), Size::full()] {
            assert!((size.large / u64::from(PROCS)).is_multiple_of(TURN));
            assert!((size.large / 8).is_multiple_of(1 << 20));
        }
        assert_eq!(COUNTS.map(procs_name)[0], "12 processes");
    }
}
