//! The locks that programs take through this client: `flock`, and the byte ranges of `fcntl`.
//!
//! The home of a file has the locks. Here is known which owners may have some, so that closing a file that nobody
//! locked asks nobody, and which requests wait. A request that has to wait holds no thread: whoever learns that it
//! has its lock, mostly the node that the home tells, answers it. One thread per home with waiting requests asks
//! again now and then, and looks for circles.

mod certain_locks;
mod fence;
mod look;
mod marks;
mod state;
mod work;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use std::collections::HashSet;

use bivouac_types::limits::LOCK_LOOK_WAIT_MS;
use bivouac_types::{ClientId, Errno, FsResult, Ino, NodeId};
use bivouac_wire::{
    FileLock, LOCK_END_MAX, ListLocksRequest, LockKind, LockMode, LockOf, LockOwners, LockWait,
    SetLockRequest, UnlockScope, op,
};
use parking_lot::{Condvar, Mutex};

use crate::connections::Connections;
pub(crate) use fence::{HomesInDoubt, NodeLiveness};
use state::{Concluded, LockState, PendingUnlock, Ticket};

/// Wait for a node, in milliseconds, of requests that are repeated anyway.
const SHORT_WAIT_MS: u32 = LOCK_LOOK_WAIT_MS as u32;

/// Waits, for a moment at most, until files that programs have closed are closed here as well.
pub type SettleLocks = Arc<dyn Fn() + Send + Sync>;

/// Called with the outcome of a request that waited.
pub type LockAnswer = Box<dyn FnOnce(FsResult<()>) + Send>;

/// Means for a request to wait.
pub struct LockWaiting {
    /// Its number, unique within the client, and the same when it is sent again after a restart.
    pub ticket: u64,
    /// Called with the outcome, unless that is known at once.
    pub answer: LockAnswer,
}

/// Immediate result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locked {
    /// It is done.
    Done,
    /// It waits; its answer is called later.
    Waiting,
}

/// The locks of one client.
pub struct LockDesk {
    connections: Arc<Connections>,
    state: Mutex<LockState>,
    news: Condvar,
    /// True if anything was ever locked, or may be; closes of files look no further while it is false.
    used: AtomicBool,
    /// Homes that may have dropped locks of this client.
    doubts: Arc<HomesInDoubt>,
    heeded: OnceLock<NodeLiveness>,
    settle: Mutex<Option<SettleLocks>>,
}

impl LockDesk {
    pub(crate) fn new(connections: Arc<Connections>) -> LockDesk {
        let (state, news) = (Mutex::default(), Condvar::new());
        let (doubts, heeded) = (Arc::default(), OnceLock::new());
        let (used, settle) = (AtomicBool::new(false), Mutex::default());
        LockDesk { connections, state, news, used, doubts, heeded, settle }
    }

    /// Homes that may have dropped locks of this client: to be told of by whoever notices.
    pub(crate) fn doubts(&self) -> Arc<HomesInDoubt> {
        Arc::clone(&self.doubts)
    }

    /// Sets the liveness of nodes, as the client's own node knows it. To be called once.
    pub(crate) fn heed(&self, heeded: NodeLiveness) {
        assert!(self.heeded.set(heeded).is_ok(), "two nodes tell one client who lives");
    }

    /// Locks or unlocks a range. Without `waiting`, what cannot be had at once is refused.
    ///
    /// # Errors
    /// `EAGAIN`, `ENOLCK`, `EINTR` for a request that was taken back before it came, `EIO`.
    pub fn set(
        self: &Arc<Self>,
        ino: Ino,
        lock: &FileLock,
        waiting: Option<LockWaiting>,
    ) -> FsResult<Locked> {
        let home = self.connections.home(ino)?;
        // Before anything else: an old unlocking that arrives later would take away what is locked now.
        self.send_unsent(ino, lock)?;
        if lock.mode == LockMode::Unlock {
            return self.unlock(home, ino, lock);
        }
        // Before the home is asked: closes in other threads look at this.
        self.used.store(true, Ordering::Release);
        match waiting {
            Some(waiting) => self.acquire(home, ino, lock, waiting),
            None => {
                let begun = self.state.lock().begin(ino, lock);
                let request = self.request(ino, lock, None);
                let is_refused = |asked: &FsResult<bool>| {
                    asked.as_ref().is_err_and(|error| error.errno() == Errno::EAGAIN)
                };
                let mut asked = self.ask_for(home, &request);
                if is_refused(&asked) && self.settle_holders(home, ino, lock) {
                    asked = self.ask_for(home, &request);
                }
                self.state.lock().end(ino, lock, begun, asked.is_ok());
                asked.map(|_| Locked::Done)
            }
        }
    }

