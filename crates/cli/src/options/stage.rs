//! The options of `stage`.

use std::path::PathBuf;

use bivouac_stage::UnixTime;
use bivouac_stage::jobs::ChangeFilter;
use bivouac_types::units::parse_duration_ms;
use clap::{Args, Subcommand};

use super::numbers::{number, rate};
use super::{NameArgs, SlotArgs};

/// Arguments of `stage`.
#[derive(Debug, Args)]
pub struct StageArgs {
    /// What to do
    #[command(subcommand)]
    pub action: StageAction,
}

/// What `stage` does.
#[derive(Debug, Subcommand)]
pub enum StageAction {
    /// Copy files and directories into a formation
    ///
    /// With one SRC the copy gets the path DST; with several, or if DST ends in a slash, each goes to DST/NAME. DST is
    /// a path in the formation, from its root on, or below one of its mount points. A directory that exists is merged;
    /// nothing is deleted. An interrupted job is resumed with: bivouac stage resume.
    In(StageCopyArgs),
    /// Copy files and directories out of a formation; without operands what `up --out` asked for
    ///
    /// As `stage in`, the other way round: SRC is in the formation. With --changed-since only what changed is copied,
    /// by the formation's own records; what was deleted is named and stays at the target.
    Out(StageOutArgs),
    /// Show jobs: what they do, how far they are, what is left
    Status(StageStatusArgs),
    /// Go on with a job that was interrupted or is incomplete; does only what is missing
    Resume(StageResumeArgs),
    /// Remove what an unfinished job left at its targets, and forget the job; what is complete stays
    Cancel(StageJobArgs),
}

/// What is copied, and how.
#[derive(Clone, Debug, Args)]
pub struct StageCopyArgs {
    #[command(flatten)]
    pub which: NameArgs,
    /// What to copy, and where to
    #[arg(value_name = "SRC... DST", num_args = 1.., required = true)]
    pub paths: Vec<PathBuf>,
    #[command(flatten)]
    pub how: StageHowArgs,
}

/// What is copied out, and how.
#[derive(Clone, Debug, Args)]
pub struct StageOutArgs {
    #[command(flatten)]
    pub which: NameArgs,
    /// What to copy, and where to
    #[arg(value_name = "SRC... DST", num_args = 1..)]
    pub paths: Vec<PathBuf>,
    /// Copy only what changed: since it was staged in (in), or since a time: a duration ago (90m) or @SECONDS since
    /// 1970
    #[arg(long, value_name = "in|TIME", value_parser = parse_changed)]
    pub changed_since: Option<ChangeFilter>,
    #[command(flatten)]
    pub how: StageHowArgs,
}

/// How it is copied.
#[derive(Clone, Debug, Args)]
pub struct StageHowArgs {
    /// Write the manifest here, too: a line per object with size, digest, mode, times and state
    #[arg(long, value_name = "FILE")]
    pub manifest: Option<PathBuf>,
    /// Copy only what matches: a name, or with a slash a path below SRC; * ? [] {} and ** over slashes; may be repeated
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<String>,
    /// Leave out what matches, and what is in it; may be repeated
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// Number of workers [default: one per processor, but 4 to 32]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, allow_negative_numbers = true, value_parser = number::<usize>(0, 1024))]
    pub jobs: usize,
    /// Most bytes per second, of all workers together (500m)
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub limit: Option<u64>,
    /// Say what would be copied, and copy nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub slot: SlotArgs,
    #[command(flatten)]
    pub talk: TalkArgs,
    /// Read back what was written and compare it before it gets its name; that is the default
    #[arg(long, overrides_with = "no_verify")]
    pub verify: bool,
    /// Do not read back and compare what was copied
    #[arg(long, overrides_with = "verify")]
    pub no_verify: bool,
    /// Write JSON to standard output: a line per event
    #[arg(long)]
    pub json: bool,
}

/// How much is said.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct TalkArgs {
    /// Say only what went wrong
    #[arg(short = 'q', long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Name every file when it is complete
    #[arg(short = 'v', long)]
    pub verbose: bool,
}

/// Which jobs to show.
#[derive(Clone, Debug, Args)]
pub struct StageStatusArgs {
    #[command(flatten)]
    pub which: NameArgs,
    /// Number of a job [default: all]
    #[arg(value_name = "ID")]
    pub id: Option<u64>,
    /// Write JSON to standard output
    #[arg(long)]
    pub json: bool,
}

/// Which job to go on with.
#[derive(Clone, Debug, Args)]
pub struct StageResumeArgs {
    #[command(flatten)]
    pub job: StageJobArgs,
    #[command(flatten)]
    pub slot: SlotArgs,
    #[command(flatten)]
    pub talk: TalkArgs,
    /// Write JSON to standard output: a line per event
    #[arg(long)]
    pub json: bool,
}

/// Which job.
#[derive(Clone, Debug, Args)]
pub struct StageJobArgs {
    #[command(flatten)]
    pub which: NameArgs,
    /// Number of the job, as `stage status` shows it
    #[arg(value_name = "ID")]
    pub id: u64,
}

/// Reads `in`, `@SECONDS` since 1970, or a duration ago.
fn parse_changed(text: &str) -> Result<ChangeFilter, String> {
    if text == "in" {
        return Ok(ChangeFilter::SinceIn);
    }
    let wrong = || format!("'{text}' is no time; write in, a duration such as 90m, or @SECONDS since 1970");
    if let Some(at) = text.strip_prefix('@') {
        return Ok(ChangeFilter::Since((at.parse().map_err(|_| wrong())?, 0)));
    }
    let ms = parse_duration_ms(text).map_err(|_| wrong())?;
    Ok(ChangeFilter::Since(ago(ms)))
}

fn ago(ms: u64) -> UnixTime {
    let now = std::time::SystemTime::now().checked_sub(std::time::Duration::from_millis(ms));
    let since = now.and_then(|then| then.duration_since(std::time::UNIX_EPOCH).ok()).unwrap_or_default();
    (since.as_secs().cast_signed(), i64::from(since.subsec_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        assert_eq!(parse_changed("in"), Ok(ChangeFilter::SinceIn));
        assert_eq!(parse_changed("@12"), Ok(ChangeFilter::Since((12, 0))));
        let Ok(ChangeFilter::Since((secs, _))) = parse_changed("1h") else { panic!() };
        assert!(ago(0).0 - secs >= 3600 && ago(0).0 - secs < 3700);
        for wrong in ["", "@", "@x", "yesterday"] {
            assert!(parse_changed(wrong).unwrap_err().contains("write in, a duration"), "{wrong}");
        }
    }
}
