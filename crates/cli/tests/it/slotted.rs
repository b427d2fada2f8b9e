//! Slots for staging, as a user has them: S432 to S434.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::database_server::Server;
use crate::harness::random::Random;
use crate::harness::{Camp, Place, Said, assert_contains, can_mount, signal, write_program};
use rustix::process::Signal;
use serde_json::Value;

fn place() -> Place {
    with_storage(Place::with_pools())
}

fn with_storage(place: Place) -> Place {
    place.ok(&["pool", "storage", "--bandwidth", "100m", "--user-share", "100", "--file-cost", "64k"]);
    place
}

fn json(place: &Place, arguments: &[&str]) -> Value {
    serde_json::from_str(&place.ok(arguments)).unwrap()
}

fn refused(place: &Place, arguments: &[&str], code: i32, text: &str) {
    let Said { code: got, err, .. } = place.run(arguments);
    assert!(got == code && err.contains(text), "{arguments:?}: {got} {err}");
}

/// S432: what is announced is shown, drawn, and refused if it cannot be met.
#[test]
fn slots_are_announced_and_shown() {
    let place = place();
    let first = json(&place, &["pool", "announce", "--in", "--size", "6g", "--by", "2m", "--json"]);
    assert_eq!((&first["id"], &first["state"]), (&1.into(), &"waiting".into()));
    let announce = ["pool", "announce", "--in", "--size", "6g", "--by", "2m"];
    refused(&place, &announce, 1, "cannot be done by its deadline beside what was promised to others");
    let later = place.ok(&[&announce[..], &["--or-later", "--title", "odd\u{1b}[31m"]].concat());
    assert!(later.starts_with("slot 2: ") && later.contains(" late"), "{later}");
    let shown = place.ok(&["pool", "slots"]);
    assert!(
        shown.contains("waiting, late") && shown.contains("100 MiB/s") && !shown.contains('\u{1b}'),
        "{shown}"
    );
    let drawn = place.ok(&["pool", "schedule"]);
    assert!(drawn.contains("site storage gives 100 MiB/s to stages, 100 % of it to one user"), "{drawn}");
    let bars: Vec<&str> = drawn.lines().filter(|line| line.contains("==")).collect();
    assert_eq!(bars.len(), 2, "{drawn}");
    // The one is drawn where the other is not.
    let ends = bars[0].rfind('=').unwrap();
    assert!(bars[1].find('=').unwrap() >= ends, "{drawn}");
    let chart = json(&place, &["pool", "schedule", "--json"]);
    assert_eq!(chart["slots"].as_array().unwrap().len(), 2);
    refused(&place, &["pool", "begin", "2", "--no-wait"], 1, "wait for it, or come again");
    refused(&place, &["pool", "done", "2"], 1, "has not begun");
    assert_eq!(place.ok(&["pool", "begin", "1"]), "104857600\n");
    place.ok(&["pool", "done", "1"]);
    place.ok(&["pool", "withdraw", "2"]);
    assert_eq!(place.ok(&["pool", "slots"]), "nothing is announced\n");
    assert!(place.ok(&["pool", "slots", "--all"]).contains("withdrawn"));
    refused(&place, &["pool", "withdraw", "7"], 1, "slot 7: there is none of that number of yours");
    refused(&place, &["pool", "storage", "--bandwidth", "0"], 2, "--bandwidth");
    refused(&place, &["pool", "announce", "--in", "--size", "1", "--by", "noon"], 2, "@SECONDS");
    refused(&place, &["pool", "announce", "--in", "--size", "1", "--job", "1"], 1, "say by when");
}

