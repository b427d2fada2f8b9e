//! Background work of a node: garbage, intents that wait for a peer, opens of clients that are gone,
//! compaction. One thread, asleep unless there is something to do.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bivouac_types::{ClientId, FsResult, Ino, NodeId, SeatIndex, Slot};
use bivouac_wire::{Subfiles, op};
use parking_lot::{Condvar, Mutex};

use crate::dispatch::NOBODY;
use crate::namespace::{LOOKED_UP, decode};
use crate::node::Node;
use crate::peers::Steps;
use crate::record::{Garbage, garbage_key, number_of_key, table};

/// First and longest pause before something that failed is tried again; it doubles in between.
const RETRY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// Pieces of garbage that are removed by one round of messages.
const BATCH: usize = 512;
/// How long a replaced file stays for those who have looked its name up and will open it.
const LINGER: Duration = Duration::from_secs(1);

/// What there is to do.
#[derive(Default)]
struct Agenda {
    garbage: bool,
    intents: Vec<(Slot, u64)>,
    /// Clients that lost their last connection, and until when they may come back.
    gone: HashMap<ClientId, Instant>,
    /// Inodes without names that stay for a moment, and until when; in the order of time.
    lingering: VecDeque<(Instant, Ino)>,
    /// Directories that have grown large.
    grown: Vec<Ino>,
    /// Directories whose homes could not be told of a change of their shard here.
    owed: Vec<Ino>,
    /// When to try again what failed.
    retry_at: Option<Instant>,
    /// The last pause before that.
    pause: Duration,
    stopping: bool,
}

/// The worker and its agenda.
pub struct Reaper {
    agenda: Mutex<Agenda>,
    news: Condvar,
    /// Held while garbage is collected.
    collecting: Mutex<()>,
    thread: Mutex<Option<JoinHandle<()>>>,
    grace: Duration,
}

impl Reaper {
    pub fn new(grace: Duration) -> Reaper {
        Reaper {
            agenda: Mutex::default(),
            news: Condvar::new(),
            collecting: Mutex::new(()),
            thread: Mutex::new(None),
            grace,
        }
    }

    /// How long those who are gone may take to come back.
    pub fn grace(&self) -> Duration {
        self.grace
    }

    /// Starts the thread.
    pub fn start(&self, node: &Arc<Node>) -> std::io::Result<()> {
        let weak = Arc::downgrade(node);
        let builder = std::thread::Builder::new().name("reaper".into()).stack_size(512 << 10);
        *self.thread.lock() = Some(builder.spawn(move || work(&weak))?);
        Ok(())
    }

    /// Tells the thread to end, without waiting for a peer that it may be waiting for.
    pub fn dismiss(&self) {
        self.agenda.lock().stopping = true;
        self.news.notify_all();
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.dismiss();
        if let Some(thread) = self.thread.lock().take() {
            // A thread that panicked has said so; there is nothing left to end.
            let _ = thread.join();
        }
    }

    /// There is garbage, or the log has grown.
    pub fn wake(&self) {
        let mut agenda = self.agenda.lock();
        if !agenda.garbage {
            agenda.garbage = true;
            self.news.notify_all();
        }
    }

    /// A directory has grown so large that it should spread.
    pub fn spread(&self, dir: Ino) {
        let mut agenda = self.agenda.lock();
        if !agenda.grown.contains(&dir) {
            agenda.grown.push(dir);
            self.news.notify_all();
        }
    }

    /// The home of a spread directory is to be told that its shard here has changed.
    pub fn owe(&self, dir: Ino) {
        let mut agenda = self.agenda.lock();
        if !agenda.owed.contains(&dir) {
            agenda.owed.push(dir);
            self.news.notify_all();
        }
    }

    /// An intent is to be finished.
    pub fn add_intent(&self, slot: Slot, tx: u64) {
        self.agenda.lock().intents.push((slot, tx));
        self.news.notify_all();
    }

    /// Inodes lost their last name and are to go in a moment.
    pub fn linger(&self, inos: &[Ino]) {
        if !inos.is_empty() {
            let until = Instant::now() + LINGER;
            let mut agenda = self.agenda.lock();
            agenda.lingering.extend(inos.iter().map(|ino| (until, *ino)));
            self.news.notify_all();
        }
    }

