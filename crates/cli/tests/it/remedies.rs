//! What somebody meets who does not know the commands yet: a slip is refused before anything is done, what is said is
//! true, and what a message tells to type can be typed.

use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Camp, Place, signal, wait_until};

#[test]
fn options_for_several_hosts_are_refused_on_one() {
    let place = Place::new();
    for given in [
        &["--min-nodes", "3"][..],
        &["--nodes-per-host", "2"],
        &["--send"],
        &["--program", "/opt/bivouac"],
        &["--network", "10.1.0.0/16"],
        &["--topology", "/nonexistent/map.json"],
    ] {
        for command in [&["up", "--no-mount"][..], &["run"]] {
            let behind: &[&str] = if command[0] == "run" { &["--", "true"] } else { &[] };
            let said = place.run(&[command, given, behind].concat());
            let says = format!("{}: is for several hosts", given[0]);
            assert!(said.err.contains(&says) && said.err.contains("--hosts"), "{given:?}: {}", said.err);
            assert_eq!(said.code, 2, "{given:?}: {}", said.err);
            assert!(place.is_empty());
        }
    }
}

#[test]
fn a_source_that_is_not_there_leaves_no_job() {
    let Some(camp) = Camp::start(&[]) else { return };
    let dir = camp.place().path().display().to_string();
    for arguments in [
        &["in", "/nonexistent/data", "x"][..],
        &["in", &dir, "/nonexistent/data", "x"],
        &["in", "-n", "/nonexistent/data", "x"],
        &["out", "nonexistent", &dir],
    ] {
        let said = camp.place().run(&[&["stage"], arguments, &["--name", camp.name()]].concat());
        let missing = "no such file or directory (ENOENT); check its path";
        assert!(said.code == 1 && said.err.contains(missing), "{arguments:?}: {}", said.err);
        assert_eq!(said.err.lines().count(), 1, "{}", said.err);
    }
    let status = camp.place().run(&["stage", "status", "--name", camp.name()]);
    assert_eq!(status.out, "no jobs\n");
    assert!(!camp.mount().join("x").exists());
    let says = format!("job 99 is not known; see: bivouac stage status --name {}", camp.name());
    for verb in ["status", "resume", "cancel"] {
        let said = camp.place().run(&["stage", verb, "--name", camp.name(), "99"]);
        assert!(said.code == 1 && said.err.contains(&says), "{verb}: {}", said.err);
    }
    camp.down();
}

#[test]
fn a_file_that_would_be_copied_alone_is_named_as_it_is() {
    let Some(camp) = Camp::start(&[]) else { return };
    let file = camp.place().path().join("params.toml");
    std::fs::write(&file, "x").unwrap();
    let file = file.to_str().unwrap();
    let said = camp.place().run(&["stage", "in", "--name", camp.name(), "--dry-run", file, "run.toml"]);
    assert_eq!(said.out.lines().next(), Some(file), "{}", said.err);
    camp.down();
}

/// What new files get is what a file then has.
#[test]
fn a_directory_says_how_its_new_files_are_placed() {
    let Some(camp) = Camp::start(&["--nodes", "2"]) else { return };
    let explain = |path: &Path, more: &[&str]| {
        camp.place().run(&[&["explain"], more, &[path.to_str().unwrap()]].concat()).out
    };
    for (placement, says) in [
        ("local", "new files lie wholly on the node that makes them (placement=local)"),
        ("hashed", "new files lie wholly on one target each, spread over all 2 (placement=hashed)"),
        ("striped", "new files get stripes of 1 MiB over 2 of 2 targets"),
    ] {
        let dir = camp.mount().join(placement);
        std::fs::create_dir(&dir).unwrap();
        let text = format!("placement={placement}");
        let path = dir.to_str().unwrap();
        rustix::fs::setxattr(path, "user.bivouac.layout", text.as_bytes(), rustix::fs::XattrFlags::empty())
            .unwrap();
        let said = explain(&dir, &[]);
        assert!(said.contains(says), "{said}");
        let said: Value = serde_json::from_str(&explain(&dir, &["--json"])).unwrap();
        assert_eq!(said["placement"], placement);
        let file = dir.join("f");
        std::fs::write(&file, "x").unwrap();
        let said: Value = serde_json::from_str(&explain(&file, &["--json"])).unwrap();
        assert_eq!(said["width"], if placement == "striped" { 2 } else { 1 });
        assert_eq!(said.get("placement"), None, "a file has its stripes");
    }
    camp.down();
}

#[test]
fn a_scrub_that_compares_nothing_does_not_say_that_nothing_is_wrong() {
    let Some(camp) = Camp::start(&[]) else { return };
    std::fs::write(camp.mount().join("f"), vec![7; 100_000]).unwrap();
    let said = camp.run("scrub", &[]);
    assert!(said.code == 0 && said.out.starts_with("nothing was compared: "), "{} {}", said.out, said.err);
    assert!(said.out.contains("bivouac up --checksum on") && !said.out.contains("is wrong"), "{}", said.out);
    camp.down();
}

