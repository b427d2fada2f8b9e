//! Arguments of `plan`.

use std::path::PathBuf;

use bivouac_types::units::parse_size;
use clap::{Args, Subcommand};

use super::numbers::number;
use super::{Duration, duration};

/// Arguments of `plan`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct PlanArgs {
    /// What to do instead of planning a job
    #[command(subcommand)]
    pub action: Option<PlanAction>,
    #[command(flatten)]
    pub site: SiteArgs,
    /// What the job does, as TOML with the names of these options; options that are given here count instead of those in it
    #[arg(long, value_name = "FILE")]
    pub job: Option<PathBuf>,
    /// Plan by what the job did before: a report as JSON, or a directory of some, of which the median of each figure
    /// counts; other options and --job count instead
    ///
    /// `bivouac report --json FILE` and `run --report FILE.json` write them. How much memory the application takes is
    /// not in them: --memory.
    #[arg(long, value_name = "FILE|DIR")]
    pub from_report: Option<PathBuf>,
    /// Nodes of the job [default: 1; inside a batch job its hosts]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::<u32>(1, 65_535))]
    pub nodes: Option<u32>,
    /// Input that is looked through for its files and bytes; may be given several times
    #[arg(long = "scan", value_name = "PATH", conflicts_with_all = ["in_bytes", "in_files"])]
    pub scan: Vec<PathBuf>,
    /// Bytes that the job reads from site storage
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub in_bytes: Option<u64>,
    /// Files that they are in
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::<u64>(0, u64::MAX))]
    pub in_files: Option<u64>,
    /// How often the job reads its input [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::<u32>(0, 1_000_000))]
    pub reads: Option<u32>,
    /// Bytes of results
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub out_bytes: Option<u64>,
    /// Files that they are in [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::<u64>(0, u64::MAX))]
    pub out_files: Option<u64>,
    /// Bytes of one checkpoint
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub checkpoint: Option<u64>,
    /// Time between two checkpoints
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "checkpoint")]
    pub checkpoint_every: Option<Duration>,
    /// Bytes that it writes for itself alone: neither results nor checkpoints
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub scratch: Option<u64>,
    /// Files that they are in [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::<u64>(0, u64::MAX))]
    pub scratch_files: Option<u64>,
    /// How often it reads them [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::<u32>(0, 1_000_000))]
    pub scratch_reads: Option<u32>,
    /// How long the job computes
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub run_time: Option<Duration>,
    /// Memory that the application takes of each node
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// Write the formation file that is recommended, for up --config
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// Write JSON to standard output
    #[arg(long)]
    pub json: bool,
}

/// Which site.
#[derive(Clone, Debug, Default, Args)]
pub struct SiteArgs {
    /// Model of the site (TOML); what is learned of it is kept beside it [default: site.toml in bivouac's directory of XDG_STATE_HOME, which `plan calibrate` writes]
    #[arg(long, value_name = "FILE")]
    pub site: Option<PathBuf>,
}

/// What else `plan` does.
#[derive(Debug, Subcommand)]
pub enum PlanAction {
    /// Measure site storage in a directory of it, and this node, and write the model of the site
    Calibrate(CalibrateArgs),
    /// Forget what runs have taught about the site
    Reset(ResetArgs),
}

/// Arguments of `plan calibrate`.
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    #[command(flatten)]
    pub site: SiteArgs,
    /// Bytes that each stream writes and reads
    #[arg(long, value_name = "SIZE", default_value = "64m", value_parser = parse_size)]
    pub size: u64,
    /// Most streams at the same time
    #[arg(long, value_name = "N", default_value_t = 8, allow_negative_numbers = true, value_parser = number::<u32>(1, 256))]
    pub streams: u32,
    /// Small files that are written and read
    #[arg(long, value_name = "N", default_value_t = 200, allow_negative_numbers = true, value_parser = number::<u32>(1, 100_000))]
    pub files: u32,
    /// Directory of the site's storage; what is written there is removed again
    pub dir: PathBuf,
}

/// Arguments of `plan reset`.
#[derive(Debug, Args)]
pub struct ResetArgs {
    #[command(flatten)]
    pub site: SiteArgs,
}
