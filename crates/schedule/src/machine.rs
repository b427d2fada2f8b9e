//! The scheduler as a pure state machine: events in, slots out.

use crate::allocation::{advance, allocate};
use crate::model::GRACE_S;
use crate::{Entry, Limits, Phase, Request, ScheduleError, Slot};

/// Input of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A job announces a transfer.
    Announce(Request),
    /// A job cancels its transfer, by id.
    Withdraw(i64),
    /// A transfer asks to start, by id. Idempotent while it runs.
    Begin(i64),
    /// A transfer has ended, by id.
    End(i64),
    /// The expected start of a job has changed.
    Reschedule {
        /// Id of the request.
        id: i64,
        /// New earliest start.
        earliest_s: i64,
        /// New deadline.
        deadline_s: i64,
    },
    /// The bandwidth of site storage has changed.
    Limit(Limits),
    /// Time has passed.
    Tick,
}

/// Result of an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventOutcome {
    /// Slot of the request that the event named.
    pub slot: Option<Slot>,
    /// Ids of requests that were dropped: never started, or overdue.
    pub given_up: Vec<i64>,
}

/// All waiting and running requests with their slots.
///
/// At no time are more than the limits given away, and nothing is kept back that somebody could use. Who was promised a
/// deadline keeps it, whatever others announce: it may have to wait or to pause, but only so that no promise is broken.
/// What breaks promises is only what nobody announces: stages that take longer than they were given, deadlines that
/// come nearer, less bandwidth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    limits: Limits,
    entries: Vec<Entry>,
    /// Time of the last event. Requests are dropped by two observations of the clock, so that a clock that jumps drops
    /// none.
    last_event_s: i64,
}

impl Schedule {
    /// Restores a schedule from its entries and the time of its last event.
    #[must_use]
    pub fn new(limits: Limits, entries: Vec<Entry>, last_event_s: i64) -> Schedule {
        Schedule { limits, entries, last_event_s }
    }

    /// Returns the time of the last event.
    #[must_use]
    pub fn last_event_s(&self) -> i64 {
        self.last_event_s
    }

    /// Returns all waiting and running requests.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the limits of site storage.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Applies an event.
    ///
    /// # Errors
    /// Why it cannot be. Nothing but the time has changed then.
    pub fn apply(&mut self, now_s: i64, event: Event) -> Result<EventOutcome, ScheduleError> {
        // Before the event: a request that is over by now must not stand in the way of the one that is announced.
        let given_up = self.advance(now_s);
        let id = match event {
            Event::Announce(request) => {
                self.announce(now_s, request)?;
                Some(request.id)
            }
            Event::Withdraw(id) | Event::End(id) => {
                self.entry(id)?;
                self.entries.retain(|entry| entry.request.id != id);
                None
            }
            Event::Begin(id) => {
                let entry = self.entry(id)?;
                // A running transfer asks for its rate of the moment by the same event, and has no begin to wait for.
                if entry.phase != Phase::Running && entry.slot.begin_s > now_s {
                    return Err(ScheduleError::NotYet(entry.slot));
                }
                entry.phase = Phase::Running;
                Some(id)
            }
            Event::Reschedule { id, earliest_s, deadline_s } => {
                let entry = self.entry(id)?;
                (entry.request.earliest_s, entry.request.deadline_s) = (earliest_s, deadline_s);
                // A rank behind all promises was made for the old deadline.
                entry.rank_s = deadline_s;
                Some(id)
            }
            Event::Limit(limits) => {
                self.limits = limits;
                None
            }
            Event::Tick => None,
        };
        allocate(&self.limits, now_s, &mut self.entries);
        let slot = id.map(|id| self.entry(id).map(|entry| entry.slot)).transpose()?;
        Ok(EventOutcome { slot, given_up })
    }

    fn entry(&mut self, id: i64) -> Result<&mut Entry, ScheduleError> {
        self.entries.iter_mut().find(|entry| entry.request.id == id).ok_or(ScheduleError::Unknown)
    }

    /// Advances time: extends overdue transfers, marks missed slots, and drops requests that are given up.
    fn advance(&mut self, now_s: i64) -> Vec<i64> {
        // The first event of a new schedule has no previous time. A clock that goes back subtracts nothing.
        if self.last_event_s != i64::MIN {
            advance(&self.limits, self.last_event_s, now_s, &mut self.entries);
        }
        for entry in &mut self.entries {
            match entry.phase {
                // The transfer needs longer than reserved, and its remainder is unknown. It is extended by a fourth of
                // its work, at least a minute, until it is given up.
                Phase::Running if entry.left == 0 => {
                    let minute = self.limits.rate_of(&entry.request).saturating_mul(60);
                    entry.left = (entry.request.work / 4).max(minute);
                    entry.given = entry.given.saturating_add(entry.left);
                }
                Phase::Waiting if entry.slot.begin_s.saturating_add(GRACE_S) < now_s => {
                    (entry.phase, entry.promised) = (Phase::Missed, false);
                }
                _ => {}
            }
        }
        // The earlier of two observations: a clock that jumps ahead gives the requests until the next event.
        let twice_s = now_s.min(self.last_event_s);
        let limits = self.limits;
        let is_over = |entry: &Entry| entry.is_given_up(twice_s, &limits);
        let given_up: Vec<i64> =
            self.entries.iter().filter(|entry| is_over(entry)).map(|entry| entry.request.id).collect();
        let before = self.entries.len();
        self.entries.retain(|entry| !is_over(entry));
        assert_eq!(
            self.entries.len() + given_up.len(),
            before,
            "a request was dropped without a report of it"
        );
        self.last_event_s = now_s;
        // `Begin` reads these slots, and `announce` compares the promises that they keep with its own.
        allocate(&self.limits, now_s, &mut self.entries);
        given_up
    }

    /// Admits a request with a promise if no other promise is broken by it; otherwise best-effort, or not at all.
    fn announce(&mut self, now_s: i64, request: Request) -> Result<(), ScheduleError> {
        let left = self.limits.given(&request);
        let slot = Slot { begin_s: i64::MAX, end_s: i64::MAX, rate: 0 };
        let with = |promised: bool, rank_s: i64| {
            let mut all = self.entries.clone();
            all.push(Entry { request, slot, left, given: left, rank_s, promised, phase: Phase::Waiting });
            allocate(&self.limits, now_s, &mut all);
            all
        };
        let broken = |all: &[Entry]| all.iter().map(Entry::delay_past_promise_s).fold(0, i64::saturating_add);
        let ranks = self.entries.iter().filter(|entry| entry.promised).map(|entry| entry.rank_s);
        let last_s = ranks.max().unwrap_or(i64::MIN).saturating_add(1);
        // First by deadline; if that breaks a promise, behind all promises, where it delays none but may still be in
        // time.
        for rank_s in [request.deadline_s, request.deadline_s.max(last_s)] {
            let all = with(true, rank_s);
            // Promises that are late already must not keep new requests out, so the totals are compared.
            if broken(&all) <= broken(&self.entries) {
                self.entries = all;
                return Ok(());
            }
        }
        let all = with(false, request.deadline_s);
        let could = all.last().map_or(slot, |entry| entry.slot);
        // The attempt without a promise is only the answer then: the schedule is unchanged.
        if !request.or_later {
            return Err(ScheduleError::TooLate(could));
        }
        self.entries = all;
        Ok(())
    }
}
