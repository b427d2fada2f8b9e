//! Access to many places of a file at once: one message per target, whatever their number.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;

use bivouac_direct::WritablePages;
use bivouac_layout::TargetRange;
use bivouac_net::StartedCall;
use bivouac_types::limits::{FILE_SIZE_MAX, LIST_EXTENTS_MAX, TRANSFER_MAX};
use bivouac_types::{Errno, FsError, FsResult, Ino, Layout, NodeId, TargetIndex};
use bivouac_wire::{ListRequest, op};

use super::Content;
use super::carry::{Call, Carried, Messages, Verdict};
use super::data::{len_within, scatter};
use super::publish::{OVERTAKEN_MAX, Update, overtaken};
use crate::homes::known::KnownFile;
use crate::tokens::Access;

/// A place of a subfile. There may be many: each is small.
struct ListPlace {
    offset: u64,
    len: u32,
    /// Index of the first of its buffers, which reach up to those of the next place.
    buffers: u32,
}

// No place of a batch is longer than a message, nor is the sum of a target's places; no buffer is empty.
const _: () = assert!(TRANSFER_MAX <= u32::MAX as usize);

/// The places of one target, and their buffers.
struct TargetList<S> {
    /// The first place, as it was split.
    first: TargetRange,
    places: Vec<ListPlace>,
    slices: Vec<S>,
    /// Bytes of all places.
    bytes: u64,
    /// How many places, from the first, the target has written. They are not written again: another client may have
    /// overwritten them since.
    written: Cell<usize>,
}

impl<S> TargetList<S> {
    fn push(&mut self, offset: u64, len: u64, slices: impl IntoIterator<Item = S>) {
        assert!(len <= TRANSFER_MAX as u64, "a place of a list has {len} bytes");
        self.places.push(ListPlace { offset, len: len as u32, buffers: self.slices.len() as u32 });
        self.slices.extend(slices);
        self.bytes += len;
    }

    /// Returns which of the buffers belong to some places.
    fn buffers(&self, places: &Range<usize>) -> Range<usize> {
        let from = |index: usize| self.places.get(index).map_or(self.slices.len(), |p| p.buffers as usize);
        from(places.start)..from(places.end)
    }

    /// Returns which of the buffers belong to one place.
    fn buffers_of(&self, place: usize) -> Range<usize> {
        self.buffers(&(place..place + 1))
    }

    /// Returns the places that are not written yet, and their buffers.
    fn left(&self) -> (&[ListPlace], &[S]) {
        // The count comes from a node: it may be anything.
        let left = self.written.get().min(self.places.len())..self.places.len();
        let buffers = self.slices.get(self.buffers(&left)).unwrap_or_default();
        (self.places.get(left).unwrap_or_default(), buffers)
    }

    /// Returns runs of places, of those not written yet, that are cheaper to access together.
    fn runs(&self) -> Vec<Range<usize>> {
        let left = self.left().0;
        let first = self.places.len() - left.len();
        let runs = bivouac_layout::runs(left.iter().map(|place| (place.offset, place.len.into())));
        runs.into_iter().map(|run| run.start + first..run.end + first).collect()
    }

    /// Returns the range from the start of the first of some places to the end of the last.
    fn span(&self, places: &[ListPlace]) -> Option<TargetRange> {
        let (first, last) = (places.first()?, places.last()?);
        let mut span = self.first.clone();
        span.subfile_offset = first.offset;
        span.len = last.offset.saturating_add(last.len.into()).saturating_sub(first.offset);
        Some(span)
    }
}

/// A value for each target that a list of places touches.
struct ByTarget<T> {
    all: Vec<T>,
    of: BTreeMap<TargetIndex, usize>,
    near: Option<Stripe>,
}

/// The stripe of the last place. With many places, most are in the same stripe as the one before: target and offset in
/// the subfile take an addition then.
struct Stripe {
    file: Range<u64>,
    subfile_offset: u64,
    index: usize,
}

impl<S> ByTarget<TargetList<S>> {
    fn add(&mut self, range: TargetRange, slices: impl IntoIterator<Item = S>) -> FsResult<()> {
        let (target, offset, len) = (range.target, range.subfile_offset, range.len);
        let new = || {
            let (places, slices) = (Vec::new(), Vec::new());
            Ok(TargetList { first: range, places, slices, bytes: 0, written: Cell::new(0) })
        };
        self.of(target, new)?.push(offset, len, slices);
        Ok(())
    }
}

