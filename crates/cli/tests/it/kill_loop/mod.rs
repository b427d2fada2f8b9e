//! Daemons, their supervisor and its standby are killed at random moments under a mixed load; whoever works notices
//! pauses, and nothing else.
//!
//! Workers journal what was acknowledged to them. Whatever was acknowledged must be there, with that content,
//! through every mount, and nothing else. `BIVOUAC_KILLS` sets how many rounds of kills there are,
//! `BIVOUAC_SEED` repeats the choices of an earlier run (not its timing).

mod model;
mod shared;
mod watch;
mod worker;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::harness::random::Random;
use crate::harness::{Camp, is_alive, standby_of, try_to_signal, wait_until};
use bivouac_launch::StateDir;
use model::Shown;
use rustix::process::Signal;
use serde_json::Value;
use shared::{SHARED_DIRS, Shared};
use watch::Watch;
use worker::Worker;

const NODES: usize = 4;
const WORKERS: usize = 6;
const KILLS: usize = 160;
/// Operations that there must have been before the kills end.
const OPERATIONS_MIN: u64 = 1000;
/// Pauses between kills, in milliseconds.
const PAUSE: (usize, usize) = (50, 150);
/// Once in so many rounds all daemons are killed (S73).
const ALL_ONCE_IN: usize = 8;
/// Once in so many rounds the supervisor is killed as well, if it has a standby (S74).
const SUPERVISOR_ONCE_IN: usize = 8;
/// And once in so many its standby.
const STANDBY_ONCE_IN: usize = 16;
/// In this time a daemon that is being started executes its program, also on a busy machine.
const STARTED_WITHIN: Duration = Duration::from_millis(30);
/// Entries at which directories spread, where they are to: fewer than the workers make in each of those they share.
const SPREAD_AT: &str = "4";
/// More entries than there ever are.
const SPREAD_AT_NEVER: &str = "100000";

type Finished = Result<Worker, String>;

#[test]
fn what_was_acknowledged_survives_kills_at_any_moment() {
    let mut random = Random::new(Random::seed());
    // In every other run nearly all directories spread while they are used.
    let spread_at = if random.once_in(2) { SPREAD_AT } else { SPREAD_AT_NEVER };
    let arguments =
        ["--nodes", "4", "--stripe", "4k", "--deaths-max", "1000000/1ms", "--spread-at", spread_at];
    let Some(camp) = Camp::start_each(&arguments) else { return };
    SHARED_DIRS.iter().for_each(|dir| fs::create_dir(camp.mount().join(dir)).unwrap());
    let shared = Arc::new(Shared::new());
    let watch = Arc::new(Watch::new(WORKERS));
    let threads = start_workers(&camp, &shared, &watch, &mut random);
    let killed = kill_daemons(&camp, &watch, &mut random);
    watch.stop.store(true, Ordering::Relaxed);
    let workers = join(&camp, threads, &watch);
    let (operations, moved) = (watch.operations.load(Ordering::Relaxed), watch.moved.load(Ordering::Relaxed));
    println!("{killed} daemons killed, {operations} operations, {moved} times ESTALE for moved directories");
    (0..NODES).for_each(|node| assert_ne!(camp.node_pid(node), 0));
    check_everything(&camp, &workers, &shared);
    drop(workers);
    check_nothing_leaks(&camp);
    assert!(deaths(&camp) >= killed as u64);
    camp.down();
}

fn start_workers(
    camp: &Camp,
    shared: &Arc<Shared>,
    watch: &Arc<Watch>,
    random: &mut Random,
) -> Vec<JoinHandle<Finished>> {
    let start = |id: usize| {
        let (shared, watch) = (Arc::clone(shared), Arc::clone(watch));
        let mut worker =
            Worker::new(id, camp.mounts().to_vec(), Random::new(random.next()), shared, Arc::clone(&watch));
        let work = move || {
            let outcome = worker.work();
            watch.idle(id);
            if outcome.is_err() {
                watch.stop.store(true, Ordering::Relaxed);
            }
            outcome.map(|()| worker)
        };
        std::thread::Builder::new().name(format!("worker-{id}")).spawn(work).unwrap()
    };
    (0..WORKERS).map(start).collect()
}

