//! Times at which files were put at their sources: what a listing from before that says of them is past.

use std::collections::HashMap;

use bivouac_ranks::Mutex;
use bivouac_types::{Ino, Timestamp};

/// Time for which a placement is kept, in seconds: longer than a listing takes, with the time that a source caches it.
const KEPT_S: i64 = 60;
/// Number of placements from which on those that are past are looked for.
const CLEANED_AT: usize = 1024;

/// Files that were put at their sources lately.
#[derive(Default)]
pub struct RecentPlacements(Mutex<Placements>);

#[derive(Default)]
struct Placements {
    by_file: HashMap<Ino, Timestamp>,
    /// Number of placements at which they are cleaned.
    cleaned_at: usize,
}

impl RecentPlacements {
    /// Notes that a file was put at its source until `now`; to be called before its version there is recorded.
    pub fn note(&self, ino: Ino, now: Timestamp) {
        let mut all = self.0.lock();
        all.by_file.insert(ino, now);
        if all.by_file.len() >= all.cleaned_at.max(CLEANED_AT) {
            all.by_file.retain(|_, placed| placed.secs > now.secs - KEPT_S);
            all.cleaned_at = all.by_file.len() * 2;
        }
    }

    /// Returns whether a file was put at its source after `asked`.
    pub fn is_newer(&self, ino: Ino, asked: Timestamp) -> bool {
        self.0.lock().by_file.get(&ino).is_some_and(|placed| *placed >= asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp { secs, nanos: 0 }
    }

    #[test]
    fn only_what_was_placed_since_is_newer() {
        let placements = RecentPlacements::default();
        placements.note(Ino(1), at(100));
        assert!(placements.is_newer(Ino(1), at(99)) && placements.is_newer(Ino(1), at(100)));
        assert!(!placements.is_newer(Ino(1), at(101)) && !placements.is_newer(Ino(2), at(0)));
    }

    #[test]
    fn old_placements_are_forgotten() {
        let placements = RecentPlacements::default();
        (0..CLEANED_AT as u64).for_each(|ino| placements.note(Ino(ino), at(100)));
        placements.note(Ino(u64::MAX), at(100 + KEPT_S));
        (0..CLEANED_AT as u64 * 2).for_each(|ino| placements.note(Ino(1 << 40 | ino), at(100 + KEPT_S)));
        assert!(!placements.is_newer(Ino(0), at(0)) && placements.is_newer(Ino(u64::MAX), at(0)));
    }
}
