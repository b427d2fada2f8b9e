//! Bringing content from site storage: by stripes, each once.

use std::io::IoSlice;
use std::ops::Range;
use std::time::Duration;

use bivouac_layout::file_offset;
use bivouac_source::Cause;
use bivouac_types::{Errno, FsError, FsResult, Ino, Layout, SeatIndex};
use bivouac_wire::{Decode, Encode, FoundData, InoOnly, Whence, op};

use super::evict::{Here, Writing};
use super::marks::{Part, Turn, turn_in};
use super::pin::keep_pin;
use super::sites::from_wire;
use crate::dispatch::SYSTEM;
use crate::namespace::decode;
use crate::node::Node;
use crate::peers::Steps;
use crate::record::{Held, held_key};

/// Stripes that one node brings at the same time, at most: the other threads serve what is here. Who asks for one more
/// asks again.
const BRINGING_MAX: usize = 5;
/// Longest wait for a stripe that somebody else brings, before its asker asks again.
const WAIT: Duration = Duration::from_secs(2);
/// How often what is known of an origin is asked for anew for one request.
const ASKED_MAX: usize = 64;
/// Zeros of this many bytes and more stay holes, in steps of the same.
const HOLE: usize = 64 << 10;

impl Node {
    /// Sees to it that a range of a subfile is here as far as it comes from site storage, and stays as long as the answer
    /// lives.
    ///
    /// # Errors
    /// `EINPROGRESS` when the asker is to ask again; `ESTALE` when the origin has changed; `EIO` when site storage
    /// does not answer.
    pub(crate) fn bring(
        &self,
        ino: Ino,
        seat: SeatIndex,
        offset: u64,
        len: u64,
    ) -> FsResult<Option<Here<'_>>> {
        self.bring_by(Part { ino, seat }, offset, len, |part| self.held(part))
    }

    /// As [`Node::bring`], for a step, which asks nobody: whence the content comes is told by the file's home, as of an epoch.
    ///
    /// # Errors
    /// `EINPROGRESS` also when that is not so any more.
    pub(super) fn bring_known(
        &self,
        part: Part,
        known: Held,
        offset: u64,
        len: u64,
    ) -> FsResult<Option<Here<'_>>> {
        if known.epoch < self.subfile_epoch(part)? {
            return Err(in_progress(part.ino));
        }
        self.hold(part, known)?;
        let still = |part| self.held_here(part, self.subfile_epoch(part)?);
        self.bring_by(part, offset, len, |part| still(part)?.ok_or_else(|| in_progress(part.ino)))
    }

    /// `whence` says where the content of a subfile comes from as of now.
    fn bring_by(
        &self,
        part: Part,
        offset: u64,
        len: u64,
        whence: impl Fn(Part) -> FsResult<Held>,
    ) -> FsResult<Option<Here<'_>>> {
        if len == 0 || !self.is_bound(part.seat.partition()) {
            return Ok(None);
        }
        self.proxy.uses.note(part);
        let layout = whence(part)?.whence.layout;
        let _wanted = self.proxy.uses.want(part, stripes(&layout, offset, len));
        let mut asked = 0;
        loop {
            let held = whence(part)?;
            let here = self.proxy.uses.stay();
            let Some(stripe) = self.first_missing(part, &held.whence, offset, len)? else {
                return Ok(Some(here));
            };
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

    /// Whence content of a subfile comes; asks the file's home if it is not known, or out of date.
    fn held(&self, part: Part) -> FsResult<Held> {
        let epoch = self.subfile_epoch(part)?;
        if let Some(held) = self.held_here(part, epoch)? {
            return Ok(held);
        }
        let (home, steps) = (self.home_of(part.ino)?, Steps::question(SYSTEM));
        let whence = self.step::<op::FindOrigin>(home, steps, 0, InoOnly { ino: part.ino })?;
        // As of before the question: a cut since is noticed by the epoch.
        self.hold(part, Held { whence, epoch })
    }

    /// Whence content of a subfile comes, if that is known as of this epoch of it.
    fn held_here(&self, part: Part, epoch: u32) -> FsResult<Option<Held>> {
        Ok(self.stored_held(part)?.filter(|held| held.epoch >= epoch))
    }

    pub(super) fn subfile_epoch(&self, part: Part) -> FsResult<u32> {
        Ok(self.data.read(self.subfile(part.ino, part.seat)?, 0, &mut [])?.1)
    }

    pub(super) fn stored_held(&self, part: Part) -> FsResult<Option<Held>> {
        let key = held_key(part.ino, part.seat);
        self.records.read(self.part_slot(part.ino), &key, |bytes| {
            bytes.map(|bytes| decode(bytes, "origin", part.ino)).transpose()
        })
    }

    /// Takes down whence content comes. What came from something else is not believed any more.
    pub(super) fn hold(&self, part: Part, held: Held) -> FsResult<Held> {
        let (slot, key) = (self.part_slot(part.ino), held_key(part.ino, part.seat));
        let mut txn = self.records.txn(&[slot]);
        let held = keep_pin(&txn, slot, part, held);
        let old = txn.get(slot, &key).map(Held::from_bytes);
        let seen = |held: &Held| held.whence.origin.as_ref().map(|origin| origin.seen.clone());
        if matches!(&old, Some(Ok(old)) if seen(old) != seen(&held)) {
            turn_in(&mut txn, slot, part, Turn::Forget)?;
        }
        txn.put(slot, &key, &held.to_bytes());
        self.commit_note(txn)?;
        Ok(held)
    }

    /// As [`Node::hold`], when what is here is still right.
    pub(super) fn replace_held(&self, part: Part, held: Held) -> FsResult<()> {
        let slot = self.part_slot(part.ino);
        let mut txn = self.records.txn(&[slot]);
        let held = keep_pin(&txn, slot, part, held);
        txn.put(slot, &held_key(part.ino, part.seat), &held.to_bytes());
        self.commit_note(txn)
    }

    /// The first stripe of a range that is at site storage only.
    fn first_missing(&self, part: Part, whence: &Whence, offset: u64, len: u64) -> FsResult<Option<u64>> {
        if whence.limit == 0 || whence.origin.is_none() {
            return Ok(None);
        }
        for stripe in stripes(&whence.layout, offset, len) {
            if offset_in_file(whence, part.seat, stripe).is_none_or(|at| at >= whence.limit) {
                return Ok(None);
            }
            if !self.marks(part, stripe)?.is_present(stripe) {
                return Ok(Some(stripe));
            }
        }
        Ok(None)
    }

    /// Brings a stripe, or waits for who does. Whether that was possible: if not, its origin is asked for again.
    fn bring_stripe(&self, part: Part, held: &Held, stripe: u64) -> FsResult<bool> {
        if self.proxy.bringing.lock().contains(&(part, stripe)) {
            bivouac_net::before_waiting();
        }
        {
            let mut bringing = self.proxy.bringing.lock();
            if bringing.contains(&(part, stripe)) {
                return match self.proxy.brought.wait_for(&mut bringing, WAIT).timed_out() {
                    true => Err(in_progress(part.ino)),
                    false => Ok(true),
                };
            }
            if bringing.len() >= BRINGING_MAX {
                return Err(in_progress(part.ino));
            }
            bringing.insert((part, stripe));
        }
        let brought = match self.marks(part, stripe) {
            Ok(marks) if marks.is_present(stripe) => Ok(true),
            Ok(_) => {
                bivouac_net::before_waiting();
                self.bring_now(part, held, stripe)
            }
            Err(error) => Err(error),
        };
        self.proxy.bringing.lock().remove(&(part, stripe));
        self.proxy.brought.notify_all();
        brought
    }

    fn bring_now(&self, part: Part, held: &Held, stripe: u64) -> FsResult<bool> {
        let content = match self.read_origin(part, &held.whence, stripe) {
            Err(error) if error.errno() == Errno::ESTALE => return self.changed_origin(part, held, error),
            content => content?,
        };
        let id = self.subfile(part.ino, part.seat)?;
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
        let _writing = self.proxy.uses.write(part);
        // Dropped meanwhile, with all of its marks.
        if self.subfile_epoch(part)? > held.epoch {
            return Ok(false);
        }
        self.mark_present(part, stripe)?;
        Ok(true)
    }

    /// The content of a stripe at site storage.
    pub(super) fn read_origin(&self, part: Part, whence: &Whence, stripe: u64) -> FsResult<Vec<u8>> {
        let Some(origin) = &whence.origin else { return Ok(Vec::new()) };
        let from = offset_in_file(whence, part.seat, stripe).ok_or(Errno::EINVAL)?;
        let len = whence.limit.saturating_sub(from).min(u64::from(whence.layout.stripe));
        let mut content = vec![0; len as usize];
        let version = from_wire(origin.seen.clone());
        let read =
            self.site_of(part.seat.partition())?.source.read(&origin.path, &version, from, &mut content);
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

    /// The home may know more of the origin by now: a flush puts another file in its place.
    fn changed_origin(&self, part: Part, held: &Held, error: FsError) -> FsResult<bool> {
        let (home, steps) = (self.home_of(part.ino)?, Steps::question(SYSTEM));
        let whence = self.step::<op::FindOrigin>(home, steps, 0, InoOnly { ino: part.ino })?;
        if whence.origin == held.whence.origin {
            return Err(if self.proxy.stale.is_certain(part.ino) { error } else { in_progress(part.ino) });
        }
        self.proxy.stale.forget(part.ino);
        self.hold(part, Held { whence, epoch: held.epoch })?;
        Ok(false)
    }

    /// Before a range of a subfile is written at an epoch: what it had at site storage is brought, and it is marked. A
    /// flush that begins before the answer is dropped does not count what is written until then. On the peer lane
    /// nobody can be asked.
    ///
    /// # Errors
    /// As [`Node::bring`]; on the peer lane `EINPROGRESS` when something has to be brought first.
    pub(crate) fn before_write(
        &self,
        (ino, seat): (Ino, SeatIndex),
        (layout, epoch): (&Layout, u32),
        offset: u64,
        len: u64,
        may_ask: bool,
    ) -> FsResult<Option<Writing<'_>>> {
        if len == 0 || !self.is_bound(seat.partition()) {
            return Ok(None);
        }
        let part = Part { ino, seat };
        let _here;
        if may_ask {
            _here = self.bring(ino, seat, offset, len)?;
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

    /// A place in a subfile that has data as far as its stripes are here: those that are not count as data.
    pub(crate) fn find_brought(
        &self,
        ino: Ino,
        seat: SeatIndex,
        offset: u64,
        found: FoundData,
    ) -> FsResult<FoundData> {
        if !self.is_bound(seat.partition()) {
            return Ok(found);
        }
        let part = Part { ino, seat };
        let held = self.held(part)?;
        let stripe_len = u64::from(held.whence.layout.stripe);
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

    /// The subfile goes: nothing about it need be known.
    pub(crate) fn forget_part(&self, ino: Ino, seat: SeatIndex) -> FsResult<()> {
        if !self.is_bound(seat.partition()) {
            return Ok(());
        }
        self.proxy.uses.forget(Part { ino, seat });
        self.turn_marks(Part { ino, seat }, Turn::Remove).map(drop)
    }
}

/// What a client is told that is to ask again.
pub fn in_progress(ino: Ino) -> FsError {
    FsError::with(Errno::EINPROGRESS, format!("inode {ino} is on its way from site storage: ask again"))
}

/// The same, while what was written is flushed so that it can go.
pub fn making_room() -> FsError {
    FsError::with(Errno::EINPROGRESS, MAKING_ROOM)
}

/// Whether that is why something has to be asked for again.
pub fn is_making_room(error: &FsError) -> bool {
    error.errno() == Errno::EINPROGRESS && error.detail() == Some(MAKING_ROOM)
}

const MAKING_ROOM: &str = "a full volume is being read, or flushed to site storage: ask again";

/// The stripes of a range of a subfile.
pub fn stripes(layout: &Layout, offset: u64, len: u64) -> Range<u64> {
    let stripe = u64::from(layout.stripe.max(1));
    offset / stripe..offset.saturating_add(len).div_ceil(stripe)
}

/// Where in the file a stripe of a subfile begins.
pub fn offset_in_file(whence: &Whence, seat: SeatIndex, stripe: u64) -> Option<u64> {
    let layout = &whence.layout;
    let seats = u32::from(layout.seats.max(1));
    let behind = (u32::from(seat.position()) + seats).checked_sub(u32::from(layout.base.position()))? % seats;
    file_offset(layout, u16::try_from(behind).ok()?, stripe.checked_mul(u64::from(layout.stripe))?)
}

/// The parts that are not long runs of zeros.
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
        let layout = Layout { stripe: 4096, width: 2, base: SeatIndex(0), seats: 2 };
        assert_eq!(stripes(&layout, 0, 1), 0..1);
        assert_eq!(stripes(&layout, 4095, 2), 0..2);
        assert_eq!(stripes(&layout, 8192, 4096), 2..3);
    }
}
