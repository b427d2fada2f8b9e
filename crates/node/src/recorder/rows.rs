//! Rows that are written again and again, and survive a kill of who writes them: each has two copies, and the older one
//! is written over.
//!
//! ```text
//! copy  turn 8 | length in bytes 8 | check 8 | content
//! ```
//! The newer copy whose check is right is the row. A copy whose check is wrong was being written when its daemon was
//! killed: the row is as it was before, and that is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bivouac_direct::Memory;

use super::TORN_AT;

/// Double words in front of a copy's content.
const HEAD: usize = 3;
const WORD: usize = size_of::<u64>();

/// Rows of one length. Who writes one has it alone.
pub struct Rows {
    memory: Arc<Memory>,
    at: usize,
    count: usize,
    words: usize,
}

/// A copy of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyState {
    /// Never written.
    Empty,
    /// Written in this turn.
    Whole(u64),
    /// Its writer was killed.
    Torn,
}

/// Returns a hash that tells what is torn from what is whole; nobody chooses these numbers to deceive it.
pub fn hash(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(0x517c_c1b7_2722_0a95, |hash: u64, word| {
        (hash.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

impl Rows {
    /// Returns how many double words so many rows take, with content of so many.
    pub const fn words(count: usize, words: usize) -> usize {
        2 * count * (HEAD + words)
    }

    /// Creates the rows that begin at this double word.
    pub fn new(memory: Arc<Memory>, at: usize, count: usize, words: usize) -> Rows {
        let is_inside = memory.doubles(at, Rows::words(count, words)).is_some();
        assert!(is_inside, "{count} rows of {words} words at {at} are not inside of the memory");
        Rows { memory, at, count, words }
    }

    /// Returns their number.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the content of a row; empty if it was never written, or was emptied.
    pub fn read(&self, row: usize) -> Vec<u8> {
        let newest = (0..2)
            .filter_map(|which| match self.look(row, which) {
                CopyState::Whole(turn) => Some((turn, which)),
                CopyState::Empty => None,
                CopyState::Torn => {
                    self.mend(row, which);
                    None
                }
            })
            .max();
        newest.and_then(|(_, which)| self.content(row, which)).unwrap_or_default()
    }

    /// Returns true if anything was ever written to a row.
    pub fn is_used(&self, row: usize) -> bool {
        (0..2).any(|which| self.look(row, which) != CopyState::Empty)
    }

    /// Writes a row; whether it has room for that.
    pub fn write(&self, row: usize, content: &[u8]) -> bool {
        let turns = [0, 1].map(|which| match self.look(row, which) {
            CopyState::Whole(turn) => turn,
            CopyState::Empty | CopyState::Torn => 0,
        });
        let (which, turn) = (usize::from(turns[1] < turns[0]), turns[0].max(turns[1]).saturating_add(1));
        let Some(copy) = self.copy(row, which).filter(|_| content.len() <= self.words * WORD) else {
            return false;
        };
        // No copy counts as whole that has some of both.
        put(copy, 2, 0);
        for (index, bytes) in content.chunks(WORD).enumerate() {
            let mut word = [0; WORD];
            word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            put(copy, HEAD + index, u64::from_ne_bytes(word));
        }
        put(copy, 0, turn);
        put(copy, 1, content.len() as u64);
        put(copy, 2, check(row, copy, content.len()));
        true
    }

    fn copy(&self, row: usize, which: usize) -> Option<&[AtomicU64]> {
        let len = HEAD + self.words;
        let first = self.at + (2 * row + which) * len;
        self.memory.doubles(first, len).filter(|_| row < self.count)
    }

    fn look(&self, row: usize, which: usize) -> CopyState {
        let Some(copy) = self.copy(row, which) else { return CopyState::Empty };
        let [turn, len, known] = [0, 1, 2].map(|at| get(copy, at));
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        // A writer that was killed before it wrote the turn has left content.
        if [turn, known] == [0, 0] && copy.iter().all(|word| word.load(Ordering::Relaxed) == 0) {
            CopyState::Empty
        } else if len <= self.words * WORD && known == check(row, copy, len) {
            CopyState::Whole(turn)
        } else {
            CopyState::Torn
        }
    }

    fn content(&self, row: usize, which: usize) -> Option<Vec<u8>> {
        let copy = self.copy(row, which)?;
        let len = usize::try_from(get(copy, 1)).ok()?;
        let words = copy.get(HEAD..HEAD + len.div_ceil(WORD))?;
        let mut bytes: Vec<u8> =
            words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
        bytes.truncate(len);
        Some(bytes)
    }

    /// Counts what was lost, once.
    fn mend(&self, row: usize, which: usize) {
        self.copy(row, which).into_iter().flatten().for_each(|word| word.store(0, Ordering::Relaxed));
        if let Some(torn) = self.memory.doubles(TORN_AT, 1).and_then(<[AtomicU64]>::first) {
            torn.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn get(copy: &[AtomicU64], at: usize) -> u64 {
    copy.get(at).map_or(0, |word| word.load(Ordering::Relaxed))
}

/// Stores a value in program order, also for the compiler: a kill may come between any two stores.
fn put(copy: &[AtomicU64], at: usize, value: u64) {
    if let Some(word) = copy.get(at) {
        word.store(value, Ordering::Release);
    }
}

fn check(row: usize, copy: &[AtomicU64], len: usize) -> u64 {
    let content = (0..len.div_ceil(WORD)).map(|index| get(copy, HEAD + index));
    // Never zero, which stands for a copy that is being written.
    hash([row as u64, get(copy, 0), len as u64].into_iter().chain(content)).max(1)
}
