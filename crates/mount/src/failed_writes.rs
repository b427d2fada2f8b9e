//! Direct writes that failed, and the cut by which the kernel follows up an asynchronous one.
//!
//! The kernel cuts a file to the size that it knows after an asynchronous write behind that size has failed
//! (`fuse_do_truncate`, for libaio and io_uring). What others wrote behind that size would be lost. So a failed write
//! is answered after the kernel was given the real size, and the cut which the same thread sends next cuts nothing:
//! others may have made the file longer in between. It is a cut to the size that the kernel knows when it sends it: the
//! one that it was given, or a greater one, of which it was told before or after that. So all that is not below the
//! size that it was given counts as the kernel's cut. It looks like an `ftruncate` of the program, which then comes
//! before what those others did; one that makes the file longer still does so.
//!
//! The kernel's cut is taken for the program's where the mount has told it a smaller size in between, of a file that
//! was cut meanwhile.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bivouac_ranks::Mutex;
use bivouac_types::Ino;

/// Maximum number of threads in the table; the oldest are dropped first.
const THREADS_MAX: usize = 1024;
/// The kernel sends the cut at once.
const GOOD_FOR: Duration = Duration::from_secs(10);

/// The last failed direct write of each thread, by the kernel's thread number, until the thread's next request.
#[derive(Debug, Default)]
pub struct FailedWrites {
    threads: Mutex<HashMap<u32, FailedWrite>>,
    /// Number of threads, for a look without the lock.
    count: AtomicUsize,
}

#[derive(Debug)]
struct FailedWrite {
    ino: Ino,
    at: Instant,
    size: Option<u64>,
    /// The failure was sent to the kernel.
    is_answered: bool,
}

impl FailedWrites {
    /// Notes a write that is about to fail, and the size that the kernel was given: nothing if it is not known. A write
    /// of a program may be several requests. Thread 0 is nobody that could be told from others.
    pub fn note(&self, thread: u32, ino: Ino, size: Option<u64>) {
        if thread == 0 {
            return;
        }
        let now = Instant::now();
        let mut threads = self.threads.lock();
        if threads.len() >= THREADS_MAX {
            threads.retain(|_, failed| now < failed.at + GOOD_FOR);
        }
        // Without its note the kernel's cut after a failed write is carried out, so as few as possible go.
        let oldest = threads.iter().min_by_key(|(_, failed)| failed.at).map(|(thread, _)| *thread);
        if let Some(oldest) =
            oldest.filter(|_| threads.len() >= THREADS_MAX && !threads.contains_key(&thread))
        {
            threads.remove(&oldest);
        }
        // Parts of one write fail one by one; the kernel cuts once, at the size it knows by then.
        let earlier = threads.get(&thread).filter(|failed| failed.ino == ino).and_then(|failed| failed.size);
        threads.insert(thread, FailedWrite { ino, at: now, size: size.max(earlier), is_answered: false });
        assert!(threads.len() <= THREADS_MAX, "{} failed writes are noted", threads.len());
        self.count.store(threads.len(), Ordering::Release);
    }

    /// Notes that the kernel is about to be told that a write of the thread failed.
    pub fn answer(&self, thread: u32) {
        if let Some(failed) = self.threads.lock().get_mut(&thread) {
            failed.is_answered = true;
        }
    }

    /// Notes that the thread writes. If it knows of the failure it is another write, or a later part of the one that
    /// failed: what follows may be the program's own cut.
    pub fn begin_write(&self, thread: u32) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut threads = self.threads.lock();
        if threads.get(&thread).is_some_and(|failed| failed.is_answered) {
            threads.remove(&thread);
        }
        self.count.store(threads.len(), Ordering::Release);
    }

    /// Returns the thread's next request, which is no write: nothing is remembered of it any more. If it was a write to
    /// this inode that failed, the size that the kernel was given, as far as it is known.
    #[allow(clippy::option_option, reason = "a failed write, of which the size may be unknown")]
    pub fn take(&self, thread: u32, ino: Ino) -> Option<Option<u64>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut threads = self.threads.lock();
        let failed = threads.remove(&thread);
        self.count.store(threads.len(), Ordering::Release);
        let failed = failed.filter(|failed| failed.ino == ino && failed.at.elapsed() < GOOD_FOR)?;
        Some(failed.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(5);

    #[test]
    fn a_failed_write_is_remembered_until_the_next_request_of_its_thread() {
        let failed = FailedWrites::default();
        assert_eq!(failed.take(7, INO), None);
        failed.note(7, INO, Some(10));
        failed.note(8, INO, None);
        failed.note(0, INO, Some(10));
        assert_eq!((failed.take(0, INO), failed.take(9, INO)), (None, None));
        assert_eq!((failed.take(7, INO), failed.take(7, INO)), (Some(Some(10)), None));
        assert_eq!(failed.take(8, INO), Some(None));
        failed.note(7, INO, Some(10));
        assert_eq!((failed.take(7, Ino(6)), failed.take(7, INO)), (None, None), "of another inode");
    }

    #[test]
    fn the_kernel_knows_the_largest_size_that_it_was_given_for_parts_of_a_write() {
        let failed = FailedWrites::default();
        [None, Some(30), Some(20), None].iter().for_each(|size| failed.note(7, INO, *size));
        assert_eq!(failed.take(7, INO), Some(Some(30)));
        failed.note(7, Ino(6), Some(30));
        failed.note(7, INO, Some(10));
        assert_eq!(failed.take(7, INO), Some(Some(10)));
    }

    #[test]
    fn who_writes_on_after_a_failure_may_cut_to_the_size_of_then() {
        let failed = FailedWrites::default();
        failed.begin_write(7);
        failed.note(7, INO, Some(10));
        failed.begin_write(7);
        failed.answer(7);
        assert_eq!(failed.take(7, INO), Some(Some(10)), "another part of it was under way");
        failed.note(7, INO, Some(10));
        failed.answer(7);
        failed.begin_write(8);
        failed.begin_write(7);
        assert_eq!(failed.take(7, INO), None);
    }

    #[test]
    fn threads_that_send_nothing_more_take_no_memory_for_ever() {
        let failed = FailedWrites::default();
        (1..=3 * THREADS_MAX as u32).for_each(|thread| failed.note(thread, INO, None));
        assert!(failed.threads.lock().len() <= THREADS_MAX);
    }
}
