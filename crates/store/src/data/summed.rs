//! A subfile whose blocks have checksums: how bytes and sums change together although a kill may come in between, and
//! how they are compared.
//!
//! A change is noted first, with the sum of what the entries will be; then the bytes are written, then the entries.
//! Whoever opens the subfile after a kill finds the note. Entries that are not yet those that it names mean that the
//! bytes may be old, new or half of each: their blocks are *in flux*, not wrong.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

use bivouac_types::Errno;
use bivouac_types::limits::{SCRUB_PIECE, SUM_BLOCK, SUMMED_DATA_AT};

use super::holders::WriteMarks;
use super::room::SpaceAccount;
use super::subfile::{AccessError, OpenSubfile, PAGE, page_up};
use super::sums::{
    self, BLOCK, BLOCKS_MAX, ChangeNote, Completion, FLUX, HOLE, MAGIC, MAGIC_AT, NOTE_AT, NOTE_LEN, Pieces,
    WRONG,
};
use crate::volume::transfer::{read_full_at, write_all_at};
use crate::{Places, VolumeFile};

/// Most blocks of a change whose completion shows by its entries: more than the longest write has.
const NOTED_BLOCKS_MAX: u64 = 1 << 16;
/// Entries that are read or written at once.
const ENTRIES_STEP: u64 = 1 << 12;
/// Blocks that are compared at once.
const PIECE_BLOCKS: u64 = SCRUB_PIECE / SUM_BLOCK;

/// State of a subfile's checksums that is not on the volume.
#[derive(Debug, Default)]
pub(super) struct ChecksumState {
    /// True if there may be blocks in flux.
    flux: bool,
    /// Block at which the search for them continues.
    settle_from: u64,
    /// Blocks whose entries could not be written as they should be: not compared, whatever these say.
    unsure: Range<u64>,
    /// Blocks that processes may write to themselves.
    lent: Range<u64>,
}

/// Entries that blocks will have.
#[derive(Default)]
pub(super) struct Plan {
    first: u64,
    entries: Vec<u32>,
}

/// Result of comparing some blocks.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Compared {
    /// Block to continue at; `None` at the end.
    pub(super) next: Option<u64>,
    /// Blocks whose bytes were compared.
    pub(super) compared: u64,
    /// Blocks that were in flux and have sums now.
    pub(super) settled: u64,
    /// Blocks that could not be compared.
    pub(super) skipped: u64,
    /// Blocks that are wrong, or cannot be read.
    pub(super) wrong: Vec<u64>,
}

/// Returns the first bytes of a subfile behind its header; where they end.
pub(super) fn begin_sums(header: &mut [u8]) -> usize {
    let end = MAGIC_AT as usize + MAGIC.len();
    if let Some(place) = header.get_mut(MAGIC_AT as usize..end) {
        place.copy_from_slice(MAGIC);
    }
    end
}

/// Returns whether a file has sums, by what follows its header: for one whose header is damaged. If that is lost as
/// well, by where its bytes are: none between the entries of so many and where data begins with sums.
pub(super) fn has_sums(file: &dyn VolumeFile) -> bool {
    let mut found = [0; MAGIC.len()];
    if file.read_vectored_at(&mut [IoSliceMut::new(&mut found)], MAGIC_AT).is_ok() && found == *MAGIC {
        return true;
    }
    let len = file.stat().map_or(0, |stat| stat.len.saturating_sub(SUMMED_DATA_AT));
    let data = file.next_data(front_of(len)).ok().flatten();
    len > 0 && data.is_none_or(|data| data.start >= SUMMED_DATA_AT)
}

/// Returns the offset of the data behind the entries of `len` bytes of it, if these are all there and in whole pages.
pub(super) fn front_of(len: u64) -> u64 {
    page_up(sums::entry_at(len.div_ceil(SUM_BLOCK)))
}

/// Returns the number of bytes of pages for the entries of a range of data, at most.
pub(super) fn entries_room(data: &Range<u64>) -> u64 {
    let pages = entry_pages(data);
    pages.end.saturating_sub(pages.start.max(PAGE))
}

