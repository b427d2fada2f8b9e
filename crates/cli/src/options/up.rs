//! The options of `up` and `config`.

use std::path::PathBuf;

use bivouac_launch::FormationName;
use bivouac_stage::{Transfer, parse_in, parse_out};
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};

use super::numbers::number;
use super::{AttachArgs, FormationArgs};

/// Where a formation is mounted.
#[derive(Clone, Debug, Default, Args)]
pub struct PlaceArgs {
    /// Mount point, an empty directory, made if it is missing [default: mnt in the formation's own directory; over
    /// several hosts /tmp/bivouac-UID/NAME+mount on each]
    #[arg(long = "mount", value_name = "DIR", conflicts_with = "each")]
    pub dir: Option<PathBuf>,
    /// Mount the formation at DIR/0, DIR/1 and so on, each through its own node
    #[arg(long = "mount-each", value_name = "DIR", help_heading = "Mounting")]
    pub each: Option<PathBuf>,
    /// Let other users in too, as far as permissions go; needs user_allow_other in /etc/fuse.conf unless root mounts
    #[arg(long, help_heading = "Mounting")]
    pub allow_other: bool,
}

/// Arguments of `up`.
#[derive(Debug, Args)]
pub struct UpArgs {
    /// Name of the formation: 1 to 64 of A-Z a-z 0-9 . _ - [default: default; inside a batch job job-NUMBER]
    #[arg(value_name = "NAME")]
    formation_name: Option<FormationName>,
    /// Name of the formation, as all commands take it
    #[arg(long, value_name = "NAME", conflicts_with = "formation_name")]
    name: Option<FormationName>,
    #[command(flatten)]
    pub file: FileArgs,
    #[command(flatten)]
    pub formation: FormationArgs,
    #[command(flatten)]
    pub place: PlaceArgs,
    /// End the formation when this process ends, for instance a job script's: --owner $$
    ///
    /// Where another host goes on in the place of this one (--protect replicas=2), the process counts as ended.
    #[arg(long, value_name = "PID", allow_negative_numbers = true, value_parser = number::<u32>(1, 4_194_304))]
    pub owner: Option<u32>,
    /// File or directory of the formation that is to be copied out before it goes down, and the path it shall have:
    /// `stage out` copies it, and `down` refuses while it is not
    #[arg(long = "out", value_name = "SRC:DST", value_parser = OsStringValueParser::new().try_map(parse_out))]
    pub outputs: Vec<Transfer>,
    /// Do not mount it
    #[arg(long, conflicts_with_all = ["dir", "each", "allow_other"])]
    pub no_mount: bool,
    /// Write JSON to standard output: name, mounts, and the steps of the start in microseconds
    #[arg(long)]
    pub json: bool,
}

/// What the table `[formation]` of a formation file may have besides what a formation is made of, as `up` and `run`
/// take it.
#[derive(Clone, Debug, Default, Args)]
pub struct FileKeyArgs {
    /// Name of the formation: 1 to 64 of A-Z a-z 0-9 . _ -
    #[arg(long, value_name = "NAME")]
    pub name: Option<FormationName>,
    #[command(flatten)]
    pub place: PlaceArgs,
    #[command(flatten)]
    pub attach: AttachArgs,
    /// File or directory to copy into the formation first, for `run`
    #[arg(long = "in", value_name = "SRC[:DST]", value_parser = OsStringValueParser::new().try_map(parse_in))]
    pub inputs: Vec<Transfer>,
    /// File or directory of the formation to copy out
    #[arg(long = "out", value_name = "SRC:DST", value_parser = OsStringValueParser::new().try_map(parse_out))]
    pub outputs: Vec<Transfer>,
}

impl UpArgs {
    /// Returns the name, if one was given.
    pub fn name(&self) -> Option<&FormationName> {
        self.formation_name.as_ref().or(self.name.as_ref())
    }
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
