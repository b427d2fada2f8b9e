//! Processes by identity: a number alone can have been given to another one meanwhile.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd};
use serde::{Deserialize, Serialize};

/// The flag of a process that has begun to end (`PF_EXITING` in the kernel's `sched.h`).
const PF_EXITING: u32 = 0x4;
/// Commands that a daemon, or the server for HTTP, is started with.
const DAEMONS: [&[u8]; 2] = [b"node", b"serve"];
const FUSE_DEVICE: &str = "/dev/fuse";

/// A process: its number, and the moment of its start that tells it from later ones with that number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// The number.
    pub pid: u32,
    /// Clock ticks from the machine's start to the process's, whatever time namespace this is seen from.
    pub started_ticks: u64,
}

/// Nanoseconds in a clock tick as the kernel tells of starts (`USER_HZ`).
const TICK_NS: i128 = 10_000_000;
/// Starts that are less apart than this are the same: a time namespace may be ahead by part of a tick.
const SAME_TICKS: u64 = 2;

impl ProcessId {
    /// Returns the identity of the living process with this number; `None` if there is none, or if a shortage of
    /// descriptors or memory hides it.
    #[must_use]
    pub fn of(pid: u32) -> Option<ProcessId> {
        ProcessId::lookup(pid).ok().flatten()
    }

    /// Returns the identity of the living process with this number; `None` if there is none.
    ///
    /// # Errors
    /// What keeps this process from looking, for instance `EMFILE`: the process may live.
    fn lookup(pid: u32) -> io::Result<Option<ProcessId>> {
        let stat = match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(stat) => stat,
            Err(error) if is_gone(&error) => return Ok(None),
            // Of another user, where /proc hides those (`hidepid`): the number was given to a new process.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some((state, seen_ticks)) = parse_stat(&stat) else { return Ok(None) };
        let started_ticks = seen_ticks.saturating_add_signed(-ticks_ahead());
        // A zombie has closed everything already, and only waits to be asked for its exit code.
        Ok((!matches!(state, 'Z' | 'X')).then_some(ProcessId { pid, started_ticks }))
    }

    /// Returns the id of this process.
    #[must_use]
    pub fn current() -> ProcessId {
        let pid = std::process::id();
        ProcessId::of(pid).unwrap_or(ProcessId { pid, started_ticks: 0 })
    }

    /// Returns the one that has started this one; `None` if that has ended by now.
    #[must_use]
    pub fn parent() -> Option<ProcessId> {
        ProcessId::of(std::os::unix::process::parent_id())
    }

    /// Returns whether it has begun to end: it closes what it has open before it is dead.
    pub(crate) fn is_ending(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid));
        !self.is_alive() || stat.is_ok_and(|stat| flags(&stat).is_none_or(|flags| flags & PF_EXITING != 0))
    }

    /// Returns whether it still runs. One that a shortage of descriptors hides counts as alive.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.look().unwrap_or(true)
    }

    fn look(&self) -> io::Result<bool> {
        let now = ProcessId::lookup(self.pid)?;
        Ok(now.is_some_and(|now| now.started_ticks.abs_diff(self.started_ticks) < SAME_TICKS))
    }

    /// Returns a descriptor that becomes readable at its end; `None` if it has ended, or if no descriptor is left.
    #[must_use]
    pub fn watch(&self) -> Option<OwnedFd> {
        self.try_watch().ok().flatten()
    }

    /// Returns a descriptor that becomes readable at its end; `None` if it has ended.
    ///
    /// # Errors
    /// What keeps this process from watching it, for instance `EMFILE`: it may live.
    pub fn try_watch(&self) -> io::Result<Option<OwnedFd>> {
        let descriptor = match pidfd(self.pid).map_err(io::Error::from) {
            Ok(descriptor) => descriptor,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        // Only what is alive after the descriptor was opened is what the descriptor names.
        Ok(self.look()?.then_some(descriptor))
    }

    /// Returns the FUSE devices that it has open, as far as this process may look at its memory.
    pub(crate) fn fuse_devices(&self) -> Vec<OwnedFd> {
        let Some(process) = self.watch() else { return Vec::new() };
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.pid)).into_iter().flatten().flatten();
        let devices = open
            .filter(|entry| {
                std::fs::read_link(entry.path()).is_ok_and(|target| target == Path::new(FUSE_DEVICE))
            })
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        devices.filter_map(|number| pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok()).collect()
    }

    /// Sends a signal, unless it has ended.
    pub fn signal(&self, signal: Signal) {
        if let Some(descriptor) = self.watch() {
            let _gone_meanwhile = rustix::process::pidfd_send_signal(descriptor, signal);
        }
    }
}

