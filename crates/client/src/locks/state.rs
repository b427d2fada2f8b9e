//! State of a client's locks: marks, requests that wait, and unlockings that could not be sent.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use bivouac_types::limits::{LOCK_ASK_MS, LOCK_LOOK_MS};
use bivouac_types::{Errno, FsError, FsResult, Ino, NodeId};
use bivouac_wire::{FileLock, FormationMap, LockKind, SetLockRequest};

use super::LockAnswer;
use super::certain_locks::{CertainLocks, UnlockStamp};
use super::marks::LockMarks;

/// Most requests that are remembered as cancelled before they arrived.
const EARLY_MAX: usize = 256;

/// Number of first repetitions of a wait that each check for a deadlock, and interval of later checks.
const LOOKS_AT_FIRST: u32 = 3;
const LOOK_EVERY: u32 = 8;

/// A request that waits, or that is being asked.
pub struct Ticket {
    pub home: NodeId,
    pub request: SetLockRequest,
    answer: LockAnswer,
    pub since: Instant,
    /// When to ask again.
    pub due: Instant,
    /// Set while a thread asks the home about it. It is not answered meanwhile: the request for the lock must not
    /// arrive after the program has unlocked it again.
    pub busy: bool,
    /// Set if the home has reported, while a thread asked, that it has its lock.
    granted: bool,
    /// State of unlockings when it began.
    begun: Option<UnlockStamp>,
    /// Why it is to be taken back.
    pub refusal: Option<Errno>,
    /// How many times it was asked for since a check for a deadlock was wanted.
    pub asked: u32,
    /// How many times it was found in a deadlock without being the one to refuse.
    pub spared: u32,
}

/// Something to unlock at a home that is away.
pub struct PendingUnlock {
    pub home: NodeId,
    pub request: SetLockRequest,
    pub due: Instant,
    pub busy: bool,
}

/// Result of asking for a waiting request.
pub enum Concluded {
    /// It is over; the outcome is to be passed on.
    Over(LockAnswer, FsResult<()>),
    /// It waits for this home.
    Waits(NodeId),
    /// It does not exist any more.
    Unknown,
}

/// All of it.
#[derive(Default)]
pub struct LockState {
    pub marks: LockMarks,
    pub certain: CertainLocks,
    pub tickets: HashMap<u64, Ticket>,
    pub unsent: Vec<PendingUnlock>,
    /// Homes that a thread works for.
    pub employed: HashSet<NodeId>,
    /// Homes that have not said what an earlier process of this client has locked there.
    pub unsure: HashSet<NodeId>,
    /// Files whose home has dropped what was locked of them, while their programs go on as if they had it.
    pub lost: HashSet<Ino>,
    /// Requests that were taken back before they came.
    early: VecDeque<u64>,
    closed: bool,
}

impl LockState {
    /// Forgets that a file is lost when nobody is left who had locked something of it.
    pub fn forget_lost(&mut self, ino: Ino) {
        if !self.marks.has_any(ino) {
            self.lost.remove(&ino);
        }
    }

    /// Notes that the home of a file has dropped what was locked of it.
    pub fn lose(&mut self, ino: Ino) {
        log::error!("what was locked of inode {ino} is lost; writing to it fails until it is closed");
        self.lost.insert(ino);
        self.certain.forget(ino);
    }

    /// Notes that a request for a lock begins.
    pub fn begin(&mut self, ino: Ino, lock: &FileLock) -> UnlockStamp {
        self.marks.begin(ino, lock);
        self.certain.begin(ino, lock)
    }

    /// Ends a request.
    pub fn end(&mut self, ino: Ino, lock: &FileLock, begun: UnlockStamp, is_granted: bool) {
        self.marks.end(ino, lock);
        self.certain.end(ino, lock, begun, is_granted);
    }
}

impl Ticket {
    pub fn new(home: NodeId, request: SetLockRequest, answer: LockAnswer, now: Instant) -> Ticket {
        let (busy, granted, begun, refusal, asked, spared) = (true, false, None, None, 0, 0);
        Ticket { home, request, answer, since: now, due: now, busy, granted, begun, refusal, asked, spared }
    }

