//! Locks and waits live through the death of daemons: of the file's home, and of the mount's own.

use std::fs;

use crate::harness::signal;
use crate::harness::wait_until;
use crate::locks::{at, camp, camp_that_waits, file_at_home};
use rustix::process::Signal;

const ORDERS: [&str; 3] = ["flock f w", "wait f w 3 4", "wait-ofd f w 3 4"];

fn unlock(order: &str) -> String {
    order.replace("wait f", "try f").replace("wait-ofd", "try-ofd").replace(" w", " u")
}

fn attempt(order: &str) -> String {
    order.replace("wait f", "try f").replace("wait-ofd", "try-ofd").replace("flock", "try-flock")
}

/// What is locked stays locked, and who waits gets it, when these nodes' daemons are killed. The home is node 2, the
/// holder is at node 0, who waits is at node 1.
fn survives(killed: &[usize]) {
    let Some(camp) = camp() else { return };
    let file = file_at_home(&camp, 2);
    let file = file.to_str().unwrap();
    for order in ORDERS {
        let (mut a, mut b, mut c) = (at(&camp, 0, file), at(&camp, 1, file), at(&camp, 3, file));
        a.ok(order);
        b.begin(order);
        assert!(b.is_busy_for(100), "{order}");
        for node in killed {
            camp.kill_node(*node);
        }
        assert_eq!(c.ask(&attempt(order)), "EAGAIN", "{order}");
        assert!(b.is_busy_for(1500), "{order}: still locked");
        assert_eq!(c.ask(&attempt(order)), "EAGAIN", "{order}");
        a.ok(&unlock(order));
        assert_eq!(b.outcome(), "ok", "{order}");
        assert_eq!(c.ask(&attempt(order)), "EAGAIN", "{order}");
        assert_eq!(a.ask(&attempt(order)), "EAGAIN", "{order}");
        // Granted once: once unlocked, it is free.
        b.ok(&unlock(order));
        c.ok(order);
        // Closing drops what was locked before the kill.
        c.kill();
        a.ok(order);
    }
    camp.down();
}

/// S109.
#[test]
fn of_the_home() {
    survives(&[2]);
}

/// S109.
#[test]
fn of_the_holder() {
    survives(&[0]);
}

/// S109.
#[test]
fn of_who_waits() {
    survives(&[1]);
}

/// S109.
#[test]
fn of_all_of_them() {
    survives(&[0, 1, 2]);
}

#[test]
fn a_process_that_dies_with_its_daemon_holds_nothing() {
    let Some(camp) = camp() else { return };
    let file = file_at_home(&camp, 2);
    let file = file.to_str().unwrap();
    for order in ORDERS {
        let (mut a, mut b, mut c) = (at(&camp, 0, file), at(&camp, 0, file), at(&camp, 1, file));
        a.ok(order);
        b.begin(order);
        assert!(b.is_busy_for(100));
        // While the daemon is away nobody hears of their end; the new one does.
        let pids = [a.pid(), b.pid()];
        camp.kill_node(0);
        pids.iter().for_each(|pid| signal(*pid, Signal::KILL));
        c.ok(order);
        drop((a, b));
    }
    camp.down();
}

#[test]
fn a_wait_can_be_interrupted_after_a_kill() {
    let Some(camp) = camp() else { return };
    let file = file_at_home(&camp, 2);
    let file = file.to_str().unwrap();
    for killed in [1, 2] {
        for order in ORDERS {
            let (mut a, mut b) = (at(&camp, 0, file), at(&camp, 1, file));
            a.ok(order);
            b.begin(&format!("alarm 2 {order}"));
            assert!(b.is_busy_for(100));
            if order == ORDERS[0] {
                camp.kill_node(killed);
            }
            assert_eq!(b.outcome(), "alarm");
            a.ok(&unlock(order));
            let mut c = at(&camp, 3, file);
            c.ok(&attempt(order));
        }
    }
    camp.down();
}

