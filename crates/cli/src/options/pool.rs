//! Arguments of `pool`, and of what attaches pools.

use std::path::PathBuf;

use bivouac_pool::{Address, AttachRequest, PoolName, PoolRef};
use bivouac_types::units::parse_size;
use clap::{Args, Subcommand};

use super::numbers::number;
use super::slots::{
    PoolAnnounceArgs, PoolBeginArgs, PoolFollowArgs, PoolSlotArgs, PoolSlotsArgs, PoolStageArgs,
    PoolStorageArgs,
};

/// Arguments of `pool`.
#[derive(Debug, Args)]
pub struct PoolArgs {
    /// What to do
    #[command(subcommand)]
    pub command: PoolCommand,
}

/// Which database.
#[derive(Clone, Debug, Default, Args)]
pub struct DatabaseArgs {
    /// Database of pools: sqlite://FILE, or postgres://[ROLE[:PASSWORD]@]HOST/DATABASE[?sslmode=MODE] [default:
    /// pools.sqlite in bivouac's directory of XDG_STATE_HOME]
    #[arg(long, value_name = "URL", env = "BIVOUAC_DB", hide_env_values = true, help_heading = "Pools")]
    pub db: Option<String>,
}

/// Pools that a formation attaches.
#[derive(Clone, Debug, Default, Args)]
pub struct AttachArgs {
    /// Pool that the formation shall have, at /pools/NAME unless another path is given: NAME[:ro|:rw][@PATH]; may be given several times
    ///
    /// It is a partition whose source is the pool's data. With ro, which is the default, nothing is ever brought to the pool; with rw what
    /// is written goes there, at the latest before the formation goes down.
    #[arg(long = "pool", value_name = "NAME[:ro|:rw][@PATH]", help_heading = "Pools")]
    pub pools: Vec<AttachRequest>,
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// The commands of pools.
#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// Make a pool of data that is there, or with a directory of its own
    Create(PoolCreateArgs),
    /// Show the pools that you may use
    List(PoolListArgs),
    /// Show pools that have all of these words in name, title or source
    Find(PoolFindArgs),
    /// Show one pool: whose it is, until when, where it is, who else may use it
    Show(PoolOneArgs),
    /// Print one path, that of the best copy: in this formation, in another one that is mounted here, on site storage
    Path(PoolPathArgs),
    /// Show what happened to a pool
    History(PoolOneArgs),
    /// Count what a pool holds: what `announce` and `list` go by from then on
    ///
    /// `stage out` does so by itself.
    Count(PoolChangeArgs),
    /// Copy what a pool holds into an archive: a directory of slow or far storage, or a bucket
    ///
    /// The copy is read back and compared, and noted with a digest of its names and contents. With --free the pool's
    /// directory on site storage is removed afterwards, if it was made for the pool, and `pool restore` gets it back.
    /// Copies in archives are never removed by bivouac. Buckets take keys and endpoint from the environment, or from
    /// ~/.aws, as sources of partitions do.
    Archive(PoolArchiveArgs),
    /// Send the reminders that are due, by the program that sends mail here
    ///
    /// For cron or a timer, as each user. Of each end somebody is reminded once. A command that is killed while it
    /// sends has its reminder sent again, an hour later at the earliest.
    Remind(PoolRemindArgs),
    /// Set when and whom to remind of a pool's end, or that nobody is
    Reminder(PoolReminderArgs),
    /// Print the end of a pool as an entry of a calendar (RFC 5545)
    Ical(PoolIcalArgs),
    /// Give a pool more time, counted from now
    Extend(PoolTimeArgs),
    /// Give a pool up; it can be restored for a time of grace, and only then is its data removed, if it was made for the pool
    Release(PoolChangeArgs),
    /// Get a pool back that was released or has expired: the last one of that name, or NAME#7 by its number; or one
    /// that is in its archive
    Restore(PoolTimeArgs),
    /// Say that formations which have a pool are no more, where that cannot be seen from here
    ///
    /// What runs here is not meant: `down` takes that down.
    Detach(PoolDetachArgs),
    /// Let others use a pool, or no longer
    ///
    /// The permissions of the files count besides; they are not changed.
    Share(PoolShareArgs),
    /// Note which pools have ended, and remove the data of those that ended longer ago than the time of grace
    ///
    /// For cron or a timer, as each user. Data that was there before its pool is never removed, nor is what a formation has attached.
    /// A removal needs two looks that agree, so that a clock that jumps removes nothing.
    Expire(PoolExpireArgs),
    /// Copy a pool's data into a formation, or what changed there back
    Stage(PoolStageArgs),
    /// Say what a job needs of site storage and until when, and get a slot for it: a time and a rate
    ///
    /// The earliest deadline goes first, and what is free is filled. What cannot be met beside what was promised to others is refused.
    Announce(PoolAnnounceArgs),
    /// Take back what was announced
    Withdraw(PoolSlotArgs),
    /// Wait until a slot comes, and print its rate, for tools that copy by themselves
    Begin(PoolBeginArgs),
    /// Say that what a slot was for is copied
    Done(PoolSlotArgs),
    /// Show the slots of all who announced something
    Slots(PoolSlotsArgs),
    /// Draw the slots over time
    Schedule(PoolSlotsArgs),
    /// Show what site storage gives to stages, or say so
    Storage(PoolStorageArgs),
    /// Ask Slurm, Flux or PBS when your jobs will start, and move their slots accordingly
    ///
    /// For cron or a timer, as each user. A job that names a pool is announced: of Slurm by the comment
    /// `bivouac-announce=POOL`, of Flux by `flux job memo ID bivouac-announce=POOL`, of PBS by
    /// `qsub -v BIVOUAC_ANNOUNCE=POOL`. Of one that was cancelled the slot is given back; one that was put back into
    /// the queue gets another.
    Follow(PoolFollowArgs),
}

