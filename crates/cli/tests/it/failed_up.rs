//! S446: a formation that does not come up leaves nothing: whatever was wrong, and whenever `up` was stopped or killed.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::random::Random;
use crate::harness::{Place, Said, can_mount, reaping, said, signal, wait_until};

/// Moments at which `up` is stopped or killed; more by the environment.
const ROUNDS: usize = 8;

/// Processes, mounts and files of a formation that has this name.
fn left(place: &Place, name: &str) -> Vec<String> {
    let mut left = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments).replace('\0', " ");
        let is_of = |word: &str| {
            let word = word.rsplit('/').next().unwrap_or(word);
            word == name || word.strip_prefix(name).is_some_and(|rest| rest.starts_with(':'))
        };
        left.extend(arguments.split(' ').any(is_of).then(|| format!("process {arguments}")));
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let runtime = place.path().to_string_lossy().into_owned();
    left.extend(mounts.lines().filter(|line| line.contains(&runtime)).map(|line| format!("mount {line}")));
    let of_name = format!("-{name}-");
    let memory = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let memory = memory.map(|entry| entry.file_name().to_string_lossy().into_owned());
    left.extend(memory.filter(|file| file.contains(&of_name)).map(|file| format!("/dev/shm/{file}")));
    if !place.is_empty() {
        left.push(format!("{}", place.path().join("bivouac").display()));
    }
    left
}

