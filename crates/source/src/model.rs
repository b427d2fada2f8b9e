//! What site storage is said to hold: names, attributes, versions, uploads.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bivouac_types::{Timestamp, mode};
use parking_lot::Mutex;

use crate::error::Cause;
use crate::{SourceError, SourceResult};

/// How a file looked when it was last seen. Two looks that agree are taken for the same content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Version {
    /// Size in bytes.
    pub size: u64,
    /// Time of the last change of content; zero where the tag says it better.
    pub mtime: Timestamp,
    /// What else tells contents apart: an object's `ETag`, a file's inode number.
    pub tag: String,
}

/// Attributes that a source keeps for a file, as far as it can.
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
    /// Type bits.
    pub kind: u32,
    /// Its attributes.
    pub attrs: Attrs,
    /// How it looks now.
    pub version: Version,
    /// Names that it has; more than one of a file means hard links.
    pub links: u64,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Device number of a device node.
    pub rdev: u64,
}

impl Meta {
    /// Whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind == mode::DIR
    }

    /// Whether it is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.kind == mode::FILE
    }
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: Vec<u8>,
    /// What it is.
    pub meta: Meta,
}

/// A file in the making, beside its target. Anybody who has this may write parts of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upload {
    /// Path that it is to have.
    pub path: Vec<u8>,
    /// Size that it is to have, in bytes.
    pub size: u64,
    /// How the source names it until then.
    pub token: String,
    /// What tells that a file came of it, see [`Source::is_made_by`](crate::Source::is_made_by); empty where that is
    /// known only when it has been started.
    pub tag: String,
    /// What the source keeps open for it as long as this lives.
    pub opened: Opened,
}

/// What nothing else has been called yet.
///
/// # Errors
/// When the system has no random numbers.
pub(crate) fn unique_name() -> SourceResult<String> {
    let no_numbers = |error| SourceError::new(Cause::Other, format!("random numbers: {error}"));
    let numbers = [getrandom::u64().map_err(no_numbers)?, getrandom::u64().map_err(no_numbers)?];
    Ok(format!("{:016x}{:016x}", numbers[0], numbers[1]))
}

/// A file that is opened once for all that is done with an upload: on some storage that costs as much as writing. It says
/// nothing of the upload, so all are equal.
#[derive(Clone, Default)]
pub struct Opened(Arc<Mutex<Option<Arc<OwnedFd>>>>);

impl Opened {
    /// One that is open already.
    pub(crate) fn holding(file: OwnedFd) -> Opened {
        Opened(Arc::new(Mutex::new(Some(Arc::new(file)))))
    }

    /// The file, opened by the first who asks while others wait.
    pub(crate) fn get<E>(&self, open: impl FnOnce() -> Result<OwnedFd, E>) -> Result<Arc<OwnedFd>, E> {
        let mut opened = self.0.lock();
        if let Some(file) = &*opened {
            return Ok(Arc::clone(file));
        }
        Ok(Arc::clone(opened.insert(Arc::new(open()?))))
    }

    /// It is thrown away.
    pub(crate) fn close(&self) {
        *self.0.lock() = None;
    }
}

impl PartialEq for Opened {
    fn eq(&self, _: &Opened) -> bool {
        true
    }
}

impl Eq for Opened {}

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Opened")
    }
}

/// A part of an upload that the source has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins.
    pub offset: u64,
    /// Its length.
    pub len: u64,
    /// What the source calls it, or a digest of it.
    pub tag: String,
}

/// What must be at the target for an upload to take its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Nothing.
    Absent,
    /// A file that still looks like this.
    Version(Version),
    /// Whatever it is, it is overwritten.
    Anything,
}

/// What came of an upload or change, and what the source could not keep of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// How it looks now.
    pub version: Version,
    /// Sentences, each with the name of what was not kept.
    pub lost: Vec<String>,
}
