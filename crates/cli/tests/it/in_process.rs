//! Many nodes in one process: a formation like any other, that takes little of a machine.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::harness::{Camp, Place, can_mount, rss_kib, said, wait_until};
use serde_json::Value;

const NODES: usize = 120;
const STRIPE: usize = 4096;

fn start(arguments: &[&str]) -> Option<Camp> {
    let nodes = NODES.to_string();
    let all = [&["--nodes", &nodes, "--in-process", "--stripe", "4096"], arguments].concat();
    Camp::start(&all)
}

/// A mount through another node.
fn mount_at(camp: &Camp, node: usize) -> std::path::PathBuf {
    let at = camp.place().path().join(format!("m{node}"));
    std::fs::create_dir(&at).unwrap();
    camp.run("mount", &["--node", &node.to_string(), at.to_str().unwrap()]).succeeds();
    at
}

/// Bytes that say where they are from.
fn content(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / STRIPE * 31 + at * 7 + seed) as u8).collect()
}

fn threads(pid: u64) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count()
}

/// Positions of the nodes that have parts of a file, as `explain` says.
fn nodes_with(camp: &Camp, file: &Path) -> BTreeSet<u64> {
    let said = camp.place().run(&["explain", "--json", file.to_str().unwrap()]).succeeds();
    let explained: Value = serde_json::from_str(&said.out).unwrap();
    let (targets, base) =
        (explained["targets"].as_array().unwrap(), explained["base_target"].as_u64().unwrap());
    for (column, target) in targets.iter().enumerate() {
        // One volume per node: the target's number is the node's.
        let number = (base + column as u64) % NODES as u64;
        assert_eq!(
            (&target["column"], &target["target"], &target["node"]),
            (&column.into(), &number.into(), &number.into())
        );
    }
    targets.iter().map(|target| target["node"].as_u64().unwrap()).collect()
}

