//! Reading and writing: one message per seat, all under way together.

use std::io::{IoSlice, IoSliceMut};

use bivouac_layout::SeatRange;
use bivouac_net::Started;
use bivouac_record::Place;
use bivouac_types::limits::{FILE_SIZE_MAX, TRANSFER_MAX};
use bivouac_types::{Errno, FsError, FsResult, Ino, NodeId, OpId, PartitionId, StatFs};
use bivouac_wire::{InoOnly, ReadRequest, StatFsRequest, SubfileName, WriteRequest, Written, op};

use crate::client::{Client, OpCtx};
use crate::direct::{Handle, Missed, Wish};
use crate::known::Known;
use crate::publish::{OVERTAKEN_MAX, Update, overtaken};
use crate::uses::{Begun, Done};

/// How often a grant is asked for while others end it.
const GRANTS_MAX: usize = 3;

impl Client {
    /// Reads from the seats; as [`Client::read`].
    pub(crate) fn read_through(&self, ino: Ino, offset: u64, into: &mut [u8]) -> FsResult<usize> {
        let mut done = 0;
        for part in into.chunks_mut(self.stretch(ino, into.len())) {
            let wanted = part.len();
            let read = self.read_at_once(ino, offset.saturating_add(done as u64), part)?;
            done += read;
            if read < wanted {
                break;
            }
        }
        Ok(done)
    }

    /// Reads a stretch, or what is one request. Where cuts come in between, what is read again is kept short.
    fn read_at_once(&self, ino: Ino, offset: u64, into: &mut [u8]) -> FsResult<usize> {
        if into.len() > TRANSFER_MAX {
            let read = |known: &Known, into: &mut [u8]| self.read_stretch(ino, known, offset, into);
            if let Some(read) = self.read_up_to_size(1, ino, offset, into, read)? {
                return Ok(read);
            }
        }
        let mut done = 0;
        for part in into.chunks_mut(TRANSFER_MAX) {
            let (wanted, at) = (part.len(), offset.saturating_add(done as u64));
            let read = |known: &Known, into: &mut [u8]| self.read_seats(ino, known, at, into);
            let read = self.read_up_to_size(OVERTAKEN_MAX, ino, at, part, read)?;
            let read = read.ok_or_else(|| overtaken(ino))?;
            done += read;
            if read < wanted {
                break;
            }
        }
        Ok(done)
    }

    /// Reads what is within the size: the number of bytes, or `None`. The rest is as for [`Client::read_within`].
    fn read_up_to_size(
        &self,
        times: usize,
        ino: Ino,
        offset: u64,
        into: &mut [u8],
        read: impl Fn(&Known, &mut [u8]) -> FsResult<bool>,
    ) -> FsResult<Option<usize>> {
        let wanted = into.len();
        let known = self.know_up_to(ino, offset.saturating_add(wanted as u64))?;
        let size = self.read_within(times, ino, known, |known| {
            match into.get_mut(..len_within(known.size, offset, wanted)) {
                Some(part) if !part.is_empty() => read(known, part),
                _ => Ok(true),
            }
        })?;
        Ok(size.map(|size| len_within(size, offset, wanted)))
    }

    /// Reads from all seats, zeros where they have nothing. Whether they had everything, as of this epoch.
    fn read_seats(&self, ino: Ino, known: &Known, offset: u64, into: &mut [u8]) -> FsResult<bool> {
        let mut ranges = bivouac_layout::split(&known.layout, offset, into.len() as u64);
        if ranges.len() == 1
            && let Some(range) = ranges.next()
        {
            let node = self.content_node(&range)?;
            if let Some((len, epoch)) = self.read_direct(node, ino, &range, &mut [IoSliceMut::new(into)]) {
                into.get_mut(len..).unwrap_or_default().fill(0);
                return Ok(len == into.len() && epoch <= known.epoch);
            }
            let request = request(ino, &range);
            let (done, len) = self.ways.ask_into::<op::Read>(node, &request, &mut [IoSliceMut::new(into)])?;
            into.get_mut(len..).unwrap_or_default().fill(0);
            return Ok(len == into.len() && done.epoch <= known.epoch);
        }
        self.read_many(ino, known.epoch, &ranges.collect::<Vec<_>>(), into)
    }

