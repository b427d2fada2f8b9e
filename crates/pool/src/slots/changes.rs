//! What changes slots.

use bivouac_schedule::{Event, Limits, Refusal, Schedule, Slot};
use bivouac_types::units::{format_count, format_size};

use super::rows::{by_id, end, limits, placed, schedule, set_limits, signed, slots, write};
use super::{Announcement, Begun, Expected, SlotState, Slotted, is_unset};
use crate::database::{Done, Undone};
use crate::reading::by_id as pool_by_id;
use crate::sql::{Connection, SqlResult, Transaction, params};
use crate::{Access, Change, Pool, PoolError, PoolRef, PoolResult, Pools, Way, Who};

impl Pools {
    /// Says what a job needs, and gets a slot for it.
    ///
    /// # Errors
    /// That its deadline cannot be met beside what was promised to others, with what could be had; that nobody has said what
    /// site storage gives; that the pool may not be used so.
    pub fn announce(&mut self, change: &Change<'_>, what: &Announcement) -> PoolResult<Slotted> {
        self.whole(|transaction| {
            if let Some(before) = announced_before(transaction, change)? {
                return named(transaction, change, before);
            }
            if is_unset(&limits(transaction)?) {
                let remedy = "set it: bivouac pool storage --bandwidth RATE";
                return Err(storage("has no bandwidth set for stages", remedy).into());
            }
            if what.deadline_s <= what.earliest_s.max(change.now_s) {
                let cause = "is to be done before it can begin";
                return Err(
                    PoolError::staging("stage", cause, "name a later --by, or an earlier --from").into()
                );
            }
            if let Some(pool) = what.pool {
                let pool =
                    pool_by_id(transaction, pool)?.ok_or_else(|| PoolError::NotFound(pool.to_string()))?;
                pool.must_live(&pool.meant()?, change.now_s)?;
                pool.must_allow(change.who, if what.way == Way::In { Access::Ro } else { Access::Rw })?;
            }
            let id = insert(transaction, change, what)?;
            place(transaction, change.now_s, id)?.map_err(|refusal| match refusal {
                Refusal::TooLate(could) | Refusal::NotYet(could) => too_late(what, &could),
                Refusal::Unknown => PoolError::staging("stage", "is not known", "announce it again"),
            })?;
            if let Some(pool) = what.pool {
                let detail = format!("{} by {} s as slot {id}", what.way.word(), what.deadline_s);
                Change { request: None, ..change.clone() }.note(transaction, pool, "announce", &detail)?;
            }
            named(transaction, change, id)
        })
    }

    /// Takes back what was announced. What has been taken back is taken back.
    ///
    /// # Errors
    /// That it is not the caller's, or is over.
    pub fn withdraw(&mut self, change: &Change<'_>, id: i64) -> PoolResult<Slotted> {
        self.whole(|transaction| {
            let slot = own(transaction, change.who, id)?;
            match slot.state {
                SlotState::Withdrawn => Ok(slot),
                state if state.is_over() => Err(over(&slot).into()),
                _ => finish(transaction, change, id, Event::Withdraw(id), SlotState::Withdrawn),
            }
        })
    }

    /// A stage wants to begin, or asks for the rate that it has now, which may be none; one that was killed goes on so.
    ///
    /// # Errors
    /// That it is not the caller's, or is over.
    pub fn begin(&mut self, change: &Change<'_>, id: i64) -> PoolResult<Begun> {
        self.whole(|transaction| {
            let slot = own(transaction, change.who, id)?;
            if slot.state.is_over() {
                return Err(over(&slot).into());
            }
            let mut plan = schedule(transaction)?;
            let (is_now, given_up) = match plan.apply(change.now_s, Event::Begin(id)) {
                Ok(answer) => (true, answer.given_up),
                Err(Refusal::NotYet(_) | Refusal::TooLate(_)) => (false, Vec::new()),
                Err(Refusal::Unknown) => {
                    return Err(over(&Slotted { state: SlotState::GivenUp, ..slot }).into());
                }
            };
            write(transaction, &plan, &given_up)?;
            let slot = found(transaction, id)?;
            Ok(if is_now { Begun::Now(slot) } else { Begun::NotYet(slot) })
        })
    }

    /// A stage is done, which may be said again.
    ///
    /// # Errors
    /// That it is not the caller's, or never began.
    pub fn done(&mut self, change: &Change<'_>, id: i64) -> PoolResult<Slotted> {
        self.whole(|transaction| {
            let slot = own(transaction, change.who, id)?;
            match slot.state {
                SlotState::Done => Ok(slot),
                SlotState::Running => finish(transaction, change, id, Event::End(id), SlotState::Done),
                // It took so long that it was given up, but it is done.
                SlotState::GivenUp => {
                    end(transaction, id, SlotState::Done, Some(change.now_s))?;
                    found(transaction, id)
                }
                state => {
                    let cause = format!("is {}, and has not begun", state.word());
                    Err(PoolError::slot(id, cause, "let it begin first: bivouac pool begin").into())
                }
            }
        })
    }

