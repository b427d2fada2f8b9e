//! Budgets of figures, and the check that they are kept.

use std::fmt::Write;

use serde::Serialize;

use super::many::STRIDED;
use super::steps::{
    CLIENTS, IDLE, LIBRARY_LOCAL, LIBRARY_SMALL, META, MOUNT, MOUNT_LARGE, MOUNT_SMALL, REMOTE, REMOTE_SMALL,
    STARTUP, TURNS,
};
use crate::fuse::BARE_FUSE;
use crate::idle::{RESIDENT, WAKE_UPS};
use crate::meta::directory::{LAST_TO_FIRST, LISTING, MEMORY, RESTART};
use crate::net::{BARE, LIBRARY};
use crate::report::{Report, number, procs_name, spread};
use crate::startup::{nodes_name, times};
use crate::stats::{Summary, ratios};
use crate::{BenchError, report};

/// Bound of a budget.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    /// At least this part of the limit in the same run.
    PartOfLimit(f64),
    /// At most this many times the limit in the same run.
    TimesLimit(f64),
    /// At least this value.
    AtLeast(f64),
    /// At most this value.
    AtMost(f64),
}

/// One promise: table, row, target, bound, and the words for it.
struct Budget(&'static str, &'static str, &'static str, Bound, &'static str);

const BUDGETS: [Budget; 31] = [
    Budget(MOUNT_LARGE, "write", MOUNT, Bound::PartOfLimit(0.85), "mount, 1 MiB, write"),
    Budget(MOUNT_LARGE, "rewrite", MOUNT, Bound::PartOfLimit(0.85), "mount, 1 MiB, rewrite"),
    Budget(MOUNT_LARGE, "read", MOUNT, Bound::PartOfLimit(0.85), "mount, 1 MiB, read"),
    Budget(MOUNT_SMALL, "write", MOUNT, Bound::AtLeast(150_000.0), "mount, 4 KiB, write"),
    Budget(MOUNT_SMALL, "rewrite", MOUNT, Bound::AtLeast(150_000.0), "mount, 4 KiB, rewrite"),
    Budget(MOUNT_SMALL, "read", MOUNT, Bound::AtLeast(150_000.0), "mount, 4 KiB, read"),
    Budget(META, "create", MOUNT, Bound::AtLeast(60_000.0), "mount, creates"),
    Budget(META, "stat", MOUNT, Bound::AtLeast(80_000.0), "mount, stats, not cached"),
    Budget(META, "stat, cached", MOUNT, Bound::AtLeast(500_000.0), "mount, stats, cached"),
    Budget(
        DIRECTORY,
        LAST_TO_FIRST,
        MOUNT,
        Bound::AtLeast(0.8),
        "one huge directory, creates, last tenth to first",
    ),
    Budget(DIRECTORY, LISTING, MOUNT, Bound::AtMost(3000.0), "one huge directory, listing"),
    Budget(DIRECTORY, MEMORY, MOUNT, Bound::AtMost(400.0), "one huge directory, memory of daemons per file"),
    Budget(DIRECTORY, RESTART, MOUNT, Bound::AtMost(5000.0), "one huge directory, restart of its daemon"),
    Budget(LIBRARY_LOCAL, "write", LIBRARY, Bound::PartOfLimit(0.9), "local data, library, 1 MiB, write"),
    Budget(LIBRARY_LOCAL, "rewrite", LIBRARY, Bound::PartOfLimit(0.9), "local data, library, 1 MiB, rewrite"),
    Budget(LIBRARY_LOCAL, "read", LIBRARY, Bound::PartOfLimit(0.9), "local data, library, 1 MiB, read"),
    Budget(LIBRARY_SMALL, "write", LIBRARY, Bound::PartOfLimit(0.5), "local data, library, 4 KiB, write"),
    Budget(LIBRARY_SMALL, "rewrite", LIBRARY, Bound::PartOfLimit(0.5), "local data, library, 4 KiB, rewrite"),
    Budget(LIBRARY_SMALL, "read", LIBRARY, Bound::PartOfLimit(0.5), "local data, library, 4 KiB, read"),
    Budget(TURNS, "write", STRIDED, Bound::PartOfLimit(0.8), "strided beside segmented, write"),
    Budget(TURNS, "rewrite", STRIDED, Bound::PartOfLimit(0.8), "strided beside segmented, rewrite"),
    Budget(TURNS, "read", STRIDED, Bound::PartOfLimit(0.8), "strided beside segmented, read"),
    Budget(REMOTE, "write", LIBRARY, Bound::PartOfLimit(0.85), "remote data, TCP, 1 MiB, write"),
    Budget(REMOTE, "rewrite", LIBRARY, Bound::PartOfLimit(0.85), "remote data, TCP, 1 MiB, rewrite"),
    Budget(REMOTE, "read", LIBRARY, Bound::PartOfLimit(0.85), "remote data, TCP, 1 MiB, read"),
    Budget(
        REMOTE_SMALL,
        "4 KiB write p50",
        LIBRARY,
        Bound::TimesLimit(1.5),
        "remote data, TCP, 4 KiB, write, latency",
    ),
    Budget(
        REMOTE_SMALL,
        "4 KiB read p50",
        LIBRARY,
        Bound::TimesLimit(1.5),
        "remote data, TCP, 4 KiB, read, latency",
    ),
    Budget(IDLE, RESIDENT, "daemon", Bound::AtMost(20.0), "idle daemon, resident"),
    Budget(IDLE, WAKE_UPS, "daemon", Bound::AtMost(0.0), "idle daemon, wake-ups"),
    Budget(STARTUP, "up", "32 nodes", Bound::AtMost(500.0), "32 daemons, until usable"),
    Budget(STARTUP, "down", "32 nodes", Bound::AtMost(300.0), "32 daemons, stop"),
];

