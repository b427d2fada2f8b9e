//! Nodes that die, are stopped and come back: the others know, go on, and wait no longer than they must.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::harness::{Camp, assert_contains, signal, try_to_signal, wait_until};
use rustix::process::Signal;
use serde_json::Value;

/// `EIO`.
fn is_io_error(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

/// What a node believes of the others: those that are dead.
fn dead(camp: &Camp) -> Vec<u64> {
    camp.status()["dead"].as_array().unwrap().iter().map(|node| node.as_u64().unwrap()).collect()
}

/// Returns whether each of these nodes, and no other, takes a node for dead: they get to know it one after the other.
fn is_dead_to(camp: &Camp, node: u64, others: &[u64]) -> bool {
    let status = camp.status();
    status["silent"].as_array().unwrap().iter().any(|silent| {
        let to = silent["to"].as_array().unwrap().iter().filter_map(Value::as_u64);
        silent["node"] == node && silent["state"] == "dead" && to.eq(others.iter().copied())
    })
}

fn epoch(camp: &Camp) -> u64 {
    camp.status()["epoch"].as_u64().unwrap()
}

/// A directory for each node, whose entries and files have their home there, all stripes as well.
fn homes(camp: &Camp, nodes: usize) -> Vec<PathBuf> {
    let mut found = vec![None; nodes];
    for number in 0.. {
        let dir = camp.mount().join(format!("d{number}"));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("f"), "content").unwrap();
        let said = camp.place().run(&["explain", "--json", dir.join("f").to_str().unwrap()]);
        let told: Value = serde_json::from_str(&said.out).unwrap();
        let home = told["home"].as_u64().unwrap() as usize;
        let targets: Vec<u64> = told["targets"]
            .as_array()
            .unwrap()
            .iter()
            .map(|target| target["node"].as_u64().unwrap())
            .collect();
        if targets == [home as u64] {
            found[home].get_or_insert(dir);
        }
        if found.iter().all(Option::is_some) {
            break;
        }
    }
    found.into_iter().map(Option::unwrap).collect()
}

fn log_of(camp: &Camp, node: usize) -> String {
    fs::read_to_string(camp.dir().join(format!("n{node}.log"))).unwrap()
}

/// S79, S80.
#[test]
fn a_node_that_is_given_up_is_dead_to_all_at_once_and_nobody_waits_for_it_again_and_again() {
    let options = ["--nodes", "3", "--width", "1", "--deaths-max", "1/60s", "--wait", "3s"];
    let Some(camp) = Camp::start(&options) else { return };
    let homes = homes(&camp, 3);
    assert_eq!((dead(&camp), epoch(&camp)), (vec![], 1));
    camp.kill_node(1);
    wait_until("all know that it is dead", || is_dead_to(&camp, 1, &[0, 2]) && epoch(&camp) == 2);
    assert_eq!(dead(&camp), [1]);
    let says = "node 1 is dead: files that need it give EIO, others go on";
    wait_until("it is in the log", || log_of(&camp, 0).contains(says));
    let said = camp.run("status", &[]).out;
    assert_contains(&said, &[" has been dead to the others for ", ": what needs it gives EIO\n"]);
    // Three seconds for the first few, and next to nothing for the rest: half an hour if each waited.
    for turn in 0..500 {
        let error = fs::read(homes[1].join(format!("n{turn}"))).unwrap_err();
        assert!(is_io_error(&error), "{error}");
    }
    wait_until("it is in the log that they do not wait", || log_of(&camp, 0).contains("known to be dead"));
    for home in [&homes[0], &homes[2]] {
        assert_eq!(fs::read(home.join("f")).unwrap(), b"content");
        fs::write(home.join("g"), "others go on").unwrap();
    }
    camp.down();
}

