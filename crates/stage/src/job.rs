//! One large file while it is copied. Several workers may work on its parts.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use blake3::Hash;
use rustix::fs::OFlags;

use crate::baseline::Baseline;
use crate::blocks::{
    BLOCK, Block, BlockError, Sink, Value, block_is, copy_block, file_digest, rewrite_block,
};
use crate::draft::Draft;
use crate::journal::{Part, control};
use crate::line::{Line, LineKind};
use crate::meta::{Mark, Stamp, copy_xattrs};
use crate::scan::has_holes;
use crate::straight;
use crate::target::Spot;
use crate::views::Views;
use crate::{Anew, Cause, Failure, Skipped};

/// Bytes of a file that one worker copies or compares at a time; a multiple of the block.
pub(crate) const PART: u64 = 4 * BLOCK;

/// A file that is open on both sides.
pub(crate) struct Job {
    /// Number of the entry in the plan.
    pub(crate) number: usize,
    /// How often it was tried before.
    pub(crate) tried: u32,
    path: PathBuf,
    source: PathBuf,
    place: PathBuf,
    /// The file as each of the places that show the formation has it.
    pairs: Vec<OnceLock<Pair>>,
    before: Stamp,
    sparse: bool,
    /// Whether the copy was begun before, so that it need not be zeros.
    begun: bool,
    /// Blocks that were copied before.
    resumed: HashMap<u64, Value>,
    /// Bytes of them that were found to be right.
    already: AtomicU64,
    /// Bytes that were copied by this run, and those that were compared.
    copied: AtomicU64,
    verified: AtomicU64,
    /// Values of the blocks that were copied.
    blocks: Vec<OnceLock<Value>>,
    /// Where the file system lets one writer at a time into a file: whose turn it is.
    turn: Option<Mutex<()>>,
    /// Parts that are still to be copied or compared.
    left: AtomicU64,
    outcome: Mutex<Outcome>,
}

struct Pair {
    from: File,
    to: File,
}

struct Outcome {
    draft: Option<Draft>,
    failure: Option<Failure>,
    target: Option<Mark>,
}

/// What is to be copied.
pub(crate) struct Wanted<'a> {
    pub(crate) number: usize,
    pub(crate) tried: u32,
    pub(crate) source: PathBuf,
    pub(crate) path: &'a Path,
    /// Parts that an interrupted copy completed.
    pub(crate) parts: &'a [Part],
    /// Whether the target's file system lets several writers into a file at once.
    pub(crate) is_shared: bool,
}

impl Job {
    /// Opens the source and makes the file at the target.
    pub(crate) fn open(wanted: Wanted<'_>, spot: &Spot, views: &Views) -> Result<Job, Failure> {
        let Wanted { number, tried, source, path, parts: resumed, is_shared } = wanted;
        let open = || {
            let from = open_for_reading(&source)?;
            from.metadata().map(|meta| (from, meta))
        };
        let (from, meta) = open().map_err(|error| Failure::io("open", &source, error))?;
        if !meta.is_file() {
            return Err(Failure::new(&source, Cause::Changed));
        }
        let (place, before, sparse) = (spot.place(path), Stamp::of(&meta), has_holes(&meta));
        let resumed: HashMap<u64, Value> = resumed.iter().flat_map(|part| part.blocks_of(&before)).collect();
        let begun = if sparse || resumed.is_empty() { None } else { spot.begun(path) };
        let was_begun = begun.is_some();
        let make = || {
            let (draft, to) = begun.map_or_else(|| spot.file(path, 0o600, true), Ok)?;
            // Holes are not written, so that the file would stay shorter without this; what was begun may be longer. Where several
            // write at once they would wait for each other to make it longer, and each time its home would be told.
            if sparse || was_begun || is_shared { to.set_len(meta.len()) } else { Ok(()) }
                .map(|()| (draft, to))
        };
        let (draft, to) = make().map_err(|error| Failure::io("make it", &place, error))?;
        let pairs: Vec<OnceLock<Pair>> = (0..views.count()).map(|_| OnceLock::new()).collect();
        if let Some(first) = pairs.first() {
            let _unset_so_far = first.set(Pair { from, to });
        }
        Ok(Job {
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
            outcome: Mutex::new(Outcome { draft: Some(draft), failure: None, target: None }),
        })
    }

    pub(crate) fn parts(&self) -> u64 {
        parts(self.before.size)
    }

