//! Room on a full volume: stripes that site storage has as well go, those of the subfiles first that were not used for
//! the longest time. What was written and not flushed stays, and so does what is pinned.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use bivouac_store::{ChangeCondition, SpaceChange, StoreError, StoreResult};
use bivouac_types::FsResult;
use bivouac_wire::Written;

use super::bring::making_room;
use super::bring::offset_in_file;
use super::marks::{BLOCK_STRIPES, read_marks};
use crate::node::Node;
use crate::proxy_state::Part;
use crate::record::{SubfileOrigin, marks_of_key, table};

/// Least room that is made at once, in bytes, and as a part of the volume.
const ROOM_MIN: u64 = 16 << 20;
const ROOM_PART: u64 = 8;
/// Longest wait for readers before eviction gives up.
const READERS_WAIT: Duration = Duration::from_secs(2);

/// Result of an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evicted {
    /// Space was freed.
    Some,
    /// None was freed; some may be once present or waiting readers are done.
    Later,
    /// Nothing may be evicted.
    Nothing,
}

impl Node {
    /// Makes room on a volume.
    pub(crate) fn evict(&self, volume: u16) -> Evicted {
        let capacity = self.data.usage().get(usize::from(volume)).map_or(0, |usage| usage.capacity);
        // A small volume must not lose all that it has for one request.
        let wanted = ROOM_MIN.min((capacity / ROOM_PART).max(1));
        let (mut freed, is_read) = (0, Cell::new(false));
        for part in self.by_use(volume) {
            match self.evict_part(part, wanted - freed, &is_read) {
                Ok(Some(bytes)) => freed += bytes,
                Ok(None) => {
                    is_read.set(true);
                    break;
                }
                Err(error) => log::warn!(why:% = error; "inode {}: nothing of it made room", part.ino),
            }
            if freed >= wanted {
                break;
            }
        }
        match freed {
            0 if is_read.get() => Evicted::Later,
            0 => Evicted::Nothing,
            _ => Evicted::Some,
        }
    }

    /// Subfiles of a volume that have something that came from site storage and may go, the one first that was not used
    /// for longest.
    fn by_use(&self, volume: u16) -> Vec<Part> {
        let mut parts = BTreeMap::new();
        for slot in self.own_slots() {
            self.records.scan(slot, &table(b'Q'), &table(b'Q'), |key, value| {
                if let Some((ino, target, _)) = marks_of_key(key)
                    && read_marks(Some(value), ino).is_ok_and(|marks| marks.has_clean())
                {
                    parts.insert((ino, target), Part { ino, target });
                }
                ControlFlow::Continue(())
            });
        }
        let may_go = |part: &Part| {
            self.subfile(part.ino, part.target).is_ok_and(|subfile| subfile.volume == volume)
                && self.is_part_pinned(*part).is_ok_and(|pinned| !pinned)
        };
        let mut parts: Vec<Part> = parts.into_values().filter(may_go).collect();
        parts.sort_by_key(|part| self.proxy.uses.last_of(*part));
        parts
    }

    /// Frees about so many bytes of a subfile, from its beginning on. Answers how many; nothing while it is read for
    /// long. Notes whether something stays because another request has had it brought and is about to read it.
    fn evict_part(&self, part: Part, wanted: u64, is_read: &Cell<bool>) -> FsResult<Option<u64>> {
        let Some(_alone) = self.proxy.uses.here.try_write_for(READERS_WAIT) else { return Ok(None) };
        // It may have been pinned until now.
        let Some(held) = self.stored_held(part)?.filter(|held| !held.whence.is_pinned()) else {
            return Ok(Some(0));
        };
        // It was cut since: its origin is to be looked up first, by whoever reads it next.
        if held.epoch < self.subfile_epoch(part)? {
            return Ok(Some(0));
        }
        let (stripe_len, mut freed, mut first) = (u64::from(held.whence.layout.stripe), 0, 0);
        while freed < wanted
            && offset_in_file(&held.whence, part.target, first).is_some_and(|at| at < held.whence.limit)
        {
            let most = (wanted - freed).div_ceil(stripe_len.max(1));
            let gone = self.take_clean(part, &held, first, most, is_read)?;
            for run in gone.chunk_by(|one, next| one + 1 == *next) {
                self.free_stripes(part, &held, run)?;
            }
            freed += gone.len() as u64 * stripe_len;
            first += BLOCK_STRIPES;
        }
        Ok(Some(freed))
    }

