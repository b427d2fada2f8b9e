//! Attributes that `stat` shows, and changes of them.

use crate::{Contract, Errno, FsError, FsResult, Ino, Layout, Timestamp};

/// Type bits of a mode.
pub mod mode {
    /// Mask of the type bits.
    pub const TYPE: u32 = 0o170_000;
    /// Socket.
    pub const SOCKET: u32 = 0o140_000;
    /// Symbolic link.
    pub const LINK: u32 = 0o120_000;
    /// Regular file.
    pub const FILE: u32 = 0o100_000;
    /// Block device.
    pub const BLOCK: u32 = 0o060_000;
    /// Directory.
    pub const DIR: u32 = 0o040_000;
    /// Character device.
    pub const CHAR: u32 = 0o020_000;
    /// Named pipe.
    pub const FIFO: u32 = 0o010_000;
    /// Set-user-id bit.
    pub const SETUID: u32 = 0o4000;
    /// Set-group-id bit.
    pub const SETGID: u32 = 0o2000;
    /// Group-execute bit.
    pub const XGRP: u32 = 0o0010;
    /// All execute bits.
    pub const EXECUTE: u32 = 0o0111;
    /// Permission bits with set-id and sticky bits.
    pub const PERM: u32 = 0o7777;

    /// Returns true if the type bits are one of the seven kinds of file.
    #[must_use]
    pub fn has_known_type(mode: u32) -> bool {
        matches!(mode & TYPE, SOCKET | LINK | FILE | BLOCK | DIR | CHAR | FIFO)
    }
}

/// Attributes of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Type and permission bits.
    pub mode: u32,
    /// Number of names; for a directory 2 plus its subdirectories.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u32,
    /// Size in bytes; for a directory its number of entries.
    pub size: u64,
    /// Last access; set explicitly or at creation only.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
    /// Raised by every cut of the file; a write that knows an older one is refused. Of a directory: 0 as long as all
    /// of its entries are at its home, 1 when they are spread over all nodes.
    pub epoch: u32,
    /// Layout of a regular file; for a directory the default of new files.
    pub layout: Layout,
    /// Bytes below the size of a regular file that occupied nothing when they were last counted.
    pub holes: u64,
    /// Raised by every change of a regular file's content, with [`BEING_WRITTEN`] while that is not known to be the
    /// last.
    pub data_version: u64,
    /// Contract between readers and writers; `None` leaves it to the partition. For a directory, the contract of what
    /// is made in it.
    pub contract: Option<Contract>,
}

/// Set in a data version that is no validator: a client may write without telling the home of each write. Two answers
/// with it may be of different content, though all else is the same. Never in a record.
pub const BEING_WRITTEN: u64 = 1 << 63;

impl Attr {
    /// Creates attributes of an inode that is made at `now`: root's, empty, with one name, or as a directory has them
    /// without subdirectories.
    #[must_use]
    pub const fn new(ino: Ino, mode: u32, layout: Layout, now: Timestamp) -> Attr {
        Attr {
            ino,
            mode,
            nlink: if mode & mode::TYPE == mode::DIR { 2 } else { 1 },
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            atime: now,
            mtime: now,
            ctime: now,
            epoch: 0,
            layout,
            holes: 0,
            data_version: 0,
            contract: None,
        }
    }

    /// Returns true for a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.mode & mode::TYPE == mode::DIR
    }

    /// Returns true for a directory whose entries are spread over all nodes.
    #[must_use]
    pub fn is_spread(&self) -> bool {
        self.is_dir() && self.epoch != 0
    }

    /// Returns true for a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.mode & mode::TYPE == mode::FILE
    }

    /// Returns whether this is a laminated file, whose content does not change.
    #[must_use]
    pub fn is_laminated(&self) -> bool {
        self.contract == Some(Contract::Laminated)
    }

    /// Refuses a change of the content of a laminated file.
    ///
    /// # Errors
    /// `EROFS`.
    pub fn check_changeable(&self) -> FsResult<()> {
        check_changeable(self.ino, self.contract)
    }

    /// Returns true if the data version is not a validator; see [`BEING_WRITTEN`].
    #[must_use]
    pub fn is_being_written(&self) -> bool {
        self.data_version & BEING_WRITTEN != 0
    }

    /// Raises the data version, as the content changes.
    pub fn raise_data_version(&mut self) {
        // The mark is no part of the count: it is of the moment, and in no record.
        let version = (self.data_version & !BEING_WRITTEN) + 1;
        self.data_version = version | (self.data_version & BEING_WRITTEN);
    }

    /// Blocks of 512 bytes that the size needs, without the holes that are known.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.size.saturating_sub(self.holes).div_ceil(512)
    }
}

/// Refuses a change of the content of a file that has this contract of its own, if it is laminated.
///
/// # Errors
/// `EROFS`.
pub fn check_changeable(ino: Ino, contract: Option<Contract>) -> FsResult<()> {
    if contract != Some(Contract::Laminated) {
        return Ok(());
    }
    let text = format!(
        "inode {ino} is laminated, its content does not change; `bivouac laminate --undo PATH` makes it writable again"
    );
    Err(FsError::with(Errno::EROFS, text))
}

/// A condition of a rename or an unlink: the file that the name that is taken over or removed must lead to, and the
/// content that the file must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedFile {
    /// The file.
    pub ino: Ino,
    /// Its data version; `None` for any.
    pub data_version: Option<u64>,
}

impl ExpectedFile {
    /// Returns true if a file is the expected one. A file that is being written is never known to have the expected
    /// content.
    #[must_use]
    pub fn is_met_by(&self, attr: &Attr) -> bool {
        self.ino == attr.ino
            && self
                .data_version
                .is_none_or(|version| version == attr.data_version && !attr.is_being_written())
    }
}

/// A time to set: the home's clock or a given one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time at the inode's home when the change is made.
    Now,
    /// This time.
    At(Timestamp),
}

/// Changes to an inode's attributes; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits; type bits are ignored.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes: cuts or extends.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of content.
    pub mtime: Option<SetTime>,
    /// Last change of attributes; the time of the change otherwise.
    pub ctime: Option<Timestamp>,
    /// Drop set-user-id, and set-group-id of a group-executable file.
    pub kill_suid: bool,
}

/// Result of `statfs` for a formation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Unit of the block counts, in bytes.
    pub block_size: u32,
    /// Capacity in blocks.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Inodes in use.
    pub files: u64,
    /// Inodes that can be made, about.
    pub files_free: u64,
}
