//! Bringing content from site storage: by stripes, each once.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bivouac_layout::file_offset;
use bivouac_source::Cause;
use bivouac_types::{Errno, FsError, FsResult, Ino, Layout, TargetIndex};
use bivouac_wire::{Decode, Encode, FoundData, InoOnly, Whence, op};
use scopeguard::guard;

use super::marks::{MarksChange, turn_in};
use super::pin::keep_pin;
use super::sites::from_wire;
use crate::identity::SYSTEM;
use crate::namespace::decode;
use crate::node::Node;
use crate::peers::StepContext;
use crate::proxy_state::{Part, PresentStripes, WritePass};
use crate::record::{SubfileOrigin, held_key};

/// Stripes that one node brings at the same time, at most: the other threads serve what is here. Who asks for one more
/// asks again.
const BRINGING_MAX: usize = 5;
/// Stripes that are brought ahead when the first one of a file is read.
const AHEAD_AT_FIRST: usize = 2;
/// Longest wait for a stripe that somebody else brings, before its asker asks again.
const WAIT: Duration = Duration::from_secs(2);
/// Most times that an origin is looked up anew for one request.
const ASKED_MAX: usize = 64;
/// Zeros of this many bytes and more stay holes, in steps of the same.
const HOLE: usize = 64 << 10;

