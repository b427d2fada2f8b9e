//! Sending beside the programs: threads of a mount's daemon send what was written behind and rests now, so that it
//! arrives also if its program says nothing more. They come when something was written and go when there has been
//! nothing for a while, so nobody is woken while nothing is unsent.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use bivouac_types::Ino;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::Sessions;
use super::file::{CachedFile, Pages};
use super::pool::Pool;
use super::writing::SEND_AT;

/// A file to which nothing was written for so long has its pages sent.
const REST: Duration = Duration::from_millis(50);
/// Times that a file may be found written to before its pages are sent all the same; together a second.
const LOOKS_MAX: u32 = 20;
/// First and longest pause before what could not be sent is tried again.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Files that are sent at the same time, at most: one may have to wait for a node that is away.
const THREADS_MAX: usize = 4;
/// After so long with nothing to do a thread ends.
const IDLE: Duration = Duration::from_secs(5);
/// The stack size of a background thread, in bytes: that of a mount's threads, which do the same work.
const STACK: usize = 256 << 10;

/// The threads that send for one client.
pub struct Writeback(Arc<WritebackQueue>);

struct WritebackQueue {
    sessions: Weak<Sessions>,
    rota: Mutex<Rota>,
    bell: Condvar,
}

#[derive(Default)]
struct Rota {
    turns: BTreeSet<WritebackTurn>,
    threads: usize,
    /// Threads that wait for a turn.
    free: usize,
    ends: bool,
}

/// When to look at a file, and what was seen of it before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct WritebackTurn {
    at: Instant,
    ino: Ino,
    /// Its count of writes then.
    writes: u64,
    looks: u32,
    /// Pause after the last failure.
    pause: Duration,
}

impl WritebackTurn {
    fn new(ino: Ino, writes: u64) -> WritebackTurn {
        WritebackTurn { at: Instant::now() + REST, ino, writes, looks: 0, pause: Duration::ZERO }
    }

    /// Returns the turn after one more failure.
    fn failed(self) -> WritebackTurn {
        let pause = (self.pause * 2).clamp(PAUSES.0, PAUSES.1);
        WritebackTurn { at: Instant::now() + pause, pause, ..self }
    }
}

impl Writeback {
    /// Creates the threads' queue for the files of a client.
    pub fn of(sessions: &Arc<Sessions>) -> Writeback {
        let sessions = Arc::downgrade(sessions);
        Writeback(Arc::new(WritebackQueue { sessions, rota: Mutex::default(), bell: Condvar::new() }))
    }

    /// Queues a file, to be sent once it is not written to any more.
    pub fn add(&self, file: &CachedFile, state: &mut Pages) {
        if state.unsent() > 0 && !state.is_listed && !state.is_over {
            state.is_listed = true;
            WritebackQueue::add(&self.0, WritebackTurn::new(file.ino, state.writes));
        }
    }

    /// Makes the background threads send now what was written to a file.
    pub fn urge(&self, ino: Ino) {
        let mut rota = self.0.rota.lock();
        let turn = rota.turns.iter().find(|turn| turn.ino == ino).copied();
        if let Some(turn) = turn {
            rota.turns.remove(&turn);
            drop(rota);
            // Out of the set and in again: its order goes by the time.
            WritebackQueue::add(&self.0, WritebackTurn { at: Instant::now(), looks: LOOKS_MAX, ..turn });
        }
    }
}

impl Drop for Writeback {
    fn drop(&mut self) {
        self.0.rota.lock().ends = true;
        self.0.bell.notify_all();
    }
}

impl WritebackQueue {
    fn add(desk: &Arc<WritebackQueue>, turn: WritebackTurn) {
        let mut rota = desk.rota.lock();
        rota.turns.insert(turn);
        if rota.free == 0 {
            WritebackQueue::hire(desk, &mut rota);
        // Whoever waits wakes in time for all that come later.
        } else if rota.turns.first() == Some(&turn) {
            desk.bell.notify_one();
        }
    }

