//! Whole measurements with real processes: this test program again, with the arguments of one test.

#![allow(clippy::unwrap_used, reason = "this is test code")]

use std::cell::RefCell;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bivouac_bench::{BenchArgs, BenchResult, Host, Interrupts, Report, run, work};
use clap::{Args, FromArgMatches};

/// The argument that tells the processes that tests start from the test program itself.
const ALONE: &str = "--test-threads=1";

/// What a measurement prints.
#[derive(Clone, Default)]
struct Printed(Arc<Mutex<Vec<u8>>>);

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn host(printed: &Printed) -> Host<'static> {
    Host {
        program: "/nonexistent".into(),
        own: "/proc/self/exe".into(),
        worker: ["a_process_of_a_measurement", "--exact", "--nocapture", ALONE].map(Into::into).into(),
        interrupts: Interrupts::catch().unwrap(),
        out: RefCell::new(Box::new(printed.clone())),
        progress: &|_| {},
    }
}

/// The other side of every test here. Without a leader there is nothing to do, and it says so.
#[test]
fn a_process_of_a_measurement() {
    let stdin = std::io::stdin();
    let is_socket = rustix::net::sockopt::socket_type(stdin.as_fd()).is_ok();
    let is_started_by_a_test = std::env::args().any(|argument| argument == ALONE);
    // A socket that belongs to somebody else is left alone.
    if is_socket == is_started_by_a_test {
        let outcome = work(&host(&Printed::default()));
        assert_eq!(outcome.is_ok(), is_socket, "{outcome:?}");
    }
}

fn arguments(words: &[&str]) -> BenchArgs {
    let command = BenchArgs::augment_args(clap::Command::new("bench").no_binary_name(true));
    BenchArgs::from_arg_matches(&command.try_get_matches_from(words).unwrap()).unwrap()
}

fn bench(words: &[&str]) -> BenchResult<String> {
    let printed = Printed::default();
    run(&host(&printed), &arguments(words))?;
    let bytes = printed.0.lock().unwrap().clone();
    Ok(String::from_utf8(bytes).unwrap())
}

/// Runs a measurement on two directories; its report, and that nothing is left in them.
fn measured(words: &[&str]) -> (Report, String) {
    let (dir, one, two) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (json, svg) = (dir.path().join("out.json"), dir.path().join("out.svg"));
    let paths = [one.path(), two.path(), &json, &svg].map(|path| path.to_str().unwrap());
    let mut all = vec![words[0], paths[0], paths[1], "--json", paths[2], "--svg", paths[3]];
    all.extend(&words[1..]);
    let printed = bench(&all).unwrap();
    for dir in [one.path(), two.path()] {
        assert_eq!(left(dir), 0, "{words:?} left something");
    }
    assert!(std::fs::read_to_string(&svg).unwrap().starts_with("<svg"));
    let report: Report = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(report.rows[0].targets[0].target, paths[0]);
    assert_eq!(report.rows[0].targets[1].target, paths[1]);
    (report, printed)
}

