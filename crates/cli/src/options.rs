//! The one table of commands and options: parser, help, manual pages and completions come from it.

mod examples;
mod key;
mod logs;
mod metrics;
mod numbers;
mod partition;
mod plan;
mod pool;
mod publish;
mod report;
mod slots;
mod stage;
mod system;
mod top;

use std::ffi::OsString;
use std::path::PathBuf;

pub use examples::command;
pub use key::{KeyAction, KeyArgs, KeyCreateArgs, KeyListArgs, KeyRevokeArgs};
pub use logs::LogsArgs;
pub use metrics::{MetricsArgs, MetricsForm};
use numbers::number;
pub use plan::{CalibrateArgs, PlanAction, PlanArgs, SiteArgs};
pub use pool::{
    AttachArgs, DatabaseArgs, PoolArgs, PoolChangeArgs, PoolCommand, PoolCreateArgs, PoolDetachArgs,
    PoolExpireArgs, PoolPathArgs, PoolShareArgs,
};
pub use publish::{CatalogueArgs, FindArgs, GetArgs, KeyFileArgs, PublishArgs, ShareArgs, UnpublishArgs};
pub use slots::{
    PoolAnnounceArgs, PoolBeginArgs, PoolSlotArgs, PoolSlotsArgs, PoolStageAction, PoolStageArgs,
    PoolStorageArgs, SlotArgs,
};
pub use stage::{
    StageAction, StageArgs, StageCopyArgs, StageHowArgs, StageOutArgs, StageResumeArgs, StageStatusArgs,
    TalkArgs,
};

pub use report::ReportArgs;
pub use system::{MapForm, SystemArgs, TellArgs, WhoseArgs};
pub use top::TopArgs;

use bivouac_launch::hosts::{Launcher, MeetingPlace, Network};
use bivouac_launch::{
    FormationName, HttpAddress, HttpWish, NAMES_MEMORY_MIN, ProcessId, Tolerance, VolumeArg, Wishes,
    parse_volume,
};
use bivouac_stage::{Transfer, parse_in, parse_out};
use bivouac_types::limits::{
    PAGE_POOL_DEFAULT, PAGE_POOL_MAX, PAGE_POOL_MIN, STRIPE_DEFAULT, WAIT_MS_DEFAULT,
};
use bivouac_types::units::{parse_duration_ms, parse_size};
use bivouac_types::{Checksum, SpreadAt};
use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser};
use clap::{Args, FromArgMatches, Parser, Subcommand};

pub use partition::{
    CreateArgs, ListArgs, PartitionArgs, PartitionCommand, PathArgs, RemoveArgs, SetArgs, ShowArgs,
};

/// An ad-hoc parallel file system out of the nodes that a job already has.
#[derive(Debug, Parser)]
#[command(name = "bivouac", version, about, max_term_width = 100, subcommand_required = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Parser)]
struct StartedCli {
    #[command(subcommand)]
    command: Started,
}

