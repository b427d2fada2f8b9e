//! When idle polling pays: what both sides go by.
//!
//! To poll for nothing costs two processors the time of [`QUIET_NS`], and so it pays once it has served some requests. What
//! came of it last time says how sure one has to be the next time, as with spinning locks (Karlin et al., "Empirical studies of
//! competitive spinning", 1991).

use std::sync::atomic::{AtomicU64, Ordering};

/// So long after the last request polling goes on, in nanoseconds.
pub const QUIET_NS: u64 = 300_000;
/// Who has not got to run for so long polls where others have work to do, in nanoseconds.
const AWAY_NS: u64 = 1_000_000;
/// Requests after which polling begins, unless it has not paid.
pub const PATIENCE_MIN: u32 = 8;
/// Requests after which it is tried again at the latest.
pub const PATIENCE_MAX: u32 = 1 << 13;
/// Requests that polling must have served to have paid.
const PAYS: u32 = 32;
/// Time between two requests above which polling would not last until the next one, in nanoseconds.
const GAP_NS_MAX: u64 = QUIET_NS;
/// Time between two requests below which no processor went idle meanwhile, in nanoseconds: program and daemon share one, and are
/// quickest so.
const GAP_NS_MIN: u64 = 40_000;

/// Patience is a power of two, so that requests divide evenly by it whenever it changes.
const _: () = assert!(PATIENCE_MIN.is_power_of_two() && PATIENCE_MAX.is_power_of_two());

/// How fast requests come.
#[derive(Debug, Default)]
pub struct Pace {
    /// When the last so many requests began, in nanoseconds.
    began: AtomicU64,
}

impl Pace {
    /// The request with this number came while nobody polls. Whether to begin: the last `patience` of them came neither so slowly
    /// that polling would have ended in between, nor as fast as where no processor goes idle. The clock, in
    /// nanoseconds, is looked at once in as many requests.
    pub fn begins(&self, number: u32, patience: u32, now: impl FnOnce() -> u64) -> bool {
        let patience = patience.clamp(PATIENCE_MIN, PATIENCE_MAX).next_power_of_two();
        if !number.is_multiple_of(patience) {
            return false;
        }
        let now = now();
        let took = now.saturating_sub(self.began.swap(now, Ordering::Relaxed));
        let gap = took / u64::from(patience);
        (GAP_NS_MIN..GAP_NS_MAX).contains(&gap)
    }
}

/// Requests while a thread did not get to run that say that they were what ran.
const OURS: u32 = (AWAY_NS / GAP_NS_MIN) as u32;

/// What a thread that polls sees.
#[derive(Debug)]
pub struct Watch {
    requests: u32,
    moved_ns: u64,
    looked_ns: u64,
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Look again.
    Goes,
    /// No request has come for a while.
    Quiet,
    /// Program and daemon share the processor: none goes idle.
    Shared,
    /// Others have work for this processor.
    Wanted,
}

impl Watch {
    /// Begins, at so many requests.
    pub fn begin(now_ns: u64, requests: u32) -> Watch {
        Watch { requests, moved_ns: now_ns, looked_ns: now_ns }
    }

    /// Looks.
    pub fn look(&mut self, now_ns: u64, requests: u32) -> Verdict {
        let away = now_ns.saturating_sub(self.looked_ns);
        self.looked_ns = now_ns;
        let came = requests.wrapping_sub(self.requests);
        if came != 0 {
            (self.requests, self.moved_ns) = (requests, now_ns);
        }
        match now_ns.saturating_sub(self.moved_ns) {
            _ if away >= AWAY_NS && came >= OURS => Verdict::Shared,
            _ if away >= AWAY_NS => Verdict::Wanted,
            quiet if quiet >= QUIET_NS => Verdict::Quiet,
            _ => Verdict::Goes,
        }
    }
}

/// How patient to be after polling that served so many requests ended so.
pub fn patience_after(patience: u32, ended: Verdict, served: u32) -> u32 {
    let patience = patience.clamp(PATIENCE_MIN, PATIENCE_MAX);
    let next = match ended {
        Verdict::Shared | Verdict::Wanted => patience.saturating_mul(2),
        _ if served < PAYS => patience.saturating_mul(2),
        _ => patience / 2,
    };
    next.clamp(PATIENCE_MIN, PATIENCE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether polling begins within `count` requests, one each `gap_ns`.
    fn begins(count: u32, patience: u32, gap_ns: u64) -> bool {
        let pace = Pace::default();
        (1..=count).any(|number| pace.begins(number, patience, || (1 << 40) + u64::from(number) * gap_ns))
    }

    #[test]
    fn polling_begins_where_requests_come_one_behind_the_other() {
        assert!(begins(2 * PATIENCE_MIN, 0, 100_000));
        assert!(!begins(PATIENCE_MIN, 0, 100_000), "what was before them is not known");
        assert!(!begins(2 * PATIENCE_MIN - 1, 0, 100_000));
        assert!(begins(128, 64, 100_000) && !begins(127, 64, 100_000));
    }

    #[test]
    fn neither_slow_requests_nor_those_of_one_processor_begin_it() {
        assert!(!begins(1000, 0, QUIET_NS));
        assert!(!begins(1000, 0, GAP_NS_MIN - 1));
        assert!(!begins(1000, 0, 5_000_000));
    }

    #[test]
    fn polling_ends_with_the_requests() {
        let mut watch = Watch::begin(0, 5);
        assert_eq!(watch.look(200_000, 6), Verdict::Goes);
        assert_eq!(watch.look(200_000 + QUIET_NS - 1, 6), Verdict::Goes);
        assert_eq!(watch.look(200_000 + QUIET_NS, 6), Verdict::Quiet);
    }

    #[test]
    fn polling_ends_where_others_have_work() {
        let mut watch = Watch::begin(0, 5);
        assert_eq!(watch.look(AWAY_NS, 6), Verdict::Wanted);
    }

    #[test]
    fn polling_ends_where_program_and_daemon_share_the_processor() {
        let mut watch = Watch::begin(0, u32::MAX);
        assert_eq!(watch.look(AWAY_NS, OURS - 1), Verdict::Shared);
    }

    #[test]
    fn what_does_not_pay_is_tried_again_later_and_what_pays_sooner() {
        let mut patience = 0;
        for doubled in [16, 32, 64] {
            patience = patience_after(patience, Verdict::Quiet, PAYS - 1);
            assert_eq!(patience, doubled);
        }
        assert_eq!(patience_after(patience, Verdict::Wanted, 1_000_000), 128);
        assert_eq!(patience_after(patience, Verdict::Shared, 1_000_000), 128);
        assert_eq!(patience_after(u32::MAX, Verdict::Wanted, 0), PATIENCE_MAX);
        assert_eq!(patience_after(patience, Verdict::Quiet, PAYS), 32);
        assert_eq!(patience_after(PATIENCE_MIN, Verdict::Quiet, PAYS), PATIENCE_MIN);
    }
}
