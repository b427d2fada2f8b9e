//! Looks at a formation, and what it did between each and the next.

use std::time::{Duration, Instant};

use bivouac_launch::{StateDir, unix_ms};

use super::Rates;
use super::beside::{Asking, Beside};
use super::past::past;
use crate::failure::Failure;
use crate::reach;
use crate::status::{Report, look_further};

/// How long a formation that cannot be looked at may take to be gone, in milliseconds.
const LEAVES_IN_MS: u64 = 5000;

/// One look after another.
pub struct Looks {
    dir: StateDir,
    before: Report,
    at: Instant,
    /// Asks for what is busy, where somebody wants that.
    asking: Option<Asking>,
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
        Looks::new(dir, None)
    }

    /// As [`Looks::begin`], with what is busy.
    ///
    /// # Errors
    /// As [`Looks::begin`].
    pub fn begin_with_uses(dir: StateDir) -> Result<Looks, Failure> {
        let asking = Asking::new(dir.clone());
        Looks::new(dir, Some(asking))
    }

    fn new(dir: StateDir, mut asking: Option<Asking>) -> Result<Looks, Failure> {
        reach::living(&dir)?;
        let (before, _) = look(&dir, &mut asking)?;
        Ok(Looks { dir, before, at: Instant::now(), asking })
    }

    /// What nodes did before the first look, as far back as that.
    ///
    /// # Errors
    /// That the formation does not run, or cannot be asked.
    pub fn past(&self, back_ms: u64) -> Result<Vec<Rates>, Failure> {
        past(&self.dir, &self.before, back_ms)
    }

    /// What happened since the last look; nothing if the formation is gone.
    ///
    /// # Errors
    /// That it cannot be looked at.
    pub fn next(&mut self) -> Result<Option<Rates>, Failure> {
        if self.dir.read()?.is_none() {
            return Ok(None);
        }
        let (report, beside) = match look(&self.dir, &mut self.asking) {
            // It was on its way when it was looked at.
            Err(_) if self.dir.wait_released(LEAVES_IN_MS) => return Ok(None),
            looked => looked?,
        };
        // It is taken down, or was killed: which, the next command says.
        if report.state == "dead" {
            return Ok(None);
        }
        let now = Instant::now();
        let mut rates = Rates::between(&self.before, &report, now.duration_since(self.at), unix_ms());
        rates.add(beside);
        (self.before, self.at) = (report, now);
        Ok(Some(rates))
    }
}

fn look(dir: &StateDir, asking: &mut Option<Asking>) -> Result<(Report, Option<Beside>), Failure> {
    let (report, beside) = look_further(dir, |client, report| asking.as_mut()?.next(client, report))?;
    Ok((report, beside.flatten()))
}