impl<T> ByTarget<T> {
    fn new() -> ByTarget<T> {
        ByTarget { all: Vec::new(), of: BTreeMap::new(), near: None }
    }

    /// Returns the entry of a target, made by `make` if there is none.
    fn of(&mut self, target: TargetIndex, make: impl FnOnce() -> FsResult<T>) -> FsResult<&mut T> {
        let index = match self.of.entry(target) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => {
                self.all.push(make()?);
                *entry.insert(self.all.len() - 1)
            }
        };
        self.all.get_mut(index).ok_or_else(|| Errno::EIO.into())
    }

    /// Returns the entry of a place's target, and its offset in the subfile, if the place is in the stripe of the one
    /// before.
    fn near(&mut self, offset: u64, len: u64) -> Option<(&mut T, u64)> {
        let stripe = self.near.as_ref()?;
        let is_within = offset >= stripe.file.start && offset.saturating_add(len) <= stripe.file.end;
        let at = is_within.then(|| offset - stripe.file.start + stripe.subfile_offset)?;
        Some((self.all.get_mut(stripe.index)?, at))
    }

    /// Notes the stripe in which a place begins, if its target has an entry.
    fn meet(&mut self, layout: &Layout, offset: u64) {
        let here = bivouac_layout::locate(layout, offset);
        let behind = u64::from(layout.stripe.max(1)).saturating_sub(here.run);
        self.near = self.of.get(&here.target).map(|index| Stripe {
            file: offset - behind..offset.saturating_add(here.run),
            subfile_offset: here.subfile_offset - behind,
            index: *index,
        });
    }
}

impl Content {
    /// Like [`Content::read`], for several places, each by itself.
    pub(crate) fn read_list(
        &self,
        file: impl Into<Access>,
        places: &mut [(u64, &mut [u8])],
    ) -> FsResult<Vec<usize>> {
        let file = file.into();
        let ino = file.ino;
        let mut counts = Vec::with_capacity(places.len());
        let mut rest = places;
        while !rest.is_empty() {
            let layout = self.homes.know(ino)?.layout;
            let count = batch_len(&layout, rest.iter().map(|(offset, into)| (*offset, into.len())));
            let (batch, behind) = rest.split_at_mut(count);
            match batch {
                // Alone, and perhaps too long for one message.
                [(offset, into)] => counts.push(self.read(file, *offset, into)?),
                batch => counts.extend(self.read_batch(file, batch)?),
            }
            rest = behind;
        }
        Ok(counts)
    }

    fn read_batch(&self, file: Access, batch: &mut [(u64, &mut [u8])]) -> FsResult<Vec<usize>> {
        let ino = file.ino;
        let end = batch.iter().map(|(offset, into)| offset.saturating_add(into.len() as u64)).max();
        let within = |size: u64, batch: &[(u64, &mut [u8])]| -> Vec<usize> {
            batch.iter().map(|(offset, into)| len_within(size, *offset, into.len())).collect()
        };
        let known = self.homes.know_up_to(ino, end.unwrap_or(0))?;
        let size = self.read_within(OVERTAKEN_MAX, file, known, |known| {
            let counts = within(known.size, batch);
            self.read_list_targets(ino, known, batch, &counts)
        })?;
        Ok(within(size.ok_or_else(|| overtaken(ino))?, batch))
    }

    /// Reads from all targets, zeros where they have nothing. Returns true if they had everything, as of this epoch.
    fn read_list_targets(
        &self,
        ino: Ino,
        known: &KnownFile,
        batch: &mut [(u64, &mut [u8])],
        counts: &[usize],
    ) -> FsResult<bool> {
        let mut targets: ByTarget<TargetList<IoSliceMut<'_>>> = ByTarget::new();
        for ((offset, into), count) in batch.iter_mut().zip(counts) {
            let into = into.get_mut(..*count).filter(|into| !into.is_empty());
            let Some(into) = into else { continue };
            let len = into.len() as u64;
            if let Some((list, at)) = targets.near(*offset, len) {
                list.push(at, len, [IoSliceMut::new(into)]);
                continue;
            }
            let ranges: Vec<TargetRange> = bivouac_layout::split(&known.layout, *offset, len).collect();
            let scattered = scatter(&ranges, into);
            for (range, slices) in ranges.into_iter().zip(scattered) {
                targets.add(range, slices)?;
            }
            targets.meet(&known.layout, *offset);
        }
        let nodes = self.list_nodes(&targets.all)?;
        self.at_once((ino, known), &nodes, targets.all.as_mut_slice(), &mut Carried::default())
    }