impl Cli {
    /// What the arguments say. The parser of all commands takes longer to make than a daemon to start, so those that are
    /// started by hundreds do without; it also says what is wrong with theirs.
    ///
    /// # Errors
    /// What makes no sense in them, or the help that was asked for.
    pub fn read(arguments: Vec<OsString>) -> Result<Cli, clap::Error> {
        let name = arguments.get(1).and_then(|name| name.to_str());
        if name.is_some_and(Started::has_subcommand)
            && let Ok(StartedCli { command }) = StartedCli::try_parse_from(&arguments)
        {
            return Ok(Cli { command: Command::Started(command) });
        }
        let mut matches = command().try_get_matches_from(arguments)?;
        Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command()))
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a formation and mount it
    Up(UpArgs),
    /// Show nodes, volumes, space, files and requests of a formation
    ///
    /// The exit code is 0 if it is running, 1 if there is none or its processes were killed, 4 if something of it is away that
    /// may come back (degraded), 5 if a node or a host was given up.
    Status(StatusArgs),
    /// Show what a formation does while it does it: rates, times, load and space of nodes and operations
    ///
    /// On a terminal until q is pressed; h shows the keys. Elsewhere a table for each interval, until the formation is gone.
    /// Figures are those of requests to nodes: what programs do by direct access does not pass there.
    Top(TopArgs),
    /// Say what was done with a formation until now, where time went, and which setting to change
    ///
    /// Reads and writes of all programs by file, directory and process, their sizes and order, a timeline, and the setting that gains
    /// most, with what speaks for it. Direct access counts. Without --html or --json it is text of 80 columns. What a daemon
    /// knew that died is lost; `run --report FILE` writes the same at the end of a job.
    Report(ReportArgs),
    /// Write figures of a formation for Prometheus and what reads the same form
    ///
    /// Names and meanings are in docs/monitoring.md, and stay. Nodes that do not answer within 2 s are there as such.
    Metrics(MetricsArgs),
    /// Show what a formation's daemons and supervisor have logged
    ///
    /// Lines of all of them, by time, with who wrote them in front. Over several hosts those of this host's processes.
    Logs(LogsArgs),
    /// Stop a formation and remove everything that it made
    ///
    /// Says what is in it first; on a terminal it asks whether that is to be removed, unless --yes or --discard is given.
    Down(DownArgs),
    /// List all formations of this user on this host: those that run, and those that could be recovered
    List(ListAllArgs),
    /// Start a formation again of which every process was killed, on its volumes as they are
    ///
    /// Names, content, attributes, partitions, sources and what is not flushed yet are as they were; opens and locks of programs have
    /// ended. The volumes are found by the name, also after a reboot; or they are named. Nothing is lost if it fails: try again.
    Recover(RecoverArgs),
    /// Remove what formations left on this host whose processes were all killed
    ///
    /// State, sockets, volumes, memory and mounts of this user's formations of which no process lives any more, as far as that
    /// can be proven; one after the other is named. What holds data that is to be kept stays, and is named too.
    Reap(ReapArgs),
    /// Run a command on a formation of its own, with inputs copied in and outputs copied out
    ///
    /// Starts a formation, copies the inputs in, runs the command with BIVOUAC set to the mount point, BIVOUAC_NAME to
    /// the formation's name and BIVOUAC_DIR to its directory, copies the outputs out (beside their target, then renamed), and takes the formation down.
    /// The exit code is the command's: 128 + N if signal N ended it, 126 if it cannot be executed, 127 if it was not
    /// found; 120 if inputs could not be copied in, 121 if the command succeeded but outputs did not come out
    /// safely, 122 if something was left behind, 125 if the formation did not start. A signal is passed on to
    /// the command; a second one kills it. What did not come out stays in the formation, which is then left running.
    Run(RunArgs),
    /// Become a command on a formation that runs, with the preload and its variables
    ///
    /// Sets BIVOUAC to the mount point on this host, BIVOUAC_NAME to the formation's name and BIVOUAC_DIR to its directory, has the
    /// dynamic linker load the preload if it is there, and is replaced by the command, so the exit code is the command's: 126 if it cannot be
    /// executed, 127 if it was not found; 125 if there is no such formation. In a job, each host's processes begin with it: srun
    /// bivouac exec -- COMMAND. Without --name it takes the formation that BIVOUAC_DIR or BIVOUAC_NAME say, then as all commands.
    Exec(ExecArgs),
    /// Copy into a formation and out of it: verified, resumable, with a manifest
    ///
    /// Every file is written beside its name, made safe, and renamed; digests are taken while the bytes pass. Interrupted at any
    /// point, `stage resume` does only what is missing. The exit code is 0 only when everything is at the target.
    Stage(StageArgs),
    /// Mount a running formation at one more place
    Mount(MountArgs),
    /// Take one mount of a formation away
    Unmount(UnmountArgs),
    /// Show where the bytes of a file are: seats, nodes, subfiles, stripe arithmetic
    Explain(ExplainArgs),
    /// Make, show, change and remove partitions: subtrees on chosen nodes, by rules of their own
    Partition(PartitionArgs),
    /// Check a formation file, which `up` and `run` take with --config: mistakes are explained with their lines
    Config(ConfigArgs),
    /// Check what a formation keeps: running, or stopped and then with repair
    ///
    /// Running: names, attributes, and subfiles of all nodes are compared with each other; nothing is changed. Stopped: the
    /// same on volumes as they lie on this machine, with --repair set right. The exit code is the sum of: 0 nothing is wrong, 1
    /// something was and is repaired, 4 something is left, 8 something could not be checked, 16 the request makes no sense.
    Fsck(FsckArgs),
    /// Compare content with its checksums, in the background of a running formation
    ///
    /// What lies where nobody reads it is found before it is needed. Content has checksums where `--checksum` of `up` says so;
    /// what processes are writing themselves is left alone. The exit code is 0 if nothing is wrong, 1 if something is, 2 if
    /// something could not be looked at.
    Scrub(ScrubArgs),
    /// Bring what was written in a partition with a source to that source, verified
    ///
    /// Each file is written beside its target, synced, read again and renamed. What cannot be brought there stays in the
    /// formation and is named; the exit code is 1 then.
    Flush(FlushArgs),
    /// Bring files of a partition with a source whole, and have them stay however full the volumes are
    ///
    /// A directory is meant with all files that are below it now; for later ones, give the partition a rule with pin=yes. What
    /// was written in a pinned file is flushed as usual. If something does not fit, nothing is pinned, and the exit code is 1.
    Pin(PinArgs),
    /// Let pinned files make room again for what is read and written
    Unpin(PinArgs),
    /// Say whether a formation is worth it for a job, and how to form it
    ///
    /// From a model of the site, which `plan calibrate` measures, and what the job does: a verdict in one line, times with their doubt,
    /// the break-even, and a formation file that `up --config` takes. What `run --plan` saw corrects the model until `plan reset`.
    Plan(PlanArgs),
    /// Make, find, share and end work pools: named data sets on site storage, which formations attach with --pool
    ///
    /// Pools are kept in a database that many commands share. A pool ends after its days, and can then be restored for a time of grace.
    Pool(PoolArgs),
    /// Show the machines: processors, memory, disks, file systems, networks, how busy they are, and what joins them
    ///
    /// Of this host; inside a batch job, with --hosts or --name of all those hosts, asked in one round. What is not known is shown as ?.
    System(SystemArgs),
    /// Make, list and revoke keys, which servers for HTTP want to be shown
    Key(KeyArgs),
    /// Publish a data set in a catalogue, which is there when the formation is gone
    ///
    /// All files are read: names, sizes, digests of files and of pieces, and who has them are written down as RO-Crate and Metalink. The
    /// entry is there whole or not at all; what changes meanwhile is named, and nothing is published. Its name is the last line.
    Publish(PublishArgs),
    /// Find published data sets by words
    Find(FindArgs),
    /// Take a data set out of a catalogue; its files stay where they are
    Unpublish(UnpublishArgs),
    /// Fetch a published data set, or what is at a URL: in pieces from all that have it, verified, resumable
    ///
    /// From what was fetched before, from the servers of the formation, from site storage: whoever still has it. Every piece is compared
    /// with its digest; files get their names when all of them is right. Interrupted or killed, the same command goes on.
    Get(GetArgs),
    /// Make a link to a file or directory of a formation, which ends
    ///
    /// It can be read by whoever has the link, without a key of their own; `key revoke` ends it before its time.
    Share(ShareArgs),
    /// Measure file systems, formations and the network, side by side
    Bench(bivouac_bench::BenchArgs),
    /// Write the completions of a shell to standard output
    Completions(CompletionsArgs),
    /// Write the manual page to standard output, or one page per command into a directory
    Man(ManArgs),
    #[command(flatten)]
    Started(Started),
}

