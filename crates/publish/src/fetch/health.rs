//! Health of holders, and selection of the next one.

use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Pause after a failure of a holder; it triples with each further one.
const REST: Duration = Duration::from_millis(100);
/// Consecutive failures after which a holder is given up: with these pauses about the time of a server's restart.
const FAILURES_MAX: u32 = 6;

/// Health of a holder.
#[derive(Debug, Default)]
pub struct HolderHealth {
    /// Parts that it is being asked for.
    asked: u32,
    /// Parts that came.
    parts: u64,
    failures: u32,
    rests_until: Option<Instant>,
    is_out: bool,
    /// Files that it does not have.
    lacks: HashSet<usize>,
}

/// Choice of a holder.
#[derive(Debug, PartialEq, Eq)]
pub enum HolderChoice {
    /// Ask this holder, for this URL.
    Ask(usize, String),
    /// All holders of it are pausing.
    Wait,
    /// There is no holder of it.
    Nobody,
}

impl HolderHealth {
    /// Records the start of a request.
    pub fn begin(&mut self) {
        self.asked += 1;
    }

    /// Records the end of a request, with any result.
    pub fn end(&mut self) {
        assert!(self.asked > 0, "a request to a holder ended that had not begun");
        self.asked -= 1;
    }

    /// Notes that a part came.
    pub fn served(&mut self) {
        self.end();
        self.parts += 1;
        // Whoever served in between begins anew: a few failures in a long fetch are no reason to lose a holder.
        (self.failures, self.rests_until) = (0, None);
    }

    /// Records that the holder does not have a file.
    pub fn lacks(&mut self, file: usize) {
        self.end();
        // Not a failure: it may have all other files, so it neither rests nor is given up.
        self.lacks.insert(file);
    }

    /// Records a failure. Returns whether the holder is given up.
    pub fn failed(&mut self, now: Instant) -> bool {
        self.end();
        // Requests that were under way together fail together, and that is one failure.
        if self.rests_until.is_some_and(|until| until > now) {
            return false;
        }
        self.failures += 1;
        self.rests_until = Some(now + REST * 3u32.saturating_pow(self.failures - 1));
        // Several requests may bring the last failure, and it is told once.
        let is_new = !self.is_out && self.failures >= FAILURES_MAX;
        self.is_out |= is_new;
        is_new
    }

    /// Gives the holder up. Returns whether it was in use before.
    pub fn leave_out(&mut self) -> bool {
        self.end();
        !std::mem::replace(&mut self.is_out, true)
    }

    /// Returns whether the holder may have a file.
    fn has(&self, file: usize) -> bool {
        !self.is_out && !self.lacks.contains(&file)
    }

    /// Returns the number of parts that came from the holder.
    pub fn parts(&self) -> u64 {
        self.parts
    }
}

/// A holder that can be asked at once.
pub struct IdleHolder<'p> {
    /// Index of the holder.
    pub holder: usize,
    /// The URL there.
    pub url: &'p str,
    /// Number of requests in progress.
    pub asked: u32,
}

/// Returns the holder of a file among those `wanted` that has the fewest requests in progress, and the first of
/// several.
pub fn idlest<'p>(
    all: &[HolderHealth],
    places: &'p [(usize, String)],
    file: usize,
    now: Instant,
    wanted: impl Fn(usize) -> bool,
) -> Option<IdleHolder<'p>> {
    let ready = |(holder, url): &'p (usize, String)| {
        let health = all.get(*holder).filter(|health| wanted(*holder) && health.has(file))?;
        let asked = health.asked;
        health.rests_until.is_none_or(|until| until <= now).then_some(IdleHolder {
            holder: *holder,
            url,
            asked,
        })
    };
    places.iter().filter_map(ready).min_by_key(|idlest| idlest.asked)
}

/// Chooses the holder to ask for a piece of a file.
pub fn choose(all: &[HolderHealth], places: &[(usize, String)], file: usize, now: Instant) -> HolderChoice {
    match idlest(all, places, file, now, |_| true) {
        Some(IdleHolder { holder, url, .. }) => HolderChoice::Ask(holder, url.to_owned()),
        None if places.iter().filter_map(|place| all.get(place.0)).any(|health| health.has(file)) => {
            HolderChoice::Wait
        }
        None => HolderChoice::Nobody,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_share_the_work_and_failing_ones_rest() {
        let now = Instant::now();
        let mut all = [HolderHealth::default(), HolderHealth::default()];
        let places = [(0, "a".to_owned()), (1, "b".to_owned())];
        let ask = |all: &[HolderHealth], at| choose(all, &places, 7, at);
        assert_eq!(ask(&all, now), HolderChoice::Ask(0, "a".into()));
        all[0].begin();
        assert_eq!(ask(&all, now), HolderChoice::Ask(1, "b".into()));
        all[1].begin();
        all[1].lacks(7);
        assert_eq!(ask(&all, now), HolderChoice::Ask(0, "a".into()));
        assert!(!all[0].failed(now));
        assert_eq!(ask(&all, now), HolderChoice::Wait);
        assert_eq!(ask(&all, now + REST), HolderChoice::Ask(0, "a".into()));
        all[1].begin();
        all[1].begin();
        assert!(all[1].leave_out() && !all[1].leave_out());
        let mut at = now;
        all[0].begin();
        while !all[0].failed(at) {
            at += Duration::from_secs(60);
            all[0].begin();
        }
        assert_eq!((ask(&all, at), all[0].failures), (HolderChoice::Nobody, FAILURES_MAX));
    }
}
