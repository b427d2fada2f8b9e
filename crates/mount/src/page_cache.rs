//! Coherence of the kernel's page cache, which holds what programs have mapped, with direct writes through the same
//! mount.
//!
//! The kernel drops the pages of a range before it sends a direct write there. A page fault of another process between
//! the two brings the old content back, and nothing drops it again; a page that is then stored to is even written back
//! with the old bytes. So a write to a file of which pages were read is answered after the kernel has dropped the range
//! once more, and what the kernel writes back meanwhile loses the bytes that the write has replaced.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bivouac_ranks::{Condvar, Mutex, MutexGuard};
use bivouac_types::Ino;

use crate::pool::about_to_block;

/// Files are spread over so many locks.
const SHARDS: usize = 64;
/// Files per shard from which on those are dropped of which no page was read for [`PAGES_KEPT`].
const FILES_PER_SHARD: usize = 64;
/// Longer than a write can be under way. Only pages that were read meanwhile can be stale because of it.
const PAGES_KEPT: Duration = Duration::from_secs(600);

/// The files of one mount whose pages the kernel has read, and the writes that are under way.
#[derive(Debug)]
pub struct PageCache {
    shards: Vec<Shard>,
}

#[derive(Debug, Default)]
struct Shard {
    files: Mutex<Files>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Files {
    /// Time of the last read of a page of each file.
    read_at: HashMap<Ino, Instant>,
    /// Number of files at which old ones are dropped next.
    sweep_at: usize,
    direct: Vec<DirectRange>,
    pages: Vec<(u64, Ino, Range<u64>)>,
    next_id: u64,
    waiting: usize,
}

#[derive(Debug)]
struct DirectRange {
    id: u64,
    ino: Ino,
    range: Range<u64>,
    /// True if the range has its new content.
    is_applied: bool,
}

/// A direct write that is under way until this value is dropped.
#[derive(Debug)]
pub struct DirectWrite {
    cache: Arc<PageCache>,
    ino: Ino,
    id: u64,
}

/// A range that the kernel writes back from its page cache until this value is dropped.
#[derive(Debug)]
pub struct WriteBack<'a> {
    cache: &'a PageCache,
    ino: Ino,
    id: u64,
    parts: Vec<Range<u64>>,
}

impl PageCache {
    /// Creates the page cache of a mount. Pages of the files `open` may have been read before, through another daemon.
    pub fn new(open: impl IntoIterator<Item = Ino>) -> Arc<PageCache> {
        let cache = PageCache { shards: (0..SHARDS).map(|_| Shard::default()).collect() };
        open.into_iter().for_each(|ino| cache.note_read(ino));
        Arc::new(cache)
    }

    /// Notes that the kernel reads pages of a file. To be called before the content is read.
    pub fn note_read(&self, ino: Ino) {
        let now = Instant::now();
        let mut files = self.shard(ino).files.lock();
        if files.read_at.len() >= files.sweep_at.max(FILES_PER_SHARD) && !files.read_at.contains_key(&ino) {
            files.read_at.retain(|_, at| now.saturating_duration_since(*at) < PAGES_KEPT);
            // Where most are recent the next sweep is not at the next file.
            files.sweep_at = 2 * files.read_at.len();
        }
        files.read_at.insert(ino, now);
    }

    /// Begins a direct write, once the kernel's writes to the range that are being served are done. To be called before
    /// the content is written.
    pub fn begin_direct(self: &Arc<Self>, ino: Ino, range: Range<u64>) -> DirectWrite {
        let shard = self.shard(ino);
        let mut files = shard.files.lock();
        let id = files.id();
        // Before the wait: from now on write-backs of the range wait for this one, and not this one for ever more of
        // them.
        files.direct.push(DirectRange { id, ino, range: range.clone(), is_applied: false });
        drop(shard.wait_while(files, |files| {
            files.pages.iter().any(|(_, of, pages)| *of == ino && overlap(pages, &range))
        }));
        DirectWrite { cache: Arc::clone(self), ino, id }
    }

    /// Begins to write pages back, once the direct writes that overlap have written their content.
    pub fn begin_write_back(&self, ino: Ino, range: Range<u64>) -> WriteBack<'_> {
        let shard = self.shard(ino);
        let is_in_the_way = |direct: &&DirectRange| direct.ino == ino && overlap(&direct.range, &range);
        let mut files = shard.wait_while(shard.files.lock(), |files| {
            files.direct.iter().filter(is_in_the_way).any(|direct| !direct.is_applied)
        });
        let replaced = files.direct.iter().filter(is_in_the_way).map(|direct| direct.range.clone());
        // Taken under the lock: a direct write that begins from now on waits for these pages.
        let parts = without(&range, replaced.collect());
        let id = files.id();
        files.pages.push((id, ino, range));
        WriteBack { cache: self, ino, id, parts }
    }

    fn shard(&self, ino: Ino) -> &Shard {
        let mixed = ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.shards[mixed as usize % SHARDS]
    }
}

impl Shard {
    fn wait_while<'a>(
        &'a self,
        mut files: MutexGuard<'a, Files>,
        is_in_the_way: impl Fn(&Files) -> bool,
    ) -> MutexGuard<'a, Files> {
        if !is_in_the_way(&files) {
            return files;
        }
        // To hand on the permit may start a thread: not under this lock, so it is looked at once more behind it.
        drop(files);
        about_to_block();
        files = self.files.lock();
        // Counted under the lock that the look is made under, so that `notify` cannot miss it.
        files.waiting += 1;
        self.changed.wait_while(&mut files, |files| is_in_the_way(files));
        files.waiting -= 1;
        files
    }

    fn notify(&self, files: MutexGuard<'_, Files>) {
        let is_awaited = files.waiting > 0;
        drop(files);
        if is_awaited {
            self.changed.notify_all();
        }
    }
}

