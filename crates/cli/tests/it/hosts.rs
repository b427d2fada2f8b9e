//! A formation over several hosts, each played by a runtime directory of its own: what needs neither root nor
//! namespaces. On virtual nodes, with ssh, mounts and cut networks: tests/cluster.

use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::harness::library::{create, ctx, library, read, write};
use crate::harness::{
    Place, Said, answered_status, can_mount, is_alive, kill_with_standby, signal, standby_of, stop,
    try_to_signal, wait_for_standby_of, wait_until,
};
use crate::http::Server;
use bivouac_client::NewInode;
use bivouac_launch::{FormationState, StateDir};
use bivouac_types::{Ino, mode};
use rustix::process::Signal;
use serde_json::Value;

/// For hosts whose nodes may stand still for a while, on a busy machine, and are not to be dead to each other then.
const PATIENT: [&str; 2] = ["--dead-after", "60s"];

/// Hosts that are directories.
pub struct Hosts {
    pub place: Place,
    pub name: String,
}

impl Hosts {
    pub fn new() -> Hosts {
        let hosts = Hosts { place: Place::new(), name: Place::unique_name() };
        for host in ["a", "b", "c"] {
            std::fs::create_dir(hosts.runtime(host)).unwrap();
        }
        hosts
    }

    pub fn runtime(&self, host: &str) -> PathBuf {
        self.place.path().join(host)
    }

    /// Starts them by a shell, `before` the program.
    pub fn up(&self, hosts: &str, before: &str, options: &[&str]) -> Said {
        let base = self.place.path().display();
        let launch = format!("{before} XDG_RUNTIME_DIR={base}/{{host}} exec {{args}}");
        let fixed = ["up", "--name", &self.name, "--hosts", hosts, "--launch", &launch, "--no-mount"];
        let arguments: Vec<&str> = fixed.into_iter().chain(options.iter().copied()).collect();
        let output = self.place.command(&arguments).current_dir(self.place.path()).output().unwrap();
        crate::harness::said(&output)
    }

    /// Starts them with a server for HTTP each: the servers, with a key for everything.
    pub fn served(&self, hosts: &str) -> Vec<Server> {
        // The first host is the one where the command runs.
        std::fs::remove_dir(self.runtime("a")).unwrap();
        std::os::unix::fs::symlink(".", self.runtime("a")).unwrap();
        let said = self.up(hosts, "", &[&PATIENT[..], &["--http", "0", "--http-plain"]].concat()).succeeds();
        let key = self.place.run(&["key", "create", "--name", &self.name]).out.trim().to_owned();
        let pages = said.out.lines().filter_map(|line| line.strip_prefix("to look at it: http://"));
        let server =
            |page: &str| Server { address: page.split_once('/').unwrap().0.into(), key: key.clone() };
        pages.map(server).collect()
    }

    /// The state of the whole, as the keeper on the host that started it has written it down.
    pub fn whole(&self) -> FormationState {
        let dir = self.place.path().join(format!("bivouac/{}+hosts", self.name));
        StateDir::at(dir).read().unwrap().unwrap()
    }

    /// Runs a command by which hosts join or leave.
    pub fn change(&self, verb: &str, arguments: &[&str]) -> Said {
        self.place.run(&[&[verb, "--name", &self.name], arguments].concat())
    }

