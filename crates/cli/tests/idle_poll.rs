//! The process that keeps processors from going idle between small requests.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod harness;

use std::fs::{self, File};
use std::hint;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use harness::{Camp, is_alive, signal, wait_until};
use rustix::process::{Pid, Signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Number of the class `SCHED_IDLE`.
const CLASS_IDLE: &str = "5";

/// A formation with idle polling, where there are processors enough for any.
fn start() -> Option<Camp> {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        println!("skipped: program and daemon share the only processor");
        return None;
    }
    Camp::start(&["--idle-poll", "on"])
}

/// A field of a process, counted as in proc(5).
fn field(pid: u64, number: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, behind_name) = stat.rsplit_once(") ")?;
    behind_name.split(' ').nth(number - 3).map(str::to_owned)
}

/// The living children of a process.
fn children(pid: u64) -> Vec<u64> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok());
    all.filter(|child| field(*child, 4) == Some(pid.to_string()) && is_alive(*child)).collect()
}

/// Computes a little.
fn compute() {
    let began = Instant::now();
    while began.elapsed() < Duration::from_micros(40) {
        hint::spin_loop();
    }
}

/// Has the calling thread and those that serve a daemon's mounts on two processors.
fn be_apart(daemon: u64) {
    let allowed = sched_getaffinity(None).unwrap();
    let mut two = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).map(|cpu| {
        let mut only = CpuSet::new();
        only.set(cpu);
        only
    });
    let (theirs, ours) = (two.next().unwrap(), two.next().unwrap());
    for thread in fs::read_dir(format!("/proc/{daemon}/task")).unwrap().flatten() {
        let name = fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        if name.starts_with("mount") {
            let thread = thread.file_name().to_str().unwrap().parse().unwrap();
            // One that has ended meanwhile serves nothing.
            let _ = sched_setaffinity(Pid::from_raw(thread), &theirs);
        }
    }
    sched_setaffinity(None, &ours).unwrap();
}

/// Writes a block at the beginning of a file and reads it, as somebody does who computes a little in between.
fn ask(file: &File, block: u8) {
    compute();
    file.write_all_at(&[block; 4096], 0).unwrap();
    compute();
    let mut read = [0; 4096];
    file.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(read, [block; 4096]);
}

/// Makes small requests until the daemon has another polling process than those.
fn ask_until_polled(mount: &Path, daemon: u64, but: &[u64]) -> u64 {
    let file =
        File::options().create(true).read(true).write(true).truncate(false).open(mount.join("f")).unwrap();
    let everywhere = sched_getaffinity(None).unwrap();
    be_apart(daemon);
    let (mut found, mut block) = (None, 0u8);
    wait_until("small requests are polled for", || {
        (0..64).for_each(|_| {
            block = block.wrapping_add(1);
            ask(&file, block);
        });
        found = children(daemon).into_iter().find(|child| !but.contains(child));
        found.is_some()
    });
    sched_setaffinity(None, &everywhere).unwrap();
    found.unwrap()
}

fn is_asleep(pid: u64) -> bool {
    let threads: Vec<_> = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten().collect();
    let sleeps = |path: &Path| {
        fs::read_to_string(path.join("stat"))
            .is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('S')))
    };
    threads.len() == 2 && threads.iter().all(|thread| sleeps(&thread.path()))
}

/// S271.
#[test]
fn who_polls_goes_behind_everybody_has_nothing_and_sleeps_without_requests() {
    let Some(camp) = start() else { return };
    let daemon = camp.node_pid(0);
    assert!(children(daemon).is_empty(), "nobody has asked for anything yet");
    let poller = ask_until_polled(camp.mount(), daemon, &[]);
    wait_until("it sleeps", || is_asleep(poller));
    assert_eq!(field(poller, 6), Some(poller.to_string()), "a session of its own");
    assert_eq!(field(poller, 41).as_deref(), Some(CLASS_IDLE));
    if let Ok(group) = fs::read_to_string(format!("/proc/{poller}/autogroup")) {
        assert!(group.trim_end().ends_with("nice 19"), "{group}");
    }
    for entry in fs::read_dir(format!("/proc/{poller}/fd")).unwrap().flatten() {
        let what = fs::read_link(entry.path()).unwrap().display().to_string();
        assert!(what == "/dev/null" || what.starts_with("/memfd:bivouac-poll"), "{what}");
    }
    let switches = || fs::read_to_string(format!("/proc/{poller}/status")).unwrap();
    let ticks = || (field(poller, 14), field(poller, 15), switches().lines().last().map(str::to_owned));
    let before = ticks();
    assert_eq!(camp.state(), "running");
    assert_eq!(ticks(), before, "nothing that is no small request wakes it");
    camp.down();
    assert!(!is_alive(poller));
}

/// S272.
#[test]
fn who_polls_ends_with_its_daemon_and_the_next_one_has_another() {
    let Some(camp) = start() else { return };
    let first = ask_until_polled(camp.mount(), camp.node_pid(0), &[]);
    camp.kill_node(0);
    wait_until("it ends with its daemon", || !is_alive(first));
    let daemon = camp.node_pid(0);
    let second = ask_until_polled(camp.mount(), daemon, &[first]);
    signal(camp.supervisor_pid(), Signal::KILL);
    assert_eq!(children(daemon), [second], "it is the daemon's, not the supervisor's");
    camp.kill_node(0);
    wait_until("it ends with the last daemon", || !is_alive(second));
    let reaped = camp.place().run(&["reap"]);
    assert_eq!(reaped.code, 0, "{}", reaped.err);
    assert!(camp.place().is_empty());
}

/// S273.
#[test]
fn requests_do_not_notice_the_end_of_who_polls() {
    let Some(camp) = start() else { return };
    let daemon = camp.node_pid(0);
    let first = ask_until_polled(camp.mount(), daemon, &[]);
    signal(first, Signal::KILL);
    let second = ask_until_polled(camp.mount(), daemon, &[first]);
    // One that stands still does not hold anything up either.
    signal(second, Signal::STOP);
    let file = File::options().read(true).write(true).open(camp.mount().join("f")).unwrap();
    (0..=255).for_each(|block| ask(&file, block));
    assert_eq!(camp.node_pid(0), daemon);
    camp.down();
    wait_until("a process that stood still is gone as well", || !is_alive(second));
}

/// S274.
#[test]
fn idle_polling_is_an_option_and_shown() {
    let Some(camp) = Camp::start(&["--idle-poll", "off"]) else { return };
    let status = camp.status();
    assert_eq!((&status["idle_poll"], &status["idle_polling"]), (&"off".into(), &false.into()));
    assert!(camp.run("status", &[]).out.contains("idle polling off\n"));
    let file = File::options().create_new(true).read(true).write(true).open(camp.mount().join("f")).unwrap();
    (0..2000u32).for_each(|block| ask(&file, block as u8));
    assert!(children(camp.node_pid(0)).is_empty());
    camp.down();

    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "[formation]\nidle-poll = \"on\"\n").unwrap();
    let Some(camp) = Camp::start(&["--config", file.path().to_str().unwrap()]) else { return };
    assert_eq!(camp.status()["idle_polling"], true);
    assert!(camp.run("status", &[]).out.contains("idle polling on\n"));
    camp.down();
}
