//! A thread that exists while there is something to do, and ends after a while without: idle processes have none, and
//! are not woken.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Time without a call after which the thread ends.
const IDLE: Duration = Duration::from_secs(5);

/// Calls such a thread, from any thread, and lets it wait for calls.
#[derive(Debug, Default)]
pub struct OnDemandWorker {
    state: Mutex<WorkerState>,
    /// Set by a call, until the thread rests. Changes under the state's lock.
    called: AtomicBool,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct WorkerState {
    /// Set while the thread exists.
    runs: bool,
    ends: bool,
}

impl OnDemandWorker {
    /// Calls the thread to work. `spawn` starts it if it does not exist, and returns true on success. Returns true if
    /// there is a thread.
    pub fn call(&self, spawn: impl FnOnce() -> bool) -> bool {
        // Pairs with the fence in `rest`: either this sees that the thread rests, or the thread sees what was queued
        // before this.
        fence(Ordering::SeqCst);
        // Without the lock: mostly the thread has been called already, by whoever came before.
        if self.called.load(Ordering::Relaxed) {
            return true;
        }
        let mut state = self.state.lock();
        if !self.called.load(Ordering::Relaxed) {
            if state.runs {
                self.bell.notify_one();
            } else {
                state.runs = spawn();
            }
            self.called.store(state.runs, Ordering::Relaxed);
        }
        state.runs
    }

    /// Waits for a call, unless the last one still counts, and then for `time`. Returns false if the thread has to end.
    pub fn next(&self, time: Duration) -> bool {
        self.next_after(|| time)
    }

    /// Like [`OnDemandWorker::next`], with a time that is evaluated under the lock, when no call can shorten the wait
    /// any more.
    pub fn next_after(&self, time: impl FnOnce() -> Duration) -> bool {
        let mut state = self.state.lock();
        let is_called = || self.called.load(Ordering::Relaxed);
        // A time-out that coincides with a call does not end the thread: the caller has counted on it.
        while !is_called() && !state.ends {
            if self.bell.wait_for(&mut state, IDLE).timed_out() && !is_called() {
                break;
            }
        }
        if is_called() && !state.ends {
            self.bell.wait_for(&mut state, time());
        }
        // Under the same lock as `call`: whoever calls behind this finds no thread, and starts one.
        state.runs = is_called() && !state.ends;
        state.runs
    }

    /// Lets the thread rest until the next call, unless `is_done` returns false: something may have been queued before
    /// a call that found the thread working.
    pub fn rest(&self, is_done: impl FnOnce() -> bool) {
        let _state = self.state.lock();
        self.called.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !is_done() {
            self.called.store(true, Ordering::Relaxed);
        }
    }

    /// Wakes the thread, if it waits for its time.
    pub fn hurry(&self) {
        let _state = self.state.lock();
        self.bell.notify_one();
    }

    /// Ends the thread for good.
    pub fn dismiss(&self) {
        self.state.lock().ends = true;
        self.bell.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn it_comes_when_called_and_goes_when_dismissed() {
        let worker = Arc::<OnDemandWorker>::default();
        let (sender, rounds) = std::sync::mpsc::channel();
        let mut threads = Vec::new();
        let mut spawn = || {
            let (theirs, sender) = (Arc::clone(&worker), sender.clone());
            threads.push(std::thread::spawn(move || {
                while theirs.next(Duration::from_millis(1)) {
                    theirs.rest(|| true);
                    sender.send(()).unwrap();
                }
            }));
            true
        };
        let begun = std::time::Instant::now();
        for _ in 0..2 {
            assert!(worker.call(&mut spawn));
            rounds.recv().unwrap();
        }
        // On a busy machine the first one may have gone by the second call, for want of any.
        assert!(threads.len() == 1 || begun.elapsed() >= IDLE, "it is there");
        worker.dismiss();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn what_comes_just_before_a_rest_is_not_left() {
        let worker = OnDemandWorker::default();
        assert!(worker.call(|| true) && worker.next(Duration::ZERO));
        // A call that finds the thread there, and what it is for.
        assert!(worker.call(|| panic!("it is there")));
        worker.rest(|| false);
        assert!(worker.next(Duration::ZERO), "it goes on at once");
    }

    #[test]
    fn without_a_thread_nobody_comes() {
        let worker = OnDemandWorker::default();
        assert!(!worker.call(|| false));
        assert!(worker.call(|| true), "it is tried again");
        assert!(worker.call(|| panic!("it was called already")));
    }
}