    /// Like [`Content::write`], for several places, each by itself, in no particular order.
    pub(crate) fn write_list(&self, file: impl Into<Access>, places: &[(u64, &[u8])]) -> FsResult<()> {
        let file = file.into();
        let ino = file.ino;
        let mut rest = places;
        while !rest.is_empty() {
            let layout = self.homes.know(ino)?.layout;
            let places = rest.iter().map(|(offset, data)| (*offset, data.len()));
            let (batch, behind) = rest.split_at(batch_len(&layout, places));
            match batch {
                [(offset, data)] => self.write(file, *offset, data)?,
                batch => self.write_batch(file, batch)?,
            }
            rest = behind;
        }
        Ok(())
    }

    fn write_batch(&self, file: Access, batch: &[(u64, &[u8])]) -> FsResult<()> {
        let ino = file.ino;
        let mut sorted: Vec<Range<u64>> = Vec::new();
        // Mostly they are sorted, and a copy of thousands is spared.
        if !ranges(batch).is_sorted_by_key(|range| range.start) {
            sorted.extend(ranges(batch));
            sorted.sort_unstable_by_key(|range| range.start);
        }
        let start = |size| {
            if sorted.is_empty() {
                last_run(ranges(batch), size)
            } else {
                last_run(sorted.iter().cloned(), size)
            }
        };
        let Some(end) = ranges(batch).map(|range| range.end).max() else { return Ok(()) };
        if end > FILE_SIZE_MAX {
            return Err(Errno::EFBIG.into());
        }
        // The lists of one epoch are kept for all of its attempts: they note what is written.
        let mut lists: Option<(u32, Vec<TargetList<IoSlice<'_>>>)> = None;
        let write = |known: &KnownFile, carried: &mut Carried| {
            if lists.as_ref().is_none_or(|(epoch, _)| *epoch != known.epoch) {
                lists = Some((known.epoch, target_lists(known, batch)?));
            }
            let lists = lists.as_ref().map(|(_, lists)| lists.as_slice()).unwrap_or_default();
            self.at_once((ino, known), &self.list_nodes(lists)?, lists, carried)
        };
        self.publish(&Update::of(file, end), start, write)?;
        // The home counted everything in front of the last gap as a hole, though some of it is written.
        if start(0) > 0 {
            self.known.fill(ino);
        }
        Ok(())
    }

    /// Returns the nodes of lists, and counts the content to or from them.
    fn list_nodes<S>(&self, lists: &[TargetList<S>]) -> FsResult<Vec<NodeId>> {
        lists.iter().map(|list| self.count_content(&list.first, list.bytes)).collect()
    }
}

/// Returns the lists of all targets of a batch to be written.
fn target_lists<'d>(known: &KnownFile, batch: &[(u64, &'d [u8])]) -> FsResult<Vec<TargetList<IoSlice<'d>>>> {
    let mut targets: ByTarget<TargetList<IoSlice<'d>>> = ByTarget::new();
    for (offset, data) in batch.iter().filter(|(_, data)| !data.is_empty()) {
        let len = data.len() as u64;
        if let Some((list, at)) = targets.near(*offset, len) {
            list.push(at, len, [IoSlice::new(data)]);
            continue;
        }
        for range in bivouac_layout::split(&known.layout, *offset, len) {
            let slices = range.pieces().filter_map(|piece| data.get(piece.range()).map(IoSlice::new));
            targets.add(range.clone(), slices)?;
        }
        targets.meet(&known.layout, *offset);
    }
    Ok(targets.all)
}

impl<'a> Messages<'a> for &'a [TargetList<IoSlice<'a>>] {
    type Op = op::AccessList;

    fn request(&self, call: &Call<'_>, message: usize) -> ListRequest {
        request(call, true, &self[message])
    }

