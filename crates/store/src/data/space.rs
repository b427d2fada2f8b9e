//! Space of subfiles: reserved before it is needed, given back, and asked for.
//!
//! Pages that a file has without data (reserved, never written) look like holes to [`VolumeFile::next_data`]. A
//! subfile remembers which it reserved; what it does not remember, because it was opened again since, is
//! found out page by page, and only when the volume is otherwise full.

use std::io;
use std::ops::Range;

use bivouac_types::limits::SUBFILE_HEADER_LEN as HEADER_LEN;

use super::ranges::Ranges;
use super::room::SpaceAccount;
use super::subfile::{AccessError, OpenSubfile, PAGE, page_up};
use super::{ChangeCondition, DataStore, SubfileId, SubfileSpec};
use crate::volume::transfer::write_zeros;
use crate::{StoreError, StoreResult};

/// Most reservations of a subfile that can still be cancelled.
const TICKETS_MAX: usize = 16;

/// A range of a subfile that is to change, as part of a change of its file.
#[derive(Clone, Copy, Debug)]
pub struct SpaceChange<'a> {
    /// Epoch that the asker knows.
    pub epoch: u32,
    /// Start in the data, in bytes.
    pub offset: u64,
    /// Length, in bytes.
    pub len: u64,
    /// Bytes of data that the subfile has at least afterwards, if it is within the range.
    pub grow: u64,
    /// Names the change, so that it can be taken back.
    pub ticket: u64,
    /// Condition under which it is made.
    pub awaited: ChangeCondition<'a>,
}

/// A reservation that may be taken back as long as nothing was written into it.
#[derive(Debug)]
pub(super) struct Reservation {
    ticket: u64,
    /// True if the subfile was made for it.
    made: bool,
    /// The length before it was made longer for this.
    len_before: Option<u64>,
    ranges: Ranges,
}

/// Pages that a subfile has without data, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct ReservedPages {
    /// Ranges of whole pages that the file is known to have bytes for, data or not.
    backed: Ranges,
    /// Reservations of late, the newest last.
    reservations: Vec<Reservation>,
    /// True if there may be pages without data that `backed` does not name.
    unknown: bool,
}

impl ReservedPages {
    /// Returns what is known of the pages of a file about which only this much is known: whether arithmetic explains
    /// all that it occupies.
    pub(super) fn of_existing(measured: bool) -> ReservedPages {
        ReservedPages { unknown: measured, ..ReservedPages::default() }
    }

    /// Records that these pages are in use: no reservation of them may be cancelled any more.
    pub(super) fn claim(&mut self, pages: &Range<u64>) {
        for reservation in &mut self.reservations {
            reservation.ranges.remove(pages);
            // Somebody has written behind the old length: a cut back to it would take these bytes away.
            reservation.len_before = reservation.len_before.filter(|len| pages.end <= *len);
        }
    }

    /// Forgets everything from here on: the subfile was cut. It is to stay, whatever is taken back.
    pub(super) fn cut(&mut self, from: u64) {
        let gone = from..u64::MAX - PAGE;
        self.lost(&gone);
        self.claim(&gone);
        self.reservations.iter_mut().for_each(|reservation| reservation.made = false);
    }

    /// Forgets the whole pages in this range of data, which the file has no bytes for any more.
    pub(super) fn lost(&mut self, range: &Range<u64>) {
        self.backed.remove(&(page_up(range.start)..range.end / PAGE * PAGE));
    }

    fn note(&mut self, ticket: u64, made: bool, len_before: Option<u64>, pages: &[Range<u64>]) {
        if self.reservations.iter().all(|reservation| reservation.ticket != ticket) {
            // The oldest can no longer be taken back; its space stays reserved, which is the harmless side.
            if self.reservations.len() == TICKETS_MAX {
                self.reservations.remove(0);
            }
            self.reservations.push(Reservation { ticket, made, len_before, ranges: Ranges::default() });
        }
        assert!(self.reservations.len() <= TICKETS_MAX, "{} reservations", self.reservations.len());
        if let Some(reservation) = self.reservations.iter_mut().find(|known| known.ticket == ticket) {
            pages.iter().for_each(|range| reservation.ranges.add(range));
        }
    }
}

