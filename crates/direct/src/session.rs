//! A process's side of a grant table.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bivouac_types::limits::{DIRECT_GATES_MAX, DIRECT_SESSIONS_MAX};

use crate::gate::Gate;
use crate::invalidations::{Invalidations, PendingTimeCounters};
use crate::memory::Memory;
use crate::{SESSION_LEN, lock};

/// Number of forks of this process's ancestors, as far as they said so.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Notes that this process was forked. To be called in the child after a fork, before it does anything else with a
/// session: those that were made before are its parent's.
pub fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Returns the number of calls of [`forked`] in this process and its ancestors.
#[must_use]
pub fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// A process's gates. The lock that shows that the process lives goes with the last one who has this value.
pub struct Session {
    index: u32,
    memory: Arc<Memory>,
    forks: u32,
    /// The lock belongs to it.
    board: OwnedFd,
}

impl Session {
    /// Takes the session with a number; `grants` must be an open file description of its own.
    ///
    /// # Errors
    /// What the system says; `InvalidInput` for a number that there is not.
    pub fn take(grants: OwnedFd, index: u32) -> io::Result<Session> {
        if index >= DIRECT_SESSIONS_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let length = rustix::fs::fstat(&grants)?.st_size;
        if usize::try_from(length).is_ok_and(|length| length < crate::BOARD_LEN) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        lock::take(grants.as_fd(), index)?;
        let memory = Arc::new(Memory::map(grants.as_fd(), index as usize * SESSION_LEN, SESSION_LEN)?);
        Ok(Session { index, memory, forks: FORKS.load(Ordering::Relaxed), board: grants })
    }

    /// Returns its number.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns the gate of a grant; `None` for one that there is not.
    #[must_use]
    pub fn gate(&self, gate: u32, turn: u32) -> Option<Gate> {
        if gate < DIRECT_GATES_MAX { Gate::at(&self.memory, 0, gate, turn) } else { None }
    }

    /// Returns the words by which this process is called back.
    ///
    /// # Errors
    /// What the system says.
    pub fn invalidations(&self) -> io::Result<Invalidations> {
        Invalidations::of(self.board.as_fd())
    }

    /// Counters of changes that the node's mounts have not told.
    ///
    /// # Errors
    /// What the system says.
    pub fn untold(&self) -> io::Result<PendingTimeCounters> {
        PendingTimeCounters::of(self.board.as_fd())
    }

    /// Returns whether it was made by this process, not by the one that forked it.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.forks == FORKS.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("index", &self.index).finish_non_exhaustive()
    }
}
