//! Recording of what a node does, in memory that its supervisor holds, so that the next daemon goes on with it.
//!
//! ```text
//! 0        header, 4 KiB: magic 8 | version 8 | began 8 | check 8 | latest 8 | second 8 | torn 8 | processors 8 |
//!          zero, to byte 512 | heard: 64 times 8
//! 4096     counters: for each of 16 processors those of each operation, 512 bytes each (counters.rs)
//! behind   rows (rows.rs): files, processes, what was told together; then two histories (ring.rs), of programs and of
//!          requests
//! ```
//! Numbers are of 8 bytes, in the order of the machine, which no file of this kind leaves. `check` is the hash of what
//! is in front of it. `began` is when the first daemon was started, in milliseconds since 1970, and `latest` when
//! something was noted last, since then; `second` is the one in which requests came last. `heard` are hashes of the
//! last messages with what clients did. Counters are added to one by one; rows have two copies by turns, so that a kill
//! leaves the one before. All of it is [`LEN`] bytes, of which only what is used takes memory.

mod ring;
mod rows;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bivouac_direct::Memory;
use bivouac_ranks::{Mutex, rank};
use bivouac_record::{Bin, History, HistoryInterval, RECORDS, SECOND_MS};
use bivouac_types::limits::{USES_FILES_MAX, USES_PROCESSES_MAX};
use bivouac_types::{ClientId, OpId};
use bivouac_wire::CloseRequest;

use crate::counters::{self, Counters};
pub use ring::Ring;
pub use rows::{Rows, hash};

const MAGIC: u64 = u64::from_le_bytes(*b"bvkrecrd");
const VERSION: u64 = 1;
/// Double words of the header.
const HEADER: usize = 512;
const CHECK_AT: usize = 3;
const LATEST_AT: usize = 4;
const SECOND_AT: usize = 5;
const TORN_AT: usize = 6;
const PROCESSORS_AT: usize = 7;
/// Position and number of the hashes of messages.
const HEARD_AT: usize = 64;
const HEARD: u64 = 64;
/// By how much clocks are set back at most.
const SET_BACK_MAX_MS: u64 = 24 * 3_600_000;
/// Double words of a file's row, of a process's, and of the row of what was told together.
const FILE: usize = 61;
const PROCESS: usize = 45;
const REST: usize = 45;

const FILES_AT: usize = HEADER + counters::WORDS;
const PROCESSES_AT: usize = FILES_AT + Rows::words(USES_FILES_MAX, FILE);
const REST_AT: usize = PROCESSES_AT + Rows::words(USES_PROCESSES_MAX, PROCESS);
const USED_AT: usize = REST_AT + Rows::words(1, REST);
const SERVED_AT: usize = USED_AT + Ring::WORDS;
/// Bytes of the memory.
const LEN: usize = (SERVED_AT + Ring::WORDS).next_multiple_of(PAGE) * size_of::<u64>();
/// A page, in double words, of every machine that we run on.
const PAGE: usize = 65_536 / size_of::<u64>();

/// The memory of a node's recorder.
pub struct Recorder {
    memory: Arc<Memory>,
    started: Instant,
    /// Milliseconds between the start of the first daemon and that of this one.
    before_ms: u64,
    served: Mutex<ServedHistory>,
}

/// History of requests.
struct ServedHistory {
    ring: Ring,
    /// Sum of the counters that the history contains.
    noted: Bin,
}

/// Rows of how files are used.
pub struct UseRows {
    pub files: Rows,
    pub processes: Rows,
    pub rest: Rows,
    pub ring: Ring,
}

impl Recorder {
    /// Goes on with what an earlier daemon recorded, or begins; without a file, in memory that ends with the process.
    ///
    /// # Errors
    /// What the system says. A file that is not one of these is begun anew, with a word in the log.
    pub fn open(file: Option<OwnedFd>) -> io::Result<Recorder> {
        let file = file.map_or_else(|| Memory::make("bivouac-record"), Ok)?;
        let memory = Memory::whole(&file, LEN).or_else(|error| {
            log::warn!(why:% = error; "what was recorded by an earlier daemon is of another kind, and is left alone");
            Memory::whole(&Memory::make("bivouac-record")?, LEN)
        });
        let memory = Arc::new(memory?);
        let now_ms = unix_ms();
        if !is_begun(&memory) {
            begin(&memory, now_ms)?;
        }
        let [.., began] = head(&memory).ok_or(io::ErrorKind::InvalidData)?;
        let latest = word(&memory, LATEST_AT).map_or(0, |latest| latest.load(Ordering::Relaxed));
        // The clock may have been set back meanwhile.
        let since = now_ms.saturating_sub(began);
        let before_ms = since.max(latest.min(since.saturating_add(SET_BACK_MAX_MS)));
        let ring = Ring::open(&memory, SERVED_AT);
        let served = Mutex::new(rank::LEAF, ServedHistory { noted: ring.total(before_ms), ring });
        Ok(Recorder { memory, started: Instant::now(), before_ms, served })
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        Counters::open(Arc::clone(&self.memory), HEADER, PROCESSORS_AT)
    }

