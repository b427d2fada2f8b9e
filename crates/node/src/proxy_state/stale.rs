//! Files whose origin is another one than their home knows. A flush puts a new one in its place a moment before the
//! home writes that down, so this is not believed at once.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bivouac_ranks::Mutex;
use bivouac_types::Ino;

/// Longest time that a flush may take from one to the other.
const PLACING: Duration = Duration::from_secs(2);
/// Most files that are waited for.
const FILES_MAX: usize = 1024;

/// Since when files seem to have changed.
#[derive(Default)]
pub struct SuspectOrigins(Mutex<HashMap<Ino, Instant>>);

impl SuspectOrigins {
    /// Notes that the origin is not what the home says. Returns true if that has been so for long enough.
    pub fn is_certain(&self, ino: Ino) -> bool {
        self.is_certain_at(ino, Instant::now())
    }

    fn is_certain_at(&self, ino: Ino, now: Instant) -> bool {
        let mut files = self.0.lock();
        if files.len() >= FILES_MAX {
            files.retain(|_, since| now.saturating_duration_since(*since) < 2 * PLACING);
        }
        // Not certain without a memory of it: its reader asks again, and finds room in the table some time.
        if files.len() >= FILES_MAX && !files.contains_key(&ino) {
            return false;
        }
        let since = *files.entry(ino).or_insert(now);
        assert!(files.len() <= FILES_MAX, "origins of {} files are waited for", files.len());
        now.saturating_duration_since(since) >= PLACING
    }

    /// Forgets the doubt: the home knows of the new one.
    pub fn forget(&self, ino: Ino) {
        self.0.lock().remove(&ino);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_believed_after_a_while_unless_the_home_hears_of_it() {
        let (stale, now, ino) = (SuspectOrigins::default(), Instant::now(), Ino(7));
        assert!(!stale.is_certain_at(ino, now) && !stale.is_certain_at(ino, now + PLACING / 2));
        assert!(stale.is_certain_at(ino, now + PLACING) && stale.is_certain_at(ino, now + PLACING));
        stale.forget(ino);
        assert!(!stale.is_certain_at(ino, now + PLACING));
    }

    #[test]
    fn what_is_known_is_bounded() {
        let (stale, now) = (SuspectOrigins::default(), Instant::now());
        (0..2 * FILES_MAX as u64).for_each(|ino| assert!(!stale.is_certain_at(Ino(ino), now)));
        assert!(stale.0.lock().len() <= FILES_MAX);
        assert!(!stale.is_certain_at(Ino(9), now + 2 * PLACING), "what was long ago is forgotten");
    }
}