    fn payload(&self, message: usize) -> &'a [IoSlice<'a>] {
        self[message].left().1
    }

    fn here(&mut self, call: &Call<'_>, message: usize) -> Option<Verdict> {
        let (list, node, epoch) = (&self[message], call.nodes[message], call.known.epoch);
        for run in list.runs() {
            let places = list.places.get(run.clone())?;
            let (span, count) = (list.span(places)?, places.len());
            // Many small places are cheaper to copy into a mapping than to write by a system call each.
            let maps = WritablePages::pays(count, span.len);
            let taken = call.direct.write_granted(node, call.ino, &span, epoch, |handle| {
                // A page fault of a disk's file would wait inside the gate, and a failed one would end the process.
                if maps && handle.is_in_memory() {
                    let slices = list.slices.get(list.buffers(&run)).unwrap_or_default();
                    let extents = places.iter().map(|place| (place.offset, place.len.into()));
                    let placed = bivouac_layout::placed(extents, slices.iter().map(|slice| &**slice));
                    return handle.write_mapped(span.subfile_offset, span.len, placed);
                }
                // Places written under an earlier grant of the run stay as they are.
                let left = run.clone().zip(places).skip_while(|(index, _)| *index < list.written.get());
                for (index, place) in left {
                    let slices = list.slices.get(list.buffers_of(index)).unwrap_or_default();
                    handle.write(place.offset, place.len.into(), &mut slices.to_vec())?;
                    // Place by place: where the grant ends in between, what others write over it from now on stays.
                    list.written.set(index + 1);
                }
                Ok(())
            });
            // Without a grant all that is left is sent; what the runs before have written is noted.
            if !taken? {
                return Some(Verdict::Overtaken);
            }
            list.written.set(run.end);
        }
        Some(Verdict::Whole)
    }

    fn finish(
        &mut self,
        _: &Call<'_>,
        message: usize,
        started: StartedCall<'_, op::AccessList>,
    ) -> FsResult<Verdict> {
        let (done, list) = (started.finish(&mut [])?.0, &self[message]);
        if done.accepted && !done.whole {
            list.written.set(list.written.get() + done.places as usize);
            // The next attempt gets the reason why the rest is not written.
            let text = format!("{} of {} places are written", list.written.get(), list.places.len());
            return Err(FsError::with(Errno::EINPROGRESS, text));
        }
        Ok(Verdict::of_write(done.accepted))
    }
}

impl<'a> Messages<'a> for &mut [TargetList<IoSliceMut<'_>>] {
    type Op = op::AccessList;

    fn request(&self, call: &Call<'_>, message: usize) -> ListRequest {
        request(call, false, &self[message])
    }

    fn here(&mut self, call: &Call<'_>, message: usize) -> Option<Verdict> {
        let (direct, node, ino) = (call.direct, call.nodes[message], call.ino);
        let (list, mut whole) = (&mut self[message], true);
        for run in list.runs() {
            let span = list.span(list.places.get(run.clone())?)?;
            let seen = if run.len() == 1 {
                let buffers = list.buffers(&run);
                let slices = list.slices.get_mut(buffers)?;
                let mut bufs: Vec<IoSliceMut<'_>> =
                    slices.iter_mut().map(|slice| IoSliceMut::new(slice)).collect();
                let (read, seen) = direct.read(node, ino, &span, &mut bufs)?;
                whole &= read as u64 == span.len;
                bivouac_layout::zero_behind(slices, read);
                seen
            } else {
                // One system call for many places.
                let mut bytes = vec![0; span.len as usize];
                let (read, seen) = direct.read(node, ino, &span, &mut [IoSliceMut::new(&mut bytes)])?;
                bytes.truncate(read);
                for index in run {
                    let (place, buffers) = (list.places.get(index)?, list.buffers_of(index));
                    let wanted = (place.offset, place.len.into());
                    let there = bivouac_layout::part_of(span.subfile_offset, &bytes, wanted);
                    whole &= there.len() == place.len as usize;
                    bivouac_layout::fill(list.slices.get_mut(buffers)?, there);
                }
                seen
            };
            whole &= seen <= call.known.epoch;
        }
        Some(if whole { Verdict::Whole } else { Verdict::Short })
    }

    fn finish(
        &mut self,
        call: &Call<'_>,
        message: usize,
        started: StartedCall<'_, op::AccessList>,
    ) -> FsResult<Verdict> {
        let (done, _) = started.finish(&mut self[message].slices)?;
        Ok(if done.whole && done.epoch <= call.known.epoch { Verdict::Whole } else { Verdict::Short })
    }
}

fn request<S>(call: &Call<'_>, write: bool, list: &TargetList<S>) -> ListRequest {
    let extents = list.left().0.iter().map(|place| (place.offset, place.len)).collect();
    let KnownFile { layout, epoch, .. } = *call.known;
    ListRequest { ino: call.ino, target: list.first.target, layout, epoch, write, extents }
}

