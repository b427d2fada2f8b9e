//! Threads for work that may wait for the kernel while the kernel waits for the mount.
//!
//! A notification about pages or names takes locks of the kernel that programs hold while they wait for an answer of
//! the mount. A thread that serves requests must therefore not send one: if all of them did, nobody would answer. What
//! serves requests never waits for these threads without a limit in time.
//!
//! No signal ends such a wait, not even one that kills the daemon, whose successor is to answer. So these threads have
//! descriptors of their own, and the device alone: all others close when the daemon is killed, and its supervisor
//! starts the successor once it finds nothing else left of it.
#![allow(unsafe_code, reason = "descriptors of a thread have no safe interface")]

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bivouac_ranks::{Condvar, Mutex};
use bivouac_types::limits::NOTIFY_THREAD;

/// Most threads. Each waits for one request at most that the mount has not answered yet.
const THREADS_MAX: usize = 16;
/// After so long without work a thread ends.
const IDLE: Duration = Duration::from_secs(5);
const STACK: usize = 128 << 10;

/// Work for a thread of its own.
pub type Work = Box<dyn FnOnce() + Send>;

/// The threads, as many as there is work for.
#[derive(Default)]
pub struct Background {
    /// The one descriptor that they have, if they have descriptors of their own.
    device: Option<RawFd>,
    state: Mutex<WorkQueue>,
    queued: Condvar,
}

#[derive(Default)]
struct WorkQueue {
    queue: VecDeque<Work>,
    threads: usize,
    idle: usize,
    is_closing: bool,
    handles: Vec<JoinHandle<()>>,
}

impl Background {
    /// Creates threads that use no descriptor but the device, which has to stay open until they are closed.
    pub fn with_device(device: BorrowedFd<'_>) -> Background {
        Background { device: Some(device.as_raw_fd()), ..Background::default() }
    }

    /// Passes `work` to another thread, which does it soon. Returns the work if there is no thread: the mount has
    /// ended, or the system refuses one.
    ///
    /// # Errors
    /// The work itself.
    pub fn submit(self: &Arc<Self>, work: Work) -> Result<(), Work> {
        let mut state = self.state.lock();
        if state.is_closing {
            return Err(work);
        }
        // There is queued work for every idle thread already.
        if state.idle <= state.queue.len() && state.threads < THREADS_MAX {
            match self.spawn() {
                Ok(handle) => {
                    state.threads += 1;
                    state.handles.retain(|handle| !handle.is_finished());
                    state.handles.push(handle);
                }
                Err(error) if state.threads == 0 => {
                    log::warn!(why:% = error; "no thread for notifications of the kernel; they delay requests");
                    return Err(work);
                }
                // The threads there are do the work later.
                Err(_) => {}
            }
        }
        assert!(state.threads > 0, "work is queued for threads of which there is none");
        state.queue.push_back(work);
        drop(state);
        self.queued.notify_one();
        Ok(())
    }

    fn spawn(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let background = Arc::clone(self);
        let run = move || {
            if let Some(device) = background.device
                && let Err(error) = keep_only(device)
            {
                log::warn!(why:% = error; "a daemon that is killed may not be followed while programs use mappings");
            }
            background.run();
        };
        thread::Builder::new().name(NOTIFY_THREAD.into()).stack_size(STACK).spawn(run)
    }

    fn run(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(work) = state.queue.pop_front() {
                drop(state);
                // One that panicked has said so; the thread goes on with what else there is.
                let _ = catch_unwind(AssertUnwindSafe(work));
                state = self.state.lock();
            } else if state.is_closing {
                break;
            } else {
                state.idle += 1;
                assert!(state.idle <= state.threads, "{} of {} threads are idle", state.idle, state.threads);
                let in_vain = self.queued.wait_for(&mut state, IDLE).timed_out();
                state.idle -= 1;
                // Work may have come just when the wait ended.
                if in_vain && state.queue.is_empty() {
                    break;
                }
            }
        }
        assert!(state.threads > 0, "a thread for notifications ends that was not counted");
        state.threads -= 1;
    }

    /// Ends the threads once they have done what they are doing, without waiting for that. What is queued is dropped.
    pub fn abandon(&self) {
        let mut state = self.state.lock();
        state.is_closing = true;
        // Not joined: one may wait for a request that only the next daemon answers.
        state.handles.clear();
        let dropped = std::mem::take(&mut state.queue);
        drop(state);
        self.queued.notify_all();
        // Not under the lock: what it holds may do something when it is dropped.
        drop(dropped);
    }

    /// Ends the threads once they have done what is queued.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.is_closing = true;
        let handles = std::mem::take(&mut state.handles);
        drop(state);
        self.queued.notify_all();
        // A thread that panicked has said so.
        handles.into_iter().for_each(|handle| drop(handle.join()));
    }
}

