//! Daemons and supervisors that die.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use crate::harness::{Camp, Place, assert_contains, is_alive, signal, wait_for_standby_of, wait_until};
use rustix::process::Signal;

/// S70.
#[test]
fn a_killed_daemon_comes_back_with_everything() {
    let Some(camp) = Camp::start(&["--nodes", "2", "--stripe", "4k"]) else { return };
    let content = vec![9; 300_000];
    fs::write(camp.mount().join("f"), &content).unwrap();
    let path = camp.mount().join("open");
    let mut open = fs::File::options().read(true).write(true).create_new(true).open(path).unwrap();
    open.write_all(b"before ").unwrap();
    let addresses = camp.status()["nodes"][0]["addresses"].clone();
    for node in [0, 1] {
        let killed = camp.kill_node(node);
        // No waiting: operations pause until the daemon is back.
        assert_eq!(fs::read(camp.mount().join("f")).unwrap(), content);
        open.write_all(b"after ").unwrap();
        assert_ne!(camp.node_pid(node), killed);
    }
    let mut text = String::new();
    open.seek(SeekFrom::Start(0)).unwrap();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "before after after ");
    wait_until("all is well", || camp.state() == "running");
    let status = camp.status();
    assert_eq!(status["nodes"][0]["deaths"], 1);
    assert_eq!(status["nodes"][0]["addresses"], addresses);
    drop(open);
    camp.down();
}

/// Another node's mount that asks for nothing.
#[test]
fn an_idle_mount_tells_a_restarted_home_what_is_open() {
    let Some(camp) = Camp::start_each(&["--nodes", "2", "--wait", "10s"]) else { return };
    let [here, there] = [0, 1].map(|node| camp.mounts()[node].join("f"));
    fs::write(&here, "content").unwrap();
    let mut open = fs::File::open(&there).unwrap();
    let opens = || camp.status()["nodes"][0]["open_files"].as_u64();
    wait_until("the home knows", || opens() == Some(1));
    camp.kill_node(0);
    camp.node_pid(0);
    wait_until("the home knows again", || opens() == Some(1));
    fs::remove_file(&here).unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "content");
    drop(open);
    wait_until("it is closed", || opens() == Some(0));
    camp.down();
}

/// S682: what goes by a path goes by a mount that somebody serves.
#[test]
fn copies_go_by_mounts_that_are_served() {
    let Some(camp) = Camp::start_each(&["--nodes", "2"]) else { return };
    let names: Vec<String> = (0..24).map(|number| format!("f{number}")).collect();
    names.iter().for_each(|name| fs::write(camp.mount().join(name), name).unwrap());
    let explained = |name: &String| -> serde_json::Value {
        let path = camp.mount().join(name);
        serde_json::from_str(&camp.place().ok(&["explain", "--json", path.to_str().unwrap()])).unwrap()
    };
    // Of a small directory all files have one home.
    let home = explained(&names[0])["home"].as_u64().unwrap();
    let kept: Vec<&String> = names.iter().filter(|name| explained(name)["base_target"] == home).collect();
    assert!(kept.len() > 2, "{kept:?}");
    let (living, dead) = (usize::try_from(home).unwrap(), usize::try_from(1 - home).unwrap());
    for _ in 0..5 {
        camp.kill_node(dead);
    }
    wait_until("the node is given up", || camp.status()["nodes"][dead]["state"] == "failed");
    let out = camp.place().path().join("out/").display().to_string();
    let mut arguments = vec!["--jobs", "4"];
    arguments.extend(kept.iter().map(|name| name.as_str()));
    arguments.push(&out);
    let out_of = |arguments: &[&str]| {
        let mut all = vec!["stage", "out", "--name", camp.name()];
        all.extend(arguments);
        camp.place().run(&all)
    };
    let said = out_of(&arguments);
    let unused = format!("mount {} is not used: node {dead}", camp.mounts()[dead].display());
    assert!(said.code == 0 && said.err.contains(&unused), "{}", said.err);
    assert!(kept.iter().all(|name| fs::read(Path::new(&out).join(name)).unwrap() == name.as_bytes()));
    let shown = camp.run("exec", &["--", "sh", "-c", "echo $BIVOUAC"]);
    assert_eq!(shown.out.trim(), camp.mounts()[living].display().to_string(), "{}", shown.err);
    rustix::mount::unmount(&camp.mounts()[living], rustix::mount::UnmountFlags::DETACH).unwrap();
    let refused = out_of(&arguments);
    let gone = format!("node {dead}, which served it, has failed");
    assert!(
        refused.code == 1 && refused.err.contains(&gone) && refused.err.contains("bivouac mount"),
        "{}",
        refused.err
    );
    assert_eq!(camp.run("down", &["--discard"]).code, 0);
}

