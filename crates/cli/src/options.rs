//! The one table of commands and options: parser, help, manual pages and completions come from it.

use std::ffi::OsString;
use std::path::PathBuf;

use bivouac_launch::{FormationName, Tolerance, VolumeArg, Wishes, parse_volume};
use bivouac_stage::{Transfer, parse_in, parse_out};
use bivouac_types::limits::{SPREAD_AT_DEFAULT, STRIPE_DEFAULT, WAIT_MS_DEFAULT};
use bivouac_types::units::{parse_duration_ms, parse_size};
use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser};
use clap::{Args, Parser, Subcommand};

/// An ad-hoc parallel file system out of the nodes that a job already has.
#[derive(Debug, Parser)]
#[command(name = "bivouac", version, about, max_term_width = 100, subcommand_required = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a formation and mount it
    Up(UpArgs),
    /// Show nodes, volumes, space, files and requests of a formation
    ///
    /// Exit code 1 if no formation is running.
    Status(StatusArgs),
    /// Stop a formation and remove everything that it made
    Down(DownArgs),
    /// Run a command on a formation of its own, with inputs copied in and outputs copied out
    ///
    /// Starts a formation, copies the inputs in, runs the command with BIVOUAC set to the mount point, BIVOUAC_NAME to
    /// the formation's name and BIVOUAC_DIR to its directory, copies the outputs out (beside their target, then renamed), and takes the formation down.
    /// The exit code is the command's: 128 + N if signal N ended it, 126 if it cannot be executed, 127 if it was not
    /// found; 120 if inputs could not be copied in, 121 if the command succeeded but outputs did not come out
    /// safely, 122 if something was left behind, 125 if the formation did not start. A signal is passed on to
    /// the command; a second one kills it. What did not come out stays in the formation, which is then left running.
    Run(RunArgs),
    /// Mount a running formation at one more place
    Mount(MountArgs),
    /// Take one mount of a formation away
    Unmount(UnmountArgs),
    /// Show where the bytes of a file are: seats, nodes, subfiles, stripe arithmetic
    Explain(ExplainArgs),
    /// Check what a formation keeps: running, or stopped and then with repair
    ///
    /// Running: names, attributes, and subfiles of all nodes are compared with each other; nothing is changed. Stopped: the
    /// same on volumes as they lie on this machine, with --repair set right. The exit code is the sum of: 0 nothing is wrong, 1
    /// something was and is repaired, 4 something is left, 8 something could not be checked, 16 the request makes no sense.
    Fsck(FsckArgs),
    /// Measure file systems, formations and the network, side by side
    Bench(bivouac_bench::BenchArgs),
    /// Write the completions of a shell to standard output
    Completions(CompletionsArgs),
    /// Write the manual page to standard output, or one page per command into a directory
    Man(ManArgs),
    /// The daemon of a node; started by the supervisor
    #[command(hide = true)]
    Node(NodeArgs),
    /// The supervisor of a formation's daemons; started by `up`
    #[command(hide = true)]
    Supervise(SuperviseArgs),
}

/// What a formation is made of.
#[derive(Clone, Debug, Args)]
pub struct FormationArgs {
    /// Number of nodes, all on this machine, 1 to 256
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub nodes: u16,
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
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub width: u16,
    /// Number of entries from which on a directory spreads over all nodes
    #[arg(long, value_name = "N", default_value_t = SPREAD_AT_DEFAULT, value_parser = clap::value_parser!(u64).range(1..))]
    pub spread_at: u64,
    /// How long an operation waits for a node that does not answer, before it fails with EIO
    #[arg(long, value_name = "DURATION", default_value_t = Duration(WAIT_MS_DEFAULT), value_parser = duration)]
    pub wait: Duration,
    /// First TCP port to listen on, two per node; 0 means any that are free
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,
    /// How many deaths of a daemon within how long are too many for it to be started again
    #[arg(long, value_name = "N/DURATION", default_value_t = Tolerance::default())]
    pub deaths_max: Tolerance,
    /// How long the formation may take to start
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    pub start_timeout: Duration,
}

/// Where a formation is mounted.
#[derive(Clone, Debug, Default, Args)]
pub struct PlaceArgs {
    /// Mount point, an empty directory [default: mnt in the formation's own directory]
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
    pub formation: FormationArgs,
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Do not mount it
    #[arg(long, conflicts_with_all = ["dir", "each", "allow_other"])]
    pub no_mount: bool,
    /// Write JSON to standard output: name, mounts, and the steps of the start in microseconds
    #[arg(long)]
    pub json: bool,
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
    /// Throw away data that a failed `run` left in the formation
    #[arg(long)]
    pub discard: bool,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Name of the formation: 1 to 64 of A-Z a-z 0-9 . _ - [default: run-PID]
    #[arg(long, value_name = "NAME")]
    pub name: Option<FormationName>,
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
    /// Leave the formation running afterwards, with its data
    #[arg(long)]
    pub keep: bool,
    /// Do not read back and compare what was copied
    #[arg(long)]
    pub no_verify: bool,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Arguments of `mount`.
#[derive(Debug, Args)]
pub struct MountArgs {
    #[command(flatten)]
    pub which: NameArgs,
    /// The node that serves the mount
    #[arg(long, value_name = "I", default_value_t = 0)]
    pub node: u16,
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
    pub path: PathBuf,
    /// Show where the byte at this offset of the file is, too
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub offset: Option<u64>,
    /// Write JSON to standard output
    #[arg(long)]
    pub json: bool,
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

impl FormationArgs {
    /// What is asked for.
    pub fn wishes(&self, name: FormationName) -> Wishes {
        Wishes {
            name,
            nodes: self.nodes,
            volumes: self.volumes.clone(),
            stripe: self.stripe,
            width: self.width,
            spread_at: self.spread_at,
            wait_ms: self.wait.0,
            port: self.port,
            tolerance: self.deaths_max,
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
        let wishes = up.formation.wishes(up.name);
        assert_eq!((wishes.name.as_str(), wishes.nodes, wishes.volumes.len()), ("default", 1, 0));
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
    fn absurd_arguments_are_refused_by_name() {
        for (arguments, says) in [
            (&["up", "--name", "a/b"][..], "has the character '/'"),
            (&["up", "--stripe", "big"], "'big' is not a size"),
            (&["up", "--wait", "soon"], "'soon' is not a duration"),
            (&["up", "--deaths-max", "many"], "write for instance 5/60s"),
            (&["up", "--nodes=-1"], "--nodes"),
            (&["up", "--nodes", "99999"], "99999"),
            (&["up", "--volume", ":1g"], "names no directory"),
            (&["up", "--mount", "/a", "--mount-each", "/b"], "cannot be used with"),
            (&["up", "--mount", "/a", "--no-mount"], "cannot be used with"),
            (&["explain"], "PATH"),
            (&["fsck", "--repair"], "--offline"),
            (&["fsck", "--from-subfiles", "v"], "--out"),
        ] {
            let refusal = parse(arguments).unwrap_err();
            assert!(refusal.contains(says), "{refusal}");
        }
    }
}
