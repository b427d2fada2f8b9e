//! The machine.

use std::collections::HashMap;
use std::sync::Arc;

use bivouac_types::{
    ClientId, FileAccess, Ino, OrderedBy, Race, RaceCounts, RaceEvent, RaceProcess, Refresh, SyncObject,
};

use crate::clock::Clock;
use crate::file::{Access, Accessor, File};
use crate::reporter::Reporter;

/// Words of memory that a segment is taken for.
const SEGMENT_WORDS: usize = 24;
/// The same of an object, its clock aside.
const OBJECT_WORDS: usize = 12;
/// The same of a file, its segments and clocks aside.
const FILE_WORDS: usize = 48;

/// Bounds of memory.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Clients that are told apart.
    pub clients: usize,
    /// Different races that are kept.
    pub races: usize,
    /// Words of 8 bytes for accesses and clocks.
    pub words: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { clients: 1024, races: 4096, words: 16 << 20 }
    }
}

#[derive(Debug, Default)]
struct Client {
    clock: Clock,
    /// A copy of the clock, until that changes.
    snapshot: Option<Arc<Clock>>,
    segments: usize,
    is_gone: bool,
}

/// Object with a clock: what clients synchronise by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Object {
    Content(Ino),
    Other(SyncObject),
}

/// Process and kind of an access.
type AccessOrigin = (ClientId, u32, bool);
/// Races that are counted as one.
type RaceKey = (Ino, AccessOrigin, AccessOrigin, OrderedBy);

/// The races that were found.
#[derive(Debug, Default)]
struct RaceList {
    races: Vec<Race>,
    positions: HashMap<RaceKey, usize>,
}

impl RaceList {
    /// Adds a pair, unless there are too many different ones. Returns whether it is in the list.
    fn add(&mut self, sides: (AccessOrigin, AccessOrigin), mut race: Race, max: usize) -> bool {
        let (mut one, mut other) = sides;
        // Where nothing orders them, neither is the first.
        if !race.ordered.posix && other < one {
            (one, other) = (other, one);
            std::mem::swap(&mut race.first, &mut race.second);
        }
        let key = (race.ino, one, other, race.ordered);
        if let Some(known) = self.positions.get(&key).and_then(|at| self.races.get_mut(*at)) {
            known.merge(&race);
            return true;
        }
        if self.races.len() >= max {
            return false;
        }
        self.positions.insert(key, self.races.len());
        self.races.push(race);
        true
    }
}

/// The detector of one formation.
#[derive(Debug)]
pub struct Detector {
    limits: Limits,
    /// One more than the maximum: the last stands for all further clients.
    clients: Vec<Client>,
    numbers: HashMap<ClientId, usize>,
    files: HashMap<Ino, File>,
    objects: HashMap<Object, Clock>,
    object_words: usize,
    /// Files, their segments aside.
    file_words: usize,
    segments: usize,
    /// Clock of all objects that are not kept any more: a client that acquires one acquires all of it.
    merged: Clock,
    found: RaceList,
    counts: RaceCounts,
}

impl Detector {
    /// Creates a detector that has seen nothing.
    #[must_use]
    pub fn new(limits: Limits) -> Detector {
        assert!(limits.clients > 0 && limits.races > 0 && limits.words > 0, "limits allow something");
        Detector {
            limits,
            clients: Vec::new(),
            numbers: HashMap::new(),
            files: HashMap::new(),
            objects: HashMap::new(),
            object_words: 0,
            file_words: 0,
            segments: 0,
            merged: Clock::default(),
            found: RaceList::default(),
            counts: RaceCounts::default(),
        }
    }

    /// Returns the races, in the order in which they were found.
    #[must_use]
    pub fn races(&self) -> &[Race] {
        &self.found.races
    }

    /// Returns the numbers of this detection.
    #[must_use]
    pub fn counts(&self) -> RaceCounts {
        self.counts
    }

    /// Takes the next events of a client. Accesses name their process by its position in `processes`; those that name
    /// none are left out.
    pub fn report(&mut self, reporter: &Reporter, processes: &[RaceProcess], events: &[RaceEvent]) {
        let client = self.number(reporter.client);
        let accessor = |process: &RaceProcess| {
            Arc::new(Accessor { reporter: reporter.clone(), process: process.clone() })
        };
        let accessors: Vec<_> = processes.iter().map(accessor).collect();
        for event in events {
            match event {
                RaceEvent::Access(access) => {
                    if let Some(by) = accessors.get(usize::from(access.process)) {
                        self.access(client, access, by);
                    }
                }
                RaceEvent::Release(object) => self.release(client, Object::Other(*object)),
                RaceEvent::Acquire(object) => self.acquire(client, Object::Other(*object)),
                RaceEvent::Publish(ino) => self.publish(client, *ino),
                RaceEvent::Refresh(ino, by) => self.refresh(client, *ino, *by),
                RaceEvent::Close(ino) => self.close(client, *ino, false),
            }
        }
        self.bound_memory();
    }