    pub(crate) fn size(&self) -> u64 {
        self.before.size
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

    /// Whether pieces that an interrupted copy had written are not there any more.
    pub(crate) fn lost(&self, parts: &[Part]) -> bool {
        !self.begun && !self.sparse && !parts.is_empty()
    }

    /// Takes down what was told of it.
    pub(crate) fn told(&self, copied: u64, verified: u64) {
        self.copied.fetch_add(copied, Ordering::Relaxed);
        self.verified.fetch_add(verified, Ordering::Relaxed);
    }

    /// All that was told of it, if it is copied again.
    pub(crate) fn anew(&self) -> Anew {
        let [copied, already, verified] =
            [&self.copied, &self.already, &self.verified].map(|sum| sum.load(Ordering::Relaxed));
        Anew { copied, already, verified }
    }

    /// Bytes that an interrupted copy had right.
    pub(crate) fn already(&self) -> u64 {
        self.already.load(Ordering::Relaxed)
    }

    /// The line for the journal that says that nothing is left of the pieces.
    pub(crate) fn gone_line(&self) -> String {
        control("gone", &self.path)
    }

    /// Copies one block, unless an interrupted copy has it right.
    pub(crate) fn copy(&self, seen: Seen<'_>, number: u64, buffer: &mut [u8]) -> Result<Moved, Failure> {
        let (pair, block) = (self.pair(seen)?, self.block(number));
        let failed = |error| self.block_failure(error);
        let resumed = self.resumed.get(&number).copied();
        let to = Sink { file: &pair.to, turn: self.turn.as_ref() };
        let len = block.end - block.start;
        let (value, moved) = match resumed {
            Some(value) if block_is(&pair.to, block, &value, buffer).map_err(failed)? => {
                self.already.fetch_add(len, Ordering::Relaxed);
                (value, Moved::Before(len))
            }
            _ if self.begun => {
                (rewrite_block(&pair.from, to, block, buffer).map_err(failed)?, Moved::Now(len))
            }
            _ => (copy_block(&pair.from, to, block, buffer).map_err(failed)?, Moved::Now(len)),
        };
        if let Some(slot) = self.blocks.get(number as usize) {
            let _ = slot.set(value);
        }
        Ok(moved)
    }

    /// Whether a block needs no reading at the source.
    pub(crate) fn was_copied(&self, number: u64) -> bool {
        self.resumed.contains_key(&number)
    }

    /// Reads one block back and compares it. Answers its length.
    pub(crate) fn verify(&self, seen: Seen<'_>, number: u64, buffer: &mut [u8]) -> Result<u64, Failure> {
        let (pair, block) = (self.pair(seen)?, self.block(number));
        let expected = self.blocks.get(number as usize).and_then(OnceLock::get);
        let differs = || Failure::new(&self.place, Cause::Differs { offset: block.start });
        let expected = expected.ok_or_else(differs)?;
        let same = block_is(&pair.to, block, expected, buffer).map_err(|error| self.block_failure(error))?;
        if same { Ok(block.end - block.start) } else { Err(differs()) }
    }

    /// The blocks of a part.
    pub(crate) fn blocks_of(&self, part: u64) -> std::ops::Range<u64> {
        let per_part = PART / BLOCK;
        let all = self.blocks.len() as u64;
        (part * per_part).min(all)..((part + 1) * per_part).min(all)
    }

    /// The line for the journal that says that a part is complete; none for a file that is one part. A file with holes is
    /// copied anew, so its blocks are not named.
    pub(crate) fn part_line(&self, part: u64) -> Option<String> {
        let value = |number: u64| self.blocks.get(number as usize).and_then(OnceLock::get).copied();
        let mut values = self.blocks_of(part).map(value).collect::<Option<Vec<Value>>>()?;
        if self.sparse {
            values.clear();
        }
        let part = Part { number: part, size: self.before.size, source: self.before.mark, values };
        (self.parts() > 1).then(|| part.encode(&self.path))
    }

    /// Gives the copy its attributes and, if `sync`, writes it to stable storage. Returns what the target did not take.
    pub(crate) fn seal(&self, sync: bool) -> Result<Vec<Skipped>, Failure> {
        let io = |doing| move |error| Failure::io(doing, &self.place, error);
        let Some(Pair { from, to }) = self.pairs.first().and_then(OnceLock::get) else {
            return Ok(Vec::new());
        };
        if !sync && self.parts() > 1 {
            self.publish().map_err(io("write"))?;
        }
        let refused = copy_xattrs(from, to).map_err(io("set attributes"))?;
        self.before.attrs.apply(to).map_err(io("set mode and times"))?;
        if sync {
            to.sync_all().map_err(io("write to stable storage"))?;
        }
        let made = to.metadata().map_err(io("look at it"))?;
        if made.len() != self.before.size {
            return Err(Failure::new(&self.source, Cause::Changed));
        }
        self.outcome().target = Some(Mark::of(&made));
        Ok(refused.into_iter().map(|what| Skipped { path: self.source.clone(), what }).collect())
    }

    /// Has the formation come to rest after several workers wrote. A node tells of writes to a file a little later, by the
    /// time of the telling, if it is not asked to: that would come behind the file's own times. And what was
    /// written behind others counts as having a hole before it until the seats are looked at: later copies would take that for true.
    fn publish(&self) -> std::io::Result<()> {
        let mut pairs = self.pairs.iter().filter_map(OnceLock::get);
        pairs.try_for_each(|pair| pair.to.sync_all())
    }

    /// Has what is on stable storage read from there.
    pub(crate) fn forget_cached(&self) {
        if let Some(pair) = self.pairs.first().and_then(OnceLock::get) {
            let _only_advice = rustix::fs::fadvise(&pair.to, 0, None, rustix::fs::Advice::DontNeed);
        }
    }

    /// Puts the copy in place if all went well and the source is as it was. Returns its line.
    pub(crate) fn finish(
        &self,
        spot: &Spot,
        is_resumable: bool,
        known: Option<&Baseline>,
    ) -> Result<Line, Failure> {
        let Outcome { draft, failure, target } =
            std::mem::replace(&mut *self.outcome(), Outcome { draft: None, failure: None, target: None });
        if let Some(failure) = failure {
            if is_resumable && matches!(failure.cause, Cause::Cancelled) {
                draft.into_iter().for_each(Draft::keep);
            }
            return Err(failure);
        }
        self.unchanged()?;
        let mut line = Line {
            digest: Some(self.digest()),
            target,
            ..Line::of(LineKind::File, &self.before, &self.path)
        };
        if known.is_some_and(|known| line.is_altered(known)) {
            return Err(Failure::new(&self.source, Cause::Altered));
        }
        if let Some(draft) = draft {
            let renamed = draft.is_beside();
            let place = spot.put(draft).map_err(|error| Failure::io("put in place", &self.place, error))?;
            if renamed {
                line.target = straight::look(&place).ok().map(|meta| Mark::of(&meta));
            }
        }
        Ok(line)
    }

    fn digest(&self) -> Hash {
        let values: Vec<Value> = self.blocks.iter().filter_map(OnceLock::get).copied().collect();
        file_digest(&values)
    }

    fn unchanged(&self) -> Result<(), Failure> {
        let now = self.pairs.first().and_then(OnceLock::get).map(|pair| pair.from.metadata());
        match now {
            Some(Ok(now)) if Stamp::of(&now) == self.before => Ok(()),
            _ => Err(Failure::new(&self.source, Cause::Changed)),
        }
    }

    /// The open files for a worker, which goes its own way to the formation.
    fn pair(&self, seen: Seen<'_>) -> Result<&Pair, Failure> {
        let slot = self.pairs.get(seen.worker % self.pairs.len().max(1));
        let gone = || Failure::new(&self.place, Cause::Cancelled);
        let slot = slot.ok_or_else(gone)?;
        if let Some(pair) = slot.get() {
            return Ok(pair);
        }
        let source = seen.views.path(seen.worker, &self.source);
        let from = open_for_reading(&source).map_err(|error| Failure::io("open", &source, error))?;
        let path = self.outcome().draft.as_ref().map(|draft| draft.path().to_owned()).ok_or_else(gone)?;
        let path = seen.views.path(seen.worker, &path);
        let to = straight::open(&path, OFlags::RDWR, 0);
        let to = to.map_err(|error| Failure::io("open", &self.place, error))?;
        Ok(slot.get_or_init(|| Pair { from, to }))
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

    fn outcome(&self) -> std::sync::MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many bytes of a block were copied, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    Now(u64),
    /// By an earlier copy, which was interrupted.
    Before(u64),
}

/// Who looks, and the ways that there are.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) views: &'a Views,
    pub(crate) worker: usize,
}

impl Part {
    /// The blocks of this part with their values, if the file is still the one that it was.
    fn blocks_of(&self, now: &Stamp) -> Vec<(u64, Value)> {
        let same = (self.size, self.source) == (now.size, now.mark);
        let first = self.number.saturating_mul(PART / BLOCK);
        let values = self.values.iter().filter(|_| same);
        (first..first.saturating_add(PART / BLOCK)).zip(values.copied()).collect()
    }
}

/// Opens what was a file when it was looked at; never waits for the other end of a pipe.
pub(crate) fn open_for_reading(path: &Path) -> std::io::Result<File> {
    straight::open(path, OFlags::RDONLY | OFlags::NONBLOCK, 0)
}

fn parts(size: u64) -> u64 {
    size.div_ceil(PART).max(1)
}
