//! PostgreSQL.

use std::error::Error;
use std::time::Duration;

use postgres::error::SqlState;
use postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use postgres::{Client, Config};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::connection::BUSY_WAIT;
use super::{Address, Row, SqlError, SqlResult, Value};

/// Query for the existence of the tables. Not by to_regclass, which may have cached that they did not exist before this
/// transaction waited for the one that created them.
pub(super) const IS_MADE: &str =
    "SELECT count(*) FROM pg_class WHERE relname = 'bivouac_version' AND relkind = 'r'
 AND pg_table_is_visible(oid)";
/// Query for the version of the tables.
pub(super) const VERSION: &str = "SELECT version FROM bivouac_version";
/// Timeout of a request, and of the reconnection to a server.
const ANSWER: Duration = Duration::from_secs(30);
/// Time after which the server ends the transaction of a stopped command. Shorter than the time for which others wait,
/// so that they continue.
const STOPPED: Duration = Duration::from_secs(20);
const _: () = assert!(STOPPED.as_secs() < BUSY_WAIT.as_secs());
/// Messages of the client library for a required password and for a server without TLS, for which it has no codes.
const NO_PASSWORD: &str = "password missing";
const NO_TLS: &str = "server does not support TLS";
/// Lock that serializes all changes of pools in one database: `bivouac` in ASCII. It needs no right to a table.
const GATE: &str = "SELECT pg_advisory_xact_lock(27700977634207075)";

/// A connection to a server, which is renewed if it was lost between two changes.
pub(crate) struct Server {
    client: Client,
    config: Config,
    tls: MakeRustlsConnect,
    /// True within a change, which is not repeated on a new connection.
    is_changing: bool,
}

impl Server {
    pub(super) fn connect(address: Address) -> SqlResult<Server> {
        let Address { mut config, tls, .. } = address;
        // What the user says of these comes last, and counts.
        let options = format!("{} {}", session(), config.get_options().unwrap_or_default());
        config.options(&options).application_name("bivouac").connect_timeout(ANSWER).tcp_user_timeout(ANSWER);
        let client = config.connect(tls.clone())?;
        Ok(Server { client, config, tls, is_changing: false })
    }

    /// Changes come one after the other, as in a file: what one has read stays so until it is done.
    pub(super) fn begin(&mut self) -> SqlResult<()> {
        assert!(!self.is_changing, "a change of pools begins within another one");
        // Nothing is changed by it, so it may be repeated; what follows may not.
        self.again_if_lost(|client| client.batch_execute("BEGIN"))?;
        self.is_changing = true;
        let gate = self.client.batch_execute(GATE);
        // The server refuses everything else on this connection until the failed transaction is ended.
        if gate.is_err() {
            _ = self.roll_back();
        }
        Ok(gate?)
    }

    pub(super) fn commit(&mut self) -> SqlResult<()> {
        assert!(self.is_changing, "a change of pools is committed that has not begun");
        // Before the answer: whatever becomes of the commit, the next change may use a new connection.
        self.is_changing = false;
        Ok(self.client.batch_execute("COMMIT")?)
    }

    pub(super) fn roll_back(&mut self) -> SqlResult<()> {
        self.is_changing = false;
        Ok(self.client.batch_execute("ROLLBACK")?)
    }

    pub(super) fn execute(&mut self, order: &str, values: &[Value]) -> SqlResult<u64> {
        Ok(self.client.execute(&numbered(order), &borrowed(values))?)
    }

    pub(super) fn rows(&mut self, order: &str, values: &[Value]) -> SqlResult<Vec<Row>> {
        let found = self.again_if_lost(|client| client.query(&numbered(order), &borrowed(values)))?;
        found.iter().map(|row| (0..row.len()).map(|column| value(row, column)).collect()).map(row).collect()
    }

    /// Runs a query without changes, and repeats it on a new connection if the server has closed the present one.
    fn again_if_lost<T>(
        &mut self,
        ask: impl Fn(&mut Client) -> Result<T, postgres::Error>,
    ) -> Result<T, postgres::Error> {
        match ask(&mut self.client) {
            Err(error) if !self.is_changing && is_lost(&error) => {
                self.client = self.config.connect(self.tls.clone())?;
                ask(&mut self.client)
            }
            answer => answer,
        }
    }

    pub(super) fn define(&mut self, orders: &str) -> SqlResult<()> {
        Ok(self.client.batch_execute(&in_its_words(orders))?)
    }

    pub(super) fn set_version(&mut self, version: i64) -> SqlResult<()> {
        let orders = format!(
            "CREATE TABLE IF NOT EXISTS bivouac_version (version BIGINT NOT NULL);
             DELETE FROM bivouac_version; INSERT INTO bivouac_version VALUES ({version})"
        );
        Ok(self.client.batch_execute(&orders)?)
    }
}

fn row(values: SqlResult<Vec<Value>>) -> SqlResult<Row> {
    values.map(Row::new)
}

/// Returns the timeouts of a session.
fn session() -> String {
    let (wait_ms, idle_ms) = (BUSY_WAIT.as_millis(), STOPPED.as_millis());
    format!("-c lock_timeout={wait_ms} -c idle_in_transaction_session_timeout={idle_ms}")
}

/// Parameters are `$1` there.
fn numbered(order: &str) -> String {
    // Texts are parameters, so no order has a question mark in one.
    order.replace('?', "$")
}

