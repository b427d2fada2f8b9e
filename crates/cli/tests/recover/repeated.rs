//! Recoveries that are killed, and several at once.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use crate::dead::{Dead, bytes};
use crate::harness::random::Random;

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
