//! Measurements that start formations by themselves, with the real binary: what they count must be right, and nothing
//! is left.

use std::path::Path;
use std::process::Command;

use crate::harness::{Camp, Place, can_mount, said, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Runs a measurement; its table as JSON, and what it printed.
fn bench(words: &[&str]) -> Option<(Value, String)> {
    if !can_mount() {
        return None;
    }
    let (place, dir) = (Place::new(), tempfile::tempdir_in("/dev/shm").unwrap());
    let (memory, json) = (dir.path().to_str().unwrap(), place.path().join("out.json"));
    let mut all = vec!["bench", "meta", "--memory", memory, "--json", json.to_str().unwrap()];
    all.extend(words);
    let said = place.run(&all).succeeds();
    assert!(place.is_empty(), "a formation is left");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "files are left");
    Some((serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap(), said.out))
}

/// `bivouac` alone has the help; what measures is beside it, or in PATH, or named with what to do.
#[test]
fn what_measures_is_found_beside_the_program_or_in_path_or_named() {
    let dir = tempfile::tempdir().unwrap();
    let (all, alone) = (Path::new(env!("CARGO_BIN_EXE_bivouac")), dir.path().join("bivouac"));
    // By another process: a program that any process, forked meanwhile, has open for writing cannot be run.
    assert!(Command::new("cp").args([all, &alone]).status().unwrap().success());
    let run = |program: &Path, words: &[&str], path: &Path| {
        said(&Command::new(program).arg("bench").args(words).env("PATH", path).output().unwrap())
    };
    let (here, there) = (dir.path(), all.parent().unwrap());
    run(&alone, &["io", "--help"], here).succeeds().prints(&["--transfer"]);
    let nothing_to_measure = ["idle", "--seconds", "0"];
    let missing = run(&alone, &nothing_to_measure, here).fails(1, &[]);
    let says = format!("bivouac: bivouac-bench: is neither in {} nor in PATH; install it", here.display());
    assert!(missing.err.starts_with(&says), "{missing:?}");
    for found in [run(all, &nothing_to_measure, here), run(&alone, &nothing_to_measure, there)] {
        assert!(found.code == 2 && found.err.starts_with("bivouac: --seconds 0: "), "{found:?}");
    }
}

fn rows(report: &Value) -> Vec<String> {
    let rows = report["rows"].as_array().unwrap().iter();
    rows.map(|row| row["what"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn metadata_is_measured_through_the_mounts_of_a_formation() {
    let words = ["--nodes", "3", "--procs", "1,4", "--files", "60", "--reps", "1", "--shared"];
    let tree = ["--layout", "tree", "--depth", "2", "--branch", "3"];
    let Some((report, said)) = bench(&[&words[..], &tree].concat()) else { return };
    let phases =
        ["mkdir", "create", "stat", "stat, cached", "write", "open", "read", "readdir", "remove", "rmdir"];
    let wanted: Vec<String> =
        [1, 4].iter().flat_map(|procs| phases.map(|phase| format!("{phase}, {procs} proc"))).collect();
    assert_eq!(rows(&report), wanted);
    assert_eq!(report["rows"][0]["targets"][0]["target"], "3 nodes");
    assert!(said.contains("go through the mount next to the one that made the files"), "{said}");
}

#[test]
fn a_huge_directory_is_filled_listed_and_survives_its_daemon() {
    for nodes in ["1", "3"] {
        // More than a directory has before it spreads.
        let Some((report, said)) = bench(&["--big", "--nodes", nodes, "--files", "3000"]) else { return };
        let wanted = [
            "create, first tenth",
            "create, last tenth",
            "create, last tenth to first",
            "list all",
            "memory per file",
            "restart, until usable",
        ];
        assert_eq!(rows(&report), wanted);
        for budget in ["≥ 0.80 times", "≤ 3,000 ms", "≤ 400 B", "≤ 5,000 ms"] {
            assert!(said.contains(budget), "{budget} is missing in {said}");
        }
    }
}

#[test]
fn checkpoints_arrive_at_a_slow_source_through_a_formation() {
    let Some(place) = Place::mountable() else { return };
    let json = place.path().join("out.json");
    for how in [&["--write", "on-flush"], &["--write", "delayed=1s"]] {
        let size = ["--procs", "2", "--nodes", "2", "--stripe", "64k", "--reps", "1"];
        let slow = ["--delay", "1", "--rate", "2g", "--json", json.to_str().unwrap()];
        place.run(&[&["bench", "flash"], &size[..], &slow, &how[..]].concat()).succeeds();
        assert!(place.is_empty(), "a formation is left");
        let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        let files = ["checkpoint", "plots"];
        let wanted: Vec<String> = files
            .iter()
            .flat_map(|file| {
                ["application", "source", "requests"].map(|what| format!("{file}, {what}, 2 proc"))
            })
            .collect();
        assert_eq!(rows(&report), wanted);
        // Directly, the first of two processes makes the directory's file and gives it its size; both open it and write
        // 24 variables each.
        let direct = &report["rows"][2]["targets"][1];
        assert_eq!(direct["target"], "direct");
        assert!(direct["values"][0].as_f64().unwrap() >= 52.0, "{direct}");
        let through = report["rows"][2]["targets"][0]["values"][0].as_f64().unwrap();
        assert!(through >= 2.0, "{through}");
    }
}

/// Nothing of a measurement on a formation of others is left there, however it ends.
#[test]
fn a_measurement_that_is_interrupted_or_killed_leaves_no_file() {
    let Some(camp) = Camp::start(&["--nodes", "2", "--wait", "10s"]) else { return };
    for signal in [Signal::INT, Signal::KILL] {
        let words =
            ["bench", "remote", "--name", camp.name(), "--size", "1", "--total", "1g", "--calls", "0"];
        let mut bench = camp.place().command(&words).stderr(std::process::Stdio::null()).spawn().unwrap();
        let open = || camp.status()["totals"]["open_files"].as_u64().unwrap();
        wait_until("the measurement writes", || open() == 1);
        kill_process(Pid::from_child(&bench), signal).unwrap();
        assert!(!bench.wait().unwrap().success());
        wait_until("its file is gone", || open() == 0);
        assert_eq!(std::fs::read_dir(camp.mount()).unwrap().count(), 0);
    }
    camp.down();
}