    /// Takes notice of what the batch system says of a job; answers what has changed.
    ///
    /// # Errors
    /// That it cannot be written down.
    pub fn expect(&mut self, change: &Change<'_>, id: i64, expected: Expected) -> PoolResult<Slotted> {
        self.whole(|transaction| {
            let slot = own(transaction, change.who, id)?;
            let moved = |transaction: &Transaction<'_>, event: Event| -> Done<Slotted> {
                let mut plan = schedule(transaction)?;
                let answer = plan.apply(change.now_s, event).map_err(|_| over(&slot))?;
                write(transaction, &plan, &answer.given_up)?;
                found(transaction, id)
            };
            match expected {
                Expected::Gone if slot.state.is_over() => Ok(slot),
                // What was to go out has to, whether the job is there or not.
                Expected::Gone if slot.way == Way::Out => Ok(slot),
                Expected::Gone => finish(transaction, change, id, Event::Withdraw(id), SlotState::Withdrawn),
                Expected::Start { .. } if slot.state == SlotState::Withdrawn => Ok(slot),
                // It was put back into the queue: what it needs, it needs again. The job starts when it starts: late is better than
                // never. What is being copied goes on.
                Expected::Start { at_s, restarts }
                    if restarts > slot.restarts && slot.state != SlotState::Running =>
                {
                    transaction.execute(
                        "UPDATE slot SET state = 'waiting', restarts = ?2, deadline_s = ?3, or_later = 1 WHERE id = ?1",
                        params![id, restarts, at_s],
                    )?;
                    place(transaction, change.now_s, id)?.map_err(|_| over(&slot))?;
                    found(transaction, id)
                }
                Expected::Start { at_s, .. } if slot.state.is_over() || slot.deadline_s == at_s => Ok(slot),
                Expected::Start { at_s, .. } => {
                    moved(transaction, Event::Move { id, earliest_s: slot.earliest_s, deadline_s: at_s })
                }
            }
        })
    }

    /// A pool that somebody wants to copy from, or to.
    ///
    /// # Errors
    /// That there is none, that it has ended, or may not be used so.
    pub fn usable(&self, who: &Who, meant: &PoolRef, access: Access, now_s: i64) -> PoolResult<Pool> {
        let pool = self.find(who, meant)?;
        pool.must_live(meant, now_s)?;
        pool.must_allow(who, access)?;
        pool.must_be_on_site()?;
        Ok(pool)
    }

    /// What site storage gives to stages.
    ///
    /// # Errors
    /// That it cannot be read.
    pub fn storage(&self) -> PoolResult<Limits> {
        limits(&self.connection).map_err(|error| self.failed(&error))
    }

    /// Says what site storage gives to stages; all that wait get slots by that.
    ///
    /// # Errors
    /// That it cannot be written down.
    pub fn set_storage(&mut self, change: &Change<'_>, limits: &Limits) -> PoolResult<()> {
        self.whole(|transaction| {
            set_limits(transaction, limits)?;
            // Read anew, so that files count as they do now.
            let mut plan = schedule(transaction)?;
            let answer = plan.apply(change.now_s, Event::Limit(*limits)).map_err(|_| Undone::none())?;
            write(transaction, &plan, &answer.given_up)
        })
    }

    /// All slots as they are now, by their begin; those that are over only on demand. Nothing is written.
    ///
    /// # Errors
    /// That they cannot be read.
    pub fn slots(&self, who: &Who, now_s: i64, with_over: bool) -> PoolResult<Vec<Slotted>> {
        let read = || -> SqlResult<Vec<Slotted>> {
            let mut plan = schedule(&self.connection)?;
            let given_up = plan.apply(now_s, Event::Look).map(|answer| answer.given_up).unwrap_or_default();
            let mut all = slots(&self.connection, "ORDER BY id", &[])?;
            for slot in &mut all {
                match plan.entries().iter().find(|entry| entry.request.id == slot.id) {
                    Some(entry) => *slot = placed(slot.clone(), entry),
                    None if given_up.contains(&slot.id) => slot.state = SlotState::GivenUp,
                    None => {}
                }
                slot.pool_name = pool_name(&self.connection, who, slot)?;
                if !slot.is_own(who) {
                    (slot.title, slot.job) = (String::new(), None);
                }
            }
            all.retain(|slot| with_over || !slot.state.is_over());
            all.sort_by_key(|slot| (slot.begin_s, slot.id));
            Ok(all)
        };
        read().map_err(|error| self.failed(&error))
    }
}

