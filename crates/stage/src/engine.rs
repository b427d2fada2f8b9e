//! Copies the files of a plan with several workers: small files in batches, the parts of large files by all.

use std::sync::{Arc, Mutex, PoisonError};

use bivouac_types::Errno;
use blake3::Hash;

use crate::baseline::Baseline;
use crate::blocks::BUFFER;
use crate::group::{BATCH, Durability, Group, Storage};
use crate::job::{Job, Moved, Seen, Wanted};
use crate::journal::{Past, Recorder};
use crate::line::Line;
use crate::meta::Mark;
use crate::put::Putter;
use crate::queue::Queue;
use crate::scan::Plan;
use crate::small::{Attempt, SMALL, Sealed, SmallCopy};
use crate::target::{Spot, Target};
use crate::{Cause, CopyOptions, Failure, Progress, Skipped, Totals};

/// How often a file is copied that changes while it is copied.
const TRIES: u32 = 3;

/// Workers on one file where only one at a time can write to it: one reads while the other one writes.
const LANES: u64 = 2;

/// What the workers share.
pub(crate) struct Engine<'a> {
    pub(crate) opts: &'a CopyOptions,
    pub(crate) progress: &'a dyn Progress,
    pub(crate) plan: &'a Plan,
    pub(crate) target: &'a Target,
    pub(crate) recorder: &'a dyn Recorder,
    pub(crate) past: &'a Past,
    /// What the bytes at the source should be, where that is known.
    pub(crate) known: Option<&'a Baseline>,
    pub(crate) is_resumable: bool,
    pub(crate) durability: Durability,
    /// Whether several workers write one file at once.
    pub(crate) splits: bool,
    /// Open where files are made safe together.
    pub(crate) storage: Option<Storage>,
}

/// What the workers have done.
#[derive(Default)]
pub(crate) struct Copied {
    /// Number of the entry, size and digest of each file that is in place.
    pub(crate) files: Vec<(usize, u64, Hash)>,
    /// How many of them were read back and compared.
    pub(crate) verified: u64,
    /// Bytes of them that an interrupted copy had written.
    pub(crate) already: u64,
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) failures: Vec<Failure>,
    /// Small files for which there was no space, perhaps only while large ones were tried that did not fit either.
    short: Vec<(usize, Failure)>,
}

enum Task {
    Batch(Vec<usize>),
    Large(usize, u32),
    Copy(Arc<Job>, u64),
    Verify(Arc<Job>, u64),
    Publish(Vec<Sealed>),
    Commit(Vec<Sealed>),
}

impl Engine<'_> {
    /// Copies the files that are the entries of these numbers.
    pub(crate) fn copy_files(&self, numbers: impl IntoIterator<Item = usize>) -> Copied {
        let (copied, group) = (Mutex::new(Copied::default()), Group::default());
        let mut tasks = self.tasks(numbers);
        let mut is_last_try = false;
        while !tasks.is_empty() {
            let queue = Queue::new(std::mem::take(&mut tasks));
            std::thread::scope(|scope| {
                for index in 0..self.opts.threads() {
                    let (queue, copied, group) = (&queue, &copied, &group);
                    let worker = Worker { is_last_try, ..Worker::new(self, queue, copied, group, index) };
                    scope.spawn(move || worker.work());
                }
            });
            // The last group is not full.
            let rest = group.take();
            if !rest.is_empty() && !self.opts.cancelled() {
                tasks.push(Task::Publish(rest));
            } else if !std::mem::replace(&mut is_last_try, true) {
                tasks.extend(self.again(&copied));
            }
        }
        copied.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is worth another try now that nothing unfinished takes space.
    fn again(&self, copied: &Mutex<Copied>) -> Option<Task> {
        let mut copied = copied.lock().unwrap_or_else(PoisonError::into_inner);
        let short = std::mem::take(&mut copied.short);
        if self.opts.cancelled() {
            copied.failures.extend(short.into_iter().map(|(_, failure)| failure));
            return None;
        }
        (!short.is_empty()).then(|| Task::Batch(short.into_iter().map(|(number, _)| number).collect()))
    }

    /// Large files first: they keep several workers busy until the end.
    fn tasks(&self, numbers: impl IntoIterator<Item = usize>) -> Vec<Task> {
        let is_small = |number: &usize| {
            let entry = self.plan.entries.get(*number);
            entry.is_some_and(|entry| entry.stamp.size <= SMALL && !entry.sparse)
        };
        let (small, large): (Vec<usize>, Vec<usize>) = numbers.into_iter().partition(is_small);
        let batches = apart(small.chunks(BATCH).collect(), self.opts.threads());
        let batches = batches.into_iter().map(|batch| Task::Batch(batch.to_vec()));
        large.into_iter().map(|number| Task::Large(number, 0)).chain(batches).collect()
    }

    /// Whether small files wait for each other to become safe before they get their names.
    fn in_groups(&self) -> bool {
        let is_hidden = self.target.spot.is_staged();
        self.durability == Durability::Together && (self.opts.verify || !is_hidden)
    }
}

