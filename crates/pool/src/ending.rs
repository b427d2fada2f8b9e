//! Ends of pools: what is over is noted, what was over for long enough is removed.

use serde::Serialize;

use crate::attached;
use crate::change::reread;
use crate::database::{TransactionResult, rules};
use crate::reading::{COLUMNS, pools};
use crate::sql::{Transaction, params};
use crate::{ChangeOrigin, Pool, PoolResult, PoolState, Pools};

/// Action that is due for a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExpiryAction {
    /// Its end is noted; it can be restored from now on for the time of grace.
    Ends,
    /// It is removed.
    Removal,
    /// Its removal is deferred, because a formation has it attached.
    Attached,
    /// Its removal is left to a command of its owner.
    Owner,
    /// Its removal is deferred to the next command, because the clock has jumped or no command ran for long.
    Unsure,
    /// Its end was noted while the clock was ahead, and is still to come: it lives again.
    Revives,
}

/// Result of an expiry check of a pool.
#[derive(Debug)]
pub struct Outcome {
    /// The pool.
    pub pool: Pool,
    /// The action.
    pub due: ExpiryAction,
    /// Failure of the removal; the next command continues it.
    pub failed: Option<String>,
}

const LOOK: &str = "expire";

impl Pools {
    /// Marks expired pools as ended, and removes those whose time of grace is over; with `dry` only returns the
    /// actions. Data is removed by `remove`, only that of the caller, only
    /// directories that were made for pools, and never of what is attached.
    ///
    /// A clock that jumps removes nothing: the last look must have seen the same.
    pub fn expire(
        &mut self,
        change: &ChangeOrigin<'_>,
        dry: bool,
        mut remove: impl FnMut(&Pool) -> Result<(), String>,
    ) -> PoolResult<Vec<Outcome>> {
        let decide = |transaction: &Transaction<'_>| -> TransactionResult<Vec<Outcome>> {
            let looked = last_look(transaction, change)?;
            let rules = rules(transaction)?;
            let planned = format!("SELECT {COLUMNS} FROM pool WHERE state <> 'removed' ORDER BY id");
            let mut all = Vec::new();
            let planned = pools(transaction, &planned, &[])?;
            for pool in planned.iter().filter(|pool| pool.is_own(change.who)).cloned() {
                let gone = |at_s: i64| pool.ended_s.is_some_and(|ended| at_s >= rules.end_of_grace(ended));
                let due = match pool.state {
                    PoolState::Live if change.now_s >= pool.expires_s => ExpiryAction::Ends,
                    PoolState::Expired if change.now_s < pool.expires_s && !is_taken(&pool, &planned) => {
                        ExpiryAction::Revives
                    }
                    // Anybody with write access to the database can set this state, so attachments are checked again.
                    PoolState::Removing if !attached::of(transaction, pool.id)?.is_empty() => {
                        ExpiryAction::Attached
                    }
                    PoolState::Removing => ExpiryAction::Removal,
                    PoolState::Released | PoolState::Expired if gone(change.now_s) => match looked {
                        _ if !attached::of(transaction, pool.id)?.is_empty() => ExpiryAction::Attached,
                        _ if pool.is_made && pool.owner != change.who.uid => ExpiryAction::Owner,
                        // Two checks of this user must both find the time of grace over: one alone could be a clock
                        // that jumped ahead.
                        Some(looked) if gone(looked) => ExpiryAction::Removal,
                        _ => ExpiryAction::Unsure,
                    },
                    _ => continue,
                };
                let is_mine = pool.owner == change.who.uid || !pool.is_made;
                let due = if due == ExpiryAction::Removal && !is_mine { ExpiryAction::Owner } else { due };
                all.push(Outcome { pool, due, failed: None });
            }
            if !dry {
                all.iter().try_for_each(|outcome| mark(transaction, change, outcome))?;
                // Recorded in the same transaction as the marks, so that a crash repeats both.
                note_look(transaction, change)?;
            }
            Ok(all)
        };
        let mut all = self.in_transaction(decide)?;
        if dry {
            return Ok(all);
        }
        for outcome in all.iter_mut().filter(|outcome| outcome.due == ExpiryAction::Removal) {
            assert_ne!(outcome.pool.state, PoolState::Live, "a live pool would be removed");
            assert!(
                !outcome.pool.is_made || outcome.pool.owner == change.who.uid,
                "the data of another user's pool would be removed"
            );
            // Outside of a transaction, as it may take hours; in its state nobody can attach or restore the pool.
            let removed = if outcome.pool.is_made { remove(&outcome.pool) } else { Ok(()) };
            match removed {
                Ok(()) => {
                    outcome.pool =
                        self.in_transaction(|transaction| removal(transaction, change, outcome.pool.id))?
                }
                Err(cause) => outcome.failed = Some(cause),
            }
        }
        Ok(all)
    }
}

