//! Watches of checks of the running formation, which need to know whether inodes were changed while they looked.
//! Usually nobody watches, and this costs one load of a flag per change.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

use bivouac_ranks::Mutex;
use bivouac_types::limits::{WATCHED_MAX, WATCHERS_MAX};
use bivouac_types::{ClientId, Ino};
use bivouac_wire::TouchedInos;

/// Watched in place of an inode: touched when entries go from one slot to another as they are, since whoever reads one
/// slot after the other may then see them twice or not at all.
pub const ENTRIES_MOVE: Ino = Ino(0);

/// The watches of all clients.
#[derive(Default)]
pub struct Watches {
    active: AtomicBool,
    watches: Mutex<VecDeque<Watch>>,
}

struct Watch {
    client: ClientId,
    inos: HashSet<Ino>,
    touched: HashSet<Ino>,
}

impl Watches {
    /// Returns true if anybody watches.
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// Replaces a client's watch; none ends it.
    pub fn set(&self, client: ClientId, inos: &[Ino]) {
        let mut watches = self.watches.lock();
        watches.retain(|watch| watch.client != client);
        if !inos.is_empty() {
            if watches.len() >= WATCHERS_MAX {
                // The oldest: a check that has gone away without a word would stay for ever otherwise.
                watches.pop_front();
            }
            let inos = inos.iter().copied().take(WATCHED_MAX).collect();
            assert!(watches.len() < WATCHERS_MAX, "{} checks watch inodes", watches.len());
            watches.push_back(Watch { client, inos, touched: HashSet::new() });
        }
        self.active.store(!watches.is_empty(), Ordering::Release);
    }

    /// Notes that inodes, or entries that lead to them, are about to be changed. The caller holds the locks of their
    /// slots until the change is made: whoever reads those slots before or after, and finds no note between its
    /// beginning and its end, has seen what was there all the time.
    pub fn touch(&self, inos: &[Ino]) {
        for watch in self.watches.lock().iter_mut() {
            watch.touched.extend(inos.iter().filter(|ino| watch.inos.contains(ino)));
        }
    }

    /// Returns the state of a client's watch.
    pub fn look(&self, client: ClientId) -> TouchedInos {
        let watches = self.watches.lock();
        match watches.iter().find(|watch| watch.client == client) {
            Some(watch) => TouchedInos { known: true, touched: watch.touched.iter().copied().collect() },
            None => TouchedInos { known: false, touched: Vec::new() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_watched_and_changed_is_told_to_who_watches() {
        let watches = Watches::default();
        let (a, b) = (ClientId(1), ClientId(2));
        assert!(!watches.is_active() && !watches.look(a).known);
        watches.set(a, &[Ino(5), Ino(6)]);
        watches.set(b, &[Ino(6)]);
        watches.touch(&[Ino(5), Ino(7)]);
        assert_eq!(watches.look(a), TouchedInos { known: true, touched: vec![Ino(5)] });
        assert_eq!(watches.look(b), TouchedInos { known: true, touched: vec![] });
        watches.set(a, &[Ino(5)]);
        assert_eq!(watches.look(a).touched, [], "a new watch begins anew");
        watches.set(a, &[]);
        watches.set(b, &[]);
        assert!(!watches.is_active());
    }

    #[test]
    fn there_are_only_so_many_watches_and_who_lost_one_is_told() {
        let watches = Watches::default();
        let many: Vec<Ino> = (0..2 * WATCHED_MAX as u64).map(Ino).collect();
        (0..=WATCHERS_MAX as u64).for_each(|client| watches.set(ClientId(client), &many));
        assert!(!watches.look(ClientId(0)).known);
        watches.touch(&many);
        assert_eq!(watches.look(ClientId(1)).touched.len(), WATCHED_MAX);
    }
}