    /// Returns the rows of how files are used.
    pub fn use_rows(&self) -> UseRows {
        let rows = |at, count, words| Rows::new(Arc::clone(&self.memory), at, count, words);
        UseRows {
            files: rows(FILES_AT, USES_FILES_MAX, FILE),
            processes: rows(PROCESSES_AT, USES_PROCESSES_MAX, PROCESS),
            rest: rows(REST_AT, 1, REST),
            ring: Ring::open(&self.memory, USED_AT),
        }
    }

    /// Returns the milliseconds since the first daemon was started.
    pub fn now_ms(&self) -> u64 {
        self.ms_at(Instant::now())
    }

    fn ms_at(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.started).as_millis();
        self.before_ms.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }

    /// Notes that daemons were killed in the middle of.
    pub fn torn(&self) -> u64 {
        word(&self.memory, TORN_AT).map_or(0, |torn| torn.load(Ordering::Relaxed))
    }

    /// Takes note of a message with what its client did. Returns true if it came before: its answer was lost, perhaps
    /// with a daemon. One without a number of its own is always new.
    pub fn hears(&self, client: ClientId, op: OpId) -> bool {
        if !CloseRequest::is_numbered(op) {
            return false;
        }
        // Zero is a place that was never used.
        let mark = hash([client.0, op.0].into_iter()).max(1);
        let Some(place) = word(&self.memory, HEARD_AT + (mark % HEARD) as usize) else { return false };
        // A message whose place another one has taken since counts twice: these are statistics.
        place.swap(mark, Ordering::Relaxed) == mark
    }

    /// Notes that a request comes, at this moment. The first in a second writes down what was done in the one before.
    pub fn tick(&self, at: Instant, counters: &Counters) {
        let second = if RECORDS { self.ms_at(at) / SECOND_MS } else { 0 };
        // If the lock is taken, another request is writing it down.
        if second > self.second()
            && let Some(mut served) = self.served.try_lock()
        {
            self.note(&mut served, second, counters);
        }
    }

    /// Returns the history of the last `back_ms` milliseconds, with what is counted since the last entry. Writes
    /// nothing.
    pub fn served(&self, back_ms: u64, counters: &Counters) -> History {
        let (now_ms, second) = (self.now_ms(), self.second());
        let from_ms = now_ms.saturating_sub(back_ms);
        let served = self.served.lock();
        // Under the lock of `note`, which moves what is pending into the ring.
        let pending = counters.total().since(served.noted);
        let mut history = served.ring.list(from_ms, now_ms);
        drop(served);
        let at_ms = second.saturating_mul(SECOND_MS);
        if pending != Bin::default() && at_ms.saturating_add(SECOND_MS) > from_ms {
            let slot = |at_ms| vec![HistoryInterval { at_ms, bin: pending }];
            let minute_ms = history.minute_ms;
            let minutes = slot(at_ms - at_ms % minute_ms.max(1));
            history.merge(&History { minute_ms, seconds: slot(at_ms), minutes }, 0);
        }
        history
    }

    fn second(&self) -> u64 {
        word(&self.memory, SECOND_AT).map_or(u64::MAX, |second| second.load(Ordering::Relaxed))
    }

    fn note(&self, served: &mut ServedHistory, second: u64, counters: &Counters) {
        let last = self.second();
        if second <= last {
            return;
        }
        let total = counters.total();
        let done = total.since(served.noted);
        if done != Bin::default() {
            let at_ms = last.saturating_mul(SECOND_MS);
            served.ring.add(at_ms..at_ms, done);
            // What was counted since `total` was read belongs to the next entry.
            served.noted = total;
        }
        for (at, value) in [(SECOND_AT, second), (LATEST_AT, second * SECOND_MS)] {
            if let Some(place) = word(&self.memory, at) {
                place.fetch_max(value, Ordering::Relaxed);
            }
        }
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn word(memory: &Memory, at: usize) -> Option<&AtomicU64> {
    memory.doubles(at, 1)?.first()
}

/// Returns magic, version, and when it began.
fn head(memory: &Memory) -> Option<[u64; CHECK_AT]> {
    let words = memory.doubles(0, CHECK_AT)?;
    let mut head = [0; CHECK_AT];
    head.iter_mut().zip(words).for_each(|(value, word)| *value = word.load(Ordering::Relaxed));
    Some(head)
}

fn is_begun(memory: &Memory) -> bool {
    let check = word(memory, CHECK_AT).map(|check| check.load(Ordering::Relaxed));
    let head = head(memory)
        .filter(|head| head[..2] == [MAGIC, VERSION] && check == Some(hash(head.iter().copied())));
    let is_new = check == Some(0);
    if head.is_none() && !is_new {
        log::warn!(
            "what was recorded by an earlier daemon is of another version or damaged: it is begun anew"
        );
    }
    head.is_some()
}

/// Writes a header in front of nothing. Whoever is killed in between has the next one begin again.
fn begin(memory: &Memory, now_ms: u64) -> io::Result<()> {
    let words = memory.doubles(0, LEN / size_of::<u64>()).ok_or(io::ErrorKind::InvalidData)?;
    if words.iter().take(HEADER).any(|word| word.load(Ordering::Relaxed) != 0) {
        words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
    let head = [MAGIC, VERSION, now_ms];
    for (word, value) in words.iter().zip(head.into_iter().chain([hash(head.into_iter())])) {
        word.store(value, Ordering::Release);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
