//! The options of `run` and `exec`.

use std::ffi::OsString;
use std::path::PathBuf;

use bivouac_launch::FormationName;
use bivouac_stage::{Transfer, parse_in, parse_out};
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};

use super::numbers::rate;
use super::{Duration, FileArgs, FormationArgs, NameArgs, PlaceArgs, SiteArgs, TalkArgs, round};

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Name of the formation: 1 to 64 of A-Z a-z 0-9 . _ - [default: run-PID]
    #[arg(long, value_name = "NAME")]
    pub name: Option<FormationName>,
    #[command(flatten)]
    pub file: FileArgs,
    #[command(flatten)]
    pub formation: FormationArgs,
    #[command(flatten)]
    pub place: PlaceArgs,
    /// File or directory to copy into the formation first, and its path there [default: its last name]; write \: for a
    /// colon in a name
    #[arg(long = "in", value_name = "SRC[:DST]", value_parser = OsStringValueParser::new().try_map(parse_in))]
    pub inputs: Vec<Transfer>,
    /// File or directory of the formation to copy out when the command has succeeded, and the path it shall have
    #[arg(long = "out", value_name = "SRC:DST", value_parser = OsStringValueParser::new().try_map(parse_out))]
    pub outputs: Vec<Transfer>,
    /// Copy out, while the command runs, what of the outputs is complete: each entry of a directory by itself, the
    /// newest first
    ///
    /// An entry is complete when nothing of it has changed for 10 s (half of DURATION, if that is less) and no process
    /// on this host has a file of it open for writing. It is at its target as a whole or not at all: it is copied
    /// beside it, compared, and renamed if it has not changed meanwhile. Names that begin with a dot or end in .tmp or
    /// ~ come out in the end. When the command has failed, what is at the target stays as it is.
    #[arg(long, value_name = "DURATION", requires = "outputs", value_parser = round)]
    pub out_every: Option<Duration>,
    /// Copy the outputs out also when the command has failed or was interrupted
    #[arg(long)]
    pub out_always: bool,
    /// Copy all of the outputs out, also inputs in them that the command did not change
    #[arg(long)]
    pub out_all: bool,
    /// Write what the job did when it has ended, however it did: a page (.html), JSON (.json), or text (see `bivouac
    /// report`)
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Leave the formation running afterwards, with its data
    #[arg(long)]
    pub keep: bool,
    /// Do not read back and compare what was copied
    #[arg(long)]
    pub no_verify: bool,
    /// Most bytes per second that are copied in or out (500m)
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub limit: Option<u64>,
    /// Say afterwards what the site's model predicted and what it took, and have the model learn of it
    #[arg(long)]
    pub plan: bool,
    /// Write that comparison as JSON
    #[arg(long, value_name = "FILE", requires = "plan")]
    pub plan_json: Option<PathBuf>,
    #[command(flatten)]
    pub site: SiteArgs,
    #[command(flatten)]
    pub talk: TalkArgs,
    #[command(flatten)]
    pub preload: PreloadArgs,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Arguments of `exec`.
#[derive(Debug, Args)]
pub struct ExecArgs {
    #[command(flatten)]
    pub which: NameArgs,
    /// Run the command also where the formation is not mounted; BIVOUAC is not set there
    #[arg(long, conflicts_with = "cd")]
    pub no_mount: bool,
    /// Begin in the mount point, or in this directory below it
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, default_missing_value = "/")]
    pub cd: Option<PathBuf>,
    #[command(flatten)]
    pub preload: PreloadArgs,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Whether the command's reads and writes are done without the daemon where that is possible.
#[derive(Debug, Args)]
pub struct PreloadArgs {
    /// The library that does the command's reads and writes without the daemon [default: libbivouac_preload.so beside
    /// this program, or in ../lib, if it is there; for `run` over several hosts only one that is named]
    #[arg(long, value_name = "FILE", conflicts_with = "no_preload")]
    pub preload: Option<PathBuf>,
    /// Let the mount do everything
    #[arg(long)]
    pub no_preload: bool,
}