/// Gives the calling thread descriptors of its own: this one, and what logs are written to.
fn keep_only(device: RawFd) -> std::io::Result<()> {
    let close = |first: libc::c_int, last: libc::c_int| {
        // SAFETY: only called once these are this thread's own, which uses none of them.
        let closed = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        if closed == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    let logs_end = libc::STDERR_FILENO + 1;
    // SAFETY: changes nothing but which table of descriptors the thread uses.
    if unsafe { libc::unshare(libc::CLONE_FILES) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    close(libc::STDIN_FILENO, libc::STDIN_FILENO)?;
    if device > logs_end {
        close(logs_end, device - 1)?;
    }
    close(device + 1, libc::c_int::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn threads_have_no_descriptor_but_the_device() {
        let (device, other) =
            (std::fs::File::open("/dev/null").unwrap(), std::fs::File::open("/dev/null").unwrap());
        let (own, others) = (device.as_raw_fd(), other.as_raw_fd());
        let background = Arc::new(Background::with_device(std::os::fd::AsFd::as_fd(&device)));
        let (sender, receiver) = mpsc::channel();
        let look = move || {
            let open = |number: RawFd| std::fs::metadata(format!("/proc/thread-self/fd/{number}")).is_ok();
            sender.send([own, others, 0].map(open)).unwrap();
        };
        assert!(background.submit(Box::new(look)).is_ok());
        assert_eq!(receiver.recv().unwrap(), [true, false, false]);
        background.close();
        assert!(other.metadata().is_ok(), "those of the other threads stay");
    }

    #[test]
    fn work_that_waits_does_not_hold_up_other_work() {
        let background = Arc::<Background>::default();
        let (sender, receiver) = mpsc::channel();
        let (release, gate) = mpsc::channel::<()>();
        let first = Box::new(move || assert!(gate.recv().is_err(), "nothing is sent"));
        assert!(background.submit(first).is_ok());
        for number in 0..10 {
            let sender = sender.clone();
            assert!(background.submit(Box::new(move || sender.send(number).unwrap())).is_ok());
        }
        let mut done: Vec<i32> = receiver.iter().take(10).collect();
        done.sort_unstable();
        assert_eq!(done, (0..10).collect::<Vec<_>>());
        drop(release);
        background.close();
        assert!(background.submit(Box::new(|| ())).is_err(), "it has ended");
        assert_eq!(background.state.lock().threads, 0);
    }

    /// Its thread was gone and counted as there: once all of them were, nothing that was queued was done.
    #[test]
    fn work_that_panics_takes_no_thread_away() {
        let background = Arc::<Background>::default();
        for _ in 0..=THREADS_MAX {
            assert!(background.submit(Box::new(|| panic!("a test's work"))).is_ok());
        }
        let (sender, receiver) = mpsc::channel();
        assert!(background.submit(Box::new(move || sender.send(()).unwrap())).is_ok());
        receiver.recv_timeout(Duration::from_secs(20)).unwrap();
        background.close();
        assert_eq!(background.state.lock().threads, 0);
    }

    /// A notification waits in the kernel for a request that nobody serves any more.
    #[test]
    fn work_that_never_ends_does_not_keep_a_mount_whose_device_has_failed() {
        let background = Arc::<Background>::default();
        let (began, begun) = mpsc::channel();
        let (release, gate) = mpsc::channel::<()>();
        let stuck = move || {
            began.send(()).unwrap();
            assert!(gate.recv().is_err(), "nothing is sent");
        };
        assert!(background.submit(Box::new(stuck)).is_ok());
        begun.recv().unwrap();
        background.abandon();
        assert!(background.submit(Box::new(|| ())).is_err(), "it has ended");
        assert_eq!(background.state.lock().threads, 1, "it was not waited for");
        drop(release);
    }
}
