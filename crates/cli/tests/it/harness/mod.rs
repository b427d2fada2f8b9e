//! Real formations for tests: the real binary, real daemons, real mounts, in a runtime directory of their own.
//!
//! ```ignore
//! let Some(camp) = Camp::start(&["--nodes", "4"]) else { return };
//! std::fs::write(camp.mount().join("a"), "x").unwrap();
//! camp.kill_node(0);
//! camp.down();
//! ```
//! A camp that is dropped, also by a failing test, is taken down and killed.

#![allow(dead_code, reason = "every test file uses a part of it")]
pub mod browser;
pub mod library;
pub mod random;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bivouac_net::{Auth, Secret};
use bivouac_types::FormationId;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long a condition may take to come true on a machine that is busy with other things.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// A runtime directory of a test's own, and the formations in it.
pub struct Place {
    runtime: tempfile::TempDir,
    environment: Vec<(String, String)>,
    control_group: Option<PathBuf>,
}

/// A running formation.
pub struct Camp {
    place: Place,
    name: String,
    mounts: Vec<PathBuf>,
    is_down: bool,
}

/// What a command said.
#[derive(Debug)]
pub struct Said {
    /// Its exit code; 128 + signal if a signal ended it.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Said {
    /// The same, if it was a success.
    pub fn succeeds(self) -> Said {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self
    }

    /// The same, if it failed with this exit code and said all of this on standard error.
    pub fn fails(self, code: i32, parts: &[&str]) -> Said {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        self.tells(parts)
    }

    /// The same, if it said all of this on standard error.
    pub fn tells(self, parts: &[&str]) -> Said {
        assert_contains(&self.err, parts);
        self
    }

    /// The same, if it printed all of this on standard output.
    pub fn prints(self, parts: &[&str]) -> Said {
        assert_contains(&self.out, parts);
        self
    }
}