/// Returns the whole pages around a range.
fn pages_of(offset: u64, end: u64) -> Range<u64> {
    offset / PAGE * PAGE..page_up(end)
}

impl OpenSubfile {
    /// Gives a range of pages bytes, within the room. The ranges that got them; of an error, nothing is left.
    pub(super) fn back(
        &mut self,
        room: &SpaceAccount,
        pages: &Range<u64>,
    ) -> Result<Vec<Range<u64>>, AccessError> {
        // The sums' pages first: data that has room but whose sums have none could still fail for want of space.
        self.back_entries(room, pages)?;
        let holes = self.unbacked(pages)?;
        let needed: u64 = holes.iter().map(|hole| hole.end - hole.start).sum();
        let mut gained = Vec::new();
        let outcome = match room.reserve(needed) {
            Ok(()) => {
                let outcome = self.allocate(&holes, &mut gained);
                self.measure(room, needed);
                outcome.map_err(AccessError::from)
            }
            // All pages without data are known, so looking page by page would find no more.
            Err(free) if !self.spare.unknown => Err(AccessError::Full { needed, free }),
            Err(_) => self.probe(room, &holes, &mut gained),
        };
        self.become_measured();
        match outcome {
            Ok(()) => {
                self.spare.backed.add(pages);
                Ok(gained)
            }
            Err(error) => {
                self.give_back_entries(pages);
                self.punch_pages(room, &gained);
                Err(error)
            }
        }
    }

    /// Gives the checksums of a range of pages bytes.
    fn back_entries(&mut self, room: &SpaceAccount, pages: &Range<u64>) -> Result<(), AccessError> {
        let missing = self.missing_entries(pages)?;
        if missing == 0 {
            return Ok(());
        }
        let reserved = room.reserve(missing);
        let before = self.file().stat()?.allocated;
        if reserved.is_err() && !self.is_measured() {
            return reserved.map_err(|free| AccessError::Full { needed: missing, free });
        }
        let outcome = self.allocate_entries(pages);
        let grown = self.file().stat()?.allocated.saturating_sub(before);
        self.become_measured();
        // What was allocated before and never written is no data, so it looked missing.
        let outcome = match reserved {
            Err(free) if outcome.is_ok() && grown > free => Err(AccessError::Full { needed: grown, free }),
            _ => outcome.map_err(AccessError::from),
        };
        if outcome.is_err() {
            self.give_back_entries(pages);
        }
        self.measure(room, if reserved.is_ok() { missing } else { 0 });
        outcome
    }

    fn allocate(&self, holes: &[Range<u64>], gained: &mut Vec<Range<u64>>) -> io::Result<()> {
        for hole in holes {
            let before = self.file().stat()?.allocated;
            let outcome = self.file().allocate(self.in_file(hole));
            let grown = self.file().stat()?.allocated.saturating_sub(before);
            // What may have had some of its pages before does not count as gained: they may be promised.
            if grown >= hole.end - hole.start || !self.spare.unknown {
                gained.push(hole.clone());
            }
            outcome?;
        }
        Ok(())
    }

    /// Allocates page by page: takes room only for those that turn out to have been missing.
    fn probe(
        &mut self,
        room: &SpaceAccount,
        holes: &[Range<u64>],
        gained: &mut Vec<Range<u64>>,
    ) -> Result<(), AccessError> {
        self.measure(room, 0);
        for start in holes.iter().flat_map(|hole| hole.clone().step_by(PAGE as usize)) {
            let page = start..start + PAGE;
            let before = self.file().stat()?.allocated;
            self.file().allocate(self.in_file(&page))?;
            let grown = self.file().stat()?.allocated.saturating_sub(before);
            match grown {
                0 => self.spare.backed.add(&page),
                _ => gained.push(page),
            }
            room.reserve(grown).map_err(|free| AccessError::Full { needed: grown, free })?;
            self.charge(grown);
        }
        Ok(())
    }

