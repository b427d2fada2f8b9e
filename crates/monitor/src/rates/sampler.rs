//! Looks at a formation, and what it did between each and the next.

use std::time::{Duration, Instant};

use bivouac_launch::{LaunchResult, StateDir, unix_ms};

use super::activity::{Activity, ActivitySampler};
use super::history::past;
use super::interval::Rates;
use crate::status::{StatusReport, look_further};

/// Time that a formation that cannot be looked at may take to be gone, in milliseconds.
const LEAVES_IN_MS: u64 = 5000;

/// Rates of a formation from one look to the next.
pub struct RateSampler {
    dir: StateDir,
    before: StatusReport,
    at: Instant,
    /// The sampler of what is busy, where somebody wants that.
    asking: Option<ActivitySampler>,
}

impl RateSampler {
    /// Returns the time since the last look.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.at.elapsed()
    }

    /// Returns the first, behind which nothing happened yet.
    ///
    /// # Errors
    /// That the formation does not run, or cannot be looked at.
    pub fn begin(dir: StateDir) -> LaunchResult<RateSampler> {
        RateSampler::new(dir, None)
    }

    /// Like [`RateSampler::begin`], including activity.
    pub fn begin_with_uses(dir: StateDir) -> LaunchResult<RateSampler> {
        let asking = ActivitySampler::new(dir.clone());
        RateSampler::new(dir, Some(asking))
    }

    fn new(dir: StateDir, mut asking: Option<ActivitySampler>) -> LaunchResult<RateSampler> {
        dir.read_living()?;
        let (before, _) = look(&dir, &mut asking)?;
        Ok(RateSampler { dir, before, at: Instant::now(), asking })
    }

    /// Rates before the first look, as far back as that.
    ///
    /// # Errors
    /// That the formation does not run, or cannot be asked.
    pub fn past(&self, back_ms: u64) -> LaunchResult<Vec<Rates>> {
        past(&self.dir, &self.before, back_ms)
    }

    /// Rates since the last look; nothing if the formation is gone.
    pub fn sample(&mut self) -> LaunchResult<Option<Rates>> {
        if self.dir.read()?.is_none() {
            return Ok(None);
        }
        let (report, activity) = match look(&self.dir, &mut self.asking) {
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
        rates.add(activity);
        (self.before, self.at) = (report, now);
        Ok(Some(rates))
    }
}

fn look(
    dir: &StateDir,
    asking: &mut Option<ActivitySampler>,
) -> LaunchResult<(StatusReport, Option<Activity>)> {
    let (report, activity) = look_further(dir, |client, report| asking.as_mut()?.next(client, report))?;
    Ok((report, activity.flatten()))
}
