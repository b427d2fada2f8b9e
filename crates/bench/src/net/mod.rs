//! The network: a bare TCP copy into a file, and the same through the client library of a formation.

mod bare;
mod copy;
mod file;
mod library;

use std::path::{Path, PathBuf};

use bivouac_types::units::{format_size, parse_size};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::formation::Formation;
use crate::latency::percentiles;
use crate::measure::{alternate, check_reps, in_range};
use crate::output::{OutputArgs, show};
use crate::reach::Reach;
use crate::report::{Figure, Report, Unit};
use crate::scratch::{Scratch, check_room};
use crate::task::{Said, Task, rates};
use crate::team::{self, Member};
use crate::{BenchError, BenchResult, Host};

pub use bare::{perform, serve};
pub use copy::Outcome;
pub use file::perform_file;
pub use library::perform_remote;

/// What the bare copy is called in tables.
pub const BARE: &str = "bare TCP";
/// What a plain file is called in tables.
pub const FILE: &str = "tmpfs";
/// What the client library is called in tables.
pub const LIBRARY: &str = "library";
/// Percentiles of small requests that are shown.
const SHOWN: [&str; 2] = [" p50", " p99"];
/// Most connections.
const STREAMS_MAX: u64 = 64;
/// Largest request, in bytes.
const SIZE_MAX: u64 = 64 << 20;
/// Where the bare copy keeps its file, unless chosen otherwise.
pub const MEMORY_DIR: &str = "/dev/shm";

/// What is copied, and how.
#[derive(Args, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyPlan {
    /// Bytes of a request
    #[arg(long, default_value = "1MiB", value_parser = parse_size, value_name = "SIZE")]
    pub size: u64,
    /// Connections, each with one request under way
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub streams: u32,
    /// Bytes of each connection; a multiple of the request
    #[arg(long, default_value = "256MiB", value_parser = parse_size, value_name = "SIZE")]
    pub total: u64,
    /// Small requests whose latency is measured; 0 for none
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    pub calls: u32,
}

/// Measure a bare TCP copy over the loopback into a file in memory
#[derive(Args, Clone, Debug)]
pub struct NetArgs {
    /// What is copied
    #[command(flatten)]
    pub plan: CopyPlan,
    /// Directory of the file
    #[arg(long, default_value = MEMORY_DIR, value_name = "DIR")]
    pub dir: PathBuf,
    /// Repetitions
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub reps: u32,
    /// Where the figures go
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Measure the client library, over TCP beside a bare TCP copy unless told otherwise
#[derive(Args, Clone, Debug)]
pub struct RemoteArgs {
    /// A formation that runs; without it, one is started for the measurement
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Reach nodes of this machine as every program does, not over TCP, beside the same calls on a plain file
    #[arg(long)]
    pub local: bool,
    /// The same as for the bare copy
    #[command(flatten)]
    pub net: NetArgs,
}

/// A process of the bare copy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NetTask {
    /// Where the server listens on the loopback.
    pub port: u16,
    /// What to copy.
    pub plan: CopyPlan,
}

/// A process with a plain file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FileTask {
    /// An empty directory.
    pub dir: PathBuf,
    /// What to copy.
    pub plan: CopyPlan,
}

/// A process with the client library.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RemoteTask {
    /// The formation.
    pub formation: String,
    /// How to reach its nodes.
    pub reach: Reach,
    /// What to copy.
    pub plan: CopyPlan,
}

/// Runs `bench net`.
///
/// # Errors
/// Arguments that make no sense, too little room, what the system refuses.
pub fn run(host: &Host<'_>, args: &NetArgs) -> BenchResult<()> {
    check(args)?;
    let rows = alternate(host, &[BARE.to_owned()], args.reps, |_| bare_once(host, args))?;
    show(host, &Report { title: title(args), notes: notes(), rows }, &args.output)
}

