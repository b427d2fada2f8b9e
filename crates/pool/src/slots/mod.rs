//! Slots for staging in the database: jobs announce transfers, and the scheduler assigns times and rates. Each change
//! is one transaction that restores the schedule from the rows, so a crash leaves all or nothing of it.

mod changes;
mod rows;

use std::fmt;

use bivouac_schedule::Limits;
use bivouac_types::units::{format_duration, format_size, format_utc};
use serde::Serialize;

pub(crate) use self::rows::signed;
use crate::Caller;

bivouac_types::words! {
    /// Direction of a transfer.
    #[derive(Serialize)]
    #[serde(rename_all = "lowercase")]
    Direction ("direction") {
        /// From site storage.
        In = "in",
        /// To site storage.
        Out = "out",
    }
    /// State of a slot.
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    SlotState ("state") {
        /// Its slot is to come.
        Waiting = "waiting",
        /// Its slot has passed without it.
        Missed = "missed",
        /// The transfer runs.
        Running = "running",
        /// The transfer has ended.
        Done = "done",
        /// Its user took it back, or its job is no more.
        Withdrawn = "withdrawn",
        /// Dropped: never started, or overdue.
        GivenUp = "given-up",
    }
}

impl SlotState {
    /// Returns whether the slot has left the schedule.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, SlotState::Done | SlotState::Withdrawn | SlotState::GivenUp)
    }
}

/// An announced transfer.
#[derive(Clone, Debug)]
pub struct Announcement {
    /// The pool that it is about, by its number, if it is about one.
    pub pool: Option<i64>,
    /// Direction.
    pub way: Direction,
    /// Description.
    pub title: String,
    /// Bytes.
    pub bytes: u64,
    /// Number of files.
    pub files: u64,
    /// Earliest start.
    pub earliest_s: i64,
    /// Deadline.
    pub deadline_s: i64,
    /// Bytes per second that it can take at most.
    pub rate_max: Option<u64>,
    /// True to accept best effort if the deadline cannot be met.
    pub or_later: bool,
    /// The job of the batch system that it is for.
    pub job: Option<String>,
    /// Number of times that the job was requeued.
    pub restarts: u32,
}

/// A stage, with its slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ScheduledStage {
    /// Its number.
    pub id: i64,
    /// Its owner.
    pub uid: u32,
    /// The pool's number, if it is about one.
    #[serde(skip)]
    pub pool: Option<i64>,
    /// Name of the pool, if the caller may see it.
    #[serde(rename = "pool")]
    pub pool_name: Option<String>,
    /// Direction.
    pub way: Direction,
    /// Description.
    pub title: String,
    /// Bytes.
    pub bytes: u64,
    /// Number of files.
    pub files: u64,
    /// Earliest start.
    pub earliest_s: i64,
    /// Deadline.
    pub deadline_s: i64,
    /// Bytes per second that it can take at most.
    pub rate_max: Option<u64>,
    /// True if best effort is accepted.
    pub or_later: bool,
    /// The job of the batch system that it is for.
    pub job: Option<String>,
    /// State.
    pub state: SlotState,
    /// Start.
    pub begin_s: i64,
    /// End of the slot or of the transfer.
    pub end_s: i64,
    /// Bytes per second that it has: when it begins, or at present, which may be none.
    pub rate: u64,
    /// True if the deadline is promised.
    pub promised: bool,
    /// Bytes that it is still to be given.
    #[serde(skip)]
    pub left: u64,
    /// Bytes that it is given in all.
    #[serde(skip)]
    pub given: u64,
    /// Its place among the promised.
    #[serde(skip)]
    pub rank_s: i64,
    /// Number of times that the job was requeued, as far as it was observed.
    #[serde(skip)]
    pub restarts: u32,
}

impl fmt::Display for ScheduledStage {
    /// Formats one line: time, rate and deadline.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ScheduledStage { id, begin_s, end_s, rate, deadline_s, .. } = *self;
        let time = |at_s: i64| format_utc(u64::try_from(at_s).unwrap_or(0));
        let (begin, end, rate) = (time(begin_s), time(end_s), format_size(rate));
        let span = format_duration(deadline_s.abs_diff(end_s).saturating_mul(1000));
        let against = if deadline_s >= end_s { "before its deadline" } else { "late" };
        write!(f, "slot {id}: {begin}Z to {end}Z, {rate}/s, {span} {against}")
    }
}

impl ScheduledStage {
    /// Returns whether it ends or has ended after its deadline.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.end_s > self.deadline_s
    }

    pub(crate) fn is_own(&self, who: &Caller) -> bool {
        who.uid == self.uid || who.uid == crate::model::ROOT
    }
}

/// Answer to a transfer that asks to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartAnswer {
    /// It may start at this rate.
    Now(ScheduledStage),
    /// Its slot is to come.
    NotYet(ScheduledStage),
}

/// Information of the batch system about a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobForecast {
    /// Expected start.
    Start {
        /// Time of the start.
        at_s: i64,
        /// Number of times that it was requeued: each time the data copied for it may have been lost.
        restarts: u32,
    },
    /// The job has ended.
    Gone,
}

/// Bandwidth limits of site storage in the database.
pub(crate) const LIMITS: [(&str, i64); 3] =
    [("storage-bandwidth", 0), ("storage-user-percent", 50), ("storage-file-bytes", 1 << 20)];

/// Returns whether no limits are set, so that nothing can be announced.
#[must_use]
pub fn is_unset(limits: &Limits) -> bool {
    limits.bandwidth == 0
}