impl Node {
    /// Sees to it that a range of a subfile is here as far as it comes from site storage, and stays as long as the
    /// answer lives.
    ///
    /// # Errors
    /// `EINPROGRESS` when the asker is to ask again; `ESTALE` when the origin has changed; `EIO` when site storage
    /// does not answer.
    pub(crate) fn bring(
        &self,
        ino: Ino,
        target: TargetIndex,
        offset: u64,
        len: u64,
    ) -> FsResult<Option<PresentStripes<'_>>> {
        self.bring_by(Part { ino, target }, offset, len, |part| self.held(part))
    }

    /// Like [`Node::bring`], for a step, which asks no node: the file's home has said where the content comes from, as
    /// of an epoch.
    ///
    /// # Errors
    /// `EINPROGRESS` also when that is not so any more.
    pub(super) fn bring_known(
        &self,
        part: Part,
        known: SubfileOrigin,
        offset: u64,
        len: u64,
    ) -> FsResult<Option<PresentStripes<'_>>> {
        if known.epoch < self.subfile_epoch(part)? {
            return Err(in_progress(part.ino));
        }
        self.hold(part, known)?;
        let still = |part| self.held_here(part, self.subfile_epoch(part)?);
        self.bring_by(part, offset, len, |part| still(part)?.ok_or_else(|| in_progress(part.ino)))
    }

    /// Sees to it that a range of a subfile is here; `whence` says where its content comes from as of now.
    fn bring_by(
        &self,
        part: Part,
        offset: u64,
        len: u64,
        whence: impl Fn(Part) -> FsResult<SubfileOrigin>,
    ) -> FsResult<Option<PresentStripes<'_>>> {
        if len == 0 || !self.is_bound(part.target.partition()) {
            return Ok(None);
        }
        self.proxy.uses.note(part);
        let layout = whence(part)?.whence.layout;
        let _wanted = self.proxy.uses.want(part, stripes(&layout, offset, len));
        let mut asked = 0;
        loop {
            let held = whence(part)?;
            // Taken before the look, so that nothing that was found here is evicted until it has been read.
            let here = self.proxy.uses.stay();
            let Some(stripe) = self.first_missing(part, &held.whence, offset, len)? else {
                let stripe_len = u64::from(held.whence.layout.stripe).max(1);
                if offset.is_multiple_of(stripe_len) {
                    // A reader that goes on does not wait until it finds one missing.
                    self.bring_ahead(part, &held, offset / stripe_len);
                }
                return Ok(Some(here));
            };
            // Given up while something is brought: room for that may have to come from evictions.
            drop(here);
            if !self.bring_stripe(part, &held, stripe)? {
                asked += 1;
            }
            if asked > ASKED_MAX {
                return Err(FsError::with(
                    Errno::EIO,
                    format!("inode {} was cut or replaced all the time", part.ino),
                ));
            }
        }
    }

    /// Returns whence content of a subfile comes; asks the file's home if it is not known, or out of date.
    fn held(&self, part: Part) -> FsResult<SubfileOrigin> {
        let epoch = self.subfile_epoch(part)?;
        if let Some(held) = self.held_here(part, epoch)? {
            return Ok(held);
        }
        let (home, steps) = (self.home_of(part.ino)?, StepContext::question(SYSTEM));
        let whence = self.step::<op::FindOrigin>(home, steps, 0, InoOnly { ino: part.ino })?;
        // As of before the question: a cut since is noticed by the epoch.
        self.hold(part, SubfileOrigin { whence, epoch })
    }

    /// Returns whence content of a subfile comes, if that is known as of this epoch of it.
    fn held_here(&self, part: Part, epoch: u32) -> FsResult<Option<SubfileOrigin>> {
        Ok(self.stored_held(part)?.filter(|held| held.epoch >= epoch))
    }

    pub(super) fn subfile_epoch(&self, part: Part) -> FsResult<u32> {
        Ok(self.data.read(self.subfile(part.ino, part.target)?, 0, &mut [])?.1)
    }

    pub(super) fn stored_held(&self, part: Part) -> FsResult<Option<SubfileOrigin>> {
        let key = held_key(part.ino, part.target);
        self.records.read(self.part_slot(part.ino), &key, |bytes| {
            bytes.map(|bytes| decode(bytes, "origin", part.ino)).transpose()
        })
    }

    /// Takes down whence content comes. What came from something else is not believed any more.
    pub(super) fn hold(&self, part: Part, held: SubfileOrigin) -> FsResult<SubfileOrigin> {
        let (slot, key) = (self.part_slot(part.ino), held_key(part.ino, part.target));
        let mut txn = self.records.txn(&[slot]);
        let held = keep_pin(&txn, slot, part, held);
        let old = txn.get(slot, &key).map(SubfileOrigin::from_bytes);
        let seen = |held: &SubfileOrigin| held.whence.origin.as_ref().map(|origin| origin.seen.clone());
        if matches!(&old, Some(Ok(old)) if seen(old) != seen(&held)) {
            turn_in(&mut txn, slot, part, MarksChange::Forget)?;
        }
        txn.put(slot, &key, &held.to_bytes());
        self.commit_note(txn)?;
        Ok(held)
    }

    /// Like [`Node::hold`], where the content that is here is still valid.
    pub(super) fn replace_held(&self, part: Part, held: SubfileOrigin) -> FsResult<()> {
        let slot = self.part_slot(part.ino);
        let mut txn = self.records.txn(&[slot]);
        let held = keep_pin(&txn, slot, part, held);
        txn.put(slot, &held_key(part.ino, part.target), &held.to_bytes());
        self.commit_note(txn)
    }

    /// Returns the first stripe of a range that is at site storage only.
    fn first_missing(&self, part: Part, whence: &Whence, offset: u64, len: u64) -> FsResult<Option<u64>> {
        if whence.limit == 0 || whence.origin.is_none() {
            return Ok(None);
        }
        for stripe in stripes(&whence.layout, offset, len) {
            if offset_in_file(whence, part.target, stripe).is_none_or(|at| at >= whence.limit) {
                return Ok(None);
            }
            if !self.marks(part, stripe)?.is_present(stripe) {
                return Ok(Some(stripe));
            }
        }
        Ok(None)
    }

    /// Brings a stripe, or waits for who does. Whether that was possible: if not, its origin is asked for again.
    fn bring_stripe(&self, part: Part, held: &SubfileOrigin, stripe: u64) -> FsResult<bool> {
        // Announced before the lock is taken, since it may start a thread.
        if self.proxy.bringing.lock().contains(&(part, stripe)) {
            bivouac_net::before_waiting();
        }
        {
            let mut bringing = self.proxy.bringing.lock();
            if bringing.contains(&(part, stripe)) {
                drop(bringing);
                self.bring_ahead(part, held, stripe);
                let mut bringing = self.proxy.bringing.lock();
                // It may have come while the lock was free.
                if !bringing.contains(&(part, stripe)) {
                    return Ok(true);
                }
                return match self.proxy.brought.wait_for(&mut bringing, WAIT).timed_out() {
                    true => Err(in_progress(part.ino)),
                    false => Ok(true),
                };
            }
            // What is read ahead has threads of its own, and takes none from requests.
            let ahead = self.proxy.ahead.load(Ordering::Relaxed);
            if bringing.len().saturating_sub(ahead) >= BRINGING_MAX {
                return Err(in_progress(part.ino));
            }
            bringing.insert((part, stripe));
        }
        let _end = guard((), |()| {
            let was_coming = self.proxy.bringing.lock().remove(&(part, stripe));
            assert!(
                was_coming || std::thread::panicking(),
                "stripe {stripe} of inode {} was brought by two",
                part.ino
            );
            self.proxy.brought.notify_all();
        });
        self.bring_ahead(part, held, stripe);
        // It may have come between the look for it and now.
        match self.marks(part, stripe) {
            Ok(marks) if marks.is_present(stripe) => Ok(true),
            Ok(_) => {
                bivouac_net::before_waiting();
                self.bring_now(part, held, stripe)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads ahead behind a stripe that was asked for: as many stripes as a distant source needs to be busy, provided
    /// that the stripe in front is here too, or this is the first one.
    fn bring_ahead(&self, part: Part, held: &SubfileOrigin, stripe: u64) {
        if !self.changes_there(part.target.partition()) {
            return;
        }
        let Ok(Some(site)) = self.site(part.target.partition()) else { return };
        let layout = &held.whence.layout;
        let Some(depth) = site.source.pieces_under_way(layout.stripe.into()) else { return };
        let is_here = |stripe| self.marks(part, stripe).is_ok_and(|marks| marks.is_present(stripe));
        let count = match stripe.checked_sub(1) {
            None => depth.min(AHEAD_AT_FIRST) as u64,
            Some(before) if is_here(before) || self.proxy.bringing.lock().contains(&(part, before)) => {
                // The depth is shared by the targets, which read ahead together.
                depth.div_ceil(usize::from(layout.width.max(1))) as u64
            }
            Some(_) => return,
        };
        for next in stripe + 1..=stripe + count {
            let is_behind =
                offset_in_file(&held.whence, part.target, next).is_none_or(|at| at >= held.whence.limit);
            if is_behind {
                return;
            }
            match self.begin_ahead(part, next, depth) {
                None => return,
                Some(false) => continue,
                Some(true) => {}
            }
            let Some(node) = self.this.get().and_then(std::sync::Weak::upgrade) else {
                return self.end_ahead(part, next);
            };
            let ended = Arc::clone(&node);
            let end = guard((), move |()| ended.end_ahead(part, next));
            if is_here(next) {
                continue;
            }
            let held = held.clone();
            let work = move || {
                // Without a thread it is dropped with this closure.
                let _end = end;
                // Whoever wants it learns why it did not come.
                if let Err(error) = node.bring_now(part, &held, next) {
                    log::debug!(why:% = error; "a stripe of inode {} was not brought ahead", part.ino);
                }
            };
            if std::thread::Builder::new().name("ahead".to_owned()).spawn(work).is_err() {
                return;
            }
        }
    }

    /// Returns true if a stripe is to be read ahead, false if it is under way; `None` when enough of them are.
    fn begin_ahead(&self, part: Part, stripe: u64, depth: usize) -> Option<bool> {
        let mut bringing = self.proxy.bringing.lock();
        if self.proxy.ahead.load(Ordering::Relaxed) >= depth {
            return None;
        }
        let is_new = bringing.insert((part, stripe));
        if is_new {
            self.proxy.ahead.fetch_add(1, Ordering::Relaxed);
        }
        Some(is_new)
    }

    fn end_ahead(&self, part: Part, stripe: u64) {
        let mut bringing = self.proxy.bringing.lock();
        let was_coming = bringing.remove(&(part, stripe));
        let is_panic = std::thread::panicking();
        assert!(was_coming || is_panic, "stripe {stripe} was brought ahead, and was not on its way");
        let ahead = self.proxy.ahead.fetch_sub(1, Ordering::Relaxed);
        assert!(ahead > 0 || is_panic, "stripe {stripe} was brought ahead, and was not counted");
        drop(bringing);
        self.proxy.brought.notify_all();
    }

    fn bring_now(&self, part: Part, held: &SubfileOrigin, stripe: u64) -> FsResult<bool> {
        let content = match self.read_origin(part, &held.whence, stripe) {
            Err(error) if error.errno() == Errno::ESTALE => return self.changed_origin(part, held, error),
            content => content?,
        };
        let id = self.subfile(part.ino, part.target)?;
        let spec = self.spec(held.whence.layout)?;
        let start = stripe * u64::from(held.whence.layout.stripe);
        for run in data_runs(&content) {
            let bytes = content.get(run.clone()).unwrap_or_default();
            let write = || {
                self.data.write(id, &spec.get(), held.epoch, start + run.start as u64, &[IoSlice::new(bytes)])
            };
            // Cut meanwhile.
            if !self.with_room(id.volume, true, write)?.accepted {
                return Ok(false);
            }
        }
        // A flush that drops the subfile turns its marks alone: they are set before it begins, or not at all.
        let _writing = self.proxy.uses.write(part);
        // Dropped meanwhile, with all of its marks.
        if self.subfile_epoch(part)? > held.epoch {
            return Ok(false);
        }
        self.mark_present(part, stripe)?;
        Ok(true)
    }

    /// Returns the content of a stripe at site storage.
    pub(super) fn read_origin(&self, part: Part, whence: &Whence, stripe: u64) -> FsResult<Vec<u8>> {
        let Some(origin) = &whence.origin else { return Ok(Vec::new()) };
        let from = offset_in_file(whence, part.target, stripe).ok_or(Errno::EINVAL)?;
        let len = whence.limit.saturating_sub(from).min(u64::from(whence.layout.stripe));
        let mut content = vec![0; len as usize];
        let version = from_wire(origin.seen.clone());
        let read =
            self.site_of(part.target.partition())?.source.read(&origin.path, &version, from, &mut content);
        match read {
            Ok(read) if read as u64 == len => Ok(content),
            Ok(read) => {
                let name = String::from_utf8_lossy(&origin.path);
                let text = format!("'{name}' at the source ends {} bytes early", len - read as u64);
                Err(FsError::with(Errno::ESTALE, text))
            }
            Err(error) if error.cause() == Cause::NotFound => {
                Err(FsError::with(Errno::ESTALE, format!("{error}: it was there when it was listed")))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Asks the home about an origin that has changed: it may know more of it by now, as a flush puts another file in
    /// its place. Returns false if the stripe is to be tried again.
    fn changed_origin(&self, part: Part, held: &SubfileOrigin, error: FsError) -> FsResult<bool> {
        let (home, steps) = (self.home_of(part.ino)?, StepContext::question(SYSTEM));
        let whence = self.step::<op::FindOrigin>(home, steps, 0, InoOnly { ino: part.ino })?;
        if whence.origin == held.whence.origin {
            return Err(if self.proxy.stale.is_certain(part.ino) { error } else { in_progress(part.ino) });
        }
        // The doubt was about the origin of before.
        self.proxy.stale.forget(part.ino);
        self.hold(part, SubfileOrigin { whence, epoch: held.epoch })?;
        Ok(false)
    }

    /// Prepares a write to a range of a subfile at an epoch: brings what it had at site storage, and marks it. A flush
    /// that begins before the answer is dropped does not count what is written until then. On the peer lane nobody can
    /// be asked.
    ///
    /// # Errors
    /// As [`Node::bring`]; on the peer lane `EINPROGRESS` when something has to be brought first.
    pub(crate) fn before_write(
        &self,
        (ino, target): (Ino, TargetIndex),
        (layout, epoch): (&Layout, u32),
        offset: u64,
        len: u64,
        may_ask: bool,
    ) -> FsResult<Option<WritePass<'_>>> {
        if len == 0 || !self.is_bound(target.partition()) {
            return Ok(None);
        }
        let part = Part { ino, target };
        // Held until the stripes are marked as dirty: only clean ones make room.
        let _here;
        if may_ask {
            self.check_content_permitted(target.partition())?;
            _here = self.bring(ino, target, offset, len)?;
        } else {
            _here = Some(self.proxy.uses.stay());
            let now = self.subfile_epoch(part)?;
            let held = self.stored_held(part)?.filter(|held| held.epoch >= now);
            let held = held.ok_or_else(|| in_progress(ino))?;
            if self.first_missing(part, &held.whence, offset, len)?.is_some() {
                return Err(in_progress(ino));
            }
        }
        let writing = self.proxy.uses.write(part);
        // One of an older epoch is refused: it leaves nothing.
        if self.subfile_epoch(part)? <= epoch {
            self.mark_dirty(part, stripes(layout, offset, len))?;
        }
        Ok(Some(writing))
    }

    /// Returns a place in a subfile that has data as far as its stripes are here: those that are not count as data.
    pub(crate) fn find_brought(
        &self,
        ino: Ino,
        target: TargetIndex,
        offset: u64,
        found: FoundData,
    ) -> FsResult<FoundData> {
        if !self.is_bound(target.partition()) {
            return Ok(found);
        }
        let part = Part { ino, target };
        let held = self.held(part)?;
        let stripe_len = u64::from(held.whence.layout.stripe);
        // Nothing behind `offset` is here: all that site storage has up to the limit still counts.
        let end = if found.start == u64::MAX { held.whence.limit } else { found.start };
        let missing = self.first_missing(part, &held.whence, offset, end.saturating_sub(offset))?;
        Ok(match missing {
            Some(stripe) => FoundData {
                start: (stripe * stripe_len).max(offset),
                end: (stripe + 1) * stripe_len,
                ..found
            },
            None => found,
        })
    }

    /// Forgets what is known of a subfile that goes.
    pub(crate) fn forget_part(&self, ino: Ino, target: TargetIndex) -> FsResult<()> {
        if !self.is_bound(target.partition()) {
            return Ok(());
        }
        self.proxy.uses.forget(Part { ino, target });
        self.turn_marks(Part { ino, target }, MarksChange::Remove).map(drop)
    }
}

/// Returns the error for a client that has to ask again.
pub fn in_progress(ino: Ino) -> FsError {
    FsError::with(Errno::EINPROGRESS, format!("inode {ino} is on its way from site storage: ask again"))
}

/// Returns the error for a client that has to ask again, while what was written is flushed so that it can go.
pub fn making_room() -> FsError {
    FsError::with(Errno::EINPROGRESS, MAKING_ROOM)
}

/// Returns true if an error says to ask again because space is being made.
pub fn is_making_room(error: &FsError) -> bool {
    error.errno() == Errno::EINPROGRESS && error.detail() == Some(MAKING_ROOM)
}

const MAKING_ROOM: &str = "a full volume is being read, or flushed to site storage: ask again";

/// Returns the stripes of a range of a subfile.
pub fn stripes(layout: &Layout, offset: u64, len: u64) -> Range<u64> {
    let stripe = u64::from(layout.stripe.max(1));
    offset / stripe..offset.saturating_add(len).div_ceil(stripe)
}

/// Returns the offset in the file at which a stripe of a subfile begins.
pub fn offset_in_file(whence: &Whence, target: TargetIndex, stripe: u64) -> Option<u64> {
    let layout = &whence.layout;
    let targets = u32::from(layout.targets.max(1));
    let behind =
        (u32::from(target.position()) + targets).checked_sub(u32::from(layout.base.position()))? % targets;
    file_offset(layout, u16::try_from(behind).ok()?, stripe.checked_mul(u64::from(layout.stripe))?)
}

/// Returns the parts that are not long runs of zeros.
fn data_runs(content: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (number, block) in content.chunks(HOLE).enumerate() {
        if block.iter().all(|byte| *byte == 0) {
            continue;
        }
        let start = number * HOLE;
        match runs.last_mut() {
            Some(last) if last.end == start => last.end += block.len(),
            _ => runs.push(start..start + block.len()),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_stay_holes() {
        let mut content = vec![0; 5 * HOLE + 10];
        content[HOLE] = 1;
        content[3 * HOLE - 1] = 1;
        content[5 * HOLE + 3] = 1;
        assert_eq!(data_runs(&content), [HOLE..3 * HOLE, 5 * HOLE..5 * HOLE + 10]);
        assert_eq!(data_runs(&[0; 7]), []);
    }

    #[test]
    fn stripes_of_a_range_are_all_that_it_touches() {
        let layout = Layout { stripe: 4096, width: 2, base: TargetIndex(0), targets: 2 };
        assert_eq!(stripes(&layout, 0, 1), 0..1);
        assert_eq!(stripes(&layout, 4095, 2), 0..2);
        assert_eq!(stripes(&layout, 8192, 4096), 2..3);
    }
}
