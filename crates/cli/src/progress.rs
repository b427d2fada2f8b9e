//! Progress of a copy: a bar on a terminal, plain lines elsewhere, lines of JSON for scripts.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bivouac_stage::jobs::Direction;
use bivouac_stage::{Progress, RestartedFile, StageError, Summary, Totals, Transfer, escape};
use bivouac_types::units::{format_count, format_duration, format_size};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::options::TalkArgs;

const BAR: &str = "{prefix:>4} {percent:>3}% {wide_bar} {bytes}/{total_bytes} {msg}";
/// Before that a rate says nothing, in seconds.
const RATES_AFTER_S: f64 = 0.5;
/// Least time between two lines of JSON about progress.
pub const TELL_EVERY: Duration = Duration::from_secs(1);

/// Tells of a job: people on standard error, scripts on standard output.
pub struct JobProgress {
    way: Direction,
    verifies: bool,
    json: bool,
    talk: TalkArgs,
    now: Mutex<Option<CurrentTransfer>>,
    found: ProgressTotals,
    copied: AtomicU64,
    verified: AtomicU64,
    files: AtomicU64,
    already: ProgressTotals,
}

#[derive(Default)]
struct ProgressTotals {
    files: AtomicU64,
    bytes: AtomicU64,
}

impl ProgressTotals {
    fn set(&self, totals: Totals) {
        self.files.store(totals.files, Ordering::Relaxed);
        self.bytes.store(totals.bytes, Ordering::Relaxed);
    }

    fn take_back(&self, bytes: u64) {
        take_back(&self.bytes, bytes);
    }

    fn add(&self, totals: Totals) {
        self.files.fetch_add(totals.files, Ordering::Relaxed);
        self.bytes.fetch_add(totals.bytes, Ordering::Relaxed);
    }

    fn get(&self) -> Totals {
        let [files, bytes] = [&self.files, &self.bytes].map(|sum| sum.load(Ordering::Relaxed));
        Totals { files, bytes }
    }
}

fn take_back(sum: &AtomicU64, bytes: u64) {
    let less = |sum: u64| Some(sum.saturating_sub(bytes));
    let _always_done = sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
}

/// The transfer that is under way.
struct CurrentTransfer {
    what: String,
    since: Instant,
    told: Instant,
    /// None where nobody watches.
    bar: Option<ProgressBar>,
}

impl JobProgress {
    /// Creates the progress of a job that goes one way, and reads back what it wrote or does not.
    pub fn new(way: Direction, verifies: bool, json: bool, talk: TalkArgs) -> JobProgress {
        let (found, already) = (ProgressTotals::default(), ProgressTotals::default());
        let [copied, verified, files] = [0; 3].map(AtomicU64::new);
        JobProgress {
            way,
            verifies,
            json,
            talk,
            now: Mutex::new(None),
            found,
            copied,
            verified,
            files,
            already,
        }
    }

    /// Takes what is on the terminal away.
    pub fn clear(&self) {
        self.with(|now| {
            if let Some(bar) = &now.bar {
                bar.finish_and_clear();
            }
        });
    }

