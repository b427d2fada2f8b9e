//! The threads that ask again: one per home with requests that wait.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use bivouac_types::{Errno, FsResult, Ino, NodeId};
use bivouac_wire::{FileLock, SetLockRequest, op};
use parking_lot::MutexGuard;

use super::look::Verdict;
use super::state::{LockState, PendingUnlock, Ticket, ask_every};
use super::{LockDesk, SHORT_WAIT_MS};

/// Work to do at a home.
enum Job {
    /// Ask again for a lock.
    Ask(u64, SetLockRequest),
    /// Cancel a request.
    Cancel(u64, SetLockRequest, Errno),
    /// Repeat an unlocking that could not be sent.
    Send(SetLockRequest),
}

impl LockDesk {
    /// Makes sure that a thread works for the home.
    pub(super) fn employ(self: &Arc<Self>, state: &mut MutexGuard<'_, LockState>, home: NodeId) {
        self.news.notify_all();
        if !state.employed.insert(home) {
            return;
        }
        let desk = Arc::clone(self);
        let builder = std::thread::Builder::new().name(format!("locks-{}", home.0)).stack_size(256 << 10);
        if let Err(error) = builder.spawn(move || desk.work(home)) {
            // The next request for this home tries again; until then grants are heard of all the same.
            log::error!(why:% = error; "no thread to wait for locks at {home}");
            state.employed.remove(&home);
        }
    }

    fn work(self: &Arc<Self>, home: NodeId) {
        while let Some(job) = self.next(home) {
            // What panics is due again later: others wait for this thread, and for the home.
            if catch_unwind(AssertUnwindSafe(|| self.carry_out(home, &job))).is_err() {
                self.put_off(&job);
            }
        }
    }

    fn carry_out(self: &Arc<Self>, home: NodeId, job: &Job) {
        match job {
            Job::Ask(ticket, request) => self.ask_again(home, *ticket, request),
            Job::Cancel(ticket, request, errno) => self.take_back(home, *ticket, request, *errno),
            Job::Send(request) => {
                let sent = self.connections.try_asking::<op::SetLock>(home, request, SHORT_WAIT_MS);
                self.sent(request, sent.is_ok());
            }
        }
    }

    fn put_off(&self, job: &Job) {
        match job {
            Job::Ask(ticket, _) | Job::Cancel(ticket, ..) => {
                if let Some(found) = self.state.lock().tickets.get_mut(ticket) {
                    (found.busy, found.due) = (false, Instant::now() + ask_every());
                }
            }
            Job::Send(request) => self.sent(request, false),
        }
    }

