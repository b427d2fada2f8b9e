//! Blocks that turned out to be wrong, and those that are still to get their checksums.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bivouac_ranks::{Mutex, rank};
use bivouac_types::limits::{SCRUB_STEP_MAX, SUM_BLOCK};

use super::subfile::OpenSubfile;
use super::summed::Compared;
use super::{DataStore, SubfileId, names};
use crate::{StoreError, StoreResult};

/// Most damaged blocks of one subfile that are recorded.
const WRONG_MAX: usize = 1024;
/// Most subfiles with damaged blocks that are recorded.
const SUBFILES_MAX: usize = 4096;
/// Most subfiles queued for new checksums; others get them when they are used or scrubbed.
const DOUBTFUL_MAX: usize = 1 << 16;

/// Blocks known to be wrong, and subfiles with blocks that are not known.
pub(super) struct Damage {
    refused: AtomicU64,
    /// Subfiles that have anything wrong: mostly none, and then nobody need look.
    subfiles: AtomicUsize,
    /// True if there were more than are remembered: then any may have.
    is_over_limit: AtomicBool,
    known: Mutex<KnownDamage>,
    on_doubtful: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Damage").field("known", &self.known).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct KnownDamage {
    wrong: BTreeMap<SubfileId, BTreeSet<u64>>,
    doubtful: BTreeSet<SubfileId>,
}

/// A stretch of a subfile's data that is not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongPart {
    /// The subfile.
    pub id: SubfileId,
    /// Bytes of its data, in whole blocks.
    pub range: Range<u64>,
}

/// Result of comparing blocks with their checksums.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Offset to continue at, in bytes of data; `None` at the end.
    pub next: Option<u64>,
    /// Bytes that were compared.
    pub compared: u64,
    /// Bytes that were not compared before and have checksums now.
    pub settled: u64,
    /// Bytes without checksums, or that somebody may be writing.
    pub skipped: u64,
    /// Ranges that differ from what was written.
    pub wrong: Vec<Range<u64>>,
}

impl Default for Damage {
    fn default() -> Damage {
        let known = Mutex::new(rank::DAMAGE, KnownDamage::default());
        let (refused, subfiles) = (AtomicU64::new(0), AtomicUsize::new(0));
        let is_over_limit = AtomicBool::new(false);
        Damage { refused, subfiles, is_over_limit, known, on_doubtful: OnceLock::new() }
    }
}

impl Damage {
    /// Remembers that blocks are wrong; those that were not known before.
    fn add(&self, id: SubfileId, blocks: &[u64]) -> Vec<u64> {
        if blocks.is_empty() {
            return Vec::new();
        }
        let mut known = self.known.lock();
        // A disk that returns garbage everywhere must not fill the memory of its daemon.
        if known.wrong.len() >= SUBFILES_MAX && !known.wrong.contains_key(&id) {
            self.is_over_limit.store(true, Ordering::Relaxed);
            return Vec::new();
        }
        let wrong = known.wrong.entry(id).or_default();
        let room = WRONG_MAX.saturating_sub(wrong.len());
        let news = blocks.iter().copied().filter(|block| wrong.insert(*block)).take(room).collect();
        assert!(wrong.len() <= WRONG_MAX, "{} wrong blocks of one subfile", wrong.len());
        self.subfiles.store(known.wrong.len(), Ordering::Relaxed);
        news
    }

    /// Forgets damage of these blocks, which were written anew or are gone.
    pub(super) fn forget(&self, id: SubfileId, blocks: Range<u64>) {
        let mut known = self.known.lock();
        // Only a subfile that is gone is forgotten as a whole; one that was rewritten may still have blocks without
        // sums.
        if blocks == (0..u64::MAX) {
            known.doubtful.remove(&id);
        }
        if let Some(wrong) = known.wrong.get_mut(&id) {
            wrong.retain(|block| !blocks.contains(block));
            if wrong.is_empty() {
                known.wrong.remove(&id);
                self.subfiles.store(known.wrong.len(), Ordering::Relaxed);
            }
        }
    }

    /// Returns whether something of a subfile may be wrong, as far as that is known.
    pub(super) fn may_be_wrong(&self, id: SubfileId) -> bool {
        // Direct readers compare nothing, so beyond the limit no subfile is given to them; the daemon itself still
        // compares.
        self.is_over_limit.load(Ordering::Relaxed) || self.is_wrong(id)
    }

    pub(super) fn is_wrong(&self, id: SubfileId) -> bool {
        self.subfiles.load(Ordering::Relaxed) > 0 && self.known.lock().wrong.contains_key(&id)
    }

    /// Takes note of a subfile that may have blocks in flux.
    pub(super) fn expect(&self, id: SubfileId, open: &OpenSubfile) {
        if !open.is_in_flux() {
            return;
        }
        let mut known = self.known.lock();
        let is_news = known.doubtful.len() < DOUBTFUL_MAX && known.doubtful.insert(id);
        drop(known);
        if let Some(act) = self.on_doubtful.get().filter(|_| is_news) {
            act();
        }
    }
}

impl Scrubbed {
    pub(super) fn add(&mut self, found: Compared) {
        self.next = found.next.map(|block| block * SUM_BLOCK);
        self.compared += found.compared * SUM_BLOCK;
        self.settled += found.settled * SUM_BLOCK;
        self.skipped += found.skipped * SUM_BLOCK;
        for block in found.wrong {
            add_block(&mut self.wrong, block);
        }
    }
}

