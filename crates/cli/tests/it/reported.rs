//! What a job did, as `report` tells it: content of the report, not how long anything took.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::Value;

use crate::harness::library::{create, far_library, read, write};
use crate::harness::{Camp, Place, wait_until};

const PIECE: usize = 4096;
/// As many that a rule looks at them.
const MANY: usize = 2000;

fn json(camp: &Camp) -> Value {
    let said = camp.run("report", &["--json", "-"]);
    serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{}", said.err))
}

fn file<'a>(report: &'a Value, path: &str) -> &'a Value {
    let files = report["files"].as_array().unwrap();
    files.iter().find(|file| file["path"] == path).unwrap_or_else(|| panic!("{path}: {files:#?}"))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

fn write_pieces(path: &Path, count: usize) {
    let file = File::create(path).unwrap();
    (0..count).for_each(|i| file.write_all_at(&[7; PIECE], (i * PIECE) as u64).unwrap());
}

#[test]
fn files_processes_and_patterns_are_told() {
    let Some(camp) = Camp::start(&["--nodes", "4"]) else { return };
    fs::create_dir(camp.mount().join("out")).unwrap();
    write_pieces(&camp.mount().join("out/f"), 100);
    let mut whole = Vec::new();
    File::open(camp.mount().join("out/f")).unwrap().read_to_end(&mut whole).unwrap();
    assert_eq!(whole, vec![7; 100 * PIECE]);
    let open = File::create(camp.mount().join("out/open")).unwrap();
    open.write_all_at(b"abc", 0).unwrap();
    write_pieces(&camp.mount().join("out/gone"), 10);
    fs::remove_file(camp.mount().join("out/gone")).unwrap();
    // What is open is told by its mount when somebody asks, and other nodes hear of it soon.
    let mut report = Value::Null;
    wait_until("all three are told of", || {
        report = json(&camp);
        let bytes = |what: &str| number(&report["total"][what]["bytes"]);
        report["files"].as_array().unwrap().len() == 3
            && bytes("writes") >= 110 * PIECE as u64 + 3
            && bytes("reads") >= 100 * PIECE as u64
    });
    let f = file(&report, "/out/f");
    let (reads, writes) = (&f["pattern"]["reads"], &f["pattern"]["writes"]);
    assert_eq!((number(&writes["ops"]), number(&writes["bytes"])), (100, 100 * PIECE as u64));
    assert_eq!((number(&writes["sequential"]), number(&writes["sizes"][2])), (100, 100));
    assert_eq!(number(&reads["bytes"]), 100 * PIECE as u64);
    assert_eq!((number(&f["processes"]), &f["gone"]), (1, &Value::from(false)), "this process did both");
    assert_eq!(number(&file(&report, "/out/open")["pattern"]["writes"]["bytes"]), 3);
    let gone = file(&report, "/out/?");
    assert_eq!((number(&gone["pattern"]["writes"]["ops"]), &gone["gone"]), (10, &Value::from(true)));
    let process = &report["processes"][0];
    assert_eq!(number(&process["pid"]), u64::from(std::process::id()));
    assert!(process["host"].is_string() && process["program"].as_str().is_some_and(|name| !name.is_empty()));
    let written = number(&report["total"]["writes"]["bytes"]);
    assert_eq!(written, 110 * PIECE as u64 + 3);
    let bins = report["timeline"]["bins"].as_array().unwrap();
    assert_eq!(bins.iter().map(|bin| number(&bin["written"])).sum::<u64>(), written);
    assert_eq!(report["places"][0]["place"], "/out");
    let text = camp.run("report", &[]).out;
    assert!(text.lines().all(|line| line.chars().count() <= 80) && text.contains("/out/f"), "{text}");
    drop(open);
    camp.down();
}

