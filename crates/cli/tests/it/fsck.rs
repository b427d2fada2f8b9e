//! `bivouac fsck` as its users call it: messages, exit codes, and what is on the volumes afterwards.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::harness::{Camp, Place, can_mount, signal, text, wait_until};
use rustix::process::Signal;
use serde_json::Value;

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31 + seed * 7 + i / 251) % 256) as u8).collect()
}

/// A formation of three nodes on directories of its own, with files, and where the volumes are.
struct Site {
    camp: Camp,
    volumes: Vec<PathBuf>,
    _disk: tempfile::TempDir,
    /// Inode and content by path below the mount.
    files: BTreeMap<String, (u64, Vec<u8>)>,
}

impl Site {
    fn new() -> Option<Site> {
        if !can_mount() {
            return None;
        }
        let disk = tempfile::tempdir().unwrap();
        let volume = format!("{}:64m", disk.path().display());
        let arguments = ["--nodes", "3", "--stripe", "4k", "--volume", &volume];
        let camp = Camp::start(&arguments)?;
        let mut files = BTreeMap::new();
        for (at, path) in ["one", "deep/two", "deep/er/three", "four"].into_iter().enumerate() {
            let (full, content) = (camp.mount().join(path), pattern(20_000 * at + 10, at));
            std::fs::create_dir_all(full.parent().unwrap()).unwrap();
            std::fs::write(&full, &content).unwrap();
            files.insert(path.to_owned(), (full.metadata().unwrap().ino(), content));
        }
        let volumes = (0..3).map(|node| disk.path().join(format!("n{node}"))).collect();
        Some(Site { camp, volumes, _disk: disk, files })
    }

    /// Kills everything, as a power failure would.
    fn run(&self, arguments: &[&str]) -> crate::harness::Said {
        let all: Vec<&str> = ["fsck"].iter().chain(arguments).copied().collect();
        self.camp.place().run(&all)
    }

    fn subfile(&self, path: &str) -> PathBuf {
        let ino = self.files[path].0;
        let names = (0..3u16).map(|target| {
            self.volumes[usize::from(target)].join(format!("{:02x}/{ino:016x}-{target:04x}", ino & 0xff))
        });
        names.into_iter().find(|path| path.exists()).unwrap()
    }
}

#[test]
fn a_running_formation_is_checked_and_left_alone() {
    let Some(site) = Site::new() else { return };
    let said = site.run(&[site.camp.name()]).succeeds();
    assert!(
        said.out.ends_with("no findings\n") && said.out.contains("3 nodes: 7 inodes, 3 of them"),
        "{}",
        said.out
    );
    let said = site.camp.run("fsck", &["--json"]);
    let report: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((said.code, &report["exit_code"]), (0, &Value::from(0)));
    assert_eq!(
        (&report["totals"]["inodes"], report["findings"].as_array().unwrap().len()),
        (&Value::from(7), 0)
    );
    for place in [site.camp.dir().to_str().unwrap(), text(&site.volumes[0])] {
        let said = site.run(&["--offline", place]).fails(8, &[]);
        let says = said.err.contains("is running; check it with `bivouac fsck t")
            || said.err.contains("n0: in use by another daemon; bring that one down first");
        assert!(says, "{}", said.err);
    }
    // A directory that is called like the formation does not hide it.
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join(site.camp.name())).unwrap();
    let mut command = site.camp.place().command(&["fsck", "--offline", site.camp.name()]);
    let said = command.current_dir(dir.path()).output().unwrap();
    assert!(String::from_utf8_lossy(&said.stderr).contains("is running; check it with"), "{said:?}");
    for (path, (_, content)) in &site.files {
        assert_eq!(std::fs::read(site.camp.mount().join(path)).unwrap(), *content, "{path}");
    }
    site.camp.down();
}

#[test]
fn damage_is_found_on_a_running_formation_and_repaired_on_a_stopped_one() {
    let Some(site) = Site::new() else { return };
    let subfile = site.subfile("deep/er/three");
    let file = std::fs::File::options().write(true).open(&subfile).unwrap();
    file.write_all_at(b"junk", 20).unwrap();
    let said = site.run(&[site.camp.name()]).fails(4, &[]).prints(&["bad-header", "/deep/er/three"]);
    assert!(said.out.ends_with("1 findings: 0 repaired, 1 left\n"), "{}", said.out);
    site.camp.kill_all();
    let offline = |more: &[&str]| {
        let all: Vec<&str> = ["--offline", site.camp.name(), "--json"].iter().chain(more).copied().collect();
        let said = site.run(&all);
        let report: Value = serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{}", said.err));
        let first = &report["findings"][0];
        (said.code, first["kind"].clone(), first["outcome"].clone())
    };
    let of = |kind: &str, outcome: &str| (Value::from(kind), Value::from(outcome));
    let (kind, outcome) = of("bad-header", "repairable");
    assert_eq!(offline(&[]), (4, kind.clone(), outcome.clone()));
    assert_eq!(offline(&[]), (4, kind.clone(), outcome), "a look changes nothing");
    assert_eq!(offline(&["--repair"]), (1, kind, Value::from("repaired")));
    assert_eq!(offline(&["--repair"]), (0, Value::Null, Value::Null));
    // Without the state the map is worked out; a directory stands for the volumes in it.
    let parent = text(site.volumes[0].parent().unwrap()).to_owned();
    site.run(&["--offline", &parent]).succeeds();
    site.run(&["--offline", text(&site.volumes[0]), text(&site.volumes[2])])
        .fails(8, &[])
        .prints(&["not checked: volume 0 of node 1 was not given\n"]);
    let rebuilt = site.camp.place().path().join("rebuilt");
    std::fs::remove_dir_all(site.volumes[1].join("records")).unwrap();
    site.run(&["--from-subfiles", &parent, "--out", text(&rebuilt)])
        .succeeds()
        .prints(&["4 files in ", "4 of them complete"]);
    for (path, (ino, content)) in &site.files {
        assert_eq!(std::fs::read(rebuilt.join(format!("{ino:016x}"))).unwrap(), *content, "{path}");
    }
    site.run(&["--from-subfiles", &parent, "--out", text(&rebuilt)])
        .fails(16, &["is not empty; name an empty directory, or one to be made"]);
}

