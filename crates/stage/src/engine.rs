//! Copies the files of a plan with several workers: small files in batches, large files in parts.

use std::sync::{Arc, Mutex, PoisonError};

use bivouac_types::Errno;
use blake3::Hash;

use crate::baseline::Baseline;
use crate::blocks::{BLOCK, BUFFER};
use crate::error::{Cause, Failure};
use crate::journal::{Recorder, TransferHistory};
use crate::large_file::{BlockOrigin, FileToCopy, LargeFileCopy, WorkerView};
use crate::manifest_line::Line;
use crate::meta::InodeVersion;
use crate::nofollow;
use crate::options::CopyOptions;
use crate::paths::below;
use crate::progress::Progress;
use crate::put_ioctl::PutIoctl;
use crate::queue::Queue;
use crate::scan::Plan;
use crate::small_file::{SMALL, SmallCopy, SmallCopyResult, UnsyncedFile};
use crate::summary::{Skipped, Totals};
use crate::sync_group::{BATCH, Durability, SyncGroup, SyncedFs};
use crate::target::{CopyTarget, TargetWriter};

/// Attempts for a file that changes while it is copied.
const TRIES: u32 = 3;

/// Workers per file where the file system admits one writer at a time: one reads while the other writes.
const LANES: u64 = 2;

/// State that the workers share.
pub(crate) struct Engine<'a> {
    pub(crate) opts: &'a CopyOptions,
    pub(crate) progress: &'a dyn Progress,
    pub(crate) plan: &'a Plan,
    pub(crate) target: &'a CopyTarget,
    pub(crate) recorder: &'a dyn Recorder,
    pub(crate) past: &'a TransferHistory,
    /// Known digests of the source's content.
    pub(crate) known: Option<&'a Baseline>,
    pub(crate) is_resumable: bool,
    pub(crate) durability: Durability,
    /// True if several workers may write one file at the same time.
    pub(crate) splits: bool,
    /// File system that is synced as a whole; opened before the first write.
    pub(crate) storage: Option<SyncedFs>,
}

/// Results of the workers.
#[derive(Default)]
pub(crate) struct CopyResults {
    /// Entry number, size and digest of each file that has its final name.
    pub(crate) files: Vec<(usize, u64, Hash)>,
    /// Number of files that were read back and compared.
    pub(crate) verified: u64,
    /// Bytes that an interrupted copy had written.
    pub(crate) already: u64,
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) failures: Vec<Failure>,
    /// Small files that failed for lack of space, perhaps only while large files held it that failed, too.
    short: Vec<(usize, Failure)>,
}

enum Task {
    Batch(Vec<usize>),
    Large(usize, u32),
    Copy(Arc<LargeFileCopy>, u64),
    Verify(Arc<LargeFileCopy>, u64),
    Publish(Vec<UnsyncedFile>),
    Commit(Vec<UnsyncedFile>),
}

impl Engine<'_> {
    /// Copies the files with these entry numbers.
    pub(crate) fn copy_files(&self, numbers: impl IntoIterator<Item = usize>) -> CopyResults {
        let (copied, group) = (Mutex::new(CopyResults::default()), SyncGroup::default());
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
            // The last group is incomplete and has not been published by a worker.
            let rest = group.take();
            if !rest.is_empty() && !self.opts.cancelled() {
                tasks.push(Task::Publish(rest));
            } else if !std::mem::replace(&mut is_last_try, true) {
                tasks.extend(self.retry_short(&copied));
            }
        }
        let copied = copied.into_inner().unwrap_or_else(PoisonError::into_inner);
        assert!(copied.short.is_empty(), "a file without space was neither copied nor reported");
        copied
    }

    /// Returns a task for the files that failed for lack of space, now that no unfinished file occupies any.
    fn retry_short(&self, copied: &Mutex<CopyResults>) -> Option<Task> {
        let mut copied = copied.lock().unwrap_or_else(PoisonError::into_inner);
        let short = std::mem::take(&mut copied.short);
        if self.opts.cancelled() {
            copied.failures.extend(short.into_iter().map(|(_, failure)| failure));
            return None;
        }
        (!short.is_empty()).then(|| Task::Batch(short.into_iter().map(|(number, _)| number).collect()))
    }

    /// Creates the tasks. Large files come first, because they keep several workers busy until the end.
    fn tasks(&self, numbers: impl IntoIterator<Item = usize>) -> Vec<Task> {
        // Files with holes take the path of large files, which preserves them.
        let is_small = |number: &usize| {
            let entry = self.plan.entries.get(*number);
            entry.is_some_and(|entry| entry.stamp.size <= SMALL && !entry.sparse)
        };
        let (small, large): (Vec<usize>, Vec<usize>) = numbers.into_iter().partition(is_small);
        let batches = interleave(small.chunks(BATCH).collect(), self.opts.threads());
        let batches = batches.into_iter().map(|batch| Task::Batch(batch.to_vec()));
        large.into_iter().map(|number| Task::Large(number, 0)).chain(batches).collect()
    }

    /// Returns whether small files are synced in groups before they are renamed.
    fn in_groups(&self) -> bool {
        let is_hidden = self.target.writer.is_staged();
        self.durability == Durability::SyncFs && (self.opts.verify || !is_hidden)
    }
}