fn left(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

/// What was done, with every row having this many values on both targets, and a ratio on the first.
fn done(report: &Report, reps: usize) -> Vec<&str> {
    for row in &report.rows {
        assert_eq!(row.targets.len(), 2, "{}", row.what);
        assert!(row.targets.iter().all(|target| target.values.len() == reps), "{}", row.what);
        assert!(
            row.targets.iter().all(|target| target.values.iter().all(|value| *value > 0.0)),
            "{}",
            row.what
        );
        assert!(row.targets[0].ratio.is_some() && row.targets[1].ratio.is_none(), "{}", row.what);
    }
    report.rows.iter().map(|row| row.what.as_str()).collect()
}

#[test]
fn io_is_measured_and_verified_in_every_arrangement() {
    for pattern in ["segmented", "strided", "random"] {
        let words = ["io", "--procs", "3", "--pattern", pattern, "--transfer", "5000", "--size", "50000"];
        let (report, printed) = measured(&[&words[..], &["--reps", "2", "--verify"]].concat());
        assert_eq!(done(&report, 2), ["write", "rewrite", "read"]);
        assert!(printed.contains("3 processes, one shared file"), "{printed}");
        assert!(printed.contains("every byte was compared"));
    }
}

#[test]
fn io_on_own_files_can_read_only() {
    let words =
        ["io", "--procs", "2", "--mode", "own", "--transfer", "64k", "--size", "128k", "--ops", "read"];
    let (report, _) = measured(&[&words[..], &["--reps", "1", "--verify"]].concat());
    assert_eq!(done(&report, 1), ["read"]);
}

#[test]
fn meta_is_measured_in_both_layouts() {
    let common = ["--procs", "2", "--files", "150", "--reps", "2"];
    let (report, _) = measured(&[&["meta"], &common[..], &["--layout", "tree", "--shared"]].concat());
    let tree =
        ["mkdir", "create", "stat", "stat, cached", "write", "open", "read", "readdir", "remove", "rmdir"];
    assert_eq!(done(&report, 2), tree);
    let (report, _) = measured(&[&["meta"], &common[..], &["--layout", "single", "--own"]].concat());
    assert_eq!(done(&report, 2), tree[1..9]);
}

#[test]
fn latency_has_percentiles_in_order() {
    let (report, _) = measured(&["latency", "--ops", "read,create", "--calls", "200", "--reps", "1"]);
    let names = done(&report, 1);
    assert_eq!(names.len(), 10);
    assert_eq!(names[..5], ["read p50", "read p90", "read p99", "read p99.9", "read max"]);
    let medians: Vec<f64> = report.rows[..5].iter().map(|row| row.targets[0].summary.median).collect();
    assert!(medians.is_sorted(), "{medians:?}");
}

#[test]
fn a_bare_copy_is_measured_between_two_processes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let json = dir.path().join("out.json");
    let words = ["net", "--dir", path, "--size", "64k", "--total", "1MiB", "--streams", "2", "--calls", "50"];
    bench(&[&words[..], &["--reps", "1", "--json", json.to_str().unwrap()]].concat()).unwrap();
    let report: Report = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let names: Vec<&str> = report.rows.iter().map(|row| row.what.as_str()).collect();
    assert_eq!(names[..5], ["write", "rewrite", "read", "ping p50", "ping p99"]);
    assert!(report.rows.iter().all(|row| row.targets[0].values[0] > 0.0));
    assert_eq!(left(dir.path()), 1, "only the figures are left");
}

#[test]
fn what_fails_in_a_process_is_said_and_nothing_is_left() {
    let error =
        bench(&["remote", "--name", "none", "--total", "1MiB", "--reps", "1"]).unwrap_err().to_string();
    assert!(error.contains("bivouac exec --name none: No such file"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let huge = ["io", dir.path().to_str().unwrap(), "--size", "1p", "--reps", "1"];
    assert!(bench(&huge).unwrap_err().to_string().contains("needs 1 PiB and has "));
    assert_eq!(left(dir.path()), 0);
}

/// A program that answers the commands for formations, and writes them down.
fn pretender(dir: &Path, daemon: u32, printed: &Printed) -> Host<'static> {
    let (program, list) = (dir.join("pretender"), dir.join("list"));
    let script = format!(
        r#"#!/bin/sh
case $1 in
up) echo '{{"name": "x", "steps": [{{"name": "daemons", "us": 1500}}]}}';;
status) echo '{{"nodes": [{{"pid": {daemon}}}]}}';;
esac
echo "$*" >> {list}
"#,
        list = list.display(),
    );
    // By another process: a program that any process, forked meanwhile, has open for writing cannot be run.
    let write = ["-c", r#"printf %s "$1" > "$2" && chmod 700 "$2""#, "sh", &script];
    assert!(std::process::Command::new("sh").args(write).arg(&program).status().unwrap().success());
    Host { program, ..host(printed) }
}

/// The commands that were given, in order.
fn commands(dir: &Path) -> Vec<String> {
    let list = std::fs::read_to_string(dir.join("list")).unwrap();
    list.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

#[test]
fn starts_and_stops_are_measured_by_number_of_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let host = pretender(dir.path(), 1, &Printed::default());
    let (json, svg) = (dir.path().join("out.json"), dir.path().join("out.svg"));
    let files = ["--json", json.to_str().unwrap(), "--svg", svg.to_str().unwrap()];
    run(
        &host,
        &arguments(&[&["startup", "--nodes", "1,3", "--reps", "2", "--no-mount"], &files[..]].concat()),
    )
    .unwrap();
    // Each number of nodes is started once without looking, and twice.
    assert_eq!(commands(dir.path()), ["up", "down"].repeat(6));
    let list = std::fs::read_to_string(dir.path().join("list")).unwrap();
    assert_eq!(list.matches("--nodes 3 --no-mount").count(), 3);
    let report: Report = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let names: Vec<&str> = report.rows.iter().map(|row| row.what.as_str()).collect();
    assert_eq!(names, ["up, until usable", "  daemons", "down"].repeat(2));
    assert_eq!(report.rows[1].targets[0].values, [1.5, 1.5]);
    assert_eq!(report.rows[3].targets[0].target, "3 nodes");
    assert_eq!(std::fs::read_to_string(&svg).unwrap().matches("<polyline").count(), 2);
}