    fn read_many(&self, ino: Ino, epoch: u32, ranges: &[SeatRange], into: &mut [u8]) -> FsResult<bool> {
        let mut slices = scatter(ranges, into);
        let (mut under_way, mut mine) = (Vec::with_capacity(ranges.len()), Vec::new());
        for (range, slices) in ranges.iter().zip(&mut slices) {
            let node = self.content_node(range)?;
            if self.direct.is_here(node) {
                mine.push((node, range, slices));
                continue;
            }
            let started = self.ways.start::<op::Read>(node, &request(ino, range), &[])?;
            under_way.push((self.local != Some(node), started, range, slices));
        }
        let mut whole = true;
        for (node, range, slices) in mine {
            let mut again: Vec<IoSliceMut<'_>> =
                slices.iter_mut().map(|slice| IoSliceMut::new(slice)).collect();
            if let Some((read, seen)) = self.read_direct(node, ino, range, &mut again) {
                whole &= read as u64 == range.len && seen <= epoch;
                bivouac_layout::zero_behind(slices, read);
            } else {
                let started = self.ways.start::<op::Read>(node, &request(ino, range), &[])?;
                under_way.push((false, started, range, slices));
            }
        }
        // What is local is done while the others are on their way.
        under_way.sort_by_key(|(remote, ..)| *remote);
        // Every answer is awaited, also behind a failure: one given up would cost its connection.
        let answers: Vec<_> = under_way
            .into_iter()
            .map(|(_, started, range, slices)| (range, started.finish(slices)))
            .collect();
        for (range, answer) in answers {
            let (done, read) = answer?;
            whole &= read as u64 == range.len && done.epoch <= epoch;
            zero_behind(range, into, read);
        }
        Ok(whole)
    }

    /// Writes where the home says; as [`Client::write`].
    pub(crate) fn write_append(&self, ctx: &OpCtx, ino: Ino, data: &[u8]) -> FsResult<usize> {
        for (turn, part) in (0..).zip(data.chunks(TRANSFER_MAX)) {
            // Each part is an operation of its own.
            let id = OpId(ctx.id.0 ^ turn << 48);
            self.append(&OpCtx { id, ..*ctx }, ino, part)?;
        }
        self.save_written(ino).map(|()| data.len())
    }

    /// Writes to the seats; as [`Client::write_at`].
    pub(crate) fn write_through(&self, ino: Ino, offset: u64, data: &[u8]) -> FsResult<usize> {
        let mut at = offset;
        for part in data.chunks(self.stretch(ino, data.len())) {
            let end = at.checked_add(part.len() as u64).filter(|end| *end <= FILE_SIZE_MAX);
            self.write_at_once(ino, at, end.ok_or(Errno::EFBIG)?, part)?;
            at += part.len() as u64;
        }
        self.save_written(ino).map(|()| data.len())
    }

    /// Writes a stretch, or what is one request. Where cuts come in between, what is written again is kept short.
    fn write_at_once(&self, ino: Ino, offset: u64, end: u64, data: &[u8]) -> FsResult<()> {
        if data.len() > TRANSFER_MAX {
            let update = Update { tries: 1, ..Update::of(ino, end) };
            if self.publish_within(
                &update,
                |_| offset,
                |known| self.write_stretch(ino, known, offset, data),
            )? {
                return Ok(());
            }
        }
        let mut at = offset;
        for part in data.chunks(TRANSFER_MAX) {
            let end = at + part.len() as u64;
            self.publish(&Update::of(ino, end), |_| at, |known| self.write_seats(ino, known, at, part))?;
            at = end;
        }
        Ok(())
    }

    /// The size of an open file as last heard: it may be another one by now.
    #[must_use]
    pub fn size_heard(&self, ino: Ino) -> Option<u64> {
        self.known.get(ino).map(|known| known.size)
    }

    fn append(&self, ctx: &OpCtx, ino: Ino, part: &[u8]) -> FsResult<()> {
        let payload = [IoSlice::new(part)];
        let home = self.ways.home(ino)?;
        let append = || self.ways.change::<op::Append>(home, ctx, &InoOnly { ino }, &payload);
        let done = self.changing(ino, || self.when_there_is_room(append))?;
        self.known.changed(&done.attr);
        Ok(())
    }

