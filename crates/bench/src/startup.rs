//! Times of formations until they are usable, and until they have stopped, by their number of nodes.

use std::path::Path;

use clap::Args;

use crate::chart::{Curve, curves};
use crate::formation::Formation;
use crate::measure::{alternate, check_reps, in_range};
use crate::output::{OutputArgs, write_chart, write_json};
use crate::report::{Figure, Report, Unit};
use crate::scratch::Scratch;
use crate::{BenchError, BenchResult, Host};

/// Most nodes of a formation on one machine, each with a process of its own, and in one process.
const NODES_MAX: u64 = 256;
const NODES_IN_PROCESS_MAX: u64 = 1024;
/// Longest delay of a launcher, in milliseconds: `up` gives a formation 60 s to start.
const DELAY_MS_MAX: u64 = 30_000;
const UP: &str = "up, until usable";
/// Of hosts that a launcher has to reach first.
const BEYOND: &str = "  beyond the launcher's delay";
const DOWN: &str = "down";
/// Directory of directories that play hosts: in memory, as a user's runtime directory is.
const HOSTS_DIR: &str = "/dev/shm";

/// Start and stop formations on this machine
#[derive(Args, Clone, Debug)]
pub struct StartupArgs {
    /// Numbers of nodes
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32], value_name = "N")]
    pub nodes: Vec<u16>,
    /// Do not mount them
    #[arg(long)]
    pub no_mount: bool,
    /// Have the nodes of a formation share one process
    #[arg(long, conflicts_with = "host_delay_ms")]
    pub in_process: bool,
    /// Make each node a host of its own, in a directory, which a launcher takes so long to reach; not mounted
    #[arg(long, value_name = "MS", conflicts_with = "no_mount")]
    pub host_delay_ms: Option<u32>,
    /// Repetitions
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub reps: u32,
    /// Where the figures go
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Runs `bench startup`.
///
/// # Errors
/// Arguments that make no sense; what `up` and `down` say.
pub fn run(host: &Host<'_>, args: &StartupArgs) -> BenchResult<()> {
    let report = measure(host, args)?;
    host.print(&report.text())?;
    if let Some(path) = &args.output.json {
        write_json(path, &report)?;
    }
    args.output.svg.as_ref().map_or(Ok(()), |path| write_chart(path, &chart(&report)))
}

/// Starts and stops.
pub fn measure(host: &Host<'_>, args: &StartupArgs) -> BenchResult<Report> {
    check_reps(args.reps)?;
    if args.nodes.is_empty() {
        return Err(BenchError::usage("--nodes", "names nothing", "write for instance --nodes 1,4,16"));
    }
    in_range("--host-delay-ms", u64::from(args.host_delay_ms.unwrap_or(0)), 0, DELAY_MS_MAX)?;
    let most = if args.in_process { NODES_IN_PROCESS_MAX } else { NODES_MAX };
    args.nodes.iter().try_for_each(|nodes| in_range("--nodes", u64::from(*nodes), 1, most))?;
    let mut rows = Vec::new();
    for nodes in &args.nodes {
        let name = nodes_name(*nodes);
        host.say(&name);
        rows.extend(alternate(host, &[name], args.reps, |_| once(host, *nodes, args))?);
    }
    let title = title(args);
    let notes = vec!["as the caller of the command sees it; the steps are what `up` says".to_owned()];
    Ok(Report { title, notes, rows })
}

/// Name of a number of nodes in tables.
#[must_use]
pub fn nodes_name(nodes: u16) -> String {
    format!("{nodes} node{}", if nodes == 1 { "" } else { "s" })
}

/// Times of a number of nodes: until usable, and until stopped.
#[must_use]
pub fn times<'r>(report: &'r Report, nodes: &str) -> Option<(&'r [f64], &'r [f64])> {
    let of = |what: &str| {
        let rows = report.rows.iter().filter(|row| row.what == what);
        rows.filter_map(|row| row.of(nodes)).map(|measured| measured.values.as_slice()).next()
    };
    Some((of(UP)?, of(DOWN)?))
}

fn title(args: &StartupArgs) -> String {
    let what = match args.host_delay_ms {
        Some(ms) => format!("formations of hosts that take {ms} ms to reach"),
        None if args.no_mount => "formations on this machine, without a mount".into(),
        None => "formations on this machine, with a mount".into(),
    };
    let shared = if args.in_process { ", all nodes in one process" } else { "" };
    format!("{what}{shared}, {} repetitions", args.reps)
}

