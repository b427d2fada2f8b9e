//! One huge directory: whether creating holds up as it grows, how long listing takes, what a file costs in memory, and
//! how long its daemon takes to come back with it.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::calls::entries;
use super::growth::{GrowTask, Growth, first_and_last};
use super::plan::FILES_MAX;
use super::targets::{LIMIT, on_one_core, up};
use super::{FILE_COST, MetaArgs, QUICK};
use crate::formation::{Formation, NodeView};
use crate::idle::own_memory;
use crate::measure::{PROCS_MAX, check_reps, in_range};
use crate::output::show;
use crate::report::{Collector, Figure, Report, Unit, procs_name};
use crate::scratch::{Scratch, check_room};
use crate::startup::nodes_name;
use crate::{BenchError, BenchResult, Host, clock, team};

/// Files, processes and repetitions unless options say otherwise.
const USUAL: (u32, u32, u32) = (1_000_000, 4, 1);
/// Time that a killed daemon may take to be back.
const BACK_S_MAX: u64 = 120;
/// The formation in tables.
pub const MOUNT: &str = "mount";
/// Rows of the table, by which budgets find them.
pub const LAST_TO_FIRST: &str = "create, last tenth to first";
/// The whole directory, as `ls -f` does it.
pub const LISTING: &str = "list all";
/// Name of the growth of the daemons.
pub const MEMORY: &str = "memory per file";
/// From kill -9 until the mount answers again.
pub const RESTART: &str = "restart, until usable";

/// An action for the caller.
struct Plan {
    files: u64,
    procs: u32,
    nodes: u16,
    memory: PathBuf,
}

/// Runs `bench meta --big`; `verdicts` says which budgets the table keeps.
///
/// # Errors
/// Arguments that make no sense, too little room, what the file system and the commands refuse, entries that are
/// missing; not budgets that are not met.
pub fn run(host: &Host<'_>, args: &MetaArgs, verdicts: impl Fn(&Report) -> String) -> BenchResult<()> {
    let (plan, reps) = plan(args)?;
    let measure = || measure(host, &plan, reps);
    let report = if args.one_core { on_one_core(measure)? } else { measure()? };
    show(host, &report, &args.output)?;
    host.print(&verdicts(&report))
}

fn plan(args: &MetaArgs) -> BenchResult<(Plan, u32)> {
    let files = args.files.unwrap_or(if args.quick { QUICK.0 * 40 } else { USUAL.0 });
    let [procs, reps] = [args.procs.first().copied().unwrap_or(USUAL.1), args.reps.unwrap_or(USUAL.2)];
    in_range("--files", u64::from(files), 10, FILES_MAX)?;
    in_range("--procs", u64::from(procs), 1, PROCS_MAX)?;
    check_reps(reps)?;
    if args.procs.len() > 1 {
        return Err(BenchError::usage("--procs", "names several numbers", "write one with --big"));
    }
    let (nodes, memory) = (args.nodes.unwrap_or(1), args.memory.clone());
    Ok((Plan { files: u64::from(files), procs, nodes, memory }, reps))
}

/// Fills a directory of a formation and one beside it, in turn.
fn measure(host: &Host<'_>, plan: &Plan, reps: u32) -> BenchResult<Report> {
    check_room(&plan.memory, plan.files.saturating_mul(FILE_COST))?;
    let mut collector = Collector::new(&[MOUNT.to_owned(), LIMIT.to_owned()]);
    for rep in 0..reps {
        host.say(&format!("repetition {} of {reps}", rep + 1));
        collector.add(1, beside(host, plan)?);
        collector.add(0, once(host, plan)?);
    }
    let title = format!(
        "one directory of {} files, made by {} through {}, {reps} repetitions",
        plan.files,
        procs_name(plan.procs),
        nodes_name(plan.nodes),
    );
    let notes = vec![
        "memory is what the daemons' own grew by; restart is kill -9 of the daemon with most records, until its mount \
         answers, after which all entries are listed again and counted"
            .to_owned(),
    ];
    Ok(Report { title, notes, rows: collector.rows() })
}

/// The same files in memory, without a formation.
fn beside(host: &Host<'_>, plan: &Plan) -> BenchResult<Vec<Figure>> {
    let scratch = Scratch::new(&plan.memory)?;
    let dirs = [scratch.subdir("big")?];
    let mut figures = grow(host, plan, &dirs)?;
    figures.push(list(&dirs[0], plan.files)?);
    Ok(figures)
}

fn once(host: &Host<'_>, plan: &Plan) -> BenchResult<Vec<Figure>> {
    let scratch = Scratch::new(&plan.memory)?;
    let formation = up(host, plan.nodes, &scratch)?;
    let dirs: Vec<PathBuf> = formation.mounts().iter().map(|mount| mount.join("big")).collect();
    let first = dirs.first().ok_or_else(|| BenchError::refused("up --json", "names no mount"))?;
    std::fs::create_dir(first).map_err(BenchError::system(first.display()))?;
    let before = memory_of(&formation.nodes()?)?;
    let mut figures = grow(host, plan, &dirs)?;
    let last = dirs.last().unwrap_or(first);
    figures.push(list(last, plan.files)?);
    let nodes = formation.nodes()?;
    let grown = memory_of(&nodes)?.saturating_sub(before);
    figures.push(Figure::new(MEMORY, Unit::Bytes, grown as f64 / plan.files as f64));
    figures.push(restart(host, &formation, &nodes, plan.files)?);
    formation.down(host)?;
    Ok(figures)
}