    /// Returns the parts of a range of whole pages that have no bytes yet, as far as is known.
    fn unbacked(&self, pages: &Range<u64>) -> io::Result<Vec<Range<u64>>> {
        let mut holes = Vec::new();
        for range in self.spare.backed.missing(pages) {
            holes.extend(self.holes(&range)?);
        }
        Ok(holes)
    }

    /// Returns the number of bytes that writes all over a range of whole pages would take besides those that it has.
    pub(super) fn missing(&self, pages: &Range<u64>) -> io::Result<u64> {
        let data: u64 = self.unbacked(pages)?.into_iter().map(|hole| hole.end - hole.start).sum();
        Ok(data + self.missing_entries(pages)?)
    }

    /// Returns the parts of a range of whole pages that hold no data.
    fn holes(&self, pages: &Range<u64>) -> io::Result<Vec<Range<u64>>> {
        let holes = self.holes_in_file(&self.in_file(pages))?;
        Ok(holes.iter().map(|hole| self.of_data(hole)).collect())
    }

    /// Returns the parts of a range of whole pages of the local file that hold no data.
    pub(super) fn holes_in_file(&self, pages: &Range<u64>) -> io::Result<Vec<Range<u64>>> {
        let (mut at, mut holes) = (pages.start, Vec::new());
        while at < pages.end {
            // File systems answer in blocks of their own, so the answer is widened to pages and cut to the range.
            let data = self.file().next_data(at)?;
            let data = data.map_or(pages.end..pages.end, |data| {
                (data.start / PAGE * PAGE).clamp(at, pages.end)..page_up(data.end).min(pages.end)
            });
            if at < data.start {
                holes.push(at..data.start);
            }
            // A page further at least, so that the loop ends whatever the file system answers.
            at = data.end.max(at + PAGE);
        }
        Ok(holes)
    }

    fn punch_pages(&mut self, room: &SpaceAccount, ranges: &[Range<u64>]) {
        self.measure(room, 0);
        let before = self.charged();
        for range in ranges {
            // What cannot be given back stays counted.
            let _ = self.file().punch(self.in_file(range));
            self.give_back_entries(range);
            self.spare.lost(range);
        }
        self.measure(room, 0);
        let expected: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        let last = ranges.iter().map(|range| range.end).max().unwrap_or(0);
        if self.charged() + expected > before && last > self.len() {
            self.free_behind_end(room, ranges, last);
        }
    }

    /// Frees ranges behind the end of a file, where ext4 makes no holes. If it is known what else is there, all of that
    /// goes by a cut, and what somebody else reserved comes back; otherwise the end moves, behind zeros.
    fn free_behind_end(&mut self, room: &SpaceAccount, ranges: &[Range<u64>], last: u64) {
        // Cutting would free what others have reserved behind the end, and nobody could say what to allocate again.
        if self.spare.unknown {
            let _ = self.file().set_len(self.data_at() + last);
            ranges.iter().for_each(|range| drop(self.file().punch(self.in_file(range))));
            return self.measure(room, 0);
        }
        self.cut_back(room, self.len());
    }

    /// Cuts, and keeps what is known to be reserved behind the new end.
    fn cut_back(&mut self, room: &SpaceAccount, len: u64) {
        let end = page_up(len);
        let kept = self.spare.backed.iter().map(|range| range.start.max(end)..range.end);
        let kept: Vec<Range<u64>> = kept.filter(|range| range.start < range.end).collect();
        let _ = self.file().set_len(self.data_at() + len);
        for range in kept {
            if self.file().allocate(self.in_file(&range)).is_err() {
                self.spare.lost(&range);
            }
        }
        self.measure(room, 0);
    }

    /// Makes the data at least this long; its last byte has been reserved.
    fn grow(&mut self, room: &SpaceAccount, len: u64) -> io::Result<()> {
        self.file().grow(self.data_at() + len)?;
        self.measure(room, 0);
        Ok(())
    }