/// One huge directory, on a formation of its own (`bench meta --big`).
const DIRECTORY: &str = "directory";
/// Suffix of the names of tables whose processes were all on one processor.
pub const ONE_CORE: &str = "-one-core";
/// Small requests over TCP: at most so many times the bare ping-pong.
const PINGS_MAX: f64 = 1.5;
/// Requests of the mount, what they are called, and at least which part of a bare FUSE file system's there are. Where
/// 60,000 files can be made and 80,000 looked at per second, such a file system makes 108,000 and shows 120,000.
const OF_BARE: [(&str, &str, &str, f64); 5] = [
    (MOUNT_SMALL, "write", "4 KiB, write", 0.8),
    (MOUNT_SMALL, "rewrite", "4 KiB, rewrite", 0.8),
    (MOUNT_SMALL, "read", "4 KiB, read", 0.8),
    (META, "create", "creates", 0.55),
    (META, "stat", "stats, not cached", 0.67),
];
/// More processes than the best number of them: at least this part of the best. The rest is noise.
const DECLINE: f64 = 0.85;

/// Verdict on a budget.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The budget.
    pub what: String,
    /// The bound.
    pub budget: String,
    /// The median that was found, with its spread.
    pub found: String,
    /// Median, least and greatest.
    pub summary: Option<Summary>,
    /// True if it is kept.
    pub kept: bool,
}

impl Verdict {
    /// A part that could not be measured.
    #[must_use]
    pub fn failed(what: &str, error: &BenchError) -> Verdict {
        let (what, budget) = (what.to_owned(), "can be measured".to_owned());
        Verdict { what, budget, found: error.to_string(), summary: None, kept: false }
    }

