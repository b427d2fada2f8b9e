//! What a copy tells its caller, while it runs and afterwards.

use std::path::{Path, PathBuf};

use crate::{StageError, Transfer};

/// What was found at the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Files, further names of one file counted once.
    pub files: u64,
    /// Sum of the files' sizes, in bytes.
    pub bytes: u64,
}

impl Totals {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Totals) -> Totals {
        Totals {
            files: self.files.saturating_add(other.files),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }
}

/// What was told of a file whose copy is begun again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Anew {
    /// Bytes that were copied.
    pub copied: u64,
    /// Bytes that were copied before.
    pub already: u64,
    /// Bytes that were compared.
    pub verified: u64,
}

/// Hears how far a copy is. Called from the threads that copy, so calls should be short.
pub trait Progress: Sync {
    /// A job begins with one of its transfers.
    fn transfer(&self, _transfer: &Transfer) {}
    /// A job has ended one of its transfers.
    fn transferred(&self, _transfer: &Transfer, _outcome: &Result<Summary, StageError>) {}
    /// The source was looked through.
    fn found(&self, _totals: Totals) {}
    /// So many more bytes of files were copied (holes count).
    fn copied(&self, _bytes: u64) {}
    /// So much was copied before the copy was interrupted: a file, or bytes of one that was not complete.
    fn already(&self, _totals: Totals) {}
    /// So many more bytes of files were read back and compared.
    fn verified(&self, _bytes: u64) {}
    /// A file has changed while it was copied, and is copied anew: so much that was told of it counts no more.
    fn anew(&self, _told: Anew) {}
    /// A file is complete. The path is relative to the source; empty where the source is the file.
    fn file_done(&self, _path: &Path) {}
}

/// Progress for nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {}

/// Something that cannot be copied, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Path at the source.
    pub path: PathBuf,
    /// What it is: `socket`, `device`, or an attribute that the target does not take.
    pub what: String,
}

/// What was copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Files with their contents.
    pub files: u64,
    /// Directories that were made.
    pub dirs: u64,
    /// Symbolic links.
    pub links: u64,
    /// Further names of files.
    pub hard_links: u64,
    /// Named pipes.
    pub fifos: u64,
    /// Sum of the files' sizes, in bytes (holes count).
    pub bytes: u64,
    /// Of these files, those that an interrupted copy had completed before, and of these bytes those that it had written,
    /// also in files that were not complete.
    pub already: Totals,
    /// Of these files, those whose bytes were read back at the target, in this run, and are those of the source.
    pub verified: u64,
    /// Objects that were left out because they are as they were staged.
    pub unchanged: u64,
    /// Paths below the source that were staged and are not there any more; the target keeps them.
    pub deleted: Vec<PathBuf>,
    /// What was not copied because it cannot be.
    pub skipped: Vec<Skipped>,
    /// Digest of the tree as it was copied: names, kinds and contents.
    pub digest: [u8; 32],
}
