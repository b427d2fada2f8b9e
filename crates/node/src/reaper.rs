//! Background work of a node: garbage, intents that wait for a peer, opens of clients that are gone, compaction.
//!
//! One thread, asleep unless there is something to do and shared by the nodes of a process (`rounds.rs`), does what
//! needs no peer. What needs peers is done by a few threads that exist only while there is such work; what waits for a
//! peer that is away waits apart from the rest.

mod agenda;

use std::collections::HashMap;
use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bivouac_ranks::{Mutex, MutexGuard, rank};
use bivouac_types::limits::UNFINISHED_MAX;
use bivouac_types::{Errno, FsError, FsResult, Ino, NodeId, Slot};

use crate::rounds::{NextVisit, RoundPlace};
use agenda::Agenda;

pub(crate) use agenda::{Job, Task};

/// Delay of garbage collection, so that more is collected at once. `Node::remove_unused` does it without, where space
/// is short.
const TIDY_AFTER: Duration = Duration::from_millis(20);
/// Delay before a replaced file is removed, for clients that have looked its name up and are about to open it.
const REMOVAL_DELAY: Duration = Duration::from_secs(1);
/// Pause before a thread is started again for work that got none.
const THREAD_PAUSE: Duration = Duration::from_secs(1);
/// Most threads for work that needs peers.
const RUNNERS_MAX: usize = 8;

/// Starts a thread that takes jobs for peers from the agenda.
type StartRunner<'a> = dyn Fn() -> std::io::Result<JoinHandle<()>> + 'a;

/// Times at which something became garbage again: the last number, and that of each inode, or of it at a node.
type Discards = (u64, HashMap<(Option<NodeId>, Ino), u64>);

/// The workers and their agenda.
pub struct Reaper {
    agenda: Mutex<Agenda>,
    /// Registration with the shared thread that looks at the agenda.
    place: OnceLock<RoundPlace>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Inodes whose subfiles became garbage once more, perhaps while they were removed; with a node, those whose removal
    /// there was recorded as pending once more.
    /// Each time has a number of its own, so that of several who remove the same each sees what came since it began.
    discarded_again: Mutex<Discards>,
    grace: Duration,
}

impl Reaper {
    pub fn new(grace: Duration) -> Reaper {
        Reaper {
            agenda: Mutex::new(rank::AGENDA, Agenda::default()),
            place: OnceLock::new(),
            threads: Mutex::new(rank::AGENDA_THREADS, Vec::new()),
            discarded_again: Mutex::default(),
            grace,
        }
    }

    /// Returns the grace time of clients.
    pub fn grace(&self) -> Duration {
        self.grace
    }

    /// Sets the registration with the shared thread; called once, when background work begins.
    pub(crate) fn begin(&self, place: RoundPlace) {
        assert!(self.place.set(place).is_ok(), "background work is begun twice");
    }

    /// Takes all inodes whose removal is delayed, also those whose delay is not over.
    pub(crate) fn take_delayed(&self) -> Vec<Ino> {
        let delayed = std::mem::take(&mut self.agenda.lock().delayed);
        delayed.into_iter().map(|(_, ino)| ino).collect()
    }

    /// Tells the threads to end. Waits neither for them nor for peers that they may be waiting for.
    pub fn dismiss(&self) {
        self.agenda.lock().stopping = true;
        self.call();
    }

    /// Ends the threads.
    pub fn stop(&self) {
        self.dismiss();
        // First, so that the shared thread starts no further ones.
        self.place.get().map(RoundPlace::leave);
        while let Some(thread) = self.first_thread() {
            // A thread that panicked has said so; there is nothing left to end.
            let _ = thread.join();
        }
    }

    /// Takes the thread that was started first: it may be starting another one.
    fn first_thread(&self) -> Option<JoinHandle<()>> {
        let mut threads = self.threads.lock();
        if threads.is_empty() { None } else { Some(threads.remove(0)) }
    }

    /// Schedules garbage collection and a check of the log's size, after [`TIDY_AFTER`].
    pub fn wake(&self) {
        self.tell(|agenda| agenda.tidy_at(Instant::now() + TIDY_AFTER));
    }

    /// Adds a job that may need a peer, unless it is queued already.
    pub(crate) fn add_once(&self, job: Job) {
        self.tell(|agenda| agenda.add_once(job));
    }

    /// Adds the job to finish an intent.
    pub fn add_intent(&self, slot: Slot, tx: u64) {
        self.add(Job::Intent(slot, tx));
    }

    /// Adds a job that may need a peer.
    pub(crate) fn add(&self, job: Job) {
        self.tell(|agenda| {
            agenda.add(job);
            true
        });
    }

    /// Refuses changes that need peers while too many of them are unfinished.
    ///
    /// # Errors
    /// `EIO`.
    pub fn check_unfinished(&self) -> FsResult<()> {
        // Each of them keeps its record, its locks and a channel until its node is back.
        if self.agenda.lock().unfinished < UNFINISHED_MAX {
            return Ok(());
        }
        let text = format!("{UNFINISHED_MAX} changes wait for nodes that are away; see `bivouac status`");
        Err(FsError::with(Errno::EIO, text))
    }

    /// Schedules the removal of inodes that lost their last name, after [`REMOVAL_DELAY`].
    pub fn delay(&self, inos: &[Ino]) {
        if !inos.is_empty() {
            let until = Instant::now() + REMOVAL_DELAY;
            self.tell(|agenda| {
                agenda.delayed.extend(inos.iter().map(|ino| (until, *ino)));
                true
            });
        }
    }

