//! Many places of a file at once: one message per seat, whatever their number.

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;

use bivouac_layout::SeatRange;
use bivouac_types::limits::{FILE_SIZE_MAX, LIST_EXTENTS_MAX, TRANSFER_MAX};
use bivouac_types::{Errno, FsResult, Ino, Layout, NodeId, SeatIndex};
use bivouac_wire::{ListDone, ListRequest, op};

use crate::client::Client;
use crate::data::{OVERTAKEN_MAX, gather, len_within, note, overtaken, scatter, zero_slices_behind};
use crate::known::Known;

/// The places of one seat, each with its buffers.
struct SeatList<S> {
    node: NodeId,
    places: Vec<(SeatRange, Vec<S>)>,
}

impl Client {
    /// Reads several places of a file, each into its buffer; answers how many bytes each got, less than its length
    /// only at the end of the file. Each place is read for itself, as by [`Client::read`].
    ///
    /// # Errors
    /// As [`Client::read`].
    pub fn read_list(&self, ino: Ino, places: &mut [(u64, &mut [u8])]) -> FsResult<Vec<usize>> {
        self.send_unsent(ino)?;
        self.read_list_through(ino, places)
    }

    /// Reads from the seats; as [`Client::read_list`].
    pub(crate) fn read_list_through(
        &self,
        ino: Ino,
        places: &mut [(u64, &mut [u8])],
    ) -> FsResult<Vec<usize>> {
        let mut counts = Vec::with_capacity(places.len());
        let mut rest = places;
        while !rest.is_empty() {
            let layout = self.know(ino)?.layout;
            let count = batch_len(&layout, rest.iter().map(|(offset, into)| (*offset, into.len())));
            let (batch, behind) = rest.split_at_mut(count);
            match batch {
                // Alone, and perhaps too long for one message.
                [(offset, into)] => counts.push(self.read_through(ino, *offset, into)?),
                batch => counts.extend(self.when_here(|| self.read_batch(ino, batch))?),
            }
            rest = behind;
        }
        Ok(counts)
    }

    fn read_batch(&self, ino: Ino, batch: &mut [(u64, &mut [u8])]) -> FsResult<Vec<usize>> {
        let end = batch.iter().map(|(offset, into)| offset.saturating_add(into.len() as u64)).max();
        let within = |size: u64, batch: &[(u64, &mut [u8])]| -> Vec<usize> {
            batch.iter().map(|(offset, into)| len_within(size, *offset, into.len())).collect()
        };
        let size = self.read_within(OVERTAKEN_MAX, ino, end.unwrap_or(0), |known| {
            let counts = within(known.size, batch);
            self.read_list_seats(ino, known, batch, &counts)
        })?;
        Ok(within(size.ok_or_else(|| overtaken("reads of", ino))?, batch))
    }

    /// Reads from all seats, zeros where they have nothing. Whether they had everything, as of this epoch.
    fn read_list_seats(
        &self,
        ino: Ino,
        known: &Known,
        batch: &mut [(u64, &mut [u8])],
        counts: &[usize],
    ) -> FsResult<bool> {
        let mut seats: BTreeMap<SeatIndex, SeatList<IoSliceMut<'_>>> = BTreeMap::new();
        for ((offset, into), count) in batch.iter_mut().zip(counts) {
            let into = into.get_mut(..*count).unwrap_or_default();
            let ranges: Vec<SeatRange> =
                bivouac_layout::split(&known.layout, *offset, into.len() as u64).collect();
            let scattered = scatter(&ranges, into);
            for (range, slices) in ranges.into_iter().zip(scattered) {
                self.add(&mut seats, range, slices)?;
            }
        }
        let (mut whole, mut messages) = (true, Vec::new());
        for (seat, mut list) in seats {
            match self.read_list_direct(ino, &mut list, known.epoch) {
                Some(had_all) => whole &= had_all,
                None => messages.push((seat, list)),
            }
        }
        let mut under_way = Vec::with_capacity(messages.len());
        for (seat, list) in &messages {
            let request = request(ino, *seat, known, false, list);
            under_way.push(self.start::<op::AccessList>(list.node, &request, &[])?);
        }
        let answers: Vec<FsResult<(ListDone, usize)>> = under_way
            .into_iter()
            .zip(&mut messages)
            .map(|(started, (_, list))| {
                let slices = list.places.iter_mut().flat_map(|(_, slices)| slices);
                started.finish(&mut slices.map(|slice| IoSliceMut::new(slice)).collect::<Vec<_>>())
            })
            .collect();
        for answer in answers {
            let (done, _) = answer?;
            whole &= done.whole && done.epoch <= known.epoch;
        }
        Ok(whole)
    }

