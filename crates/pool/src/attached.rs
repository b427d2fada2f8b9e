//! Attachments: formations that use pools.

use std::str::FromStr;

use serde::Serialize;

use crate::reading::{access_of, by_id, latest};
use crate::sql::{Connection, Row, SqlResult, Value, params};
use crate::{Access, ChangeOrigin, Pool, PoolError, PoolRef, PoolResult, Pools};

/// A pool that a formation shall have, written `NAME[:ro|:rw][@PATH]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachRequest {
    /// The pool.
    pub pool: PoolRef,
    /// Access to its data.
    pub access: Access,
    /// Its path in the formation.
    pub path: String,
}

impl FromStr for AttachRequest {
    type Err = String;

    fn from_str(text: &str) -> Result<AttachRequest, String> {
        let (rest, path) = match text.split_once('@') {
            Some((rest, path)) => (rest, Some(path)),
            None => (text, None),
        };
        let (name, access) = match rest.split_once(':') {
            None | Some((_, "ro")) => (rest.trim_end_matches(":ro"), Access::Ro),
            Some((name, "rw")) => (name, Access::Rw),
            Some((_, other)) => return Err(format!("'{other}' is neither ro nor rw")),
        };
        let pool: PoolRef = name.parse()?;
        let path = path.map_or_else(|| format!("/pools/{}", pool.name), str::to_owned);
        let is_plain = path.starts_with('/') && path.split('/').all(|part| part != "..");
        let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
        if !is_plain || parts.is_empty() {
            return Err(format!("'{path}' is no path in a formation; write for instance {name}@/data"));
        }
        Ok(AttachRequest { pool, access, path: format!("/{}", parts.join("/")) })
    }
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
    /// User id of the formation's owner.
    pub uid: u32,
    /// Directory of that user's formations there.
    #[serde(skip)]
    pub base: Vec<u8>,
    /// Identity of the host's process namespace: from elsewhere nobody can tell whether the formation lives. Empty if
    /// it was not recorded.
    #[serde(skip)]
    pub view: String,
    /// Process that formed it.
    pub pid: u32,
    /// Path of the pool in the formation.
    pub path: String,
    /// Access of the attachment.
    pub access: Access,
    /// Start, in seconds since 1970.
    pub since_s: i64,
}

/// A formation that attaches pools.
#[derive(Clone, Copy, Debug)]
pub struct AttachingFormation<'a> {
    /// Its name.
    pub formation: &'a str,
    /// Host where it is formed.
    pub host: &'a str,
    /// Directory of the user's formations there.
    pub base: &'a [u8],
    /// Identity of this process's host namespace.
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
        change: &ChangeOrigin<'_>,
        by: &AttachingFormation<'_>,
        requests: &[AttachRequest],
    ) -> PoolResult<Vec<Pool>> {
        let AttachingFormation { formation, host, base, view, pid } = *by;
        self.in_transaction(|transaction| {
            let mut pools = Vec::new();
            for one in requests {
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
                // A key may be on one event only, and this change makes several.
                let plain = ChangeOrigin { request: None, ..change.clone() };
                plain.note(transaction, pool.id, "attach", &detail)?;
                pools.push(pool);
            }
            Ok(pools)
        })
    }

    /// Forgets attachments to formations that are no more.
    pub fn detach(&mut self, change: &ChangeOrigin<'_>, gone: &[i64]) -> PoolResult<()> {
        if gone.is_empty() {
            return Ok(());
        }
        self.in_transaction(|transaction| {
            for id in gone {
                let found: Vec<Attachment> = all(transaction, "WHERE id = ?1", params![id])?;
                let Some(attachment) = found.first() else { continue };
                // The owner of the pool may do it as well: a lost formation of another user would keep it for good.
                if let Some(pool) = by_id(transaction, attachment.pool)?
                    && attachment.uid != change.who.uid
                {
                    pool.must_be_own(change.who)?;
                }
                transaction.execute("DELETE FROM attachment WHERE id = ?1", params![id])?;
                let detail = format!("from {} on {}", attachment.formation, attachment.host);
                let plain = ChangeOrigin { request: None, ..change.clone() };
                plain.note(transaction, attachment.pool, "detach", &detail)?;
            }
            Ok(())
        })
    }

    /// Returns the attachments of a pool.
    pub fn attachments(&self, pool: &Pool) -> PoolResult<Vec<Attachment>> {
        of(&self.connection, pool.id).map_err(|error| self.failed(&error))
    }

    /// Returns the attachments of a user's formations on a host.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_attached_is_read() {
        let of = |text: &str| text.parse::<AttachRequest>();
        let plain = of("mesh").unwrap();
        assert_eq!((plain.access, plain.path.as_str()), (Access::Ro, "/pools/mesh"));
        let all = of("7/mesh:rw@/data/in").unwrap();
        assert_eq!((all.pool.owner, all.access, all.path.as_str()), (Some(7), Access::Rw, "/data/in"));
        assert_eq!(of("mesh@/data//in/./").unwrap().path, "/data/in");
        for bad in [
            "",
            "mesh@//",
            "mesh@/.",
            "mesh:",
            "mesh:w",
            "mesh@",
            "mesh@data",
            "mesh@/",
            "mesh@/a/../b",
            "a b:ro",
            "x/mesh",
        ] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
