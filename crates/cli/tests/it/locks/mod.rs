//! Locks of programs hold across the mounts of several nodes, also while daemons are killed.

mod kills;
mod locker;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::library::far_library;
use crate::harness::{Camp, wait_until};
use bivouac_client::Client;
use bivouac_types::NodeId;
use locker::Locker;

/// Four nodes with a mount each.
fn camp() -> Option<Camp> {
    camp_that_waits("30s")
}

/// The same with another bounded time.
fn camp_that_waits(bound: &str) -> Option<Camp> {
    let works = Command::new("python3").arg("-V").output().is_ok_and(|output| output.status.success());
    if !works {
        println!("skipped: python3 is not installed");
        return None;
    }
    Camp::start_each(&["--nodes", "4", "--stripe", "64k", "--wait", bound])
}

/// A process with a file open through a mount.
fn at(camp: &Camp, mount: usize, file: &str) -> Locker {
    let mut locker = Locker::new();
    locker.ok(&format!("open f {}", camp.mounts()[mount].join(file).display()));
    locker
}

/// The node that an inode's number names as its home.
fn home(camp: &Camp, path: &Path) -> usize {
    let text = camp.place().run(&["explain", path.to_str().unwrap(), "--json"]);
    let explained: serde_json::Value = serde_json::from_str(&text.out).unwrap_or_else(|_| panic!("{text:?}"));
    usize::try_from(explained["home"].as_u64().unwrap_or_else(|| panic!("{explained}"))).unwrap()
}

/// A new file whose home is the given node: directories spread, and files live with theirs.
fn file_at_home(camp: &Camp, node: usize) -> PathBuf {
    for number in 0..200 {
        let dir = camp.mount().join(format!("home{node}-{number}"));
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("f"), "").unwrap();
        if home(camp, &dir.join("f")) == node {
            return dir.strip_prefix(camp.mount()).unwrap().join("f");
        }
    }
    panic!("no directory came to node {node}");
}

/// Requests for locks that clients have made to a node.
fn lock_requests(client: &Client, node: usize) -> u64 {
    let operations = client.nodes().status(NodeId(node as u16)).unwrap().operations;
    operations.iter().find(|count| count.name == "SetLock").map_or(0, |count| count.client)
}

/// Begins an order that waits for a lock of which a node is the home, and waits until the node has been asked for it.
fn begin_to_wait(client: &Client, home: usize, locker: &mut Locker, order: &str) {
    let before = lock_requests(client, home);
    locker.begin(order);
    wait_until("the home is asked for the lock", || lock_requests(client, home) > before);
    assert!(locker.is_busy_for(200), "no circle yet");
}

/// S100.
#[test]
fn locks_exclude_each_other_across_mounts() {
    let Some(camp) = camp() else { return };
    let (mut a, mut b) = (at(&camp, 0, "f"), at(&camp, 1, "f"));
    for (take, refused) in
        [("try-flock f w", "EAGAIN"), ("try f w 0 0", "EAGAIN"), ("try-ofd f w 0 0", "EAGAIN")]
    {
        a.ok(take);
        assert_eq!(b.ask(take), refused, "{take}");
        assert_eq!(b.ask(&take.replace(" w", " r")), refused, "{take}");
        a.ok(&take.replace(" w", " u"));
        b.ok(&take.replace(" w", " r"));
        a.ok(&take.replace(" w", " r"));
        a.ok(&take.replace(" w", " u"));
        b.ok(&take.replace(" w", " u"));
    }
    // Ranges and whole files have nothing to do with each other; descriptions and processes do.
    a.ok("try-flock f w");
    b.ok("try f w 0 0");
    assert_eq!(a.ask("try-ofd f r 5 1"), "EAGAIN");
    drop((a, b));
    camp.down();
}

/// S101, S108.
#[test]
fn ranges_are_split_and_joined_and_shown_to_others() {
    let Some(camp) = camp() else { return };
    let (mut a, mut b) = (at(&camp, 0, "f"), at(&camp, 3, "f"));
    a.ok("try f w 0 100");
    a.ok("try f u 40 20");
    a.ok("try f r 60 10");
    assert_eq!(b.ask("test f w 0 0"), "w 0 40 0", "the process of another mount has no number here");
    assert_eq!(b.ask("test f r 40 25"), "free");
    assert_eq!(b.ask("test f w 40 25"), "r 60 10 0");
    b.ok("try f w 40 20");
    assert_eq!(b.ask("try f w 39 1"), "EAGAIN");
    a.ok("try f u 0 0");
    b.ok("try f w 10 0");
    let pid = a.ask("pid");
    assert_eq!(a.ask("test f w 0 0"), "w 10 0 0");
    let mut beside = at(&camp, 0, "f");
    a.ok("try f r 0 10");
    assert_eq!(beside.ask("test f w 0 5"), format!("r 0 10 {pid}"), "one of this mount has");
    drop((a, b, beside));
    camp.down();
}

