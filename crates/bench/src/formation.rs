//! Formations of a measurement's own: started and stopped by the same commands as everybody's.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use crate::{BenchError, BenchResult, Host, Kind, clock, command};

static NEXT: AtomicU32 = AtomicU32::new(0);
/// Counters of nodes that are no requests of clients.
const NO_WORK: [&str; 3] = ["Damaged", "LeaseWait", "Status"];

/// State of a formation, as far as its end needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FormationStatus {
    Up,
    /// Its start was interrupted: most likely it removed itself, but it may just have succeeded.
    Perhaps,
    Down,
}

/// A node, as `status` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Process of its daemon.
    pub pid: u32,
    /// Records that it holds; 0 if it does not say.
    pub records: u64,
}

/// A formation that runs; taken down with this value at the latest.
pub struct Formation<'h, 'a> {
    host: &'h Host<'a>,
    name: String,
    up_ns: u64,
    said: Value,
    life: FormationStatus,
}

impl<'h, 'a> Formation<'h, 'a> {
    /// Starts one with a name of its own and these options of `up`.
    ///
    /// # Errors
    /// What `up` says; that somebody asked to end.
    pub fn up(host: &'h Host<'a>, options: &[&str]) -> BenchResult<Formation<'h, 'a>> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("bench-{}-{number}", std::process::id());
        // What is measured ends with who measures, however that ends.
        let owner = std::process::id().to_string();
        let own = ["up", "--json", "--owner", &owner, "--name", &name];
        let arguments: Vec<&str> = own.iter().chain(options).copied().collect();
        let start = clock::now_ns();
        let output = run(host, &arguments);
        let up_ns = clock::now_ns().saturating_sub(start);
        let life = match &output {
            Ok(_) => FormationStatus::Up,
            Err(error) if error.kind() == Kind::Interrupted => FormationStatus::Perhaps,
            // What fails has taken down what it had begun.
            Err(_) => FormationStatus::Down,
        };
        // Before the output is read: if that fails, what is up is taken down all the same.
        let mut formation = Formation { host, name, up_ns, said: Value::Null, life };
        formation.said = parse("up --json", &output?)?;
        Ok(formation)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Time of `up` as its caller sees it, in nanoseconds.
    #[must_use]
    pub fn up_ns(&self) -> u64 {
        self.up_ns
    }

    /// The steps of the start with their milliseconds, in order, as far as `up` says.
    #[must_use]
    pub fn steps(&self) -> Vec<(String, f64)> {
        steps(&self.said)
    }

    /// Its mounts, in the order in which `up` names them.
    #[must_use]
    pub fn mounts(&self) -> Vec<PathBuf> {
        let mounts = self.said["mounts"].as_array().into_iter().flatten();
        mounts.filter_map(|mount| mount["dir"].as_str().map(PathBuf::from)).collect()
    }

    /// Runs a command on it, or on a path of its mounts, and answers what it prints.
    ///
    /// # Errors
    /// What the command says.
    pub fn run(&self, arguments: &[&str]) -> BenchResult<String> {
        run(self.host, arguments)
    }

    /// Its nodes, in order.
    pub fn nodes(&self) -> BenchResult<Vec<NodeView>> {
        let status = self.status()?;
        let nodes: Vec<NodeView> =
            status["nodes"].as_array().into_iter().flatten().filter_map(node_seen).collect();
        if nodes.is_empty() {
            Err(BenchError::refused("status --json", "names no daemon"))
        } else {
            Ok(nodes)
        }
    }

    /// Number of requests of clients that its nodes have served.
    pub fn requests(&self) -> BenchResult<u64> {
        let status = self.status()?;
        let nodes = status["nodes"].as_array().into_iter().flatten();
        Ok(nodes.map(requests_of).sum())
    }

    /// Number of times that its nodes asked each other for an operation.
    pub fn calls(&self, operation: &str) -> BenchResult<u64> {
        let status = self.status()?;
        let nodes = status["nodes"].as_array().into_iter().flatten();
        let all = nodes.flat_map(|node| node["operations"].as_array().into_iter().flatten());
        let those =
            all.filter(|counted| counted["name"].as_str().is_some_and(|name| name.starts_with(operation)));
        Ok(those.filter_map(|counted| counted["calls"].as_u64()).sum())
    }

