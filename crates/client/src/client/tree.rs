//! Trees of directories: walking them, and finding the names of inodes in them.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use bivouac_types::limits::READDIR_BYTES_MAX;
use bivouac_types::{Attr, Errno, FsResult, Ino, is_temporary_name};

use super::Client;
use crate::site::{FlushPlan, TreeEntry, Unsaved};

/// Longest wait for deletions at site storage: a file whose close has returned may still count as open.
const CLOSE_WAIT: Duration = Duration::from_secs(2);
/// Pause before what is left is looked at again.
const PAUSE: Duration = Duration::from_millis(20);

impl Client {
    /// Visits everything below a directory, in whichever partition, until `visit` returns false. Otherwise as
    /// [`Client::walk_partition`].
    ///
    /// # Errors
    /// As [`Client::readdir`].
    pub fn walk(&self, top: &TreeEntry, visit: &mut dyn FnMut(&TreeEntry) -> bool) -> FsResult<()> {
        let mut dirs = vec![top.clone()];
        while let Some(dir) = dirs.pop() {
            for found in self.entries_below(top, &dir)? {
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

    /// Returns a path of each of some inodes, from the root, if one is found among the first `entries_max` entries.
    ///
    /// # Errors
    /// As [`Client::readdir`].
    pub fn paths_to(&self, wanted: &HashSet<Ino>, entries_max: usize) -> FsResult<HashMap<Ino, Vec<u8>>> {
        let found = self.sized_paths_to(wanted, entries_max)?;
        Ok(found.into_iter().map(|(ino, (path, _))| (ino, path)).collect())
    }

    /// Like [`Client::paths_to`], each path with the size that its entry tells.
    pub fn sized_paths_to(
        &self,
        wanted: &HashSet<Ino>,
        entries_max: usize,
    ) -> FsResult<HashMap<Ino, (Vec<u8>, u64)>> {
        let (mut paths, mut seen) = (HashMap::new(), 0);
        if wanted.is_empty() {
            return Ok(paths);
        }
        let root = TreeEntry { attr: self.getattr(Ino::ROOT)?, dir: Ino::ROOT, path: Vec::new() };
        self.walk(&root, &mut |found| {
            if wanted.contains(&found.attr.ino) {
                paths.entry(found.attr.ino).or_insert_with(|| (found.path.clone(), found.attr.size));
            }
            seen += 1;
            paths.len() < wanted.len() && seen < entries_max
        })?;
        Ok(paths)
    }

    /// Returns the path of a directory from the root of the formation, found by going up from it; `None` if it is gone.
    ///
    /// # Errors
    /// `EIO` when a node on the way does not answer.
    pub fn path_of_dir(&self, dir: Ino) -> FsResult<Option<String>> {
        let (mut ino, mut names) = (dir, Vec::new());
        while ino != Ino::ROOT {
            let parent = match self.parent(ino) {
                Err(error) if error.errno() == Errno::ENOENT => return Ok(None),
                parent => parent?,
            };
            let Some(name) = self.name_in(parent, ino)? else { return Ok(None) };
            names.push(String::from_utf8_lossy(&name).into_owned());
            ino = parent;
        }
        names.reverse();
        Ok(Some(names.iter().map(|name| format!("/{name}")).collect()))
    }

    /// Returns the name that leads to an inode in a directory.
    fn name_in(&self, dir: Ino, ino: Ino) -> FsResult<Option<Vec<u8>>> {
        let mut cookie = 0;
        loop {
            let page = self.readdir(dir, cookie, READDIR_BYTES_MAX, false)?;
            let Some(last) = page.last() else { return Ok(None) };
            cookie = last.cookie;
            if let Some(found) = page.iter().find(|entry| entry.ino == ino) {
                return Ok(Some(found.name.clone()));
            }
        }
    }

    /// Visits everything below a directory that is in the same partition, a directory before its entries, entering
    /// directories as far as `wanted` says. The directory itself is not visited.
    ///
    /// # Errors
    /// As [`Client::readdir`].
    pub fn walk_partition(
        &self,
        top: &TreeEntry,
        visit: &mut dyn FnMut(&TreeEntry) -> FsResult<()>,
    ) -> FsResult<()> {
        let mut dirs = vec![top.clone()];
        while let Some(dir) = dirs.pop() {
            for found in self.entries_below(top, &dir)? {
                if found.attr.layout.partition() != top.attr.layout.partition() {
                    continue;
                }
                visit(&found)?;
                if found.attr.is_dir() {
                    dirs.push(found);
                }
            }
        }
        Ok(())
    }

    /// Like [`Client::entries_of`], for a directory on a walk from `top`: one that was removed since its entry was seen
    /// has none.
    fn entries_below(&self, top: &TreeEntry, dir: &TreeEntry) -> FsResult<Vec<TreeEntry>> {
        match self.entries_of(dir) {
            Err(error) if error.errno() == Errno::ENOENT && dir.attr.ino != top.attr.ino => Ok(Vec::new()),
            entries => entries,
        }
    }

    /// Brings a file, or a directory and what is below it, to site storage, where that goes at its close. For what was
    /// made under a temporary name, which site storage does not get.
    ///
    /// # Errors
    /// Why a file is not there; as [`Client::walk_partition`].
    pub fn save_tree(&self, top: &Attr) -> FsResult<()> {
        if !self.site.goes_at_close(top.ino)? {
            return Ok(());
        }
        if !top.is_dir() {
            return self.site.save_each(&[top.ino]);
        }
        let root = TreeEntry { attr: *top, dir: Ino::ROOT, path: Vec::new() };
        let (mut files, mut dirs) = (Vec::new(), vec![top.ino]);
        self.walk_partition(&root, &mut |found| {
            if found.attr.is_dir() {
                dirs.push(found.attr.ino)
            } else {
                files.push(found.attr.ino)
            }
            Ok(())
        })?;
        let saved = self.site.save_each(&files);
        // Behind what is in them, which changes their times, and needs permissions that they may not have in the end.
        dirs.iter().rev().try_for_each(|dir| self.site.save_each(&[*dir]))?;
        saved
    }

    /// Has what was deleted below a name in a directory deleted at site storage as well, where that goes without a
    /// flush. For whoever gives the name to another tree: what is open a while longer stays, and is in its way there.
    ///
    /// # Errors
    /// `EIO` when a node or site storage cannot be reached.
    pub fn finish_removals(&self, dir: Ino, name: &[u8]) -> FsResult<()> {
        let partition = self.partitions.get(self.getattr(dir)?.layout.partition())?;
        let Some(partition) = partition.filter(|partition| partition.settings.mirrors_deletes()) else {
            return Ok(());
        };
        if !self.site.goes_at_close(dir)? {
            return Ok(());
        }
        let (mut ino, mut path) = (dir, name.to_vec());
        while ino != partition.dir && ino != Ino::ROOT {
            let parent = self.parent(ino)?;
            let Some(name) = self.name_in(parent, ino)? else { return Ok(()) };
            (ino, path) = (parent, [&name[..], b"/", &path[..]].concat());
        }
        let begun = Instant::now();
        while !self.site.mirror(partition.id, &path)?.left.is_empty() && begun.elapsed() < CLOSE_WAIT {
            bivouac_net::pause(PAUSE);
        }
        Ok(())
    }

    fn entries_of(&self, dir: &TreeEntry) -> FsResult<Vec<TreeEntry>> {
        let (mut entries, mut cookie) = (Vec::new(), 0);
        loop {
            let page = self.readdir_here(dir.attr.ino, cookie)?;
            // Without an end mark: a page may be short and have others behind it.
            let Some(last) = page.last() else { return Ok(entries) };
            cookie = last.cookie;
            for entry in page {
                let slash: &[u8] = if dir.path.is_empty() { b"" } else { b"/" };
                let path = [&dir.path[..], slash, &entry.name].concat();
                let attr = match entry.attr {
                    Some(attr) => attr,
                    None => match self.getattr(entry.ino) {
                        // Removed since the listing: as if it had been listed a moment later.
                        Err(error) if error.errno() == Errno::ENOENT => continue,
                        attr => attr?,
                    },
                };
                entries.push(TreeEntry { attr, dir: dir.attr.ino, path });
            }
        }
    }

    /// Returns what is to be flushed of a directory and all below it, or of one file. `above` are the directories
    /// between the partition's root and it.
    ///
    /// # Errors
    /// As [`Client::walk_partition`].
    pub fn plan_flush(&self, unsaved: &Unsaved, above: &[TreeEntry], top: &TreeEntry) -> FsResult<FlushPlan> {
        let (mut all, mut plan) = (above.to_vec(), FlushPlan::default());
        let mut wanted: HashSet<Ino> = HashSet::new();
        if top.attr.is_dir() {
            all.push(top.clone());
            self.walk_partition(top, &mut |found| {
                // Mounts report what they have not sent also of files that go nowhere.
                if found.path.split(|byte| *byte == b'/').any(is_temporary_name) {
                } else if found.attr.is_dir() {
                    all.push(found.clone());
                } else if unsaved.has(found.attr.ino) {
                    wanted.insert(found.dir);
                    plan.files.push(found.clone());
                }
                Ok(())
            })?;
        } else if unsaved.has(top.attr.ino) {
            wanted.insert(top.dir);
            plan.files.push(top.clone());
        }
        plan.unsent = plan
            .files
            .iter()
            .filter_map(|file| Some((file.clone(), unsaved.unsent.get(&file.attr.ino)?.clone())))
            .collect();
        plan.dirs = all
            .into_iter()
            .filter(|dir| wanted.contains(&dir.attr.ino) || unsaved.has(dir.attr.ino))
            .collect();
        Ok(plan)
    }
}
