//! Site storage behind partitions: what it does not have yet, and bringing it there.

use std::collections::{BTreeSet, HashMap, HashSet};

use bivouac_types::{Attr, Errno, FsResult, Ino};
use bivouac_wire::{
    FenceRequest, FlushRequest, ListDirtyRequest, ListPinnedRequest, ListSeenRequest, NoteSeenRequest,
    PinRequest, Pinned, SiteVersion, op,
};

use crate::client::Client;

/// What site storage does not have: inodes, and about how many bytes of their content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unsaved {
    files: HashMap<Ino, u64>,
    failing: BTreeSet<String>,
    /// What mounts have written behind and not sent, with why.
    unsent: HashMap<Ino, String>,
}

impl Unsaved {
    /// Whether there is anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Number of files, directories and links.
    #[must_use]
    pub fn count(&self) -> usize {
        self.files.len()
    }

    /// About how many bytes of content, rounded up to stripes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.values().sum()
    }

    /// Why some of it could not be flushed the last time: sentences.
    pub fn failing(&self) -> impl Iterator<Item = &str> {
        self.failing.iter().map(String::as_str)
    }

    /// Whether an inode is among it.
    #[must_use]
    pub fn has(&self, ino: Ino) -> bool {
        self.files.contains_key(&ino)
    }

    /// About how many bytes of its content are, rounded up to stripes.
    #[must_use]
    pub fn bytes_of(&self, ino: Ino) -> u64 {
        self.files.get(&ino).copied().unwrap_or(0)
    }
}

/// A file, directory or link below the root of a partition.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its attributes.
    pub attr: Attr,
    /// The directory it is in.
    pub dir: Ino,
    /// Its path from the partition's directory; empty for that itself.
    pub path: Vec<u8>,
}

/// What came of bringing one file to site storage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// Bytes moved.
    pub bytes: u64,
    /// Whether anything had to be done.
    pub changed: bool,
    /// What site storage could not keep: sentences.
    pub lost: Vec<String>,
}

/// What site storage had in a directory when it was last looked at: versions by name.
pub type SeenNames = HashMap<Vec<u8>, SiteVersion>;

impl Client {
    /// What site storage does not have, on all nodes.
    ///
    /// # Errors
    /// `EIO` when a node cannot be reached: what it has is not known then.
    pub fn unsaved(&self) -> FsResult<Unsaved> {
        let (mut files, mut failing) = (HashMap::new(), BTreeSet::new());
        for node in self.node_ids() {
            let mut request = ListDirtyRequest { after: None };
            loop {
                let page = self.ways.ask::<op::ListDirty>(node, &request)?;
                for dirty in page.files {
                    *files.entry(dirty.ino).or_insert(0) += dirty.bytes;
                    failing.extend((!dirty.why.is_empty()).then_some(dirty.why));
                }
                match page.next {
                    Some(next) => request.after = Some(next),
                    None => break,
                }
            }
        }
        let mut unsent = HashMap::new();
        for dirty in self.ask_unsent(0, 0)? {
            *files.entry(dirty.ino).or_insert(0) += dirty.bytes;
            failing.extend((!dirty.why.is_empty()).then(|| dirty.why.clone()));
            unsent.insert(dirty.ino, dirty.why);
        }
        Ok(Unsaved { files, failing, unsent })
    }

    /// Has what is here of a file stay however full its volumes are, or not any more.
    ///
    /// # Errors
    /// `EINVAL` for what is no file in front of site storage; `EIO` when a node cannot be reached.
    pub fn pin(&self, ino: Ino, pin: bool) -> FsResult<()> {
        self.ways.ask::<op::Pin>(self.ways.home(ino)?, &PinRequest { ino, pin })
    }

    /// Whether a file is pinned.
    ///
    /// # Errors
    /// `EIO` when its home cannot be reached.
    pub fn is_pinned(&self, ino: Ino) -> FsResult<bool> {
        let before = Some(Ino(ino.0.wrapping_sub(1))).filter(|before| before.slot() == ino.slot());
        let page =
            self.ways.ask::<op::ListPinned>(self.ways.home(ino)?, &ListPinnedRequest { after: before })?;
        Ok(page.files.iter().any(|file| file.ino == ino))
    }

    /// All files that are pinned.
    ///
    /// # Errors
    /// `EIO` when a node cannot be reached.
    pub fn pinned(&self) -> FsResult<Vec<Pinned>> {
        let mut files = Vec::new();
        for node in self.node_ids() {
            let mut request = ListPinnedRequest { after: None };
            loop {
                let page = self.ways.ask::<op::ListPinned>(node, &request)?;
                files.extend(page.files);
                match page.next {
                    Some(next) => request.after = Some(next),
                    None => break,
                }
            }
        }
        Ok(files)
    }

