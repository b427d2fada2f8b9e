//! Changes of pools: create, extend, release, restore, share.

use crate::change::{ChangeOrigin, reread};
use crate::database::{TransactionError, rules};
use crate::reading::latest;
use crate::slots::signed;
use crate::sql::params;
use crate::{Access, Grantee, Pool, PoolError, PoolName, PoolRef, PoolResult, PoolState, Pools, Reminder};

/// A pool that is to be.
#[derive(Clone, Debug)]
pub struct NewPool {
    /// Its name.
    pub name: PoolName,
    /// Group id of the caller.
    pub gid: u32,
    /// Description.
    pub title: String,
    /// Days that it is given, if not the usual number.
    pub days: Option<u32>,
    /// Directory or URL that is there; without it one is made.
    pub source: Option<Vec<u8>>,
    /// Bytes, if known.
    pub bytes: Option<u64>,
    /// Files, if known.
    pub files: Option<u64>,
    /// Reminder of its end.
    pub reminder: Option<Reminder>,
}

impl Pools {
    /// Makes a pool. `make` makes its directory, if it has no source, and answers its path and its number; it is called
    /// while the change is not yet done, and again with the same number if it came to nothing.
    ///
    /// # Errors
    /// That there is one of that name, or what the rules or the disk do not allow.
    pub fn create(
        &mut self,
        change: &ChangeOrigin<'_>,
        new: &NewPool,
        make: impl FnOnce(i64) -> PoolResult<(Vec<u8>, u64)>,
    ) -> PoolResult<Pool> {
        self.in_transaction(|transaction| {
            if let Some(pool) = change.before(transaction)? {
                return Ok(pool);
            }
            let meant = PoolRef { owner: None, name: new.name.clone(), id: None };
            if let Some(pool) = latest(transaction, change.who, &meant)?.filter(|pool| pool.state == PoolState::Live) {
                return Err(name_taken(&pool).into());
            }
            let rules = rules(transaction)?;
            let expires_s = rules.end(change.who, &new.name, change.now_s, new.days)?;
            // The next number in the same statement: a sequence would skip the numbers of rolled-back changes.
            let id = transaction.row(
                "INSERT INTO pool (id, name, owner, gid, title, source, is_made, inode, bytes, files, state, created_s,
                 expires_s, extensions_left, remind_days, mail) VALUES ((SELECT coalesce(max(id), 0) + 1 FROM pool), ?1, ?2, ?3, ?4, ?10, 0, 0,
                 ?5, ?6, 'live', ?7, ?8, ?9, ?11, ?12) RETURNING id",
                params![
                    new.name.as_str(),
                    change.who.uid,
                    new.gid,
                    new.title,
                    new.bytes.map(signed),
                    new.files.map(signed),
                    change.now_s,
                    expires_s,
                    rules.extensions,
                    // Its directory is named by the number, and so is made after the row.
                    Vec::<u8>::new(),
                    new.reminder.as_ref().map(|to| to.days),
                    new.reminder.as_ref().map(|to| to.mail.as_str())
                ],
                |row| row.get::<i64>(0),
            )?;
            let id = id.ok_or_else(TransactionError::no_row)?;
            let (source, inode) = match &new.source {
                Some(source) => (source.clone(), 0),
                None => make(id)?,
            };
            transaction.execute(
                "UPDATE pool SET source = ?2, is_made = ?3, inode = ?4 WHERE id = ?1",
                params![id, source, new.source.is_none(), inode.cast_signed()],
            )?;
            change.note(transaction, id, "create", &String::from_utf8_lossy(&source))?;
            reread(transaction, id)
        })
    }

    /// Gives a pool more time, from now on. It never gets less.
    ///
    /// # Errors
    /// That it is not the caller's, has ended, or has been extended as often as is allowed.
    pub fn extend(
        &mut self,
        change: &ChangeOrigin<'_>,
        meant: &PoolRef,
        days: Option<u32>,
    ) -> PoolResult<Pool> {
        self.change(change, meant, |transaction, pool| {
            pool.must_be_own(change.who)?;
            pool.must_live(meant, change.now_s)?;
            let end = rules(transaction)?.end(change.who, &meant.name, change.now_s, days)?;
            // Refused first: what gives no time must not use up an extension.
            if end <= pool.expires_s {
                let cause = "it already has as much time";
                return Err(PoolError::refused(meant, cause, "extend it later, or by more days").into());
            }
            let left = pool.one_extension_less(change.who)?;
            transaction.execute(
                "UPDATE pool SET expires_s = ?2, extensions_left = ?3 WHERE id = ?1",
                params![pool.id, end, left],
            )?;
            change.note(transaction, pool.id, "extend", &format!("by {} s", end - pool.expires_s))
        })
    }

    /// Gives a pool up. Its data stays as long as it can be restored.
    ///
    /// # Errors
    /// That it is not the caller's, has ended, or is attached.
    pub fn release(&mut self, change: &ChangeOrigin<'_>, meant: &PoolRef) -> PoolResult<Pool> {
        self.change(change, meant, |transaction, pool| {
            pool.must_be_own(change.who)?;
            // Not `state_at`: a pool whose end is not noted yet still has its name, which its owner may need.
            if pool.state != PoolState::Live {
                return Err(PoolError::Ended { name: meant.clone(), state: pool.state }.into());
            }
            if let Some(attachment) = crate::attached::of(transaction, pool.id)?.first() {
                let cause =
                    format!("is attached to formation {} on {}", attachment.formation, attachment.host);
                let remedy = format!("take that down first: bivouac down --name {}", attachment.formation);
                return Err(PoolError::refused(meant, cause, remedy).into());
            }
            transaction.execute(
                "UPDATE pool SET state = 'released', ended_s = ?2 WHERE id = ?1",
                params![pool.id, change.now_s],
            )?;
            change.note(transaction, pool.id, "release", "")
        })
    }

    /// Gets a pool back that was released or has expired.
    ///
    /// # Errors
    /// That it is not the caller's, lives, is being removed, or that its name is another's now.
    pub fn restore(
        &mut self,
        change: &ChangeOrigin<'_>,
        meant: &PoolRef,
        days: Option<u32>,
    ) -> PoolResult<Pool> {
        self.change(change, meant, |transaction, pool| {
            pool.must_be_own(change.who)?;
            match pool.state_at(change.now_s) {
                PoolState::Released | PoolState::Expired => {}
                PoolState::Live => {
                    let remedy = "an earlier one is restored by its number, NAME#7, when this one is released; see: bivouac pool \
                                  list";
                    return Err(PoolError::refused(meant, "it lives", remedy).into());
                }
                state => {
                    let cause = format!("it is {}", state.word());
                    return Err(PoolError::refused(meant, cause, "make a new one: bivouac pool create").into());
                }
            }
            // Without the number, by which it would find the pool itself.
            let plain = PoolRef { owner: Some(pool.owner), name: meant.name.clone(), id: None };
            if let Some(other) = latest(transaction, change.who, &plain)?
                && other.state == PoolState::Live
                && other.id != pool.id
            {
                let remedy = format!("release that one first: bivouac pool release {}", other.name);
                return Err(PoolError::refused(meant, "another one has its name now", remedy).into());
            }
            let left = pool.one_extension_less(change.who)?;
            let end = rules(transaction)?.end(change.who, &meant.name, change.now_s, days)?;
            transaction.execute(
                "UPDATE pool SET state = 'live', ended_s = NULL, expires_s = ?2, extensions_left = ?3 WHERE id = ?1",
                // One that was released early does not lose time by it.
                params![pool.id, end.max(pool.expires_s), left],
            )?;
            change.note(transaction, pool.id, "restore", "")
        })
    }

    /// Grants or revokes an access right to a pool.
    ///
    /// # Errors
    /// That it is not the caller's, or has ended.
    pub fn share(
        &mut self,
        change: &ChangeOrigin<'_>,
        meant: &PoolRef,
        to: Grantee,
        access: Option<Access>,
    ) -> PoolResult<Pool> {
        self.change(change, meant, |transaction, pool| {
            pool.must_be_own(change.who)?;
            pool.must_live(meant, change.now_s)?;
            let (kind, grantee) = to.columns();
            match access {
                Some(access) => transaction.execute(
                    "INSERT INTO share (pool, kind, grantee, access) VALUES (?1, ?2, ?3, ?4)
                     ON CONFLICT (pool, kind, grantee) DO UPDATE SET access = excluded.access",
                    params![pool.id, kind, grantee, access.word()],
                )?,
                None => transaction.execute(
                    "DELETE FROM share WHERE pool = ?1 AND kind = ?2 AND grantee = ?3",
                    params![pool.id, kind, grantee],
                )?,
            };
            let share = access.map_or("nothing", Access::word);
            change.note(transaction, pool.id, "share", &format!("{kind} {grantee}: {share}"))
        })
    }
}

fn name_taken(pool: &Pool) -> PoolError {
    let remedy = format!("choose another name, or release that one: bivouac pool release {}", pool.name);
    PoolError::refused(&pool.name, "there is one of that name, whose time may be over", remedy)
}
