//! Errors of a node's volumes, each with its errno.

use std::io;
use std::path::PathBuf;

use bivouac_types::{Errno, FormationId, FsError, Ino, NodeId, PartitionId};
use thiserror::Error;

/// An error of this crate: names the object, the cause and, where there is one, the remedy.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The volume's directory does not exist.
    #[error("volume {}: no such directory; create it or name another", path.display())]
    Missing {
        /// The directory as it was named.
        path: PathBuf,
    },
    /// The volume's path leads to something else.
    #[error("volume {}: not a directory; name a directory to lend", path.display())]
    NotADirectory {
        /// The path as it was named.
        path: PathBuf,
    },
    /// The directory cannot be written to.
    #[error("volume {}: not writable ({source}); make it writable for this user or name another", path.display())]
    NotWritable {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The directory holds files that no formation put there.
    #[error("volume {}: holds '{found}', which is not bivouac's; name an empty directory", path.display())]
    Alien {
        /// The directory.
        path: PathBuf,
        /// One of the entries found.
        found: String,
    },
    /// The identity file is damaged.
    #[error("volume {}: identity file is damaged ({cause}); if nothing on it is needed, empty the directory", path.display())]
    BadIdentity {
        /// The directory.
        path: PathBuf,
        /// Defect of the file.
        cause: &'static str,
    },
    /// The volume is another formation's.
    #[error(
        "volume {}: belongs to formation {found}, not {expected}; name another directory, bring the other formation down, or, if it was killed, have it back: bivouac recover --volume DIR",
        path.display()
    )]
    WrongFormation {
        /// The directory.
        path: PathBuf,
        /// Formation that it belongs to.
        found: FormationId,
        /// The formation that opened it.
        expected: FormationId,
    },
    /// The volume is another node's, or another place of this node's.
    #[error(
        "volume {}: belongs to {found_node} as volume {found_index}, not to {node} as volume {index}; list the volumes in their old order",
        path.display()
    )]
    WrongNode {
        /// The directory.
        path: PathBuf,
        /// Node that it belongs to.
        found_node: NodeId,
        /// Position among that node's volumes.
        found_index: u16,
        /// The node that opened it.
        node: NodeId,
        /// Its position there.
        index: u16,
    },
    /// Written by a newer release.
    #[error("{}: format version {found} is newer than {supported}; use the release that wrote it or a newer one", path.display())]
    NewerFormat {
        /// The directory or file.
        path: PathBuf,
        /// Version found.
        found: u16,
        /// Newest version that this release reads.
        supported: u16,
    },
    /// Written by an older release, in a way that this one does not read.
    #[error("{}: format version {found} is older than {oldest}; use the release that wrote it", path.display())]
    OlderFormat {
        /// The directory or file.
        path: PathBuf,
        /// Version found.
        found: u16,
        /// Oldest version that this release reads.
        oldest: u16,
    },
    /// Another process has the volume open.
    #[error("volume {}: in use by another daemon; bring that one down first", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// There is no volume with this number.
    #[error("node has no volume {index}")]
    NoVolume {
        /// The number asked for.
        index: u16,
    },
    /// Bytes on a volume that nobody wrote so.
    #[error("{}: damaged at byte {offset}: {cause}; with its volume named, `bivouac fsck --offline --repair DIR` keeps what is sound", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Offset of the damage, in bytes.
        offset: u64,
        /// Kind of damage.
        cause: String,
    },
    /// A subfile that was made, never removed, and is not there.
    #[error(
        "volume {}: subfile {name} is not there any more, though nobody removed it by bivouac: its part of the file is not served; put it back while the formation is down, restore the file from a copy, or remove it; `bivouac fsck` names all such files",
        volume.display()
    )]
    LostSubfile {
        /// The volume's directory.
        volume: PathBuf,
        /// The subfile in it.
        name: String,
    },
    /// A volume without the file that says which subfiles it has.
    #[error(
        "volume {}: bivouac-subfiles is not there, which says what else must be: the volume was not copied whole; copy it again, or go on with what is there after `bivouac fsck --offline --repair`",
        path.display()
    )]
    NoTable {
        /// The directory.
        path: PathBuf,
    },
    /// A block whose bytes are not those that were written.
    #[error(
        "{}: bytes {from} to {to} of its data are not what was written (checksum): they are not served; restore the file from a copy, or write all of them anew; `bivouac scrub` says what else is wrong",
        path.display()
    )]
    WrongBlock {
        /// The subfile.
        path: PathBuf,
        /// The first of its bytes, in the subfile's data.
        from: u64,
        /// Behind the last one.
        to: u64,
    },
    /// An earlier sync failed, and the bytes that it may have cost were not written anew.
    #[error(
        "{}: not on stable storage: an earlier sync failed, and what was written since the last one that succeeded is lost when the host goes down; {remedy}",
        path.display()
    )]
    NotSynced {
        /// File or directory to sync.
        path: PathBuf,
        /// Action that helps.
        remedy: &'static str,
    },
    /// A write that was overtaken by a cut of its file.
    #[error(
        "write is older than the last cut of the file (epoch now {current}); ask for the attributes and write again"
    )]
    StaleEpoch {
        /// The subfile's epoch.
        current: u32,
    },
    /// A change that came to its turn when its client had connected anew, or given up.
    #[error("request superseded: its client has connected anew since")]
    NotAwaited,
    /// A subfile that cannot be, as its file's layout is.
    #[error("inode {ino}: impossible layout: {cause}")]
    BadLayout {
        /// The file.
        ino: Ino,
        /// Contradiction in the layout.
        cause: String,
    },
    /// The volume cannot take this much more.
    #[error("volume {}: full, {needed} bytes do not fit into {free}", path.display())]
    NoSpace {
        /// The directory.
        path: PathBuf,
        /// Bytes that the operation needs.
        needed: u64,
        /// Bytes that are left.
        free: u64,
    },
    /// Names, attributes and what else the records of a node are may not take this much more memory.
    #[error(
        "names and attributes of this node: {needed} bytes do not fit into the {free} left of their memory (bound {max}); remove some, or give the formation more with `--names-memory`"
    )]
    NamesFull {
        /// Bytes that the operation needs.
        needed: u64,
        /// Bytes that are left.
        free: u64,
        /// Size of the space for them, in bytes.
        max: u64,
    },
    /// The partition may not take this much more of the volume.
    #[error(
        "{partition} on volume {}: {needed} bytes do not fit into the {free} that its capacity leaves; remove files, or raise it with `bivouac partition set`",
        path.display()
    )]
    Quota {
        /// The partition.
        partition: PartitionId,
        /// The volume's directory.
        path: PathBuf,
        /// Bytes that the operation needs.
        needed: u64,
        /// Bytes that are left.
        free: u64,
    },
    /// An offset or length beyond what a file or record can have.
    #[error("{what} is too large: {len} bytes, at most {max}")]
    TooLarge {
        /// The thing that is too large.
        what: &'static str,
        /// Its length or end.
        len: u64,
        /// The limit.
        max: u64,
    },
    /// A slot that the store was not opened with, or that the transaction did not lock.
    #[error("slot {slot} is not {expected}")]
    BadSlot {
        /// The slot.
        slot: u16,
        /// The slots that are allowed.
        expected: &'static str,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// The file, and what was done with it.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

/// Result of this crate.
pub type StoreResult<T> = Result<T, StoreError>;

impl StoreError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> StoreError {
        let what = what.into();
        move |source| StoreError::Io { what, source }
    }

    /// Returns whether there may be room once something else is removed: by the volume's capacity, by what its file
    /// system has, or by a quota there.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self.errno(), Errno::ENOSPC | Errno::EDQUOT)
    }

    /// Returns the error number for the program that asked.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            StoreError::Missing { .. } => Errno::ENOENT,
            StoreError::NotADirectory { .. } => Errno::ENOTDIR,
            StoreError::Alien { .. } => Errno::ENOTEMPTY,
            StoreError::WrongFormation { .. } | StoreError::WrongNode { .. } => Errno::EEXIST,
            StoreError::NewerFormat { .. } | StoreError::OlderFormat { .. } => Errno::EOPNOTSUPP,
            StoreError::InUse { .. } => Errno::EBUSY,
            StoreError::NoVolume { .. } => Errno::ENXIO,
            StoreError::BadIdentity { .. }
            | StoreError::Corrupt { .. }
            | StoreError::LostSubfile { .. }
            | StoreError::NoTable { .. }
            | StoreError::WrongBlock { .. }
            | StoreError::NotSynced { .. }
            | StoreError::NotAwaited => Errno::EIO,
            StoreError::StaleEpoch { .. } => Errno::ESTALE,
            StoreError::NoSpace { .. } | StoreError::NamesFull { .. } => Errno::ENOSPC,
            StoreError::Quota { .. } => Errno::EDQUOT,
            StoreError::TooLarge { .. } => Errno::EFBIG,
            StoreError::BadSlot { .. } | StoreError::BadLayout { .. } => Errno::EINVAL,
            StoreError::NotWritable { source, .. } | StoreError::Io { source, .. } => {
                source.raw_os_error().map_or(Errno::EIO, Errno::from_code)
            }
        }
    }
}

impl From<StoreError> for FsError {
    fn from(error: StoreError) -> FsError {
        FsError::with(error.errno(), error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_object_cause_and_remedy() {
        let error = StoreError::Missing { path: "/scratch/x".into() };
        assert_eq!(error.to_string(), "volume /scratch/x: no such directory; create it or name another");
        let error = StoreError::NoSpace { path: "/v".into(), needed: 10, free: 3 };
        let fs: FsError = error.into();
        assert_eq!(fs.errno(), Errno::ENOSPC);
        assert_eq!(fs.detail(), Some("volume /v: full, 10 bytes do not fit into 3"));
    }

    #[test]
    fn the_system_s_errno_is_kept() {
        let source = io::Error::from_raw_os_error(Errno::EROFS.code());
        assert_eq!(StoreError::io("log: append")(source).errno(), Errno::EROFS);
        let source = io::Error::other("no number");
        assert_eq!(StoreError::io("log: append")(source).errno(), Errno::EIO);
    }
}