fn nothing_is_left(place: &Place, name: &str, after: &str) {
    let mut last = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(60) {
        last = left(place, name);
        if last.is_empty() {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    panic!("after {after}: {last:#?}");
}

/// An attempt that has to fail, with these words in what it says.
fn refused(place: &Place, what: &str, arguments: &[&str], words: &[&str]) {
    let name = Place::unique_name();
    let said = place.run(&[&["up", "--name", &name][..], arguments].concat());
    assert_ne!(said.code, 0, "{what}: {}", said.out);
    for word in words {
        assert!(said.err.contains(word), "{what}: '{word}' is missing: {}", said.err);
    }
    assert!(!said.err.contains("panicked") && !said.err.contains("not all removed"), "{what}: {}", said.err);
    // By the time that it says so.
    assert_eq!(left(place, &name), Vec::<String>::new(), "{what}: {}", said.err);
}

/// S446.
#[test]
fn what_cannot_be_is_refused_and_leaves_nothing() {
    let place = Place::new();
    let at = |name: &str| place.path().join(name).to_string_lossy().into_owned();
    let missing = at("missing");
    refused(&place, "no volume", &["--no-mount", "--volume", &missing], &[&missing, "is missing"]);
    let alien = at("alien");
    fs::create_dir(&alien).unwrap();
    fs::write(Path::new(&alien).join("diary"), "mine").unwrap();
    refused(&place, "a volume with files", &["--no-mount", "--volume", &alien], &[&alien, "diary"]);
    assert_eq!(fs::read(Path::new(&alien).join("diary")).unwrap(), b"mine");
    let taken = TcpListener::bind(("0.0.0.0", 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    refused(&place, "a port", &["--no-mount", "--port", &port], &[&port]);
    if !can_mount() {
        return;
    }
    let (full, file) = (at("full"), at("file"));
    fs::create_dir(&full).unwrap();
    fs::write(Path::new(&full).join("diary"), "mine").unwrap();
    fs::write(&file, "mine").unwrap();
    refused(&place, "a mount point with files", &["--mount", &full], &[&full]);
    refused(&place, "a file as mount point", &["--nodes", "2", "--mount", &file], &[&file]);
    refused(&place, "no mount point", &["--nodes", "2", "--mount", "/proc/none/of/this"], &["/proc/none"]);
    assert_eq!(fs::read(Path::new(&full).join("diary")).unwrap(), b"mine");
    assert_eq!(fs::read(&file).unwrap(), b"mine");
}

/// A daemon that is refused by its volume ends at once, and has the rest ended.
#[test]
fn a_daemon_that_cannot_start_is_named_with_its_reason() {
    let place = Place::new();
    let volume = place.path().join("volume");
    fs::create_dir_all(volume.join("n1")).unwrap();
    fs::write(volume.join("n1/diary"), "mine").unwrap();
    let text = volume.to_string_lossy().into_owned();
    let arguments = ["--no-mount", "--nodes", "3", "--volume", &text];
    refused(&place, "a daemon that dies", &arguments, &["n1", "diary"]);
    let names: Vec<_> = fs::read_dir(&volume).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["n1"], "the others are as they were");
    assert_eq!(fs::read(volume.join("n1/diary")).unwrap(), b"mine");
}

/// `up`, which gets a signal at some moment; what it said.
fn interrupted(place: &Place, name: &str, after_us: usize, by: Signal) -> Said {
    let mut arguments = vec!["up", "--name", name, "--nodes", "3"];
    if !can_mount() {
        arguments.push("--no-mount");
    }
    let mut command = place.command(&arguments);
    let up: Child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_micros(after_us as u64));
    signal(u64::from(up.id()), by);
    said(&up.wait_with_output().unwrap())
}

fn rounds() -> usize {
    std::env::var("BIVOUAC_UP_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(ROUNDS)
}

/// How long `up` takes here.
fn whole_us(place: &Place) -> usize {
    let (name, begun) = (Place::unique_name(), Instant::now());
    interrupted(place, &name, 0, Signal::CONT).succeeds();
    let whole = begun.elapsed().as_micros() as usize;
    assert_eq!(place.run(&["down", "--name", &name, "--yes"]).code, 0);
    whole
}

#[test]
fn who_interrupts_it_finds_nothing() {
    let (place, mut random) = (Place::new(), Random::new(Random::seed()));
    let whole = whole_us(&place);
    for round in 0..rounds() {
        let name = Place::unique_name();
        // The first moments are those before it listens to signals.
        let said = interrupted(&place, &name, whole / 20 + random.below(whole), Signal::INT);
        if said.code == 0 {
            let down = place.run(&["down", "--name", &name, "--yes"]);
            assert_eq!(down.code, 0, "round {round}: {}{}", down.out, down.err);
        }
        nothing_is_left(&place, &name, &format!("round {round}: {} {}", said.code, said.err));
    }
}

/// What it had not made known to a supervisor yet is found by `reap`, and by whoever takes the name again.
#[test]
fn who_kills_it_finds_a_formation_or_nothing() {
    let (place, mut random) = (Place::new(), Random::new(Random::seed()));
    let whole = whole_us(&place);
    for round in 0..rounds() {
        let name = Place::unique_name();
        let said = interrupted(&place, &name, random.below(whole), Signal::KILL);
        let after = format!("round {round}: {} {}", said.code, said.err);
        let has_process = |name: &str| left(&place, name).iter().any(|what| what.starts_with("process"));
        // One that is up may stay so: its mount, at least, was not asked for. One that starts ends.
        let mut is_up = false;
        wait_until("it is up, or its processes have ended", || {
            let status = place.run(&["status", "--name", &name, "--json"]).out;
            let status: Value = serde_json::from_str(&status).unwrap_or_default();
            is_up = status["state"] == "running";
            is_up || !has_process(&name)
        });
        if is_up {
            let down = place.run(&["down", "--name", &name, "--yes"]);
            assert_eq!(down.code, 0, "{after}: {}{}", down.out, down.err);
        } else if random.once_in(2) {
            let up = place.run(&["up", "--name", &name, "--no-mount"]);
            assert_eq!(up.code, 0, "{after}: {}", up.err);
            assert_eq!(place.run(&["down", "--name", &name, "--yes"]).code, 0);
        } else {
            let _alone = reaping();
            let reap = place.run(&["reap"]);
            assert_eq!(reap.code, 0, "{after}: {}", reap.err);
        }
        nothing_is_left(&place, &name, &after);
    }
}
