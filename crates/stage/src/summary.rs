//! Totals of a copy.

use std::path::PathBuf;

/// Number and bytes of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Files; several names of one file count once.
    pub files: u64,
    /// Sum of the files' sizes, in bytes.
    pub bytes: u64,
}

impl Totals {
    /// Returns the sum.
    #[must_use]
    pub fn plus(self, other: Totals) -> Totals {
        Totals {
            files: self.files.saturating_add(other.files),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }
}

/// An object or attribute that cannot be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Path at the source.
    pub path: PathBuf,
    /// Its kind: `socket`, `device`, or the name of an unsupported attribute.
    pub what: String,
}

/// Summary of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Files.
    pub files: u64,
    /// Directories that were created.
    pub dirs: u64,
    /// Symbolic links.
    pub links: u64,
    /// Further names of files.
    pub hard_links: u64,
    /// Named pipes.
    pub fifos: u64,
    /// Sum of the files' sizes, in bytes (holes count).
    pub bytes: u64,
    /// Files that an interrupted copy had completed, and bytes that it had written, also of incomplete files.
    pub already: Totals,
    /// Files whose content was read back in this run and equals the source's.
    pub verified: u64,
    /// Objects that were omitted because they are unchanged.
    pub unchanged: u64,
    /// Paths below the source that were staged and no longer exist; the target keeps them.
    pub deleted: Vec<PathBuf>,
    /// Objects and attributes that cannot be copied.
    pub skipped: Vec<Skipped>,
    /// Digest of the copied tree: names, types and contents.
    pub digest: [u8; 32],
}
