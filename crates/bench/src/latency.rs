//! Durations of single calls: percentiles, not only rates.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bivouac_types::units::{format_size, parse_size};
use clap::{Args, ValueEnum};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use serde::{Deserialize, Serialize};

use crate::barrier::Barrier;
use crate::measure::{PROCS_MAX, alternate, check_reps, in_range};
use crate::member_protocol::MemberTask;
use crate::output::{OutputArgs, show};
use crate::pattern::mix;
use crate::report::{Figure, Report, percentiles, procs_name};
use crate::scratch::{Scratch, check_room};
use crate::{BenchError, BenchResult, Host, clock, team};

/// Most calls of one kind.
const CALLS_MAX: u64 = 1_000_000;
/// Bytes of the file that is read and written.
const FILE_LEN: u64 = 64 << 20;
/// Files that are looked at in turn.
const STAT_FILES: u64 = 1000;
/// Calls at the start that are not counted, as a part of all.
const WARM_UP_PART: u32 = 20;
/// A timed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Call {
    /// Read at a random place of an open file
    Read,
    /// Write over a random place of an open file
    Write,
    /// Attributes by name, in spite of caches
    Stat,
    /// Make, open and close a file
    Create,
}

/// Time single calls in directories, side by side; the last one is the limit
#[derive(Args, Clone, Debug)]
pub struct LatencyArgs {
    /// Directories to measure in turn
    #[arg(required = true, value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    /// Bytes of a read or write
    #[arg(long, default_value = "4096", value_parser = parse_size, value_name = "SIZE")]
    pub transfer: u64,
    /// Processes at work together
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub procs: u32,
    /// What to time
    #[arg(long, value_enum, value_delimiter = ',',
          default_values_t = [Call::Read, Call::Write, Call::Stat, Call::Create])]
    pub ops: Vec<Call>,
    /// Calls of each kind, of each process
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    pub calls: u32,
    /// Repetitions
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub reps: u32,
    /// Where the figures go
    #[command(flatten)]
    pub output: OutputArgs,
}

/// One process's part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LatencyTask {
    /// An empty directory.
    pub dir: PathBuf,
    /// Number of the process.
    pub rank: u32,
    /// Bytes of a read or write.
    pub transfer: u64,
    /// Calls to time.
    pub ops: Vec<Call>,
    /// Number of calls.
    pub calls: u32,
}

impl MemberTask for LatencyTask {
    const KIND: &'static str = "Latency";
}

/// Runs `bench latency`.
///
/// # Errors
/// Arguments that make no sense, too little room, what the file systems refuse.
pub fn run(host: &Host<'_>, args: &LatencyArgs) -> BenchResult<()> {
    let names: Vec<String> = args.dirs.iter().map(|dir| dir.display().to_string()).collect();
    show(host, &compare(host, &names, args)?, &args.output)
}

/// Times calls in directories that are called by these names.
pub fn compare(host: &Host<'_>, names: &[String], args: &LatencyArgs) -> BenchResult<Report> {
    check(args)?;
    for dir in &args.dirs {
        check_room(dir, FILE_LEN * u64::from(args.procs))?;
    }
    let rows = alternate(host, names, args.reps, |index| match args.dirs.get(index) {
        Some(dir) => once(host, dir, args),
        None => Ok(Vec::new()),
    })?;
    let size = format_size(args.transfer);
    let LatencyArgs { procs, calls, reps, .. } = args;
    let title =
        format!("{}, {calls} calls of each kind, {size} each, {reps} repetitions", procs_name(*procs));
    let notes = vec!["each figure is the percentile of a repetition; stat in spite of caches".to_owned()];
    Ok(Report { title, notes, rows })
}

fn check(args: &LatencyArgs) -> BenchResult<()> {
    check_reps(args.reps)?;
    in_range("--procs", u64::from(args.procs), 1, PROCS_MAX)?;
    in_range("--calls", u64::from(args.calls), 1, CALLS_MAX)?;
    in_range("--transfer", args.transfer, 1, FILE_LEN)
}

fn once(host: &Host<'_>, dir: &Path, args: &LatencyArgs) -> BenchResult<Vec<Figure>> {
    let scratch = Scratch::new(dir)?;
    let (transfer, calls) = (args.transfer, args.calls);
    let task = |rank| {
        let (dir, ops) = (scratch.path().to_owned(), args.ops.clone());
        LatencyTask { dir, rank, transfer, ops, calls }
    };
    let outcomes: Vec<Vec<Vec<u64>>> = team::run(host, &(0..args.procs).map(task).collect::<Vec<_>>())?;
    let per_call = args.ops.iter().enumerate().flat_map(|(index, call)| {
        let all = outcomes.iter().filter_map(|of_process| of_process.get(index)).flatten().copied();
        percentiles(&format!("{call:?}").to_lowercase(), all.collect())
    });
    Ok(per_call.collect())
}

