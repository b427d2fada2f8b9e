//! What changes a pool. Each change is one transaction with its event, so that a command that is killed has done all of it or
//! nothing; one that is sent again with the same request is recognised.

use crate::database::{Done, Undone, rules};
use crate::reading::{by_id, done_before, latest};
use crate::sql::{Transaction, params};
use crate::{
    Access, Grantee, Pool, PoolError, PoolName, PoolRef, PoolResult, Pools, Reminder, Share, State, Who,
};

/// Who changes what, and when.
#[derive(Clone, Debug)]
pub struct Change<'a> {
    /// Who.
    pub who: &'a Who,
    /// The time, in seconds since 1970.
    pub now_s: i64,
    /// What tells this change from all others of this user, if it may be asked for again.
    pub request: Option<&'a str>,
}

/// A pool that is to be.
#[derive(Clone, Debug)]
pub struct New {
    /// Its name.
    pub name: PoolName,
    /// Group of who makes it.
    pub gid: u32,
    /// What people read about it.
    pub title: String,
    /// Days that it is given, if not the usual number.
    pub days: Option<u32>,
    /// Directory or URL that is there; without it one is made.
    pub source: Option<Vec<u8>>,
    /// Bytes, as far as is known.
    pub bytes: Option<u64>,
    /// Files, as far as is known.
    pub files: Option<u64>,
    /// Who is reminded of its end, and when.
    pub reminder: Option<Reminder>,
}

impl Change<'_> {
    pub(crate) fn key(&self) -> Option<String> {
        self.request.map(|request| format!("{}:{request}", self.who.uid))
    }

    /// The pool that this very request has changed before.
    fn before(&self, transaction: &Transaction<'_>) -> Done<Option<Pool>> {
        match done_before(transaction, self.key().as_deref())? {
            Some(id) => Ok(by_id(transaction, id)?),
            None => Ok(None),
        }
    }

    pub(crate) fn note(
        &self,
        transaction: &Transaction<'_>,
        pool: i64,
        what: &str,
        detail: &str,
    ) -> Done<()> {
        transaction.execute(
            "INSERT INTO event (pool, at_s, uid, what, detail, request) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![pool, self.now_s, self.who.uid, what, detail, self.key()],
        )?;
        Ok(())
    }
}