    fn of(what: &str, bound: Bound, unit: &str, summary: Summary) -> Verdict {
        let (kept, budget) = match bound {
            Bound::PartOfLimit(least) => {
                (summary.median >= least, format!("≥ {} of the limit", number(least)))
            }
            Bound::TimesLimit(most) => {
                (summary.median <= most, format!("≤ {} times the same bare request", number(most)))
            }
            Bound::AtLeast(least) => (summary.median >= least, format!("≥ {} {unit}", number(least))),
            Bound::AtMost(most) => (summary.median <= most, format!("≤ {} {unit}", number(most))),
        };
        Verdict { what: what.to_owned(), budget, found: spread(summary), summary: Some(summary), kept }
    }
}

/// The verdicts on one table.
#[must_use]
pub fn judge(table: &str, report: &Report) -> Vec<Verdict> {
    let (table, how) = table.strip_suffix(ONE_CORE).map_or((table, ""), |table| (table, ", one processor"));
    let about = BUDGETS.iter().filter(|budget| budget.0 == table);
    let mut verdicts: Vec<Verdict> = about.filter_map(|budget| verdict(budget, report)).collect();
    verdicts.iter_mut().for_each(|verdict| verdict.what.push_str(how));
    if table == REMOTE_SMALL {
        verdicts.extend(["write", "read"].into_iter().filter_map(|call| small_requests(report, call)));
    }
    let of_bare = OF_BARE.iter().filter(|bound| bound.0 == table);
    verdicts.extend(of_bare.filter_map(|(_, row, what, least)| beside_bare(report, row, what, *least, how)));
    if table == CLIENTS {
        verdicts.extend(["write", "read"].into_iter().filter_map(|call| no_decline(report, call)));
    }
    verdicts
}

fn verdict(budget: &Budget, report: &Report) -> Option<Verdict> {
    let Budget(table, row, target, bound, what) = *budget;
    // Each number of nodes has rows of the same names: by its name alone only the first of them is found.
    if table == STARTUP {
        let (up, down) = times(report, &nodes_name(32))?;
        let values = if row == "up" { up } else { down };
        return Some(Verdict::of(what, bound, "ms", Summary::of(values)?));
    }
    let row = report.row(row)?;
    let measured = row.of(target)?;
    let beside_limit = matches!(bound, Bound::PartOfLimit(_) | Bound::TimesLimit(_));
    let summary = if beside_limit { measured.ratio? } else { measured.summary };
    Some(Verdict::of(what, bound, row.unit.symbol(), summary))
}

/// The mount beside a bare FUSE file system in the same repetition.
fn beside_bare(report: &Report, row: &str, what: &str, least: f64, how: &str) -> Option<Verdict> {
    let row = report.row(row)?;
    let (mount, bare) = (row.of(MOUNT)?, row.of(BARE_FUSE)?);
    // In the same repetition, as elsewhere: what drifts on the machine is not taken for the mount's.
    let summary = Summary::of(&ratios(&mount.values, &bare.values))?;
    let what = format!("mount, {what}, beside bare FUSE{how}");
    Some(Verdict::of(&what, Bound::AtLeast(least), "of bare FUSE", summary))
}

/// The most processes beside the number of them that was fastest in the same repetition.
fn no_decline(report: &Report, call: &str) -> Option<Verdict> {
    let row = report.row(call)?;
    let most = row.of(&procs_name(12))?;
    // The best number may be another one in each repetition: a single slow one is not to decide.
    let best = |rep: usize| {
        row.targets.iter().filter_map(|target| target.values.get(rep)).copied().fold(0.0, f64::max)
    };
    let best: Vec<f64> = (0..most.values.len()).map(best).collect();
    let summary = Summary::of(&ratios(&most.values, &best))?;
    let what = format!("12 processes of a node, {call}, beside the best number of them");
    Some(Verdict::of(&what, Bound::AtLeast(DECLINE), "of the best", summary))
}