/// Kills daemons in rounds, until there were enough or a worker has failed; answers how many died.
fn kill_daemons(camp: &Camp, watch: &Watch, random: &mut Random) -> usize {
    let rounds = std::env::var("BIVOUAC_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(KILLS);
    let (mut killed, mut supervisors) = (0, 0);
    let mut last = [0; NODES];
    let mut round = 0;
    // On a machine that is busy with other things there are more kills rather than less load.
    while round < rounds || watch.operations.load(Ordering::Relaxed) < OPERATIONS_MIN {
        round += 1;
        std::thread::park_timeout(Duration::from_millis((PAUSE.0 + random.below(PAUSE.1)) as u64));
        check_progress(camp, watch);
        if watch.stop.load(Ordering::Relaxed) {
            break;
        }
        let victims = if random.once_in(ALL_ONCE_IN) { 0..NODES } else { one(random.below(NODES)) };
        let (first, after) = (random.once_in(SUPERVISOR_ONCE_IN), random.once_in(SUPERVISOR_ONCE_IN));
        if random.once_in(STANDBY_ONCE_IN) {
            standby_of(supervisor(camp)).into_iter().for_each(kill_standby);
        }
        supervisors += usize::from(first && kill_supervisor(camp));
        killed += victims.map(|node| kill(camp, node, &mut last)).sum::<usize>();
        supervisors += usize::from(after && kill_supervisor(camp));
    }
    println!("{supervisors} supervisors killed");
    killed
}

fn supervisor(camp: &Camp) -> u64 {
    let state: Value = serde_json::from_slice(&fs::read(camp.dir().join("state.json")).unwrap()).unwrap();
    state["supervisor"]["pid"].as_u64().unwrap()
}

/// Kills a standby, and waits until it is not taken for one any more.
fn kill_standby(pid: u64) {
    try_to_signal(pid, Signal::KILL);
    wait_until("the standby is gone", || !is_alive(pid));
}

/// Kills the supervisor if somebody takes its place then; answers whether it did.
fn kill_supervisor(camp: &Camp) -> bool {
    let pid = supervisor(camp);
    // A daemon that is just being started looks like one, too, and holds what shows that there is one until it executes
    // its program: one that looks the same a while later is a standby.
    let seen = standby_of(pid);
    std::thread::park_timeout(STARTED_WITHIN);
    let is_shown = StateDir::at(camp.dir()).has_standby();
    let has_standby = is_alive(pid) && is_shown && seen.is_some() && standby_of(pid) == seen;
    if has_standby {
        try_to_signal(pid, Signal::KILL);
    }
    has_standby
}

fn one(node: usize) -> std::ops::Range<usize> {
    node..node + 1
}

/// Kills a daemon if there is one that was not killed before; answers how many died.
fn kill(camp: &Camp, node: usize, last: &mut [u64; NODES]) -> usize {
    let state: Value = serde_json::from_slice(&fs::read(camp.dir().join("state.json")).unwrap()).unwrap();
    let pid = state["nodes"][node]["process"]["pid"].as_u64().unwrap_or(0);
    if pid == 0 || pid == last[node] || !is_alive(pid) {
        return 0;
    }
    last[node] = pid;
    // One that starts may end by itself just then, which is a death, too.
    try_to_signal(pid, Signal::KILL);
    1
}

/// A worker that waits for ever cannot be joined; taking the formation down ends it.
fn check_progress(camp: &Camp, watch: &Watch) {
    if let Some(hanging) = watch.hanging() {
        println!("{}", camp.run("status", &[]).out);
        camp.run("down", &["--discard"]);
        panic!("an operation hangs: {hanging}");
    }
}

fn join(camp: &Camp, threads: Vec<JoinHandle<Finished>>, watch: &Watch) -> Vec<Worker> {
    while threads.iter().any(|thread| !thread.is_finished()) {
        check_progress(camp, watch);
        std::thread::park_timeout(Duration::from_millis(20));
    }
    let outcomes: Vec<Finished> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let failures: Vec<&String> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
    assert!(failures.is_empty(), "{}", failures.iter().map(|f| f.as_str()).collect::<Vec<_>>().join("\n\n"));
    outcomes.into_iter().map(Result::unwrap).collect()
}

fn check_everything(camp: &Camp, workers: &[Worker], shared: &Shared) {
    let mut expected: BTreeMap<PathBuf, Shown> = BTreeMap::new();
    SHARED_DIRS.iter().for_each(|dir| drop(expected.insert(dir.into(), Shown::Dir)));
    workers.iter().for_each(|worker| expected.extend(worker.model.shown()));
    for mount in camp.mounts() {
        let mut found = BTreeMap::new();
        walk(mount, Path::new(""), &mut found);
        shared.check_and_forget(mount, &mut found);
        let missing = expected.iter().filter(|(path, _)| !found.contains_key(*path));
        let alien = found.iter().filter(|(path, _)| !expected.contains_key(*path));
        let other = expected.iter().filter(|(path, shown)| found.get(*path).is_some_and(|f| f != *shown));
        let mut wrong: Vec<String> =
            missing.map(|(path, _)| format!("missing: {}", path.display())).collect();
        wrong.extend(alien.map(|(path, _)| format!("never made, or removed: {}", path.display())));
        wrong.extend(
            other.map(|(path, shown)| format!("{}: {}", path.display(), shown.differs(&found[path]))),
        );
        let story: Vec<String> =
            wrong.iter().map(|line| format!("{line}\n{}", told(workers, line))).collect();
        assert!(wrong.is_empty(), "through {}:\n{}", mount.display(), story.join("\n"));
    }
}

/// What the journals have on a path that a message names.
fn told(workers: &[Worker], message: &str) -> String {
    let name = message.rsplit('/').next().unwrap_or(message);
    let name = name.split([':', ' ']).next().unwrap_or(name);
    workers.iter().flat_map(|worker| worker.journal.about(name)).collect::<Vec<_>>().join("\n")
}

fn walk(mount: &Path, below: &Path, found: &mut BTreeMap<PathBuf, Shown>) {
    for entry in fs::read_dir(mount.join(below)).unwrap() {
        let path = below.join(entry.unwrap().file_name());
        let shown = Shown::look(&mount.join(&path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let is_dir = shown == Shown::Dir;
        assert!(found.insert(path.clone(), shown).is_none(), "{} is listed twice", path.display());
        if is_dir {
            walk(mount, &path, found);
        }
    }
}

/// Without files there are no inodes but the root's, and no subfiles.
fn check_nothing_leaks(camp: &Camp) {
    for entry in fs::read_dir(camp.mount()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }
    let sum = |pointer: &str| {
        let status = camp.status();
        let nodes = status["nodes"].as_array().unwrap();
        nodes.iter().map(|node| node.pointer(pointer).and_then(Value::as_u64).unwrap_or(1 << 40)).sum::<u64>()
    };
    wait_until("only the root is left", || sum("/files") == 1);
    wait_until("all space is free", || sum("/volumes/0/used_bytes") == 0);
}

fn deaths(camp: &Camp) -> u64 {
    camp.status()["nodes"].as_array().unwrap().iter().map(|node| node["deaths"].as_u64().unwrap()).sum()
}