    /// Starts such a command, which waits.
    pub fn start_change(&self, verb: &str, hosts: &str) -> Child {
        let mut command = self.place.command(&[verb, "--name", &self.name, "--hosts", hosts, "--json"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// `status --json`, as [`answered_status`] has it. While one keeper follows another there is none for a moment.
    pub fn status(&self) -> Value {
        let mut status = Value::Null;
        wait_until("the keeper answers", || {
            status = answered_status(|| self.place.run(&["status", "--name", &self.name, "--json"]));
            status["state"].is_string()
        });
        status
    }

    pub fn down(&self) -> Said {
        self.place.run(&["down", "--name", &self.name, "--yes"])
    }

    fn are_empty(&self) -> bool {
        ["a", "b", "c"].iter().all(|host| !self.runtime(host).join("bivouac").exists())
    }

    /// The keeper, once it has a standby.
    pub fn keeper_with_standby(&self) -> u64 {
        let keeper = self.keeper();
        wait_for_standby_of(keeper);
        keeper
    }

    /// Kills the keeper once it has a standby, and waits until that is the keeper.
    pub fn kill_keeper(&self, keeper: u64) {
        wait_for_standby_of(keeper);
        signal(keeper, Signal::KILL);
        wait_until("another one is the keeper", || self.keeper() != keeper && is_alive(self.keeper()));
    }

    pub fn keeper(&self) -> u64 {
        let state = self.place.path().join(format!("bivouac/{}+hosts/state.json", self.name));
        let state: Value = serde_json::from_slice(&std::fs::read(state).unwrap()).unwrap();
        state["supervisor"]["pid"].as_u64().unwrap()
    }
}

/// What runs on a host, by numbers.
struct Processes {
    agent: u64,
    supervisor: u64,
    daemon: u64,
}

impl Hosts {
    fn processes(&self, host: &str) -> Processes {
        let state = self.runtime(host).join("bivouac").join(&self.name).join("state.json");
        let state: Value = serde_json::from_slice(&std::fs::read(state).unwrap()).unwrap();
        let supervisor = state["supervisor"]["pid"].as_u64().unwrap();
        // The part's supervisor is held up by its part: whoever started it.
        let stat = std::fs::read_to_string(format!("/proc/{supervisor}/stat")).unwrap();
        let agent = stat.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap().parse().unwrap();
        Processes { agent, supervisor, daemon: state["nodes"][0]["process"]["pid"].as_u64().unwrap() }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.down();
    }
}

fn texts<'a>(report: &'a Value, list: &str, field: &str) -> Vec<&'a str> {
    report[list].as_array().unwrap().iter().map(|item| item[field].as_str().unwrap()).collect()
}

/// S99.
#[test]
fn nodes_of_a_host_share_a_process_and_talk_to_those_of_others() {
    let hosts = Hosts::new();
    hosts.up("a:3,b:4", "", &[&PATIENT[..], &["--in-process", "--stripe", "4096"]].concat()).succeeds();
    let status = hosts.status();
    let nodes = status["nodes"].as_array().unwrap();
    assert!(nodes.iter().all(|node| node["state"] == "ready"), "{status}");
    let pids: Vec<u64> = nodes.iter().map(|node| node["pid"].as_u64().unwrap()).collect();
    assert!(
        pids[..3].iter().all(|pid| *pid == pids[0]) && pids[3..].iter().all(|pid| *pid == pids[3]),
        "{pids:?}"
    );
    assert_ne!(pids[0], pids[3], "one process on each host");
    // Seen from each host: its own nodes over their sockets, the others over the network.
    let [a, b] = ["a", "b"].map(|host| library(&hosts.runtime(host).join("bivouac").join(&hosts.name)));
    let content: Vec<u8> = (0..100_000).map(|at| (at / 4096 * 31 + at * 7) as u8).collect();
    let new = NewInode { mode: mode::DIR | 0o755, rdev: 0, target: b"" };
    for number in 0..30 {
        // Its inode is on any node, made by the one that has the root.
        a.mknod(&ctx(&a), Ino::ROOT, format!("d{number}").as_bytes(), &new).unwrap();
        let (name, part) = (format!("f{number}"), &content[number * 1000..]);
        write(&b, create(&b, &name), 0, part);
    }
    // A rename from directory to directory needs the nodes of both.
    for number in 0..30 {
        let dir = b.lookup(Ino::ROOT, format!("d{number}").as_bytes()).unwrap().ino;
        b.rename(&ctx(&b), Ino::ROOT, format!("f{number}").as_bytes(), dir, b"g", 0).unwrap();
    }
    signal(pids[0], Signal::KILL);
    for number in 0..30 {
        let file = b.resolve(format!("d{number}/g").as_bytes()).unwrap();
        assert_eq!(read(&b, file.ino, 0, 100_000), content[number * 1000..], "{number}");
    }
    drop((a, b));
    // The host's report of the deaths may come later than its nodes serve again.
    let mut deaths: Vec<u64> = Vec::new();
    wait_until("the killed ones are back", || {
        let status = hosts.status();
        let nodes = status["nodes"].as_array().unwrap().iter();
        deaths = nodes.map(|node| node["deaths"].as_u64().unwrap()).collect();
        status["state"] == "running" && deaths.iter().sum::<u64>() >= 3
    });
    assert_eq!(deaths, [1, 1, 1, 0, 0, 0, 0]);
    assert!(hosts.down().out.contains("nothing left"));
    assert!(hosts.are_empty());
}

#[test]
fn hosts_come_together_and_go() {
    let hosts = Hosts::new();
    hosts.up("a,b:2", "", &[]).succeeds();
    let report = hosts.status();
    assert_eq!(report["state"], "running");
    assert_eq!(texts(&report, "hosts", "name"), ["a", "b"]);
    assert_eq!(texts(&report, "nodes", "host"), ["a", "b", "b"]);
    assert_eq!(texts(&report, "nodes", "state"), ["ready"; 3]);
    // Each has its part, and knows that it is one.
    let part =
        hosts.place.command(&["down", "--yes"]).env("XDG_RUNTIME_DIR", hosts.runtime("b")).output().unwrap();
    let refusal = String::from_utf8(part.stderr).unwrap();
    assert!(refusal.contains("was started elsewhere"), "{refusal}");
    hosts.place.run(&["fsck", &hosts.name]).succeeds();
    hosts.down().prints(&["down on all its hosts; nothing left: 0 processes"]);
    assert!(hosts.are_empty() && hosts.place.is_empty());
}

#[test]
fn who_does_not_come_is_named() {
    let hosts = Hosts::new();
    let trouble = "if [ {host} = b ]; then echo no room for it >&2; exit 3; fi;";
    hosts
        .up("a,b,c", trouble, &[])
        .fails(1, &["only 2 of 3 nodes are there, 3 are wanted:", "host b: no room for it (exit code 3)"]);
    assert!(hosts.are_empty() && hosts.place.is_empty());
    hosts.up("a,b,c", trouble, &["--min-nodes", "2"]).succeeds();
    let report = hosts.status();
    assert_eq!(report["state"], "degraded");
    assert_eq!(texts(&report, "hosts", "state"), ["up", "missing", "up"]);
    assert_eq!(texts(&report, "nodes", "host"), ["a", "c"]);
}

/// S367.
#[test]
fn a_keeper_that_is_killed_is_followed_by_its_standby() {
    let hosts = Hosts::new();
    assert_eq!(hosts.up("a,b", "", &PATIENT).code, 0);
    let a = library(&hosts.runtime("a").join("bivouac").join(&hosts.name));
    let file = create(&a, "kept");
    write(&a, file, 0, b"before");
    for turn in 0..3 {
        let keeper = hosts.keeper_with_standby();
        if turn == 1 {
            let standby = wait_for_standby_of(keeper);
            // It may be replaced just then.
            try_to_signal(standby, Signal::KILL);
            wait_until("it has another standby", || standby_of(keeper).is_some_and(|now| now != standby));
        }
        signal(keeper, Signal::KILL);
        wait_until("another one is the keeper", || hosts.keeper() != keeper && is_alive(hosts.keeper()));
        // Told by the hosts, over connections that they have made anew.
        wait_until("all is well", || {
            let report = hosts.status();
            let messages = report["hosts"].as_array().unwrap();
            report["state"] == "running" && messages.iter().all(|host| host["message"].is_null())
        });
        write(&a, file, 6 * turn, b"after ");
    }
    let b = library(&hosts.runtime("b").join("bivouac").join(&hosts.name));
    assert_eq!(read(&b, file, 0, 100), b"after after after ");
    drop((a, b));
    hosts.down().prints(&["down on all its hosts; nothing left: 0 processes"]);
    assert!(hosts.are_empty() && hosts.place.is_empty());
}

/// S367: a command that ends with its formation does not notice, and the formation ends with it.
#[test]
fn the_standby_of_a_keeper_knows_whose_formation_it_is() {
    if !can_mount() {
        return;
    }
    let hosts = Hosts::new();
    let base = hosts.place.path().display();
    let launch = format!("XDG_RUNTIME_DIR={base}/{{host}} exec {{args}}");
    let fixed = ["run", "--name", &hosts.name, "--hosts", "a", "--launch", &launch];
    let mut command = hosts.place.command(&fixed);
    let run = command.args(["--", "sh", "-c", "touch begun; exec sleep 1000"]);
    let mut run = run.current_dir(hosts.place.path()).spawn().unwrap();
    let begun = hosts.place.path().join("begun");
    wait_until("the command runs", || begun.exists());
    let keeper = hosts.keeper_with_standby();
    signal(keeper, Signal::KILL);
    wait_until("another one is the keeper", || hosts.keeper() != keeper && is_alive(hosts.keeper()));
    let keeper = hosts.keeper();
    run.kill().unwrap();
    run.wait().unwrap();
    wait_until("nothing is left", || hosts.are_empty() && !is_alive(keeper) && hosts.place.is_empty());
}

/// S368.
#[test]
fn without_their_keeper_and_its_standby_hosts_leave_nothing() {
    let hosts = Hosts::new();
    assert_eq!(hosts.up("a,b", "", &[]).code, 0);
    kill_with_standby(hosts.keeper_with_standby());
    wait_until("the parts are gone", || hosts.are_empty());
    hosts.down().prints(&["host b: takes its part down by itself, unless all was killed there as well"]);
    assert!(hosts.place.is_empty());
}

#[test]
fn a_keeper_that_is_told_to_end_says_what_is_lost() {
    let hosts = Hosts::new();
    assert_eq!(hosts.up("a,b", "", &["--out", "results:/tmp/never"]).code, 0);
    signal(hosts.keeper(), Signal::TERM);
    wait_until("the parts are gone", || hosts.are_empty());
    let file = hosts.place.path().join(format!("bivouac-{}.txt", hosts.name));
    let said = std::fs::read_to_string(file).unwrap();
    assert!(said.contains("on a, b ended: signal 15") && said.contains("/results to /tmp/never"), "{said}");
}

#[test]
fn a_killed_part_leaves_nothing_and_the_others_go_on() {
    let hosts = Hosts::new();
    assert_eq!(hosts.up("a,b", "", &[]).code, 0);
    signal(hosts.processes("b").agent, Signal::KILL);
    wait_until("b has left", || !hosts.runtime("b").join("bivouac").exists());
    wait_until("the keeper knows", || {
        let report = hosts.status();
        texts(&report, "hosts", "state") == ["up", "lost"]
            && texts(&report, "nodes", "state") == ["ready", "failed"]
    });
    assert!(hosts.down().out.contains("down on all its hosts; nothing left"));
    assert!(hosts.are_empty());
}

/// S240.
#[test]
fn whichever_process_of_a_host_is_killed_nothing_is_left_there() {
    type Victims = fn(&Processes) -> Vec<u64>;
    let cases: [(&str, Victims); 2] = [
        ("its agent", |host| vec![host.agent]),
        ("its agent and its daemon", |host| vec![host.agent, host.daemon]),
    ];
    for (what, victims) in cases {
        let hosts = Hosts::new();
        assert_eq!(hosts.up("a,b", "", &[]).code, 0);
        let processes = hosts.processes("b");
        let Processes { agent, supervisor, daemon } = processes;
        for pid in victims(&processes) {
            // The earlier one's death may have ended it already.
            let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
            let _gone_meanwhile = rustix::process::kill_process(pid, Signal::KILL);
        }
        let left = hosts.runtime("b").join("bivouac");
        wait_until(what, || !left.exists() && ![agent, supervisor, daemon].into_iter().any(is_alive));
        wait_until("the keeper knows", || texts(&hosts.status(), "hosts", "state") == ["up", "lost"]);
        assert!(hosts.down().out.contains("down on all its hosts; nothing left"), "{what}");
        assert!(hosts.are_empty() && hosts.place.is_empty(), "{what}");
    }
}

/// S386: as if all of it had been killed.
#[test]
fn who_kills_supervisor_and_agent_keeps_what_is_on_the_volumes() {
    let hosts = Hosts::new();
    assert_eq!(hosts.up("a,b", "", &[]).code, 0);
    let Processes { agent, supervisor, daemon } = hosts.processes("b");
    wait_for_standby_of(supervisor);
    // Neither it nor its standby is to see the agent's end before its own.
    stop(supervisor);
    [agent, supervisor].into_iter().for_each(|pid| signal(pid, Signal::KILL));
    let dir = bivouac_launch::StateDir::at(hosts.runtime("b").join("bivouac").join(&hosts.name));
    wait_until("all of it has ended", || {
        ![agent, supervisor, daemon].into_iter().any(is_alive) && !dir.is_held()
    });
    let state = hosts.runtime("b").join("bivouac").join(&hosts.name).join("state.json");
    let state: Value = serde_json::from_slice(&std::fs::read(state).unwrap()).unwrap();
    let volume = PathBuf::from(state["nodes"][0]["volumes"][0]["path"].as_str().unwrap());
    assert!(volume.join("bivouac-volume").exists(), "{}", volume.display());
    wait_until("the keeper knows", || texts(&hosts.status(), "hosts", "state") == ["up", "lost"]);
    hosts.down();
    let mut down = hosts.place.command(&["down", "--name", &hosts.name, "--discard"]);
    let said = down.env("XDG_RUNTIME_DIR", hosts.runtime("b")).output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    assert!(hosts.are_empty() && hosts.place.is_empty() && !volume.exists());
}

/// S386: nobody says of hosts on which all was killed that they have nothing.
#[test]
fn what_killed_hosts_have_is_not_said_to_be_nothing() {
    let hosts = Hosts::new();
    assert_eq!(hosts.up("a,b", "", &[]).code, 0);
    let parts = ["a", "b"].map(|host| {
        let Processes { agent, supervisor, daemon } = hosts.processes(host);
        wait_for_standby_of(supervisor);
        [supervisor, agent, daemon]
    });
    // Stopped first: none of them notices the end of another one, and the keeper loses none of them.
    let signal_all = |signal| parts.iter().flatten().for_each(|pid| try_to_signal(*pid, signal));
    signal_all(Signal::STOP);
    kill_with_standby(hosts.keeper_with_standby());
    signal_all(Signal::KILL);
    let dirs = ["a", "b"]
        .map(|host| bivouac_launch::StateDir::at(hosts.runtime(host).join("bivouac").join(&hosts.name)));
    wait_until("all have ended", || !dirs.iter().any(bivouac_launch::StateDir::is_held));
    let said = hosts.place.run(&["down", "--name", &hosts.name, "--discard"]);
    assert!(said.code == 1 && said.out.contains("no host says what it has\nhost a: "), "{said:?}");
    assert!(!said.out.contains("0 files"), "{}", said.out);
    for host in ["a", "b"] {
        let mut down = hosts.place.command(&["down", "--name", &hosts.name, "--discard"]);
        let said = down.env("XDG_RUNTIME_DIR", hosts.runtime(host)).output().unwrap();
        assert!(said.status.success(), "{host}: {}", String::from_utf8_lossy(&said.stderr));
    }
    assert!(hosts.are_empty() && hosts.place.is_empty());
}

/// S240.
#[test]
fn a_host_that_is_killed_while_it_waits_for_others_leaves_nothing() {
    let hosts = Hosts::new();
    // The other one does not come before it is told to.
    let go = hosts.place.path().join("go");
    let before =
        format!("if [ {{host}} = a ]; then while [ ! -e {} ]; do sleep 0.01; done; fi;", go.display());
    let base = hosts.place.path().display();
    let launch = format!("{before} XDG_RUNTIME_DIR={base}/{{host}} exec {{args}}");
    let mut up = hosts.place.command(&[
        "up",
        "--name",
        &hosts.name,
        "--hosts",
        "a,b",
        "--launch",
        &launch,
        "--no-mount",
    ]);
    let up = up.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let state = hosts.runtime("b").join("bivouac").join(&hosts.name).join("state.json");
    let mut owner = None;
    wait_until("b waits for a", || {
        let state = std::fs::read(&state).unwrap_or_default();
        let state: Value = serde_json::from_slice(&state).unwrap_or_default();
        owner = state["owner"]["pid"].as_u64().filter(|_| state["supervisor"]["pid"].is_u64());
        owner.is_some()
    });
    signal(owner.unwrap(), Signal::KILL);
    wait_until("b has left nothing", || !hosts.runtime("b").join("bivouac").exists());
    std::fs::write(go, "").unwrap();
    let (succeeded, text) = words_of(up);
    assert!(!succeeded && text.contains("host b: "), "{text}");
    assert!(hosts.are_empty() && hosts.place.is_empty());
}

#[test]
fn strange_tickets_are_refused() {
    let place = Place::new();
    for ticket in ["", "bivouac-ticket {}", "hello"] {
        let output = place.command(&["join"]).env("BIVOUAC_TICKET", ticket).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("got no ticket"), "{text}");
    }
    let other = "bivouac-ticket {\"release\":\"99.0.0\"}";
    let output = place.command(&["join"]).env("BIVOUAC_TICKET", other).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("version: is bivouac") && text.contains("99.0.0"), "{text}");
}

