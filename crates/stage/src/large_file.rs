//! Copy of one large file by several workers.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use blake3::Hash;
use rustix::fs::OFlags;

use crate::baseline::Baseline;
use crate::blocks::{
    BLOCK, Block, BlockError, BlockHash, BlockWriter, PART, block_is, copy_block, file_digest, rewrite_block,
};
use crate::error::{Cause, Failure};
use crate::journal::{Part, control};
use crate::manifest_line::{Line, LineKind};
use crate::meta::{InodeVersion, MetadataStamp, copy_xattrs};
use crate::mount_views::MountViews;
use crate::nofollow;
use crate::progress::RestartedFile;
use crate::scan::has_holes;
use crate::summary::Skipped;
use crate::target::TargetWriter;
use crate::temporary::TemporaryObject;

/// A file that is open at source and target.
pub(crate) struct LargeFileCopy {
    /// Entry number in the plan.
    pub(crate) number: usize,
    /// Number of earlier attempts.
    pub(crate) tried: u32,
    path: PathBuf,
    source: PathBuf,
    place: PathBuf,
    /// The open files, per mount of the formation.
    pairs: Vec<OnceLock<OpenFilePair>>,
    before: MetadataStamp,
    sparse: bool,
    /// True if the temporary file is from an earlier run, and may have data already.
    begun: bool,
    /// Hashes of blocks that an earlier run copied.
    resumed: HashMap<u64, BlockHash>,
    /// Bytes of those that were still correct.
    already: AtomicU64,
    /// Bytes that this run has copied, and compared.
    copied: AtomicU64,
    verified: AtomicU64,
    /// Hashes of the copied blocks.
    blocks: Vec<OnceLock<BlockHash>>,
    /// Lock of writers where the file system admits one at a time.
    turn: Option<Mutex<()>>,
    /// Parts that remain to be copied or compared.
    left: AtomicU64,
    outcome: Mutex<CopyState>,
}

struct OpenFilePair {
    from: File,
    to: File,
}

struct CopyState {
    draft: Option<TemporaryObject>,
    failure: Option<Failure>,
    target: Option<InodeVersion>,
}

/// Arguments of [`LargeFileCopy::open`].
pub(crate) struct FileToCopy<'a> {
    pub(crate) number: usize,
    pub(crate) tried: u32,
    pub(crate) source: PathBuf,
    pub(crate) path: &'a Path,
    /// Completed parts of an interrupted copy.
    pub(crate) parts: &'a [Part],
    /// True if the target's file system admits several writers.
    pub(crate) is_shared: bool,
}

impl LargeFileCopy {
    /// Opens the source and creates the temporary file.
    pub(crate) fn open(
        wanted: FileToCopy<'_>,
        writer: &TargetWriter,
        views: &MountViews,
    ) -> Result<LargeFileCopy, Failure> {
        let FileToCopy { number, tried, source, path, parts: resumed, is_shared } = wanted;
        let open = || {
            let from = nofollow::open_for_reading(&source)?;
            from.metadata().map(|meta| (from, meta))
        };
        let (from, meta) = open().map_err(|error| Failure::io("open", &source, error))?;
        if !meta.is_file() {
            return Err(Failure::new(&source, Cause::Changed));
        }
        let (place, before, sparse) = (writer.place(path), MetadataStamp::of(&meta), has_holes(&meta));
        let resumed: HashMap<u64, BlockHash> =
            resumed.iter().flat_map(|part| part.blocks_of(&before)).collect();
        // Holes are recorded without hashes, so a sparse file is copied from the beginning.
        let begun = if sparse || resumed.is_empty() { None } else { writer.begun(path) };
        let was_begun = begun.is_some();
        let make = || {
            // Nobody else may read it before it has the attributes of its source, which are set last.
            let (draft, to) = begun.map_or_else(|| writer.file(path, 0o600, true), Ok)?;
            // The size is set in advance: holes at the end are not written, an interrupted copy may have been longer,
            // and several writers would serialize on extending the file, each time with a message to its home.
            if sparse || was_begun || is_shared { to.set_len(meta.len()) } else { Ok(()) }
                .map(|()| (draft, to))
        };
        let (draft, to) = make().map_err(|error| Failure::io("make it", &place, error))?;
        let pairs: Vec<OnceLock<OpenFilePair>> = (0..views.count()).map(|_| OnceLock::new()).collect();
        if let Some(first) = pairs.first() {
            let _unset_so_far = first.set(OpenFilePair { from, to });
        }
        Ok(LargeFileCopy {
            number,
            tried,
            path: path.to_owned(),
            source,
            place,
            pairs,
            before,
            sparse,
            begun: was_begun,
            resumed: if was_begun { resumed } else { HashMap::new() },
            already: AtomicU64::new(0),
            copied: AtomicU64::new(0),
            verified: AtomicU64::new(0),
            blocks: (0..meta.len().div_ceil(BLOCK)).map(|_| OnceLock::new()).collect(),
            turn: (!is_shared).then(Mutex::default),
            left: AtomicU64::new(parts(meta.len())),
            outcome: Mutex::new(CopyState { draft: Some(draft), failure: None, target: None }),
        })
    }