    fn with(&self, tell: impl FnOnce(&mut CurrentTransfer)) {
        if let Some(now) = self.now.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            tell(now);
        }
    }

    fn line(&self, now: &CurrentTransfer, text: &str) {
        if now.bar.is_none() && !self.json && !self.talk.quiet {
            errln!("{:>4} {text}", self.way.word());
        }
    }

    fn moved(&self) {
        if self.json
            // Another thread tells just now; copies do not wait for whoever reads that.
            && let Ok(mut guard) = self.now.try_lock()
            && let Some(now) = guard.as_mut().filter(|now| now.told.elapsed() >= TELL_EVERY)
        {
            now.told = Instant::now();
            print_line(&self.event(now.since.elapsed()));
        }
    }

    fn event(&self, elapsed: Duration) -> Value {
        let (found, already) = (self.found.get(), self.already.get());
        let copied = self.copied.load(Ordering::Relaxed);
        let bytes = copied.saturating_add(already.bytes);
        let secs = elapsed.as_secs_f64().max(0.001);
        let rate = copied as f64 / secs;
        let files_rate = self.files.load(Ordering::Relaxed) as f64 / secs;
        let left_s = (rate > 0.0).then(|| (found.bytes.saturating_sub(bytes) as f64 / rate).ceil());
        json!({
            "event": "progress", "files": self.files.load(Ordering::Relaxed) + already.files, "files_found": found.files,
            "bytes": bytes, "bytes_found": found.bytes, "bytes_per_s": rate.round(), "left_s": left_s,
            "percent": percent(bytes, found.bytes), "files_per_s": (files_rate * 10.0).round() / 10.0,
        })
    }

    /// Returns the rates of what was moved by this very run: what was there before has cost it nothing.
    fn rates(&self, new_files: u64, elapsed: Duration) -> String {
        let secs = elapsed.as_secs_f64();
        if secs < RATES_AFTER_S {
            return String::new();
        }
        let (copied, found) = (self.copied.load(Ordering::Relaxed), self.found.get().bytes);
        let rate = copied as f64 / secs;
        let left = found.saturating_sub(copied.saturating_add(self.already.get().bytes));
        let left_ms = if rate > 0.0 { (left as f64 / rate * 1000.0) as u64 } else { 0 };
        let files = (new_files as f64 / secs).round();
        format!(", {files} files/s, {}/s, {} left", format_size(rate as u64), format_duration(left_ms))
    }

    fn tell_outcome(&self, now: &CurrentTransfer, summary: &Summary) {
        let prefix = self.way.word();
        if !self.talk.quiet {
            errln!("{prefix:>4} {}", outcome(&now.what, summary, now.since.elapsed()));
        }
        for skipped in &summary.skipped {
            errln!("{prefix:>4} not copied: {} ({})", escape(&skipped.path), skipped.what);
        }
        for path in &summary.deleted {
            errln!("{prefix:>4} deleted in the formation, left at the target: {}", escape(path));
        }
    }
}