/// Orders batches for so many workers that each goes through a part of the tree of its own: the kernel makes one name at
/// a time in a directory, so those who work in the same one wait for each other.
fn apart<T: Copy>(batches: Vec<T>, workers: usize) -> Vec<T> {
    let each = batches.len().div_ceil(workers.max(1)).max(1);
    let parts: Vec<&[T]> = batches.chunks(each).collect();
    (0..each).flat_map(|turn| parts.iter().filter_map(move |part| part.get(turn).copied())).collect()
}

struct Worker<'a> {
    engine: &'a Engine<'a>,
    queue: &'a Queue<Task>,
    copied: &'a Mutex<Copied>,
    group: &'a Group,
    index: usize,
    spot: Spot,
    root: std::path::PathBuf,
    /// Whether files for which there is no space fail now.
    is_last_try: bool,
}

/// What a worker has for itself.
struct Desk {
    buffer: Vec<u8>,
    putter: Putter,
}

impl<'a> Worker<'a> {
    fn new(
        engine: &'a Engine<'a>,
        queue: &'a Queue<Task>,
        copied: &'a Mutex<Copied>,
        group: &'a Group,
        index: usize,
    ) -> Worker<'a> {
        let views = &engine.opts.views;
        let spot = engine.target.spot.seen(views, index);
        let root = views.path(index, &engine.plan.root);
        Worker { engine, queue, copied, group, index, spot, root, is_last_try: false }
    }

    fn work(&self) {
        let mut desk = Desk { buffer: vec![0; BUFFER], putter: Putter::default() };
        self.queue.work(|task| {
            let is_cancelled = self.engine.opts.cancelled();
            match task {
                // Of large files the parts are counted down, so that what is begun is ended properly.
                Task::Copy(job, part) => self.copy(job, part, &mut desk.buffer),
                Task::Verify(job, part) => self.verify(job, part, &mut desk.buffer),
                _ if is_cancelled => {}
                Task::Batch(numbers) => self.batch(&numbers, &mut desk),
                Task::Large(number, tried) => self.large(number, tried),
                Task::Publish(sealed) => self.publish(sealed),
                Task::Commit(sealed) => self.commit(sealed, &mut desk.buffer),
            }
        });
    }

    fn batch(&self, numbers: &[usize], desk: &mut Desk) {
        let mut sealed = Vec::with_capacity(numbers.len());
        for number in numbers {
            if self.engine.opts.cancelled() {
                break;
            }
            sealed.extend(self.small(*number, desk));
        }
        if !self.engine.in_groups() {
            return self.commit(sealed, &mut desk.buffer);
        }
        if let Some(full) = self.group.add(sealed) {
            self.publish(full);
        }
    }

    fn small(&self, number: usize, desk: &mut Desk) -> Option<Sealed> {
        let entry = self.engine.plan.entries.get(number)?;
        let mut tried = 0;
        loop {
            self.engine.opts.wait_for(entry.stamp.size);
            let sync = self.engine.durability == Durability::Each;
            let source = crate::scan::below(&self.root, &entry.path);
            let is_formation = self.engine.durability == Durability::Acknowledged;
            let putter = is_formation.then_some(&mut desk.putter);
            let mut copy = SmallCopy { spot: &self.spot, sync, buffer: &mut desk.buffer, putter };
            let copied = copy.copy(number, source, &entry.path, self.engine.known);
            match copied {
                Ok(Attempt::Sealed(sealed)) => {
                    self.engine.progress.copied(sealed.line.size);
                    return Some(*sealed);
                }
                Ok(Attempt::Large) => {
                    self.queue.push_first(std::iter::once(Task::Large(number, tried)));
                    return None;
                }
                Err(Failure { cause: Cause::Changed | Cause::Altered, .. }) if tried + 1 < TRIES => {
                    tried += 1
                }
                Err(failure) if failure.errno() == Some(Errno::ENOSPC) && !self.is_last_try => {
                    self.note(|copied| copied.short.push((number, failure)));
                    return None;
                }
                Err(failure) => {
                    self.note(|copied| copied.failures.push(failure));
                    return None;
                }
            }
        }
    }

    /// Makes files safe, and has them put in place.
    fn publish(&self, sealed: Vec<Sealed>) {
        let synced = self.engine.storage.as_ref().map_or(Ok(()), Storage::sync);
        let anchor = self.engine.target.anchor();
        if let Err(error) = synced {
            return self
                .note(|copied| copied.failures.push(Failure::io("write to stable storage", anchor, error)));
        }
        let mut sealed = sealed.into_iter();
        let mut chunks = Vec::new();
        while let Some(first) = sealed.next() {
            let chunk = std::iter::once(first).chain(sealed.by_ref().take(BATCH - 1)).collect();
            chunks.push(Task::Commit(chunk));
        }
        self.queue.push_first(chunks.into_iter());
    }

    /// Compares files if that is wanted, puts them in place and writes down that they are.
    fn commit(&self, sealed: Vec<Sealed>, buffer: &mut [u8]) {
        if sealed.is_empty() {
            return;
        }
        if let Err(failure) = self.engine.target.still_there() {
            return self.note(|copied| copied.failures.push(failure));
        }
        let mut lines = String::new();
        for file in sealed {
            match self.put(file, buffer) {
                Ok(line) => lines.push_str(&line),
                Err(failure) => self.note(|copied| copied.failures.push(failure)),
            }
        }
        self.record(&lines);
    }

    fn put(&self, file: Sealed, buffer: &mut [u8]) -> Result<String, Failure> {
        let place = self.spot.place(&file.line.name);
        if self.engine.opts.verify {
            file.verify(&place, self.engine.durability != Durability::Acknowledged, buffer)?;
            self.engine.progress.verified(file.line.size);
            self.note(|copied| copied.verified += 1);
        }
        let Sealed { number, draft, mut line, skipped } = file;
        let renamed = draft.is_beside() && self.engine.durability == Durability::Acknowledged;
        let at = self.spot.put(draft).map_err(|error| Failure::io("put in place", &place, error))?;
        if renamed {
            line.target = crate::straight::look(&at).ok().map(|meta| Mark::of(&meta));
        }
        self.note(|copied| copied.skipped.extend(skipped));
        Ok(self.done(number, &line))
    }

    fn done(&self, number: usize, line: &Line) -> String {
        let digest = line.digest.unwrap_or_else(|| Hash::from_bytes([0; 32]));
        self.note(|copied| copied.files.push((number, line.size, digest)));
        self.engine.progress.file_done(&line.name);
        line.encode()
    }

    fn large(&self, number: usize, tried: u32) {
        let Some(entry) = self.engine.plan.entries.get(number) else { return };
        let parts = self.engine.past.parts.get(&entry.path).map_or(&[][..], Vec::as_slice);
        let source = self.engine.plan.source(entry);
        let is_shared = self.engine.splits;
        let wanted = Wanted { number, tried, source, path: &entry.path, parts, is_shared };
        match Job::open(wanted, &self.engine.target.spot, &self.engine.opts.views) {
            Ok(job) => {
                if job.lost(parts) {
                    self.record(&job.gone_line());
                }
                let (job, lanes) = (Arc::new(job), self.lanes());
                let first = 0..lanes.min(job.parts());
                self.queue.push_first(first.map(|part| Task::Copy(Arc::clone(&job), part)));
            }
            Err(failure) => self.note(|copied| copied.failures.push(failure)),
        }
    }

    /// How many parts of a file are begun at once; who ends one goes on with the next.
    fn lanes(&self) -> u64 {
        if self.engine.splits { u64::MAX } else { LANES.min(self.engine.opts.threads() as u64) }
    }

    fn copy(&self, job: Arc<Job>, part: u64, buffer: &mut [u8]) {
        let engine = self.engine;
        self.each_block(&job, part, |block| {
            if !job.was_copied(block) {
                engine.opts.wait_for(crate::blocks::BLOCK.min(job.size()));
            }
            job.copy(self.seen(), block, buffer).map(|moved| match moved {
                Moved::Now(bytes) => {
                    job.told(bytes, 0);
                    engine.progress.copied(bytes);
                }
                Moved::Before(bytes) => engine.progress.already(Totals { files: 0, bytes }),
            })
        });
        if job.sound()
            && let Some(line) = job.part_line(part)
        {
            self.record(&line);
        }
        let next = part.saturating_add(self.lanes());
        if job.part_done() {
            self.seal(job);
        } else if next < job.parts() {
            self.queue.push_first(std::iter::once(Task::Copy(job, next)));
        }
    }

    fn seal(&self, job: Arc<Job>) {
        if job.sound() {
            match job.seal(self.engine.durability != Durability::Acknowledged) {
                Ok(refused) => self.note(|copied| copied.skipped.extend(refused)),
                Err(failure) => job.fail(failure),
            }
        }
        if job.sound() && self.engine.opts.verify {
            job.forget_cached();
            self.push(job, Task::Verify);
        } else {
            self.finish(&job);
        }
    }

    fn verify(&self, job: Arc<Job>, part: u64, buffer: &mut [u8]) {
        let progress = self.engine.progress;
        self.each_block(&job, part, |block| {
            job.verify(self.seen(), block, buffer).map(|len| {
                job.told(0, len);
                progress.verified(len);
            })
        });
        if job.part_done() {
            self.finish(&job);
        }
    }

    fn finish(&self, job: &Job) {
        let spot = &self.engine.target.spot;
        let Engine { target, known, is_resumable, .. } = self.engine;
        let finished = target.still_there().and_then(|()| job.finish(spot, *is_resumable, *known));
        // What was interrupted stays; of anything else that was not finished nothing does.
        if job.parts() > 1
            && finished.as_ref().is_err_and(|failure| !matches!(failure.cause, Cause::Cancelled))
        {
            self.record(&job.gone_line());
        }
        match finished {
            Ok(line) => {
                self.note(|copied| {
                    copied.verified += u64::from(self.engine.opts.verify);
                    copied.already = copied.already.saturating_add(job.already());
                });
                self.record(&self.done(job.number, &line));
            }
            Err(Failure { cause: Cause::Changed | Cause::Altered, .. }) if job.tried + 1 < TRIES => {
                self.engine.progress.anew(job.anew());
                self.queue.push_first(std::iter::once(Task::Large(job.number, job.tried + 1)));
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

    fn seen(&self) -> Seen<'_> {
        Seen { views: &self.engine.opts.views, worker: self.index }
    }

    fn push(&self, job: Arc<Job>, task: fn(Arc<Job>, u64) -> Task) {
        self.queue.push_first((0..job.parts()).map(|part| task(Arc::clone(&job), part)));
    }

    fn record(&self, lines: &str) {
        if let Err(error) = self.engine.recorder.note(lines) {
            let failure = Failure::io("write", std::path::Path::new("the job's journal"), error);
            self.note(|copied| copied.failures.push(failure));
        }
    }

    fn note(&self, what: impl FnOnce(&mut Copied)) {
        what(&mut self.copied.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_begin_apart_and_every_batch_comes_once() {
        assert_eq!(apart((0..8).collect(), 4), [0, 2, 4, 6, 1, 3, 5, 7]);
        assert_eq!(apart((0..7).collect(), 3), [0, 3, 6, 1, 4, 2, 5]);
        for (batches, workers) in [(0, 4), (1, 4), (3, 4), (9, 4), (5, 0), (100, 32)] {
            let mut all = apart((0..batches).collect(), workers);
            all.sort_unstable();
            assert_eq!(all, (0..batches).collect::<Vec<_>>(), "{batches} for {workers}");
        }
    }
}
