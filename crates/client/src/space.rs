//! Space of files: reserved, given back, and where there is none.

use std::ops::Range;

use bivouac_layout::{SeatRange, file_offset, subfile_len};
use bivouac_types::limits::FILE_SIZE_MAX;
use bivouac_types::{Attr, Errno, FsResult, Ino};
use bivouac_wire::{
    ClaimRequest, CountRequest, FindDataRequest, FoundData, MakeUnnamedRequest, SpaceKind, SpaceRequest,
    SubfileName, SubfileState, op,
};

use crate::client::{Client, NewInode, OpCtx, SeekKind};
use crate::data::finish_all;
use crate::known::Known;
use crate::publish::{OVERTAKEN_MAX, Update, overtaken};

/// `FALLOC_FL_KEEP_SIZE`, `FALLOC_FL_PUNCH_HOLE` and `FALLOC_FL_ZERO_RANGE` of the kernel.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;
/// Bytes that a seat is asked to reserve or to zero at once: it must answer within the bounded time.
const PIECE: u64 = 1 << 28;
/// Bytes that a seat is asked to free at once.
const HOLE: u64 = 1 << 34;

/// A change of the space of a range of a file.
#[derive(Clone, Copy)]
struct Change {
    ino: Ino,
    offset: u64,
    end: u64,
    /// Names the change at the seats.
    ticket: u64,
}