/// S437: jobs of other batch systems than Slurm, as those say them, by the same command.
#[test]
fn jobs_of_flux_and_pbs_are_followed() {
    let mut place = place();
    let dir = place.path().to_owned();
    let bin = dir.join("bin");
    std::fs::create_dir(&bin).unwrap();
    let path = std::env::var("PATH").unwrap();
    let program =
        |name: &str| path.split(':').map(|dir| Path::new(dir).join(name)).find(|path| path.is_file());
    for name in ["sh", "cat", "id", "env"] {
        std::os::unix::fs::symlink(program(name).unwrap(), bin.join(name)).unwrap();
    }
    // Nothing else is to be found, so that no other batch system of this machine is asked.
    place.set("PATH", bin.to_str().unwrap());
    let base = dir.join("base");
    std::fs::create_dir(&base).unwrap();
    place.ok(&["pool", "create", "mesh", "--base", base.to_str().unwrap()]);
    let data = place.ok(&["pool", "path", "mesh"]);
    std::fs::write(Path::new(data.trim_end()).join("f"), [7; 4096]).unwrap();
    place.ok(&["pool", "count", "mesh"]);
    refused(&place, &["pool", "follow"], 1, "neither squeue, flux nor qstat is here");
    let user = ok_of("id", &["-un"]);
    let soon = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() + 3600;
    let flux = |jobs: &str| std::fs::write(dir.join("flux.json"), format!("{{\"jobs\": [{jobs}]}}")).unwrap();
    let pbs = |jobs: &str| {
        let text = format!("{{\"pbs_version\": \"23\", \"Jobs\": {{{jobs}}}}}");
        std::fs::write(dir.join("qstat.json"), text).unwrap();
    };
    for name in ["flux", "qstat"] {
        let script = format!("#!/bin/sh\nexec cat {}/{name}.json\n", dir.display());
        write_program(&bin.join(name), &script);
    }
    let of_flux = format!(
        "{{\"id\": 91, \"jobid\": \"ƒx\", \"annotations\": {{\"sched\": {{\"t_estimate\": {soon}.5}}, \"user\": {{\"bivouac-announce\": \"mesh\"}}}}}}"
    );
    let of_pbs = |start: u64, owner: &str| {
        format!(
            "\"12.head\": {{\"Job_Owner\": \"{owner}@login\", \"job_state\": \"Q\", \"estimated\": {{\"start_time\": {start}}}, \
             \"Variable_List\": {{\"BIVOUAC_ANNOUNCE\": \"mesh\"}}}}"
        )
    };
    flux(&of_flux);
    pbs(&of_pbs(soon, "somebody"));
    let said = place.ok(&["pool", "follow"]);
    assert!(said.starts_with("slot 1: ") && said.lines().count() == 1, "{said}");
    assert_eq!(place.ok(&["pool", "follow"]), "", "once");
    pbs(&of_pbs(soon + 60, user.trim()));
    assert!(place.ok(&["pool", "follow"]).starts_with("slot 2: "));
    let slots = json(&place, &["pool", "slots", "--json"]);
    let slots = slots["slots"].as_array().or(slots.as_array()).unwrap();
    let seen: Vec<(&str, u64)> = slots
        .iter()
        .map(|slot| (slot["job"].as_str().unwrap(), slot["deadline_s"].as_u64().unwrap()))
        .collect();
    assert_eq!(seen, [("flux:91", soon), ("pbs:12.head", soon + 60)]);
    // Expected later; and the other one is gone.
    pbs(&of_pbs(soon + 600, user.trim()));
    flux("");
    let said = place.ok(&["pool", "follow"]);
    assert!(said.contains("slot 1: withdrawn, job 91") && said.contains("slot 2: "), "{said}");
    // One that cannot be understood keeps the other from nothing.
    std::fs::write(dir.join("flux.json"), "flux-jobs: ERROR").unwrap();
    pbs(&of_pbs(soon + 1200, user.trim()));
    place
        .run(&["pool", "follow"])
        .fails(1, &["flux of Flux says what is not understood"])
        .prints(&["slot 2: "]);
    // By hand, for one job, however it is written.
    let announce = |job: &str| place.run(&["pool", "announce", "--in", "--size", "1", "--job", job]);
    for job in ["12", "12.head", "pbs:12.head"] {
        assert_eq!(announce(job).code, 0, "{job}");
    }
    assert!(
        announce("13").err.contains("job 13: is not in your queue; see: qstat"),
        "{}",
        announce("13").err
    );
}

fn ok_of(program: &str, arguments: &[&str]) -> String {
    let said = std::process::Command::new(program).args(arguments).output().unwrap();
    String::from_utf8(said.stdout).unwrap()
}