#[test]
fn a_circle_that_is_closed_after_a_kill_is_found() {
    let Some(camp) = camp() else { return };
    let files = [file_at_home(&camp, 1), file_at_home(&camp, 2)];
    let open = |mount: usize| {
        let mut locker = at(&camp, mount, files[0].to_str().unwrap());
        locker.ok(&format!("open g {}", camp.mounts()[mount].join(&files[1]).display()));
        locker
    };
    let (mut a, mut b) = (open(0), open(3));
    a.ok("try f w 0 0");
    b.ok("try g w 0 0");
    a.begin("wait g w 0 0");
    assert!(a.is_busy_for(100));
    for node in [0, 1, 2] {
        camp.kill_node(node);
    }
    b.begin("wait f w 0 0");
    // The kill made both young: either is refused, and the other goes on once that one lets go.
    let mut turns = (0..4_000).map(|turn| turn % 2);
    let answer = turns.find_map(|i| Some((i, [&a, &b][i].outcome_within(50)?)));
    let (refused, outcome) = answer.expect("one of them is refused");
    assert_eq!(outcome, "EDEADLK");
    [&mut a, &mut b][refused].ok(["try f u 0 0", "try g u 0 0"][refused]);
    assert_eq!([&b, &a][refused].outcome(), "ok");
    drop((a, b));
    camp.down();
}

/// S104, S109.
#[test]
fn no_increment_is_lost_while_daemons_are_killed() {
    let Some(camp) = camp() else { return };
    let files = [file_at_home(&camp, 1), file_at_home(&camp, 2), file_at_home(&camp, 3)];
    let each = 120;
    let kinds = ["flock", "fcntl", "ofd"];
    let mut lockers = Vec::new();
    for (file, kind) in files.iter().zip(kinds) {
        for mount in camp.mounts() {
            let mut locker = crate::locks::Locker::new();
            locker.begin(&format!("count {} {each} {kind}", mount.join(file).display()));
            lockers.push(locker);
        }
    }
    for node in [1, 2, 3, 0, 1, 2] {
        camp.kill_node(node);
        // The next one after everybody has gone on.
        fs::read(camp.mounts()[node].join(&files[0])).unwrap();
    }
    for locker in &lockers {
        assert_eq!(locker.outcome(), "ok");
    }
    for file in &files {
        let text = fs::read_to_string(camp.mount().join(file)).unwrap();
        assert_eq!(text.parse::<usize>().unwrap(), each * camp.mounts().len());
    }
    drop(lockers);
    camp.down();
}

/// S110.
#[test]
fn what_a_lost_node_had_is_free_after_the_bounded_time() {
    let Some(camp) = camp_that_waits("4s") else { return };
    let file = file_at_home(&camp, 2);
    let file = file.to_str().unwrap();
    let (mut a, mut b) = (at(&camp, 1, file), at(&camp, 3, file));
    a.ok("flock f w");
    a.ok("try f w 0 0");
    for _ in 0..5 {
        camp.kill_node(1);
    }
    wait_until("node 1 is given up", || camp.status()["nodes"][1]["state"] == "failed");
    b.ok("flock f w");
    b.ok("wait f w 0 0");
    drop((a, b));
    camp.down();
}

/// S110.
#[test]
fn who_holds_a_lock_and_asks_nothing_keeps_it() {
    let Some(camp) = camp_that_waits("4s") else { return };
    let file = file_at_home(&camp, 2);
    let file = file.to_str().unwrap();
    let (mut a, mut b) = (at(&camp, 1, file), at(&camp, 3, file));
    a.ok("flock f w");
    camp.kill_node(2);
    camp.node_pid(2);
    b.begin("flock f w");
    assert!(b.is_busy_for(9000), "the bounded time is over, but the holder lives");
    a.ok("flock f u");
    assert_eq!(b.outcome(), "ok");
    drop((a, b));
    camp.down();
}
