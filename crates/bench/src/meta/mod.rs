//! Making, looking at, reading, listing and removing many files: the phases of mdtest, a barrier before each.

mod calls;
pub mod directory;
pub mod growth;
mod places;
mod plan;
pub mod targets;
mod work;

use std::path::PathBuf;

use bivouac_types::units::parse_size;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::chart::{Curve, curves};
use crate::measure::{alternate, check_reps};
use crate::member_protocol::MemberTask;
use crate::output::{OutputArgs, show, write_chart, write_json};
use crate::report::{Figure, Report, Row, Unit};
use crate::scratch::{MEMORY_DIR, check_room};
use crate::timed_part::{TimedPart, rates};
use crate::{BenchError, BenchResult, Host, team};

pub use plan::MetaPlan;
pub use targets::MeasuredTarget;
pub use work::perform;

/// Least cost of a file in a file system in memory, in bytes.
const FILE_COST: u64 = 4096;
/// Files of a process, processes and repetitions with `--quick`.
const QUICK: (u32, [u32; 2], u32) = (500, [1, 4], 2);
/// The same without.
const USUAL: (u32, [u32; 1], u32) = (10_000, [1], 5);

/// Distribution of files over directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Layout {
    /// In the leaves of a tree of directories
    Tree,
    /// All in one directory
    Single,
}

/// Make, look at, read, list and remove files in directories, side by side; the last one is the limit
///
/// A DIR may be several mounts of one file system, separated by commas: processes are spread over them, and look and
/// read through another one than they made through.
#[derive(Args, Clone, Debug)]
pub struct MetaArgs {
    /// Directories to measure in turn: each one, or several mounts of one file system, separated by commas
    #[arg(required_unless_present_any = ["nodes", "big"], value_name = "DIR[,DIR...]")]
    pub dirs: Vec<MeasuredTarget>,
    /// Measure a formation of N nodes, started for it and mounted through each, beside --memory
    #[arg(long, conflicts_with = "dirs", value_name = "N")]
    pub nodes: Option<u16>,
    /// Have the processes, and the daemons of --nodes, share one processor
    #[arg(long)]
    pub one_core: bool,
    /// Directory of a file system in memory, the limit of --nodes and --big
    #[arg(long, default_value = MEMORY_DIR, value_name = "DIR")]
    pub memory: PathBuf,
    /// Instead, measure one huge directory: how creating holds up, listing, memory per file, restart of its daemon
    #[arg(long, conflicts_with_all = ["dirs", "layout", "depth", "branch", "own", "shared", "bytes", "filled"])]
    pub big: bool,
    /// Processes at work together; several numbers make a table of each [default: 1; 4 with --big]
    #[arg(long, value_delimiter = ',', value_name = "N")]
    pub procs: Vec<u32>,
    /// Files of one process; with --big, of all [default: 10000; 1000000 with --big]
    #[arg(long, value_name = "N")]
    pub files: Option<u32>,
    /// How files are spread over directories
    #[arg(long, value_enum, default_value_t = Layout::Single)]
    pub layout: Layout,
    /// Levels of directories of a tree
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub depth: u32,
    /// Directories in each directory of a tree [default: as many as give a directory a hundred files, with one level]
    #[arg(long, value_name = "N")]
    pub branch: Option<u64>,
    /// Directories of its own for each process (this is the default)
    #[arg(long, conflicts_with = "shared")]
    pub own: bool,
    /// The same directories for all processes
    #[arg(long)]
    pub shared: bool,
    /// Bytes that are written to each file and read again
    #[arg(long, default_value = "3901", value_parser = parse_size, value_name = "SIZE")]
    pub bytes: u64,
    /// Write the bytes when a file is made, not in a phase of its own
    #[arg(long)]
    pub filled: bool,
    /// Repetitions [default: 5; 1 with --big]
    #[arg(long, value_name = "N")]
    pub reps: Option<u32>,
    /// Few files and repetitions, with 1 and 4 processes, unless other options say more
    #[arg(long)]
    pub quick: bool,
    /// Where the figures go
    #[command(flatten)]
    pub output: OutputArgs,
}

