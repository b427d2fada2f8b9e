//! Looks at a formation, and what it did between each and the next.

use std::time::{Duration, Instant};

use bivouac_launch::{StateDir, unix_ms};

use super::Rates;
use crate::failure::Failure;
use crate::reach;
use crate::status::{Report, look_at_all};

/// How long a formation that cannot be looked at may take to be gone, in milliseconds.
const LEAVES_IN_MS: u64 = 5000;

/// One look after another.
pub struct Looks {
    dir: StateDir,
    before: Report,
    at: Instant,
}

impl Looks {
    /// For how long nobody has looked.
    pub fn age(&self) -> Duration {
        self.at.elapsed()
    }

    /// The first, behind which nothing happened yet.
    ///
    /// # Errors
    /// That the formation does not run, or cannot be looked at.
    pub fn begin(dir: StateDir) -> Result<Looks, Failure> {
        reach::living(&dir)?;
        let before = look_at_all(&dir)?;
        Ok(Looks { dir, before, at: Instant::now() })
    }

    /// What happened since the last look; nothing if the formation is gone.
    ///
    /// # Errors
    /// That it cannot be looked at.
    pub fn next(&mut self) -> Result<Option<Rates>, Failure> {
        if self.dir.read()?.is_none() {
            return Ok(None);
        }
        let report = match look_at_all(&self.dir) {
            // It was on its way when it was looked at.
            Err(_) if self.dir.wait_released(LEAVES_IN_MS) => return Ok(None),
            looked => looked?,
        };
        // It is taken down, or was killed: which, the next command says.
        if report.state == "dead" {
            return Ok(None);
        }
        let now = Instant::now();
        let rates = Rates::between(&self.before, &report, now.duration_since(self.at), unix_ms());
        (self.before, self.at) = (report, now);
        Ok(Some(rates))
    }
}
