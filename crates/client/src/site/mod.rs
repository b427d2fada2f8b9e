//! Site storage behind partitions: what it does not have yet, and bringing it there.

pub mod removals;
pub mod saving;

use std::collections::{BTreeSet, HashMap, HashSet};
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

/// Time in milliseconds for which write-behind is held up if the requesting process does not repeat the request.
const HOLD_MS: u32 = 5000;
/// First and longest pause before it is looked again what is unsent.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// Longest wait for mounts to send what was written behind, before what is left is reported.
const WAIT: Duration = Duration::from_secs(120);

/// The data that site storage lacks: inodes, and roughly the bytes of their content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unsaved {
    files: HashMap<Ino, u64>,
    failing: BTreeSet<String>,
    /// Files with content that mounts have written behind and not sent, with the reason.
    pub(crate) unsent: HashMap<Ino, String>,
}

impl Unsaved {
    /// Returns true if nothing is lacking.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Returns the number of files, directories and links.
    #[must_use]
    pub fn count(&self) -> usize {
        self.files.len()
    }

    /// Returns about how many bytes of content, rounded up to stripes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.values().sum()
    }

    /// Returns why some of it could not be flushed the last time: sentences.
    pub fn failing(&self) -> impl Iterator<Item = &str> {
        self.failing.iter().map(String::as_str)
    }

    /// Returns true if an inode is among it.
    #[must_use]
    pub fn has(&self, ino: Ino) -> bool {
        self.files.contains_key(&ino)
    }

    /// Returns about how many bytes of its content are among it, rounded up to stripes.
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
    /// Its path from the partition's root; empty for the root itself.
    pub path: Vec<u8>,
}

/// Result of flushing one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// Bytes moved.
    pub bytes: u64,
    /// Set if anything had to be done.
    pub changed: bool,
    /// Sentences about what site storage could not keep.
    pub lost: Vec<String>,
}

/// Versions of a directory's names at site storage when last seen.
pub type SeenNames = HashMap<Vec<u8>, SiteVersion>;

/// Requests about site storage. All fail with `EIO` when a node cannot be reached, since its part is unknown then.
pub struct Site {
    connections: Arc<Connections>,
    homes: Arc<Homes>,
    partitions: Arc<Partitions>,
    /// A directory and its partition, which never changes.
    last_dir: Mutex<Option<(Ino, PartitionId)>>,
}

impl Site {
    pub(crate) fn new(connections: Arc<Connections>, homes: Arc<Homes>, partitions: Arc<Partitions>) -> Site {
        Site { connections, homes, partitions, last_dir: Mutex::default() }
    }

