//! `bivouac fsck`: whether what a formation keeps is sound, and making it so.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, IsTerminal};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bivouac_fsck::{
    Destination, Finding, OfflineArgs, Outcome, Progress, RebuildResult, RebuiltFile, RepairOptions, Report,
    check_offline, check_online, rebuild_files,
};
use bivouac_launch::{Environment, FormationName, FormationState, StateDir};
use bivouac_monitor::connect;
use bivouac_store::IDENTITY_NAME;
use bivouac_types::units::{format_count, format_size};
use bivouac_wire::FormationMap;
use indicatif::ProgressBar;
use serde::Serialize;

use crate::failure::{CODE_FSCK_FAILED, CODE_FSCK_USAGE, Failure};
use crate::options::FsckArgs;
use crate::table::layout;

/// Longest wait for a node's answer.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// File of a formation's directory that says what there is.
const STATE_FILE: &str = "state.json";

/// Checks; the exit code is that of fsck(8).
pub fn run(here: &Environment, args: &FsckArgs) -> Result<ExitCode, Failure> {
    let outcome = match (args.from_subfiles, args.offline) {
        (true, _) => rebuild(here, args),
        (false, true) => offline(here, args),
        (false, false) => online(here, args),
    };
    // Its own codes also for failures of other parts of the program: scripts of administrators know those of fsck(8).
    outcome.map(ExitCode::from).map_err(as_of_fsck)
}

/// Failures have the codes of fsck(8), too.
fn as_of_fsck(failure: Failure) -> Failure {
    match failure.exit_code() {
        2 | CODE_FSCK_USAGE => failure.with_code(CODE_FSCK_USAGE),
        _ => failure.with_code(CODE_FSCK_FAILED),
    }
}

fn usage(text: impl std::fmt::Display) -> Failure {
    Failure::new(CODE_FSCK_USAGE, text)
}

fn online(here: &Environment, args: &FsckArgs) -> Result<u8, Failure> {
    let named = match args.targets.as_slice() {
        [] => args.which.name.clone(),
        [one] if args.which.name.is_none() => Some(name_of(one)?),
        _ => {
            return Err(usage("fsck: more than one formation is named; name one, or volumes with --offline"));
        }
    };
    let (_, dir) = StateDir::find_whole(here, named.as_ref())?;
    let client = connect(&dir, &dir.read_living()?, ANSWER_WAIT)?;
    let told = CheckProgress::begin();
    let report = check_online(&client, args.scrub, &told);
    told.end();
    show(&report?, args)
}

fn name_of(operand: &Path) -> Result<FormationName, Failure> {
    let text = operand.to_string_lossy();
    text.parse()
        .map_err(|error| usage(format_args!("'{text}' is no formation: {error}; volumes need --offline")))
}

fn offline(here: &Environment, args: &FsckArgs) -> Result<u8, Failure> {
    let OfflineVolumes { volumes, map } = find(here, args)?;
    let leave = RepairOptions { discard_unreferenced: args.discard_unreferenced };
    let told = CheckProgress::begin();
    let report =
        check_offline(&OfflineArgs { volumes, map, repair: args.repair, compare: args.scrub }, leave, &told);
    told.end();
    show(&report?, args)
}

/// Contents of the named places.
#[derive(Default)]
struct OfflineVolumes {
    volumes: Vec<PathBuf>,
    map: Option<FormationMap>,
}

/// Returns the volumes that are meant: named themselves, or by a formation, its directory or its state file.
fn find(here: &Environment, args: &FsckArgs) -> Result<OfflineVolumes, Failure> {
    let mut found = OfflineVolumes::default();
    if args.targets.is_empty() {
        let (_, dir) = StateDir::find(here, args.which.name.as_ref())?;
        found.add_state(&dir)?;
    }
    for operand in &args.targets {
        found.add(here, operand)?;
    }
    match found.volumes.is_empty() {
        true => Err(Failure::new(
            CODE_FSCK_FAILED,
            "none of the formation's volumes is on this machine; name where they are",
        )),
        false => Ok(found),
    }
}

impl OfflineVolumes {
    fn add(&mut self, here: &Environment, operand: &Path) -> Result<(), Failure> {
        if operand.join(IDENTITY_NAME).exists() {
            self.volumes.push(operand.to_owned());
            return Ok(());
        }
        if operand.join(STATE_FILE).exists() {
            return self.add_state(&StateDir::at(operand.to_owned()));
        }
        if operand.ends_with(STATE_FILE) && operand.exists() {
            return self.add_state(&StateDir::at(operand.parent().unwrap_or(Path::new(".")).to_owned()));
        }
        let is_dir = operand.is_dir();
        let below = if is_dir { volumes_below(operand)? } else { None };
        if let Some(below) = below {
            self.volumes.extend(below);
            return Ok(());
        }
        // What is here may be called like a formation without being part of it.
        let what = match is_dir {
            true => "is no volume, nor are directories in it; name volumes",
            false => "is not there; name volumes, or the directory of a formation's state",
        };
        let name = name_of(operand).map_err(|_| usage(format_args!("{}: {what}", operand.display())))?;
        match StateDir::find(here, Some(&name)) {
            Err(_) if is_dir => Err(usage(format_args!("{}: {what}", operand.display()))),
            found => self.add_state(&found?.1),
        }
    }

