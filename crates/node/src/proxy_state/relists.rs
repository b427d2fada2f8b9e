//! Directories whose names change at the source, and their last listings.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bivouac_ranks::{Condvar, Mutex};
use bivouac_types::Ino;

/// Directories that are remembered, at most; others are listed as if they never had been.
const DIRS_MAX: usize = 1 << 16;
/// Directories that are listed again at the same time, at most: the other threads serve what is here.
const UNDER_WAY_MAX: usize = 5;

/// Directories by when they were listed.
#[derive(Default)]
pub struct Relists {
    state: Mutex<HashMap<Ino, Relist>>,
    over: Condvar,
}

#[derive(Clone, Copy)]
struct Relist {
    /// Time when the listing was asked for.
    at: Instant,
    digest: Option<u128>,
    is_under_way: bool,
}

/// Need of a directory for a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelistNeed {
    /// None: its names are still valid.
    None,
    /// The caller lists it, unless it still has this digest, and says so at the end.
    List(Option<u128>),
    /// Others do, and have not finished within the wait.
    Busy,
}

impl Relists {
    /// Returns the need of a directory whose names are valid for this time. Waits for a listing that is under way.
    pub fn begin(&self, dir: Ino, valid: Duration, wait: Duration) -> RelistNeed {
        let mut state = self.state.lock();
        let until = Instant::now() + wait;
        loop {
            let now = Instant::now();
            let known = state.get(&dir).copied();
            match known {
                Some(known) if known.is_under_way => {
                    if self.over.wait_until(&mut state, until).timed_out() {
                        return RelistNeed::Busy;
                    }
                }
                Some(known) if now.saturating_duration_since(known.at) < valid => return RelistNeed::None,
                known => {
                    if state.values().filter(|one| one.is_under_way).count() >= UNDER_WAY_MAX {
                        return RelistNeed::Busy;
                    }
                    make_room(&mut state);
                    let digest = known.and_then(|known| known.digest);
                    // As of now and not of its end: what changes there meanwhile may not be in the listing.
                    state.insert(dir, Relist { at: now, digest, is_under_way: true });
                    return RelistNeed::List(digest);
                }
            }
        }
    }

    /// Notes that a directory was listed, with this digest if it is known; it counts from when it was asked for.
    pub fn end(&self, dir: Ino, digest: Option<u128>) {
        if let Some(known) = self.state.lock().get_mut(&dir) {
            (known.digest, known.is_under_way) = (digest, false);
        }
        self.over.notify_all();
    }

    /// Notes that a directory was listed for the first time.
    pub fn note(&self, dir: Ino, asked: Instant, digest: u128) {
        let digest = Some(digest);
        let mut state = self.state.lock();
        // A thread that lists it again says so at its end, and with what it has found.
        if !state.get(&dir).is_some_and(|known| known.is_under_way) {
            make_room(&mut state);
            state.insert(dir, Relist { at: asked, digest, is_under_way: false });
        }
    }
}

/// Forgets directories if there are too many. That costs no more than listing each of them once more.
fn make_room(state: &mut HashMap<Ino, Relist>) {
    if state.len() >= DIRS_MAX {
        state.retain(|_, one| one.is_under_way);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_count_for_a_while_and_one_looks_again() {
        let (relists, dir, wait) = (Relists::default(), Ino(7), Duration::from_millis(1));
        let long = Duration::from_secs(3600);
        assert_eq!(relists.begin(dir, long, wait), RelistNeed::List(None));
        assert_eq!(relists.begin(dir, long, wait), RelistNeed::Busy);
        relists.end(dir, Some(5));
        assert_eq!(relists.begin(dir, long, wait), RelistNeed::None);
        assert_eq!(relists.begin(dir, Duration::ZERO, wait), RelistNeed::List(Some(5)));
        relists.end(dir, Some(6));
        for other in 10..10 + UNDER_WAY_MAX as u64 {
            assert_eq!(relists.begin(Ino(other), long, wait), RelistNeed::List(None));
        }
        assert_eq!(relists.begin(dir, Duration::ZERO, wait), RelistNeed::Busy);
        relists.end(Ino(10), None);
        assert_eq!(relists.begin(dir, Duration::ZERO, wait), RelistNeed::List(Some(6)));
        relists.note(dir, Instant::now(), 7);
        assert_eq!(relists.begin(dir, long, wait), RelistNeed::Busy, "it is listed again");
        let first = 1000;
        (first..first + DIRS_MAX as u64).for_each(|other| relists.note(Ino(other), Instant::now(), 8));
        assert!(relists.state.lock().len() <= DIRS_MAX);
        assert_eq!(relists.begin(dir, long, wait), RelistNeed::Busy, "and is still known");
    }
}
