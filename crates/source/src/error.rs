//! Errors of site storage.

use bivouac_types::{Errno, FsError};

/// The class of a failure. Callers decide by it whether to retry, report or give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The file or directory does not exist.
    NotFound,
    /// The target exists already; nothing was overwritten.
    Exists,
    /// Permission denied.
    Denied,
    /// No space is left, or a quota is exhausted.
    Full,
    /// The storage is mounted read-only.
    ReadOnly,
    /// The name is too long or malformed for this storage.
    BadName,
    /// The file has changed since it was last looked at.
    Changed,
    /// A path component is not a directory, or the object is a directory where a file is required.
    WrongKind,
    /// The directory is not empty.
    NotEmpty,
    /// The storage does not answer, or another file system is mounted in its place.
    Lost,
    /// The storage does not support the object or the operation.
    Unsupported,
    /// Any other failure.
    Other,
}

impl Cause {
    /// Returns the errno that an application sees.
    #[must_use]
    pub fn errno(self) -> Errno {
        match self {
            Cause::NotFound => Errno::ENOENT,
            Cause::Exists => Errno::EEXIST,
            Cause::Denied => Errno::EACCES,
            Cause::Full => Errno::ENOSPC,
            Cause::ReadOnly => Errno::EROFS,
            Cause::BadName => Errno::ENAMETOOLONG,
            Cause::Changed => Errno::ESTALE,
            Cause::WrongKind => Errno::ENOTDIR,
            Cause::NotEmpty => Errno::ENOTEMPTY,
            Cause::Lost | Cause::Other => Errno::EIO,
            Cause::Unsupported => Errno::EOPNOTSUPP,
        }
    }

    fn of(errno: Errno) -> Cause {
        match errno {
            Errno::ENOENT => Cause::NotFound,
            Errno::EEXIST => Cause::Exists,
            Errno::EACCES | Errno::EPERM => Cause::Denied,
            Errno::ENOSPC | Errno::EDQUOT => Cause::Full,
            Errno::EROFS => Cause::ReadOnly,
            Errno::ENAMETOOLONG => Cause::BadName,
            Errno::ENOTDIR | Errno::EISDIR | Errno::ELOOP => Cause::WrongKind,
            Errno::ENOTEMPTY => Cause::NotEmpty,
            // A file server that went away shows as any of these, and an `EIO` of a disk is worth another try.
            Errno::ESTALE | Errno::ETIMEDOUT | Errno::ENOTCONN | Errno::EIO => Cause::Lost,
            Errno::EOPNOTSUPP => Cause::Unsupported,
            _ => Cause::Other,
        }
    }
}

/// A failure of site storage: its cause, and a message with object and remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct SourceError {
    cause: Cause,
    text: String,
}

/// Result of an operation on site storage.
pub type SourceResult<T> = Result<T, SourceError>;

impl SourceError {
    /// Creates an error from a cause and a message.
    #[must_use]
    pub fn new(cause: Cause, text: impl Into<String>) -> SourceError {
        SourceError { cause, text: text.into() }
    }

    /// Creates the error of a system call on `object`.
    pub(crate) fn system(object: &str, error: rustix::io::Errno) -> SourceError {
        let cause = Cause::of(Errno::from_code(error.raw_os_error()));
        SourceError { cause, text: format!("{object}: {error}") }
    }

    /// Creates the error of a file that has changed since it was looked at.
    pub(crate) fn changed(object: &str) -> SourceError {
        SourceError::new(Cause::Changed, format!("{object}: changed at the source meanwhile"))
    }

    /// Returns the cause.
    #[must_use]
    pub fn cause(&self) -> Cause {
        self.cause
    }
}

impl From<SourceError> for FsError {
    fn from(error: SourceError) -> FsError {
        FsError::with(error.cause.errno(), error.text)
    }
}
