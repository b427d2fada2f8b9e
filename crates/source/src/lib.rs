//! Site storage: the directory or object store behind a partition.
//!
//! - [`Source`]: the seam. [`PosixSource`] is a directory tree of any mounted file system, [`S3Source`] objects of a
//!   store that speaks S3; tests and careful users put a [`LimitedSource`] around it, tests a [`FailingSource`].
//!   [`conformance`] is what all must pass.
//! - A file is written in pieces beside its target and takes its place as a whole; it is read only as long as it
//!   looks as it did ([`Version`]).
//!
//! This crate names files of users, below the one directory that it was given, and never follows a symbolic link.

pub mod conformance;
mod error;
mod failing;
mod limited;
mod model;
mod parallel;
mod posix;
mod read_only;
mod s3;
mod source;

pub use error::{Cause, SourceError, SourceResult};
pub use failing::FailingSource;
pub use limited::LimitedSource;
pub use model::{
    Attrs, CachedFd, Entry, Listing, Meta, Piece, Precondition, PutOutcome, Upload, Version, unique_name,
};
pub use parallel::for_each_parallel;
pub use posix::{PosixSource, TEMPORARY, plan_beside};
pub use read_only::ReadOnlySource;
pub use s3::{Environment, S3Location, S3Source, trusted_roots};
pub use source::{Source, check_path, is_time_kept, join_path, split_path};
