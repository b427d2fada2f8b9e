//! Space of files: reservation, release, and the search for holes.

use std::ops::Range;

use bivouac_layout::{TargetRange, file_offset, subfile_len};
use bivouac_types::{Attr, Errno, FsResult, Ino};
use bivouac_wire::{
    ClaimRequest, CountRequest, FindDataRequest, FoundData, SpaceKind, SpaceRequest, SubfileName,
    SubfileState, op,
};

use super::carry::Carried;
use super::publish::{OVERTAKEN_MAX, Update, overtaken};
use super::{Content, finish_numbered};
use crate::homes::known::KnownFile;
use crate::operation::OpCtx;
use crate::tokens::Access;

/// The target of a seek: data or a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekKind {
    /// The next byte that is not in a hole.
    Data,
    /// The next hole.
    Hole,
}

/// `FALLOC_FL_KEEP_SIZE`, `FALLOC_FL_PUNCH_HOLE` and `FALLOC_FL_ZERO_RANGE` of the kernel.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;
/// Bytes that a target is asked to reserve or to zero at once: it must answer within the bounded time.
const PIECE: u64 = 1 << 28;
/// Bytes that a target is asked to free at once.
const HOLE: u64 = 1 << 34;

/// A change of the space of a range of a file.
#[derive(Clone, Copy)]
struct Change {
    ino: Ino,
    file: Access,
    offset: u64,
    end: u64,
    /// Identifies the change at the targets.
    ticket: u64,
}

impl Content {
    /// Reserves, frees or zeroes a range that is not empty; `mode` is the kernel's.
    pub(crate) fn fallocate(&self, ctx: &OpCtx, file: Access, mode: u32, range: Range<u64>) -> FsResult<()> {
        let ino = file.ino;
        // The same for a retransmission, and for no other change.
        let ticket = self.connections.id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ ctx.id.0;
        let change = Change { ino, file, offset: range.start, end: range.end, ticket };
        match mode {
            0 => self.reserve(&change, false, false),
            KEEP_SIZE => self.reserve(&change, false, true),
            ZERO_RANGE => self.reserve(&change, true, false),
            mode if mode == KEEP_SIZE | ZERO_RANGE => self.reserve(&change, true, true),
            mode if mode == KEEP_SIZE | PUNCH_HOLE => self.punch(file, range),
            _ => Err(Errno::EOPNOTSUPP.into()),
        }
    }

    /// Counts, at the targets, how much of a file occupies no space, and reports that to its home. On failure the old
    /// count stays.
    pub(crate) fn count_holes(&self, ino: Ino) {
        self.known.take_filled(ino);
        let counted = self.homes.attr(ino).and_then(|attr| {
            self.connections.ask::<op::Count>(self.connections.home(ino)?, &self.count(&attr)?)
        });
        if let Err(error) = counted {
            log::info!(why:% = error; "holes of inode {ino} are not counted");
        }
    }

    fn count(&self, attr: &Attr) -> FsResult<CountRequest> {
        let ranges = bivouac_layout::split(&attr.layout, 0, attr.size);
        let name = |range: &TargetRange| SubfileName { ino: attr.ino, target: range.target };
        let states = self.ask_targets::<op::StatSubfile>(ranges, name)?;
        // What lies in front of the data, as checksums do, is no content.
        let data = |state: &SubfileState| state.allocated.saturating_sub(state.front);
        let occupied: u64 = states.iter().map(data).sum();
        Ok(CountRequest { ino: attr.ino, holes: attr.size.saturating_sub(occupied), epoch: attr.epoch })
    }

    /// Makes a range a hole. The size stays.
    pub(crate) fn punch(&self, file: Access, range: Range<u64>) -> FsResult<()> {
        let change = Change { ino: file.ino, file, offset: range.start, end: range.end, ticket: 0 };
        let update = Update { has_bytes: false, ..Update::of(file, 0) };
        let punch = |known: &KnownFile, carried: &mut Carried| {
            self.change_targets(&change, known, (SpaceKind::Punch, 0), carried)
        };
        self.publish(&update, |_| 0, punch)
    }

    /// Reserves space on all targets, then changes content, then the size.
    fn reserve(&self, change: &Change, zero: bool, keep_size: bool) -> FsResult<()> {
        let Change { ino, file, offset, end, .. } = *change;
        let mut attr = self.homes.attr(ino)?;
        if keep_size && attr.size == 0 && attr.epoch == 0 {
            // Otherwise its home would not know that there are subfiles to remove with it.
            self.cut_tail(ino);
            attr = self.homes.attr(ino)?;
        }
        // Reserved space reads as what was there: the home has made sure that this is nothing.
        let start = if zero { offset } else { end };
        let end = if keep_size { 0 } else { end };
        let update = Update { has_bytes: false, ..Update::of(file, end) };
        let reserved = self.publish(
            &update,
            |_| start,
            |known, carried| {
                // What is reserved behind the file's end must not make a subfile longer than the file is going to be.
                let size = known.size.max(end);
                let change_targets =
                    |kind, carried: &mut Carried| self.change_targets(change, known, (kind, size), carried);
                // A target drops its reservations when it makes space: each attempt reserves all of it.
                let reserved = change_targets(SpaceKind::Reserve, &mut Carried::default());
                let changed = match reserved {
                    Ok(true) if zero => change_targets(SpaceKind::Zero, carried),
                    reserved => reserved,
                };
                changed.inspect_err(|_| self.take_back(change, known))
            },
        );
        reserved.inspect_err(|_| self.take_back(change, &KnownFile::from(&attr)))
    }