    /// Reports of a client were lost, and with them operations that order what others have reported: all accesses until
    /// now are forgotten.
    pub fn lose(&mut self) {
        // Clocks stay: what they order is so, whatever else was lost.
        self.counts.lost_reports += 1;
        self.files.values_mut().for_each(File::forget_accesses);
        self.clients.iter_mut().for_each(|client| client.segments = 0);
        self.segments = 0;
    }

    /// Forgets a client that is gone, and with it all that it had open.
    pub fn client_gone(&mut self, client: ClientId) {
        let Some(number) = self.numbers.remove(&client) else { return };
        if number >= self.limits.clients {
            // Others share its number.
            return;
        }
        let opened = self.files.iter().filter(|(_, file)| file.is_opened_by(number));
        let opened: Vec<Ino> = opened.map(|(ino, _)| *ino).collect();
        opened.into_iter().for_each(|ino| self.close(number, ino, true));
        for file in self.files.values_mut() {
            let before = file.clock_words();
            file.forget_clocks(number);
            self.file_words = self.file_words + file.clock_words() - before;
        }
        if let Some(state) = self.clients.get_mut(number) {
            // Its number is taken again only once nothing is known of its accesses: they would be the next client's.
            state.is_gone = true;
        }
    }

    /// Returns the number of a client: a new one, that of one which is gone, or the one that all clients beyond the
    /// limit share.
    fn number(&mut self, client: ClientId) -> usize {
        if let Some(number) = self.numbers.get(&client) {
            return *number;
        }
        let is_free = |state: &Client| state.is_gone && state.segments == 0;
        let number = if self.clients.len() < self.limits.clients {
            self.clients.len()
        } else {
            let free = self.clients.iter().take(self.limits.clients).position(is_free);
            free.unwrap_or_else(|| {
                // What orders one of them orders all: races are missed, and none is made up.
                self.counts.shared_clients += 1;
                self.limits.clients
            })
        };
        if number >= self.clients.len() {
            self.clients.resize_with(number + 1, Client::default);
        }
        if let Some(state) = self.clients.get_mut(number)
            && (state.is_gone || state.clock.is_empty())
        {
            // Intervals of one number never come again: what is known of an earlier client orders nothing of this one.
            let interval = state.clock.get(number) + 1;
            *state = Client::default();
            state.clock.set(number, interval);
        }
        self.numbers.insert(client, number);
        number
    }

    fn release(&mut self, client: usize, object: Object) {
        let Some(state) = self.clients.get_mut(client) else { return };
        let known = self.objects.entry(object).or_default();
        self.object_words += if known.is_empty() { OBJECT_WORDS } else { 0 };
        self.object_words -= known.len();
        known.join(&state.clock);
        self.object_words += known.len();
        // Behind the join: what the client accesses from here on is not ordered by this release.
        let interval = state.clock.get(client) + 1;
        state.clock.set(client, interval);
        state.snapshot = None;
    }

    fn acquire(&mut self, client: usize, object: Object) {
        let Some(state) = self.clients.get_mut(client) else { return };
        if let Some(known) = self.objects.get(&object) {
            state.clock.join(known);
        }
        // It may have been merged before it was released again.
        state.clock.join(&self.merged);
        state.snapshot = None;
    }

    fn publish(&mut self, client: usize, ino: Ino) {
        let interval = self.clients.get(client).map_or(0, |state| state.clock.get(client));
        if let Some(file) = self.files.get_mut(&ino) {
            file.publish(client, interval);
        }
        self.release(client, Object::Content(ino));
    }

    fn refresh(&mut self, client: usize, ino: Ino, by: Refresh) {
        self.acquire(client, Object::Content(ino));
        let Some(state) = self.clients.get_mut(client) else { return };
        // One copy for all files that are opened at one state of the clock: a clock has a word for each client.
        let snapshot = state.snapshot.get_or_insert_with(|| Arc::new(state.clock.clone()));
        let file = file_of(&mut self.files, &mut self.file_words, ino);
        let before = file.clock_words();
        file.refresh(client, snapshot, by != Refresh::Sync);
        if by == Refresh::Open {
            file.open(client);
        }
        self.file_words = self.file_words + file.clock_words() - before;
    }

    fn close(&mut self, client: usize, ino: Ino, all: bool) {
        self.publish(client, ino);
        // Whoever accesses it from now on opens it before, and takes in what all have published.
        if self.files.get_mut(&ino).is_some_and(|file| file.close(client, all)) {
            self.forget(ino);
        }
    }

