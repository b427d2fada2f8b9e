//! Steps of a whole run: the measurements, their sizes, and the formations that they use.

use std::path::{Path, PathBuf};

use super::many;
use crate::formation::Formation;
use crate::fuse::{BARE_FUSE, BareFuse};
use crate::idle::{self, IdleArgs};
use crate::io::{self, Api, Arrangement, IoOp, IoPlan, Mode};
use crate::latency::{self, Call, LatencyArgs};
use crate::meta::{self, Layout, MeasuredTarget, MetaPlan};
use crate::net::{self, CopyPlan, NetArgs};
use crate::one_core::OneCore;
use crate::output::OutputArgs;
use crate::report::{Report, Unit};
use crate::scratch::Scratch;
use crate::startup::{self, StartupArgs};
use crate::{BenchResult, Host};

/// Large transfers on the mount.
pub const MOUNT_LARGE: &str = "mount-1m";
/// Small ones.
pub const MOUNT_SMALL: &str = "mount-4k";
/// The same with all processes on one processor.
const MOUNT_SMALL_ONE_CORE: &str = "mount-4k-one-core";
/// Files of the mount.
pub const META: &str = "meta";
/// The same with all processes on one processor.
const META_ONE_CORE: &str = "meta-one-core";
/// The library beside tmpfs.
pub const LIBRARY_LOCAL: &str = "library-local";
/// Small calls of the library beside tmpfs.
pub const LIBRARY_SMALL: &str = "library-4k";
/// The same with all processes on one processor.
const LIBRARY_SMALL_ONE_CORE: &str = "library-4k-one-core";
/// Processes that take turns in a file, beside others.
pub const TURNS: &str = "strided";
/// More and more processes.
pub const CLIENTS: &str = "clients";
/// Percentiles of single calls.
const LATENCY: &str = "latency";
/// The library beside bare TCP.
pub const REMOTE: &str = "remote";
/// Small requests of the library beside bare TCP.
pub const REMOTE_SMALL: &str = "remote-4k";
/// Start and stop.
pub const STARTUP: &str = "startup";
/// Doing nothing.
pub const IDLE: &str = "idle";
/// Name of the mount in tables.
pub const MOUNT: &str = "mount";
/// Name of the limit of local data in tables.
pub const TMPFS: &str = "tmpfs";

/// Bytes of the file that small requests go to.
const SMALL_FILE: u64 = 32 << 20;

/// Size of a run.
pub struct Size {
    /// Repetitions.
    pub reps: u32,
    /// Bytes that large calls go to.
    pub large: u64,
    small: u64,
    files: u32,
    calls: u32,
    nodes: Vec<u16>,
    idle_s: u32,
}

impl Size {
    /// Enough to see where things are.
    #[must_use]
    pub fn quick() -> Size {
        Size {
            reps: 5,
            large: 128 << 20,
            small: 32 << 20,
            files: 5000,
            calls: 3000,
            nodes: vec![1, 32],
            idle_s: 5,
        }
    }

    /// Enough to be published.
    #[must_use]
    pub fn full() -> Size {
        Size {
            reps: 11,
            large: 512 << 20,
            small: 128 << 20,
            files: 20_000,
            calls: 20_000,
            nodes: vec![1, 2, 4, 8, 16, 32],
            idle_s: 20,
        }
    }
}

bivouac_types::words! {
    /// Measurements that share a formation, in their order.
    SuiteStep ("measurement") {
        /// One node and its mount.
        Mount = "mount beside tmpfs",
        /// The same, all processes on one processor.
        MountOneCore = "mount beside tmpfs, on one processor",
        /// One node and its mount, many processes.
        Many = "many processes on a mount",
        /// One node, from another process of its machine.
        Library = "library beside tmpfs",
        /// The same with small calls.
        LibrarySmall = "small calls of the library beside tmpfs",
        /// Nodes over TCP.
        Remote = "library over TCP beside bare TCP",
        /// The same with small requests.
        RemoteSmall = "small requests over TCP beside bare TCP",
        /// Formations of several sizes.
        Startup = "start and stop",
        /// One node that nobody asks.
        Idle = "idle daemon",
    }
}