/// S99.
#[test]
fn a_hundred_nodes_in_one_process_are_a_formation_like_any_other() {
    let Some(camp) = start(&[]) else { return };
    let other = mount_at(&camp, NODES - 1);
    // One that does not get to answer within the time that `status` waits is shown as such.
    wait_until("all nodes answer", || camp.status()["state"] == "running");
    let status = camp.status();
    let nodes = status["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), NODES);
    let processes: BTreeSet<u64> = nodes.iter().map(|node| node["pid"].as_u64().unwrap()).collect();
    assert_eq!(processes.len(), 1, "one process");
    let pid = *processes.first().unwrap();
    assert!(threads(pid) < NODES, "{} threads", threads(pid));

    // Striped over all targets, written through one mount and read through another that is far from it.
    let whole = content(1, 3 * NODES * STRIPE + 100);
    std::fs::write(camp.mount().join("whole"), &whole).unwrap();
    assert_eq!(std::fs::read(other.join("whole")).unwrap(), whole);
    assert_eq!(nodes_with(&camp, &camp.mount().join("whole")).len(), NODES);

    // Directories go to the slots of their names' hashes, over many nodes.
    for number in 0..NODES {
        let dir = if number % 2 == 0 { camp.mount() } else { &other };
        std::fs::create_dir(dir.join(format!("d{number}"))).unwrap();
        std::fs::write(dir.join(format!("d{number}/f")), content(number, 2 * STRIPE)).unwrap();
    }
    for number in 0..NODES {
        let file = format!("d{number}/f");
        assert_eq!(std::fs::read(other.join(&file)).unwrap(), content(number, 2 * STRIPE), "{file}");
        assert_eq!(std::fs::read(camp.mount().join(&file)).unwrap(), content(number, 2 * STRIPE), "{file}");
    }
    let status = camp.status();
    let homes = status["nodes"].as_array().unwrap().iter().filter(|node| node["files"] != 0).count();
    assert!(homes > NODES / 4, "{homes} nodes have inodes");
    // Renames move names from node to node.
    for number in 0..20 {
        let (from, to) = (format!("d{number}/f"), format!("d{}/g", NODES - 1 - number));
        std::fs::rename(other.join(&from), other.join(&to)).unwrap();
        assert_eq!(std::fs::read(camp.mount().join(&to)).unwrap(), content(number, 2 * STRIPE), "{to}");
    }
    camp.run("fsck", &[]).succeeds().prints(&["no findings"]);
    assert!(rss_kib(pid) < 400 << 10, "{} KiB resident", rss_kib(pid));
    camp.down();
}

/// S99.
#[test]
fn what_was_acknowledged_survives_the_death_of_all_nodes_at_once() {
    let Some(camp) = start(&[]) else { return };
    let other = mount_at(&camp, 77);
    let file = |number: usize| format!("f{number}");
    for number in 0..60 {
        let dir = if number % 2 == 0 { camp.mount() } else { &other };
        std::fs::write(dir.join(file(number)), content(number, number * 5000)).unwrap();
    }
    let open = std::fs::File::create(other.join("open")).unwrap();
    let first = camp.kill_node(5);
    // The mounts wait for the successor; what was open stays open.
    std::os::unix::fs::FileExt::write_all_at(&open, &content(9, 9 * STRIPE), 0).unwrap();
    for number in 0..60 {
        let dir = if number % 2 == 0 { &other } else { camp.mount() };
        assert_eq!(
            std::fs::read(dir.join(file(number))).unwrap(),
            content(number, number * 5000),
            "{number}"
        );
    }
    assert_eq!(std::fs::read(camp.mount().join("open")).unwrap(), content(9, 9 * STRIPE));
    wait_until("all are ready again", || camp.state() == "running");
    let status = camp.status();
    for node in status["nodes"].as_array().unwrap() {
        assert_ne!(node["pid"].as_u64(), Some(first), "{node}");
        assert_eq!(node["deaths"], 1, "what ends one of them ends all: {node}");
    }
    camp.run("fsck", &[]).prints(&["no findings"]);
    drop(open);
    camp.down();
}

#[test]
fn nodes_of_a_process_watch_each_other_if_told_to() {
    let memory = Place::memory();
    let volume = format!("{}:8m", memory.path().display());
    let arguments =
        ["--nodes", "40", "--in-process", "--no-mount", "--dead-after", "10s", "--volume", &volume];
    let camp = Camp::start_in(Place::new(), &arguments);
    let calls = || -> Vec<u64> {
        let status = camp.status();
        assert_eq!(status["dead"], Value::Array(vec![]));
        let of = |node: &Value| -> u64 {
            let operations = node["operations"].as_array().unwrap();
            operations.iter().find(|op| op["name"] == "Probe").map_or(0, |op| op["calls"].as_u64().unwrap())
        };
        status["nodes"].as_array().unwrap().iter().map(of).collect()
    };
    wait_until("every node has probed others", || calls().iter().all(|calls| *calls > 2));
    let watching_threads = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", camp.node_pid(0))).unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.trim_end() == "members").count()
    };
    // A probe's thread carries the name of the thread that made it until it has run for the first time.
    wait_until("one thread watches for all", || watching_threads() == 1);
    camp.down();
}

#[test]
fn a_limit_of_open_files_that_is_too_low_is_named_before_anything_is_made() {
    let place = Place::new();
    let up = place.command(&["up", "--name", "low", "--nodes", "1000", "--in-process", "--no-mount"]);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 1000 && exec \"$0\" \"$@\""]).arg(up.get_program()).args(up.get_args());
    limited.envs(up.get_envs().filter_map(|(name, value)| Some((name, value?))));
    said(&limited.output().unwrap()).fails(
        1,
        &[
            "--nodes 1000: needs a process with 12200 open files",
            "the limit (RLIMIT_NOFILE) is 1000",
            "ulimit -Hn 12200",
        ],
    );
    assert!(place.is_empty());
}

#[test]
fn one_process_can_be_ended_with_its_supervisor_killed() {
    if !can_mount() {
        return;
    }
    let camp = start(&["--no-mount"]).unwrap();
    let pid = camp.node_pid(0);
    camp.kill_supervisor();
    let status = camp.status();
    assert_eq!(status["state"], "degraded");
    assert_eq!(status["nodes"][NODES - 1]["state"], "ready", "it serves on");
    assert_eq!(status["nodes"][0]["pid"].as_u64(), Some(pid));
    camp.down();
}
