//! Background work of a node: garbage, intents that wait for a peer, opens of clients that are gone, compaction.
//!
//! One thread, asleep unless there is something to do and shared by the nodes of a process (`rounds.rs`), does what needs no
//! peer. What needs peers is done by a few threads that exist only while there is such work; what waits for a peer that is away waits apart from the rest.

mod agenda;
mod garbage;

use std::collections::HashSet;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bivouac_ranks::{Mutex, MutexGuard, rank};
use bivouac_types::limits::UNFINISHED_MAX;
use bivouac_types::{Errno, FsError, FsResult, Ino, NodeId, Slot};

use crate::away::take_blamed;
use crate::dispatch::SYSTEM;
use crate::namespace::LOOKED_UP;
use crate::node::Node;
use crate::peers::Steps;
use crate::rounds::{Next, Place, Round};
use agenda::{Agenda, Task};

pub(crate) use agenda::Job;

/// How long garbage stays, for others to be collected with it: where space is short, [`Reaper::collect`] is quicker.
const TIDY_AFTER: Duration = Duration::from_millis(20);
/// How long a replaced file stays for those who have looked its name up and will open it.
const REMOVAL_DELAY: Duration = Duration::from_secs(1);
/// Threads for what needs peers, at most.
const RUNNERS_MAX: usize = 8;
const STACK: usize = 512 << 10;
/// Pieces of subfiles that get checksums before others have their turn.
const SUMS_PIECES: usize = 64;

/// The workers and their agenda.
pub struct Reaper {
    agenda: Mutex<Agenda>,
    /// Where somebody comes to look at the agenda.
    place: OnceLock<Place>,
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

    /// Begins to work.
    pub fn start(&self, node: &Arc<Node>, round: &Arc<Round>) -> std::io::Result<()> {
        let weak = Arc::downgrade(node);
        let place = round.join(move || work(&weak))?;
        // Begun once.
        let _ = self.place.set(place);
        Ok(())
    }

    /// Tells the threads to end, without waiting for peers that they may be waiting for.
    pub fn dismiss(&self) {
        self.agenda.lock().stopping = true;
        self.call();
    }

    /// Ends the threads.
    pub fn stop(&self) {
        self.dismiss();
        self.place.get().map(Place::leave);
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
        self.tell(|agenda| {
            agenda.unfinished += 1;
            agenda.add(Job::Intent(slot, tx));
            true
        });
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

    /// A peer that was away answers again.
    pub fn peer_is_back(&self, node: NodeId) {
        self.tell(|agenda| agenda.release(node));
    }

    /// Removes what is unused on this node now: then space may be free that was not.
    pub fn collect(&self, node: &Node) {
        let delayed = std::mem::take(&mut self.agenda.lock().delayed);
        node.forget_lookups(delayed.into_iter().map(|(_, ino)| ino));
        node.remove_own_garbage();
    }

    /// Whether all its locks can be had within a time each.
    pub(crate) fn can_be_taken(&self, patience: Duration) -> bool {
        self.agenda.try_lock_for(patience).is_some()
    }

    fn tell(&self, change: impl FnOnce(&mut Agenda) -> bool) {
        if change(&mut self.agenda.lock()) {
            self.call();
        }
    }

    /// Something is due that the agenda does not know of: it is looked at anew.
    pub fn call(&self) {
        self.place.get().map(Place::call);
    }

    /// What is to be done now without peers, or when to look again. Starts runners for the rest.
    fn next(&self, node: &Weak<Node>, expiry: Option<Instant>) -> Result<Chores, Next> {
        let mut agenda = self.agenda.lock();
        if agenda.stopping {
            return Err(Next::Never);
        }
        let now = Instant::now();
        agenda.recall(now);
        let compaction = agenda.take_tidying(now);
        self.employ(&mut agenda, node);
        let chores = Chores {
            compaction,
            expired: expiry.is_some_and(|moment| moment <= now),
            delayed: agenda.take_delayed(now),
        };
        if chores.compaction || chores.expired || !chores.delayed.is_empty() {
            return Ok(chores);
        }
        Err(agenda.next_moment().into_iter().chain(expiry).min().map_or(Next::Called, Next::At))
    }

    /// As many threads as there are jobs, up to the limit.
    fn employ(&self, agenda: &mut MutexGuard<'_, Agenda>, node: &Weak<Node>) {
        while agenda.runners < RUNNERS_MAX.min(agenda.ready()) {
            let Some(node) = node.upgrade() else { return };
            let mut threads = self.threads.lock();
            threads.retain(|thread| !thread.is_finished());
            match thread("runner").spawn(move || node.run_tasks()) {
                Ok(thread) => threads.push(thread),
                Err(error) => return log::error!(why:% = error; "work for peers waits, there is no thread"),
            }
            agenda.runners += 1;
        }
    }

    /// The next thing to do with peers; `None` ends the runner.
    fn next_task(&self) -> Option<Task> {
        let mut agenda = self.agenda.lock();
        let task = if agenda.stopping { None } else { agenda.next_task() };
        if task.is_none() {
            agenda.runners -= 1;
        }
        task
    }

    fn conclude(&self, task: &Task, outcome: &FsResult<()>, waits_for: NodeId, pause: Duration) {
        self.tell(|agenda| {
            if outcome.is_ok() {
                agenda.is_done(task);
            } else {
                agenda.put_off(task, waits_for, Instant::now() + pause);
            }
            true
        });
    }
}

/// What is to be done now, without peers.
struct Chores {
    compaction: bool,
    /// A session has.
    expired: bool,
    delayed: Vec<Ino>,
}

fn thread(name: &str) -> std::thread::Builder {
    std::thread::Builder::new().name(name.into()).stack_size(STACK)
}

fn work(node: &Weak<Node>) -> Next {
    let Some(strong) = node.upgrade() else { return Next::Never };
    loop {
        match strong.reaper.next(node, strong.sessions.next_expiry()) {
            Ok(chores) => strong.do_chores(chores),
            Err(next) => return next,
        }
    }
}

impl Node {
    fn do_chores(&self, chores: Chores) {
        if chores.expired {
            self.end_expired();
        }
        self.forget_lookups(chores.delayed.into_iter());
        self.sweep_direct();
        if chores.compaction && self.records.has_shrunk() {
            self.records.is_given_back();
            if let Some(give_back) = self.hooks.shrunk.get() {
                give_back();
            }
        }
        if chores.compaction
            && self.records.wants_compaction()
            && let Err(error) = self.records.compact()
        {
            log::error!(why:% = error; "compaction of the records failed, the log goes on growing");
        }
    }

