//! What `top` shows of a formation at work.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::harness::{Camp, Place, signal};
use rustix::process::Signal;
use serde_json::Value;

/// Says that it is over, also if a test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

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
        let _until_then = Over(&is_over);
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