fn once(host: &Host<'_>, nodes: u16, args: &StartupArgs) -> BenchResult<Vec<Figure>> {
    if let Some(delay_ms) = args.host_delay_ms {
        return once_on_hosts(host, nodes, delay_ms);
    }
    let number = nodes.to_string();
    let mut options = vec!["--nodes", &number];
    if args.no_mount {
        options.push("--no-mount");
    }
    if args.in_process {
        options.push("--in-process");
    }
    figures(host, Formation::up(host, &options)?, None)
}

/// Hosts are runtime directories; their names are short, since paths of sockets have to be.
fn once_on_hosts(host: &Host<'_>, nodes: u16, delay_ms: u32) -> BenchResult<Vec<Figure>> {
    let scratch = Scratch::new(Path::new(HOSTS_DIR))?;
    (1..=nodes).try_for_each(|number| scratch.subdir(&format!("h{number}")).map(drop))?;
    let hosts = format!("h[1-{nodes}]");
    let (seconds, rest) = (delay_ms / 1000, delay_ms % 1000);
    let place = scratch.path().display();
    // In the C locale, in which the point is no comma.
    let launch =
        format!("LC_ALL=C sleep {seconds}.{rest:03}; XDG_RUNTIME_DIR='{place}'/{{host}} exec {{args}}");
    let formation = Formation::up(host, &["--hosts", &hosts, "--launch", &launch, "--no-mount"])?;
    figures(host, formation, Some(delay_ms))
}

fn figures(host: &Host<'_>, formation: Formation<'_, '_>, delay_ms: Option<u32>) -> BenchResult<Vec<Figure>> {
    let ms = |what: &str, value: f64| Figure::new(what, Unit::Milliseconds, value);
    let up = formation.up_ns() as f64 / 1e6;
    let mut figures = vec![ms(UP, up)];
    figures.extend(delay_ms.map(|delay| ms(BEYOND, up - f64::from(delay))));
    let steps = formation.steps().into_iter();
    figures.extend(steps.map(|(step, took)| ms(&format!("  {step}"), took)));
    figures.push(ms(DOWN, formation.down(host)? as f64 / 1e6));
    Ok(figures)
}

/// Start and stop over the number of nodes.
#[must_use]
pub fn chart(report: &Report) -> String {
    let curve = |what: &str| {
        let rows = report.rows.iter().filter(|row| row.what == what);
        let point = |measured: &crate::Measured| {
            let nodes = measured.target.split(' ').next()?.parse().ok()?;
            Some((nodes, measured.summary.median))
        };
        Curve { name: what.to_owned(), points: rows.flat_map(|row| &row.targets).filter_map(point).collect() }
    };
    curves(&report.title, "nodes", "ms", &[curve(UP), curve(DOWN)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Collector;
    use crate::tests::host;

    fn report() -> Report {
        let mut rows = Vec::new();
        for (nodes, up) in [(1, 10.0), (4, 40.0)] {
            let mut collector = Collector::new(&[nodes_name(nodes)]);
            let ms = |what: &str, value| Figure::new(what, Unit::Milliseconds, value);
            collector.add(0, vec![ms(UP, up), ms("  daemons", up / 2.0), ms(DOWN, 5.0)]);
            rows.extend(collector.rows());
        }
        Report { title: "t".into(), notes: Vec::new(), rows }
    }

    #[test]
    fn times_are_found_by_the_number_of_nodes() {
        let report = report();
        assert_eq!(times(&report, "4 nodes"), Some((&[40.0][..], &[5.0][..])));
        assert_eq!(times(&report, "1 node"), Some((&[10.0][..], &[5.0][..])));
        assert_eq!(times(&report, "2 nodes"), None);
    }

    #[test]
    fn the_curve_has_a_point_for_each_number() {
        let svg = chart(&report());
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (2, 4));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let args = StartupArgs {
            nodes: vec![0],
            no_mount: true,
            in_process: false,
            host_delay_ms: None,
            reps: 1,
            output: OutputArgs::default(),
        };
        assert!(run(&host(), &args).unwrap_err().to_string().starts_with("--nodes 0: is out of range"));
        let slow = StartupArgs { nodes: vec![1], host_delay_ms: Some(90_000), ..args.clone() };
        assert!(run(&host(), &slow).unwrap_err().to_string().starts_with("--host-delay-ms 90000: is out"));
        let none = StartupArgs { nodes: Vec::new(), ..args };
        assert!(run(&host(), &none).unwrap_err().to_string().starts_with("--nodes: names nothing"));
    }
}
