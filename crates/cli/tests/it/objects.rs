//! Partitions in front of an object store, as users have them: commands, mounts, killed daemons, a store that goes away.

use std::fs;
use std::path::{Path, PathBuf};

use crate::harness::{Camp, Place, Said, can_mount, is_alive, signal, wait_until};
use bivouac_objects::{ACCESS_KEY, SECRET_KEY, Server};
use rustix::process::Signal;

/// A formation of three nodes with a partition in front of a store.
fn start(server: &Server) -> Option<Camp> {
    if !can_mount() {
        return None;
    }
    let mut place = Place::new();
    place.set("AWS_ACCESS_KEY_ID", ACCESS_KEY);
    place.set("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
    place.set("AWS_ENDPOINT_URL_S3", &server.endpoint());
    let each = place.path().join("each");
    fs::create_dir(&each).unwrap();
    let camp = Camp::start_in(place, &["--nodes", "3", "--mount-each", each.to_str().unwrap()]);
    let dir = part(&camp, 0);
    let arguments = ["partition", "create", dir.to_str().unwrap(), "--stripe", "5m"];
    camp.place().run(&[&arguments[..], &["--source", "s3://bucket/run 7"]].concat()).succeeds();
    Some(camp)
}

fn part(camp: &Camp, node: usize) -> PathBuf {
    camp.mounts()[node].join("part")
}

fn flush(camp: &Camp) -> Said {
    camp.place().run(&["flush", part(camp, 0).to_str().unwrap()])
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 250 + seed * 13) as u8).collect()
}

/// Files below a directory that have a text in them.
fn with_text(dir: &Path, text: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() && entry.file_name() != "each" {
            with_text(&entry.path(), text, found);
        }
        let is_found = |bytes: Vec<u8>| bytes.windows(text.len()).any(|part| part == text.as_bytes());
        if kind.is_file() && fs::read(entry.path()).is_ok_and(is_found) {
            found.push(entry.path());
        }
    }
}

/// S168: whatever is killed in the middle of flushes, in the end the store has all of it, and no secret is anywhere.
#[test]
fn daemons_and_store_may_die_on_the_way() {
    let mut server = Server::start();
    server.put("run 7/in/put", b"was there", &[]);
    let Some(camp) = start(&server) else { return };
    assert_eq!(fs::read(part(&camp, 2).join("in/put")).unwrap(), b"was there");
    let mut said = Vec::new();
    for round in 0..4 {
        let content = bytes((11 << 20) + round, round);
        fs::write(part(&camp, round % 3).join("large"), &content).unwrap();
        fs::write(part(&camp, 1).join(format!("small {round}")), &content[..777]).unwrap();
        std::thread::scope(|scope| {
            let flushing = scope.spawn(|| flush(&camp));
            match round {
                0 => server.stop(),
                1 => drop(camp.kill_node(0)),
                2 => drop(camp.kill_node(2)),
                _ => {}
            }
            said.push(flushing.join().unwrap());
        });
        if round == 0 {
            assert_eq!(fs::read(part(&camp, 2).join("large")).unwrap(), content);
            server.serve();
        }
        let done = flush(&camp);
        assert_eq!(done.code, 0, "round {round}: {}{}", done.err, said.last().unwrap().err);
        said.push(done);
        assert!(server.object("run 7/large").unwrap().bytes[..] == content, "round {round}");
        assert_eq!(server.object(&format!("run 7/small {round}")).unwrap().bytes[..], content[..777]);
        assert!(fs::read(part(&camp, 1).join("large")).unwrap() == content, "round {round}");
    }
    assert!(said.iter().all(|said| !format!("{said:?}").contains(SECRET_KEY)));
    let mut found = Vec::new();
    with_text(camp.place().path(), SECRET_KEY, &mut found);
    assert_eq!(found, [""; 0].map(PathBuf::from), "neither state nor log has the secret");
    for node in 0..3 {
        let line = fs::read_to_string(format!("/proc/{}/cmdline", camp.node_pid(node))).unwrap();
        assert!(!line.contains(SECRET_KEY), "{line}");
    }
    camp.down();
}

/// P9: the store's own log says that nothing was asked for twice.
#[test]
fn after_a_kill_of_all_daemons_nothing_is_asked_of_the_store_again() {
    let server = Server::start();
    let input = bytes(11 << 20, 1);
    server.put("run 7/input", &input, &[]);
    let Some(camp) = start(&server) else { return };
    assert!(fs::read(part(&camp, 1).join("input")).unwrap() == input);
    // With their ranges: those of a stripe that is brought twice are the same, those after an answer that broke off are not.
    let gets = || server.asked("GET", "/input?");
    assert_eq!(gets().len(), 3, "three stripes: {:#?}", gets());
    let output = bytes(6 << 20, 2);
    fs::write(part(&camp, 2).join("output"), &output).unwrap();
    let pids: Vec<u64> = (0..3).map(|node| camp.node_pid(node)).collect();
    pids.iter().for_each(|pid| signal(*pid, Signal::KILL));
    wait_until("all daemons are gone", || pids.iter().all(|pid| !is_alive(*pid)));
    for node in 0..3 {
        assert!(fs::read(part(&camp, node).join("input")).unwrap() == input, "{node}");
    }
    assert_eq!(gets().len(), 3, "none of them again: {:#?}", gets());
    assert!(server.object("run 7/output").is_none());
    flush(&camp).succeeds();
    assert!(server.object("run 7/output").unwrap().bytes[..] == output);
    assert_eq!((server.count("PUT", "/input?"), server.count("POST", "/input?")), (0, 0));
    camp.down();
}