    /// Forgets a file. Returns the number of segments that it had.
    fn forget(&mut self, ino: Ino) -> usize {
        let Some(file) = self.files.remove(&ino) else { return 0 };
        self.file_words -= FILE_WORDS + file.clock_words();
        let mut count = 0;
        for (client, segments) in file.segments() {
            count += segments;
            if let Some(state) = self.clients.get_mut(client) {
                assert!(
                    state.segments >= segments,
                    "client {client} has fewer segments than one of its files"
                );
                state.segments -= segments;
            }
        }
        assert!(self.segments >= count, "a file has more segments than all of them");
        self.segments -= count;
        count
    }

    fn access(&mut self, client: usize, access: &FileAccess, by: &Arc<Accessor>) {
        if access.range.is_empty() {
            return;
        }
        self.counts.accesses += 1;
        let Some(state) = self.clients.get_mut(client) else { return };
        let file = file_of(&mut self.files, &mut self.file_words, access.ino);
        let new = Access {
            interval: state.clock.get(client),
            published: None,
            by: Arc::clone(by),
            is_in_stripe: access.is_in_stripe,
            is_session: access.is_session,
            first_ms: access.first_ms,
            last_ms: access.last_ms,
        };
        let (opened, synced) = file.refreshed(client);
        for track in file.tracks.iter().filter(|track| track.client != client) {
            if !(track.is_write || access.is_write) {
                continue;
            }
            for (range, old) in track.overlapping(access.range) {
                self.counts.conflicts += 1;
                let ordered = order(old, track.client, &state.clock, opened, synced);
                // The strictest of the models: what it orders the others order, too.
                if ordered.session {
                    continue;
                }
                let race = Race {
                    ino: access.ino,
                    range: range.and(&access.range),
                    count: 1,
                    ordered,
                    is_in_stripe: old.is_in_stripe && access.is_in_stripe,
                    is_session: old.is_session || access.is_session,
                    first: old.side(track.is_write, range),
                    second: new.side(access.is_write, access.range),
                };
                let side = |by: &Accessor, is_write| (by.reporter.client, by.process.pid, is_write);
                let sides = (side(&old.by, track.is_write), side(by, access.is_write));
                if !self.found.add(sides, race, self.limits.races) {
                    self.counts.unlisted += 1;
                }
            }
        }
        let added = file.insert(client, access.is_write, access.range, new);
        state.segments = state.segments.saturating_add_signed(added);
        self.segments = self.segments.saturating_add_signed(added);
    }

    /// Keeps memory within its bound: first what orders clients becomes coarser, then files are forgotten, those with
    /// most accesses first.
    fn bound_memory(&mut self) {
        if self.words() <= self.limits.words {
            return;
        }
        // Whoever acquires any object acquires all of them from then on: that hides races, and makes none up.
        if self.object_words > self.limits.words / 4 {
            self.counts.merged += 1;
            for clock in std::mem::take(&mut self.objects).into_values() {
                self.merged.join(&clock);
            }
            self.object_words = 0;
        }
        // Some room, so that this is seldom.
        let enough = self.limits.words / 8 * 7;
        let mut files: Vec<(usize, Ino)> =
            self.files.iter().map(|(ino, file)| (words_of(file), *ino)).collect();
        files.sort_unstable_by(|one, other| other.cmp(one));
        for (_, ino) in files {
            if self.words() <= enough {
                return;
            }
            self.counts.forgotten += self.forget(ino).max(1) as u64;
        }
    }

    fn words(&self) -> usize {
        self.segments * SEGMENT_WORDS + self.object_words + self.file_words
    }
}

/// Returns the file, which is new if nothing is known of it.
fn file_of<'f>(files: &'f mut HashMap<Ino, File>, file_words: &mut usize, ino: Ino) -> &'f mut File {
    files.entry(ino).or_insert_with(|| {
        *file_words += FILE_WORDS;
        File::default()
    })
}

/// Returns the words of memory that a file is taken for.
fn words_of(file: &File) -> usize {
    let segments: usize = file.segments().map(|(_, count)| count).sum();
    FILE_WORDS + segments * SEGMENT_WORDS + file.clock_words()
}

/// Returns the models that order an access before what a client does now, whose clock this is: with its copies from
/// when the client last opened or locked the file, and last opened, locked or synced it.
fn order(
    old: &Access,
    by: usize,
    clock: &Clock,
    opened: Option<&Arc<Clock>>,
    synced: Option<&Arc<Clock>>,
) -> OrderedBy {
    let is_published_to = |clock: &Clock| old.published.is_some_and(|interval| interval <= clock.get(by));
    let commit = is_published_to(clock);
    // A client whose open was not seen is taken to have opened it just now.
    let at = |copy: Option<&Arc<Clock>>| copy.map_or(commit, |copy| is_published_to(copy));
    OrderedBy { posix: old.interval <= clock.get(by), commit, session: at(opened), mpi_io: at(synced) }
}
