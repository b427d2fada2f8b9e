//! A gate: how many threads are inside, and whether it is closed.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use rustix::thread::futex;

use crate::GATE_LEN;
use crate::memory::Memory;

/// Set in a gate's state when nobody may enter any more; the lower bits count who is inside, the upper half of the
/// double word is the turn. They are changed together, so that nobody looks at the one and changes the other's grant.
const CLOSED: u64 = 1 << 31;
/// One turn in the upper half of that double word.
const TURN: u64 = 1 << 32;
/// Bits of the state in that double word.
const STATE: u64 = TURN - 1;
/// Longest sleep before a look whether those inside still live.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Words of a gate.
const WORDS: usize = GATE_LEN / size_of::<AtomicU32>();

/// One grant's use of a gate. Successive grants on one gate have different turns, so that a process which has not
/// noticed the end of one does not enter under the next.
#[derive(Clone)]
pub struct Gate {
    memory: Arc<Memory>,
    first: usize,
    turn: u32,
}

impl Gate {
    /// Returns the gate of a session that is mapped at `first_word` of the memory.
    pub(crate) fn at(memory: &Arc<Memory>, first_word: usize, gate: u32, turn: u32) -> Option<Gate> {
        let first = first_word + gate as usize * WORDS;
        memory.word(first + WORDS - 1)?;
        Some(Gate { memory: Arc::clone(memory), first, turn })
    }

    /// Returns the number of the grant among those of this gate.
    #[must_use]
    pub fn turn(&self) -> u32 {
        self.turn
    }

    /// Returns the same gate, opened for its next grant. It must be closed, with nobody inside.
    #[must_use]
    pub fn open_next(&self) -> Gate {
        // The count stays: who looked in vain is leaving.
        let opened = self.change(|current| Some(current.wrapping_add(TURN) & !CLOSED));
        Gate { turn: turn_of(opened), ..self.clone() }
    }

    /// Writes down what the grant is for, for a later daemon.
    pub fn mark(&self, what: [u32; 3]) {
        for (index, word) in (2..).zip(what) {
            self.word(index).store(word, Ordering::Relaxed);
        }
    }

    /// Returns the words that were marked.
    #[must_use]
    pub fn marked(&self) -> [u32; 3] {
        [2, 3, 4].map(|index| self.word(index).load(Ordering::Relaxed))
    }

    /// Forgets who was inside: only for a session whose process is no more.
    pub(crate) fn reset(&self) {
        self.change(|current| Some(current & !STATE | CLOSED));
    }

    /// Goes inside; `None` if the gate is closed or is another grant's by now.
    #[must_use]
    pub fn enter(&self) -> Option<GateGuard<'_>> {
        if self.state().load(Ordering::Relaxed) & CLOSED != 0 {
            return None;
        }
        // Counted first and looked at then: whoever closes the gate either finds this one inside, or is seen here.
        let before = self.state().fetch_add(1, Ordering::Acquire);
        let pass = GateGuard(self);
        let valid = before & CLOSED == 0 && turn_of(before) == self.turn;
        valid.then_some(pass)
    }

    /// Lets nobody enter any more on this grant; a later one on the same gate stays open.
    pub fn close(&self) {
        self.change(|current| (turn_of(current) == self.turn).then_some(current | CLOSED));
        // Pairs with `is_open_still`: either that sees the gate closed, or the closer sees all that was told before it.
        fence(Ordering::SeqCst);
    }

    /// Returns whether nobody can enter on this grant.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let current = self.state().load(Ordering::Acquire);
        turn_of(current) != self.turn || current & CLOSED != 0
    }

    /// Returns whether it is closed, with nobody inside.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let current = self.state().load(Ordering::Acquire);
        turn_of(current) != self.turn || current & STATE == CLOSED
    }

    /// Waits until a closed gate is empty, or its process is no more. Whether that came about in time.
    pub fn drain(&self, patience: Duration, lives: impl Fn() -> bool) -> bool {
        let deadline = Instant::now() + patience;
        loop {
            let current = self.state().load(Ordering::Acquire);
            if turn_of(current) != self.turn || current & STATE == CLOSED {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // The last sleep may not have ended by its time, and then nobody has looked whether the process lives.
                return !lives();
            }
            // A process that is killed inside never leaves, so its lock says what the counter cannot.
            if !self.sleep((current & STATE) as u32, left.min(LOOK_EVERY)) && !lives() {
                return true;
            }
        }
    }

    /// Sleeps until somebody leaves; whether that was the reason for waking.
    fn sleep(&self, state: u32, longest: Duration) -> bool {
        let longest = futex::Timespec::try_from(longest).ok();
        // Woken, interrupted, or changed before it slept: the caller looks again in all cases.
        !matches!(
            futex::wait(self.word(0), futex::Flags::empty(), state, longest.as_ref()),
            Err(rustix::io::Errno::TIMEDOUT)
        )
    }

    fn leave(&self) {
        if self.state().fetch_sub(1, Ordering::Release) & STATE == CLOSED | 1 {
            // A sleeper that is missed wakes up by itself.
            let _ = futex::wake(self.word(0), futex::Flags::empty(), u32::MAX >> 1);
        }
    }

    /// Returns whether somebody may enter on this grant, as of after everything that this thread has told.
    pub(crate) fn is_open_still(&self) -> bool {
        fence(Ordering::SeqCst);
        let current = self.state().load(Ordering::SeqCst);
        turn_of(current) == self.turn && current & CLOSED == 0
    }

    /// Changes state and turn in one step, unless `next` says that there is nothing to change; what they are then.
    fn change(&self, next: impl Fn(u64) -> Option<u64>) -> u64 {
        let changed = self.state().fetch_update(Ordering::SeqCst, Ordering::SeqCst, &next);
        changed.map_or_else(|current| current, |before| next(before).unwrap_or(before))
    }

    /// Returns the state and turn. The kernel alone looks at the first word by itself.
    fn state(&self) -> &AtomicU64 {
        self.double(0)
    }

    pub(crate) fn double(&self, index: usize) -> &AtomicU64 {
        static BEHIND: AtomicU64 = AtomicU64::new(CLOSED);
        // Behind the last word is another grant's gate.
        assert!(index + 1 < WORDS, "double word {index} of a gate");
        self.memory.double(self.first + index).unwrap_or(&BEHIND)
    }

    pub(crate) fn word(&self, index: usize) -> &AtomicU32 {
        static BEHIND: AtomicU32 = AtomicU32::new(0);
        assert!(index < WORDS, "word {index} of a gate");
        // `at` has seen that the gate is within the memory.
        self.memory.word(self.first + index).unwrap_or(&BEHIND)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state().load(Ordering::Relaxed);
        let (closed, inside) = (state & CLOSED != 0, state & STATE & !CLOSED);
        f.debug_struct("Gate")
            .field("turn", &self.turn)
            .field("closed", &closed)
            .field("inside", &inside)
            .finish()
    }
}

fn turn_of(current: u64) -> u32 {
    (current >> 32) as u32
}

/// An access inside a gate, which it leaves when dropped.
#[must_use = "an access is only safe while it is inside"]
pub struct GateGuard<'a>(&'a Gate);

impl Drop for GateGuard<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}
