//! The options of `logs`.

use clap::{Args, ValueEnum};

use super::WhichArgs;
use super::numbers::number;

/// How severe something is, the most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// Arguments of `logs`.
#[derive(Debug, Args)]
pub struct LogsArgs {
    #[command(flatten)]
    pub which: WhichArgs,
    /// Show only what the daemon of this node wrote; may be given several times
    #[arg(long = "node", value_name = "I", allow_negative_numbers = true, value_parser = number::<u16>(0, 65_535))]
    pub nodes: Vec<u16>,
    /// Show only what the supervisor wrote, and of nodes those that are named
    #[arg(long)]
    pub supervisor: bool,
    /// Show only what is as severe as this, or more
    #[arg(long, value_name = "LEVEL", value_enum)]
    pub level: Option<LogLevel>,
    /// Show only so many of the last lines
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true, value_parser = number::<usize>(0, 1_000_000_000))]
    pub lines: Option<usize>,
    /// Go on with what is written from now on, until the formation is gone or Ctrl-C is pressed
    #[arg(short = 'f', long)]
    pub follow: bool,
    /// Write each line as one of JSON, in whichever form it was written: time, level, who wrote it (by, process, node,
    /// host, pid), where, what, why, remedy, text
    #[arg(long)]
    pub json: bool,
}