    /// Writes to all seats. Whether none had a newer epoch.
    fn write_seats(&self, ino: Ino, known: &Known, offset: u64, part: &[u8]) -> FsResult<bool> {
        let ranges: Vec<SeatRange> =
            bivouac_layout::split(&known.layout, offset, part.len() as u64).collect();
        let payloads: Vec<Vec<IoSlice<'_>>> = ranges.iter().map(|range| gather(range, part)).collect();
        let (mut under_way, mut mine) = (Vec::with_capacity(ranges.len()), Vec::new());
        let start = |node, range: &SeatRange, payload| {
            let (seat, layout, epoch, offset) = (range.seat, known.layout, known.epoch, range.subfile_offset);
            let request = WriteRequest { ino, seat, layout, epoch, offset };
            Ok::<_, FsError>((
                self.local != Some(node),
                self.ways.start::<op::Write>(node, &request, payload)?,
            ))
        };
        let mut failure = None;
        let nodes = ranges.iter().map(|range| self.content_node(range)).collect::<FsResult<Vec<_>>>()?;
        for ((range, payload), node) in ranges.iter().zip(&payloads).zip(nodes) {
            if self.direct.is_here(node) {
                mine.push((node, range, payload));
            } else {
                note(&mut failure, &mut under_way, start(node, range, payload));
            }
        }
        // What is done here is done while the others are on their way.
        let mut accepted = true;
        for (node, range, payload) in mine {
            match self.write_direct(node, ino, range, known.epoch, payload) {
                Some(taken) => accepted &= taken,
                None => note(&mut failure, &mut under_way, start(node, range, payload)),
            }
        }
        under_way.sort_by_key(|(remote, _)| *remote);
        // Every answer is awaited, also behind a failure: no write may still be on its way when we return.
        let answers: Vec<FsResult<(Written, usize)>> =
            under_way.into_iter().map(|(_, started)| started.finish(&mut [])).collect();
        failure.map_or(Ok(()), Err)?;
        answers.into_iter().try_fold(accepted, |all, answer| Ok(all & answer?.0.accepted))
    }

    /// Makes content and records durable on their volumes.
    ///
    /// # Errors
    /// `EIO` when a node cannot be reached or a volume fails.
    pub fn fsync(&self, ino: Ino, _data_only: bool) -> FsResult<()> {
        self.send_unsent(ino)?;
        self.tell_times(ino)?;
        let attr = self.attr_now(ino)?;
        if self.known.take_filled(ino) {
            self.count_holes(ino);
        }
        if attr.is_file() {
            let seats = bivouac_layout::split(&attr.layout, 0, attr.size);
            let sync = |range: SeatRange| {
                let name = SubfileName { ino, seat: range.seat };
                self.ways.start::<op::SyncSubfile>(self.seat_node(&range)?, &name, &[])
            };
            let started = seats.map(sync).collect::<FsResult<Vec<_>>>()?;
            finish_all(started)?;
        }
        self.ways.ask::<op::SyncRecords>(self.ways.home(ino)?, &())?;
        if attr.is_file() { self.save_synced(ino) } else { Ok(()) }
    }

    /// Space and inodes of all nodes that can be reached, together.
    ///
    /// # Errors
    /// `EIO` when none can be.
    pub(crate) fn statfs_all(&self) -> FsResult<StatFs> {
        let request = StatFsRequest { partition: PartitionId::ROOT };
        let started = self.node_ids().map(|node| self.ways.start::<op::StatFs>(node, &request, &[]));
        let started = started.collect::<FsResult<Vec<_>>>()?;
        let answers = started.into_iter().map(|started| started.finish(&mut []).map(|(part, _)| part));
        let (parts, failures): (Vec<_>, Vec<_>) = answers.partition(Result::is_ok);
        if parts.is_empty()
            && let Some(failure) = failures.into_iter().find_map(Result::err)
        {
            return Err(failure);
        }
        Ok(parts.into_iter().flatten().fold(StatFs::default(), |sum, part| StatFs {
            block_size: part.block_size,
            blocks: sum.blocks + part.blocks,
            blocks_free: sum.blocks_free + part.blocks_free,
            files: sum.files + part.files,
            files_free: sum.files_free.saturating_add(part.files_free),
        }))
    }