/// A change that may be asked for again.
#[derive(Clone, Debug, Args)]
pub struct RequestArgs {
    /// What tells this change from your others: asked for again, it is done once
    #[arg(long, value_name = "TEXT")]
    pub request: Option<String>,
}

/// Arguments of `pool create`.
#[derive(Debug, Args)]
pub struct PoolCreateArgs {
    /// Its name: 1 to 64 of A-Z a-z 0-9 . _ -
    pub name: PoolName,
    /// Data that is there: a directory, or s3://BUCKET/PREFIX; it is never removed with the pool
    #[arg(long, value_name = "PATH|URL", required_unless_present = "base", conflicts_with = "base")]
    pub from: Option<PathBuf>,
    /// Directory in which the pool gets one of its own, which is removed with it
    #[arg(long, value_name = "DIR", env = "BIVOUAC_POOLS")]
    pub base: Option<PathBuf>,
    /// How many days it is for [default: by the rules of the database, at first 30]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::<u32>(1, 36_500))]
    pub days: Option<u32>,
    /// Bytes that it holds or will hold [default: counted]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// What others shall read about it
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub title: String,
    #[command(flatten)]
    pub reminder: ReminderArgs,
    #[command(flatten)]
    pub request: RequestArgs,
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// When and whom to remind.
#[derive(Clone, Debug, Args)]
pub struct ReminderArgs {
    /// Remind of its end so many days before: --mail says whom
    #[arg(long, value_name = "DAYS", requires = "mail", allow_negative_numbers = true, value_parser = number::<u32>(1, 36_500))]
    pub remind: Option<u32>,
    /// Who is reminded, by `bivouac pool remind`
    #[arg(long, value_name = "ADDRESS", requires = "remind")]
    pub mail: Option<Address>,
}

/// Arguments of `pool archive`.
#[derive(Debug, Args)]
pub struct PoolArchiveArgs {
    #[command(flatten)]
    pub change: PoolChangeArgs,
    /// Archive, in which the copy gets a place of its own: a directory, or s3://BUCKET/PREFIX[?endpoint=URL&region=NAME]
    #[arg(long, value_name = "DIR|URL")]
    pub to: PathBuf,
    /// Remove the pool's directory on site storage when the copy has been compared
    #[arg(long)]
    pub free: bool,
}

/// Arguments of `pool remind`.
#[derive(Debug, Args)]
pub struct PoolRemindArgs {
    /// Say who would be reminded, and send nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Program that sends mail: it is run as PROGRAM -i -- ADDRESS, with the mail as its input
    #[arg(long, value_name = "PROGRAM", env = "BIVOUAC_SENDMAIL", default_value = "/usr/sbin/sendmail")]
    pub sendmail: PathBuf,
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// Arguments of `pool reminder`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("whom-to-remind").args(["remind", "none"]).required(true))]
pub struct PoolReminderArgs {
    #[command(flatten)]
    pub change: PoolChangeArgs,
    #[command(flatten)]
    pub reminder: ReminderArgs,
    /// Remind nobody
    #[arg(long)]
    pub none: bool,
}

/// Arguments of `pool ical`.
#[derive(Debug, Args)]
pub struct PoolIcalArgs {
    /// The pool: NAME, or UID/NAME for another user's
    pub pool: PoolRef,
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// Arguments of `pool list`.
#[derive(Debug, Args)]
pub struct PoolListArgs {
    /// Also those whose data is gone
    #[arg(long)]
    pub all: bool,
    /// Write JSON to standard output
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// Arguments of `pool find`.
#[derive(Debug, Args)]
pub struct PoolFindArgs {
    /// Words, in any case
    #[arg(required = true, value_name = "WORD")]
    pub words: Vec<String>,
    /// Write JSON to standard output
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// Arguments of `pool show` and `pool history`.
#[derive(Debug, Args)]
pub struct PoolOneArgs {
    /// The pool: NAME, or UID/NAME for another user's
    pub pool: PoolRef,
    /// Write JSON to standard output
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// Arguments of `pool path`.
#[derive(Debug, Args)]
pub struct PoolPathArgs {
    /// The pool: NAME, or UID/NAME for another user's
    pub pool: PoolRef,
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// Arguments of what changes a pool.
#[derive(Debug, Args)]
pub struct PoolChangeArgs {
    /// The pool: NAME, or UID/NAME for another user's
    pub pool: PoolRef,
    #[command(flatten)]
    pub request: RequestArgs,
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// Arguments of `pool detach`.
#[derive(Debug, Args)]
pub struct PoolDetachArgs {
    /// The pool: NAME, or UID/NAME for another user's
    pub pool: PoolRef,
    /// Only this formation [default: all that are not seen here]
    #[arg(long, value_name = "NAME")]
    pub formation: Option<String>,
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// Arguments of what gives a pool time.
#[derive(Debug, Args)]
pub struct PoolTimeArgs {
    #[command(flatten)]
    pub change: PoolChangeArgs,
    /// How many days from now on [default: by the rules of the database, at first 30]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::<u32>(1, 36_500))]
    pub days: Option<u32>,
}

fn number_of_user(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("is no number of a user; look it up: id -u {text}"))
}

fn number_of_group(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("is no number of a group; look it up: getent group {text}"))
}

/// Arguments of `pool share`.
#[derive(Debug, Args)]
pub struct PoolShareArgs {
    #[command(flatten)]
    pub change: PoolChangeArgs,
    /// A user
    #[arg(long, value_name = "UID", group = "whom", required = true, value_parser = number_of_user)]
    pub user: Option<u32>,
    /// Members of a group
    #[arg(long, value_name = "GID", group = "whom", value_parser = number_of_group)]
    pub group: Option<u32>,
    /// Everybody
    #[arg(long, group = "whom")]
    pub all: bool,
    /// May read it
    #[arg(long, group = "access", required = true)]
    pub ro: bool,
    /// May read and write it
    #[arg(long, group = "access")]
    pub rw: bool,
    /// May no longer use it
    #[arg(long, group = "access")]
    pub none: bool,
}

/// Arguments of `pool expire`.
#[derive(Debug, Args)]
pub struct PoolExpireArgs {
    /// Say what would be done, and do nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub database: DatabaseArgs,
}
