//! Which formations stand in front of which pools.

use serde::Serialize;

use crate::reading::{access_of, by_id, latest};
use crate::sql::{Connection, Row, SqlResult, Value, params};
use crate::{Access, Change, Pool, PoolError, PoolRef, PoolResult, Pools};

/// A pool that is to be attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Which.
    pub pool: PoolRef,
    /// What for.
    pub access: Access,
    /// Where in the formation.
    pub path: String,
}

/// A pool at a formation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Attachment {
    /// Its number.
    pub id: i64,
    /// The pool's number.
    pub pool: i64,
    /// Name of the formation.
    pub formation: String,
    /// Host where it was formed.
    pub host: String,
    /// User who formed it.
    pub uid: u32,
    /// Directory of that user's formations there.
    #[serde(skip)]
    pub base: Vec<u8>,
    /// What of that host its processes saw: from elsewhere nobody can tell whether they live. Empty where that was not noted.
    #[serde(skip)]
    pub view: String,
    /// Process that formed it.
    pub pid: u32,
    /// Path of the pool in the formation.
    pub path: String,
    /// What for.
    pub access: Access,
    /// Since when, in seconds since 1970.
    pub since_s: i64,
}

/// A formation that attaches pools.
#[derive(Clone, Copy, Debug)]
pub struct Former<'a> {
    /// Its name.
    pub formation: &'a str,
    /// Host where it is formed.
    pub host: &'a str,
    /// Directory of the user's formations there.
    pub base: &'a [u8],
    /// What of the host this process sees.
    pub view: &'a str,
    /// This process.
    pub pid: u32,
}

impl Pools {
    /// Notes that a formation attaches pools: all of them or none. From then on none of them is removed.
    ///
    /// # Errors
    /// That one is not there, has ended, or may not be used so.
    pub fn attach(
        &mut self,
        change: &Change<'_>,
        former: &Former<'_>,
        wanted: &[Wanted],
    ) -> PoolResult<Vec<Pool>> {
        let Former { formation, host, base, view, pid } = *former;
        self.whole(|transaction| {
            let mut pools = Vec::new();
            for one in wanted {
                let pool = latest(transaction, change.who, &one.pool)?;
                let pool = pool.ok_or_else(|| PoolError::NotFound(one.pool.to_string()))?;
                pool.must_live(&one.pool, change.now_s)?;
                pool.must_allow(change.who, one.access)?;
                pool.must_be_on_site()?;
                transaction.execute(
                    "INSERT INTO attachment (pool, formation, host, uid, base, pid, path, access, since_s, view)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
                    params![
                        pool.id,
                        formation,
                        host,
                        change.who.uid,
                        base,
                        pid,
                        one.path,
                        one.access.word(),
                        change.now_s,
                        view
                    ],
                )?;
                let detail = format!("{} to {formation} on {host}", one.access.word());
                let plain = Change { request: None, ..change.clone() };
                plain.note(transaction, pool.id, "attach", &detail)?;
                pools.push(pool);
            }
            Ok(pools)
        })
    }

    /// Forgets attachments to formations that are no more.
    ///
    /// # Errors
    /// That they cannot be changed.
    pub fn detach(&mut self, change: &Change<'_>, gone: &[i64]) -> PoolResult<()> {
        if gone.is_empty() {
            return Ok(());
        }
        self.whole(|transaction| {
            for id in gone {
                let found: Vec<Attachment> = all(transaction, "WHERE id = ?1", params![id])?;
                let Some(attachment) = found.first() else { continue };
                if let Some(pool) = by_id(transaction, attachment.pool)?
                    && attachment.uid != change.who.uid
                {
                    pool.must_be_own(change.who)?;
                }
                transaction.execute("DELETE FROM attachment WHERE id = ?1", params![id])?;
                let detail = format!("from {} on {}", attachment.formation, attachment.host);
                let plain = Change { request: None, ..change.clone() };
                plain.note(transaction, attachment.pool, "detach", &detail)?;
            }
            Ok(())
        })
    }

    /// Where a pool is attached.
    ///
    /// # Errors
    /// That it cannot be read.
    pub fn attachments(&self, pool: &Pool) -> PoolResult<Vec<Attachment>> {
        of(&self.connection, pool.id).map_err(|error| self.failed(&error))
    }

    /// What the formations of a user on a host have attached.
    ///
    /// # Errors
    /// That it cannot be read.
    pub fn attachments_on(&self, host: &str, uid: u32) -> PoolResult<Vec<Attachment>> {
        let found = all(&self.connection, "WHERE host = ?1 AND uid = ?2 ORDER BY id", params![host, uid]);
        found.map_err(|error| self.failed(&error))
    }
}

pub(crate) fn of(connection: &Connection, pool: i64) -> SqlResult<Vec<Attachment>> {
    all(connection, "WHERE pool = ?1 ORDER BY id", params![pool])
}

fn all(connection: &Connection, which: &str, values: &[Value]) -> SqlResult<Vec<Attachment>> {
    let order = format!(
        "SELECT id, pool, formation, host, uid, base, pid, path, access, since_s, view FROM attachment {which}"
    );
    let attachment = |row: &Row| {
        let access: String = row.get(8)?;
        Ok(Attachment {
            id: row.get(0)?,
            pool: row.get(1)?,
            formation: row.get(2)?,
            host: row.get(3)?,
            uid: row.get(4)?,
            base: row.get(5)?,
            pid: row.get(6)?,
            path: row.get(7)?,
            access: access_of(8, &access)?,
            since_s: row.get(9)?,
            view: row.get(10)?,
        })
    };
    connection.rows(&order, values, attachment)
}
