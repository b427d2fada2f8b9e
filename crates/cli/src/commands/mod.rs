//! One file per command.

mod bench;
mod completions;
mod config;
mod down;
mod end;
mod exec;
pub mod explain;
mod find;
mod flush;
mod fsck;
mod get;
mod join;
mod keep;
pub mod key;
mod list;
mod logs;
mod man;
mod metrics;
mod mount;
mod node;
pub mod partition;
mod pin;
mod plan;
pub mod pool;
mod pool_archive;
mod pool_count;
mod pool_remind;
mod publish;
mod reap;
mod recover;
mod report;
mod run;
mod scrub;
mod serve;
mod share;
pub mod slots;
pub mod stage;
mod status;
mod supervise;
mod system;
mod tell;
mod top;
mod unmount;
mod up;

use std::process::ExitCode;

use bivouac_launch::Environment;

use crate::failure::Failure;
use crate::options::{Command, Started};

/// Does what a command says; answers its exit code.
///
/// # Errors
/// What is to be said on standard error, with the exit code.
pub fn run(here: &Environment, command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Up(args) => up::run(here, &args),
        Command::Status(args) => status::run(here, &args),
        Command::Top(args) => top::run(here, &args),
        Command::Report(args) => report::run(here, &args),
        Command::Metrics(args) => metrics::run(here, &args),
        Command::Logs(args) => logs::run(here, &args),
        Command::Down(args) => down::run(here, &args),
        Command::List(args) => list::run(here, &args),
        Command::Recover(args) => recover::run(here, &args),
        Command::Reap(args) => reap::run(here, &args),
        Command::Run(args) => run::run(here, &args),
        Command::Exec(args) => exec::run(here, &args),
        Command::Stage(args) => stage::run(here, &args),
        Command::Mount(args) => mount::run(here, &args),
        Command::Unmount(args) => unmount::run(here, &args),
        Command::Explain(args) => explain::run(here, &args),
        Command::Flush(args) => flush::run(here, &args),
        Command::Pin(args) => pin::pin(here, &args),
        Command::Unpin(args) => pin::unpin(here, &args),
        Command::Partition(args) => partition::run(here, &args.command),
        Command::Fsck(args) => fsck::run(here, &args),
        Command::Plan(args) => plan::run(here, &args),
        Command::Pool(args) => pool::run(here, &args),
        Command::System(args) => system::run(here, &args),
        Command::Scrub(args) => scrub::run(here, &args),
        Command::Key(args) => key::run(here, &args),
        Command::Publish(args) => publish::run(here, &args),
        Command::Find(args) => find::find(here, &args),
        Command::Unpublish(args) => find::unpublish(here, &args),
        Command::Get(args) => get::run(here, &args),
        Command::Share(args) => share::run(here, &args),
        Command::Bench(_) => bench::run(),
        Command::Config(args) => config::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
        Command::Started(command) => run_started(here, command),
    }
}

fn run_started(here: &Environment, command: Started) -> Result<ExitCode, Failure> {
    bivouac_launch::close_inherited()?;
    bivouac_launch::unblock()?;
    match command {
        Started::Node(_) => node::run(here),
        Started::Supervise(args) => supervise::run(here, args),
        Started::End(args) => end::run(here, args),
        Started::Join(args) => join::run(here, args),
        Started::Keep(args) => keep::run(here, args),
        Started::Tell(args) => tell::run(here, &args),
        Started::Serve(args) => serve::run(here, args.dir),
    }
}