/// Returns the whole pages that have the entries of a range of data, in the local file.
fn entry_pages(data: &Range<u64>) -> Range<u64> {
    let blocks = sums::blocks_of(data);
    if blocks.is_empty() {
        return 0..0;
    }
    sums::entry_at(blocks.start) / PAGE * PAGE..page_up(sums::entry_at(blocks.end))
}

impl OpenSubfile {
    /// Finds out what a kill left: of a subfile that was just opened. With `room` its blocks are made what they are to
    /// be.
    pub(super) fn find_sums(&mut self, room: Option<&SpaceAccount>) -> io::Result<()> {
        let mut bytes = [0; NOTE_LEN];
        read_full_at(&**self.file(), &mut [IoSliceMut::new(&mut bytes)], NOTE_AT, u64::MAX)?;
        let ChangeNote { blocks, until, flux } = ChangeNote::from_bytes(&bytes);
        self.sums = Some(ChecksumState { flux, ..ChecksumState::default() });
        let complete = match until {
            Completion::Now => true,
            Completion::Entries(crc) if blocks.end.saturating_sub(blocks.start) <= NOTED_BLOCKS_MAX => {
                crate::crc::crc32c(&sums::encoded(&self.entries(&blocks)?)) == crc
            }
            Completion::Entries(_) | Completion::Noted => false,
        };
        if complete {
            return Ok(());
        }
        match room {
            Some(room) => {
                self.doubt(blocks);
                self.measure(room, 0);
            }
            // Offline nothing is written: the subfile may be evidence, or on a volume that is mounted read-only.
            None => self.set_unsure(blocks),
        }
        Ok(())
    }

    /// Returns whether blocks have sums.
    pub(super) fn is_summed(&self) -> bool {
        self.sums.is_some()
    }

    /// Returns whether there may be blocks in flux.
    pub(super) fn is_in_flux(&self) -> bool {
        self.sums.as_ref().is_some_and(|sums| sums.flux)
    }

    /// Returns the number of bytes of whole pages that writes to a range need for their sums, and that are not there
    /// yet.
    pub(super) fn missing_entries(&self, data: &Range<u64>) -> io::Result<u64> {
        if self.sums.is_none() {
            return Ok(0);
        }
        let pages = entry_pages(data);
        let holes = self.holes_in_file(&pages)?;
        Ok(holes.into_iter().map(|hole| hole.end - hole.start).sum())
    }

    /// Gives the sums of a range the bytes that they will need.
    pub(super) fn allocate_entries(&self, data: &Range<u64>) -> io::Result<()> {
        let pages = entry_pages(data);
        if self.sums.is_none() || pages.is_empty() { Ok(()) } else { self.file().allocate(pages) }
    }

    /// Returns the number of bytes in front of the data, on the volume.
    pub(super) fn front(&self) -> io::Result<u64> {
        if self.sums.is_none() {
            return Ok(self.data_at());
        }
        let front = 0..self.data_at();
        let holes: u64 = self.holes_in_file(&front)?.iter().map(|hole| hole.end - hole.start).sum();
        Ok(front.end - holes)
    }

    fn entries(&self, blocks: &Range<u64>) -> io::Result<Vec<u32>> {
        let count = blocks.end.saturating_sub(blocks.start) as usize;
        let mut bytes = vec![0; count * size_of::<u32>()];
        let at = sums::entry_at(blocks.start);
        // What is behind the end of the file was never written.
        read_full_at(&**self.file(), &mut [IoSliceMut::new(&mut bytes)], at, u64::MAX)?;
        let word = |bytes: &[u8]| bytes.try_into().map_or(FLUX, u32::from_le_bytes);
        Ok(bytes.chunks_exact(size_of::<u32>()).map(word).collect())
    }

    /// Returns whether any block whose entry is in the header's page has one.
    pub(super) fn has_first_entries(&self) -> io::Result<bool> {
        let entries = self.entries(&(0..sums::block_at(PAGE)))?;
        Ok(entries.iter().any(|entry| *entry != HOLE))
    }

