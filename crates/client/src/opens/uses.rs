//! Use of files: gathered by file and thread in a few integer operations per call, and reported to the file's home with
//! the close. The use of files that stay open is reported now and then, by the threads that use them.
//!
//! What is counted is what programs ask for, whichever way it takes. Reasons: docs/decisions/0075-recording.md.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::{Duration, Instant};

use bivouac_record::{Access, RECORDS, Tracker};
use bivouac_types::Ino;
use bivouac_types::limits::PROGRAM_LEN_MAX;
use bivouac_wire::{FileUseDelta, Program};
use parking_lot::Mutex;

const SHARDS: usize = 64;
/// Most files and threads of a shard; more are reported at once.
const KEPT_MAX: usize = 256;
/// Of small calls, the time of one of so many is measured.
const SAMPLE: u32 = 16;
/// Calls of so many bytes are measured each.
const LARGE: usize = 64 << 10;
/// Interval of reports of a file that stays open.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// A process for which something is read or written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The process; 0 if it cannot be seen from here.
    pub pid: u32,
    /// Its program, as the kernel names it.
    pub program: Vec<u8>,
}

/// Of which thread, and how to find out of which process that is.
type For = (u32, fn(u32) -> Caller);

thread_local! {
    static FOR: Cell<For> = const { Cell::new((0, own)) };
    static TURN: Cell<u32> = const { Cell::new(0) };
}

/// Attributes what this thread reads and writes from now on to a thread of another process. `who` is called, seldom, to
/// find that thread's process.
pub fn on_behalf_of(thread: u32, who: fn(u32) -> Caller) {
    FOR.set((thread, who));
}

/// Returns the thread for which this one reads and writes, and how to find out its process.
pub fn caller() -> (u32, fn(u32) -> Caller) {
    FOR.get()
}

fn own(_: u32) -> Caller {
    let program = rustix::thread::name().map_or_else(|_| Vec::new(), std::ffi::CString::into_bytes);
    Caller { pid: std::process::id(), program }
}

/// A call that has begun, and for how many its time stands.
pub struct CallTimer(Option<(Instant, u32)>);

impl CallTimer {
    /// Returns the timer of a call that begins now, with so many bytes.
    pub fn now(len: usize) -> CallTimer {
        if !RECORDS {
            return CallTimer(None);
        }
        if len >= LARGE {
            return CallTimer(Some((Instant::now(), 1)));
        }
        let turn = TURN.get();
        TURN.set(turn.wrapping_add(1));
        CallTimer(turn.is_multiple_of(SAMPLE).then(|| (Instant::now(), SAMPLE)))
    }
}

struct UseTracker {
    tracker: Tracker,
    caller: Caller,
    first: Instant,
    last: Instant,
}

impl UseTracker {
    /// Takes what is to be reported; `None` if there is nothing.
    fn take(&mut self, ino: Ino, now: Instant) -> Option<FileUseDelta> {
        if self.tracker.is_empty() {
            return None;
        }
        let ago = |at: Instant| u64::try_from(now.duration_since(at).as_millis()).unwrap_or(u64::MAX);
        let mut program = self.caller.program.clone();
        program.truncate(PROGRAM_LEN_MAX);
        let (first_ago_ms, last_ago_ms) = (ago(self.first), ago(self.last));
        self.first = now;
        let pattern = self.tracker.take();
        Some(FileUseDelta {
            ino,
            pid: self.caller.pid,
            program: Program(program),
            first_ago_ms,
            last_ago_ms,
            pattern,
        })
    }
}

type Shard = HashMap<(Ino, u32), UseTracker, BuildHasherDefault<Fold>>;

/// Gathered uses, by file and thread.
#[derive(Default)]
pub struct UseTable {
    shards: Vec<Mutex<Shard>>,
}