/// A small request of the library beside the bare ping-pong of the same repetition.
fn small_requests(report: &Report, call: &str) -> Option<Verdict> {
    let library = report.row(&format!("4 KiB {call} p50"))?.of(LIBRARY)?;
    let bare: &report::Measured = report.row("ping p50")?.of(BARE)?;
    let summary = Summary::of(&ratios(&library.values, &bare.values))?;
    let what = format!("remote data, TCP, 4 KiB, {call}, latency");
    Some(Verdict::of(&what, Bound::AtMost(PINGS_MAX), "times a bare ping-pong of 32 bytes", summary))
}

/// Returns the verdicts on the table of one huge directory, as text.
#[must_use]
pub fn directory_verdicts(report: &Report) -> String {
    text(&judge(DIRECTORY, report))
}

/// A table for a terminal.
#[must_use]
pub fn text(verdicts: &[Verdict]) -> String {
    let wide = |text: &str| text.chars().count();
    let width =
        |of: fn(&Verdict) -> &str| verdicts.iter().map(|verdict| wide(of(verdict))).max().unwrap_or(0);
    let (what, budget) = (width(|verdict| &verdict.what), width(|verdict| &verdict.budget));
    let mut text = String::from("budgets: median (least to greatest)\n");
    for verdict in verdicts {
        let kept = if verdict.kept { "ok   " } else { "below" };
        let _infallible =
            writeln!(text, "  {kept}  {:what$}  {:budget$}  {}", verdict.what, verdict.budget, verdict.found);
    }
    text
}