/// S80, S691, S692 and S693.
#[test]
fn around_a_node_that_was_given_up_all_goes_on_and_it_can_be_had_back() {
    let options = ["--nodes", "3", "--deaths-max", "1/60s", "--wait", "20s", "--http", "0", "--http-plain"];
    let options = [&options[..], &["--stripe", "64k"]].concat();
    let Some(camp) = Camp::start(&options) else { return };
    let (server, top) = (crate::http::served(&camp), camp.mount());
    // A directory that is homed at node 1, and a file that has a part there.
    let of = |path: &Path| -> Value {
        let said = camp.place().run(&["explain", "--json", path.to_str().unwrap()]);
        serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{}{}", said.out, said.err))
    };
    let mut dirs = (0..).map(|number| top.join(format!("d{number}")));
    let is_here = |dir: &PathBuf| {
        fs::create_dir(dir).unwrap();
        of(dir)["home"] == 1
    };
    let lost_dir = dirs.find(is_here).unwrap();
    let mut living = (0..).map(|number| top.join(format!("l{number}")));
    let is_elsewhere = |dir: &PathBuf| {
        fs::create_dir(dir).unwrap();
        of(dir)["home"] != 1
    };
    let living = living.find(is_elsewhere).unwrap();
    let content: Vec<u8> = (0..600_000).map(|at| (at % 251) as u8).collect();
    fs::write(living.join("wide"), &content).unwrap();
    fs::write(lost_dir.join("f"), "of node 1").unwrap();
    camp.kill_node(1);
    wait_until("all know that it is dead", || is_dead_to(&camp, 1, &[0, 2]));

    // New files avoid it, narrow or wide.
    for number in 0..24 {
        let path = living.join(format!("new{number}"));
        fs::write(&path, &content[..if number % 2 == 0 { 4096 } else { 300_000 }]).unwrap();
        let targets = of(&path)["targets"].as_array().unwrap().clone();
        assert!(targets.iter().all(|target| target["node"] != 1), "{path:?}: {targets:?}");
    }
    for number in 0..24 {
        let dir = living.join(format!("dir{number}"));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("f"), "in a new directory").unwrap();
    }
    // What is there is listed, and what is not is named.
    let list = || -> Value {
        let reply = server.ask("GET", "/?json", &[], b"");
        assert_eq!(reply.status, 200, "{}", reply.text());
        serde_json::from_str(&crate::dav::whole(&reply)).unwrap()
    };
    let listed = list();
    let entry = |name: &str| {
        let found = listed.as_array().unwrap().iter().find(|entry| entry["name"] == name);
        found.unwrap_or_else(|| panic!("{name}: {listed}")).clone()
    };
    assert_eq!(entry(living.file_name().unwrap().to_str().unwrap())["type"], "directory");
    let lost = lost_dir.file_name().unwrap().to_str().unwrap();
    assert_eq!(
        (&entry(lost)["type"], &entry(lost)["error"]),
        (&"unknown".into(), &"its node does not answer".into())
    );
    // What is known of a file with a part there is shown.
    let told = of(&living.join("wide"));
    let targets = told["targets"].as_array().unwrap();
    assert_eq!(targets.len(), 3);
    assert!(targets.iter().all(|target| target["error"].is_string() == (target["node"] == 1)), "{told}");
    assert!(targets.iter().all(|target| target["subfile"].is_string() == (target["node"] != 1)), "{told}");

    let refused = camp.run("recover", &["--node", "2"]);
    assert!(refused.code != 0 && refused.err.contains("has not failed"), "{}", refused.err);
    camp.run("recover", &["--node", "1"]).succeeds();
    wait_until("it is back to the others", || dead(&camp).is_empty());
    assert_eq!(fs::read(living.join("wide")).unwrap(), content);
    assert_eq!(fs::read(lost_dir.join("f")).unwrap(), b"of node 1");
    fs::write(lost_dir.join("g"), "it goes on").unwrap();
    assert_eq!(server.get(&format!("/{lost}/g")), b"it goes on");
    let listed = list();
    assert!(listed.as_array().unwrap().iter().all(|entry| entry["type"] == "directory"), "{listed}");
    camp.down();
}

fn stop(camp: &Camp, node: usize) -> u64 {
    let pid = camp.node_pid(node);
    signal(pid, Signal::STOP);
    pid
}

/// S79, S81.
#[test]
fn a_stopped_node_is_dead_to_the_others_and_goes_on_as_the_same_when_it_is_back() {
    let options = ["--nodes", "3", "--width", "1", "--dead-after", "1s", "--wait", "20s"];
    let Some(camp) = Camp::start(&options) else { return };
    let homes = homes(&camp, 3);
    let stopped = stop(&camp, 1);
    let gone = Stopped(stopped);
    wait_until("it is dead to the others", || is_dead_to(&camp, 1, &[0, 2]));
    let mut silent = Value::Null;
    wait_until("it is shown", || {
        let status = camp.status();
        let mut all = status["silent"].as_array().unwrap().iter();
        silent = all.find(|silent| silent["node"] == 1).cloned().unwrap_or_default();
        silent["state"] == "dead"
    });
    assert!(silent["for_ms"].is_u64(), "{silent}");
    let said = camp.run("status", &[]).out;
    assert_contains(&said, &["what needs it gives EIO; when it answers again it goes on with its data"]);
    fs::write(homes[2].join("g"), "others go on").unwrap();
    // Who asks within the bounded time waits, and is served by whom it asked.
    let waiting = homes[1].join("new");
    let writer = std::thread::spawn(move || fs::write(waiting, "waited"));
    drop(gone);
    writer.join().unwrap().unwrap();
    wait_until("it is back", || dead(&camp).is_empty() && epoch(&camp) >= 3);
    assert_eq!(fs::read(homes[1].join("f")).unwrap(), b"content");
    assert_eq!(fs::read(homes[1].join("new")).unwrap(), b"waited");
    assert_eq!(camp.node_pid(1), stopped, "the same daemon");
    wait_until("it is in the log", || {
        [0, 2].iter().any(|node| log_of(&camp, *node).contains("node 1 is back"))
    });
    camp.down();
}

