//! State of open files, from which their bytes are found without a message.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bivouac_direct::PendingTimeCounters;
use bivouac_types::{Attr, Contract, FsResult, Ino, Layout, OpenId};
use parking_lot::Mutex;

use crate::homes::leases::ClientTime;
use crate::homes::pending::{PendingMtimeUpdates, PendingOpens};

const SHARDS: usize = 64;
/// Shortest time between messages to the home that the content of a file has changed within its size.
const TOUCH_EVERY: Duration = Duration::from_secs(1);

/// State of one file. Size and epoch may be outdated, except while a lease on them runs; targets refuse an outdated
/// epoch.
#[derive(Clone, Copy, Debug)]
pub struct KnownFile {
    /// Layout of its content.
    pub layout: Layout,
    /// Its size, in bytes, when last reported.
    pub size: u64,
    /// Its epoch, when last reported.
    pub epoch: u32,
    /// True if it had holes when last reported.
    pub sparse: bool,
    /// Its contract, if it has one of its own.
    pub contract: Option<Contract>,
}

#[derive(Debug, Default)]
struct Entry {
    /// `None` until the home has answered, for a file that an earlier process had open.
    known: Option<KnownFile>,
    /// Until when nobody changes that without asking this client.
    current_until: ClientTime,
    opens: Vec<OpenId>,
    touched: Option<Instant>,
    /// Written since the home last heard of it.
    dirty: bool,
    /// Written within a size that has holes: there may be fewer than the home knows of.
    filled: bool,
}

#[derive(Debug, Default)]
struct Shard {
    files: HashMap<Ino, Entry>,
    /// When a file was last invalidated or changed here. A reply to an earlier request may be from before that.
    changed: ClientTime,
    /// Changes of sizes by this client that are under way: others may have seen them already.
    changing: u32,
    /// Opens that were told once more to a home that knew of none.
    reclaim_count: u64,
}

/// A write that the home has to be told of, and what this client knew of the home then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueTouch {
    reclaim_count: u64,
}

/// The open files of a client.
pub struct KnownFiles {
    shards: Vec<Mutex<Shard>>,
    /// Opens that the home has perhaps heard of, and that are not among the files yet.
    pub under_way: PendingOpens,
    /// Changes of content that the homes are just being told.
    pub mtime_updates: PendingMtimeUpdates,
}

impl From<&Attr> for KnownFile {
    fn from(attr: &Attr) -> KnownFile {
        let Attr { layout, size, epoch, contract, .. } = *attr;
        KnownFile { layout, size, epoch, sparse: attr.holes > 0, contract }
    }
}

impl KnownFile {
    /// Refuses a change of the content of a laminated file.
    ///
    /// # Errors
    /// `EROFS`.
    pub fn check_changeable(&self, ino: Ino) -> FsResult<()> {
        bivouac_types::check_changeable(ino, self.contract)
    }
}

impl KnownFiles {
    /// Creates the table for a client's process with `incarnation` predecessors. In `untold` it shows other processes
    /// which files have times not sent yet.
    pub fn new(incarnation: u32, untold: Option<Arc<PendingTimeCounters>>) -> KnownFiles {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let under_way = PendingOpens::new(OpenId::first(incarnation));
        KnownFiles { shards, under_way, mtime_updates: PendingMtimeUpdates::new(untold) }
    }

    /// Adds an open.
    pub fn add(&self, ino: Ino, open: OpenId) {
        let mut shard = self.shard(ino).lock();
        let opens = &mut shard.files.entry(ino).or_default().opens;
        // The home counts it once, and one of two closes would not be known there.
        assert!(opens.last() != Some(&open), "{open:?} of inode {ino} is added twice");
        opens.push(open);
    }

    /// Removes an open, for writing or not; returns it, and true if the home has yet to be told that content changed.
    /// All opens for one kind of access are alike. Where there is none of that kind, as for a file that was created to
    /// be read, one of the other kind is removed.
    pub fn remove(&self, ino: Ino, writes: bool) -> Option<(OpenId, bool)> {
        let mut shard = self.shard(ino).lock();
        let entry = shard.files.get_mut(&ino)?;
        let at = entry.opens.iter().rposition(|open| open.is_for_writing() == writes);
        assert!(!entry.opens.is_empty(), "inode {ino} is known and not open");
        let open = entry.opens.swap_remove(at.unwrap_or(entry.opens.len() - 1));
        // Also where others are open still: each close is to show its writes to others.
        let dirty = self.set_dirty(ino, entry, false);
        if entry.opens.is_empty() {
            shard.files.remove(&ino);
        }
        Some((open, dirty))
    }

    /// Returns the state of an open file.
    pub fn get(&self, ino: Ino) -> Option<KnownFile> {
        self.shard(ino).lock().files.get(&ino).and_then(|entry| entry.known)
    }