    fn hire(desk: &Arc<WritebackQueue>, rota: &mut Rota) {
        if rota.threads >= THREADS_MAX || rota.ends {
            return;
        }
        let theirs = Arc::clone(desk);
        let sender = thread::Builder::new().name("send".into()).stack_size(STACK);
        match sender.spawn(move || work(&theirs)) {
            Ok(_) => rota.threads += 1,
            Err(error) => log::warn!(why:% = error; "no thread to send what was written behind"),
        }
    }

    /// Returns the next turn when it is due; nothing if there has been none for a while, or never will be.
    fn next(&self, rota: &mut MutexGuard<'_, Rota>) -> Option<WritebackTurn> {
        loop {
            if rota.ends {
                return None;
            }
            let due = rota.turns.first().map(|turn| turn.at);
            if due.is_some_and(|due| due <= Instant::now()) {
                return rota.turns.pop_first();
            }
            rota.free += 1;
            assert!(rota.free <= rota.threads, "{} of {} threads wait for a turn", rota.free, rota.threads);
            let waited = self.bell.wait_until(rota, due.unwrap_or_else(|| Instant::now() + IDLE));
            rota.free -= 1;
            if waited.timed_out() && rota.turns.is_empty() {
                return None;
            }
        }
    }

    /// Sends the pages of a file, or finds that it is written to. When it is looked at again, if it is.
    fn serve(&self, turn: WritebackTurn) -> Option<WritebackTurn> {
        let sessions = self.sessions.upgrade()?;
        let pool = sessions.pool()?;
        let file = pool.find(turn.ino)?;
        let unsent = {
            let mut state = file.state.lock();
            state.is_urged = false;
            // What has failed is sent again also while it is written to.
            let is_written_to = state.writes != turn.writes && turn.pause.is_zero();
            if is_written_to && state.unsent() < SEND_AT && turn.looks < LOOKS_MAX {
                return Some(WritebackTurn {
                    looks: turn.looks + 1,
                    ..WritebackTurn::new(turn.ino, state.writes)
                });
            }
            state.unsent()
        };
        // A writer that goes on is not run after with ever smaller messages.
        let keep = if unsent >= SEND_AT { SEND_AT - 1 } else { 0 };
        let sent = sessions.send_down_to(pool, &file, keep);
        let mut state = file.state.lock();
        if state.unsent() == 0 || state.is_over {
            // Under the lock that a writer lists its file under: it finds this, or is found here.
            state.is_listed = false;
            return None;
        }
        match sent {
            Ok(()) => Some(WritebackTurn::new(turn.ino, state.writes)),
            Err(error) => {
                let level = if turn.pause.is_zero() { log::Level::Warn } else { log::Level::Debug };
                log::log!(
                    level,
                    why:% = error; "inode {}: {} bytes are kept and sent later",
                    turn.ino,
                    state.unsent()
                );
                Some(turn.failed())
            }
        }
    }
}

fn work(desk: &Arc<WritebackQueue>) {
    let mut rota = desk.rota.lock();
    while let Some(turn) = desk.next(&mut rota) {
        // While this one may have to wait, somebody looks after the others.
        if rota.free == 0 && !rota.turns.is_empty() {
            WritebackQueue::hire(desk, &mut rota);
        }
        // A panic is a failure like others: the file stays listed, and its thread counted.
        let serve = || catch_unwind(AssertUnwindSafe(|| desk.serve(turn)));
        let again = MutexGuard::unlocked(&mut rota, serve).unwrap_or_else(|_| Some(turn.failed()));
        rota.turns.extend(again);
    }
    assert!(rota.threads > rota.free, "one of {} threads ends, {} wait", rota.threads, rota.free);
    rota.threads -= 1;
}

impl Sessions {
    /// Starts sending what is written behind in background threads, which come and go. Only for processes of this
    /// product, since others may fork.
    pub fn write_back(self: &Arc<Self>) {
        assert!(self.beside.set(Writeback::of(self)).is_ok(), "two send what one client has written behind");
    }

    /// Queues all files with unsent bytes, for what an earlier process left.
    pub(super) fn list_all(&self, pool: &Pool) {
        let Some(beside) = self.beside.get() else { return };
        pool.files().iter().for_each(|file| beside.add(file, &mut file.state.lock()));
    }
}
