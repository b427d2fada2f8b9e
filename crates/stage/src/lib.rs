//! Verified copies of trees: the target is read back and compared with what was read at the source.
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
//! directories, named pipes and `user.` attributes; the owner too, where root copies. Directories that existed at the
//! target get the times of the source; their mode, owner and attributes stay as they were. A `SRC` that is a symbolic
//! link is followed; one of a formation only as far as it stays there, else it is copied as the links below it are.
//!
//! Layers, from the lowest; a module uses those of its own line and of the lines above it:
//! - names and bytes: `escape`, `paths`, `args`, `select`, `blocks`, `rate_limit`, `queue`, `temporary_tag`
//! - files on paths without links: `nofollow`, `mount_views`; what an object is: `meta`, `manifest_line`; what is told:
//!   `summary`,
//!   `error`, `progress`
//! - what of a source is copied: `options`, `baseline`, `scan`
//! - where copies are made: `temporary`, `put_ioctl`, `target`; what is written down: `journal`
//! - whether it fits: `space_check`; one file: `small_file`, `large_file`; files together: `sync_group`
//! - the workers: `engine`, `resumed_files`
//! - `tree`: a tree
//! - jobs and archives: `jobs`, which resolves paths of the formation (`resolve`), and `archive`
//!
//! # Digest
//! ```text
//! file digest    blake3(the file), as `b3sum` prints it; blocks of 4 MiB are subtrees of it
//! tree digest    blake3(per entry, by name: kind: u8 ‖ path length: u64 LE ‖ path ‖ content: 32 bytes)
//! ```
//! Kinds are 0 directory, 1 file or further name of one (content: file digest), 2 symbolic link (content:
//! blake3(target)), 3 named pipe.

pub mod archive;
mod args;
mod baseline;
mod blocks;
mod engine;
mod error;
mod escape;
pub mod jobs;
mod journal;
mod large_file;
mod manifest_line;
mod meta;
mod mount_views;
mod nofollow;
mod options;
mod paths;
pub mod periodic;
mod progress;
mod put_ioctl;
mod queue;
mod rate_limit;
mod resolve;
mod resumed_files;
mod scan;
mod select;
mod small_file;
mod space_check;
mod summary;
mod sync_group;
mod target;
mod temporary;
mod temporary_tag;
mod tree;

pub use args::{Transfer, parse_in, parse_out, refuse_url};
pub use baseline::Baseline;
pub use error::{Cause, Failure, StageError};
pub use escape::escape;
pub use manifest_line::{Line, LineKind, ObjectOutcome};
pub use meta::{InodeVersion, UnixTime};
pub use mount_views::MountViews;
pub use nofollow::remove_tree;
pub use options::{CopyOptions, FormationSide};
pub use progress::{NoProgress, Progress, RestartedFile};
pub use rate_limit::Limiter;
pub use select::PathFilter;
pub use summary::{Skipped, Summary, Totals};
pub use tree::copy_tree;