    /// A client lost its last connection.
    pub fn client_is_gone(&self, client: ClientId) {
        self.agenda.lock().gone.insert(client, Instant::now() + self.grace);
        self.news.notify_all();
    }

    /// A client is here again.
    pub fn client_is_back(&self, client: ClientId) {
        self.agenda.lock().gone.remove(&client);
    }

    /// Collects this node's garbage now, or waits for who is at it: then space may be free that was not.
    pub fn collect(&self, node: &Node) {
        let lingering = std::mem::take(&mut self.agenda.lock().lingering);
        node.forget_lookups(lingering.into_iter().map(|(_, ino)| ino));
        if let Err(error) = node.collect_garbage() {
            log::warn!("removal of unused subfiles waits: {error}");
        }
    }

    /// Waits for something to do.
    fn next(&self) -> Option<Work> {
        let mut agenda = self.agenda.lock();
        loop {
            if agenda.stopping {
                return None;
            }
            let work = agenda.take(Instant::now());
            if !work.is_empty() {
                return Some(work);
            }
            match agenda.next_moment() {
                Some(moment) => drop(self.news.wait_until(&mut agenda, moment)),
                None => self.news.wait(&mut agenda),
            }
        }
    }

    fn again(&self, failed: Work) {
        let mut agenda = self.agenda.lock();
        agenda.garbage |= failed.garbage;
        agenda.intents.extend(failed.intents);
        agenda.owed.extend(failed.owed);
        agenda.pause = (agenda.pause * 2).clamp(RETRY.0, RETRY.1);
        agenda.retry_at = Some(Instant::now() + agenda.pause);
    }
}

/// What is to be done now.
#[derive(Default)]
struct Work {
    garbage: bool,
    intents: Vec<(Slot, u64)>,
    gone: Vec<ClientId>,
    lingered: Vec<Ino>,
    grown: Vec<Ino>,
    owed: Vec<Ino>,
}

impl Work {
    fn is_empty(&self) -> bool {
        let namespace = self.intents.is_empty() && self.grown.is_empty() && self.owed.is_empty();
        !self.garbage && namespace && self.gone.is_empty() && self.lingered.is_empty()
    }
}

impl Agenda {
    fn take(&mut self, now: Instant) -> Work {
        let mut work = Work::default();
        if self.retry_at.is_none_or(|at| at <= now) {
            self.retry_at = None;
            work.garbage = std::mem::take(&mut self.garbage);
            work.intents = std::mem::take(&mut self.intents);
            work.owed = std::mem::take(&mut self.owed);
        }
        work.grown = std::mem::take(&mut self.grown);
        let over = self.lingering.partition_point(|(until, _)| *until <= now);
        work.lingered = self.lingering.drain(..over).map(|(_, ino)| ino).collect();
        work.gone = self.gone.iter().filter(|(_, until)| **until <= now).map(|(client, _)| *client).collect();
        self.gone.retain(|_, until| *until > now);
        work
    }

    fn next_moment(&self) -> Option<Instant> {
        let something = self.garbage || !self.intents.is_empty() || !self.owed.is_empty();
        let waiting = self.retry_at.filter(|_| something);
        let lingering = self.lingering.front().map(|(until, _)| *until);
        self.gone.values().copied().chain(waiting).chain(lingering).min()
    }
}

fn work(node: &Weak<Node>) {
    loop {
        // The thread must not keep the node alive while it waits.
        let Some(strong) = node.upgrade() else { return };
        let Some(work) = strong.reaper.next() else { return };
        strong.do_work(work);
    }
}

impl Node {
    fn do_work(&self, work: Work) {
        let mut failed = Work::default();
        for (slot, tx) in work.intents {
            if let Err(error) = self.replay_intent(slot, tx) {
                log::warn!("change {tx} still waits: {error}");
                failed.intents.push((slot, tx));
            }
        }
        for dir in work.owed {
            if let Err(error) = self.tell_owed(dir) {
                log::warn!("the home of directory {dir} is told later that it has changed: {error}");
                failed.owed.push(dir);
            }
        }
        work.grown.into_iter().for_each(|dir| self.spread(dir));
        work.gone.into_iter().for_each(|client| self.forget_client(client));
        self.forget_lookups(work.lingered.into_iter());
        self.sweep_direct();
        if work.garbage
            && let Err(error) = self.collect_garbage()
        {
            log::warn!("removal of unused subfiles waits: {error}");
            failed.garbage = true;
        }
        if self.records.wants_compaction()
            && let Err(error) = self.records.compact()
        {
            log::error!("compaction of the records failed, the log goes on growing: {error}");
        }
        if failed.is_empty() {
            self.reaper.agenda.lock().pause = Duration::ZERO;
        } else {
            self.reaper.again(failed);
        }
    }

