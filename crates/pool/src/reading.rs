//! Looking pools up.

use crate::sql::{Connection, Row, SqlError, SqlResult, Value, params};
use crate::{Access, Caller, Event, Grantee, Pool, PoolError, PoolRef, PoolResult, PoolState, Pools, Share};

pub(crate) const COLUMNS: &str =
    "id, name, owner, gid, title, source, is_made, inode, bytes, files, state, created_s, expires_s, ended_s,
 extensions_left, remind_days, mail, location, archive, archive_digest, archived_s";

impl Pools {
    /// Returns the pool that is meant: by its number; else the one that lives, else the last that ended and can be
    /// restored.
    ///
    /// # Errors
    /// That there is none which the caller may see.
    pub fn find(&self, who: &Caller, meant: &PoolRef) -> PoolResult<Pool> {
        let found = latest(&self.connection, who, meant).map_err(|error| self.failed(&error))?;
        found.ok_or_else(|| PoolError::NotFound(meant.to_string()))
    }

    /// Returns the pool with a number, if there is one that the caller may see.
    pub fn numbered(&self, who: &Caller, id: i64) -> PoolResult<Option<Pool>> {
        let found = by_id(&self.connection, id).map_err(|error| self.failed(&error))?;
        Ok(found.filter(|pool| pool.access(who).is_some()))
    }

    /// Pools that the caller may use, by owner and name; those that are gone only on demand.
    pub fn list(&self, who: &Caller, with_removed: bool) -> PoolResult<Vec<Pool>> {
        let order = format!("SELECT {COLUMNS} FROM pool ORDER BY owner, name, id");
        let all = pools(&self.connection, &order, &[]).map_err(|error| self.failed(&error))?;
        let shown =
            |pool: &Pool| pool.access(who).is_some() && (with_removed || pool.state != PoolState::Removed);
        Ok(all.into_iter().filter(shown).collect())
    }

    /// Pools that the caller may use and that have all of these words in name, title or source, in any case.
    pub fn search(&self, who: &Caller, words: &[String]) -> PoolResult<Vec<Pool>> {
        let words: Vec<String> = words.iter().map(|word| word.to_lowercase()).collect();
        let has = |pool: &Pool| {
            let text = format!("{}\n{}\n{}", pool.name, pool.title, String::from_utf8_lossy(&pool.source));
            let text = text.to_lowercase();
            words.iter().all(|word| text.contains(word))
        };
        Ok(self.list(who, false)?.into_iter().filter(has).collect())
    }

    /// Returns the events of a pool, in order.
    pub fn history(&self, pool: &Pool) -> PoolResult<Vec<Event>> {
        let order = "SELECT at_s, uid, what, detail FROM event WHERE pool = ?1 ORDER BY id";
        let event = |row: &Row| {
            Ok(Event { at_s: row.get(0)?, uid: row.get(1)?, what: row.get(2)?, detail: row.get(3)? })
        };
        self.connection.rows(order, params![pool.id], event).map_err(|error| self.failed(&error))
    }
}

/// Returns the pool that is meant, if the caller may see it.
pub(crate) fn latest(connection: &Connection, who: &Caller, meant: &PoolRef) -> SqlResult<Option<Pool>> {
    // A removed pool is found by its number only: its name may be another's by now.
    let order = format!(
        "SELECT {COLUMNS} FROM pool WHERE owner = ?1 AND name = ?2
         AND (id = ?3 OR ?3 IS NULL AND state <> 'removed') ORDER BY state = 'live' DESC, id DESC LIMIT 1"
    );
    let owner = meant.owner.unwrap_or(who.uid);
    let found = pools(connection, &order, params![owner, meant.name.as_str(), meant.id])?.into_iter().next();
    Ok(found.filter(|pool| pool.access(who).is_some()))
}

/// Returns the pool with this number.
pub(crate) fn by_id(connection: &Connection, id: i64) -> SqlResult<Option<Pool>> {
    let order = format!("SELECT {COLUMNS} FROM pool WHERE id = ?1");
    Ok(pools(connection, &order, params![id])?.into_iter().next())
}

/// Returns the pools that a query gives, with their rights.
pub(crate) fn pools(connection: &Connection, order: &str, values: &[Value]) -> SqlResult<Vec<Pool>> {
    let mut found = connection.rows(order, values, pool)?;
    // All rights at once: a server is not asked for each pool.
    let order = "SELECT pool, kind, grantee, access FROM share WHERE pool = ?1 OR ?1 IS NULL ORDER BY pool, kind, grantee";
    let one = if let [one] = found.as_slice() { Some(one.id) } else { None };
    for (of, share) in connection.rows(order, params![one], share)? {
        found.iter_mut().filter(|pool| pool.id == of).for_each(|pool| pool.shares.push(share));
    }
    Ok(found)
}

fn pool(row: &Row) -> SqlResult<Pool> {
    let (state, location): (String, String) = (row.get(10)?, row.get(17)?);
    let count = |column: usize| -> SqlResult<Option<u64>> {
        Ok(row.get::<Option<i64>>(column)?.map(|number| u64::try_from(number).unwrap_or(0)))
    };
    Ok(Pool {
        id: row.get(0)?,
        name: row.get(1)?,
        owner: row.get(2)?,
        gid: row.get(3)?,
        title: row.get(4)?,
        source: row.get(5)?,
        is_made: row.get(6)?,
        inode: row.get::<i64>(7)?.cast_unsigned(),
        bytes: count(8)?,
        files: count(9)?,
        state: state.parse().map_err(|_| unknown(10, &state))?,
        created_s: row.get(11)?,
        expires_s: row.get(12)?,
        ended_s: row.get(13)?,
        extensions_left: row.get(14)?,
        remind_days: row.get(15)?,
        mail: row.get(16)?,
        location: location.parse().map_err(|_| unknown(17, &location))?,
        archive: row.get(18)?,
        archive_digest: row.get(19)?,
        archived_s: row.get(20)?,
        shares: Vec::new(),
    })
}

fn share(row: &Row) -> SqlResult<(i64, Share)> {
    let (kind, access): (String, String) = (row.get(1)?, row.get(3)?);
    let to = Grantee::of_columns(&kind, row.get(2)?).ok_or_else(|| unknown(1, &kind))?;
    Ok((row.get(0)?, Share { to, access: access_of(3, &access)? }))
}

pub(crate) fn access_of(column: usize, word: &str) -> SqlResult<Access> {
    word.parse().map_err(|_| unknown(column, word))
}

pub(crate) fn unknown(column: usize, word: &str) -> SqlError {
    SqlError::Meaning { column, cause: format!("'{word}' means nothing here") }
}

/// Returns the pool of an earlier execution of a request, if there was one.
pub(crate) fn done_before(connection: &Connection, request: Option<&str>) -> SqlResult<Option<i64>> {
    let Some(request) = request else { return Ok(None) };
    let order = "SELECT pool FROM event WHERE request = ?1";
    connection.row(order, params![request], |row| row.get(0))
}
