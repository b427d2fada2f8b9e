//! What the client knows of files that it has open: enough to find their bytes without asking.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bivouac_types::{Attr, Ino, Layout};
use parking_lot::Mutex;

const SHARDS: usize = 64;
/// How often at most the home hears that the content of a file has changed within its size.
const TOUCH_EVERY: Duration = Duration::from_secs(1);

/// What is known of one file. Size and epoch may be out of date; using them finds that out.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Where its bytes are.
    pub layout: Layout,
    /// Its size, in bytes, as last heard.
    pub size: u64,
    /// Its epoch, as last heard.
    pub epoch: u32,
}

#[derive(Debug)]
struct Entry {
    /// Nothing, if the home has not been heard since an earlier process had it open.
    known: Option<Known>,
    opens: u32,
    touched: Option<Instant>,
    /// Written since the home last heard of it.
    dirty: bool,
}

/// The open files of a client.
pub struct KnownFiles {
    shards: Vec<Mutex<HashMap<Ino, Entry>>>,
}

impl Default for KnownFiles {
    fn default() -> KnownFiles {
        KnownFiles { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl From<&Attr> for Known {
    fn from(attr: &Attr) -> Known {
        Known { layout: attr.layout, size: attr.size, epoch: attr.epoch }
    }
}

impl KnownFiles {
    /// `count` opens more.
    pub fn add(&self, attr: &Attr, count: u32) {
        self.add_unseen(attr.ino, count);
        self.update(attr);
    }

    /// `count` opens more of a file that nothing is known of yet.
    pub fn add_unseen(&self, ino: Ino, count: u32) {
        let mut shard = self.shard(ino).lock();
        let new = Entry { known: None, opens: 0, touched: None, dirty: false };
        shard.entry(ino).or_insert(new).opens += count;
    }

    /// One open less. Whether the home must still hear that the content changed.
    pub fn remove(&self, ino: Ino) -> bool {
        let mut shard = self.shard(ino).lock();
        let Some(entry) = shard.get_mut(&ino) else { return false };
        entry.opens = entry.opens.saturating_sub(1);
        let dirty = std::mem::take(&mut entry.dirty);
        if entry.opens == 0 {
            shard.remove(&ino);
        }
        dirty
    }

    /// What is known of an open file.
    pub fn get(&self, ino: Ino) -> Option<Known> {
        self.shard(ino).lock().get(&ino).and_then(|entry| entry.known)
    }

    /// Whether a file is open.
    pub fn is_open(&self, ino: Ino) -> bool {
        self.shard(ino).lock().contains_key(&ino)
    }

    /// News from the home.
    pub fn update(&self, attr: &Attr) {
        if let Some(entry) = self.shard(attr.ino).lock().get_mut(&attr.ino) {
            entry.known = Some(Known::from(attr));
        }
    }

    /// Content changed within the size. Whether the home should hear of it now.
    pub fn written(&self, ino: Ino) -> bool {
        let mut shard = self.shard(ino).lock();
        let Some(entry) = shard.get_mut(&ino) else { return true };
        let due = entry.touched.is_none_or(|at| at.elapsed() >= TOUCH_EVERY);
        if due {
            entry.touched = Some(Instant::now());
        }
        entry.dirty = !due;
        due
    }

    /// Whether the home has yet to hear that the content changed.
    pub fn is_dirty(&self, ino: Ino) -> bool {
        self.shard(ino).lock().get(&ino).is_some_and(|entry| entry.dirty)
    }

    /// Whether the home must hear that the content changed; it is taken as told from now on.
    pub fn take_dirty(&self, ino: Ino) -> bool {
        self.shard(ino).lock().get_mut(&ino).is_some_and(|entry| std::mem::take(&mut entry.dirty))
    }

    /// Inodes and numbers of opens of those that `wanted` names.
    pub fn opens(&self, wanted: impl Fn(Ino) -> bool) -> Vec<(Ino, u32)> {
        let of = |shard: &Mutex<HashMap<Ino, Entry>>| -> Vec<(Ino, u32)> {
            let shard = shard.lock();
            shard.iter().filter(|(ino, _)| wanted(**ino)).map(|(ino, entry)| (*ino, entry.opens)).collect()
        };
        self.shards.iter().flat_map(of).collect()
    }

    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, Entry>> {
        &self.shards[ino.0 as usize % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::{SeatIndex, Timestamp};

    fn attr(ino: u64, size: u64) -> Attr {
        let (time, layout) =
            (Timestamp::default(), Layout { stripe: 4096, width: 1, base: SeatIndex(0), seats: 1 });
        Attr {
            ino: Ino(ino),
            mode: 0o100_644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            atime: time,
            mtime: time,
            ctime: time,
            epoch: 3,
            layout,
        }
    }

    #[test]
    fn a_file_is_known_while_it_is_open() {
        let files = KnownFiles::default();
        files.update(&attr(7, 1));
        assert!(files.get(Ino(7)).is_none());
        files.add(&attr(7, 10), 2);
        files.update(&attr(7, 20));
        assert_eq!(files.get(Ino(7)).map(|known| (known.size, known.epoch)), Some((20, 3)));
        assert_eq!(files.opens(|_| true), [(Ino(7), 2)]);
        assert!(!files.remove(Ino(7)));
        assert!(!files.remove(Ino(7)));
        assert!(files.get(Ino(7)).is_none());
    }

    /// S32, S33.
    #[test]
    fn the_home_hears_of_the_first_write_and_of_the_last() {
        let files = KnownFiles::default();
        files.add(&attr(7, 10), 1);
        assert!(files.written(Ino(7)), "the first is told at once");
        assert!(!files.written(Ino(7)), "those after it are not");
        assert!(files.remove(Ino(7)), "the close tells");
        assert!(files.written(Ino(9)), "a file that is not open has nobody to tell later");
    }

    /// S34.
    #[test]
    fn a_time_that_was_set_is_not_overtaken() {
        let files = KnownFiles::default();
        files.add(&attr(7, 10), 1);
        files.written(Ino(7));
        files.written(Ino(7));
        assert!(files.take_dirty(Ino(7)));
        assert!(!files.remove(Ino(7)));
    }
}