impl Pools {
    /// Makes a pool. `make` makes its directory, if it has no source, and answers its path and its number; it is called while the
    /// change is not yet done, and again with the same number if it came to nothing.
    ///
    /// # Errors
    /// That there is one of that name, or what the rules or the disk do not allow.
    pub fn create(
        &mut self,
        change: &Change<'_>,
        new: &New,
        make: impl FnOnce(i64) -> PoolResult<(Vec<u8>, u64)>,
    ) -> PoolResult<Pool> {
        self.whole(|transaction| {
            if let Some(pool) = change.before(transaction)? {
                return Ok(pool);
            }
            let meant = PoolRef { owner: None, name: new.name.clone(), id: None };
            if let Some(pool) = latest(transaction, change.who, &meant)?.filter(|pool| pool.state == State::Live) {
                return Err(name_taken(&pool).into());
            }
            let rules = rules(transaction)?;
            let expires_s = rules.end(change.who, &new.name, change.now_s, new.days)?;
            let count = |number: Option<u64>| number.map(|number| i64::try_from(number).unwrap_or(i64::MAX));
            // The next number, and not that of a counter, which would go on over a change that came to nothing.
            let id = transaction.row(
                "INSERT INTO pool (id, name, owner, gid, title, source, is_made, inode, bytes, files, state, created_s,
                 expires_s, extensions_left, remind_days, mail) VALUES ((SELECT coalesce(max(id), 0) + 1 FROM pool), ?1, ?2, ?3, ?4, ?10, 0, 0,
                 ?5, ?6, 'live', ?7, ?8, ?9, ?11, ?12) RETURNING id",
                params![
                    new.name.as_str(),
                    change.who.uid,
                    new.gid,
                    new.title,
                    count(new.bytes),
                    count(new.files),
                    change.now_s,
                    expires_s,
                    rules.extensions,
                    Vec::<u8>::new(),
                    new.reminder.as_ref().map(|to| to.days),
                    new.reminder.as_ref().map(|to| to.mail.as_str())
                ],
                |row| row.get::<i64>(0),
            )?;
            let id = id.ok_or_else(Undone::none)?;
            let (source, inode) = match &new.source {
                Some(source) => (source.clone(), 0),
                None => make(id)?,
            };
            transaction.execute(
                "UPDATE pool SET source = ?2, is_made = ?3, inode = ?4 WHERE id = ?1",
                params![id, source, new.source.is_none(), inode.cast_signed()],
            )?;
            change.note(transaction, id, "create", &String::from_utf8_lossy(&source))?;
            now(transaction, id)
        })
    }

    /// Gives a pool more time, from now on. It never gets less.
    ///
    /// # Errors
    /// That it is not the caller's, has ended, or has been extended as often as is allowed.
    pub fn extend(&mut self, change: &Change<'_>, meant: &PoolRef, days: Option<u32>) -> PoolResult<Pool> {
        self.change(change, meant, |transaction, pool| {
            pool.must_be_own(change.who)?;
            pool.must_live(meant, change.now_s)?;
            let end = rules(transaction)?.end(change.who, &meant.name, change.now_s, days)?;
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
    pub fn release(&mut self, change: &Change<'_>, meant: &PoolRef) -> PoolResult<Pool> {
        self.change(change, meant, |transaction, pool| {
            pool.must_be_own(change.who)?;
            if pool.state != State::Live {
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
    pub fn restore(&mut self, change: &Change<'_>, meant: &PoolRef, days: Option<u32>) -> PoolResult<Pool> {
        self.change(change, meant, |transaction, pool| {
            pool.must_be_own(change.who)?;
            match pool.state_at(change.now_s) {
                State::Released | State::Expired => {}
                State::Live => {
                    let remedy = "an earlier one is restored by its number, NAME#7, when this one is released; see: bivouac pool \
                                  list";
                    return Err(PoolError::refused(meant, "it lives", remedy).into());
                }
                state => {
                    let cause = format!("it is {}", state.word());
                    return Err(PoolError::refused(meant, cause, "make a new one: bivouac pool create").into());
                }
            }
            let plain = PoolRef { owner: Some(pool.owner), name: meant.name.clone(), id: None };
            if let Some(other) = latest(transaction, change.who, &plain)?
                && other.state == State::Live
                && other.id != pool.id
            {
                let remedy = format!("release that one first: bivouac pool release {}", other.name);
                return Err(PoolError::refused(meant, "another one has its name now", remedy).into());
            }
            let left = pool.one_extension_less(change.who)?;
            let end = rules(transaction)?.end(change.who, &meant.name, change.now_s, days)?;
            transaction.execute(
                "UPDATE pool SET state = 'live', ended_s = NULL, expires_s = ?2, extensions_left = ?3 WHERE id = ?1",
                params![pool.id, end.max(pool.expires_s), left],
            )?;
            change.note(transaction, pool.id, "restore", "")
        })
    }

    /// Gives somebody a right to a pool, or takes it.
    ///
    /// # Errors
    /// That it is not the caller's, or has ended.
    pub fn share(
        &mut self,
        change: &Change<'_>,
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

    /// Changes one pool, once.
    pub(crate) fn change(
        &mut self,
        change: &Change<'_>,
        meant: &PoolRef,
        act: impl FnOnce(&Transaction<'_>, &Pool) -> Done<()>,
    ) -> PoolResult<Pool> {
        self.whole(|transaction| {
            if let Some(pool) = change.before(transaction)? {
                return Ok(pool);
            }
            let pool = latest(transaction, change.who, meant)?;
            let pool = pool.ok_or_else(|| PoolError::NotFound(meant.to_string()))?;
            act(transaction, &pool)?;
            now(transaction, pool.id)
        })
    }
}

fn name_taken(pool: &Pool) -> PoolError {
    let remedy = format!("choose another name, or release that one: bivouac pool release {}", pool.name);
    PoolError::refused(&pool.name, "there is one of that name, whose time may be over", remedy)
}

pub(crate) fn now(transaction: &Transaction<'_>, id: i64) -> Done<Pool> {
    by_id(transaction, id)?.ok_or_else(Undone::none)
}

/// Rights in one line.
impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.to {
            Grantee::User(id) => write!(f, "user {id}: {}", self.access.word()),
            Grantee::Group(id) => write!(f, "group {id}: {}", self.access.word()),
            Grantee::All => write!(f, "all: {}", self.access.word()),
        }
    }
}
