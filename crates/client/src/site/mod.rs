//! Site storage behind partitions: what it does not have yet, and bringing it there.

pub mod removals;
pub mod saving;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bivouac_types::{Attr, FsResult, Ino, PartitionId};
use bivouac_wire::{
    Dirty, FenceRequest, FlushRequest, ListDirtyRequest, ListPinnedRequest, ListSeenRequest, NoteSeenRequest,
    PinRequest, Pinned, SiteVersion, op,
};
use parking_lot::Mutex;

use crate::connections::Connections;
use crate::homes::Homes;
use crate::homes::partitions::Partitions;

/// For how long writes go through if the process that asks for it says no more, in milliseconds.
const HOLD_MS: u32 = 5000;
/// First and longest pause before it is looked again what is unsent.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// How long what was written behind may take to be sent before it is said what is left.
const WAIT: Duration = Duration::from_secs(120);

/// What site storage does not have: inodes, and about how many bytes of their content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unsaved {
    files: HashMap<Ino, u64>,
    failing: BTreeSet<String>,
    /// What mounts have written behind and not sent, with why.
    pub(crate) unsent: HashMap<Ino, String>,
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
pub struct TreeEntry {
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

/// What site storage has of what is here, and what it is given. All of it fails with `EIO` when a node cannot be reached:
/// what that has is not known then.
pub struct Site {
    connections: Arc<Connections>,
    homes: Arc<Homes>,
    partitions: Arc<Partitions>,
    /// A directory, and the partition that it is in for ever.
    last_dir: Mutex<Option<(Ino, PartitionId)>>,
}

impl Site {
    pub(crate) fn new(connections: Arc<Connections>, homes: Arc<Homes>, partitions: Arc<Partitions>) -> Site {
        Site { connections, homes, partitions, last_dir: Mutex::default() }
    }

    /// What site storage does not have, on all nodes.
    pub fn unsaved(&self) -> FsResult<Unsaved> {
        let (mut files, mut failing) = (HashMap::new(), BTreeSet::new());
        let mut take = |dirty: &Dirty| {
            *files.entry(dirty.ino).or_insert(0) += dirty.bytes;
            failing.extend((!dirty.why.is_empty()).then(|| dirty.why.clone()));
        };
        self.connections.ask_pages::<op::ListDirty, _>(
            |after| ListDirtyRequest { after },
            |page| {
                page.files.iter().for_each(&mut take);
                page.next
            },
        )?;
        let unsent = self.ask_unsent(0, 0)?;
        unsent.iter().for_each(take);
        let unsent = unsent.into_iter().map(|dirty| (dirty.ino, dirty.why)).collect();
        Ok(Unsaved { files, failing, unsent })
    }

    /// Has what is here of a file stay however full its volumes are, or not any more.
    ///
    /// # Errors
    /// `EINVAL` for what is no file in front of site storage; `EIO` when a node cannot be reached.
    pub fn pin(&self, ino: Ino, pin: bool) -> FsResult<()> {
        self.connections.ask::<op::Pin>(self.connections.home(ino)?, &PinRequest { ino, pin })
    }

    /// Whether a file is pinned.
    pub fn is_pinned(&self, ino: Ino) -> FsResult<bool> {
        let before = Some(Ino(ino.0.wrapping_sub(1))).filter(|before| before.slot() == ino.slot());
        let page = self
            .connections
            .ask::<op::ListPinned>(self.connections.home(ino)?, &ListPinnedRequest { after: before })?;
        Ok(page.files.iter().any(|file| file.ino == ino))
    }

    /// All files that are pinned.
    pub fn pinned(&self) -> FsResult<Vec<Pinned>> {
        let mut files = Vec::new();
        self.connections.ask_pages::<op::ListPinned, _>(
            |after| ListPinnedRequest { after },
            |page| {
                files.extend(page.files);
                page.next
            },
        )?;
        Ok(files)
    }

