//! The binary: commands for users, and the daemons that they start. Another one measures: `bin/bivouac-bench.rs`.

#![deny(clippy::print_stdout, clippy::print_stderr, reason = "they panic where nobody reads; see `output`")]

#[macro_use]
mod output;

mod asking;
mod attach;
mod bringing;
mod calendar;
mod closing;
mod commands;
mod environment;
mod failure;
mod flushing;
mod formation_file;
mod forming;
mod forming_hosts;
mod host_notes;
mod logging;
mod metrics;
mod near_by;
mod options;
mod partitioning;
mod planning;
mod pools;
mod preloading;
mod progress;
mod publishing;
mod queue;
mod reach;
mod report;
mod slots;
mod stages;
mod staging;
mod status;
mod system;
mod table;
mod top;
mod unflushed;
mod unsaved;
mod versions;
mod web;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use failure::{CODE_FSCK_USAGE, Failure};
use options::Cli;

/// Ends with what the parser says. `fsck` has the exit codes of fsck(8).
fn refuse(error: &clap::Error, arguments: &[OsString]) -> ! {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        error.exit()
    }
    let is_fsck = std::env::args_os().nth(1).is_some_and(|command| command == "fsck");
    let text = error.to_string();
    let text = text.trim_start_matches("error: ").trim_end();
    let hint = if error.kind() == ErrorKind::UnknownArgument { options::hint(arguments) } else { None };
    match (hint, text.split_once('\n')) {
        (Some(hint), Some((first, rest))) => errln!("bivouac: {first}; {hint}\n{rest}"),
        _ => errln!("bivouac: {text}"),
    }
    std::process::exit(if is_fsck { i32::from(CODE_FSCK_USAGE) } else { error.exit_code() })
}

fn main() -> ExitCode {
    // Lists of processes show this, also of those that are started by way of /proc/self/exe.
    let _for_lists_only = rustix::thread::set_name(c"bivouac");
    let here = environment::read();
    let arguments = match formation_file::with_file(std::env::args_os().collect()) {
        Ok(arguments) => arguments,
        Err(failure) => return fail(&failure),
    };
    let cli = Cli::read(arguments.clone()).unwrap_or_else(|error| refuse(&error, &arguments));
    logging::start(&here);
    let ended = commands::run(&here, cli.command);
    match (ended, output::failure()) {
        (Ok(code), Some(error)) if code == ExitCode::SUCCESS => {
            let text =
                format_args!("standard output: {error}; not all was written there, look at where it leads");
            fail(&Failure::new(1, text))
        }
        (Ok(code), _) => code,
        (Err(failure), _) => fail(&failure),
    }
}

fn fail(failure: &Failure) -> ExitCode {
    logging::complain(failure);
    ExitCode::from(failure.exit_code())
}