    /// Returns true if it is time to check for a deadlock. The wait that closes one is checked soon after it has begun;
    /// later checks are for failures then.
    pub fn wants_a_look(&mut self) -> bool {
        self.asked = self.asked.saturating_add(1);
        self.asked <= LOOKS_AT_FIRST || self.asked.is_multiple_of(LOOK_EVERY)
    }
}

impl PendingUnlock {
    pub fn new(home: NodeId, request: SetLockRequest) -> PendingUnlock {
        PendingUnlock { home, request, due: Instant::now() + ask_every(), busy: false }
    }

    pub fn is_of(&self, request: &SetLockRequest) -> bool {
        let owner = |of: &SetLockRequest| (of.ino, of.lock.kind, of.lock.owner);
        owner(&self.request) == owner(request)
    }
}

impl LockState {
    /// Begins a request.
    ///
    /// # Errors
    /// `EINTR` if it was taken back already; `ENOTCONN` when the client is at its end.
    pub fn open(&mut self, number: u64, mut ticket: Ticket) -> FsResult<()> {
        if self.closed {
            return Err(FsError::new(Errno::ENOTCONN));
        }
        if let Some(at) = self.early.iter().position(|early| *early == number) {
            self.early.remove(at);
            return Err(FsError::new(Errno::EINTR));
        }
        ticket.begun = Some(self.begin(ticket.request.ino, &ticket.request.lock));
        self.tickets.insert(number, ticket);
        Ok(())
    }

    /// Takes in whether a request has its lock, as the home has said.
    pub fn conclude(&mut self, number: u64, asked: FsResult<bool>, now: Instant) -> Concluded {
        let Some(ticket) = self.tickets.get_mut(&number) else { return Concluded::Unknown };
        // Asked by two threads, it could be answered before the later of their questions arrives.
        assert!(ticket.busy, "an answer about request {number} comes, for which nobody has asked");
        let outcome = match asked {
            Ok(true) => Ok(()),
            // The home has said so by way of the node, before the answer to what was asked.
            _ if ticket.granted => Ok(()),
            Ok(false) => {
                ticket.busy = false;
                let first = ticket.due == ticket.since;
                let pause = if first { Duration::from_millis(LOCK_LOOK_MS) } else { ask_every() };
                // A signal may have come while the home was asked.
                ticket.due = if ticket.refusal.is_some() { now } else { now + pause };
                return Concluded::Waits(ticket.home);
            }
            Err(error) => Err(error),
        };
        self.finish(number, outcome.is_ok())
            .map_or(Concluded::Unknown, |answer| Concluded::Over(answer, outcome))
    }

    /// Ends a request, which has its lock or not. Returns what hears of it.
    pub fn finish(&mut self, number: u64, is_granted: bool) -> Option<LockAnswer> {
        let ticket = self.tickets.remove(&number)?;
        let SetLockRequest { ino, lock, .. } = ticket.request;
        ticket.begun.iter().for_each(|begun| self.end(ino, &lock, *begun, is_granted));
        Some(ticket.answer)
    }

    /// Notes that the home tells that a request has its lock. Returns what hears of it, unless a thread asks just now.
    pub fn granted(&mut self, number: u64) -> Option<LockAnswer> {
        let ticket = self.tickets.get_mut(&number)?;
        ticket.granted = true;
        // The thread that asks finds it, and answers behind its own question.
        if ticket.busy { None } else { self.finish(number, true) }
    }

    /// Marks a request as one to be taken back.
    pub fn interrupt(&mut self, number: u64, now: Instant) {
        match self.tickets.get_mut(&number) {
            Some(ticket) => {
                ticket.refusal = Some(Errno::EINTR);
                ticket.due = now;
            }
            None => {
                if self.early.len() == EARLY_MAX {
                    self.early.pop_front();
                }
                self.early.push_back(number);
            }
        }
    }