fn add_block(ranges: &mut Vec<Range<u64>>, block: u64) {
    let range = block * SUM_BLOCK..(block + 1) * SUM_BLOCK;
    match ranges.last_mut().filter(|last| last.end == range.start) {
        Some(last) => last.end = range.end,
        None => ranges.push(range),
    }
}

impl DataStore {
    /// Remembers a wrong block, and says so.
    pub(super) fn wrong_block(&self, id: SubfileId, block: u64) -> StoreError {
        self.damage.refused.fetch_add(1, Ordering::Relaxed);
        self.note_wrong(id, &[block]);
        let (path, from) = (self.path_of(id).into(), block * SUM_BLOCK);
        StoreError::WrongBlock { path, from, to: from + SUM_BLOCK }
    }

    fn note_wrong(&self, id: SubfileId, blocks: &[u64]) {
        for block in self.damage.add(id, blocks) {
            let from = block * SUM_BLOCK;
            log::error!("{}: bytes {from} to {} are wrong", self.path_of(id), from + SUM_BLOCK);
        }
    }

    /// Notes that these blocks were compared, and which of them are wrong.
    fn compared(&self, id: SubfileId, blocks: Range<u64>, wrong: &[u64]) {
        if self.damage.is_wrong(id) {
            self.damage.forget(id, blocks);
        }
        self.note_wrong(id, wrong);
    }

    /// Returns the number of accesses that were refused because a block is wrong.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.damage.refused.load(Ordering::Relaxed)
    }

    /// Returns the ranges that are known to be wrong, at most `max`.
    #[must_use]
    pub fn wrong(&self, max: usize) -> Vec<WrongPart> {
        let known = self.damage.known.lock();
        let parts = known.wrong.iter().flat_map(|(id, blocks)| {
            let mut ranges = Vec::new();
            blocks.iter().for_each(|block| add_block(&mut ranges, *block));
            ranges.into_iter().map(|range| WrongPart { id: *id, range })
        });
        parts.take(max).collect()
    }

    /// Returns the path of a subfile, for messages.
    #[must_use]
    pub fn path_of(&self, id: SubfileId) -> String {
        let root = self.lent(id.volume).map(|lent| lent.volume.path().to_owned()).unwrap_or_default();
        root.join(names::name_of(id)).display().to_string()
    }

    /// Returns the number of bytes that are known to be wrong.
    #[must_use]
    pub fn wrong_bytes(&self) -> u64 {
        let known = self.damage.known.lock();
        known.wrong.values().map(|blocks| blocks.len() as u64 * SUM_BLOCK).sum()
    }

    /// Compares a subfile from byte `from` of its data on, at most about `bytes` of it. What is in flux gets checksums.
    /// What processes are writing themselves is left alone.
    ///
    /// # Errors
    /// `NoVolume`, `Corrupt` and the like, `Io`.
    pub fn scrub(&self, id: SubfileId, from: u64, bytes: u64) -> StoreResult<Scrubbed> {
        let mut all = Scrubbed { next: Some(from), ..Scrubbed::default() };
        // The caller's number may come from a message, and a step holds up whoever waits for its answer.
        let limit = bytes.min(SCRUB_STEP_MAX);
        while let Some(at) = all.next
            && all.compared + all.settled + all.skipped < limit.max(1)
        {
            // A piece at a time: others want the subfile, too.
            let place = self.place(id)?;
            let mut state = place.state.write();
            let Some(open) = self.opened(id, &mut state)? else { break };
            if open.holders.may_write() {
                self.drop_over(id, open)?;
            }
            self.check_len(id, open)?;
            if !open.is_summed() || open.holders.may_write() {
                all.skipped += open.len().saturating_sub(at);
                all.next = None;
                break;
            }
            let found =
                open.scrub(at / SUM_BLOCK, true).map_err(|error| self.io_error(id, "compare", error))?;
            // Not `u64::MAX`, by which `forget` means a subfile that is gone: this one may still have blocks in doubt.
            self.compared(id, at / SUM_BLOCK..found.next.unwrap_or(u64::MAX - 1), &found.wrong);
            if !found.wrong.is_empty() {
                open.holders.close();
            }
            all.add(found);
        }
        Ok(all)
    }

    /// Sets a callback for when there is work for [`DataStore::settle_sums`]. It is called with a subfile locked.
    pub fn on_doubtful(&self, act: impl Fn() + Send + Sync + 'static) {
        // Set once, by the node.
        let _ = self.damage.on_doubtful.set(Box::new(act));
    }

    /// Gives checksums to some of what has none since a process wrote it itself, or was killed; whether there is more.
    pub fn settle_sums(&self) -> bool {
        // Taken out first and put back after: with it inside, a subfile that cannot be read would be tried for ever.
        let Some(id) = self.damage.known.lock().doubtful.pop_first() else { return false };
        match self.settle_subfile(id) {
            Ok(true) => drop(self.damage.known.lock().doubtful.insert(id)),
            Ok(false) => {}
            // It is tried again when the subfile is opened again or scrubbed.
            Err(error) => log::warn!(error:%; "{error}"),
        }
        !self.damage.known.lock().doubtful.is_empty()
    }

    fn settle_subfile(&self, id: SubfileId) -> StoreResult<bool> {
        let place = self.place(id)?;
        let mut state = place.state.write();
        let Some(open) = self.opened(id, &mut state)? else { return Ok(false) };
        let found = open.settle_some().map_err(|error| self.io_error(id, "compare", error))?;
        let wrong = found.as_ref().map_or(&[][..], |found| found.wrong.as_slice());
        self.note_wrong(id, wrong);
        if !wrong.is_empty() {
            open.holders.close();
        }
        Ok(found.is_some())
    }
}
