//! Checkpoints in the manner of FLASH-IO, written to slow site storage and to a formation in front of it.

mod places;
mod plan;
mod work;

use std::path::PathBuf;

use bivouac_types::limits::STRIPE_MIN;
use bivouac_types::units::{format_size, parse_size};
use clap::Args;

use crate::chart::{Curve, curves};
use crate::measure::{alternate, check_reps, in_range};
use crate::output::{OutputArgs, write_chart, write_json};
use crate::report::{Figure, Report, Row, Unit};
use crate::scratch::check_room;
use crate::startup::nodes_name;
use crate::timed_part::TimedPart;
use crate::{BenchError, BenchResult, Host, clock, stats, team};
use places::{Dirs, FlashDirs};
use plan::{FlashPlan, Kind};

pub use work::{FlashTask, perform};

const PROCS_MAX: u64 = 32;
const NODES_MAX: u64 = 32;
const STRIPE_MAX: u64 = 2 << 20;
const EDGES: [u32; 2] = [8, 16];
const DELAY_MS_MAX: u64 = 1000;
/// The limit's name in tables.
const DIRECT: &str = "direct";
/// Name of the rate until the last process has closed the file.
const SEEN: &str = "application";
/// Name of the rate until the source has all of it.
const THERE: &str = "source";
const ASKED: &str = "requests";

/// Write checkpoints to a slow source, directly (the limit) and through a formation in front of it
///
/// In the manner of FLASH-IO: each process has 80 blocks of cells; all write 24 variables in double precision to one
/// checkpoint, then 4 variables in single precision to two plot files, block by block. Every byte is compared at the
/// source afterwards.
#[derive(Args, Clone, Debug)]
pub struct FlashArgs {
    /// Processes at work together; several numbers make a table of each
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32], value_name = "N")]
    pub procs: Vec<u32>,
    /// Nodes of the formation; processes are spread over their mounts
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub nodes: u16,
    /// Stripe size of the partition
    #[arg(long, default_value = "1MiB", value_parser = parse_size, value_name = "SIZE")]
    pub stripe: u64,
    /// Cells along an edge of a block: 8 or 16
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub block: u32,
    /// Write policy of the partition
    #[arg(long, default_value = "on-flush", value_name = "POLICY")]
    pub write: String,
    /// What readers of that partition may expect of writers: coherent or session
    #[arg(long, default_value = "coherent", value_name = "CONTRACT")]
    pub contract: String,
    /// Measure a directory that is slow by itself, for instance of the site's file system, instead of a slow one made for it
    #[arg(long, value_name = "DIR", conflicts_with_all = ["delay_ms", "rate", "pay_for_reads"])]
    pub source: Option<PathBuf>,
    /// What each request to the slow source takes at least, in milliseconds
    #[arg(long = "delay", default_value_t = 5, value_name = "MS")]
    pub delay_ms: u32,
    /// Bytes per second of the slow source, of all together; 0 is no limit
    #[arg(long, default_value = "50MB", value_parser = parse_size, value_name = "SIZE")]
    pub rate: u64,
    /// Have reading from the slow source cost what writing does, too, instead of being answered from the page cache
    #[arg(long)]
    pub pay_for_reads: bool,
    /// Repetitions
    #[arg(long, default_value_t = 3, value_name = "N")]
    pub reps: u32,
    /// Where the figures go
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Files that are written one after the other, and what they are called together.
const STEPS: [(&str, &[Kind]); 2] =
    [("checkpoint", &[Kind::Checkpoint]), ("plots", &[Kind::Centred, Kind::Corner])];

/// Runs `bench flash`.
///
/// # Errors
/// Arguments that make no sense, too little room, what the source and the commands refuse, a byte that did not arrive.
pub fn run(host: &Host<'_>, args: &FlashArgs) -> BenchResult<()> {
    let plans = plans(args)?;
    let places = FlashDirs::make(host, args)?;
    let report = measure(host, args, &plans, &places);
    // Also behind a failure, which is then what is told.
    let ended = places.end(host);
    let report = report?;
    ended?;
    host.print(&report.text())?;
    if let Some(path) = &args.output.json {
        write_json(path, &report)?;
    }
    args.output.svg.as_ref().map_or(Ok(()), |path| write_chart(path, &chart(&report, &plans)))
}

fn plans(args: &FlashArgs) -> BenchResult<Vec<FlashPlan>> {
    check_reps(args.reps)?;
    if args.procs.is_empty() {
        return Err(BenchError::usage("--procs", "names nothing", "write for instance --procs 1,8,32"));
    }
    args.procs.iter().try_for_each(|procs| in_range("--procs", u64::from(*procs), 1, PROCS_MAX))?;
    in_range("--nodes", u64::from(args.nodes), 1, NODES_MAX)?;
    in_range("--stripe", args.stripe, u64::from(STRIPE_MIN), STRIPE_MAX)?;
    in_range("--delay", u64::from(args.delay_ms), 0, DELAY_MS_MAX)?;
    if !EDGES.contains(&args.block) {
        let object = format_args!("--block {}", args.block);
        return Err(BenchError::usage(object, "is no size of blocks", "write --block 8 or --block 16"));
    }
    Ok(args.procs.iter().map(|procs| FlashPlan { procs: *procs, edge: args.block }).collect())
}

