//! `bivouac report`.

use std::path::Path;
use std::process::ExitCode;

use bivouac_launch::{Environment, StateDir};

use crate::failure::Failure;
use crate::options::ReportArgs;
use crate::report::{Comparison, Form, Report, Target, gather};

/// Says what a formation was used for until now, or until a report was written.
pub fn run(here: &Environment, args: &ReportArgs) -> Result<ExitCode, Failure> {
    let (path, form) = match (&args.html, &args.json) {
        (Some(path), _) => (Some(path.as_path()), Form::Html),
        (None, Some(path)) => (Some(path.as_path()), Form::Json),
        (None, None) => (None, Form::Text),
    };
    let old = args.compare.as_deref().map(|path| Report::read("--compare", path)).transpose()?;
    let target =
        path.filter(|path| *path != Path::new("-")).map(|path| Target::new(path, form)).transpose()?;
    let report = match &args.from {
        Some(path) => Report::read("--from", path)?,
        None => gather(&StateDir::find_whole(here, args.which.name.as_ref())?.1)?,
    };
    let comparison = old.map(|old| Comparison::between(&old, &report));
    match target {
        Some(target) => target.write(&report, comparison.as_ref())?,
        None => out!("{}", report.render(form, comparison.as_ref())?),
    }
    Ok(ExitCode::SUCCESS)
}