/// S103.
#[test]
fn closing_any_descriptor_drops_the_ranges_of_the_process() {
    let Some(camp) = camp() else { return };
    let (mut a, mut b) = (at(&camp, 0, "f"), at(&camp, 2, "f"));
    a.ok(&format!("open g {}", camp.mount().join("f").display()));
    a.ok("try f w 0 0");
    a.ok("close g");
    b.ok("try f w 0 0");
    b.ok("try f u 0 0");
    // Descriptions keep theirs until the last descriptor is closed.
    a.ok(&format!("open g {}", camp.mount().join("f").display()));
    a.ok("try-ofd f w 0 0");
    a.ok("dup f h");
    a.ok("close g");
    a.ok("close f");
    assert_eq!(b.ask("try-ofd f r 0 0"), "EAGAIN");
    a.ok("close h");
    b.ok("wait-ofd f r 0 0");
    drop((a, b));
    camp.down();
}

/// S103: whoever may only write is not waited for at the first close, but its locks end with it all the same.
#[test]
fn the_first_ranges_through_a_descriptor_that_only_writes_go_with_it() {
    let Some(camp) = camp() else { return };
    let mut b = at(&camp, 1, "f");
    let mut a = Locker::new();
    a.ok(&format!("open-to-write f {}", camp.mount().join("f").display()));
    a.ok("try f w 0 0");
    assert_eq!(b.ask("try f w 0 0"), "EAGAIN");
    a.ok("close f");
    b.ok("wait f w 0 0");
    b.ok("try f u 0 0");
    // From now on each close is announced.
    a.ok(&format!("open-to-write f {}", camp.mount().join("f").display()));
    a.ok(&format!("open-to-write g {}", camp.mount().join("f").display()));
    a.ok("try f w 0 0");
    a.ok("close g");
    b.ok("try f w 0 0");
    drop((a, b));
    camp.down();
}

/// S103.
#[test]
fn a_forked_process_keeps_an_flock_and_no_ranges() {
    let Some(camp) = camp() else { return };
    let (mut a, mut b) = (at(&camp, 0, "f"), at(&camp, 1, "f"));
    a.ok("try-flock f w");
    a.ok("try f w 0 0");
    let child: u64 = a.ask("fork-holder").parse().unwrap();
    a.kill();
    b.ok("wait f w 0 0");
    assert_eq!(b.ask("try-flock f r"), "EAGAIN");
    crate::harness::signal(child, rustix::process::Signal::KILL);
    b.ok("flock f r");
    drop(b);
    camp.down();
}

/// S106.
#[test]
fn a_wait_ends_with_the_lock_with_a_signal_or_with_the_holder() {
    let Some(camp) = camp() else { return };
    for order in ["flock f w", "wait f w 3 4", "wait-ofd f w 3 4"] {
        let (mut a, mut b) = (at(&camp, 0, "f"), at(&camp, 1, "f"));
        a.ok(order);
        b.begin(order);
        assert!(b.is_busy_for(100), "{order}");
        a.ok(&order.replace("wait f", "try f").replace("wait-ofd", "try-ofd").replace(" w", " u"));
        assert_eq!(b.outcome(), "ok", "{order}");
        assert_eq!(a.ask(&format!("alarm 0.2 {order}")), "alarm", "{order}");
        // What was taken back is not granted later.
        let mut c = at(&camp, 2, "f");
        b.kill();
        c.ok(order);
        c.kill();
        a.ok(order);
    }
    camp.down();
}

/// S106.
#[test]
fn a_killed_process_leaves_the_queue() {
    let Some(camp) = camp() else { return };
    let (mut a, mut b, mut c) = (at(&camp, 0, "f"), at(&camp, 1, "f"), at(&camp, 2, "f"));
    a.ok("flock f w");
    b.begin("flock f w");
    assert!(b.is_busy_for(100));
    c.begin("flock f w");
    assert!(c.is_busy_for(100));
    b.kill();
    a.ok("flock f u");
    assert_eq!(c.outcome(), "ok");
    drop((a, c));
    camp.down();
}

/// S106.
#[test]
fn many_that_wait_keep_nobody_from_working() {
    let Some(camp) = camp() else { return };
    let mut holder = at(&camp, 0, "f");
    holder.ok("flock f w");
    let mut crowds: Vec<Locker> = (1..4).map(|_| Locker::new()).collect();
    for (crowd, mount) in crowds.iter_mut().zip(&camp.mounts()[1..]) {
        crowd.ok(&format!("crowd {} 350", mount.join("f").display()));
    }
    for mount in camp.mounts() {
        std::fs::write(mount.join("other"), "served").unwrap();
        assert_eq!(std::fs::read(mount.join("other")).unwrap(), b"served");
    }
    holder.ok("flock f u");
    crowds.iter_mut().for_each(|crowd| crowd.ok("crowd-is-through"));
    drop((holder, crowds));
    camp.down();
}