/// Asserts that a text has all of these parts.
pub fn assert_contains(text: &str, parts: &[&str]) {
    parts.iter().for_each(|part| assert!(text.contains(part), "no '{part}' in: {text}"));
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Whether mounting is possible here; says why a test is skipped if not.
pub fn can_mount() -> bool {
    let device = Path::new("/dev/fuse").exists();
    if !device {
        println!("skipped: /dev/fuse is missing");
    }
    device
}

/// The copy of a supervisor or keeper that waits to take its place, if there is one just now. A child that has not
/// executed its program yet looks like one, but does not sleep.
pub fn standby_of(pid: u64) -> Option<u64> {
    standbys_of(pid).into_iter().find(|child| process_state(*child) == Some('S'))
}

/// Waits until a supervisor or keeper has a standby, which is replaced at each change, and returns it.
pub fn wait_for_standby_of(pid: u64) -> u64 {
    let mut found = None;
    wait_until("it has a standby", || {
        found = standby_of(pid);
        found.is_some()
    });
    found.unwrap()
}

/// All of them: there are two for a moment while one is replaced. Children that are about to execute their program are
/// among them.
fn standbys_of(pid: u64) -> Vec<u64> {
    let said = |pid: u64| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    children.filter(|child| said(*child) == said(pid)).collect()
}

/// Kills a supervisor or keeper and its standby: first it is stopped, so that it makes no other one. It may end
/// meanwhile.
pub fn kill_with_standby(pid: u64) {
    stop(pid);
    let victims: Vec<u64> = standbys_of(pid).into_iter().chain([pid]).collect();
    victims.iter().for_each(|pid| try_to_signal(*pid, Signal::KILL));
    wait_until("it is gone", || !victims.iter().any(|pid| is_alive(*pid)));
}

/// Stops a process, which does nothing any more then. It may end meanwhile.
pub fn stop(pid: u64) {
    try_to_signal(pid, Signal::STOP);
    wait_until("it is stopped", || matches!(process_state(pid), None | Some('T' | 'Z' | 'X')));
}

/// The state of a process as the kernel has it, `S` for one that sleeps; none once it is gone.
fn process_state(pid: u64) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Memory that a process has resident, in KiB.
pub fn rss_kib(pid: u64) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Writes a program that can be run at once. Another process writes it: what any process has open for writing, also one
/// that another test forked meanwhile, cannot be run (ETXTBSY).
pub fn write_program(path: &Path, script: &str) {
    let write = ["-c", r#"printf %s "$1" > "$2" && chmod 755 "$2""#, "sh", script];
    assert!(Command::new("sh").args(write).arg(path).status().unwrap().success());
}

/// Copies a program so that the copy can be run at once, as [`write_program`] writes one.
pub fn copy_program(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
}

/// Fields that docs/json.md has of a command, or of an event of one (`stage end`).
pub fn documented(command: &str) -> Vec<String> {
    let page = include_str!("../../../../../docs/json.md");
    let is_of =
        |line: &&str| line.split('|').nth(1).is_some_and(|first| first.contains(&format!("`{command}`")));
    let rows = page.lines().filter(is_of);
    rows.flat_map(|row| row.split('`').skip(1).step_by(2).map(str::to_owned)).collect()
}

/// The events that a command wrote, each of which docs/json.md has with all its fields.
pub fn events(command: &str, written: &str) -> Vec<Value> {
    let events: Vec<Value> = written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for event in &events {
        let known = documented(&format!("{command} {}", event["event"].as_str().unwrap()));
        for field in event.as_object().unwrap().keys().filter(|field| *field != "event") {
            assert!(known.contains(field), "{field} of {event} is not in docs/json.md: {known:?}");
        }
    }
    events
}

/// Waits until a condition holds.
///
/// # Panics
/// With `what` when it does not come true in time.
pub fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    wait_within(DEADLINE, what, holds);
}

/// The same where something else would end the waiting, later.
pub fn wait_within(bound: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + bound;
    loop {
        // Looked at once more behind the deadline: this process may have stood still since the look before.
        let is_last = Instant::now() >= deadline;
        if holds() {
            return;
        }
        assert!(!is_last, "not within {} s: {what}", bound.as_secs());
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// What a `status --json` reports once all nodes answer it whose processes run: one that is kept from running for
/// longer than `status` waits is shown as unreachable, without its figures.
pub fn answered_status(mut ask: impl FnMut() -> Said) -> Value {
    let mut status = Value::Null;
    wait_until("nodes that run answer", || {
        let said = ask();
        status = serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{}", said.err));
        let mut nodes = status["nodes"].as_array().into_iter().flatten();
        let runs = |pid: u64| !matches!(process_state(pid), None | Some('T' | 'Z' | 'X'));
        !nodes.any(|node| node["state"] == "unreachable" && node["pid"].as_u64().is_some_and(runs))
    });
    status
}

/// Sends a signal to a process by its number.
pub fn signal(pid: u64, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// The right to reap: it takes away also what other tests have just killed, wherever that is.
pub fn reaping() -> MutexGuard<'static, ()> {
    static REAPING: Mutex<()> = Mutex::new(());
    REAPING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`signal`], to a process that may end meanwhile.
pub fn try_to_signal(pid: u64, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let _gone_meanwhile = kill_process(pid, signal);
}

/// Whether a process lives: also one whose first thread has ended, as long as another one holds its files and locks.
pub fn is_alive(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| {
        let threads = rest.split(' ').nth(17).and_then(|count| count.parse().ok()).unwrap_or(0);
        !rest.starts_with(['Z', 'X']) || threads > 1
    })
}

impl Place {
    /// An empty one.
    pub fn new() -> Place {
        let runtime = tempfile::Builder::new().prefix("bvk").tempdir().unwrap();
        Place { runtime, environment: Vec::new(), control_group: None }
    }

    /// An empty one; `None` if nothing can be mounted here.
    pub fn mountable() -> Option<Place> {
        can_mount().then(Place::new)
    }

    /// The same, and a directory in place of site storage.
    pub fn with_site() -> Option<(Place, tempfile::TempDir)> {
        Place::mountable().map(|place| (place, tempfile::tempdir().unwrap()))
    }

    /// An empty one, with a database of pools of its own.
    pub fn with_pools() -> Place {
        let mut place = Place::new();
        place.have_pools();
        place
    }

    /// An empty one whose pools are in this database.
    pub fn with_pools_at(db: &str) -> Place {
        let mut place = Place::new();
        place.set("BIVOUAC_DB", db);
        place
    }

    /// Commands have a database of pools in it from now on.
    pub fn have_pools(&mut self) {
        self.set("BIVOUAC_DB", &format!("sqlite://{}", self.path().join("pools.sqlite").display()));
    }

    /// Commands have this in their environment from now on.
    pub fn set(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// Commands, and what they start, are in this control group from now on. (This process must never be: what other
    /// tests start meanwhile would be born there.)
    pub fn set_control_group(&mut self, dir: &Path) {
        self.control_group = Some(dir.to_owned());
    }

    /// The runtime directory.
    pub fn path(&self) -> &Path {
        self.runtime.path()
    }

    /// The binary with arguments.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.program();
        command.args(arguments).env("XDG_RUNTIME_DIR", self.path()).stdin(Stdio::null());
        command.env("XDG_STATE_HOME", self.path().join("state"));
        // Tests may themselves run in a job.
        for of_job in ["BIVOUAC_NAME", "BIVOUAC_DIR", "SLURM_JOB_ID", "FLUX_JOB_ID", "PBS_JOBID"] {
            command.env_remove(of_job);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// The binary without arguments, in its control group.
    fn program(&self) -> Command {
        let binary = env!("CARGO_BIN_EXE_bivouac");
        let Some(dir) = &self.control_group else { return Command::new(binary) };
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\"/cgroup.procs && exec \"$@\""]).arg(dir).arg(binary);
        command
    }

    /// Runs the binary to its end.
    pub fn run(&self, arguments: &[&str]) -> Said {
        said(&self.command(arguments).output().unwrap())
    }

    /// Runs the binary to its end, which must be a success; what it printed.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let said = self.run(arguments);
        assert_eq!(said.code, 0, "{arguments:?}: {}", said.err);
        said.out
    }

    /// A name that no other formation of this machine has.
    pub fn unique_name() -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        format!("t{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
    }

    /// A directory in memory for volumes, of its own: formations beside each other would find each other's in one.
    pub fn memory() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").unwrap()
    }

    /// Whether no formation has left anything in the runtime directory.
    pub fn is_empty(&self) -> bool {
        std::fs::read_dir(self.path().join("bivouac")).map_or(true, |mut entries| entries.next().is_none())
    }

    /// The formation's own directory.
    pub fn formation_dir(&self, name: &str) -> PathBuf {
        self.path().join("bivouac").join(name)
    }

    /// Processes, mounts and files of a formation whose name is known, killed and removed as far as possible.
    pub fn purge(&self, name: &str) {
        let said = self.run(&["down", "--name", name, "--discard"]);
        if said.code == 0 || !self.formation_dir(name).exists() {
            return;
        }
        eprintln!("{name} did not go down: {}", said.err);
        let text = std::fs::read(self.formation_dir(name).join("state.json")).unwrap_or_default();
        let state: Value = serde_json::from_slice(&text).unwrap_or_default();
        let nodes = state["nodes"].as_array().cloned().unwrap_or_default();
        state["supervisor"]["pid"]
            .as_u64()
            .into_iter()
            .filter(|pid| is_alive(*pid))
            .for_each(kill_with_standby);
        for process in nodes.iter().map(|node| &node["process"]) {
            if let Some(pid) = process["pid"].as_u64().filter(|pid| is_alive(*pid)) {
                try_to_signal(pid, Signal::KILL);
            }
        }
        self.run(&["down", "--name", name, "--discard"]);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let entries = std::fs::read_dir(self.path().join("bivouac")).into_iter().flatten().flatten();
        let names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.iter().for_each(|name| self.purge(name));
    }
}