/// A table for a document.
#[must_use]
pub fn markdown(verdicts: &[Verdict]) -> String {
    let mut text = String::from("| what | budget | median (least to greatest) | |\n|---|---|---|---|\n");
    for Verdict { what, budget, found, kept, .. } in verdicts {
        let kept = if *kept { "ok" } else { "**below**" };
        let _infallible = writeln!(text, "| {what} | {budget} | {found} | {kept} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Collector, Figure, Unit};

    fn report(targets: [&str; 2], figures: &[(&str, Unit, [f64; 2])]) -> Report {
        let mut collector = Collector::new(&targets.map(str::to_owned));
        for (what, unit, values) in figures {
            for (index, value) in values.iter().enumerate() {
                collector.add(index, vec![Figure::new(*what, *unit, *value)]);
            }
        }
        Report { title: "t".into(), notes: Vec::new(), rows: collector.rows() }
    }

    fn kept(verdicts: &[Verdict]) -> Vec<(&str, bool)> {
        verdicts.iter().map(|verdict| (verdict.what.as_str(), verdict.kept)).collect()
    }

    #[test]
    fn parts_of_the_limit_are_judged_by_the_ratio() {
        let gb = Unit::GigabytesPerSecond;
        let report = report([MOUNT, "tmpfs"], &[("write", gb, [3.4, 4.0]), ("read", gb, [3.3, 4.0])]);
        let verdicts = judge(MOUNT_LARGE, &report);
        assert_eq!(kept(&verdicts), [("mount, 1 MiB, write", true), ("mount, 1 MiB, read", false)]);
        assert_eq!(
            (verdicts[0].budget.as_str(), verdicts[0].found.as_str()),
            ("≥ 0.85 of the limit", "0.85 (0.85 to 0.85)")
        );
    }

    #[test]
    fn values_are_judged_by_themselves() {
        let report = report(
            [MOUNT, "tmpfs"],
            &[("create", Unit::PerSecond, [59_999.0, 1.0]), ("stat", Unit::PerSecond, [80_000.0, 1.0])],
        );
        assert_eq!(
            kept(&judge(META, &report)),
            [("mount, creates", false), ("mount, stats, not cached", true)]
        );
        let one_core = judge("meta-one-core", &report);
        assert_eq!(
            one_core.first().map(|verdict| verdict.what.as_str()),
            Some("mount, creates, one processor")
        );
        assert_eq!(judge("other", &report), []);
    }

    #[test]
    fn small_requests_are_judged_by_the_bare_ping() {
        let us = Unit::Microseconds;
        let report = report(
            [LIBRARY, BARE],
            &[
                ("ping p50", us, [9.0, 8.0]),
                ("4 KiB read p50", us, [12.0, 9.0]),
                ("4 KiB write p50", us, [12.1, 9.0]),
            ],
        );
        let verdicts = judge(REMOTE_SMALL, &report);
        assert_eq!(
            kept(&verdicts),
            [
                // Beside the same request, then beside the ping-pong.
                ("remote data, TCP, 4 KiB, write, latency", true),
                ("remote data, TCP, 4 KiB, read, latency", true),
                ("remote data, TCP, 4 KiB, write, latency", false),
                ("remote data, TCP, 4 KiB, read, latency", true),
            ]
        );
    }

    #[test]
    fn small_requests_of_the_mount_are_judged_by_bare_fuse_too() {
        let figures =
            [("write", Unit::PerSecond, [90_000.0, 100_000.0]), ("read", Unit::PerSecond, [70.0, 100.0])];
        let verdicts = judge("mount-4k-one-core", &report([MOUNT, BARE_FUSE], &figures));
        let beside: Vec<(&str, bool)> = kept(&verdicts).into_iter().skip(2).collect();
        assert_eq!(
            beside,
            [
                ("mount, 4 KiB, write, beside bare FUSE, one processor", true),
                ("mount, 4 KiB, read, beside bare FUSE, one processor", false)
            ]
        );
        let figures = [("create", Unit::PerSecond, [56.0, 100.0]), ("stat", Unit::PerSecond, [66.0, 100.0])];
        let verdicts = judge(META, &report([MOUNT, BARE_FUSE], &figures));
        let beside: Vec<(&str, bool)> = kept(&verdicts).into_iter().skip(2).collect();
        assert_eq!(
            beside,
            [
                ("mount, creates, beside bare FUSE", true),
                ("mount, stats, not cached, beside bare FUSE", false)
            ]
        );
    }

    #[test]
    fn many_processes_are_judged_by_the_best_number_of_them() {
        let gb = Unit::GigabytesPerSecond;
        let (most, few) = (procs_name(12), procs_name(4));
        let figures = [("write", gb, [3.0, 3.1]), ("read", gb, [3.0, 4.0])];
        let verdicts = judge(CLIENTS, &report([most.as_str(), few.as_str()], &figures));
        assert_eq!(
            kept(&verdicts),
            [
                ("12 processes of a node, write, beside the best number of them", true),
                ("12 processes of a node, read, beside the best number of them", false)
            ]
        );
    }

    #[test]
    fn starts_are_judged_by_their_number_of_nodes() {
        let mut collector = Collector::new(&[nodes_name(32)]);
        let ms = |what: &str, value| Figure::new(what, Unit::Milliseconds, value);
        collector.add(0, vec![ms("up, until usable", 400.0), ms("down", 301.0)]);
        let report = Report { title: "t".into(), notes: Vec::new(), rows: collector.rows() };
        assert_eq!(
            kept(&judge(STARTUP, &report)),
            [("32 daemons, until usable", true), ("32 daemons, stop", false)]
        );
    }

    #[test]
    fn verdicts_are_shown_with_the_lost_ones() {
        let summary = Summary { min: 0.7, median: 0.8, max: 0.9 };
        let verdicts = [
            Verdict::of("a", Bound::PartOfLimit(0.85), "", summary),
            Verdict::of("bb", Bound::AtMost(1.0), "ms", summary),
        ];
        let text = text(&verdicts);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "  below  a   ≥ 0.85 of the limit  0.80 (0.70 to 0.90)",
                "  ok     bb  ≤ 1.00 ms            0.80 (0.70 to 0.90)"
            ]
        );
        assert!(
            markdown(&verdicts).contains("| a | ≥ 0.85 of the limit | 0.80 (0.70 to 0.90) | **below** |")
        );
    }
}
