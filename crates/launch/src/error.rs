//! Errors of formations that do not come up or go down: object, cause and remedy, and the exit code.

use std::fmt;
use std::io;
use std::path::Path;

use bivouac_types::{FsError, named};

/// Class of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The request makes no sense.
    Usage,
    /// There is no such formation.
    NotRunning,
    /// There is such a formation already.
    Running,
    /// It was interrupted by a signal.
    Interrupted,
    /// The formation holds data that has not been copied out.
    Keep,
    /// The system, or a daemon, refused.
    Refused,
}

/// Exit code of a command that would lose data that is nowhere else.
pub const CODE_KEEP: u8 = 3;

/// A failure in the user's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchError {
    kind: Kind,
    text: String,
}

/// Result of bringing a formation up or down.
pub type LaunchResult<T> = Result<T, LaunchError>;

impl LaunchError {
    /// Creates a failure with its three parts.
    #[must_use]
    pub fn new(kind: Kind, object: impl fmt::Display, cause: impl fmt::Display, remedy: &str) -> LaunchError {
        LaunchError::said(kind, format!("{object}: {cause}; {remedy}"))
    }

    /// Returns a request that makes no sense, and what to write.
    #[must_use]
    pub fn usage(object: impl fmt::Display, cause: impl fmt::Display, remedy: &str) -> LaunchError {
        LaunchError::new(Kind::Usage, object, cause, remedy)
    }

    /// Returns a refusal that is said completely already.
    #[must_use]
    pub fn said(kind: Kind, text: impl Into<String>) -> LaunchError {
        LaunchError { kind, text: named(&text.into()).into() }
    }

    /// Creates the error for a path that the system refused to do something to.
    #[must_use]
    pub fn path(path: &Path, doing: &str, error: impl Into<io::Error>) -> LaunchError {
        let error = error.into();
        let remedy = remedy(&error);
        LaunchError::new(Kind::Refused, path.display(), format_args!("could not {doing}: {error}"), remedy)
    }

    /// Creates the error for something refused by the system that has no path.
    #[must_use]
    pub fn system(object: &str, error: impl Into<io::Error>) -> LaunchError {
        let error = error.into();
        let remedy = remedy(&error);
        LaunchError::new(Kind::Refused, object, error, remedy)
    }

    /// Class of the failure.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the exit code of a command that fails so: 2 for a request that makes no sense, 3 if data would be lost,
    /// 1 otherwise.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            Kind::Usage => 2,
            Kind::Keep => CODE_KEEP,
            _ => 1,
        }
    }
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for LaunchError {}

/// A refusal by a node.
impl From<FsError> for LaunchError {
    fn from(error: FsError) -> LaunchError {
        LaunchError::said(Kind::Refused, error.to_string())
    }
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "create it, or check the spelling",
        io::ErrorKind::PermissionDenied => "check owner and permissions",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free some space there",
        io::ErrorKind::AddrInUse => {
            "choose another port, or end the program that uses it (ss -tlnp shows it)"
        }
        io::ErrorKind::AddrNotAvailable => "choose an address of this machine (ip addr shows them)",
        io::ErrorKind::OutOfMemory => "free some memory",
        _ => "see the system's message",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_object_cause_and_remedy() {
        let error = LaunchError::path(Path::new("/x/y"), "make the directory", rustix::io::Errno::ACCESS);
        assert_eq!(
            error.to_string(),
            "/x/y: could not make the directory: permission denied (EACCES); check owner and permissions"
        );
        assert_eq!((error.kind(), error.exit_code()), (Kind::Refused, 1));
        let error = LaunchError::usage("--nodes 0", "a formation needs a node", "write --nodes 1 or more");
        assert_eq!(error.to_string(), "--nodes 0: a formation needs a node; write --nodes 1 or more");
        assert_eq!(error.exit_code(), 2);
    }

    #[test]
    fn a_port_in_use_has_its_remedy() {
        let error = LaunchError::system("127.0.0.1:80", rustix::io::Errno::ADDRINUSE);
        assert!(error.to_string().contains("ss -tlnp"), "{error}");
    }
}
