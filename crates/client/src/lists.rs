//! Many places of a file at once: one message per seat, whatever their number.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;

use bivouac_layout::SeatRange;
use bivouac_record as record;
use bivouac_types::limits::{FILE_SIZE_MAX, LIST_EXTENTS_MAX, TRANSFER_MAX};
use bivouac_types::{Errno, FsResult, Ino, Layout, NodeId, SeatIndex};
use bivouac_wire::{ListDone, ListRequest, op};

use crate::client::Client;
use crate::data::{OVERTAKEN_MAX, len_within, note, overtaken, scatter};
use crate::known::Known;
use crate::uses::Begun;

/// A list has begun.
fn begun(lens: impl Iterator<Item = usize>) -> Begun {
    Begun::now(lens.sum())
}

/// So many neighbours are written by one mapping, if there is one in each part of this length on average: with fewer
/// there is nothing gained by making it.
const MAPPED_MIN: usize = 8;
const MAPPED_STEP_MAX: u64 = 1024;

/// Where in a subfile, and which of the list's buffers.
type Place = (SeatRange, Range<usize>);

/// The places of one seat, and their buffers.
struct SeatList<S> {
    node: NodeId,
    places: Vec<Place>,
    slices: Vec<S>,
}

impl<S> SeatList<S> {
    /// Bytes of all places.
    fn len(&self) -> u64 {
        self.places.iter().map(|(range, _)| range.len).sum()
    }

    /// Places that are better accessed together.
    fn runs(&self) -> Vec<Range<usize>> {
        bivouac_layout::runs(self.places.iter().map(|(range, _)| (range.subfile_offset, range.len)))
    }
}

/// From the first of some places of a subfile to the end of the last.
fn span(places: &[Place]) -> Option<SeatRange> {
    let (mut span, last) = (places.first()?.0.clone(), &places.last()?.0);
    span.len = last.subfile_offset.saturating_add(last.len).saturating_sub(span.subfile_offset);
    Some(span)
}

impl Client {
    /// Reads several places of a file, each into its buffer; answers how many bytes each got, less than its length
    /// only at the end of the file. Each place is read for itself, as by [`Client::read`].
    ///
    /// # Errors
    /// As [`Client::read`].
    pub fn read_list(&self, ino: Ino, places: &mut [(u64, &mut [u8])]) -> FsResult<Vec<usize>> {
        let begun = begun(places.iter().map(|(_, into)| into.len()));
        self.send_unsent(ino)?;
        let counts = self.read_list_through(ino, places)?;
        let read = places.iter().zip(&counts).map(|((at, _), len)| (record::Place::At(*at), *len));
        self.used_list(ino, false, read, &begun);
        Ok(counts)
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
            self.count_content(list.node, list.len());
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
            .map(|(started, (_, list))| started.finish(&mut list.slices))
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
        for run in list.runs() {
            let (places, slices) = (list.places.get(run)?, &mut list.slices);
            let seen = match places {
                [(range, of)] => {
                    let slices = slices.get_mut(of.clone())?;
                    let mut bufs: Vec<IoSliceMut<'_>> =
                        slices.iter_mut().map(|slice| IoSliceMut::new(slice)).collect();
                    let (read, seen) = self.read_direct(list.node, ino, range, &mut bufs)?;
                    whole &= read as u64 == range.len;
                    bivouac_layout::zero_behind(slices, read);
                    seen
                }
                places => {
                    let span = span(places)?;
                    let mut bytes = vec![0; span.len as usize];
                    let (read, seen) =
                        self.read_direct(list.node, ino, &span, &mut [IoSliceMut::new(&mut bytes)])?;
                    bytes.truncate(read);
                    for (range, of) in places {
                        let place = (range.subfile_offset, range.len);
                        let there = bivouac_layout::part_of(span.subfile_offset, &bytes, place);
                        whole &= there.len() as u64 == range.len;
                        bivouac_layout::fill(slices.get_mut(of.clone())?, there);
                    }
                    seen
                }
            };
            whole &= seen <= epoch;
        }
        Some(whole)
    }