    fn acquire(
        self: &Arc<Self>,
        home: NodeId,
        ino: Ino,
        lock: &FileLock,
        waiting: LockWaiting,
    ) -> FsResult<Locked> {
        let LockWaiting { ticket, answer } = waiting;
        let request = self.request(ino, lock, Some(ticket));
        // Known before it is asked: the home may grant it before its answer is here.
        self.state.lock().open(ticket, Ticket::new(home, request, answer, Instant::now()))?;
        let asked = self.ask_for(home, &request);
        match self.conclude(ticket, asked) {
            Some((_, outcome)) => outcome.map(|()| Locked::Done),
            None => Ok(Locked::Waiting),
        }
    }

    /// Asks for a lock. One that comes to a home that has dropped the client's others of the file is not granted: it
    /// would look as if they were there still.
    fn ask_for(&self, home: NodeId, request: &SetLockRequest) -> FsResult<bool> {
        let ino = request.ino;
        loop {
            let held = {
                let state = self.state.lock();
                if state.lost.contains(&ino) {
                    return Err(fence::lost(ino, fence::DROPPED));
                }
                state.certain.of(ino)
            };
            let asked = self.connections.try_asking::<op::SetLock>(
                home,
                &SetLockRequest { holds: held.is_some(), ..*request },
                0,
            );
            match asked {
                Err(error) if held.is_some() && error.errno() == Errno::EBADF => {
                    let mut state = self.state.lock();
                    // Otherwise something was unlocked meanwhile, and that may have been all.
                    if state.certain.of(ino) == held {
                        state.lose(ino);
                    }
                }
                asked => return asked,
            }
        }
    }

    /// Takes note of what the home says of a request. Its answer, with what to tell it, if that was all.
    fn conclude(self: &Arc<Self>, ticket: u64, asked: FsResult<bool>) -> Option<(LockAnswer, FsResult<()>)> {
        let mut state = self.state.lock();
        match state.conclude(ticket, asked, Instant::now()) {
            Concluded::Over(answer, outcome) => Some((answer, outcome)),
            Concluded::Waits(home) => {
                self.employ(&mut state, home);
                None
            }
            Concluded::Unknown => None,
        }
    }

    fn unlock(&self, home: NodeId, ino: Ino, lock: &FileLock) -> FsResult<Locked> {
        {
            let mut state = self.state.lock();
            if !state.marks.has(ino, lock) && !state.unsure.contains(&home) {
                return Ok(Locked::Done);
            }
            state.certain.begin_unlocking(ino, lock);
        }
        let asked = self.connections.try_asking::<op::SetLock>(home, &self.request(ino, lock, None), 0);
        self.state.lock().certain.end_unlocking(ino, lock);
        asked.map(|_| Locked::Done)
    }

    /// Returns a lock that is in the way of this one.
    ///
    /// # Errors
    /// `EINVAL`, `EIO`.
    pub fn test(&self, ino: Ino, lock: &FileLock) -> FsResult<Option<FileLock>> {
        let request = LockOf { client: self.connections.id, node: self.connections.local, ino, lock: *lock };
        let home = self.connections.home(ino)?;
        let mut found = self.connections.try_asking::<op::TestLock>(home, &request, 0)?;
        if found.is_some() && self.settle_holders(home, ino, lock) {
            found = self.connections.try_asking::<op::TestLock>(home, &request, 0)?;
        }
        // Numbers of processes mean something on their own host only.
        let pid = |of: &LockOf| if of.client == self.connections.id { of.lock.pid } else { 0 };
        Ok(found.map(|of| FileLock { pid: pid(&of), ..of.lock }))
    }

    /// Sets the way to wait until files that programs have closed are closed here as well; a mount has one.
    pub fn settle_with(&self, settle: SettleLocks) {
        *self.settle.lock() = Some(settle);
    }

    /// Waits until files that programs of this client have closed are closed here as well.
    pub fn settle(&self) {
        let settle = self.settle.lock().clone();
        if let Some(settle) = settle {
            settle();
        }
    }

