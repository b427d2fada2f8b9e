//! The volumes that a node lends, as configured and as they are.

use std::path::PathBuf;
use std::sync::Arc;

use super::room::Room;
use crate::{Volume, VolumeKind};

/// A directory that this node lends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeConfig {
    /// The directory.
    pub path: PathBuf,
    /// Most bytes that subfiles may occupy on it; 0 is what the file system below has.
    pub capacity: u64,
    /// Whether the directory is made if it does not exist.
    pub create: bool,
}

/// State of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeUsage {
    /// Its directory.
    pub path: PathBuf,
    /// What its bytes are kept in.
    pub kind: VolumeKind,
    /// Bytes that subfiles can occupy altogether.
    pub capacity: u64,
    /// Bytes that they do occupy.
    pub used: u64,
    /// Bytes that records take, and that are kept for them.
    pub records: u64,
    /// Subfiles.
    pub files: u64,
}

#[derive(Debug)]
pub(super) struct Lent {
    pub(super) volume: Arc<dyn Volume>,
    pub(super) room: Arc<Room>,
}

impl Lent {
    pub(super) fn usage(&self) -> VolumeUsage {
        let used = self.room.used();
        let records = self.room.kept();
        let held = used.saturating_add(records);
        let there = self.volume.space().map_or(held, |space| held.saturating_add(space.free));
        let capacity = self.room.limit().map_or(there, |limit| limit.min(there));
        let (path, kind) = (self.volume.path().to_owned(), self.volume.kind());
        VolumeUsage { path, kind, capacity, used, records, files: self.room.files() }
    }
}