    /// Who looked a replaced name up has opened what it led to by now.
    fn forget_lookups(&self, inos: impl Iterator<Item = Ino>) {
        for ino in inos {
            if let Err(error) = self.forget_orphan(ino, LOOKED_UP) {
                log::warn!("inode {ino} has no name and could not be removed: {error}");
            }
        }
    }

    /// Looks for garbage that an earlier daemon left, and for what it was about to remove.
    pub(crate) fn adopt_garbage(&self) {
        self.reaper.linger(&self.orphans());
        self.reaper.wake();
    }

    fn forget_client(&self, client: ClientId) {
        self.opens.remove_client(client);
        if let Err(error) = self.openers.forget(&self.records, client) {
            log::warn!("client {} is not forgotten: {error}", client.0);
        }
        self.has_closed_orphans(client);
        let mut lock = self.rename_lock.lock();
        if *lock == Some(client) {
            *lock = None;
        }
    }

    /// Clients of an earlier daemon have as long to come back as those who are gone.
    pub(crate) fn adopt_openers(&self) {
        self.openers.unheard().into_iter().for_each(|client| self.reaper.client_is_gone(client));
    }

    /// Removes unused subfiles.
    fn collect_garbage(&self) -> FsResult<()> {
        let _collecting = self.reaper.collecting.try_lock().unwrap_or_else(|| {
            bivouac_net::before_waiting();
            self.reaper.collecting.lock()
        });
        let outcomes: Vec<FsResult<()>> =
            self.numbers(b'G').chunks(BATCH).map(|batch| self.remove_batch(batch)).collect();
        outcomes.into_iter().collect()
    }

    fn remove_batch(&self, batch: &[(Slot, u64)]) -> FsResult<()> {
        let mut per_node: HashMap<NodeId, Vec<(Ino, SeatIndex)>> = HashMap::new();
        for (slot, ino) in batch {
            let bytes = self.records.read(*slot, &garbage_key(Ino(*ino)), |b| b.map(<[u8]>::to_vec));
            let Some(bytes) = bytes else { continue };
            let garbage: Garbage = decode(&bytes, "garbage", Ino(*ino))?;
            for seat in Node::seats_of(&garbage.layout) {
                if let Some(place) = self.map.seat(seat) {
                    per_node.entry(place.node).or_default().push((Ino(*ino), seat));
                }
            }
        }
        for (node, subfiles) in per_node {
            let steps = Steps::question(NOBODY);
            self.step::<op::RemoveSubfiles>(node, steps, 0, Subfiles { subfiles })?;
        }
        let slots: Vec<Slot> = batch.iter().map(|(slot, _)| *slot).collect();
        let mut change = self.change(&slots)?;
        batch.iter().for_each(|(slot, ino)| change.txn.delete(*slot, &garbage_key(Ino(*ino))));
        change.commit()
    }

    /// Inodes without names that somebody had open when they lost the last.
    pub(crate) fn orphans(&self) -> Vec<Ino> {
        self.numbers(b'O').into_iter().map(|(_, ino)| Ino(ino)).collect()
    }

    /// Slot and number of every record of a table with such keys.
    pub(crate) fn numbers(&self, letter: u8) -> Vec<(Slot, u64)> {
        let mut found = Vec::new();
        for slot in self.own_slots() {
            self.records.scan(slot, &table(letter), &table(letter), |key, _| {
                found.extend(number_of_key(key).map(|number| (slot, number)));
                ControlFlow::Continue(())
            });
        }
        found
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
        bivouac_net::before_waiting();
        let (mutex, never) = (Mutex::new(()), Condvar::new());
        never.wait_for(&mut mutex.lock(), self.next);
        self.next = (self.next * 2).min(Duration::from_millis(50));
        true
    }
}