#[test]
fn an_idle_daemon_is_watched_and_taken_down() {
    let dir = tempfile::tempdir().unwrap();
    let mut daemon = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let printed = Printed::default();
    let outcome = run(&pretender(dir.path(), daemon.id(), &printed), &arguments(&["idle", "--seconds", "1"]));
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    outcome.unwrap();
    assert_eq!(commands(dir.path()), ["up", "status", "down"]);
    let text = String::from_utf8(printed.0.lock().unwrap().clone()).unwrap();
    let wakes = text.lines().find(|line| line.trim_start().starts_with("wake-ups")).unwrap();
    assert_eq!(
        wakes.split_whitespace().collect::<Vec<_>>(),
        ["wake-ups", "daemon", "0", "0", "0", "events/s"]
    );
}

#[test]
fn a_formation_of_a_failed_measurement_is_taken_down() {
    let dir = tempfile::tempdir().unwrap();
    let host = pretender(dir.path(), 1, &Printed::default());
    let words = ["remote", "--total", "1MiB", "--reps", "1"];
    let error = run(&host, &arguments(&words)).unwrap_err().to_string();
    assert!(error.contains("bivouac exec --name bench-"), "{error}");
    assert_eq!(commands(dir.path()), ["up", "down"]);
}

/// A program in whose formations everything that is written in a partition is at the source at once, or, without one, is
/// nowhere else.
fn proxy(dir: &Path, printed: &Printed, has_source: bool) -> Host<'static> {
    let program = dir.join("proxy");
    let make = if has_source { r#"ln -s "$5" "$3""# } else { r#"mkdir "$3" "$5/lost""# };
    let script = format!(
        r#"#!/bin/sh
echo "$*" >> {list}
case "$1 $2" in
"up "*) for place; do :; done; mkdir $place/0 $place/1; echo "{{\"mounts\": [{{\"dir\": \"$place/0\"}}, {{\"dir\": \"$place/1\"}}]}}";;
"partition create") {make}; ln -s "$3" "${{3%/0/flash}}/1/flash";;
esac
"#,
        list = dir.join("list").display(),
    );
    let write = ["-c", r#"printf %s "$1" > "$2" && chmod 700 "$2""#, "sh", &script];
    assert!(std::process::Command::new("sh").args(write).arg(&program).status().unwrap().success());
    Host { program, ..host(printed) }
}

#[test]
fn checkpoints_are_written_to_a_source_and_in_front_of_it() {
    let (dir, source) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let host = proxy(dir.path(), &Printed::default(), true);
    let (json, svg) = (dir.path().join("out.json"), dir.path().join("out.svg"));
    let files = ["--json", json.to_str().unwrap(), "--svg", svg.to_str().unwrap()];
    let words = ["flash", "--source", source.path().to_str().unwrap(), "--procs", "1,3", "--nodes", "2"];
    let more = ["--reps", "2", "--stripe", "64k", "--write", "delayed=1s"];
    run(&host, &arguments(&[&words[..], &more, &files].concat())).unwrap();
    let report: Report = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let wanted: Vec<String> = ["1 proc", "3 proc"]
        .iter()
        .flat_map(|procs| {
            ["checkpoint, application", "checkpoint, source", "plots, application", "plots, source"]
                .map(|what| format!("{what}, {procs}"))
        })
        .collect();
    assert_eq!(done(&report, 2), wanted);
    assert_eq!(std::fs::read_to_string(&svg).unwrap().matches("<polyline").count(), 4);
    assert_eq!(left(source.path()), 0, "the source is as it was");
    // A start, a partition, two flushes in each of three rounds of two numbers of processes, an end.
    let flushes = ["flush"; 12];
    assert_eq!(commands(dir.path()), [&["up", "partition"], &flushes[..], &["down"]].concat());
    let list = std::fs::read_to_string(dir.path().join("list")).unwrap();
    assert!(list.contains("--stripe 65536 --write delayed=1s"), "{list}");
}

#[test]
fn a_checkpoint_that_does_not_arrive_is_an_error() {
    let (dir, source) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let host = proxy(dir.path(), &Printed::default(), false);
    let words = ["flash", "--source", source.path().to_str().unwrap(), "--procs", "2", "--reps", "1"];
    let error = run(&host, &arguments(&words)).unwrap_err().to_string();
    assert!(error.contains("/checkpoint: No such file"), "{error}");
    assert_eq!(commands(dir.path()).last().unwrap(), "down");
    assert_eq!(left(source.path()), 0);
}