#[test]
fn small_remote_writes_want_the_session_contract_and_it_is_seen_when_they_have_it() {
    let Some(camp) = Camp::start(&["--nodes", "2"]) else { return };
    let (place, old) = (tempfile::tempdir().unwrap(), "old.json");
    let old = place.path().join(old).display().to_string();
    // Elsewhere: each write is a message over TCP, and nothing is done between them.
    let client = far_library(&camp.dir());
    let ino = create(&client, "f");
    (0..MANY).for_each(|i| write(&client, ino, i * PIECE, &[5; PIECE]));
    client.close(ino);
    client.leave();
    assert_eq!(camp.run("report", &["--json", &old]).code, 0);
    let report: Value = serde_json::from_slice(&fs::read(&old).unwrap()).unwrap();
    assert_eq!(
        (number(&report["total"]["writes"]["ops"]), &report["processes"][0]["host"]),
        (MANY as u64, &Value::Null)
    );
    let finding = &report["findings"][0];
    assert_eq!((finding["rule"].as_str(), finding["place"].as_str()), (Some("small-writes"), Some("/")));
    assert!(finding["setting"].as_str().unwrap().contains("--contract session"), "{finding}");
    let text = camp.run("report", &[]).out;
    assert!(text.contains("Change one setting") && text.contains("2000 writes of up to 4 KiB"), "{text}");

    let s = camp.mount().join("s");
    camp.place().run(&["partition", "create", s.to_str().unwrap(), "--contract", "session"]).succeeds();
    write_pieces(&s.join("g"), MANY);
    let (mut report, mut group) = (Value::Null, Value::Null);
    wait_until("the writes are told of", || {
        report = json(&camp);
        let mut groups = report["places"].as_array().unwrap().iter();
        group = groups.find(|group| group["place"] == "/s").cloned().unwrap_or_default();
        group["pattern"]["writes"]["ops"].as_u64() >= Some(MANY as u64)
    });
    assert_eq!(
        (&group["is_session"], number(&group["pattern"]["writes"]["ops"])),
        (&Value::from(true), MANY as u64)
    );
    assert!(
        report["findings"].as_array().unwrap().iter().all(|finding| finding["place"] != "/s"),
        "{report}"
    );
    let compared = camp.run("report", &["--compare", &old, "--json", "-"]);
    let compared: Value = serde_json::from_str(&compared.out).unwrap();
    assert!(
        ["helped", "no difference", "slower"].map(Value::from).contains(&compared["comparison"]["verdict"])
    );
    assert_eq!(read(&far_library(&camp.dir()), ino, 0, PIECE), [5; PIECE]);
    camp.down();
}

#[test]
fn hostile_names_are_no_markup_and_move_no_cursor() {
    let Some(camp) = Camp::start(&["--nodes", "1"]) else { return };
    let name = "<script>alert(1)<\u{1b}[2J&\"'";
    fs::write(camp.mount().join(name), "x").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("r.html").display().to_string();
    assert_eq!(camp.run("report", &["--html", &page]).code, 0);
    let page = fs::read_to_string(&page).unwrap();
    assert!(page.contains("/&lt;script&gt;alert(1)&lt;\u{fffd}[2J&amp;&quot;&#39;"), "{page}");
    assert!(!page.contains("<script") && !page.contains('\u{1b}'), "{page}");
    let text = camp.run("report", &[]).out;
    assert!(!text.contains('\u{1b}') && text.contains("[2J"), "{text}");
    camp.down();
}

/// Counts of requests, by operation: begun, done, and the bytes that came.
fn requests(camp: &Camp) -> Vec<(String, u64, u64, u64)> {
    let status = camp.status();
    let all =
        status["nodes"].as_array().unwrap().iter().flat_map(|node| node["operations"].as_array().unwrap());
    all.map(|one| {
        let done =
            one["client_times"]["counts"].as_array().map_or(0, |counts| counts.iter().map(number).sum());
        (
            one["name"].as_str().unwrap().to_owned(),
            number(&one["client"]),
            done,
            number(&one["received_bytes"]),
        )
    })
    .collect()
}

fn writes(camp: &Camp) -> (u64, u64) {
    let all = requests(camp);
    all.iter().find(|one| one.0 == "Write").map(|one| (one.1, one.3)).unwrap()
}

/// All that was done until then, by seconds and by minutes.
fn sums(history: &Value, what: &str) -> [u64; 2] {
    ["seconds", "minutes"]
        .map(|slots| history[slots].as_array().unwrap().iter().map(|slot| number(&slot[what])).sum())
}