    fn status(&self) -> BenchResult<Value> {
        parse("status --json", &run(self.host, &["status", "--json", "--name", &self.name])?)
    }

    /// Numbers of its daemons' processes.
    pub fn daemons(&self) -> BenchResult<Vec<u32>> {
        Ok(self.nodes()?.iter().map(|node| node.pid).collect())
    }

    /// Takes it down and says how long that took as the caller sees it, in nanoseconds.
    ///
    /// # Errors
    /// What `down` says, also that something is left.
    pub fn down(mut self, host: &Host<'_>) -> BenchResult<u64> {
        let start = clock::now_ns();
        run(host, &["down", "--discard", "--name", &self.name])?;
        // Set only after it has ended well: one that could not be taken down is tried again with this value.
        self.life = FormationStatus::Down;
        Ok(clock::now_ns().saturating_sub(start))
    }
}

impl Drop for Formation<'_, '_> {
    fn drop(&mut self) {
        if self.life == FormationStatus::Down {
            return;
        }
        let mut command = Command::new(&self.host.program);
        command.args(["down", "--discard", "--name", &self.name]).stdin(Stdio::null()).stdout(Stdio::null());
        if self.life == FormationStatus::Perhaps {
            let _not_there_most_likely = command.stderr(Stdio::null()).status();
            return;
        }
        match command.status() {
            Ok(status) if status.success() => {}
            Ok(status) => log::error!("formation {}: could not be taken down ({status})", self.name),
            Err(error) => log::error!(why:% = error; "formation {}: could not be taken down", self.name),
        }
    }
}

/// A node that has a process.
fn node_seen(node: &Value) -> Option<NodeView> {
    let pid = u32::try_from(node["pid"].as_u64()?).ok()?;
    Some(NodeView { pid, records: node["records"].as_u64().unwrap_or(0) })
}

/// Requests of clients that a node has served.
fn requests_of(node: &Value) -> u64 {
    let operations = node["operations"].as_array().into_iter().flatten();
    let work = operations.filter(|operation| !NO_WORK.iter().any(|name| operation["name"] == *name));
    work.filter_map(|operation| operation["client"].as_u64()).sum()
}

/// Steps in `phases` or `steps`: objects with a name and microseconds.
fn steps(said: &Value) -> Vec<(String, f64)> {
    let list = ["steps", "phases"].iter().find_map(|key| said[*key].as_array());
    let step = |step: &Value| Some((step["name"].as_str()?.to_owned(), step["us"].as_f64()? / 1000.0));
    list.into_iter().flatten().filter_map(step).collect()
}

fn parse(what: &str, output: &str) -> BenchResult<Value> {
    serde_json::from_str(output).map_err(|error| BenchError::refused(format_args!("bivouac {what}"), error))
}

