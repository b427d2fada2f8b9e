//! What can go wrong, in the user's words.

use std::fmt;

/// What kind of failure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// What was asked for makes no sense.
    Usage,
    /// It is not there.
    NotFound,
    /// Something is there already.
    Exists,
    /// It changed while it was looked at.
    Changed,
    /// It is not what it should be: damaged, or made to harm.
    Damaged,
    /// It may not be done.
    Denied,
    /// Who has it does not answer.
    Unreachable,
    /// Somebody interrupted it.
    Interrupted,
    /// The system said something else.
    Other,
}

/// A failure: what it is about, why, and what can be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishError {
    cause: Cause,
    text: String,
}

/// What may fail.
pub type PublishResult<T> = Result<T, PublishError>;

impl PublishError {
    /// A failure of a kind.
    #[must_use]
    pub fn new(cause: Cause, text: impl fmt::Display) -> PublishError {
        PublishError { cause, text: text.to_string() }
    }

    /// What the system said of a thing.
    pub fn system(object: impl fmt::Display, error: &std::io::Error) -> PublishError {
        let cause = match error.kind() {
            std::io::ErrorKind::NotFound => Cause::NotFound,
            std::io::ErrorKind::AlreadyExists => Cause::Exists,
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => Cause::Denied,
            _ => Cause::Other,
        };
        PublishError::new(cause, format_args!("{object}: {error}"))
    }

    /// Its kind.
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
            Source::Changed => Cause::Exists,
            Source::Denied | Source::ReadOnly => Cause::Denied,
            Source::Lost => Cause::Unreachable,
            _ => Cause::Other,
        };
        PublishError::new(cause, error)
    }
}