fn measure(
    host: &Host<'_>,
    args: &FlashArgs,
    plans: &[FlashPlan],
    places: &FlashDirs<'_, '_>,
) -> BenchResult<Report> {
    let targets = [nodes_name(args.nodes), DIRECT.to_owned()];
    let (mut rows, mut seed) = (Vec::new(), 0);
    for plan in plans {
        host.say(&format!("{} processes", plan.procs));
        let found = alternate(host, &targets, args.reps, |index| {
            // A new seed each time: content of an earlier repetition must not pass for this one's.
            seed += 1;
            once(host, places, *plan, index == 0, seed)
        })?;
        rows.extend(found.into_iter().map(|row| Row { what: among(&row.what, plan.procs), ..row }));
    }
    Ok(Report { title: title(args), notes: notes(args), rows })
}

/// One repetition on one target, of which nothing stays.
fn once(
    host: &Host<'_>,
    places: &FlashDirs<'_, '_>,
    plan: FlashPlan,
    in_front: bool,
    seed: u64,
) -> BenchResult<Vec<Figure>> {
    let dirs = if in_front { places.in_front()? } else { places.direct()? };
    // The source's copy and, with a formation, another one.
    let bytes: u64 = STEPS.iter().flat_map(|(_, kinds)| *kinds).map(|kind| plan.file_len(*kind)).sum();
    check_room(dirs.shown.first().map_or(&dirs.at_source, |dir| dir), bytes * 2)?;
    let mut figures = Vec::new();
    for (name, kinds) in STEPS {
        let before = places.counts()?;
        let outcomes = write(host, &dirs, plan, kinds, seed)?;
        if in_front {
            places.flush()?;
        }
        let there_ns = if in_front { clock::now_ns() } else { 0 };
        // Before the comparison, which asks the source as well.
        let asked = match (places.counts()?, before) {
            (Some(after), Some(before)) => Some(after.since(&before)),
            _ => None,
        };
        kinds.iter().try_for_each(|kind| work::verify(&dirs.at_source, plan, *kind, seed))?;
        figures.extend(speeds(name, &outcomes, there_ns));
        if let Some(asked) = asked {
            log::info!("{name}: {asked:?}");
            figures.push(Figure::new(format!("{name}, {ASKED}"), Unit::Requests, asked.total() as f64));
        }
    }
    Ok(figures)
}

fn write(
    host: &Host<'_>,
    dirs: &Dirs,
    plan: FlashPlan,
    kinds: &[Kind],
    seed: u64,
) -> BenchResult<Vec<Vec<TimedPart>>> {
    let task = |rank: u32| {
        let dir = dirs.shown.get(rank as usize % dirs.shown.len().max(1)).cloned().unwrap_or_default();
        FlashTask { dir, rank, plan, kinds: kinds.to_vec(), seed }
    };
    team::run(host, &(0..plan.procs).map(task).collect::<Vec<_>>())
}

/// Bytes per second as the application sees it: from the first start to the last close, file by file; and until the
/// source has all of it.
fn speeds(name: &str, outcomes: &[Vec<TimedPart>], there_ns: u64) -> [Figure; 2] {
    let all = || outcomes.iter().flatten();
    let bytes = all().map(|timed| timed.units).sum();
    let span = |file: &TimedPart| {
        let of_file = || all().filter(|timed| timed.what == file.what);
        let (start, end) =
            (of_file().map(|timed| timed.start_ns).min(), of_file().map(|timed| timed.end_ns).max());
        end.unwrap_or(0).saturating_sub(start.unwrap_or(0))
    };
    // File by file: between two of them processes wait for each other by the measurement's own barriers.
    let seen_ns: u64 = outcomes.first().into_iter().flatten().map(span).sum();
    let start_ns = all().map(|timed| timed.start_ns).min().unwrap_or(0);
    let end_ns = all().map(|timed| timed.end_ns).max().unwrap_or(0).max(there_ns);
    let speed = |what: &str, ns| {
        let speed = stats::per_second(bytes, ns) / 1e6;
        Figure::new(format!("{name}, {what}"), Unit::MegabytesPerSecond, speed)
    };
    [speed(SEEN, seen_ns), speed(THERE, end_ns.saturating_sub(start_ns))]
}

/// Name of work by several processes.
fn among(what: &str, procs: u32) -> String {
    format!("{what}, {procs} proc")
}