impl Client {
    /// Reserves, frees or zeroes a range; `mode` is the kernel's.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for modes that move content; `ENOSPC`, `EDQUOT`: what was reserved is given back; `EFBIG`, `EINVAL`,
    /// `ENOENT`, `EIO`.
    pub fn fallocate(&self, ctx: &OpCtx, ino: Ino, mode: u32, offset: u64, len: u64) -> FsResult<()> {
        let _fenced = self.locks.guard(ino)?;
        let end = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX).ok_or(Errno::EFBIG)?;
        if len == 0 {
            return Err(Errno::EINVAL.into());
        }
        // The same for a repetition, and for nothing else.
        let ticket = self.ways.id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ ctx.id.0;
        let change = Change { ino, offset, end, ticket };
        let carry_out = || match mode {
            0 => self.reserve(&change, false, false),
            KEEP_SIZE => self.reserve(&change, false, true),
            ZERO_RANGE => self.reserve(&change, true, false),
            mode if mode == KEEP_SIZE | ZERO_RANGE => self.reserve(&change, true, true),
            mode if mode == KEEP_SIZE | PUNCH_HOLE => self.punch(ino, offset..end),
            _ => Err(Errno::EOPNOTSUPP.into()),
        };
        self.past_pages(ino, carry_out)?;
        self.count_holes(ino);
        self.save_changed(ino)
    }

    /// Tells the home how much of a file occupies nothing. What cannot be counted now is as it was.
    pub(crate) fn count_holes(&self, ino: Ino) {
        self.known.take_filled(ino);
        let counted = self
            .attr_now(ino)
            .and_then(|attr| self.ways.ask::<op::Count>(self.ways.home(ino)?, &self.count(&attr)?));
        if let Err(error) = counted {
            log::info!(why:% = error; "holes of inode {ino} are not counted");
        }
    }

    fn count(&self, attr: &Attr) -> FsResult<CountRequest> {
        let ranges = bivouac_layout::split(&attr.layout, 0, attr.size);
        let started = ranges.map(|range| {
            let name = SubfileName { ino: attr.ino, seat: range.seat };
            self.ways.start::<op::StatSubfile>(self.seat_node(&range)?, &name, &[])
        });
        let states = finish_all(started.collect::<FsResult<Vec<_>>>()?)?;
        let data = |state: &SubfileState| state.allocated.saturating_sub(state.front);
        let occupied: u64 = states.iter().map(data).sum();
        Ok(CountRequest { ino: attr.ino, holes: attr.size.saturating_sub(occupied), epoch: attr.epoch })
    }

    /// Makes a range a hole. The size stays.
    pub(crate) fn punch(&self, ino: Ino, range: Range<u64>) -> FsResult<()> {
        let change = Change { ino, offset: range.start, end: range.end, ticket: 0 };
        let update = Update { has_bytes: false, ..Update::of(ino, 0) };
        self.publish(&update, |_| 0, |known| self.change_seats(&change, known, SpaceKind::Punch, 0))
    }

    /// First all seats have the space, then content changes, then the size.
    fn reserve(&self, change: &Change, zero: bool, keep_size: bool) -> FsResult<()> {
        let Change { ino, offset, end, .. } = *change;
        let mut attr = self.attr_now(ino)?;
        if keep_size && attr.size == 0 && attr.epoch == 0 {
            // Otherwise its home would not know that there is something to remove with it.
            self.cut_tail(ino);
            attr = self.attr_now(ino)?;
        }
        // What is merely reserved shows what was there: nothing, the home sees to that.
        let start = if zero { offset } else { end };
        let end = if keep_size { 0 } else { end };
        let update = Update { has_bytes: false, ..Update::of(ino, end) };
        let reserved = self.publish(
            &update,
            |_| start,
            |known| {
                let change_seats = |kind| self.change_seats(change, known, kind, known.size.max(end));
                let changed = change_seats(SpaceKind::Reserve)
                    .and_then(|taken| if taken && zero { change_seats(SpaceKind::Zero) } else { Ok(taken) });
                // Seats forget what they have reserved for whom when they make room.
                changed.inspect_err(|_| self.take_back(change, known))
            },
        );
        reserved.inspect_err(|_| self.take_back(change, &Known::from(&attr)))
    }

    /// Has all seats change their parts, in steps. Whether none had a newer epoch.
    fn change_seats(&self, change: &Change, known: &Known, kind: SpaceKind, size: u64) -> FsResult<bool> {
        let piece = if kind == SpaceKind::Punch { HOLE } else { PIECE };
        let step = piece.saturating_mul(u64::from(known.layout.width.max(1)));
        let mut at = change.offset;
        while at < change.end {
            let len = step.min(change.end - at);
            let ranges = bivouac_layout::split(&known.layout, at, len);
            let requests = ranges.map(|range| (self.space_request(change, known, kind, size, &range), range));
            let started = requests.map(|(request, range)| {
                self.ways.start::<op::ChangeSpace>(self.seat_node(&range)?, &request, &[])
            });
            let started = started.collect::<FsResult<Vec<_>>>()?;
            if !finish_all(started)?.iter().all(|written| written.accepted) {
                return Ok(false);
            }
            at += len;
        }
        Ok(true)
    }

    fn space_request(
        &self,
        change: &Change,
        known: &Known,
        kind: SpaceKind,
        size: u64,
        range: &SeatRange,
    ) -> SpaceRequest {
        let (offset, len) = (range.subfile_offset, range.len);
        let grow = subfile_len(&known.layout, range.column, size).min(offset + len);
        let Change { ino, ticket, .. } = *change;
        let (layout, epoch) = (known.layout, known.epoch);
        SpaceRequest { ino, seat: range.seat, layout, epoch, kind, offset, len, grow, ticket }
    }

    fn take_back(&self, change: &Change, known: &Known) {
        let ranges = bivouac_layout::split(&known.layout, change.offset, change.end - change.offset);
        let started = ranges.map(|range| {
            let request = self.space_request(change, known, SpaceKind::TakeBack, 0, &range);
            self.ways.start::<op::ChangeSpace>(self.seat_node(&range)?, &request, &[])
        });
        let outcome = started.collect::<FsResult<Vec<_>>>().and_then(finish_all);
        if let Err(error) = outcome {
            log::warn!(why:% = error; "inode {}: what was reserved in part is not given back", change.ino);
        }
    }

    /// Where data or the next hole begins, at or behind `offset`. Behind the end there is a hole.
    ///
    /// # Errors
    /// `ENXIO` behind the end, or where no data follows; `ENOENT`, `EIO`.
    pub fn seek(&self, ino: Ino, offset: u64, kind: SeekKind) -> FsResult<u64> {
        self.send_unsent(ino)?;
        let (known, mut found) = (Known::from(&self.attr_now(ino)?), None);
        let size = self.read_within(OVERTAKEN_MAX, ino, known, |known| {
            let current;
            (found, current) = self.seek_seats(ino, known, offset, kind)?;
            Ok(current)
        })?;
        let size = size.ok_or_else(|| overtaken(ino))?;
        match kind {
            _ if offset >= size => Err(Errno::ENXIO.into()),
            SeekKind::Data => found.ok_or_else(|| Errno::ENXIO.into()),
            SeekKind::Hole => Ok(found.unwrap_or(size)),
        }
    }

    /// The first place that any seat knows of, and whether all are of the known epoch. One message per seat.
    fn seek_seats(
        &self,
        ino: Ino,
        known: &Known,
        offset: u64,
        kind: SeekKind,
    ) -> FsResult<(Option<u64>, bool)> {
        let ranges: Vec<SeatRange> =
            bivouac_layout::split(&known.layout, offset, known.size.saturating_sub(offset)).collect();
        let started = ranges.iter().map(|range| {
            let request = FindDataRequest { ino, seat: range.seat, offset: range.subfile_offset };
            self.ways.start::<op::FindData>(self.seat_node(range)?, &request, &[])
        });
        let answers = finish_all(started.collect::<FsResult<Vec<_>>>()?)?;
        let current = answers.iter().all(|found| found.epoch <= known.epoch);
        let places = ranges.iter().zip(&answers).filter_map(|(range, found)| {
            let place = place_in(range, found, kind)?;
            file_offset(&known.layout, range.column, place)
        });
        Ok((places.min(), current))
    }

    /// Makes an open file longer by `len` bytes, a hole, and answers where they begin: whoever claims, once each.
    /// Of no bytes, the size.
    ///
    /// # Errors
    /// `EFBIG`, `ENOENT`, `EIO`.
    pub fn claim(&self, ctx: &OpCtx, ino: Ino, len: u64) -> FsResult<u64> {
        self.send_unsent(ino)?;
        let (home, request) = (self.ways.home(ino)?, ClaimRequest { ino, len });
        let claimed = self.changing(ino, || self.ways.change::<op::Claim>(home, ctx, &request, &[]))?;
        self.known.changed(&claimed.attr);
        Ok(claimed.offset)
    }

    /// Makes and opens a regular file without a name; `linkable` says whether it may get one later.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOSPC`, `EIO`.
    pub fn tmpfile(&self, ctx: &OpCtx, parent: Ino, new: &NewInode<'_>, linkable: bool) -> FsResult<Attr> {
        let (mode, uid, gid, near) = (new.mode, ctx.uid, ctx.gid, self.near_seat());
        let (home, asked) = (self.ways.home(parent)?, self.leases.now());
        self.watch(home);
        let opening = self.known.under_way.begin();
        let open = opening.id;
        let request = MakeUnnamedRequest { parent, mode, uid, gid, linkable, open, near };
        let made = self.when_there_is_room(|| self.ways.change::<op::MakeUnnamed>(home, ctx, &request, &[]));
        let seen = made?;
        self.known.add(seen.attr.ino, open);
        Ok(self.saw(asked, seen))
    }
}

/// Where, in a seat's part of what is looked through, the wanted place is.
fn place_in(range: &SeatRange, found: &FoundData, kind: SeekKind) -> Option<u64> {
    let (start, end) = (range.subfile_offset, range.subfile_offset + range.len);
    let place = match kind {
        SeekKind::Data if found.start == found.end => return None,
        SeekKind::Data => found.start,
        SeekKind::Hole if found.start == start => found.end,
        SeekKind::Hole => start,
    };
    (place < end).then_some(place.max(start))
}
