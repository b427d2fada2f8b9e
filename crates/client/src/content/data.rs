//! Reading and writing a range of a file, and appending to it.

use std::io::{IoSlice, IoSliceMut};

use bivouac_layout::SeatRange;
use bivouac_net::Started;
use bivouac_types::limits::{FILE_SIZE_MAX, TRANSFER_MAX};
use bivouac_types::{Errno, FsResult, Ino, OpId, PartitionId};
use bivouac_wire::{InoOnly, ReadRequest, WriteRequest, op};

use super::Content;
use super::carry::{Call, Messages, Verdict};
use super::plan::cut;
use super::publish::{OVERTAKEN_MAX, Update, overtaken};
use crate::client::OpCtx;
use crate::homes::known::Known;
use crate::traffic::count_content;

/// Most bytes of a call that are carried at a time. Between two such parts links wait for an answer; what overtakes or ends
/// a part concerns all of it.
const STRETCH_MAX: usize = 256 << 20;

impl Content {
    /// How many bytes of a call are read or written at a time. What is not longer than a message is one request. In front of
    /// site storage room may have to be made first, so there are as few under way as can be.
    fn stretch(&self, ino: Ino, wanted: usize) -> usize {
        if wanted <= TRANSFER_MAX || self.homes.may_be_bound(ino) { TRANSFER_MAX } else { STRETCH_MAX }
    }

    /// Reads into `into`; fewer bytes than fit only at the end of the file. Holes read as zeros.
    pub(crate) fn read(&self, ino: Ino, offset: u64, into: &mut [u8]) -> FsResult<usize> {
        self.read_by(self.stretch(ino, into.len()), ino, offset, into)
    }

    /// Reads all of a range of a file of the root partition, if that takes no message and no waiting for a disk or another
    /// thread: it is in one subfile, for which there is a grant. Whether it did.
    pub(crate) fn read_granted(&self, ino: Ino, offset: u64, into: &mut [u8]) -> Option<()> {
        let known = self.known.get(ino).filter(|known| known.layout.partition() == PartitionId::ROOT)?;
        if offset.checked_add(into.len() as u64)? > known.size {
            return None;
        }
        let mut ranges = bivouac_layout::split(&known.layout, offset, into.len() as u64);
        let (range, rest) = (ranges.next()?, ranges.next());
        let handle = self.direct.held(ino, range.seat).filter(|_| rest.is_none())?;
        let len = handle.read_at_once(range.subfile_offset, into)?;
        // What is longer than its home knows, or was cut since, is read as always.
        if len < into.len() || handle.epoch() > known.epoch {
            return None;
        }
        count_content(true, range.len);
        Some(())
    }

    /// Reads so many bytes at a time. Where cuts come in between, what is read again is kept short.
    fn read_by(&self, step: usize, ino: Ino, offset: u64, into: &mut [u8]) -> FsResult<usize> {
        let mut done = 0;
        for part in into.chunks_mut(step) {
            let (wanted, at) = (part.len(), offset.saturating_add(done as u64));
            let read = match self.read_part(ino, at, part)? {
                Some(read) => read,
                None if wanted > TRANSFER_MAX => self.read_by(TRANSFER_MAX, ino, at, part)?,
                None => return Err(overtaken(ino)),
            };
            done += read;
            if read < wanted {
                break;
            }
        }
        Ok(done)
    }

    /// Reads what is within the size: the number of bytes, or `None`. The rest is as for [`Content::read_within`].
    fn read_part(&self, ino: Ino, offset: u64, into: &mut [u8]) -> FsResult<Option<usize>> {
        let (wanted, tries) = (into.len(), tries(into.len()));
        let known = self.homes.know_up_to(ino, offset.saturating_add(wanted as u64))?;
        let size = self.read_within(tries, ino, known, |known| {
            match into.get_mut(..len_within(known.size, offset, wanted)) {
                Some(part) if !part.is_empty() => self.read_seats(ino, known, offset, part),
                _ => Ok(true),
            }
        })?;
        Ok(size.map(|size| len_within(size, offset, wanted)))
    }