    /// Stripes of a block that are not present any more. The marks go first: what is marked is there.
    fn take_clean(
        &self,
        part: Part,
        held: &SubfileOrigin,
        first: u64,
        most: u64,
        is_read: &Cell<bool>,
    ) -> FsResult<Vec<u64>> {
        let len = self.data.stat(self.subfile(part.ino, part.target)?)?.map_or(0, |stat| stat.len);
        let stripe_len = u64::from(held.whence.layout.stripe);
        // Bytes behind the limit are here only: a write whose end the home has yet to hear of.
        let is_there = |stripe: u64| {
            offset_in_file(&held.whence, part.target, stripe).is_some_and(|at| {
                at < held.whence.limit
                    && len.min((stripe + 1) * stripe_len) <= stripe * stripe_len + (held.whence.limit - at)
            })
        };
        let marks = self.marks(part, first)?;
        let is_free = |stripe: &u64| {
            let may_go = marks.is_clean(*stripe) && is_there(*stripe);
            let wanted = if may_go { self.proxy.uses.wanted_by_another(part, *stripe) } else { None };
            is_read.set(is_read.get() || wanted == Some(true));
            may_go && wanted.is_none()
        };
        let clean = (first..first + BLOCK_STRIPES).filter(is_free);
        let clean: Vec<u64> = clean.take(usize::try_from(most).unwrap_or(usize::MAX)).collect();
        if clean.is_empty() {
            return Ok(clean);
        }
        self.take_present(part, first, &clean)
    }

    /// Frees consecutive stripes.
    fn free_stripes(&self, part: Part, held: &SubfileOrigin, stripes: &[u64]) -> FsResult<()> {
        let stripe_len = u64::from(held.whence.layout.stripe);
        let (offset, len) =
            (stripes.first().map_or(0, |first| first * stripe_len), stripes.len() as u64 * stripe_len);
        let awaited = ChangeCondition::ALWAYS;
        let change = SpaceChange { epoch: held.epoch, offset, len, grow: 0, ticket: 0, awaited };
        self.data.punch(self.subfile(part.ino, part.target)?, &change)?;
        Ok(())
    }
}

impl Node {
    /// Changes a subfile. If there is no room it is tried again: after what processes that write directly do not need
    /// of their windows was taken back, and if `may_collect` after garbage was removed.
    pub(crate) fn with_room(
        &self,
        volume: u16,
        may_collect: bool,
        change: impl Fn() -> StoreResult<u32>,
    ) -> FsResult<Written> {
        let mut outcome = change();
        if matches!(outcome, Err(StoreError::NoSpace { .. } | StoreError::Quota { .. }))
            && self.reclaim_direct(volume)
        {
            outcome = change();
        }
        if may_collect && outcome.as_ref().is_err_and(StoreError::is_full) {
            self.make_room();
            outcome = change();
        }
        let mut is_flushed = false;
        while outcome.as_ref().is_err_and(StoreError::is_full) {
            match self.evict(volume) {
                Evicted::Some => outcome = change(),
                // Those who read are done in a moment, and what is flushed meanwhile can go: the asker asks again.
                Evicted::Later => return Err(making_room()),
                Evicted::Nothing if self.flush_for_room(volume) => return Err(making_room()),
                // What could not go at the first look, and needed no flush at the second, was flushed in between.
                Evicted::Nothing if !is_flushed => is_flushed = true,
                Evicted::Nothing => break,
            }
        }
        match outcome {
            Ok(epoch) => Ok(Written { accepted: true, epoch }),
            Err(StoreError::StaleEpoch { current }) => Ok(Written { accepted: false, epoch: current }),
            Err(error) => Err(error.into()),
        }
    }
}