/// Tables are defined once, in words of SQLite.
fn in_its_words(orders: &str) -> String {
    orders
        // First, as the next one would change a part of it.
        .replace("INTEGER PRIMARY KEY AUTOINCREMENT", "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY")
        .replace("INTEGER", "BIGINT")
        .replace("BLOB", "BYTEA")
}

fn borrowed(values: &[Value]) -> Vec<&(dyn ToSql + Sync)> {
    values.iter().map(|value| value as &(dyn ToSql + Sync)).collect()
}

fn value(row: &postgres::Row, column: usize) -> SqlResult<Value> {
    let of = row.columns().get(column).map(postgres::Column::type_);
    Ok(match of {
        Some(kind) if *kind == Type::INT8 => {
            row.try_get::<_, Option<i64>>(column)?.map_or(Value::Null, Value::Number)
        }
        Some(kind) if *kind == Type::BYTEA => {
            row.try_get::<_, Option<Vec<u8>>>(column)?.map_or(Value::Null, Value::Bytes)
        }
        Some(kind) if *kind == Type::TEXT => {
            row.try_get::<_, Option<String>>(column)?.map_or(Value::Null, Value::Text)
        }
        _ => return Err(SqlError::Meaning { column, cause: "is of a kind that is not used here".into() }),
    })
}

impl ToSql for Value {
    fn to_sql(&self, kind: &Type, out: &mut bytes::BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self {
            Value::Null => Ok(IsNull::Yes),
            Value::Number(number) if *kind == Type::INT8 => number.to_sql(kind, out),
            Value::Text(text) if *kind == Type::TEXT => text.to_sql(kind, out),
            Value::Bytes(bytes) if *kind == Type::BYTEA => bytes.to_sql(kind, out),
            _ => Err(format!("a {kind} is not what is written here").into()),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// Formats an error of the server, or all causes of a connection error.
pub(super) fn in_words(error: &postgres::Error) -> String {
    if let Some(said) = error.as_db_error() {
        return said.message().to_owned();
    }
    let causes = causes(error).map(|cause| format!(": {cause}"));
    error.to_string() + &causes.collect::<String>()
}

/// Returns the chain of causes.
fn causes(error: &postgres::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
}

/// Returns whether the server's certificate was refused.
fn is_of_certificate(error: &postgres::Error) -> bool {
    let inner = causes(error).filter_map(|cause| cause.downcast_ref::<std::io::Error>()?.get_ref());
    inner
        .filter_map(|inner| inner.downcast_ref())
        .any(|error| matches!(error, rustls::Error::InvalidCertificate(_)))
}

/// Returns whether the server requires a password, or another one.
pub(super) fn is_about_password(error: &postgres::Error) -> bool {
    let wrong = [SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION];
    error.code().map_or_else(|| in_words(error).contains(NO_PASSWORD), |code| wrong.contains(code))
}

/// Returns the remedy.
pub(super) fn remedy(error: &postgres::Error) -> &'static str {
    let again = "another command is changing it; nothing was changed, try again";
    match error.code() {
        Some(&SqlState::DISK_FULL) => "nothing was changed; make room on its disk and try again",
        Some(&SqlState::LOCK_NOT_AVAILABLE | &SqlState::T_R_DEADLOCK_DETECTED) => again,
        Some(&SqlState::INSUFFICIENT_PRIVILEGE | &SqlState::READ_ONLY_SQL_TRANSACTION) => {
            "its owner must grant you its tables, and makes them with a first command; see docs/pools.md"
        }
        Some(&SqlState::DUPLICATE_TABLE | &SqlState::UNDEFINED_TABLE | &SqlState::UNDEFINED_COLUMN) => {
            "it has tables of something else; name a database or schema for pools alone"
        }
        Some(&SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT) => {
            "it was stopped for too long in a change, which is undone; try again"
        }
        Some(&SqlState::INVALID_CATALOG_NAME) => "make it first: createdb",
        Some(&SqlState::INVALID_PASSWORD | &SqlState::INVALID_AUTHORIZATION_SPECIFICATION) => {
            "name a role and a password that it knows: --db postgres://ROLE:PASSWORD@HOST/DATABASE"
        }
        None if is_of_certificate(error) => {
            "name who has signed its certificate, with sslrootcert=FILE, and for verify-full the host that it is for; \
             see docs/pools.md"
        }
        None if in_words(error).contains(NO_TLS) => {
            "its administrator turns that on (ssl=on); without encryption: sslmode=prefer"
        }
        None if is_about_password(error) => {
            "write it into ~/.pgpass, which only you may read, or into BIVOUAC_DB; see docs/pools.md"
        }
        // It may have been killed between a change and its answer.
        _ if is_lost(error) => {
            "look whether the server runs, and then whether it was done; a change with --request can be repeated"
        }
        _ => "nothing was changed; look at the server's log",
    }
}

/// Returns whether the connection was lost, or the server is starting or stopping.
fn is_lost(error: &postgres::Error) -> bool {
    let ends = [SqlState::ADMIN_SHUTDOWN, SqlState::CRASH_SHUTDOWN, SqlState::CANNOT_CONNECT_NOW];
    // Without a code it is no answer of the server.
    error.code().is_none_or(|code| ends.contains(code))
}