/// One process's part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MetaTask {
    /// An empty directory, as each mount shows it.
    pub dirs: Vec<PathBuf>,
    /// Number of the process.
    pub rank: u32,
    /// Plan of all processes.
    pub plan: MetaPlan,
}

impl MemberTask for MetaTask {
    const KIND: &'static str = "Meta";
}

/// Runs `bench meta`; `verdicts` says which budgets the table of one huge directory keeps.
///
/// # Errors
/// Arguments that make no sense, too little room, what the file systems refuse.
pub fn run(host: &Host<'_>, args: &MetaArgs, verdicts: impl Fn(&Report) -> String) -> BenchResult<()> {
    if args.big {
        return directory::run(host, args, verdicts);
    }
    let plans = plan::plans(args)?;
    let reps = args.reps.unwrap_or(if args.quick { QUICK.2 } else { USUAL.2 });
    let measure = |targets: &[MeasuredTarget]| series(host, targets, &plans, reps);
    let report = match args.nodes {
        None if args.one_core => targets::on_one_core(|| measure(&args.dirs))?,
        None => measure(&args.dirs)?,
        Some(nodes) => targets::with_formation(host, (nodes, args.one_core), &args.memory, measure)?,
    };
    match plans.as_slice() {
        [_] => show(host, &report, &args.output),
        _ => show_series(host, &report, &plans, &args.output),
    }
}

/// A table for all numbers of processes; their rows are told apart by it.
fn series(host: &Host<'_>, targets: &[MeasuredTarget], plans: &[MetaPlan], reps: u32) -> BenchResult<Report> {
    let mut reports = Vec::new();
    for plan in plans {
        let mut report = compare(host, targets, plan, reps)?;
        if plans.len() > 1 {
            report.rows.iter_mut().for_each(|row| row.what = among(&row.what, plan.procs));
        }
        reports.push(report);
    }
    let rows = reports.iter_mut().flat_map(|report| std::mem::take(&mut report.rows)).collect();
    let title = plans.first().map(|plan| plan.title(plans, reps)).unwrap_or_default();
    Ok(Report { title, notes: notes(targets), rows })
}

/// Name of work by several processes.
fn among(what: &str, procs: u32) -> String {
    format!("{what}, {procs} proc")
}

/// Measures directories side by side.
pub fn compare(
    host: &Host<'_>,
    targets: &[MeasuredTarget],
    plan: &MetaPlan,
    reps: u32,
) -> BenchResult<Report> {
    check_reps(reps)?;
    let files = u64::from(plan.files) * u64::from(plan.procs);
    for target in targets {
        check_room(target.first(), files.saturating_mul(FILE_COST + plan.bytes))?;
    }
    let names: Vec<String> = targets.iter().map(|target| target.name.clone()).collect();
    let rows = alternate(host, &names, reps, |index| match targets.get(index) {
        Some(target) => once(host, target, plan),
        None => Ok(Vec::new()),
    })?;
    Ok(Report { title: plan.title(std::slice::from_ref(plan), reps), notes: notes(targets), rows })
}

fn once(host: &Host<'_>, target: &MeasuredTarget, plan: &MetaPlan) -> BenchResult<Vec<Figure>> {
    let (_scratch, dirs) = target.scratch()?;
    let task = |rank| MetaTask { dirs: dirs.clone(), rank, plan: plan.clone() };
    let outcomes: Vec<Vec<TimedPart>> = team::run(host, &(0..plan.procs).map(task).collect::<Vec<_>>())?;
    check_counts(&outcomes, plan)?;
    let figure = |(what, rate)| Figure::new(what, Unit::PerSecond, rate);
    Ok(rates(&outcomes).into_iter().map(figure).collect())
}

