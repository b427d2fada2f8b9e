//! A job by what it did before, as reports tell it.

use std::path::{Path, PathBuf};

use bivouac_monitor::report::{FileRow, JobReport, ProcessRow, summary};
use bivouac_plan::{Advice, Bursts, FormerRun, JobWork, PartitionAdvice, UsedFile, UsedProcess, middle};
use bivouac_record::{Facts, Finding, Group, OWN_PROGRAM, findings, wider_stripe};
use bivouac_types::units::{format_count, format_duration, format_size};

use crate::failure::Failure;
use crate::partitioning::BUCKET_STRIPE;
use crate::report_file;

/// The option that names them.
const OPTION: &str = "--from-report";
/// Most reports of a directory.
const REPORTS_MAX: usize = 1000;
/// Stripe of files that are written at once, one after the other.
const CHECKPOINT_STRIPE: u64 = 4 << 20;

/// Data of earlier runs.
#[derive(Debug)]
pub struct EarlierRuns {
    /// Their work; of several, the median of each figure.
    pub work: JobWork,
    /// Number of reports.
    pub reports: usize,
    /// Fewest and most bytes that programs read and wrote in one of them.
    between: (u64, u64),
    bursts: Option<Bursts>,
    /// The latest of them.
    latest: JobReport,
}

/// Reads a report, or all reports of a directory: what ends in `.json` there.
pub fn earlier(path: &Path) -> Result<EarlierRuns, Failure> {
    let found = std::fs::metadata(path);
    let is_dir = found.map_err(|error| failed(path, format!("{error}; check its path")))?.is_dir();
    let files = if is_dir { reports_in(path)? } else { vec![path.to_owned()] };
    let read = |file: &PathBuf| report_file::read(OPTION, file);
    let mut reports: Vec<JobReport> = files.iter().map(read).collect::<Result<_, _>>()?;
    let runs: Vec<FormerRun> = reports.iter().map(run).collect();
    let works: Vec<JobWork> = runs.iter().map(FormerRun::work).collect();
    let moved = runs.iter().map(|run| run.read_bytes.saturating_add(run.written_bytes));
    let between = (moved.clone().min().unwrap_or(0), moved.max().unwrap_or(0));
    let last = (0..reports.len()).max_by_key(|index| reports.get(*index).map(|report| report.unix_ms));
    let none =
        || failed(path, "has no report, a file that ends in .json; name one, or a directory of some".into());
    let last = last.ok_or_else(none)?;
    let work = middle(&works).ok_or_else(none)?;
    // The work is the middle of all: where most runs had no bursts, those of the latest one are no habit.
    let bursts = runs.get(last).and_then(FormerRun::bursts).filter(|_| work.checkpoints > 0);
    Ok(EarlierRuns { work, reports: works.len(), between, bursts, latest: reports.swap_remove(last) })
}

fn failed(path: &Path, cause: String) -> Failure {
    Failure::new(1, format_args!("{OPTION} {}: {cause}", path.display()))
}

fn reports_in(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let unread = |error: std::io::Error| failed(dir, format!("{error}; check its path"));
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(unread)? {
        let path = entry.map_err(unread)?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
    }
    files.sort();
    if files.len() > REPORTS_MAX {
        return Err(failed(
            dir,
            format!("has {} reports, and {REPORTS_MAX} are read at most; move some away", files.len()),
        ));
    }
    Ok(files)
}

/// Returns a report as the plan has it.
fn run(report: &JobReport) -> FormerRun {
    let sources: Vec<&Group> = report.places.iter().filter(|place| place.has_source).collect();
    let has_source = |path: &str| sources.iter().any(|place| is_below(path, &place.place));
    let file = |row: &FileRow| UsedFile {
        size: row.size,
        read: row.pattern.reads.bytes,
        written: row.pattern.writes.bytes,
        used_ms: (row.first_ms, row.last_ms),
        has_source: has_source(&row.path),
    };
    let programs = report.processes.iter().filter(|process| process.program != OWN_PROGRAM);
    FormerRun {
        nodes: u32::try_from(report.nodes).unwrap_or(u32::MAX),
        span_ms: report.span_ms,
        staged_in: (report.site.staged_in, report.site.files_in),
        staged_out: (report.site.staged_out, report.site.files_out),
        read_bytes: report.total.reads.bytes,
        written_bytes: report.total.writes.bytes,
        files: report.files.iter().map(file).collect(),
        more_files: report.more_files,
        interval_ms: report.timeline.width_ms.max(1),
        written: report.timeline.bins.iter().map(|bin| bin.written).collect(),
        processes: programs.map(process).collect(),
    }
}

fn process(row: &ProcessRow) -> UsedProcess {
    UsedProcess { bytes: row.pattern.both().bytes, used_ms: (row.first_ms, row.last_ms) }
}

fn is_below(path: &str, dir: &str) -> bool {
    let rest = path.strip_prefix(dir.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.starts_with('/'))
}

