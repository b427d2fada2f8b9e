//! Partitions of real formations, with the commands that users have.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::harness::{Camp, Place, Said, can_mount, signal, text, wait_until};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use rustix::process::Signal;
use serde_json::Value;

/// A formation of four nodes on volumes of its own.
fn four(volumes: &Path) -> Option<Camp> {
    Camp::start_each(&["--nodes", "4", "--volume", &format!("{}:64m", volumes.display())])
}

fn partition(camp: &Camp, arguments: &[&str]) -> Said {
    camp.place().run(&[&["partition"], arguments].concat())
}

fn json(said: &Said) -> Value {
    serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {} {}", said.out, said.err))
}

/// Local files of subfiles on a node's volume.
fn subfiles(volumes: &Path, node: u16) -> Vec<PathBuf> {
    let dirs =
        std::fs::read_dir(volumes.join(format!("n{node}"))).unwrap().map(|entry| entry.unwrap().path());
    let is_subfiles = |path: &PathBuf| path.file_name().is_some_and(|name| name.len() == 2) && path.is_dir();
    let files = |dir: PathBuf| std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    dirs.filter(is_subfiles).flat_map(files).collect()
}

fn content(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 911 + seed) as u8).collect()
}

#[test]
fn files_of_a_partition_are_on_its_volumes_over_restarts_and_kills() {
    let volumes = tempfile::tempdir().unwrap();
    let Some(camp) = four(volumes.path()) else { return };
    let dir = camp.mount().join("chk");
    let said = partition(&camp, &["create", text(&dir), "--nodes", "2,1", "--stripe", "64k"]);
    assert_eq!(
        (said.code, said.out.as_str()),
        (0, "partition 1 is /chk over 2 targets, on nodes 2, 1\n"),
        "{}",
        said.err
    );
    for (index, mount) in camp.mounts().iter().enumerate() {
        let below = mount.join("chk").join(format!("d{index}"));
        std::fs::create_dir(&below).unwrap();
        std::fs::write(below.join("f"), content(1 << 20, index)).unwrap();
    }
    std::fs::write(camp.mount().join("outside"), content(5 << 20, 9)).unwrap();
    // The parts are named after the partition, and lie on its nodes alone.
    let of_partition =
        |path: &PathBuf| path.file_name().and_then(OsStr::to_str).unwrap().contains("-0001000");
    for (node, count) in [(0, 0), (1, 4), (2, 4), (3, 0)] {
        let found = subfiles(volumes.path(), node);
        assert_eq!(found.iter().filter(|path| of_partition(path)).count(), count, "node {node}: {found:?}");
        assert_eq!(found.len(), count + 1, "node {node} has its part of the file outside: {found:?}");
    }
    let pids: Vec<u64> = (0..4).map(|node| camp.node_pid(node)).collect();
    pids.iter().for_each(|pid| signal(*pid, Signal::KILL));
    (0..4).for_each(|node| wait_until("another daemon serves", || camp.node_pid(node) != pids[node]));
    for mount in camp.mounts() {
        for index in 0..4 {
            let bytes = std::fs::read(mount.join("chk").join(format!("d{index}/f"))).unwrap();
            assert!(bytes == content(1 << 20, index));
        }
    }
    std::fs::write(camp.mounts()[3].join("chk/d0/after"), content(300_000, 5)).unwrap();
    assert_eq!([0, 3].map(|node| subfiles(volumes.path(), node).len()), [1, 1]);
    let file = dir.join("d2/f");
    let explained = json(&camp.place().run(&["explain", "--json", "--offset", "65536", text(&file)]));
    assert_eq!(explained["partition"]["nodes"], serde_json::json!([2, 1]));
    let nodes: Vec<u64> = explained["targets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|target| target["node"].as_u64().unwrap())
        .collect();
    assert!(nodes == [2, 1] || nodes == [1, 2], "{explained}");
    assert_eq!(explained["byte"]["node"], nodes[1]);
    let shown = camp.place().run(&["explain", text(&dir)]).out;
    assert!(shown.contains("partition 1: 2 targets, on nodes 2, 1\n"), "{shown}");
    assert!(shown.contains("stripes of 64 KiB over 2 of 2 targets"), "{shown}");
    // Partitions are shown once all nodes answer in time.
    wait_until("status shows it", || camp.run("status", &[]).out.contains("/chk  2, 1"));
    wait_until("status has its path", || camp.status()["partitions"][0]["path"] == "/chk");
    camp.run("fsck", &[]).succeeds();
    camp.down();
}

#[test]
fn nothing_is_renamed_or_linked_across() {
    let volumes = tempfile::tempdir().unwrap();
    let Some(camp) = four(volumes.path()) else { return };
    for (index, mount) in camp.mounts().iter().enumerate() {
        let (one, other) = (mount.join(format!("one{index}")), mount.join(format!("other{index}")));
        assert_eq!(partition(&camp, &["create", text(&one), "--nodes", "2"]).code, 0);
        std::fs::create_dir(&other).unwrap();
        std::fs::write(one.join("f"), "inside").unwrap();
        std::fs::write(other.join("g"), "outside").unwrap();
        let crosses = |result: std::io::Result<()>| {
            result.unwrap_err().raw_os_error() == Some(Errno::XDEV.raw_os_error())
        };
        assert!(crosses(std::fs::rename(one.join("f"), other.join("f"))));
        assert!(crosses(std::fs::rename(other.join("g"), one.join("f"))));
        assert!(crosses(std::fs::hard_link(one.join("f"), other.join("h"))));
        assert!(crosses(std::fs::hard_link(other.join("g"), one.join("h"))));
        let exchanged = renameat_with(CWD, one.join("f"), CWD, other.join("g"), RenameFlags::EXCHANGE);
        assert_eq!(exchanged, Err(Errno::XDEV));
        // What people do instead works: mv copies.
        let moved = std::process::Command::new("mv").arg(one.join("f")).arg(&other).status().unwrap();
        assert!(moved.success() && !one.join("f").exists());
        assert_eq!(std::fs::read(other.join("f")).unwrap(), b"inside");
    }
    camp.down();
}

#[test]
fn a_partition_is_shown_changed_and_removed() {
    let volumes = tempfile::tempdir().unwrap();
    let Some(camp) = four(volumes.path()) else { return };
    let dir = camp.mount().join("part");
    assert_eq!(
        partition(&camp, &["list", "--name", camp.name()]).out,
        "no partitions but the formation's own, over all targets\n"
    );
    let create =
        ["create", text(&dir), "--nodes", "0-1", "--capacity", "2m", "--rule", "*.h5: stripe=128k", "--json"];
    let made = json(&partition(&camp, &create));
    assert_eq!(made[0]["targets"], serde_json::json!([[0, 0], [1, 0]]));
    let space = rustix::fs::statvfs(&dir).unwrap();
    assert_eq!(space.f_blocks * space.f_frsize, 2 << 20);
    assert!(rustix::fs::statvfs(camp.mount()).unwrap().f_blocks > space.f_blocks);
    let full = std::fs::write(dir.join("big"), content(3 << 20, 1)).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(Errno::DQUOT.raw_os_error()));
    std::fs::write(camp.mount().join("big"), content(3 << 20, 1)).unwrap();
    std::fs::remove_file(dir.join("big")).unwrap();
    std::fs::write(dir.join("a.h5"), "x").unwrap();
    let layout = |path: &Path| {
        let mut value = [0; 256];
        let len = rustix::fs::getxattr(path, "user.bivouac.layout", &mut value).unwrap();
        String::from_utf8_lossy(&value[..len]).into_owned()
    };
    assert!(layout(&dir.join("a.h5")).starts_with("stripe=131072 "));
    let set = partition(&camp, &["set", text(&dir), "--stripe", "16k", "--rule", "none"]);
    assert!(
        set.code == 0 && set.out.contains("stripe = 16k\n") && !set.out.contains("rule"),
        "{}{}",
        set.out,
        set.err
    );
    std::fs::write(dir.join("b.h5"), "x").unwrap();
    assert!(layout(&dir.join("b.h5")).starts_with("stripe=16384 "));
    assert_eq!(layout(&dir), "stripe=16384 width=2 placement=partition partition=1");
    let shown = partition(&camp, &["show", text(&dir.join("b.h5"))]);
    assert!(shown.out.starts_with("partition 1: /part\n2 targets, on nodes 0, 1\n"), "{}", shown.out);
    let listed = partition(&camp, &["list", "--name", camp.name(), "--json"]);
    assert_eq!(json(&listed)[0]["settings"][0], serde_json::json!(["stripe", "16k"]));
    partition(&camp, &["remove", text(&dir)]).fails(1, &["/part: has files"]);
    assert_eq!(std::fs::read(dir.join("b.h5")).unwrap(), b"x");
    std::fs::remove_file(dir.join("a.h5")).unwrap();
    std::fs::remove_file(dir.join("b.h5")).unwrap();
    let removed = partition(&camp, &["remove", text(&dir)]);
    assert_eq!(removed.out, "partition 1 is gone, with its directory /part\n", "{}", removed.err);
    assert!(!dir.exists());
    // By the formation's name, without its mount.
    let said =
        partition(&camp, &["create", "/part", "--name", camp.name(), "--for", "100m", "--keep", "0.8"]);
    assert!(
        said.out.starts_with(
            "2 of 4 nodes: F·k/D = 100 MiB / (0.8 · 64 MiB) = 1.95\npartition 2 is /part over 2"
        ),
        "{} {}",
        said.out,
        said.err
    );
    camp.down();
}