impl UseTable {
    pub fn new() -> UseTable {
        UseTable { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    /// Notes a call. `stripe` returns the file's stripe size, if it is open. Returns what is to be reported now, if the
    /// caller `tells`; otherwise that is left to the next call, and what is too much is not noted.
    pub fn note(
        &self,
        tells: bool,
        ino: Ino,
        begun: &CallTimer,
        accesses: impl IntoIterator<Item = Access>,
        stripe: impl FnOnce() -> Option<u64>,
    ) -> Vec<FileUseDelta> {
        let (thread, who) = FOR.get();
        let end = begun.0.as_ref().map(|(at, weight)| (Instant::now(), *at, *weight));
        let Some(shard) = self.shard(ino) else { return Vec::new() };
        let mut shard = shard.lock();
        let mut told = Vec::new();
        let used = match shard.get_mut(&(ino, thread)) {
            Some(used) => used,
            None => {
                let Some(stripe) = stripe() else { return told };
                let now = Instant::now();
                // This thread may send nothing, and nothing may be kept without a bound.
                if shard.len() >= KEPT_MAX && !tells {
                    return told;
                }
                if shard.len() >= KEPT_MAX {
                    told.extend(shard.drain().filter_map(|((ino, _), mut used)| used.take(ino, now)));
                }
                assert!(shard.len() < KEPT_MAX, "{} uses of files are gathered in a shard", shard.len());
                let (first, last) = (end.map_or(now, |(_, begun, _)| begun), now);
                let new = UseTracker { tracker: Tracker::new(stripe), caller: who(thread), first, last };
                shard.entry((ino, thread)).or_insert(new)
            }
        };
        let mut spent_ns = 0;
        if let Some((now, begun, weight)) = end {
            let took = u64::try_from(now.duration_since(begun).as_nanos()).unwrap_or(u64::MAX);
            spent_ns = took.saturating_mul(weight.into());
            used.last = now;
        }
        for access in accesses {
            // The call's time counts once, with its first access.
            used.tracker.note(&Access { spent_ns: std::mem::take(&mut spent_ns), ..access });
        }
        if let Some((now, ..)) = end.filter(|(now, ..)| tells && now.duration_since(used.first) >= TELL_EVERY)
        {
            told.extend(used.take(ino, now));
        }
        told
    }

    /// Takes what was gathered of a file that nobody has open any more.
    pub fn end(&self, ino: Ino) -> Vec<FileUseDelta> {
        let now = Instant::now();
        let Some(shard) = self.shard(ino) else { return Vec::new() };
        let ended = shard.lock().extract_if(|(of, _), _| *of == ino).collect::<Vec<_>>();
        ended.into_iter().filter_map(|(_, mut used)| used.take(ino, now)).collect()
    }

    /// Takes all that was gathered and not reported.
    pub fn take_all(&self) -> Vec<FileUseDelta> {
        let now = Instant::now();
        let of = |shard: &Mutex<Shard>| -> Vec<FileUseDelta> {
            shard.lock().iter_mut().filter_map(|((ino, _), used)| used.take(*ino, now)).collect()
        };
        self.shards.iter().flat_map(of).collect()
    }

    fn shard(&self, ino: Ino) -> Option<&Mutex<Shard>> {
        self.shards.get(ino.0 as usize % SHARDS)
    }
}

/// Hashes numbers that nobody chooses to be alike.
#[derive(Default)]
struct Fold(u64);

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        // The multiplier of Fibonacci hashing: Knuth, The Art of Computer Programming, 6.4.
        self.0 = (self.0.rotate_left(32) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0.rotate_left(20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_record::AccessPosition;

    /// A write.
    pub fn note(uses: &UseTable, ino: Ino, at: u64, len: u64, stripe: Option<u64>) -> Vec<FileUseDelta> {
        let access = Access { writes: true, place: AccessPosition::At(at), len, spent_ns: 0 };
        uses.note(true, ino, &CallTimer::now(len as usize), [access], || stripe)
    }

    #[test]
    fn files_and_threads_are_told_apart() {
        let uses = UseTable::new();
        let who = |thread| Caller { pid: thread / 10 * 10, program: b"a name that is too long".to_vec() };
        for i in 0..100 {
            for thread in [10, 11, 20] {
                on_behalf_of(thread, who);
                let told = note(&uses, Ino(u64::from(thread % 2) + 1), i * 4096, 4096, Some(1 << 20));
                assert_eq!(told, []);
            }
        }
        let mut told = uses.end(Ino(1));
        told.sort_by_key(|told| told.pid);
        let said: Vec<_> =
            told.iter().map(|t| (t.pid, t.pattern.writes.ops, t.pattern.writes.sequential)).collect();
        assert_eq!(said, [(10, 100, 100), (20, 100, 100)], "each in its own order");
        assert_eq!(told[0].program, Program(b"a name that is ".to_vec()));
        assert!(told[0].pattern.writes.spent_ns > 0);
        assert_eq!(uses.end(Ino(1)), []);
        assert_eq!(uses.take_all().iter().map(|told| told.ino).collect::<Vec<_>>(), [Ino(2)]);
        assert_eq!(uses.take_all(), [], "each is told once");
    }

    #[test]
    fn what_is_not_open_is_not_kept() {
        let uses = UseTable::new();
        assert_eq!(note(&uses, Ino(1), 0, 1, None), []);
        assert_eq!(uses.take_all(), []);
    }

    #[test]
    fn what_is_too_much_is_told_at_once() {
        let uses = UseTable::new();
        let shards = SHARDS as u64;
        let files = 1..=3 * KEPT_MAX as u64;
        let told: Vec<FileUseDelta> =
            files.flat_map(|file| note(&uses, Ino(file * shards), 0, 10, Some(1))).collect();
        assert_eq!(told.len(), 2 * KEPT_MAX);
        assert_eq!(uses.take_all().len(), KEPT_MAX);
        let own = std::process::id();
        assert!(told.iter().all(|told| told.pid == own && told.pattern.writes.bytes == 10));
    }

    #[test]
    fn a_few_of_the_small_calls_stand_for_all() {
        let timed = (0..800).filter(|_| CallTimer::now(4096).0.is_some()).count();
        assert_eq!((timed, CallTimer::now(LARGE).0.map(|(_, weight)| weight)), (50, Some(1)));
    }
}
