//! Recent rates of a formation, for several who watch. Nobody looks at it when nobody watches.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bivouac_launch::{Kind, LaunchError, LaunchResult, StateDir};
use serde::Serialize;

use super::interval::Rates;
use super::sampler::RateSampler;

/// Shortest time between looks.
const EVERY: Duration = Duration::from_secs(1);
/// A longer time without a look is a gap: its intervals come from what the nodes recorded, as those before the first
/// look.
const GAP: Duration = Duration::from_secs(5);
/// Time before the first look that is told, as far back as the page shows.
const PAST_MS: u64 = 5 * 60_000;
/// Intervals that are remembered, at most.
const INTERVALS_MAX: usize = 600;
/// Rates of nodes that are remembered, at most: about 200 bytes each.
const RATES_MAX: usize = 100_000;

/// Rates of the last minutes. It looks again when somebody asks, unless that was done just before.
pub struct RateSeries {
    dir: StateDir,
    seen: Mutex<Samples>,
}

#[derive(Default)]
struct Samples {
    sampler: Option<RateSampler>,
    rates: VecDeque<Rates>,
}

/// The series as JSON.
#[derive(Serialize)]
struct SeriesJson<'a> {
    every_ms: u128,
    rates: Vec<&'a Rates>,
}

impl RateSeries {
    /// Creates the series of a formation.
    #[must_use]
    pub fn new(dir: StateDir) -> RateSeries {
        RateSeries { dir, seen: Mutex::default() }
    }

    /// Intervals that ended after a time, in milliseconds since 1970, as JSON: each as `top --json` says it, without
    /// what is busy. Those before the first look are of what nodes did alone.
    ///
    /// # Errors
    /// That the formation is gone, or cannot be looked at.
    pub fn since(&self, unix_ms: u64) -> LaunchResult<String> {
        // Who waits has the same look as who is before.
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.look(&self.dir)?;
        let rates = seen.rates.iter().filter(|rates| rates.unix_ms > unix_ms).collect();
        let told = SeriesJson { every_ms: EVERY.as_millis(), rates };
        serde_json::to_string(&told).map_err(|error| LaunchError::system("rates", error))
    }
}

impl Samples {
    fn look(&mut self, dir: &StateDir) -> LaunchResult<()> {
        match &mut self.sampler {
            Some(sampler) if sampler.age() < EVERY => return Ok(()),
            Some(sampler) if sampler.age() < GAP => {
                let gone = || LaunchError::said(Kind::NotRunning, "the formation is gone");
                let rates = sampler.sample()?.ok_or_else(gone)?;
                self.rates.push_back(rates);
            }
            _ => {
                // One average over the whole gap would show a flat line where there were peaks.
                let sampler = RateSampler::begin(dir.clone())?;
                let known = self.rates.back().map_or(0, |last| last.unix_ms);
                self.rates.extend(sampler.past(PAST_MS)?.into_iter().filter(|rates| rates.unix_ms > known));
                self.sampler = Some(sampler);
            }
        }
        let nodes = self.rates.back().map_or(1, |last| last.nodes.len().max(1));
        let most = (RATES_MAX / nodes).clamp(1, INTERVALS_MAX);
        // Bounded by rates of nodes, not by intervals: a formation of a thousand nodes has a shorter past.
        while self.rates.len() > most {
            self.rates.pop_front();
        }
        Ok(())
    }
}