/// The commands that this program starts itself, many at a time. They have a parser of their own, which is made in no time.
#[derive(Debug, Subcommand)]
pub enum Started {
    /// The daemon of a node; started by the supervisor
    #[command(hide = true)]
    Node(NodeArgs),
    /// The supervisor of a formation's daemons; started by `up`
    #[command(hide = true)]
    Supervise(SuperviseArgs),
    /// Takes a formation down whose purpose is over; started by its supervisor
    #[command(hide = true)]
    End(EndArgs),
    /// One host's part of a formation over several; started by a launcher
    #[command(hide = true)]
    Join(JoinArgs),
    /// What keeps a formation over several hosts together; started by `up`
    #[command(hide = true)]
    Keep(SuperviseArgs),
    /// What this host is; started by `system`
    #[command(hide = true)]
    Tell(TellArgs),
    /// The server for HTTP of a host; started by the supervisor
    #[command(hide = true)]
    Serve(SuperviseArgs),
}

/// What a formation is made of.
#[derive(Clone, Debug, Args)]
pub struct FormationArgs {
    /// Number of nodes, all on this machine, 1 to 256, with --in-process 1024 [default: 1; inside a batch job one on each of its hosts]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = numbers::nodes)]
    pub nodes: Option<u16>,
    /// Have the nodes of a machine share one process: for tests of many nodes; what ends one of them ends all
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", hide_default_value = true)]
    pub in_process: bool,
    /// Encrypt and authenticate all that goes over the network, so that nobody in between can read or change it
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", hide_default_value = true)]
    pub secure: bool,
    /// Serve the formation's files over HTTP on each host, with TLS, to those who have a key (bivouac key); without an address, to this host alone
    #[arg(long, value_name = "[ADDR:]PORT")]
    pub http: Option<HttpAddress>,
    /// Serve HTTP without TLS: to this host alone
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", hide_default_value = true)]
    pub http_plain: bool,
    /// File on each host with the certificate for HTTP, those that vouch for it, and its private key, as PEM; without it one is made
    #[arg(long, value_name = "FILE", requires = "http", conflicts_with = "http_plain")]
    pub http_certificate: Option<PathBuf>,
    #[command(flatten)]
    pub hosts: HostsArgs,
    /// Directory that the nodes lend, and how much of it per node, in bytes (10g, 500MiB); several nodes use DIR/n0, DIR/n1 and so on
    ///
    /// May be given several times. Without a capacity it is nine tenths of what is free, divided by the nodes. Without
    /// any volume, memory is used: half of what is available, divided by the nodes.
    #[arg(long = "volume", value_name = "DIR[:CAPACITY]", value_parser = volume_parser())]
    pub volumes: Vec<VolumeArg>,
    /// Stripe size of new files, in bytes; a multiple of 4096
    #[arg(long, value_name = "SIZE", default_value_t = u64::from(STRIPE_DEFAULT), value_parser = parse_size)]
    pub stripe: u64,
    /// Number of seats that a new file is striped over; 0 means all
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true, value_parser = number::<u16>(0, 65_535))]
    pub width: u16,
    /// Number of entries from which on a directory spreads over all nodes: while several clients use it, and while one alone does; one number is for both
    #[arg(long, value_name = "N[,M]", default_value_t = SpreadAt::default())]
    pub spread_at: SpreadAt,
    /// Where blocks of what is written get checksums, compared whenever they are read: off, on, or auto: on disks and not in memory
    ///
    /// A block that is not what was written is an I/O error, and `bivouac status` names it. Programs that read and write a node's content themselves, as by libbivouac on one machine, compare nothing; what they wrote gets checksums when they are done.
    #[arg(long, value_name = "WHERE", default_value_t = Checksum::default())]
    pub checksum: Checksum,
    /// Memory that each mount has for pages of partitions with `--contract session`, in bytes; at least 4m
    #[arg(long, value_name = "SIZE", default_value_t = PAGE_POOL_DEFAULT, value_parser = page_pool)]
    pub page_pool: u64,
    /// Most memory that names, attributes and extended attributes of one node may take, in bytes; at least 1m [default: a quarter of what is available, divided by the nodes of the host]
    #[arg(long, value_name = "SIZE", value_parser = names_memory)]
    pub names_memory: Option<u64>,
    /// How long an operation waits for a node that does not answer, before it fails with EIO
    #[arg(long, value_name = "DURATION", default_value_t = Duration(WAIT_MS_DEFAULT), value_parser = duration)]
    pub wait: Duration,
    /// After how long a node that does not answer is taken for dead; at least 500ms [default: 5s, and on one machine as soon as its supervisor gives it up]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub dead_after: Option<Duration>,
    /// First TCP port to listen on, two per node; 0 means any that are free
    #[arg(long, value_name = "PORT", default_value_t = 0, allow_negative_numbers = true, value_parser = number::<u16>(0, 65_535))]
    pub port: u16,
    /// How many deaths of a daemon within how long are too many for it to be started again
    #[arg(long, value_name = "N/DURATION", default_value_t = Tolerance::default())]
    pub deaths_max: Tolerance,
    /// How long the formation lives: then it ends as by `down`, and under `run` its command is told to end [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub ttl: Option<Duration>,
    /// How long the formation may take to start
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    pub start_timeout: Duration,
}

