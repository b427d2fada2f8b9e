//! The options of `flush`, `pin`, `unpin`, `fsck` and `scrub`.

use std::path::PathBuf;

use clap::Args;

use super::NameArgs;
use super::numbers::{number, rate};

/// Arguments of `flush`.
#[derive(Debug, Args)]
pub struct FlushArgs {
    /// Files and directories in partitions with a source; a directory is meant with all below it
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Say what would be written to the source, and write nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Say only what went wrong
    #[arg(short = 'q', long)]
    pub quiet: bool,
    /// Overwrite files that have changed at the source since they were last seen
    #[arg(long)]
    pub force: bool,
    /// Number of files at the same time
    #[arg(long, value_name = "N", default_value_t = 8, allow_negative_numbers = true, value_parser = number::<usize>(1, 1024))]
    pub jobs: usize,
}

/// Arguments of `pin` and `unpin`.
#[derive(Debug, Args)]
pub struct PinArgs {
    /// Files and directories in partitions with a source
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
}

/// Arguments of `fsck`.
#[derive(Debug, Args)]
pub struct FsckArgs {
    #[command(flatten)]
    pub which: NameArgs,
    /// The formation; with --offline and --from-subfiles also its volumes, directories that hold them, or the directory
    /// of its state
    #[arg(value_name = "NAME|DIR")]
    pub targets: Vec<PathBuf>,
    /// Check the volumes of a stopped formation; without --repair say only what it would do
    #[arg(long, conflicts_with = "from_subfiles")]
    pub offline: bool,
    /// Repair what can be repaired without losing data
    #[arg(long, requires = "offline")]
    pub repair: bool,
    /// Read all content, and compare it with its checksums where it has any
    #[arg(long, conflicts_with = "from_subfiles")]
    pub scrub: bool,
    /// Remove subfiles that belong to no file, with their data, instead of making files of them
    #[arg(long, requires = "repair")]
    pub discard_unreferenced: bool,
    /// Rebuild files from their subfiles alone, for when the records are gone
    #[arg(long, requires = "out")]
    pub from_subfiles: bool,
    /// Directory for rebuilt files, each under its inode number; empty, or to be made
    #[arg(long, value_name = "DIR", requires = "from_subfiles")]
    pub out: Option<PathBuf>,
    /// Write JSON to standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `scrub`.
#[derive(Debug, Args)]
pub struct ScrubArgs {
    #[command(flatten)]
    pub which: NameArgs,
    /// A file, or a directory with all below it, in a mounted formation [default: everything]
    #[arg(value_name = "PATH", conflicts_with = "name")]
    pub path: Option<PathBuf>,
    /// Bytes that each node compares per second at most [default: as many as it can]
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    pub rate: Option<u64>,
    /// Write JSON to standard output: a line per second, and one at the end
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `races`.
#[derive(Debug, Args)]
pub struct RacesArgs {
    #[command(flatten)]
    pub which: NameArgs,
    /// Files, or directories with all below them, in a mounted formation [default: everything]
    #[arg(value_name = "PATH", conflicts_with = "name")]
    pub paths: Vec<PathBuf>,
    /// Show also conflicting accesses that are ordered, but would not be under the session contract
    #[arg(long)]
    pub all: bool,
    /// Write JSON to standard output
    #[arg(long)]
    pub json: bool,
}
