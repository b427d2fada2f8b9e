//! The options that say over which hosts a formation is.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use bivouac_hosts::RendezvousAddress;
use bivouac_launch::{Launcher, Network};
use clap::Args;

use super::numbers::number;
use super::{Duration, duration};

/// Where it is known from which hosts are behind one switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Topology {
    /// What the batch system knows.
    #[default]
    Auto,
    /// It does not matter.
    None,
    /// A map of machines.
    File(PathBuf),
}

impl FromStr for Topology {
    type Err = String;

    fn from_str(text: &str) -> Result<Topology, String> {
        match text {
            "auto" => Ok(Topology::Auto),
            "none" => Ok(Topology::None),
            "" => Err("write auto, none, or the path of a map (bivouac system --json)".into()),
            path => Ok(Topology::File(path.into())),
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Topology::Auto => f.write_str("auto"),
            Topology::None => f.write_str("none"),
            Topology::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// What the help calls these. A heading of the whole would hold for all options behind them, too.
const HEADING: &str = "Several hosts";

/// Over which hosts a formation is, and how they are reached.
#[derive(Clone, Debug, Args)]
pub struct HostsArgs {
    /// The formation's hosts: names as for ssh, ranges in brackets, a number of nodes behind a colon (n1,n[2-4]:2)
    #[arg(long, value_name = "HOST[,HOST...]", conflicts_with_all = ["nodes", "hostfile"])]
    pub hosts: Option<String>,
    /// File with the formation's hosts, one per line
    #[arg(long, value_name = "FILE", conflicts_with = "nodes", help_heading = HEADING)]
    pub hostfile: Option<PathBuf>,
    /// Nodes on each host that does not say otherwise
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "nodes", allow_negative_numbers = true, value_parser = number::<u16>(1, 256), help_heading = HEADING)]
    pub nodes_per_host: u16,
    /// What starts processes on the hosts: ssh, slurm, pbs, flux, mpi, or a command with {host}, and {args} or, where a shell reads it again, {command} in it
    ///
    /// Inside an allocation of Slurm or PBS that batch system does it, over the job's hosts unless others are named; elsewhere ssh.
    #[arg(long = "launch", value_name = "LAUNCHER", conflicts_with = "nodes", help_heading = HEADING)]
    pub launcher: Option<Launcher>,
    /// Send a program along instead of using what is installed on the hosts: this one, or a static build at this path
    #[arg(long, value_name = "PATH", num_args = 0..=1, require_equals = true, default_missing_value = "/proc/self/exe", conflicts_with_all = ["nodes", "program"], help_heading = HEADING)]
    pub send: Option<PathBuf>,
    /// Path of bivouac on the hosts [default: this program's own path]
    #[arg(long, value_name = "PATH", conflicts_with = "nodes", help_heading = HEADING)]
    pub program: Option<String>,
    /// Start with this many nodes, if the others do not come
    #[arg(long, value_name = "N", conflicts_with = "nodes", allow_negative_numbers = true, value_parser = number::<u16>(1, 65_535), help_heading = HEADING)]
    pub min_nodes: Option<u16>,
    /// The network that the hosts use among themselves: 10.1.0.0/16, or the name of an interface of this host [default: the one over which they reach this host]
    #[arg(long, value_name = "CIDR|NAME", conflicts_with = "nodes", help_heading = HEADING)]
    pub network: Option<Network>,
    /// Which hosts are behind one switch, so that stripes of a file are not: auto, as Slurm knows it inside its jobs;
    /// none; or a file written by `bivouac system --json`
    #[arg(long, value_name = "auto|none|FILE", default_value = "auto", conflicts_with = "nodes", help_heading = HEADING)]
    pub topology: Topology,
    /// The hosts come by themselves: something runs this very command on each of them, and they meet at this port of the first one
    ///
    /// Each returns when the formation can be used on its host. For scripts that run everywhere anyway, such as a batch system's prolog.
    #[arg(long, value_name = "[HOST:]PORT", conflicts_with_all = ["nodes", "launcher", "send", "program"], requires = "meet_secret", help_heading = HEADING)]
    pub meet: Option<RendezvousAddress>,
    /// File with what all hosts of a meeting know and nobody else does, 16 random bytes or more; new for each formation
    #[arg(long, value_name = "FILE", requires = "meet", help_heading = HEADING)]
    pub meet_secret: Option<PathBuf>,
    /// How long a host goes on while it hears nothing from the keeper of the formation, before it takes its part down
    ///
    /// With --protect replicas=2 on three hosts or more, four times --dead-after at least: so long may it take until another host
    /// goes on in that one's place.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration, conflicts_with = "nodes", help_heading = HEADING)]
    pub silence_max: Duration,
}

/// How the hosts are reached of a formation that is recovered over several.
#[derive(Clone, Debug, Args)]
pub struct AgainArgs {
    /// The hosts that have its volumes, in any order [default: those that it was over]
    #[arg(long, value_name = "HOST[,HOST...]", conflicts_with = "hostfile")]
    pub hosts: Option<String>,
    /// File with those hosts, one per line
    #[arg(long, value_name = "FILE")]
    pub hostfile: Option<PathBuf>,
    /// What starts processes on the hosts, as for `up` [default: what did it before; where hosts came by themselves, ssh]
    #[arg(long = "launch", value_name = "LAUNCHER")]
    pub launcher: Option<Launcher>,
    /// Send a program along instead of using what is installed on the hosts: this one, or a static build at this path
    #[arg(long, value_name = "PATH", num_args = 0..=1, require_equals = true, default_missing_value = "/proc/self/exe", conflicts_with = "program")]
    pub send: Option<PathBuf>,
    /// Path of bivouac on the hosts [default: as before]
    #[arg(long, value_name = "PATH")]
    pub program: Option<String>,
    /// Go on with this many nodes, if the others do not come: what only those had is not there (EIO)
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::<u16>(1, 65_535))]
    pub min_nodes: Option<u16>,
    /// The network that the hosts use among themselves [default: as before]
    #[arg(long, value_name = "CIDR|NAME")]
    pub network: Option<Network>,
}
