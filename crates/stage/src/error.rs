//! Errors of a copy.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use bivouac_types::Errno;
use bivouac_types::units::format_size;

use crate::escape::escape;
use crate::summary::Summary;

/// Reason why a copy failed.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// Cancelled by the caller. Temporary files remain only if the copy can be resumed.
    #[error("cancelled")]
    Cancelled,
    /// Source or target cannot be used at all; nothing was copied.
    #[error("{0}")]
    Root(Failure),
    /// Some objects failed; all others are complete.
    #[error("{}", list(failures))]
    Incomplete {
        /// Totals of the complete objects.
        summary: Box<Summary>,
        /// The failures; never empty.
        failures: Vec<Failure>,
    },
}

/// An object that was not copied.
#[derive(Debug)]
pub struct Failure {
    /// The object of the failed operation, at the source or the target.
    pub path: PathBuf,
    /// The cause.
    pub cause: Cause,
}

/// Cause of a failure.
#[derive(Debug)]
pub enum Cause {
    /// A system call failed.
    Io {
        /// The operation, to complete `could not …`.
        doing: &'static str,
        /// The error.
        error: io::Error,
    },
    /// The file was modified or replaced during its copy.
    Changed,
    /// The target's content differs from what was written.
    Differs {
        /// Start of the first differing block, in bytes.
        offset: u64,
    },
    /// The source's content differs from its last copy although its version is the same.
    Altered,
    /// The target directory was replaced: a file system was mounted over it or unmounted.
    Vanished,
    /// The target has too little space.
    NoRoom {
        /// Bytes to write.
        needed: u64,
        /// Free bytes.
        free: u64,
    },
    /// The request contradicts what exists at the target.
    Conflict(&'static str),
    /// Cancelled by the caller.
    Cancelled,
}

impl Failure {
    pub(crate) fn new(path: &Path, cause: Cause) -> Failure {
        Failure { path: path.to_owned(), cause }
    }

    pub(crate) fn io(doing: &'static str, path: &Path, error: impl Into<io::Error>) -> Failure {
        Failure::new(path, Cause::Io { doing, error: error.into() })
    }

    /// Returns the errno of a failed system call.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match &self.cause {
            Cause::Io { error, .. } => error.raw_os_error().map(Errno::from_code),
            // Found out before the first write, which would have ended so.
            Cause::NoRoom { .. } => Some(Errno::ENOSPC),
            _ => None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", escape(&self.path), self.cause)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Io { doing, error } => match error.raw_os_error().map(Errno::from_code) {
                Some(errno) => write!(f, "could not {doing}: {errno}{}", remedy(errno)),
                None => write!(f, "could not {doing}: {error}"),
            },
            Cause::Changed => f.write_str("changed while it was copied; copy it when nothing writes to it"),
            Cause::Differs { offset } => {
                write!(
                    f,
                    "read back differently than written, from byte {offset} on; check the target's storage"
                )
            }
            Cause::Altered => f.write_str(
                "holds other bytes than when it was last staged, and nobody has written to it since: it was damaged; \
                 stage it in again, or copy it as it is with --no-verify",
            ),
            Cause::Vanished => {
                f.write_str("is not the directory that it was; mount what was there and repeat or resume")
            }
            Cause::NoRoom { needed, free } => write!(
                f,
                "does not fit: {} are to be written, {} free there; free space at the target or copy less",
                format_size(*needed),
                format_size(*free)
            ),
            Cause::Conflict(what) => f.write_str(what),
            Cause::Cancelled => f.write_str("cancelled"),
        }
    }
}

fn remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOSPC | Errno::EDQUOT => "; free space at the target or copy less",
        Errno::EACCES | Errno::EPERM => "; check owner and permissions",
        Errno::ENAMETOOLONG => "; shorten the name",
        Errno::EROFS => "; the target is mounted read-only, or what is there is laminated",
        Errno::EEXIST => "; move it away or allow overwriting",
        _ => "",
    }
}

/// Formats the first failures, one per line.
fn list(failures: &[Failure]) -> String {
    const SHOWN: usize = 20;
    let mut text = format!("{} not copied:", failures.len());
    for failure in failures.iter().take(SHOWN) {
        text.push_str(&format!("\n  {failure}"));
    }
    if failures.len() > SHOWN {
        text.push_str(&format!("\n  and {} more", failures.len() - SHOWN));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(errno: Errno) -> Failure {
        Failure::io("write", Path::new("out/a.dat"), io::Error::from_raw_os_error(errno.code()))
    }

    #[test]
    fn a_failure_names_object_cause_and_remedy() {
        let failure = refused(Errno::ENOSPC);
        assert_eq!(failure.errno(), Some(Errno::ENOSPC));
        assert_eq!(
            failure.to_string(),
            "out/a.dat: could not write: no space left (ENOSPC); free space at the target or copy less"
        );
    }

    #[test]
    fn a_long_list_is_cut_and_says_so() {
        let failures: Vec<_> = (0..25).map(|_| refused(Errno::EIO)).collect();
        let text = StageError::Incomplete { summary: Box::default(), failures }.to_string();
        assert!(text.starts_with("25 not copied:\n  out/a.dat: could not write: input/output error (EIO)"));
        assert!(text.ends_with("and 5 more") && text.lines().count() == 22);
    }
}
