//! One way to ask databases of both kinds: SQLite in a file, PostgreSQL at a server. Orders are in what both understand, with
//! parameters `?1`, `?2` and so on; values are numbers, texts and bytes.

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

/// What a database says instead of doing what it is asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SqlError {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error("{}", server::in_words(.0))]
    Postgres(#[from] postgres::Error),
    /// A value is not what it is to be.
    #[error("column {column}: {cause}")]
    Meaning { column: usize, cause: String },
    /// What has just been written is not there.
    #[error("what was just written is not there")]
    NoRow,
}

impl SqlError {
    /// Whether the server wants a password, or another one.
    pub(crate) fn is_about_password(&self) -> bool {
        matches!(self, SqlError::Postgres(error) if server::is_about_password(error))
    }

    /// What to do about it.
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
