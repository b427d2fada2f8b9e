//! What `top` shows of a formation at work.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::harness::{Camp, Place, signal, wait_until};
use rustix::process::Signal;
use serde_json::Value;

fn once(camp: &Camp, every: &str) -> Value {
    let said = camp.run("top", &["--once", "--json", "--every", every]);
    assert_eq!((said.code, said.out.lines().count()), (0, 1), "{}", said.err);
    serde_json::from_str(&said.out).unwrap()
}

/// S470.
#[test]
fn top_shows_what_is_done_meanwhile() {
    let Some(camp) = Camp::start(&["--nodes", "2"]) else { return };
    let is_over = AtomicBool::new(false);
    let (busy, text) = std::thread::scope(|scope| {
        scopeguard::defer! { is_over.store(true, Ordering::Relaxed) }
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                std::fs::write(camp.mount().join("f"), vec![7; 1 << 20]).unwrap();
                assert!(std::fs::read(camp.mount().join("f")).unwrap() == vec![7; 1 << 20]);
            }
        });
        // Where the machine is busy with other things, an interval may pass without a write.
        let has = |of: &Value| of["operations"].as_array().unwrap().iter().any(|one| one["name"] == "Write");
        let is_well = |of: &Value| of["state"] == "running" && of["warnings"][0].is_null();
        let busy =
            std::iter::repeat_with(|| once(&camp, "500ms")).take(60).find(|seen| has(seen) && is_well(seen));
        (busy.unwrap(), camp.run("top", &["--once", "--every", "2s"]))
    });
    assert!(busy["seconds"].as_f64().unwrap() >= 0.4, "{busy}");
    let written = |of: &Value| of["written"].as_f64().unwrap();
    let nodes = busy["nodes"].as_array().unwrap();
    let sum: f64 = nodes.iter().map(written).sum();
    assert!(nodes.len() == 2 && written(&busy["total"]) > 0.0, "{busy}");
    assert!((sum - written(&busy["total"])).abs() < 1.0, "{busy}");
    let write = busy["operations"].as_array().unwrap().iter().find(|one| one["name"] == "Write").unwrap();
    assert!(write["client"].as_f64().unwrap() > 0.0 && write["p50_us"].as_u64() <= write["p99_us"].as_u64());
    assert!(write["p99_us"].as_u64().unwrap() > 0 && write["load"].as_f64().unwrap() > 0.0, "{write}");
    assert!(text.code == 0 && text.out.contains("OPERATION") && text.out.contains("Write"), "{}", text.out);

    let quiet = once(&camp, "300ms");
    assert_eq!(written(&quiet["total"]), 0.0, "only what happened in the interval: {quiet}");
    let metrics = camp.run("metrics", &[]).out;
    let bucket = format!("bivouac_request_duration_seconds_bucket{{formation=\"{}\",node=\"0\"", camp.name());
    assert!(metrics.lines().any(|line| line.starts_with(&bucket) && line.contains("operation=\"Write\"")));

    let stopped = camp.node_pid(1);
    signal(stopped, Signal::STOP);
    let warned = once(&camp, "100ms");
    signal(stopped, Signal::CONT);
    let warning = warned["warnings"][0].as_str().unwrap();
    assert!(warning.starts_with("node 1 on ") && warning.contains("unreachable"), "{warning}");
    camp.down();
}

/// A file is written by programs until there is a file `stop`, or the formation is gone.
fn busy_writer(camp: &Camp, path: &str, stop: &Path) -> Child {
    let dd = format!("dd if=/dev/zero of={path} bs=64k count=16 2>/dev/null");
    let script = format!("while [ ! -e {} ] && {dd}; do :; done", stop.display());
    Command::new("sh").args(["-c", &script]).current_dir(camp.mount()).spawn().unwrap()
}

/// S470.
#[test]
fn top_shows_which_files_and_programs_are_busy() {
    let Some(camp) = Camp::start(&["--nodes", "2"]) else { return };
    std::fs::create_dir_all(camp.mount().join("out/deep")).unwrap();
    std::fs::write(camp.mount().join("earlier"), vec![7; 1 << 20]).unwrap();
    // What was done with it is told with its close.
    wait_until("its close is told", || {
        camp.status()["nodes"].as_array().unwrap().iter().all(|node| node["open_files"] == 0)
    });
    let stop = camp.place().path().join("stop");
    let mut writer = busy_writer(&camp, "out/deep/result", &stop);
    let file = |of: &Value, path: &str| {
        of["busy_files"].as_array().unwrap().iter().find(|one| one["path"] == path).cloned()
    };
    let is_seen = |of: &Value| file(of, "/out/deep/result").is_some();
    let busy = std::iter::repeat_with(|| once(&camp, "500ms")).take(60).find(is_seen);
    // Where the machine is busy with other things, an interval may pass without a write.
    let mut text = String::new();
    wait_until("it is shown to people, too", || {
        text = camp.run("top", &["--once", "--every", "2s"]).out;
        text.contains("/out/deep/result") && text.lines().any(|line| line.starts_with("dd "))
    });
    std::fs::write(&stop, "").unwrap();
    assert!(writer.wait().unwrap().success());
    let busy = busy.unwrap();
    let seen = file(&busy, "/out/deep/result").unwrap();
    let of = |one: &Value, what: &str| one[what].as_f64().unwrap();
    assert!(of(&seen, "written") > 0.0 && of(&seen, "calls") > 0.0 && of(&seen, "read") == 0.0, "{busy}");
    assert!(of(&seen, "written") >= of(&seen, "calls") * 4096.0, "calls are of 64 KiB at most: {busy}");
    assert_eq!(file(&busy, "/earlier"), None, "only what happened in the interval: {busy}");
    let programs = busy["busy_processes"].as_array().unwrap();
    let dd = programs.iter().find(|one| one["program"] == "dd").unwrap();
    assert!(dd["pid"].as_u64().unwrap() > 0 && of(dd, "written") > 0.0, "{dd}");
    assert_eq!(dd["host"], busy["nodes"][0]["host"], "{dd}");
    assert!(of(&busy, "busy_seconds") >= 0.4 && busy["stages"] == serde_json::json!([]), "{busy}");
    assert!(text.contains("CALLS/S"), "{text}");

    std::fs::remove_file(camp.mount().join("out/deep/result")).unwrap();
    camp.down();
}