/// Does one process's part: the times of every call, in nanoseconds, by kind.
pub fn perform(task: &LatencyTask, barrier: &mut dyn Barrier) -> BenchResult<Vec<Vec<u64>>> {
    let dir = task.dir.join(format!("rank-{}", task.rank));
    std::fs::create_dir(&dir).map_err(BenchError::system(dir.display()))?;
    let part = Part { task, dir };
    // A buffer of zeros would get its memory when it is first touched, in a time that is measured.
    let (file, mut buffer) = (part.prepare()?, vec![1; usize::try_from(task.transfer).unwrap_or(0)]);
    let mut times = Vec::with_capacity(task.ops.len());
    for op in &task.ops {
        barrier.wait()?;
        times.push(match op {
            Call::Read => part.times(|at| file.read_exact_at(&mut buffer, part.place(at)))?,
            Call::Write => part.times(|at| file.write_all_at(&buffer, part.place(at)))?,
            Call::Stat => part.times(|at| stat(&part.dir.join(format!("stat-{}", at % STAT_FILES))))?,
            Call::Create => {
                part.times(|at| File::create_new(part.dir.join(format!("new-{at}"))).map(drop))?
            }
        });
    }
    Ok(times)
}

struct Part<'t> {
    task: &'t LatencyTask,
    dir: PathBuf,
}

impl Part<'_> {
    /// Makes what is read, written and looked at.
    fn prepare(&self) -> BenchResult<File> {
        let refused = || BenchError::system::<std::io::Error>(self.dir.display());
        for number in 0..STAT_FILES {
            File::create_new(self.dir.join(format!("stat-{number}"))).map_err(refused())?;
        }
        let open = OpenOptions::new().read(true).write(true).create_new(true).open(self.dir.join("data"));
        let file = open.map_err(refused())?;
        let block = vec![1; 1 << 20];
        // Holes would be allocated by writes, and read without any data.
        for at in 0..FILE_LEN >> 20 {
            file.write_all_at(&block, at << 20).map_err(refused())?;
        }
        Ok(file)
    }

    /// The place of a transfer that is any of those that follow each other without gaps.
    fn place(&self, at: u64) -> u64 {
        let blocks = FILE_LEN.checked_div(self.task.transfer).unwrap_or(1).max(1);
        mix(u64::from(self.task.rank) << 40 ^ at) % blocks * self.task.transfer
    }

    fn times(&self, mut call: impl FnMut(u64) -> std::io::Result<()>) -> BenchResult<Vec<u64>> {
        let calls = self.task.calls;
        let warm_up = calls / WARM_UP_PART;
        let mut times = Vec::with_capacity(calls as usize);
        for at in 0..u64::from(calls + warm_up) {
            let start = clock::now_ns();
            call(at).map_err(BenchError::system(self.dir.display()))?;
            times.push(clock::now_ns().saturating_sub(start));
        }
        Ok(times.split_off(warm_up as usize))
    }
}

fn stat(path: &Path) -> std::io::Result<()> {
    // Past the kernel's cache, in which attributes of a mount are for a tenth of a second.
    rustix::fs::statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS).map(drop)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::barrier::LoneProcess;

    fn task(dir: &Path) -> LatencyTask {
        let ops = vec![Call::Read, Call::Write, Call::Stat, Call::Create];
        LatencyTask { dir: dir.to_owned(), rank: 3, transfer: 4096, ops, calls: 40 }
    }

    #[test]
    fn every_call_but_the_first_ones_is_timed() {
        let dir = tempfile::tempdir().unwrap();
        let mut barrier = LoneProcess(0);
        let times = perform(&task(dir.path()), &mut barrier).unwrap();
        assert_eq!((times.len(), barrier.0), (4, 4));
        assert!(times.iter().all(|of_kind| of_kind.len() == 40));
        let created = |entry: &std::io::Result<std::fs::DirEntry>| {
            entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("new-")
        };
        assert_eq!(std::fs::read_dir(dir.path().join("rank-3")).unwrap().filter(created).count(), 42);
    }

    #[test]
    fn places_are_within_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let task = LatencyTask { transfer: 1000, ..task(dir.path()) };
        let part = Part { task: &task, dir: dir.path().to_owned() };
        let places: std::collections::BTreeSet<u64> = (0..1000).map(|at| part.place(at)).collect();
        assert!(places.iter().all(|place| place % 1000 == 0 && place + 1000 <= FILE_LEN));
        assert!(places.len() > 900);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let args = LatencyArgs {
            dirs: vec!["/d".into()],
            transfer: 4096,
            procs: 1,
            ops: vec![Call::Read],
            calls: 1,
            reps: 1,
            output: OutputArgs::default(),
        };
        assert_eq!(check(&args), Ok(()));
        for (bad, says) in [
            (LatencyArgs { transfer: 0, ..args.clone() }, "--transfer 0: "),
            (LatencyArgs { calls: 0, ..args.clone() }, "--calls 0: "),
            (LatencyArgs { procs: 5000, ..args.clone() }, "--procs 5000: "),
            (LatencyArgs { reps: 0, ..args.clone() }, "--reps 0: "),
        ] {
            assert!(check(&bad).unwrap_err().to_string().starts_with(says));
        }
    }
}