/// Orders batches so that each worker is in a different part of the tree: the kernel serializes creations in one
/// directory.
fn interleave<T: Copy>(batches: Vec<T>, workers: usize) -> Vec<T> {
    let each = batches.len().div_ceil(workers.max(1)).max(1);
    let parts: Vec<&[T]> = batches.chunks(each).collect();
    (0..each).flat_map(|turn| parts.iter().filter_map(move |part| part.get(turn).copied())).collect()
}

struct Worker<'a> {
    engine: &'a Engine<'a>,
    queue: &'a Queue<Task>,
    copied: &'a Mutex<CopyResults>,
    group: &'a SyncGroup,
    index: usize,
    writer: TargetWriter,
    root: std::path::PathBuf,
    /// True if files fail for lack of space instead of waiting.
    is_last_try: bool,
}

/// Buffers of one worker.
struct WorkerBuffers {
    buffer: Vec<u8>,
    putter: PutIoctl,
}

impl<'a> Worker<'a> {
    fn new(
        engine: &'a Engine<'a>,
        queue: &'a Queue<Task>,
        copied: &'a Mutex<CopyResults>,
        group: &'a SyncGroup,
        index: usize,
    ) -> Worker<'a> {
        let views = &engine.opts.views;
        let writer = engine.target.writer.for_worker(views, index);
        let root = views.path(index, &engine.plan.root);
        Worker { engine, queue, copied, group, index, writer, root, is_last_try: false }
    }

    fn work(&self) {
        let mut buffers = WorkerBuffers { buffer: vec![0; BUFFER], putter: PutIoctl::default() };
        self.queue.work(|task| {
            let is_cancelled = self.engine.opts.cancelled();
            match task {
                // Parts of large files run even if the copy is cancelled: each must be counted, so that the last one
                // ends the file.
                Task::Copy(job, part) => self.copy(job, part, &mut buffers.buffer),
                Task::Verify(job, part) => self.verify(job, part, &mut buffers.buffer),
                _ if is_cancelled => {}
                Task::Batch(numbers) => self.batch(&numbers, &mut buffers),
                Task::Large(number, tried) => self.large(number, tried),
                Task::Publish(sealed) => self.publish(sealed),
                Task::Commit(sealed) => self.commit(sealed, &mut buffers.buffer),
            }
        });
    }

    fn batch(&self, numbers: &[usize], buffers: &mut WorkerBuffers) {
        let mut sealed = Vec::with_capacity(numbers.len());
        for number in numbers {
            if self.engine.opts.cancelled() {
                break;
            }
            sealed.extend(self.small(*number, buffers));
        }
        if !self.engine.in_groups() {
            return self.commit(sealed, &mut buffers.buffer);
        }
        if let Some(full) = self.group.add(sealed) {
            self.publish(full);
        }
    }

    fn small(&self, number: usize, buffers: &mut WorkerBuffers) -> Option<UnsyncedFile> {
        let entry = self.engine.plan.entries.get(number)?;
        let mut tried = 0;
        loop {
            self.engine.opts.wait_for(entry.stamp.size);
            let sync = self.engine.durability == Durability::Fsync;
            let source = below(&self.root, &entry.path);
            let is_formation = self.engine.durability == Durability::Acknowledged;
            let putter = is_formation.then_some(&mut buffers.putter);
            let mut copy = SmallCopy { writer: &self.writer, sync, buffer: &mut buffers.buffer, putter };
            let copied = copy.copy(number, source, &entry.path, self.engine.known);
            match copied {
                Ok(SmallCopyResult::Sealed(sealed)) => {
                    self.engine.progress.copied(sealed.line.size);
                    return Some(*sealed);
                }
                // It has grown since the scan.
                Ok(SmallCopyResult::Large) => {
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

    /// Syncs a group of files, and queues their renames.
    fn publish(&self, sealed: Vec<UnsyncedFile>) {
        let synced = self.engine.storage.as_ref().map_or(Ok(()), SyncedFs::sync);
        let anchor = self.engine.target.anchor();
        // The journal must not list files that may not be on stable storage: the whole group fails.
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
        // In chunks for all workers: each reads its files back, which one alone would take long for.
        self.queue.push_first(chunks.into_iter());
    }

    /// Verifies files, renames them to their final names and records them in the journal.
    fn commit(&self, sealed: Vec<UnsyncedFile>, buffer: &mut [u8]) {
        if sealed.is_empty() {
            return;
        }
        // Before any rename: with the target unmounted, the files would land in the directory below.
        if let Err(failure) = self.engine.target.check_anchor() {
            return self.note(|copied| copied.failures.push(failure));
        }
        let mut lines = String::new();
        for file in sealed {
            match self.put(file, buffer) {
                Ok(line) => lines.push_str(&line),
                Err(failure) => self.note(|copied| copied.failures.push(failure)),
            }
        }
        // After the renames: a line in the journal means that the object has its final name.
        self.record(&lines);
    }

    fn put(&self, file: UnsyncedFile, buffer: &mut [u8]) -> Result<String, Failure> {
        let place = self.writer.place(&file.line.name);
        if self.engine.opts.verify {
            file.verify(&place, self.engine.durability != Durability::Acknowledged, buffer)?;
            self.engine.progress.verified(file.line.size);
            self.note(|copied| copied.verified += 1);
        }
        let UnsyncedFile { number, draft, mut line, skipped } = file;
        let renamed = draft.is_beside() && self.engine.durability == Durability::Acknowledged;
        let at = self.writer.put(draft).map_err(|error| Failure::io("put in place", &place, error))?;
        // A rename changes the ctime in a formation.
        if renamed {
            line.target = nofollow::lstat(&at).ok().map(|meta| InodeVersion::of(&meta));
        }
        self.note(|copied| copied.skipped.extend(skipped));
        Ok(self.done(number, &line))
    }

    fn done(&self, number: usize, line: &Line) -> String {
        assert!(line.digest.is_some(), "a file is recorded without its digest");
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
        let wanted = FileToCopy { number, tried, source, path: &entry.path, parts, is_shared };
        match LargeFileCopy::open(wanted, &self.engine.target.writer, &self.engine.opts.views) {
            Ok(job) => {
                if job.has_lost_parts(parts) {
                    self.record(&job.gone_line());
                }
                let (job, lanes) = (Arc::new(job), self.lanes());
                let first = 0..lanes.min(job.parts());
                self.queue.push_first(first.map(|part| Task::Copy(Arc::clone(&job), part)));
            }
            Err(failure) => self.note(|copied| copied.failures.push(failure)),
        }
    }

    /// Returns the number of parts of a file in progress at once; each lane continues with the next part.
    fn lanes(&self) -> u64 {
        if self.engine.splits { u64::MAX } else { LANES.min(self.engine.opts.threads() as u64) }
    }

    fn copy(&self, job: Arc<LargeFileCopy>, part: u64, buffer: &mut [u8]) {
        let engine = self.engine;
        self.each_block(&job, part, |block| {
            // Blocks of an interrupted copy are only read at the target and do not count for the limit.
            if !job.was_copied(block) {
                engine.opts.wait_for(BLOCK.min(job.size()));
            }
            job.copy(self.view(), block, buffer).map(|moved| match moved {
                BlockOrigin::Copied(bytes) => {
                    job.count_bytes(bytes, 0);
                    engine.progress.copied(bytes);
                }
                BlockOrigin::Resumed(bytes) => engine.progress.already(Totals { files: 0, bytes }),
            })
        });
        if job.is_sound()
            && let Some(line) = job.part_line(part)
        {
            self.record(&line);
        }
        // Read before the part is counted: the last part may end the file.
        let next = part.saturating_add(self.lanes());
        if job.part_done() {
            self.seal(job);
        } else if next < job.parts() {
            self.queue.push_first(std::iter::once(Task::Copy(job, next)));
        }
    }

    fn seal(&self, job: Arc<LargeFileCopy>) {
        if job.is_sound() {
            match job.seal(self.engine.durability != Durability::Acknowledged) {
                Ok(refused) => self.note(|copied| copied.skipped.extend(refused)),
                Err(failure) => job.fail(failure),
            }
        }
        if job.is_sound() && self.engine.opts.verify {
            job.forget_cached();
            self.push(job, Task::Verify);
        } else {
            self.finish(&job);
        }
    }

    fn verify(&self, job: Arc<LargeFileCopy>, part: u64, buffer: &mut [u8]) {
        let progress = self.engine.progress;
        self.each_block(&job, part, |block| {
            job.verify(self.view(), block, buffer).map(|len| {
                job.count_bytes(0, len);
                progress.verified(len);
            })
        });
        if job.part_done() {
            self.finish(&job);
        }
    }

    fn finish(&self, job: &LargeFileCopy) {
        let writer = &self.engine.target.writer;
        let Engine { target, known, is_resumable, .. } = self.engine;
        let finished = target.check_anchor().and_then(|()| job.finish(writer, *is_resumable, *known));
        // Parts of a cancelled copy are kept for its resumption. After any other failure the temporary file is removed.
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
                self.engine.progress.restarted(job.reported_totals());
                self.queue.push_first(std::iter::once(Task::Large(job.number, job.tried + 1)));
            }
            Err(failure) => self.note(|copied| copied.failures.push(failure)),
        }
    }

    /// Calls `run` for each block of a part until it fails, another part fails, or the copy is cancelled.
    fn each_block(&self, job: &LargeFileCopy, part: u64, mut run: impl FnMut(u64) -> Result<(), Failure>) {
        for block in job.blocks_of(part) {
            if !job.is_sound() {
                return;
            }
            let cancelled = || Failure::new(std::path::Path::new(""), Cause::Cancelled);
            let done = if self.engine.opts.cancelled() { Err(cancelled()) } else { run(block) };
            if let Err(failure) = done {
                return job.fail(failure);
            }
        }
    }

    fn view(&self) -> WorkerView<'_> {
        WorkerView { views: &self.engine.opts.views, worker: self.index }
    }

    fn push(&self, job: Arc<LargeFileCopy>, task: fn(Arc<LargeFileCopy>, u64) -> Task) {
        self.queue.push_first((0..job.parts()).map(|part| task(Arc::clone(&job), part)));
    }

    fn record(&self, lines: &str) {
        if let Err(error) = self.engine.recorder.note(lines) {
            let failure = Failure::io("write", std::path::Path::new("the job's journal"), error);
            self.note(|copied| copied.failures.push(failure));
        }
    }

    fn note(&self, what: impl FnOnce(&mut CopyResults)) {
        what(&mut self.copied.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_begin_apart_and_every_batch_comes_once() {
        assert_eq!(interleave((0..8).collect(), 4), [0, 2, 4, 6, 1, 3, 5, 7]);
        assert_eq!(interleave((0..7).collect(), 3), [0, 3, 6, 1, 4, 2, 5]);
        for (batches, workers) in [(0, 4), (1, 4), (3, 4), (9, 4), (5, 0), (100, 32)] {
            let mut all = interleave((0..batches).collect(), workers);
            all.sort_unstable();
            assert_eq!(all, (0..batches).collect::<Vec<_>>(), "{batches} for {workers}");
        }
    }
}
