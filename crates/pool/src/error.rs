//! What can go wrong, in the user's words.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use crate::{PoolRef, State};

/// Answer of what can fail.
pub type PoolResult<T> = Result<T, PoolError>;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// There is no such pool, or none that the caller may see.
    #[error(
        "pool {0}: there is none of that name that you may use; `bivouac pool list --all` shows those there are"
    )]
    NotFound(String),
    /// It has ended.
    #[error("pool {name}: is {}; get it back with: bivouac pool restore {name}", state.word())]
    Ended {
        /// Which.
        name: PoolRef,
        /// How.
        state: State,
    },
    /// The rules or the rights are against it.
    #[error("pool {object}: {cause}; {remedy}")]
    Refused {
        /// Which pool.
        object: String,
        /// Why not.
        cause: String,
        /// What to do.
        remedy: String,
    },
    /// A stage cannot have what it asks for.
    #[error("{object}: {cause}; {remedy}")]
    Staging {
        /// What about.
        object: String,
        /// Why not.
        cause: String,
        /// What to do.
        remedy: String,
    },
    /// The database cannot do it.
    #[error("{}: {cause}; {remedy}", file.display())]
    Database {
        /// Its file.
        file: PathBuf,
        /// What it says.
        cause: String,
        /// What to do.
        remedy: String,
    },
    /// A file or directory cannot be made or looked at.
    #[error("{}: {cause}; {remedy}", path.display())]
    Path {
        /// Which.
        path: PathBuf,
        /// Why.
        cause: String,
        /// What to do.
        remedy: String,
    },
}

impl PoolError {
    /// A refusal.
    pub fn refused(object: impl Display, cause: impl Into<String>, remedy: impl Into<String>) -> PoolError {
        PoolError::Refused { object: object.to_string(), cause: cause.into(), remedy: remedy.into() }
    }

    pub(crate) fn staging(object: impl Display, cause: impl Into<String>, remedy: &str) -> PoolError {
        PoolError::Staging { object: object.to_string(), cause: cause.into(), remedy: remedy.to_owned() }
    }

    pub(crate) fn slot(id: i64, cause: impl Into<String>, remedy: &str) -> PoolError {
        PoolError::staging(format_args!("slot {id}"), cause, remedy)
    }

    pub(crate) fn database(file: &Path, error: &rusqlite::Error) -> PoolError {
        use rusqlite::ErrorCode;
        let remedy = match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => "nothing was changed; make room on its disk and try again",
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                "another command is changing it; nothing was changed, try again"
            }
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
                "its owner must let you write to the file and its directory, or name another: --db sqlite://FILE"
            }
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
                "it is not a database of pools, or damaged: put a copy back, or name another: --db sqlite://FILE"
            }
            _ => "nothing was changed; look at the file and its disk",
        };
        PoolError::Database { file: file.to_owned(), cause: error.to_string(), remedy: remedy.into() }
    }
}