    /// Waits for something to do. Nothing any more ends the thread.
    fn next(&self, home: NodeId) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            let now = Instant::now();
            if let Some(job) = state.take_job(home, now) {
                return Some(job);
            }
            match state.next_due(home) {
                Some(due) => drop(self.news.wait_until(&mut state, due)),
                None => {
                    assert!(state.employed.remove(&home), "two threads wait for locks at {home}");
                    return None;
                }
            }
        }
    }

    fn ask_again(self: &Arc<Self>, home: NodeId, ticket: u64, request: &SetLockRequest) {
        let asked = self.ask_for(home, request);
        if let Some((answer, outcome)) = self.conclude(ticket, asked) {
            // The program hears of it before the home is asked whether it is there, which may take a while.
            let failed = outcome.as_ref().is_err_and(|error| error.errno() == Errno::EIO);
            answer(outcome);
            if failed {
                self.give_up_if_away(home);
            }
            return;
        }
        let wanted = self.state.lock().tickets.get_mut(&ticket).is_some_and(Ticket::wants_a_look);
        match if wanted { self.look(ticket) } else { Verdict::Waits } {
            Verdict::Waits => {}
            Verdict::Elsewhere(wait) => self.ask_to_look(&wait),
            Verdict::Refuse => {
                let mut state = self.state.lock();
                if let Some(found) = state.tickets.get_mut(&ticket) {
                    found.refusal.get_or_insert(Errno::EDEADLK);
                    found.due = Instant::now();
                }
            }
        }
    }

    fn take_back(&self, home: NodeId, ticket: u64, request: &SetLockRequest, errno: Errno) {
        let asked = self.connections.try_asking::<op::CancelLock>(home, request, 0);
        if let Err(error) = &asked {
            log::warn!(
                why:% = error; "a request for a lock is not taken back, {home} drops it when nobody asks again"
            );
        }
        // Granted before it was taken back: then the program has the lock, and is told so.
        let answer = self.state.lock().finish(ticket, asked == Ok(true));
        if let Some(answer) = answer {
            answer(if asked == Ok(true) { Ok(()) } else { Err(errno.into()) });
        }
        if asked.is_err() {
            self.give_up_if_away(home);
        }
    }

    /// Handles a request that has waited for the home for the bounded time. If the home is away, rather than this
    /// request lost, all others that wait for it are given up too, instead of one after the other.
    fn give_up_if_away(&self, home: NodeId) {
        if self.connections.try_asking::<op::Ping>(home, &(), SHORT_WAIT_MS).is_ok() {
            return;
        }
        let given_up = self.state.lock().give_up(home);
        given_up.into_iter().for_each(|(answer, errno)| answer(Err(errno.into())));
    }

    /// Unlocks what the owner of `lock` has left locked, before it locks anew.
    pub(super) fn send_unsent(&self, ino: Ino, lock: &FileLock) -> FsResult<()> {
        let (own, mut has_said) = (self.request(ino, lock, None), false);
        loop {
            let (home, request) = {
                let mut state = self.state.lock();
                let Some(found) = state.unsent.iter_mut().find(|unsent| unsent.is_of(&own)) else {
                    return Ok(());
                };
                if found.busy && !has_said {
                    // Not under the lock: it may start a thread. The state is looked at again behind it.
                    drop(state);
                    bivouac_net::before_waiting();
                    has_said = true;
                    continue;
                }
                if found.busy {
                    self.news.wait(&mut state);
                    continue;
                }
                found.busy = true;
                (found.home, found.request)
            };
            let sent = self.connections.try_asking::<op::SetLock>(home, &request, 0);
            self.sent(&request, sent.is_ok());
            sent?;
        }
    }

    fn sent(&self, request: &SetLockRequest, done: bool) {
        let mut state = self.state.lock();
        if done {
            state.unsent.retain(|unsent| unsent.request != *request);
        } else {
            for unsent in state.unsent.iter_mut().filter(|unsent| unsent.request == *request) {
                (unsent.busy, unsent.due) = (false, Instant::now() + ask_every());
            }
        }
        // Also threads of programs that wait for this unlocking, not only those of homes.
        self.news.notify_all();
    }
}

impl LockState {
    fn take_job(&mut self, home: NodeId, now: Instant) -> Option<Job> {
        let waiting = self.tickets.iter_mut().filter(|(_, ticket)| ticket.home == home && !ticket.busy);
        let first = waiting.filter(|(_, ticket)| ticket.due <= now).min_by_key(|(_, ticket)| ticket.due);
        // Waits before unlockings: a program stands still for each of them.
        if let Some((number, ticket)) = first {
            ticket.busy = true;
            return Some(match ticket.refusal {
                Some(errno) => Job::Cancel(*number, ticket.request, errno),
                None => Job::Ask(*number, ticket.request),
            });
        }
        let due = |unsent: &&mut PendingUnlock| unsent.home == home && !unsent.busy && unsent.due <= now;
        let unsent = self.unsent.iter_mut().find(due)?;
        unsent.busy = true;
        Some(Job::Send(unsent.request))
    }

    /// Returns when there is something to do; `None` if never.
    fn next_due(&self, home: NodeId) -> Option<Instant> {
        // Nobody knows yet when something that another thread is at is due again.
        let busy = Instant::now() + ask_every();
        let when = |due: Instant, taken: bool| if taken { busy } else { due };
        let tickets = self.tickets.values().filter(|ticket| ticket.home == home);
        let unsent = self.unsent.iter().filter(|unsent| unsent.home == home);
        let tickets = tickets.map(|ticket| when(ticket.due, ticket.busy));
        tickets.chain(unsent.map(|unsent| when(unsent.due, unsent.busy))).min()
    }
}