    fn reserve_range(
        &mut self,
        room: &SpaceAccount,
        change: &SpaceChange<'_>,
        made: bool,
    ) -> Result<(), AccessError> {
        let pages = pages_of(change.offset, change.offset + change.len);
        let gained = self.back(room, &pages)?;
        // Asked for twice, a range belongs to both: it must not be freed when the first of them is taken back.
        self.spare.claim(&pages);
        let within = change.grow > change.offset && change.grow <= change.offset + change.len;
        let grows = within && change.grow > self.len();
        self.spare.note(change.ticket, made, grows.then_some(self.len()), &gained);
        if grows { self.grow(room, change.grow).map_err(AccessError::from) } else { Ok(()) }
    }

    /// Makes a range zeros that keep their bytes.
    fn zero_range(
        &mut self,
        room: &SpaceAccount,
        change: &SpaceChange<'_>,
        made: bool,
    ) -> Result<(), AccessError> {
        self.reserve_range(room, change, made)?;
        let range = change.offset..change.offset + change.len;
        self.zeroing(&range, false, |open| open.write_zeros(&open.in_file(&range)))?;
        self.refresh(room);
        Ok(())
    }

    /// Overwrites what data there is in a range of the local file.
    pub(super) fn write_zeros(&self, range: &Range<u64>) -> io::Result<()> {
        write_zeros(&**self.file(), range)
    }

    fn punch_range(&mut self, room: &SpaceAccount, offset: u64, len: u64) -> io::Result<()> {
        let range = offset..offset + len;
        self.spare.lost(&range);
        self.become_measured();
        let outcome = self.zeroing(&range, false, |open| open.file().punch(open.in_file(&range)));
        self.measure(room, 0);
        outcome
    }

    /// Returns whether nothing is left in it but what its header says.
    fn is_as_made(&self) -> bool {
        self.len() == 0 && self.charged() <= HEADER_LEN
    }

    /// Takes a reservation back, but for what was used since. Whether the subfile has no purpose any more.
    fn take_back(&mut self, room: &SpaceAccount, ticket: u64) -> bool {
        let position = self.spare.reservations.iter().position(|known| known.ticket == ticket);
        // Forgotten when the subfile was closed, or when too many others followed: its space stays reserved.
        let Some(position) = position else { return false };
        let reservation = self.spare.reservations.remove(position);
        let ranges: Vec<Range<u64>> = reservation.ranges.iter().collect();
        self.punch_pages(room, &ranges);
        let others = self.spare.reservations.iter().any(|other| !other.ranges.is_empty());
        // Nobody else counts on a length that nobody wrote up to.
        if let Some(len) = reservation.len_before.filter(|_| !others && !self.spare.unknown) {
            self.cut_back(room, len);
        }
        reservation.made && !others && self.is_as_made()
    }
}

impl DataStore {
    /// Gives a range bytes, so that later writes into it cannot fail for want of space; makes the subfile if
    /// there is none. Content stays.
    ///
    /// # Errors
    /// As [`DataStore::write`]: nothing has changed. `EOPNOTSUPP` where the file system below cannot.
    pub fn reserve(
        &self,
        id: SubfileId,
        spec: &SubfileSpec<'_>,
        change: &SpaceChange<'_>,
    ) -> StoreResult<u32> {
        self.with_range(id, spec, change, OpenSubfile::reserve_range)
    }

    /// Makes a range zeros that have their bytes.
    ///
    /// # Errors
    /// As [`DataStore::reserve`]; after `Io` a part may be zeros.
    pub fn zero(&self, id: SubfileId, spec: &SubfileSpec<'_>, change: &SpaceChange<'_>) -> StoreResult<u32> {
        self.with_range(id, spec, change, OpenSubfile::zero_range)
    }

