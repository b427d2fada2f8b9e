//! Results of lookups whose inode is gone by the next request.
//!
//! The kernel looks a name up, and then requests the attributes of the inode by number. In between another client may
//! have replaced, and so removed, it. The kernel then looks the name up again, but only once, and that may be overtaken
//! too. On a local file system the call goes on with the inode that it found; so it does here the second time, with the
//! attributes that came with the lookup. Not the first time: a program with a descriptor (O_PATH) causes the same
//! requests, with anything in between, also changes of the attributes, and does not look the name up again.

use std::time::{Duration, Instant};

use bivouac_ranks::Mutex;
use bivouac_types::{Attr, Ino};

/// Number of threads that are tracked.
const THREADS: usize = 1024;
/// Time for which a result, or its absence, is kept. The kernel sends its next request at once.
const GOOD_FOR: Duration = Duration::from_secs(1);

/// A directory, and the hash of a name there.
pub type EntryKey = (Ino, u64);

/// By thread, what its last look-up has found.
pub struct LookedUp {
    threads: Vec<Mutex<Option<LookupResult>>>,
}

struct LookupResult {
    thread: u32,
    at: Instant,
    place: EntryKey,
    attr: Attr,
    /// The entry under which a lookup of the thread found an inode that was gone then, and the time of that.
    overtaken: Option<(EntryKey, Instant)>,
    /// True if that was at the same place, so that it has looked again.
    again: bool,
}

impl Default for LookedUp {
    fn default() -> LookedUp {
        LookedUp { threads: (0..THREADS).map(|_| Mutex::default()).collect() }
    }
}

impl LookedUp {
    /// Notes that a thread, as the kernel numbers it, is about to be told that a name leads to an inode with these
    /// attributes. 0 is nobody that could be told from others.
    pub fn found(&self, thread: u32, place: EntryKey, attr: &Attr, at: Instant) {
        if thread == 0 {
            return;
        }
        let mut last = self.of(thread).lock();
        // Threads share places: what another one found there tells nothing of this one.
        let before = last.as_ref().filter(|last| last.thread == thread).and_then(|last| last.overtaken);
        let overtaken = before.filter(|(_, then)| at < *then + GOOD_FOR);
        let again = overtaken.is_some_and(|(of, _)| of == place);
        *last = Some(LookupResult { thread, at, place, attr: *attr, overtaken, again });
    }

    /// Notes that the inode that a thread asks for is gone. Returns what to tell the thread instead: if it has just
    /// found the inode where it had found another one before that was gone, too, the attributes of then, with no links.
    pub fn gone(&self, thread: u32, ino: Ino, now: Instant) -> Option<Attr> {
        let mut last = self.of(thread).lock();
        let is_it = |last: &&mut LookupResult| {
            last.thread == thread && last.attr.ino == ino && now < last.at + GOOD_FOR
        };
        let last = last.as_mut().filter(is_it)?;
        // Noted whatever is answered: the thread looks the name up again, and only the second time counts.
        last.overtaken = Some((last.place, now));
        // No links: to the program it is a file that was removed after it had opened it.
        last.again.then_some(Attr { nlink: 0, ..last.attr })
    }

    /// Returns the name at which the last look-up of a thread found this inode, if it did.
    pub fn place(&self, thread: u32, ino: Ino) -> Option<EntryKey> {
        let last = self.of(thread).lock();
        last.as_ref().filter(|last| last.thread == thread && last.attr.ino == ino).map(|last| last.place)
    }

    fn of(&self, thread: u32) -> &Mutex<Option<LookupResult>> {
        &self.threads[thread as usize % THREADS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::{Layout, TargetIndex, Timestamp, mode};

    const NAME: EntryKey = (Ino::ROOT, 5);
    const OTHER: EntryKey = (Ino::ROOT, 6);

    fn attr(ino: u64) -> Attr {
        let layout = Layout { stripe: 4096, width: 1, base: TargetIndex(0), targets: 1 };
        let time = Timestamp { secs: 5, nanos: 0 };
        Attr { epoch: 1, ..Attr::new(Ino(ino), mode::DIR | 0o755, layout, time) }
    }

    /// S42: the second time, and with what the thread has found there itself.
    #[test]
    fn who_is_overtaken_twice_is_told_what_was_found() {
        let (looked_up, now) = (LookedUp::default(), Instant::now());
        let find = |thread, name, ino| looked_up.found(thread, name, &attr(ino), now);
        let gone = |thread, ino| looked_up.gone(thread, Ino(ino), now);
        let then = |ino| Some(Attr { nlink: 0, ..attr(ino) });
        assert_eq!(gone(7, 1), None, "it has found nothing");
        find(7, NAME, 1);
        assert_eq!((gone(7, 1), gone(7, 1)), (None, None), "it has looked only once");
        // The kernel begins at the first name of a path, and looks twice where one leads elsewhere by now.
        find(7, OTHER, 9);
        find(7, NAME, 2);
        find(7, NAME, 2);
        let same_place = 7 + THREADS as u32;
        assert_eq!((gone(7, 1), gone(8, 2), gone(same_place, 2)), (None, None, None));
        assert_eq!((gone(7, 2), gone(7, 2)), (then(2), then(2)));
        find(7, OTHER, 3);
        assert_eq!(gone(7, 3), None, "it is another name");
        find(same_place, OTHER, 4);
        assert_eq!(gone(same_place, 4), None, "another thread was overtaken");
        for ino in [1, 2] {
            find(0, NAME, ino);
            assert_eq!(gone(0, ino), None, "it may be anybody");
        }
    }

    /// S20.
    #[test]
    fn what_was_found_is_told_for_a_moment() {
        let at = Instant::now();
        for late in [0, 1, 2] {
            let looked_up = LookedUp::default();
            let times = [1, 2, 3].map(|turn| at + if turn > late { GOOD_FOR } else { Duration::ZERO });
            looked_up.found(7, NAME, &attr(1), at);
            assert_eq!(looked_up.gone(7, Ino(1), times[0]), None);
            looked_up.found(7, NAME, &attr(2), times[1]);
            assert_eq!(looked_up.gone(7, Ino(2), times[2]), None, "{late}");
        }
    }
}
