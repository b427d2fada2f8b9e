//! Comparing content with its checksums, and finding the names of what is wrong.

use std::collections::{HashMap, HashSet};

use bivouac_types::{FsResult, Ino, NodeId};
use bivouac_wire::{ScrubDone, ScrubRequest, op};

use crate::client::Client;
use crate::site::Found;

impl Client {
    /// Has a node compare some of a subfile.
    ///
    /// # Errors
    /// `EIO` when it cannot be reached or the subfile cannot be read.
    pub fn scrub_subfile(&self, node: NodeId, request: &ScrubRequest) -> FsResult<ScrubDone> {
        self.ways.ask::<op::Scrub>(node, request)
    }

    /// Everything below a directory, in whichever partition; as [`Client::walk_partition`] otherwise, but that `visit`
    /// says whether to go on.
    ///
    /// # Errors
    /// As [`Client::readdir`].
    pub fn walk(&self, top: &Found, visit: &mut dyn FnMut(&Found) -> bool) -> FsResult<()> {
        let mut dirs = vec![top.clone()];
        while let Some(dir) = dirs.pop() {
            for found in self.entries_of(&dir)? {
                if !visit(&found) {
                    return Ok(());
                }
                if found.attr.is_dir() {
                    dirs.push(found);
                }
            }
        }
        Ok(())
    }

    /// A path of each of some inodes, from the root, if one is found among the first `entries_max` entries.
    ///
    /// # Errors
    /// As [`Client::readdir`].
    pub fn paths_to(&self, wanted: &HashSet<Ino>, entries_max: usize) -> FsResult<HashMap<Ino, Vec<u8>>> {
        let found = self.sized_paths_to(wanted, entries_max)?;
        Ok(found.into_iter().map(|(ino, (path, _))| (ino, path)).collect())
    }

    /// The same, each with the size that its entry tells.
    ///
    /// # Errors
    /// As [`Client::readdir`].
    pub fn sized_paths_to(
        &self,
        wanted: &HashSet<Ino>,
        entries_max: usize,
    ) -> FsResult<HashMap<Ino, (Vec<u8>, u64)>> {
        let (mut paths, mut seen) = (HashMap::new(), 0);
        if wanted.is_empty() {
            return Ok(paths);
        }
        let root = Found { attr: self.getattr(Ino::ROOT)?, dir: Ino::ROOT, path: Vec::new() };
        self.walk(&root, &mut |found| {
            if wanted.contains(&found.attr.ino) {
                paths.entry(found.attr.ino).or_insert_with(|| (found.path.clone(), found.attr.size));
            }
            seen += 1;
            paths.len() < wanted.len() && seen < entries_max
        })?;
        Ok(paths)
    }
}
