//! Site storage: what a partition stands in front of.
//!
//! - [`Source`]: the seam. [`PosixSource`] is a directory tree of any mounted file system, [`S3Source`] objects of a
//!   store that speaks S3; tests and careful users put a [`LimitedSource`] around it, tests a [`FailingSource`].
//!   [`conformance`] is what all must pass.
//! - A file is written in pieces beside its target and takes its place as a whole; it is read only as long as it
//!   looks as it did ([`Version`]).
//!
//! This crate names files of users, below the one directory that it was given, and never follows a symbolic link.

mod at_once;
pub mod conformance;
mod error;
mod failing;
mod limited;
mod model;
mod posix;
mod s3;
mod source;
mod unchanged;

pub use at_once::for_each_at_once;
pub use error::{Cause, SourceError, SourceResult};
pub use failing::FailingSource;
pub use limited::LimitedSource;
pub use model::{Attrs, Entry, Expect, Kept, Meta, Opened, Piece, Upload, Version};
pub use posix::{PosixSource, TEMPORARY};
pub use s3::{Environment, S3Place, S3Source, trusted_roots};
pub use source::{Source, check_path, join_path, split_path};
pub use unchanged::UnchangedSource;
