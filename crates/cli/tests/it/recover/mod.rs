//! Formations of which every process was killed: they are listed, never removed by accident, and recovered with all
//! that was acknowledged.

mod dead;
mod kept;
mod lost;
mod older;
mod places;
mod refusals;
mod repeated;

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::harness::library::{create, library, open, read, write};
use crate::harness::{reaping, wait_until};
use dead::{Dead, bytes};
use rustix::fs::{FlockOperation, flock};

/// S290, S291, S292, S293, S294.
#[test]
fn a_formation_that_was_killed_whole_comes_back_with_everything() {
    let Some(mut dead) = Dead::start(&["--nodes", "2", "--stripe", "4k"]) else { return };
    let site = tempfile::tempdir().unwrap();
    fs::write(site.path().join("input"), bytes(100_000, 1)).unwrap();
    dead.fill();
    let part = dead.mount().join("part");
    let create = ["partition", "create", part.to_str().unwrap(), "--source", site.path().to_str().unwrap()];
    dead.camp.place().run(&create).succeeds();
    fs::write(part.join("result"), bytes(50_000, 2)).unwrap();
    fs::write(part.join("input"), b"mine").unwrap();
    let locked = fs::File::create(dead.mount().join("locked")).unwrap();
    flock(&locked, FlockOperation::LockExclusive).unwrap();
    let mut nameless =
        fs::File::options().read(true).write(true).create_new(true).open(dead.mount().join("gone")).unwrap();
    std::io::Write::write_all(&mut nameless, &bytes(70_000, 3)).unwrap();
    fs::remove_file(dead.mount().join("gone")).unwrap();
    dead.kill();
    // What held them is the mount of a dead process.
    assert!(nameless.read(&mut [0; 10]).is_err());
    let listed = dead.listed();
    assert_eq!((&listed["state"], &listed["nodes"]), (&"recoverable".into(), &2.into()), "{listed}");
    assert!(
        listed["left"]["files"].as_u64().unwrap() >= 7 && listed["left"]["bytes"].as_u64().unwrap() > 200_000,
        "{listed}"
    );
    let before = dead.on_disk();
    let said = dead.camp.run("up", &[]);
    let name = dead.camp.name();
    assert_eq!(said.code, 3, "{}", said.err);
    for says in
        [format!("bivouac recover {name}"), format!("bivouac down --name {name} --discard"), "part (".into()]
    {
        assert!(said.err.contains(&says), "{}", said.err);
    }
    assert_eq!(dead.on_disk(), before);
    dead.recover(&[]);
    dead.check();
    assert_eq!(fs::read(part.join("result")).unwrap(), bytes(50_000, 2));
    assert!(!site.path().join("result").exists());
    let again = fs::File::open(dead.mount().join("locked")).unwrap();
    flock(&again, FlockOperation::NonBlockingLockExclusive).unwrap();
    drop((again, locked, nameless));
    dead.camp.place().run(&["flush", part.to_str().unwrap()]).succeeds();
    assert_eq!(fs::read(site.path().join("result")).unwrap(), bytes(50_000, 2));
    assert_eq!(fs::read(site.path().join("input")).unwrap(), b"mine");
    wait_until("what has no name is gone", || {
        let said = dead.camp.run("fsck", &["--json"]);
        serde_json::from_str::<serde_json::Value>(&said.out).unwrap_or_default()["totals"]["inodes"] == 12
    });
    dead.down();
}

/// S290, S291, S293, S298: the state file goes with a reboot.
#[test]
fn after_a_reboot_the_disks_are_enough() {
    let Some(mut dead) = Dead::start(&["--nodes", "2", "--stripe", "4k"]) else { return };
    dead.fill();
    dead.kill();
    dead.reboot();
    let listed = dead.listed();
    assert_eq!((&listed["state"], &listed["directory"]), (&"recoverable".into(), &serde_json::Value::Null));
    dead.camp.run("up", &["--no-mount"]).fails(3, &["bivouac recover"]);
    assert!(dead.camp.place().is_empty(), "nothing is left of the attempt");
    dead.camp.run("down", &["--yes"]).fails(3, &["its state is gone"]);
    dead.recover(&[]);
    dead.check();
    // The same without a note of where they are, and elsewhere.
    dead.kill();
    dead.reboot();
    dead.forget();
    assert_eq!(dead.run(&[dead.camp.name()]).code, 1);
    let moved = tempfile::tempdir().unwrap();
    for node in ["n0", "n1"] {
        let said = std::process::Command::new("cp")
            .arg("-a")
            .arg(dead.disk.path().join(node))
            .arg(moved.path())
            .status();
        assert!(said.unwrap().success());
    }
    dead.recover(&["--volume", moved.path().to_str().unwrap()]);
    dead.check();
    dead.down();
    assert!(moved.path().join("n0").exists(), "a directory that the formation did not make stays");
    assert_eq!(fs::read_dir(moved.path().join("n0")).unwrap().count(), 0);
}

