//! Commands, one per file.

mod bench;
mod completions;
mod config;
mod contract;
mod doctor;
mod down;
mod end;
mod exec;
mod explain;
mod find;
mod flush;
mod fsck;
mod gateway;
mod get;
mod grow;
mod host_changes;
mod join;
mod keep;
pub mod key;
mod laminate;
mod link;
mod list;
mod logs;
mod man;
mod metrics;
mod mount;
mod node;
pub mod partition;
mod path;
mod pin;
mod plan;
mod pool;
mod pool_archive;
mod pool_count;
mod pool_remind;
mod publish;
mod races;
mod reap;
mod recover;
mod report;
mod run;
mod scrub;
mod serve;
mod share;
mod shrink;
mod slots;
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
use crate::options::{Command, InternalCommand};

/// Does what a command says; answers its exit code.
///
/// # Errors
/// What is to be said on standard error, with the exit code.
pub fn run(here: &Environment, command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Up(args) => up::run(here, &args),
        Command::Status(args) => status::run(here, &args),
        Command::Doctor(args) => doctor::run(here, &args),
        Command::Path(args) => path::run(here, &args),
        Command::Top(args) => top::run(here, &args),
        Command::Report(args) => report::run(here, &args),
        Command::Metrics(args) => metrics::run(here, &args),
        Command::Logs(args) => logs::run(here, &args),
        Command::Down(args) => down::run(here, &args),
        Command::Grow(args) => grow::run(here, &args),
        Command::Shrink(args) => shrink::run(here, &args),
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
        Command::Contract(args) => contract::run(&args.command),
        Command::Laminate(args) => laminate::run(&args),
        Command::Fsck(args) => fsck::run(here, &args),
        Command::Plan(args) => plan::run(here, &args),
        Command::Pool(args) => pool::run(here, &args),
        Command::System(args) => system::run(here, &args),
        Command::Scrub(args) => scrub::run(here, &args),
        Command::Races(args) => races::run(here, &args),
        Command::Key(args) => key::run(here, &args),
        Command::Link(args) => link::run(here, &args.command),
        Command::Publish(args) => publish::run(here, &args),
        Command::Find(args) => find::find(here, &args),
        Command::Unpublish(args) => find::unpublish(here, &args),
        Command::Get(args) => get::run(here, &args),
        Command::Share(args) => share::run(here, &args),
        Command::Bench(_) => bench::run(),
        Command::Config(args) => config::run(here, &args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
        Command::InternalCommand(command) => run_internal(here, command),
    }
}

fn run_internal(here: &Environment, command: InternalCommand) -> Result<ExitCode, Failure> {
    bivouac_launch::close_inherited()?;
    bivouac_launch::unblock()?;
    match command {
        InternalCommand::Node(_) => node::run(here),
        InternalCommand::Supervise(args) => supervise::run(here, args),
        InternalCommand::End(args) => end::run(here, args),
        InternalCommand::Join(args) => join::run(here, args),
        InternalCommand::Keep(args) => keep::run(here, args),
        InternalCommand::Tell(args) => tell::run(here, &args),
        InternalCommand::Serve(args) => serve::run(here, args.dir),
        InternalCommand::Gateway(args) => gateway::run(here, args.dir),
    }
}
