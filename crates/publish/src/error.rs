//! Errors, in terms of the user.

use std::fmt;

/// Class of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The request is malformed.
    Usage,
    /// The object does not exist.
    NotFound,
    /// Something is there already.
    Exists,
    /// The object changed while it was read.
    Changed,
    /// The object is damaged or malicious.
    Damaged,
    /// Permission denied.
    Denied,
    /// No holder answers.
    Unreachable,
    /// Interrupted by the user.
    Interrupted,
    /// Any other failure.
    Other,
}

/// A failure: what it is about, why, and what can be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishError {
    cause: Cause,
    text: String,
}

/// Result of an operation.
pub type PublishResult<T> = Result<T, PublishError>;

impl PublishError {
    /// Creates a failure of a kind.
    #[must_use]
    pub fn new(cause: Cause, text: impl fmt::Display) -> PublishError {
        PublishError { cause, text: text.to_string() }
    }

    /// Creates the error of a system call.
    pub fn system(object: impl fmt::Display, error: &std::io::Error) -> PublishError {
        let cause = match error.kind() {
            std::io::ErrorKind::NotFound => Cause::NotFound,
            std::io::ErrorKind::AlreadyExists => Cause::Exists,
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => Cause::Denied,
            _ => Cause::Other,
        };
        PublishError::new(cause, format_args!("{object}: {error}"))
    }

    /// Returns its kind.
    #[must_use]
    pub fn cause(&self) -> Cause {
        self.cause
    }
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for PublishError {}

impl From<bivouac_source::SourceError> for PublishError {
    fn from(error: bivouac_source::SourceError) -> PublishError {
        use bivouac_source::Cause as Source;
        let cause = match error.cause() {
            Source::NotFound => Cause::NotFound,
            // Only creation has a precondition here: what it finds changed is that something is there.
            Source::Changed => Cause::Exists,
            Source::Denied | Source::ReadOnly => Cause::Denied,
            Source::Lost => Cause::Unreachable,
            _ => Cause::Other,
        };
        PublishError::new(cause, error)
    }
}
