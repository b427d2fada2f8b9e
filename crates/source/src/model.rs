//! Data types of site storage: names, attributes, versions, uploads.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bivouac_types::{Timestamp, mode};
use parking_lot::Mutex;

use crate::error::Cause;
use crate::{SourceError, SourceResult};

/// Identity of a file's content, as far as the storage can tell. Equal versions are taken for equal content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Version {
    /// Size in bytes.
    pub size: u64,
    /// Time of the last change of content; zero where the tag is more precise.
    pub mtime: Timestamp,
    /// Distinguishes contents of equal size and time: an object's `ETag`, a file's inode number.
    pub tag: String,
}

/// Attributes that a source stores with a file, as far as it supports them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attrs {
    /// Permission bits with set-id and sticky bits.
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last access.
    pub atime: Timestamp,
    /// Extended attributes of users: name with its `user.`, value.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// One file, directory or link at the source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// File type bits of `st_mode`.
    pub kind: u32,
    /// Its attributes.
    pub attrs: Attrs,
    /// Current version.
    pub version: Version,
    /// Number of hard links.
    pub links: u64,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Device number of a device node.
    pub rdev: u64,
    /// True if it may have extended attributes that could not be read; none are in `attrs` then.
    pub hides_xattrs: bool,
}

impl Meta {
    /// Returns whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind == mode::DIR
    }

    /// Returns whether it is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.kind == mode::FILE
    }
}

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: Vec<u8>,
    /// Its metadata.
    pub meta: Meta,
}

/// A directory with all of its entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The directory itself.
    pub dir: Meta,
    /// Its entries, in no particular order.
    pub entries: Vec<Entry>,
    /// Digest of the above; 0 where the storage has none.
    pub digest: u128,
}

/// A file that is being written beside its target. Any process that has this record may write pieces of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upload {
    /// Target path.
    pub path: Vec<u8>,
    /// Final size, in bytes.
    pub size: u64,
    /// Name of the temporary file, or upload id of the store.
    pub token: String,
    /// Identifies the file that results, see [`Source::is_made_by`](crate::Source::is_made_by); empty while it is not
    /// known before [`Source::start`](crate::Source::start).
    pub tag: String,
    /// Descriptor that the source keeps open for the upload.
    pub opened: CachedFd,
}

/// Returns a name of 128 random bits.
///
/// # Errors
/// When the system has no random numbers.
pub fn unique_name() -> SourceResult<String> {
    let no_numbers = |error| SourceError::new(Cause::Other, format!("random numbers: {error}"));
    let numbers = [getrandom::u64().map_err(no_numbers)?, getrandom::u64().map_err(no_numbers)?];
    Ok(format!("{:016x}{:016x}", numbers[0], numbers[1]))
}

/// A descriptor that is opened once for all operations on an upload: on some storage an open costs as much as a write.
/// It carries no information about the upload, so all values are equal.
#[derive(Clone, Default)]
pub struct CachedFd(Arc<Mutex<Option<Arc<OwnedFd>>>>);

impl CachedFd {
    /// Wraps an open descriptor.
    pub(crate) fn holding(file: OwnedFd) -> CachedFd {
        CachedFd(Arc::new(Mutex::new(Some(Arc::new(file)))))
    }

    /// Returns the descriptor; the first caller opens it while others wait.
    pub(crate) fn get<E>(&self, open: impl FnOnce() -> Result<OwnedFd, E>) -> Result<Arc<OwnedFd>, E> {
        let mut opened = self.0.lock();
        if let Some(file) = &*opened {
            return Ok(Arc::clone(file));
        }
        Ok(Arc::clone(opened.insert(Arc::new(open()?))))
    }

    /// Closes the descriptor.
    pub(crate) fn close(&self) {
        *self.0.lock() = None;
    }
}

impl PartialEq for CachedFd {
    // `Upload` derives equality, and two records of one upload are equal whether or not the file is open.
    fn eq(&self, _: &CachedFd) -> bool {
        true
    }
}

impl Eq for CachedFd {}

impl std::fmt::Debug for CachedFd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CachedFd")
    }
}

/// A part of an upload that is stored at the source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length, in bytes.
    pub len: u64,
    /// The store's `ETag` of the part, or a digest of its content.
    pub tag: String,
}

/// Precondition on the target of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// The target does not exist.
    Absent,
    /// The target still has this version.
    Version(Version),
    /// No condition: the target is overwritten.
    Anything,
}

/// Result of a write: the new version, and attributes that the source cannot store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PutOutcome {
    /// Version after the write.
    pub version: Version,
    /// Messages, each with the name of an attribute that was not stored.
    pub lost: Vec<String>,
}
