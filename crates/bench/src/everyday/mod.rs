//! Everyday work: what people do with a tree of small files, by the programs that they do it with.

mod tree;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use bivouac_types::units::format_size;
use clap::Args;

use self::tree::{NEEDLE, Tree};
use crate::formation::Formation;
use crate::measure::{alternate, check_reps, in_range};
use crate::meta::targets::{self, LIMIT};
use crate::output::{OutputArgs, show};
use crate::report::{Figure, Report, Unit};
use crate::scratch::{MEMORY_DIR, Scratch, check_room};
use crate::startup::nodes_name;
use crate::{BenchError, BenchResult, Host, clock, command};

/// Most files of a tree of the measurement's own.
const FILES_MAX: u64 = 1_000_000;
/// Copies of the tree that a directory has at once: unpacked, copied, and as git's objects.
const COPIES: u64 = 3;
/// Largest cost of a small file besides its bytes.
const FILE_COST: u64 = 8 << 10;
/// Stands for the path of the archive.
const ARCHIVE: &str = "{archive}";
/// Directory that the tree is unpacked and copied to.
const TREE: &str = "tree";
const COPY: &str = "copy";

/// One program's work, with its arguments; everything is done in a directory that has an empty git repository `tree`.
struct TimedStep {
    what: &'static str,
    program: &'static str,
    arguments: &'static [&'static str],
}

const STEPS: [TimedStep; 7] = [
    TimedStep { what: "tar xf", program: "tar", arguments: &["xf", ARCHIVE, "-C", TREE] },
    TimedStep { what: "find -size", program: "find", arguments: &[TREE, "-type", "f", "-size", "+64k"] },
    TimedStep { what: "grep -rl", program: "grep", arguments: &["-rl", "--exclude-dir=.git", NEEDLE, TREE] },
    TimedStep { what: "cp -r", program: "cp", arguments: &["-r", TREE, COPY] },
    TimedStep { what: "git add -A", program: "git", arguments: &["-C", TREE, "add", "-A"] },
    TimedStep { what: "git status", program: "git", arguments: &["-C", TREE, "status", "--porcelain"] },
    TimedStep { what: "rm -r", program: "rm", arguments: &["-r", COPY] },
];
/// Exit status of `grep` where nothing is found.
const NOTHING_FOUND: i32 = 1;

