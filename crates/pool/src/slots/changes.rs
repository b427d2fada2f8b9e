//! Changes of slots.

use bivouac_schedule::{Event, Limits, Schedule, ScheduleError, Slot};
use bivouac_types::units::{format_count, format_size};

use super::rows::{by_id, end, limits, placed, schedule, set_limits, signed, slots, write};
use super::{Announcement, JobForecast, ScheduledStage, SlotState, StartAnswer, is_unset};
use crate::database::{TransactionError, TransactionResult};
use crate::reading::by_id as pool_by_id;
use crate::sql::{Connection, SqlResult, Transaction, params};
use crate::{Access, Caller, ChangeOrigin, Direction, Pool, PoolError, PoolRef, PoolResult, Pools};

impl Pools {
    /// Says what a job needs, and gets a slot for it.
    ///
    /// # Errors
    /// That its deadline cannot be met beside what was promised to others, with what could be had; that nobody has said
    /// what site storage gives; that the pool may not be used so.
    pub fn announce(&mut self, change: &ChangeOrigin<'_>, what: &Announcement) -> PoolResult<ScheduledStage> {
        self.in_transaction(|transaction| {
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
                pool.must_allow(change.who, if what.way == Direction::In { Access::Ro } else { Access::Rw })?;
            }
            let id = insert(transaction, change, what)?;
            place(transaction, change.now_s, id)?.map_err(|refusal| match refusal {
                ScheduleError::TooLate(could) | ScheduleError::NotYet(could) => too_late(what, &could),
                ScheduleError::Unknown => PoolError::staging("stage", "is not known", "announce it again"),
            })?;
            if let Some(pool) = what.pool {
                let detail = format!("{} by {} s as slot {id}", what.way.word(), what.deadline_s);
                // The slot has the key, and is found by it.
                ChangeOrigin { request: None, ..change.clone() }.note(
                    transaction,
                    pool,
                    "announce",
                    &detail,
                )?;
            }
            named(transaction, change, id)
        })
    }

    /// Takes back what was announced. What has been taken back is taken back.
    ///
    /// # Errors
    /// That it is not the caller's, or is over.
    pub fn withdraw(&mut self, change: &ChangeOrigin<'_>, id: i64) -> PoolResult<ScheduledStage> {
        self.in_transaction(|transaction| {
            let slot = own(transaction, change.who, id)?;
            match slot.state {
                SlotState::Withdrawn => Ok(slot),
                state if state.is_over() => Err(over(&slot).into()),
                _ => finish(transaction, change, id, Event::Withdraw(id), SlotState::Withdrawn),
            }
        })
    }

    /// Answers a stage that wants to begin, or asks for the rate that it has now, which may be none; one that was
    /// killed goes on so.
    ///
    /// # Errors
    /// That it is not the caller's, or is over.
    pub fn begin(&mut self, change: &ChangeOrigin<'_>, id: i64) -> PoolResult<StartAnswer> {
        self.in_transaction(|transaction| {
            let slot = own(transaction, change.who, id)?;
            if slot.state.is_over() {
                return Err(over(&slot).into());
            }
            let mut plan = schedule(transaction)?;
            let before = plan.clone();
            let (is_now, given_up) = match plan.apply(change.now_s, Event::Begin(id)) {
                Ok(answer) => (true, answer.given_up),
                Err(ScheduleError::NotYet(_) | ScheduleError::TooLate(_)) => (false, dropped(&before, &plan)),
                Err(ScheduleError::Unknown) => {
                    return Err(over(&ScheduledStage { state: SlotState::GivenUp, ..slot }).into());
                }
            };
            write(transaction, &plan, &given_up)?;
            let slot = found(transaction, id)?;
            Ok(if is_now { StartAnswer::Now(slot) } else { StartAnswer::NotYet(slot) })
        })
    }

    /// Records that a transfer has ended. Idempotent.
    ///
    /// # Errors
    /// That it is not the caller's, or never began.
    pub fn done(&mut self, change: &ChangeOrigin<'_>, id: i64) -> PoolResult<ScheduledStage> {
        self.in_transaction(|transaction| {
            let slot = own(transaction, change.who, id)?;
            match slot.state {
                SlotState::Done => Ok(slot),
                SlotState::Running => finish(transaction, change, id, Event::End(id), SlotState::Done),
                // It was dropped as overdue, and has ended after all.
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

    /// Updates a job from the batch system's information. Returns the changed slot.
    pub fn expect(
        &mut self,
        change: &ChangeOrigin<'_>,
        id: i64,
        expected: JobForecast,
    ) -> PoolResult<ScheduledStage> {
        self.in_transaction(|transaction| {
            let slot = own(transaction, change.who, id)?;
            let moved = |transaction: &Transaction<'_>, event: Event| -> TransactionResult<ScheduledStage> {
                let mut plan = schedule(transaction)?;
                let answer = plan.apply(change.now_s, event).map_err(|_| over(&slot))?;
                write(transaction, &plan, &answer.given_up)?;
                found(transaction, id)
            };
            match expected {
                JobForecast::Gone if slot.state.is_over() => Ok(slot),
                // Output must be copied whether or not the job still exists.
                JobForecast::Gone if slot.way == Direction::Out => Ok(slot),
                JobForecast::Gone => finish(transaction, change, id, Event::Withdraw(id), SlotState::Withdrawn),
                JobForecast::Start { .. } if slot.state == SlotState::Withdrawn => Ok(slot),
                // The job was requeued, so its input is needed again, even after the deadline. A running transfer
                // continues.
                JobForecast::Start { at_s, restarts }
                    if restarts > slot.restarts && slot.state != SlotState::Running =>
                {
                    transaction.execute(
                        "UPDATE slot SET state = 'waiting', restarts = ?2, deadline_s = ?3, or_later = 1 WHERE id = ?1",
                        params![id, restarts, at_s],
                    )?;
                    place(transaction, change.now_s, id)?.map_err(|_| over(&slot))?;
                    found(transaction, id)
                }
                JobForecast::Start { at_s, .. } if slot.state.is_over() || slot.deadline_s == at_s => Ok(slot),
                JobForecast::Start { at_s, .. } => {
                    moved(transaction, Event::Reschedule { id, earliest_s: slot.earliest_s, deadline_s: at_s })
                }
            }
        })
    }

    /// Returns a pool for a transfer, if the caller has this access.
    ///
    /// # Errors
    /// That there is none, that it has ended, or may not be used so.
    pub fn usable(&self, who: &Caller, meant: &PoolRef, access: Access, now_s: i64) -> PoolResult<Pool> {
        let pool = self.find(who, meant)?;
        pool.must_live(meant, now_s)?;
        pool.must_allow(who, access)?;
        pool.must_be_on_site()?;
        Ok(pool)
    }

    /// Returns the bandwidth limits of site storage.
    pub fn storage(&self) -> PoolResult<Limits> {
        limits(&self.connection).map_err(|error| self.failed(&error))
    }

    /// Says what site storage gives to stages; all that wait get slots by that.
    pub fn set_storage(&mut self, change: &ChangeOrigin<'_>, limits: &Limits) -> PoolResult<()> {
        self.in_transaction(|transaction| {
            set_limits(transaction, limits)?;
            // Read again, because the cost of a file has changed.
            let mut plan = schedule(transaction)?;
            let answer =
                plan.apply(change.now_s, Event::Limit(*limits)).map_err(|_| TransactionError::no_row())?;
            write(transaction, &plan, &answer.given_up)
        })
    }

    /// Returns all slots as they are now, by their begin; those that are over only on demand. Nothing is written.
    pub fn slots(&self, who: &Caller, now_s: i64, with_over: bool) -> PoolResult<Vec<ScheduledStage>> {
        let read = || -> SqlResult<Vec<ScheduledStage>> {
            let mut plan = schedule(&self.connection)?;
            let given_up = plan.apply(now_s, Event::Tick).map(|answer| answer.given_up).unwrap_or_default();
            let mut all = slots(&self.connection, "ORDER BY id", &[])?;
            for slot in &mut all {
                match plan.entries().iter().find(|entry| entry.request.id == slot.id) {
                    Some(entry) => *slot = placed(slot.clone(), entry),
                    None if given_up.contains(&slot.id) => slot.state = SlotState::GivenUp,
                    None => {}
                }
                slot.pool_name = pool_name(&self.connection, who, slot)?;
                // Others may see when bandwidth is taken, and not by what.
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

fn announced_before(
    transaction: &Transaction<'_>,
    change: &ChangeOrigin<'_>,
) -> TransactionResult<Option<i64>> {
    let order = "SELECT id FROM slot WHERE request = ?1";
    let Some(key) = change.key() else { return Ok(None) };
    Ok(transaction.row(order, params![key], |row| row.get(0))?)
}

fn insert(
    transaction: &Transaction<'_>,
    change: &ChangeOrigin<'_>,
    what: &Announcement,
) -> TransactionResult<i64> {
    // What is 0 here is written with the plan, in the same transaction.
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
    id.ok_or_else(TransactionError::no_row)
}

/// Gives a slot to what is in the table, but not in the schedule yet.
fn place(transaction: &Transaction<'_>, now_s: i64, id: i64) -> TransactionResult<Result<(), ScheduleError>> {
    let all = schedule(transaction)?;
    let Some(new) = all.entries().iter().find(|entry| entry.request.id == id) else {
        return Ok(Err(ScheduleError::Unknown));
    };
    // The row exists already, so the schedule has the entry without a place: it is announced again without it.
    let others = all.entries().iter().filter(|entry| entry.request.id != id).copied();
    let mut plan = Schedule::new(*all.limits(), others.collect(), all.last_event_s());
    match plan.apply(now_s, Event::Announce(new.request)) {
        Ok(answer) => {
            let is_planned = plan.entries().iter().any(|entry| entry.request.id == id);
            assert!(is_planned, "an announced transfer is not in the schedule");
            write(transaction, &plan, &answer.given_up).map(Ok)
        }
        Err(refusal) => Ok(Err(refusal)),
    }
}

/// Returns what an event that was refused has given up all the same: time has passed.
fn dropped(before: &Schedule, after: &Schedule) -> Vec<i64> {
    let ids = |plan: &Schedule| plan.entries().iter().map(|entry| entry.request.id).collect::<Vec<_>>();
    let left = ids(after);
    ids(before).into_iter().filter(|id| !left.contains(id)).collect()
}

/// Ends a stage, for whatever reason.
fn finish(
    transaction: &Transaction<'_>,
    change: &ChangeOrigin<'_>,
    id: i64,
    event: Event,
    state: SlotState,
) -> TransactionResult<ScheduledStage> {
    let mut plan = schedule(transaction)?;
    // Dropped by the same event, perhaps; it ends all the same.
    let before = plan.clone();
    let applied = plan.apply(change.now_s, event);
    let given_up = applied.map_or_else(|_| dropped(&before, &plan), |answer| answer.given_up);
    write(transaction, &plan, &given_up)?;
    end(transaction, id, state, (state == SlotState::Done).then_some(change.now_s))?;
    let slot = found(transaction, id)?;
    if let Some(pool) = slot.pool {
        let detail = format!("{} as slot {id}: {}", slot.way.word(), state.word());
        ChangeOrigin { request: None, ..change.clone() }.note(transaction, pool, "stage", &detail)?;
    }
    Ok(slot)
}

fn own(transaction: &Transaction<'_>, who: &Caller, id: i64) -> TransactionResult<ScheduledStage> {
    let slot = by_id(transaction, id)?.filter(|slot| slot.is_own(who));
    let none = || PoolError::slot(id, "there is none of that number of yours", "see: bivouac pool slots");
    Ok(slot.ok_or_else(none)?)
}

fn found(transaction: &Transaction<'_>, id: i64) -> TransactionResult<ScheduledStage> {
    by_id(transaction, id)?.ok_or_else(TransactionError::no_row)
}

fn named(
    transaction: &Transaction<'_>,
    change: &ChangeOrigin<'_>,
    id: i64,
) -> TransactionResult<ScheduledStage> {
    let slot = found(transaction, id)?;
    Ok(ScheduledStage { pool_name: pool_name(transaction, change.who, &slot)?, ..slot })
}

/// Returns the name of a slot's pool, if the caller may see it.
fn pool_name(connection: &Connection, who: &Caller, slot: &ScheduledStage) -> SqlResult<Option<String>> {
    let Some(id) = slot.pool else { return Ok(None) };
    let seen = pool_by_id(connection, id)?.filter(|pool| pool.access(who).is_some());
    Ok(seen.map(|pool| if pool.owner == who.uid { pool.name } else { pool.full_name() }))
}

fn over(slot: &ScheduledStage) -> PoolError {
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
