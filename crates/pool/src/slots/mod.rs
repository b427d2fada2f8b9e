//! Slots for staging, in the database: jobs announce what they need, and the schedule gives each a time and a rate. Each
//! change is one transaction, in which the schedule is made anew of what is there: whoever is killed has changed all or nothing.

mod changes;
mod rows;

use bivouac_schedule::Limits;
use serde::Serialize;

use crate::Who;

pub(crate) use rows::TABLES;

/// Which way data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// From site storage.
    In,
    /// To site storage.
    Out,
}

impl Way {
    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Way::In => "in",
            Way::Out => "out",
        }
    }
}

/// How far a stage is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SlotState {
    /// Its slot is to come.
    Waiting,
    /// Its slot has passed without it.
    Missed,
    /// It is being copied.
    Running,
    /// It was copied.
    Done,
    /// Its user took it back, or its job is no more.
    Withdrawn,
    /// Nobody came, or it took much longer than it was given.
    GivenUp,
}

impl SlotState {
    const ALL: [SlotState; 6] = [
        SlotState::Waiting,
        SlotState::Missed,
        SlotState::Running,
        SlotState::Done,
        SlotState::Withdrawn,
        SlotState::GivenUp,
    ];

    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            SlotState::Waiting => "waiting",
            SlotState::Missed => "missed",
            SlotState::Running => "running",
            SlotState::Done => "done",
            SlotState::Withdrawn => "withdrawn",
            SlotState::GivenUp => "given-up",
        }
    }

    /// Whether the schedule has it no more.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, SlotState::Done | SlotState::Withdrawn | SlotState::GivenUp)
    }
}

/// What a job needs.
#[derive(Clone, Debug)]
pub struct Announcement {
    /// The pool that it is about, by its number, if it is about one.
    pub pool: Option<i64>,
    /// Which way.
    pub way: Way,
    /// What people read about it.
    pub title: String,
    /// How many bytes.
    pub bytes: u64,
    /// In how many files.
    pub files: u64,
    /// When it can begin.
    pub earliest_s: i64,
    /// When it has to be done.
    pub deadline_s: i64,
    /// Bytes per second that it can take at most.
    pub rate_max: Option<u64>,
    /// Whether it takes what there is if that cannot be met.
    pub or_later: bool,
    /// The job of the batch system that it is for.
    pub job: Option<String>,
    /// How often that was put back into the queue.
    pub restarts: u32,
}

/// A stage, with its slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Slotted {
    /// Its number.
    pub id: i64,
    /// Whose it is.
    pub uid: u32,
    /// The pool's number, if it is about one.
    #[serde(skip)]
    pub pool: Option<i64>,
    /// The pool's name, if the one who asks may see it.
    #[serde(rename = "pool")]
    pub pool_name: Option<String>,
    /// Which way.
    pub way: Way,
    /// What people read about it.
    pub title: String,
    /// How many bytes.
    pub bytes: u64,
    /// In how many files.
    pub files: u64,
    /// When it can begin.
    pub earliest_s: i64,
    /// When it has to be done.
    pub deadline_s: i64,
    /// Bytes per second that it can take at most.
    pub rate_max: Option<u64>,
    /// Whether it takes what there is.
    pub or_later: bool,
    /// The job of the batch system that it is for.
    pub job: Option<String>,
    /// How far it is.
    pub state: SlotState,
    /// When it begins, or did.
    pub begin_s: i64,
    /// When its slot ends, or it was done.
    pub end_s: i64,
    /// Bytes per second that it has: when it begins, or at present, which may be none.
    pub rate: u64,
    /// Whether it was told that its deadline will be met.
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
    /// How often its job was put back into the queue, as far as was noticed.
    #[serde(skip)]
    pub restarts: u32,
}

impl Slotted {
    /// Whether it will be done after its deadline, or was.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.end_s > self.deadline_s
    }

    pub(crate) fn is_own(&self, who: &Who) -> bool {
        who.uid == self.uid || who.uid == crate::model::ROOT
    }
}

/// What became of somebody who wanted to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It may, at this rate.
    Now(Slotted),
    /// Its slot is to come.
    NotYet(Slotted),
}

/// What the batch system says of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// It will start then.
    Start {
        /// When.
        at_s: i64,
        /// How often it was put back into the queue: each time, what was copied for it may be gone.
        restarts: u32,
    },
    /// It is no more.
    Gone,
}

/// What site storage gives to stages, as the database has it.
pub(crate) const LIMITS: [(&str, i64); 3] =
    [("storage-bandwidth", 0), ("storage-user-percent", 50), ("storage-file-bytes", 1 << 20)];

/// Limits that nobody has set: nothing can be announced.
#[must_use]
pub fn is_unset(limits: &Limits) -> bool {
    limits.bandwidth == 0
}
