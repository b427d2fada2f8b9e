//! What is announced, and what is given.

use serde::Serialize;

/// A stage is given up that had so many times its bytes, and as many more as it can take in this many seconds.
const OVERDUE_TIMES: u64 = 3;
const OVERDUE_S: u64 = 600;
/// For how long a slot is kept for who does not come, in seconds.
pub(crate) const GRACE_S: i64 = 60;
/// A stage is given more than its bytes need, by this many seconds and this part of them: who begins a little late, or is a
/// little slower, makes nobody else late.
const CUSHION_S: u64 = 10;
const CUSHION_PART: u64 = 16;

/// What site storage gives to stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Bytes per second of all stages together.
    pub bandwidth: u64,
    /// Percent of them that one user may have at the same time.
    pub user_percent: u32,
    /// Bytes that take as long as a file does besides its bytes.
    pub file_bytes: u64,
}

impl Limits {
    /// What so many bytes in so many files count as, in bytes.
    #[must_use]
    pub fn work(&self, bytes: u64, files: u64) -> u64 {
        bytes.saturating_add(files.saturating_mul(self.file_bytes)).max(1)
    }

    /// Bytes per second that one user may have.
    #[must_use]
    pub fn user_share(&self) -> u64 {
        let share = u128::from(self.bandwidth) * u128::from(self.user_percent.min(100)) / 100;
        u64::try_from(share).unwrap_or(u64::MAX).max(1)
    }

    /// What a request is given, in bytes.
    #[must_use]
    pub fn given(&self, request: &Request) -> u64 {
        let cushion =
            (request.work / CUSHION_PART).saturating_add(self.rate_of(request).saturating_mul(CUSHION_S));
        request.work.saturating_add(cushion)
    }

    /// The most that a request can be given.
    #[must_use]
    pub(crate) fn rate_of(&self, request: &Request) -> u64 {
        self.user_share().min(self.bandwidth).min(request.rate_max.unwrap_or(u64::MAX)).max(1)
    }
}

/// What a job announces. Times are seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Request {
    /// Tells it from all others. Of two with one deadline the lower number goes first.
    pub id: i64,
    /// Whose it is.
    pub user: u32,
    /// Bytes, with what its files count as.
    pub work: u64,
    /// When it can begin at the earliest.
    pub earliest_s: i64,
    /// When it has to be done.
    pub deadline_s: i64,
    /// Bytes per second that it can take at most.
    pub rate_max: Option<u64>,
    /// Whether it takes what there is if its deadline cannot be met. Such a request makes nobody else late.
    pub or_later: bool,
}

/// A time and a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Slot {
    /// When it begins.
    pub begin_s: i64,
    /// When it is done: this second is no part of it.
    pub end_s: i64,
    /// Bytes per second: of what waits, when it begins; of what runs, at present, which may be none.
    pub rate: u64,
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Its slot is to come.
    Waiting,
    /// Its slot has passed without it: it gets what others leave, until its deadline.
    Missed,
    /// It is being copied.
    Running,
}

/// A request with its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// What was announced.
    #[serde(flatten)]
    pub request: Request,
    /// What it was given.
    #[serde(flatten)]
    pub slot: Slot,
    /// Bytes that it is still to be given.
    pub left: u64,
    /// Bytes that it is given in all, if it takes longer than it should.
    pub given: u64,
    /// Its place among the promised: its deadline, or a later time, if only so everybody's is met.
    pub rank_s: i64,
    /// Whether it was told that its deadline will be met.
    pub promised: bool,
    /// How far it is.
    pub phase: Phase,
}

impl Entry {
    /// Whether it will be done after its deadline.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.slot.end_s > self.request.deadline_s
    }

    /// By how much a promise is broken, in seconds.
    pub(crate) fn broken_s(&self) -> i64 {
        if self.promised { self.slot.end_s.saturating_sub(self.request.deadline_s).max(0) } else { 0 }
    }

    pub(crate) fn is_given_up(&self, now_s: i64, limits: &Limits) -> bool {
        match self.phase {
            Phase::Waiting => false,
            Phase::Missed => now_s > self.request.deadline_s,
            Phase::Running => {
                let most = self.request.work.saturating_mul(OVERDUE_TIMES);
                self.given > most.saturating_add(limits.rate_of(&self.request).saturating_mul(OVERDUE_S))
            }
        }
    }
}

/// Why something was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its deadline cannot be met beside what was promised to others; this is what could be had.
    TooLate(Slot),
    /// It is not its time yet; this is its slot.
    NotYet(Slot),
    /// There is no request of this number that waits or runs.
    Unknown,
}