/// S107.
#[test]
fn circles_across_mounts_and_homes_are_refused() {
    let Some(camp) = camp() else { return };
    let files = [file_at_home(&camp, 1), file_at_home(&camp, 2), file_at_home(&camp, 3)];
    let mut lockers: Vec<Locker> = (0..3).map(|mount| at(&camp, mount, "f")).collect();
    for (mount, locker) in lockers.iter_mut().enumerate() {
        for (name, file) in ["a", "b", "c"].iter().zip(&files) {
            locker.ok(&format!("open {name} {}", camp.mounts()[mount].join(file).display()));
        }
    }
    let client = far_library(&camp.dir());
    // Two, then three.
    let orders = ["a", "b", "c"];
    for count in [2, 3] {
        for (locker, own) in lockers.iter_mut().zip(orders).take(count) {
            locker.ok(&format!("wait {own} w 0 10"));
        }
        for at in 0..count - 1 {
            // The home of the first file is node 1.
            begin_to_wait(&client, at + 2, &mut lockers[at], &format!("wait {} w 5 1", orders[at + 1]));
        }
        let last = count - 1;
        assert_eq!(lockers[last].ask("wait a r 0 1"), "EDEADLK");
        lockers[last].ok(&format!("try {} u 0 0", orders[last]));
        for at in (0..last).rev() {
            assert_eq!(lockers[at].outcome(), "ok");
            lockers[at].ok(&format!("try {} u 0 0", orders[at]));
            lockers[at].ok(&format!("try {} u 0 0", orders[at + 1]));
        }
    }
    drop((lockers, client));
    camp.down();
}

/// S107.
#[test]
fn two_readers_that_both_want_to_write_are_a_circle() {
    let Some(camp) = camp() else { return };
    let (mut a, mut b) = (at(&camp, 0, "f"), at(&camp, 1, "f"));
    a.ok("try f r 0 10");
    b.ok("try f r 0 10");
    let client = far_library(&camp.dir());
    begin_to_wait(&client, home(&camp, &camp.mount().join("f")), &mut a, "wait f w 0 10");
    assert_eq!(b.ask("wait f w 0 10"), "EDEADLK");
    b.ok("try f u 0 10");
    assert_eq!(a.outcome(), "ok");
    drop((a, b, client));
    camp.down();
}

/// S107.
#[test]
fn descriptions_take_no_part_in_circles() {
    let Some(camp) = camp() else { return };
    let (mut a, mut b) = (at(&camp, 0, "f"), at(&camp, 1, "f"));
    for (locker, mount) in [(&mut a, 0), (&mut b, 1)] {
        locker.ok(&format!("open g {}", camp.mounts()[mount].join("g").display()));
        locker.ok(&format!("open h {}", camp.mounts()[mount].join("h").display()));
    }
    // Each process has two descriptions, so it can be seen that they are some.
    a.ok("try-ofd g w 0 10");
    b.ok("try-ofd h w 0 10");
    a.ok("try-ofd f w 0 1");
    b.ok("try-ofd f w 1 1");
    a.begin("alarm 3 wait-ofd f w 1 1");
    assert!(a.is_busy_for(100));
    assert_eq!(b.ask("alarm 2 wait-ofd f w 0 1"), "alarm");
    assert_eq!(a.outcome(), "alarm");
    drop((a, b));
    camp.down();
}

/// S110.
#[test]
fn what_a_killed_process_had_is_free() {
    let Some(camp) = camp() else { return };
    let mut b = at(&camp, 1, "f");
    let mut a = at(&camp, 0, "f");
    a.ok("try-flock f w");
    a.ok("try f w 0 0");
    a.kill();
    wait_until("what it had is free", || b.ask("try-flock f w") == "ok");
    b.ok("try f w 0 0");
    drop(b);
    camp.down();
}

/// S104.
#[test]
fn sqlite_on_two_mounts_loses_no_row() {
    let Some(camp) = camp() else { return };
    let script = r#"
import sqlite3, sys
path, who, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
base = sqlite3.connect(path, timeout=300, isolation_level=None)
base.execute("pragma journal_mode=delete")
base.execute("create table if not exists t (who text, n integer, unique (who, n))")
for n in range(rows):
    while True:
        try:
            base.execute("begin immediate")
            base.execute("insert into t values (?, ?)", (who, n))
            base.execute("commit")
            break
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            if base.in_transaction:
                base.execute("rollback")
"#;
    let worker = |mount: &Path, who: &str, rows: usize| {
        let (base, rows) = (mount.join("base.db"), rows.to_string());
        Command::new("python3").args(["-c", script]).arg(base).args([who, &rows]).spawn().unwrap()
    };
    assert!(worker(camp.mount(), "first", 1).wait().unwrap().success());
    let names = ["a", "b", "c", "d"];
    let mut workers: Vec<_> =
        names.iter().enumerate().map(|(at, who)| worker(&camp.mounts()[at % 2], who, 25)).collect();
    workers.iter_mut().for_each(|worker| assert!(worker.wait().unwrap().success()));
    let check = "import sqlite3, sys\nbase = sqlite3.connect(sys.argv[1])\n\
                 print(base.execute('pragma integrity_check').fetchall(), base.execute('select count(*) from t').fetchall())";
    let output =
        Command::new("python3").args(["-c", check]).arg(camp.mounts()[2].join("base.db")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "[('ok',)] [(101,)]");
    camp.down();
}