/// Unpack, search, copy, keep in git and remove a tree of small files, by the programs of this machine
#[derive(Args, Clone, Debug)]
pub struct WorkArgs {
    /// Directories to work in, in turn; the last is the limit of the others [default: --nodes beside --memory]
    #[arg(value_name = "DIR", conflicts_with = "nodes")]
    pub dirs: Vec<PathBuf>,
    /// Formations of so many nodes, started for it; the work is done through the mount of the first node
    #[arg(long, value_delimiter = ',', default_values_t = [1], value_name = "N")]
    pub nodes: Vec<u16>,
    /// Directory of a file system in memory: the limit of --nodes, and where the archive is
    #[arg(long, default_value = MEMORY_DIR, value_name = "DIR")]
    pub memory: PathBuf,
    /// A directory whose files are taken, instead of a tree that is made for it
    #[arg(long, value_name = "DIR", conflicts_with = "files")]
    pub tree: Option<PathBuf>,
    /// Files of the tree that is made
    #[arg(long, default_value_t = 2000, value_name = "N")]
    pub files: u32,
    /// Repetitions
    #[arg(long, default_value_t = 3, value_name = "N")]
    pub reps: u32,
    /// Where the figures go
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Directory of the work, with what it stands on. Members that are declared first end first.
struct WorkDir<'h, 'a> {
    name: String,
    formation: Option<Formation<'h, 'a>>,
    dir: PathBuf,
    // Taken away behind the formation, which is mounted in it.
    _mounts: Option<Scratch>,
}

/// Runs `bench work`.
///
/// # Errors
/// Arguments that make no sense, too little room, a program that is missing, fails, or finds something else than
/// before.
pub fn run(host: &Host<'_>, args: &WorkArgs) -> BenchResult<()> {
    check_reps(args.reps)?;
    in_range("--files", u64::from(args.files), 1, FILES_MAX)?;
    let memory = Scratch::new(&args.memory)?;
    let tree = match &args.tree {
        Some(dir) => Tree::of(dir)?,
        None => Tree::make(&memory.subdir("source")?, args.files)?,
    };
    let archive = memory.path().join("archive");
    let mut pack = Command::new("tar");
    // One of its own: what git has of a given tree would be unpacked over what `git init` makes.
    pack.arg("cf").arg(&archive).arg("--exclude-vcs").arg("-C").arg(&tree.dir).arg(".");
    command::run(host, "tar", &mut pack)?.succeeded("tar")?;
    let places = places(host, args, &memory)?;
    for place in &places {
        check_room(
            &place.dir,
            tree.bytes.saturating_mul(COPIES).saturating_add(tree.files * FILE_COST * COPIES),
        )?;
    }
    let work = Work { archive, files: tree.files, found: RefCell::default() };
    let names: Vec<String> = places.iter().map(|place| place.name.clone()).collect();
    let rows = alternate(host, &names, args.reps, |index| match places.get(index) {
        Some(place) => work.once(host, place),
        None => Ok(Vec::new()),
    })?;
    for place in places {
        place.formation.map_or(Ok(0), |formation| formation.down(host))?;
    }
    let (files, size) = (tree.files, format_size(tree.bytes));
    let title = format!("everyday work on {files} files of {size} together, {} repetitions", args.reps);
    let notes = vec!["the ratio of times is how many times as long it takes".to_owned()];
    show(host, &Report { title, notes, rows }, &args.output)
}

fn places<'h, 'a>(
    host: &'h Host<'a>,
    args: &WorkArgs,
    memory: &Scratch,
) -> BenchResult<Vec<WorkDir<'h, 'a>>> {
    let plain = |name: String, dir: PathBuf| WorkDir { name, formation: None, dir, _mounts: None };
    if !args.dirs.is_empty() {
        return Ok(args.dirs.iter().map(|dir| plain(dir.display().to_string(), dir.clone())).collect());
    }
    let mut places = Vec::new();
    for nodes in &args.nodes {
        let mounts = Scratch::new(&args.memory)?;
        let formation = targets::up(host, *nodes, &mounts)?;
        let dir = formation.mounts().into_iter().next().unwrap_or_default();
        places.push(WorkDir {
            name: nodes_name(*nodes),
            formation: Some(formation),
            dir,
            _mounts: Some(mounts),
        });
    }
    places.push(plain(LIMIT.to_owned(), memory.subdir("plain")?));
    Ok(places)
}

struct Work {
    archive: PathBuf,
    files: u64,
    /// Number of lines that each program printed the first time; it must print as many everywhere.
    found: RefCell<BTreeMap<&'static str, usize>>,
}

impl Work {
    fn once(&self, host: &Host<'_>, place: &WorkDir<'_, '_>) -> BenchResult<Vec<Figure>> {
        let scratch = Scratch::new(&place.dir)?;
        let dir = scratch.path();
        scratch.subdir(TREE)?;
        git(host, dir, &["init", "--quiet", TREE])?;
        let (mut figures, mut requests) = (Vec::new(), place.requests()?);
        for step in &STEPS {
            let start = clock::now_ns();
            let lines = self.perform(host, step, dir)?;
            let took_ns = clock::now_ns().saturating_sub(start);
            figures.push(Figure::new(step.what, Unit::Milliseconds, took_ns as f64 / 1e6));
            self.compare(step.what, lines, dir)?;
            // Between the steps, so that asking nodes for their counts is in no time that is shown.
            let now = place.requests()?;
            if let (Some(before), Some(now)) = (requests, now) {
                let each = now.saturating_sub(before) as f64 / self.files as f64;
                figures.push(Figure::new(format!("{}, requests per file", step.what), Unit::Requests, each));
            }
            requests = now;
        }
        Ok(figures)
    }

    /// Does one program's work; how many lines it says.
    fn perform(&self, host: &Host<'_>, step: &TimedStep, dir: &Path) -> BenchResult<usize> {
        let argument = |text: &&'static str| -> &OsStr {
            if *text == ARCHIVE { self.archive.as_os_str() } else { OsStr::new(*text) }
        };
        let mut program = program(step.program, dir);
        let output = command::run(host, step.what, program.args(step.arguments.iter().map(argument)))?;
        let is_empty = step.program == "grep" && output.status.code() == Some(NOTHING_FOUND);
        let said = if is_empty { String::new() } else { output.succeeded(step.what)? };
        Ok(said.lines().count())
    }

