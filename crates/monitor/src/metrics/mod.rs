//! The status of a formation as metrics for Prometheus.

mod table;

use std::fmt::Write;

use bivouac_client::{TIME_RANGES, Times};

use crate::status::StatusReport;
use table::TABLE;

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Goes up and down.
    Gauge,
    /// Goes up, from 0 at the start of each daemon.
    Counter,
    /// Counts of times up to bounds, their sum, and their number; they go up as counters do.
    Histogram,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
        }
    }
}

/// A row of the table of metrics.
struct Metric {
    /// With the unit at its end, if it has one, and without `_total`.
    name: &'static str,
    kind: Kind,
    help: &'static str,
    read: fn(&StatusReport, &mut Samples),
}

/// A value of a metric.
struct Sample {
    /// Suffix of its name, if that does not follow from the metric's kind.
    end: &'static str,
    /// Labels besides the formation.
    labels: Vec<(&'static str, String)>,
    value: f64,
}

/// The values of one metric.
#[derive(Default)]
struct Samples(Vec<Sample>);

impl Samples {
    /// Adds a value. Counts above 2^53 are rounded, as by any reader of floating-point numbers.
    fn add(&mut self, labels: &[(&'static str, &dyn ToString)], value: u64) {
        self.add_float(labels, value as f64);
    }

    fn add_float(&mut self, labels: &[(&'static str, &dyn ToString)], value: f64) {
        self.add_to("", labels, value);
    }

    fn add_to(&mut self, end: &'static str, labels: &[(&'static str, &dyn ToString)], value: f64) {
        let labels = labels.iter().map(|(name, value)| (*name, value.to_string())).collect();
        self.0.push(Sample { end, labels, value });
    }

    /// Counts up to every second bound, so that a thousand nodes are not a million samples.
    fn add_times(&mut self, labels: &[(&'static str, &dyn ToString)], times: &Times) {
        let mut seen = 0_u64;
        for range in 0..TIME_RANGES {
            seen = times.counts.get(range).copied().unwrap_or(0).saturating_add(seen);
            let bound: &dyn ToString = &seconds_of(range);
            // The last range has what took longer, too.
            if range % 2 == 0 && range < TIME_RANGES - 1 {
                self.add_to("_bucket", &[labels, &[("le", bound)]].concat(), seen as f64);
            }
        }
        self.add_to("_bucket", &[labels, &[("le", &"+Inf")]].concat(), seen as f64);
        self.add_to("_sum", labels, times.total_us as f64 / 1e6);
        self.add_to("_count", labels, seen as f64);
    }
}

/// Returns the upper end of a range of times, in seconds.
fn seconds_of(range: usize) -> String {
    assert!(range < TIME_RANGES, "there is no range {range} of times");
    let (whole, rest) = ((1_u64 << range) / 1_000_000, (1_u64 << range) % 1_000_000);
    format!("{whole}.{rest:06}")
}

/// The format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsFormat {
    /// OpenMetrics 1.0.
    Openmetrics,
    /// Text of Prometheus 0.0.4.
    Prometheus,
}

/// Returns all metrics of a formation. Those without a value are left out.
#[must_use]
pub fn render_metrics(report: &StatusReport, form: MetricsFormat) -> String {
    let mut text = String::new();
    for metric in TABLE {
        let mut samples = Samples::default();
        (metric.read)(report, &mut samples);
        if !samples.0.is_empty() {
            metric.write(&report.name, &samples, form, &mut text);
        }
    }
    // Without it OpenMetrics takes a text for one that was cut off.
    if form == MetricsFormat::Openmetrics {
        text.push_str("# EOF\n");
    }
    text
}

impl Metric {
    fn write(&self, formation: &str, samples: &Samples, form: MetricsFormat, text: &mut String) {
        let Metric { name, kind, help, .. } = self;
        let (sample, unit) = (self.sample(), self.unit());
        // OpenMetrics names the family, the older form the samples.
        let head = if form == MetricsFormat::Openmetrics { name } else { sample.as_str() };
        // Writing to a string does not fail.
        let _ = writeln!(text, "# HELP {head} {help}");
        let _ = writeln!(text, "# TYPE {head} {}", kind.name());
        if form == MetricsFormat::Openmetrics && !unit.is_empty() {
            let _ = writeln!(text, "# UNIT {head} {unit}");
        }
        for Sample { end, labels, value } in &samples.0 {
            let _ = write!(text, "{sample}{end}{{formation=\"{}\"", escaped(formation));
            for (label, value) in labels {
                let _ = write!(text, ",{label}=\"{}\"", escaped(value));
            }
            let _ = writeln!(text, "}} {value}");
        }
    }

    /// Returns its unit, which its name ends with; empty for a count.
    fn unit(&self) -> &'static str {
        ["seconds", "bytes"].into_iter().find(|unit| self.name.ends_with(unit)).unwrap_or_default()
    }

    /// Returns the name of its samples, those of a histogram up to their ends.
    fn sample(&self) -> String {
        let end = if self.kind == Kind::Counter { "_total" } else { "" };
        format!("{}{end}", self.name)
    }
}

/// Returns a label's value as both forms want it: paths may contain everything.
fn escaped(value: &str) -> String {
    // Backslashes first: the others make some.
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of the documentation.
    fn row(metric: &Metric) -> String {
        let kind = metric.kind.name();
        let unit = if metric.unit().is_empty() { "-" } else { metric.unit() };
        format!("| `{}` | {kind} | {unit} | {} |", metric.sample(), metric.help)
    }

    #[test]
    fn the_documentation_has_all_metrics_and_no_others() {
        let page = include_str!("../../../../docs/monitoring.md");
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `bivouac_")).collect();
        let expected: Vec<String> = TABLE.iter().map(row).collect();
        assert_eq!(rows, expected, "\n{}", expected.join("\n"));
    }

    #[test]
    fn names_end_with_their_units_and_are_there_once() {
        for (index, metric) in TABLE.iter().enumerate() {
            assert!(metric.unit().is_empty() || metric.name.ends_with(&format!("_{}", metric.unit())));
            assert!(
                !metric.name.ends_with("_total") && metric.name.starts_with("bivouac_"),
                "{}",
                metric.name
            );
            assert!(TABLE.iter().skip(index + 1).all(|other| other.name != metric.name), "{}", metric.name);
        }
    }

    #[test]
    fn alerts_and_the_dashboard_name_only_metrics_that_there_are() {
        let is_part = |letter: char| letter.is_ascii_lowercase() || letter == '_';
        for text in [
            include_str!("../../../../deploy/monitoring/alerts.yml"),
            include_str!("../../../../deploy/monitoring/grafana.json"),
        ] {
            let named = text.split(|letter| !is_part(letter)).filter(|word| word.starts_with("bivouac_"));
            let named: Vec<&str> = named.collect();
            assert!(!named.is_empty());
            for name in named {
                let is_of = |metric: &Metric| match name.strip_prefix(&metric.sample()) {
                    Some(end) if metric.kind == Kind::Histogram => {
                        ["_bucket", "_sum", "_count"].contains(&end)
                    }
                    Some(end) => end.is_empty(),
                    None => false,
                };
                assert!(TABLE.iter().any(is_of), "{name}");
            }
        }
    }

    #[test]
    fn a_histogram_counts_up_to_its_bounds() {
        let metric = TABLE.iter().find(|metric| metric.kind == Kind::Histogram).unwrap();
        let mut samples = Samples::default();
        samples.add_times(&[("node", &1)], &Times { total_us: 1_500_000, counts: vec![1, 0, 0, 2, 4] });
        let mut text = String::new();
        metric.write("camp", &samples, MetricsFormat::Prometheus, &mut text);
        let name = metric.name;
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], format!("# TYPE {name} histogram"));
        let bucket = |le: &str, count: u32| {
            format!("{name}_bucket{{formation=\"camp\",node=\"1\",le=\"{le}\"}} {count}")
        };
        assert_eq!(lines[2..5], [bucket("0.000001", 1), bucket("0.000004", 1), bucket("0.000016", 7)]);
        assert_eq!(lines[14..16], [bucket("16.777216", 7), bucket("+Inf", 7)]);
        let last = |end: &str, value: &str| format!("{name}_{end}{{formation=\"camp\",node=\"1\"}} {value}");
        assert_eq!(lines[16..], [last("sum", "1.5"), last("count", "7")]);
    }

    #[test]
    fn labels_are_escaped_and_both_forms_name_what_they_must() {
        let mut samples = Samples::default();
        samples.add(&[("volume", &"a\"b\\c\nd")], 7);
        let metric =
            Metric { name: "bivouac_x_bytes", kind: Kind::Counter, help: "What it is.", read: |_, _| () };
        let written = |form| {
            let mut text = String::new();
            metric.write("camp", &samples, form, &mut text);
            text
        };
        let sample = "bivouac_x_bytes_total{formation=\"camp\",volume=\"a\\\"b\\\\c\\nd\"} 7\n";
        assert_eq!(
            written(MetricsFormat::Openmetrics),
            format!(
                "# HELP bivouac_x_bytes What it is.\n# TYPE bivouac_x_bytes counter\n\
                 # UNIT bivouac_x_bytes bytes\n{sample}"
            )
        );
        assert_eq!(
            written(MetricsFormat::Prometheus),
            format!(
                "# HELP bivouac_x_bytes_total What it is.\n# TYPE bivouac_x_bytes_total counter\n{sample}"
            )
        );
    }
}
