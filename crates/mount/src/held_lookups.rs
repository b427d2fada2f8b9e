//! Files that stay open between a LOOKUP and the request that it is for.
//!
//! The kernel looks a name up and then opens the inode, by number. Somebody else may have removed it in between: the
//! kernel looks the name up again then, once, and a program whose `open` is overtaken twice fails with ESTALE. So the
//! second LOOKUP of such a thread opens the file that it finds for the mount, which keeps it alive until the thread has
//! sent the request that follows.
//!
//! A thread that is killed sends none. What is held for it is closed by the next request of anybody, or at the end of
//! the mount: as long as nobody asks a mount for anything, a removed file may keep its space.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bivouac_ranks::Mutex;
use bivouac_types::Ino;

use crate::abi::Opcode;
use crate::looked_up::EntryKey;

/// Maximum number of threads in the table.
const THREADS_MAX: usize = 1024;
/// Lifetime of an entry. The kernel sends the next request at once; a program may be killed before.
const GOOD_FOR: Duration = Duration::from_secs(1);

/// Threads that got ESTALE, by the kernel's thread number, and the files that are held open for them.
#[derive(Debug, Default)]
pub struct HeldLookups {
    threads: Mutex<HashMap<u32, Lookup>>,
    /// Number of threads, for a look without the lock.
    count: AtomicUsize,
}

#[derive(Debug)]
struct Lookup {
    at: Instant,
    /// The name at which it had found the file that is gone; `None` for any name.
    place: Option<EntryKey>,
    held: Option<Ino>,
}

impl HeldLookups {
    /// Notes that a thread is about to be told ESTALE, for what it had found at a place, if that is known. Thread 0 is
    /// nobody that could be told from others.
    pub fn note_stale(&self, thread: u32, place: Option<EntryKey>, now: Instant) {
        let mut threads = self.threads.lock();
        if thread != 0 && (threads.len() < THREADS_MAX || threads.contains_key(&thread)) {
            let lookup = threads.entry(thread).or_insert(Lookup { at: now, place, held: None });
            (lookup.at, lookup.place) = (now, place);
        }
        assert!(threads.len() <= THREADS_MAX, "lookups of {} threads are held", threads.len());
        self.count.store(threads.len(), Ordering::Release);
    }

    /// Returns whether a thread that got ESTALE looks up the same name again.
    pub fn looks_again(&self, thread: u32, place: EntryKey, now: Instant) -> bool {
        let is_it = |lookup: &Lookup| now < lookup.at + GOOD_FOR && lookup.place.is_none_or(|of| of == place);
        self.count.load(Ordering::Acquire) > 0 && self.threads.lock().get(&thread).is_some_and(is_it)
    }

    /// Notes that a file was opened for a thread. What is to be closed instead: it need not be held any more.
    #[must_use]
    pub fn hold(&self, thread: u32, ino: Ino, now: Instant) -> Vec<Ino> {
        let mut threads = self.threads.lock();
        match threads.get_mut(&thread) {
            // Only for a thread that is noted: nobody would close what is held for others.
            Some(lookup) => lookup.held.replace(ino).into_iter().collect(),
            None => vec![ino],
        }
        .into_iter()
        .chain(self.take_old(&mut threads, now))
        .collect()
    }

    /// Notes that a request of the thread was served. Returns what is to be closed, if it is the one that files are
    /// held for. What is held for threads that send nothing more is closed by others' requests.
    #[must_use]
    pub fn served(&self, thread: u32, op: Opcode, now: Instant) -> Vec<Ino> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let mut threads = self.threads.lock();
        // Before it opens what it has found the kernel looks whether the program may.
        let is_in_between =
            matches!(op, Opcode::Lookup | Opcode::GetAttr | Opcode::GetXattr | Opcode::Access);
        let own = if is_in_between { None } else { threads.remove(&thread) };
        let mut over = self.take_old(&mut threads, now);
        over.extend(own.and_then(|lookup| lookup.held));
        self.count.store(threads.len(), Ordering::Release);
        over
    }

    /// Takes everything that is held, at the end of the mount.
    #[must_use]
    pub fn take_all(&self) -> Vec<Ino> {
        let threads = std::mem::take(&mut *self.threads.lock());
        threads.into_values().filter_map(|lookup| lookup.held).collect()
    }

    fn take_old(&self, threads: &mut HashMap<u32, Lookup>, now: Instant) -> Vec<Ino> {
        let old = threads.extract_if(|_, lookup| now >= lookup.at + GOOD_FOR);
        old.filter_map(|(_, lookup)| lookup.held).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S42.
    #[test]
    fn what_was_found_is_held_until_the_request_that_it_is_for() {
        let (lookups, now) = (HeldLookups::default(), Instant::now());
        let looks_again = |thread, at| lookups.looks_again(thread, (Ino::ROOT, 1), at);
        assert!(!looks_again(7, now));
        lookups.note_stale(7, None, now);
        assert!(looks_again(7, now) && !looks_again(8, now));
        assert!(lookups.hold(7, Ino(1), now).is_empty());
        assert_eq!(lookups.hold(7, Ino(2), now), [Ino(1)], "it looks twice");
        for op in [Opcode::Lookup, Opcode::GetAttr, Opcode::Access] {
            assert!(lookups.served(7, op, now).is_empty());
        }
        assert!(lookups.served(8, Opcode::Open, now).is_empty(), "another thread");
        assert_eq!(lookups.served(7, Opcode::Open, now), [Ino(2)]);
        assert!(!looks_again(7, now) && lookups.served(7, Opcode::Open, now).is_empty());
    }

    #[test]
    fn only_what_is_looked_up_where_something_was_gone_is_held() {
        let (lookups, now) = (HeldLookups::default(), Instant::now());
        let (here, there) = ((Ino::ROOT, 1), (Ino::ROOT, 2));
        let looks_again = |place| lookups.looks_again(7, place, now);
        lookups.note_stale(7, Some(here), now);
        assert_eq!((looks_again(here), looks_again(there)), (true, false));
        lookups.note_stale(7, None, now);
        assert!(looks_again(here) && looks_again(there), "anywhere");
    }

    #[test]
    fn what_is_held_for_who_sends_nothing_more_is_closed() {
        let (lookups, now) = (HeldLookups::default(), Instant::now());
        for thread in [0, 7] {
            lookups.note_stale(thread, None, now);
        }
        assert_eq!(lookups.hold(0, Ino(1), now), [Ino(1)], "nobody in particular");
        assert!(lookups.hold(7, Ino(2), now).is_empty());
        assert!(!lookups.looks_again(7, (Ino::ROOT, 1), now + GOOD_FOR));
        assert_eq!(lookups.served(8, Opcode::Lookup, now + GOOD_FOR), [Ino(2)]);
        lookups.note_stale(7, None, now);
        assert!(lookups.hold(7, Ino(3), now).is_empty());
        assert_eq!((lookups.take_all(), lookups.take_all()), (vec![Ino(3)], vec![]));
    }
}
