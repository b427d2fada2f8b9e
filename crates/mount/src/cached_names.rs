//! Names that the kernel was told of, that they are there or that they are not, and may cache for a while. A home that
//! is about to change one asks that the kernel be told nothing more of it, and waits no longer than what it was told
//! may be shown. A rename has the kernel show another name for as long as it would have shown the old one. It cannot be
//! told to forget a name: that waits for the directory, which a program may hold whose request waits for that home; see
//! docs/decisions/0073-leases.md.

use std::time::{Duration, Instant};

use bivouac_ranks::Mutex;
use bivouac_types::Ino;
use bivouac_types::limits::{LEASE_MARGIN_MS, LEASE_MS};

/// Names share that many places; what is so of one is taken as so of all that have its place.
const PLACES: usize = 4096;
const LEASE: Duration = Duration::from_millis(LEASE_MS);
/// Time within which the kernel takes a reply in, as far as leases rely on that.
const MARGIN: Duration = Duration::from_millis(LEASE_MARGIN_MS);

/// Names that the kernel may cache.
pub struct CachedNames {
    places: Vec<Mutex<Bucket>>,
    /// Until when it may cache replies of an earlier daemon.
    calm: Instant,
}

#[derive(Debug, Default)]
struct Bucket {
    /// Until when the kernel may use what it has cached.
    until: Option<Instant>,
    /// Until when nothing may be cached.
    silent: Option<Instant>,
    /// Renames under way that move what the kernel knows of a name here.
    moves: u32,
}

/// A name in a directory, by its hash.
pub type Name = (Ino, u64);

/// A rename under way.
pub struct RenameGuard<'a> {
    names: &'a CachedNames,
    from: Vec<usize>,
}

impl Drop for RenameGuard<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        self.from.iter().for_each(|from| self.names.places[*from].lock().end_move(now));
    }
}

impl CachedNames {
    /// Creates the table of a mount that another daemon served before, or did not.
    pub fn new(resumed: bool) -> CachedNames {
        let places = (0..PLACES).map(|_| Mutex::default()).collect();
        CachedNames { places, calm: Instant::now() + if resumed { LEASE } else { Duration::ZERO } }
    }

    /// Notes that an answer about the name with this hash is about to go out. Returns for how long it may be cached, of
    /// the time that a lease allows.
    pub fn tell(&self, dir: Ino, hash: u64, lease: Duration) -> Duration {
        if lease.is_zero() {
            return lease;
        }
        self.place(dir, hash).lock().tell(Instant::now(), lease)
    }

    /// Stops caching of replies about the name for the length of a lease. Returns for how long earlier replies may
    /// still be used.
    pub fn silence(&self, dir: Ino, hash: u64) -> Duration {
        let now = Instant::now();
        let left = self.place(dir, hash).lock().silence(now);
        left.max(self.calm.saturating_duration_since(now))
    }

    /// Prepares for a rename that is about to be asked for. The kernel then shows each of the new names for as long as
    /// it would have shown the old one, of which nothing is told while the result is there, nor for as long as a lease
    /// may run after it: who asked about it meanwhile would have the kernel show the new one for longer.
    pub fn moving(&self, moves: &[(Name, Name)]) -> RenameGuard<'_> {
        let mut under_way = RenameGuard { names: self, from: Vec::new() };
        for ((dir, hash), (new_dir, new_hash)) in moves {
            let (now, from) = (Instant::now(), self.place_of(*dir, *hash));
            // Before the new name's place is raised: from here on nothing more is told of the old one.
            let shown = self.places[from].lock().begin_move(now);
            under_way.from.push(from);
            // What an earlier daemon told of the old name is not known here, and moves with it as well.
            let until = shown.max(Some(self.calm).filter(|calm| *calm > now));
            let mut to = self.place(*new_dir, *new_hash).lock();
            to.until = to.until.max(until);
        }
        under_way
    }

    fn place(&self, dir: Ino, hash: u64) -> &Mutex<Bucket> {
        &self.places[self.place_of(dir, hash)]
    }

    fn place_of(&self, dir: Ino, hash: u64) -> usize {
        let mixed = (dir.0.rotate_left(32) ^ hash).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        mixed as usize % self.places.len()
    }
}

impl Bucket {
    fn tell(&mut self, now: Instant, lease: Duration) -> Duration {
        if self.moves > 0 || self.silent.is_some_and(|until| until > now) {
            return Duration::ZERO;
        }
        self.until = self.until.max(Some(now + lease + MARGIN));
        lease
    }

