//! One file while it is copied. Several threads may work on its parts.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use blake3::Hash;

use crate::blocks::{BLOCK, BlockError, block_is, copy_block, file_digest};
use crate::draft::Draft;
use crate::meta::{Attrs, Stamp, copy_xattrs};
use crate::target::Target;
use crate::{Cause, Failure, Skipped};

/// Bytes of a file that one thread copies or compares at a time; a multiple of the block.
pub(crate) const PART: u64 = 16 * BLOCK;

/// A file that is open on both sides.
pub(crate) struct Job {
    /// Number of the entry in the plan.
    pub(crate) number: usize,
    source: PathBuf,
    place: PathBuf,
    from: File,
    to: File,
    before: Stamp,
    size: u64,
    sparse: bool,
    /// Digests of the blocks that were copied.
    blocks: Vec<OnceLock<Hash>>,
    /// Parts that are still to be copied or compared.
    left: AtomicU64,
    outcome: Mutex<Outcome>,
}

struct Outcome {
    draft: Option<Draft>,
    failure: Option<Failure>,
}

impl Job {
    /// Opens the source and makes the file at the target.
    pub(crate) fn open(
        number: usize,
        source: PathBuf,
        target: &Target,
        relative: &Path,
    ) -> Result<Job, Failure> {
        let open = || {
            let from = open_for_reading(&source)?;
            from.metadata().map(|meta| (from, meta))
        };
        let (from, meta) = open().map_err(|error| Failure::io("open", &source, error))?;
        if !meta.is_file() {
            return Err(Failure::new(&source, Cause::Changed));
        }
        let place = target.place(relative);
        let sparse = meta.blocks().saturating_mul(512) < meta.len();
        let make = || {
            let (draft, to) = target.file(relative)?;
            // Holes are not written, so that the file would stay shorter without this.
            if sparse { to.set_len(meta.len()) } else { Ok(()) }.map(|()| (draft, to))
        };
        let (draft, to) = make().map_err(|error| Failure::io("make it", &place, error))?;
        Ok(Job {
            number,
            source,
            place,
            from,
            to,
            before: Stamp::of(&meta),
            size: meta.len(),
            sparse,
            blocks: (0..meta.len().div_ceil(BLOCK)).map(|_| OnceLock::new()).collect(),
            left: AtomicU64::new(parts(meta.len())),
            outcome: Mutex::new(Outcome { draft: Some(draft), failure: None }),
        })
    }

    pub(crate) fn parts(&self) -> u64 {
        parts(self.size)
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Whether nothing has failed so far.
    pub(crate) fn sound(&self) -> bool {
        self.outcome().failure.is_none()
    }

    /// Notes why the file is not copied; the first reason stays.
    pub(crate) fn fail(&self, failure: Failure) {
        self.outcome().failure.get_or_insert(failure);
    }

    /// Counts a part as done. Whether it was the last; then the count starts anew.
    pub(crate) fn part_done(&self) -> bool {
        let last = self.left.fetch_sub(1, Ordering::AcqRel) == 1;
        if last {
            self.left.store(self.parts(), Ordering::Release);
        }
        last
    }

    /// Copies one block.
    pub(crate) fn copy(&self, block: u64, buffer: &mut [u8]) -> Result<u64, Failure> {
        let range = self.range(block);
        let digest = copy_block((&self.from, &self.to), range, self.sparse, buffer)
            .map_err(|error| self.block_failure(error))?;
        if let Some(slot) = self.blocks.get(block as usize) {
            let _ = slot.set(digest);
        }
        Ok(range.1 - range.0)
    }

    /// Reads one block back and compares it.
    pub(crate) fn verify(&self, block: u64, buffer: &mut [u8]) -> Result<u64, Failure> {
        let range = self.range(block);
        let expected = self.blocks.get(block as usize).and_then(OnceLock::get);
        let differs = || Failure::new(&self.place, Cause::Differs { offset: range.0 });
        let expected = expected.ok_or_else(differs)?;
        let same = block_is(&self.to, range, self.sparse, expected, buffer)
            .map_err(|error| self.block_failure(error))?;
        if same { Ok(range.1 - range.0) } else { Err(differs()) }
    }

    /// The blocks of a part.
    pub(crate) fn blocks_of(&self, part: u64) -> std::ops::Range<u64> {
        let per_part = PART / BLOCK;
        let all = self.blocks.len() as u64;
        (part * per_part).min(all)..((part + 1) * per_part).min(all)
    }

    /// Gives the copy its attributes and writes it to stable storage. Returns what the target did not take.
    pub(crate) fn seal(&self, attrs: &Attrs) -> Result<Vec<Skipped>, Failure> {
        let io = |doing| move |error| Failure::io(doing, &self.place, error);
        let refused = copy_xattrs(&self.from, &self.to).map_err(io("set attributes"))?;
        attrs.apply(&self.to).map_err(io("set mode and times"))?;
        self.to.sync_all().map_err(io("write to stable storage"))?;
        Ok(refused.into_iter().map(|what| Skipped { path: self.source.clone(), what }).collect())
    }

    /// Puts the copy in place if all went well and the source is as it was. Returns the digest.
    pub(crate) fn finish(&self, target: &Target) -> Result<Hash, Failure> {
        let (draft, failure) = {
            let mut outcome = self.outcome();
            (outcome.draft.take(), outcome.failure.take())
        };
        if let Some(failure) = failure {
            return Err(failure);
        }
        self.unchanged()?;
        if let Some(draft) = draft {
            target.put(draft).map_err(|error| Failure::io("put in place", &self.place, error))?;
        }
        Ok(file_digest(self.size, self.blocks.iter().filter_map(OnceLock::get)))
    }

    /// Neither the open file nor what its name stands for has changed.
    fn unchanged(&self) -> Result<(), Failure> {
        let now = self.from.metadata().and_then(|open| Ok((open, self.source.symlink_metadata()?)));
        match now {
            Ok((open, named)) if [Stamp::of(&open), Stamp::of(&named)] == [self.before; 2] => Ok(()),
            _ => Err(Failure::new(&self.source, Cause::Changed)),
        }
    }

    fn range(&self, block: u64) -> (u64, u64) {
        let start = block.saturating_mul(BLOCK).min(self.size);
        (start, start.saturating_add(BLOCK).min(self.size))
    }

    fn block_failure(&self, error: BlockError) -> Failure {
        match error {
            BlockError::Read(error) => Failure::io("read", &self.source, error),
            BlockError::Write(error) => Failure::io("write", &self.place, error),
            BlockError::Short => Failure::new(&self.source, Cause::Changed),
        }
    }

    fn outcome(&self) -> std::sync::MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens what was a file when it was looked at; never waits for the other end of a pipe.
fn open_for_reading(path: &Path) -> std::io::Result<File> {
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
    OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path)
}

fn parts(size: u64) -> u64 {
    size.div_ceil(PART).max(1)
}
