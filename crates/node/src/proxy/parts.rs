//! A seat's part of a flush: its stripes are written beside the target, made durable and read again.

use std::io::IoSliceMut;
use std::time::{Duration, Instant};

use bivouac_source::{Piece, Upload};
use bivouac_types::{Errno, FsResult, Ino, SeatIndex};
use bivouac_wire::{
    FlushMark, FlushPartsRequest, FlushedPart, FlushedParts, MarkFlushRequest, Origin, Whence,
};

use super::bring::offset_in_file;
use super::marks::{Part, Turn};
use super::sites::Site;
use crate::node::Node;
use crate::record::Held;

/// Bytes that one request moves at most, and for how long it goes on at most: it is answered within the bounded time.
const BYTES_MAX: u64 = 64 << 20;
const TIME_MAX: Duration = Duration::from_millis(500);

impl Node {
    /// Marks what a flush takes, or what came of it. Answers the bytes that are not saved.
    pub(crate) fn mark_flush(&self, request: MarkFlushRequest) -> FsResult<u64> {
        let part = Part { ino: request.ino, seat: request.seat };
        self.subfile(part.ino, part.seat)?;
        let stripes = match request.mark {
            FlushMark::Begin => {
                let _alone = self.proxy.uses.no_writes(part);
                self.turn_marks(part, Turn::Begin)?
            }
            FlushMark::Known { whence, offset, len } => {
                let epoch = self.subfile_epoch(part)?;
                self.hold(part, Held { whence, epoch })?;
                // Asks nobody: whence it comes is known.
                drop(self.bring(part.ino, part.seat, offset, len)?);
                0
            }
            FlushMark::Close { epoch, layout } => {
                let _alone = self.proxy.uses.no_writes(part);
                let unsaved = self.turn_marks(part, Turn::Count)?;
                if unsaved == 0 {
                    let id = self.subfile(part.ino, part.seat)?;
                    self.data.trim(id, &self.spec(layout)?.get(), epoch, u64::MAX)?;
                }
                unsaved
            }
            FlushMark::Drop { epoch, whence } => {
                let _alone = self.proxy.uses.no_writes(part);
                let id = self.subfile(part.ino, part.seat)?;
                self.data.trim(id, &self.spec(whence.layout)?.get(), epoch, 0)?;
                self.turn_marks(part, Turn::Remove)?;
                self.hold(part, Held { whence, epoch })?;
                0
            }
            FlushMark::Failed => self.turn_marks(part, Turn::Fail)?,
            FlushMark::Done { origin, limit } => self.end_flush(part, origin, limit)?,
        };
        if stripes == 0 { Ok(0) } else { Ok(stripes * self.stripe_of(part.ino, part.seat)?) }
    }

    /// Writes stripes from one on.
    pub(crate) fn flush_parts(&self, request: &FlushPartsRequest) -> FsResult<FlushedParts> {
        let FlushPartsRequest { ino, seat, whence, path, size, token, from } = request;
        let site = self.site_of(seat.partition())?;
        let upload = Upload { path: path.clone(), size: *size, token: token.clone(), tag: String::new() };
        let begun = Instant::now();
        let (mut pieces, mut moved, mut next) = (Vec::new(), 0, None);
        for stripe in *from.. {
            if offset_in_file(whence, *seat, stripe).is_none_or(|at| at >= *size) {
                break;
            }
            if moved >= BYTES_MAX || begun.elapsed() > TIME_MAX {
                next = Some(stripe);
                break;
            }
            let piece = self.put_stripe(&site, &upload, Part { ino: *ino, seat: *seat }, whence, stripe)?;
            moved += piece.len;
            pieces.push(piece);
        }
        site.source.settle(&upload, &pieces)?;
        let part = |Piece { offset, len, tag }| FlushedPart { offset, len, tag };
        Ok(FlushedParts { parts: pieces.into_iter().map(part).collect(), next })
    }

    /// What was never brought goes from site storage to site storage.
    fn put_stripe(
        &self,
        site: &Site,
        upload: &Upload,
        part: Part,
        whence: &Whence,
        stripe: u64,
    ) -> FsResult<Piece> {
        let at = offset_in_file(whence, part.seat, stripe).ok_or(Errno::EINVAL)?;
        let len = (upload.size - at).min(u64::from(whence.layout.stripe)) as usize;
        // Nothing that is here makes room for something else meanwhile.
        let _here = self.proxy.uses.stay();
        let is_there = at < whence.limit && whence.origin.is_some();
        let mut content = match is_there && !self.marks(part, stripe)?.is_present(stripe) {
            true => self.read_origin(part, whence, stripe)?,
            false => self.read_stripe(part, whence, stripe, len)?,
        };
        content.resize(len, 0);
        Ok(site.source.put(upload, at, &content)?)
    }

    fn read_stripe(&self, part: Part, whence: &Whence, stripe: u64, len: usize) -> FsResult<Vec<u8>> {
        let mut content = vec![0; len];
        let id = self.subfile(part.ino, part.seat)?;
        let offset = stripe * u64::from(whence.layout.stripe);
        let (read, _) = self.data.read(id, offset, &mut [IoSliceMut::new(&mut content)])?;
        content.get_mut(read..).unwrap_or_default().fill(0);
        Ok(content)
    }

    /// The same content under a new name and version: what is here is still right. What was written here only is there
    /// as well now, up to the limit; so it counts as brought.
    fn end_flush(&self, part: Part, origin: Origin, limit: u64) -> FsResult<u64> {
        let Some(held) = self.stored_held(part)? else { return self.turn_marks(part, Turn::End) };
        let old = held.whence.limit;
        let whence = Whence { origin: Some(origin), limit, layout: held.whence.layout };
        let stripe_at = |at: u64| {
            // The first stripe of this subfile that begins at or behind a place of the file.
            let round = u64::from(whence.layout.stripe) * u64::from(whence.layout.width);
            let guess = at / round.max(1);
            (guess..guess + 2)
                .find(|stripe| offset_in_file(&whence, part.seat, *stripe).is_none_or(|from| from >= at))
        };
        let is_behind = old < limit && self.subfile_epoch(part)? <= held.epoch;
        let behind = stripe_at(old).unwrap_or(0)..stripe_at(limit).unwrap_or(0);
        if is_behind {
            self.mark_all_present(part, behind)?;
        }
        let unsaved = self.turn_marks(part, Turn::End)?;
        let limit = if is_behind { limit } else { old.min(limit) };
        self.replace_held(part, &Held { whence: Whence { limit, ..whence }, epoch: held.epoch })?;
        Ok(unsaved)
    }

    /// Bytes of a stripe of a subfile.
    pub(super) fn stripe_of(&self, ino: Ino, seat: SeatIndex) -> FsResult<u64> {
        let held = self.stored_held(Part { ino, seat })?;
        Ok(held.map_or(0, |held| u64::from(held.whence.layout.stripe)).max(1))
    }
}
