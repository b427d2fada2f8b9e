//! What can go wrong at site storage.

use bivouac_types::{Errno, FsError};

/// What kind of failure it is; decides what is done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// There is no such file or directory.
    NotFound,
    /// There is one already, and nothing was overwritten.
    Exists,
    /// Permission denied.
    Denied,
    /// No room, or no more quota.
    Full,
    /// The storage takes no changes.
    ReadOnly,
    /// The storage takes no name as long as this, or none of this form.
    BadName,
    /// The file is not what it was when it was last looked at.
    Changed,
    /// Something in the way is a directory, or is none.
    WrongKind,
    /// The directory is not empty.
    NotEmpty,
    /// The storage does not answer, or is not where it was.
    Lost,
    /// The storage cannot hold this.
    Unsupported,
    /// Anything else.
    Other,
}

impl Cause {
    /// Whether the same may succeed later without anybody doing anything about this file.
    #[must_use]
    pub fn may_pass(self) -> bool {
        matches!(self, Cause::Full | Cause::ReadOnly | Cause::Lost | Cause::Other)
    }

    /// The errno that a program sees.
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
            Errno::ESTALE | Errno::ETIMEDOUT | Errno::ENOTCONN | Errno::EIO => Cause::Lost,
            Errno::EOPNOTSUPP => Cause::Unsupported,
            _ => Cause::Other,
        }
    }
}

/// A failure of site storage: the kind, and a sentence with object and cause.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct SourceError {
    cause: Cause,
    text: String,
}

/// Result of an operation on site storage.
pub type SourceResult<T> = Result<T, SourceError>;

impl SourceError {
    /// A failure with a sentence.
    #[must_use]
    pub fn new(cause: Cause, text: impl Into<String>) -> SourceError {
        SourceError { cause, text: text.into() }
    }

    /// The failure of a system call on `object`.
    pub(crate) fn system(object: &str, error: rustix::io::Errno) -> SourceError {
        let cause = Cause::of(Errno::from_code(error.raw_os_error()));
        SourceError { cause, text: format!("{object}: {error}") }
    }

    /// A file that is not what it was.
    pub(crate) fn changed(object: &str) -> SourceError {
        SourceError::new(Cause::Changed, format!("{object}: changed at the source meanwhile"))
    }

    /// The kind.
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