    /// Gives checksums to what waits for them, some of it at a time: there are few threads for all such work.
    fn settle_sums(&self) {
        for _ in 0..SUMS_PIECES {
            if !self.data.settle_sums() {
                return;
            }
        }
        self.reaper.add(Job::Sums);
    }

    /// Does what needs peers until there is nothing of that left.
    fn run_tasks(&self) {
        while let Some(task) = self.reaper.next_task() {
            let outcome = self.run(&task.job);
            match &outcome {
                Ok(()) => drop(self.away.is_here(self.id)),
                Err(error) if task.waited_for.is_none() => log::warn!(why:% = error; "{:?} waits", task.job),
                Err(error) => log::debug!(why:% = error; "{:?} still waits", task.job),
            }
            let waits_for = take_blamed().unwrap_or_else(|| {
                // It is this node itself that cannot: the pauses grow as for others.
                if outcome.is_err() {
                    self.away.is_silent(self.id);
                }
                take_blamed().unwrap_or(self.id)
            });
            self.reaper.conclude(&task, &outcome, waits_for, self.away.pause(waits_for));
        }
    }

    fn run(&self, job: &Job) -> FsResult<()> {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match job {
            Job::Garbage => self.collect_garbage(),
            Job::Pending(node) => self.remove_pending(*node),
            Job::Tell(dir) => self.tell_pending(*dir),
            Job::Spread(dir) => {
                self.spread(*dir);
                Ok(())
            }
            Job::Moves(ticket) => {
                let steps = Steps { background: true, ..Steps::question(SYSTEM) };
                self.unlock_moves(*ticket, steps)
            }
            Job::Alive(client) => {
                self.end_unless_alive(*client);
                Ok(())
            }
            Job::Partitions(node) if *node == self.id => self.ask_for_partitions(),
            Job::Partitions(node) => self.tell_partitions(*node),
            Job::Sums => {
                self.settle_sums();
                Ok(())
            }
            Job::Intent(slot, tx) => self.replay_intent(*slot, *tx),
        }));
        done.unwrap_or_else(|_| Err(FsError::with(Errno::EIO, "bug: it panicked")))
    }

    /// Who looked a replaced name up has opened what it led to by now.
    fn forget_lookups(&self, inos: impl Iterator<Item = Ino>) {
        for ino in inos {
            if let Err(error) = self.forget_orphan(ino, LOOKED_UP) {
                log::warn!(why:% = error; "inode {ino} has no name and could not be removed");
            }
        }
    }

    /// Looks for what an earlier daemon left, and for what it was about to remove.
    pub(crate) fn adopt_garbage(&self) {
        self.reaper.delay(&self.orphans());
        self.nodes_pending().into_iter().for_each(|node| self.reaper.add(Job::Pending(node)));
        self.reaper.wake();
    }
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
