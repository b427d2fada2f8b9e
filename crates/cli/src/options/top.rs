//! The options of `top`.

use clap::Args;

use super::{Duration, WhichArgs, duration, interval};

/// Arguments of `top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    #[command(flatten)]
    pub which: WhichArgs,
    /// How long an interval is
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = interval)]
    pub every: Duration,
    /// Show one interval and end
    #[arg(long)]
    pub once: bool,
    /// Write a line of JSON for each interval
    #[arg(long)]
    pub json: bool,
    /// With --json, begin with what nodes did since so long ago: a line for each second of the last half hour in which
    /// something was done, before that for each minute, and one for each time in between
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "json")]
    pub since: Option<Duration>,
}