    /// Reads from all seats, zeros where they have nothing. Whether they had everything, as of this epoch.
    fn read_seats(&self, ino: Ino, known: &Known, offset: u64, into: &mut [u8]) -> FsResult<bool> {
        if into.len() > TRANSFER_MAX {
            let ranges = cut(&known.layout, offset, into.len() as u64);
            let (nodes, slices) = (self.content_nodes(&ranges)?, scatter(&ranges, into));
            return self.in_turns((ino, known), &nodes, &ranges, Reading { ranges: &ranges, slices });
        }
        let mut ranges = bivouac_layout::split(&known.layout, offset, into.len() as u64);
        if ranges.len() == 1
            && let Some(range) = ranges.next()
        {
            let node = self.count_content(&range, range.len)?;
            let buffers = &mut [IoSliceMut::new(into)];
            let (len, epoch) = match self.direct.read(node, ino, &range, buffers) {
                Some(read) => read,
                None => {
                    let request = request(ino, &range);
                    let buffers = &mut [IoSliceMut::new(into)];
                    let (done, len) = self.ways.ask_into::<op::Read>(node, &request, buffers)?;
                    (len, done.epoch)
                }
            };
            into.get_mut(len..).unwrap_or_default().fill(0);
            return Ok(len == into.len() && epoch <= known.epoch);
        }
        let ranges: Vec<SeatRange> = ranges.collect();
        let (nodes, slices) = (self.content_nodes(&ranges)?, scatter(&ranges, into));
        self.at_once((ino, known), &nodes, Reading { ranges: &ranges, slices })
    }

    /// Writes `data` at `offset`: all of it, or an error.
    pub(crate) fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> FsResult<()> {
        self.write_by(self.stretch(ino, data.len()), ino, offset, data)
    }

    /// Writes so many bytes at a time. Where cuts come in between, what is written again is kept short.
    fn write_by(&self, step: usize, ino: Ino, offset: u64, data: &[u8]) -> FsResult<()> {
        let mut at = offset;
        for part in data.chunks(step) {
            let end =
                at.checked_add(part.len() as u64).filter(|end| *end <= FILE_SIZE_MAX).ok_or(Errno::EFBIG)?;
            let update = Update { tries: tries(part.len()), ..Update::of(ino, end) };
            if !self.publish_within(&update, |_| at, |known| self.write_seats(ino, known, at, part))? {
                if part.len() <= TRANSFER_MAX {
                    return Err(overtaken(ino));
                }
                self.write_by(TRANSFER_MAX, ino, at, part)?;
            }
            at = end;
        }
        Ok(())
    }

    /// Writes to all seats. Whether none had a newer epoch.
    fn write_seats(&self, ino: Ino, known: &Known, offset: u64, data: &[u8]) -> FsResult<bool> {
        let (is_long, len) = (data.len() > TRANSFER_MAX, data.len() as u64);
        let split = || bivouac_layout::split(&known.layout, offset, len).collect();
        let ranges: Vec<SeatRange> = if is_long { cut(&known.layout, offset, len) } else { split() };
        let payloads: Vec<Vec<IoSlice<'_>>> = ranges.iter().map(|range| gather(range, data)).collect();
        let nodes = self.content_nodes(&ranges)?;
        let writing = Writing { ranges: &ranges, payloads: &payloads };
        match is_long {
            true => self.in_turns((ino, known), &nodes, &ranges, writing),
            false => self.at_once((ino, known), &nodes, writing),
        }
    }

    /// Writes `data` where the home says: behind the end.
    pub(crate) fn append(&self, ctx: &OpCtx, ino: Ino, data: &[u8]) -> FsResult<()> {
        for (turn, part) in (0..).zip(data.chunks(TRANSFER_MAX)) {
            // Each part is an operation of its own.
            let ctx = OpCtx { id: OpId(ctx.id.0 ^ turn << 48), ..*ctx };
            let (home, payload) = (self.ways.home(ino)?, [IoSlice::new(part)]);
            let append = || self.ways.change::<op::Append>(home, &ctx, &InoOnly { ino }, &payload);
            let done = self.homes.changing(ino, || self.room.when_there_is(append))?;
            self.known.changed(&done.attr);
        }
        Ok(())
    }
}

/// How often so many bytes are read or written again because cuts overtake them.
fn tries(len: usize) -> usize {
    if len > TRANSFER_MAX { 1 } else { OVERTAKEN_MAX }
}

/// How many of the bytes from `offset` on are within a size.
pub fn len_within(size: u64, offset: u64, wanted: usize) -> usize {
    size.saturating_sub(offset).min(wanted as u64) as usize
}

/// Of a call that writes.
struct Writing<'a> {
    ranges: &'a [SeatRange],
    payloads: &'a [Vec<IoSlice<'a>>],
}