impl Camp {
    /// `bivouac up` with these arguments and a name of its own; `None` if nothing can be mounted here.
    pub fn start(arguments: &[&str]) -> Option<Camp> {
        can_mount().then(|| Camp::start_in(Place::new(), arguments))
    }

    /// The same with a mount through each node.
    pub fn start_each(arguments: &[&str]) -> Option<Camp> {
        if !can_mount() {
            return None;
        }
        let place = Place::new();
        let each = place.path().join("each");
        std::fs::create_dir(&each).unwrap();
        let mut all = vec!["--mount-each", each.to_str().unwrap()];
        all.extend(arguments);
        Some(Camp::start_in(place, &all))
    }

    /// The same in a given place, also without a mount.
    pub fn start_in(place: Place, arguments: &[&str]) -> Camp {
        let name = Place::unique_name();
        // A test that is killed leaves nothing either.
        let owner = std::process::id().to_string();
        let mut all = vec!["up", "--name", &name, "--json"];
        if !arguments.contains(&"--owner") {
            all.extend(["--owner", &owner]);
        }
        all.extend(arguments);
        let said = place.run(&all);
        assert_eq!(said.code, 0, "{}", said.err);
        let up: Value = serde_json::from_str(&said.out).unwrap();
        let mounts = up["mounts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|mount| mount["dir"].as_str().unwrap().into())
            .collect();
        Camp { place, name, mounts, is_down: false }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it lives.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The first mount point.
    pub fn mount(&self) -> &Path {
        &self.mounts[0]
    }

    /// All mount points that `up` made.
    pub fn mounts(&self) -> &[PathBuf] {
        &self.mounts
    }

    /// The formation's own directory.
    pub fn dir(&self) -> PathBuf {
        self.place.formation_dir(&self.name)
    }

    /// Runs a command of the binary on this formation (`--name` is added).
    pub fn run(&self, command: &str, arguments: &[&str]) -> Said {
        let mut all = vec![command, "--name", &self.name];
        all.extend(arguments);
        self.place.run(&all)
    }

    /// `status --json`, as [`answered_status`] has it.
    pub fn status(&self) -> Value {
        answered_status(|| self.run("status", &["--json"]))
    }

    /// The state that `status` shows of the formation.
    pub fn state(&self) -> String {
        self.status()["state"].as_str().unwrap().into()
    }

    /// Waits until nothing is open: a close reaches the home after `close` has returned, may move the times of a file,
    /// and a file without a name keeps its space until then. The HTTP server closes what it was asked for after a
    /// moment.
    pub fn wait_until_closed(&self) {
        wait_until("all is closed", || self.status()["totals"]["open_files"] == 0);
    }

    /// The process of a node's daemon, waiting until there is one that serves.
    pub fn node_pid(&self, node: usize) -> u64 {
        let mut pid = None;
        wait_until("the node is ready", || {
            let status = self.status();
            let node = &status["nodes"][node];
            pid = node["pid"].as_u64().filter(|_| node["state"] == "ready");
            pid.is_some()
        });
        pid.unwrap()
    }

    /// Kills a node's daemon with SIGKILL and waits until that process is gone; answers its number.
    pub fn kill_node(&self, node: usize) -> u64 {
        let pid = self.node_pid(node);
        signal(pid, Signal::KILL);
        wait_until("the killed daemon is gone", || !is_alive(pid));
        pid
    }

    /// What proves to its daemons that one belongs to it.
    pub fn auth(&self) -> Auth {
        let hex = self.status()["formation"].as_str().unwrap().to_string();
        let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
        let secret = std::fs::read(self.dir().join("secret")).unwrap();
        Auth {
            formation: FormationId(std::array::from_fn(byte)),
            secret: Secret::new(secret.try_into().unwrap()),
            is_secure: self.status()["secure"].as_bool().unwrap_or_default(),
        }
    }

    /// The supervisor's process.
    pub fn supervisor_pid(&self) -> u64 {
        self.status()["supervisor"]["pid"].as_u64().unwrap()
    }

    /// Kills its supervisor, and who would take its place.
    pub fn kill_supervisor(&self) {
        kill_with_standby(self.supervisor_pid());
    }

    /// Kills all its processes, so that none is started again.
    pub fn kill_all(&self) {
        let pids = || {
            let status = self.status();
            let nodes = status["nodes"].as_array().unwrap().iter();
            nodes.filter_map(|node| node["pid"].as_u64()).collect::<BTreeSet<u64>>()
        };
        let mut nodes = pids();
        self.kill_supervisor();
        // One may have been started again until then.
        nodes.extend(pids());
        nodes.iter().for_each(|pid| try_to_signal(*pid, Signal::KILL));
        wait_until("all are gone", || !nodes.iter().any(|pid| is_alive(*pid)));
    }

    /// Takes it down and makes sure that nothing is left.
    pub fn down(mut self) {
        let said = self.run("down", &["--yes"]);
        assert_eq!(said.code, 0, "{}{}", said.out, said.err);
        assert!(said.out.contains("nothing left: 0 processes, 0 mounts, 0 files, 0 sockets"), "{}", said.out);
        assert!(self.place.is_empty());
        self.is_down = true;
    }
}

impl Drop for Camp {
    fn drop(&mut self) {
        if !self.is_down {
            if std::thread::panicking() {
                self.show_logs();
                self.show_state();
            }
            self.place.purge(&self.name);
        }
    }
}

impl Camp {
    fn show_logs(&self) {
        let entries = std::fs::read_dir(self.dir()).into_iter().flatten().flatten();
        for path in
            entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "log"))
        {
            eprintln!("--- {}\n{}", path.display(), std::fs::read_to_string(&path).unwrap_or_default());
        }
    }

    /// Prints `status` and `fsck` of the formation.
    fn show_state(&self) {
        for command in ["status", "fsck"] {
            let Ok(output) = self.place.command(&[command, "--name", &self.name]).output() else { continue };
            let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
            eprintln!("--- {command}\n{out}{err}");
        }
    }
}

/// What a command has said, and how it ended.
pub fn said(output: &Output) -> Said {
    use std::os::unix::process::ExitStatusExt;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = output.status.code().or_else(|| output.status.signal().map(|signal| 128 + signal));
    let said = Said { code: code.unwrap(), out: text(&output.stdout), err: text(&output.stderr) };
    assert!(!format!("{}{}", said.out, said.err).contains("(os error "), "errors are named: {said:?}");
    said
}