    /// Returns the requests that nobody asks about of a home that has been away for too long; each with what it gets.
    pub fn give_up(&mut self, home: NodeId) -> Vec<(LockAnswer, Errno)> {
        let of_home = self.tickets.iter().filter(|(_, ticket)| ticket.home == home && !ticket.busy);
        let given_up: Vec<(u64, Errno)> =
            of_home.map(|(number, ticket)| (*number, ticket.refusal.unwrap_or(Errno::EIO))).collect();
        let finish = |(number, errno)| self.finish(number, false).map(|answer| (answer, errno));
        given_up.into_iter().filter_map(finish).collect()
    }

    /// Returns true if a request's wait may be part of a deadlock that is looked for. As on Linux, that is not done for
    /// `flock` and for open file descriptions.
    pub fn may_be_in_a_circle(&self, ticket: &Ticket) -> bool {
        let lock: &FileLock = &ticket.request.lock;
        lock.kind == LockKind::Range && !ticket.granted && !self.marks.is_description(lock)
    }

    /// Forgets everything; the homes that have to do with any of it.
    pub fn close(&mut self, map: &FormationMap) -> HashSet<NodeId> {
        self.closed = true;
        let mut homes: HashSet<NodeId> = self.marks.homes(map).into_iter().collect();
        homes.extend(self.tickets.values().map(|ticket| ticket.home));
        homes.extend(self.unsent.iter().map(|unsent| unsent.home));
        homes.extend(self.unsure.drain());
        self.marks.clear();
        self.certain.clear();
        self.tickets.clear();
        self.unsent.clear();
        homes
    }
}

/// Returns the pause between two attempts.
pub fn ask_every() -> Duration {
    Duration::from_millis(LOCK_ASK_MS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::Ino;
    use bivouac_wire::{LockMode, UnlockScope};

    fn ticket() -> Ticket {
        let (kind, mode) = (LockKind::Range, LockMode::Write);
        let lock = FileLock { kind, mode, owner: 1, handle: 2, pid: 3, start: 0, end: 9 };
        let scope = UnlockScope::Range;
        let request = SetLockRequest { ino: Ino(5), lock, scope, holds: false, ticket: Some(7), node: None };
        Ticket::new(NodeId(0), request, Box::new(|_| {}), Instant::now())
    }

    #[test]
    fn what_is_told_while_somebody_asks_is_answered_afterwards() {
        let mut state = LockState::default();
        state.open(7, ticket()).unwrap();
        assert!(state.granted(7).is_none(), "the question is still under way");
        assert!(matches!(state.conclude(7, Ok(false), Instant::now()), Concluded::Over(_, Ok(()))));
        assert!(matches!(state.conclude(7, Ok(true), Instant::now()), Concluded::Unknown));
    }

    #[test]
    fn a_grant_ends_a_wait_once() {
        let mut state = LockState::default();
        state.open(7, ticket()).unwrap();
        assert!(matches!(state.conclude(7, Ok(false), Instant::now()), Concluded::Waits(_)));
        assert!(state.granted(7).is_some());
        assert!(state.granted(7).is_none() && state.finish(7, true).is_none());
    }

    #[test]
    fn a_request_that_was_taken_back_early_does_not_begin() {
        let mut state = LockState::default();
        state.interrupt(7, Instant::now());
        assert_eq!(state.open(7, ticket()).unwrap_err().errno(), Errno::EINTR);
        assert!(state.open(7, ticket()).is_ok());
        (0..10_000).for_each(|number| state.interrupt(100 + number, Instant::now()));
        assert_eq!(state.early.len(), EARLY_MAX);
    }

    #[test]
    fn an_interrupt_while_somebody_asks_is_not_lost() {
        let mut state = LockState::default();
        state.open(7, ticket()).unwrap();
        let now = Instant::now();
        state.interrupt(7, now);
        assert!(matches!(state.conclude(7, Ok(false), now), Concluded::Waits(_)));
        assert_eq!((state.tickets[&7].due, state.tickets[&7].refusal), (now, Some(Errno::EINTR)));
    }
}