fn announced_before(transaction: &Transaction<'_>, change: &Change<'_>) -> Done<Option<i64>> {
    let order = "SELECT id FROM slot WHERE request = ?1";
    let Some(key) = change.key() else { return Ok(None) };
    Ok(transaction.row(order, params![key], |row| row.get(0))?)
}

fn insert(transaction: &Transaction<'_>, change: &Change<'_>, what: &Announcement) -> Done<i64> {
    let id = transaction.row(
        "INSERT INTO slot (uid, pool, way, title, bytes, files, earliest_s, deadline_s, rate_max, or_later, job, state,
         begin_s, end_s, rate, announced_s, request, restarts, \"left\", given, rank_s, promised)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, 'waiting', 0, 0, 0, ?12, ?13, ?14, 0, 0, 0, 0) RETURNING id",
        params![
            change.who.uid,
            what.pool,
            what.way.word(),
            what.title,
            signed(what.bytes),
            signed(what.files),
            what.earliest_s,
            what.deadline_s,
            what.rate_max.map(signed),
            what.or_later,
            what.job,
            change.now_s,
            change.key(),
            what.restarts
        ],
        |row| row.get(0),
    )?;
    id.ok_or_else(Undone::none)
}

/// Gives a slot to what is in the table, but not in the schedule yet.
fn place(transaction: &Transaction<'_>, now_s: i64, id: i64) -> Done<Result<(), Refusal>> {
    let all = schedule(transaction)?;
    let Some(new) = all.entries().iter().find(|entry| entry.request.id == id) else {
        return Ok(Err(Refusal::Unknown));
    };
    let others = all.entries().iter().filter(|entry| entry.request.id != id).copied();
    let mut plan = Schedule::new(*all.limits(), others.collect(), all.looked_s());
    match plan.apply(now_s, Event::Announce(new.request)) {
        Ok(answer) => write(transaction, &plan, &answer.given_up).map(Ok),
        Err(refusal) => Ok(Err(refusal)),
    }
}

/// Ends a stage, for whatever reason.
fn finish(
    transaction: &Transaction<'_>,
    change: &Change<'_>,
    id: i64,
    event: Event,
    state: SlotState,
) -> Done<Slotted> {
    let mut plan = schedule(transaction)?;
    // It may have been given up at this very moment: it ends all the same.
    let given_up = plan.apply(change.now_s, event).map(|answer| answer.given_up).unwrap_or_default();
    write(transaction, &plan, &given_up)?;
    end(transaction, id, state, (state == SlotState::Done).then_some(change.now_s))?;
    let slot = found(transaction, id)?;
    if let Some(pool) = slot.pool {
        let detail = format!("{} as slot {id}: {}", slot.way.word(), state.word());
        Change { request: None, ..change.clone() }.note(transaction, pool, "stage", &detail)?;
    }
    Ok(slot)
}

fn own(transaction: &Transaction<'_>, who: &Who, id: i64) -> Done<Slotted> {
    let slot = by_id(transaction, id)?.filter(|slot| slot.is_own(who));
    let none = || PoolError::slot(id, "there is none of that number of yours", "see: bivouac pool slots");
    Ok(slot.ok_or_else(none)?)
}

fn found(transaction: &Transaction<'_>, id: i64) -> Done<Slotted> {
    by_id(transaction, id)?.ok_or_else(Undone::none)
}

fn named(transaction: &Transaction<'_>, change: &Change<'_>, id: i64) -> Done<Slotted> {
    let slot = found(transaction, id)?;
    Ok(Slotted { pool_name: pool_name(transaction, change.who, &slot)?, ..slot })
}

/// How somebody means the pool of a slot, if they may see it.
fn pool_name(connection: &Connection, who: &Who, slot: &Slotted) -> SqlResult<Option<String>> {
    let Some(id) = slot.pool else { return Ok(None) };
    let seen = pool_by_id(connection, id)?.filter(|pool| pool.access(who).is_some());
    Ok(seen.map(|pool| if pool.owner == who.uid { pool.name } else { pool.full_name() }))
}

fn over(slot: &Slotted) -> PoolError {
    PoolError::slot(slot.id, format!("is {}", slot.state.word()), "announce it again: bivouac pool announce")
}

fn too_late(what: &Announcement, could: &Slot) -> PoolError {
    let late_s = could.end_s.saturating_sub(what.deadline_s).unsigned_abs();
    let late = match late_s {
        0..7200 => format_count(late_s.div_ceil(60), "minute"),
        _ => format_count(late_s.div_ceil(3600), "hour"),
    };
    let cause = format!(
        "cannot be done by its deadline beside what was promised to others, but {late} later, at {}/s",
        format_size(could.rate)
    );
    PoolError::staging("stage", cause, "name a later --by, or take what there is: --or-later")
}

fn storage(cause: &str, remedy: &str) -> PoolError {
    PoolError::staging("site storage", cause, remedy)
}
