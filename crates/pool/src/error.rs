//! Errors, in terms of the user.

use std::fmt::Display;
use std::path::PathBuf;

use crate::name::PoolRef;
use crate::pool_state::PoolState;

/// Answer of what can fail.
pub type PoolResult<T> = Result<T, PoolError>;

/// Reason why a request was refused or has failed.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// There is no such pool, or none that the caller may see.
    #[error(
        "pool {0}: there is none of that name that you may use; `bivouac pool list --all` shows those there are"
    )]
    NotFound(String),
    /// The pool has ended.
    #[error("pool {name}: is {}; get it back with: bivouac pool restore {name}", state.word())]
    Ended {
        /// The pool.
        name: PoolRef,
        /// Its state.
        state: PoolState,
    },
    /// The rules or the rights are against it.
    #[error("pool {object}: {cause}; {remedy}")]
    Refused {
        /// The pool.
        object: String,
        /// The cause.
        cause: String,
        /// The remedy.
        remedy: String,
    },
    /// A stage cannot have what it asks for.
    #[error("{object}: {cause}; {remedy}")]
    Staging {
        /// The object.
        object: String,
        /// The cause.
        cause: String,
        /// The remedy.
        remedy: String,
    },
    /// The URL of a database is malformed.
    #[error("--db {what}; name a file, sqlite:///PATH, or a server, postgres://HOST/DATABASE")]
    Url {
        /// The cause, without the URL, which may contain a password.
        what: &'static str,
    },
    /// The database cannot do it.
    #[error("{place}: {cause}; {remedy}")]
    Database {
        /// Its file, or its server and name there.
        place: String,
        /// The cause.
        cause: String,
        /// The remedy.
        remedy: String,
    },
    /// A file or directory cannot be made or looked at.
    #[error("{}: {cause}; {remedy}", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// The cause.
        cause: String,
        /// The remedy.
        remedy: String,
    },
}

impl PoolError {
    /// Returns a refusal.
    pub fn refused(object: impl Display, cause: impl Into<String>, remedy: impl Into<String>) -> PoolError {
        PoolError::Refused { object: object.to_string(), cause: cause.into(), remedy: remedy.into() }
    }

    pub(crate) fn staging(object: impl Display, cause: impl Into<String>, remedy: &str) -> PoolError {
        PoolError::Staging { object: object.to_string(), cause: cause.into(), remedy: remedy.to_owned() }
    }

    pub(crate) fn slot(id: i64, cause: impl Into<String>, remedy: &str) -> PoolError {
        PoolError::staging(format_args!("slot {id}"), cause, remedy)
    }
}