/// Returns the ranges of the file that are written, saturated where no file reaches.
fn ranges(batch: &[(u64, &[u8])]) -> impl Iterator<Item = Range<u64>> {
    let places = batch.iter().filter(|(_, data)| !data.is_empty());
    places.map(|(offset, data)| *offset..offset.saturating_add(data.len() as u64))
}

/// Returns where the last of these ranges begins that leaves a gap behind `size` and the ranges before it; 0 if none
/// does. Wherever the size is by now: not all between it and that place is written.
fn last_run(sorted: impl Iterator<Item = Range<u64>>, size: u64) -> u64 {
    let (mut covered, mut start) = (size, 0);
    for range in sorted {
        if range.start > covered {
            start = range.start;
        }
        covered = covered.max(range.end);
    }
    start
}

/// Returns how many of the places, given by offset and length, fit one message to each target; at least one.
fn batch_len(layout: &Layout, places: impl Iterator<Item = (u64, usize)> + Clone) -> usize {
    // A batch that fits one target fits all, and needs no count by target.
    let mut bytes = 0usize;
    let is_little = |(index, (_, len)): (usize, (u64, usize))| {
        bytes = bytes.saturating_add(len);
        index < LIST_EXTENTS_MAX && bytes <= TRANSFER_MAX
    };
    if places.clone().enumerate().all(is_little) {
        return places.count().max(1);
    }
    let mut targets: ByTarget<(usize, u64)> = ByTarget::new();
    let takes = |(extents, bytes): &mut (usize, u64), len: u64| {
        (*extents, *bytes) = (*extents + 1, *bytes + len);
        *extents <= LIST_EXTENTS_MAX && *bytes <= TRANSFER_MAX as u64
    };
    let fits = |(offset, len): &(u64, usize)| {
        if *len > TRANSFER_MAX {
            return false;
        }
        if let Some((target, _)) = targets.near(*offset, *len as u64) {
            return takes(target, *len as u64);
        }
        let mut ranges = bivouac_layout::split(layout, *offset, *len as u64);
        let fit = ranges.all(|range| {
            targets.of(range.target, || Ok((0, 0))).is_ok_and(|target| takes(target, range.len))
        });
        targets.meet(layout, *offset);
        fit
    };
    places.take_while(fits).count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_gap_behind_the_size_is_found() {
        let last_run = |ranges: &[Range<u64>], size| last_run(ranges.iter().cloned(), size);
        assert_eq!(last_run(&[0..5, 5..9, 3..20], 0), 0);
        assert_eq!(last_run(&[0..5, 10..12, 11..20], 0), 10);
        assert_eq!(last_run(&[0..5, 10..12, 11..20], 10), 0, "the gap is within the size");
        assert_eq!(last_run(&[7..9, 10..12, 50..60, 55..70], 11), 50);
    }

    proptest! {
        /// What lies in the stripe of the place before is where splitting it says.
        #[test]
        fn a_place_near_the_last_one_is_where_it_would_be_split_to(
            width in 1u16..5,
            base in 0u32..5,
            stripe in prop::sample::select(vec![4096u32, 65_536]),
            places in prop::collection::vec((0u64..400_000, 0u64..20_000), 1..40),
        ) {
            let layout = Layout { stripe, width, base: TargetIndex(base), targets: 5 };
            let mut targets: ByTarget<TargetIndex> = ByTarget::new();
            for (offset, len) in places {
                let split: Vec<_> = bivouac_layout::split(&layout, offset, len).collect();
                if let (Some((target, at)), true) = (targets.near(offset, len), len > 0) {
                    prop_assert_eq!(split.len(), 1);
                    prop_assert_eq!((split[0].target, split[0].subfile_offset), (*target, at));
                }
                for range in split {
                    prop_assert_eq!(*targets.of(range.target, || Ok(range.target)).unwrap(), range.target);
                }
                targets.meet(&layout, offset);
                if len > 0 {
                    prop_assert!(targets.near(offset, 1).is_some());
                }
            }
        }
    }

    #[test]
    fn batches_fit_into_messages() {
        let of = |targets: u16, lens: &[usize]| {
            let layout = Layout { stripe: 4096, width: targets, base: TargetIndex(0), targets };
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
        assert_eq!(of(2, &[TRANSFER_MAX, TRANSFER_MAX, 1]), 2, "half of each is on each target");
        assert_eq!(of(1, &[1; 50_000]), LIST_EXTENTS_MAX);
        assert_eq!(of(4, &[1; 50_000]), 50_000);
    }
}