/// S647: what was recorded outlives the daemon: figures, files, processes, and what was done when.
#[test]
fn what_a_killed_daemon_recorded_is_known_to_the_next() {
    let camp = Camp::start_in(Place::new(), &["--no-mount", "--nodes", "1"]);
    let client = far_library(&camp.dir());
    let ino = create(&client, "f");
    (0..100).for_each(|i| write(&client, ino, i * PIECE, &[5; PIECE]));
    client.close(ino);
    wait_until("it is told of", || json(&camp)["files"].as_array().unwrap().len() == 1);
    let (before, metrics) = (json(&camp), camp.run("metrics", &[]).out);
    let counted = writes(&camp);
    assert_eq!(counted.1, 100 * PIECE as u64);
    for kills in 1..=3 {
        camp.kill_node(0);
        camp.node_pid(0);
        let report = json(&camp);
        assert_eq!(report["files"], before["files"], "after {kills} kills");
        assert_eq!(report["processes"], before["processes"]);
        assert_eq!(report["total"], before["total"]);
        let [began, then] = [&report, &before].map(|report| number(&report["began_unix_ms"]));
        assert!(began.abs_diff(then) < 10_000, "{began}, {then}: since the first daemon was started");
        assert_eq!(sums(&report["history"], "written"), [100 * PIECE as u64; 2]);
        let served = sums(&report["served"][0], "written");
        assert_eq!(served, [100 * PIECE as u64; 2]);
        let bins = report["timeline"]["bins"].as_array().unwrap();
        assert_eq!(bins.iter().map(|bin| number(&bin["written"])).sum::<u64>(), 100 * PIECE as u64);
        assert!(!report["notes"].to_string().contains("died"), "{}", report["notes"]);
        assert_eq!(writes(&camp), counted);
    }
    let line = |text: &str| {
        let wanted =
            |line: &&str| line.starts_with("bivouac_received_bytes_total{") && line.contains("\"Write\"");
        text.lines().find(wanted).unwrap().to_owned()
    };
    assert_eq!(line(&camp.run("metrics", &[]).out), line(&metrics));
    // And it goes on from there.
    (0..50).for_each(|i| write(&client, ino, i * PIECE, &[6; PIECE]));
    assert_eq!(writes(&camp), (counted.0 + 50, 150 * PIECE as u64));
    let past = camp.run("top", &["--since", "1h", "--json", "--once"]);
    let past: Vec<Value> = past.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let written: f64 = past[..past.len() - 1]
        .iter()
        .map(|at| at["nodes"][0]["written"].as_f64().unwrap() * at["seconds"].as_f64().unwrap())
        .sum();
    assert_eq!(written.round() as u64, 150 * PIECE as u64, "{past:?}");
    let ends: Vec<u64> = past.iter().map(|at| number(&at["unix_ms"])).collect();
    assert!(ends.is_sorted(), "{ends:?}");
    camp.down();
}

#[test]
fn a_run_reports_also_when_its_command_fails() {
    let Some((place, site)) = Place::with_site() else { return };
    let path = site.path().join("report.json");
    let shown = path.display().to_string();
    let script = "echo abc > \"$BIVOUAC/f\"; exit 3";
    let said =
        place.run(&["run", "--name", &Place::unique_name(), "--report", &shown, "--", "sh", "-c", script]);
    assert_eq!(said.code, 3, "{}", said.err);
    let report: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(number(&file(&report, "/f")["pattern"]["writes"]["bytes"]), 4);
    assert!(place.is_empty());
}

#[test]
fn a_report_that_cannot_be_written_is_refused_before_the_job() {
    let (place, site) = (Place::new(), tempfile::tempdir().unwrap());
    let (nowhere, ran) = (site.path().join("no/r.html"), site.path().join("ran"));
    let script = format!("touch {}", ran.display());
    place
        .run(&["run", "--report", nowhere.to_str().unwrap(), "--", "sh", "-c", &script])
        .fails(125, &["the report cannot be written there"]);
    let odd = site.path().join("r.xyz");
    place
        .run(&["run", "--report", odd.to_str().unwrap(), "--", "sh", "-c", &script])
        .fails(125, &["no report has the form '.xyz'", ".html, .json or .txt"]);
    assert!(!odd.exists());
    assert!(!ran.exists() && place.is_empty());
    // Nor is an earlier one taken that is none.
    let other = site.path().join("other.json");
    File::create(&other).unwrap().write_all(b"{}").unwrap();
    place.run(&["report", "--compare", other.to_str().unwrap()]).fails(1, &["is no report"]);
}