impl Progress for JobProgress {
    fn transfer(&self, transfer: &Transfer) {
        let bar = (!self.json && !self.talk.quiet && std::io::stderr().is_terminal())
            .then(|| new_bar(self.way.word()));
        let (what, since) = (self.way.describe(transfer), Instant::now());
        let now = CurrentTransfer { what, since, told: since, bar };
        self.line(&now, &format!("copying {}", now.what));
        [&self.copied, &self.verified, &self.files].iter().for_each(|sum| sum.store(0, Ordering::Relaxed));
        [&self.found, &self.already].iter().for_each(|sum| sum.set(Totals::default()));
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    fn transferred(&self, transfer: &Transfer, ended: &Result<Summary, StageError>) {
        self.clear();
        if self.json {
            print_line(&ended_event(self.way, transfer, ended));
        } else if let Ok(summary) = ended {
            self.with(|now| self.tell_outcome(now, summary));
        }
    }

    fn found(&self, totals: Totals) {
        self.found.set(totals);
        self.with(|now| {
            now.bar.iter().for_each(|bar| bar.set_length(totals.bytes));
            let (files, bytes) = (format_count(totals.files, "file"), format_size(totals.bytes));
            self.line(now, &format!("{}: {files}, {bytes}", now.what));
        });
    }

    fn copied(&self, bytes: u64) {
        self.copied.fetch_add(bytes, Ordering::Relaxed);
        self.with(|now| now.bar.iter().for_each(|bar| bar.inc(bytes)));
        self.moved();
    }

    fn already(&self, totals: Totals) {
        self.already.add(totals);
        self.with(|now| now.bar.iter().for_each(|bar| bar.inc(totals.bytes)));
    }

    fn verified(&self, bytes: u64) {
        self.verified.fetch_add(bytes, Ordering::Relaxed);
        self.moved();
    }

    fn restarted(&self, told: RestartedFile) {
        take_back(&self.copied, told.copied);
        take_back(&self.verified, told.verified);
        self.already.take_back(told.already);
        let bytes = told.copied.saturating_add(told.already);
        self.with(|now| now.bar.iter().for_each(|bar| bar.dec(bytes)));
    }

    fn file_done(&self, path: &Path) {
        let new = self.files.fetch_add(1, Ordering::Relaxed) + 1;
        let files = new + self.already.get().files;
        self.with(|now| {
            if self.talk.verbose && !self.json {
                let name = if path.as_os_str().is_empty() { now.what.clone() } else { escape(path) };
                let say = || errln!("{:>4} {name}", self.way.word());
                now.bar.as_ref().map_or_else(say, |bar| bar.suspend(say));
            }
            if let Some(bar) = &now.bar {
                let found = self.found.get();
                let percent = self.verified.load(Ordering::Relaxed).saturating_mul(100) / found.bytes.max(1);
                let verified = if self.verifies { format!(", {percent} % verified") } else { String::new() };
                bar.set_message(format!(
                    "{files}/{} files{verified}{}",
                    found.files,
                    self.rates(new, now.since.elapsed())
                ));
            }
        });
    }
}

/// Prints a line of JSON for scripts.
pub fn print_line(event: &Value) {
    outln!("{event}");
}

/// Returns whole per cent, 100 only when all is there.
pub fn percent(done: u64, all: u64) -> u64 {
    // Files that grow meanwhile have more bytes than were found.
    if all == 0 { 100 } else { (u128::from(done.min(all)) * 100 / u128::from(all)) as u64 }
}

fn ended_event(way: Direction, transfer: &Transfer, ended: &Result<Summary, StageError>) -> Value {
    let (src, dst) = way.absolute(transfer);
    let (summary, failures) = match ended {
        Ok(summary) => (Some(summary), Vec::new()),
        Err(StageError::Incomplete { summary, failures }) => (Some(&**summary), failures.iter().collect()),
        Err(StageError::Root(failure)) => (None, vec![failure]),
        Err(StageError::Cancelled) => (None, Vec::new()),
    };
    let failures: Vec<_> = failures
        .iter()
        .map(|f| json!({"path": f.path.to_string_lossy(), "cause": f.cause.to_string()}))
        .collect();
    let mut event = json!({
        "event": "ended", "src": src, "dst": dst,
        "ok": ended.is_ok(), "failures": failures,
    });
    if let (Some(summary), Some(fields)) = (summary, event.as_object_mut()) {
        let skipped: Vec<_> = summary
            .skipped
            .iter()
            .map(|s| json!({"path": s.path.to_string_lossy(), "what": s.what}))
            .collect();
        let deleted: Vec<_> = summary.deleted.iter().map(|path| path.to_string_lossy()).collect();
        fields.insert("files".into(), summary.files.into());
        fields.insert("bytes".into(), summary.bytes.into());
        fields.insert("files_already".into(), summary.already.files.into());
        fields.insert("bytes_already".into(), summary.already.bytes.into());
        fields.insert("files_verified".into(), summary.verified.into());
        fields.insert("unchanged".into(), summary.unchanged.into());
        fields.insert("skipped".into(), skipped.into());
        fields.insert("deleted".into(), json!(deleted));
    }
    event
}

/// Returns a bar for a terminal, as all copies have it.
pub fn new_bar(prefix: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template(BAR).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style).with_prefix(prefix)
}

