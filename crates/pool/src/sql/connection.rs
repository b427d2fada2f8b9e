//! A connection to a database of either kind, and its transactions.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use rusqlite::types::ValueRef;

use super::server::{self, Server};
use super::{Address, Row, SqlError, SqlResult, Value};

/// Time for which a change waits for other changes.
pub(super) const BUSY_WAIT: Duration = Duration::from_secs(30);

/// A connection.
pub(crate) enum Connection {
    Sqlite(rusqlite::Connection),
    Postgres(Box<RefCell<Server>>),
}

/// A transaction that excludes all other changes. Dropped before its commit, it is rolled back.
pub(crate) struct Transaction<'a> {
    connection: &'a Connection,
    is_done: Cell<bool>,
}

impl Connection {
    /// Opens a file of SQLite, with a rollback journal. A write-ahead log would need memory that all processes share,
    /// which a network file system does not give; the journal needs locks of files only.
    pub(crate) fn file(file: &Path) -> SqlResult<Connection> {
        let connection = rusqlite::Connection::open(file)?;
        connection.busy_timeout(BUSY_WAIT)?;
        // EXTRA also syncs the directory of the journal: a commit that was acknowledged is not undone by a power
        // failure.
        connection.execute_batch("PRAGMA foreign_keys = ON; PRAGMA synchronous = EXTRA")?;
        Ok(Connection::Sqlite(connection))
    }

    /// Connects to a server of PostgreSQL.
    pub(crate) fn server(address: Address) -> SqlResult<Connection> {
        Ok(Connection::Postgres(Box::new(RefCell::new(Server::connect(address)?))))
    }

    /// Begins a change, when those of others are done.
    pub(crate) fn begin(&self) -> SqlResult<Transaction<'_>> {
        match self {
            // A deferred transaction that has read may not become a writer if another one has written meanwhile.
            Connection::Sqlite(file) => file.execute_batch("BEGIN IMMEDIATE")?,
            Connection::Postgres(server) => server.borrow_mut().begin()?,
        }
        Ok(Transaction { connection: self, is_done: Cell::new(false) })
    }

    /// Does what is asked for; answers how many rows it changed.
    pub(crate) fn execute(&self, order: &str, values: &[Value]) -> SqlResult<u64> {
        match self {
            Connection::Sqlite(file) => {
                let changed = file.execute(order, rusqlite::params_from_iter(values))?;
                Ok(u64::try_from(changed).unwrap_or(u64::MAX))
            }
            Connection::Postgres(server) => server.borrow_mut().execute(order, values),
        }
    }

    /// Maps all rows of a result.
    pub(crate) fn rows<T>(
        &self,
        order: &str,
        values: &[Value],
        read: impl FnMut(&Row) -> SqlResult<T>,
    ) -> SqlResult<Vec<T>> {
        let rows = match self {
            Connection::Sqlite(file) => of_file(file, order, values)?,
            Connection::Postgres(server) => server.borrow_mut().rows(order, values)?,
        };
        rows.iter().map(read).collect()
    }

    /// Maps the first row of a result, if there is one.
    pub(crate) fn row<T>(
        &self,
        order: &str,
        values: &[Value],
        read: impl FnMut(&Row) -> SqlResult<T>,
    ) -> SqlResult<Option<T>> {
        Ok(self.rows(order, values, read)?.into_iter().next())
    }

    /// Makes or changes tables, in words of SQLite.
    pub(crate) fn define(&self, orders: &str) -> SqlResult<()> {
        match self {
            Connection::Sqlite(file) => Ok(file.execute_batch(orders)?),
            Connection::Postgres(server) => server.borrow_mut().define(orders),
        }
    }

    /// Returns the version of the tables; 0 if there are none.
    pub(crate) fn version(&self) -> SqlResult<i64> {
        match self {
            Connection::Sqlite(_) => {
                self.row("PRAGMA user_version", &[], |row| row.get(0))?.ok_or(SqlError::NoRow)
            }
            Connection::Postgres(_) => match self.row(server::IS_MADE, &[], |row| row.get(0))? {
                Some(true) => self.row(server::VERSION, &[], |row| row.get(0))?.ok_or(SqlError::NoRow),
                _ => Ok(0),
            },
        }
    }

    /// Says of which version its tables are now.
    pub(crate) fn set_version(&self, version: i64) -> SqlResult<()> {
        match self {
            Connection::Sqlite(file) => Ok(file.pragma_update(None, "user_version", version)?),
            Connection::Postgres(server) => server.borrow_mut().set_version(version),
        }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Connection::Sqlite(_) => "SQLite",
            Connection::Postgres(_) => "PostgreSQL",
        })
    }
}

fn of_file(file: &rusqlite::Connection, order: &str, values: &[Value]) -> SqlResult<Vec<Row>> {
    let mut query = file.prepare(order)?;
    let columns = query.column_count();
    let mut found = query.query(rusqlite::params_from_iter(values))?;
    let mut rows = Vec::new();
    while let Some(row) = found.next()? {
        let read = |column| value(column, row.get_ref(column)?);
        rows.push(Row::new((0..columns).map(read).collect::<SqlResult<_>>()?));
    }
    Ok(rows)
}

fn value(column: usize, found: ValueRef<'_>) -> SqlResult<Value> {
    Ok(match found {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Number(number),
        ValueRef::Real(_) => {
            let cause = "has a fraction, and nothing here has".into();
            return Err(SqlError::Meaning { column, cause });
        }
        ValueRef::Text(text) => Value::Text(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(bytes) => Value::Bytes(bytes.to_vec()),
    })
}

impl rusqlite::ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
        Ok(rusqlite::types::ToSqlOutput::Borrowed(match self {
            Value::Null => ValueRef::Null,
            Value::Number(number) => ValueRef::Integer(*number),
            Value::Text(text) => ValueRef::Text(text.as_bytes()),
            Value::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

impl Transaction<'_> {
    /// Does it.
    pub(crate) fn commit(self) -> SqlResult<()> {
        match self.connection {
            Connection::Sqlite(file) => file.execute_batch("COMMIT")?,
            Connection::Postgres(server) => server.borrow_mut().commit()?,
        }
        self.is_done.set(true);
        Ok(())
    }
}

impl Deref for Transaction<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if !self.is_done.get() {
            // A database that ended it by itself says so, and has nothing to undo.
            _ = match self.connection {
                Connection::Sqlite(file) => file.execute_batch("ROLLBACK").map_err(SqlError::from),
                Connection::Postgres(server) => server.borrow_mut().roll_back(),
            };
        }
    }
}
