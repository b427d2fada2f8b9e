//! What a job did: files, processes, times, and the one setting to change.

mod compare;
mod gather;
mod html;
mod lines;
mod places;
mod text;

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use bivouac_record::{Counts, Finding, Group, History, Pattern, Timeline};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

pub use compare::Comparison;
pub use gather::gather;
pub use lines::{shown, summary};

/// Version of the report as JSON: it rises when what was there changes its meaning.
const VERSION: u32 = 1;
/// Most bytes of a report.
const FILE_MAX: u64 = 256 << 20;

/// What a job did. Times are milliseconds since the timeline began; sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`VERSION`].
    pub report: u32,
    /// Release of the command.
    pub release: String,
    /// The formation's name.
    pub name: String,
    /// How many nodes it has.
    pub nodes: u64,
    /// When this was made, in milliseconds since 1970.
    pub unix_ms: u64,
    /// When the timeline began, in milliseconds since 1970.
    pub began_unix_ms: u64,
    /// From the first use of a file to the last.
    pub span_ms: u64,
    /// What to change, what gains most first.
    pub findings: Vec<Finding>,
    /// What is not in here.
    pub notes: Vec<String>,
    /// All reads and writes.
    pub total: Pattern,
    /// What was done when.
    pub timeline: Timeline,
    /// The same by seconds of the last half hour, and by minutes.
    #[serde(default)]
    pub history: History,
    /// What each node served when.
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
    /// What nodes served.
    pub operations: Vec<OperationRow>,
    /// What was copied between the formation and site storage.
    pub site: SiteRow,
}

/// What reports of all versions have.
#[derive(Deserialize)]
struct Versioned {
    report: u32,
}

/// A file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FileRow {
    /// Its path in the formation; of one that is gone the directory that it was made in.
    pub path: String,
    /// Whether it is gone, or has no name that was found.
    pub gone: bool,
    /// Its bytes when this was made, if it was still there.
    #[serde(default)]
    pub size: Option<u64>,
    /// Bytes of a stripe.
    pub stripe: u64,
    /// Processes that used it.
    pub processes: u64,
    /// Whether there may be more of them.
    pub or_more: bool,
    /// When it was used first, and last.
    pub first_ms: u64,
    /// See there.
    pub last_ms: u64,
    /// What was done.
    pub pattern: Pattern,
}

/// What a node served when: requests, the bytes that went with answers (`read`) and that came (`written`), and how long
/// they took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServedRow {
    /// Which.
    pub node: u16,
    /// What it served.
    #[serde(flatten)]
    pub history: History,
}

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessRow {
    /// What it runs.
    pub program: String,
    /// Its number on its host; 0 if that could not be seen.
    pub pid: u32,
    /// The host whose mount it used; nothing of one that used the library or the preload.
    pub host: Option<String>,
    /// When it did something first, and last.
    pub first_ms: u64,
    /// See there.
    pub last_ms: u64,
    /// What it did.
    pub pattern: Pattern,
}

/// An operation, as nodes served it to clients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OperationRow {
    /// As docs/protocol.md names it.
    pub name: String,
    /// How often.
    pub count: u64,
    /// How long all of them took together.
    pub total_us: u64,
    /// The range of the median, and of 99 of 100.
    pub p50_us: u64,
    /// See there.
    pub p99_us: u64,
}

/// What was copied.
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
    /// What programs read and wrote here in files without a source.
    pub here: u64,
}

impl SiteRow {
    /// What site storage was spared.
    pub fn spared(&self) -> u64 {
        self.here.saturating_sub(self.staged_in.saturating_add(self.staged_out))
    }
}

/// In which form a report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// For people.
    Text,
    /// For programs, and `--compare`.
    Json,
    /// For browsers.
    Html,
}

impl Form {
    /// As the name of a file says.
    pub fn of(path: &Path) -> Form {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("json") => Form::Json,
            Some("html" | "htm") => Form::Html,
            _ => Form::Text,
        }
    }
}

impl Report {
    /// The report, and how it compares with an earlier one.
    pub fn render(&self, form: Form, comparison: Option<&Comparison>) -> Result<String, Failure> {
        Ok(match form {
            Form::Text => text::text(self, comparison),
            Form::Html => html::page(self, comparison),
            Form::Json => {
                let mut value = serde_json::to_value(self).map_err(std::io::Error::from)?;
                if let (Some(object), Some(comparison)) = (value.as_object_mut(), comparison) {
                    let compared = serde_json::to_value(comparison).map_err(std::io::Error::from)?;
                    object.insert("comparison".into(), compared);
                }
                serde_json::to_string_pretty(&value).map_err(std::io::Error::from)? + "\n"
            }
        })
    }

    /// A report that was written as JSON, named by an option.
    pub fn read(option: &str, path: &Path) -> Result<Report, Failure> {
        let failed = |cause: String| {
            let remedy = "name a file that `bivouac report --json FILE` has written";
            Failure::new(1, format_args!("{option} {}: {cause}; {remedy}", path.display()))
        };
        let found = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?;
        if !found.is_file() || found.len() > FILE_MAX {
            let cause = if found.is_file() { "is too large for a report" } else { "is no regular file" };
            return Err(failed(cause.into()));
        }
        let text = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
        let no_report = |error: serde_json::Error| failed(format!("is no report: {error}"));
        // Of another version nothing else may be as it is here.
        match serde_json::from_slice::<Versioned>(&text).map_err(no_report)?.report {
            VERSION => serde_json::from_slice(&text).map_err(no_report),
            other => Err(failed(format!("is a report of version {other}, and this release has {VERSION}"))),
        }
    }
}

/// A file that a report is to be written to. That it can be is known before there is one.
#[derive(Debug)]
pub struct Target {
    path: PathBuf,
    form: Form,
}

impl Target {
    /// Looks whether it can be written. What is there stays until there is a report, and what is not there is not made.
    pub fn new(path: &Path, form: Form) -> Result<Target, Failure> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let target = Target { path, form };
        let mut open = OpenOptions::new();
        match open.append(true).open(&target.path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                open.create_new(true).open(&target.path).map_err(|error| target.failed(&error))?;
                std::fs::remove_file(&target.path).map_err(|error| target.failed(&error))?;
            }
            opened => drop(opened.map_err(|error| target.failed(&error))?),
        }
        Ok(target)
    }

    /// Writes it.
    pub fn write(&self, report: &Report, comparison: Option<&Comparison>) -> Result<(), Failure> {
        let text = report.render(self.form, comparison)?;
        std::fs::write(&self.path, text).map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &std::io::Error) -> Failure {
        let path = self.path.display();
        Failure::new(
            1,
            format_args!("{path}: {error}; the report cannot be written there: name another file"),
        )
    }
}

/// The part of its time that a process waited for these.
fn share_of(counts: &Counts, time_ms: u64) -> f64 {
    (counts.spent_ns as f64 / (time_ms.max(1) as f64 * 1e6)).min(1.0)
}