    /// Asks the clients whose locks conflict with this one to complete closes of their programs, which a kernel passes
    /// on only after `close` has returned. Returns true if the lock may be free now.
    fn settle_holders(&self, home: NodeId, ino: Ino, lock: &FileLock) -> bool {
        let request = LockOf { client: self.connections.id, node: self.connections.local, ino, lock: *lock };
        let list = self.connections.try_asking::<op::LockHolders>(home, &request, SHORT_WAIT_MS);
        let mut holders: Vec<(Option<NodeId>, ClientId)> =
            list.map_or(Vec::new(), |list| list.holders).iter().map(|of| (of.node, of.client)).collect();
        holders.sort_unstable();
        holders.dedup();
        // No holders: those that there were are gone.
        let mut is_settled = holders.is_empty();
        for holders in holders.chunk_by(|a, b| a.0 == b.0) {
            let (own, others): (Vec<_>, Vec<_>) =
                holders.iter().map(|(_, client)| *client).partition(|client| *client == self.connections.id);
            if !own.is_empty() {
                // Outside of all locks: it waits for requests that may come by here.
                self.settle();
                is_settled |= self.settle.lock().is_some();
            }
            if let (Some((Some(node), _)), false) = (holders.first(), others.is_empty()) {
                let owners = others.into_iter().map(|client| (client, 0)).collect();
                let asked = self.connections.try_asking::<op::SettleLocks>(
                    *node,
                    &LockOwners { owners },
                    SHORT_WAIT_MS,
                );
                is_settled |= asked.is_ok();
            }
        }
        is_settled
    }

    /// Unlocks all that a process which closed the file has locked of it in ranges, through whichever open file.
    pub fn closed_by(self: &Arc<Self>, ino: Ino, owner: u64) {
        let lock = whole(LockKind::Range, owner, 0);
        self.drop_marked(ino, UnlockScope::Owner, |state, sure| {
            let marks = state.marks.of_owner(ino, owner);
            if marks.is_empty() && sure { Vec::new() } else { vec![(lock, marks)] }
        });
    }

    /// Unlocks what was locked through an open file whose last descriptor is closed.
    pub fn released(self: &Arc<Self>, ino: Ino, handle: u64) {
        self.drop_marked(ino, UnlockScope::Handle, |state, _| {
            let marks = state.marks.of_handle(ino, handle);
            marks.into_iter().map(|mark| (whole(mark.kind, mark.owner, handle), vec![mark])).collect()
        });
    }

    fn drop_marked(
        self: &Arc<Self>,
        ino: Ino,
        scope: UnlockScope,
        choose: impl FnOnce(&LockState, bool) -> Vec<(FileLock, Vec<marks::LockMark>)>,
    ) {
        if !self.used.load(Ordering::Acquire) {
            return;
        }
        let Ok(home) = self.connections.home(ino) else { return };
        let sure = !self.state.lock().unsure.contains(&home) || self.learn(home, SHORT_WAIT_MS).is_ok();
        let chosen = choose(&self.state.lock(), sure);
        for (lock, marks) in chosen {
            let request = SetLockRequest { scope, ..self.request(ino, &lock, None) };
            self.state.lock().certain.begin_unlocking(ino, &lock);
            let sent = self.connections.try_asking::<op::SetLock>(home, &request, 0);
            let mut state = self.state.lock();
            state.certain.end_unlocking(ino, &lock);
            // Also where it was not sent: it is among the unsent then, which come before any new lock of the owner.
            marks.iter().for_each(|mark| state.marks.remove(ino, mark));
            state.forget_lost(ino);
            if let Err(error) = sent {
                log::warn!(why:% = error; "inode {ino} is to be unlocked when {home} is back");
                state.unsent.push(PendingUnlock::new(home, request));
                self.employ(&mut state, home);
            }
        }
    }

    /// Takes back a request that waits; one that has yet to come is refused then.
    pub fn interrupt(self: &Arc<Self>, ticket: u64) {
        self.state.lock().interrupt(ticket, Instant::now());
        self.news.notify_all();
    }

    /// Learns what an earlier process of this client has locked at a node, and drops the requests that it waited for: a
    /// program that still waits asks again.
    pub(crate) fn resume(&self, home: NodeId) -> FsResult<()> {
        self.learn(home, 0)
    }