    /// Asks all targets to change their parts, in steps, without what is carried already. Returns false if one had a
    /// newer epoch.
    fn change_targets(
        &self,
        change: &Change,
        known: &KnownFile,
        (kind, size): (SpaceKind, u64),
        carried: &mut Carried,
    ) -> FsResult<bool> {
        assert!(
            change.offset <= change.end,
            "inode {}: a range from {} ends at {}",
            change.ino,
            change.offset,
            change.end
        );
        let piece = if kind == SpaceKind::Punch { HOLE } else { PIECE };
        // So much of each target at a time, all of them at once.
        let step = piece.saturating_mul(u64::from(known.layout.width.max(1)));
        let (mut at, mut number) = (change.offset, 0);
        while at < change.end {
            // Numbers count on over the steps, so that a second try leaves out exactly what was carried.
            let len = step.min(change.end - at);
            let ranges: Vec<TargetRange> = bivouac_layout::split(&known.layout, at, len).collect();
            let behind = number + ranges.len();
            let left = (number..).zip(&ranges).filter(|(number, _)| !carried.has(*number));
            let started = left.map(|(number, range)| {
                let request = space_request(change, known, kind, size, range);
                let start = |node| self.connections.start::<op::ChangeSpace>(node, &request, &[]);
                (number, self.partitions.target_node(range).and_then(start))
            });
            let started = started.collect();
            if !finish_numbered::<op::ChangeSpace>(started, |_, written, _| Ok(written.accepted), carried)? {
                return Ok(false);
            }
            (at, number) = (at + len, behind);
        }
        Ok(true)
    }

    fn take_back(&self, change: &Change, known: &KnownFile) {
        let ranges = bivouac_layout::split(&known.layout, change.offset, change.end - change.offset);
        let request = |range: &TargetRange| space_request(change, known, SpaceKind::TakeBack, 0, range);
        if let Err(error) = self.ask_targets::<op::ChangeSpace>(ranges, request) {
            log::warn!(why:% = error; "inode {}: what was reserved in part is not given back", change.ino);
        }
    }

    /// Returns where data or the next hole begins, at or behind `offset`. Behind the end there is a hole.
    ///
    /// # Errors
    /// `ENXIO` behind the end, or where no data follows; `ENOENT`, `EIO`.
    pub(crate) fn seek(&self, ino: Ino, offset: u64, kind: SeekKind) -> FsResult<u64> {
        let (known, mut found) = (self.homes.ask(ino)?, None);
        let size = self.read_within(OVERTAKEN_MAX, ino.into(), known, |known| {
            let current;
            (found, current) = self.seek_targets(ino, known, offset, kind)?;
            Ok(current)
        })?;
        let size = size.ok_or_else(|| overtaken(ino))?;
        match kind {
            // Also for a hole: POSIX has ENXIO for any offset from the end on.
            _ if offset >= size => Err(Errno::ENXIO.into()),
            SeekKind::Data => found.ok_or_else(|| Errno::ENXIO.into()),
            SeekKind::Hole => Ok(found.unwrap_or(size)),
        }
    }

    /// Returns the first place that any target finds, and true if all are of the known epoch. Takes one message per
    /// target.
    fn seek_targets(
        &self,
        ino: Ino,
        known: &KnownFile,
        offset: u64,
        kind: SeekKind,
    ) -> FsResult<(Option<u64>, bool)> {
        let ranges: Vec<TargetRange> =
            bivouac_layout::split(&known.layout, offset, known.size.saturating_sub(offset)).collect();
        let request =
            |range: &TargetRange| FindDataRequest { ino, target: range.target, offset: range.subfile_offset };
        let answers = self.ask_targets::<op::FindData>(ranges.iter().cloned(), request)?;
        let current = answers.iter().all(|found| found.epoch <= known.epoch);
        let places = ranges.iter().zip(&answers).filter_map(|(range, found)| {
            let place = place_in(range, found, kind)?;
            file_offset(&known.layout, range.column, place)
        });
        Ok((places.min(), current))
    }

    /// Makes an open file longer by `len` bytes, a hole, and returns their offset, which no other claim gets. With 0
    /// bytes, returns the size.
    ///
    /// # Errors
    /// `EFBIG`, `ENOENT`, `EIO`.
    pub(crate) fn claim(&self, ctx: &OpCtx, ino: Ino, len: u64) -> FsResult<u64> {
        let (home, request) = (self.connections.home(ino)?, ClaimRequest { ino, len });
        let claimed =
            self.homes.changing(ino, || self.connections.change::<op::Claim>(home, ctx, &request, &[]))?;
        self.known.changed(&claimed.attr);
        Ok(claimed.offset)
    }
}

/// Returns the wanted place in a target's part of the range.
fn place_in(range: &TargetRange, found: &FoundData, kind: SeekKind) -> Option<u64> {
    let (start, end) = (range.subfile_offset, range.subfile_offset + range.len);
    let place = match kind {
        SeekKind::Data if found.start == found.end => return None,
        SeekKind::Data => found.start,
        SeekKind::Hole if found.start == start => found.end,
        SeekKind::Hole => start,
    };
    (place < end).then_some(place.max(start))
}

fn space_request(
    change: &Change,
    known: &KnownFile,
    kind: SpaceKind,
    size: u64,
    range: &TargetRange,
) -> SpaceRequest {
    let (offset, len) = (range.subfile_offset, range.len);
    let grow = subfile_len(&known.layout, range.column, size).min(offset + len);
    let Change { ino, ticket, .. } = *change;
    let (layout, epoch) = (known.layout, known.epoch);
    SpaceRequest { ino, target: range.target, layout, epoch, kind, offset, len, grow, ticket }
}