fn memory_of(nodes: &[NodeView]) -> BenchResult<u64> {
    nodes.iter().map(|node| own_memory(node.pid)).sum()
}

/// All processes make their shares, each through its mount.
fn grow(host: &Host<'_>, plan: &Plan, dirs: &[PathBuf]) -> BenchResult<Vec<Figure>> {
    let procs = u64::from(plan.procs);
    let share = |rank: u64| {
        let (first, end) = (plan.files * rank / procs, plan.files * (rank + 1) / procs);
        let dir = dirs.get(rank as usize % dirs.len().max(1)).cloned().unwrap_or_default();
        GrowTask { dir, first, files: end - first }
    };
    let growths: Vec<Growth> = team::run(host, &(0..procs).map(share).collect::<Vec<_>>())?;
    let (first, last) =
        first_and_last(&growths).ok_or_else(|| BenchError::refused("create", "made no files"))?;
    Ok(vec![
        Figure::new("create, first tenth", Unit::PerSecond, first),
        Figure::new("create, last tenth", Unit::PerSecond, last),
        Figure::new(LAST_TO_FIRST, Unit::Times, last / first),
    ])
}

/// Every entry, counted; a wrong count is an error.
fn list(dir: &Path, files: u64) -> BenchResult<Figure> {
    let name = c(dir)?;
    let start = clock::now_ns();
    let found = entries(&name).map_err(BenchError::system(dir.display()))?;
    let ns = clock::now_ns().saturating_sub(start);
    if found != files {
        let cause = format_args!("listed {found} entries instead of {files}");
        return Err(BenchError::refused(dir.display(), cause));
    }
    Ok(Figure::new(LISTING, Unit::Milliseconds, ns as f64 / 1e6))
}

/// Kills the daemon that has most to remember, and waits for the mount that it serves.
fn restart(
    host: &Host<'_>,
    formation: &Formation<'_, '_>,
    nodes: &[NodeView],
    files: u64,
) -> BenchResult<Figure> {
    let heaviest = nodes.iter().enumerate().max_by_key(|(_, node)| node.records);
    let (at, node) = heaviest.ok_or_else(|| BenchError::refused("status --json", "names no daemon"))?;
    let mount = formation.mounts().get(at).cloned().unwrap_or_default();
    let dir = mount.join("big");
    let pid = i32::try_from(node.pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| BenchError::refused("status --json", "names no daemon"))?;
    let start = clock::now_ns();
    kill_process(pid, Signal::KILL).map_err(BenchError::system(format_args!("daemon {}", node.pid)))?;
    let ns = answered(host, &dir, start)?;
    list(&dir, files)?;
    Ok(Figure::new(RESTART, Unit::Milliseconds, ns as f64 / 1e6))
}

/// Time after `start` at which the directory's mount answered. Before Linux 6.9 requests that were under way fail with
/// the daemon.
fn answered(host: &Host<'_>, dir: &Path, start: u64) -> BenchResult<u64> {
    let name = c(dir)?;
    loop {
        // Answered by the daemon, and not from what the kernel remembers of the directory.
        let outcome = rustix::fs::statx(CWD, &name, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
        let ns = clock::now_ns().saturating_sub(start);
        match outcome {
            Ok(_) => return Ok(ns),
            // What the killed daemon was asked ends so, until the next one serves the mount.
            Err(Errno::IO | Errno::NOTCONN | Errno::CONNABORTED) if ns < BACK_S_MAX * 1_000_000_000 => {
                host.interrupts.check()?;
                std::thread::park_timeout(Duration::from_millis(1));
            }
            Err(error) => return Err(BenchError::refused(dir.display(), error)),
        }
    }
}

fn c(path: &Path) -> BenchResult<CString> {
    let zero = |_| BenchError::usage(path.display(), "has a zero byte", "choose another directory");
    CString::new(path.as_os_str().as_bytes()).map_err(zero)
}

#[cfg(test)]
mod tests {
    use super::super::tests::args;
    use super::*;

    #[test]
    fn a_million_files_unless_said_otherwise() {
        let (usual, reps) = plan(&args(&["--big"]).unwrap()).unwrap();
        assert_eq!((usual.files, usual.procs, usual.nodes, reps), (1_000_000, 4, 1, 1));
        let words = ["--big", "--files", "5000", "--procs", "2", "--nodes", "3", "--reps", "2"];
        let (given, reps) = plan(&args(&words).unwrap()).unwrap();
        assert_eq!((given.files, given.procs, given.nodes, reps), (5000, 2, 3, 2));
        let several = plan(&args(&["--big", "--procs", "1,2"]).unwrap()).err().unwrap().to_string();
        assert!(several.starts_with("--procs: names several numbers"), "{several}");
    }

    #[test]
    fn entries_that_are_missing_are_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), b"").unwrap();
        assert!(list(dir.path(), 1).is_ok());
        let error = list(dir.path(), 2).unwrap_err().to_string();
        assert!(error.ends_with("listed 1 entries instead of 2"), "{error}");
    }
}
