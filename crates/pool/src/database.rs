//! The database: one file of SQLite, with a rollback journal. A write-ahead log would need memory that all processes share,
//! which a network file system does not give; the journal needs locks of files only.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior};

use crate::{PoolError, PoolResult, Rules};

/// How long a change waits for the changes of others.
const BUSY_WAIT: Duration = Duration::from_secs(30);

/// What makes a database of each version one of the next; the first makes it of nothing.
const MIGRATIONS: [&str; 3] = [
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
];

/// All pools of a site, or of a user.
#[derive(Debug)]
pub struct Pools {
    pub(crate) connection: Connection,
    file: PathBuf,
}

impl Pools {
    /// Opens a database, which is made if there is none, and brought to this version.
    ///
    /// # Errors
    /// What is wrong with the file, or that a newer version has made it.
    pub fn open(file: &Path) -> PoolResult<Pools> {
        let failed = |error| PoolError::database(file, &error);
        let mut connection = Connection::open(file).map_err(failed)?;
        connection.busy_timeout(BUSY_WAIT).map_err(failed)?;
        connection.execute_batch("PRAGMA foreign_keys = ON; PRAGMA synchronous = EXTRA").map_err(failed)?;
        let newer = migrate(&mut connection).map_err(failed)?;
        if let Some(version) = newer {
            return Err(PoolError::Database {
                file: file.to_owned(),
                cause: format!("is of version {version}, and this program knows up to {}", MIGRATIONS.len()),
                remedy: "use a newer bivouac".into(),
            });
        }
        Ok(Pools { connection, file: file.to_owned() })
    }

    /// Its file.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The rules.
    ///
    /// # Errors
    /// That they cannot be read.
    pub fn rules(&self) -> PoolResult<Rules> {
        rules(&self.connection).map_err(|error| self.failed(&error))
    }

    pub(crate) fn failed(&self, error: &rusqlite::Error) -> PoolError {
        PoolError::database(&self.file, error)
    }

    /// Does something whole or not at all, while nobody else changes anything.
    pub(crate) fn whole<T>(&mut self, act: impl FnOnce(&Transaction<'_>) -> Done<T>) -> PoolResult<T> {
        let file = self.file.clone();
        let failed = |error: rusqlite::Error| PoolError::database(&file, &error);
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
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
    Database(rusqlite::Error),
}

impl Undone {
    /// What has just been written is not there.
    pub(crate) fn none() -> Undone {
        Undone::Database(rusqlite::Error::QueryReturnedNoRows)
    }
}

impl From<PoolError> for Undone {
    fn from(error: PoolError) -> Undone {
        Undone::Refused(error)
    }
}

impl From<rusqlite::Error> for Undone {
    fn from(error: rusqlite::Error) -> Undone {
        Undone::Database(error)
    }
}

/// Answers the version, if it is newer than all that are known.
fn migrate(connection: &mut Connection) -> rusqlite::Result<Option<usize>> {
    let version = |connection: &Connection| -> rusqlite::Result<usize> {
        let version: u32 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        Ok(usize::try_from(version).unwrap_or(usize::MAX))
    };
    // Who may only read the file gets no further than this.
    let now = version(connection)?;
    if now >= MIGRATIONS.len() {
        return Ok((now > MIGRATIONS.len()).then_some(now));
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have done it meanwhile.
    for step in MIGRATIONS.iter().skip(version(&transaction)?) {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "user_version", i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX))?;
    transaction.commit()?;
    Ok(None)
}

pub(crate) fn rules(connection: &Connection) -> rusqlite::Result<Rules> {
    let of = |name: &str, default: u32| -> rusqlite::Result<u32> {
        let found = connection.query_row("SELECT value FROM rule WHERE name = ?1", [name], |row| row.get(0));
        Ok(found.optional()?.unwrap_or(default))
    };
    let default = Rules::default();
    Ok(Rules {
        days_max: of("days-max", default.days_max)?,
        days_default: of("days-default", default.days_default)?,
        extensions: of("extensions", default.extensions)?,
        grace_days: of("grace-days", default.grace_days)?,
    })
}
