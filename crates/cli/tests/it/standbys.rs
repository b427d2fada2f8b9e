//! A supervisor that is killed is followed by a copy of itself: daemons, mounts and their programs notice nothing. The
//! same for keepers: hosts.rs; at random moments: kill_loop.

use std::fs;
use std::io::Write;

use rustix::process::Signal;

use crate::ends::{Owner, Traces};
use crate::harness::{Camp, is_alive, signal, standby_of, try_to_signal, wait_for_standby_of, wait_until};
use bivouac_launch::StateDir;

/// The supervisor, once it has a standby, and that.
fn both(camp: &Camp) -> (u64, u64) {
    let supervisor = camp.supervisor_pid();
    // A daemon that is just being started looks like one, too.
    wait_until("it has a standby", || {
        camp.status()["supervisor"]["standby"] == true && camp.state() == "running"
    });
    (supervisor, wait_for_standby_of(supervisor))
}

/// Waits until another one is the supervisor, and returns it. Asks no daemon, which may take its time to answer.
fn wait_for_follower(camp: &Camp, former: u64) -> u64 {
    let dir = StateDir::at(camp.dir());
    let mut now = former;
    wait_until("somebody has its place", || {
        let supervisor = dir.read().unwrap().and_then(|state| state.supervisor);
        now = supervisor.map_or(former, |supervisor| supervisor.pid.into());
        now != former && is_alive(now)
    });
    now
}

/// Processes that have ended, and that a process still has a descriptor of: it is woken by them for ever.
fn dead_watched_by(pid: u64) -> usize {
    let entries = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    let texts = entries.map(|entry| fs::read_to_string(entry.path()).unwrap_or_default());
    texts.filter(|text| text.lines().any(|line| line == "Pid:\t-1")).count()
}

/// S74, S77.
#[test]
fn a_killed_supervisor_is_followed_by_its_standby() {
    let mut owner = Owner::new();
    let Some(camp) = Camp::start(&["--nodes", "2", "--owner", &owner.pid()]) else { return };
    let mut open = fs::File::create(camp.mount().join("open")).unwrap();
    let mut content = Vec::new();
    let another = tempfile::tempdir().unwrap();
    for round in 0..5_usize {
        let (supervisor, _) = both(&camp);
        let nodes = [camp.node_pid(0), camp.node_pid(1)];
        // Also daemons that nobody knows of: it may have started one in its last moment.
        let victims = nodes.iter().take(round % 3).chain([&supervisor]);
        let victims: Vec<u64> =
            if round < 3 { victims.rev().copied().collect() } else { victims.copied().collect() };
        victims.iter().for_each(|pid| signal(*pid, Signal::KILL));
        wait_for_follower(&camp, supervisor);
        // Of daemons that were killed as well it has not heard yet.
        if round % 3 == 0 {
            assert_eq!(dead_watched_by(camp.supervisor_pid()), 0, "round {round}: the former one's copy");
        }
        wait_until("daemons are started again", || {
            let now = [camp.node_pid(0), camp.node_pid(1)];
            camp.state() == "running" && nodes.iter().zip(now).take(round % 3).all(|(then, now)| *then != now)
        });
        let line = format!("round {round}\n");
        open.write_all(line.as_bytes()).unwrap();
        content.extend_from_slice(line.as_bytes());
        assert_eq!(fs::read(camp.mount().join("open")).unwrap(), content);
        if round == 1 {
            camp.run("mount", &[another.path().to_str().unwrap()]).succeeds();
        }
        if round >= 1 {
            assert_eq!(fs::read(another.path().join("open")).unwrap(), content);
        }
    }
    drop(open);
    let traces = Traces::of(&camp);
    owner.end();
    wait_until("it ends with its owner", || traces.gone(camp.place()));
}

/// S74: whoever ends the standby alone, by force or not, has another one made.
#[test]
fn a_standby_that_ends_is_followed_by_another() {
    let Some(camp) = Camp::start(&[]) else { return };
    for how in [Signal::KILL, Signal::TERM] {
        let (supervisor, standby) = both(&camp);
        // It may be replaced just then.
        try_to_signal(standby, how);
        wait_until("there is another one", || {
            standby_of(supervisor).is_some_and(|another| another != standby) && !is_alive(standby)
        });
        wait_until("all is well", || camp.state() == "running");
        assert_eq!(camp.supervisor_pid(), supervisor);
    }
    camp.down();
}

/// S74: what a standby does not know of ends, and is started again by it.
#[test]
fn a_daemon_that_the_standby_does_not_know_of_is_replaced() {
    let Some(camp) = Camp::start(&[]) else { return };
    let mut open = fs::File::create(camp.mount().join("open")).unwrap();
    open.write_all(b"before").unwrap();
    let (supervisor, _) = both(&camp);
    // Without this file there is no new standby, and the one there is stays as it is.
    let log = camp.dir().join("supervisor.log");
    fs::rename(&log, camp.dir().join("aside")).unwrap();
    let known = camp.node_pid(0);
    signal(known, Signal::KILL);
    wait_until("there is another daemon", || {
        camp.state() == "running" && ![0, known].contains(&camp.node_pid(0))
    });
    let (unknown, standby) = (camp.node_pid(0), Some(wait_for_standby_of(supervisor)));
    // Stopped, so that it makes no new one with the file.
    signal(supervisor, Signal::STOP);
    fs::rename(camp.dir().join("aside"), &log).unwrap();
    signal(supervisor, Signal::KILL);
    assert_eq!(Some(wait_for_follower(&camp, supervisor)), standby);
    wait_until("it has a daemon of its own", || ![0, unknown].contains(&camp.node_pid(0)));
    assert!(!is_alive(unknown));
    wait_until("all is well", || camp.state() == "running");
    open.write_all(b" and after").unwrap();
    assert_eq!(fs::read(camp.mount().join("open")).unwrap(), b"before and after");
    drop(open);
    camp.down();
}

/// S369: who kills supervisor and standby within a moment has meant both, and what they have left can be taken down.
#[test]
fn nobody_follows_both() {
    let Some(camp) = Camp::start(&["--nodes", "2"]) else { return };
    let (supervisor, _) = both(&camp);
    signal(supervisor, Signal::KILL);
    // For two seconds it has no standby.
    signal(wait_for_follower(&camp, supervisor), Signal::KILL);
    wait_until("that is seen", || camp.state() == "degraded");
    let seen = camp.status()["supervisor"].clone();
    assert_eq!((&seen["alive"], &seen["standby"]), (&false.into(), &false.into()));
    fs::write(camp.mount().join("f"), "the daemons serve on").unwrap();
    camp.down();
}
