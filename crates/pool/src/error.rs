//! What can go wrong, in the user's words.

use std::fmt::Display;
use std::path::PathBuf;

use crate::sql::SqlError;
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
    /// What is to name a database names none.
    #[error("--db {what}; name a file, sqlite:///PATH, or a server, postgres://HOST/DATABASE")]
    Url {
        /// What is wrong, without the words of it: there may be a password in them.
        what: &'static str,
    },
    /// The database cannot do it.
    #[error("{place}: {cause}; {remedy}")]
    Database {
        /// Its file, or its server and name there.
        place: String,
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

    pub(crate) fn database(place: &str, error: &SqlError) -> PoolError {
        let (place, cause) = (place.to_owned(), error.to_string());
        PoolError::Database { place, cause, remedy: error.remedy().into() }
    }
}
