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

use options::Cli;

fn main() -> ExitCode {
    let here = environment::read();
    let cli = Cli::parse();
    logging::start(here.log_level.as_deref());
    match commands::run(&here, cli.command) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("bivouac: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}
