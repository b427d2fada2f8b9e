//! The database: one file of SQLite, or a database at a server of PostgreSQL.

use std::path::{Path, PathBuf};

use crate::sql::{Address, Connection, ServerEnvironment, SqlError, SqlResult, Transaction, params};
use crate::{PoolError, PoolResult, Rules};

/// How a file of SQLite is named.
const SQLITE: &str = "sqlite://";
/// How a database of PostgreSQL is named.
const POSTGRES: [&str; 2] = ["postgres://", "postgresql://"];

/// What makes a database of each version one of the next; the first makes it of nothing.
const MIGRATIONS: [&str; 6] = [
    "
CREATE TABLE pool (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL, owner INTEGER NOT NULL, gid INTEGER NOT NULL, title TEXT NOT NULL,
  source BLOB NOT NULL, is_made INTEGER NOT NULL, inode INTEGER NOT NULL,
  bytes INTEGER, files INTEGER,
  state TEXT NOT NULL, created_s INTEGER NOT NULL, expires_s INTEGER NOT NULL, ended_s INTEGER,
  extensions_left INTEGER NOT NULL);
CREATE UNIQUE INDEX pool_live ON pool (owner, name) WHERE state = 'live';
CREATE TABLE share (
  pool INTEGER NOT NULL REFERENCES pool (id), kind TEXT NOT NULL, grantee INTEGER NOT NULL, access TEXT NOT NULL,
  PRIMARY KEY (pool, kind, grantee));
CREATE TABLE attachment (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  pool INTEGER NOT NULL REFERENCES pool (id), formation TEXT NOT NULL, host TEXT NOT NULL, uid INTEGER NOT NULL,
  base BLOB NOT NULL, pid INTEGER NOT NULL, path TEXT NOT NULL, access TEXT NOT NULL, since_s INTEGER NOT NULL);
CREATE TABLE event (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  pool INTEGER REFERENCES pool (id), at_s INTEGER NOT NULL, uid INTEGER NOT NULL,
  what TEXT NOT NULL, detail TEXT NOT NULL, request TEXT UNIQUE);
CREATE TABLE rule (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
INSERT INTO rule VALUES ('days-max', 100), ('days-default', 30), ('extensions', 3), ('grace-days', 14);
",
    "ALTER TABLE attachment ADD COLUMN view TEXT NOT NULL DEFAULT ''",
    crate::slots::TABLES,
    crate::versions::TABLES,
    crate::reminders::COLUMNS,
    crate::archiving::COLUMNS,
];

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
    /// What is wrong with it, or that a newer version has made it.
    pub fn at(url: &str) -> PoolResult<Pools> {
        Pools::within(url, &ServerEnvironment::default())
    }

    /// Opens a database, which is made if there is none, and brought to this version: `sqlite://FILE`, or
    /// `postgres://HOST/DATABASE` and the like.
    ///
    /// # Errors
    /// What is wrong with it, or that a newer version has made it.
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
    /// What is wrong with the file, or that a newer version has made it.
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

    /// Its file, or its server and name there.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Its file, if it is one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Whether the role that asks sets the rules of a server: if it owns the tables. Of a file its owner does.
    ///
    /// # Errors
    /// That the server does not say.
    pub fn is_ruled_by_role(&self) -> PoolResult<bool> {
        let order =
            "SELECT pg_has_role(relowner, 'USAGE')::int::bigint FROM pg_class WHERE oid = 'rule'::regclass";
        let found = self.connection.row(order, &[], |row| row.get(0));
        Ok(found.map_err(|error| self.failed(&error))?.unwrap_or(false))
    }

    /// What the clock of the database's server says, in seconds since 1970; a file has none.
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

    /// The rules.
    ///
    /// # Errors
    /// That they cannot be read.
    pub fn rules(&self) -> PoolResult<Rules> {
        rules(&self.connection).map_err(|error| self.failed(&error))
    }

    pub(crate) fn failed(&self, error: &SqlError) -> PoolError {
        PoolError::database(&self.place, error)
    }

    /// Does something whole or not at all, while nobody else changes anything.
    pub(crate) fn whole<T>(&mut self, act: impl FnOnce(&Transaction<'_>) -> Done<T>) -> PoolResult<T> {
        let failed = |error: SqlError| PoolError::database(&self.place, &error);
        let transaction = self.connection.begin().map_err(failed)?;
        let answer = match act(&transaction) {
            Ok(answer) => answer,
            Err(Undone::Refused(error)) => return Err(error),
            Err(Undone::Database(error)) => return Err(failed(error)),
        };
        transaction.commit().map_err(failed)?;
        Ok(answer)
    }
}

/// What a step of a transaction answers.
pub(crate) type Done<T> = Result<T, Undone>;

/// Why a transaction comes to nothing.
pub(crate) enum Undone {
    Refused(PoolError),
    Database(SqlError),
}

impl Undone {
    /// What has just been written is not there.
    pub(crate) fn none() -> Undone {
        Undone::Database(SqlError::NoRow)
    }
}

impl From<PoolError> for Undone {
    fn from(error: PoolError) -> Undone {
        Undone::Refused(error)
    }
}

impl From<SqlError> for Undone {
    fn from(error: SqlError) -> Undone {
        Undone::Database(error)
    }
}

/// Answers the version, if it is newer than all that are known.
fn migrate(connection: &Connection) -> SqlResult<Option<i64>> {
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    // Who may only read it gets no further than this.
    let now = connection.version()?;
    if now >= known {
        return Ok((now > known).then_some(now));
    }
    let transaction = connection.begin()?;
    // Another process may have done it meanwhile.
    let done = usize::try_from(transaction.version()?).unwrap_or(usize::MAX);
    for step in MIGRATIONS.iter().skip(done) {
        transaction.define(step)?;
    }
    transaction.set_version(known.max(transaction.version()?))?;
    transaction.commit()?;
    Ok(None)
}

pub(crate) fn rules(connection: &Connection) -> SqlResult<Rules> {
    let of = |name: &str, default: u32| -> SqlResult<u32> {
        let order = "SELECT value FROM rule WHERE name = ?1";
        Ok(connection.row(order, params![name], |row| row.get(0))?.unwrap_or(default))
    };
    let default = Rules::default();
    Ok(Rules {
        days_max: of("days-max", default.days_max)?,
        days_default: of("days-default", default.days_default)?,
        extensions: of("extensions", default.extensions)?,
        grace_days: of("grace-days", default.grace_days)?,
    })
}