    pub(crate) fn parts(&self) -> u64 {
        parts(self.before.size)
    }

    pub(crate) fn size(&self) -> u64 {
        self.before.size
    }

    /// Returns whether nothing has failed so far.
    pub(crate) fn is_sound(&self) -> bool {
        self.outcome().failure.is_none()
    }

    /// Records a failure; the first one is kept.
    pub(crate) fn fail(&self, failure: Failure) {
        self.outcome().failure.get_or_insert(failure);
    }

    /// Counts a part as complete. Returns whether it was the last one, and then resets the count for the next phase.
    pub(crate) fn part_done(&self) -> bool {
        let left = self.left.fetch_sub(1, Ordering::AcqRel);
        assert!(left > 0, "a part of a file was counted twice");
        let last = left == 1;
        if last {
            // Nobody else counts now: the parts of the next phase are queued by the caller, after this.
            self.left.store(self.parts(), Ordering::Release);
        }
        last
    }

    /// Returns whether recorded parts of an interrupted copy no longer exist.
    pub(crate) fn has_lost_parts(&self, parts: &[Part]) -> bool {
        !self.begun && !self.sparse && !parts.is_empty()
    }

    /// Adds to the totals reported to the caller.
    pub(crate) fn count_bytes(&self, copied: u64, verified: u64) {
        self.copied.fetch_add(copied, Ordering::Relaxed);
        self.verified.fetch_add(verified, Ordering::Relaxed);
    }

    /// Returns the reported totals, to be subtracted when the file is copied again.
    pub(crate) fn reported_totals(&self) -> RestartedFile {
        let [copied, already, verified] =
            [&self.copied, &self.already, &self.verified].map(|sum| sum.load(Ordering::Relaxed));
        RestartedFile { copied, already, verified }
    }

    /// Returns the bytes that an interrupted copy had written correctly.
    pub(crate) fn already(&self) -> u64 {
        self.already.load(Ordering::Relaxed)
    }

    /// Returns the journal line that invalidates all parts.
    pub(crate) fn gone_line(&self) -> String {
        control("gone", &self.path)
    }

    /// Copies one block, unless an interrupted copy has it already.
    pub(crate) fn copy(
        &self,
        seen: WorkerView<'_>,
        number: u64,
        buffer: &mut [u8],
    ) -> Result<BlockOrigin, Failure> {
        let (pair, block) = (self.pair(seen)?, self.block(number));
        let failed = |error| self.block_failure(error);
        let resumed = self.resumed.get(&number).copied();
        let to = BlockWriter { file: &pair.to, turn: self.turn.as_ref() };
        let len = block.end - block.start;
        let (value, moved) = match resumed {
            // The hash proves the data at the target, which a crash may have lost after the journal recorded it.
            Some(value) if block_is(&pair.to, block, &value, buffer).map_err(failed)? => {
                self.already.fetch_add(len, Ordering::Relaxed);
                (value, BlockOrigin::Resumed(len))
            }
            // The temporary file may have other data here, so zeros are written as well.
            _ if self.begun => {
                (rewrite_block(&pair.from, to, block, buffer).map_err(failed)?, BlockOrigin::Copied(len))
            }
            _ => (copy_block(&pair.from, to, block, buffer).map_err(failed)?, BlockOrigin::Copied(len)),
        };
        if let Some(slot) = self.blocks.get(number as usize) {
            assert!(slot.set(value).is_ok(), "a block of a file was copied twice");
        }
        Ok(moved)
    }

