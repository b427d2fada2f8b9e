//! Formations whose volumes are mirrored, with daemons of their own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::harness::{Camp, Place, wait_until};

/// The files of a volume that are replicated, with their content.
///
/// # Errors
/// Also when one of them is removed meanwhile.
fn content(volume: &Path) -> io::Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(volume)? {
        let entry = entry?;
        let name = entry.file_name().into_string().unwrap();
        if !entry.file_type()?.is_dir() {
            if name == "bivouac-subfiles" {
                files.insert(name.into(), fs::read(entry.path())?);
            }
        } else if !name.starts_with("replica-") {
            for file in fs::read_dir(entry.path())? {
                let file = file?;
                files.insert(Path::new(&name).join(file.file_name()), fs::read(file.path())?);
            }
        }
    }
    Ok(files)
}

fn volume(camp: &Camp, node: usize) -> PathBuf {
    camp.status()["nodes"][node]["volumes"][0]["path"].as_str().unwrap().into()
}

/// The directory in which the other of two nodes has the replica of a node.
fn replica(camp: &Camp, node: usize) -> PathBuf {
    volume(camp, 1 - node).join(format!("replica-{node:05}-00000"))
}

fn wait_for_replicas(camp: &Camp) {
    for node in [0, 1] {
        let note = replica(camp, node).join("bivouac-mirror");
        let is_complete = || fs::read_to_string(&note).is_ok_and(|text| text.contains("complete true"));
        wait_until("the replica is complete", is_complete);
    }
}

/// Compares replicas with volumes, once nothing is under way.
fn check_replicas(camp: &Camp) {
    for node in [0, 1] {
        let (own, replica) = (volume(camp, node), replica(camp, node));
        let mut count = 0;
        wait_until("the replica has what the volume has", || {
            let (Ok(own), Ok(replica)) = (content(&own), content(&replica)) else { return false };
            count = own.len();
            own == replica
        });
        assert!(count > 2, "{count} files");
    }
}

/// S800.
#[test]
fn each_node_has_a_replica_at_the_other_also_behind_kills() {
    let arguments = ["--nodes", "2", "--protect", "replicas=2", "--stripe", "4k"];
    let Some(camp) = Camp::start(&arguments) else { return };
    let file = |name: &str| camp.mount().join(name);
    let data = |seed: usize| (0..200_000).map(|at| ((at * 7 + seed) % 251) as u8).collect::<Vec<_>>();
    fs::write(file("early"), data(1)).unwrap();
    wait_for_replicas(&camp);
    for round in 0..20 {
        fs::write(file(&format!("f{round}")), data(round)).unwrap();
    }
    fs::rename(file("f3"), file("moved")).unwrap();
    fs::remove_file(file("f4")).unwrap();
    check_replicas(&camp);
    for node in [0, 1] {
        let killed = camp.kill_node(node);
        // No waiting: operations pause until the daemon is back, and has a session with its backup.
        assert_eq!(fs::read(file("moved")).unwrap(), data(3));
        fs::write(file(&format!("behind{node}")), data(node)).unwrap();
        assert_ne!(camp.node_pid(node), killed);
    }
    wait_for_replicas(&camp);
    assert_eq!(fs::read(file("early")).unwrap(), data(1));
    check_replicas(&camp);
    camp.down();
}

/// Each node is the other's backup. Handlers of either wait for the other, more of them than the peer lane has threads
/// without mirrors.
#[test]
fn nodes_that_back_each_other_up_do_not_wait_for_each_other() {
    const THREADS: usize = 24;
    let arguments = ["--nodes", "2", "--protect", "replicas=2", "--stripe", "4k", "--wait", "60s"];
    let Some(camp) = Camp::start_each(&arguments) else { return };
    wait_for_replicas(&camp);
    std::thread::scope(|scope| {
        for thread in 0..2 * THREADS {
            let mount = &camp.mounts()[thread % 2];
            scope.spawn(move || {
                let dir = mount.join(format!("d{thread}"));
                fs::create_dir(&dir).unwrap();
                for round in 0..10 {
                    fs::write(dir.join("new"), vec![thread as u8; 30_000]).unwrap();
                    fs::rename(dir.join("new"), mount.join(format!("f{thread}-{round}"))).unwrap();
                }
                fs::remove_dir(dir).unwrap();
            });
        }
    });
    for (thread, round) in (0..2 * THREADS).flat_map(|thread| (0..10).map(move |round| (thread, round))) {
        let path = camp.mounts()[round % 2].join(format!("f{thread}-{round}"));
        assert!(fs::read(path).unwrap() == vec![thread as u8; 30_000]);
    }
    check_replicas(&camp);
    camp.down();
}

#[test]
fn one_node_cannot_be_protected() {
    let place = Place::new();
    let said = place.run(&["up", "--name", &Place::unique_name(), "--protect", "replicas=2"]);
    assert!(said.err.contains("--nodes 2"), "{}", said.err);
    assert!(place.is_empty());
}
