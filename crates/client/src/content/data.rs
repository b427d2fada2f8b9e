//! Reading and writing a range of a file, and appending to it.

use std::io::{IoSlice, IoSliceMut};

use bivouac_layout::TargetRange;
use bivouac_net::StartedCall;
use bivouac_types::limits::{FILE_SIZE_MAX, TRANSFER_MAX};
use bivouac_types::{Contract, Errno, FsError, FsResult, Ino, PartitionId};
use bivouac_wire::{AppendRequest, ReadRequest, WriteRequest, op};

use super::Content;
use super::carry::{Call, Carried, Messages, Verdict};
use super::plan::cut;
use super::publish::{OVERTAKEN_MAX, Update, overtaken};
use crate::homes::known::KnownFile;
use crate::operation::OpCtx;
use crate::tokens::Access;
use crate::traffic::count_content;

/// Most bytes of a call that are carried at a time. Between two such parts links are idle for a round trip; a
/// truncation or an error affects the whole part.
const STRETCH_MAX: usize = 256 << 20;

impl Content {
    /// Returns how many bytes of a call are read or written at a time. A range that fits one message is one request. In
    /// front of site storage, space may have to be made first, so as few as possible are under way.
    fn stretch(&self, ino: Ino, wanted: usize) -> usize {
        if wanted <= TRANSFER_MAX || self.homes.may_be_bound(ino) { TRANSFER_MAX } else { STRETCH_MAX }
    }

    /// From now on reads blocks with checksums through their daemons; see [`Direct::compare_reads`].
    pub(crate) fn compare_reads(&self) {
        self.direct.compare_reads();
    }

    /// Reads into `into`; fewer bytes than fit only at the end of the file. Holes read as zeros.
    pub(crate) fn read(&self, file: impl Into<Access>, offset: u64, into: &mut [u8]) -> FsResult<usize> {
        let file = file.into();
        self.read_by(self.stretch(file.ino, into.len()), file, offset, into)
    }

    /// Reads all of a range of a file of the root partition, if that takes no message and no waiting for a disk or
    /// another thread: it is in one subfile, for which there is a grant. Returns `None` if it was not read.
    pub(crate) fn read_granted(&self, ino: Ino, offset: u64, into: &mut [u8]) -> Option<()> {
        // Strict files need tokens first.
        // Partitions have contracts of their own, which may have to be asked for.
        let is_plain = |known: &KnownFile| {
            known.layout.partition() == PartitionId::ROOT && known.contract != Some(Contract::Strict)
        };
        let known = self.known.get(ino).filter(is_plain)?;
        if offset.checked_add(into.len() as u64)? > known.size {
            return None;
        }
        let mut ranges = bivouac_layout::split(&known.layout, offset, into.len() as u64);
        let (range, rest) = (ranges.next()?, ranges.next());
        let handle = self.direct.held(ino, range.target).filter(|_| rest.is_none())?;
        let len = handle.read_at_once(range.subfile_offset, into)?;
        // A range that ends behind what was there, or an epoch that is newer than known, takes the usual way.
        if len < into.len() || handle.epoch() > known.epoch {
            return None;
        }
        count_content(true, range.len);
        Some(())
    }

    /// Reads `step` bytes at a time. Where truncations come in between, the parts that are repeated are kept short.
    fn read_by(&self, step: usize, file: Access, offset: u64, into: &mut [u8]) -> FsResult<usize> {
        let mut done = 0;
        for part in into.chunks_mut(step) {
            let (wanted, at) = (part.len(), offset.saturating_add(done as u64));
            let read = match self.read_part(file, at, part)? {
                Some(read) => read,
                // A shorter part is under way for a shorter time, in which a truncation can overtake it.
                None if wanted > TRANSFER_MAX => self.read_by(TRANSFER_MAX, file, at, part)?,
                None => return Err(overtaken(file.ino)),
            };
            done += read;
            if read < wanted {
                break;
            }
        }
        Ok(done)
    }

    /// Reads what is within the size; returns the number of bytes, `None` as [`Content::read_within`].
    fn read_part(&self, file: Access, offset: u64, into: &mut [u8]) -> FsResult<Option<usize>> {
        let (ino, wanted, tries) = (file.ino, into.len(), tries(into.len()));
        let known = self.homes.know_up_to(ino, offset.saturating_add(wanted as u64))?;
        let size = self.read_within(tries, file, known, |known| {
            match into.get_mut(..len_within(known.size, offset, wanted)) {
                Some(part) if !part.is_empty() => self.read_targets(ino, known, offset, part),
                _ => Ok(true),
            }
        })?;
        Ok(size.map(|size| len_within(size, offset, wanted)))
    }

