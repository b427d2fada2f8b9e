//! Runs the table of cases, or exercises a file, in directories that lead to one file system.
//!
//! ```text
//! bivouac-posix /mnt                                   # the table on one mount
//! bivouac-posix /mnt/0 /mnt/1                          # every call through the next of two mounts
//! bivouac-posix --excludes tests/crates/posix/excludes /mnt  # without what is known not to pass
//! bivouac-posix --only rename/ /mnt                    # cases whose names have this in them
//! bivouac-posix --part 2/8 /mnt                        # the second eighth of the table, for one of eight at a time
//! bivouac-posix --fsx --seed 7 --seconds 60 /mnt/0 /mnt/1   # one file at random
//! bivouac-posix --tree --seed 7 --seconds 60 /mnt/0 /mnt/1  # names and attributes at random
//! ```

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use bivouac_posix::excludes::{self, Excludes};
use bivouac_posix::runner::{self, End};
use bivouac_posix::{cases, fsx, tree};
use clap::Parser;

/// POSIX conformance of a file system, through one mount or several in turn.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Directories that lead to the same place, each through another mount
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Cases that do not pass, lines of NAME ROW REASON; each must indeed fail
    #[arg(long, value_name = "FILE")]
    excludes: Option<PathBuf>,
    /// Only cases whose names have TEXT in them
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Only every Nth case, from the Kth on
    #[arg(long, value_name = "K/N", default_value = "1/1", value_parser = parse_part)]
    part: (usize, usize),
    /// Print the names of the cases, and run none
    #[arg(long)]
    list: bool,
    /// Exercise one file at random instead
    #[arg(long)]
    fsx: bool,
    /// Exercise a tree of names at random instead
    #[arg(long, conflicts_with = "fsx")]
    tree: bool,
    /// Seed of the exercise [default: from the clock]
    #[arg(long)]
    seed: Option<u64>,
    /// Number of operations of the exercise
    #[arg(long, default_value_t = u64::MAX)]
    operations: u64,
    /// Seconds that the exercise may take
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Bytes that the exercised file may have
    #[arg(long, default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(2..1 << 30))]
    size_max: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let ended = if arguments.fsx || arguments.tree { exercise(&arguments) } else { table(&arguments) };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!("bivouac-posix: {text}");
            ExitCode::from(2)
        }
    }
}

fn exercise(arguments: &Arguments) -> Result<bool, String> {
    let clock = || SystemTime::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_micros() as u64);
    let seed = arguments.seed.unwrap_or_else(clock);
    let (dirs, time) = (arguments.dirs.clone(), Duration::from_secs(arguments.seconds));
    let (operations, size_max) = (arguments.operations, arguments.size_max);
    let what = if arguments.fsx { "fsx" } else { "tree" };
    println!("{what}: seed {seed}, {} mounts", dirs.len());
    runner::clear_umask();
    let outcome = match arguments.fsx {
        true => fsx::exercise(&fsx::Plan { dirs, seed, operations, time, size_max }),
        false => tree::exercise(&tree::Plan { dirs, seed, operations, time }),
    };
    match &outcome {
        Ok(operations) => println!("{what}: {operations} operations\n1 passed, 0 failed"),
        Err(text) => println!("{text}\n0 passed, 1 failed"),
    }
    Ok(outcome.is_ok())
}

fn table(arguments: &Arguments) -> Result<bool, String> {
    let excludes = read_excludes(arguments)?;
    let wanted = |name: &str| arguments.only.as_ref().is_none_or(|text| name.contains(text.as_str()));
    let (mut passed, mut failed, mut skipped, mut excluded) = (0, 0, 0, 0);
    runner::clear_umask();
    let (part, parts) = arguments.part;
    let cases = cases::all();
    let of_part = cases.iter().enumerate().skip(part - 1).step_by(parts);
    for (number, case) in of_part.filter(|(_, case)| wanted(&case.name)) {
        if arguments.list {
            println!("{}", case.name);
            continue;
        }
        match runner::run(case, &arguments.dirs, &format!("case-{number}"), &excludes)? {
            End::Passed => passed += 1,
            End::Skipped => skipped += 1,
            End::Excluded => excluded += 1,
            End::Failed(text) => {
                failed += 1;
                println!("{}: {text}", case.name);
            }
        }
    }
    if !arguments.list {
        println!(
            "{excluded} excluded as they should be\n{passed} passed, {failed} failed, {skipped} skipped"
        );
    }
    Ok(failed == 0)
}

fn parse_part(text: &str) -> Result<(usize, usize), String> {
    let numbers =
        text.split_once('/').and_then(|(part, parts)| Some((part.parse().ok()?, parts.parse().ok()?)));
    let within = numbers.filter(|(part, parts)| (1..=*parts).contains(part));
    within.ok_or_else(|| "is no part; write 1/4 for the first of four".into())
}

fn read_excludes(arguments: &Arguments) -> Result<Excludes, String> {
    let Some(path) = &arguments.excludes else { return Ok(Excludes::new()) };
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    excludes::parse(&text).map_err(|text| format!("{}: {text}", path.display()))
}
