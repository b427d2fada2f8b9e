//! How far a copy is: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bivouac_stage::{Progress, Summary, Totals};
use bivouac_types::units::format_size;
use indicatif::{ProgressBar, ProgressStyle};

const BAR: &str = "{prefix:>4} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {msg}";

/// The progress of one copy, told on standard error.
pub struct Told {
    prefix: &'static str,
    what: String,
    /// None where nobody watches.
    bar: Option<ProgressBar>,
    since: Instant,
    total: AtomicU64,
    verified: AtomicU64,
}

impl Told {
    /// Begins to tell of a copy `in` or `out`.
    pub fn begin(prefix: &'static str, what: String) -> Told {
        let bar = std::io::stderr().is_terminal().then(|| new_bar(prefix));
        let told = Told { prefix, what, bar, since: Instant::now(), total: 0.into(), verified: 0.into() };
        told.line(&format!("copying {}", told.what));
        told
    }

    /// Tells of its good end.
    pub fn done(self, summary: &Summary, verified: bool) {
        self.clear();
        eprintln!("{:>4} {}", self.prefix, outcome(&self.what, summary, self.since.elapsed(), verified));
        for skipped in &summary.skipped {
            eprintln!("{:>4} not copied: {} ({})", self.prefix, skipped.path.display(), skipped.what);
        }
    }

    /// Ends without a word; the caller says what went wrong.
    pub fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn line(&self, text: &str) {
        if self.bar.is_none() {
            eprintln!("{:>4} {text}", self.prefix);
        }
    }
}

impl Progress for Told {
    fn found(&self, totals: Totals) {
        self.total.store(totals.bytes, Ordering::Relaxed);
        if let Some(bar) = &self.bar {
            bar.set_length(totals.bytes);
        }
        self.line(&format!("{}: {} files, {}", self.what, totals.files, format_size(totals.bytes)));
    }

    fn copied(&self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(bytes);
        }
    }

    fn verified(&self, bytes: u64) {
        let sum = self.verified.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if let Some(bar) = &self.bar {
            let percent = sum.saturating_mul(100) / self.total.load(Ordering::Relaxed).max(1);
            bar.set_message(format!("{percent} % verified"));
        }
    }
}

fn new_bar(prefix: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template(BAR).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style).with_prefix(prefix)
}

fn outcome(what: &str, summary: &Summary, time: Duration, verified: bool) -> String {
    let (files, bytes) = (summary.files, format_size(summary.bytes));
    let rate = format_size((summary.bytes as f64 / time.as_secs_f64().max(0.001)) as u64);
    let verified = if verified { ", verified" } else { "" };
    format!("{what}: {files} files, {bytes} in {:.1} s ({rate}/s){verified}", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_has_its_numbers() {
        let summary = Summary { files: 3, bytes: 3 << 20, ..Summary::default() };
        let text = outcome("src", &summary, Duration::from_millis(1500), true);
        assert_eq!(text, "src: 3 files, 3 MiB in 1.5 s (2 MiB/s), verified");
        assert!(outcome("src", &summary, Duration::ZERO, false).ends_with("in 0.0 s (2.9 GiB/s)"));
    }

    #[test]
    fn a_copy_of_nothing_is_not_a_division_by_nothing() {
        let told = Told { bar: Some(ProgressBar::hidden()), ..Told::begin("in", "x".into()) };
        told.found(Totals::default());
        told.verified(0);
        assert_eq!(told.bar.as_ref().map(|bar| bar.message()).as_deref(), Some("0 % verified"));
        told.clear();
    }
}