    /// Writes several places of a file: all of them, or an error. Each is written for itself, as by
    /// [`Client::write`], in no particular order; where they overlap, any of them wins.
    ///
    /// # Errors
    /// As [`Client::write`].
    pub fn write_list(&self, ino: Ino, places: &[(u64, &[u8])]) -> FsResult<()> {
        let begun = begun(places.iter().map(|(_, data)| data.len()));
        let _fenced = self.locks.guard(ino)?;
        self.send_unsent(ino)?;
        let written = self.write_list_through(ino, places);
        self.drop_copies(ino);
        written?;
        let written = places.iter().map(|(at, data)| (record::Place::At(*at), data.len()));
        self.used_list(ino, true, written, &begun);
        Ok(())
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
                let slices = range.pieces().filter_map(|piece| data.get(piece.range()).map(IoSlice::new));
                self.add(&mut seats, range.clone(), slices)?;
            }
        }
        let (mut accepted, mut messages) = (true, Vec::new());
        for (seat, list) in seats {
            self.count_content(list.node, list.len());
            match self.write_list_direct(ino, &list, known.epoch) {
                Some(taken) => accepted &= taken,
                None => messages.push((seat, list)),
            }
        }
        let (mut under_way, mut failure) = (Vec::with_capacity(messages.len()), None);
        for (seat, list) in &messages {
            let request = request(ino, *seat, known, true, list);
            let started = self.start::<op::AccessList>(list.node, &request, &list.slices);
            note(&mut failure, &mut under_way, started);
        }
        // Every answer is awaited, also behind a failure: no write may still be on its way when we return.
        let answers: Vec<FsResult<(ListDone, usize)>> =
            under_way.into_iter().map(|started| started.finish(&mut [])).collect();
        failure.map_or(Ok(()), Err)?;
        answers.into_iter().try_fold(accepted, |all, answer| Ok(all & answer?.0.accepted))
    }

    /// Of one seat of this machine: whether its epoch was not newer; `None` if a message has to do it.
    fn write_list_direct(&self, ino: Ino, list: &SeatList<IoSlice<'_>>, epoch: u32) -> Option<bool> {
        for run in list.runs() {
            let places = list.places.get(run)?;
            let (span, count) = (span(places)?, places.len());
            let maps = count >= MAPPED_MIN && span.len <= count as u64 * MAPPED_STEP_MAX;
            let taken = self.write_granted(list.node, ino, &span, epoch, |handle| {
                if maps && handle.is_in_memory() {
                    let parts = places.iter().flat_map(|place| parts_of(list, place));
                    return handle.write_mapped(span.subfile_offset, span.len, parts);
                }
                places.iter().try_for_each(|(range, of)| {
                    let slices = list.slices.get(of.clone()).unwrap_or_default();
                    handle.write(range.subfile_offset, range.len, &mut slices.to_vec())
                })
            });
            if !taken? {
                return Some(false);
            }
        }
        Some(true)
    }

    fn add<S>(
        &self,
        seats: &mut BTreeMap<SeatIndex, SeatList<S>>,
        range: SeatRange,
        slices: impl IntoIterator<Item = S>,
    ) -> FsResult<()> {
        let list = match seats.entry(range.seat) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let node = self.seat_node(&range)?;
                entry.insert(SeatList { node, places: Vec::new(), slices: Vec::new() })
            }
        };
        let first = list.slices.len();
        list.slices.extend(slices);
        list.places.push((range, first..list.slices.len()));
        Ok(())
    }
}

/// The buffers of a place, each with its offset in the subfile.
fn parts_of<'a>(
    list: &'a SeatList<IoSlice<'_>>,
    (range, of): &'a Place,
) -> impl Iterator<Item = (u64, &'a [u8])> {
    let slices = list.slices.get(of.clone()).unwrap_or_default();
    slices.iter().scan(range.subfile_offset, |at, slice| {
        let here = *at;
        *at += slice.len() as u64;
        Some((here, &**slice))
    })
}

fn request<S>(ino: Ino, seat: SeatIndex, known: &Known, write: bool, list: &SeatList<S>) -> ListRequest {
    let extent = |(range, _): &Place| (range.subfile_offset, range.len as u32);
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
fn batch_len(layout: &Layout, places: impl Iterator<Item = (u64, usize)> + Clone) -> usize {
    // What is little for one seat is little for all.
    let mut bytes = 0usize;
    let is_little = |(index, (_, len)): (usize, (u64, usize))| {
        bytes = bytes.saturating_add(len);
        index < LIST_EXTENTS_MAX && bytes <= TRANSFER_MAX
    };
    if places.clone().enumerate().all(is_little) {
        return places.count().max(1);
    }
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
        let of = |seats: u16, lens: &[usize]| {
            let layout = Layout { stripe: 4096, width: seats, base: SeatIndex(0), seats };
            let places = lens.iter().scan(0, |at, len| {
                let offset = *at;
                *at += *len as u64;
                Some((offset, *len))
            });
            batch_len(&layout, places)
        };
        assert_eq!(of(1, &[1, 2, 3]), 3);
        assert_eq!(of(1, &[TRANSFER_MAX, 1]), 1);
        assert_eq!(of(1, &[TRANSFER_MAX + 1, 1]), 1);
        assert_eq!(of(1, &[1, TRANSFER_MAX - 1, 1]), 2);
        assert_eq!(of(2, &[TRANSFER_MAX, TRANSFER_MAX, 1]), 2, "half of each is on each seat");
        assert_eq!(of(1, &[1; 50_000]), LIST_EXTENTS_MAX);
        assert_eq!(of(4, &[1; 50_000]), 50_000);
    }
}
