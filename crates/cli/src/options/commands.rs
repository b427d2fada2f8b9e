//! The commands.

use clap::Subcommand;

use super::{
    CompletionsArgs, ConfigArgs, ContractArgs, DoctorArgs, DownArgs, ExecArgs, ExplainArgs, FindArgs,
    FlushArgs, FsckArgs, GetArgs, GrowArgs, InternalCommand, KeyArgs, LaminateArgs, LinkArgs, ListAllArgs,
    LogsArgs, ManArgs, MetricsArgs, MountArgs, MountPathArgs, PartitionArgs, PinArgs, PlanArgs, PoolArgs,
    PublishArgs, RacesArgs, ReapArgs, RecoverArgs, ReportArgs, RunArgs, ScrubArgs, ShareArgs, ShrinkArgs,
    StageArgs, StatusArgs, SystemArgs, TopArgs, UnmountArgs, UnpublishArgs, UpArgs,
};

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a formation and mount it
    Up(UpArgs),
    /// Show nodes, volumes, space, files and requests of a formation
    ///
    /// The exit code is 0 if it is running, 1 if there is none or its processes were killed, 4 if something of it is
    /// away that may come back (degraded), 5 if a node or a host was given up.
    Status(StatusArgs),
    /// Print the mount point of a formation on this host: cd "$(bivouac path)"
    Path(MountPathArgs),
    /// Watch a formation at work: rates, latencies, load and space of nodes and operations, busy files and programs,
    /// staging
    ///
    /// On a terminal until q is pressed; h shows the keys. Elsewhere a table for each interval, until the formation is
    /// gone. Figures of nodes are those of requests: what programs do by direct access does not pass there. Files and
    /// programs are told of whichever way they go.
    Top(TopArgs),
    /// Report what programs did in a formation, where their time went, and which setting to change
    ///
    /// Reads and writes of all programs by file, directory and process, their sizes and order, a timeline, and the
    /// setting that gains most, with what speaks for it. Direct access counts. Without --html or --json it is text of
    /// 80 columns. What a killed daemon knew is kept; `run --report FILE` writes the same at the end of a job.
    Report(ReportArgs),
    /// Write the metrics of a formation, for Prometheus and others that read OpenMetrics
    ///
    /// Names and meanings are in docs/monitoring.md, and are stable. A node that does not answer within 2 s has
    /// bivouac_node_up 0.
    Metrics(MetricsArgs),
    /// Show what a formation's daemons and supervisor have logged
    ///
    /// Lines of all of them, by time, with who wrote them in front. Over several hosts those of all of them;
    /// supervisor@n2 is that of host n2, and a host that does not answer is named.
    Logs(LogsArgs),
    /// Stop a formation and remove everything that it made
    ///
    /// Says what is in it first, and asks whether that is to be removed; where it cannot ask, as in a script, it needs
    /// --yes or
    /// --discard unless the formation is empty.
    Down(DownArgs),
    /// Have hosts join a running formation: they keep replicas, mount it, and take nodes over
    ///
    /// Of a formation over hosts with --protect replicas=2 whose launcher starts one host at a time (ssh, slurm, a
    /// command). Nodes move to the new hosts as long as one host runs two more than another one; programs wait for a
    /// moment each time. Interrupted, or behind its --timeout, it goes on; the same command waits for it again, and
    /// for a host that has joined already it evens out what was lost or has left since. The exit code is 0 once all of
    /// them have joined.
    Grow(GrowArgs),
    /// Have hosts leave a running formation in order: nothing is lost, and all goes on elsewhere
    ///
    /// Of a formation over three hosts or more with --protect replicas=2. Replicas that are there are made elsewhere,
    /// then the nodes move, one after the other; programs on other hosts wait for a moment each time. Interrupted, or
    /// behind its --timeout, it goes on; the same command waits for it again. The exit code is 0 once all of them have
    /// left.
    Shrink(ShrinkArgs),
    /// List all formations of this user on this host: those that run, and those that could be recovered
    List(ListAllArgs),
    /// Look whether this machine has all that formations need, and how to get what is missing
    ///
    /// Kernel, /dev/fuse, fusermount3, limits, memory and its control group, runtime directory, preload, launchers;
    /// with --hosts also whether these let you in. The exit code is 1 if something is missing without which no
    /// formation is started or mounted.
    Doctor(DoctorArgs),
    /// Restart a formation whose processes were all killed, with the data on its volumes
    ///
    /// Names, content, attributes, partitions, sources and what is not flushed yet are as they were; opens and locks of
    /// programs have ended. The volumes are found by the name, also after a reboot; or they are named. Nothing is lost
    /// if it fails: try again.
    Recover(RecoverArgs),
    /// Remove what formations left on this host whose processes were all killed
    ///
    /// State, sockets, volumes, memory and mounts of this user's formations of which no process lives any more, as far
    /// as that can be proven; one after the other is named. What holds data that is to be kept stays, and is named too.
    Reap(ReapArgs),
    /// Run a command on a formation of its own, with inputs copied in and outputs copied out
    ///
    /// Starts a formation, copies the inputs in, runs the command with BIVOUAC set to the mount point, BIVOUAC_NAME to
    /// the formation's name and BIVOUAC_DIR to its directory, copies the outputs out (beside their target, then
    /// renamed), and takes the formation down. The exit code is the command's: 128 + N if signal N ended it, 126 if it
    /// cannot be executed, 127 if it was not found; 120 if inputs could not be copied in, 121 if the command succeeded
    /// but outputs did not come out safely, 122 if something was left behind, 125 if the formation did not start. A
    /// signal is passed on to the command; a second one kills it. What did not come out stays in the formation, which
    /// is then left running.
    Run(RunArgs),
    /// Run a command on a running formation, with its variables and the preload; it replaces this process
    ///
    /// Sets BIVOUAC to the mount point on this host, BIVOUAC_NAME to the formation's name and BIVOUAC_DIR to its
    /// directory, has the dynamic linker load the preload if it is there, and is replaced by the command, so the exit
    /// code is the command's: 126 if it cannot be executed, 127 if it was not found; 125 if there is no such formation.
    /// In a job, each host's processes begin with it: srun bivouac exec -- COMMAND. Without --name it takes the
    /// formation that BIVOUAC_DIR or BIVOUAC_NAME say, then as all commands.
    Exec(ExecArgs),
    /// Copy into a formation and out of it: verified, resumable, with a manifest
    ///
    /// Every file is written beside its name, made safe, and renamed; digests are taken while the bytes pass.
    /// Interrupted at any point, `stage resume` does only what is missing. The exit code is 0 only when everything is
    /// at the target.
    Stage(StageArgs),
    /// Mount a running formation at one more place
    Mount(MountArgs),
    /// Remove one mount of a formation
    Unmount(UnmountArgs),
    /// Show where the bytes of a file are: targets, nodes, subfiles, stripe arithmetic
    Explain(ExplainArgs),
    /// Make, show, change and remove partitions: subtrees on chosen nodes, by rules of their own
    Partition(PartitionArgs),
    /// Choose what holds for files that are written and read at the same time: coherent, session, strict or laminated
    Contract(ContractArgs),
    /// Make the content of files final: it does not change any more, and every node may cache it
    ///
    /// Changes are refused with EROFS on all ways, until `--undo`. Each file is read once, for its SHA-256, which is
    /// kept with it. It must not be open for writing. Names, permissions and times are no content: files can be renamed
    /// and removed, but nothing takes their place. The exit code is 1 if a file could not be laminated, or if --verify
    /// finds another content.
    Laminate(LaminateArgs),
    /// Check a formation file, which `up` and `run` take with --config: mistakes are explained with their lines
    Config(ConfigArgs),
    /// Check the consistency of a formation; of a stopped one also repair it
    ///
    /// Running: names, attributes, and subfiles of all nodes are compared with each other; nothing is changed. Stopped:
    /// the same on volumes as they lie on this machine, with --repair set right. The exit code is the sum of: 0 nothing
    /// is wrong, 1 something was and is repaired, 4 something is left, 8 something could not be checked, 16 the request
    /// makes no sense.
    Fsck(FsckArgs),
    /// Compare the content of a running formation with its checksums
    ///
    /// What lies where nobody reads it is found before it is needed. Content has checksums where `--checksum` of `up`
    /// says so; what processes are writing themselves is left alone. The exit code is 0 if nothing is wrong, 1 if
    /// something is, 2 if something could not be looked at.
    Scrub(ScrubArgs),
    /// List conflicting accesses that no close, open, sync or lock orders, and the weakest contract under which they
    /// are right
    ///
    /// Of a formation that was started with --detect-races. An order that programs make by messages of their own is not
    /// seen. The exit code is 0 if there are no races, 1 if there are, 2 if none is known and the list is not complete.
    Races(RacesArgs),
    /// Write changed files of a partition back to its source on site storage, verified
    ///
    /// Each file is written beside its target, synced, read again and renamed. What cannot be brought there stays in
    /// the formation and is named; the exit code is 1 then.
    Flush(FlushArgs),
    /// Fetch files of a partition from its source and keep them, however full the volumes are
    ///
    /// A directory is meant with all files that are below it now; for later ones, give the partition a rule with
    /// pin=yes. What was written in a pinned file is flushed as usual. If something does not fit, nothing is pinned,
    /// and the exit code is 1.
    Pin(PinArgs),
    /// Allow pinned files to be evicted again
    Unpin(PinArgs),
    /// Predict whether a formation is worth it for a job, and how to form it
    ///
    /// From a model of the site, which `plan calibrate` measures, and what the job does: a verdict in one line, times
    /// with their doubt, the break-even, and a formation file that `up --config` takes. What `run --plan` saw corrects
    /// the model until `plan reset`.
    Plan(PlanArgs),
    /// Make, find, share and end work pools: named data sets on site storage, which formations attach with --pool
    ///
    /// Pools are kept in a database that many commands share. A pool ends after its days, and can then be restored for
    /// a time of grace.
    Pool(PoolArgs),
    /// Show the machines: processors, memory, disks, file systems, networks, their load, and the links between them
    ///
    /// Of this host; inside a batch job, with --hosts or --name of all those hosts, asked in one round. What is not
    /// known is shown as ?.
    System(SystemArgs),
    /// Make, list and revoke access keys for a formation's HTTP servers, and for links to it
    Key(KeyArgs),
    /// Link directories of other formations, also of other clusters
    ///
    /// The other formation is started with --link-listen, and its `key create --link` makes the key. Names, attributes
    /// and content are fetched when they are used, and kept near by; what is written goes there when it is closed.
    /// Deleting here deletes there. What holds over long ways: docs/links.md.
    Link(LinkArgs),
    /// Publish a data set in a catalogue, which outlives the formation
    ///
    /// All files are read: names, sizes, digests of files and of pieces, and who has them are written down as RO-Crate
    /// and Metalink. The entry is there whole or not at all; what changes meanwhile is named, and nothing is published.
    /// Its name is the last line.
    Publish(PublishArgs),
    /// Find published data sets by words
    Find(FindArgs),
    /// Remove a data set from a catalogue; its files stay where they are
    Unpublish(UnpublishArgs),
    /// Download a published data set, or a URL: in pieces from all that have it, verified, resumable
    ///
    /// From what was fetched before, from the servers of the formation, from site storage: whoever still has it. Every
    /// piece is compared with its digest; files get their names when all of them is right. Interrupted or killed, the
    /// same command goes on.
    Get(GetArgs),
    /// Make an expiring link to a file or directory of a formation
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
    InternalCommand(InternalCommand),
}