#[test]
fn volumes_are_shared_out_among_clients() {
    let places: Vec<tempfile::TempDir> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
    let volumes: Vec<String> = places.iter().map(|dir| format!("{}:32m", dir.path().display())).collect();
    let mut arguments = vec!["--nodes", "4"];
    volumes.iter().for_each(|volume| arguments.extend(["--volume", volume]));
    let Some(camp) = Camp::start(&arguments) else { return };
    for (way, groups) in [("--dedicated", 4), ("--semi-dedicated", 2), ("--shared", 1)] {
        let dir = camp.mount().join(&way[2..]);
        let made = json(&partition(
            &camp,
            &["create", text(&dir), way, "--clients", "4", "--stripe", "64k", "--json"],
        ));
        let made = made.as_array().unwrap();
        assert_eq!(made.len(), groups, "{way}");
        let targets: Vec<&Value> = made.iter().flat_map(|one| one["targets"].as_array().unwrap()).collect();
        assert_eq!(targets.len(), groups * 4);
        assert_eq!(
            targets.iter().collect::<std::collections::HashSet<_>>().len(),
            targets.len(),
            "no volume twice"
        );
        (0..groups).for_each(|group| {
            std::fs::write(dir.join(format!("{group}/f")), content(400_000, group)).unwrap()
        });
    }
    let dirs = ["dedicated", "semi-dedicated", "shared"].map(|way| camp.mount().join(way));
    let mut bench = vec![
        "bench",
        "io",
        "--grouped",
        "--procs",
        "4",
        "--mode",
        "own",
        "--size",
        "256k",
        "--transfer",
        "64k",
    ];
    bench.extend(["--reps", "1", "--ops", "write,read", "--verify"]);
    bench.extend(dirs.iter().map(|dir| text(dir)));
    camp.place().run(&bench).succeeds().prints(&["semi-dedicated"]);
    let many = camp.mount().join("many");
    partition(&camp, &["create", text(&many), "--dedicated", "--clients", "5"])
        .tells(&["5 clients, 1 to 4 volumes, need 20 volumes, and there are 16"]);
    assert!(!many.exists());
    camp.down();
}