/// Over which hosts a formation is, and how they are reached.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Several hosts")]
pub struct HostsArgs {
    /// The formation's hosts: names as for ssh, ranges in brackets, a number of nodes behind a colon (n1,n[2-4]:2)
    #[arg(long, value_name = "HOST[,HOST...]", conflicts_with_all = ["nodes", "hostfile"])]
    pub hosts: Option<String>,
    /// File with the formation's hosts, one per line
    #[arg(long, value_name = "FILE", conflicts_with = "nodes")]
    pub hostfile: Option<PathBuf>,
    /// Nodes on each host that does not say otherwise
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "nodes", allow_negative_numbers = true, value_parser = number::<u16>(1, 256))]
    pub nodes_per_host: u16,
    /// What starts processes on the hosts: ssh, slurm, pbs, flux, mpi, or a command with {host}, and {args} or, where a shell reads it again, {command} in it
    ///
    /// Inside an allocation of Slurm or PBS that batch system does it, over the job's hosts unless others are named; elsewhere ssh.
    #[arg(long = "launch", value_name = "LAUNCHER", conflicts_with = "nodes")]
    pub launcher: Option<Launcher>,
    /// Send a program along instead of using what is installed on the hosts: this one, or a static build at this path
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "/proc/self/exe", conflicts_with_all = ["nodes", "program"])]
    pub send: Option<PathBuf>,
    /// Path of bivouac on the hosts [default: this program's own path]
    #[arg(long, value_name = "PATH", conflicts_with = "nodes")]
    pub program: Option<String>,
    /// Start with this many nodes, if the others do not come
    #[arg(long, value_name = "N", conflicts_with = "nodes", allow_negative_numbers = true, value_parser = number::<u16>(1, 65_535))]
    pub min_nodes: Option<u16>,
    /// The network that the hosts use among themselves: 10.1.0.0/16, or the name of an interface of this host [default: the one over which they reach this host]
    #[arg(long, value_name = "CIDR|NAME", conflicts_with = "nodes")]
    pub network: Option<Network>,
    /// The hosts come by themselves: something runs this very command on each of them, and they meet at this port of the first one
    ///
    /// Each returns when the formation can be used on its host. For scripts that run everywhere anyway, such as a batch system's prolog.
    #[arg(long, value_name = "[HOST:]PORT", conflicts_with_all = ["nodes", "launcher", "send", "program"], requires = "meet_secret")]
    pub meet: Option<MeetingPlace>,
    /// File with what all hosts of a meeting know and nobody else does, 16 random bytes or more; new for each formation
    #[arg(long, value_name = "FILE", requires = "meet")]
    pub meet_secret: Option<PathBuf>,
    /// How long a host goes on while it hears nothing from where the formation was started, before it takes its part down
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration, conflicts_with = "nodes")]
    pub silence_max: Duration,
}

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