    /// Everything below a directory that is in the same partition, a directory before what is in it, as far as
    /// `wanted` goes into directories. `visit` is called for each, the directory itself not among them.
    ///
    /// # Errors
    /// As [`Client::readdir`].
    pub fn walk_partition(&self, top: &Found, visit: &mut dyn FnMut(&Found) -> FsResult<()>) -> FsResult<()> {
        let mut dirs = vec![top.clone()];
        while let Some(dir) = dirs.pop() {
            for found in self.entries_of(&dir)? {
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

    pub(crate) fn entries_of(&self, dir: &Found) -> FsResult<Vec<Found>> {
        let (mut entries, mut cookie) = (Vec::new(), 0);
        loop {
            let page = self.readdir_here(dir.attr.ino, cookie)?;
            let Some(last) = page.last() else { return Ok(entries) };
            cookie = last.cookie;
            for entry in page {
                let slash: &[u8] = if dir.path.is_empty() { b"" } else { b"/" };
                let path = [&dir.path[..], slash, &entry.name].concat();
                let attr = match entry.attr {
                    Some(attr) => attr,
                    None => match self.getattr(entry.ino) {
                        Err(error) if error.errno() == Errno::ENOENT => continue,
                        attr => attr?,
                    },
                };
                entries.push(Found { attr, dir: dir.attr.ino, path });
            }
        }
    }

    /// What site storage had in a directory.
    ///
    /// # Errors
    /// `EIO` when its home cannot be reached.
    pub fn seen_names(&self, dir: Ino) -> FsResult<SeenNames> {
        let mut request = ListSeenRequest { dir, after: Vec::new() };
        let mut names = SeenNames::new();
        loop {
            let page = self.ways.ask::<op::ListSeen>(self.ways.home(dir)?, &request)?;
            let last = page.names.last().map(|name| name.name.clone());
            names.extend(page.names.into_iter().map(|name| (name.name, name.seen)));
            match last {
                Some(last) if !page.end => request.after = last,
                _ => return Ok(names),
            }
        }
    }

    /// From now on nobody changes anything, for so many milliseconds; 0 lets everybody go on. Whether that had been so until
    /// now, at all nodes.
    ///
    /// # Errors
    /// `EBUSY` while somebody else holds changes up; `EIO` when a node cannot be reached.
    pub fn fence(&self, token: u64, hold_ms: u32) -> FsResult<bool> {
        let request = FenceRequest { token, hold_ms };
        self.node_ids().try_fold(true, |held, node| Ok(self.ways.ask::<op::Fence>(node, &request)? && held))
    }

    /// Brings one file, directory or link to site storage.
    ///
    /// # Errors
    /// Why it is not there: what was to be brought stays as it was. `ESTALE` when site storage has another version than the
    /// one that was seen, and `force` is not set.
    pub fn flush(&self, found: &Found, seen: Option<SiteVersion>, force: bool) -> FsResult<Flushed> {
        let (ino, dir, path) = (found.attr.ino, found.dir, found.path.clone());
        self.flush_by(found, FlushRequest { ino, dir, path, seen, force, open: false, job: 0 })
    }

    /// Has site storage make a directory that files can be brought into; it is flushed afterwards.
    ///
    /// # Errors
    /// As [`Client::flush`].
    pub fn flush_open(&self, dir: &Found) -> FsResult<Flushed> {
        let (ino, path) = (dir.attr.ino, dir.path.clone());
        let (seen, force, open) = (None, false, true);
        self.flush_by(dir, FlushRequest { ino, dir: dir.dir, path, seen, force, open, job: 0 })
    }

    fn flush_by(&self, found: &Found, mut request: FlushRequest) -> FsResult<Flushed> {
        self.tell_times(request.ino)?;
        let home = self.ways.home(request.ino)?;
        loop {
            let state = self.ways.ask::<op::Flush>(home, &request)?;
            if !state.done {
                request.job = state.job;
                continue;
            }
            if let (Some(version), false) = (&state.version, found.path.is_empty()) {
                let name = found.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec();
                let (dir, seen, by) = (found.dir, Some(version.clone()), Some(found.attr.ino));
                let note = NoteSeenRequest { dir, name, seen, by };
                self.ways.ask::<op::NoteSeen>(self.ways.home(found.dir)?, &note)?;
            }
            return Ok(Flushed { bytes: state.moved, changed: state.version.is_some(), lost: state.lost });
        }
    }
}

/// What of a partition has to be looked at: directories in the order in which they are made, and everything else.
#[derive(Clone, Debug, Default)]
pub struct FlushPlan {
    /// Directories that are new or changed, or have something in them that is.
    pub dirs: Vec<Found>,
    /// Files and links that are new or changed.
    pub files: Vec<Found>,
    /// Files that mounts have written behind to and not sent, with why, as far as that is known: they are among the others, too.
    pub unsent: Vec<(Found, String)>,
}

impl Client {
    /// What is to be brought to site storage of a directory and all below it, or of one file. `above` are the directories
    /// between the partition's own and it.
    ///
    /// # Errors
    /// As [`Client::walk_partition`].
    pub fn plan_flush(&self, unsaved: &Unsaved, above: &[Found], top: &Found) -> FsResult<FlushPlan> {
        let (mut all, mut plan) = (above.to_vec(), FlushPlan::default());
        let mut wanted: HashSet<Ino> = HashSet::new();
        if top.attr.is_dir() {
            all.push(top.clone());
            self.walk_partition(top, &mut |found| {
                if found.attr.is_dir() {
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