    /// Returns whether an interrupted copy has recorded a block.
    pub(crate) fn was_copied(&self, number: u64) -> bool {
        self.resumed.contains_key(&number)
    }

    /// Reads one block back and compares it. Returns its length.
    pub(crate) fn verify(
        &self,
        seen: WorkerView<'_>,
        number: u64,
        buffer: &mut [u8],
    ) -> Result<u64, Failure> {
        let (pair, block) = (self.pair(seen)?, self.block(number));
        let expected = self.blocks.get(number as usize).and_then(OnceLock::get);
        let differs = || Failure::new(&self.place, Cause::Differs { offset: block.start });
        let expected = expected.ok_or_else(differs)?;
        let same = block_is(&pair.to, block, expected, buffer).map_err(|error| self.block_failure(error))?;
        if same { Ok(block.end - block.start) } else { Err(differs()) }
    }

    /// Returns the blocks of a part.
    pub(crate) fn blocks_of(&self, part: u64) -> std::ops::Range<u64> {
        let per_part = PART / BLOCK;
        let all = self.blocks.len() as u64;
        (part * per_part).min(all)..((part + 1) * per_part).min(all)
    }

    /// Returns the journal line of a complete part; none for a file of one part. Hashes are omitted for a file with
    /// holes, which is copied again.
    pub(crate) fn part_line(&self, part: u64) -> Option<String> {
        let value = |number: u64| self.blocks.get(number as usize).and_then(OnceLock::get).copied();
        let mut values = self.blocks_of(part).map(value).collect::<Option<Vec<BlockHash>>>()?;
        if self.sparse {
            values.clear();
        }
        let part = Part { number: part, size: self.before.size, source: self.before.version, values };
        (self.parts() > 1).then(|| part.encode(&self.path))
    }

    /// Sets the attributes of the copy and, if `sync`, syncs it. Returns attributes that the target does not support.
    pub(crate) fn seal(&self, sync: bool) -> Result<Vec<Skipped>, Failure> {
        let io = |doing| move |error| Failure::io(doing, &self.place, error);
        let Some(OpenFilePair { from, to }) = self.pairs.first().and_then(OnceLock::get) else {
            return Ok(Vec::new());
        };
        // Before the attributes: see `publish`.
        if !sync && self.parts() > 1 {
            self.publish().map_err(io("write"))?;
        }
        let refused = copy_xattrs(from, to).map_err(io("set attributes"))?;
        self.before.attrs.apply(to).map_err(io("set mode and times"))?;
        if sync {
            to.sync_all().map_err(io("write to stable storage"))?;
        }
        let made = to.metadata().map_err(io("look at it"))?;
        // The last check before the rename: nothing shorter gets the final name.
        if made.len() != self.before.size {
            return Err(Failure::new(&self.source, Cause::Changed));
        }
        self.outcome().target = Some(InodeVersion::of(&made));
        Ok(refused.into_iter().map(|what| Skipped { path: self.source.clone(), what }).collect())
    }

    /// Syncs the writes of all mounts. A node reports a write's time to the file's home a little later, which would
    /// overwrite the attributes that follow; and a write beyond a hole is settled only by the sync, so a later copy
    /// would take the hole for real.
    fn publish(&self) -> std::io::Result<()> {
        let mut pairs = self.pairs.iter().filter_map(OnceLock::get);
        pairs.try_for_each(|pair| pair.to.sync_all())
    }

    /// Drops the copy from the page cache, so that verification reads stable storage.
    pub(crate) fn forget_cached(&self) {
        if let Some(pair) = self.pairs.first().and_then(OnceLock::get) {
            let _only_advice = rustix::fs::fadvise(&pair.to, 0, None, rustix::fs::Advice::DontNeed);
        }
    }

