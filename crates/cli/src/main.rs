//! The binary: commands for users, and the daemons that they start. Another one measures: `bin/bivouac-bench.rs`.
//!
//! It parses, puts together what the crates below have, and prints. Layers, from the lowest; a module uses those of its
//! own line and of the lines above it:
//! - this process: `output`, `table`, `environment`, `failure`, `logging`, `private_file`
//! - a formation that runs: `reach`, `unflushed`, `closing`, `asking`, `bringing`, `partitioning`, `attach`
//! - `options`, then `formation_file`, which gives options values
//! - starting one: `preloading`, `pools`, `forming`, `forming_hosts`, `start_report`
//! - copies: `progress`, `staging`, `periodic_out`, `unsaved`; slots for them: `slots`, `queue`, `versions`
//! - reports and plans: `report_file`, `planning`; publications: `publishing`, `near_by`
//! - what is shown: `system`, `top`, `doctor`, `explain`, and by the server for HTTP `web`
//! - `commands`, a file per command

#![deny(clippy::print_stdout, clippy::print_stderr, reason = "they panic where nobody reads; see `output`")]

#[macro_use]
mod output;

mod asking;
mod attach;
mod bringing;
mod closing;
mod commands;
mod doctor;
mod environment;
mod explain;
mod failure;
mod formation_file;
mod forming;
mod forming_hosts;
mod logging;
mod near_by;
mod options;
mod partitioning;
mod periodic_out;
mod planning;
mod pools;
mod preloading;
mod private_file;
mod progress;
mod publishing;
mod queue;
mod race_list;
mod reach;
mod report_file;
mod slots;
mod staging;
mod start_report;
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
    // Help and the version come as errors as well.
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        error.exit()
    }
    let is_fsck = std::env::args_os().nth(1).is_some_and(|command| command == "fsck");
    let text = error.to_string();
    let text = text.trim_start_matches("error: ").trim_end();
    let hint = if error.kind() == ErrorKind::UnknownArgument { options::hint(arguments) } else { None };
    match (hint, text.split_once('\n')) {
        (Some(hint), Some((first, rest))) => errln!("bivouac: {first}; {hint}\n{rest}"),
        (Some(hint), None) => errln!("bivouac: {text}; {hint}"),
        (None, _) => errln!("bivouac: {text}"),
    }
    let code = if is_fsck { i32::from(CODE_FSCK_USAGE) } else { error.exit_code() };
    tell_script(arguments, code, text);
    std::process::exit(code)
}

fn main() -> ExitCode {
    // Lists of processes show this, also of those that are started by way of /proc/self/exe.
    let _for_lists_only = rustix::thread::set_name(c"bivouac");
    let here = environment::read();
    let arguments = match formation_file::with_file(std::env::args_os().collect()) {
        Ok(arguments) => arguments,
        Err(failure) => return fail(&failure, &std::env::args_os().collect::<Vec<_>>()),
    };
    let cli = Cli::read(arguments.clone()).unwrap_or_else(|error| refuse(&error, &arguments));
    logging::start(&here);
    let ended = commands::run(&here, cli.command);
    match (ended, output::failure()) {
        // A failure of its own says more than that its text was not written.
        (Ok(code), Some(error)) if code == ExitCode::SUCCESS => {
            let text =
                format_args!("standard output: {error}; not all was written there, look at where it leads");
            fail(&Failure::new(1, text), &arguments)
        }
        (Ok(code), _) => code,
        (Err(failure), _) => fail(&failure, &arguments),
    }
}

fn fail(failure: &Failure, arguments: &[OsString]) -> ExitCode {
    logging::complain(failure);
    tell_script(arguments, failure.exit_code().into(), &failure.to_string());
    ExitCode::from(failure.exit_code())
}

/// Writes an error as JSON to standard output, for a script that reads JSON from there. Output that has begun is left
/// as it is.
fn tell_script(arguments: &[OsString], code: i32, text: &str) {
    if options::wants_json(arguments) && !output::has_begun() {
        let error = serde_json::json!({ "error": { "code": code, "message": text } });
        if let Ok(text) = output::json(&error, false) {
            outln!("{text}");
        }
    }
}
