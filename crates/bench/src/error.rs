//! Errors of measurements.

use std::fmt::{self, Display};
use std::io;

/// Result of this crate.
pub type BenchResult<T> = Result<T, BenchError>;

/// Class of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The request makes no sense.
    Usage,
    /// The system or a measured program refused.
    Refused,
    /// Somebody asked to end.
    Interrupted,
}

/// A failure: object, cause, remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BenchError {
    kind: Kind,
    text: String,
}

impl BenchError {
    /// Arguments that make no sense.
    #[must_use]
    pub fn usage(object: impl Display, cause: impl Display, remedy: impl Display) -> BenchError {
        BenchError { kind: Kind::Usage, text: format!("{object}: {cause}; {remedy}") }
    }

    /// Something that was refused.
    #[must_use]
    pub fn refused(object: impl Display, cause: impl Display) -> BenchError {
        BenchError { kind: Kind::Refused, text: format!("{object}: {cause}") }
    }

    /// A system call that failed, on what.
    pub fn system<E: Into<io::Error>>(object: impl Display) -> impl FnOnce(E) -> BenchError {
        move |error| BenchError::refused(object, error.into())
    }

    /// A signal that asks to end.
    #[must_use]
    pub fn interrupted() -> BenchError {
        let text = "the measurement: was interrupted; what it had made is removed".to_owned();
        BenchError { kind: Kind::Interrupted, text }
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Exit code for a shell.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            Kind::Usage => 2,
            Kind::Refused => 1,
            Kind::Interrupted => 130,
        }
    }
}

impl Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for BenchError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_name_object_cause_and_remedy() {
        let error = BenchError::usage("--reps 0", "nothing would be measured", "write --reps 1 or more");
        assert_eq!(error.to_string(), "--reps 0: nothing would be measured; write --reps 1 or more");
        assert_eq!((error.kind(), error.exit_code()), (Kind::Usage, 2));
        let not_found = BenchError::system("/x")(io::Error::from(io::ErrorKind::NotFound));
        assert_eq!(not_found.to_string(), "/x: entity not found");
        assert_eq!(not_found.exit_code(), 1);
        assert_eq!(BenchError::interrupted().exit_code(), 130);
    }
}