    fn write_entries(&self, first: u64, entries: &[u32]) -> io::Result<()> {
        // Data begins right behind the last entry.
        let end = first.saturating_add(entries.len() as u64);
        assert!(end <= BLOCKS_MAX, "entries up to block {end} would be written over data");
        write_all_at(&**self.file(), &[IoSlice::new(&sums::encoded(entries))], sums::entry_at(first))
    }

    /// Makes blocks those that were never written.
    fn clear_entries(&self, blocks: &Range<u64>) -> io::Result<()> {
        if blocks.start >= blocks.end {
            return Ok(());
        }
        let place = sums::entry_at(blocks.start)..sums::entry_at(blocks.end);
        match self.file().punch(place.clone()) {
            // Zeros are the entries of holes, so where no hole can be made they say the same.
            Err(error) if error.raw_os_error() == Some(Errno::EOPNOTSUPP.code()) => self.write_zeros(&place),
            outcome => outcome,
        }
    }

    /// Gives back the pages of entries that were reserved and not written. A sum that was written stays.
    pub(super) fn give_back_entries(&self, data: &Range<u64>) {
        if self.sums.is_some() {
            // What cannot be given back stays counted.
            // A page of entries that has data may have sums of other blocks, so only pages without any go.
            let unused = self.holes_in_file(&entry_pages(data)).unwrap_or_default();
            unused.into_iter().for_each(|pages| drop(self.file().punch(pages)));
        }
    }

    /// Notes a change before it is begun.
    fn note(&mut self, blocks: &Range<u64>, until: Completion) -> io::Result<()> {
        let Some(sums) = &self.sums else { return Ok(()) };
        let unsure = &sums.unsure;
        let note = if unsure.is_empty() {
            ChangeNote { blocks: blocks.clone(), until, flux: sums.flux }
        } else {
            // There is space for one note only, so it names one range that holds both; it counts until a later note
            // replaces it.
            let hull = unsure.start.min(blocks.start)..unsure.end.max(blocks.end);
            ChangeNote { blocks: hull, until: Completion::Noted, flux: true }
        };
        write_all_at(&**self.file(), &[IoSlice::new(&note.to_bytes())], NOTE_AT)
    }

    fn note_done(&mut self) {
        let nothing = self.sums.as_ref().map_or(0..0, |sums| sums.unsure.clone());
        // The note that stays costs comparing, after a kill.
        if let Err(error) = self.note(&nothing, Completion::Now) {
            log::warn!(why:% = error; "note of a subfile's checksums");
        }
    }

    fn set_unsure(&mut self, blocks: Range<u64>) {
        if let Some(sums) = &mut self.sums {
            let before = &sums.unsure;
            let hull = before.start.min(blocks.start)..before.end.max(blocks.end);
            sums.unsure = if before.is_empty() { blocks } else { hull };
        }
    }

    /// Accepts the present content of these blocks, whatever it is: they are in flux, and holes are zeros.
    fn doubt(&mut self, blocks: Range<u64>) {
        if let Err(error) = self.put_in_flux(&blocks) {
            log::warn!(why:% = error; "checksums of blocks {blocks:?} of a subfile cannot be noted as unknown");
            self.set_unsure(blocks);
        }
    }

    fn put_in_flux(&mut self, blocks: &Range<u64>) -> io::Result<()> {
        self.expect_flux(blocks.start);
        self.note(blocks, Completion::Noted)?;
        self.mark_flux(blocks)?;
        self.note_done();
        Ok(())
    }

    fn expect_flux(&mut self, first: u64) {
        if let Some(sums) = &mut self.sums {
            // The search that is under way would pass by blocks in front of where it stands.
            sums.settle_from = if sums.flux { sums.settle_from.min(first) } else { first };
            sums.flux = true;
        }
    }

