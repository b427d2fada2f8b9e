//! Ends of pools: what is over is noted, what was over for long enough is removed.

use serde::Serialize;

use crate::attached;
use crate::changes::now;
use crate::database::{Done, rules};
use crate::reading::{COLUMNS, pools};
use crate::sql::{Transaction, params};
use crate::{Change, Pool, PoolResult, Pools, State};

/// What is due for a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Due {
    /// Its end is noted; it can be restored from now on for the time of grace.
    Ends,
    /// It is removed.
    Removal,
    /// It would be removed, but a formation has it.
    Attached,
    /// It would be removed, but that is for its owner's own command.
    Owner,
    /// It would be removed, but the clock has jumped, or nobody looked for long: the next look decides.
    Unsure,
    /// Its end was noted while the clock was ahead, and is still to come: it lives again.
    Revives,
}

/// What became of a pool.
#[derive(Debug)]
pub struct Outcome {
    /// Which.
    pub pool: Pool,
    /// What was due.
    pub due: Due,
    /// What went wrong with its removal; the next command goes on with it.
    pub failed: Option<String>,
}

const LOOK: &str = "expire";

impl Pools {
    /// Notes ends, and removes what ended longer ago than the time of grace; with `dry` only says what it would do. Data is removed
    /// by `remove`, only that of the caller, only directories that were made for pools, and never of what is attached.
    ///
    /// A clock that jumps removes nothing: the last look must have seen the same.
    ///
    /// # Errors
    /// That the database cannot be changed.
    pub fn expire(
        &mut self,
        change: &Change<'_>,
        dry: bool,
        mut remove: impl FnMut(&Pool) -> Result<(), String>,
    ) -> PoolResult<Vec<Outcome>> {
        let decide = |transaction: &Transaction<'_>| -> Done<Vec<Outcome>> {
            let looked = last_look(transaction, change)?;
            let rules = rules(transaction)?;
            let planned = format!("SELECT {COLUMNS} FROM pool WHERE state <> 'removed' ORDER BY id");
            let mut all = Vec::new();
            let planned = pools(transaction, &planned, &[])?;
            for pool in planned.iter().filter(|pool| pool.is_own(change.who)).cloned() {
                let gone = |at_s: i64| pool.ended_s.is_some_and(|ended| at_s >= rules.end_of_grace(ended));
                let due = match pool.state {
                    State::Live if change.now_s >= pool.expires_s => Due::Ends,
                    State::Expired if change.now_s < pool.expires_s && !is_taken(&pool, &planned) => {
                        Due::Revives
                    }
                    // Whoever may write the database can say so of a pool that is in use.
                    State::Removing if !attached::of(transaction, pool.id)?.is_empty() => Due::Attached,
                    State::Removing => Due::Removal,
                    State::Released | State::Expired if gone(change.now_s) => match looked {
                        _ if !attached::of(transaction, pool.id)?.is_empty() => Due::Attached,
                        _ if pool.is_made && pool.owner != change.who.uid => Due::Owner,
                        Some(looked) if gone(looked) => Due::Removal,
                        _ => Due::Unsure,
                    },
                    _ => continue,
                };
                let is_mine = pool.owner == change.who.uid || !pool.is_made;
                let due = if due == Due::Removal && !is_mine { Due::Owner } else { due };
                all.push(Outcome { pool, due, failed: None });
            }
            if !dry {
                all.iter().try_for_each(|outcome| mark(transaction, change, outcome))?;
                note_look(transaction, change)?;
            }
            Ok(all)
        };
        let mut all = self.whole(decide)?;
        if dry {
            return Ok(all);
        }
        for outcome in all.iter_mut().filter(|outcome| outcome.due == Due::Removal) {
            let removed = if outcome.pool.is_made { remove(&outcome.pool) } else { Ok(()) };
            match removed {
                Ok(()) => {
                    outcome.pool = self.whole(|transaction| removal(transaction, change, outcome.pool.id))?
                }
                Err(cause) => outcome.failed = Some(cause),
            }
        }
        Ok(all)
    }
}

/// Whether the name of a pool is another one's by now.
fn is_taken(pool: &Pool, all: &[Pool]) -> bool {
    all.iter()
        .any(|other| other.state == State::Live && (other.owner, &other.name) == (pool.owner, &pool.name))
}

fn mark(transaction: &Transaction<'_>, change: &Change<'_>, outcome: &Outcome) -> Done<()> {
    let id = outcome.pool.id;
    match outcome.due {
        Due::Ends => {
            transaction.execute(
                "UPDATE pool SET state = 'expired', ended_s = ?2 WHERE id = ?1",
                params![id, change.now_s],
            )?;
            change.note(transaction, id, "expire", "")
        }
        Due::Revives => {
            transaction
                .execute("UPDATE pool SET state = 'live', ended_s = NULL WHERE id = ?1", params![id])?;
            change.note(transaction, id, "revive", "the clock was ahead")
        }
        // From here on it cannot be restored: some of its data may be gone.
        Due::Removal => {
            transaction.execute("UPDATE pool SET state = 'removing' WHERE id = ?1", params![id])?;
            Ok(())
        }
        Due::Attached | Due::Owner | Due::Unsure => Ok(()),
    }
}

fn removal(transaction: &Transaction<'_>, change: &Change<'_>, id: i64) -> Done<Pool> {
    // Another command may have done it at the same time.
    let changed = transaction
        .execute("UPDATE pool SET state = 'removed' WHERE id = ?1 AND state = 'removing'", params![id])?;
    if changed > 0 {
        change.note(transaction, id, "remove", "")?;
    }
    now(transaction, id)
}

/// When this user's command looked last. Looks of others do not count: their clocks are not this one.
fn last_look(transaction: &Transaction<'_>, change: &Change<'_>) -> Done<Option<i64>> {
    let order = "SELECT at_s FROM event WHERE pool IS NULL AND what = ?1 AND uid = ?2";
    Ok(transaction.row(order, params![LOOK, change.who.uid], |row| row.get(0))?)
}

fn note_look(transaction: &Transaction<'_>, change: &Change<'_>) -> Done<()> {
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