    /// As [`Client::read_list_seats`], of one seat of this machine; `None` if a message has to do it.
    fn read_list_direct(&self, ino: Ino, list: &mut SeatList<IoSliceMut<'_>>, epoch: u32) -> Option<bool> {
        let mut whole = true;
        for run in
            bivouac_layout::runs(list.places.iter().map(|(range, _)| (range.subfile_offset, range.len)))
        {
            let places = list.places.get_mut(run).unwrap_or_default();
            let (read, seen) = self.read_run_direct(list.node, ino, places)?;
            whole &= seen <= epoch;
            let start = places.first().map_or(0, |(range, _)| range.subfile_offset);
            for (range, slices) in places {
                let there = bivouac_layout::share(start, read as u64, (range.subfile_offset, range.len));
                whole &= there == range.len;
                zero_slices_behind(slices, there as usize);
            }
        }
        Some(whole)
    }

    /// Reads places of a seat of this machine that are neighbours by one call: how many bytes there were from the
    /// first one on, with what lies between, and the subfile's epoch.
    fn read_run_direct(
        &self,
        node: NodeId,
        ino: Ino,
        places: &mut [(SeatRange, Vec<IoSliceMut<'_>>)],
    ) -> Option<(usize, u32)> {
        let (first, last) = (places.first()?.0.clone(), &places.last()?.0);
        let len = last.subfile_offset + last.len - first.subfile_offset;
        let wanted: u64 = places.iter().map(|(range, _)| range.len).sum();
        let mut gaps = vec![0; (len - wanted) as usize];
        let parts = places.iter_mut().map(|(range, slices)| {
            (range.subfile_offset, slices.iter_mut().map(|slice| &mut **slice).collect::<Vec<_>>())
        });
        let bufs = bivouac_layout::spanning(parts, &mut gaps);
        let mut bufs: Vec<IoSliceMut<'_>> = bufs.into_iter().map(IoSliceMut::new).collect();
        self.read_direct(node, ino, &first, &mut bufs)
    }

    /// Writes several places of a file: all of them, or an error. Each is written for itself, as by
    /// [`Client::write`], in no particular order; where they overlap, any of them wins.
    ///
    /// # Errors
    /// As [`Client::write`].
    pub fn write_list(&self, ino: Ino, places: &[(u64, &[u8])]) -> FsResult<()> {
        let _fenced = self.locks.guard(ino)?;
        self.send_unsent(ino)?;
        let written = self.write_list_through(ino, places);
        self.drop_copies(ino);
        written
    }

    /// Writes to the seats; as [`Client::write_list`].
    pub(crate) fn write_list_through(&self, ino: Ino, places: &[(u64, &[u8])]) -> FsResult<()> {
        let mut rest = places;
        while !rest.is_empty() {
            let layout = self.know(ino)?.layout;
            let places = rest.iter().map(|(offset, data)| (*offset, data.len()));
            let (batch, behind) = rest.split_at(batch_len(&layout, places));
            match batch {
                [(offset, data)] => drop(self.write_through(ino, *offset, data)?),
                batch => self.when_there_is_room(|| self.write_batch(ino, batch))?,
            }
            rest = behind;
        }
        self.save_written(ino)
    }

    fn write_batch(&self, ino: Ino, batch: &[(u64, &[u8])]) -> FsResult<()> {
        let mut ranges = Vec::with_capacity(batch.len());
        for (offset, data) in batch.iter().filter(|(_, data)| !data.is_empty()) {
            let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_SIZE_MAX);
            ranges.push(*offset..end.ok_or(Errno::EFBIG)?);
        }
        let Some(end) = ranges.iter().map(|range| range.end).max() else { return Ok(()) };
        ranges.sort_unstable_by_key(|range| range.start);
        let start = |size| last_run(&ranges, size);
        self.publish(ino, end, start, |known| self.write_list_seats(ino, known, batch))?;
        // The home counted all in front of the last gap as a hole.
        if last_run(&ranges, 0) > 0 {
            self.known.fill(ino);
        }
        Ok(())
    }

    /// Writes to all seats. Whether none had a newer epoch.
    fn write_list_seats(&self, ino: Ino, known: &Known, batch: &[(u64, &[u8])]) -> FsResult<bool> {
        let mut seats: BTreeMap<SeatIndex, SeatList<IoSlice<'_>>> = BTreeMap::new();
        for (offset, data) in batch {
            for range in bivouac_layout::split(&known.layout, *offset, data.len() as u64) {
                let slices = gather(&range, data);
                self.add(&mut seats, range, slices)?;
            }
        }
        let (mut accepted, mut messages) = (true, Vec::new());
        for (seat, list) in seats {
            match self.write_list_direct(ino, &list, known.epoch) {
                Some(taken) => accepted &= taken,
                None => messages.push((seat, list)),
            }
        }
        let payloads: Vec<Vec<IoSlice<'_>>> = messages
            .iter()
            .map(|(_, list)| list.places.iter().flat_map(|(_, slices)| slices.iter().copied()).collect())
            .collect();
        let (mut under_way, mut failure) = (Vec::with_capacity(messages.len()), None);
        for ((seat, list), payload) in messages.iter().zip(&payloads) {
            let request = request(ino, *seat, known, true, list);
            note(&mut failure, &mut under_way, self.start::<op::AccessList>(list.node, &request, payload));
        }
        // Every answer is awaited, also behind a failure: no write may still be on its way when we return.
        let answers: Vec<FsResult<(ListDone, usize)>> =
            under_way.into_iter().map(|started| started.finish(&mut [])).collect();
        failure.map_or(Ok(()), Err)?;
        answers.into_iter().try_fold(accepted, |all, answer| Ok(all & answer?.0.accepted))
    }

    fn write_list_direct(&self, ino: Ino, list: &SeatList<IoSlice<'_>>, epoch: u32) -> Option<bool> {
        for (range, slices) in &list.places {
            if !self.write_direct(list.node, ino, range, epoch, slices)? {
                return Some(false);
            }
        }
        Some(true)
    }

    fn add<S>(
        &self,
        seats: &mut BTreeMap<SeatIndex, SeatList<S>>,
        range: SeatRange,
        slices: Vec<S>,
    ) -> FsResult<()> {
        let node = self.content_node(&range)?;
        let list = seats.entry(range.seat).or_insert(SeatList { node, places: Vec::new() });
        list.places.push((range, slices));
        Ok(())
    }
}

fn request<S>(ino: Ino, seat: SeatIndex, known: &Known, write: bool, list: &SeatList<S>) -> ListRequest {
    let extent = |(range, _): &(SeatRange, Vec<S>)| (range.subfile_offset, range.len as u32);
    let extents = list.places.iter().map(extent).collect();
    ListRequest { ino, seat, layout: known.layout, epoch: known.epoch, write, extents }
}

/// Where the last of these ranges begins that leaves a gap behind `size` and the ranges before it; 0 if none does.
/// Wherever the size is by now: what is in front of that place and behind the size is not all written.
fn last_run(sorted: &[Range<u64>], size: u64) -> u64 {
    let (mut covered, mut start) = (size, 0);
    for range in sorted {
        if range.start > covered {
            start = range.start;
        }
        covered = covered.max(range.end);
    }
    start
}

/// How many of the places, given by offset and length, fit into one message to each seat; at least one.
fn batch_len(layout: &Layout, places: impl Iterator<Item = (u64, usize)>) -> usize {
    let mut seats: BTreeMap<SeatIndex, (usize, u64)> = BTreeMap::new();
    let fits = |(offset, len): &(u64, usize)| {
        *len <= TRANSFER_MAX
            && bivouac_layout::split(layout, *offset, *len as u64).all(|range| {
                let (extents, bytes) = seats.entry(range.seat).or_default();
                (*extents, *bytes) = (*extents + 1, *bytes + range.len);
                *extents <= LIST_EXTENTS_MAX && *bytes <= TRANSFER_MAX as u64
            })
    };
    places.take_while(fits).count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_gap_behind_the_size_is_found() {
        assert_eq!(last_run(&[0..5, 5..9, 3..20], 0), 0);
        assert_eq!(last_run(&[0..5, 10..12, 11..20], 0), 10);
        assert_eq!(last_run(&[0..5, 10..12, 11..20], 10), 0, "the gap is within the size");
        assert_eq!(last_run(&[7..9, 10..12, 50..60, 55..70], 11), 50);
    }

    #[test]
    fn batches_fit_into_messages() {
        let of = |seats: u16, lens: &mut dyn Iterator<Item = usize>| {
            let layout = Layout { stripe: 4096, width: seats, base: SeatIndex(0), seats };
            let places = lens.scan(0, |at, len| {
                let offset = *at;
                *at += len as u64;
                Some((offset, len))
            });
            batch_len(&layout, places)
        };
        assert_eq!(of(1, &mut [1, 2, 3].into_iter()), 3);
        assert_eq!(of(1, &mut [TRANSFER_MAX, 1].into_iter()), 1);
        assert_eq!(of(1, &mut [TRANSFER_MAX + 1, 1].into_iter()), 1);
        assert_eq!(of(1, &mut [1, TRANSFER_MAX - 1, 1].into_iter()), 2);
        assert_eq!(
            of(2, &mut [TRANSFER_MAX, TRANSFER_MAX, 1].into_iter()),
            2,
            "half of each is on each seat"
        );
        assert_eq!(of(1, &mut std::iter::repeat_n(1, 50_000)), LIST_EXTENTS_MAX);
        assert_eq!(of(4, &mut std::iter::repeat_n(1, 50_000)), 50_000);
    }
}