    /// Reads from a subfile of this machine; the number of bytes and the subfile's epoch. `None` if a message
    /// has to do it.
    pub(crate) fn read_direct(
        &self,
        node: NodeId,
        ino: Ino,
        range: &SeatRange,
        into: &mut [IoSliceMut<'_>],
    ) -> Option<(usize, u32)> {
        for _ in 0..GRANTS_MAX {
            let handle = self.direct.handle(&self.known, node, ino, range, Wish::Read)?;
            match handle.read(range.subfile_offset, into) {
                Ok(len) => return Some((len, handle.epoch())),
                Err(Missed::Over) => {}
                Err(_) => return None,
            }
        }
        None
    }

    /// As [`Client::read`], of a file that is open and of the root partition, as far as that takes no message and no waiting
    /// for another thread: what is in one subfile, for which there is a grant. Otherwise `None`.
    #[must_use]
    pub fn read_granted(&self, ino: Ino, offset: u64, into: &mut [u8]) -> Option<()> {
        let begun = Begun::now(into.len());
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
        self.count_content(handle.node(), range.len);
        self.used_at_once(ino, &Done { writes: false, place: Place::At(offset), len, begun });
        Some(())
    }

    /// Writes to a subfile of this machine; whether the epoch was not older than the subfile's. `None` if a
    /// message has to do it.
    pub(crate) fn write_direct(
        &self,
        node: NodeId,
        ino: Ino,
        range: &SeatRange,
        epoch: u32,
        payload: &[IoSlice<'_>],
    ) -> Option<bool> {
        self.write_granted(node, ino, range, epoch, |handle| {
            handle.write(range.subfile_offset, range.len, &mut payload.to_vec())
        })
    }

    /// As [`Client::write_direct`], by what is to be done with the grant of the range.
    pub(crate) fn write_granted(
        &self,
        node: NodeId,
        ino: Ino,
        range: &SeatRange,
        epoch: u32,
        write: impl Fn(&Handle) -> Result<(), Missed>,
    ) -> Option<bool> {
        for _ in 0..GRANTS_MAX {
            let handle = self.direct.handle(&self.known, node, ino, range, Wish::Write)?;
            if epoch < handle.epoch() {
                return Some(false);
            }
            match write(&handle) {
                Ok(()) => return Some(true),
                Err(Missed::Outside) if self.direct.widen(&handle, range) => {}
                Err(Missed::Over) => {}
                Err(_) => return None,
            }
        }
        None
    }

    pub(crate) fn seat_node(&self, range: &SeatRange) -> FsResult<NodeId> {
        self.seat_place(range.seat).map(|place| place.node)
    }
}

/// Takes down what was begun, or the first failure to begin.
pub fn note<T>(failure: &mut Option<FsError>, begun: &mut Vec<T>, outcome: FsResult<T>) {
    match outcome {
        Ok(started) => begun.push(started),
        Err(error) => drop(failure.get_or_insert(error)),
    }
}

/// Awaits all answers; the first failure if there is one.
pub fn finish_all<O: bivouac_wire::Operation>(started: Vec<Started<'_, O>>) -> FsResult<Vec<O::Reply>> {
    let answers: Vec<FsResult<O::Reply>> =
        started.into_iter().map(|started| started.finish(&mut []).map(|(reply, _)| reply)).collect();
    answers.into_iter().collect()
}

/// How many of the bytes from `offset` on are within a size.
pub fn len_within(size: u64, offset: u64, wanted: usize) -> usize {
    size.saturating_sub(offset).min(wanted as u64) as usize
}

pub(crate) fn request(ino: Ino, range: &SeatRange) -> ReadRequest {
    ReadRequest { ino, seat: range.seat, offset: range.subfile_offset, len: range.len as u32 }
}

/// The parts of `part` that belong to one seat.
pub(crate) fn gather<'a>(range: &SeatRange, part: &'a [u8]) -> Vec<IoSlice<'a>> {
    range.pieces().filter_map(|piece| part.get(piece.range()).map(IoSlice::new)).collect()
}

/// The parts of `into` that belong to each of the seats, in their order in the subfiles.
pub(crate) fn scatter<'a>(ranges: &[SeatRange], into: &'a mut [u8]) -> Vec<Vec<IoSliceMut<'a>>> {
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

/// Fills with zeros what a seat had not, behind its first `read` bytes.
fn zero_behind(range: &SeatRange, into: &mut [u8], mut read: usize) {
    for piece in range.pieces() {
        let filled = read.min(piece.len);
        let hole = piece.buffer_offset + filled..piece.buffer_offset + piece.len;
        into.get_mut(hole).unwrap_or_default().fill(0);
        read -= filled;
    }
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

    #[test]
    fn a_short_read_leaves_zeros() {
        let layout = Layout { stripe: 4096, width: 2, base: SeatIndex(0), seats: 2 };
        let mut ranges = bivouac_layout::split(&layout, 0, 12_288);
        let mut into = vec![1; 12_288];
        zero_behind(&ranges.next().unwrap(), &mut into, 4100);
        let zeros: Vec<usize> = (0..into.len()).filter(|at| into[*at] == 0).collect();
        assert_eq!(zeros, (8196..12_288).collect::<Vec<_>>());
    }
}
