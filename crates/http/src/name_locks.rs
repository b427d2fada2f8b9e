//! Locks of names within this server.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use bivouac_client::ParentAndName;
use bivouac_types::Ino;
use parking_lot::{Mutex, MutexGuard};

/// Number of locks: names that change at the same time without waiting.
const LOCKS: usize = 256;

/// Locks that serialize changes of a name by this server. Names share locks by hash.
pub struct NameLocks(Vec<Mutex<()>>);

impl Default for NameLocks {
    fn default() -> NameLocks {
        NameLocks((0..LOCKS).map(|_| Mutex::new(())).collect())
    }
}

impl NameLocks {
    /// Returns the lock of a name.
    pub fn of(&self, place: &ParentAndName) -> &Mutex<()> {
        self.at(number(place))
    }

    /// Holds the locks of two names; of whichever two, in one order.
    pub fn of_both(
        &self,
        one: &ParentAndName,
        other: &ParentAndName,
    ) -> (MutexGuard<'_, ()>, Option<MutexGuard<'_, ()>>) {
        let index = |place| number(place) % self.0.len() as u64;
        let (one, other) = (index(one), index(other));
        // The lower number first: two requests with the same two names would wait for each other otherwise.
        let first = self.at(one.min(other)).lock();
        (first, (one != other).then(|| self.at(one.max(other)).lock()))
    }

    /// Returns the lock of an inode's attributes.
    pub fn of_inode(&self, ino: Ino) -> &Mutex<()> {
        self.at(ino.0)
    }

    fn at(&self, number: u64) -> &Mutex<()> {
        let index = number % self.0.len() as u64;
        &self.0[index as usize]
    }
}

fn number(place: &ParentAndName) -> u64 {
    let mut hasher = DefaultHasher::new();
    (place.parent, &place.name).hash(&mut hasher);
    hasher.finish()
}
