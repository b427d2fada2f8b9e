//! Background work of a node: garbage, intents that wait for a peer, opens of clients that are gone, compaction.
//!
//! One thread, asleep unless there is something to do and shared by the nodes of a process (`rounds.rs`), does what needs no
//! peer. What needs peers is done by a few threads that exist only while there is such work; what waits for a peer that is away waits apart from the rest.

mod agenda;

use std::collections::HashSet;
use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bivouac_ranks::{Mutex, MutexGuard, rank};
use bivouac_types::limits::UNFINISHED_MAX;
use bivouac_types::{Errno, FsError, FsResult, Ino, NodeId, Slot};

use crate::rounds::{NextVisit, RoundPlace};
use agenda::Agenda;

pub(crate) use agenda::{Job, Task};

/// How long garbage stays, for others to be collected with it: where space is short, `Node::remove_unused` is quicker.
const TIDY_AFTER: Duration = Duration::from_millis(20);
/// How long a replaced file stays for those who have looked its name up and will open it.
const REMOVAL_DELAY: Duration = Duration::from_secs(1);
/// Threads for what needs peers, at most.
const RUNNERS_MAX: usize = 8;

/// Starts a thread that does what the agenda has for peers.
type StartRunner<'a> = dyn Fn() -> std::io::Result<JoinHandle<()>> + 'a;

/// The workers and their agenda.
pub struct Reaper {
    agenda: Mutex<Agenda>,
    /// Where somebody comes to look at the agenda.
    place: OnceLock<RoundPlace>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Inodes whose subfiles became garbage once more, perhaps while they were removed.
    discarded_again: Mutex<HashSet<Ino>>,
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

    /// How long those who are gone may take to come back.
    pub fn grace(&self) -> Duration {
        self.grace
    }

    /// Background work has begun: `place` is where it is called.
    pub(crate) fn begin(&self, place: RoundPlace) {
        assert!(self.place.set(place).is_ok(), "background work is begun twice");
    }

    /// Takes all inodes whose removal is delayed, also those whose delay is not over.
    pub(crate) fn take_delayed(&self) -> Vec<Ino> {
        let delayed = std::mem::take(&mut self.agenda.lock().delayed);
        delayed.into_iter().map(|(_, ino)| ino).collect()
    }

    /// Tells the threads to end, without waiting for peers that they may be waiting for.
    pub fn dismiss(&self) {
        self.agenda.lock().stopping = true;
        self.call();
    }

    /// Ends the threads.
    pub fn stop(&self) {
        self.dismiss();
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

    /// There is garbage, or the log has grown. Both are looked after in a moment: what comes until then goes with it.
    pub fn wake(&self) {
        self.tell(|agenda| agenda.tidy_at(Instant::now() + TIDY_AFTER));
    }

    /// Something is to be done that may need a peer, if it is not about to be done anyway.
    pub(crate) fn add_once(&self, job: Job) {
        self.tell(|agenda| agenda.add_once(job));
    }

    /// An intent is to be finished.
    pub fn add_intent(&self, slot: Slot, tx: u64) {
        self.add(Job::Intent(slot, tx));
    }

    /// Something is to be done that may need a peer.
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
        if self.agenda.lock().unfinished < UNFINISHED_MAX {
            return Ok(());
        }
        let text = format!("{UNFINISHED_MAX} changes wait for nodes that are away; see `bivouac status`");
        Err(FsError::with(Errno::EIO, text))
    }

    /// Inodes lost their last name and are to go in a moment.
    pub fn delay(&self, inos: &[Ino]) {
        if !inos.is_empty() {
            let until = Instant::now() + REMOVAL_DELAY;
            self.tell(|agenda| {
                agenda.delayed.extend(inos.iter().map(|ino| (until, *ino)));
                true
            });
        }
    }

    /// Subfiles of an inode became garbage once more.
    pub fn discarded_again(&self, ino: Ino) {
        self.discarded_again.lock().insert(ino);
    }

    /// The subfiles of these inodes are about to be removed: what becomes garbage from now on counts.
    pub fn begin_removal(&self, inos: impl Iterator<Item = Ino>) {
        let mut again = self.discarded_again.lock();
        inos.for_each(|ino| {
            again.remove(&ino);
        });
    }

    /// Returns whether subfiles of an inode became garbage since their removal began.
    pub fn is_discarded_again(&self, ino: Ino) -> bool {
        self.discarded_again.lock().contains(&ino)
    }

    /// A peer that was away answers again.
    pub fn peer_is_back(&self, node: NodeId) {
        self.tell(|agenda| agenda.release(node));
    }

    /// Whether all its locks can be had within a time each.
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

    /// Something is due that the agenda does not know of: it is looked at anew.
    pub fn call(&self) {
        self.place.get().map(RoundPlace::call);
    }

    /// What is to be done now without peers, or when to look again. Starts runners for the rest.
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
        Err(agenda.next_moment().into_iter().chain(expiry).min().map_or(NextVisit::Called, NextVisit::At))
    }

    /// As many threads as there are jobs, up to the limit.
    fn start_runners(&self, agenda: &mut MutexGuard<'_, Agenda>, start_runner: &StartRunner<'_>) {
        while agenda.runners < RUNNERS_MAX.min(agenda.ready()) {
            let mut threads = self.threads.lock();
            threads.retain(|thread| !thread.is_finished());
            match start_runner() {
                Ok(thread) => threads.push(thread),
                Err(error) => return log::error!(why:% = error; "work for peers waits, there is no thread"),
            }
            agenda.runners += 1;
        }
        assert!(agenda.runners <= RUNNERS_MAX, "{} threads work for peers", agenda.runners);
    }

    /// The next thing to do with peers; `None` ends the runner.
    pub(crate) fn next_task(&self) -> Option<Task> {
        let mut agenda = self.agenda.lock();
        let task = if agenda.stopping { None } else { agenda.next_task() };
        if task.is_none() {
            assert!(agenda.runners > 0, "a runner ends that was counted");
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

/// What is to be done now, without peers.
pub(crate) struct Chores {
    /// The log may be worth compacting.
    pub compaction: bool,
    /// A session has.
    pub expired: bool,
    /// Inodes whose delay before their removal is over.
    pub delayed: Vec<Ino>,
}

/// Pauses between attempts to get what another node has, growing, up to a deadline. Different nodes pause for
/// different times, so that two that want each other's do not keep step.
pub struct Pause {
    until: Instant,
    next: Duration,
}

impl Pause {
    /// `salt` makes the pauses of different nodes differ.
    pub fn new(bound: Duration, salt: u32) -> Pause {
        Pause { until: Instant::now() + bound, next: Duration::from_micros(500 + u64::from(salt % 16) * 90) }
    }

    /// Waits once more. `false` when the time is over.
    pub fn wait(&mut self) -> bool {
        if Instant::now() >= self.until {
            return false;
        }
        bivouac_net::pause(self.next);
        self.next = (self.next * 2).min(Duration::from_millis(50));
        true
    }
}
