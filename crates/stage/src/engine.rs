//! Copies the files of a plan with several threads: small files each by one, the parts of large files by all.

use std::sync::{Arc, Mutex, PoisonError};

use blake3::Hash;

use crate::blocks::BUFFER;
use crate::job::Job;
use crate::queue::Queue;
use crate::scan::Plan;
use crate::target::Target;
use crate::{Cause, CopyOptions, Failure, Progress, Skipped};

/// What the threads share.
pub(crate) struct Engine<'a> {
    pub(crate) opts: &'a CopyOptions,
    pub(crate) progress: &'a dyn Progress,
    pub(crate) plan: &'a Plan,
    pub(crate) target: &'a Target,
}

/// What the threads have done.
#[derive(Default)]
pub(crate) struct Copied {
    /// Number of the entry, size and digest of each file that is in place.
    pub(crate) files: Vec<(usize, u64, Hash)>,
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) failures: Vec<Failure>,
}

enum Task {
    Open(usize),
    Copy(Arc<Job>, u64),
    Verify(Arc<Job>, u64),
}

impl Engine<'_> {
    /// Copies the files that are the entries of these numbers.
    pub(crate) fn copy_files(&self, numbers: impl IntoIterator<Item = usize>) -> Copied {
        let tasks: Vec<_> = numbers.into_iter().map(Task::Open).collect();
        let copied = Mutex::new(Copied::default());
        if tasks.is_empty() {
            return Copied::default();
        }
        let queue = Queue::new(tasks);
        let worker = Worker { engine: self, queue: &queue, copied: &copied };
        std::thread::scope(|scope| {
            for _ in 0..self.opts.threads() {
                scope.spawn(|| worker.work());
            }
        });
        copied.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Worker<'a> {
    engine: &'a Engine<'a>,
    queue: &'a Queue<Task>,
    copied: &'a Mutex<Copied>,
}

impl Worker<'_> {
    fn work(&self) {
        let mut buffer = vec![0; BUFFER];
        self.queue.work(|task| {
            if self.engine.opts.cancelled() {
                self.queue.clear();
                return;
            }
            match task {
                Task::Open(number) => self.open(number),
                Task::Copy(job, part) => self.copy(job, part, &mut buffer),
                Task::Verify(job, part) => self.verify(job, part, &mut buffer),
            }
        });
    }

    fn open(&self, number: usize) {
        let Some(entry) = self.engine.plan.entries.get(number) else { return };
        let source = self.engine.plan.source(entry);
        match Job::open(number, source, self.engine.target, &entry.path) {
            Ok(job) => self.push(Arc::new(job), Task::Copy),
            Err(failure) => self.note(|copied| copied.failures.push(failure)),
        }
    }

    fn copy(&self, job: Arc<Job>, part: u64, buffer: &mut [u8]) {
        let progress = self.engine.progress;
        self.each_block(&job, part, |block| job.copy(block, buffer).map(|len| progress.copied(len)));
        if job.part_done() {
            self.seal(job);
        }
    }

    fn seal(&self, job: Arc<Job>) {
        if job.sound()
            && let Some(entry) = self.engine.plan.entries.get(job.number)
        {
            match job.seal(&entry.attrs) {
                Ok(refused) => self.note(|copied| copied.skipped.extend(refused)),
                Err(failure) => job.fail(failure),
            }
        }
        if job.sound() && self.engine.opts.verify {
            self.push(job, Task::Verify);
        } else {
            self.finish(&job);
        }
    }

    fn verify(&self, job: Arc<Job>, part: u64, buffer: &mut [u8]) {
        let progress = self.engine.progress;
        self.each_block(&job, part, |block| job.verify(block, buffer).map(|len| progress.verified(len)));
        if job.part_done() {
            self.finish(&job);
        }
    }

    fn finish(&self, job: &Job) {
        match job.finish(self.engine.target) {
            Ok(digest) => {
                self.note(|copied| copied.files.push((job.number, job.size(), digest)));
                if let Some(entry) = self.engine.plan.entries.get(job.number) {
                    self.engine.progress.file_done(&entry.path);
                }
            }
            Err(failure) => self.note(|copied| copied.failures.push(failure)),
        }
    }

    /// Does something for each block of a part, until it fails, another part fails, or the copy is cancelled.
    fn each_block(&self, job: &Job, part: u64, mut run: impl FnMut(u64) -> Result<(), Failure>) {
        for block in job.blocks_of(part) {
            if !job.sound() {
                return;
            }
            let cancelled = || Failure::new(std::path::Path::new(""), Cause::Cancelled);
            let done = if self.engine.opts.cancelled() { Err(cancelled()) } else { run(block) };
            if let Err(failure) = done {
                return job.fail(failure);
            }
        }
    }

    fn push(&self, job: Arc<Job>, task: fn(Arc<Job>, u64) -> Task) {
        self.queue.push_first((0..job.parts()).map(|part| task(Arc::clone(&job), part)));
    }

    fn note(&self, what: impl FnOnce(&mut Copied)) {
        what(&mut self.copied.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