    /// Returns true if a file is open.
    pub fn is_open(&self, ino: Ino) -> bool {
        self.shard(ino).lock().files.contains_key(&ino)
    }

    /// Returns the state of an open file, if it is certain to be up to date at this moment.
    pub fn current(&self, ino: Ino, now: ClientTime) -> Option<KnownFile> {
        let shard = self.shard(ino).lock();
        // By shard and not by file: a count for each file would need an entry for those that are not open.
        let is_current = |entry: &&Entry| shard.changing == 0 && entry.current_until > now;
        shard.files.get(&ino).filter(is_current).and_then(|entry| entry.known)
    }

    /// News from the home, which was `asked` at a moment and promises that until another one nobody else changes the
    /// file without asking this client. A promise that was asked for before the file was invalidated, or changed here,
    /// counts for nothing.
    pub fn learn(&self, attr: &Attr, asked: ClientTime, current_until: ClientTime) {
        let mut shard = self.shard(attr.ino).lock();
        // An answer that crossed an invalidation is from before the change, or promises what is void already.
        let is_current = asked > shard.changed;
        // Of files that are not open nothing is kept: nobody would be told when it changes.
        if let Some(entry) = shard.files.get_mut(&attr.ino) {
            entry.known = Some(KnownFile::from(attr));
            entry.current_until = if is_current { current_until } else { ClientTime::default() };
        }
    }

    /// News from the home with a change that this client has made; no promise comes with that.
    pub fn changed(&self, attr: &Attr) {
        self.learn(attr, ClientTime::default(), ClientTime::default());
    }

    /// Begins a change of a file's size by this client: nothing known of it is certain until
    /// [`KnownFiles::end_change`].
    pub fn begin_change(&self, ino: Ino) {
        self.shard(ino).lock().changing += 1;
    }

    /// Ends a change, whether or not it is known what has come of it.
    pub fn end_change(&self, ino: Ino, now: ClientTime) {
        // In this order: an answer from before the change would count as current in between.
        self.invalidate(ino, now);
        let changing = &mut self.shard(ino).lock().changing;
        assert!(*changing > 0, "a change of the size of inode {ino} ends that has not begun");
        *changing -= 1;
    }

    /// Records that a file is about to be changed by another client, or was by this one.
    pub fn invalidate(&self, ino: Ino, now: ClientTime) {
        let mut shard = self.shard(ino).lock();
        shard.changed = shard.changed.max(now);
        if let Some(entry) = shard.files.get_mut(&ino) {
            entry.current_until = ClientTime::default();
        }
    }

    /// Notes that the file was made longer by a write, in the epoch that its writer knew, of which only the furthest
    /// end was told. Where it leaves a hole, others may write, and fewer holes be left in the end than the home can
    /// know of. Whoever is lent sizes takes no leases: there is no promise that this would end.
    pub fn grew(&self, ino: Ino, written: Range<u64>, epoch: u32) {
        let mut shard = self.shard(ino).lock();
        let Some(entry) = shard.files.get_mut(&ino) else { return };
        if let Some(known) = entry.known.as_mut().filter(|known| known.epoch == epoch) {
            let leaves_hole = written.start > known.size;
            known.size = known.size.max(written.end);
            known.sparse |= leaves_hole;
            entry.filled |= leaves_hole;
        }
    }

    /// Notes that content changed within the size. Returns what [`KnownFiles::told_write`] takes if the home has to be
    /// told before the write returns: until it was, each writer tells it.
    pub fn note_write(&self, ino: Ino) -> Option<DueTouch> {
        let mut shard = self.shard(ino).lock();
        let due = DueTouch { reclaim_count: shard.reclaim_count };
        let Some(entry) = shard.files.get_mut(&ino) else { return Some(due) };
        let is_due = entry.touched.is_none_or(|at| at.elapsed() >= TOUCH_EVERY);
        if is_due && entry.touched.is_some() {
            // The home takes this client for a writer already: one of several writers tells it the time.
            entry.touched = Some(Instant::now());
        }
        // What was not told before is until this is.
        if !is_due {
            self.set_dirty(ino, entry, true);
        }
        entry.filled |= entry.known.is_some_and(|known| known.sparse);
        is_due.then_some(due)
    }

    /// Notes that the home was told of a write within the size, and takes this client for a writer from now on: unless
    /// it was started again meanwhile, and knows of no writers.
    pub fn told_write(&self, ino: Ino, due: DueTouch) {
        let mut shard = self.shard(ino).lock();
        if shard.reclaim_count == due.reclaim_count
            && let Some(entry) = shard.files.get_mut(&ino)
        {
            entry.touched = Some(Instant::now());
        }
    }

