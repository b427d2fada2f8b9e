//! Processes that take locks as they are told.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::harness::DEADLINE;

/// A process, see `locker.py`.
pub struct Locker {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
}

impl Locker {
    /// Starts one.
    pub fn new() -> Locker {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/locks/locker.py");
        let mut command = Command::new("python3");
        command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (orders, out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            BufReader::new(out).lines().map_while(Result::ok).all(|line| sender.send(line).is_ok())
        });
        Locker { child, orders, answers }
    }

    /// Tells it to do something, and does not wait for the outcome.
    pub fn begin(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    /// The next outcome.
    pub fn outcome(&self) -> String {
        self.answers.recv_timeout(DEADLINE * 2).unwrap()
    }

    /// The next outcome, if it comes so soon.
    pub fn outcome_within(&self, ms: u64) -> Option<String> {
        self.answers.recv_timeout(Duration::from_millis(ms)).ok()
    }

    /// Tells it to do something and waits for the outcome.
    pub fn ask(&mut self, order: &str) -> String {
        self.begin(order);
        self.outcome()
    }

    /// Asserts that an order succeeds.
    pub fn ok(&mut self, order: &str) {
        assert_eq!(self.ask(order), "ok", "{order}");
    }

    /// Whether it is still at it after so long: shows that it waits, never that it does not.
    pub fn is_busy_for(&self, ms: u64) -> bool {
        self.outcome_within(ms).is_none()
    }

    /// Its process.
    pub fn pid(&self) -> u64 {
        u64::from(self.child.id())
    }

    /// Kills it.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Locker {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