/// S433: a stage waits for its slot, keeps to its rate, and is done; killed, it goes on in it.
#[test]
fn a_stage_keeps_to_its_slot() {
    if !can_mount() {
        return;
    }
    let place = place();
    let data = place.path().join(std::ffi::OsStr::from_bytes(b"odd \xff'\n"));
    std::fs::create_dir(&data).unwrap();
    let content = vec![7; 3 << 20];
    std::fs::write(data.join("a"), &content).unwrap();
    let made = place.command(&["pool", "create", "mesh", "--from"]).arg(&data).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let camp = Camp::start_in(place, &["--nodes", "2"]);
    let (place, name) = (camp.place(), camp.name().to_owned());
    // Somebody is copying; it is done a little later.
    place.ok(&["pool", "announce", "--in", "--size", "1g", "--by", "1h"]);
    place.ok(&["pool", "begin", "1"]);
    let announced = ["pool", "announce", "mesh", "--in", "--by", "1h", "--rate", "1m", "--json"];
    assert_eq!(json(place, &announced)["pool"], "mesh");
    refused(
        place,
        &["pool", "stage", "out", "mesh", "--at", "/", "--name", &name, "--slot", "2"],
        2,
        "is for stage in",
    );
    let stage = ["pool", "stage", "in", "mesh", "--name", &name, "--slot", "2"];
    let mut waiting = place.command(&stage).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut said = std::io::BufReader::new(waiting.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    assert!(line.starts_with("slot 2: begins in "), "{line}");
    signal(waiting.id().into(), Signal::TERM);
    assert_eq!(waiting.wait().unwrap().code(), Some(143));
    assert!(!camp.mount().join("mesh").exists());
    place.ok(&["pool", "done", "1"]);
    // It is its time now: it begins, and is killed.
    let mut killed = place.command(&stage).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut said = std::io::BufReader::new(killed.stderr.take().unwrap());
    line.clear();
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    assert!(line.contains("in job 1"), "{line}");
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(json(place, &["pool", "slots", "--json"])[0]["state"], "running");
    place.ok(&["stage", "resume", "1", "--name", &name, "--slot", "2"]);
    assert_eq!(std::fs::read(camp.mount().join("mesh/a")).unwrap(), content);
    let status = json(place, &["stage", "status", "--name", &name, "--json"]);
    assert_eq!(status[0]["state"], "done");
    assert_eq!(json(place, &["pool", "slots", "--all", "--json"])[1]["state"], "done");
    refused(place, &[&stage[..], &["--at", "/other"]].concat(), 1, "slot 2: is done; announce it again");
    // And back, what changed.
    std::fs::write(camp.mount().join("mesh/b"), "new").unwrap();
    place.ok(&["pool", "stage", "out", "mesh", "--name", &name]);
    assert_eq!(std::fs::read(data.join("b")).unwrap(), b"new");
    // S438: and how much that is.
    let shown = json(place, &["pool", "show", "mesh", "--json"]);
    assert_eq!((&shown["bytes"], &shown["files"]), (&((3 << 20) + 3).into(), &2.into()));
    camp.down();
}

/// S438: a pool that was made empty has what is in it counted, and can then be announced.
#[test]
fn a_pool_is_counted_before_it_is_announced() {
    let place = place();
    let base = place.path().join("base");
    std::fs::create_dir(&base).unwrap();
    place.ok(&["pool", "create", "out", "--base", base.to_str().unwrap()]);
    let announce = ["pool", "announce", "out", "--in", "--by", "1h", "--json"];
    refused(&place, &announce, 1, "bivouac pool count out");
    let dir = place.ok(&["pool", "path", "out"]);
    let dir = std::path::Path::new(dir.trim_end());
    std::fs::create_dir(dir.join("deep")).unwrap();
    std::fs::write(dir.join("deep/a"), vec![7; 5000]).unwrap();
    std::fs::write(dir.join(std::ffi::OsStr::from_bytes(b"odd \xff\n")), "123").unwrap();
    assert_eq!(place.ok(&["pool", "count", "out"]), "pool out holds 4.9 KiB in 2 files\n");
    let slot = json(&place, &announce);
    assert_eq!((&slot["bytes"], &slot["files"]), (&5003.into(), &2.into()));
    assert!(place.ok(&["pool", "history", "out"]).contains("2 files, 5003 bytes"));
    std::fs::remove_dir_all(dir).unwrap();
    refused(&place, &["pool", "count", "out"], 1, "check its path");
}

/// S433: a stage whose slot is over copies no more, and can go on in another.
#[test]
fn a_stage_stops_with_its_slot() {
    if !can_mount() {
        return;
    }
    let place = place();
    let data = place.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("a"), vec![7; 8 << 20]).unwrap();
    place.ok(&["pool", "create", "mesh", "--from", data.to_str().unwrap()]);
    let camp = Camp::start_in(place, &[]);
    let (place, name) = (camp.place(), camp.name().to_owned());
    let announced = ["pool", "announce", "mesh", "--in", "--by", "10h", "--rate", "64k"];
    place.ok(&announced);
    let stage = ["pool", "stage", "in", "mesh", "--name", &name, "--slot", "1"];
    let mut staging = place.command(&stage).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut said = std::io::BufReader::new(staging.stderr.take().unwrap());
    let mut text = String::new();
    std::io::BufRead::read_line(&mut said, &mut text).unwrap();
    assert!(text.contains("in job 1"), "{text}");
    place.ok(&["pool", "withdraw", "1"]);
    std::io::Read::read_to_string(&mut said, &mut text).unwrap();
    assert_eq!(staging.wait().unwrap().code(), Some(1), "{text}");
    assert_contains(&text, &["slot 1: is withdrawn; announce it again", "job 1 is kept"]);
    place.ok(&["pool", "announce", "mesh", "--in", "--by", "10h"]);
    place.ok(&["stage", "resume", "1", "--name", &name, "--slot", "2"]);
    assert_eq!(std::fs::read(camp.mount().join("mesh/a")).unwrap(), vec![7; 8 << 20]);
    camp.down();
}

