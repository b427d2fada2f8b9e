//! The program for measurements, which `bivouac bench` becomes. It has of formations what every program has: the
//! commands of `bivouac`, and the client library.

#![deny(clippy::print_stdout, clippy::print_stderr, reason = "they panic where nobody reads")]

use std::cell::RefCell;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use bivouac_bench::{BenchArgs, BenchResult, Host, Interrupts};
use bivouac_launch::Event;
use bivouac_types::named;
use clap::Parser;
use log::{LevelFilter, Log, Metadata, Record};

/// This program's file, also after it was replaced on disk by a newer one.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// The options of `bivouac bench`, where `bivouac` has them from, too.
#[derive(Debug, Parser)]
#[command(name = "bivouac-bench", bin_name = "bivouac bench", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    args: BenchArgs,
}

fn main() -> ExitCode {
    // Lists of processes show this, also of those that are started by way of /proc/self/exe.
    let _for_lists_only = rustix::thread::set_name(c"bivouac-bench");
    let args = Cli::parse().args;
    let level = std::env::var("BIVOUAC_LOG").ok().and_then(|level| level.parse().ok());
    if log::set_logger(&StandardError).is_ok() {
        log::set_max_level(level.unwrap_or(LevelFilter::Warn));
    }
    match measure(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("bivouac: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}

fn measure(args: &BenchArgs) -> BenchResult<()> {
    let host = Host {
        program: measured(),
        own: PathBuf::from(THIS_PROGRAM),
        worker: vec!["worker".into()],
        interrupts: Interrupts::catch()?,
        out: RefCell::new(Box::new(std::io::stdout())),
        progress: &|line| say(&format!("bivouac: {line}")),
    };
    bivouac_bench::run(&host, args)
}

/// Returns the program that is measured: the one that came with this one, else that in PATH.
fn measured() -> PathBuf {
    // Not the PATH first: figures are to be those of the release that is beside it.
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name("bivouac"));
    beside.filter(|program| program.exists()).unwrap_or_else(|| PathBuf::from("bivouac"))
}

/// Writes a line to standard error, whoever still reads it.
fn say(line: &str) {
    let _nobody_listens = std::io::stderr().lock().write_all(format!("{}\n", named(line)).as_bytes());
}

struct StandardError;

impl Log for StandardError {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            say(&Event::now(record.level(), record.target()).of_record(record).plain());
        }
    }

    fn flush(&self) {}
}