/// S310. The supervisor gave the node up after five starts in a second, and nothing could bring it back.
#[test]
fn a_node_with_damaged_records_serves_again_once_they_are_repaired() {
    let Some(site) = Site::new() else { return };
    let volume = &site.volumes[1];
    let is_log = |path: &PathBuf| text(path).contains("/records/log-");
    let entries = std::fs::read_dir(volume.join("records")).unwrap();
    let log = entries.map(|entry| entry.unwrap().path()).find(is_log).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&log).unwrap();
    let (at, mut byte) = (file.metadata().unwrap().len() / 2, [0]);
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 4], at).unwrap();
    signal(site.camp.node_pid(1), Signal::KILL);
    let status = || site.camp.status()["nodes"][1].to_string();
    wait_until("it is said what is damaged", || status().contains("fsck"));
    let deaths = || site.camp.status()["nodes"][1]["deaths"].as_u64().unwrap();
    // More often than a daemon may die that crashes.
    wait_until("it is tried again and again", || deaths() > 6);
    wait_until("the next one is to start", || status().contains("restarting"));
    wait_until("no daemon has the volume", || {
        let said = site.run(&["--offline", "--repair", text(volume)]);
        if format!("{}{}", said.out, said.err).contains("in use by another daemon") {
            return false;
        }
        said.prints(&["records", "repaired"]);
        true
    });
    wait_until("it serves again", || site.camp.state() == "running");
    for (path, (_, content)) in &site.files {
        assert_eq!(std::fs::read(site.camp.mount().join(path)).unwrap(), *content, "{path}");
    }
    site.camp.down();
}

#[test]
fn what_makes_no_sense_or_cannot_be_looked_at_has_its_exit_code() {
    let place = Place::new();
    let dir = tempfile::tempdir().unwrap();
    let empty = text(dir.path());
    for (arguments, code, says) in [
        (&["--repair"][..], 16, "--offline"),
        (&["--from-subfiles", "/v"], 16, "--out"),
        (&["--offline", "--from-subfiles", "/v", "--out", "/o"], 16, "cannot be used with"),
        (&["a", "b"], 16, "more than one formation is named"),
        (&["no/name"], 16, "is no formation"),
        (&["--offline", empty], 16, "is no volume, nor are directories in it"),
        (&["--offline", "/nonexistent/x"], 16, "/nonexistent/x: is not there"),
        (&["nowhere"], 8, "formation nowhere is not running"),
        (&[], 8, "no formation is running"),
    ] {
        let all: Vec<&str> = ["fsck"].iter().chain(arguments).copied().collect();
        let said = place.run(&all);
        assert_eq!(said.code, code, "{arguments:?}: {}{}", said.out, said.err);
        assert!(said.err.contains(says), "{arguments:?}: {}", said.err);
    }
    assert_eq!(place.run(&["fsck", "--help"]).code, 0);
    assert_eq!(place.run(&["status", "--nonsense"]).code, 2);
}

/// One change through a mount, with names that others use too; being refused is part of it.
fn change(mount: &Path, dice: &mut u64) {
    let mut next = |below: u64| {
        *dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*dice >> 33) % below
    };
    let mut place = || mount.join(format!("d{}/n{}", next(4), next(8)));
    let (one, two) = (place(), place());
    let refused = match next(8) {
        0 | 1 => std::fs::write(&one, pattern(next(40_000) as usize, 3)),
        2 => std::fs::rename(&one, &two),
        3 => std::fs::remove_file(&one),
        4 => std::fs::create_dir(&one),
        5 => std::fs::remove_dir(&one),
        6 => std::fs::hard_link(&one, &two),
        _ => std::fs::File::options().write(true).open(&one).and_then(|file| file.set_len(next(20_000))),
    };
    let _ = refused;
}

#[test]
fn nothing_is_found_while_four_mounts_are_in_use() {
    const CHANGES: u64 = 2_000;
    let Some(camp) = Camp::start_each(&["--nodes", "4", "--stripe", "4k"]) else { return };
    (0..4).for_each(|i| std::fs::create_dir(camp.mount().join(format!("d{i}"))).unwrap());
    let (over, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    let reports = std::thread::scope(|scope| {
        scopeguard::defer! { over.store(true, Ordering::Relaxed) }
        for (at, mount) in camp.mounts().iter().enumerate() {
            let (over, changes) = (&over, &changes);
            scope.spawn(move || {
                let mut dice = at as u64 + 1;
                while !over.load(Ordering::Relaxed) {
                    change(mount, &mut dice);
                    changes.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut reports = Vec::new();
        while changes.load(Ordering::Relaxed) < CHANGES || reports.len() < 5 {
            reports.push(camp.run("fsck", &["--json"]));
        }
        reports
    });
    for said in reports.into_iter().chain([camp.run("fsck", &["--json"])]) {
        assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    }
    camp.down();
}
