//! Reading and writing by the published protocol: barrier; each task records its start; the first one
//! creates the file; barrier; all open, transfer without gaps or overlap, close; each records its end.
//! Throughput is bytes / (latest end − earliest start).

mod file;
mod order;
mod work;

use std::path::{Path, PathBuf};

use bivouac_types::units::{format_size, parse_size};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::measure::{PROCS_MAX, alternate, check_reps, in_range};
use crate::member_protocol::MemberTask;
use crate::output::{OutputArgs, show};
use crate::report::{Figure, Report, Unit, procs_name};
use crate::scratch::{Scratch, check_room};
use crate::timed_part::{TimedPart, rates};
use crate::{BenchError, BenchResult, Host, team};

pub use order::Order;
pub use work::perform;

/// Largest transfer, in bytes.
const TRANSFER_MAX: u64 = 1 << 30;

/// Whose files are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Mode {
    /// One file of all processes
    Shared,
    /// A file for each process
    Own,
}

/// Position of a process's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Arrangement {
    /// One behind the other
    Segmented,
    /// In turn with those of the other processes
    Strided,
    /// As segmented, in random order
    Random,
}

/// Interface by which files of formations are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Api {
    /// By system calls
    Calls,
    /// Through the client library; directories that are no formation's by system calls
    Client,
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum IoOp {
    /// Write a new file
    Write,
    /// Write over an existing file
    Rewrite,
    /// Read an existing file
    Read,
}

impl IoOp {
    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            IoOp::Write => "write",
            IoOp::Rewrite => "rewrite",
            IoOp::Read => "read",
        }
    }
}

/// Read and write files in directories, side by side; the last one is the limit
#[derive(Args, Clone, Debug)]
pub struct IoArgs {
    /// Directories to measure in turn
    #[arg(required = true, value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    /// Processes at work together
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub procs: u32,
    /// One file of all processes, or one each
    #[arg(long, value_enum, default_value_t = Mode::Shared)]
    pub mode: Mode,
    /// Where the blocks of a process are
    #[arg(long, value_enum, default_value_t = Arrangement::Segmented)]
    pub pattern: Arrangement,
    /// Divide the processes over the subdirectories 0, 1 and so on of each directory, as `partition create --dedicated` makes them; needs --mode own
    #[arg(long)]
    pub grouped: bool,
    /// Bytes of one call
    #[arg(long, default_value = "1MiB", value_parser = parse_size, value_name = "SIZE")]
    pub transfer: u64,
    /// Bytes of one process; a multiple of the transfer
    #[arg(long, default_value = "256MiB", value_parser = parse_size, value_name = "SIZE")]
    pub size: u64,
    /// What to do, in this order
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [IoOp::Write, IoOp::Rewrite, IoOp::Read])]
    pub ops: Vec<IoOp>,
    /// Repetitions
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub reps: u32,
    /// How files of formations are reached
    #[arg(long, value_enum, default_value_t = Api::Calls)]
    pub api: Api,
    /// Compare every byte at the end of a repetition, in a pass of its own that is not timed
    #[arg(long)]
    pub verify: bool,
    /// Where the figures go
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Plan of a repetition, known to all processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoPlan {
    /// Number of processes.
    pub procs: u32,
    /// Whose files.
    pub mode: Mode,
    /// Position of the blocks.
    pub arrangement: Arrangement,
    /// Bytes of a call.
    pub transfer: u64,
    /// Bytes of a process.
    pub size: u64,
    /// Action that helps.
    pub ops: Vec<IoOp>,
    /// Interface by which formations are reached.
    pub api: Api,
    /// True if to compare at the end.
    pub verify: bool,
}

/// One process's part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IoTask {
    /// An empty directory.
    pub dir: PathBuf,
    /// Number of the process.
    pub rank: u32,
    /// Plan of all processes.
    pub plan: IoPlan,
}

impl MemberTask for IoTask {
    const KIND: &'static str = "Io";
}

