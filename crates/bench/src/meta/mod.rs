//! Making, looking at, reading, listing and removing many files: the phases of mdtest, a barrier before each.

mod places;
mod work;

use std::path::{Path, PathBuf};

use bivouac_types::units::{format_size, parse_size};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::io::PROCS_MAX;
use crate::measure::{alternate, check_reps, in_range};
use crate::output::{OutputArgs, show};
use crate::report::{Figure, Report, Unit};
use crate::scratch::{Scratch, check_room};
use crate::task::{Task, Timed, rates};
use crate::{BenchResult, Host, team};

pub use work::perform;

/// Most files of a process.
const FILES_MAX: u64 = 10_000_000;
/// Most bytes of a file.
const BYTES_MAX: u64 = 16 << 20;
/// What a file costs at least in a file system in memory, in bytes.
const FILE_COST: u64 = 4096;

/// How files are spread over directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Layout {
    /// A directory for each hundred files
    Tree,
    /// All in one directory
    Single,
}

/// Make, look at, read, list and remove files in directories, side by side; the last one is the limit
#[derive(Args, Clone, Debug)]
pub struct MetaArgs {
    /// Directories to measure in turn
    #[arg(required = true, value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    /// Processes at work together
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub procs: u32,
    /// Files of one process
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    pub files: u32,
    /// How files are spread over directories
    #[arg(long, value_enum, default_value_t = Layout::Single)]
    pub layout: Layout,
    /// Directories of its own for each process (this is the default)
    #[arg(long, conflicts_with = "shared")]
    pub own: bool,
    /// The same directories for all processes
    #[arg(long)]
    pub shared: bool,
    /// Bytes that are written to each file and read again
    #[arg(long, default_value = "3901", value_parser = parse_size, value_name = "SIZE")]
    pub bytes: u64,
    /// Repetitions
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub reps: u32,
    /// Where the figures go
    #[command(flatten)]
    pub output: OutputArgs,
}

/// What all processes of a repetition know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetaPlan {
    /// Number of processes.
    pub procs: u32,
    /// Files of a process.
    pub files: u32,
    /// How they are spread.
    pub layout: Layout,
    /// Whether all processes use the same directories.
    pub shared: bool,
    /// Bytes of a file.
    pub bytes: u64,
}

/// One process's part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MetaTask {
    /// An empty directory.
    pub dir: PathBuf,
    /// Which process this is.
    pub rank: u32,
    /// What all do.
    pub plan: MetaPlan,
}

/// Runs `bench meta`.
///
/// # Errors
/// Arguments that make no sense, too little room, what the file systems refuse.
pub fn run(host: &Host<'_>, args: &MetaArgs) -> BenchResult<()> {
    let plan = plan(args)?;
    let targets: Vec<_> = args.dirs.iter().map(|dir| (dir.display().to_string(), dir.clone())).collect();
    show(host, &compare(host, &targets, &plan, args.reps)?, &args.output)
}

/// Measures named directories side by side.
///
/// # Errors
/// As [`run`].
pub fn compare(
    host: &Host<'_>,
    targets: &[(String, PathBuf)],
    plan: &MetaPlan,
    reps: u32,
) -> BenchResult<Report> {
    check_reps(reps)?;
    let files = u64::from(plan.files) * u64::from(plan.procs);
    for (_, dir) in targets {
        check_room(dir, files.saturating_mul(FILE_COST + plan.bytes))?;
    }
    let names: Vec<String> = targets.iter().map(|(name, _)| name.clone()).collect();
    let rows = alternate(host, &names, reps, |index| match targets.get(index) {
        Some((_, dir)) => once(host, dir, plan),
        None => Ok(Vec::new()),
    })?;
    Ok(Report { title: title(plan, reps), notes: notes(), rows })
}

fn once(host: &Host<'_>, dir: &Path, plan: &MetaPlan) -> BenchResult<Vec<Figure>> {
    let scratch = Scratch::new(dir)?;
    let task = |rank| Task::Meta(MetaTask { dir: scratch.path().to_owned(), rank, plan: plan.clone() });
    let outcomes: Vec<Vec<Timed>> = team::run(host, &(0..plan.procs).map(task).collect::<Vec<_>>())?;
    let figure = |(what, rate)| Figure::new(what, Unit::PerSecond, rate);
    Ok(rates(&outcomes).into_iter().map(figure).collect())
}

fn title(plan: &MetaPlan, reps: u32) -> String {
    let layout = if plan.layout == Layout::Tree { "in a tree" } else { "in a single directory" };
    let sharing = if plan.shared { "of all processes" } else { "of each process" };
    format!(
        "{} process(es) with {} files of {} each, {layout} {sharing}, {reps} repetitions",
        plan.procs,
        plan.files,
        format_size(plan.bytes),
    )
}

fn notes() -> Vec<String> {
    vec![
        "stat asks the file system for attributes in spite of caches; stat, cached may use them; \
         readdir counts entries"
            .to_owned(),
    ]
}

fn plan(args: &MetaArgs) -> BenchResult<MetaPlan> {
    let MetaArgs { procs, files, layout, shared, bytes, .. } = *args;
    in_range("--procs", u64::from(procs), 1, PROCS_MAX)?;
    in_range("--files", u64::from(files), 1, FILES_MAX)?;
    in_range("--bytes", bytes, 0, BYTES_MAX)?;
    Ok(MetaPlan { procs, files, layout, shared, bytes })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A plan of one process with 250 files.
    pub(crate) fn small(layout: Layout, shared: bool) -> MetaPlan {
        MetaPlan { procs: 1, files: 250, layout, shared, bytes: 3901 }
    }

    fn args(text: &[&str]) -> Result<MetaArgs, clap::Error> {
        use clap::FromArgMatches;
        let command = MetaArgs::augment_args(clap::Command::new("meta").no_binary_name(true));
        MetaArgs::from_arg_matches(&command.try_get_matches_from(text)?)
    }

    #[test]
    fn arguments_make_a_plan() {
        let of = |text: &[&str]| plan(&args(text).unwrap());
        let defaults = of(&["/d"]).unwrap();
        assert_eq!((defaults.files, defaults.bytes, defaults.shared), (10_000, 3901, false));
        assert!(of(&["/d", "--shared"]).unwrap().shared);
        assert!(args(&["/d", "--shared", "--own"]).is_err());
        assert!(of(&["/d", "--files", "0"]).unwrap_err().to_string().starts_with("--files 0: "));
        assert!(of(&["/d", "--bytes", "1g"]).unwrap_err().to_string().starts_with("--bytes 1073741824: "));
    }

    #[test]
    fn the_title_says_what_was_done() {
        assert_eq!(
            title(&small(Layout::Tree, true), 2),
            "1 process(es) with 250 files of 3.8 KiB each, in a tree of all processes, 2 repetitions"
        );
    }
}