impl Files {
    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

impl DirectWrite {
    /// Notes that the first `len` bytes of the range have their new content. Says whether the kernel may have pages
    /// with the old one, which it has to drop before the write is answered and this value is dropped.
    pub fn applied(&self, len: u64) -> bool {
        let shard = self.cache.shard(self.ino);
        let mut files = shard.files.lock();
        if let Some(direct) = files.direct.iter_mut().find(|direct| direct.id == self.id) {
            // What was not written has the old content still, and a write-back may bring newer.
            direct.range.end = direct.range.end.min(direct.range.start.saturating_add(len));
            direct.is_applied = true;
        }
        let may_be_stale = files.read_at.get(&self.ino).is_some_and(|at| at.elapsed() < PAGES_KEPT);
        shard.notify(files);
        may_be_stale
    }
}

impl Drop for DirectWrite {
    fn drop(&mut self) {
        let shard = self.cache.shard(self.ino);
        let mut files = shard.files.lock();
        files.direct.retain(|direct| direct.id != self.id);
        shard.notify(files);
    }
}

impl WriteBack<'_> {
    /// Returns the parts of the range to be written: the rest has newer content.
    pub fn parts(&self) -> &[Range<u64>] {
        &self.parts
    }
}

impl Drop for WriteBack<'_> {
    fn drop(&mut self) {
        let shard = self.cache.shard(self.ino);
        let mut files = shard.files.lock();
        files.pages.retain(|(id, ..)| *id != self.id);
        shard.notify(files);
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Returns the parts of a range that are in no other.
fn without(range: &Range<u64>, mut others: Vec<Range<u64>>) -> Vec<Range<u64>> {
    others.sort_unstable_by_key(|other| other.start);
    let (mut parts, mut at) = (Vec::new(), range.start);
    for other in others.iter().filter(|other| overlap(other, range)) {
        if at < other.start {
            parts.push(at..other.start);
        }
        at = at.max(other.end);
    }
    if at < range.end {
        parts.push(at..range.end);
    }
    // A byte outside of the range would be written back without a reason.
    assert!(
        parts.iter().all(|part| range.start <= part.start && part.end <= range.end),
        "{parts:?} of {range:?}"
    );
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    const INO: Ino = Ino(5);

    #[test]
    fn a_write_without_pages_leaves_nothing_behind() {
        let cache = PageCache::new([]);
        let write = cache.begin_direct(INO, 0..10);
        assert!(!write.applied(10), "no page was read");
        cache.note_read(INO);
        assert!(write.applied(10), "a page was read meanwhile");
        assert!(!cache.begin_direct(Ino(6), 0..10).applied(10), "of another file");
        drop(write);
        assert!(cache.shard(INO).files.lock().direct.is_empty());
        assert!(
            PageCache::new([INO]).begin_direct(INO, 0..10).applied(10),
            "another daemon may have read it"
        );
    }

    #[test]
    fn what_is_written_back_leaves_out_what_was_replaced_meanwhile() {
        let cache = PageCache::new([]);
        let parts = |range| -> Vec<(u64, u64)> {
            cache.begin_write_back(INO, range).parts().iter().map(|part| (part.start, part.end)).collect()
        };
        let first = cache.begin_direct(INO, 10..20);
        first.applied(10);
        let second = cache.begin_direct(INO, 15..40);
        second.applied(15);
        assert_eq!(parts(0..100), [(0, 10), (30, 100)], "the second write was short");
        assert_eq!(parts(12..28), []);
        assert_eq!(parts(30..35), [(30, 35)]);
        drop(first);
        assert_eq!(parts(0..20), [(0, 15)]);
        drop(second);
        assert_eq!(parts(0..20), [(0, 20)]);
    }

    #[test]
    fn writes_of_one_range_take_turns_with_what_is_written_back() {
        let cache = PageCache::new([]);
        let (sender, done) = mpsc::channel();
        let back = cache.begin_write_back(INO, 0..10);
        assert!(!cache.begin_direct(INO, 10..20).applied(10), "beside it");
        thread::scope(|scope| {
            scope.spawn(|| {
                let write = cache.begin_direct(INO, 5..15);
                sender.send("direct").unwrap();
                write.applied(10);
                write
            });
            while cache.shard(INO).files.lock().waiting == 0 {
                thread::yield_now();
            }
            sender.send("back").unwrap();
            drop(back);
        });
        assert_eq!(done.try_iter().collect::<Vec<_>>(), ["back", "direct"]);
    }

    #[test]
    fn files_of_which_no_page_was_read_for_long_are_dropped() {
        let cache = PageCache::new([]);
        let Some(long_ago) = Instant::now().checked_sub(PAGES_KEPT) else {
            return eprintln!("skipped: this machine has just been started");
        };
        let mut files = cache.shard(INO).files.lock();
        files.read_at = (100..100 + FILES_PER_SHARD as u64).map(|n| (Ino(n), long_ago)).collect();
        files.read_at.insert(INO, long_ago);
        drop(files);
        assert!(!cache.begin_direct(INO, 0..10).applied(10), "what was read then is older than the write");
        cache.note_read(INO);
        assert!(cache.begin_direct(INO, 0..10).applied(10));
        cache.shard(INO).files.lock().read_at.remove(&INO);
        cache.note_read(INO);
        assert_eq!(cache.shard(INO).files.lock().read_at.len(), 1);
    }
}