impl<'a> Messages<'a> for Writing<'a> {
    type Op = op::Write;

    fn request(&self, call: &Call<'_>, message: usize) -> WriteRequest {
        let (range, layout, epoch) = (&self.ranges[message], call.known.layout, call.known.epoch);
        WriteRequest { ino: call.ino, seat: range.seat, layout, epoch, offset: range.subfile_offset }
    }

    fn payload(&self, message: usize) -> &'a [IoSlice<'a>] {
        &self.payloads[message]
    }

    fn here(&mut self, call: &Call<'_>, message: usize) -> Option<Verdict> {
        let (node, range, payload) = (call.nodes[message], &self.ranges[message], &self.payloads[message]);
        call.direct.write(node, call.ino, range, call.known.epoch, payload).map(Verdict::of_write)
    }

    fn finish(&mut self, _: &Call<'_>, _: usize, started: Started<'_, op::Write>) -> FsResult<Verdict> {
        Ok(Verdict::of_write(started.finish(&mut [])?.0.accepted))
    }
}

/// Of a call that reads.
struct Reading<'a, 'b> {
    ranges: &'a [SeatRange],
    slices: Vec<Vec<IoSliceMut<'b>>>,
}

impl Reading<'_, '_> {
    fn judge(&mut self, call: &Call<'_>, message: usize, read: usize, epoch: u32) -> Verdict {
        bivouac_layout::zero_behind(&mut self.slices[message], read);
        match (epoch <= call.known.epoch, read as u64 == self.ranges[message].len) {
            (false, _) => Verdict::Overtaken,
            (true, false) => Verdict::Short,
            (true, true) => Verdict::Whole,
        }
    }
}

impl<'a> Messages<'a> for Reading<'_, '_> {
    type Op = op::Read;

    fn request(&self, call: &Call<'_>, message: usize) -> ReadRequest {
        request(call.ino, &self.ranges[message])
    }

    fn here(&mut self, call: &Call<'_>, message: usize) -> Option<Verdict> {
        let (node, range) = (call.nodes[message], &self.ranges[message]);
        let (read, epoch) = call.direct.read(node, call.ino, range, &mut self.room(message))?;
        Some(self.judge(call, message, read, epoch))
    }

    fn room(&mut self, message: usize) -> Vec<IoSliceMut<'_>> {
        // Those that are given away may come back advanced.
        self.slices[message].iter_mut().map(|slice| IoSliceMut::new(slice)).collect()
    }

    fn finish(
        &mut self,
        call: &Call<'_>,
        message: usize,
        started: Started<'_, op::Read>,
    ) -> FsResult<Verdict> {
        let (done, read) = started.finish(&mut self.room(message))?;
        Ok(self.judge(call, message, read, done.epoch))
    }
}

fn request(ino: Ino, range: &SeatRange) -> ReadRequest {
    ReadRequest { ino, seat: range.seat, offset: range.subfile_offset, len: range.len as u32 }
}

/// The parts of `part` that belong to one seat.
fn gather<'a>(range: &SeatRange, part: &'a [u8]) -> Vec<IoSlice<'a>> {
    range.pieces().filter_map(|piece| part.get(piece.range()).map(IoSlice::new)).collect()
}

/// The parts of `into` that belong to each of the seats, in their order in the subfiles.
pub fn scatter<'a>(ranges: &[SeatRange], into: &'a mut [u8]) -> Vec<Vec<IoSliceMut<'a>>> {
    let mut pieces: Vec<(usize, usize, usize)> = Vec::new();
    for (index, range) in ranges.iter().enumerate() {
        pieces.extend(range.pieces().map(|piece| (piece.buffer_offset, piece.len, index)));
    }
    pieces.sort_unstable();
    let mut slices: Vec<Vec<IoSliceMut<'a>>> = ranges.iter().map(|_| Vec::new()).collect();
    let mut rest = into;
    for (_, len, index) in pieces {
        let (piece, behind) = std::mem::take(&mut rest).split_at_mut(len);
        slices[index].push(IoSliceMut::new(piece));
        rest = behind;
    }
    slices
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::{Layout, SeatIndex};

    #[test]
    fn what_is_gathered_is_scattered_to_the_same_places() {
        let layout = Layout { stripe: 4096, width: 3, base: SeatIndex(1), seats: 4 };
        let data: Vec<u8> = (0..50_000u32).map(|i| (i % 251) as u8).collect();
        let ranges: Vec<SeatRange> = bivouac_layout::split(&layout, 1000, data.len() as u64).collect();
        let mut back = vec![0; data.len()];
        let mut slices = scatter(&ranges, &mut back);
        for (range, into) in ranges.iter().zip(&mut slices) {
            let bytes: Vec<u8> = gather(range, &data).iter().flat_map(|piece| piece.to_vec()).collect();
            assert_eq!(bytes.len() as u64, range.len);
            let mut at = 0;
            for slice in into.iter_mut() {
                let len = slice.len();
                slice.copy_from_slice(&bytes[at..at + len]);
                at += len;
            }
        }
        assert_eq!(back, data);
    }
}
