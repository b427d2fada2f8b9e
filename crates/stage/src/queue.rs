//! Task queue for several threads. A task may add tasks; the work ends when none is queued or running.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The queue.
pub(crate) struct Queue<T> {
    state: Mutex<QueueState<T>>,
    changed: Condvar,
}

struct QueueState<T> {
    tasks: VecDeque<T>,
    running: usize,
}

impl<T> Queue<T> {
    pub(crate) fn new(tasks: impl IntoIterator<Item = T>) -> Queue<T> {
        let state = QueueState { tasks: tasks.into_iter().collect(), running: 0 };
        Queue { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Puts tasks at the front, so that work in progress is finished first.
    pub(crate) fn push_first(&self, tasks: impl DoubleEndedIterator<Item = T>) {
        let mut state = self.lock();
        tasks.rev().for_each(|task| state.tasks.push_front(task));
        drop(state);
        self.changed.notify_all();
    }

    /// Runs tasks until there are none; called by each thread.
    pub(crate) fn work(&self, mut run: impl FnMut(T)) {
        while let Some(task) = self.take() {
            let _running = RunningTask(self);
            run(task);
        }
    }

    fn take(&self) -> Option<T> {
        let mut state = self.lock();
        loop {
            if let Some(task) = state.tasks.pop_front() {
                state.running += 1;
                return Some(task);
            }
            // A running task may still add tasks.
            if state.running == 0 {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running task. A drop guard, so that the other threads end even if the task panics.
struct RunningTask<'a, T>(&'a Queue<T>);

impl<T> Drop for RunningTask<'_, T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        assert!(state.running > 0, "a task ended that was not running");
        state.running -= 1;
        drop(state);
        // Wakes all: the end of the last task ends every worker.
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn tasks_that_tasks_add_are_done_too() {
        let queue = Queue::new([5u32, 3]);
        let done = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    queue.work(|depth| {
                        done.fetch_add(1, Ordering::Relaxed);
                        queue.push_first((0..depth.min(1)).map(|_| depth - 1));
                    });
                });
            }
        });
        assert_eq!(done.load(Ordering::Relaxed), 6 + 4);
    }

    #[test]
    fn added_tasks_come_first_and_in_order() {
        let queue = Queue::new([1, 2]);
        let mut seen = Vec::new();
        queue.work(|task| {
            seen.push(task);
            if task == 1 {
                queue.push_first([10, 11].into_iter());
            }
        });
        assert_eq!(seen, [1, 10, 11, 2]);
    }

    #[test]
    fn a_panic_does_not_keep_the_others_waiting() {
        let queue = Queue::new([0]);
        let panicked = std::thread::scope(|scope| {
            scope.spawn(|| queue.work(|_| panic!("a task fails"))).join().is_err()
        });
        assert!(panicked);
        queue.work(|task| panic!("task {task} runs again"));
        assert_eq!(queue.lock().running, 0);
    }
}