/// Tables by the names of their files.
type Tables = Vec<(&'static str, Report)>;

impl SuiteStep {
    /// Measures it on formations of its own.
    ///
    /// # Errors
    /// What fails first.
    pub fn measure(self, host: &Host<'_>, memory: &Path, size: &Size) -> BenchResult<Tables> {
        let output = OutputArgs::default;
        match self {
            SuiteStep::Mount => on_mount(host, memory, |targets| {
                let large = transfer(host, memory, targets, &transfers(1 << 20, size.large), size.reps)?;
                let small = transfer(host, memory, targets, &transfers(4096, size.small), size.reps)?;
                let files = names(host, memory, targets, size)?;
                Ok(vec![(MOUNT_LARGE, large), (MOUNT_SMALL, small), (META, files)])
            }),
            SuiteStep::MountOneCore => {
                // Before the formation starts, so that its daemon is there, too.
                let _one_core = OneCore::enter()?;
                on_mount(host, memory, |targets| {
                    let plan = transfers(4096, size.small);
                    let small = transfer(host, memory, targets, &plan, size.reps)?;
                    let files = names(host, memory, targets, size)?;
                    Ok(vec![(MOUNT_SMALL_ONE_CORE, small), (META_ONE_CORE, files)])
                })
            }
            SuiteStep::Many => on_mount(host, memory, |targets| {
                let Some((_, mount)) = targets.first() else { return Ok(Vec::new()) };
                let strided = many::strided(host, mount, size)?;
                let clients = many::clients(host, mount, size)?;
                Ok(vec![(TURNS, strided), (CLIENTS, clients), (LATENCY, latencies(host, targets, size)?)])
            }),
            SuiteStep::LibrarySmall => {
                let two = on_mount(host, memory, |targets| {
                    Ok(vec![(LIBRARY_SMALL, small_calls(host, targets, size)?)])
                })?;
                let _one_core = OneCore::enter()?;
                let one = on_mount(host, memory, |targets| {
                    Ok(vec![(LIBRARY_SMALL_ONE_CORE, small_calls(host, targets, size)?)])
                })?;
                Ok(two.into_iter().chain(one).collect())
            }
            SuiteStep::Library => {
                let formation = Formation::up(host, &["--no-mount"])?;
                let report = net::compare_local(host, formation.name(), &copies(memory, size))?;
                formation.down(host)?;
                Ok(vec![(LIBRARY_LOCAL, report)])
            }
            SuiteStep::Remote => {
                let mut args = copies(memory, size);
                // Small requests have a table of their own, on one processor.
                args.plan.calls = 0;
                Ok(vec![(REMOTE, remote(host, &args)?)])
            }
            SuiteStep::RemoteSmall => {
                let _one_core = OneCore::enter()?;
                let mut args = copies(memory, size);
                args.plan.total = args.plan.total.min(SMALL_FILE);
                let mut report = remote(host, &args)?;
                // Large requests are in the table of `Remote`, on all processors.
                report.rows.retain(|row| row.unit == Unit::Microseconds);
                report.title = format!(
                    "small requests over TCP, all processes on one processor, {} repetitions",
                    args.reps
                );
                Ok(vec![(REMOTE_SMALL, report)])
            }
            SuiteStep::Startup => {
                let (nodes, reps) = (size.nodes.clone(), size.reps);
                let args = {
                    let (no_mount, in_process, host_delay_ms) = (false, false, None);
                    StartupArgs { nodes, no_mount, in_process, host_delay_ms, reps, output: output() }
                };
                Ok(vec![(STARTUP, startup::measure(host, &args)?)])
            }
            SuiteStep::Idle => {
                let args = IdleArgs { pid: None, seconds: size.idle_s, no_mount: false, output: output() };
                Ok(vec![(IDLE, idle::measure(host, &args)?)])
            }
        }
    }
}

/// Reading and writing, also on a bare file system.
fn transfer(
    host: &Host<'_>,
    memory: &Path,
    targets: &[(String, PathBuf)],
    plan: &IoPlan,
    reps: u32,
) -> BenchResult<Report> {
    beside_bare(host, memory, targets, |targets| io::compare(host, targets, plan, reps))
}

/// Files, also on a bare file system.
fn names(host: &Host<'_>, memory: &Path, targets: &[(String, PathBuf)], size: &Size) -> BenchResult<Report> {
    beside_bare(host, memory, targets, |targets| {
        meta::compare(host, &single_mounts(targets), &files(size), size.reps)
    })
}

/// Measures also on a bare file system, behind the first target, where this user may mount one.
fn beside_bare(
    host: &Host<'_>,
    memory: &Path,
    targets: &[(String, PathBuf)],
    measure: impl FnOnce(&[(String, PathBuf)]) -> BenchResult<Report>,
) -> BenchResult<Report> {
    let scratch = Scratch::new(memory)?;
    let dir = scratch.subdir("bare")?;
    let mut targets = targets.to_vec();
    // Taken away again before its directory is.
    let bare = match BareFuse::at(host, &dir) {
        Ok(bare) => Some(bare),
        Err(error) if error.kind() == crate::Kind::Interrupted => return Err(error),
        Err(error) => {
            host.say(&format!("without a bare FUSE file system: {error}"));
            None
        }
    };
    if bare.is_some() {
        // Not the last target, which is the limit that others are measured beside.
        targets.insert(1.min(targets.len()), (BARE_FUSE.to_owned(), dir));
    }
    let report = measure(&targets);
    drop(bare);
    report
}

/// Small calls of the library: making a file longer, then random places of it.
fn small_calls(host: &Host<'_>, targets: &[(String, PathBuf)], size: &Size) -> BenchResult<Report> {
    let names = [net::LIBRARY, TMPFS].map(str::to_owned);
    let targets: Vec<_> = names.into_iter().zip(targets.iter().map(|(_, dir)| dir.clone())).collect();
    let random = IoPlan { api: Api::Client, ..transfers(4096, size.small) };
    let ops = vec![IoOp::Write];
    let growing = IoPlan { arrangement: Arrangement::Segmented, ops, ..random.clone() };
    let random = IoPlan { ops: vec![IoOp::Rewrite, IoOp::Read], ..random };
    let mut report = io::compare(host, &targets, &growing, size.reps)?;
    report.rows.extend(io::compare(host, &targets, &random, size.reps)?.rows);
    report
        .notes
        .push("write makes the file longer from its start; the others are at random places".to_owned());
    Ok(report)
}

fn latencies(host: &Host<'_>, targets: &[(String, PathBuf)], size: &Size) -> BenchResult<Report> {
    let (names, dirs): (Vec<String>, Vec<PathBuf>) = targets.iter().cloned().unzip();
    let ops = vec![Call::Read, Call::Write, Call::Stat, Call::Create];
    let (calls, reps, output) = (size.calls, size.reps, OutputArgs::default());
    latency::compare(host, &names, &LatencyArgs { dirs, transfer: 4096, procs: 1, ops, calls, reps, output })
}

/// Two nodes, and a file on one of them, from a process that is neither.
fn remote(host: &Host<'_>, args: &NetArgs) -> BenchResult<Report> {
    let formation = Formation::up(host, &["--nodes", "2", "--width", "1", "--no-mount"])?;
    let report = net::compare(host, formation.name(), args)?;
    formation.down(host)?;
    Ok(report)
}

/// Measures on the mount of a formation of one node, and on a directory beside it.
fn on_mount(
    host: &Host<'_>,
    memory: &Path,
    measure: impl FnOnce(&[(String, PathBuf)]) -> BenchResult<Tables>,
) -> BenchResult<Tables> {
    let scratch = Scratch::new(memory)?;
    let (mount, plain) = (scratch.subdir("mount")?, scratch.subdir("plain")?);
    let place = mount.display().to_string();
    let formation = Formation::up(host, &["--mount", &place])?;
    let tables = measure(&[(MOUNT.to_owned(), mount), (TMPFS.to_owned(), plain)])?;
    formation.down(host)?;
    Ok(tables)
}

fn single_mounts(targets: &[(String, PathBuf)]) -> Vec<MeasuredTarget> {
    targets.iter().map(|(name, dir)| MeasuredTarget::new(name, dir.clone())).collect()
}

fn files(size: &Size) -> MetaPlan {
    let (layout, files) = (Layout::Single, size.files);
    // 3,901 bytes are those of the files of IO500's hard metadata test.
    MetaPlan { procs: 1, files, layout, depth: 1, branch: 1, shared: false, bytes: 3901, filled: false }
}

fn transfers(transfer: u64, size: u64) -> IoPlan {
    IoPlan {
        procs: 1,
        mode: Mode::Shared,
        arrangement: if transfer < 1 << 20 { Arrangement::Random } else { Arrangement::Segmented },
        transfer,
        size,
        ops: vec![IoOp::Write, IoOp::Rewrite, IoOp::Read],
        api: Api::Calls,
        verify: true,
    }
}

fn copies(memory: &Path, size: &Size) -> NetArgs {
    let plan = CopyPlan { size: 1 << 20, streams: 1, total: size.large, calls: size.calls };
    NetArgs { plan, dir: memory.to_owned(), reps: size.reps, output: OutputArgs::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::all::budgets::ONE_CORE;

    #[test]
    fn sizes_are_whole_transfers() {
        for size in [Size::quick(), Size::full()] {
            assert!(size.reps >= 5 && size.nodes.contains(&32));
            assert!(size.large.is_multiple_of(1 << 20) && size.small.is_multiple_of(4096));
        }
        let one_core = [MOUNT_SMALL_ONE_CORE, META_ONE_CORE, LIBRARY_SMALL_ONE_CORE];
        assert!(one_core.iter().all(|name| name.ends_with(ONE_CORE)));
        assert_eq!(transfers(4096, 8192).arrangement, Arrangement::Random);
        assert_eq!(transfers(1 << 20, 1 << 20).arrangement, Arrangement::Segmented);
    }
}