/// Returns whether the system says by an error that there is no such process; `EINVAL` and `ENOENT` are its answers
/// for a thread other than the first one of a process.
fn is_gone(error: &io::Error) -> bool {
    let gone = [Errno::SRCH, Errno::NOENT, Errno::INVAL];
    gone.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Returns a descriptor for the process with this number.
///
/// # Errors
/// `ESRCH` if there is none.
pub fn pidfd(pid: u32) -> Result<OwnedFd, Errno> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    rustix::process::pidfd_open(pid, PidfdFlags::empty())
}

/// Numbers and names of the processes that use something below a directory: their working directory, or an
/// open file. As far as this user may see.
#[must_use]
pub fn users_of(dir: &std::path::Path) -> Vec<(u32, String)> {
    pids().filter(|pid| uses(*pid, dir)).map(|pid| (pid, name_of(pid))).collect()
}

/// Returns whether a process has a socket open, and nothing below a directory. As far as this user may see.
pub(crate) fn has_socket(inode: u64, but_nothing_below: &Path) -> bool {
    let socket = PathBuf::from(format!("socket:[{inode}]"));
    let has = |pid: u32| {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.map(|entry| entry.path())
            .any(|link| std::fs::read_link(link).is_ok_and(|target| target == socket))
    };
    pids().any(|pid| has(pid) && !uses(pid, but_nothing_below))
}

/// Daemons of the formation with this lock, which all of them have open. As far as this user may see.
pub(crate) fn daemons_with(lock: &Path) -> Vec<ProcessId> {
    pids().filter(|pid| uses(*pid, lock) && is_daemon(*pid)).filter_map(ProcessId::of).collect()
}

/// Numbers of all processes that this user may see.
fn pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Commands open locks of formations for a moment, too; arguments tell them apart.
fn is_daemon(pid: u32) -> bool {
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    arguments.split(|byte| *byte == 0).nth(1).is_some_and(|command| DAEMONS.contains(&command))
}

fn uses(pid: u32, dir: &std::path::Path) -> bool {
    let links = ["cwd", "root", "exe"].map(|link| PathBuf::from(format!("/proc/{pid}/{link}")));
    let open = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    links
        .into_iter()
        .chain(open)
        .any(|link| std::fs::read_link(link).is_ok_and(|target| target.starts_with(dir)))
}

/// Returns whether nothing is left of a process but threads of this name, of which it has some.
pub(crate) fn is_left_to(pid: u32, name: &str) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let is_over = |task: &Path| {
        let stat = std::fs::read_to_string(task.join("stat"));
        // Gone in between.
        stat.map_or(true, |stat| parse_stat(&stat).is_some_and(|(state, _)| matches!(state, 'Z' | 'X')))
    };
    let mut left = tasks.map(|task| task.path()).filter(|task| !is_over(task)).peekable();
    let is_called = |task: std::path::PathBuf| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    };
    left.peek().is_some() && left.all(is_called)
}

fn name_of(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    name.map_or_else(|_| "?".into(), |name| name.trim_end().into())
}

/// Returns the lead of the clock of this process's time namespace over the machine's, in ticks.
fn ticks_ahead() -> i64 {
    static AHEAD: OnceLock<i64> = OnceLock::new();
    *AHEAD.get_or_init(|| {
        let offsets = std::fs::read_to_string("/proc/self/timens_offsets");
        offsets.ok().and_then(|offsets| parse_ahead(&offsets)).unwrap_or(0)
    })
}

