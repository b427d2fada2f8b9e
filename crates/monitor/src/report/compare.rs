//! Effect of a change: a report beside an earlier one.

use bivouac_record::{Counts, Group};
use bivouac_types::units::{format_duration, format_micros, format_size};
use serde::Serialize;

use super::JobReport;
use super::tables::{gain, shown};

/// Smaller ratios are no difference on a busy machine.
const SEEN: f64 = 1.1;
/// Part by which the bytes of two runs may differ for them to be the same work.
const SAME: f64 = 0.1;

/// Effect of a change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// `helped`, `no difference`, or `slower`.
    pub verdict: &'static str,
    /// Speed-up: time from the first use to the last, for each byte.
    pub faster: f64,
    /// Expected effect of the setting that the earlier report named.
    pub expected: Option<(f64, f64)>,
    /// True if both moved about as many bytes.
    pub same_work: bool,
    #[serde(skip)]
    lines: Vec<String>,
}

/// Figures of one report.
struct ComparedRun {
    bytes: u64,
    span_ms: u64,
    calls: Counts,
}

impl ComparedRun {
    fn of_place(place: &Group) -> ComparedRun {
        let calls = place.pattern.both();
        ComparedRun { bytes: calls.bytes, span_ms: place.span_ms, calls }
    }

    fn of_all(report: &JobReport) -> ComparedRun {
        let calls = report.total.both();
        ComparedRun { bytes: calls.bytes, span_ms: report.span_ms, calls }
    }

    /// Returns the milliseconds for each byte.
    fn pace(&self) -> f64 {
        self.span_ms.max(1) as f64 / self.bytes.max(1) as f64
    }

    fn said(&self, what: &str) -> String {
        let (bytes, span) = (format_size(self.bytes), format_duration(self.span_ms));
        let each = format_micros(self.calls.mean_ns() / 1000);
        format!("{what}: {bytes} in {span}, {} calls of {each} each", self.calls.ops)
    }
}

impl Comparison {
    /// Compares two reports: of the directory whose setting the earlier report wanted changed, or of all.
    #[must_use]
    pub fn between(old: &JobReport, new: &JobReport) -> Comparison {
        let finding = old.findings.first();
        let place = |report: &JobReport| {
            let place = finding.map(|finding| finding.place.as_str())?;
            report.places.iter().find(|group| group.place == place).map(ComparedRun::of_place)
        };
        let (before, now, what) = match (place(old), place(new), finding) {
            (Some(before), Some(now), Some(finding)) => (before, now, shown(finding.place.as_ref())),
            _ => (ComparedRun::of_all(old), ComparedRun::of_all(new), "all files".to_owned()),
        };
        // By the byte, not by the time: the later run may be longer because it did more.
        let faster = before.pace() / now.pace();
        let verdict = match faster {
            _ if before.bytes == 0 || now.bytes == 0 => "no difference",
            SEEN.. => "helped",
            _ if faster > 1.0 / SEEN => "no difference",
            _ => "slower",
        };
        let difference = (before.bytes as f64 - now.bytes as f64).abs() / before.bytes.max(1) as f64;
        let same_work = difference <= SAME;
        let expected = finding.map(|finding| finding.gain);
        let mut lines = vec![before.said(&format!("{what} before")), now.said(&format!("{what} now"))];
        lines.push(match verdict {
            "helped" => format!("It helped: {faster:.1} times as fast for each byte."),
            "slower" => format!("It did not help: {:.1} times as slow for each byte.", 1.0 / faster),
            _ => "No difference is seen.".into(),
        });
        if let Some(finding) = finding {
            let still =
                new.findings.iter().any(|one| (&one.rule, &one.place) == (&finding.rule, &finding.place));
            let state = if still { "is still to be made" } else { "is made, or not needed any more" };
            lines.push(format!(
                "The change ({}) {state}; expected were {}.",
                finding.rule,
                gain(finding.gain)
            ));
        }
        if !same_work {
            lines.push("Both moved different amounts of data, so they may not be the same work.".into());
        }
        Comparison { verdict, faster, expected, same_work, lines }
    }

    /// Returns it in the form for people.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        &self.lines
    }
}

#[cfg(test)]
mod tests {
    use super::super::html::tests::sample;
    use super::*;

    fn in_time(factor: f64, of: &JobReport) -> JobReport {
        let mut report = of.clone();
        report.span_ms = (report.span_ms as f64 * factor) as u64;
        for place in &mut report.places {
            place.span_ms = (place.span_ms as f64 * factor) as u64;
        }
        report
    }

    #[test]
    fn a_change_that_helped_is_told_from_one_that_did_not() {
        let old = sample();
        for (factor, verdict) in
            [(0.2, "helped"), (1.0, "no difference"), (0.95, "no difference"), (2.0, "slower")]
        {
            let compared = Comparison::between(&old, &in_time(factor, &old));
            assert_eq!((compared.verdict, compared.same_work), (verdict, true), "{factor}");
        }
        let mut changed = in_time(0.2, &old);
        changed.findings.clear();
        let compared = Comparison::between(&old, &changed);
        assert!((4.5..5.5).contains(&compared.faster), "{compared:?}");
        let text = compared.lines().join("\n");
        assert!(
            text.contains("It helped: 5.") && text.contains("is made") && text.contains("3.1 to 6.4 times"),
            "{text}"
        );
    }

    #[test]
    fn other_work_is_named() {
        let old = sample();
        let compared = Comparison::between(&old, &JobReport::default());
        assert_eq!((compared.verdict, compared.same_work), ("no difference", false));
        assert!(compared.lines().iter().any(|line| line.contains("not be the same work")));
        let compared = Comparison::between(&JobReport::default(), &JobReport::default());
        assert_eq!((compared.verdict, compared.expected), ("no difference", None));
    }
}
