//! Requests and slots.

use serde::Serialize;

/// A running transfer is dropped after this multiple of its bytes plus its bandwidth for `OVERDUE_S` seconds.
const OVERDUE_TIMES: u64 = 3;
const OVERDUE_S: u64 = 600;
/// Time for which a slot is kept for a transfer that does not start, in seconds.
pub(crate) const GRACE_S: i64 = 60;
/// Reserve of each slot: its bandwidth for this many seconds, and this fraction of its bytes. It absorbs late starts
/// and slow transfers.
const CUSHION_S: u64 = 10;
const CUSHION_PART: u64 = 16;

/// Bandwidth limits of site storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Total bandwidth of all transfers, in bytes per second.
    pub bandwidth: u64,
    /// Largest share of one user, in percent.
    pub user_percent: u32,
    /// Cost of a file in addition to its bytes, in bytes.
    pub file_bytes: u64,
}

impl Limits {
    /// Returns the cost of a transfer, in bytes.
    #[must_use]
    pub fn work(&self, bytes: u64, files: u64) -> u64 {
        bytes.saturating_add(files.saturating_mul(self.file_bytes)).max(1)
    }

    /// Returns the largest bandwidth of one user, in bytes per second.
    #[must_use]
    pub fn user_share(&self) -> u64 {
        // In 128 bits: bandwidth times percent may exceed 64.
        let share = u128::from(self.bandwidth) * u128::from(self.user_percent.min(100)) / 100;
        // Never 0: durations are divided by it.
        u64::try_from(share).unwrap_or(u64::MAX).max(1)
    }

    /// Returns the reservation of a request with its reserve, in bytes.
    #[must_use]
    pub fn given(&self, request: &Request) -> u64 {
        let cushion =
            (request.work / CUSHION_PART).saturating_add(self.rate_of(request).saturating_mul(CUSHION_S));
        request.work.saturating_add(cushion)
    }

    /// Returns the largest bandwidth of a request, in bytes per second.
    #[must_use]
    pub(crate) fn rate_of(&self, request: &Request) -> u64 {
        self.user_share().min(self.bandwidth).min(request.rate_max.unwrap_or(u64::MAX)).max(1)
    }
}

/// A transfer announced by a job. Times are seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Request {
    /// Unique id. Of two requests with the same deadline the lower id goes first.
    pub id: i64,
    /// User id.
    pub user: u32,
    /// Cost in bytes, see [`Limits::work`].
    pub work: u64,
    /// Earliest start.
    pub earliest_s: i64,
    /// Deadline.
    pub deadline_s: i64,
    /// Largest rate that the transfer can use, in bytes per second.
    pub rate_max: Option<u64>,
    /// True if the request accepts best effort when its deadline cannot be met. Such a request delays no other.
    pub or_later: bool,
}

/// A reservation: a time span and a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Slot {
    /// Start.
    pub begin_s: i64,
    /// End, exclusive.
    pub end_s: i64,
    /// Bytes per second: at the start for a waiting request, at present for a running one, where it may be 0.
    pub rate: u64,
}

/// Progress of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The slot lies in the future.
    Waiting,
    /// The slot has passed unused. The request gets spare bandwidth until its deadline.
    Missed,
    /// The transfer runs.
    Running,
}

/// A request with its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The request.
    #[serde(flatten)]
    pub request: Request,
    /// Its slot.
    #[serde(flatten)]
    pub slot: Slot,
    /// Bytes of the reservation that are not used yet.
    pub left: u64,
    /// Bytes reserved in total, including extensions of an overdue transfer.
    pub given: u64,
    /// Order among the promised requests: the deadline, or a later time if only that keeps all promises.
    pub rank_s: i64,
    /// True if the deadline has been promised.
    pub promised: bool,
    /// Progress.
    pub phase: Phase,
}

impl Entry {
    /// Returns whether the slot ends after the deadline.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.slot.end_s > self.request.deadline_s
    }

    /// Returns by how much a promise is broken, in seconds.
    pub(crate) fn delay_past_promise_s(&self) -> i64 {
        if self.promised { self.slot.end_s.saturating_sub(self.request.deadline_s).max(0) } else { 0 }
    }

    pub(crate) fn is_given_up(&self, now_s: i64, limits: &Limits) -> bool {
        match self.phase {
            // A waiting request becomes `Missed` first, and keeps its chance until the deadline.
            Phase::Waiting => false,
            Phase::Missed => now_s > self.request.deadline_s,
            Phase::Running => {
                let most = self.request.work.saturating_mul(OVERDUE_TIMES);
                self.given > most.saturating_add(limits.rate_of(&self.request).saturating_mul(OVERDUE_S))
            }
        }
    }
}

/// Reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleError {
    /// The deadline cannot be met without breaking a promise; contains the best possible slot.
    TooLate(Slot),
    /// The slot has not begun; contains it.
    NotYet(Slot),
    /// No waiting or running request has this id.
    Unknown,
}
