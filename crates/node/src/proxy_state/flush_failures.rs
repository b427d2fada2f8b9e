//! Files that could not be flushed, and when that is tried again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bivouac_ranks::Mutex;
use bivouac_types::{FsError, FsResult, Ino};

/// First and longest pause before what could not be flushed is tried again by itself.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// Files that could not be flushed.
#[derive(Default)]
pub struct FlushFailures(Mutex<HashMap<Ino, FlushFailure>>);

struct FlushFailure {
    error: FsError,
    pause: Duration,
    until: Instant,
}

impl FlushFailures {
    /// Records the outcome of a flush.
    pub fn note<T>(&self, ino: Ino, outcome: &FsResult<T>) {
        let mut failing = self.0.lock();
        let Err(error) = outcome else {
            failing.remove(&ino);
            return;
        };
        let pause = failing.get(&ino).map_or(PAUSES.0, |failed| (failed.pause * 2).min(PAUSES.1));
        failing.insert(ino, FlushFailure { error: error.clone(), pause, until: Instant::now() + pause });
    }

    /// Fails with the reason why a file could not be flushed, if it is not time to try again.
    pub fn waits(&self, ino: Ino) -> FsResult<()> {
        match self.0.lock().get(&ino) {
            Some(failed) if failed.until > Instant::now() => Err(failed.error.clone()),
            _ => Ok(()),
        }
    }

    /// Returns why a file could not be flushed the last time; empty if it could.
    pub fn reason(&self, ino: Ino) -> String {
        self.0.lock().get(&ino).map_or(String::new(), |failed| failed.error.to_string())
    }

    /// Forgets a file that is gone.
    pub fn forget(&self, ino: Ino) {
        self.0.lock().remove(&ino);
    }
}
