//! Files with reports of jobs.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use bivouac_monitor::report::{Comparison, JobReport};

use crate::environment::has_utf8;
use crate::failure::Failure;

/// Most bytes of a report.
const FILE_MAX: u64 = 256 << 20;

/// Format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportFormat {
    /// For people.
    Text,
    /// For programs, and `--compare`.
    Json,
    /// For browsers.
    Html,
}

impl ReportFormat {
    /// Returns the form that the name of a file says: a name without an extension has text.
    ///
    /// # Errors
    /// A sentence about an extension that says no form.
    pub fn of(path: &Path) -> Result<ReportFormat, String> {
        let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
        match extension.as_deref() {
            Some("json") => Ok(ReportFormat::Json),
            Some("html" | "htm") => Ok(ReportFormat::Html),
            Some("txt" | "text" | "log" | "") | None => Ok(ReportFormat::Text),
            Some(other) => Err(format!(
                "no report has the form '.{other}'; write a name that ends in .html, .json or .txt"
            )),
        }
    }

    /// Returns a report in this form, and how it compares with an earlier one.
    pub fn render(self, report: &JobReport, comparison: Option<&Comparison>) -> Result<String, Failure> {
        Ok(match self {
            ReportFormat::Text => report.to_text(comparison, has_utf8()),
            ReportFormat::Html => report.to_html(comparison),
            ReportFormat::Json => report.to_json(comparison).map_err(std::io::Error::from)?,
        })
    }
}

/// Reads a report that was written as JSON, named by an option.
pub fn read(option: &str, path: &Path) -> Result<JobReport, Failure> {
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
    JobReport::parse(&text).map_err(failed)
}

/// A file that a report is to be written to. That it can be is known before there is one.
#[derive(Debug)]
pub struct ReportTarget {
    path: PathBuf,
    form: ReportFormat,
}

impl ReportTarget {
    /// Looks whether it can be written. What is there stays until there is a report, and what is not there is not made.
    pub fn new(path: &Path, form: ReportFormat) -> Result<ReportTarget, Failure> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let target = ReportTarget { path, form };
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
    pub fn write(&self, report: &JobReport, comparison: Option<&Comparison>) -> Result<(), Failure> {
        let text = self.form.render(report, comparison)?;
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
