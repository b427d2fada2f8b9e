//! The machine: events in, slots out.

use crate::model::GRACE_S;
use crate::place::{pass, plan};
use crate::{Entry, Limits, Phase, Refusal, Request, Slot};

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A job says what it needs.
    Announce(Request),
    /// It needs nothing any more.
    Withdraw(i64),
    /// A stage wants to begin. Said again while it runs, it is answered the same.
    Begin(i64),
    /// A stage is done.
    End(i64),
    /// A job is expected to start at another time.
    Move {
        /// Which request.
        id: i64,
        /// When it can begin at the earliest.
        earliest_s: i64,
        /// When it has to be done.
        deadline_s: i64,
    },
    /// Site storage gives more or less.
    Limit(Limits),
    /// Time passes.
    Look,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The slot of the request that the event was about.
    pub slot: Option<Slot>,
    /// Requests that are over without having been done: nobody came, or the stage was given up.
    pub given_up: Vec<i64>,
}

/// All requests that wait or run, with their slots.
///
/// At no time are more than the limits given away, and nothing is kept back that somebody could use. Who was promised a deadline
/// keeps it, whatever others announce: it may have to wait or to pause, but only so that no promise is broken. What breaks
/// promises is only what nobody announces: stages that take longer than they were given, deadlines that come nearer, less
/// bandwidth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    limits: Limits,
    entries: Vec<Entry>,
    /// The time at which something was last taken notice of: a clock that jumps gives nobody up.
    looked_s: i64,
}

impl Schedule {
    /// What was so far, and when that was.
    #[must_use]
    pub fn new(limits: Limits, entries: Vec<Entry>, looked_s: i64) -> Schedule {
        Schedule { limits, entries, looked_s }
    }

    /// When something was last taken notice of.
    #[must_use]
    pub fn looked_s(&self) -> i64 {
        self.looked_s
    }

    /// All that wait or run.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// What site storage gives.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Takes notice of an event.
    ///
    /// # Errors
    /// Why it cannot be. Nothing but the time has changed then.
    pub fn apply(&mut self, now_s: i64, event: Event) -> Result<Answer, Refusal> {
        let given_up = self.pass(now_s);
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
                if entry.phase != Phase::Running && entry.slot.begin_s > now_s {
                    return Err(Refusal::NotYet(entry.slot));
                }
                entry.phase = Phase::Running;
                Some(id)
            }
            Event::Move { id, earliest_s, deadline_s } => {
                let entry = self.entry(id)?;
                (entry.request.earliest_s, entry.request.deadline_s) = (earliest_s, deadline_s);
                entry.rank_s = deadline_s;
                Some(id)
            }
            Event::Limit(limits) => {
                self.limits = limits;
                None
            }
            Event::Look => None,
        };
        plan(&self.limits, now_s, &mut self.entries);
        let slot = id.map(|id| self.entry(id).map(|entry| entry.slot)).transpose()?;
        Ok(Answer { slot, given_up })
    }

    fn entry(&mut self, id: i64) -> Result<&mut Entry, Refusal> {
        self.entries.iter_mut().find(|entry| entry.request.id == id).ok_or(Refusal::Unknown)
    }

    /// Time has passed: who takes longer than expected, who did not come, who is given up.
    fn pass(&mut self, now_s: i64) -> Vec<i64> {
        // What passed before anybody looked was nothing; a clock that goes back is not believed either.
        if self.looked_s != i64::MIN {
            pass(&self.limits, self.looked_s, now_s, &mut self.entries);
        }
        for entry in &mut self.entries {
            match entry.phase {
                // Nobody knows how much longer: a fourth is as good as any.
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
        let twice_s = now_s.min(self.looked_s);
        let limits = self.limits;
        let is_over = |entry: &Entry| entry.is_given_up(twice_s, &limits);
        let given_up: Vec<i64> =
            self.entries.iter().filter(|entry| is_over(entry)).map(|entry| entry.request.id).collect();
        self.entries.retain(|entry| !is_over(entry));
        self.looked_s = now_s;
        plan(&self.limits, now_s, &mut self.entries);
        given_up
    }

    /// A promise, if that breaks none; else what others leave, or a refusal.
    fn announce(&mut self, now_s: i64, request: Request) -> Result<(), Refusal> {
        let left = self.limits.given(&request);
        let slot = Slot { begin_s: i64::MAX, end_s: i64::MAX, rate: 0 };
        let with = |promised: bool, rank_s: i64| {
            let mut all = self.entries.clone();
            all.push(Entry { request, slot, left, given: left, rank_s, promised, phase: Phase::Waiting });
            plan(&self.limits, now_s, &mut all);
            all
        };
        let broken = |all: &[Entry]| all.iter().map(Entry::broken_s).fold(0, i64::saturating_add);
        let ranks = self.entries.iter().filter(|entry| entry.promised).map(|entry| entry.rank_s);
        let last_s = ranks.max().unwrap_or(i64::MIN).saturating_add(1);
        for rank_s in [request.deadline_s, request.deadline_s.max(last_s)] {
            let all = with(true, rank_s);
            if broken(&all) <= broken(&self.entries) {
                self.entries = all;
                return Ok(());
            }
        }
        let all = with(false, request.deadline_s);
        let could = all.last().map_or(slot, |entry| entry.slot);
        if !request.or_later {
            return Err(Refusal::TooLate(could));
        }
        self.entries = all;
        Ok(())
    }
}
