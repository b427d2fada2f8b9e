//! The commands under `bivouac bench`.

use clap::{Args, Subcommand};

use crate::all::AllArgs;
use crate::everyday::WorkArgs;
use crate::flash::FlashArgs;
use crate::idle::IdleArgs;
use crate::io::IoArgs;
use crate::latency::LatencyArgs;
use crate::meta::MetaArgs;
use crate::net::{NetArgs, RemoteArgs};
use crate::output::OutputArgs;
use crate::protect::ProtectArgs;
use crate::startup::StartupArgs;
use crate::{BenchResult, Host, all, everyday, flash, idle, io, latency, meta, net, protect, startup};

/// Arguments of `bench`.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: Bench,
}

#[derive(Subcommand, Clone, Debug)]
enum Bench {
    Io(IoArgs),
    Meta(MetaArgs),
    Work(WorkArgs),
    Latency(LatencyArgs),
    Net(NetArgs),
    Remote(RemoteArgs),
    Startup(StartupArgs),
    Idle(IdleArgs),
    Flash(FlashArgs),
    Protect(ProtectArgs),
    All(AllArgs),
    /// A process of a measurement
    #[command(hide = true)]
    Worker,
}

impl Bench {
    /// Destination of its figures, if that is by file.
    fn output(&self) -> Option<&OutputArgs> {
        match self {
            Bench::Io(args) => Some(&args.output),
            Bench::Meta(args) => Some(&args.output),
            Bench::Work(args) => Some(&args.output),
            Bench::Latency(args) => Some(&args.output),
            Bench::Net(args) => Some(&args.output),
            Bench::Remote(args) => Some(&args.net.output),
            Bench::Startup(args) => Some(&args.output),
            Bench::Idle(args) => Some(&args.output),
            Bench::Flash(args) => Some(&args.output),
            Bench::Protect(args) => Some(&args.output),
            Bench::All(_) | Bench::Worker => None,
        }
    }
}

/// Measures what the arguments say.
///
/// # Errors
/// Arguments that make no sense, what the system refuses, a request to end.
pub fn run(host: &Host<'_>, args: &BenchArgs) -> BenchResult<()> {
    args.command.output().map_or(Ok(()), OutputArgs::check)?;
    match &args.command {
        Bench::Io(args) => io::run(host, args),
        Bench::Meta(args) => meta::run(host, args, all::budgets::directory_verdicts),
        Bench::Work(args) => everyday::run(host, args),
        Bench::Latency(args) => latency::run(host, args),
        Bench::Net(args) => net::run(host, args),
        Bench::Remote(args) => net::run_remote(host, args),
        Bench::Startup(args) => startup::run(host, args),
        Bench::Idle(args) => idle::run(host, args),
        Bench::Flash(args) => flash::run(host, args),
        Bench::Protect(args) => protect::run(host, args),
        Bench::All(args) => all::run(host, args),
        Bench::Worker => crate::work(host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::host;

    fn parse(text: &[&str]) -> Result<BenchArgs, clap::Error> {
        use clap::FromArgMatches;
        let command = BenchArgs::augment_args(clap::Command::new("bench").no_binary_name(true));
        BenchArgs::from_arg_matches(&command.try_get_matches_from(text)?)
    }

    #[test]
    fn the_table_is_consistent_and_every_option_is_explained() {
        let mut command = BenchArgs::augment_args(clap::Command::new("bench"));
        command.build();
        command.clone().debug_assert();
        for sub in command.get_subcommands() {
            assert!(sub.get_about().is_some(), "{} has no help", sub.get_name());
            for argument in sub.get_arguments() {
                assert!(argument.get_help().is_some(), "{} {}", sub.get_name(), argument.get_id());
            }
        }
    }

    #[test]
    fn every_command_is_understood() {
        for text in [
            &[
                "io",
                "/a",
                "/b",
                "--procs",
                "2",
                "--mode",
                "own",
                "--pattern",
                "random",
                "--ops",
                "write,read",
            ][..],
            &["meta", "/a", "--layout", "tree", "--shared"],
            &["meta", "/a,/b", "/c", "--procs", "1,2,4", "--filled"],
            &["meta", "--nodes", "4", "--one-core"],
            &["meta", "--big", "--files", "1000"],
            &["work", "--nodes", "1,4", "--files", "500"],
            &["work", "/a", "/b", "--tree", "/usr/src/linux.tar"],
            &["latency", "/a", "--ops", "read,stat"],
            &["net", "--size", "4k", "--streams", "2"],
            &["remote", "--name", "x", "--reps", "3"],
            &["startup", "--nodes", "1,2"],
            &["startup", "--nodes", "1,256", "--host-delay-ms", "100"],
            &["idle", "--seconds", "3"],
            &["flash", "--procs", "1,8,32", "--nodes", "4", "--stripe", "64k", "--write", "delayed=1s"],
            &["flash", "--source", "/d", "--block", "16"],
            &["protect", "--files", "200", "--mb", "16", "--reps", "3"],
            &["all", "--quick"],
            &["worker"],
        ] {
            assert!(parse(text).is_ok(), "{text:?}");
        }
        assert!(parse(&[]).is_err() && parse(&["io"]).is_err());
    }

    #[test]
    fn a_refusal_is_passed_on() {
        let args = parse(&["io", "/nonexistent", "--reps", "1"]).unwrap();
        let error = run(&host(), &args).unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent: "), "{error}");
    }
}
