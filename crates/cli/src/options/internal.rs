//! The commands that this program starts itself, and their options.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::TellArgs;

/// The commands that this program starts itself, many at a time. They have a parser of their own, which is made in no time.
#[derive(Debug, Subcommand)]
pub enum InternalCommand {
    /// The daemon of a node; started by the supervisor
    #[command(hide = true)]
    Node(NodeArgs),
    /// The supervisor of a formation's daemons; started by `up`
    #[command(hide = true)]
    Supervise(SuperviseArgs),
    /// Takes a formation down whose purpose is over; started by its supervisor
    #[command(hide = true)]
    End(EndArgs),
    /// One host's part of a formation over several; started by a launcher
    #[command(hide = true)]
    Join(JoinArgs),
    /// What keeps a formation over several hosts together; started by `up`
    #[command(hide = true)]
    Keep(SuperviseArgs),
    /// What this host is; started by `system`
    #[command(hide = true)]
    Tell(TellArgs),
    /// The server for HTTP of a host; started by the supervisor
    #[command(hide = true)]
    Serve(SuperviseArgs),
    /// The gateway of links of a host; started by the supervisor
    #[command(hide = true)]
    Gateway(SuperviseArgs),
}

/// Arguments of `node`.
#[derive(Debug, Args)]
pub struct NodeArgs {
    /// Formation and node, for lists of processes
    pub label: Option<String>,
}

/// Arguments of `supervise`.
#[derive(Debug, Args)]
pub struct SuperviseArgs {
    /// Directory of the formation
    pub dir: PathBuf,
}

/// Arguments of `end`.
#[derive(Debug, Args)]
pub struct EndArgs {
    /// Directory of the formation
    pub dir: PathBuf,
}

/// Arguments of `join`.
#[derive(Debug, Args)]
pub struct JoinArgs {
    /// File with the ticket [default: BIVOUAC_TICKET, else the first line of standard input]
    #[arg(long, value_name = "FILE")]
    pub ticket: Option<PathBuf>,
    /// Directory that this program was sent to; it is removed
    #[arg(long, value_name = "DIR")]
    pub sent: Option<PathBuf>,
    /// Try until the first host lets this one in, and say when the formation can be used here
    #[arg(long)]
    pub meet: bool,
    /// Play the part in a session of its own, which goes on when the launcher ends this process; its exit code is 0 in any case
    #[arg(long)]
    pub apart: bool,
}
