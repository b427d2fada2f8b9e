//! Arguments of what is about slots for staging.

use bivouac_pool::PoolRef;
use bivouac_types::units::{parse_duration_ms, parse_size};
use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args, Subcommand};

use super::numbers::{number, rate};
use super::pool::RequestArgs;
use super::{DatabaseArgs, NameArgs, StageHowArgs};

/// Latest time that can be written, in seconds since 1970: the year 9999.
const TIME_MAX: i64 = 253_402_300_799;

/// A slot that a stage keeps to.
#[derive(Clone, Debug, Default, Args)]
pub struct SlotArgs {
    /// Wait for this slot of bivouac pool announce, and copy no faster than it says
    #[arg(long, value_name = "ID", value_parser = number::<i64>(1, i64::MAX as u64))]
    pub slot: Option<i64>,
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// A time as people write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeSpec {
    /// So many seconds from now.
    In(i64),
    /// Seconds since 1970.
    At(i64),
}

impl TimeSpec {
    /// Returns the time, in seconds since 1970.
    pub fn at_s(self, now_s: i64) -> i64 {
        match self {
            TimeSpec::In(seconds) => now_s.saturating_add(seconds),
            TimeSpec::At(at_s) => at_s,
        }
    }
}

/// Reads a duration from now, or `@SECONDS` since 1970.
fn parse_when(text: &str) -> Result<TimeSpec, String> {
    let wrong =
        || format!("'{text}' is no time; write a duration from now such as 90m, or @SECONDS since 1970");
    if let Some(at) = text.strip_prefix('@') {
        let at_s = at.parse().ok().filter(|at_s| (0..=TIME_MAX).contains(at_s));
        return at_s.map(TimeSpec::At).ok_or_else(wrong);
    }
    let ms = parse_duration_ms(text).map_err(|_| wrong())?;
    i64::try_from(ms / 1000).ok().filter(|seconds| *seconds <= TIME_MAX).map(TimeSpec::In).ok_or_else(wrong)
}

/// Arguments of `pool announce`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("way").required(true)))]
pub struct PoolAnnounceArgs {
    /// The pool that it is about: NAME, or UID/NAME for another user's; its size is taken, if none is given
    pub pool: Option<PoolRef>,
    /// Data comes in, from site storage
    #[arg(long = "in", group = "way")]
    pub is_in: bool,
    /// Data goes out, to site storage
    #[arg(long = "out", group = "way")]
    pub is_out: bool,
    /// Size of the data, in bytes
    #[arg(long, value_name = "SIZE", value_parser = parse_size, required_unless_present = "pool")]
    pub size: Option<u64>,
    /// Number of files
    #[arg(long, value_name = "N", value_parser = number::<u64>(0, u64::MAX))]
    pub files: Option<u64>,
    /// When it has to be done: a duration from now (90m), or @SECONDS since 1970
    #[arg(long, value_name = "TIME", value_parser = parse_when, required_unless_present = "job")]
    pub by: Option<TimeSpec>,
    /// When it can begin [default: now]
    #[arg(long, value_name = "TIME", value_parser = parse_when)]
    pub from: Option<TimeSpec>,
    /// Most bytes per second that it can take
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub rate: Option<u64>,
    /// Take what there is if that cannot be met
    #[arg(long)]
    pub or_later: bool,
    /// Job of Slurm, Flux or PBS that it is for: it has to be done when the job is expected to start
    #[arg(long, value_name = "JOBID", conflicts_with = "is_out", value_parser = NonEmptyStringValueParser::new())]
    pub job: Option<String>,
    /// Title, for people
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub title: String,
    /// Write JSON to standard output
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub request: RequestArgs,
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// Arguments of what is about one slot.
#[derive(Debug, Args)]
pub struct PoolSlotArgs {
    /// Number of the slot, as `pool announce` says it
    #[arg(value_name = "ID")]
    pub id: i64,
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// Arguments of `pool begin`.
#[derive(Debug, Args)]
pub struct PoolBeginArgs {
    #[command(flatten)]
    pub slot: PoolSlotArgs,
    /// Do not wait: if it is not its time yet, say so and fail
    #[arg(long)]
    pub no_wait: bool,
}

/// Arguments of `pool slots` and `pool schedule`.
#[derive(Debug, Args)]
pub struct PoolSlotsArgs {
    /// Also those that are over
    #[arg(long)]
    pub all: bool,
    /// Write JSON to standard output
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// Arguments of `pool storage`.
#[derive(Debug, Args)]
pub struct PoolStorageArgs {
    /// Bytes per second that all stages together may have
    #[arg(long, value_name = "RATE", value_parser = parse_size)]
    pub bandwidth: Option<u64>,
    /// Per cent of them that one user may have at the same time
    #[arg(long, value_name = "PERCENT", value_parser = number::<u32>(1, 100))]
    pub user_share: Option<u32>,
    /// Bytes that take as long as a file does besides its bytes
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub file_cost: Option<u64>,
    /// Write JSON to standard output
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// Arguments of `pool follow`.
#[derive(Debug, Args)]
pub struct PoolFollowArgs {
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// Arguments of `pool stage`.
#[derive(Debug, Args)]
pub struct PoolStageArgs {
    /// What to do
    #[command(subcommand)]
    pub action: PoolStageAction,
}

/// What `pool stage` does.
#[derive(Debug, Subcommand)]
pub enum PoolStageAction {
    /// Copy a pool's data into a formation, as a directory at its root
    In(PoolStageCopyArgs),
    /// Copy what changed in the formation since back to the pool
    Out(PoolStageCopyArgs),
}

/// Which pool is copied, and how.
#[derive(Clone, Debug, Args)]
pub struct PoolStageCopyArgs {
    /// The pool: NAME, or UID/NAME for another user's
    pub pool: PoolRef,
    /// Where in the formation [default: /NAME]
    #[arg(long, value_name = "PATH")]
    pub at: Option<std::path::PathBuf>,
    #[command(flatten)]
    pub which: NameArgs,
    #[command(flatten)]
    pub how: StageHowArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        assert_eq!(parse_when("90m"), Ok(TimeSpec::In(5400)));
        assert_eq!(parse_when("@12").unwrap().at_s(99), 12);
        assert_eq!(parse_when("5").unwrap().at_s(99), 104);
        for wrong in ["", "@", "@-1", "@9999999999999", "99999999999999999999d", "noon"] {
            assert!(parse_when(wrong).unwrap_err().contains("@SECONDS"), "{wrong}");
        }
    }
}
