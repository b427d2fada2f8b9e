//! Arguments of `system`.

use std::path::PathBuf;

use bivouac_launch::{FormationName, Launcher, Network};
use clap::{Args, ValueEnum};

use super::{Duration, duration};

/// Format of a map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum MapFormat {
    /// Columns for people
    #[default]
    Table,
    /// JSON, described in docs/system.md
    Json,
    /// The same as YAML
    Yaml,
    /// The same as XML
    Xml,
    /// A graph for Graphviz
    Dot,
    /// A picture
    Svg,
}

/// Whose map it is.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Which hosts")]
pub struct WhoseArgs {
    /// The hosts of this formation
    #[arg(long, value_name = "NAME", conflicts_with_all = ["hosts", "hostfile", "here", "from"])]
    pub name: Option<FormationName>,
    /// These hosts: names as for ssh, ranges in brackets (n1,n[2-4])
    #[arg(long, value_name = "HOST[,HOST...]", conflicts_with_all = ["hostfile", "here", "from"])]
    pub hosts: Option<String>,
    /// The hosts of this file, one per line
    #[arg(long, value_name = "FILE", conflicts_with_all = ["here", "from"])]
    pub hostfile: Option<PathBuf>,
    /// Only this host, also inside a batch job
    #[arg(long, conflicts_with = "from")]
    pub here: bool,
    /// What was written earlier, instead of asking: maps in JSON, and records; may be given several times
    #[arg(long, value_name = "FILE")]
    pub from: Vec<PathBuf>,
    /// What starts processes on the hosts: ssh, slurm, pbs, flux, mpi, or a command with {host} and {args} in it [default: the batch system's, else ssh]
    #[arg(long = "launch", value_name = "LAUNCHER", conflicts_with_all = ["here", "from"])]
    pub launcher: Option<Launcher>,
    /// Path of bivouac on the hosts [default: this program's own path]
    #[arg(long, value_name = "PATH", conflicts_with_all = ["here", "from"])]
    pub program: Option<String>,
    /// How long all hosts together may take to answer
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    pub answer_timeout: Duration,
}

/// Arguments of `system`.
#[derive(Debug, Args)]
pub struct SystemArgs {
    #[command(flatten)]
    pub whose: WhoseArgs,
    /// Form of the map
    #[arg(long, value_enum, value_name = "FORM", default_value_t = MapFormat::Table)]
    pub format: MapFormat,
    /// Write JSON to standard output: the same as --format json
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
    /// Write only what this JSONPath expression (RFC 9535) selects, a line of JSON for each; exit code 1 if that is
    /// nothing
    #[arg(long, value_name = "JSONPATH", conflicts_with_all = ["format", "diff"])]
    pub query: Option<String>,
    /// Write only what has changed since this map was written
    #[arg(long, value_name = "OLD.json", conflicts_with = "format")]
    pub diff: Option<PathBuf>,
    /// How long to look how busy everything is; 0 is not at all
    #[arg(long, value_name = "DURATION", default_value = "250ms", value_parser = duration)]
    pub load: Duration,
    /// Measure what flows between the hosts, and name links that are slow: exit code 4 if there are any
    #[arg(long, conflicts_with_all = ["here", "from", "root", "record", "diff"])]
    pub measure: bool,
    /// How long transfers between pairs may take altogether
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration, requires = "measure")]
    pub measure_time: Duration,
    /// Measure over this network: 10.1.0.0/16, or the name of an interface [default: the fastest that the hosts have in
    /// common]
    #[arg(long, value_name = "NETWORK", requires = "measure")]
    pub network: Option<Network>,
    /// Read this machine's files below this directory instead of /, and run no programs
    #[arg(long, value_name = "DIR", conflicts_with_all = ["name", "hosts", "hostfile", "from", "launcher", "program"])]
    pub root: Option<PathBuf>,
    /// Write down all that this machine said, for --from
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "hosts", "hostfile", "from", "launcher", "program"])]
    pub record: Option<PathBuf>,
}

/// Arguments of `tell`.
#[derive(Debug, Args)]
pub struct TellArgs {
    /// How long to look how busy everything is, in milliseconds
    #[arg(long, value_name = "MS")]
    pub load: u64,
    /// Take orders to be measured, and wait for them so long, in milliseconds
    #[arg(long, value_name = "MS")]
    pub station: Option<u64>,
    /// The network of the addresses that others may use
    #[arg(long, value_name = "NETWORK")]
    pub network: Option<Network>,
    /// Directory to answer into, instead of standard output
    #[arg(long, value_name = "DIR")]
    pub into: Option<PathBuf>,
}