    /// Reads from all targets, zeros where they have nothing. Returns true if they had everything, as of this epoch.
    fn read_targets(&self, ino: Ino, known: &KnownFile, offset: u64, into: &mut [u8]) -> FsResult<bool> {
        if into.len() > TRANSFER_MAX {
            let ranges = cut(&known.layout, offset, into.len() as u64);
            let (nodes, slices) = (self.content_nodes(&ranges)?, scatter(&ranges, into));
            let reading = Reading { ranges: &ranges, slices };
            return self.in_turns((ino, known), &nodes, &ranges, reading, &mut Carried::default());
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
                    let (done, len) = self.connections.ask_into::<op::Read>(node, &request, buffers)?;
                    (len, done.epoch)
                }
            };
            // Behind the end of the subfile is a hole, unless a truncation has just made it shorter, which the caller
            // finds out.
            into.get_mut(len..).unwrap_or_default().fill(0);
            return Ok(len == into.len() && epoch <= known.epoch);
        }
        let ranges: Vec<TargetRange> = ranges.collect();
        let (nodes, slices) = (self.content_nodes(&ranges)?, scatter(&ranges, into));
        self.at_once((ino, known), &nodes, Reading { ranges: &ranges, slices }, &mut Carried::default())
    }

    /// Writes `data` at `offset`: all of it, or an error.
    pub(crate) fn write(&self, file: impl Into<Access>, offset: u64, data: &[u8]) -> FsResult<()> {
        let file = file.into();
        self.write_by(self.stretch(file.ino, data.len()), file, offset, data)
    }

    /// Writes `step` bytes at a time. Where truncations come in between, the parts that are repeated are kept short.
    fn write_by(&self, step: usize, file: Access, offset: u64, data: &[u8]) -> FsResult<()> {
        let mut at = offset;
        for part in data.chunks(step) {
            let end =
                at.checked_add(part.len() as u64).filter(|end| *end <= FILE_SIZE_MAX).ok_or(Errno::EFBIG)?;
            let update = Update { tries: tries(part.len()), ..Update::of(file, end) };
            let write = |known: &KnownFile, carried: &mut Carried| {
                self.write_targets(file.ino, known, (at, part), carried)
            };
            if !self.publish_within(&update, |_| at, write)? {
                if part.len() <= TRANSFER_MAX {
                    return Err(overtaken(file.ino));
                }
                self.write_by(TRANSFER_MAX, file, at, part)?;
            }
            at = end;
        }
        Ok(())
    }

    /// Writes to all targets, without what is carried already. Returns false if one had a newer epoch.
    fn write_targets(
        &self,
        ino: Ino,
        known: &KnownFile,
        (offset, data): (u64, &[u8]),
        carried: &mut Carried,
    ) -> FsResult<bool> {
        let (is_long, len) = (data.len() > TRANSFER_MAX, data.len() as u64);
        let split = || bivouac_layout::split(&known.layout, offset, len).collect();
        let ranges: Vec<TargetRange> = if is_long { cut(&known.layout, offset, len) } else { split() };
        let parts: u64 = ranges.iter().map(|range| range.len).sum();
        assert_eq!(parts, len, "inode {ino}: bytes that targets get of a write at {offset}");
        let payloads: Vec<Vec<IoSlice<'_>>> = ranges.iter().map(|range| gather(range, data)).collect();
        let nodes = self.content_nodes(&ranges)?;
        let writing = Writing { ranges: &ranges, payloads: &payloads };
        match is_long {
            true => self.in_turns((ino, known), &nodes, &ranges, writing, carried),
            false => self.at_once((ino, known), &nodes, writing, carried),
        }
    }

    /// Writes `data` at the end of the file, which the home knows. Called again, it goes on with what is left.
    pub(crate) fn append(
        &self,
        ctx: &OpCtx,
        (file, from): (Access, u64),
        data: &[u8],
        appended: &mut Appending,
    ) -> FsResult<()> {
        let (ino, epoch) = (file.ino, file.epoch());
        // Parts written before the call lost its tokens may have been cut off by others, or appended to.
        if appended.parts > 0 && epoch.is_some() && self.homes.know(ino)?.size != appended.end {
            return Err(overtaken_append(ino));
        }
        for (turn, part) in (0..).zip(data.chunks(TRANSFER_MAX)).skip(appended.parts) {
            let ctx = ctx.further(turn);
            let (home, payload) = (self.connections.home(ino)?, [IoSlice::new(part)]);
            let request = AppendRequest { ino, epoch, from: epoch.map_or(0, |_| from) };
            let append =
                ctx.repeatable(|ctx| self.connections.change::<op::Append>(home, ctx, &request, &payload));
            let outcome = self.homes.changing(ino, || self.reclaimer.retry_after_reclaim(append));
            let done = outcome.map_err(|error| match error.errno() {
                // At another end, the part that is there already would be there twice.
                Errno::ECANCELED if turn > 0 => overtaken_append(ino),
                _ => error,
            })?;
            self.known.changed(&done.attr);
            appended.parts += 1;
            appended.end = done.offset.saturating_add(part.len() as u64);
        }
        Ok(())
    }
}