/// Which formation.
#[derive(Clone, Debug, Args)]
pub struct NameArgs {
    /// Name of the formation [default: default, or the only one that is running]
    #[arg(long, value_name = "NAME")]
    pub name: Option<FormationName>,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub which: NameArgs,
    /// Look again every so often and show what has changed, until the formation is gone or Ctrl-C is pressed
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "2s", value_parser = duration)]
    pub watch: Option<Duration>,
    /// Show requests per operation and node, not only their sums
    #[arg(long)]
    pub operations: bool,
    /// Write JSON to standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `down`.
#[derive(Debug, Args)]
pub struct DownArgs {
    #[command(flatten)]
    pub which: NameArgs,
    /// Throw away data that is nowhere else, and ask nothing
    #[arg(long)]
    pub discard: bool,
    /// Ask nothing: remove what is in the formation, unless it is nowhere else and was to be copied out
    #[arg(short = 'y', long)]
    pub yes: bool,
}

/// Arguments of `list`.
#[derive(Debug, Args)]
pub struct ListAllArgs {
    /// Write JSON to standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `recover`.
#[derive(Debug, Args)]
pub struct RecoverArgs {
    /// Name of the formation [default: default, or the only one that could be recovered]
    #[arg(value_name = "NAME")]
    pub formation: Option<FormationName>,
    /// The same
    #[arg(long, value_name = "NAME", conflicts_with = "formation")]
    pub name: Option<FormationName>,
    /// Where its volumes are now: each, or a directory that they are in; the others are looked for where they were. Over several hosts, on each of them
    #[arg(long = "volume", value_name = "DIR")]
    pub volumes: Vec<PathBuf>,
    #[command(flatten)]
    pub hosts: AgainArgs,
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Do not mount it
    #[arg(long, conflicts_with_all = ["dir", "each", "allow_other"])]
    pub no_mount: bool,
    /// First TCP port to listen on, two per node; 0 means any that are free [default: as before]
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// End the formation when this process ends; what it was made for before does not count any more
    #[arg(long, value_name = "PID")]
    pub owner: Option<u32>,
    /// How long the formation lives from now on [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub ttl: Option<Duration>,
    /// How long the formation may take to start
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    pub start_timeout: Duration,
    /// Write JSON to standard output: name, mounts, and the steps of the start in microseconds
    #[arg(long)]
    pub json: bool,
}

/// How the hosts are reached of a formation that is recovered over several.
#[derive(Clone, Debug, Args)]
pub struct AgainArgs {
    /// The hosts that have its volumes, in any order [default: those that it was over]
    #[arg(long, value_name = "HOST[,HOST...]", conflicts_with = "hostfile")]
    pub hosts: Option<String>,
    /// File with those hosts, one per line
    #[arg(long, value_name = "FILE")]
    pub hostfile: Option<PathBuf>,
    /// What starts processes on the hosts, as for `up` [default: what did it before; where hosts came by themselves, ssh]
    #[arg(long = "launch", value_name = "LAUNCHER")]
    pub launcher: Option<Launcher>,
    /// Send a program along instead of using what is installed on the hosts: this one, or a static build at this path
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "/proc/self/exe", conflicts_with = "program")]
    pub send: Option<PathBuf>,
    /// Path of bivouac on the hosts [default: as before]
    #[arg(long, value_name = "PATH")]
    pub program: Option<String>,
    /// Go on with this many nodes, if the others do not come: what only those had is not there (EIO)
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::<u16>(1, 65_535))]
    pub min_nodes: Option<u16>,
    /// The network that the hosts use among themselves [default: as before]
    #[arg(long, value_name = "CIDR|NAME")]
    pub network: Option<Network>,
}

