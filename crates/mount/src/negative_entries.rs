//! Names that the kernel was told are not there. It caches that as long as a lease runs, and sees what it makes itself;
//! what a program has the mount make behind its back ([`bivouac_types::put`]) it does not see. So nothing is made so
//! where it may cache that the name is not there, and while something is, it is told nothing to cache.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bivouac_ranks::Mutex;
use bivouac_types::Ino;
use bivouac_types::limits::LEASE_MS;

/// Number of directories above which those without cached entries are dropped.
const KEPT: usize = 1024;

/// Time for which an attempt to create an entry counts.
const WANTED: Duration = Duration::from_secs(1);

/// By directory, until when the kernel may cache of some name that it is not there.
pub struct NegativeEntries {
    inner: Mutex<Inner>,
    /// Until when the kernel may cache replies of an earlier daemon.
    calm: Instant,
}

#[derive(Default)]
struct Inner {
    until: HashMap<Ino, Instant>,
    /// Directories in which something was to be made and could not, and until when nothing is cached of them therefore.
    wanted: HashMap<Ino, Instant>,
    /// Files that are being made behind the kernel's back, and how many were begun so far.
    making: u32,
    begun: u64,
}

/// A look for a name, from before the file system is asked.
#[derive(Clone, Copy, Debug)]
pub struct Look(u64);

/// A file is being made behind the kernel's back.
pub struct CreationGuard<'a>(&'a NegativeEntries);

impl NegativeEntries {
    /// Creates the table of a mount that another daemon may have served before.
    pub fn since_before() -> NegativeEntries {
        NegativeEntries { inner: Mutex::default(), calm: Instant::now() + Duration::from_millis(LEASE_MS) }
    }

    /// Returns a token of a look for a name. To be called before that.
    pub fn look(&self) -> Look {
        Look(self.inner.lock().begun)
    }

    /// Notes that a name was not there. Returns for how long the kernel may cache that, of the time that a lease
    /// allows.
    pub fn absent(&self, dir: Ino, look: Look, lease: Duration) -> Duration {
        let (mut inner, now) = (self.inner.lock(), Instant::now());
        let is_wanted = inner.wanted.get(&dir).is_some_and(|until| *until > now);
        // One that was begun since the look may be over, and then the name is there.
        if lease.is_zero() || inner.making > 0 || inner.begun != look.0 || is_wanted {
            return Duration::ZERO;
        }
        note(&mut inner.until, dir, now, lease);
        lease
    }

    /// Begins to make a file in a directory; `None` as long as the kernel may cache that something is not there.
    pub fn make(&self, dir: Ino) -> Option<CreationGuard<'_>> {
        let (mut inner, now) = (self.inner.lock(), Instant::now());
        if self.calm > now || inner.until.get(&dir).is_some_and(|until| *until > now) {
            note(&mut inner.wanted, dir, now, WANTED);
            return None;
        }
        inner.making += 1;
        // Counted apart from `making`: a look that began before and ends behind it would see none being made.
        inner.begun += 1;
        Some(CreationGuard(self))
    }
}

/// Notes that something holds for a directory for so long.
fn note(dirs: &mut HashMap<Ino, Instant>, dir: Ino, now: Instant, long: Duration) {
    if dirs.len() >= KEPT {
        dirs.retain(|_, until| *until > now);
    }
    let until = dirs.entry(dir).or_insert(now);
    *until = (*until).max(now + long);
}

impl Drop for CreationGuard<'_> {
    fn drop(&mut self) {
        self.0.inner.lock().making -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Ino = Ino(5);
    const LEASE: Duration = Duration::from_secs(3600);

    #[test]
    fn nothing_is_made_where_a_name_is_cached_not_to_be_there() {
        let negative_entries = NegativeEntries { inner: Mutex::default(), calm: Instant::now() };
        assert!(negative_entries.make(DIR).is_some());
        assert_eq!(negative_entries.absent(DIR, negative_entries.look(), LEASE), LEASE);
        assert!(negative_entries.make(DIR).is_none() && negative_entries.make(Ino(6)).is_some());
        assert_eq!(
            negative_entries.absent(DIR, negative_entries.look(), LEASE),
            Duration::ZERO,
            "or it would never be possible"
        );
    }

    #[test]
    fn a_look_during_a_making_is_not_cached() {
        let negative_entries = NegativeEntries { inner: Mutex::default(), calm: Instant::now() };
        let before = negative_entries.look();
        let making = negative_entries.make(DIR);
        assert_eq!(negative_entries.absent(DIR, before, LEASE), Duration::ZERO, "it was begun before");
        assert_eq!(
            negative_entries.absent(DIR, negative_entries.look(), LEASE),
            Duration::ZERO,
            "it is still being made"
        );
        drop(making);
        assert_eq!(negative_entries.absent(DIR, before, LEASE), Duration::ZERO, "it came in between");
        assert_eq!(negative_entries.absent(DIR, negative_entries.look(), LEASE), LEASE);
    }

    #[test]
    fn a_new_daemon_waits_for_what_the_one_before_said() {
        let begun = Instant::now();
        let negative_entries = NegativeEntries::since_before();
        let made = negative_entries.make(DIR);
        // On a busy machine a lease may have passed since.
        assert!(made.is_none() || begun.elapsed() >= Duration::from_millis(LEASE_MS));
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let negative_entries = NegativeEntries { inner: Mutex::default(), calm: Instant::now() };
        for ino in 0..3 * KEPT as u64 {
            negative_entries.absent(Ino(ino), negative_entries.look(), Duration::from_nanos(1));
        }
        assert!(negative_entries.inner.lock().until.len() <= KEPT);
        assert!(negative_entries.make(Ino(0)).is_some(), "nobody caches it any more");
    }
}