/// Returns whether another pool has the name now.
fn is_taken(pool: &Pool, all: &[Pool]) -> bool {
    all.iter()
        .any(|other| other.state == PoolState::Live && (other.owner, &other.name) == (pool.owner, &pool.name))
}

fn mark(
    transaction: &Transaction<'_>,
    change: &ChangeOrigin<'_>,
    outcome: &Outcome,
) -> TransactionResult<()> {
    let id = outcome.pool.id;
    match outcome.due {
        ExpiryAction::Ends => {
            assert_eq!(outcome.pool.state, PoolState::Live, "only a live pool ends");
            transaction.execute(
                "UPDATE pool SET state = 'expired', ended_s = ?2 WHERE id = ?1",
                params![id, change.now_s],
            )?;
            change.note(transaction, id, "expire", "")
        }
        ExpiryAction::Revives => {
            // What its user released stays released, whatever the clock says.
            assert_eq!(outcome.pool.state, PoolState::Expired, "only an expired pool revives");
            transaction
                .execute("UPDATE pool SET state = 'live', ended_s = NULL WHERE id = ?1", params![id])?;
            change.note(transaction, id, "revive", "the clock was ahead")
        }
        // Not restorable from here on: the removal of its data may have started.
        ExpiryAction::Removal => {
            transaction.execute("UPDATE pool SET state = 'removing' WHERE id = ?1", params![id])?;
            Ok(())
        }
        ExpiryAction::Attached | ExpiryAction::Owner | ExpiryAction::Unsure => Ok(()),
    }
}

fn removal(transaction: &Transaction<'_>, change: &ChangeOrigin<'_>, id: i64) -> TransactionResult<Pool> {
    // Another command may have completed the removal at the same time.
    let changed = transaction
        .execute("UPDATE pool SET state = 'removed' WHERE id = ?1 AND state = 'removing'", params![id])?;
    assert!(changed <= 1, "one removal changed {changed} pools");
    if changed > 0 {
        change.note(transaction, id, "remove", "")?;
    }
    reread(transaction, id)
}

/// Returns the time of this user's last expiry check. Checks of other users do not count, because their clocks may
/// differ.
fn last_look(transaction: &Transaction<'_>, change: &ChangeOrigin<'_>) -> TransactionResult<Option<i64>> {
    let order = "SELECT at_s FROM event WHERE pool IS NULL AND what = ?1 AND uid = ?2";
    Ok(transaction.row(order, params![LOOK, change.who.uid], |row| row.get(0))?)
}

fn note_look(transaction: &Transaction<'_>, change: &ChangeOrigin<'_>) -> TransactionResult<()> {
    transaction.execute(
        "DELETE FROM event WHERE pool IS NULL AND what = ?1 AND uid = ?2",
        params![LOOK, change.who.uid],
    )?;
    transaction.execute(
        "INSERT INTO event (pool, at_s, uid, what, detail) VALUES (NULL, ?1, ?2, ?3, '')",
        params![change.now_s, change.who.uid, LOOK],
    )?;
    Ok(())
}