/// S212.
#[test]
fn what_cannot_be_is_refused_and_nothing_is_left() {
    let volumes = tempfile::tempdir().unwrap();
    let Some(camp) = four(volumes.path()) else { return };
    let (dir, full) = (camp.mount().join("part"), camp.mount().join("full"));
    std::fs::create_dir(&full).unwrap();
    std::fs::write(full.join("f"), "x").unwrap();
    let (dir, full, file) = (text(&dir), text(&full), text(&full.join("f")).to_owned());
    let root = text(camp.mount());
    for (arguments, code, says) in [
        (&["create", dir, "--nodes", "9,"][..], 1, "node 9 is not there"),
        (&["create", dir, "--nodes", "5"], 1, "5 nodes are asked for, and 4 are there"),
        (&["create", dir, "--nodes", "x"], 2, "neither a number of nodes (4) nor a list"),
        (&["create", dir, "--nodes", "1", "--for", "1g"], 2, "cannot be used with"),
        (&["create", dir, "--keep", "0.5"], 2, "--for"),
        (&["create", dir, "--for", "1g", "--keep", "2"], 2, "'2' is not a part of a whole"),
        (&["create", dir, "--width", "5"], 1, "width 5 is more than its 4 targets"),
        (&["create", dir, "--stripe", "5000"], 2, "not a multiple of 4096"),
        (&["create", dir, "--placement", "far"], 2, "none of striped, local, hashed"),
        (&["create", dir, "--source", "s3://bucket/prefix"], 1, "no credentials: set AWS_ACCESS_KEY_ID"),
        (&["create", dir, "--rule", "*.h5"], 2, "not of the form"),
        (&["create", dir, "--dedicated"], 2, "--clients"),
        (&["create", full], 1, "/full: the directory has 1 entries"),
        (&["create", &file], 1, "not a directory"),
        (&["create", root], 1, "the formation's own directory"),
        (&["create", "/etc/part"], 1, "is not in a mounted formation"),
        (&["create", &format!("{dir}/none/below")], 1, "check its path"),
        (&["show", full], 1, "is in no partition but the formation's own"),
        (&["set", full, "--stripe", "4k"], 1, "is in no partition"),
        (&["remove", full], 1, "is in no partition"),
        (&["show", dir], 1, "no such file"),
        (&["list", "--name", "none"], 1, "none"),
    ] {
        let said = partition(&camp, arguments);
        assert_eq!(said.code, code, "{arguments:?}: {}{}", said.out, said.err);
        assert!(said.err.contains(says), "{arguments:?}: {}", said.err);
        assert!(!Path::new(dir).exists(), "{arguments:?}");
    }
    assert_eq!(partition(&camp, &["create", dir]).code, 0);
    let inside = format!("{dir}/sub");
    std::fs::create_dir(&inside).unwrap();
    for (arguments, says) in [
        (&["create", dir][..], "is that of partition 1 already"),
        (&["set", dir], "nothing is to be set"),
        (&["set", &inside, "--stripe", "4k"], "is inside a partition, not its directory; name /part"),
        (&["remove", &inside], "is inside a partition"),
        (&["set", dir, "--volumes", "disk"], "chosen when it is made"),
        (&["set", dir, "--contract", "session"], "chosen when it is made"),
    ] {
        let said = partition(&camp, arguments);
        assert!(said.code > 0 && said.err.contains(says), "{arguments:?}: {}", said.err);
    }
    camp.down();
}