    fn add_state(&mut self, dir: &StateDir) -> Result<(), Failure> {
        let none = || usage(format_args!("{}: has no state of a formation", dir.path().display()));
        let state: FormationState = dir.read()?.ok_or_else(none)?;
        // Beside a daemon that writes, a check finds what is only under way, and a repair destroys it.
        if dir.is_held() {
            let name = &state.name;
            let text = format_args!(
                "formation {name}: is running; check it with `bivouac fsck {name}`, or bring it down first"
            )
            .to_string();
            return Err(Failure::new(CODE_FSCK_FAILED, text));
        }
        let volumes = state.nodes.iter().flat_map(|node| &node.volumes).map(|volume| volume.path.clone());
        // Of a formation over several hosts those of the others are not here.
        self.volumes.extend(volumes.filter(|path| path.exists()));
        self.map = state.map();
        Ok(())
    }
}

/// Directories with an identity in a directory, in order; `None` if there are none.
fn volumes_below(dir: &Path) -> Result<Option<Vec<PathBuf>>, Failure> {
    let entries = std::fs::read_dir(dir)?.collect::<io::Result<Vec<_>>>()?;
    let mut found: Vec<PathBuf> =
        entries.iter().map(|entry| entry.path()).filter(|path| path.join(IDENTITY_NAME).exists()).collect();
    found.sort();
    Ok((!found.is_empty()).then_some(found))
}

fn show(report: &Report, args: &FsckArgs) -> Result<u8, Failure> {
    let code = report.exit_code();
    if args.json {
        #[derive(Serialize)]
        struct CheckOutput<'a> {
            exit_code: u8,
            #[serde(flatten)]
            report: &'a Report,
        }
        let shown = CheckOutput { exit_code: code, report };
        outln!("{}", crate::output::json(&shown, true)?);
    } else {
        out!("{}", to_text(report));
    }
    Ok(code)
}

fn to_text(report: &Report) -> String {
    let mut text = String::new();
    if !report.findings.is_empty() {
        let row = |finding: &Finding| vec![word(finding.outcome).into(), kind(finding), finding.to_string()];
        let rows: Vec<Vec<String>> = report.findings.iter().map(row).collect();
        text.push_str(&layout(&["OUTCOME", "KIND", "WHAT"], &[], &rows));
        text.push('\n');
    }
    report.unchecked.iter().for_each(|what| text.push_str(&format!("not checked: {what}\n")));
    report.notes.iter().for_each(|note| text.push_str(&format!("note: {note}\n")));
    let totals = &report.totals;
    let count = |outcome| report.findings.iter().filter(|finding| finding.outcome == outcome).count();
    text.push_str(&format!(
        "{}: {}, {} of them directories; {}; {} with {}\n",
        format_count(totals.nodes, "node"),
        format_count(totals.inodes, "inode"),
        totals.directories,
        if totals.entries == 1 { "1 entry".to_owned() } else { format!("{} entries", totals.entries) },
        format_count(totals.subfiles, "subfile"),
        format_size(totals.allocated_bytes)
    ));
    let left = count(Outcome::Left) + count(Outcome::Repairable);
    text.push_str(&match (left, count(Outcome::Repaired)) {
        (0, 0) => "no findings\n".to_owned(),
        (left, repaired) => format!("{} findings: {repaired} repaired, {left} left\n", left + repaired),
    });
    text
}

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Left => "left",
        Outcome::Repairable => "repairable",
        Outcome::Repaired => "repaired",
    }
}

/// Returns the kind's name as `--json` has it.
fn kind(finding: &Finding) -> String {
    serde_json::to_value(finding.kind)
        .ok()
        .and_then(|kind| kind.as_str().map(str::to_owned))
        .unwrap_or_default()
}

fn rebuild(here: &Environment, args: &FsckArgs) -> Result<u8, Failure> {
    let OfflineVolumes { volumes, .. } = find(here, args)?;
    let dir = args.out.as_deref().ok_or_else(|| usage("--from-subfiles needs --out DIR"))?;
    let out = Directory::make(dir)?;
    let told = CheckProgress::begin();
    let rebuilt = rebuild_files(&volumes, &out, &told);
    told.end();
    let (files, unusable) = rebuilt?;
    let all_well = unusable.is_empty() && files.iter().all(|file| file.complete);
    let code = if all_well { 0 } else { 4 };
    if args.json {
        #[derive(Serialize)]
        struct CheckOutput {
            exit_code: u8,
            files: Vec<RebuildResult>,
            unusable: Vec<String>,
        }
        let shown = CheckOutput { exit_code: code, files, unusable };
        outln!("{}", crate::output::json(&shown, true)?);
    } else {
        out!("{}", rebuilt_text(&files, &unusable, dir));
    }
    Ok(code)
}

