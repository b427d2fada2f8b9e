//! Figures of several targets side by side, and how they are shown.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::stats::{Summary, percentile, ratios};

/// The percentiles that are shown of times, in thousandths.
const PERCENTILES: [(&str, usize); 5] =
    [("p50", 500), ("p90", 900), ("p99", 990), ("p99.9", 999), ("max", 1000)];

/// Unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// 10^9 bytes per second.
    #[serde(rename = "GB/s")]
    GigabytesPerSecond,
    /// 10^6 bytes per second.
    #[serde(rename = "MB/s")]
    MegabytesPerSecond,
    /// Operations per second.
    #[serde(rename = "1/s")]
    PerSecond,
    /// Microseconds.
    #[serde(rename = "us")]
    Microseconds,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Milliseconds,
    /// 10^6 bytes.
    #[serde(rename = "MB")]
    Megabytes,
    /// Bytes.
    #[serde(rename = "B")]
    Bytes,
    /// One figure beside another.
    #[serde(rename = "times")]
    Times,
    /// Requests.
    #[serde(rename = "requests")]
    Requests,
    /// Events per second.
    #[serde(rename = "events/s")]
    EventsPerSecond,
}

impl Unit {
    /// Notation.
    #[must_use]
    pub fn symbol(self) -> &'static str {
        match self {
            Unit::GigabytesPerSecond => "GB/s",
            Unit::MegabytesPerSecond => "MB/s",
            Unit::PerSecond => "1/s",
            Unit::Microseconds => "us",
            Unit::Milliseconds => "ms",
            Unit::Megabytes => "MB",
            Unit::Bytes => "B",
            Unit::Times => "times",
            Unit::Requests => "requests",
            Unit::EventsPerSecond => "events/s",
        }
    }
}

/// One figure of one repetition.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The step.
    pub what: String,
    /// Unit of the value.
    pub unit: Unit,
    /// The value.
    pub value: f64,
}

impl Figure {
    /// A figure.
    #[must_use]
    pub fn new(what: impl Into<String>, unit: Unit, value: f64) -> Figure {
        Figure { what: what.into(), unit, value }
    }
}

/// The repetitions on one target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The directory or way that was measured.
    pub target: String,
    /// The value of each repetition.
    pub values: Vec<f64>,
    /// Their summary.
    pub summary: Summary,
    /// The values beside those of the limit, repetition by repetition; not for the limit itself.
    pub ratio: Option<Summary>,
}

/// One thing that was done, on all targets; the limit is the last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The step.
    pub what: String,
    /// Unit of the values.
    pub unit: Unit,
    /// The targets that it was done on.
    pub targets: Vec<Measured>,
}

/// One table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The measurement, in a sentence.
    pub title: String,
    /// Remarks that a reader must know.
    pub notes: Vec<String>,
    /// The figures.
    pub rows: Vec<Row>,
}

/// Collects figures as they come.
#[derive(Debug)]
pub struct Collector {
    targets: Vec<String>,
    /// Name, unit, and the values per target.
    found: Vec<(String, Unit, Vec<Vec<f64>>)>,
}

impl Collector {
    /// For these targets; the last is the limit of the others.
    #[must_use]
    pub fn new(targets: &[String]) -> Collector {
        Collector { targets: targets.to_vec(), found: Vec::new() }
    }

    /// Takes the figures of one repetition on one target.
    pub fn add(&mut self, target: usize, figures: Vec<Figure>) {
        assert!(target < self.targets.len(), "there is no target {target}");
        for Figure { what, unit, value } in figures {
            let known = self.found.iter().position(|(name, ..)| *name == what);
            let at = known.unwrap_or_else(|| {
                self.found.push((what, unit, vec![Vec::new(); self.targets.len()]));
                self.found.len() - 1
            });
            if let Some(values) = self.found.get_mut(at).and_then(|(_, _, values)| values.get_mut(target)) {
                values.push(value);
            }
        }
    }

