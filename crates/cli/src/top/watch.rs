//! What a formation did lately, for several who watch. Nobody looks at it when nobody watches.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bivouac_launch::StateDir;
use serde::Serialize;

use super::{Looks, Rates};
use crate::failure::Failure;

/// How far looks are apart, at least.
const EVERY: Duration = Duration::from_secs(1);
/// What was before the first look is told as far back as the page shows.
const PAST_MS: u64 = 5 * 60_000;
/// Intervals that are remembered, at most.
const INTERVALS_MAX: usize = 600;
/// Rates of nodes that are remembered, at most: about 200 bytes each.
const RATES_MAX: usize = 100_000;

/// Looks again when somebody asks, unless that was done just before.
pub struct Watch {
    dir: StateDir,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    looks: Option<Looks>,
    rates: VecDeque<Rates>,
}

/// What is told.
#[derive(Serialize)]
struct Told<'a> {
    every_ms: u128,
    rates: Vec<&'a Rates>,
}

impl Watch {
    /// Of a formation.
    pub fn new(dir: StateDir) -> Watch {
        Watch { dir, seen: Mutex::default() }
    }

    /// Intervals that ended after a time, in milliseconds since 1970, as JSON: each as `top --json` says it, without
    /// what is busy. Those before the first look are of what nodes did alone.
    ///
    /// # Errors
    /// That the formation is gone, or cannot be looked at.
    pub fn since(&self, unix_ms: u64) -> Result<String, Failure> {
        // Who waits has the same look as who is before.
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.look(&self.dir)?;
        let rates = seen.rates.iter().filter(|rates| rates.unix_ms > unix_ms).collect();
        let told = Told { every_ms: EVERY.as_millis(), rates };
        Ok(serde_json::to_string(&told).map_err(std::io::Error::from)?)
    }
}

impl Seen {
    fn look(&mut self, dir: &StateDir) -> Result<(), Failure> {
        let Some(looks) = &mut self.looks else {
            let looks = Looks::begin(dir.clone())?;
            self.rates.extend(looks.past(PAST_MS)?);
            self.looks = Some(looks);
            return Ok(());
        };
        if looks.age() < EVERY {
            return Ok(());
        }
        let gone = || Failure::new(1, "the formation is gone");
        let rates = looks.next()?.ok_or_else(gone)?;
        let most = (RATES_MAX / rates.nodes.len().max(1)).clamp(1, INTERVALS_MAX);
        self.rates.push_back(rates);
        while self.rates.len() > most {
            self.rates.pop_front();
        }
        Ok(())
    }
}