/// A way to measure the library on a formation.
type Comparison = fn(&Host<'_>, &str, &NetArgs) -> BenchResult<Report>;

/// Runs `bench remote`.
///
/// # Errors
/// As [`run`]; a formation that cannot be reached or started.
pub fn run_remote(host: &Host<'_>, args: &RemoteArgs) -> BenchResult<()> {
    let (compare, nodes): (Comparison, _) = if args.local { (compare_local, "1") } else { (compare, "2") };
    let report = match &args.name {
        Some(name) => compare(host, name, &args.net)?,
        None => {
            let formation = Formation::up(host, &["--nodes", nodes, "--width", "1", "--no-mount"])?;
            let report = compare(host, formation.name(), &args.net)?;
            formation.down(host)?;
            report
        }
    };
    show(host, &report, &args.net.output)
}

/// The library on a formation beside the bare copy.
///
/// # Errors
/// As [`run_remote`].
pub fn compare(host: &Host<'_>, formation: &str, args: &NetArgs) -> BenchResult<Report> {
    check(args)?;
    let rows = alternate(host, &[LIBRARY.to_owned(), BARE.to_owned()], args.reps, |index| {
        if index == 0 {
            library_once(host, formation, Reach::Network, &args.plan)
        } else {
            bare_once(host, args)
        }
    })?;
    Ok(Report { title: title(args), notes: notes(), rows })
}

/// The library on a formation of this machine beside the same calls on a plain file.
///
/// # Errors
/// As [`run_remote`].
pub fn compare_local(host: &Host<'_>, formation: &str, args: &NetArgs) -> BenchResult<Report> {
    check(args)?;
    let rows = alternate(host, &[LIBRARY.to_owned(), FILE.to_owned()], args.reps, |index| {
        if index == 0 {
            library_once(host, formation, Reach::Best, &args.plan)
        } else {
            file_once(host, args)
        }
    })?;
    let title = title(args).replacen("TCP", "library on a node of its own machine", 1);
    Ok(Report { title, notes: notes(), rows })
}

fn file_once(host: &Host<'_>, args: &NetArgs) -> BenchResult<Vec<Figure>> {
    let scratch = Scratch::new(&args.dir)?;
    one(host, Task::File(FileTask { dir: scratch.path().to_owned(), plan: args.plan.clone() }))
}

fn bare_once(host: &Host<'_>, args: &NetArgs) -> BenchResult<Vec<Figure>> {
    let scratch = Scratch::new(&args.dir)?;
    let mut server = Member::start(host, &Task::TcpServer(scratch.path().to_owned()))?;
    let Said::Port(port) = server.hear(host)? else {
        return Err(BenchError::refused("the server of the bare copy", "did not name its port"));
    };
    one(host, Task::TcpClient(NetTask { port, plan: args.plan.clone() }))
}

fn library_once(host: &Host<'_>, formation: &str, reach: Reach, plan: &CopyPlan) -> BenchResult<Vec<Figure>> {
    one(host, Task::Remote(RemoteTask { formation: formation.to_owned(), reach, plan: plan.clone() }))
}

fn one(host: &Host<'_>, task: Task) -> BenchResult<Vec<Figure>> {
    let outcomes: Vec<Outcome> = team::run(host, &[task])?;
    Ok(outcomes.into_iter().flat_map(figures).collect())
}

fn figures(outcome: Outcome) -> Vec<Figure> {
    let rates = rates(&[outcome.timed]).into_iter();
    let copies = rates.map(|(what, rate)| Figure::new(what, Unit::GigabytesPerSecond, rate / 1e9));
    let small = outcome.latencies_ns.into_iter().flat_map(|(what, times)| percentiles(&what, times));
    let small = small.filter(|figure| SHOWN.iter().any(|shown| figure.what.ends_with(shown)));
    copies.chain(small).collect()
}

fn title(args: &NetArgs) -> String {
    let CopyPlan { size, streams, total, .. } = args.plan;
    let (size, total) = (format_size(size), format_size(total));
    format!("TCP: {streams} connection(s), {total} in requests of {size} each, {} repetitions", args.reps)
}

fn notes() -> Vec<String> {
    vec!["ping is 32 bytes each way, and the attributes of a file for the library".to_owned()]
}

fn check(args: &NetArgs) -> BenchResult<()> {
    let CopyPlan { size, streams, total, calls } = args.plan;
    check_reps(args.reps)?;
    in_range("--size", size, 1, SIZE_MAX)?;
    in_range("--streams", u64::from(streams), 1, STREAMS_MAX)?;
    in_range("--calls", u64::from(calls), 0, 1_000_000)?;
    if total == 0 || !total.is_multiple_of(size) {
        let cause = format!("is not a multiple of --size {size}");
        return Err(BenchError::usage(format_args!("--total {total}"), cause, "write whole requests"));
    }
    let bytes = total.saturating_mul(u64::from(streams));
    check_room(Path::new(&args.dir), bytes)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::task::Timed;

    /// Two connections with four requests each.
    pub(crate) fn small() -> CopyPlan {
        CopyPlan { size: 8192, streams: 2, total: 32_768, calls: 20 }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let output = OutputArgs::default();
        let args = NetArgs { plan: small(), dir: dir.path().to_owned(), reps: 1, output };
        assert_eq!(check(&args), Ok(()));
        let with = |plan| NetArgs { plan, ..args.clone() };
        for (bad, says) in [
            (with(CopyPlan { size: 0, ..small() }), "--size 0: "),
            (with(CopyPlan { streams: 0, ..small() }), "--streams 0: "),
            (with(CopyPlan { total: 9000, ..small() }), "--total 9000: is not a multiple of --size 8192"),
            (NetArgs { reps: 0, ..args.clone() }, "--reps 0: "),
        ] {
            assert!(check(&bad).unwrap_err().to_string().starts_with(says));
        }
        let huge = with(CopyPlan { size: 1 << 20, total: 1 << 60, ..small() });
        assert!(check(&huge).unwrap_err().to_string().contains("needs "));
    }

    #[test]
    fn an_outcome_becomes_figures() {
        let timed =
            vec![Timed { what: "write".into(), units: 4_000_000_000, start_ns: 0, end_ns: 2_000_000_000 }];
        let latencies_ns = vec![("ping".to_owned(), vec![7000; 10])];
        let found = figures(Outcome { timed, latencies_ns });
        let expected = [
            Figure::new("write", Unit::GigabytesPerSecond, 2.0),
            Figure::new("ping p50", Unit::Microseconds, 7.0),
            Figure::new("ping p99", Unit::Microseconds, 7.0),
        ];
        assert_eq!(found, expected);
    }
}