    /// Compares what a program said, or left, with what it must be.
    fn compare(&self, what: &'static str, lines: usize, dir: &Path) -> BenchResult<()> {
        let wrong = |found: &dyn std::fmt::Display, wanted: &dyn std::fmt::Display| {
            Err(BenchError::refused(
                format_args!("{what} in {}", dir.display()),
                format_args!("found {found} instead of {wanted}"),
            ))
        };
        // The first place decides what all others are to find.
        let wanted = *self.found.borrow_mut().entry(what).or_insert(lines);
        if lines != wanted {
            return wrong(&lines, &wanted);
        }
        match what {
            "cp -r" => {
                let (tree, copy) = (Tree::of(&dir.join(TREE))?, Tree::of(&dir.join(COPY))?);
                let sizes = |tree: &Tree| format!("{} files of {} bytes", tree.files, tree.bytes);
                if sizes(&tree) == sizes(&copy) { Ok(()) } else { wrong(&sizes(&copy), &sizes(&tree)) }
            }
            "rm -r" if dir.join(COPY).exists() => wrong(&COPY, &"nothing"),
            _ => Ok(()),
        }
    }
}

impl WorkDir<'_, '_> {
    /// Requests that its nodes have served, if they are a formation's.
    fn requests(&self) -> BenchResult<Option<u64>> {
        self.formation.as_ref().map(Formation::requests).transpose()
    }
}

/// A program that works in a directory, without the settings of whoever measures.
fn program(name: &str, dir: &Path) -> Command {
    let mut command = Command::new(name);
    // Lines that are counted are not to depend on the user's language, or on settings of git.
    command.current_dir(dir).env("LC_ALL", "C");
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    command
}

fn git(host: &Host<'_>, dir: &Path, arguments: &[&str]) -> BenchResult<()> {
    command::run(host, "git", program("git", dir).args(arguments))?.succeeded("git").map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::host;

    fn work(dirs: &[&Path], memory: &Path, files: u32) -> (BenchResult<()>, String) {
        let args = WorkArgs {
            dirs: dirs.iter().map(|dir| dir.to_path_buf()).collect(),
            nodes: vec![1],
            memory: memory.to_owned(),
            tree: None,
            files,
            reps: 1,
            output: OutputArgs { json: Some(memory.join("json")), svg: None },
        };
        let outcome = run(&host(), &args);
        (outcome, std::fs::read_to_string(memory.join("json")).unwrap_or_default())
    }

    #[test]
    fn every_program_does_its_work_and_leaves_nothing() {
        let (memory, one, two) =
            (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (outcome, json) = work(&[one.path(), two.path()], memory.path(), 120);
        assert_eq!(outcome, Ok(()));
        let report: Report = serde_json::from_str(&json).unwrap();
        let rows: Vec<&str> = report.rows.iter().map(|row| row.what.as_str()).collect();
        assert_eq!(rows, STEPS.map(|step| step.what));
        assert!(report.rows.iter().all(|row| row.targets.len() == 2));
        for dir in [&one, &two] {
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
        assert_eq!(std::fs::read_dir(memory.path()).unwrap().count(), 1, "only the figures");
    }

    #[test]
    fn what_differs_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let work = Work { archive: PathBuf::new(), files: 1, found: RefCell::default() };
        assert_eq!(work.compare("find -size", 7, dir.path()), Ok(()));
        let error = work.compare("find -size", 6, dir.path()).unwrap_err().to_string();
        assert!(error.ends_with("found 6 instead of 7"), "{error}");
        std::fs::create_dir_all(dir.path().join(TREE)).unwrap();
        std::fs::create_dir_all(dir.path().join(COPY)).unwrap();
        std::fs::write(dir.path().join(TREE).join("a"), "x").unwrap();
        let error = work.compare("cp -r", 0, dir.path()).unwrap_err().to_string();
        assert!(error.ends_with("found 0 files of 0 bytes instead of 1 files of 1 bytes"), "{error}");
        assert!(work.compare("rm -r", 0, dir.path()).is_err());
    }

    #[test]
    fn a_program_that_is_missing_is_named() {
        let step = TimedStep { what: "x", program: "no-such-program", arguments: &[] };
        let work = Work { archive: PathBuf::new(), files: 1, found: RefCell::default() };
        let error = work.perform(&host(), &step, Path::new("/")).unwrap_err();
        assert_eq!(error.to_string(), "x: is not on this machine; install it");
    }
}