fn rebuilt_text(files: &[RebuildResult], unusable: &[String], dir: &Path) -> String {
    let targets = |targets: &[u16]| match targets {
        [] => "-".to_owned(),
        some => some.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
    };
    let row = |file: &RebuildResult| {
        let state = if file.complete { "complete" } else { "incomplete" };
        vec![
            file.inode.clone(),
            file.size.to_string(),
            state.into(),
            targets(&file.missing_targets),
            targets(&file.empty_targets),
            conflicts_of(file),
        ]
    };
    let head = ["FILE", "SIZE", "STATE", "TARGETS MISSING", "TARGETS EMPTY", "CONFLICTS"];
    let rows: Vec<Vec<String>> = files.iter().map(row).collect();
    let mut text = layout(&head, &[1], &rows);
    unusable.iter().for_each(|what| text.push_str(&format!("not used: {what}\n")));
    let complete = files.iter().filter(|file| file.complete).count();
    text.push_str(&format!(
        "{} in {}, {complete} of them complete; sizes are those that the subfiles explain: a hole at the end of a file is not seen\n",
        format_count(files.len() as u64, "file"),
        dir.display()
    ));
    text
}

/// Returns what is inconsistent in a file, or damaged, as text.
fn conflicts_of(file: &RebuildResult) -> String {
    let wrong = |(from, to): &(u64, u64)| format!("bytes {from} to {to} are wrong by their checksums");
    file.conflicts.iter().cloned().chain(file.wrong.iter().map(wrong)).collect::<Vec<_>>().join("; ")
}

/// The directory that rebuilt files go to.
struct Directory(PathBuf);

impl Directory {
    fn make(dir: &Path) -> Result<Directory, Failure> {
        let failed = |error: io::Error| {
            Failure::new(
                CODE_FSCK_FAILED,
                format_args!("{}: {error}; name an empty directory, or one to be made", dir.display()),
            )
        };
        match DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if std::fs::read_dir(dir).map_err(failed)?.next().is_some() {
                    return Err(usage(format_args!(
                        "{}: is not empty; name an empty directory, or one to be made",
                        dir.display()
                    )));
                }
            }
            made => made.map_err(failed)?,
        }
        Ok(Directory(dir.to_owned()))
    }
}

impl Destination for Directory {
    fn create(&self, name: &str) -> io::Result<Box<dyn RebuiltFile>> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.0.join(name))?;
        Ok(Box::new(OutFile(file)))
    }
}

struct OutFile(File);

impl RebuiltFile for OutFile {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn finish(&mut self, size: u64) -> io::Result<()> {
        // A hole at its end is written by nobody.
        self.0.set_len(size)?;
        self.0.sync_all()
    }
}

/// Shows on a terminal how far a check is.
struct CheckProgress(Option<ProgressBar>);

impl CheckProgress {
    fn begin() -> CheckProgress {
        CheckProgress(io::stderr().is_terminal().then(ProgressBar::new_spinner))
    }

    fn end(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

impl Progress for CheckProgress {
    fn at(&self, phase: &'static str, done: u64) {
        if let Some(bar) = &self.0 {
            bar.set_message(format!("{phase}: {done}"));
            bar.tick();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_ends_with_its_numbers() {
        let text = to_text(&Report::default());
        assert!(text.ends_with("no findings\n") && text.starts_with("0 nodes: 0 inodes"), "{text}");
        let report = Report {
            unchecked: vec!["node 1 was away".into()],
            notes: vec!["n".into()],
            ..Report::default()
        };
        assert!(to_text(&report).starts_with("not checked: node 1 was away\nnote: n\n"));
    }

    #[test]
    fn rebuilt_files_are_listed_with_what_they_lack() {
        let file = RebuildResult {
            inode: "2f".into(),
            size: 7,
            missing_targets: vec![1, 2],
            ..RebuildResult::default()
        };
        let text = rebuilt_text(&[file], &["x: damaged".into()], Path::new("/o"));
        assert!(text.contains("2f       7  incomplete  1,2              -"), "{text}");
        assert!(text.contains("not used: x: damaged\n1 file in /o, 0 of them complete"), "{text}");
    }

    #[test]
    fn failures_have_the_codes_of_fsck() {
        assert_eq!(as_of_fsck(Failure::new(1, "x")).exit_code(), 8);
        assert_eq!(as_of_fsck(Failure::new(2, "x")).exit_code(), 16);
        assert_eq!(as_of_fsck(usage("x")).exit_code(), 16);
    }

    #[test]
    fn rebuilt_files_go_into_an_empty_directory() {
        let dir = tempfile::tempdir().unwrap();
        let out = Directory::make(&dir.path().join("new")).unwrap();
        let mut file = out.create("f").unwrap();
        file.write_at(b"x", 3).unwrap();
        file.finish(6).unwrap();
        assert_eq!(std::fs::read(dir.path().join("new/f")).unwrap(), b"\0\0\0x\0\0");
        let failure = Directory::make(&dir.path().join("new")).err().unwrap();
        assert!(failure.to_string().ends_with("is not empty; name an empty directory, or one to be made"));
    }
}
