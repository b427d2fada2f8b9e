//! The options of `up` and `config`.

use std::path::PathBuf;

use bivouac_launch::FormationName;
use bivouac_stage::{Transfer, parse_out};
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};

use super::numbers::number;
use super::{AttachArgs, FormationArgs};

/// Where a formation is mounted.
#[derive(Clone, Debug, Default, Args)]
pub struct PlaceArgs {
    /// Mount point, an empty directory [default: mnt in the formation's own directory; over several hosts /tmp/bivouac-UID/NAME+mount on each, made if it is missing]
    #[arg(long = "mount", value_name = "DIR", conflicts_with = "each")]
    pub dir: Option<PathBuf>,
    /// Mount the formation at DIR/0, DIR/1 and so on, each through its own node
    #[arg(long = "mount-each", value_name = "DIR")]
    pub each: Option<PathBuf>,
    /// Let other users in too, as far as permissions go; needs user_allow_other in /etc/fuse.conf unless root mounts
    #[arg(long)]
    pub allow_other: bool,
}

/// Arguments of `up`.
#[derive(Debug, Args)]
pub struct UpArgs {
    /// Name of the formation: 1 to 64 of A-Z a-z 0-9 . _ -
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub name: FormationName,
    #[command(flatten)]
    pub file: FileArgs,
    #[command(flatten)]
    pub formation: FormationArgs,
    #[command(flatten)]
    pub place: PlaceArgs,
    /// End the formation when this process ends, for instance a job script's: --owner $$
    #[arg(long, value_name = "PID", allow_negative_numbers = true, value_parser = number::<u32>(1, 4_194_304))]
    pub owner: Option<u32>,
    /// File or directory of the formation that is to be copied out before it goes down, and the path it shall have: `stage out`
    /// copies it, and `down` refuses while it is not
    #[arg(long = "out", value_name = "SRC:DST", value_parser = OsStringValueParser::new().try_map(parse_out))]
    pub outputs: Vec<Transfer>,
    /// Do not mount it
    #[arg(long, conflicts_with_all = ["dir", "each", "allow_other"])]
    pub no_mount: bool,
    /// Write JSON to standard output: name, mounts, and the steps of the start in microseconds
    #[arg(long)]
    pub json: bool,
}

/// A formation file.
#[derive(Clone, Debug, Default, Args)]
pub struct FileArgs {
    /// Formation file (TOML) with options and partitions; options that are given here count instead of those in it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub attach: AttachArgs,
}

/// Arguments of `config`.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// The formation file
    #[arg(long, value_name = "FILE")]
    pub check: PathBuf,
}