    fn silence(&mut self, now: Instant) -> Duration {
        self.silent = Some(now + LEASE);
        self.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// Returns until when the kernel may use what it has cached, if that is in the future.
    fn begin_move(&mut self, now: Instant) -> Option<Instant> {
        self.moves += 1;
        self.until.filter(|until| *until > now)
    }

    fn end_move(&mut self, now: Instant) {
        // With a count below 0 the names here would never be cached again.
        assert!(self.moves > 0, "a rename ends that has not begun");
        self.moves -= 1;
        self.silent = self.silent.max(Some(now + LEASE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALIDITY: Duration = Duration::from_millis(75);

    /// S379.
    #[test]
    fn a_name_that_nobody_was_told_of_is_not_waited_for() {
        let (names, hour, begun) = (CachedNames::new(false), Duration::from_secs(3600), Instant::now());
        assert_eq!(names.tell(Ino(5), 7, hour), hour);
        assert!(names.silence(Ino(5), 7) + begun.elapsed() > hour, "it may be shown for as long");
        assert_eq!([(5, 8), (6, 7)].map(|(dir, hash)| names.silence(Ino(dir), hash)), [Duration::ZERO; 2]);
        assert_eq!(names.tell(Ino(5), 9, Duration::ZERO), Duration::ZERO);
        assert_eq!(names.silence(Ino(5), 9), Duration::ZERO, "it may not be cached anyway");
    }

    /// S379. An answer that was on its way when the name was asked about is not cached either.
    #[test]
    fn nothing_is_told_of_a_name_while_leases_run_that_were_given_before() {
        let (mut place, now) = (Bucket::default(), Instant::now());
        assert_eq!(place.tell(now, VALIDITY), VALIDITY);
        assert_eq!(place.silence(now), VALIDITY + MARGIN);
        assert_eq!(place.tell(now + LEASE / 2, VALIDITY), Duration::ZERO);
        assert_eq!(place.silence(now + LEASE), Duration::ZERO);
        assert_eq!(place.tell(now + 2 * LEASE, VALIDITY), VALIDITY);
    }

    /// S20.
    #[test]
    fn a_name_that_a_rename_makes_is_shown_as_long_as_the_old_one() {
        let (names, hour, begun) = (CachedNames::new(false), Duration::from_secs(3600), Instant::now());
        // Together with what has passed since, which may be much on a busy machine.
        let is_shown = |(dir, hash): (Ino, u64)| names.silence(dir, hash) + begun.elapsed() > hour;
        let (old, new, other) = ((Ino(5), 7), (Ino(6), 8), (Ino(6), 9));
        assert_eq!(names.tell(old.0, old.1, hour), hour);
        let moving = names.moving(&[(old, new)]);
        assert!(is_shown(new), "before the rename is over");
        assert_eq!(
            names.tell(old.0, old.1, hour),
            Duration::ZERO,
            "the kernel would show the new name so long"
        );
        let over = Instant::now();
        drop(moving);
        let told = names.tell(old.0, old.1, hour);
        // On a busy machine a lease may have passed since.
        assert!(told.is_zero() || over.elapsed() >= LEASE, "who asked before");
        assert_eq!(names.tell(other.0, other.1, hour), hour);
        drop(names.moving(&[(new, other), (other, new)]));
        assert!([new, other].into_iter().all(is_shown), "exchanged");
        let (untold, next) = ((Ino(5), 11), (Ino(5), 12));
        drop(names.moving(&[(untold, next)]));
        assert_eq!(names.silence(next.0, next.1), Duration::ZERO, "nothing was told");
    }

    #[test]
    fn nothing_is_told_of_a_name_until_the_answers_to_what_was_asked_during_its_rename_are_old() {
        let (mut place, now) = (Bucket::default(), Instant::now());
        assert_eq!([place.begin_move(now), place.begin_move(now)], [None, None]);
        place.end_move(now + LEASE);
        assert_eq!(place.tell(now + 3 * LEASE, VALIDITY), Duration::ZERO, "another one is under way");
        place.end_move(now + 3 * LEASE);
        assert_eq!(place.tell(now + 4 * LEASE - MARGIN, VALIDITY), Duration::ZERO);
        assert_eq!(place.tell(now + 4 * LEASE, VALIDITY), VALIDITY);
    }

    #[test]
    fn a_new_daemon_waits_for_answers_of_the_one_before() {
        let begun = Instant::now();
        // On a busy machine a lease may have passed since.
        assert!(CachedNames::new(true).silence(Ino(5), 7) > Duration::ZERO || begun.elapsed() >= LEASE);
    }
}
