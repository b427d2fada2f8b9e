//! Volumes that come back without a part of what they had.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde_json::Value;

use crate::harness::Place;
use crate::recover::dead::{Dead, bytes};

/// The directories of a volume that have subfiles.
fn dirs(volume: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(volume).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.file_name().is_some_and(|name| name.len() == 2)).collect()
}

fn findings(said: &str) -> Vec<(String, String)> {
    let report: Value = serde_json::from_str(said).unwrap_or_else(|_| panic!("{said}"));
    let one = |finding: &Value| {
        let text = |key: &str| finding[key].as_str().unwrap().to_owned();
        (text("kind"), text("object"))
    };
    let mut all: Vec<_> = report["findings"].as_array().unwrap().iter().map(one).collect();
    all.sort();
    all
}

/// S580.
#[test]
fn what_a_volume_came_back_without_is_an_error_and_no_hole() {
    let Some(mut dead) = Dead::start(&["--nodes", "2", "--stripe", "4k"]) else { return };
    dead.fill();
    dead.write("whole", bytes(3000, 9));
    let holes = fs::File::create(dead.mount().join("holes")).unwrap();
    holes.set_len(100_000).unwrap();
    drop(holes);
    dead.kill();
    let volume = dead.disk.path().join("n1");
    for dir in dirs(&volume) {
        fs::remove_dir_all(dir).unwrap();
    }
    let offline = dead.camp.place().run(&["fsck", "--offline", dead.camp.name(), "--json"]).fails(4, &[]);
    let found = findings(&offline.out);
    assert!(found.iter().all(|(kind, _)| kind == "missing-subfile"), "{found:?}");
    let names: Vec<&str> = found.iter().map(|(_, object)| object.as_str()).collect();
    assert!(names.contains(&"/deep/two") && names.contains(&"/deep/er/three"), "{names:?}");
    dead.run(&[dead.camp.name()]).succeeds().tells(&["are not there any more", "bivouac fsck"]);
    for path in ["deep/two", "deep/er/three"] {
        let error = fs::read(dead.mount().join(path)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()), "{path}");
    }
    assert!(fs::read(dead.mount().join("holes")).unwrap() == vec![0; 100_000], "a hole is one as before");
    let online = dead.camp.run("fsck", &["--json"]);
    assert_eq!((online.code, &findings(&online.out)), (4, &found), "{}", online.err);
    let lost = dead.camp.status()["nodes"][1]["damage"]["lost"].as_u64().unwrap();
    assert_eq!(lost as usize, names.len());
    let status = dead.camp.run("status", &[]).out;
    assert!(status.contains(&format!("{lost} subfiles that its volumes had")), "{status}");
    // A new content is a new content.
    fs::write(dead.mount().join("deep/two"), bytes(20_000, 3)).unwrap();
    assert_eq!(fs::read(dead.mount().join("deep/two")).unwrap(), bytes(20_000, 3));
    for name in names.iter().filter(|name| **name != "/deep/two") {
        fs::remove_file(dead.mount().join(&name[1..])).unwrap();
    }
    crate::harness::wait_until("nothing is missed any more", || dead.camp.run("fsck", &[]).code == 0);
    dead.down();
}

/// S581: a kill of everything, at any moment, makes nobody miss anything.
#[test]
fn nothing_is_missed_that_was_never_there() {
    let Some(mut dead) = Dead::start(&["--nodes", "2", "--stripe", "4k"]) else { return };
    dead.fill();
    for round in 0..3 {
        let dir = dead.mount().join(format!("round{round}"));
        fs::create_dir(&dir).unwrap();
        let making = std::thread::spawn(move || {
            for at in 0.. {
                let path = dir.join(at.to_string());
                let made = fs::write(&path, bytes(at % 9000, at));
                if made.is_err() || at % 3 == 0 && fs::remove_file(&path).is_err() {
                    return at;
                }
            }
            0
        });
        let some = dead.mount().join(format!("round{round}/100"));
        crate::harness::wait_until("some files are there", || some.exists());
        dead.kill();
        assert!(making.join().unwrap() >= 100);
        let offline = dead.camp.place().run(&["fsck", "--offline", dead.camp.name(), "--json"]);
        let missed =
            findings(&offline.out).into_iter().filter(|(kind, _)| kind.starts_with("missing-")).count();
        assert_eq!(missed, 0, "{}", offline.out);
        let said = dead.run(&[dead.camp.name()]);
        assert!(said.code == 0 && !said.err.contains("any more"), "{}", said.err);
        assert_eq!(dead.camp.status()["nodes"][0]["damage"], Value::Null);
    }
    dead.check();
    dead.down();
}

/// S582.
#[test]
fn a_volume_that_does_not_say_what_it_had_is_refused_until_somebody_decides() {
    let Some(mut dead) = Dead::start(&["--nodes", "2", "--stripe", "4k"]) else { return };
    dead.fill();
    dead.kill();
    fs::remove_file(dead.disk.path().join("n1/bivouac-subfiles")).unwrap();
    let before = dead.on_disk();
    dead.run(&[dead.camp.name()]).fails(1, &["was not copied whole"]);
    assert_eq!(dead.on_disk(), before);
    let fsck = |more: &[&str]| {
        let said =
            dead.camp.place().run(&[&["fsck", "--offline", dead.camp.name(), "--json"], more].concat());
        (said.code, findings(&said.out).iter().map(|(kind, _)| kind.clone()).collect::<Vec<_>>())
    };
    assert_eq!(fsck(&[]), (4, vec!["missing-table".to_owned()]));
    assert_eq!(fsck(&["--repair"]).1, ["missing-table"]);
    assert_eq!(fsck(&[]), (0, vec![]));
    dead.recover(&[]);
    dead.check();
    dead.down();
}

#[test]
fn places_that_are_no_volumes_are_said_to_be_none() {
    let place = Place::new();
    let empty = tempfile::tempdir().unwrap();
    let closed = tempfile::tempdir().unwrap();
    fs::create_dir(closed.path().join("d")).unwrap();
    let thread = format!("/proc/{}/task", std::process::id());
    for dir in ["/proc", "/sys", "/dev", "/proc/self/fd", thread.as_str(), "/dev/null", "/etc/passwd", "/"]
        .into_iter()
        .chain([empty.path().to_str().unwrap(), closed.path().to_str().unwrap()])
    {
        let said = place.run(&["recover", "--volume", dir, "--no-mount"]);
        let says = format!("{dir}: is no volume, nor has any in it");
        assert!(said.code == 2 && said.err.contains(&says), "{}", said.err);
        assert!(said.err.contains("name the volumes of the formation"), "{}", said.err);
        assert!(!said.err.contains("not writable"), "{}", said.err);
    }
    assert!(place.is_empty(), "nothing is made");
}