    /// Blocks with bytes get the entry of those in flux, the others that of holes. The change has been noted.
    fn mark_flux(&self, blocks: &Range<u64>) -> io::Result<()> {
        let data_len = self.file().stat()?.len.saturating_sub(self.data_at());
        let end = blocks.end.min(data_len.div_ceil(SUM_BLOCK)).max(blocks.start);
        let mut at = blocks.start;
        while at < end {
            let data = self.file().next_data(self.data_at() + at * SUM_BLOCK)?;
            let data = data.map_or(end..end, |data| sums::blocks_of(&self.of_data(&data)));
            let data = data.start.clamp(at, end)..data.end.clamp(at, end);
            self.clear_entries(&(at..data.start))?;
            for first in data.clone().step_by(ENTRIES_STEP as usize) {
                let count = (data.end - first).min(ENTRIES_STEP) as usize;
                self.write_entries(first, &vec![FLUX; count])?;
            }
            at = data.end.max(at + 1);
        }
        self.clear_entries(&(end..blocks.end))
    }

    /// Tries again to write what could not be written.
    fn become_sure(&mut self) {
        let Some(sums) = &mut self.sums else { return };
        let unsure = std::mem::take(&mut sums.unsure);
        if !unsure.is_empty() {
            self.doubt(unsure);
        }
    }