/// Runs `bench io`.
///
/// # Errors
/// Arguments that make no sense, too little room, what the file systems refuse.
pub fn run(host: &Host<'_>, args: &IoArgs) -> BenchResult<()> {
    let plan = plan(args)?;
    let targets: Vec<_> = args.dirs.iter().map(|dir| (dir.display().to_string(), dir.clone())).collect();
    show(host, &compare_grouped(host, &targets, &plan, args.reps, args.grouped)?, &args.output)
}

/// Measures named directories side by side.
pub fn compare(
    host: &Host<'_>,
    targets: &[(String, PathBuf)],
    plan: &IoPlan,
    reps: u32,
) -> BenchResult<Report> {
    compare_grouped(host, targets, plan, reps, false)
}

fn compare_grouped(
    host: &Host<'_>,
    targets: &[(String, PathBuf)],
    plan: &IoPlan,
    reps: u32,
    grouped: bool,
) -> BenchResult<Report> {
    check_reps(reps)?;
    for (_, dir) in targets {
        check_room(dir, plan.size.saturating_mul(u64::from(plan.procs)))?;
    }
    let names: Vec<String> = targets.iter().map(|(name, _)| name.clone()).collect();
    let rows = alternate(host, &names, reps, |index| match targets.get(index) {
        Some((_, dir)) if grouped => once(host, &groups(dir)?, plan),
        Some((_, dir)) => once(host, std::slice::from_ref(dir), plan),
        None => Ok(Vec::new()),
    })?;
    Ok(Report { title: title(plan, reps), notes: notes(plan), rows })
}

/// The subdirectories 0, 1 and so on.
fn groups(dir: &Path) -> BenchResult<Vec<PathBuf>> {
    let groups: Vec<PathBuf> =
        (0..PROCS_MAX).map(|group| dir.join(group.to_string())).take_while(|path| path.is_dir()).collect();
    if groups.is_empty() {
        let remedy = "make some with: bivouac partition create DIR --dedicated --clients N";
        return Err(BenchError::usage(dir.display(), "has no subdirectory 0 to be a group's", remedy));
    }
    Ok(groups)
}

/// One repetition in directories that as many groups of processes have for themselves, of which nothing stays.
pub(crate) fn once(host: &Host<'_>, dirs: &[PathBuf], plan: &IoPlan) -> BenchResult<Vec<Figure>> {
    let scratches = dirs.iter().map(|dir| Scratch::new(dir)).collect::<BenchResult<Vec<_>>>()?;
    assert!(!dirs.is_empty(), "processes are given no directory");
    let of_rank = |rank: u32| (rank as usize * dirs.len() / plan.procs.max(1) as usize).min(dirs.len() - 1);
    let task = |rank| {
        let dir = scratches.get(of_rank(rank)).map_or_else(PathBuf::new, |scratch| scratch.path().to_owned());
        IoTask { dir, rank, plan: plan.clone() }
    };
    let outcomes: Vec<Vec<TimedPart>> = team::run(host, &(0..plan.procs).map(task).collect::<Vec<_>>())?;
    let figures = |(what, bytes_per_second): (String, f64)| {
        let small = plan.transfer < SMALL;
        let (unit, per) =
            if small { (Unit::PerSecond, plan.transfer as f64) } else { (Unit::GigabytesPerSecond, 1e9) };
        Figure::new(what, unit, bytes_per_second / per)
    };
    Ok(rates(&outcomes).into_iter().map(figures).collect())
}

/// Transfers below this are shown as operations per second, those from it on as bytes per second.
const SMALL: u64 = 64 << 10;

fn title(plan: &IoPlan, reps: u32) -> String {
    let file = if plan.mode == Mode::Shared { "one shared file" } else { "a file each" };
    let arrangement = format!("{:?}", plan.arrangement).to_lowercase();
    let library = if plan.api == Api::Client { ", formations through the library" } else { "" };
    format!(
        "{}, {file}, {arrangement}, {} in calls of {} each{library}, {reps} repetitions",
        procs_name(plan.procs),
        format_size(plan.size),
        format_size(plan.transfer),
    )
}