/// S470.
#[test]
fn top_shows_jobs_of_staging_that_are_under_way() {
    let Some(camp) = Camp::start(&[]) else { return };
    let site = tempfile::tempdir().unwrap();
    // Of a large file each piece of 16 MiB is noted.
    std::fs::write(site.path().join("large"), vec![5; 64 << 20]).unwrap();
    let source = site.path().to_str().unwrap();
    let arguments = ["stage", "in", "--name", camp.name(), source, "input", "--limit", "4m"];
    let mut stage = camp.place().command(&arguments);
    let mut stage = stage.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let is_seen = |of: &Value| of["stages"][0]["bytes"].as_u64().is_some_and(|bytes| bytes > 0);
    let seen = std::iter::repeat_with(|| once(&camp, "500ms")).take(60).find(is_seen);
    let text = camp.run("top", &["--once", "--every", "100ms"]).out;
    stage.kill().unwrap();
    stage.wait().unwrap();
    let seen = seen.unwrap();
    let job = &seen["stages"][0];
    assert_eq!(
        (&job["job"], &job["way"], &job["files_found"]),
        (&1.into(), &"in".into(), &1.into()),
        "{seen}"
    );
    assert_eq!(job["bytes_found"], 64 << 20, "{seen}");
    assert!(job["pace"].as_f64().unwrap() >= 0.0 && seen["unflushed_files"].is_null(), "{seen}");
    assert!(text.lines().any(|line| line.starts_with("stage in 1 ")), "{text}");
    let ended = once(&camp, "100ms");
    assert_eq!(ended["stages"], serde_json::json!([]), "what is interrupted is not under way: {ended}");
    camp.down();
}

/// S470.
#[test]
fn top_shows_what_waits_to_be_flushed() {
    let Some(camp) = Camp::start(&[]) else { return };
    let site = tempfile::tempdir().unwrap();
    let part = camp.mount().join("part");
    let arguments = ["partition", "create", part.to_str().unwrap(), "--source"];
    let more = [site.path().to_str().unwrap(), "--write", "on-flush"];
    camp.place().run(&[&arguments[..], &more].concat()).succeeds();
    std::fs::write(part.join("result"), vec![3; 100_000]).unwrap();
    let waits = |text: &str| text.lines().any(|line| line.starts_with("flush "));
    let seen = || (once(&camp, "100ms"), camp.run("top", &["--once", "--every", "100ms"]).out);
    let (before, text) = seen();
    assert_eq!(before["unflushed_files"], 1, "{before}");
    assert!(before["unflushed_bytes"].as_u64() >= Some(100_000) && waits(&text), "{before} {text}");
    camp.place().run(&["flush", part.to_str().unwrap()]).succeeds();
    let (after, text) = seen();
    assert_eq!((&after["unflushed_files"], waits(&text)), (&Value::from(0), false), "{after} {text}");
    camp.down();
}

/// `top` with a terminal of its own.
fn on_a_terminal(camp: &Camp) -> Child {
    let top = format!("{} top --name {}", env!("CARGO_BIN_EXE_bivouac"), camp.name());
    let mut script = Command::new("timeout");
    script.args([
        "--foreground",
        "120",
        "script",
        "-qec",
        &format!("stty cols 80 rows 24; exec {top} --every 100ms"),
        "/dev/null",
    ]);
    script.env("XDG_RUNTIME_DIR", camp.place().path()).env("TERM", "xterm").env("LC_ALL", "C.UTF-8");
    script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Reads what the terminal is told until this comes.
fn read_until(top: &mut Child, wanted: &str) -> String {
    let (mut seen, mut some) = (String::new(), [0; 4096]);
    let out = top.stdout.as_mut().unwrap();
    while !seen.contains(wanted) {
        let len = out.read(&mut some).unwrap();
        assert!(len > 0, "it ended without '{wanted}': {seen}");
        seen.push_str(&String::from_utf8_lossy(&some[..len]));
    }
    seen
}

/// S470.
#[test]
fn top_leaves_the_terminal_as_it_was() {
    const LEAVE: &str = "\x1b[?1049l";
    let camp = Camp::start_in(Place::new(), &["--no-mount"]);
    let mut quit = on_a_terminal(&camp);
    read_until(&mut quit, "OPERATION");
    quit.stdin.as_mut().unwrap().write_all(b"q").unwrap();
    read_until(&mut quit, LEAVE);
    assert!(quit.wait().unwrap().success());

    let mut orphan = on_a_terminal(&camp);
    read_until(&mut orphan, "OPERATION");
    camp.down();
    assert!(read_until(&mut orphan, "the formation is gone").contains(LEAVE));
    assert!(orphan.wait().unwrap().success());
}
