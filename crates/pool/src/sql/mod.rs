//! Access to SQLite files and PostgreSQL servers in the common subset of SQL, with parameters `?1`, `?2` and so on, and
//! numbers, texts and bytes as values.

mod address;
mod connection;
mod passwords;
mod server;
mod tls;
mod value;

pub(crate) use address::Address;
pub use address::ServerEnvironment;
pub(crate) use connection::{Connection, Transaction};
pub(crate) use value::{Row, ToValue, Value, params};

/// Answer of a database.
pub(crate) type SqlResult<T> = Result<T, SqlError>;

/// Errors of a database.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SqlError {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error("{}", server::in_words(.0))]
    Postgres(#[from] postgres::Error),
    /// A value is not what it is to be.
    #[error("column {column}: {cause}")]
    Meaning { column: usize, cause: String },
    /// A row that was just written is missing.
    #[error("what was just written is not there")]
    NoRow,
}

impl SqlError {
    /// Returns whether the server requires a password, or another one.
    pub(crate) fn is_about_password(&self) -> bool {
        matches!(self, SqlError::Postgres(error) if server::is_about_password(error))
    }

    /// Returns the remedy.
    pub(crate) fn remedy(&self) -> &'static str {
        match self {
            SqlError::Sqlite(error) => of_sqlite(error),
            SqlError::Postgres(error) => server::remedy(error),
            SqlError::Meaning { .. } | SqlError::NoRow => "nothing was changed; look at the database",
        }
    }
}

fn of_sqlite(error: &rusqlite::Error) -> &'static str {
    use rusqlite::ErrorCode;
    match error.sqlite_error_code() {
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
    }
}