    /// Records that what an earlier process of this client has locked at a node is unknown.
    pub(crate) fn is_unsure_of(&self, home: NodeId) {
        self.used.store(true, Ordering::Release);
        self.state.lock().unsure.insert(home);
    }

    fn learn(&self, home: NodeId, wait_ms: u32) -> FsResult<()> {
        let asked = self.state.lock().certain.now();
        self.list(home, true, wait_ms, |of| {
            self.used.store(true, Ordering::Release);
            let mut state = self.state.lock();
            state.marks.begin(of.ino, &of.lock);
            state.marks.end(of.ino, &of.lock);
            state.certain.learn(of.ino, &of.lock, asked);
        })?;
        self.state.lock().unsure.remove(&home);
        Ok(())
    }

    /// Returns the files of which this client has something locked at a home.
    fn held(&self, home: NodeId) -> FsResult<HashSet<Ino>> {
        let mut held = HashSet::new();
        self.list(home, false, 0, |of| held.extend([of.ino]))?;
        Ok(held)
    }

    /// Lists all locks of this client at a home.
    fn list(
        &self,
        home: NodeId,
        drop_waits: bool,
        wait_ms: u32,
        mut take: impl FnMut(&LockOf),
    ) -> FsResult<()> {
        let mut after = None;
        loop {
            // Waits are dropped once, with the first page.
            let request = ListLocksRequest { drop_waits: drop_waits && after.is_none(), after };
            let list = self.connections.try_asking::<op::ListLocks>(home, &request, wait_ms)?;
            after = list.locks.last().copied();
            list.locks.iter().for_each(&mut take);
            if list.end || after.is_none() {
                return Ok(());
            }
        }
    }

    /// Returns true if anything was ever locked, or may be.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// Drops everything, at the end of the client.
    pub fn close(&self) {
        // First closed, then asked: nothing is locked any more that would not be released.
        let homes = self.state.lock().close(&self.connections.map);
        self.news.notify_all();
        for home in homes {
            if let Err(error) = self.connections.try_asking::<op::ReleaseLocks>(home, &(), 0) {
                log::warn!(why:% = error; "what was locked at {home} stays so until it takes this client for gone");
            }
        }
    }

    /// Answers the requests under these numbers, which have their locks.
    pub fn granted(&self, tickets: &[u64]) {
        let over: Vec<LockAnswer> = {
            let mut state = self.state.lock();
            tickets.iter().filter_map(|ticket| state.granted(*ticket)).collect()
        };
        // Without the lock: answers are functions of the caller.
        over.into_iter().for_each(|answer| answer(Ok(())));
    }

    /// Returns what these owners wait for, as far as it may be part of a deadlock.
    #[must_use]
    pub fn waits(&self, owners: &[u64]) -> Vec<LockWait> {
        let state = self.state.lock();
        let wanted = state.tickets.iter().filter(|(_, ticket)| {
            owners.contains(&ticket.request.lock.owner) && state.may_be_in_a_circle(ticket)
        });
        wanted.map(|(number, ticket)| self.wait(*number, ticket)).collect()
    }

    /// Makes a wait's check for a deadlock due now, and wakes the threads that wait.
    pub fn look_again(&self, ticket: u64) {
        if let Some(ticket) = self.state.lock().tickets.get_mut(&ticket) {
            // Asked 0 times so far: the next time looks for a circle.
            (ticket.due, ticket.asked) = (Instant::now(), 0);
        }
        self.news.notify_all();
    }

    fn wait(&self, number: u64, ticket: &Ticket) -> LockWait {
        let SetLockRequest { ino, lock, .. } = ticket.request;
        let waited_ms = u64::try_from(ticket.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        LockWait {
            of: LockOf { client: self.connections.id, node: self.connections.local, ino, lock },
            ticket: number,
            waited_ms,
        }
    }

    fn request(&self, ino: Ino, lock: &FileLock, ticket: Option<u64>) -> SetLockRequest {
        SetLockRequest {
            ino,
            lock: *lock,
            scope: UnlockScope::Range,
            holds: false,
            ticket,
            node: self.connections.local,
        }
    }
}

/// Returns the unlocking of everything that an owner has locked.
fn whole(kind: LockKind, owner: u64, handle: u64) -> FileLock {
    FileLock { kind, mode: LockMode::Unlock, owner, handle, pid: 0, start: 0, end: LOCK_END_MAX }
}
