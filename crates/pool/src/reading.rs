//! Looking pools up.

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Params, Row};

use crate::{Access, Event, Grantee, Pool, PoolError, PoolRef, PoolResult, Pools, Share, State, Who};

const COLUMNS: &str = "id, name, owner, gid, title, source, is_made, inode, bytes, files, state, created_s, expires_s, ended_s, extensions_left";

impl Pools {
    /// The pool that is meant: by its number; else the one that lives, else the last that ended and can be restored.
    ///
    /// # Errors
    /// That there is none which the caller may see.
    pub fn find(&self, who: &Who, meant: &PoolRef) -> PoolResult<Pool> {
        let found = latest(&self.connection, who, meant).map_err(|error| self.failed(&error))?;
        found.ok_or_else(|| PoolError::NotFound(meant.to_string()))
    }

    /// Pools that the caller may use, by owner and name; those that are gone only on demand.
    ///
    /// # Errors
    /// That they cannot be read.
    pub fn list(&self, who: &Who, with_removed: bool) -> PoolResult<Vec<Pool>> {
        let order = format!("SELECT {COLUMNS} FROM pool ORDER BY owner, name, id");
        let all = pools(&self.connection, &order, []).map_err(|error| self.failed(&error))?;
        let shown =
            |pool: &Pool| pool.access(who).is_some() && (with_removed || pool.state != State::Removed);
        Ok(all.into_iter().filter(shown).collect())
    }

    /// Pools that the caller may use and that have all of these words in name, title or source, in any case.
    ///
    /// # Errors
    /// That they cannot be read.
    pub fn search(&self, who: &Who, words: &[String]) -> PoolResult<Vec<Pool>> {
        let words: Vec<String> = words.iter().map(|word| word.to_lowercase()).collect();
        let has = |pool: &Pool| {
            let text = format!("{}\n{}\n{}", pool.name, pool.title, String::from_utf8_lossy(&pool.source));
            let text = text.to_lowercase();
            words.iter().all(|word| text.contains(word))
        };
        Ok(self.list(who, false)?.into_iter().filter(has).collect())
    }

    /// What happened to a pool, in order.
    ///
    /// # Errors
    /// That it cannot be read.
    pub fn history(&self, pool: &Pool) -> PoolResult<Vec<Event>> {
        let read = || -> rusqlite::Result<Vec<Event>> {
            let mut query = self
                .connection
                .prepare("SELECT at_s, uid, what, detail FROM event WHERE pool = ?1 ORDER BY id")?;
            let event = |row: &Row<'_>| {
                Ok(Event { at_s: row.get(0)?, uid: row.get(1)?, what: row.get(2)?, detail: row.get(3)? })
            };
            query.query_map([pool.id], event)?.collect()
        };
        read().map_err(|error| self.failed(&error))
    }
}

/// The pool that is meant, if the caller may see it.
pub(crate) fn latest(connection: &Connection, who: &Who, meant: &PoolRef) -> rusqlite::Result<Option<Pool>> {
    let order = format!(
        "SELECT {COLUMNS} FROM pool WHERE owner = ?1 AND name = ?2
         AND (id = ?3 OR ?3 IS NULL AND state <> 'removed') ORDER BY state = 'live' DESC, id DESC LIMIT 1"
    );
    let owner = meant.owner.unwrap_or(who.uid);
    let found = pools(connection, &order, (owner, meant.name.as_str(), meant.id))?.into_iter().next();
    Ok(found.filter(|pool| pool.access(who).is_some()))
}

/// The pool with this number.
pub(crate) fn by_id(connection: &Connection, id: i64) -> rusqlite::Result<Option<Pool>> {
    let order = format!("SELECT {COLUMNS} FROM pool WHERE id = ?1");
    Ok(pools(connection, &order, [id])?.into_iter().next())
}

/// The pools that a query gives, with their rights.
pub(crate) fn pools(
    connection: &Connection,
    order: &str,
    values: impl Params,
) -> rusqlite::Result<Vec<Pool>> {
    let mut query = connection.prepare(order)?;
    let found: Vec<Pool> = query.query_map(values, pool)?.collect::<rusqlite::Result<_>>()?;
    let mut rights = connection
        .prepare("SELECT kind, grantee, access FROM share WHERE pool = ?1 ORDER BY kind, grantee")?;
    found
        .into_iter()
        .map(|pool| {
            let shares = rights.query_map([pool.id], share)?.collect::<rusqlite::Result<_>>()?;
            Ok(Pool { shares, ..pool })
        })
        .collect()
}

fn pool(row: &Row<'_>) -> rusqlite::Result<Pool> {
    let state: String = row.get(10)?;
    let count = |column: usize| -> rusqlite::Result<Option<u64>> {
        Ok(row.get::<_, Option<i64>>(column)?.map(|number| u64::try_from(number).unwrap_or(0)))
    };
    Ok(Pool {
        id: row.get(0)?,
        name: row.get(1)?,
        owner: row.get(2)?,
        gid: row.get(3)?,
        title: row.get(4)?,
        source: row.get(5)?,
        is_made: row.get(6)?,
        inode: row.get::<_, i64>(7)?.cast_unsigned(),
        bytes: count(8)?,
        files: count(9)?,
        state: State::of_word(&state).ok_or_else(|| unknown(10, &state))?,
        created_s: row.get(11)?,
        expires_s: row.get(12)?,
        ended_s: row.get(13)?,
        extensions_left: row.get(14)?,
        shares: Vec::new(),
    })
}

fn share(row: &Row<'_>) -> rusqlite::Result<Share> {
    let (kind, access): (String, String) = (row.get(0)?, row.get(2)?);
    let to = Grantee::of_columns(&kind, row.get(1)?).ok_or_else(|| unknown(0, &kind))?;
    Ok(Share { to, access: access_of(2, &access)? })
}

pub(crate) fn access_of(column: usize, word: &str) -> rusqlite::Result<Access> {
    Access::of_word(word).ok_or_else(|| unknown(column, word))
}

pub(crate) fn unknown(column: usize, word: &str) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(
        column,
        Type::Text,
        format!("'{word}' means nothing here").into(),
    )
}

/// Whether a request was carried out before, and on which pool.
pub(crate) fn done_before(connection: &Connection, request: Option<&str>) -> rusqlite::Result<Option<i64>> {
    let Some(request) = request else { return Ok(None) };
    let order = "SELECT pool FROM event WHERE request = ?1";
    connection.query_row(order, [request], |row| row.get(0)).optional()
}