    /// Returns true if the home has been told of a write within the size, and need not be told of each further one.
    pub fn is_writer(&self, ino: Ino) -> bool {
        self.shard(ino).lock().files.get(&ino).is_some_and(|entry| entry.touched.is_some())
    }

    /// Notes that the home may have counted more holes of the file than there are.
    pub fn fill(&self, ino: Ino) {
        self.with(ino, |entry| entry.filled = true);
    }

    /// Returns true if holes of the file may have been filled, and resets that.
    pub fn take_filled(&self, ino: Ino) -> bool {
        self.with(ino, |entry| std::mem::take(&mut entry.filled)).unwrap_or_default()
    }

    /// Notes that the home has yet to hear that the content changed.
    pub fn mark_dirty(&self, ino: Ino) {
        self.with(ino, |entry| self.set_dirty(ino, entry, true));
    }

    /// Returns true if the home has yet to be told that content changed.
    pub fn is_dirty(&self, ino: Ino) -> bool {
        self.shard(ino).lock().files.get(&ino).is_some_and(|entry| entry.dirty)
    }

    /// Returns true if the home has yet to be told that content changed, and resets that.
    pub fn take_dirty(&self, ino: Ino) -> bool {
        self.with(ino, |entry| self.set_dirty(ino, entry, false)).unwrap_or_default()
    }

    /// Sets whether the home has yet to be told; returns what it was before.
    fn set_dirty(&self, ino: Ino, entry: &mut Entry, dirty: bool) -> bool {
        let before = std::mem::replace(&mut entry.dirty, dirty);
        if before != dirty {
            self.mtime_updates.mark_dirty(ino, dirty);
        }
        before
    }

    /// Returns all opens of those inodes that `wanted` names.
    pub fn opens(&self, wanted: impl Fn(Ino) -> bool) -> Vec<(Ino, OpenId)> {
        let of = |shard: &Mutex<Shard>| -> Vec<(Ino, OpenId)> {
            let shard = shard.lock();
            let wanted = shard.files.iter().filter(|(ino, _)| wanted(**ino));
            wanted.flat_map(|(ino, entry)| entry.opens.iter().map(|open| (*ino, *open))).collect()
        };
        self.shards.iter().flat_map(of).collect()
    }

    /// Returns the same for a home that does not know of them any more, nor which of them are written: it is told of
    /// the next write to each before that returns.
    pub fn reclaimed(&self, wanted: impl Fn(Ino) -> bool) -> Vec<(Ino, OpenId)> {
        for shard in &self.shards {
            let mut shard = shard.lock();
            // In each shard, also where nothing matches: a write under way there must not count as told.
            shard.reclaim_count += 1;
            shard
                .files
                .iter_mut()
                .filter(|(ino, _)| wanted(**ino))
                .for_each(|(_, entry)| entry.touched = None);
        }
        self.opens(wanted)
    }

    /// Returns true if any file is open that `wanted` accepts.
    pub fn has_any(&self, wanted: impl Fn(Ino) -> bool) -> bool {
        self.shards.iter().any(|shard| shard.lock().files.keys().any(|ino| wanted(*ino)))
    }

