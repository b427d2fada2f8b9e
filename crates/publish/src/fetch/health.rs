//! How holders do, and whom to ask.

use std::collections::HashSet;
use std::time::{Duration, Instant};

/// How long a holder rests after it has not answered; three times as long after each further time.
const REST: Duration = Duration::from_millis(100);
/// How often in a row it may fail: with these rests about as long as a server needs to be started again.
const FAILURES_MAX: u32 = 6;

/// How a holder does.
#[derive(Debug, Default)]
pub struct Health {
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

/// Whom to ask.
#[derive(Debug, PartialEq, Eq)]
pub enum Choice {
    /// This holder, for this URL.
    Ask(usize, String),
    /// Somebody who rests.
    Wait,
    /// Nobody has it.
    Nobody,
}

impl Health {
    /// It is asked for a part.
    pub fn begin(&mut self) {
        self.asked += 1;
    }

    /// What it was asked for has ended, in one way or another.
    pub fn end(&mut self) {
        self.asked = self.asked.saturating_sub(1);
    }

    /// A part came.
    pub fn served(&mut self) {
        self.end();
        self.parts += 1;
        (self.failures, self.rests_until) = (0, None);
    }

    /// It does not have a file.
    pub fn lacks(&mut self, file: usize) {
        self.end();
        self.lacks.insert(file);
    }

    /// It did not answer. Whether it is left out by that.
    pub fn failed(&mut self, now: Instant) -> bool {
        self.end();
        // Requests that were under way together fail together, and that is one failure.
        if self.rests_until.is_some_and(|until| until > now) {
            return false;
        }
        self.failures += 1;
        self.rests_until = Some(now + REST * 3u32.saturating_pow(self.failures - 1));
        let is_new = !self.is_out && self.failures >= FAILURES_MAX;
        self.is_out |= is_new;
        is_new
    }

    /// It is not asked any more. Whether that is new.
    pub fn leave_out(&mut self) -> bool {
        self.end();
        !std::mem::replace(&mut self.is_out, true)
    }

    /// Whether it may have a file.
    fn has(&self, file: usize) -> bool {
        !self.is_out && !self.lacks.contains(&file)
    }

    /// How many parts came from it.
    pub fn parts(&self) -> u64 {
        self.parts
    }
}

/// A holder that can be asked at once.
pub struct Idlest<'p> {
    /// It.
    pub holder: usize,
    /// The URL there.
    pub url: &'p str,
    /// How many parts it is being asked for.
    pub asked: u32,
}

/// Of the holders of a file that are `wanted`, the one that is asked for least, and of those the first.
pub fn idlest<'p>(
    all: &[Health],
    places: &'p [(usize, String)],
    file: usize,
    now: Instant,
    wanted: impl Fn(usize) -> bool,
) -> Option<Idlest<'p>> {
    let ready = |(holder, url): &'p (usize, String)| {
        let health = all.get(*holder).filter(|health| wanted(*holder) && health.has(file))?;
        let asked = health.asked;
        health.rests_until.is_none_or(|until| until <= now).then_some(Idlest { holder: *holder, url, asked })
    };
    places.iter().filter_map(ready).min_by_key(|idlest| idlest.asked)
}

/// Whom to ask for a piece of a file.
pub fn choose(all: &[Health], places: &[(usize, String)], file: usize, now: Instant) -> Choice {
    match idlest(all, places, file, now, |_| true) {
        Some(Idlest { holder, url, .. }) => Choice::Ask(holder, url.to_owned()),
        None if places.iter().filter_map(|place| all.get(place.0)).any(|health| health.has(file)) => {
            Choice::Wait
        }
        None => Choice::Nobody,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_share_the_work_and_failing_ones_rest() {
        let now = Instant::now();
        let mut all = [Health::default(), Health::default()];
        let places = [(0, "a".to_owned()), (1, "b".to_owned())];
        let ask = |all: &[Health], at| choose(all, &places, 7, at);
        assert_eq!(ask(&all, now), Choice::Ask(0, "a".into()));
        all[0].begin();
        assert_eq!(ask(&all, now), Choice::Ask(1, "b".into()));
        all[1].lacks(7);
        assert_eq!(ask(&all, now), Choice::Ask(0, "a".into()));
        assert!(!all[0].failed(now));
        assert_eq!(ask(&all, now), Choice::Wait);
        assert_eq!(ask(&all, now + REST), Choice::Ask(0, "a".into()));
        assert!(all[1].leave_out() && !all[1].leave_out());
        let mut at = now;
        while !all[0].failed(at) {
            at += Duration::from_secs(60);
        }
        assert_eq!((ask(&all, at), all[0].failures), (Choice::Nobody, FAILURES_MAX));
    }
}
