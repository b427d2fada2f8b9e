//! One file per command.

mod bench;
mod completions;
mod down;
mod explain;
mod fsck;
mod man;
mod mount;
mod node;
mod run;
mod status;
mod supervise;
mod unmount;
mod up;

use std::process::ExitCode;

use bivouac_launch::Surroundings;

use crate::failure::Failure;
use crate::options::Command;

/// Does what a command says; answers its exit code.
///
/// # Errors
/// What is to be said on standard error, with the exit code.
pub fn run(here: &Surroundings, command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Up(args) => up::run(here, &args),
        Command::Status(args) => status::run(here, &args),
        Command::Down(args) => down::run(here, &args),
        Command::Run(args) => run::run(here, &args),
        Command::Mount(args) => mount::run(here, &args),
        Command::Unmount(args) => unmount::run(here, &args),
        Command::Explain(args) => explain::run(here, &args),
        Command::Fsck(args) => fsck::run(here, &args),
        Command::Bench(args) => bench::run(here, &args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
        Command::Node(_) => node::run(here),
        Command::Supervise(args) => supervise::run(here, args),
    }
}