    fn with<T>(&self, ino: Ino, act: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        self.shard(ino).lock().files.get_mut(&ino).map(act)
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[ino.0 as usize % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::{TargetIndex, Timestamp};

    fn attr(ino: u64, size: u64) -> Attr {
        let (time, layout) =
            (Timestamp::default(), Layout { stripe: 4096, width: 1, base: TargetIndex(0), targets: 1 });
        Attr { size, epoch: 3, ..Attr::new(Ino(ino), 0o100_644, layout, time) }
    }

    const FIRST: OpenId = OpenId(2);
    const SECOND: OpenId = OpenId(4);

    #[test]
    fn an_open_ends_that_was_for_the_same_access() {
        let files = KnownFiles::new(0, None);
        let [read, write] = [OpenId(2), OpenId(5)];
        for (opens, writes, ended) in [([read, write], true, write), ([write, read], false, read)] {
            opens.iter().for_each(|open| files.add(Ino(7), *open));
            assert_eq!(files.remove(Ino(7), writes), Some((ended, false)));
            let other = if writes { read } else { write };
            assert_eq!(files.remove(Ino(7), writes), Some((other, false)), "none for this access is left");
        }
    }

    #[test]
    fn a_file_is_known_while_it_is_open() {
        let files = KnownFiles::new(0, None);
        files.changed(&attr(7, 1));
        assert!(files.get(Ino(7)).is_none() && !files.has_any(|_| true));
        files.add(Ino(7), FIRST);
        files.add(Ino(7), SECOND);
        assert!(files.get(Ino(7)).is_none());
        files.changed(&attr(7, 20));
        assert_eq!(files.get(Ino(7)).map(|known| (known.size, known.epoch)), Some((20, 3)));
        assert_eq!(files.opens(|_| true), [(Ino(7), FIRST), (Ino(7), SECOND)]);
        assert!(files.has_any(|ino| ino == Ino(7)) && !files.has_any(|ino| ino == Ino(8)));
        assert_eq!(files.remove(Ino(7), false), Some((SECOND, false)));
        assert_eq!(files.remove(Ino(7), false), Some((FIRST, false)));
        assert_eq!(files.remove(Ino(7), false), None);
        assert!(files.get(Ino(7)).is_none());
    }

    /// Whether the size of file 7 is taken for what it is now, at a moment.
    fn is_current(files: &KnownFiles, at: ClientTime) -> bool {
        files.current(Ino(7), at).is_some()
    }

    /// S1, S650.
    #[test]
    fn a_size_is_current_for_as_long_as_the_home_promised() {
        let (files, [asked, later, end]) =
            (KnownFiles::new(0, None), [10, 15, 20].map(ClientTime::of_micros));
        files.learn(&attr(7, 1), asked, end);
        files.add(Ino(7), FIRST);
        assert!(!is_current(&files, later), "nothing was kept of what was not open");
        files.learn(&attr(7, 1), asked, end);
        assert!(is_current(&files, later) && !is_current(&files, end));
        files.invalidate(Ino(8), later);
        assert!(is_current(&files, later), "it is another file");
        files.invalidate(Ino(7), later);
        assert!(!is_current(&files, later));
    }

    /// S1, S650: what was asked before somebody else's change, or one's own, may be told behind it.
    #[test]
    fn a_size_that_a_change_overtook_is_not_current() {
        let moments = [10, 11, 12, 100].map(ClientTime::of_micros);
        let [before, change, behind, end] = moments;
        let own = |files: &KnownFiles, now| {
            files.begin_change(Ino(7));
            assert!(!is_current(files, now), "others may have seen it already");
            files.end_change(Ino(7), now);
            files.changed(&attr(7, 2));
        };
        let changes: [fn(&KnownFiles, ClientTime); 2] = [|files, now| files.invalidate(Ino(7), now), own];
        for (at, changes) in changes.iter().enumerate() {
            let files = KnownFiles::new(0, None);
            files.add(Ino(7), FIRST);
            files.learn(&attr(7, 1), before, end);
            changes(&files, change);
            assert!(!is_current(&files, behind), "{at}");
            [before, change].iter().for_each(|asked| files.learn(&attr(7, 1), *asked, end));
            assert!(!is_current(&files, behind), "{at}: it was asked before that was over");
            files.learn(&attr(7, 2), behind, end);
            assert!(is_current(&files, behind), "{at}");
        }
    }

    /// S32, S33.
    #[test]
    fn the_home_hears_of_the_first_write_and_of_the_last() {
        let files = KnownFiles::new(0, None);
        files.add(Ino(7), FIRST);
        let due = files.note_write(Ino(7)).unwrap();
        assert_eq!(files.note_write(Ino(7)), Some(due), "and so is another one before the home knows");
        files.told_write(Ino(7), due);
        assert_eq!(files.note_write(Ino(7)), None, "those after it are not");
        assert_eq!(files.remove(Ino(7), false), Some((FIRST, true)), "the close tells");
        assert!(files.note_write(Ino(9)).is_some(), "a file that is not open has nobody to tell later");
    }

    /// A home that was restarted knows of no writers.
    #[test]
    fn a_home_that_forgot_is_told_of_the_next_write() {
        let files = KnownFiles::new(0, None);
        [7, 8].iter().for_each(|ino| files.add(Ino(*ino), FIRST));
        let tell = |ino: Ino| files.note_write(ino).map(|due| files.told_write(ino, due)).is_some();
        assert!(tell(Ino(7)) && tell(Ino(8)));
        let late = files.note_write(Ino(9)).unwrap();
        assert_eq!(files.reclaimed(|ino| ino == Ino(7)), [(Ino(7), FIRST)]);
        assert!(files.note_write(Ino(7)).is_some());
        // What was told before the home was started again, it does not know.
        files.told_write(Ino(7), late);
        assert!(files.note_write(Ino(7)).is_some());
        assert!(files.note_write(Ino(8)).is_none());
    }

    /// S34.
    #[test]
    fn a_time_that_was_set_is_not_overtaken() {
        let files = KnownFiles::new(0, None);
        files.add(Ino(7), FIRST);
        let due = files.note_write(Ino(7)).unwrap();
        files.told_write(Ino(7), due);
        assert_eq!(files.note_write(Ino(7)), None);
        assert!(files.take_dirty(Ino(7)));
        assert_eq!(files.remove(Ino(7), false), Some((FIRST, false)));
    }
}