/// A formation file with one partition.
fn file_with_partition(hosts: &Hosts, nodes: &str) -> String {
    let path = hosts.place.path().join("job.toml");
    std::fs::write(&path, format!("[[partition]]\npath = \"/p\"\nnodes = \"{nodes}\"\n")).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn partitions_of_a_formation_file_are_made_over_hosts_or_nothing_is_left() {
    let hosts = Hosts::new();
    let said = hosts.up("a,b", "", &["--config", &file_with_partition(&hosts, "9")]);
    assert!(said.code != 0 && said.err.contains('9'), "{said:?}");
    assert!(hosts.are_empty());
    hosts.up("a,b", "", &["--config", &file_with_partition(&hosts, "1,0")]).succeeds();
    assert_eq!(texts(&hosts.status(), "partitions", "path"), ["/p"]);
    assert!(hosts.down().out.contains("down on all its hosts; nothing left"));
    assert!(hosts.are_empty());
}

#[test]
fn promises_are_kept_of_the_formation_that_made_them() {
    let hosts = Hosts::new();
    let promise = ["--out", "x:/tmp/never"];
    let local = ["up", "--name", &hosts.name, "--nodes", "1", "--no-mount", promise[0], promise[1]];
    assert_eq!(hosts.place.run(&local).code, 0);
    // Another formation of the same name, over other hosts, promises nothing.
    hosts.up("a,b", "", &[]).succeeds();
    assert!(hosts.down().out.contains("down on all its hosts; nothing left"));
    hosts.down().fails(3, &["nowhere else"]);
    assert_eq!(hosts.place.run(&["down", "--name", &hosts.name, "--discard"]).code, 0);
    hosts.up("a,b", "", &promise).succeeds();
    hosts.down().fails(3, &["nowhere else"]);
    hosts
        .place
        .run(&["down", "--name", &hosts.name, "--discard"])
        .prints(&["down on all its hosts; nothing left"]);
    assert!(hosts.are_empty() && hosts.place.is_empty());
}

/// A port that nobody listens at, and that nobody gets who asks for any, as all that is started meanwhile does.
fn free_port() -> u16 {
    static TURNS: AtomicU32 = AtomicU32::new(0);
    let given = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let given: u32 = given.split_whitespace().next().unwrap().parse().unwrap();
    loop {
        let turn =
            std::process::id().wrapping_mul(PORTS_APART).wrapping_add(TURNS.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(PORT_MIN + turn % (given - PORT_MIN)).unwrap();
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// What one of several hosts runs that come by themselves, to meet at this one.
fn come(hosts: &Hosts, host: &str, port: u16, secret: &str, options: &[&str]) -> std::process::Child {
    let file = hosts.place.path().join(format!("secret-{host}"));
    std::fs::write(&file, secret).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let meet = format!("127.0.0.1:{port}");
    let fixed =
        ["up", "--name", &hosts.name, "--hosts", "a,b,c", "--no-mount", "--meet", &meet, "--meet-secret"];
    let mut command = hosts.place.command(&fixed);
    command.arg(file).args(options).env("XDG_RUNTIME_DIR", hosts.runtime(host)).env("SLURMD_NODENAME", host);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
}

fn words_of(child: std::process::Child) -> (bool, String) {
    let output = child.wait_with_output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

/// Ports below belong to the system.
const PORT_MIN: u32 = 1024;
/// Between the first ports of two runs, one after the other.
const PORTS_APART: u32 = 7919;
const SHARED: &str = "known to all of them, and nobody else";

#[test]
fn hosts_that_come_by_themselves_meet() {
    let hosts = Hosts::new();
    let port = free_port();
    // Who comes before the first one waits for it.
    let all = ["c", "b", "a"].map(|host| come(&hosts, host, port, SHARED, &[]));
    for child in all {
        let (succeeded, text) = words_of(child);
        assert!(succeeded && text.contains("is up"), "{text}");
    }
    let at = |host: &str, arguments: &[&str]| {
        let output =
            hosts.place.command(arguments).env("XDG_RUNTIME_DIR", hosts.runtime(host)).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let report = answered_status(|| {
        let mut status = hosts.place.command(&["status", "--json"]);
        crate::harness::said(&status.env("XDG_RUNTIME_DIR", hosts.runtime("a")).output().unwrap())
    });
    assert_eq!(texts(&report, "hosts", "name"), ["a", "b", "c"]);
    assert_eq!(texts(&report, "nodes", "state"), ["ready"; 3]);
    assert!(at("b", &["down"]).contains("was started elsewhere"));
    assert!(at("a", &["down", "--yes"]).contains("is down on all its hosts; nothing left: 0 processes"));
    assert!(hosts.are_empty());
}

#[test]
fn who_does_not_know_the_secret_does_not_meet_the_others() {
    let hosts = Hosts::new();
    let port = free_port();
    let stranger = come(&hosts, "c", port, "what somebody else made up", &["--start-timeout", "1s"]);
    let others = ["a", "b"].map(|host| come(&hosts, host, port, SHARED, &["--start-timeout", "10s"]));
    let (succeeded, text) = words_of(stranger);
    assert!(!succeeded && text.contains("the host that gathers the others"), "{text}");
    let [first, second] = others.map(words_of);
    assert!(!first.0 && first.1.contains("host c: did not report within 10 s"), "{}", first.1);
    assert!(!second.0, "{}", second.1);
    wait_until("nothing is left", || hosts.are_empty());
}

/// S283.
#[test]
fn meetings_that_make_no_sense_are_refused() {
    let hosts = Hosts::new();
    let shown = hosts.place.path().join("shown");
    std::fs::write(&shown, SHARED).unwrap();
    std::fs::set_permissions(&shown, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
    let mut command = hosts.place.command(&["up", "--hosts", "a,b", "--meet", "7", "--meet-secret"]);
    let output = command.arg(&shown).env("SLURMD_NODENAME", "a").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2), "{text}");
    assert!(text.contains("shown") && text.contains("by others (mode 640)"), "{text}");
    let (succeeded, text) = words_of(come(&hosts, "a", 7, "short", &[]));
    assert!(!succeeded && text.contains("can be guessed"), "{text}");
    let stranger = come(&hosts, "a", 7, SHARED, &["--hosts", "x,y"]);
    assert!(!words_of(stranger).0);
    let mut unnamed =
        hosts.place.command(&["run", "--hosts", "a,b", "--meet", "7", "--meet-secret", "f", "--", "true"]);
    let output = unnamed.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && text.contains("`run` has one"), "{text}");
}

/// S470. Also where only one host's part is, files, processes and jobs of all hosts are shown.
#[test]
fn top_shows_what_is_busy_on_every_host() {
    let hosts = Hosts::new();
    // The first host is the one where the command runs.
    std::fs::remove_dir(hosts.runtime("a")).unwrap();
    std::os::unix::fs::symlink(".", hosts.runtime("a")).unwrap();
    hosts.up("a:1,b:1", "", &[]).succeeds();
    let on_b = |arguments: &[&str]| {
        let mut command = hosts.place.command(arguments);
        command.env("XDG_RUNTIME_DIR", hosts.runtime("b"));
        command
    };
    let [input, mount] = ["input", "mounted"].map(|name| hosts.place.path().join(name));
    std::fs::write(&input, vec![7; 64 << 20]).unwrap();
    let mounted = on_b(&["mount", "--name", &hosts.name, mount.to_str().unwrap()]).output().unwrap();
    // Where nothing can be mounted, nothing is staged.
    if mounted.status.success() {
        let stage =
            ["stage", "in", "--name", &hosts.name, input.to_str().unwrap(), "/staged", "--limit", "2m"];
        let mut stage = on_b(&stage).stderr(std::process::Stdio::null()).spawn().unwrap();
        let arguments = ["top", "--name", &hosts.name, "--once", "--json", "--every", "500ms"];
        let mut on_a = hosts.place.command(&arguments);
        for command in [&mut on_a, &mut on_b(&arguments)] {
            let mut look = || -> Value {
                let said = crate::harness::said(&command.output().unwrap()).succeeds();
                serde_json::from_str(&said.out).unwrap()
            };
            let busy = |of: &Value| {
                let all = of["busy_processes"].as_array().unwrap();
                all.iter().find(|one| one["program"] == "bivouac").cloned()
            };
            let seen = std::iter::repeat_with(&mut look).take(20).find(|seen| busy(seen).is_some()).unwrap();
            let node_of_b = seen["nodes"].as_array().unwrap().iter().find(|node| node["id"] == 1).unwrap();
            assert_eq!(busy(&seen).unwrap()["host"], node_of_b["host"], "{seen}");
            assert_eq!(seen["stages"].as_array().unwrap().len(), 1, "each job once: {seen}");
            assert_eq!(seen["stages"][0]["host"], node_of_b["host"], "{seen}");
        }
        stage.kill().unwrap();
        stage.wait().unwrap();
    }
    hosts.down().succeeds();
}

/// S487. The page is of all nodes on each host; a host that does not answer is shown as such, and the others go on.
#[test]
fn the_page_is_of_all_nodes_on_every_host() {
    let hosts = Hosts::new();
    let servers = hosts.served("a:2,b:1");
    let part = |server: &Server, name: &str| -> Value {
        serde_json::from_slice(&server.get(&format!("/.bivouac-page/{name}"))).unwrap()
    };
    assert_eq!(servers.len(), 2);
    let on_b = |arguments: &[&str]| {
        let mut command = hosts.place.command(arguments);
        crate::harness::said(&command.env("XDG_RUNTIME_DIR", hosts.runtime("b")).output().unwrap())
    };
    let [input, mount] = ["input", "mounted"].map(|name| hosts.place.path().join(name));
    std::fs::write(&input, vec![7; 10_000]).unwrap();
    // Where nothing can be mounted, nothing is staged.
    let is_mounted = on_b(&["mount", "--name", &hosts.name, mount.to_str().unwrap()]).code == 0;
    if is_mounted {
        on_b(&["stage", "in", "--name", &hosts.name, input.to_str().unwrap(), "/staged"]).succeeds();
    }
    for server in &servers {
        // A node that is kept from running for a while does not answer in time.
        let mut status = Value::Null;
        wait_until("all nodes answer", || {
            status = part(server, "status.json");
            status["nodes"].as_array().unwrap().iter().all(|node| node["state"] == "ready")
        });
        let nodes = status["nodes"].as_array().unwrap();
        assert_eq!((nodes.len(), status["hosts"].as_array().unwrap().len()), (3, 2), "{status}");
        assert!(nodes.iter().all(|node| node["volumes"][0]["capacity_bytes"].as_u64() > Some(0)), "{status}");
        assert_eq!(status["state"], "running", "{status}");
        wait_until("an interval has rates of all nodes", || {
            let rates = wait_for_rates(|| part(server, "top.json"));
            rates["nodes"].as_array().unwrap().len() == 3
        });
        // What was done on one host is seen on each. Jobs of a host that does not answer in time are left out.
        if is_mounted {
            let mut jobs = Value::Null;
            wait_until("all hosts tell of their jobs", || {
                jobs = part(server, "stage.json");
                jobs.as_array().unwrap().iter().all(|job| job["silent"].is_null())
            });
            assert_eq!(
                (&jobs[0]["bytes"], jobs[0]["host"].is_string()),
                (&Value::from(10_000), true),
                "{jobs}"
            );
        }
        let staged = if is_mounted { 10_000 } else { 0 };
        wait_until("the report is of all nodes and hosts", || {
            let report = part(server, "report.json");
            report["nodes"] == 3 && report["site"]["staged_in"] == staged
        });
    }
    let daemon = hosts.processes("b").daemon;
    signal(daemon, Signal::STOP);
    let silent = || {
        servers.iter().find_map(|server| {
            let status = part(server, "status.json");
            let nodes = status["nodes"].as_array().unwrap().clone();
            let unreachable = nodes.iter().filter(|node| node["state"] == "unreachable").count();
            let jobs = part(server, "stage.json");
            let says = jobs.as_array().unwrap().iter().any(|job| job["silent"].is_string());
            (unreachable == 1 && nodes[0]["state"] == "ready").then_some((status, says))
        })
    };
    let mut seen = None;
    wait_until("a host is silent, and no other one", || {
        seen = silent();
        seen.is_some()
    });
    let (status, says) = seen.unwrap();
    signal(daemon, Signal::CONT);
    assert_eq!((&status["state"], says), (&Value::from("degraded"), true), "{status}");
    hosts.down().succeeds();
}

/// Figures of an interval, of which there are none before the second look.
fn wait_for_rates(mut ask: impl FnMut() -> Value) -> Value {
    let mut last = Value::Null;
    wait_until("an interval", || {
        last = ask()["rates"].as_array().unwrap().last().cloned().unwrap_or_default();
        !last.is_null()
    });
    last
}

/// S497. Logs are gathered from all hosts, whichever is asked on; a host that does not answer is named, and the others
/// are shown.
#[test]
fn logs_of_all_hosts_are_shown_on_each() {
    let hosts = Hosts::new();
    hosts.up("a:2,b:1", "", &[]).succeeds();
    let on = |host: &str, arguments: &[&str]| {
        let mut command = hosts.place.command(arguments);
        crate::harness::said(&command.env("XDG_RUNTIME_DIR", hosts.runtime(host)).output().unwrap())
    };
    for host in ["a", "b"] {
        // A host that does not answer in time is named, and what it has is left out.
        let answered = |arguments: &[&str]| {
            let mut answer = None;
            wait_until("all hosts answer", || {
                answer = Some(on(host, arguments)).filter(|said| said.code == 0 && said.err.is_empty());
                answer.is_some()
            });
            answer.unwrap()
        };
        let all = answered(&["logs", "--name", &hosts.name, "--json"]);
        let lines: Vec<Value> = all.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for by in ["n0", "n1", "n2"] {
            assert!(lines.iter().any(|line| line["by"] == by), "{host}: {by}: {}", all.out);
        }
        let times: Vec<&str> = lines.iter().filter_map(|line| line["time"].as_str()).collect();
        assert!(times.is_sorted(), "{}", all.out);
        let elsewhere = if host == "a" { "2" } else { "0" };
        let one = answered(&["logs", "--name", &hosts.name, "--node", elsewhere]);
        assert!(
            one.out.lines().count() > 0
                && one.out.lines().all(|line| line.starts_with(&format!("n{elsewhere} ")))
        );
    }
    wait_until("all hosts answer", || {
        let refused = on("a", &["logs", "--name", &hosts.name, "--node", "7"]).fails(1, &["n0"]);
        refused.err.contains("n2")
    });
    let daemon = hosts.processes("b").daemon;
    signal(daemon, Signal::STOP);
    let some = on("a", &["logs", "--name", &hosts.name]);
    signal(daemon, Signal::CONT);
    assert!(some.code == 0 && some.err.contains("are not among these"), "{}", some.err);
    assert!(some.out.lines().any(|line| line.starts_with("n0 ")), "{}", some.out);
    hosts.down().succeeds();
}

/// Each host serves all files, and each server is known as that of its nodes.
#[test]
fn every_host_has_a_server_for_http() {
    let hosts = Hosts::new();
    hosts.up("a,b", "", &["--http", "0", "--http-plain"]).succeeds();
    let on = |host: &str, arguments: &[&str]| {
        let mut command = hosts.place.command(arguments);
        crate::harness::said(&command.env("XDG_RUNTIME_DIR", hosts.runtime(host)).output().unwrap())
    };
    let key = on("a", &["key", "create", "--name", &hosts.name]);
    assert_eq!((key.code, key.err.matches("(not encrypted)").count()), (0, 2), "{}", key.err);
    assert!(
        on("b", &["key", "list", "--name", &hosts.name]).out.starts_with(key.out.split('.').next().unwrap())
    );
    hosts.down().succeeds();
    wait_until("nothing is left", || hosts.are_empty());
}
