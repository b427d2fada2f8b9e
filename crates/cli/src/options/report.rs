//! The options of `report`.

use std::path::PathBuf;

use clap::Args;

use super::WhichArgs;

/// Arguments of `report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    #[command(flatten)]
    pub which: WhichArgs,
    /// Show this report, written by --json or by run --report, instead of asking a formation
    #[arg(long, value_name = "FILE", conflicts_with = "name")]
    pub from: Option<PathBuf>,
    /// Write it as a page for browsers, in one file; - is standard output
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub html: Option<PathBuf>,
    /// Write it as JSON; - is standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Say whether it went better than in this earlier report, written by --json
    #[arg(long, value_name = "OLD")]
    pub compare: Option<PathBuf>,
}
