//! The one binary: commands for users, and the daemons that they start.

mod attach;
mod commands;
mod environment;
mod failure;
mod forming;
mod logging;
mod options;
mod progress;
mod reach;
mod staging;
mod status;
mod table;

use std::process::ExitCode;

use clap::Parser;

use failure::CODE_FSCK_USAGE;
use options::Cli;

/// Ends with what the parser says. `fsck` has the exit codes of fsck(8).
fn refuse(error: &clap::Error) -> ! {
    let is_fsck = std::env::args_os().nth(1).is_some_and(|command| command == "fsck");
    if is_fsck && error.use_stderr() {
        let _ = error.print();
        std::process::exit(i32::from(CODE_FSCK_USAGE));
    }
    error.exit()
}

fn main() -> ExitCode {
    let here = environment::read();
    let cli = Cli::try_parse().unwrap_or_else(|error| refuse(&error));
    logging::start(here.log_level.as_deref());
    match commands::run(&here, cli.command) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("bivouac: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}
