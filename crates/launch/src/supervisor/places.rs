//! Watch of mounts at the places where they were made: what is written to such a place would go elsewhere otherwise,
//! and nobody would be told.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use crate::mount_table::{MountPresence, Table};

/// The mounts that the supervisor sees, and the kernel's table of them, which wakes it when it changes.
#[derive(Debug, Default)]
pub(super) struct MountWatch {
    table: Option<File>,
    watched: Vec<WatchedMount>,
}

#[derive(Debug)]
struct WatchedMount {
    id: u32,
    dir: PathBuf,
    connection: u32,
    seen: MountPresence,
}

impl MountWatch {
    /// Looks after a mount from now on. One that was made in a mount namespace of its own is not seen here, and left
    /// alone.
    pub(super) fn watch(&mut self, id: u32, dir: &Path, connection: u32) {
        // Before the look: a change between the two would wake nobody.
        if self.table.is_none() {
            self.open();
        }
        if Table::here().see(dir, connection) != MountPresence::Here {
            return;
        }
        self.watched.push(WatchedMount { id, dir: dir.to_owned(), connection, seen: MountPresence::Here });
    }

    /// Opens the table as this process has it.
    pub(super) fn open(&mut self) {
        let opened = File::open("/proc/self/mountinfo");
        let opened = opened.inspect_err(|error| log::warn!(why:% = error; "mounts are not watched"));
        self.table = opened.ok();
    }

    /// Looks no more after a mount that is over.
    pub(super) fn forget(&mut self, id: u32) {
        self.watched.retain(|watched| watched.id != id);
    }

    /// Returns the descriptor that says that the table has changed, while there is something to look after.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.table.as_ref().filter(|_| !self.watched.is_empty()).map(AsFd::as_fd)
    }

    /// Returns the mounts with which something has changed, and what is wrong with each now.
    pub(super) fn look(&mut self) -> Vec<(u32, Option<String>)> {
        // Read anew: the open file only wakes, and polling it has already noted that the table changed.
        let table = Table::here();
        let mut changed = Vec::new();
        for watched in &mut self.watched {
            let seen = table.see(&watched.dir, watched.connection);
            if seen != watched.seen {
                changed.push((watched.id, describe(&seen)));
                watched.seen = seen;
            }
        }
        changed
    }
}

fn describe(seen: &MountPresence) -> Option<String> {
    match seen {
        MountPresence::Here => None,
        MountPresence::Gone => {
            Some("was taken away from its place: what is written there goes elsewhere".into())
        }
        MountPresence::Covered(source) => {
            Some(format!("is covered by another mount ({source}): what is written there goes elsewhere"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_seen_here_is_not_watched() {
        let mut places = MountWatch::default();
        places.watch(1, Path::new("/no/such/place"), 4_000_000);
        assert!(places.descriptor().is_none() && places.look().is_empty());
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert_eq!(describe(&MountPresence::Here), None);
        assert!(describe(&MountPresence::Gone).is_some_and(|text| text.contains("taken away")));
        assert!(describe(&MountPresence::Covered("x".into())).is_some_and(|text| text.contains("(x)")));
    }
}
