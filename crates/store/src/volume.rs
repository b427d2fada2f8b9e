//! The seam between this crate and the files of a node: a directory that a node lends, with named
//! files in it. Real, in memory, and the decorators that tests put around either.

mod claim;
mod crash;
mod dir;
mod failing;
mod identity;
mod memory;
mod note;
mod places;
mod read_only;
pub(crate) mod subfile_table;
pub(crate) mod transfer;

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

pub use claim::{claim_existing, claim_existing_within, identity_of, remove_volume};
pub use crash::{CrashLoss, CrashVolume};
pub use dir::DirVolume;
pub use failing::{FailingVolume, Operation, OperationKind, VolumeFault};
pub use identity::{IDENTITY_NAME, VolumeIdentity};
pub use memory::MemVolume;
pub use note::REPLICA_DIR_PREFIX;
pub use note::{LIVES_NAME, NOTE_LEN_MAX, NOTE_NAME, read_lives, read_note, write_lives, write_note};
pub(crate) use note::{MIRROR_NOTE_NAME, MIRROR_NOTE_UNFINISHED_NAME, read_text, write_text};
pub use places::Places;
pub use read_only::ReadOnlyVolume;

use bivouac_types::Errno;

/// Medium of a volume's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VolumeKind {
    /// Main memory (tmpfs): outlives the daemon, not the host.
    Memory,
    /// A disk.
    Disk,
}

impl fmt::Display for VolumeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VolumeKind::Memory => "memory",
            VolumeKind::Disk => "disk",
        })
    }
}

/// Room on the file system that a volume is on, shared with everything else there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes altogether.
    pub total: u64,
    /// Bytes that this user may still take.
    pub free: u64,
}

/// Size of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileStat {
    /// Length in bytes, holes included.
    pub len: u64,
    /// Bytes that it occupies.
    pub allocated: u64,
}

/// One name in a directory of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The last component of the name.
    pub name: String,
    /// True if it is a directory.
    pub is_dir: bool,
    /// Its size; nothing for a directory.
    pub stat: FileStat,
}

/// Mode of opening a file. All files are opened for reading and writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// It must exist.
    Existing,
    /// It is made if it does not exist.
    Create,
    /// It must not exist, and is made.
    CreateNew,
}

/// A directory of named files that a node lends. Names are `file` or `directory/file`.
///
/// Errors are the system's: `ENOENT`, `EEXIST`, `ENOTEMPTY`, `ENOSPC`, … as of the system calls of the same
/// names; a name with another shape is `EINVAL`. [`crate::conformance::volume`] is the specification.
pub trait Volume: Send + Sync + fmt::Debug {
    /// Returns its path, for messages and status.
    fn path(&self) -> &Path;

    /// Returns the medium of its bytes.
    fn kind(&self) -> VolumeKind;

    /// Returns the room on the file system below.
    ///
    /// # Errors
    /// The system's.
    fn space(&self) -> io::Result<Space>;

    /// Opens a file.
    ///
    /// # Errors
    /// `ENOENT` (also when its directory does not exist), `EEXIST`, `EISDIR`, and the system's.
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn VolumeFile>>;

    /// Makes a file that must not exist, with this content. After an error it may be there, with a part of that.
    ///
    /// # Errors
    /// As [`Volume::open`] and [`VolumeFile::write_vectored_at`].
    fn create_filled(&self, name: &str, content: &[u8]) -> io::Result<Arc<dyn VolumeFile>> {
        let file = self.open(name, OpenMode::CreateNew)?;
        transfer::write_all_at(&*file, &[IoSlice::new(content)], 0)?;
        Ok(file)
    }

    /// Gives a file another name, replacing what has that name.
    ///
    /// # Errors
    /// `ENOENT`, and the system's.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file. Handles that are open keep working.
    ///
    /// # Errors
    /// `ENOENT`, and the system's.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes a directory (one level only).
    ///
    /// # Errors
    /// `EEXIST`, and the system's.
    fn make_dir(&self, name: &str) -> io::Result<()>;

    /// Returns the entries of a directory, in no order; the empty name is the volume itself.
    ///
    /// # Errors
    /// `ENOENT`, and the system's.
    fn list(&self, dir: &str) -> io::Result<Vec<Entry>>;

    /// Makes the names in a directory outlive the host.
    ///
    /// # Errors
    /// `ENOENT`, and the system's.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;
}

/// An open file of a [`Volume`].
#[allow(clippy::len_without_is_empty, reason = "a file's length is a system call, emptiness is no question")]
pub trait VolumeFile: Send + Sync + fmt::Debug {
    /// Reads from `offset` on; returns the number of bytes, less than wanted at the end of the file
    /// or when the system chose so, 0 only at the end. Holes read as zeros.
    ///
    /// # Errors
    /// The system's.
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize>;

    /// Writes from `offset` on and returns the number of bytes written, which may be less than given.
    ///
    /// # Errors
    /// The system's.
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize>;

    /// Writes all of some bytes: now, or, of a mirrored volume and for a caller that may leave that to the mirror,
    /// before anybody is answered.
    ///
    /// # Errors
    /// The system's; then none of it was written, or some.
    fn write_deferred(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        transfer::write_all_at(self, &[IoSlice::new(bytes)], offset)
    }

    /// Writes all of some places, counted from `base` on, of which each page from the first to the last has a part.
    ///
    /// # Errors
    /// The system's; then any of them may have been written, and pages between them may have bytes of the volume.
    fn write_places(&self, base: u64, places: &Places<'_>) -> io::Result<()> {
        transfer::write_each(self, base, places)
    }

    /// Cuts or extends (by a hole).
    ///
    /// # Errors
    /// The system's.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Returns the length and allocated bytes.
    ///
    /// # Errors
    /// The system's.
    fn stat(&self) -> io::Result<FileStat>;

    /// Returns the first stretch of data at or behind `from`, beginning at `from` at the earliest.
    ///
    /// # Errors
    /// The system's.
    fn next_data(&self, from: u64) -> io::Result<Option<Range<u64>>>;

    /// Gives every page of a range bytes of the volume, so that writes into it need no more of them. Content and
    /// length stay; what holds no data is still no data for [`VolumeFile::next_data`], or zeros. An
    /// error may leave a part with bytes.
    ///
    /// # Errors
    /// `ENOSPC`, `EOPNOTSUPP` where the file system cannot, and the system's.
    fn allocate(&self, range: Range<u64>) -> io::Result<()>;

    /// Makes the file at least this long, and keeps what is allocated behind its end. Who needs bytes of the volume for
    /// its last byte allocates them before.
    ///
    /// # Errors
    /// As [`VolumeFile::allocate`].
    fn grow(&self, len: u64) -> io::Result<()>;

    /// Makes a range zeros and gives back its whole pages. The length stays.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the file system cannot, and the system's.
    fn punch(&self, range: Range<u64>) -> io::Result<()>;

    /// Makes content and length outlive the host.
    ///
    /// # Errors
    /// The system's.
    fn sync(&self) -> io::Result<()>;

    /// Returns the descriptor, when there is one.
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Checks that a name is `file` or `directory/file`, and stays within the volume.
pub(crate) fn check_name(name: &str) -> io::Result<()> {
    let good = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    let mut parts = name.split('/');
    let fits = parts.by_ref().take(2).all(good) && parts.next().is_none();
    if fits { Ok(()) } else { Err(system_error(Errno::EINVAL)) }
}

/// Returns the directory part of a name; empty for the volume itself.
fn parent_of(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(parent, _)| parent)
}

pub(crate) fn system_error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.code())
}
