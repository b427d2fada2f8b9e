//! States of trees: what is in one at some moment, to be compared with what is in it later.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher as _};

use bivouac_client::Attr;
use bivouac_types::{Errno, FsResult, Ino};

use crate::conditions::content_state;
use crate::request_path::is_reserved;
use crate::tree::{READ, Tree, WRITE};

/// Snapshot of a tree: its objects and their states. The name of the top does not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeState(HashSet<u64>);

impl TreeState {
    /// Creates the snapshot of a single object. A rename of it changes its ctime.
    pub(crate) fn of(top: &Attr) -> TreeState {
        // What changes a directory is in it, and counts for itself.
        let content = (!top.is_dir()).then(|| content_state(top));
        TreeState(HashSet::from([sum_of((top.ino, top.mode, content))]))
    }

    /// Adds something that is in one of its directories.
    pub(crate) fn see(&mut self, parent: Ino, name: &[u8], attr: &Attr) {
        self.0.insert(TreeState::sum(parent, name, attr));
    }

    /// Returns whether an object was in one of the tree's directories in this state.
    pub(crate) fn has(&self, parent: Ino, name: &[u8], attr: &Attr) -> bool {
        self.0.contains(&TreeState::sum(parent, name, attr))
    }

    fn sum(parent: Ino, name: &[u8], attr: &Attr) -> u64 {
        let content = (!attr.is_dir()).then(|| (content_state(attr), attr.ctime));
        sum_of((parent, name, attr.ino, attr.mode, content))
    }
}

fn sum_of(seen: impl Hash) -> u64 {
    // Sums stand for what they are of: a tree may have millions of entries.
    let mut hasher = DefaultHasher::new();
    seen.hash(&mut hasher);
    hasher.finish()
}

impl Tree {
    /// Takes the snapshot of a tree.
    pub fn state(&self, top: &Attr) -> FsResult<TreeState> {
        let mut state = TreeState::of(top);
        self.walk(top, |dir, name, attr| {
            state.see(dir, name, attr);
            Ok(())
        })?;
        Ok(state)
    }

    /// Checks that permissions allow to remove a tree.
    ///
    /// # Errors
    /// `EACCES` if not.
    pub fn may_remove(&self, top: &Attr) -> FsResult<()> {
        let may = |attr: &Attr| if attr.is_dir() { self.may(attr, READ | WRITE) } else { Ok(()) };
        may(top)?;
        self.walk(top, |_, _, attr| may(attr))
    }

    /// Shows all that is in a directory, and in those in it, but for the server's own.
    fn walk(&self, top: &Attr, mut see: impl FnMut(Ino, &[u8], &Attr) -> FsResult<()>) -> FsResult<()> {
        let mut dirs: Vec<Ino> = top.is_dir().then_some(top.ino).into_iter().collect();
        while let Some(dir) = dirs.pop() {
            let seen = self.each_entry(dir, |entry| {
                let Some(attr) = entry.attr.filter(|_| !is_reserved(&entry.name)) else { return Ok(()) };
                dirs.extend(attr.is_dir().then_some(attr.ino));
                see(dir, &entry.name, &attr)
            });
            match seen {
                // Removed since the listing.
                Err(error) if error.errno() == Errno::ENOENT => {}
                seen => seen?,
            }
        }
        Ok(())
    }
}
