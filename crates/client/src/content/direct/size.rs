//! Sizes that homes on this machine lend: a process that makes a file longer raises the size in shared memory, without
//! a message. See docs/decisions/0003-file-size.md.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bivouac_direct::{Session, SizeGate, WriteEnd};
use bivouac_types::limits::DIRECT_CALM_MS;
use bivouac_types::{Ino, NodeId};
use bivouac_wire::SizeLease;
use parking_lot::Mutex;

use super::{Direct, SHARDS};
use crate::homes::known::{KnownFile, KnownFiles};

/// Times that a file grows by messages before its size is asked for.
const GROWN_MIN: u32 = 3;

/// A size that is lent to this process.
#[derive(Debug)]
pub struct SizeHandle {
    gate: SizeGate,
    /// Its lock shows the daemon that this process is alive.
    session: Arc<Session>,
    epoch: u32,
}

impl SizeHandle {
    /// Creates the handle of a size lease.
    pub fn new(session: &Arc<Session>, lease: &SizeLease) -> Option<SizeHandle> {
        let gate = SizeGate::joined(session.gate(lease.gate, lease.turn)?);
        Some(SizeHandle { gate, session: Arc::clone(session), epoch: lease.epoch })
    }

    fn is_open(&self) -> bool {
        self.session.is_own() && !self.gate.is_closed()
    }

    fn tell(&self, written: &Range<u64>, known: &KnownFile) -> bool {
        let told = WriteEnd {
            end: written.end,
            fresh: written.end.saturating_sub(written.start.max(known.size)),
            leaves_hole: written.start > known.size,
            at_ns: now_ns(),
        };
        // A write of another epoch was cut, or is behind a truncation: its end is for the home to judge.
        self.epoch == known.epoch && self.session.is_own() && self.gate.tell(told)
    }
}

impl Drop for SizeHandle {
    fn drop(&mut self) {
        // In a forked child the gate is the parent's.
        if self.session.is_own() {
            self.gate.close();
        }
    }
}

/// Returns the time in nanoseconds since 1970; the home is on this machine, and reads the same clock.
fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// State of the size of a file that grows.
#[derive(Debug)]
enum SizeState {
    /// It grew so many times by messages.
    Grown(u32),
    /// Not to be asked for before this time, also while another thread asks.
    Refused(Instant),
    Lent(SizeHandle),
}

/// Sizes of a client's files that grow.
pub struct Sizes {
    shards: [Mutex<HashMap<Ino, SizeState>>; SHARDS],
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes { shards: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl Sizes {
    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, SizeState>> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// Raises a size by a write behind the one that its writer knows. Returns true if the home has it by that.
    pub fn tell(&self, ino: Ino, written: &Range<u64>, known: &KnownFile) -> bool {
        match self.shard(ino).lock().get(&ino) {
            Some(SizeState::Lent(handle)) => handle.tell(written, known),
            _ => false,
        }
    }

    /// Returns true if the size of the file is lent to this process.
    pub fn is_lent(&self, ino: Ino) -> bool {
        matches!(self.shard(ino).lock().get(&ino), Some(SizeState::Lent(_)))
    }

    /// Counts that the file has grown by a message. Returns true if its size is to be asked for at once, by this thread
    /// alone.
    fn grown(&self, ino: Ino) -> bool {
        let mut shard = self.shard(ino).lock();
        let state = shard.entry(ino).or_insert(SizeState::Grown(0));
        match state {
            SizeState::Lent(handle) if handle.is_open() => return false,
            SizeState::Refused(until) if *until > Instant::now() => return false,
            SizeState::Grown(times) if *times + 1 >= GROWN_MIN => {}
            SizeState::Grown(times) => {
                *times += 1;
                return false;
            }
            _ => {
                *state = SizeState::Grown(1);
                return false;
            }
        }
        // No other thread asks until the answer is here.
        *state = pause();
        true
    }

    /// Records the outcome of asking for a size.
    fn conclude(&self, known: &KnownFiles, ino: Ino, lent: Option<SizeHandle>) {
        let mut shard = self.shard(ino).lock();
        // Closed meanwhile: nobody would return it.
        if let Some(state) = shard.get_mut(&ino).filter(|_| known.is_open(ino)) {
            *state = lent.map_or_else(pause, SizeState::Lent);
        }
    }

    /// Gives the size of a file back.
    pub fn forget(&self, ino: Ino) {
        let forgotten = self.shard(ino).lock().remove(&ino);
        drop(forgotten);
    }
}

fn pause() -> SizeState {
    SizeState::Refused(Instant::now() + Duration::from_millis(DIRECT_CALM_MS))
}

impl Direct {
    /// Handles that a message made a file longer: asks for its size, if it has grown often enough.
    pub fn grew(&self, home: NodeId, ino: Ino) {
        let Some(way) = self.connections.get(&home).filter(|_| self.known.is_open(ino)) else { return };
        // Not under the lock of the shard: other writers of the file go on by messages meanwhile.
        if self.sizes.grown(ino) {
            self.sizes.conclude(&self.known, ino, way.lend_size(ino));
        }
    }
}
