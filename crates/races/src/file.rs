//! The last accesses of each client to a file.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bivouac_types::{ByteRange, RaceAccess, RaceProcess};

use crate::clock::Clock;
use crate::reporter::Reporter;

/// Process of a client.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Accessor {
    pub reporter: Reporter,
    pub process: RaceProcess,
}

/// An access, without its range.
#[derive(Clone, Debug)]
pub struct Access {
    /// The client's interval.
    pub interval: u64,
    /// The client's interval when it published the file after the access, if it has.
    pub published: Option<u64>,
    pub by: Arc<Accessor>,
    pub is_in_stripe: bool,
    pub is_session: bool,
    pub first_ms: u64,
    pub last_ms: u64,
}

impl Access {
    /// Returns whether the other one may be kept as one with this: nothing that a race tells differs but times.
    fn is_like(&self, other: &Access) -> bool {
        (self.interval, self.published) == (other.interval, other.published)
            && (self.is_in_stripe, self.is_session) == (other.is_in_stripe, other.is_session)
            && self.by == other.by
    }

    /// Returns it as one side of a race.
    pub fn side(&self, is_write: bool, range: ByteRange) -> RaceAccess {
        RaceAccess {
            host: self.by.reporter.host.clone(),
            node: self.by.reporter.node,
            process: self.by.process.clone(),
            is_write,
            range,
            first_ms: self.first_ms,
            last_ms: self.last_ms,
        }
    }
}

/// The last accesses of one kind of one client: ranges that do not overlap, by their start, with their end.
#[derive(Debug)]
pub struct AccessRanges {
    pub client: usize,
    pub is_write: bool,
    segments: BTreeMap<u64, (u64, Access)>,
}

impl AccessRanges {
    fn new(client: usize, is_write: bool) -> AccessRanges {
        AccessRanges { client, is_write, segments: BTreeMap::new() }
    }

    /// Returns the accesses that overlap a range, the last one first.
    pub fn overlapping(&self, range: ByteRange) -> impl Iterator<Item = (ByteRange, &Access)> {
        let before_end = self.segments.range(..range.end).rev();
        let segments =
            before_end.map(|(start, (end, access))| (ByteRange { start: *start, end: *end }, access));
        // Ranges do not overlap, so their ends rise with their starts: in front of this one none reaches the range.
        segments.take_while(move |(segment, _)| segment.end > range.start)
    }

    /// Replaces what is known of a range.
    fn insert(&mut self, range: ByteRange, access: Access) {
        let replaced: Vec<(ByteRange, Access)> =
            self.overlapping(range).map(|(segment, access)| (segment, access.clone())).collect();
        for (segment, old) in replaced {
            self.segments.remove(&segment.start);
            for rest in segment.without(&range).into_iter().filter(|rest| !rest.is_empty()) {
                self.segments.insert(rest.start, (rest.end, old.clone()));
            }
        }
        assert!(self.overlapping(range).next().is_none(), "two accesses of a client have the same bytes");
        // Only with the one in front: programs mostly go upwards, and a look behind would cost each access.
        let before = self.segments.range_mut(..range.start).next_back();
        if let Some((_, (end, known))) = before
            && *end == range.start
            && known.is_like(&access)
        {
            (*end, known.last_ms) = (range.end, access.last_ms);
            return;
        }
        self.segments.insert(range.start, (range.end, access));
    }

    fn publish(&mut self, interval: u64) {
        for (_, access) in self.segments.values_mut() {
            // The first publication counts: what knows a later interval knows it as well.
            access.published.get_or_insert(interval);
        }
    }

    fn len(&self) -> usize {
        self.segments.len()
    }
}

/// State of a file that clients have open.
#[derive(Debug, Default)]
pub struct File {
    pub tracks: Vec<AccessRanges>,
    opens: HashMap<usize, u64>,
    /// Clocks of clients when they last opened or locked it.
    opened: HashMap<usize, Arc<Clock>>,
    /// The same, or synced it.
    synced: HashMap<usize, Arc<Clock>>,
}

impl File {
    /// Notes an access. Returns by how much the number of segments has changed.
    pub fn insert(&mut self, client: usize, is_write: bool, range: ByteRange, access: Access) -> isize {
        let is_of = |track: &AccessRanges| (track.client, track.is_write) == (client, is_write);
        let at = self.tracks.iter().position(is_of).unwrap_or_else(|| {
            self.tracks.push(AccessRanges::new(client, is_write));
            self.tracks.len() - 1
        });
        let Some(track) = self.tracks.get_mut(at) else { return 0 };
        let before = track.len();
        track.insert(range, access);
        track.len() as isize - before as isize
    }

    /// Publishes what a client has accessed until now.
    pub fn publish(&mut self, client: usize, interval: u64) {
        self.tracks
            .iter_mut()
            .filter(|track| track.client == client)
            .for_each(|track| track.publish(interval));
    }

    /// Notes that a client has taken in what is published.
    pub fn refresh(&mut self, client: usize, clock: &Arc<Clock>, is_open_or_lock: bool) {
        self.synced.insert(client, Arc::clone(clock));
        if is_open_or_lock {
            self.opened.insert(client, Arc::clone(clock));
        }
    }

    /// Forgets when a client has taken in what is published: its number may become another client's.
    pub fn forget_clocks(&mut self, client: usize) {
        self.opened.remove(&client);
        self.synced.remove(&client);
    }

    /// Notes that a client has opened it once more.
    pub fn open(&mut self, client: usize) {
        *self.opens.entry(client).or_default() += 1;
    }

    /// Ends an open of a client, or all of them. Returns whether nobody has it open now.
    pub fn close(&mut self, client: usize, all: bool) -> bool {
        if let Some(count) = self.opens.get_mut(&client) {
            *count -= 1;
            if *count == 0 || all {
                self.opens.remove(&client);
            }
        }
        self.opens.is_empty()
    }

    pub fn is_opened_by(&self, client: usize) -> bool {
        self.opens.contains_key(&client)
    }

    /// Returns the clock of a client at its last open or lock, or at its last open, lock or sync; none if that was not
    /// seen.
    pub fn refreshed(&self, client: usize) -> (Option<&Arc<Clock>>, Option<&Arc<Clock>>) {
        (self.opened.get(&client), self.synced.get(&client))
    }

    /// Returns the number of segments of each client.
    pub fn segments(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.tracks.iter().map(|track| (track.client, track.len()))
    }

    /// Returns the words of memory of its clocks.
    pub fn clock_words(&self) -> usize {
        self.opened.values().chain(self.synced.values()).map(|clock| clock.len()).sum()
    }

    /// Forgets the accesses, and keeps who has it open.
    pub fn forget_accesses(&mut self) {
        self.tracks.clear();
    }
}
