//! A change of a pool: one transaction with its event, so a command that is killed has done all of it or nothing, and a
//! request that is sent again is recognised.

use crate::database::{TransactionError, TransactionResult};
use crate::reading::{by_id, done_before, latest};
use crate::sql::{Transaction, params};
use crate::{Caller, Pool, PoolError, PoolRef, PoolResult, Pools};

/// The origin of a change: the user, the time, the request.
#[derive(Clone, Debug)]
pub struct ChangeOrigin<'a> {
    /// The caller.
    pub who: &'a Caller,
    /// The time, in seconds since 1970.
    pub now_s: i64,
    /// Idempotency key: identifies this change among all of the user, if it may be repeated.
    pub request: Option<&'a str>,
}

impl ChangeOrigin<'_> {
    pub(crate) fn key(&self) -> Option<String> {
        self.request.map(|request| format!("{}:{request}", self.who.uid))
    }

    /// Returns the pool that this very request has changed before.
    pub(crate) fn before(&self, transaction: &Transaction<'_>) -> TransactionResult<Option<Pool>> {
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
    ) -> TransactionResult<()> {
        transaction.execute(
            "INSERT INTO event (pool, at_s, uid, what, detail, request) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![pool, self.now_s, self.who.uid, what, detail, self.key()],
        )?;
        Ok(())
    }
}

impl Pools {
    /// Changes one pool in a transaction, once per request.
    pub(crate) fn change(
        &mut self,
        change: &ChangeOrigin<'_>,
        meant: &PoolRef,
        act: impl FnOnce(&Transaction<'_>, &Pool) -> TransactionResult<()>,
    ) -> PoolResult<Pool> {
        self.in_transaction(|transaction| {
            // Before anything is checked: what the first execution did may be the reason to refuse a second one.
            if let Some(pool) = change.before(transaction)? {
                return Ok(pool);
            }
            let pool = latest(transaction, change.who, meant)?;
            let pool = pool.ok_or_else(|| PoolError::NotFound(meant.to_string()))?;
            act(transaction, &pool)?;
            reread(transaction, pool.id)
        })
    }
}

/// Returns the pool as this transaction has it.
pub(crate) fn reread(transaction: &Transaction<'_>, id: i64) -> TransactionResult<Pool> {
    by_id(transaction, id)?.ok_or_else(TransactionError::no_row)
}
