//! Threads that carry out requests: as many as are needed, up to a limit, and none while nothing is to be done for a
//! while.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Threads, at most.
const THREADS_MAX: usize = 64;
/// Longest wait of a thread for a job before it ends.
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// A pool of threads.
#[derive(Default)]
pub struct Workers {
    queue: Mutex<Queue>,
    added: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

impl Workers {
    /// Queues a job. The caller bounds the number of jobs that wait.
    pub fn run(self: &Arc<Self>, job: Job) {
        let mut queue = self.queue.lock();
        queue.jobs.push_back(job);
        if queue.idle >= queue.jobs.len() || queue.threads >= THREADS_MAX {
            drop(queue);
            self.added.notify_one();
            return;
        }
        queue.threads += 1;
        drop(queue);
        let this = Arc::clone(self);
        let started = std::thread::Builder::new().name("gateway".to_owned()).spawn(move || this.work());
        if started.is_err() {
            let mut queue = self.queue.lock();
            queue.threads -= 1;
            // Without any thread this one does it.
            let job = if queue.threads == 0 { queue.jobs.pop_front() } else { None };
            drop(queue);
            job.into_iter().for_each(|job| job());
        }
    }

    fn work(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                // Whoever gave it notices by its end that it was not finished; the thread goes on.
                let _panicked = catch_unwind(AssertUnwindSafe(job));
                queue = self.queue.lock();
                continue;
            }
            queue.idle += 1;
            let is_over = self.added.wait_for(&mut queue, IDLE).timed_out();
            queue.idle -= 1;
            if is_over && queue.jobs.is_empty() {
                assert!(queue.threads > 0, "a thread ends that was counted");
                queue.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn each_job_is_done_also_while_others_wait() {
        let workers = Arc::<Workers>::default();
        let (sender, receiver) = channel();
        let held = Arc::new(Mutex::new(()));
        let guard = held.lock();
        for number in 0..200 {
            let (sender, held) = (sender.clone(), Arc::clone(&held));
            workers.run(Box::new(move || {
                // Some wait for what the others do not need.
                if number < 10 {
                    drop(held.lock());
                }
                sender.send(number).unwrap();
            }));
        }
        let first: Vec<i32> = receiver.iter().take(190).collect();
        assert!(first.iter().all(|number| *number >= 10));
        drop(guard);
        assert_eq!(receiver.iter().take(10).count(), 10);
        assert!(workers.queue.lock().threads <= THREADS_MAX);
    }
}