/// Arguments of `reap`.
#[derive(Debug, Args)]
pub struct ReapArgs {
    /// Only say what would be removed
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}

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
    /// File or directory to copy into the formation first, and its path there [default: its last name]; write \: for a colon in a name
    #[arg(long = "in", value_name = "SRC[:DST]", value_parser = OsStringValueParser::new().try_map(parse_in))]
    pub inputs: Vec<Transfer>,
    /// File or directory of the formation to copy out when the command has succeeded, and the path it shall have
    #[arg(long = "out", value_name = "SRC:DST", value_parser = OsStringValueParser::new().try_map(parse_out))]
    pub outputs: Vec<Transfer>,
    /// Copy the outputs out also when the command has failed or was interrupted
    #[arg(long)]
    pub out_always: bool,
    /// Copy all of the outputs out, also inputs in them that the command did not change
    #[arg(long)]
    pub out_all: bool,
    /// Write what the job did when it has ended, however it did: a page (.html), JSON (.json), or text (see `bivouac report`)
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Leave the formation running afterwards, with its data
    #[arg(long)]
    pub keep: bool,
    /// Do not read back and compare what was copied
    #[arg(long)]
    pub no_verify: bool,
    /// Most bytes per second that are copied in or out (500m)
    #[arg(long, value_name = "RATE", value_parser = parse_size)]
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
    /// The library that does the command's reads and writes without the daemon [default: libbivouac_preload.so beside this program, or in ../lib, if it is there; for `run` over several hosts only one that is named]
    #[arg(long, value_name = "FILE", conflicts_with = "no_preload")]
    pub preload: Option<PathBuf>,
    /// Let the mount do everything
    #[arg(long)]
    pub no_preload: bool,
}

/// Arguments of `mount`.
#[derive(Debug, Args)]
pub struct MountArgs {
    #[command(flatten)]
    pub which: NameArgs,
    /// The node that serves the mount [default: the first of this host]
    #[arg(long, value_name = "I", allow_negative_numbers = true, value_parser = number::<u16>(0, 65_535))]
    pub node: Option<u16>,
    /// Let other users in too, as far as permissions go; needs user_allow_other in /etc/fuse.conf unless root mounts
    #[arg(long)]
    pub allow_other: bool,
    /// Mount point, an empty directory
    pub dir: PathBuf,
}

/// Arguments of `unmount`.
#[derive(Debug, Args)]
pub struct UnmountArgs {
    /// Mount point
    pub dir: PathBuf,
}

/// Arguments of `explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// A path in a mounted formation
    #[arg(required_unless_present = "pid")]
    pub path: Option<PathBuf>,
    /// Show instead which files of formations this process has open, and which path its calls on each take
    #[arg(long, value_name = "PID", conflicts_with_all = ["path", "offset"], allow_negative_numbers = true, value_parser = number::<u32>(1, 4_194_304))]
    pub pid: Option<u32>,
    /// Show where the byte at this offset of the file is, too
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub offset: Option<u64>,
    /// Write JSON to standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `flush`.
#[derive(Debug, Args)]
pub struct FlushArgs {
    /// Files and directories in partitions with a source; a directory is meant with all below it
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Say what would be brought there, and bring nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Say only what went wrong
    #[arg(short = 'q', long)]
    pub quiet: bool,
    /// Overwrite files that have changed at the source since they were last seen
    #[arg(long)]
    pub force: bool,
    /// Number of files at the same time
    #[arg(long, value_name = "N", default_value_t = 8, allow_negative_numbers = true, value_parser = number::<usize>(1, 1024))]
    pub jobs: usize,
}

/// Arguments of `pin` and `unpin`.
#[derive(Debug, Args)]
pub struct PinArgs {
    /// Files and directories in partitions with a source
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
}

