//! Copies trees in and out, verified: what a reader of the target gets is compared with what was read at the source.
//!
//! [`copy_tree`] copies a file or directory from one plain path to another; usually one of the two is
//! under the mount of a formation. What it promises:
//! - Nothing is deleted, neither at the source nor at the target. A file becomes visible under its name only
//!   when it is complete, on stable storage, and has been read back and compared (`.NAME.bivouac-…` before).
//! - A directory that does not exist at the target appears as a whole; one that exists is merged, file by file.
//! - A source file that changes while it is copied is an error, never a mixture.
//! - One file's failure does not stop the others: what is complete is put in place and [`StageError::Incomplete`]
//!   lists the rest. When cancelled, everything temporary is removed.
//!
//! Kept are contents with their holes, mode, modification time, symbolic and hard links, empty
//! directories, named pipes and `user.` attributes; the owner too, where root copies. Attributes and owners of
//! directories that existed at the target stay as they were. A `SRC` that is a symbolic link is followed;
//! one of a formation only as far as it stays there, else it is copied as the links below it are.
//!
//! # Digest
//! ```text
//! block digest   blake3(4 MiB of the file, the last block shorter)
//! file digest    blake3(size: u64 LE ‖ block digests in order)
//! tree digest    blake3(per entry, by name: kind: u8 ‖ path length: u64 LE ‖ path ‖ content: 32 bytes)
//! ```
//! Kinds are 0 directory, 1 file (content: file digest), 2 symbolic link (content: blake3(target)), 3 named pipe.

pub mod archive;
mod args;
mod baseline;
mod beneath;
mod blocks;
mod compare;
mod draft;
mod engine;
mod error;
mod group;
mod job;
pub mod jobs;
mod journal;
mod limit;
mod line;
mod meta;
mod put;
mod queue;
mod report;
mod room;
mod scan;
mod select;
mod small;
mod straight;
mod tag;
mod target;
mod tree;
mod views;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use args::{Transfer, parse_in, parse_out, refuse_url};
pub use baseline::Baseline;
pub use error::{Cause, Failure, StageError};
pub use limit::Limiter;
pub use line::{Line, LineKind, State, escape};
pub use meta::{Mark, Time};
pub use report::{Anew, Progress, Silent, Skipped, Summary, Totals};
pub use select::Select;
pub use straight::remove_tree;
pub use tree::copy_tree;
pub use views::Views;

/// How to copy.
#[derive(Clone, Debug)]
pub struct CopyOptions {
    /// Threads that copy; 0 means one per processor, but 4 to 32: most of them wait for storage.
    pub jobs: usize,
    /// Whether to read back what was written and compare it with what was read at the source; and what was copied in and not
    /// changed since, with what it was then.
    pub verify: bool,
    /// Whether a file may replace one that exists at the target. Without it that is a failure of the file.
    pub overwrite: bool,
    /// Which side is in a formation.
    pub side: Side,
    /// Whether what certainly does not fit is refused before anything is written.
    pub checks_room: bool,
    /// What of the source is wanted.
    pub select: Select,
    /// Bytes per second that may be moved; shared by all copies that have the same.
    pub limit: Option<Arc<Limiter>>,
    /// The ways to the formation.
    pub views: Views,
    /// Set it, from any thread or signal handler, to stop.
    pub cancel: Arc<AtomicBool>,
}

/// Which side of a copy is in a formation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// None.
    Neither,
    /// The target: what the formation has acknowledged need not be written to stable storage.
    Target,
    /// The source.
    Source,
}

impl Default for CopyOptions {
    fn default() -> CopyOptions {
        CopyOptions {
            jobs: 0,
            verify: true,
            overwrite: true,
            side: Side::Neither,
            checks_room: false,
            select: Select::default(),
            limit: None,
            views: Views::default(),
            cancel: Arc::default(),
        }
    }
}

impl CopyOptions {
    fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
            || self.limit.as_ref().is_some_and(|limit| limit.ended().is_some())
    }

    /// Waits until so many bytes may be moved.
    fn wait_for(&self, bytes: u64) {
        if let Some(limit) = &self.limit {
            limit.take(bytes, &self.cancel);
        }
    }

    fn threads(&self) -> usize {
        let processors = || std::thread::available_parallelism().map_or(4, usize::from);
        if self.jobs == 0 { processors().clamp(4, 32) } else { self.jobs }
    }
}