impl EarlierRuns {
    /// Returns a description of them.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let work = &self.work;
        let (least, most) = self.between;
        let spread = match self.reports {
            1 => String::new(),
            _ => format!(", which moved {} to {}", format_size(least), format_size(most)),
        };
        let mut rows = vec![(
            "by what it did",
            format!("{}{spread}: {}", format_count(self.reports as u64, "report"), summary(&self.latest)),
        )];
        if work.processes > 0 {
            rows.push(("processes", format!("{} at the same time", work.processes)));
        }
        if work.in_bytes > 0 {
            rows.push(("reads of its input", format!("{:.1}", work.reads)));
        }
        if work.scratch_bytes > 0 || work.scratch_read_bytes > 0 {
            let (written, read) = (format_size(work.scratch_bytes), format_size(work.scratch_read_bytes));
            rows.push(("for itself", format!("{written} written, {read} of what it wrote read again")));
        }
        if let Some(bursts) = self.bursts {
            let files = format_count(bursts.files, "file");
            rows.push((
                "bursts of writes",
                format!(
                    "{} of {} in {files}, every {}",
                    bursts.count,
                    format_size(bursts.bytes),
                    format_duration(bursts.every_ms)
                ),
            ));
        }
        rows
    }

    /// Settings for the directories that it used, by the rules of reports.
    pub fn advise(&self, advice: &mut Advice) {
        let found = findings(&Facts { groups: self.latest.places.clone() });
        let places = self.latest.places.iter().filter(|place| is_plain(&place.place));
        let mut parts: Vec<PartitionAdvice> = places.filter_map(|place| part(place, &found)).collect();
        if let Some(place) = self.bursts.and_then(|_| self.written_most()).filter(|_| advice.checkpoints) {
            // Who writes them is seen in the report, so none is made up.
            advice.checkpoints = false;
            let reason = "Most of what is written in bursts.".to_owned();
            match parts.iter_mut().find(|part| part.path == place.place) {
                Some(part) => {
                    part.is_session = true;
                    part.reasons.push(reason);
                }
                None => parts.push(PartitionAdvice {
                    path: place.place.clone(),
                    is_session: true,
                    stripe: Some(stripe_of(place, CHECKPOINT_STRIPE)),
                    reasons: vec![reason],
                }),
            }
        }
        advice.parts = parts;
        let others = found.iter().filter(|finding| !is_setting_of_a_part(finding));
        advice.remarks.extend(others.map(in_a_line));
        let sources = self.latest.places.iter().filter(|place| place.has_source);
        advice.remarks.extend(sources.map(|place| {
            format!(
                "{} has site storage behind it, which a report does not name: attach it with --pool, or add source",
                place.place
            )
        }));
    }

    /// Returns the directory that can be a partition and in which most was written, if nobody reads there what others
    /// write.
    fn written_most(&self) -> Option<&Group> {
        let place = self.latest.places.iter().max_by_key(|place| place.pattern.writes.bytes)?;
        let is_mixed = place.mixed.saturating_mul(10) > place.files;
        (is_plain(&place.place) && !is_mixed).then_some(place)
    }
}

/// Returns a stripe that what is behind a directory takes, whatever that is.
fn stripe_of(place: &Group, stripe: u64) -> u64 {
    if place.has_source { stripe.max(BUCKET_STRIPE.into()) } else { stripe }
}

/// Returns whether a directory can be a partition.
fn is_plain(place: &str) -> bool {
    let mut names = place.split('/');
    names.next() == Some("") && place.len() > 1 && names.all(|name| !matches!(name, "" | "." | ".." | "?"))
}

fn is_setting_of_a_part(finding: &Finding) -> bool {
    let has_one = matches!(finding.rule.as_str(), "small-writes" | "small-reads" | "crossed-stripes");
    has_one && is_plain(&finding.place)
}

fn in_a_line(finding: &Finding) -> String {
    format!("{}: {} ({}; if {})", finding.place, finding.setting, finding.evidence, finding.condition)
}

/// Returns a directory that was one of its own, or that a rule says should be. Those of a source come with it, and get
/// their settings here if they need any: who attaches a pool there has them.
fn part(place: &Group, found: &[Finding]) -> Option<PartitionAdvice> {
    let mut part = PartitionAdvice {
        path: place.place.clone(),
        is_session: place.is_session,
        ..PartitionAdvice::default()
    };
    for finding in found.iter().filter(|finding| finding.place == place.place) {
        match finding.rule.as_str() {
            "small-writes" | "small-reads" => part.is_session = true,
            "crossed-stripes" => part.stripe = Some(stripe_of(place, wider_stripe(place))),
            _ => continue,
        }
        part.reasons.push(in_a_line(finding));
    }
    let is_needed = place.is_partition && !place.has_source || part.is_session || part.stripe.is_some();
    if place.is_partition && part.reasons.is_empty() {
        part.reasons.push("As in the earlier run.".into());
    }
    is_needed.then_some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_of_a_formation_can_be_partitions() {
        for (place, is) in [
            ("/a", true),
            ("/a/b c", true),
            ("/", false),
            ("/..", false),
            ("a", false),
            ("/a//b", false),
            ("/?", false),
        ] {
            assert_eq!(is_plain(place), is, "{place}");
        }
        assert!(
            is_below("/a/b", "/a") && is_below("/a", "/") && !is_below("/ab", "/a") && !is_below("/a", "/a")
        );
    }
}