fn title(args: &FlashArgs) -> String {
    let source = match &args.source {
        Some(dir) => dir.display().to_string(),
        None if args.rate == 0 => format!("a source of {} ms per request", args.delay_ms),
        None => format!("a source of {} MB/s and {} ms per request", args.rate as f64 / 1e6, args.delay_ms),
    };
    format!(
        "checkpoints of 24 variables, blocks of {b}x{b}x{b}, to {source}, and to a partition in front of it \
         (contract={}, write={}, stripe={}), {} repetitions",
        args.contract,
        args.write,
        format_size(args.stripe),
        args.reps,
        b = args.block,
    )
}

fn notes(args: &FlashArgs) -> Vec<String> {
    let mut notes = vec![
        "application: until the last process has closed the file; source: until `flush` has ended as well, after \
         which every byte was compared there; requests: of both, to the source; a speed of more than 1 of the limit is \
         faster than writing directly"
            .to_owned(),
    ];
    if args.source.is_none() {
        let reads = if args.pay_for_reads { "costs what writing does" } else { "costs nothing" };
        notes.push(format!("reading again at the source what was just written {reads}"));
    }
    notes
}

/// Chart of the speed-up over writing directly, by number of processes.
fn chart(report: &Report, plans: &[FlashPlan]) -> String {
    let curve = |what: String| {
        let ratio = |procs| Some(report.row(&among(&what, procs))?.targets.first()?.ratio?.median);
        let point = |plan: &FlashPlan| Some((f64::from(plan.procs), ratio(plan.procs)?));
        Curve { points: plans.iter().filter_map(point).collect(), name: what }
    };
    let all: Vec<Curve> = (STEPS.iter())
        .flat_map(|(name, _)| [SEEN, THERE].map(|what| format!("{name}, {what}")))
        .map(curve)
        .collect();
    curves(&report.title, "processes", "times as fast as directly", &all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Collector;

    fn args(text: &[&str]) -> Result<FlashArgs, clap::Error> {
        use clap::FromArgMatches;
        let command = FlashArgs::augment_args(clap::Command::new("flash").no_binary_name(true));
        FlashArgs::from_arg_matches(&command.try_get_matches_from(text)?)
    }

    fn refusal(text: &[&str]) -> String {
        plans(&args(text).unwrap()).unwrap_err().to_string()
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(refusal(&["--procs", "0"]).starts_with("--procs 0: is out of range"));
        assert!(refusal(&["--procs", "8,33"]).starts_with("--procs 33: is out of range"));
        assert!(refusal(&["--nodes", "33"]).starts_with("--nodes 33: "));
        assert!(refusal(&["--stripe", "4m"]).starts_with("--stripe 4194304: "));
        assert!(refusal(&["--block", "9"]).ends_with("write --block 8 or --block 16"));
        assert!(refusal(&["--delay", "1001"]).starts_with("--delay 1001: "));
        assert!(args(&["--source", "/d", "--rate", "1m"]).is_err(), "it is as fast as it is");
        assert_eq!(plans(&args(&[]).unwrap()).unwrap().len(), 3);
    }

    #[test]
    fn files_count_one_by_one_and_the_flush_with_all() {
        let timed = |what: &str, start: u64, end: u64| TimedPart {
            what: what.into(),
            units: 1_000_000,
            start_ns: start * 1_000_000,
            end_ns: end * 1_000_000,
        };
        let outcomes = [
            vec![timed("a", 1_000, 1_100), timed("b", 1_150, 1_200)],
            vec![timed("a", 1_010, 1_120), timed("b", 1_140, 1_220)],
        ];
        // 4 MB: in 120 ms and 80 ms; from the first start on 220 ms directly, and 1 s with a flush.
        let values = |there_ns| speeds("x", &outcomes, there_ns).map(|figure| figure.value.round());
        assert_eq!(values(0), [20.0, 18.0]);
        assert_eq!(values(2_000_000_000), [20.0, 4.0]);
        assert_eq!(speeds("x", &outcomes, 0)[1].what, "x, source");
    }

    #[test]
    fn the_chart_has_ratios_over_the_number_of_processes() {
        let args = args(&["--procs", "1,8"]).unwrap();
        let plans = plans(&args).unwrap();
        let mut collector = Collector::new(&["4 nodes".into(), DIRECT.into()]);
        for plan in &plans {
            for (index, value) in [(0, 300.0), (1, 50.0)] {
                let what = among(&format!("checkpoint, {SEEN}"), plan.procs);
                collector.add(index, vec![Figure::new(what, Unit::MegabytesPerSecond, value)]);
            }
        }
        let report = Report { title: title(&args), notes: notes(&args), rows: collector.rows() };
        let svg = chart(&report, &plans);
        assert_eq!((svg.matches("<circle").count(), svg.matches("<polyline").count()), (2, 4));
        assert!(svg.contains("50 MB/s and 5 ms per request") && svg.contains(">6.00<"), "{svg}");
    }
}
