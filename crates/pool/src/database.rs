//! The database: one file of SQLite, or a database at a server of PostgreSQL.

use std::path::{Path, PathBuf};

use crate::schema::MIGRATIONS;
use crate::sql::{Address, Connection, ServerEnvironment, SqlError, SqlResult, Transaction, params};
use crate::{PoolError, PoolResult, SiteRules};

/// Scheme of SQLite databases.
const SQLITE: &str = "sqlite://";
/// Schemes of PostgreSQL databases.
const POSTGRES: [&str; 2] = ["postgres://", "postgresql://"];

/// All pools of a site, or of a user.
#[derive(Debug)]
pub struct Pools {
    pub(crate) connection: Connection,
    place: String,
    /// The file, if it is one.
    file: Option<PathBuf>,
}

impl Pools {
    /// Opens a database, as [`Pools::within`] does, whatever is around.
    ///
    /// # Errors
    /// An unusable database, or one of a newer version.
    pub fn at(url: &str) -> PoolResult<Pools> {
        Pools::within(url, &ServerEnvironment::default())
    }

    /// Opens a database, which is made if there is none, and brought to this version: `sqlite://FILE`, or
    /// `postgres://HOST/DATABASE` and the like.
    ///
    /// # Errors
    /// An unusable database, or one of a newer version.
    pub fn within(url: &str, around: &ServerEnvironment) -> PoolResult<Pools> {
        if let Some(file) = url.strip_prefix(SQLITE) {
            return match file {
                "" => Err(PoolError::Url { what: "names no file" }),
                file => Pools::open(Path::new(file)),
            };
        }
        if !POSTGRES.iter().any(|scheme| url.starts_with(scheme)) {
            return Err(PoolError::Url { what: "is no database of pools" });
        }
        let address = Address::read(url, around)?;
        let (place, open_to_others) = (address.place(), address.open_to_others.clone());
        let connection = Connection::server(address).map_err(|error| match open_to_others {
            Some(file) if error.is_about_password() => PoolError::Database {
                place: place.clone(),
                cause: error.to_string(),
                remedy: format!("{} is not read, since others may read it too: chmod 600 it", file.display()),
            },
            _ => PoolError::database(&place, &error),
        })?;
        Pools::ready(connection, place, None)
    }

    /// Opens a file of SQLite, which is made if there is none, and brought to this version.
    ///
    /// # Errors
    /// An unusable database, or one of a newer version.
    pub fn open(file: &Path) -> PoolResult<Pools> {
        let place = file.display().to_string();
        let connection = Connection::file(file).map_err(|error| PoolError::database(&place, &error))?;
        Pools::ready(connection, place, Some(file.to_owned()))
    }

    fn ready(connection: Connection, place: String, file: Option<PathBuf>) -> PoolResult<Pools> {
        let newer = migrate(&connection).map_err(|error| PoolError::database(&place, &error))?;
        if let Some(version) = newer {
            return Err(PoolError::Database {
                place,
                cause: format!("is of version {version}, and this program knows up to {}", MIGRATIONS.len()),
                remedy: "use a newer bivouac".into(),
            });
        }
        Ok(Pools { connection, place, file })
    }

    /// Returns its file, or its server and name there.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Returns its file, if it is one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Returns whether the caller's role may set the rules of the database: on a server, if it owns the tables; of a
    /// file, the file's owner may.
    ///
    /// # Errors
    /// That the server does not say.
    pub fn is_ruled_by_role(&self) -> PoolResult<bool> {
        let order =
            "SELECT pg_has_role(relowner, 'USAGE')::int::bigint FROM pg_class WHERE oid = 'rule'::regclass";
        let found = self.connection.row(order, &[], |row| row.get(0));
        Ok(found.map_err(|error| self.failed(&error))?.unwrap_or(false))
    }

    /// Returns the time of the database server in seconds since 1970; `None` for a file.
    ///
    /// # Errors
    /// That the server does not say.
    pub fn clock_s(&self) -> PoolResult<Option<i64>> {
        if self.file.is_some() {
            return Ok(None);
        }
        let order = "SELECT extract(epoch FROM clock_timestamp())::bigint";
        self.connection.row(order, &[], |row| row.get(0)).map_err(|error| self.failed(&error))
    }

    /// Returns the rules.
    pub fn rules(&self) -> PoolResult<SiteRules> {
        rules(&self.connection).map_err(|error| self.failed(&error))
    }

    pub(crate) fn failed(&self, error: &SqlError) -> PoolError {
        PoolError::database(&self.place, error)
    }

    /// Runs `work` in one transaction that excludes all other changes.
    pub(crate) fn in_transaction<T>(
        &mut self,
        act: impl FnOnce(&Transaction<'_>) -> TransactionResult<T>,
    ) -> PoolResult<T> {
        let failed = |error: SqlError| PoolError::database(&self.place, &error);
        let transaction = self.connection.begin().map_err(failed)?;
        let answer = match act(&transaction) {
            Ok(answer) => answer,
            // The drop of the transaction rolls it back.
            Err(TransactionError::Refused(error)) => return Err(error),
            Err(TransactionError::Database(error)) => return Err(failed(error)),
        };
        transaction.commit().map_err(failed)?;
        Ok(answer)
    }
}

impl PoolError {
    /// Returns an error of the database at `place`.
    pub(crate) fn database(place: &str, error: &SqlError) -> PoolError {
        let (place, cause) = (place.to_owned(), error.to_string());
        PoolError::Database { place, cause, remedy: error.remedy().into() }
    }
}

/// The result of a step of a transaction; an error rolls it back.
pub(crate) type TransactionResult<T> = Result<T, TransactionError>;

/// Reason why a transaction is rolled back.
pub(crate) enum TransactionError {
    Refused(PoolError),
    Database(SqlError),
}

impl TransactionError {
    /// Returns the error for a row that was just written and cannot be read back.
    pub(crate) fn no_row() -> TransactionError {
        TransactionError::Database(SqlError::NoRow)
    }
}

impl From<PoolError> for TransactionError {
    fn from(error: PoolError) -> TransactionError {
        TransactionError::Refused(error)
    }
}

impl From<SqlError> for TransactionError {
    fn from(error: SqlError) -> TransactionError {
        TransactionError::Database(error)
    }
}

/// Migrates the tables; returns their version if it is newer than this release supports.
fn migrate(connection: &Connection) -> SqlResult<Option<i64>> {
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    // Read-only users must not need a transaction.
    let now = connection.version()?;
    if now >= known {
        return Ok((now > known).then_some(now));
    }
    let transaction = connection.begin()?;
    // Read again under the lock: another process may have migrated since.
    let done = usize::try_from(transaction.version()?).unwrap_or(usize::MAX);
    for step in MIGRATIONS.iter().skip(done) {
        transaction.define(step)?;
    }
    // A newer program may have been first, and gone further.
    transaction.set_version(known.max(transaction.version()?))?;
    transaction.commit()?;
    Ok(None)
}

pub(crate) fn rules(connection: &Connection) -> SqlResult<SiteRules> {
    let of = |name: &str, default: u32| -> SqlResult<u32> {
        let order = "SELECT value FROM rule WHERE name = ?1";
        Ok(connection.row(order, params![name], |row| row.get(0))?.unwrap_or(default))
    };
    let default = SiteRules::default();
    Ok(SiteRules {
        days_max: of("days-max", default.days_max)?,
        days_default: of("days-default", default.days_default)?,
        extensions: of("extensions", default.extensions)?,
        grace_days: of("grace-days", default.grace_days)?,
    })
}
