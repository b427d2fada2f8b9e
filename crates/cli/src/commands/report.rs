//! `bivouac report`.

use std::path::Path;
use std::process::ExitCode;

use bivouac_launch::{Environment, StateDir};
use bivouac_monitor::report::{Comparison, gather};

use crate::failure::Failure;
use crate::options::ReportArgs;
use crate::report_file::{ReportFormat, ReportTarget, read};

/// Says what a formation was used for until now, or until a report was written.
pub fn run(here: &Environment, args: &ReportArgs) -> Result<ExitCode, Failure> {
    let (path, form) = match (&args.html, &args.json) {
        (Some(path), _) => (Some(path.as_path()), ReportFormat::Html),
        (None, Some(path)) => (Some(path.as_path()), ReportFormat::Json),
        (None, None) => (None, ReportFormat::Text),
    };
    let old = args.compare.as_deref().map(|path| read("--compare", path)).transpose()?;
    // Before the formation is asked, which takes a while: a file that cannot be written is said at once.
    let target =
        path.filter(|path| *path != Path::new("-")).map(|path| ReportTarget::new(path, form)).transpose()?;
    let report = match &args.from {
        Some(path) => read("--from", path)?,
        None => gather(&StateDir::find_whole(here, args.which.name())?.1)?,
    };
    let comparison = old.map(|old| Comparison::between(&old, &report));
    match target {
        Some(target) => target.write(&report, comparison.as_ref())?,
        None => out!("{}", form.render(&report, comparison.as_ref())?),
    }
    Ok(ExitCode::SUCCESS)
}
