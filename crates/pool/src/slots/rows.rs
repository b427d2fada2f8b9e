//! Slots as rows.

use bivouac_schedule::{Entry, Limits, Phase, Request, Schedule, Slot};

use super::{LIMITS, ScheduledStage, SlotState};
use crate::database::TransactionResult;
use crate::reading::unknown;
use crate::sql::{Connection, Row, SqlResult, Transaction, Value, params};

const COLUMNS: &str = "id, uid, pool, way, title, bytes, files, earliest_s, deadline_s, rate_max, or_later, job, state, begin_s,
 end_s, rate, restarts, \"left\", given, rank_s, promised";
const OPEN: &str = "WHERE state IN ('waiting', 'missed', 'running') ORDER BY id";
const LOOKED: &str = "storage-looked";

pub(crate) fn limits(connection: &Connection) -> SqlResult<Limits> {
    let [bandwidth, percent, file_bytes] = LIMITS.map(|(name, default)| number(connection, name, default));
    Ok(Limits {
        bandwidth: u64::try_from(bandwidth?).unwrap_or(0),
        user_percent: u32::try_from(percent?).unwrap_or(100),
        file_bytes: u64::try_from(file_bytes?).unwrap_or(0),
    })
}

fn number(connection: &Connection, name: &str, default: i64) -> SqlResult<i64> {
    let found = connection.row("SELECT value FROM rule WHERE name = ?1", params![name], |row| row.get(0))?;
    Ok(found.unwrap_or(default))
}

pub(crate) fn set_limits(transaction: &Transaction<'_>, limits: &Limits) -> SqlResult<()> {
    let values = [signed(limits.bandwidth), i64::from(limits.user_percent), signed(limits.file_bytes)];
    LIMITS.iter().zip(values).try_for_each(|((name, _), value)| set_number(transaction, name, value))
}

fn set_number(transaction: &Transaction<'_>, name: &str, value: i64) -> SqlResult<()> {
    transaction.execute(
        "INSERT INTO rule VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        params![name, value],
    )?;
    Ok(())
}

/// Returns the schedule, as it was when it was last changed.
pub(crate) fn schedule(connection: &Connection) -> SqlResult<Schedule> {
    let limits = limits(connection)?;
    let entries = slots(connection, OPEN, &[])?.iter().filter_map(|slot| entry(&limits, slot)).collect();
    Ok(Schedule::new(limits, entries, number(connection, LOOKED, i64::MIN)?))
}

fn entry(limits: &Limits, slot: &ScheduledStage) -> Option<Entry> {
    let phase = match slot.state {
        SlotState::Waiting => Phase::Waiting,
        SlotState::Missed => Phase::Missed,
        SlotState::Running => Phase::Running,
        SlotState::Done | SlotState::Withdrawn | SlotState::GivenUp => return None,
    };
    let request = Request {
        id: slot.id,
        user: slot.uid,
        work: limits.work(slot.bytes, slot.files),
        earliest_s: slot.earliest_s,
        deadline_s: slot.deadline_s,
        rate_max: slot.rate_max,
        or_later: slot.or_later,
    };
    Some(Entry {
        request,
        slot: Slot { begin_s: slot.begin_s, end_s: slot.end_s, rate: slot.rate },
        left: slot.left,
        given: slot.given,
        rank_s: slot.rank_s,
        promised: slot.promised,
        phase,
    })
}

/// Returns a slot with the values of its schedule entry.
pub(crate) fn placed(slot: ScheduledStage, entry: &Entry) -> ScheduledStage {
    assert_eq!(slot.id, entry.request.id, "a slot is placed by the entry of another");
    let state = match entry.phase {
        Phase::Waiting => SlotState::Waiting,
        Phase::Missed => SlotState::Missed,
        Phase::Running => SlotState::Running,
    };
    let Slot { begin_s, end_s, rate } = entry.slot;
    let Request { earliest_s, deadline_s, .. } = entry.request;
    let Entry { left, given, rank_s, promised, .. } = *entry;
    ScheduledStage {
        state,
        begin_s,
        end_s,
        rate,
        earliest_s,
        deadline_s,
        left,
        given,
        rank_s,
        promised,
        ..slot
    }
}