fn notes(plan: &IoPlan) -> Vec<String> {
    let verified = "every byte was compared after each repetition, outside of the timed part";
    if plan.verify { vec![verified.to_owned()] } else { Vec::new() }
}

/// Checks the arguments.
fn plan(args: &IoArgs) -> BenchResult<IoPlan> {
    let IoArgs { procs, mode, pattern, transfer, size, api, verify, .. } = *args;
    in_range("--procs", u64::from(procs), 1, PROCS_MAX)?;
    in_range("--transfer", transfer, 1, TRANSFER_MAX)?;
    if size == 0 || !size.is_multiple_of(transfer) {
        let cause = format!("is not a multiple of --transfer {transfer}");
        return Err(BenchError::usage(format_args!("--size {size}"), cause, "write whole transfers"));
    }
    if mode == Mode::Own && pattern == Arrangement::Strided {
        let cause = "has one process per file, so there is nobody to take turns with";
        return Err(BenchError::usage("--mode own --pattern strided", cause, "write --mode shared"));
    }
    if args.grouped && mode != Mode::Own {
        let cause = "divides the processes, and one file of all cannot be divided";
        return Err(BenchError::usage("--grouped --mode shared", cause, "write --mode own"));
    }
    if args.ops.is_empty() {
        return Err(BenchError::usage("--ops", "names nothing", "write for instance --ops write,read"));
    }
    Ok(IoPlan { procs, mode, arrangement: pattern, transfer, size, ops: args.ops.clone(), api, verify })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A plan of two processes with four blocks each.
    pub(crate) fn small() -> IoPlan {
        IoPlan {
            procs: 2,
            mode: Mode::Shared,
            arrangement: Arrangement::Segmented,
            transfer: 5000,
            size: 20_000,
            ops: vec![IoOp::Write, IoOp::Rewrite, IoOp::Read],
            api: Api::Calls,
            verify: true,
        }
    }

    fn args(text: &[&str]) -> Result<IoArgs, clap::Error> {
        use clap::FromArgMatches;
        let command = IoArgs::augment_args(clap::Command::new("io").no_binary_name(true));
        IoArgs::from_arg_matches(&command.try_get_matches_from(text)?)
    }

    fn refusal(text: &[&str]) -> String {
        plan(&args(text).unwrap()).unwrap_err().to_string()
    }

    #[test]
    fn the_defaults_make_a_plan() {
        let plan = plan(&args(&["/d"]).unwrap()).unwrap();
        assert_eq!((plan.procs, plan.transfer, plan.size, plan.verify), (1, 1 << 20, 256 << 20, false));
        assert_eq!(plan.ops, [IoOp::Write, IoOp::Rewrite, IoOp::Read]);
        assert!(args(&[]).is_err(), "a directory is needed");
        assert!(args(&["/d", "--transfer", "x"]).is_err());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(refusal(&["/d", "--procs", "0"]).starts_with("--procs 0: is out of range"));
        assert!(refusal(&["/d", "--transfer", "0"]).starts_with("--transfer 0: "));
        assert!(
            refusal(&["/d", "--size", "5000", "--transfer", "4096"])
                .starts_with("--size 5000: is not a multiple")
        );
        assert!(refusal(&["/d", "--size", "0"]).starts_with("--size 0: "));
        assert!(refusal(&["/d", "--mode", "own", "--pattern", "strided"]).ends_with("write --mode shared"));
        assert!(refusal(&["/d", "--grouped"]).ends_with("write --mode own"));
        assert!(groups(Path::new("/nonexistent")).unwrap_err().to_string().contains("--dedicated"));
    }

    #[test]
    fn the_title_says_what_was_done() {
        assert_eq!(
            title(&small(), 3),
            "2 processes, one shared file, segmented, 19.5 KiB in calls of 4.9 KiB each, 3 repetitions"
        );
        assert_eq!(notes(&small()).len(), 1);
    }
}
