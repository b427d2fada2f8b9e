//! How long formations take to start until they are usable, and to stop, by their number of nodes.

use clap::Args;

use crate::chart::{Curve, curves};
use crate::formation::Formation;
use crate::measure::{alternate, check_reps, in_range};
use crate::output::{OutputArgs, write_chart, write_json};
use crate::report::{Figure, Report, Unit};
use crate::{BenchError, BenchResult, Host};

/// Most nodes of a formation on one machine.
const NODES_MAX: u64 = 256;
const UP: &str = "up, until usable";
const DOWN: &str = "down";

/// Start and stop formations on this machine
#[derive(Args, Clone, Debug)]
pub struct StartupArgs {
    /// Numbers of nodes
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32], value_name = "N")]
    pub nodes: Vec<u16>,
    /// Do not mount them
    #[arg(long)]
    pub no_mount: bool,
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
///
/// # Errors
/// As [`run`].
pub fn measure(host: &Host<'_>, args: &StartupArgs) -> BenchResult<Report> {
    check_reps(args.reps)?;
    if args.nodes.is_empty() {
        return Err(BenchError::usage("--nodes", "names nothing", "write for instance --nodes 1,4,16"));
    }
    args.nodes.iter().try_for_each(|nodes| in_range("--nodes", u64::from(*nodes), 1, NODES_MAX))?;
    let mut rows = Vec::new();
    for nodes in &args.nodes {
        let name = nodes_name(*nodes);
        host.say(&name);
        rows.extend(alternate(host, &[name], args.reps, |_| once(host, *nodes, args.no_mount))?);
    }
    let mounts = if args.no_mount { "without" } else { "with" };
    let title = format!("formations on this machine, {mounts} a mount, {} repetitions", args.reps);
    let notes = vec!["as the caller of the command sees it; the steps are what `up` says".to_owned()];
    Ok(Report { title, notes, rows })
}

/// What a number of nodes is called in tables.
#[must_use]
pub fn nodes_name(nodes: u16) -> String {
    format!("{nodes} node{}", if nodes == 1 { "" } else { "s" })
}

/// What was measured for a number of nodes: the time until usable and the time to stop.
#[must_use]
pub fn times<'r>(report: &'r Report, nodes: &str) -> Option<(&'r [f64], &'r [f64])> {
    let of = |what: &str| {
        let rows = report.rows.iter().filter(|row| row.what == what);
        rows.filter_map(|row| row.of(nodes)).map(|measured| measured.values.as_slice()).next()
    };
    Some((of(UP)?, of(DOWN)?))
}

fn once(host: &Host<'_>, nodes: u16, no_mount: bool) -> BenchResult<Vec<Figure>> {
    let number = nodes.to_string();
    let mut options = vec!["--nodes", &number];
    if no_mount {
        options.push("--no-mount");
    }
    let formation = Formation::up(host, &options)?;
    let ms = |what: &str, ns: u64| Figure::new(what, Unit::Milliseconds, ns as f64 / 1e6);
    let mut figures = vec![ms(UP, formation.up_ns())];
    let steps = formation.steps().into_iter();
    figures.extend(steps.map(|(step, ms)| Figure::new(format!("  {step}"), Unit::Milliseconds, ms)));
    figures.push(ms(DOWN, formation.down(host)?));
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
        let args = StartupArgs { nodes: vec![0], no_mount: true, reps: 1, output: OutputArgs::default() };
        assert!(run(&host(), &args).unwrap_err().to_string().starts_with("--nodes 0: is out of range"));
        let none = StartupArgs { nodes: Vec::new(), ..args };
        assert!(run(&host(), &none).unwrap_err().to_string().starts_with("--nodes: names nothing"));
    }
}
