//! The options of `doctor`.

use clap::Args;

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Hosts that are asked by ssh whether they let you in, and have this program: names as for `up --hosts`
    #[arg(long, value_name = "HOST[,HOST...]")]
    pub hosts: Option<String>,
    /// Write JSON to standard output
    #[arg(long)]
    pub json: bool,
}