#[test]
fn daemons_that_are_killed_while_partitions_are_made_make_them_wholly_or_not_at_all() {
    if !can_mount() {
        return;
    }
    let volumes = tempfile::tempdir().unwrap();
    let volume = format!("{}:64m", volumes.path().display());
    let camp = Camp::start_in(Place::new(), &["--nodes", "3", "--volume", &volume, "--wait", "10s"]);
    let mut random = crate::harness::random::Random::new(7);
    for round in 0..6 {
        let dir = camp.mount().join(format!("p{round}"));
        let create = ["partition", "create", text(&dir), "--nodes", "1,2", "--stripe", "8k"];
        let mut making = camp.place().command(&create).spawn().unwrap();
        let pid = camp.node_pid(round % 3);
        std::thread::park_timeout(std::time::Duration::from_micros(random.below(40_000) as u64));
        signal(pid, Signal::KILL);
        let made = making.wait().unwrap().success();
        (0..3).for_each(|node| assert!(camp.node_pid(node) > 0));
        wait_until("no change is unfinished", || !camp.run("fsck", &[]).out.contains("unfinished"));
        let listed = json(&partition(&camp, &["list", "--name", camp.name(), "--json"]));
        let listed = listed.as_array().unwrap().iter().any(|one| one["path"] == format!("/p{round}"));
        assert!(listed || !made, "what was said to be made is there");
        if !dir.exists() {
            std::fs::create_dir(&dir).unwrap();
        }
        std::fs::write(dir.join("f"), content(100_000, round)).unwrap();
        assert!(std::fs::read(dir.join("f")).unwrap() == content(100_000, round));
        let explained = json(&camp.place().run(&["explain", "--json", text(&dir.join("f"))]));
        assert_eq!(explained["partition"].is_object(), listed, "round {round}: {explained}");
        assert_eq!(explained["stripe_bytes"] == 8192, listed);
        assert_eq!(std::fs::metadata(&dir).unwrap().nlink(), 2);
    }
    camp.run("fsck", &[]).succeeds();
    camp.down();
}

