//! Report of a job: files, processes, times, and the one setting to change.

mod compare;
mod gather;
mod html;
mod places;
mod tables;
mod text;

use bivouac_record::{Counts, Finding, Group, History, Pattern, Timeline};
use serde::{Deserialize, Serialize};

pub use compare::Comparison;
pub use gather::gather;
pub use tables::{shown, summary};

/// Version of the report as JSON: it rises when what was there changes its meaning.
const VERSION: u32 = 1;

/// A report of what a job did. Times are milliseconds since the timeline began; sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobReport {
    /// [`VERSION`].
    pub report: u32,
    /// Release of the command.
    pub release: String,
    /// The formation's name.
    pub name: String,
    /// Number of nodes that it has.
    pub nodes: u64,
    /// Time when this was made, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Time when the timeline began, in milliseconds since 1970.
    pub began_unix_ms: u64,
    /// Time from the first use of a file to the last, in milliseconds.
    pub span_ms: u64,
    /// Advised changes, what gains most first.
    pub findings: Vec<Finding>,
    /// Parts that are missing.
    pub notes: Vec<String>,
    /// All reads and writes.
    pub total: Pattern,
    /// Work by time.
    pub timeline: Timeline,
    /// The same by seconds of the last half hour, and by minutes.
    #[serde(default)]
    pub history: History,
    /// Work that each node served, by time.
    #[serde(default)]
    pub served: Vec<ServedRow>,
    /// By directory.
    pub places: Vec<Group>,
    /// By file, what was used most first.
    pub files: Vec<FileRow>,
    /// Files that are not among them, at most.
    pub more_files: u64,
    /// By process.
    pub processes: Vec<ProcessRow>,
    /// Operations that nodes served.
    pub operations: Vec<OperationRow>,
    /// Bytes copied between the formation and site storage.
    pub site: SiteRow,
}

/// Fields that reports of all versions have.
#[derive(Deserialize)]
struct Versioned {
    report: u32,
}

/// A file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FileRow {
    /// Its path in the formation; of one that is gone the directory that it was made in.
    pub path: String,
    /// True if it is gone, or has no name that was found.
    pub gone: bool,
    /// Its bytes when this was made, if it was still there.
    #[serde(default)]
    pub size: Option<u64>,
    /// Bytes of a stripe.
    pub stripe: u64,
    /// Processes that used it.
    pub processes: u64,
    /// True if there may be more of them.
    pub or_more: bool,
    /// Times of its first and last use.
    pub first_ms: u64,
    /// See there.
    pub last_ms: u64,
    /// The step.
    pub pattern: Pattern,
}

/// Work that a node served, by time: requests, the bytes that went with answers (`read`) and that came (`written`), and
/// how long they took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServedRow {
    /// The node.
    pub node: u16,
    /// Its work.
    #[serde(flatten)]
    pub history: History,
}

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessRow {
    /// Its program.
    pub program: String,
    /// Its number on its host; 0 if that could not be seen.
    pub pid: u32,
    /// The host whose mount it used; nothing of one that used the library or the preload.
    pub host: Option<String>,
    /// Times of its first and last work.
    pub first_ms: u64,
    /// See there.
    pub last_ms: u64,
    /// Its accesses.
    pub pattern: Pattern,
}

/// An operation, as nodes served it to clients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OperationRow {
    /// The name, as in docs/protocol.md.
    pub name: String,
    /// Number of times.
    pub count: u64,
    /// Time that all of them took together.
    pub total_us: u64,
    /// The range of the median, and of 99 of 100.
    pub p50_us: u64,
    /// See there.
    pub p99_us: u64,
}

/// Bytes that were copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SiteRow {
    /// Read from site storage by `stage in` and `run --in`.
    pub staged_in: u64,
    /// Written to it.
    pub staged_out: u64,
    /// Files that were copied in.
    #[serde(default)]
    pub files_in: u64,
    /// Files that were copied out.
    #[serde(default)]
    pub files_out: u64,
    /// Bytes that programs read and wrote here in files without a source.
    pub here: u64,
}

impl SiteRow {
    /// Returns the number of bytes that site storage was spared.
    #[must_use]
    pub fn spared(&self) -> u64 {
        self.here.saturating_sub(self.staged_in.saturating_add(self.staged_out))
    }
}

impl JobReport {
    /// Returns the report for a terminal of 80 columns, and how it compares with an earlier one. `has_utf8` says
    /// whether the terminal shows letters beyond ASCII.
    #[must_use]
    pub fn to_text(&self, comparison: Option<&Comparison>, has_utf8: bool) -> String {
        text::text(self, comparison, has_utf8)
    }

    /// Returns the report as a page.
    #[must_use]
    pub fn to_html(&self, comparison: Option<&Comparison>) -> String {
        html::page(self, comparison)
    }

    /// Returns the report for programs, and for comparisons with later reports.
    pub fn to_json(&self, comparison: Option<&Comparison>) -> serde_json::Result<String> {
        let mut value = serde_json::to_value(self)?;
        if let (Some(object), Some(comparison)) = (value.as_object_mut(), comparison) {
            object.insert("comparison".into(), serde_json::to_value(comparison)?);
        }
        Ok(serde_json::to_string_pretty(&value)? + "\n")
    }

    /// Reads a report that was written as JSON.
    ///
    /// # Errors
    /// That it is none, or one of another version.
    pub fn parse(text: &[u8]) -> Result<JobReport, String> {
        let no_report = |error: serde_json::Error| format!("is no report: {error}");
        // Of another version nothing else may be as it is here.
        match serde_json::from_slice::<Versioned>(text).map_err(no_report)?.report {
            VERSION => serde_json::from_slice(text).map_err(no_report),
            other => Err(format!("is a report of version {other}, and this release has {VERSION}")),
        }
    }
}

/// Returns the part of its time that a process waited for these.
fn share_of(counts: &Counts, time_ms: u64) -> f64 {
    (counts.spent_ns as f64 / (time_ms.max(1) as f64 * 1e6)).min(1.0)
}