/// Describes the result of a transfer. It is `Verified` if this run read back and compared every file.
fn outcome(what: &str, summary: &Summary, time: Duration) -> String {
    let (files, bytes) = (format_count(summary.files, "file"), format_size(summary.bytes));
    let moved = summary.bytes.saturating_sub(summary.already.bytes);
    let rate = format_size((moved as f64 / time.as_secs_f64().max(0.001)) as u64);
    let mut text = format!("{what}: {files}, {bytes} in {:.1} s ({rate}/s)", time.as_secs_f64());
    if summary.files > 0 {
        let is_verified = summary.verified == summary.files;
        text.push_str(if is_verified { ", verified" } else { ", copied without comparing" });
    }
    if summary.already != Totals::default() {
        let Totals { files, bytes } = summary.already;
        text.push_str(&format!(
            ", of that copied before: {}, {}",
            format_count(files, "file"),
            format_size(bytes)
        ));
    }
    if summary.unchanged > 0 {
        text.push_str(&format!(", {} unchanged", summary.unchanged));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer() -> Transfer {
        Transfer { src: "/a".into(), dst: "b".into() }
    }

    #[test]
    fn the_outcome_has_its_numbers() {
        let summary = Summary { files: 3, verified: 3, bytes: 3 << 20, ..Summary::default() };
        let text = outcome("src", &summary, Duration::from_millis(1500));
        assert_eq!(text, "src: 3 files, 3 MiB in 1.5 s (2 MiB/s), verified");
        let unread = Summary { verified: 2, ..summary.clone() };
        let text = outcome("src", &unread, Duration::ZERO);
        assert!(text.ends_with("in 0.0 s (2.9 GiB/s), copied without comparing"), "one was not compared");
        let already = Totals { files: 2, bytes: 2 << 20 };
        let resumed = Summary { already, unchanged: 5, ..summary };
        let text = outcome("src", &resumed, Duration::from_millis(500));
        assert_eq!(
            text,
            "src: 3 files, 3 MiB in 0.5 s (2 MiB/s), verified, of that copied before: 2 files, 2 MiB, 5 unchanged"
        );
    }

    #[test]
    fn a_copy_of_nothing_is_not_a_division_by_nothing() {
        let told = JobProgress::new(Direction::In, true, false, TalkArgs::default());
        told.transfer(&transfer());
        told.with(|now| now.bar = Some(ProgressBar::hidden()));
        told.found(Totals::default());
        told.file_done(Path::new("x"));
        let message =
            told.now.lock().unwrap().as_ref().and_then(|now| now.bar.as_ref().map(ProgressBar::message));
        assert_eq!(message.as_deref(), Some("1/0 files, 0 % verified"));
        told.clear();
    }

    #[test]
    fn scripts_see_rate_and_what_is_left() {
        let told = JobProgress::new(Direction::Out, false, true, TalkArgs::default());
        told.found(Totals { files: 10, bytes: 1000 });
        told.already(Totals { files: 1, bytes: 60 });
        told.already(Totals { files: 0, bytes: 40 });
        told.copied(400);
        told.file_done(Path::new("x"));
        let event = told.event(Duration::from_secs(2));
        assert_eq!(
            (&event["files"], &event["bytes"], &event["left_s"]),
            (&json!(2), &json!(500), &json!(3.0))
        );
        assert_eq!(told.event(Duration::from_secs(2))["bytes_per_s"], json!(200.0));
        assert_eq!(
            (&event["percent"], &event["files_per_s"]),
            (&json!(50), &json!(0.5)),
            "of this run alone"
        );
        assert_eq!(told.rates(1, Duration::from_secs(2)), ", 1 files/s, 200 B/s, 2.5 s left");
        assert_eq!((percent(0, 0), percent(999, 1000), percent(5, 4)), (100, 99, 100));
    }

    #[test]
    fn scripts_see_what_failed() {
        let failed = StageError::Incomplete { summary: Box::default(), failures: Vec::new() };
        let event = ended_event(Direction::In, &transfer(), &Err(failed));
        assert_eq!((&event["ok"], &event["files"]), (&json!(false), &json!(0)));
        assert_eq!((&event["src"], &event["dst"]), (&json!("/a"), &json!("/b")));
    }
}
