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
use crate::measure::{alternate, check_reps, in_range};
use crate::member_protocol::{MemberMessage, MemberTask};
use crate::output::{OutputArgs, show};
use crate::reach::NodeConnections;
use crate::report::{Figure, Report, Unit, percentiles};
use crate::scratch::{MEMORY_DIR, Scratch, check_room};
use crate::team::{self, Member};
use crate::timed_part::rates;
use crate::{BenchError, BenchResult, Host};

pub use bare::{perform, serve};
pub use copy::Outcome;
pub use file::perform_file;
pub use library::perform_remote;

/// Name of the bare copy in tables.
pub const BARE: &str = "bare TCP";
/// Name of a plain file in tables.
pub const FILE: &str = "tmpfs";
/// Name of the client library in tables.
pub const LIBRARY: &str = "library";
/// Percentiles of small requests that are shown.
const SHOWN: [&str; 2] = [" p50", " p99"];
/// Most connections.
const STREAMS_MAX: u64 = 64;
/// Largest request, in bytes.
const SIZE_MAX: u64 = 64 << 20;

/// Plan of a copy.
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

/// The part of a process that serves a file below this directory over bare TCP.
#[derive(Debug, Serialize)]
pub struct TcpServerTask(PathBuf);

impl MemberTask for TcpServerTask {
    const KIND: &'static str = "TcpServer";
}

/// A process of the bare copy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NetTask {
    /// Port of the server on the loopback.
    pub port: u16,
    /// Plan of the copy.
    pub plan: CopyPlan,
}

impl MemberTask for NetTask {
    const KIND: &'static str = "TcpClient";
}

/// A process with a plain file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FileTask {
    /// An empty directory.
    pub dir: PathBuf,
    /// Plan of the copy.
    pub plan: CopyPlan,
}

impl MemberTask for FileTask {
    const KIND: &'static str = "File";
}

/// A process with the client library.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RemoteTask {
    /// The formation.
    pub formation: String,
    /// Connections to its nodes.
    pub reach: NodeConnections,
    /// Plan of the copy.
    pub plan: CopyPlan,
}

impl MemberTask for RemoteTask {
    const KIND: &'static str = "Remote";
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
pub fn compare(host: &Host<'_>, formation: &str, args: &NetArgs) -> BenchResult<Report> {
    check(args)?;
    let rows = alternate(host, &[LIBRARY.to_owned(), BARE.to_owned()], args.reps, |index| {
        if index == 0 {
            library_once(host, formation, NodeConnections::Network, &args.plan)
        } else {
            bare_once(host, args)
        }
    })?;
    Ok(Report { title: title(args), notes: notes(), rows })
}

/// The library on a formation of this machine beside the same calls on a plain file.
pub fn compare_local(host: &Host<'_>, formation: &str, args: &NetArgs) -> BenchResult<Report> {
    check(args)?;
    let rows = alternate(host, &[LIBRARY.to_owned(), FILE.to_owned()], args.reps, |index| {
        if index == 0 {
            library_once(host, formation, NodeConnections::Best, &args.plan)
        } else {
            file_once(host, args)
        }
    })?;
    let title = title(args).replacen("TCP", "library on a node of its own machine", 1);
    Ok(Report { title, notes: notes(), rows })
}

fn file_once(host: &Host<'_>, args: &NetArgs) -> BenchResult<Vec<Figure>> {
    let scratch = Scratch::new(&args.dir)?;
    one(host, &FileTask { dir: scratch.path().to_owned(), plan: args.plan.clone() })
}

fn bare_once(host: &Host<'_>, args: &NetArgs) -> BenchResult<Vec<Figure>> {
    let scratch = Scratch::new(&args.dir)?;
    let mut server = Member::start(host, &TcpServerTask(scratch.path().to_owned()))?;
    let MemberMessage::Port(port) = server.hear(host)? else {
        return Err(BenchError::refused("the server of the bare copy", "did not name its port"));
    };
    one(host, &NetTask { port, plan: args.plan.clone() })
}

fn library_once(
    host: &Host<'_>,
    formation: &str,
    reach: NodeConnections,
    plan: &CopyPlan,
) -> BenchResult<Vec<Figure>> {
    one(host, &RemoteTask { formation: formation.to_owned(), reach, plan: plan.clone() })
}

fn one(host: &Host<'_>, task: &impl MemberTask) -> BenchResult<Vec<Figure>> {
    let outcomes: Vec<Outcome> = team::run(host, std::slice::from_ref(task))?;
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
    use crate::timed_part::TimedPart;

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
        let timed = vec![TimedPart {
            what: "write".into(),
            units: 4_000_000_000,
            start_ns: 0,
            end_ns: 2_000_000_000,
        }];
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