    /// Reads data and compares it.
    pub(super) fn read_compared(
        &self,
        offset: u64,
        bufs: &mut [IoSliceMut<'_>],
        len: u64,
    ) -> Result<usize, AccessError> {
        let total: usize = bufs.iter().map(|buf| buf.len()).sum();
        let (mut rest, mut done) = (bufs, 0);
        while done < total {
            let at = offset + done as u64;
            let count = self.file().read_vectored_at(rest, self.data_at() + at)?;
            if count == 0 {
                break;
            }
            self.compare(at, count, rest)?;
            done += count;
            assert!(done <= total, "read {done} bytes into buffers of {total}");
            // A further read would return nothing, and costs a system call for each read at the end of a file.
            if done >= total || at + count as u64 >= len {
                break;
            }
            IoSliceMut::advance_slices(&mut rest, count);
        }
        if done < total {
            self.compare_absent(offset + done as u64..offset + total as u64)?;
        }
        Ok(done)
    }

    /// Compares what is behind the end of the local file: that is a hole only where no sum says otherwise, since the
    /// file may have been cut by others.
    fn compare_absent(&self, data: Range<u64>) -> Result<(), AccessError> {
        let blocks = sums::blocks_of(&data);
        for (block, entry) in blocks.clone().zip(self.entries(&blocks)?) {
            if entry != HOLE {
                self.block(block)?;
            }
        }
        Ok(())
    }

    /// Compares what was read. A block of which only a part is wanted is read as a whole.
    fn compare(&self, at: u64, count: usize, bufs: &mut [IoSliceMut<'_>]) -> Result<(), AccessError> {
        let end = at + count as u64;
        let blocks = sums::blocks_of(&(at..end));
        let mut parts = Vec::new();
        let mut pieces = Pieces::of(bufs);
        let entries = self.entries(&blocks)?;
        // A block without an entry would be given out without having been compared.
        assert!(entries.len() as u64 == blocks.end - blocks.start, "{} entries of {blocks:?}", entries.len());
        for (block, entry) in blocks.clone().zip(entries) {
            let first = block * SUM_BLOCK;
            let part = first.max(at)..(first + SUM_BLOCK).min(end);
            let len = (part.end - part.start) as usize;
            // A block that ends with the file is whole too: what is behind its end counts as zeros.
            let is_all = part.start == first && (len == BLOCK || !self.is_measured() && end >= self.len());
            if self.is_unknown(block, entry) {
                pieces.take(len, |_| ());
            } else if is_all {
                if pieces.entry(len) != entry {
                    return Err(AccessError::Wrong { block });
                }
            } else {
                pieces.take(len, |_| ());
                parts.push((block, part));
            }
        }
        // A sum is that of a whole block, so that of a part more is read. The caller gets the bytes that were compared.
        for (block, part) in parts {
            let bytes = self.block(block)?;
            let within = (part.start - block * SUM_BLOCK) as usize..(part.end - block * SUM_BLOCK) as usize;
            put(bufs, (part.start - at) as usize, bytes.get(within).unwrap_or_default());
        }
        Ok(())
    }

    fn is_unknown(&self, block: u64, entry: u32) -> bool {
        entry == FLUX || self.sums.as_ref().is_none_or(|sums| sums.unsure.contains(&block))
    }

    /// Returns all of a block, compared.
    fn block(&self, block: u64) -> Result<[u8; BLOCK], AccessError> {
        let mut bytes = [0; BLOCK];
        let at = block * SUM_BLOCK;
        let entry = self.entries(&(block..block + 1))?.first().copied().unwrap_or(FLUX);
        read_full_at(&**self.file(), &mut [IoSliceMut::new(&mut bytes)], self.data_at() + at, u64::MAX)?;
        if !self.is_unknown(block, entry) && sums::entry_of(&bytes) != entry {
            return Err(AccessError::Wrong { block });
        }
        Ok(bytes)
    }

    /// Returns a block before a part of it is changed. Where there is nothing yet, only its entry is read.
    fn old_block(&self, block: u64) -> Result<[u8; BLOCK], AccessError> {
        // A file that grows block by block would otherwise read each new block before it is written.
        let is_behind = !self.is_measured() && block * SUM_BLOCK >= self.len();
        if is_behind && self.entries(&(block..block + 1))? == [HOLE] {
            return Ok([0; BLOCK]);
        }
        self.block(block)
    }

    /// Returns all bytes from the first of some places to the last, as they will be. What lies between the places is
    /// compared, as in [`OpenSubfile::plan_write`].
    pub(super) fn overlaid(&mut self, places: &Places<'_>) -> Result<Vec<u8>, AccessError> {
        self.become_sure();
        let span = places.span();
        let mut bytes = vec![0; (span.end - span.start) as usize];
        if span.start < self.len() || self.is_measured() {
            self.read(span.start, &mut [IoSliceMut::new(&mut bytes)])?;
        }
        for (at, piece) in places.pieces() {
            let from = (at - span.start) as usize;
            if let Some(place) = bytes.get_mut(from..from + piece.len()) {
                place.copy_from_slice(piece);
            }
        }
        Ok(bytes)
    }

    /// Returns the entries after a write. A block of which only a part is written is compared first: damage beside the
    /// new bytes must not get a sum that fits.
    pub(super) fn plan_write(
        &mut self,
        data: &Range<u64>,
        bufs: &[IoSlice<'_>],
    ) -> Result<Plan, AccessError> {
        if self.sums.is_none() {
            return Ok(Plan::default());
        }
        // A write would make a file that others have cut look whole again.
        self.check_len()?;
        self.become_sure();
        let blocks = sums::blocks_of(data);
        let mut entries = Vec::with_capacity((blocks.end - blocks.start) as usize);
        let mut pieces = Pieces::of(bufs);
        for block in blocks.clone() {
            let first = block * SUM_BLOCK;
            let part = first.max(data.start)..(first + SUM_BLOCK).min(data.end);
            let len = (part.end - part.start) as usize;
            if len == BLOCK {
                entries.push(pieces.entry(len));
                continue;
            }
            let mut bytes = self.old_block(block)?;
            let mut to = (part.start - first) as usize;
            pieces.take(len, |piece| {
                if let Some(place) = bytes.get_mut(to..to + piece.len()) {
                    place.copy_from_slice(piece);
                }
                to += piece.len();
            });
            entries.push(sums::entry_of(&bytes));
        }
        assert!(
            entries.len() as u64 == blocks.end - blocks.start,
            "{} entries for {blocks:?}",
            entries.len()
        );
        Ok(Plan { first: blocks.start, entries })
    }

    /// Notes a plan before bytes are written.
    pub(super) fn begin_plan(&mut self, plan: &Plan) -> io::Result<()> {
        if plan.entries.is_empty() {
            return Ok(());
        }
        self.note(&plan.blocks(), Completion::Entries(crate::crc::crc32c(&sums::encoded(&plan.entries))))
    }

    /// Writes the entries of a plan after bytes were written.
    pub(super) fn end_plan(&mut self, plan: &Plan) {
        if plan.entries.is_empty() {
            return;
        }
        match self.write_entries(plan.first, &plan.entries) {
            // The entries fulfil the note, but one that is damaged later would make the change look as if it were under
            // way, and none of its blocks would be compared.
            Ok(()) => self.note_done(),
            Err(error) => {
                log::warn!(why:% = error; "checksums of a subfile cannot be written, its blocks are not compared");
                self.doubt(plan.blocks());
            }
        }
    }

    /// Gives up a plan after bytes were written in part: its blocks count as unknown.
    pub(super) fn give_up_plan(&mut self, plan: &Plan) {
        if !plan.entries.is_empty() {
            self.doubt(plan.blocks());
        }
    }

    /// Returns the entry of a block after this part of it becomes zeros. One that is wrong stays wrong, and does not
    /// keep a file from being cut.
    fn zeroed_part(&self, block: u64, part: Range<usize>) -> u32 {
        match self.entries(&(block..block + 1)).as_deref() {
            Ok([entry]) if self.is_unknown(block, *entry) => return FLUX,
            Ok([WRONG]) => return WRONG,
            _ => {}
        }
        match self.old_block(block) {
            Ok(mut bytes) => {
                bytes.get_mut(part).unwrap_or_default().fill(0);
                sums::entry_of(&bytes)
            }
            Err(AccessError::Wrong { .. }) => WRONG,
            Err(_) => FLUX,
        }
    }

    /// Calls `change`, which zeroes a range of data, and everything behind it if `is_cut`; keeps checksums consistent.
    pub(super) fn zeroing(
        &mut self,
        data: &Range<u64>,
        is_cut: bool,
        change: impl FnOnce(&mut OpenSubfile) -> io::Result<()>,
    ) -> io::Result<()> {
        if self.sums.is_none() || data.start >= data.end {
            return change(self);
        }
        self.become_sure();
        let mut blocks = sums::blocks_of(data);
        // Nothing behind the cut may keep a sum, however far: bytes that come there later have others.
        if is_cut {
            blocks.end = BLOCKS_MAX;
        }
        // Whole blocks become holes without being read; only those at both ends keep bytes that a new sum has to cover.
        let whole = data.start.div_ceil(SUM_BLOCK)..if is_cut { BLOCKS_MAX } else { data.end / SUM_BLOCK };
        let mut parts = Vec::new();
        for block in [data.start / SUM_BLOCK, data.end / SUM_BLOCK] {
            let first = block * SUM_BLOCK;
            let part = data.start.max(first)..if is_cut {
                first + SUM_BLOCK
            } else {
                data.end.min(first + SUM_BLOCK)
            };
            let is_part = block < BLOCKS_MAX && !whole.contains(&block) && part.start < part.end;
            // Both ends may be in one block.
            if is_part && parts.iter().all(|(known, _)| *known != block) {
                let within = (part.start - first) as usize..(part.end - first) as usize;
                parts.push((block, self.zeroed_part(block, within)));
            }
        }
        if let Some((block, _)) = parts.iter().find(|(_, entry)| *entry == FLUX) {
            self.expect_flux(*block);
        }
        // On the volume before the change: killed in between, these blocks count as unknown, not as wrong.
        self.note(&blocks, Completion::Noted)?;
        if let Err(error) = change(self) {
            match error.raw_os_error() == Some(Errno::EOPNOTSUPP.code()) {
                // Nothing has changed.
                true => self.note_done(),
                false => self.doubt(blocks),
            }
            return Err(error);
        }
        let written = self
            .clear_entries(&(whole.start.min(whole.end)..whole.end))
            .and_then(|()| parts.iter().try_for_each(|(block, entry)| self.write_entries(*block, &[*entry])));
        match written {
            Ok(()) => self.note_done(),
            Err(error) => {
                log::warn!(why:% = error; "checksums of a subfile cannot be written, its blocks are not compared");
                self.doubt(blocks);
            }
        }
        Ok(())
    }

    /// Processes may write to a window themselves, from now on.
    pub(super) fn lend(&mut self, window: &Range<u64>) -> io::Result<()> {
        if self.sums.is_none() {
            return Ok(());
        }
        self.become_sure();
        let blocks = sums::blocks_of(window);
        self.note(&blocks, Completion::Noted)?;
        // Each window holds the one before, so the last is all that processes may have written to.
        self.sums.iter_mut().for_each(|sums| sums.lent = blocks.clone());
        Ok(())
    }

    /// Lets a process write anywhere, without reports of the places.
    pub(super) fn lend_all(&mut self) {
        if self.sums.is_some() {
            let all = 0..BLOCKS_MAX;
            if let Err(error) = self.note(&all, Completion::Noted) {
                log::warn!(why:% = error; "note of a subfile's checksums");
            }
            self.sums.iter_mut().for_each(|sums| sums.lent = all.clone());
        }
    }

    /// Ends that; `marks` are the places that were written.
    pub(super) fn end_lending(&mut self, marks: &WriteMarks) {
        let Some(sums) = &mut self.sums else { return };
        let lent = std::mem::take(&mut sums.lent);
        if lent.is_empty() {
            return;
        }
        let data_len = self.file().stat().map_or(u64::MAX, |stat| stat.len.saturating_sub(self.data_at()));
        let end = lent.end.min(data_len.div_ceil(SUM_BLOCK)).max(lent.start);
        let parts = marks.parts(&(lent.start * SUM_BLOCK..end * SUM_BLOCK));
        let Some(first) = parts.first() else { return self.note_done() };
        // The whole window stays noted until its last part is summed.
        self.expect_flux(first.start / SUM_BLOCK);
        let noted = self.note(&lent, Completion::Noted);
        for part in parts.iter().map(sums::blocks_of) {
            if let Some(error) = noted
                .as_ref()
                .err()
                .map(ToString::to_string)
                .or(self.mark_flux(&part).err().map(|error| error.to_string()))
            {
                log::warn!(why:% = error; "checksums of blocks {part:?} of a subfile cannot be noted as unknown");
                self.set_unsure(part);
            }
        }
        self.note_done();
    }

    /// Compares the blocks from `from` on that have bytes or sums, some of them, and gives sums to those in flux if
    /// `reconcile` says so.
    pub(super) fn scrub(&mut self, from: u64, reconcile: bool) -> io::Result<Compared> {
        let mut found = Compared::default();
        let Some(first) = self.next_used(from)? else { return Ok(found) };
        let data_len = self.file().stat()?.len.saturating_sub(self.data_at());
        // One block at least: a sum behind the end of the file is a block that was lost, and is to be found wrong.
        let end = data_len.div_ceil(SUM_BLOCK).max(first + 1);
        let blocks = first..(first + PIECE_BLOCKS).min(end).min(BLOCKS_MAX);
        let mut entries = self.entries(&blocks)?;
        let mut bytes = vec![0; (blocks.end - blocks.start) as usize * BLOCK];
        let at = self.data_at() + first * SUM_BLOCK;
        let is_read = read_full_at(&**self.file(), &mut [IoSliceMut::new(&mut bytes)], at, u64::MAX).is_ok();
        let mut changed = false;
        for ((block, entry), bytes) in blocks.clone().zip(&mut entries).zip(bytes.chunks_mut(BLOCK)) {
            let place = self.data_at() + block * SUM_BLOCK;
            // A block that cannot be read must not make the rest of the piece unreadable.
            let readable = is_read
                || read_full_at(&**self.file(), &mut [IoSliceMut::new(bytes)], place, u64::MAX).is_ok();
            let sum = sums::entry_of(bytes);
            if !readable {
                found.wrong.push(block);
            } else if !self.is_unknown(block, *entry) {
                found.compared += 1;
                found.wrong.extend((sum != *entry).then_some(block));
            } else if reconcile && *entry == FLUX {
                (*entry, changed) = (sum, true);
                found.settled += 1;
            } else {
                found.skipped += 1;
            }
        }
        if changed {
            let plan = Plan { first, entries };
            self.begin_plan(&plan)?;
            self.end_plan(&plan);
        }
        found.next = Some(blocks.end).filter(|next| *next < BLOCKS_MAX);
        Ok(found)
    }

    /// Returns the first stretch of data from a place of the data on. A block with a sum is data, even where the local
    /// file has nothing: it was lost, and who takes it for a hole never reads it.
    pub(super) fn next_data(&self, from: u64) -> io::Result<Option<Range<u64>>> {
        let found = self.file().next_data(self.data_at() + from)?.map(|data| self.of_data(&data));
        if self.sums.is_none() {
            return Ok(found);
        }
        let end = found.as_ref().map_or(BLOCKS_MAX, |data| data.start / SUM_BLOCK);
        let lost = self.next_entry(from / SUM_BLOCK)?.filter(|block| *block < end);
        Ok(lost.map(|block| (block * SUM_BLOCK).max(from)..(block + 1) * SUM_BLOCK).or(found))
    }

    /// Returns the first block from `from` on that has bytes, or a sum.
    fn next_used(&self, from: u64) -> io::Result<Option<u64>> {
        if from >= BLOCKS_MAX {
            return Ok(None);
        }
        let data = self.file().next_data(self.data_at() + from * SUM_BLOCK)?;
        let data = data.map(|data| sums::blocks_of(&self.of_data(&data)).start);
        let sum = self.next_entry(from)?;
        let first = data.into_iter().chain(sum).min().map(|block| block.max(from));
        Ok(first.filter(|block| *block < BLOCKS_MAX))
    }

    /// Returns the first block from `from` on whose entry is not that of a hole.
    fn next_entry(&self, mut from: u64) -> io::Result<Option<u64>> {
        while from < BLOCKS_MAX {
            let found = self.file().next_data(sums::entry_at(from))?;
            let Some(found) = found.filter(|found| found.start < self.data_at()) else { return Ok(None) };
            // A page at a time: most of the first one is unused in a small file.
            let first = sums::block_at(found.start).max(from);
            let blocks = first..sums::block_at(page_up(found.start + 1)).clamp(first, BLOCKS_MAX);
            if let Some(index) = self.entries(&blocks)?.iter().position(|entry| *entry != 0) {
                return Ok(Some(blocks.start + index as u64));
            }
            from = blocks.end.max(from + 1);
        }
        Ok(None)
    }

    /// Gives sums to some blocks in flux, and compares those around them; `None` if there are no more.
    pub(super) fn settle_some(&mut self) -> io::Result<Option<Compared>> {
        let Some(sums) = self.sums.as_ref().filter(|sums| sums.flux && sums.lent.is_empty()) else {
            return Ok(None);
        };
        let from = sums.settle_from;
        let Some(first) = self.next_in_flux(from)? else {
            self.sums.iter_mut().for_each(|sums| sums.flux = !sums.unsure.is_empty());
            self.note_done();
            return Ok(None);
        };
        let found = self.scrub(first, true)?;
        let next = found.next.unwrap_or(BLOCKS_MAX);
        self.sums.iter_mut().for_each(|sums| sums.settle_from = next);
        Ok(Some(found))
    }

    fn next_in_flux(&self, from: u64) -> io::Result<Option<u64>> {
        let mut at = from;
        while let Some(used) = self.next_entry(at)? {
            let blocks = used..(used + ENTRIES_STEP).min(BLOCKS_MAX);
            if let Some(index) = self.entries(&blocks)?.iter().position(|entry| *entry == FLUX) {
                return Ok(Some(used + index as u64));
            }
            at = blocks.end;
        }
        Ok(None)
    }
}

impl Plan {
    fn blocks(&self) -> Range<u64> {
        self.first..self.first + self.entries.len() as u64
    }
}

/// Puts bytes at a place of a list of buffers.
fn put(bufs: &mut [IoSliceMut<'_>], mut at: usize, mut bytes: &[u8]) {
    for buf in bufs {
        if at >= buf.len() {
            at -= buf.len();
            continue;
        }
        let count = (buf.len() - at).min(bytes.len());
        let (now, later) = bytes.split_at(count);
        buf[at..at + count].copy_from_slice(now);
        (bytes, at) = (later, 0);
        if bytes.is_empty() {
            return;
        }
    }
}
