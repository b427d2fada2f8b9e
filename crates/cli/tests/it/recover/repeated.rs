//! Recoveries that are killed, and several at once.

use std::fs;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::harness::library::{create, ctx, library};
use crate::harness::random::Random;
use crate::harness::{reaping, wait_until};
use crate::recover::dead::{Dead, bytes};

const BLOCK: usize = 4096;

/// S299.
#[test]
fn of_two_recoveries_at_once_one_does_it() {
    let Some(mut dead) = Dead::start(&["--nodes", "2"]) else { return };
    dead.fill();
    dead.kill();
    let owner = std::process::id().to_string();
    let arguments = ["recover", dead.camp.name(), "--owner", &owner];
    let start = || {
        let mut command = dead.camp.place().command(&arguments);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let both = [start(), start()].map(|child| child.wait_with_output().unwrap());
    let done = both.iter().filter(|output| output.status.success()).count();
    assert_eq!(done, 1, "{both:?}");
    let refused = both.iter().find(|output| !output.status.success()).unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is running"), "{refused:?}");
    dead.check();
    dead.down();
}

/// S299: a reap at the same time takes all of the memory, or nothing.
#[test]
fn what_is_reaped_meanwhile_is_not_had_back_in_part() {
    let mut random = Random::new(Random::seed());
    for _ in 0..6 {
        let Some(mut dead) = Dead::in_memory(&["--nodes", "2"]) else { return };
        dead.fill();
        dead.kill();
        dead.log_out();
        let _alone = reaping();
        let owner = std::process::id().to_string();
        let mut command = dead.camp.place().command(&["recover", dead.camp.name(), "--owner", &owner]);
        let recovery = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        // Where it is by then differs from run to run, and shall.
        std::thread::park_timeout(Duration::from_micros(random.next() % 30_000));
        dead.camp.place().run(&["reap"]);
        if recovery.unwrap().wait().unwrap().success() {
            dead.check();
            dead.down();
        }
    }
}

/// S299: wherever it is killed, with all that it started, or alone.
#[test]
fn a_recovery_that_is_killed_can_be_made_again() {
    let Some(mut dead) = Dead::start(&["--nodes", "2", "--stripe", "4k"]) else { return };
    dead.fill();
    let mut random = Random::new(Random::seed());
    let owner = std::process::id().to_string();
    for round in 0..6 {
        dead.write(&format!("round{round}"), bytes(10_000 + round, round));
        dead.kill();
        if round % 3 == 2 {
            dead.reboot();
        }
        for _ in 0..3 {
            let arguments = ["recover", dead.camp.name(), "--owner", &owner];
            let mut command = dead.camp.place().command(&arguments);
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            // Where it is by then differs from run to run, and shall.
            std::thread::park_timeout(Duration::from_micros(random.next() % 120_000));
            child.kill().unwrap();
            child.wait().unwrap();
            dead.kill_found();
        }
        let said = dead.run(&[dead.camp.name()]);
        assert_eq!(said.code, 0, "round {round}: {}", said.err);
        dead.check();
    }
    assert!(fs::read_dir(dead.mount()).unwrap().count() >= 10);
    dead.down();
}

/// S290, S295: programs write, through the mount and directly, while everything is killed.
#[test]
fn what_was_acknowledged_is_there_after_each_kill_of_everything() {
    let arguments = ["--nodes", "3", "--stripe", "16k", "--in-process"];
    let Some(dead) = Dead::start(&arguments) else { return };
    let mut random = Random::new(Random::seed());
    for round in 0..5 {
        let (made, grown, ends) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
        let writer = library(&dead.camp.dir());
        let ino = create(&writer, &format!("grown{round}"));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0.. {
                    let path = dead.mount().join(format!("{round}-{number}"));
                    // It may not have noticed that all was killed: then it goes on with what was recovered.
                    let is_written = fs::write(path, bytes(3000 * (number % 7), number)).is_ok();
                    if !is_written || ends.load(Ordering::SeqCst) {
                        return;
                    }
                    made.fetch_add(1, Ordering::SeqCst);
                }
            });
            scope.spawn(|| {
                for number in 0.. {
                    let content = bytes(BLOCK, number);
                    if writer.write(&ctx(&writer), ino, (number * BLOCK) as u64, &content, false).is_err() {
                        return;
                    }
                    grown.fetch_add(1, Ordering::SeqCst);
                }
            });
            wait_until("both have begun", || {
                made.load(Ordering::SeqCst) > 3 && grown.load(Ordering::SeqCst) > 10
            });
            // Where they are by then differs from run to run, and shall.
            std::thread::park_timeout(Duration::from_micros(random.next() % 50_000));
            dead.kill();
            dead.recover(&[]);
            ends.store(true, Ordering::SeqCst);
        });
        for number in 0..made.into_inner() {
            let content = fs::read(dead.mount().join(format!("{round}-{number}"))).unwrap();
            assert!(content == bytes(3000 * (number % 7), number), "round {round}, file {number}");
        }
        let content = fs::read(dead.mount().join(format!("grown{round}"))).unwrap();
        let blocks = grown.into_inner();
        assert!(
            content.len() >= blocks * BLOCK,
            "round {round}: {} of {blocks} blocks",
            content.len() / BLOCK
        );
        for number in 0..blocks {
            assert!(
                content[number * BLOCK..][..BLOCK] == bytes(BLOCK, number),
                "round {round}, block {number}"
            );
        }
        dead.check();
    }
    dead.down();
}