/// Compares what all processes did together with what there was to do.
fn check_counts(outcomes: &[Vec<TimedPart>], plan: &MetaPlan) -> BenchResult<()> {
    for what in outcomes.first().into_iter().flatten().map(|timed| &timed.what) {
        let all = outcomes.iter().flatten().filter(|timed| timed.what == *what);
        let (found, wanted) = (all.map(|timed| timed.units).sum::<u64>(), plan.units(what));
        if found != wanted {
            return Err(BenchError::refused(what, format_args!("{found} instead of {wanted}")));
        }
    }
    Ok(())
}

fn notes(targets: &[MeasuredTarget]) -> Vec<String> {
    let mut notes = vec![
        "stat comes when kernels cache nothing any more; stat, cached is the second of two, by rounds of 256 files".to_owned(),
        "open is open and close; read is open, read, compare, close; readdir counts entries".to_owned(),
    ];
    if targets.iter().any(|target| target.dirs.len() > 1) {
        notes.push(
            "stat, open, read and readdir go through the mount next to the one that made the files".into(),
        );
    }
    notes
}

fn show_series(host: &Host<'_>, report: &Report, plans: &[MetaPlan], output: &OutputArgs) -> BenchResult<()> {
    host.print(&report.text())?;
    if let Some(path) = &output.json {
        write_json(path, report)?;
    }
    output.svg.as_ref().map_or(Ok(()), |path| write_chart(path, &chart(report, plans)))
}

/// Rates over the number of processes, of the first target.
fn chart(report: &Report, plans: &[MetaPlan]) -> String {
    let points = |what: &str| -> Vec<(f64, f64)> {
        let row = |procs: u32| -> Option<&Row> { report.row(&among(what, procs)) };
        let median = |procs| Some(row(procs)?.targets.first()?.summary.median);
        plans.iter().filter_map(|plan| Some((f64::from(plan.procs), median(plan.procs)?))).collect()
    };
    let curve = |what: &str| Curve { name: what.to_owned(), points: points(what) };
    let all = ["create", "stat", "open", "read", "remove"].map(curve);
    curves(&report.title, "processes", "operations per second", &all)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A plan of one process with 250 files.
    pub(crate) fn small(layout: Layout, shared: bool) -> MetaPlan {
        MetaPlan { procs: 1, files: 250, layout, depth: 1, branch: 3, shared, bytes: 3901, filled: false }
    }

    pub(super) fn args(text: &[&str]) -> Result<MetaArgs, clap::Error> {
        use clap::FromArgMatches;
        let command = MetaArgs::augment_args(clap::Command::new("meta").no_binary_name(true));
        MetaArgs::from_arg_matches(&command.try_get_matches_from(text)?)
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        assert!(args(&["/d", "--shared", "--own"]).is_err() && args(&[]).is_err());
        assert!(args(&["/d", "--nodes", "2"]).is_err() && args(&["--big", "--shared"]).is_err());
        assert!(args(&["--nodes", "2", "--one-core"]).is_ok() && args(&["--big", "--files", "10"]).is_ok());
    }

    #[test]
    fn counts_that_are_wrong_are_errors() {
        let timed = |what: &str, units| TimedPart { what: what.into(), units, start_ns: 0, end_ns: 1 };
        let plan = MetaPlan { procs: 2, ..small(Layout::Tree, false) };
        let fine = vec![vec![timed("mkdir", 3), timed("create", 250)]; 2];
        assert_eq!(check_counts(&fine, &plan), Ok(()));
        let lost = [fine[0].clone(), vec![timed("mkdir", 3), timed("create", 249)]];
        assert_eq!(check_counts(&lost, &plan).unwrap_err().to_string(), "create: 499 instead of 500");
    }

    #[test]
    fn the_chart_has_a_point_per_number_of_processes() {
        let plans = [1, 2].map(|procs| MetaPlan { procs, ..small(Layout::Single, false) });
        let mut collector = crate::report::Collector::new(&["x".into()]);
        let figures = plans.iter().map(|plan| Figure::new(among("create", plan.procs), Unit::PerSecond, 1.0));
        collector.add(0, figures.collect());
        let report = Report { title: "t".into(), notes: Vec::new(), rows: collector.rows() };
        assert_eq!(chart(&report, &plans).matches("<circle").count(), 2);
    }
}