#[test]
fn files_of_partitions_are_checked_repaired_and_rebuilt_when_all_is_stopped() {
    let volumes = tempfile::tempdir().unwrap();
    let Some(camp) = four(volumes.path()) else { return };
    let dir = camp.mount().join("part");
    assert_eq!(partition(&camp, &["create", text(&dir), "--nodes", "3,1", "--stripe", "8k"]).code, 0);
    let bytes = content(100_000, 4);
    std::fs::write(dir.join("f"), &bytes).unwrap();
    let ino = std::fs::metadata(dir.join("f")).unwrap().ino();
    camp.kill_all();
    let places: Vec<PathBuf> = (0..4).map(|node| volumes.path().join(format!("n{node}"))).collect();
    let fsck = |arguments: &[&str]| {
        let all: Vec<&str> =
            ["fsck"].iter().chain(arguments).copied().chain(places.iter().map(|p| text(p))).collect();
        camp.place().run(&all)
    };
    fsck(&["--offline"]).succeeds();
    // A header that is damaged is written anew, with the places of the partition.
    let damaged = subfiles(volumes.path(), 1);
    let header = std::fs::read(&damaged[0]).unwrap();
    let broken = [b"junk".as_slice(), &header[4..]].concat();
    std::fs::write(&damaged[0], broken).unwrap();
    assert_eq!(fsck(&["--offline"]).code, 4);
    fsck(&["--offline", "--repair"]).fails(1, &[]);
    assert!(std::fs::read(&damaged[0]).unwrap() == header, "as it was");
    // The parts alone are enough.
    let out = volumes.path().join("out");
    fsck(&["--from-subfiles", "--out", text(&out)]).succeeds();
    assert!(std::fs::read(out.join(format!("{ino:016x}"))).unwrap() == bytes);
    let two = [text(&places[0]), text(&places[1])];
    let out = volumes.path().join("half");
    let all = [&["fsck", "--from-subfiles", "--out", text(&out)], &two[..]].concat();
    camp.place().run(&all).fails(4, &[]).prints(&["incomplete  0 "]);
}
