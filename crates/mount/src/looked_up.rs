//! What look-ups said, until the programs' next requests.
//!
//! The kernel looks a name up and then asks for the attributes of what it leads to, by number. In between somebody else
//! may have replaced it, and removed with that. The kernel looks the name up again then, but only once, and that may be
//! overtaken, too. On a local file system the call goes on with what it has found: so does this, with the attributes
//! that came with the look-up.

use bivouac_ranks::Mutex;
use bivouac_types::Attr;

/// So many threads are told from each other.
const THREADS: usize = 1024;

/// By thread, what its last request has found if that was a look-up.
pub struct LookedUp {
    places: Vec<Mutex<Option<(u32, Attr)>>>,
}

impl Default for LookedUp {
    fn default() -> LookedUp {
        LookedUp { places: (0..THREADS).map(|_| Mutex::default()).collect() }
    }
}

impl LookedUp {
    /// A thread, as the kernel numbers it, is about to be told that a name leads to an inode with these attributes.
    pub fn found(&self, thread: u32, attr: &Attr) {
        *self.place(thread).lock() = Some((thread, *attr));
    }

    /// A thread has sent another request. What the one before has found, if that was a look-up.
    pub fn take(&self, thread: u32) -> Option<Attr> {
        let found = self.place(thread).lock().take();
        found.filter(|(by, _)| *by == thread).map(|(_, attr)| attr)
    }

    fn place(&self, thread: u32) -> &Mutex<Option<(u32, Attr)>> {
        &self.places[thread as usize % THREADS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::{Ino, Layout, SeatIndex, Timestamp, mode};

    fn attr(ino: u64) -> Attr {
        let time = Timestamp { secs: 5, nanos: 0 };
        let layout = Layout { stripe: 4096, width: 1, base: SeatIndex(0), seats: 1 };
        let (atime, mtime, ctime) = (time, time, time);
        let (mode, nlink, uid, gid, rdev, size) = (mode::DIR | 0o755, 2, 0, 0, 0, 0);
        let (epoch, holes) = (1, 0);
        Attr { ino: Ino(ino), mode, nlink, uid, gid, rdev, size, atime, mtime, ctime, epoch, layout, holes }
    }

    #[test]
    fn a_thread_is_told_what_it_has_found_itself_and_once() {
        let (looked_up, other) = (LookedUp::default(), 7 + THREADS as u32);
        looked_up.found(7, &attr(1));
        looked_up.found(7, &attr(2));
        looked_up.found(8, &attr(3));
        assert_eq!(looked_up.take(7), Some(attr(2)));
        assert_eq!((looked_up.take(7), looked_up.take(9)), (None, None));
        looked_up.found(7, &attr(4));
        assert_eq!(looked_up.take(other), None, "it has the same place");
        assert_eq!((looked_up.take(7), looked_up.take(8)), (None, Some(attr(3))));
    }
}