/// Runs the binary with arguments to its end; asks it to end if somebody asks us. What it writes is returned.
fn run(host: &Host<'_>, arguments: &[&str]) -> BenchResult<String> {
    let what = format!("bivouac {}", arguments.first().copied().unwrap_or_default());
    command::run(host, &what, Command::new(&host.program).args(arguments))?.succeeded(&what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Interrupts;
    use crate::tests::host;
    use serde_json::json;

    /// A program that takes the commands of the binary and keeps a list of them.
    fn pretender(dir: &std::path::Path, body: &str) -> Host<'static> {
        let program = dir.join("pretender");
        let script = format!("#!/bin/sh\necho \"$@\" >> {}/list\n{body}\n", dir.display());
        // By another process: a program that any process, forked meanwhile, has open for writing cannot be run.
        let write = ["-c", r#"printf %s "$1" > "$2" && chmod 700 "$2""#, "sh", &script];
        assert!(Command::new("sh").args(write).arg(&program).status().unwrap().success());
        Host { program, ..host() }
    }

    fn list(dir: &std::path::Path) -> Vec<String> {
        std::fs::read_to_string(dir.join("list")).unwrap().lines().map(str::to_owned).collect()
    }

    const ANSWERS: &str = r#"case $1 in
up) echo '{"name": "x", "mounts": [{"dir": "/m/0"}, {"dir": "/m/1"}], "steps": [{"name": "daemons", "us": 1500}]}';;
status) echo '{"nodes": [{"pid": 17, "records": 5}, {"pid": 18}]}';;
esac"#;

    #[test]
    fn a_formation_is_started_asked_and_stopped_by_commands() {
        let dir = tempfile::tempdir().unwrap();
        let host = pretender(dir.path(), ANSWERS);
        let formation = Formation::up(&host, &["--nodes", "2"]).unwrap();
        let name = formation.name().to_owned();
        assert_eq!(formation.steps(), [("daemons".to_owned(), 1.5)]);
        assert_eq!(formation.daemons(), Ok(vec![17, 18]));
        assert_eq!(formation.mounts(), [PathBuf::from("/m/0"), PathBuf::from("/m/1")]);
        assert!(formation.up_ns() > 0);
        assert!(formation.down(&host).unwrap() > 0);
        let expected = [
            format!("up --json --owner {} --name {name} --nodes 2", std::process::id()),
            format!("status --json --name {name}"),
            format!("down --discard --name {name}"),
        ];
        assert_eq!(list(dir.path()), expected);
    }

    #[test]
    fn a_forgotten_formation_is_taken_down() {
        let dir = tempfile::tempdir().unwrap();
        let host = pretender(dir.path(), ANSWERS);
        drop(Formation::up(&host, &[]).unwrap());
        assert!(list(dir.path())[1].starts_with("down --discard --name bench-"));
    }

    #[test]
    fn what_a_command_says_is_passed_on() {
        let dir = tempfile::tempdir().unwrap();
        let host = pretender(dir.path(), "echo noise >&2; echo 'port 7: is in use' >&2; exit 3");
        let error = Formation::up(&host, &[]).err().unwrap().to_string();
        assert!(
            error.starts_with("bivouac up: ended with") && error.ends_with(": port 7: is in use"),
            "{error}"
        );
        assert_eq!(list(dir.path()).len(), 1, "nothing to take down");
    }

    #[test]
    fn an_interrupted_start_is_taken_down_if_it_succeeded() {
        let dir = tempfile::tempdir().unwrap();
        let caught = Interrupts::of(&[signal_hook::consts::SIGUSR2]).unwrap();
        let host = Host { interrupts: caught, ..pretender(dir.path(), ANSWERS) };
        signal_hook::low_level::raise(signal_hook::consts::SIGUSR2).unwrap();
        assert_eq!(Formation::up(&host, &[]).err().unwrap().kind(), Kind::Interrupted);
        // The pretender may have been ended before it could write down that it was asked to start.
        assert!(list(dir.path()).iter().any(|line| line.starts_with("down --discard --name bench-")));
    }

    #[test]
    fn what_is_no_json_is_refused_and_taken_down() {
        let dir = tempfile::tempdir().unwrap();
        let host = pretender(dir.path(), "echo up and running");
        let error = Formation::up(&host, &[]).err().unwrap().to_string();
        assert!(error.starts_with("bivouac up --json: "), "{error}");
        assert_eq!(list(dir.path()).len(), 2);
    }

    #[test]
    fn what_clients_asked_for_is_counted() {
        let node = json!({"operations": [
            {"name": "Make", "client": 3, "peer": 9},
            {"name": "Lookup", "client": 4},
            {"name": "Status", "client": 7},
            {"name": "Read"},
        ]});
        assert_eq!((requests_of(&node), requests_of(&json!({"id": 1}))), (7, 0));
    }

    #[test]
    fn steps_are_read_as_far_as_they_are_there() {
        assert_eq!(
            steps(&json!({"phases": [{"name": "a", "us": 7}, {"name": "b"}, 3]})),
            [("a".to_owned(), 0.007)]
        );
        assert_eq!(steps(&json!(null)), []);
    }
}