/// Arguments of `fsck`.
#[derive(Debug, Args)]
pub struct FsckArgs {
    #[command(flatten)]
    pub which: NameArgs,
    /// The formation; with --offline and --from-subfiles also its volumes, directories that hold them, or the directory of its state
    #[arg(value_name = "NAME|DIR")]
    pub targets: Vec<PathBuf>,
    /// Check the volumes of a stopped formation; without --repair say only what it would do
    #[arg(long, conflicts_with = "from_subfiles")]
    pub offline: bool,
    /// Set right what can be set right without losing data
    #[arg(long, requires = "offline")]
    pub repair: bool,
    /// Read all content, and compare it with its checksums where it has any
    #[arg(long, conflicts_with = "from_subfiles")]
    pub scrub: bool,
    /// Remove subfiles that belong to no file, with their data, instead of making files of them
    #[arg(long, requires = "repair")]
    pub discard_unreferenced: bool,
    /// Rebuild files from their subfiles alone, for when the records are gone
    #[arg(long, requires = "out")]
    pub from_subfiles: bool,
    /// Directory for rebuilt files, each under its inode number; empty, or to be made
    #[arg(long, value_name = "DIR", requires = "from_subfiles")]
    pub out: Option<PathBuf>,
    /// Write JSON to standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `scrub`.
#[derive(Debug, Args)]
pub struct ScrubArgs {
    #[command(flatten)]
    pub which: NameArgs,
    /// A file, or a directory with all below it, in a mounted formation [default: everything]
    #[arg(value_name = "PATH", conflicts_with = "name")]
    pub path: Option<PathBuf>,
    /// Bytes that each node compares per second at most [default: as many as it can]
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    pub rate: Option<u64>,
    /// Write JSON to standard output: a line per second, and one at the end
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Directory for one page per command
    pub dir: Option<PathBuf>,
}

/// Arguments of `node`.
#[derive(Debug, Args)]
pub struct NodeArgs {
    /// Formation and node, for lists of processes
    pub label: Option<String>,
}

/// Arguments of `supervise`.
#[derive(Debug, Args)]
pub struct SuperviseArgs {
    /// Directory of the formation
    pub dir: PathBuf,
}

/// Arguments of `end`.
#[derive(Debug, Args)]
pub struct EndArgs {
    /// Directory of the formation
    pub dir: PathBuf,
}

/// Arguments of `join`.
#[derive(Debug, Args)]
pub struct JoinArgs {
    /// File with the ticket [default: BIVOUAC_TICKET, else the first line of standard input]
    #[arg(long, value_name = "FILE")]
    pub ticket: Option<PathBuf>,
    /// Directory that this program was sent to; it is removed
    #[arg(long, value_name = "DIR")]
    pub sent: Option<PathBuf>,
    /// Try until the first host lets this one in, and say when the formation can be used here
    #[arg(long)]
    pub meet: bool,
    /// Play the part in a session of its own, which goes on when the launcher ends this process; its exit code is 0 in any case
    #[arg(long)]
    pub apart: bool,
}

impl FormationArgs {
    /// What is asked for, by `owner` if it is to end with that process.
    pub fn wishes(&self, name: FormationName, owner: Option<ProcessId>) -> Wishes {
        Wishes {
            name,
            nodes: self.nodes.unwrap_or(1),
            volumes: self.volumes.clone(),
            stripe: self.stripe,
            width: self.width,
            spread_at: self.spread_at,
            checksum: self.checksum,
            page_pool: self.page_pool,
            names_memory: self.names_memory,
            wait_ms: self.wait.0,
            dead_after_ms: self.dead_after.map(|after| after.0),
            port: self.port,
            in_process: self.in_process,
            secure: self.secure,
            http: self.http.map(|address| HttpWish {
                address,
                plain: self.http_plain,
                certificate: self
                    .http_certificate
                    .as_ref()
                    .map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone())),
            }),
            tolerance: self.deaths_max,
            ttl_ms: self.ttl.map(|ttl| ttl.0),
            owner,
        }
    }
}

/// A time, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duration(pub u64);

impl std::fmt::Display for Duration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Duration(ms) = self;
        if ms.is_multiple_of(1000) { write!(f, "{}s", ms / 1000) } else { write!(f, "{ms}ms") }
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration_ms(text).map(Duration)
}

fn page_pool(text: &str) -> Result<u64, String> {
    let size = parse_size(text)?;
    if (PAGE_POOL_MIN..=PAGE_POOL_MAX).contains(&size) {
        return Ok(size);
    }
    Err(format!("a page pool has between {} MiB and {} GiB", PAGE_POOL_MIN >> 20, PAGE_POOL_MAX >> 30))
}

fn names_memory(text: &str) -> Result<u64, String> {
    let size = parse_size(text)?;
    let least = || format!("names have at least {} MiB of memory", NAMES_MEMORY_MIN >> 20);
    if size >= NAMES_MEMORY_MIN { Ok(size) } else { Err(least()) }
}

fn rate(text: &str) -> Result<u64, String> {
    parse_size(text).and_then(|rate| if rate > 0 { Ok(rate) } else { Err("a rate is above 0".into()) })
}

