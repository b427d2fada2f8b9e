//! Names that the kernel was told of, that they are there or that they are not, and may cache for a while. A home that
//! is about to change one asks that the kernel be told nothing more of it, and waits no longer than what it was told
//! may be shown. It cannot be told to forget a name: that waits for the directory, which a program may hold whose request
//! waits for that home; see docs/decisions/0073-one-callback.md.

use std::time::{Duration, Instant};

use bivouac_ranks::Mutex;
use bivouac_types::Ino;
use bivouac_types::limits::{LEASE_MARGIN_MS, LEASE_MS};

/// Names share that many places; what is so of one is taken as so of all that have its place.
const PLACES: usize = 4096;
const LEASE: Duration = Duration::from_millis(LEASE_MS);
/// In what time the kernel takes an answer in, as far as leases rely on that.
const MARGIN: Duration = Duration::from_millis(LEASE_MARGIN_MS);

/// What the kernel may cache of names.
pub struct CachedNames {
    places: Vec<Mutex<Place>>,
    /// Until when it may cache what a daemon before this one said.
    calm: Instant,
}

#[derive(Debug, Default)]
struct Place {
    /// Until when the kernel may show what it was told.
    until: Option<Instant>,
    /// Until when nothing may be cached.
    silent: Option<Instant>,
}

impl CachedNames {
    /// Of a mount that another daemon served before, or did not.
    pub fn new(resumed: bool) -> CachedNames {
        let places = (0..PLACES).map(|_| Mutex::default()).collect();
        CachedNames { places, calm: Instant::now() + if resumed { LEASE } else { Duration::ZERO } }
    }

    /// An answer about the name with this hash is about to go out. For how long it may be cached, of the time that a
    /// lease allows.
    pub fn tell(&self, dir: Ino, hash: u64, lease: Duration) -> Duration {
        if lease.is_zero() {
            return lease;
        }
        self.place(dir, hash).lock().tell(Instant::now(), lease)
    }

    /// From now on, and for as long as a lease may run, nothing that is answered of the name may be cached. How long
    /// what was answered before may still be shown.
    pub fn silence(&self, dir: Ino, hash: u64) -> Duration {
        let now = Instant::now();
        let left = self.place(dir, hash).lock().silence(now);
        left.max(self.calm.saturating_duration_since(now))
    }

    fn place(&self, dir: Ino, hash: u64) -> &Mutex<Place> {
        let mixed = (dir.0.rotate_left(32) ^ hash).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.places[mixed as usize % PLACES]
    }
}

impl Place {
    fn tell(&mut self, now: Instant, lease: Duration) -> Duration {
        if self.silent.is_some_and(|until| until > now) {
            return Duration::ZERO;
        }
        self.until = self.until.max(Some(now + lease + MARGIN));
        lease
    }

    fn silence(&mut self, now: Instant) -> Duration {
        self.silent = Some(now + LEASE);
        self.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALIDITY: Duration = Duration::from_millis(75);

    /// S379.
    #[test]
    fn a_name_that_nobody_was_told_of_is_not_waited_for() {
        let (names, hour) = (CachedNames::new(false), Duration::from_secs(3600));
        assert_eq!(names.tell(Ino(5), 7, hour), hour);
        assert!(names.silence(Ino(5), 7) > hour, "it may be shown for as long");
        assert_eq!([(5, 8), (6, 7)].map(|(dir, hash)| names.silence(Ino(dir), hash)), [Duration::ZERO; 2]);
        assert_eq!(names.tell(Ino(5), 9, Duration::ZERO), Duration::ZERO);
        assert_eq!(names.silence(Ino(5), 9), Duration::ZERO, "it may not be cached anyway");
    }

    /// S379. An answer that was on its way when the name was asked about is not cached either.
    #[test]
    fn nothing_is_told_of_a_name_while_leases_run_that_were_given_before() {
        let (mut place, now) = (Place::default(), Instant::now());
        assert_eq!(place.tell(now, VALIDITY), VALIDITY);
        assert_eq!(place.silence(now), VALIDITY + MARGIN);
        assert_eq!(place.tell(now + LEASE / 2, VALIDITY), Duration::ZERO);
        assert_eq!(place.silence(now + LEASE), Duration::ZERO);
        assert_eq!(place.tell(now + 2 * LEASE, VALIDITY), VALIDITY);
    }

    #[test]
    fn a_new_daemon_waits_for_answers_of_the_one_before() {
        assert!(CachedNames::new(true).silence(Ino(5), 7) > Duration::ZERO);
    }
}