    /// Records that subfiles of an inode became garbage once more, or that their removal at a node is pending once more.
    pub fn discarded_again(&self, at: Option<NodeId>, ino: Ino) {
        let mut guard = self.discarded_again.lock();
        let (last, again) = &mut *guard;
        *last += 1;
        again.insert((at, ino), *last);
    }

    /// Returns the number of the last time that subfiles of an inode became garbage once more, or pending at a node once
    /// more, if they did. Read before a removal, and again before its record goes: with another number then, the record
    /// stays.
    pub fn last_discard(&self, at: Option<NodeId>, ino: Ino) -> Option<u64> {
        self.discarded_again.lock().1.get(&(at, ino)).copied()
    }

    /// Forgets that, when the record goes: under the lock of the record's slot.
    pub fn forget_discards(&self, at: Option<NodeId>, ino: Ino) {
        self.discarded_again.lock().1.remove(&(at, ino));
    }

    /// Releases the jobs that waited for a peer.
    pub fn peer_is_back(&self, node: NodeId) {
        self.tell(|agenda| agenda.release(node));
    }

    /// Returns true if the agenda's lock can be taken within `patience`; for detecting a standstill.
    pub(crate) fn can_be_taken(&self, patience: Duration) -> bool {
        self.agenda.try_lock_for(patience).is_some()
    }

    /// Counts a runner that a test is itself.
    #[cfg(test)]
    pub(crate) fn add_runner(&self) {
        self.agenda.lock().runners += 1;
    }

    fn tell(&self, change: impl FnOnce(&mut Agenda) -> bool) {
        if change(&mut self.agenda.lock()) {
            self.call();
        }
    }

    /// Makes the shared thread look again at the agenda and at what is due elsewhere.
    pub fn call(&self) {
        self.place.get().map(RoundPlace::call);
    }

    /// Returns what is to be done now without peers, or as error when to look again. Starts threads for work that needs
    /// peers.
    pub(crate) fn next(
        &self,
        expiry: Option<Instant>,
        start_runner: &StartRunner<'_>,
    ) -> Result<Chores, NextVisit> {
        let mut agenda = self.agenda.lock();
        if agenda.stopping {
            return Err(NextVisit::Never);
        }
        let now = Instant::now();
        agenda.recall(now);
        let compaction = agenda.take_tidying(now);
        self.start_runners(&mut agenda, start_runner);
        let chores = Chores {
            compaction,
            expired: expiry.is_some_and(|moment| moment <= now),
            delayed: agenda.take_delayed(now),
        };
        if chores.compaction || chores.expired || !chores.delayed.is_empty() {
            return Ok(chores);
        }
        // No thread could be started, and nobody calls for what waits already.
        let restart = (agenda.runners == 0 && agenda.ready() > 0).then(|| now + THREAD_PAUSE);
        let moments = agenda.next_moment().into_iter().chain(expiry).chain(restart);
        Err(moments.min().map_or(NextVisit::Called, NextVisit::At))
    }

    /// Starts threads until there are as many as jobs, [`RUNNERS_MAX`] at most.
    fn start_runners(&self, agenda: &mut MutexGuard<'_, Agenda>, start_runner: &StartRunner<'_>) {
        while agenda.runners < RUNNERS_MAX.min(agenda.ready()) {
            let mut threads = self.threads.lock();
            threads.retain(|thread| !thread.is_finished());
            match start_runner() {
                Ok(thread) => threads.push(thread),
                Err(error) => return log::error!(why:% = error; "work for peers waits, there is no thread"),
            }
            // Under the lock of the agenda, which the new thread needs before it can count itself off.
            agenda.runners += 1;
        }
        assert!(agenda.runners <= RUNNERS_MAX, "{} threads work for peers", agenda.runners);
    }

    /// Returns the next job for the calling thread; with `None` the thread ends.
    pub(crate) fn next_task(&self) -> Option<Task> {
        let mut agenda = self.agenda.lock();
        let task = if agenda.stopping { None } else { agenda.next_task() };
        if task.is_none() {
            assert!(agenda.runners > 0, "a runner ends that was counted");
            // Under the lock under which nothing was found: what is added next starts another thread.
            agenda.runners -= 1;
        }
        task
    }

    pub(crate) fn conclude(&self, task: &Task, outcome: &FsResult<()>, waits_for: NodeId, pause: Duration) {
        self.tell(|agenda| {
            if outcome.is_ok() {
                agenda.finish(task);
            } else {
                agenda.put_off(task, waits_for, Instant::now() + pause);
            }
            true
        });
    }
}

/// Work to be done now that needs no peers.
pub(crate) struct Chores {
    /// The log may be worth compacting.
    pub compaction: bool,
    /// A session has expired.
    pub expired: bool,
    /// Inodes whose delay before their removal is over.
    pub delayed: Vec<Ino>,
}

/// Pauses between attempts to get what another node holds, growing up to a deadline. Pauses differ between nodes, so
/// that two that want each other's do not keep step.
pub struct Pause {
    until: Instant,
    next: Duration,
}

impl Pause {
    /// Creates the pauses of a wait that lasts for `bound`; `salt` makes those of different nodes differ.
    pub fn new(bound: Duration, salt: u32) -> Pause {
        Pause { until: Instant::now() + bound, next: Duration::from_micros(500 + u64::from(salt % 16) * 90) }
    }

    /// Pauses once more. Returns false, without a pause, if the time is over.
    pub fn wait(&mut self) -> bool {
        if Instant::now() >= self.until {
            return false;
        }
        bivouac_net::pause(self.next);
        self.next = (self.next * 2).min(Duration::from_millis(50));
        true
    }
}