/// S290: memory outlives the processes, and the directory of the state.
#[test]
fn memory_that_is_still_there_is_enough() {
    let Some(mut dead) = Dead::in_memory(&["--nodes", "2", "--stripe", "4k"]) else { return };
    dead.fill();
    dead.kill();
    {
        // Without a state it would be reaped from elsewhere.
        let _alone = reaping();
        dead.log_out();
        assert_eq!(dead.listed()["state"], "recoverable");
        dead.recover(&[]);
    }
    dead.check();
    dead.kill();
    dead.recover(&[]);
    dead.check();
    dead.down();
}

/// S295: sizes that were told in memory, by a program that lives on.
#[test]
fn sizes_that_were_told_directly_outlive_supervisor_and_daemons() {
    let Some(dead) = Dead::start(&["--nodes", "2", "--stripe", "64k"]) else { return };
    let writer = library(&dead.camp.dir());
    let ino = create(&writer, "file");
    for number in 0..200 {
        write(&writer, ino, number * 4096, &bytes(4096, number));
    }
    let grows = |path: &Path| path.metadata().unwrap().len();
    assert_eq!(grows(&dead.mount().join("file")), 200 * 4096);
    dead.kill();
    // It goes on for as long as it can.
    let more = (200..220).take_while(|number| {
        writer
            .write(
                &crate::harness::library::ctx(&writer),
                ino,
                *number as u64 * 4096,
                &bytes(4096, *number),
                false,
            )
            .is_ok()
    });
    let end = 200 + more.count();
    dead.recover(&[]);
    let path = dead.mount().join("file");
    assert_eq!(grows(&path) as usize, end * 4096);
    let content = fs::read(&path).unwrap();
    for number in 0..end {
        assert_eq!(content[number * 4096..(number + 1) * 4096], bytes(4096, number), "{number}");
    }
    // The program belongs to the dead: what it writes from now on is refused.
    let late = writer.write(&crate::harness::library::ctx(&writer), ino, 0, b"late", false);
    assert!(late.is_err(), "{late:?}");
    assert_eq!(fs::read(&path).unwrap(), content);
    let other = library(&dead.camp.dir());
    open(&other, ino);
    write(&other, ino, end * 4096, &bytes(4096, end));
    assert_eq!(read(&other, ino, end * 4096, 4096), bytes(4096, end));
    other.leave();
    assert_eq!(path.metadata().unwrap().size() as usize, (end + 1) * 4096);
    dead.down();
}

/// S300: what a mount had in its page pool goes with everything; what was closed or synced does not.
#[test]
fn what_the_session_contract_has_acknowledged_is_there() {
    let Some(dead) = Dead::start(&["--nodes", "2", "--stripe", "4k"]) else { return };
    let dir = dead.mount().join("session");
    let said =
        dead.camp.place().run(&["partition", "create", dir.to_str().unwrap(), "--contract", "session"]);
    assert_eq!(said.code, 0, "{}", said.err);
    fs::write(dir.join("closed"), bytes(50_000, 1)).unwrap();
    let mut synced = fs::File::create(dir.join("synced")).unwrap();
    std::io::Write::write_all(&mut synced, &bytes(60_000, 2)).unwrap();
    synced.sync_all().unwrap();
    let mut open = fs::File::create(dir.join("open")).unwrap();
    std::io::Write::write_all(&mut open, &bytes(70_000, 3)).unwrap();
    dead.kill();
    drop((synced, open));
    dead.recover(&[]);
    assert!(fs::read(dir.join("closed")).unwrap() == bytes(50_000, 1));
    assert!(fs::read(dir.join("synced")).unwrap() == bytes(60_000, 2));
    let left = fs::read(dir.join("open")).unwrap();
    let whole = bytes(70_000, 3);
    assert!(left.len() <= whole.len() && left.iter().zip(&whole).all(|(is, was)| is == was || *is == 0));
    dead.check();
    dead.down();
}

/// S290, S292: several volumes of each node, and another mount point.
#[test]
fn a_formation_with_several_volumes_comes_back_where_it_is_wanted() {
    let second = tempfile::tempdir().unwrap();
    let volume = format!("{}:64m", second.path().display());
    let Some(mut dead) = Dead::start(&["--nodes", "2", "--stripe", "4k", "--volume", &volume]) else {
        return;
    };
    dead.fill();
    dead.kill();
    let said = dead.camp.run("status", &[]);
    let says = format!("have it back: bivouac recover {}", dead.camp.name());
    assert!(said.out.contains(&says), "{}", said.out);
    dead.reboot();
    let place = tempfile::tempdir().unwrap();
    dead.recover(&["--mount", place.path().to_str().unwrap(), "--ttl", "1h"]);
    assert_eq!(fs::read(place.path().join("deep/er/three")).unwrap(), bytes(60_010, 2));
    assert!(!dead.mount().exists(), "it is mounted only there");
    let status = dead.camp.status();
    assert!(status["ends_unix_ms"].as_u64().is_some(), "{status}");
    assert_eq!(dead.listed()["mounts"][0]["dir"], place.path().to_str().unwrap());
    dead.camp.run("fsck", &[]).succeeds();
    dead.down();
    assert_eq!(fs::read_dir(second.path()).unwrap().count(), 0);
}
