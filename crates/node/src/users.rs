//! Clients that use large directories which are not spread: a client has one to itself as long as no other looks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bivouac_ranks::Mutex;
use bivouac_types::{ClientId, Ino};

use crate::identity::SYSTEM;

/// Most directories whose users are known; all are forgotten beyond that.
const DIRS_MAX: usize = 4096;
/// Pause before a directory that could not spread is reported as large again.
const AGAIN: Duration = Duration::from_secs(1);

/// The users of large directories, as far as they were seen.
#[derive(Default)]
pub struct DirectoryUsers {
    any: AtomicBool,
    dirs: Mutex<HashMap<Ino, DirectoryUser>>,
}

enum DirectoryUser {
    One(ClientId),
    /// Since when, or since it was said last.
    Several(Instant),
}

impl DirectoryUsers {
    /// Notes that a client changes a large directory. Returns true if several use it.
    pub fn change(&self, dir: Ino, client: ClientId) -> bool {
        let mut dirs = self.dirs.lock();
        if dirs.len() >= DIRS_MAX && !dirs.contains_key(&dir) {
            dirs.clear();
        }
        self.any.store(true, Ordering::Release);
        let user = dirs.entry(dir).or_insert(DirectoryUser::One(client));
        user.joined_by(client);
        let has_several = matches!(user, DirectoryUser::Several(_));
        assert!(dirs.len() <= DIRS_MAX, "users of {} directories are noted", dirs.len());
        has_several
    }

    /// Notes that a client looks for something in a directory. Returns true if it is a large one that should spread,
    /// since several look: to the first one, and again now and then.
    pub fn look(&self, dir: Ino, client: ClientId) -> bool {
        self.any.load(Ordering::Acquire)
            && self.dirs.lock().get_mut(&dir).is_some_and(|user| user.joined_by(client))
    }

    /// Forgets a directory that is not large any more, or is spread.
    pub fn forget(&self, dir: Ino) {
        if self.any.load(Ordering::Acquire) {
            self.dirs.lock().remove(&dir);
        }
    }
}

impl DirectoryUser {
    /// Adds a client. Returns true if the directory has become shared, or is to be reported again.
    fn joined_by(&mut self, client: ClientId) -> bool {
        let due = match self {
            DirectoryUser::One(one) => *one != client,
            DirectoryUser::Several(since) => since.elapsed() >= AGAIN,
        };
        // Looks of nodes are no use of a directory.
        if due && client != SYSTEM {
            *self = DirectoryUser::Several(Instant::now());
        }
        due && client != SYSTEM
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Ino = Ino(5);

    #[test]
    fn a_directory_is_one_clients_until_another_one_comes() {
        let (users, [a, b]) = (DirectoryUsers::default(), [ClientId(1), ClientId(2)]);
        assert!(!users.look(DIR, b), "nobody has made it large");
        assert!(!users.change(DIR, a) && !users.change(DIR, a));
        assert!(!users.look(DIR, a) && !users.look(Ino(6), b) && !users.look(DIR, SYSTEM));
        assert!(users.look(DIR, b) && !users.look(DIR, b), "that is said once a second");
        assert!(users.change(DIR, a), "it stays so");
        users.forget(DIR);
        assert!(!users.change(DIR, b) && users.change(DIR, a));
    }

    #[test]
    fn what_is_known_is_bounded() {
        let users = DirectoryUsers::default();
        (0..2 * DIRS_MAX as u64).for_each(|ino| assert!(!users.change(Ino(ino), ClientId(1))));
        assert!(users.dirs.lock().len() <= DIRS_MAX);
    }
}
