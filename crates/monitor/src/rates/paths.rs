//! Paths of files that nodes know by their numbers. What that costs is bounded: a path is kept for a while, and of
//! directories only so many entries are looked through.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use bivouac_client::Client;
use bivouac_types::Ino;

use crate::report::shown;

/// Time for which a path is cached: files are renamed.
const KEPT: Duration = Duration::from_secs(10);
/// Entries of directories that are looked through for one look, at most: a few large pages.
const ENTRIES_MAX: usize = 20_000;
/// Directories above a file that are gone through, at most; that there are more is damage.
const DEPTH_MAX: usize = 256;

/// Location of files.
#[derive(Default)]
pub struct PathCache {
    /// Names found; `None` for those that were looked for in vain.
    known: HashMap<Ino, (Instant, Option<String>)>,
    /// Entries that may still be looked through.
    left: usize,
}

impl PathCache {
    /// Begins another look.
    pub fn refresh(&mut self) {
        self.known.retain(|_, (at, _)| at.elapsed() < KEPT);
        self.left = ENTRIES_MAX;
    }

    /// Returns the path of a file that was made in a directory. Of one that is gone, was moved, or is too far behind in
    /// its directory, `?` stands for the name.
    pub fn file(&mut self, client: &Client, dir: Ino, file: Ino) -> String {
        let Some(place) = (dir != Ino(0)).then(|| self.dir(client, dir)).flatten() else {
            return "/?".into();
        };
        let name = self.step(client, dir, file);
        format!("{place}/{}", name.as_deref().unwrap_or("?"))
    }

    /// Returns the path of a directory; of the root it is empty.
    fn dir(&mut self, client: &Client, dir: Ino) -> Option<String> {
        let (mut ino, mut names) = (dir, Vec::new());
        while ino != Ino::ROOT {
            if names.len() >= DEPTH_MAX {
                return None;
            }
            let parent = client.parent(ino).ok()?;
            names.push(self.step(client, parent, ino)?);
            ino = parent;
        }
        Some(names.iter().rev().map(|name| format!("/{name}")).collect())
    }

    /// Returns the name that leads to an inode in a directory.
    fn step(&mut self, client: &Client, dir: Ino, ino: Ino) -> Option<String> {
        if let Some((_, name)) = self.known.get(&ino) {
            return name.clone();
        }
        let name = self.search(client, dir, ino);
        // Also what was not found: else each look would spend all of its entries on the same lost names.
        self.known.insert(ino, (Instant::now(), name.clone()));
        name
    }

    fn search(&mut self, client: &Client, dir: Ino, ino: Ino) -> Option<String> {
        let mut cookie = 0;
        while self.left > 0 {
            // What is at site storage only is not brought for that.
            let page = client.readdir_here(dir, cookie).ok()?;
            cookie = page.last()?.cookie;
            self.left = self.left.saturating_sub(page.len());
            if let Some(found) = page.iter().find(|entry| entry.ino == ino) {
                return Some(shown(OsStr::from_bytes(&found.name)));
            }
        }
        None
    }
}
