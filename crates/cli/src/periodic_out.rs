//! `run --out-every`: what is complete in the outputs is copied out while the command runs.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Duration;

use bivouac_client::Client;
use bivouac_launch::descriptors::inodes_written_to;
use bivouac_launch::{FormationName, Signals, StateDir};
use bivouac_monitor::connect;
use bivouac_stage::jobs::{Direction, Jobs};
use bivouac_stage::periodic::{PeriodicCopies, PeriodicEvent, PeriodicPlan, WriterCheck, WrittenFormation};
use bivouac_types::Ino;
use bivouac_types::units::{format_count, format_size};

use crate::staging::{CopyFailure, interruptible, living_mounts};
use crate::unflushed::ANSWER_WAIT;

/// Polling interval while the end of the command waits for a copy.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Periodic copies that end with a command or at a signal, and print what they do.
pub struct PeriodicOut {
    copies: PeriodicCopies<OwnFormation>,
    is_quiet: bool,
}

/// The formation of this command.
struct OwnFormation {
    name: FormationName,
    dir: StateDir,
    /// The mounts that there were at the beginning, for when the state cannot be read.
    mounts: Vec<PathBuf>,
    /// Only failures are printed.
    is_quiet: bool,
}

/// The files that are being written at one moment.
struct Writers {
    /// Files that processes of this host have open for writing, or mapped so.
    here: HashSet<u64>,
    /// The client that asks homes whether any client overwrites a file; `None` if they cannot be asked.
    client: Option<Client>,
}

impl PeriodicOut {
    /// Creates the periodic copies out of a formation. The first one begins with [`PeriodicOut::beside`].
    pub fn new(
        name: FormationName,
        dir: StateDir,
        mounts: Vec<PathBuf>,
        plan: PeriodicPlan,
        is_quiet: bool,
    ) -> PeriodicOut {
        let jobs = Jobs::at(dir.stage_path());
        let formation = OwnFormation { name, dir, mounts, is_quiet };
        PeriodicOut { copies: PeriodicCopies::new(formation, jobs, plan), is_quiet }
    }

    /// Copies while `work` runs, then waits for the copy in progress, which a signal cancels. Returns that signal.
    pub fn beside<T>(&self, signals: &Signals, work: impl FnOnce() -> T) -> (T, Option<i32>) {
        let (running, ended) = channel::<()>();
        std::thread::scope(|scope| {
            let rounds = scope.spawn(move || self.copies.repeat(&ended));
            let result = work();
            self.copies.end();
            drop(running);
            let ((), signal) = interruptible(signals, |stop| {
                while !rounds.is_finished() {
                    if stop.load(Ordering::Relaxed) {
                        self.copies.cancel();
                    }
                    std::thread::park_timeout(LOOK_EVERY);
                }
            });
            (result, signal)
        })
    }

    /// Like [`PeriodicCopies::copy_rest`].
    ///
    /// # Errors
    /// The signal that interrupted it.
    pub fn copy_rest(&self, is_whole: bool, signals: &Signals) -> Result<Vec<PathBuf>, CopyFailure> {
        match interruptible(signals, |cancel| self.copies.copy_rest(is_whole, &cancel)) {
            (left, None) => Ok(left),
            (_, Some(signal)) => Err(CopyFailure::interrupted(signal)),
        }
    }

    /// Prints the summary.
    pub fn summarize(&self) {
        let (text, has_failed) = self.copies.summary();
        if has_failed || !self.is_quiet {
            errln!("bivouac: --out-every: {text}");
        }
    }
}

impl WrittenFormation for OwnFormation {
    fn mounts(&self) -> Vec<PathBuf> {
        living_mounts(&self.dir, &self.mounts)
    }

    fn writers(&self) -> WriterCheck<'_> {
        let state = self.dir.read().ok().flatten();
        let client = state.and_then(|state| connect(&self.dir, &state, ANSWER_WAIT).ok());
        let writers = Writers { here: inodes_written_to(&self.name), client };
        Box::new(move |inodes| writers.write_to(inodes))
    }

    fn report(&self, event: &PeriodicEvent<'_>) {
        match event {
            PeriodicEvent::Copied(..) if self.is_quiet => {}
            PeriodicEvent::Copied(transfer, summary) => {
                let what = Direction::Out.describe(transfer);
                let (files, bytes) = (format_count(summary.files, "file"), format_size(summary.bytes));
                let is_verified = summary.verified == summary.files;
                errln!(" out {what}: {files}, {bytes}{}", if is_verified { ", verified" } else { "" });
            }
            PeriodicEvent::Failed(text) => {
                errln!("bivouac: --out-every: {text}; the next round tries again");
            }
            PeriodicEvent::JobLeft(number, failure) => {
                errln!(
                    "bivouac: job {number}: {failure}; remove what it left: bivouac stage cancel {number}"
                );
            }
        }
    }
}

impl Writers {
    /// Returns whether one of these inodes is being written. The homes are not asked if they cannot be.
    fn write_to(&self, inodes: &[u64]) -> bool {
        // An inode that its home says nothing of counts as being written: a later round copies it.
        let is_at_rest =
            |client: &Client, ino: u64| client.getattr(Ino(ino)).is_ok_and(|attr| !attr.is_being_written());
        inodes.iter().any(|ino| self.here.contains(ino))
            || self.client.as_ref().is_some_and(|client| !inodes.iter().all(|ino| is_at_rest(client, *ino)))
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.client.iter().for_each(Client::leave);
    }
}
