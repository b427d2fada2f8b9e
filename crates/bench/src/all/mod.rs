//! Every budget in one go, each beside its limit.

pub mod budgets;
mod machine;
mod many;
mod steps;

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::output::{OutputArgs, write_chart, write_json};
use crate::report::Report;
use crate::scratch::MEMORY_DIR;
use crate::{BenchError, BenchResult, Host, chart, startup};
use budgets::{Verdict, markdown, text};
use machine::Machine;
use steps::{Size, SuiteStep};

/// Measure every budget beside its limit: mount, library, remote data, metadata, start, idle
#[derive(Args, Clone, Debug)]
pub struct AllArgs {
    /// Little data and few repetitions: about a minute (this is the default)
    #[arg(long, conflicts_with = "full")]
    pub quick: bool,
    /// More data and repetitions, for figures that are to be published
    #[arg(long)]
    pub full: bool,
    /// Write tables (Markdown), figures (JSON) and charts (SVG) into DIR, which is made if it is missing
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Directory of a file system in memory that is the limit of local data
    #[arg(long, default_value = MEMORY_DIR, value_name = "DIR")]
    pub memory: PathBuf,
}

/// Everything that was found.
#[derive(Debug, Serialize)]
struct Outcome {
    machine: Machine,
    verdicts: Vec<Verdict>,
    tables: Vec<Table>,
}

/// A table with the name of its files.
#[derive(Debug, Serialize)]
struct Table {
    name: &'static str,
    #[serde(flatten)]
    report: Report,
}

/// Runs `bench all`. A part that fails is said and does not keep the others from being measured.
///
/// # Errors
/// When somebody asks to end, or a file cannot be written; not for budgets that are not met.
pub fn run(host: &Host<'_>, args: &AllArgs) -> BenchResult<()> {
    let size = if args.full { Size::full() } else { Size::quick() };
    // Before the first measurement, which takes minutes: that it cannot be written down is said at once.
    let _made = args.out.as_deref().map(place_for).transpose()?;
    let machine = Machine::look();
    host.print(&format!("{machine}\n"))?;
    let mut outcome = Outcome { machine, verdicts: Vec::new(), tables: Vec::new() };
    for step in SuiteStep::ALL.iter().copied() {
        host.say(step.word());
        match step.measure(host, &args.memory, &size) {
            Ok(tables) => {
                for (name, report) in tables {
                    host.print(&format!("\n{}", report.text()))?;
                    outcome.verdicts.extend(budgets::judge(name, &report));
                    outcome.tables.push(Table { name, report });
                }
            }
            // An interruption is not a part that failed: nothing else is begun.
            Err(error) if error.kind() == crate::Kind::Interrupted => return Err(error),
            Err(error) => outcome.verdicts.push(Verdict::failed(step.word(), &error)),
        }
    }
    host.print(&format!("\n{}", text(&outcome.verdicts)))?;
    args.out.as_ref().map_or(Ok(()), |dir| write(dir, &outcome))
}

/// A directory that was made, and goes again if nothing comes into it.
struct EmptyDirGuard<'d>(&'d Path);

impl Drop for EmptyDirGuard<'_> {
    fn drop(&mut self) {
        // Refused as soon as it has something in it.
        let _ = std::fs::remove_dir(self.0);
    }
}

/// Sees to it that figures can be written into a directory, before they are measured.
fn place_for(dir: &Path) -> BenchResult<Option<EmptyDirGuard<'_>>> {
    let is_new = !dir.exists();
    std::fs::create_dir_all(dir).map_err(|error| {
        BenchError::usage(
            format_args!("--out {}", dir.display()),
            error,
            "name a directory that can be written to",
        )
    })?;
    let made = is_new.then(|| EmptyDirGuard(dir));
    // Whether a directory takes files shows only when one is made.
    OutputArgs { json: Some(dir.join("figures.json")), svg: None }.check()?;
    Ok(made)
}

fn write(dir: &Path, outcome: &Outcome) -> BenchResult<()> {
    std::fs::create_dir_all(dir).map_err(BenchError::system(dir.display()))?;
    write_json(&dir.join("figures.json"), outcome)?;
    let mut document = format!("# Figures\n\n{}\n\n{}", outcome.machine, markdown(&outcome.verdicts));
    for Table { name, report } in &outcome.tables {
        document.push_str(&format!("\n## {name}\n\n{}\n![{name}]({name}.svg)\n", report.markdown()));
        let svg = if *name == steps::STARTUP { startup::chart(report) } else { chart::bars(report) };
        write_chart(&dir.join(format!("{name}.svg")), &svg)?;
    }
    let path = dir.join("figures.md");
    std::fs::write(&path, document).map_err(BenchError::system(path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;
    use crate::tests::host;

    #[test]
    fn a_directory_that_cannot_be_written_to_is_said_before_and_an_empty_one_goes() {
        let dir = tempfile::tempdir().unwrap();
        let error = place_for(Path::new("/proc/none")).map(drop).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().starts_with("--out /proc/none: "), "{error}");
        assert!(place_for(dir.path()).unwrap().is_none() && dir.path().exists());
        let new = dir.path().join("new");
        drop(place_for(&new).unwrap());
        assert!(!new.exists());
        let made = place_for(&new).unwrap();
        std::fs::write(new.join("figures.json"), "{}").unwrap();
        drop(made);
        assert!(new.join("figures.json").exists());
    }

    #[test]
    fn all_is_written_in_three_forms() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("new");
        let outcome = Outcome {
            machine: Machine::look(),
            verdicts: vec![Verdict::failed("idle", &BenchError::refused("x", "y"))],
            tables: vec![Table { name: "mount-1m", report: sample() }],
        };
        write(&dir, &outcome).unwrap();
        let document = std::fs::read_to_string(dir.join("figures.md")).unwrap();
        assert!(document.contains("| write | mount |") && document.contains("![mount-1m](mount-1m.svg)"));
        assert!(std::fs::read_to_string(dir.join("mount-1m.svg")).unwrap().starts_with("<svg"));
        let json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(dir.join("figures.json")).unwrap()).unwrap();
        assert_eq!(json["tables"][0]["name"], "mount-1m");
        assert_eq!(json["tables"][0]["rows"][0]["targets"][0]["values"][1], 2.0);
    }

    #[test]
    fn parts_that_fail_are_said_and_the_others_go_on() {
        let dir = tempfile::tempdir().unwrap();
        let args = AllArgs {
            quick: true,
            full: false,
            out: Some(dir.path().join("out")),
            memory: dir.path().to_owned(),
        };
        // There is no binary to start formations with.
        run(&host(), &args).unwrap();
        let json = std::fs::read_to_string(dir.path().join("out/figures.json")).unwrap();
        assert_eq!(json.matches("bivouac up: No such file").count(), SuiteStep::ALL.len(), "{json}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "only `out` is left");
    }
}