fn volume_parser() -> ValueParser {
    ValueParser::new(OsStringValueParser::new().try_map(parse_volume))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(arguments: &[&str]) -> Result<Command, String> {
        let all = ["bivouac"].iter().chain(arguments);
        Cli::try_parse_from(all).map(|cli| cli.command).map_err(|error| error.to_string())
    }

    #[test]
    fn the_table_is_consistent_and_every_option_is_explained() {
        let mut command = Cli::command();
        command.build();
        command.clone().debug_assert();
        for sub in command.get_subcommands() {
            assert!(sub.get_about().is_some(), "{} has no help", sub.get_name());
            for argument in sub.get_arguments() {
                assert!(
                    argument.get_help().is_some(),
                    "{} {} has no help",
                    sub.get_name(),
                    argument.get_id()
                );
            }
        }
    }

    #[test]
    fn up_has_its_defaults() {
        let Ok(Command::Up(up)) = parse(&["up"]) else { panic!() };
        let wishes = up.formation.wishes(up.name, None);
        assert_eq!((wishes.name.as_str(), wishes.nodes, wishes.volumes.len()), ("default", 1, 0));
        assert!(!wishes.in_process);
        assert_eq!((wishes.stripe, wishes.width, wishes.wait_ms, wishes.port), (1 << 20, 0, 30_000, 0));
        assert_eq!(up.formation.start_timeout, Duration(60_000));
    }

    #[test]
    fn up_takes_sizes_and_volumes() {
        let arguments = [
            "up",
            "--nodes",
            "4",
            "--volume",
            "/a:1g",
            "--volume",
            "/b",
            "--stripe",
            "64k",
            "--wait",
            "500ms",
            "--deaths-max",
            "9/2s",
        ];
        let Ok(Command::Up(up)) = parse(&arguments) else { panic!() };
        assert_eq!(up.formation.volumes[0], VolumeArg { dir: "/a".into(), capacity: Some(1 << 30) });
        assert_eq!(up.formation.volumes[1].capacity, None);
        assert_eq!((up.formation.stripe, up.formation.wait), (65_536, Duration(500)));
        assert_eq!(up.formation.wait.to_string(), "500ms");
        assert_eq!(up.formation.deaths_max, Tolerance { deaths_max: 9, window_ms: 2000 });
    }

    #[test]
    fn run_takes_everything_behind_the_dashes_as_the_command() {
        let arguments = ["run", "--in", "/data:in", "--out", "res:/keep/res", "--", "sh", "-c", "exit 3"];
        let Ok(Command::Run(run)) = parse(&arguments) else { panic!() };
        assert_eq!(run.command, ["sh", "-c", "exit 3"]);
        assert_eq!(
            (run.inputs[0].dst.to_str(), run.outputs[0].dst.to_str()),
            (Some("in"), Some("/keep/res"))
        );
        assert!(parse(&["run"]).unwrap_err().contains("COMMAND"));
        assert!(parse(&["run", "--out", "x", "--", "true"]).unwrap_err().contains("has no target"));
    }

    #[test]
    fn options_may_stand_between_operands() {
        assert!(parse(&["stage", "out", "a", "--name", "x", "b", "--jobs", "2", "c"]).is_ok());
        assert!(parse(&["stage", "in", "--name", "x", "a", "-n", "b"]).is_ok());
    }

    #[test]
    fn absurd_arguments_are_refused_by_name() {
        for (arguments, says) in [
            (&["up", "--name", "a/b"][..], "has the character '/'"),
            (&["up", "--stripe", "big"], "'big' is not a size"),
            (&["up", "--wait", "soon"], "'soon' is not a duration"),
            (&["up", "--deaths-max", "many"], "write for instance 5/60s"),
            (&["up", "--nodes=-1"], "'-1' is not a number"),
            (&["up", "--nodes", "-1"], "'-1' is not a number"),
            (&["up", "--nodes", "99999"], "at most 256 (with --in-process 1024)"),
            (&["up", "--nodes", "99999999999999999999"], "at most 256"),
            (&["up", "--nodes", "two"], "'two' is not a number; write for instance 4"),
            (&["up", "--nodes-per-host", "0"], "at least 1"),
            (&["up", "--port", "70000"], "at most 65535"),
            (&["stage", "in", "--jobs", "-3", "a", "b"], "'-3' is not a number"),
            (&["exec", "--no-mount", "--cd", "--", "true"], "cannot be used with"),
            (&["up", "--volume", ":1g"], "names no directory"),
            (&["up", "--mount", "/a", "--mount-each", "/b"], "cannot be used with"),
            (&["up", "--mount", "/a", "--no-mount"], "cannot be used with"),
            (&["explain"], "PATH"),
            (&["stage", "in"], "SRC... DST"),
            (&["stage", "out", "--changed-since", "noon", "a", "b"], "is no time"),
            (&["fsck", "--repair"], "--offline"),
            (&["fsck", "--from-subfiles", "v"], "--out"),
        ] {
            let refusal = parse(arguments).unwrap_err();
            assert!(refusal.contains(says), "{refusal}");
        }
    }
}
