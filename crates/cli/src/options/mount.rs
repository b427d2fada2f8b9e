//! The options of `mount`, `unmount` and `explain`.

use std::path::PathBuf;

use bivouac_types::units::parse_size;
use clap::Args;

use super::NameArgs;
use super::numbers::number;

/// Arguments of `mount`.
#[derive(Debug, Args)]
pub struct MountArgs {
    #[command(flatten)]
    pub which: NameArgs,
    /// The node that serves the mount [default: the first of this host]
    #[arg(long, value_name = "I", allow_negative_numbers = true, value_parser = number::<u16>(0, 65_535))]
    pub node: Option<u16>,
    /// Let other users in too, as far as permissions go; needs user_allow_other in /etc/fuse.conf unless root mounts
    #[arg(long)]
    pub allow_other: bool,
    /// Mount point, an empty directory
    pub dir: PathBuf,
}

/// Arguments of `unmount`.
#[derive(Debug, Args)]
pub struct UnmountArgs {
    /// Mount point
    pub dir: PathBuf,
}

/// Arguments of `explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// A path in a mounted formation
    #[arg(required_unless_present = "pid")]
    pub path: Option<PathBuf>,
    /// Show instead which files of formations this process has open, and which path its calls on each take
    #[arg(long, value_name = "PID", conflicts_with_all = ["path", "offset"], allow_negative_numbers = true, value_parser = number::<u32>(1, 4_194_304))]
    pub pid: Option<u32>,
    /// Show where the byte at this offset of the file is, too
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub offset: Option<u64>,
    /// Write JSON to standard output
    #[arg(long)]
    pub json: bool,
}