    /// Renames the copy to its final name if nothing failed and the source is unchanged. Returns its line.
    pub(crate) fn finish(
        &self,
        writer: &TargetWriter,
        is_resumable: bool,
        known: Option<&Baseline>,
    ) -> Result<Line, Failure> {
        let CopyState { draft, failure, target } =
            std::mem::replace(&mut *self.outcome(), CopyState { draft: None, failure: None, target: None });
        if let Some(failure) = failure {
            // After any other failure it is not known which of its parts are right.
            if is_resumable && matches!(failure.cause, Cause::Cancelled) {
                draft.into_iter().for_each(TemporaryObject::keep);
            }
            return Err(failure);
        }
        // First: other bytes in a file that is being written to are no damage.
        self.unchanged()?;
        let mut line = Line {
            digest: Some(self.digest()),
            target,
            ..Line::of(LineKind::File, &self.before, &self.path)
        };
        if known.is_some_and(|known| known.is_altered(&line)) {
            return Err(Failure::new(&self.source, Cause::Altered));
        }
        if let Some(draft) = draft {
            let renamed = draft.is_beside();
            let place = writer.put(draft).map_err(|error| Failure::io("put in place", &self.place, error))?;
            // The rename has changed the time of the last change, by which a later copy knows the file.
            if renamed {
                line.target = nofollow::lstat(&place).ok().map(|meta| InodeVersion::of(&meta));
            }
        }
        Ok(line)
    }

    fn digest(&self) -> Hash {
        // A missing hash would make the digest that of a shorter file, and the copy would be taken for complete.
        let values: Vec<BlockHash> = self.blocks.iter().filter_map(OnceLock::get).copied().collect();
        assert_eq!(values.len(), self.blocks.len(), "a file was completed without all of its blocks");
        file_digest(&values)
    }

    fn unchanged(&self) -> Result<(), Failure> {
        let now = self.pairs.first().and_then(OnceLock::get).map(|pair| pair.from.metadata());
        match now {
            Some(Ok(now)) if MetadataStamp::of(&now) == self.before => Ok(()),
            _ => Err(Failure::new(&self.source, Cause::Changed)),
        }
    }

    /// Returns the open files of a worker, which uses a mount of its own.
    fn pair(&self, seen: WorkerView<'_>) -> Result<&OpenFilePair, Failure> {
        let slot = self.pairs.get(seen.worker % self.pairs.len().max(1));
        let gone = || Failure::new(&self.place, Cause::Cancelled);
        let slot = slot.ok_or_else(gone)?;
        if let Some(pair) = slot.get() {
            return Ok(pair);
        }
        let source = seen.views.path(seen.worker, &self.source);
        let from =
            nofollow::open_for_reading(&source).map_err(|error| Failure::io("open", &source, error))?;
        // Opened through the worker's own mount on first use, by the temporary name.
        let path = self.outcome().draft.as_ref().map(|draft| draft.path().to_owned()).ok_or_else(gone)?;
        let path = seen.views.path(seen.worker, &path);
        let to = nofollow::open(&path, OFlags::RDWR, 0);
        let to = to.map_err(|error| Failure::io("open", &self.place, error))?;
        Ok(slot.get_or_init(|| OpenFilePair { from, to }))
    }

    fn block(&self, number: u64) -> Block {
        let start = number.saturating_mul(BLOCK).min(self.before.size);
        let end = start.saturating_add(BLOCK).min(self.before.size);
        Block { start, end, is_whole: self.before.size <= BLOCK, sparse: self.sparse }
    }

    fn block_failure(&self, error: BlockError) -> Failure {
        match error {
            BlockError::Read(error) => Failure::io("read", &self.source, error),
            BlockError::Write(error) => Failure::io("write", &self.place, error),
            BlockError::Short => Failure::new(&self.source, Cause::Changed),
        }
    }

    fn outcome(&self) -> std::sync::MutexGuard<'_, CopyState> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Origin of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockOrigin {
    Copied(u64),
    /// From an interrupted copy; its length.
    Resumed(u64),
}

/// A worker's number, and the mounts it chooses from.
#[derive(Clone, Copy)]
pub(crate) struct WorkerView<'a> {
    pub(crate) views: &'a MountViews,
    pub(crate) worker: usize,
}

impl Part {
    /// Returns the blocks of this part with their hashes, if the file is unchanged.
    fn blocks_of(&self, now: &MetadataStamp) -> Vec<(u64, BlockHash)> {
        let same = (self.size, self.source) == (now.size, now.version);
        let first = self.number.saturating_mul(PART / BLOCK);
        let values = self.values.iter().filter(|_| same);
        (first..first.saturating_add(PART / BLOCK)).zip(values.copied()).collect()
    }
}

fn parts(size: u64) -> u64 {
    size.div_ceil(PART).max(1)
}