    /// What site storage had in a directory.
    pub fn seen_names(&self, dir: Ino) -> FsResult<SeenNames> {
        let mut request = ListSeenRequest { dir, after: Vec::new() };
        let mut names = SeenNames::new();
        loop {
            let page = self.connections.ask::<op::ListSeen>(self.connections.home(dir)?, &request)?;
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
        self.connections
            .node_ids()
            .try_fold(true, |held, node| Ok(self.connections.ask::<op::Fence>(node, &request)? && held))
    }

    /// Brings one file, directory or link to site storage.
    ///
    /// # Errors
    /// Why it is not there: what was to be brought stays as it was. `ESTALE` when site storage has another version than the
    /// one that was seen, and `force` is not set.
    pub fn flush(&self, found: &TreeEntry, seen: Option<SiteVersion>, force: bool) -> FsResult<Flushed> {
        let (ino, dir, path) = (found.attr.ino, found.dir, found.path.clone());
        self.flush_by(found, FlushRequest { ino, dir, path, seen, force, open: false, job: 0 })
    }

    /// Has site storage make a directory that files can be brought into; it is flushed afterwards.
    ///
    /// # Errors
    /// As [`Site::flush`].
    pub fn flush_open(&self, dir: &TreeEntry) -> FsResult<Flushed> {
        let (ino, path) = (dir.attr.ino, dir.path.clone());
        let (seen, force, open) = (None, false, true);
        self.flush_by(dir, FlushRequest { ino, dir: dir.dir, path, seen, force, open, job: 0 })
    }

    fn flush_by(&self, found: &TreeEntry, mut request: FlushRequest) -> FsResult<Flushed> {
        self.homes.tell_times(request.ino)?;
        let home = self.connections.home(request.ino)?;
        loop {
            let state = self.connections.ask::<op::Flush>(home, &request)?;
            if !state.done {
                request.job = state.job;
                continue;
            }
            if let (Some(version), false) = (&state.version, found.path.is_empty()) {
                let name = found.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec();
                let (dir, seen, by) = (found.dir, Some(version.clone()), Some(found.attr.ino));
                let note = NoteSeenRequest { dir, name, seen, by };
                self.connections.ask::<op::NoteSeen>(self.connections.home(found.dir)?, &note)?;
            }
            return Ok(Flushed { bytes: state.moved, changed: state.version.is_some(), lost: state.lost });
        }
    }

    /// Asks all mounts what they have written behind and not sent; as [`crate::Sessions::tell_unsent`].
    pub fn ask_unsent(&self, token: u64, hold_ms: u32) -> FsResult<Vec<Dirty>> {
        let (request, mut left) = (FenceRequest { token, hold_ms }, Vec::new());
        for node in self.connections.node_ids() {
            left.extend(self.connections.ask::<op::SendUnsent>(node, &request)?);
        }
        Ok(left)
    }

    /// Has all mounts send what was written behind in front of site storage; until they hear otherwise, or this process
    /// says nothing for a while, nothing more is. What is left has failed.
    pub fn hold_behind(&self, token: u64, hold_ms: u32) -> FsResult<Vec<Dirty>> {
        let (begun, mut pause) = (Instant::now(), PAUSES.0);
        loop {
            let left = self.ask_unsent(token, hold_ms)?;
            if left.iter().all(|file| !file.why.is_empty()) || begun.elapsed() > WAIT {
                return Ok(left);
            }
            bivouac_net::pause(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Has all mounts send what was written behind in front of site storage up to now. What is left has failed.
    pub fn send_behind(&self) -> FsResult<Vec<Dirty>> {
        let left = self.hold_behind(self.connections.id.0, HOLD_MS);
        // After an error they go on by themselves.
        left.and_then(|left| self.ask_unsent(self.connections.id.0, 0).map(|_| left))
    }
}

/// What of a partition has to be looked at: directories in the order in which they are made, and everything else.
#[derive(Clone, Debug, Default)]
pub struct FlushPlan {
    /// Directories that are new or changed, or have something in them that is.
    pub dirs: Vec<TreeEntry>,
    /// Files and links that are new or changed.
    pub files: Vec<TreeEntry>,
    /// Files that mounts have written behind to and not sent, with why, as far as that is known: they are among the others, too.
    pub unsent: Vec<(TreeEntry, String)>,
}