#[test]
fn after_too_many_deaths_a_node_is_given_up_and_the_others_go_on() {
    let camp = Camp::start_in(Place::new(), &["--nodes", "2", "--no-mount"]);
    for _ in 0..5 {
        camp.kill_node(0);
    }
    let mut status = serde_json::Value::Null;
    wait_until("node 0 is given up, and node 1 serves", || {
        status = camp.status();
        status["nodes"][0]["state"] == "failed" && status["nodes"][1]["state"] == "ready"
    });
    let message = status["nodes"][0]["message"].as_str().unwrap();
    assert_contains(message, &["died 5 times within 60 s", "killed by signal 9"]);
    assert_eq!(status["state"], "degraded");
    let said = camp.run("mount", &[camp.place().path().to_str().unwrap()]);
    assert_ne!(said.code, 0);
    camp.down();
}

/// S72.
#[test]
fn programs_on_the_mount_of_a_node_that_is_given_up_get_errors() {
    let Some(camp) = Camp::start(&["--nodes", "2"]) else { return };
    for _ in 0..5 {
        camp.kill_node(0);
    }
    wait_until("the mount fails", || fs::metadata(camp.mount()).is_err());
    camp.down();
}

#[test]
fn a_daemon_that_is_told_to_end_is_started_again() {
    let camp = Camp::start_in(Place::new(), &["--no-mount"]);
    let pid = camp.node_pid(0);
    signal(pid, Signal::TERM);
    wait_until("it is gone", || !is_alive(pid));
    assert_ne!(camp.node_pid(0), pid);
    camp.down();
}

/// S74: one that does not do what it is told is killed, and so is its standby.
#[test]
fn a_supervisor_that_hangs_is_ended_with_its_standby() {
    let Some(camp) = Camp::start(&["--nodes", "2"]) else { return };
    let supervisor = camp.supervisor_pid();
    wait_for_standby_of(supervisor);
    signal(supervisor, Signal::STOP);
    camp.down();
}

/// S369.
#[test]
fn daemons_serve_on_without_their_supervisor() {
    let Some(camp) = Camp::start(&["--nodes", "2"]) else { return };
    camp.kill_supervisor();
    fs::write(camp.mount().join("f"), "still").unwrap();
    assert_eq!(fs::read(camp.mount().join("f")).unwrap(), b"still");
    assert_eq!(camp.state(), "degraded");
    let text = camp.run("status", &[]).out;
    assert!(text.contains("supervisor gone: nothing is restarted"), "{text}");
    camp.run("mount", &[tempfile::tempdir().unwrap().path().to_str().unwrap()])
        .fails(1, &["supervisor of the formation: is gone"]);
    camp.down();
}

#[test]
fn what_a_killed_formation_left_that_held_nothing_is_removed_by_the_next() {
    let Some(camp) = Camp::start(&["--nodes", "2"]) else { return };
    camp.kill_all();
    wait_until("it is seen", || camp.state() == "dead");
    assert_eq!(camp.run("status", &[]).code, 1);
    camp.run("up", &["--json"]).succeeds().tells(&["was killed earlier", "removing what it left"]);
    wait_until("all is well", || camp.state() == "running");
    assert_eq!(fs::read_dir(camp.mount()).unwrap().count(), 0);
    camp.down();
}

#[test]
fn down_removes_a_killed_formation_too() {
    let Some(camp) = Camp::start(&[]) else { return };
    camp.kill_all();
    camp.down();
}

/// As when the supervisor is killed just after it has started one.
#[test]
fn down_ends_a_daemon_that_is_not_in_the_state_too() {
    let Some(camp) = Camp::start(&[]) else { return };
    let daemon = camp.node_pid(0);
    camp.kill_supervisor();
    let path = camp.dir().join("state.json");
    let mut state: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    state["nodes"][0]["process"] = serde_json::Value::Null;
    fs::write(&path, state.to_string()).unwrap();
    assert!(is_alive(daemon));
    camp.down();
    assert!(!is_alive(daemon));
}

#[test]
fn a_supervisor_that_is_told_to_end_ends_its_daemons() {
    let camp = Camp::start_in(Place::new(), &["--no-mount", "--nodes", "2"]);
    let (supervisor, node) = (camp.supervisor_pid(), camp.node_pid(1));
    signal(supervisor, Signal::TERM);
    wait_until("all are gone", || !is_alive(supervisor) && !is_alive(node));
    camp.down();
}