    /// The findings.
    #[must_use]
    pub fn rows(self) -> Vec<Row> {
        let targets = self.targets;
        let row = |(what, unit, values): (String, Unit, Vec<Vec<f64>>)| {
            let limit = if targets.len() > 1 { values.last().cloned() } else { None };
            let last = targets.len().saturating_sub(1);
            let measured = targets.iter().zip(values).enumerate().filter_map(|(index, (target, values))| {
                let limit = limit.as_ref().filter(|_| index != last);
                let ratio = limit.and_then(|limit| Summary::of(&ratios(&values, limit)));
                Some(Measured { target: target.clone(), summary: Summary::of(&values)?, values, ratio })
            });
            Row { what, unit, targets: measured.collect() }
        };
        self.found.into_iter().map(row).collect()
    }
}

impl Row {
    /// The figures of a target.
    #[must_use]
    pub fn of(&self, target: &str) -> Option<&Measured> {
        self.targets.iter().find(|measured| measured.target == target)
    }
}

const HEAD: [&str; 7] = ["what", "on", "min", "median", "max", "unit", "of the limit (min to max)"];

impl Report {
    /// The row of something that was done.
    #[must_use]
    pub fn row(&self, what: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.what == what)
    }

    /// A table for a terminal.
    #[must_use]
    pub fn text(&self) -> String {
        let cells = self.cells();
        let mut widths = HEAD.map(|head| head.chars().count());
        for row in &cells {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        let mut text = format!("{}\n", self.title);
        for row in std::iter::once(HEAD.map(str::to_owned)).chain(cells) {
            let mut line = String::new();
            for (index, (cell, width)) in row.iter().zip(widths).enumerate() {
                // Numbers stand right.
                let _infallible = match index {
                    2..=4 => write!(line, "  {cell:>width$}"),
                    _ => write!(line, "  {cell:width$}"),
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        self.notes.iter().for_each(|note| text.push_str(&format!("  {note}\n")));
        text
    }

    /// A table for a document.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!("{}\n\n| {} |\n|---|---|--:|--:|--:|---|---|\n", self.title, HEAD.join(" | "));
        self.cells().iter().for_each(|row| text.push_str(&format!("| {} |\n", row.join(" | "))));
        self.notes.iter().for_each(|note| text.push_str(&format!("\n{note}\n")));
        text
    }

    fn cells(&self) -> Vec<[String; 7]> {
        let line = |row: &Row, index: usize, measured: &Measured| {
            let what = if index == 0 { row.what.clone() } else { String::new() };
            let Summary { min, median, max } = measured.summary;
            let [min, median, max] = [min, median, max].map(number);
            let ratio = measured.ratio.map_or(String::new(), spread);
            [what, measured.target.clone(), min, median, max, row.unit.symbol().to_owned(), ratio]
        };
        let of = |row: &Row| -> Vec<_> {
            row.targets.iter().enumerate().map(|(index, measured)| line(row, index, measured)).collect()
        };
        self.rows.iter().flat_map(of).collect()
    }
}

/// A ratio with its spread: `0.91 (0.88 to 0.95)`.
#[must_use]
pub fn spread(ratio: Summary) -> String {
    format!("{} ({} to {})", number(ratio.median), number(ratio.min), number(ratio.max))
}

/// Name of a number of processes in tables.
#[must_use]
pub fn procs_name(count: u32) -> String {
    if count == 1 { "1 process".to_owned() } else { format!("{count} processes") }
}

/// A number with three digits that matter, and marks between thousands.
#[must_use]
pub fn number(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 99.95 || size == 0.0 => 0,
        size if size >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    let whole = text.find('.').unwrap_or(text.len());
    let mut marked = String::new();
    for (index, c) in text.chars().enumerate() {
        let left = whole.saturating_sub(index);
        if index > 0 && index < whole && left % 3 == 0 && marked.ends_with(|c: char| c.is_ascii_digit()) {
            marked.push(',');
        }
        marked.push(c);
    }
    marked
}

/// Returns figures for the percentiles of times in nanoseconds.
#[must_use]
pub fn percentiles(what: &str, mut times_ns: Vec<u64>) -> Vec<Figure> {
    times_ns.sort_unstable();
    let figure = |(name, thousandths): &(&str, usize)| {
        let ns = percentile(&times_ns, *thousandths)?;
        Some(Figure::new(format!("{what} {name}"), Unit::Microseconds, ns as f64 / 1000.0))
    };
    PERCENTILES.iter().filter_map(figure).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Two targets, three repetitions, two things done on both and one on the limit only.
    pub(crate) fn sample() -> Report {
        let mut collector = Collector::new(&["mount".into(), "tmpfs".into()]);
        for (mount, tmpfs) in [(3.0, 4.0), (2.0, 5.0), (4.0, 4.0)] {
            let figure = |value| Figure::new("write", Unit::GigabytesPerSecond, value);
            let created = |value| Figure::new("create", Unit::PerSecond, value * 100_000.0);
            collector.add(0, vec![figure(mount), created(mount)]);
            collector
                .add(1, vec![figure(tmpfs), created(tmpfs), Figure::new("ping", Unit::Microseconds, 8.25)]);
        }
        Report { title: "title".into(), notes: vec!["a note".into()], rows: collector.rows() }
    }

    #[test]
    fn ratios_are_to_the_last_target_of_the_same_repetition() {
        let report = sample();
        let write = report.row("write").unwrap();
        let mount = write.of("mount").unwrap();
        assert_eq!(mount.values, [3.0, 2.0, 4.0]);
        assert_eq!(mount.ratio, Some(Summary { min: 0.4, median: 0.75, max: 1.0 }));
        assert_eq!(write.of("tmpfs").unwrap().ratio, None);
        let ping = report.row("ping").unwrap();
        assert_eq!(ping.targets.len(), 1, "a target without figures is left out");
        assert!(report.row("read").is_none());
    }

    #[test]
    fn a_single_target_has_no_limit() {
        let mut collector = Collector::new(&["x".into()]);
        collector.add(0, vec![Figure::new("a", Unit::PerSecond, 1.0)]);
        let rows = collector.rows();
        assert_eq!((rows[0].targets[0].ratio, rows[0].targets[0].values.as_slice()), (None, &[1.0][..]));
    }

    #[test]
    fn the_table_is_aligned() {
        let text = sample().text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "title",
                "  what    on         min   median      max  unit  of the limit (min to max)",
                "  write   mount     2.00     3.00     4.00  GB/s  0.75 (0.40 to 1.00)",
                "          tmpfs     4.00     4.00     5.00  GB/s",
                "  create  mount  200,000  300,000  400,000  1/s   0.75 (0.40 to 1.00)",
                "          tmpfs  400,000  400,000  500,000  1/s",
                "  ping    tmpfs     8.25     8.25     8.25  us",
                "  a note",
            ]
        );
    }

    #[test]
    fn the_document_has_the_same_cells() {
        let text = sample().markdown();
        assert!(
            text.contains("| write | mount | 2.00 | 3.00 | 4.00 | GB/s | 0.75 (0.40 to 1.00) |\n"),
            "{text}"
        );
        assert!(text.starts_with("title\n\n| what | on |") && text.ends_with("\na note\n"));
    }

    #[test]
    fn it_comes_back_from_json() {
        let text = serde_json::to_string(&sample()).unwrap();
        assert!(text.contains("\"unit\":\"GB/s\""), "{text}");
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), sample());
    }

    #[test]
    fn numbers_have_three_digits_that_matter() {
        for (value, text) in [
            (0.0, "0"),
            (0.123, "0.12"),
            (9.99, "9.99"),
            (9.999, "10.0"),
            (99.96, "100"),
            (1234.5, "1,234"),
            (1_234_567.0, "1,234,567"),
            (-1234.0, "-1,234"),
            (-123.0, "-123"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn percentiles_are_in_microseconds() {
        let figures = percentiles("read", (1..=1000).rev().map(|us| us * 1000).collect());
        let values: Vec<(String, f64)> =
            figures.into_iter().map(|figure| (figure.what, figure.value)).collect();
        let expected = [
            ("read p50", 500.0),
            ("read p90", 900.0),
            ("read p99", 990.0),
            ("read p99.9", 999.0),
            ("read max", 1000.0),
        ];
        assert_eq!(values, expected.map(|(what, value)| (what.to_owned(), value)));
        assert_eq!(percentiles("x", Vec::new()), []);
    }
}