/// S81.
#[test]
fn a_restarted_daemon_is_never_dead_to_anybody() {
    // Longer than a busy machine takes to start a daemon.
    let Some(camp) = Camp::start(&["--nodes", "3", "--dead-after", "30s"]) else { return };
    fs::write(camp.mount().join("f"), "content").unwrap();
    for node in [1, 2] {
        let killed = camp.kill_node(node);
        assert_ne!(camp.node_pid(node), killed);
    }
    assert_eq!(fs::read(camp.mount().join("f")).unwrap(), b"content");
    assert_eq!((dead(&camp), epoch(&camp)), (vec![], 1));
    camp.down();
}

/// A file whose home is one node and whose only target is another's.
fn file_between(camp: &Camp, home: u64, target: u64) -> String {
    for number in 0.. {
        let name = format!("f{number}");
        let path = camp.mount().join(&name);
        fs::write(&path, "0").unwrap();
        let said = camp.place().run(&["explain", "--json", path.to_str().unwrap()]);
        let told: Value = serde_json::from_str(&said.out).unwrap();
        if told["home"] == home && told["targets"][0]["node"] == target {
            return name;
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(camp.mount().join(format!("d{number}"))).unwrap();
    }
    unreachable!("numbers do not end")
}

/// A process of its own that has a file locked: whoever has a file of a stopped mount open can start no programs.
struct Holder {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Holder {
    /// Locks the file and waits for orders: a digit to write, or `close`.
    fn new(path: &Path) -> Holder {
        let script = "import fcntl, os, sys\n\
            f = os.open(sys.argv[1], os.O_RDWR)\n\
            fcntl.flock(f, fcntl.LOCK_EX)\n\
            print('locked', flush=True)\n\
            for line in sys.stdin:\n\
            \x20 try:\n\
            \x20   os.pwrite(f, line.strip().encode(), 0)\n\
            \x20   print('ok', flush=True)\n\
            \x20 except OSError as error:\n\
            \x20   print(error.errno, flush=True)\n";
        let mut command = Command::new("python3");
        command.args(["-c", script]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (orders, out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut holder = Holder { child, orders, answers: BufReader::new(out) };
        assert_eq!(holder.answer(), "locked");
        holder
    }

    fn order(&mut self, digit: &str) {
        writeln!(self.orders, "{digit}").unwrap();
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim().into()
    }

    fn ask(&mut self, digit: &str) -> String {
        self.order(digit);
        self.answer()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped_already = self.child.wait();
    }
}

/// Lets a stopped process go on, also when the test fails before it does so itself.
struct Stopped(u64);

impl Drop for Stopped {
    fn drop(&mut self) {
        try_to_signal(self.0, Signal::CONT);
    }
}

/// S110, S82.
#[test]
fn who_comes_back_does_not_write_under_a_lock_that_is_somebody_elses_by_now() {
    if Command::new("python3").arg("-V").output().is_err() {
        return println!("skipped: python3 is not installed");
    }
    let options = ["--nodes", "3", "--width", "1", "--dead-after", "2s", "--wait", "6s"];
    let Some(camp) = Camp::start_each(&options) else { return };
    let told = camp.place().run(&["explain", "--json", camp.mount().to_str().unwrap()]);
    let told: Value = serde_json::from_str(&told.out).unwrap();
    // Files in the root have their home where it has; the stopped node is neither that nor the target.
    let home = told["home"].as_u64().unwrap();
    let [stopped, target] = [(home + 1) % 3, (home + 2) % 3];
    let name = file_between(&camp, home, target);
    let at = |node: u64| camp.mounts()[node as usize].join(&name);
    let mut holder = Holder::new(&at(stopped));
    assert_eq!(holder.ask("1"), "ok");
    let gone = Stopped(stop(&camp, stopped as usize));
    // Given to the kernel before the node is dead, and read from it when it is back.
    holder.order("2");
    let other = fs::OpenOptions::new().read(true).write(true).open(at(home)).unwrap();
    other.lock().unwrap();
    assert!(dead(&camp).contains(&stopped), "not before");
    other.write_at(b"3", 0).unwrap();
    drop(gone);
    let io_error = rustix::io::Errno::IO.raw_os_error().to_string();
    assert_eq!(holder.answer(), io_error);
    wait_until("it is back", || dead(&camp).is_empty());
    for _ in 0..3 {
        assert_eq!(holder.ask("4"), io_error);
    }
    let mut byte = [0];
    other.read_at(&mut byte, 0).unwrap();
    assert_eq!(byte, *b"3");
    // Who closes it and locks it again writes again.
    drop(holder);
    other.unlock().unwrap();
    let mut again = Holder::new(&at(stopped));
    assert_eq!(again.ask("5"), "ok");
    other.read_at(&mut byte, 0).unwrap();
    assert_eq!(byte, *b"5");
    drop((again, other));
    camp.down();
}