#[test]
fn what_is_in_no_formation_is_refused_with_those_that_are_mounted() {
    let Some(camp) = Camp::start(&[]) else { return };
    for command in ["flush", "pin", "unpin", "scrub", "share"] {
        let said = camp.place().run(&[command, "/etc"]);
        assert!(said.err.contains("/etc: is not in a formation; mounted are: "), "{command}: {}", said.err);
        assert!(said.code == 1 && said.err.contains(camp.mount().to_str().unwrap()), "{}", said.err);
    }
    camp.down();
}

#[test]
fn a_report_can_be_read_and_compared_when_its_formation_is_gone() {
    let Some(camp) = Camp::start(&[]) else { return };
    let place = Place::new();
    let [before, after] = ["before.json", "after.json"].map(|name| place.path().join(name));
    let [before, after] = [&before, &after].map(|path| path.to_str().unwrap());
    std::fs::write(camp.mount().join("f"), vec![7; 100_000]).unwrap();
    // What was done with it is told with its close.
    wait_until("its close is told", || camp.status()["nodes"][0]["open_files"] == 0);
    assert_eq!(camp.run("report", &["--json", before]).code, 0);
    let read = camp.run("report", &[]).out;
    assert_eq!(camp.run("report", &["--json", after]).code, 0);
    camp.down();
    let said = place.run(&["report", "--from", after]).succeeds();
    let files = |text: &str| text.lines().filter(|line| line.starts_with("/f ")).map(str::to_owned).next();
    assert!(files(&said.out).is_some() && files(&said.out) == files(&read), "{} {read}", said.out);
    place.run(&["report", "--from", after, "--compare", before]).succeeds().prints(&["\nCompared\n"]);
    for (file, says) in [("/nonexistent", "--from /nonexistent: "), ("/etc/passwd", "is no report")] {
        place.run(&["report", "--from", file]).fails(1, &[says, "bivouac report --json FILE"]);
    }
    assert_eq!(place.run(&["report", "--from", after, "--name", "x"]).code, 2);
}

#[test]
fn a_measurement_that_is_interrupted_leaves_nothing_at_the_site() {
    let place = Place::new();
    let site = tempfile::tempdir_in("/dev/shm").unwrap();
    let dir = site.path().to_str().unwrap();
    let arguments = ["plan", "calibrate", dir, "--size", "64m", "--streams", "256", "--files", "1"];
    let mut command = place.command(&arguments).spawn().unwrap();
    let entries = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|one| one.path());
    let is_writing = || entries(site.path()).next().is_some_and(|scratch| entries(&scratch).next().is_some());
    wait_until("it writes", is_writing);
    signal(command.id().into(), Signal::INT);
    assert_eq!(command.wait().unwrap().code(), Some(130));
    assert_eq!(entries(site.path()).count(), 0);
    let state = place.path().join("state/bivouac/site.toml");
    assert!(!state.exists(), "half a measurement is none");
}

#[test]
fn a_catalogue_that_is_not_there_is_not_made() {
    let place = Place::new();
    let data = tempfile::tempdir().unwrap();
    std::fs::write(data.path().join("f"), "x").unwrap();
    let missing = data.path().join("catalogue");
    let (from, to) = (data.path().to_str().unwrap(), missing.to_str().unwrap());
    for arguments in [&["publish", from, "--title", "x", "--to", to][..], &["find", "x", "--in", to]] {
        let said = place.run(arguments);
        let says = format!("catalogue {to}: no such file or directory (ENOENT); check its path, or make the");
        assert!(said.code == 1 && said.err.contains(&says), "{arguments:?}: {}", said.err);
        assert!(!missing.exists());
    }
}

#[test]
fn what_a_slip_meant_is_said() {
    let place = Place::new();
    for (arguments, says) in [
        (&["status", "--watch", "soon"][..], "write --watch=DURATION: 'soon' is not a duration"),
        (&["status", "--watch=0s"], "'0s' is too short; write 50ms or more"),
        (&["top", "--every", "1ms"], "'1ms' is too short; write 50ms or more"),
        (&["run", "--nodes", "2", "ls"], "write -- in front of the command: -- ls"),
        (&["exec", "ls"], "write -- in front of the command: -- ls"),
        (&["config", "camp.toml"], "write --check FILE"),
        (&["up", "--hosts", "a,b", "--send", "/x"], "write --send=/x"),
        (&["pool", "announce", "--out", "--by", "2h"], "--size <SIZE>"),
        (&["pool", "announce", "--by", "2h", "--size", "1g"], "<--in|--out>"),
    ] {
        let said = place.run(arguments);
        assert!(said.code == 2 && said.err.contains(says), "{arguments:?}: {}", said.err);
    }
    let said = place.run(&["pool", "announce", "--out", "--by", "2h"]);
    assert!(!said.err.contains("  --in\n"), "one way is enough: {}", said.err);
    // A name, and no path of a program.
    place.run(&["recover", "--send", "camp"]).fails(1, &["formation camp: nothing is known"]);
}