    /// Returns what site storage lacks, on all nodes; without what has a temporary name, or is below one.
    pub fn unsaved(&self) -> FsResult<Unsaved> {
        let (mut files, mut failing) = (HashMap::new(), BTreeSet::new());
        let mut temporary = HashSet::new();
        let mut take = |dirty: &Dirty| {
            if dirty.is_temporary {
                temporary.insert(dirty.ino);
                return;
            }
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
        // Nodes with content of a file do not know its name, and mounts do not look: its home does.
        files.retain(|ino, _| !temporary.contains(ino));
        let unsent = unsent.into_iter().filter(|dirty| !temporary.contains(&dirty.ino));
        let unsent = unsent.map(|dirty| (dirty.ino, dirty.why)).collect();
        Ok(Unsaved { files, failing, unsent })
    }

    /// Pins a file, so that its content stays here however full the volumes are, or unpins it.
    ///
    /// # Errors
    /// `EINVAL` for what is no file in front of site storage; `EIO` when a node cannot be reached.
    pub fn pin(&self, ino: Ino, pin: bool) -> FsResult<()> {
        self.connections.ask::<op::Pin>(self.connections.home(ino)?, &PinRequest { ino, pin })
    }

    /// Returns true if a file is pinned.
    pub fn is_pinned(&self, ino: Ino) -> FsResult<bool> {
        // The page behind the number before it begins with this inode, if it is pinned.
        let before = Some(Ino(ino.0.wrapping_sub(1))).filter(|before| before.slot() == ino.slot());
        let page = self
            .connections
            .ask::<op::ListPinned>(self.connections.home(ino)?, &ListPinnedRequest { after: before })?;
        Ok(page.files.iter().any(|file| file.ino == ino))
    }

    /// Returns all files that are pinned.
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

    /// Returns what site storage had in a directory.
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

    /// Makes all nodes refuse changes for `hold_ms` milliseconds; 0 ends that. Returns true if they had refused
    /// them until now, all of them.
    ///
    /// # Errors
    /// `EBUSY` while somebody else holds changes up; `EIO` when a node cannot be reached.
    pub fn fence(&self, token: u64, hold_ms: u32) -> FsResult<bool> {
        let request = FenceRequest { token, hold_ms };
        // All are asked, also behind one that had not refused them.
        self.connections
            .node_ids()
            .try_fold(true, |held, node| Ok(self.connections.ask::<op::Fence>(node, &request)? && held))
    }

    /// Brings one file, directory or link to site storage.
    ///
    /// # Errors
    /// Why it is not there: what was to be brought stays as it was. `ESTALE` when site storage has another version than
    /// the one that was seen, and `force` is not set.
    pub fn flush(&self, found: &TreeEntry, seen: Option<SiteVersion>, force: bool) -> FsResult<Flushed> {
        let (ino, dir, path) = (found.attr.ino, found.dir, found.path.clone());
        self.flush_by(found, FlushRequest { ino, dir, path, seen, force, open: false, job: 0 })
    }

    /// Looks whether the source of a partition answers, and is what it was.
    ///
    /// # Errors
    /// `EIO` and others: why not.
    pub fn check(&self, root: &TreeEntry) -> FsResult<()> {
        assert!(root.path.is_empty(), "the directory of a partition is its root, and not below it");
        self.flush(root, None, false).map(drop)
    }

    /// Flushes a directory with permissions that let files be created in it; it is flushed again afterwards.
    ///
    /// # Errors
    /// As [`Site::flush`].
    pub fn flush_open(&self, dir: &TreeEntry) -> FsResult<Flushed> {
        let (ino, path) = (dir.attr.ino, dir.path.clone());
        let (seen, force, open) = (None, false, true);
        self.flush_by(dir, FlushRequest { ino, dir: dir.dir, path, seen, force, open, job: 0 })
    }

    fn flush_by(&self, found: &TreeEntry, mut request: FlushRequest) -> FsResult<Flushed> {
        // Times that this client has not sent belong to what is flushed.
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

    /// Makes all mounts send what was written behind in front of site storage, and write nothing more behind there,
    /// until that is ended or not repeated for a while. Returns what could not be sent.
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

    /// Makes all mounts send what was written behind in front of site storage up to now. Returns what could not be
    /// sent.
    pub fn send_behind(&self) -> FsResult<Vec<Dirty>> {
        let left = self.hold_behind(self.connections.id.0, HOLD_MS);
        // After an error, the hold ends by itself.
        left.and_then(|left| self.ask_unsent(self.connections.id.0, 0).map(|_| left))
    }
}

/// Objects of a partition to be flushed: directories in the order in which they are made, and everything else.
#[derive(Clone, Debug, Default)]
pub struct FlushPlan {
    /// Directories that are new or changed, or contain something that is.
    pub dirs: Vec<TreeEntry>,
    /// Files and links that are new or changed.
    pub files: Vec<TreeEntry>,
    /// Files with content that mounts have written behind and not sent, with the reason if known; they are among the
    /// others too.
    pub unsent: Vec<(TreeEntry, String)>,
}

impl FlushPlan {
    /// Returns whether nothing is to be done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.dirs.is_empty() && self.files.is_empty() && self.unsent.is_empty()
    }
}
