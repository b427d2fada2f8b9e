//! The options of commands for formations that run, or have run.

use std::path::PathBuf;

use bivouac_launch::FormationName;
use clap::Args;

use super::numbers::number;
use super::{AgainArgs, Duration, PlaceArgs, duration, interval};

/// Which formation.
#[derive(Clone, Debug, Args)]
pub struct NameArgs {
    /// Name of the formation [default: that of the job around, default, or the only one that is running]
    #[arg(long, value_name = "NAME")]
    pub name: Option<FormationName>,
}

/// Which formation, for commands whose only operand is its name.
#[derive(Clone, Debug, Args)]
pub struct WhichArgs {
    /// Name of the formation [default: that of the job around, default, or the only one that is running]
    #[arg(value_name = "NAME")]
    formation: Option<FormationName>,
    /// Name of the formation, as all commands take it
    #[arg(long, value_name = "NAME", conflicts_with = "formation")]
    name: Option<FormationName>,
}

impl WhichArgs {
    /// Returns the name, if one was given.
    pub fn name(&self) -> Option<&FormationName> {
        self.formation.as_ref().or(self.name.as_ref())
    }
}

/// Arguments of `path`.
#[derive(Debug, Args)]
pub struct MountPathArgs {
    #[command(flatten)]
    pub which: WhichArgs,
    /// Print the mount point that this node serves [default: the one that BIVOUAC has in a job]
    #[arg(long, value_name = "I", allow_negative_numbers = true, value_parser = number::<u16>(0, 65_535))]
    pub node: Option<u16>,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub which: WhichArgs,
    /// Show it again every DURATION, until the formation is gone or Ctrl-C is pressed
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "2s", value_parser = interval)]
    pub watch: Option<Duration>,
    /// Show requests per operation and node, not only their sums
    #[arg(long)]
    pub operations: bool,
    /// Show which hosts and nodes were lost, which nodes moved to other hosts, and what is lost for good. Exit code: 0
    /// if nothing is lost for good, 1 otherwise
    #[arg(long, conflicts_with_all = ["watch", "operations"])]
    pub lost: bool,
    /// Write JSON to standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `down`.
#[derive(Debug, Args)]
pub struct DownArgs {
    #[command(flatten)]
    pub which: WhichArgs,
    /// Throw away data that is nowhere else, and ask nothing
    #[arg(long)]
    pub discard: bool,
    /// Ask nothing: remove what is in the formation, unless it is nowhere else and was to be copied out. Needed where
    /// nobody can be asked, as in a script
    #[arg(short = 'y', long)]
    pub yes: bool,
}

/// Arguments of `shrink`.
#[derive(Debug, Args)]
pub struct ShrinkArgs {
    #[command(flatten)]
    pub which: WhichArgs,
    /// The hosts that are to leave, as `up --hosts` names them: names, ranges in brackets
    #[arg(long, value_name = "LIST")]
    pub hosts: String,
    /// Take the mounts of these hosts away also from programs that use them
    #[arg(long)]
    pub force: bool,
    /// How long to wait until they have left; behind that they go on leaving [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// Write JSON to standard output: a line for what happens, and one for each host in the end
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `grow`.
#[derive(Debug, Args)]
pub struct GrowArgs {
    #[command(flatten)]
    pub which: WhichArgs,
    /// The hosts that are to join, as the formation's launcher takes them: names, ranges in brackets
    #[arg(long, value_name = "LIST")]
    pub hosts: String,
    /// How long to wait until they have joined; behind that they go on joining [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// Write JSON to standard output: a line for what happens, and one for each host in the end
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `list`.
#[derive(Debug, Args)]
pub struct ListAllArgs {
    /// Write names alone, a line each: for scripts, and for the completions of shells
    #[arg(long, conflicts_with = "json")]
    pub names: bool,
    /// Write JSON to standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `recover`.
#[derive(Debug, Args)]
pub struct RecoverArgs {
    /// Name of the formation [default: that of the batch job, default, or the only one that could be recovered]
    #[arg(value_name = "NAME")]
    pub formation: Option<FormationName>,
    /// Name of the formation, as other commands take it
    #[arg(long, value_name = "NAME", conflicts_with = "formation")]
    pub name: Option<FormationName>,
    /// Where its volumes are now: each, or a directory that they are in; the others are looked for where they were.
    /// Over several hosts, on each of them
    #[arg(long = "volume", value_name = "DIR")]
    pub volumes: Vec<PathBuf>,
    /// Start this node of a running formation once more that was given up, with what its volumes have
    #[arg(long, value_name = "N", conflicts_with_all = ["volumes", "with_older", "dir", "each", "allow_other", "no_mount", "port", "owner", "ttl"])]
    pub node: Option<u16>,
    /// Take volumes that are older than the others as they are: files over both may be mixtures of old and new
    #[arg(long)]
    pub with_older: bool,
    #[command(flatten)]
    pub hosts: AgainArgs,
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Do not mount it
    #[arg(long, conflicts_with_all = ["dir", "each", "allow_other"])]
    pub no_mount: bool,
    /// First TCP port to listen on, two per node; 0 means any that are free [default: as before]
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// End the formation when this process ends; what it was made for before does not count any more
    #[arg(long, value_name = "PID")]
    pub owner: Option<u32>,
    /// How long the formation lives from now on [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub ttl: Option<Duration>,
    /// How long the formation may take to start
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    pub start_timeout: Duration,
    /// Write JSON to standard output: name, mounts, and the steps of the start in microseconds
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `reap`.
#[derive(Debug, Args)]
pub struct ReapArgs {
    /// Only say what would be removed
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}