/// Returns the lead out of `/proc/PID/timens_offsets`: a clock in each line, with seconds and nanoseconds.
fn parse_ahead(offsets: &str) -> Option<i64> {
    let mut words = offsets.lines().find_map(|line| line.strip_prefix("boottime"))?.split_whitespace();
    let (secs, nanos): (i128, i128) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    i64::try_from((secs * 1_000_000_000 + nanos).div_euclid(TICK_NS)).ok()
}

/// Returns the state and start of a process out of `/proc/PID/stat`. The name in it may hold anything, also `)`.
fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?.chars().next()?;
    // Field 22 of proc(5); the state, which is read already, is field 3.
    let started = fields.nth(18)?.parse().ok()?;
    Some((state, started))
}

/// Flags of a process out of the same.
fn flags(stat: &str) -> Option<u32> {
    // Field 9 of proc(5).
    stat.rsplit_once(") ")?.1.split(' ').nth(6)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn what_is_left_of_a_process_is_known_by_the_names_of_its_threads() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        // Until it has become another program it is called as this one.
        while name_of(child.id()) != "sleep" {
            std::thread::yield_now();
        }
        assert!(is_left_to(child.id(), "sleep") && !is_left_to(child.id(), "other"));
        assert!(
            !is_left_to(std::process::id(), &name_of(std::process::id())),
            "this thread has another name"
        );
        child.kill().unwrap();
        let is_over = |pid| ProcessId::of(pid).is_none();
        while !is_over(child.id()) {
            std::thread::yield_now();
        }
        assert!(!is_left_to(child.id(), "sleep"), "nothing is left");
        child.wait().unwrap();
    }

    #[test]
    fn the_start_is_found_behind_any_name() {
        let line = |name: &str| format!("7 ({name}) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20");
        for name in ["sh", "a b", ") S 1", ")"] {
            assert_eq!(parse_stat(&line(name)), Some(('S', 4242)), "{name}");
        }
        assert_eq!(flags("7 (x) S 1 2 3 4 5 4194564 7"), Some(0x40_0104));
        assert_eq!(parse_stat("7 (x"), None);
        assert_eq!(parse_stat("7 (x) S 1"), None);
    }

    #[test]
    fn clocks_of_time_namespaces_are_seen_through() {
        let offsets = |secs, nanos| format!("monotonic           0         0\nboottime   {secs}   {nanos}\n");
        assert_eq!(parse_ahead(&offsets(0, 0)), Some(0));
        assert_eq!(parse_ahead(&offsets(86_400, 0)), Some(8_640_000));
        assert_eq!(parse_ahead(&offsets(-10, 990_000_000)), Some(-901));
        assert_eq!(parse_ahead("monotonic 0 0\n"), None);
    }

    #[test]
    fn this_process_is_alive_and_another_with_its_number_is_not() {
        let this = ProcessId::current();
        assert!(this.is_alive() && this.watch().is_some() && !this.is_ending());
        let earlier = ProcessId { started_ticks: this.started_ticks + SAME_TICKS, ..this };
        assert!(!earlier.is_alive() && earlier.watch().is_none() && earlier.is_ending());
    }

    #[test]
    fn only_what_says_so_is_the_end_of_a_process() {
        let is = |errno: Errno| is_gone(&errno.into());
        assert!(is(Errno::SRCH) && is(Errno::NOENT));
        assert!(!is(Errno::MFILE) && !is(Errno::NFILE) && !is(Errno::NOMEM));
    }

    #[test]
    fn a_signal_ends_a_child() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let id = ProcessId::of(child.id()).unwrap();
        id.signal(Signal::KILL);
        assert_eq!(child.wait().unwrap().code(), None);
        assert!(!id.is_alive());
    }

    #[test]
    fn who_uses_a_directory_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        assert!(users_of(&path).is_empty());
        let file = std::fs::File::create(path.join("open")).unwrap();
        assert!(users_of(&path).iter().any(|(pid, _)| *pid == std::process::id()));
        drop(file);
    }
}