/// Writes a schedule down: those that have changed, and those that were given up.
pub(crate) fn write(
    transaction: &Transaction<'_>,
    schedule: &Schedule,
    given_up: &[i64],
) -> TransactionResult<()> {
    for before in slots(transaction, OPEN, &[])? {
        // Those given up are no longer in it: they end below.
        let Some(entry) = schedule.entries().iter().find(|entry| entry.request.id == before.id) else {
            continue;
        };
        let after = placed(before.clone(), entry);
        if after != before {
            transaction.execute(
                "UPDATE slot SET state = ?2, begin_s = ?3, end_s = ?4, rate = ?5, earliest_s = ?6, deadline_s = ?7,
                 \"left\" = ?8, given = ?9, rank_s = ?10, promised = ?11 WHERE id = ?1",
                params![
                    after.id,
                    after.state.word(),
                    after.begin_s,
                    after.end_s,
                    signed(after.rate),
                    after.earliest_s,
                    after.deadline_s,
                    signed(after.left),
                    signed(after.given),
                    after.rank_s,
                    after.promised
                ],
            )?;
        }
    }
    let is_planned = |id: &i64| schedule.entries().iter().any(|entry| entry.request.id == *id);
    assert!(!given_up.iter().any(is_planned), "a stage is given up, and still in the schedule");
    given_up.iter().try_for_each(|id| end(transaction, *id, SlotState::GivenUp, None))?;
    Ok(set_number(transaction, LOOKED, schedule.last_event_s())?)
}

/// Records the end of a slot.
pub(crate) fn end(
    transaction: &Transaction<'_>,
    id: i64,
    state: SlotState,
    at_s: Option<i64>,
) -> SqlResult<()> {
    assert!(state.is_over(), "slot {id} would end as {}", state.word());
    transaction.execute(
        "UPDATE slot SET state = ?2, end_s = coalesce(?3, end_s) WHERE id = ?1",
        params![id, state.word(), at_s],
    )?;
    Ok(())
}

pub(crate) fn by_id(connection: &Connection, id: i64) -> SqlResult<Option<ScheduledStage>> {
    Ok(slots(connection, "WHERE id = ?1", params![id])?.into_iter().next())
}

/// Returns the slots that a query gives.
pub(crate) fn slots(
    connection: &Connection,
    which: &str,
    values: &[Value],
) -> SqlResult<Vec<ScheduledStage>> {
    let order = format!("SELECT {COLUMNS} FROM slot {which}");
    connection.rows(&order, values, slot)
}

fn slot(row: &Row) -> SqlResult<ScheduledStage> {
    let (way, state): (String, String) = (row.get(3)?, row.get(12)?);
    let way = way.parse().map_err(|_| unknown(3, &way))?;
    let count = |column: usize| -> SqlResult<u64> { Ok(unsigned(row.get(column)?)) };
    Ok(ScheduledStage {
        id: row.get(0)?,
        uid: row.get(1)?,
        pool: row.get(2)?,
        pool_name: None,
        way,
        title: row.get(4)?,
        bytes: count(5)?,
        files: count(6)?,
        earliest_s: row.get(7)?,
        deadline_s: row.get(8)?,
        rate_max: row.get::<Option<i64>>(9)?.map(unsigned),
        or_later: row.get(10)?,
        job: row.get(11)?,
        state: state.parse().map_err(|_| unknown(12, &state))?,
        begin_s: row.get(13)?,
        end_s: row.get(14)?,
        rate: count(15)?,
        restarts: row.get(16)?,
        left: count(17)?,
        given: count(18)?,
        rank_s: row.get(19)?,
        promised: row.get(20)?,
    })
}

pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