    fn with_range(
        &self,
        id: SubfileId,
        spec: &SubfileSpec<'_>,
        change: &SpaceChange<'_>,
        act: fn(&mut OpenSubfile, &SpaceAccount, &SpaceChange<'_>, bool) -> Result<(), AccessError>,
    ) -> StoreResult<u32> {
        let end = self.end_of(id, change.offset, change.len)?;
        self.end_of(id, change.grow, 0)?;
        let place = self.place(id)?;
        let room = &*self.room(id)?;
        let mut state = place.state.write();
        // Under the subfile's lock: a change whose repetition came first must not be made behind it.
        change.awaited.check()?;
        let made = self.opened(id, &mut state)?.is_none();
        if made {
            self.reserve_new(id, change.offset, end)?;
            self.make(id, spec, change.epoch, &mut state)?;
        }
        let Some(open) = state.as_mut() else { return Err(self.lost(id)) };
        if change.epoch < open.epoch() {
            return Err(StoreError::StaleEpoch { current: open.epoch() });
        }
        self.interrupt(id, open)?;
        self.check_len(id, open)?;
        let outcome = act(open, room, change, made);
        let epoch = open.epoch();
        if outcome.is_ok() {
            self.damage.expect(id, open);
        }
        if made && outcome.is_err() {
            // What cannot be removed is an empty subfile, which does no harm.
            let _ = self.discard(id, &mut state);
        }
        outcome.map(|()| epoch).map_err(|error| self.access_error(id, "write", error))
    }

    /// Makes a range a hole. Where there is no subfile, all is one.
    ///
    /// # Errors
    /// `StaleEpoch`: nothing has changed. `Corrupt` and the like, `Io`.
    pub fn punch(&self, id: SubfileId, change: &SpaceChange<'_>) -> StoreResult<u32> {
        self.end_of(id, change.offset, change.len)?;
        let place = self.place(id)?;
        let room = &*self.room(id)?;
        let mut state = place.state.write();
        change.awaited.check()?;
        let Some(open) = self.opened(id, &mut state)? else { return Ok(change.epoch) };
        if change.epoch < open.epoch() {
            return Err(StoreError::StaleEpoch { current: open.epoch() });
        }
        self.interrupt(id, open)?;
        self.check_len(id, open)?;
        open.punch_range(room, change.offset, change.len)
            .map_err(|error| self.io_error(id, "make a hole in", error))?;
        self.note_written(id, open, &(change.offset..change.offset + change.len));
        Ok(open.epoch())
    }

    /// Takes a reservation back that could not be made as a whole. What was written into it meanwhile stays, and
    /// so does all of it if the subfile was closed in between.
    ///
    /// # Errors
    /// `Corrupt` and the like, `Io`.
    pub fn take_back(&self, id: SubfileId, ticket: u64) -> StoreResult<()> {
        let place = self.place(id)?;
        let room = &*self.room(id)?;
        let mut state = place.state.write();
        let Some(open) = self.opened(id, &mut state)? else { return Ok(()) };
        self.interrupt(id, open)?;
        if open.take_back(room, ticket) { self.discard(id, &mut state) } else { Ok(()) }
    }

    /// Returns the first stretch of data at or behind `offset`, up to the end of a page, and its epoch. The page may go
    /// on behind the end of the subfile: behind that, where the file is longer, there is a hole.
    ///
    /// # Errors
    /// `Corrupt` and the like, `Io`.
    pub fn next_data(&self, id: SubfileId, offset: u64) -> StoreResult<(Option<Range<u64>>, u32)> {
        self.end_of(id, offset, 0)?;
        let place = self.place(id)?;
        let look = |open: &OpenSubfile| {
            self.check_len(id, open)?;
            let found = open.next_data(offset);
            let found = found.map_err(|error| self.io_error(id, "look for data in", error))?;
            Ok((found.map(|data| data.start..page_up(data.end)), open.epoch()))
        };
        // The lock for reading is enough as long as no holder may write: to end holders takes the one for writing.
        if let Some(open) = place.state.read().as_ref().filter(|open| !open.holders.may_write()) {
            return look(open);
        }
        match self.opened(id, &mut place.state.write())? {
            Some(open) => {
                if open.holders.may_write() {
                    self.end_holders(id, open)?;
                }
                look(open)
            }
            None => Ok((None, 0)),
        }
    }
}