/// Part of an append that is done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Appending {
    /// Number of messages whose bytes are there.
    parts: usize,
    /// End of the last of them.
    end: u64,
}

fn overtaken_append(ino: Ino) -> FsError {
    let text = format!(
        "inode {ino} was cut or appended to by others while it was appended to: a part of it is there"
    );
    FsError::with(Errno::EIO, text)
}

/// Returns how many times so many bytes are tried again because truncations overtake them.
fn tries(len: usize) -> usize {
    if len > TRANSFER_MAX { 1 } else { OVERTAKEN_MAX }
}

/// Returns how many of the bytes from `offset` on are within a size.
pub fn len_within(size: u64, offset: u64, wanted: usize) -> usize {
    size.saturating_sub(offset).min(wanted as u64) as usize
}

/// The messages of a write.
struct Writing<'a> {
    ranges: &'a [TargetRange],
    payloads: &'a [Vec<IoSlice<'a>>],
}

impl<'a> Messages<'a> for Writing<'a> {
    type Op = op::Write;

    fn request(&self, call: &Call<'_>, message: usize) -> WriteRequest {
        let (range, layout, epoch) = (&self.ranges[message], call.known.layout, call.known.epoch);
        WriteRequest { ino: call.ino, target: range.target, layout, epoch, offset: range.subfile_offset }
    }

    fn payload(&self, message: usize) -> &'a [IoSlice<'a>] {
        &self.payloads[message]
    }

    fn here(&mut self, call: &Call<'_>, message: usize) -> Option<Verdict> {
        let (node, range, payload) = (call.nodes[message], &self.ranges[message], &self.payloads[message]);
        call.direct.write(node, call.ino, range, call.known.epoch, payload).map(Verdict::of_write)
    }

    fn finish(&mut self, _: &Call<'_>, _: usize, started: StartedCall<'_, op::Write>) -> FsResult<Verdict> {
        Ok(Verdict::of_write(started.finish(&mut [])?.0.accepted))
    }
}

/// The messages of a read.
struct Reading<'a, 'b> {
    ranges: &'a [TargetRange],
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
        // The transport may advance the slices that it is given: they are borrowed anew for each use.
        self.slices[message].iter_mut().map(|slice| IoSliceMut::new(slice)).collect()
    }

    fn finish(
        &mut self,
        call: &Call<'_>,
        message: usize,
        started: StartedCall<'_, op::Read>,
    ) -> FsResult<Verdict> {
        let (done, read) = started.finish(&mut self.room(message))?;
        Ok(self.judge(call, message, read, done.epoch))
    }
}

fn request(ino: Ino, range: &TargetRange) -> ReadRequest {
    ReadRequest { ino, target: range.target, offset: range.subfile_offset, len: range.len as u32 }
}

/// Returns the parts of `part` that belong to one target.
fn gather<'a>(range: &TargetRange, part: &'a [u8]) -> Vec<IoSlice<'a>> {
    range.pieces().filter_map(|piece| part.get(piece.range()).map(IoSlice::new)).collect()
}

/// Returns the parts of `into` that belong to each of the targets, in their order in the subfiles.
pub fn scatter<'a>(ranges: &[TargetRange], into: &'a mut [u8]) -> Vec<Vec<IoSliceMut<'a>>> {
    let mut pieces: Vec<(usize, usize, usize)> = Vec::new();
    for (index, range) in ranges.iter().enumerate() {
        pieces.extend(range.pieces().map(|piece| (piece.buffer_offset, piece.len, index)));
    }
    // In the order of the buffer, which can only be split from its front.
    pieces.sort_unstable();
    let mut slices: Vec<Vec<IoSliceMut<'a>>> = ranges.iter().map(|_| Vec::new()).collect();
    let mut rest = into;
    for (_, len, index) in pieces {
        assert!(len <= rest.len(), "a piece of {len} bytes is behind the end of its buffer");
        let (piece, behind) = std::mem::take(&mut rest).split_at_mut(len);
        slices[index].push(IoSliceMut::new(piece));
        rest = behind;
    }
    slices
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::{Layout, TargetIndex};

    #[test]
    fn what_is_gathered_is_scattered_to_the_same_places() {
        let layout = Layout { stripe: 4096, width: 3, base: TargetIndex(1), targets: 4 };
        let data: Vec<u8> = (0..50_000u32).map(|i| (i % 251) as u8).collect();
        let ranges: Vec<TargetRange> = bivouac_layout::split(&layout, 1000, data.len() as u64).collect();
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