/// S434: killed at any time, every verb has done all of what it does or nothing; asked again, it has been done once.
#[test]
fn every_verb_is_whole_whenever_it_is_killed() {
    verbs_are_whole(&place());
}

/// S434, S436: with a server as well.
#[test]
fn every_verb_at_a_server_is_whole_whenever_it_is_killed() {
    let Some(server) = Server::start() else { return };
    server.make("site");
    verbs_are_whole(&with_storage(Place::with_pools_at(&server.url("site"))));
}

fn verbs_are_whole(place: &Place) {
    let mut random = Random::new(Random::seed());
    let base = place.path().join("base");
    let archive = place.path().join("archive");
    std::fs::create_dir(&base).unwrap();
    std::fs::create_dir(&archive).unwrap();
    let (base, archive) = (base.to_str().unwrap(), archive.to_str().unwrap());
    let verbs: [&[&str]; 14] = [
        &["create", "p", "--base", base, "--request", "1"],
        &["extend", "p", "--days", "50", "--request", "2"],
        &["share", "p", "--group", "7", "--ro", "--request", "3"],
        &["reminder", "p", "--remind", "3", "--mail", "me@site.example", "--request", "8"],
        &["count", "p", "--request", "9"],
        &["archive", "p", "--to", archive, "--free", "--request", "10"],
        &["restore", "p", "--request", "11"],
        &["announce", "p", "--in", "--size", "1m", "--by", "1h", "--request", "4"],
        &["begin", "1", "--no-wait"],
        &["done", "1"],
        &["announce", "p", "--in", "--size", "1m", "--by", "1h", "--request", "5"],
        &["withdraw", "2"],
        &["release", "p", "--request", "6"],
        &["restore", "p", "--request", "7"],
    ];
    for verb in verbs {
        let arguments = [&["pool"], verb].concat();
        for _ in 0..3 {
            let mut child = place.command(&arguments).stdout(std::process::Stdio::null()).spawn().unwrap();
            // A different point of its life each time: it is busy for a few milliseconds.
            (0..random.below(400_000)).for_each(|step| _ = std::hint::black_box(step));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        place.ok(&arguments);
        if verb[0] == "create" {
            let path = place.ok(&["pool", "path", "p"]);
            std::fs::write(std::path::Path::new(path.trim_end()).join("a"), "content").unwrap();
        }
    }
    let path = place.ok(&["pool", "path", "p"]);
    assert_eq!(std::fs::read_to_string(std::path::Path::new(path.trim_end()).join("a")).unwrap(), "content");
    assert_eq!(std::fs::read_dir(archive).unwrap().count(), 1);
    let pools = json(place, &["pool", "list", "--json"]);
    assert_eq!((pools.as_array().unwrap().len(), &pools[0]["extensions_left"]), (1, &1.into()));
    assert_eq!(std::fs::read_dir(base).unwrap().count(), 1);
    let slots = json(place, &["pool", "slots", "--all", "--json"]);
    let states: Vec<&Value> = slots.as_array().unwrap().iter().map(|slot| &slot["state"]).collect();
    assert_eq!(states, [&Value::from("done"), &Value::from("withdrawn")]);
    let history = place.ok(&["pool", "history", "p"]);
    let what = history.lines().filter_map(|line| line.split_whitespace().nth(1));
    // Each step of the ways to the archive and back can be the last one of a command that was killed.
    let what: Vec<&str> = what.filter(|what| !matches!(*what, "archive" | "location")).collect();
    assert_eq!(
        what,
        [
            "create", "extend", "share", "reminder", "version", "count", "announce", "stage", "announce",
            "stage", "release", "restore"
        ]
    );
}
