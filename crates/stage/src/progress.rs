//! Progress reports of a copy.

use std::path::Path;

use crate::args::Transfer;
use crate::error::StageError;
use crate::summary::{Summary, Totals};

/// Totals reported for a file whose copy starts again; to be subtracted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestartedFile {
    /// Bytes copied.
    pub copied: u64,
    /// Bytes copied by an earlier run.
    pub already: u64,
    /// Bytes compared.
    pub verified: u64,
}

/// Receiver of progress reports. Called by the worker threads, so implementations must be fast.
pub trait Progress: Sync {
    /// Reports that a transfer of a job starts.
    fn transfer(&self, _transfer: &Transfer) {}
    /// Reports that a transfer of a job has ended.
    fn transferred(&self, _transfer: &Transfer, _outcome: &Result<Summary, StageError>) {}
    /// Reports that the source has been scanned.
    fn found(&self, _totals: Totals) {}
    /// Reports that more bytes of files have been copied; holes count.
    fn copied(&self, _bytes: u64) {}
    /// Reports that files or bytes were found complete from an interrupted copy.
    fn already(&self, _totals: Totals) {}
    /// Reports that more bytes of files have been read back and compared.
    fn verified(&self, _bytes: u64) {}
    /// Reports that a file changed during its copy and is copied again: these totals are void.
    fn restarted(&self, _told: RestartedFile) {}
    /// Reports that a file is complete. The path is relative to the source; empty if the source is the file.
    fn file_done(&self, _path: &Path) {}
}

/// A receiver that ignores all reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {}
