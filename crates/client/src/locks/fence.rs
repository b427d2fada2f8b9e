//! Writing under locks that may be gone. A client that its home took for dead has lost what it had locked there, and
//! somebody else may have it now. So what is written to a file of which the client has locked something
//!
//! - carries the incarnation that the client's node had when it began: nodes refuse what was begun before they took
//!   that node for dead (a fencing token);
//! - is begun only if the home still knows of the locks, once there is any doubt of that;
//! - is not begun if the home is dead to this side: it may be that only this side is cut off.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bivouac_net::LivenessTable;
use bivouac_types::{Errno, FsError, FsResult, Ino, NodeId};
use parking_lot::Mutex;

use super::LockDesk;
use crate::fencing_token::FencingScope;

/// Homes that may have dropped locks.
#[derive(Debug, Default)]
pub(crate) struct HomesInDoubt {
    any: AtomicBool,
    doubts: Mutex<Doubts>,
}

#[derive(Debug, Default)]
struct Doubts {
    /// Number of the last doubt.
    last: u64,
    /// Each home with the number of its last doubt.
    homes: HashMap<NodeId, u64>,
}

impl HomesInDoubt {
    /// Notes that a home may have dropped what this client has locked there.
    pub(crate) fn add(&self, home: NodeId) {
        let mut doubts = self.doubts.lock();
        doubts.last += 1;
        let number = doubts.last;
        doubts.homes.insert(home, number);
        self.any.store(true, Ordering::Release);
    }

    /// Returns the number of the last doubt about a home, if there is one.
    fn of(&self, home: NodeId) -> Option<u64> {
        if self.any.load(Ordering::Acquire) { self.doubts.lock().homes.get(&home).copied() } else { None }
    }

    /// Removes a doubt that was cleared up, unless there is a later one: the home may have dropped locks since it was
    /// asked.
    fn remove(&self, home: NodeId, number: u64) {
        let mut doubts = self.doubts.lock();
        if doubts.homes.get(&home) == Some(&number) {
            doubts.homes.remove(&home);
        }
        self.any.store(!doubts.homes.is_empty(), Ordering::Release);
    }
}

/// Liveness of nodes, as the client's own node knows it.
#[derive(Debug)]
pub(crate) struct NodeLiveness {
    pub(crate) liveness: Arc<LivenessTable>,
    /// Wait for a home that is dead to this side.
    pub(crate) wait: Duration,
}

/// Reason why a lock was lost.
pub(super) const DROPPED: &str = "its home took this node for dead, and dropped it";

impl LockDesk {
    /// Fences what is sent while the result lives. To be called before something is written to a file.
    ///
    /// # Errors
    /// `EIO` when what this client had locked of the file is lost, or may be.
    pub(crate) fn guard(&self, ino: Ino) -> FsResult<FencingScope> {
        // Every write comes by here, and most programs lock nothing.
        if !self.used.load(Ordering::Acquire) {
            return Ok(FencingScope::with(0));
        }
        // The token first: what is found out later is then no older than it.
        let token = self.heeded.get().map_or(0, |heeded| heeded.liveness.token());
        if !self.state.lock().marks.has_any(ino) {
            return Ok(FencingScope::with(0));
        }
        let home = self.connections.home(ino)?;
        self.check_reach(home, ino)?;
        if let Some(doubt) = self.doubts.of(home) {
            self.verify(home, doubt)?;
        }
        match self.state.lock().lost.contains(&ino) {
            true => Err(lost(ino, DROPPED)),
            false => Ok(FencingScope::with(token)),
        }
    }

    /// Refuses writes under locks of a home that is dead to this side. Half of the bounded time behind the home's death
    /// this side stops, and not before its end does the other side give the locks to somebody else.
    fn check_reach(&self, home: NodeId, ino: Ino) -> FsResult<()> {
        let dead = self.heeded.get().and_then(|heeded| Some((heeded.liveness.dead_for(home)?, heeded.wait)));
        match dead {
            Some((dead, wait)) if dead >= wait / 2 => Err(lost(ino, &format!("{home}, its home, is dead"))),
            _ => Ok(()),
        }
    }

    /// Returns true if this client has locks on a file, or has lost some.
    pub(crate) fn concerns(&self, ino: Ino) -> bool {
        self.used.load(Ordering::Acquire) && {
            let state = self.state.lock();
            state.marks.has_any(ino) || state.lost.contains(&ino)
        }
    }

    /// Returns true if what this client had locked of a file may be locked by others now.
    pub(crate) fn has_lost(&self, ino: Ino) -> bool {
        self.used.load(Ordering::Acquire) && self.state.lock().lost.contains(&ino)
    }

    /// Puts all locks in doubt: other nodes took this one for dead.
    pub fn doubt(&self) {
        for home in self.state.lock().marks.homes(&self.connections.map) {
            self.doubts.add(home);
        }
    }

    /// Clears up a doubt: asks a home which locks this client still has there; files of which it has none any more are
    /// lost to it.
    fn verify(&self, home: NodeId, doubt: u64) -> FsResult<()> {
        let before = self.state.lock().certain.files(home, &self.connections.map);
        let held = self.held(home)?;
        let mut state = self.state.lock();
        for (ino, since) in before {
            // Where something was unlocked meanwhile there may be nothing left.
            if !held.contains(&ino) && state.certain.of(ino) == Some(since) {
                state.lose(ino);
            }
        }
        drop(state);
        // Last: a write that begins meanwhile asks as well, rather than go on unchecked.
        self.doubts.remove(home, doubt);
        Ok(())
    }
}

/// Returns the error for what is done under locks that may be somebody else's.
pub(super) fn lost(ino: Ino, why: &str) -> FsError {
    let text = format!("a lock of inode {ino} may be lost: {why}; close the file and lock it again");
    FsError::with(Errno::EIO, text)
}
