//! Destinations of reports: the terminal, JSON, charts.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use serde::Serialize;

use crate::report::Report;
use crate::{BenchError, BenchResult, Host, chart};

/// Programs that turn SVG into PNG, with what to write in front of the two names.
const CONVERTERS: [(&str, &[&str]); 2] = [("rsvg-convert", &["-o"]), ("convert", &[])];

/// Destinations of the figures beside the terminal.
#[derive(Args, Clone, Debug, Default)]
pub struct OutputArgs {
    /// Write the figures of every repetition to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a chart to FILE, as SVG; also as PNG beside it where a converter is installed
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

impl OutputArgs {
    /// Looks whether all can be written, before anything is measured in vain. What is there stays as it is.
    ///
    /// # Errors
    /// Names the file, and why not.
    pub fn check(&self) -> BenchResult<()> {
        for (option, path) in [("--json", &self.json), ("--svg", &self.svg)] {
            let Some(path) = path else { continue };
            let found = fs::symlink_metadata(path);
            if fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
                // Somebody may read there until it is closed.
                continue;
            }
            let opened = fs::File::options().append(true).create(true).open(path);
            let object = format_args!("{option} {}", path.display());
            opened.map_err(|error| BenchError::usage(object, error, "name a file that can be written"))?;
            // Only what was made by this: what stood there before stays until it is written.
            if found.is_err() {
                fs::remove_file(path).map_err(BenchError::system(path.display()))?;
            }
        }
        Ok(())
    }
}

/// Shows a report, and writes what was asked for.
///
/// # Errors
/// When a file cannot be written.
pub fn show(host: &Host<'_>, report: &Report, output: &OutputArgs) -> BenchResult<()> {
    host.print(&report.text())?;
    if let Some(path) = &output.json {
        write_json(path, report)?;
    }
    if let Some(path) = &output.svg {
        write_chart(path, &chart::bars(report))?;
    }
    Ok(())
}

/// Writes a value as JSON.
///
/// # Errors
/// When the file cannot be written.
pub fn write_json(path: &Path, value: &impl Serialize) -> BenchResult<()> {
    let mut text =
        serde_json::to_vec_pretty(value).map_err(|error| BenchError::refused(path.display(), error))?;
    text.push(b'\n');
    fs::write(path, text).map_err(BenchError::system(path.display()))
}

/// Writes a chart, and a PNG beside it if this machine can make one.
///
/// # Errors
/// When the SVG cannot be written.
pub fn write_chart(path: &Path, svg: &str) -> BenchResult<()> {
    fs::write(path, svg).map_err(BenchError::system(path.display()))?;
    let png = path.with_extension("png");
    for (program, between) in CONVERTERS {
        // rsvg-convert: -o OUT IN; convert: IN OUT.
        let names: [&OsStr; 2] = if between.is_empty() {
            [path.as_os_str(), png.as_os_str()]
        } else {
            [png.as_os_str(), path.as_os_str()]
        };
        let mut command = Command::new(program);
        command.args(between).args(names).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // A chart is complete without it, so a converter that fails is no failure.
        if command.status().is_ok_and(|status| status.success()) {
            return Ok(());
        }
    }
    log::info!("{}: no PNG beside it, as neither rsvg-convert nor convert could make one", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;
    use crate::tests::host;

    #[test]
    fn a_report_goes_to_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let output =
            OutputArgs { json: Some(dir.path().join("a.json")), svg: Some(dir.path().join("a.svg")) };
        show(&host(), &sample(), &output).unwrap();
        let json = fs::read(dir.path().join("a.json")).unwrap();
        assert_eq!(serde_json::from_slice::<Report>(&json).unwrap(), sample());
        assert_eq!(fs::read_to_string(dir.path().join("a.svg")).unwrap(), chart::bars(&sample()));
    }

    #[test]
    fn what_cannot_be_written_is_said_before_anything_is_measured() {
        let dir = tempfile::tempdir().unwrap();
        let (there, new) = (dir.path().join("there"), dir.path().join("new"));
        fs::write(&there, "kept").unwrap();
        let check = |json: &Path, svg: &Path| {
            OutputArgs { json: Some(json.to_owned()), svg: Some(svg.to_owned()) }.check()
        };
        assert_eq!(check(&there, &new), Ok(()));
        assert_eq!((fs::read_to_string(&there).unwrap().as_str(), new.exists()), ("kept", false));
        assert_eq!(check(Path::new("/dev/null"), &new), Ok(()));
        let error = check(&there, dir.path()).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().starts_with("--svg /"), "{error}");
        assert!(check(&dir.path().join("none/a"), &new).is_err() && !new.exists());
        std::os::unix::fs::symlink("target", dir.path().join("link")).unwrap();
        assert!(check(&dir.path().join("link"), &new).is_ok());
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let output = OutputArgs { json: Some("/proc/none/a.json".into()), svg: None };
        let error = show(&host(), &sample(), &output).unwrap_err().to_string();
        assert!(error.starts_with("/proc/none/a.json: "), "{error}");
    }
}
