//! An open subfile: its bytes, its epoch, and the space it occupies. The caller holds its lock.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

use bivouac_types::limits::{FILE_SIZE_MAX, SUBFILE_HEADER_LEN as HEADER_LEN};
use bivouac_wire::subfile::SubfileHeader;

use super::holders::Holders;
use super::room::SpaceAccount;
use super::space::ReservedPages;
use super::summed::{self, ChecksumState, Plan};
use crate::volume::transfer::{read_full_at, write_all_at};
use crate::{FileStat, Places, VolumeFile};

/// Unit in which the bytes of files are counted; larger blocks of a disk are noticed when a subfile is closed.
pub(super) const PAGE: u64 = 4096;

/// Reason why bytes were not read or written.
#[derive(Debug)]
pub(super) enum AccessError {
    Full {
        needed: u64,
        free: u64,
    },
    /// A block is not what was written.
    Wrong {
        block: u64,
    },
    /// Another program has truncated the local file to so many bytes.
    Cut {
        len: u64,
    },
    Io(io::Error),
}

impl From<io::Error> for AccessError {
    fn from(error: io::Error) -> AccessError {
        AccessError::Io(error)
    }
}

/// A subfile and its local file.
///
/// ```text
/// without checksums                       with checksums
///
///    0 ┌─────────────────────────┐           0 ┌─────────────────────────┐
///      │ header, target places   │             │ header, target places   │
///      │                         │        2048 ├─────────────────────────┤
///      │                         │             │ magic 8, note 32        │
///      │                         │        2112 ├─────────────────────────┤
/// 4096 ├─────────────────────────┤             │ entry of block n, 4     │ at 2112 + 4 · n
///      │ data                    │             ┆                         ┆
///      ┆                         ┆         2³² ├─────────────────────────┤
///                                              │ data                    │ block n at 2³² + 4096 · n
///                                              ┆                         ┆
/// ```
#[derive(Debug)]
pub(super) struct OpenSubfile {
    file: Arc<dyn VolumeFile>,
    /// Offset of the data in the file.
    data_at: u64,
    /// Bytes of data, holes included.
    len: u64,
    /// Bytes that the volume's room counts for it.
    charged: u64,
    epoch: u32,
    /// True if length and bytes cannot be followed by arithmetic, because it has holes or others write to it
    /// directly: they are asked for after each change.
    measured: bool,
    /// Processes that read and write it directly.
    pub(super) holders: Holders,
    /// Pages without data.
    pub(super) spare: ReservedPages,
    /// Its blocks' checksums, if they have any.
    pub(super) sums: Option<ChecksumState>,
}

/// Returns the number of bytes in front of this much data without a hole.
fn front(len: u64, sums: bool) -> u64 {
    if sums { summed::front_of(len) } else { HEADER_LEN }
}

/// Returns the number of bytes that a subfile with this much data and no hole occupies.
fn dense(len: u64, sums: bool) -> u64 {
    front(len, sums) + page_up(len)
}

/// Returns whether a file has all its data and nothing besides, so that arithmetic can follow what it occupies.
fn is_dense(file: &dyn VolumeFile, stat: &FileStat, data_at: u64, sums: bool) -> io::Result<bool> {
    let len = stat.len.saturating_sub(data_at);
    // What is reserved behind the end can make up for a hole before it.
    let whole = |data: Option<Range<u64>>, place: Range<u64>| {
        data.is_some_and(|data| data.start == place.start && data.end >= place.end)
    };
    Ok(stat.allocated == dense(len, sums)
        && (len == 0 || whole(file.next_data(data_at)?, data_at..stat.len))
        && (!sums || whole(file.next_data(0)?, 0..front(len, sums).min(stat.len))))
}

/// Returns the number of bytes that a new subfile with data from `offset` to `end` occupies.
pub(super) fn needed_for_new(offset: u64, end: u64, sums: bool) -> u64 {
    let entries = if sums { summed::entries_room(&(offset..end)) } else { 0 };
    HEADER_LEN + entries + page_up(end) - offset / PAGE * PAGE
}

pub(super) fn page_up(len: u64) -> u64 {
    len.div_ceil(PAGE) * PAGE
}

impl OpenSubfile {
    /// Returns a file that exists. What it occupies is already counted.
    pub(super) fn existing(file: Arc<dyn VolumeFile>, header: &SubfileHeader) -> io::Result<OpenSubfile> {
        let stat = file.stat()?;
        let (data_at, sums) = (header.data_at(), header.sums);
        let len = stat.len.saturating_sub(data_at);
        let (charged, measured) = (stat.allocated, !is_dense(&*file, &stat, data_at, sums)?);
        let (holders, spare) = (Holders::default(), ReservedPages::of_existing(measured));
        let (epoch, sums) = (header.trim_epoch, sums.then(ChecksumState::default));
        Ok(OpenSubfile { file, data_at, len, charged, epoch, measured, holders, spare, sums })
    }

    /// Returns a file of which nothing is to be used: only what it occupies.
    pub(super) fn occupying(file: Arc<dyn VolumeFile>) -> io::Result<OpenSubfile> {
        let charged = file.stat()?.allocated;
        let (holders, spare) = (Holders::default(), ReservedPages::of_existing(true));
        let data_at = HEADER_LEN;
        Ok(OpenSubfile {
            file,
            data_at,
            len: 0,
            charged,
            epoch: 0,
            measured: true,
            holders,
            spare,
            sums: None,
        })
    }

    /// Returns the bytes that a file begins with.
    pub(super) fn first_bytes(header: &SubfileHeader) -> Vec<u8> {
        let mut bytes = header.to_bytes();
        if header.sums {
            summed::begin_sums(&mut bytes);
        }
        bytes.to_vec()
    }

    /// Returns a new file with its first bytes, whose page has been reserved.
    pub(super) fn begun(file: Arc<dyn VolumeFile>, header: &SubfileHeader) -> OpenSubfile {
        let (epoch, holders, spare) = (header.trim_epoch, Holders::default(), ReservedPages::default());
        let (data_at, sums, charged) =
            (header.data_at(), header.sums.then(ChecksumState::default), HEADER_LEN);
        OpenSubfile { file, data_at, len: 0, charged, epoch, measured: false, holders, spare, sums }
    }

    pub(super) fn file(&self) -> &Arc<dyn VolumeFile> {
        &self.file
    }

    pub(super) fn epoch(&self) -> u32 {
        self.epoch
    }

    pub(super) fn data_at(&self) -> u64 {
        self.data_at
    }

    /// Returns the most bytes of data that it can have.
    pub(super) fn len_max(&self) -> u64 {
        FILE_SIZE_MAX - self.data_at
    }

    /// Returns the place of a range of data in the local file.
    pub(super) fn in_file(&self, data: &Range<u64>) -> Range<u64> {
        self.data_at + data.start..self.data_at + data.end
    }

    /// Returns the range of data at a place of the local file.
    pub(super) fn of_data(&self, place: &Range<u64>) -> Range<u64> {
        place.start.saturating_sub(self.data_at)..place.end.saturating_sub(self.data_at)
    }

    /// Returns the number of bytes of data; what it is to be asked for if [`OpenSubfile::is_measured`].
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn is_measured(&self) -> bool {
        self.measured
    }

    pub(super) fn charged(&self) -> u64 {
        self.charged
    }

    /// From now on takes length and occupied bytes from the file system, since other processes change them.
    pub(super) fn become_measured(&mut self) {
        self.measured = true;
    }

    /// Ends that, when no other process writes any more.
    pub(super) fn end_sharing(&mut self, room: &SpaceAccount) {
        self.measure(room, 0);
        let sums = self.sums.is_some();
        let dense = self.file.stat().and_then(|stat| is_dense(&*self.file, &stat, self.data_at, sums));
        self.measured = !dense.unwrap_or(false);
    }

    /// Takes room for every byte of a window that holds `range` and the window before; `None` if there is not
    /// enough. The window reaches `ahead` further if there is room for that too.
    pub(super) fn promise(
        &mut self,
        room: &SpaceAccount,
        range: Range<u64>,
        ahead: u64,
    ) -> io::Result<Option<Range<u64>>> {
        // In whole pages, or the window would end within a page of which nobody counts the rest.
        let ahead = ahead / PAGE * PAGE;
        let (start, end) = (range.start / PAGE * PAGE, page_up(range.end));
        self.len = self.file.stat()?.len.saturating_sub(self.data_at);
        let all = 0..page_up(self.len).max(end) + ahead;
        // From generous to bare: a window that holds the whole file is never asked for again, and one that holds
        // the write is enough to go on.
        for (wanted, more_max) in [(all, 2 * ahead), (start..end + ahead, u64::MAX), (start..end, u64::MAX)] {
            let before = self.holders.window();
            let hull = if before.is_empty() {
                wanted
            } else {
                wanted.start.min(before.start)..wanted.end.max(before.end)
            };
            // What others write meanwhile is counted twice, rather than not at all.
            let missing = self.missing(&hull)?;
            let real = missing + self.file.stat()?.allocated;
            let more = real.saturating_sub(self.charged);
            if more <= more_max && room.reserve(more).is_ok() {
                // The real figure may be below what is charged, as after a hole was made; only the growth has to fit.
                room.correct(self.charged + more, real);
                self.charged = real;
                // Nobody hears where they write, so it may be anywhere.
                self.spare.claim(&hull);
                return Ok(Some(hull));
            }
        }
        Ok(None)
    }

    /// Returns the number of bytes that it occupies itself, without what is promised.
    pub(super) fn occupied(&self) -> io::Result<u64> {
        if self.holders.is_empty() { Ok(self.charged) } else { Ok(self.file.stat()?.allocated) }
    }

    /// Notes that the room has counted this much more for it.
    pub(super) fn charge(&mut self, bytes: u64) {
        self.charged += bytes;
    }

    /// Reads data, and compares it with its checksums if it has any. `offset` is within what a file can have.
    pub(super) fn read(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<usize, AccessError> {
        // Of a file that others write to, the end that is known here may be too low.
        let len = if self.measured { u64::MAX } else { self.len };
        let wanted: usize = bufs.iter().map(|buf| buf.len()).sum();
        let count = if self.sums.is_some() {
            self.read_compared(offset, bufs, len)?
        } else {
            read_full_at(&*self.file, bufs, self.data_at + offset, self.data_at.saturating_add(len))?
        };
        // Less than there should be: another program has cut the file, unless what is missing is behind its end.
        if count < wanted && (self.measured || offset + (count as u64) < self.len) {
            self.check_has(self.len)?;
        }
        Ok(count)
    }

    /// Refuses a local file that others have cut so far that bytes of it pass for holes. Where entries of checksums are
    /// left, comparing tells what is missing behind them.
    pub(super) fn check_len(&self) -> Result<(), AccessError> {
        self.check_has(if self.is_summed() { 0 } else { self.len })
    }

    /// Like [`OpenSubfile::check_len`], of a local file that is to have this much data.
    fn check_has(&self, data_len: u64) -> Result<(), AccessError> {
        let len = self.file.stat()?.len;
        let is_cut = len < HEADER_LEN
            || self.len > 0 && len < self.data_at + data_len
            || self.is_summed() && len < self.data_at && (len != HEADER_LEN || self.has_first_entries()?);
        if is_cut { Err(AccessError::Cut { len }) } else { Ok(()) }
    }

    /// Writes data: all of it, or an error and then the length is as before.
    pub(super) fn write(
        &mut self,
        room: &SpaceAccount,
        offset: u64,
        bufs: &[IoSlice<'_>],
        end: u64,
    ) -> Result<(), AccessError> {
        self.spare.claim(&(offset / PAGE * PAGE..page_up(end)));
        let plan = self.plan_write(&(offset..end), bufs)?;
        self.write_by(room, &(offset..end), &plan, |file, data_at| write_all_at(file, bufs, data_at + offset))
    }

    /// Like [`OpenSubfile::write`], for places of which each page from the first to the last has a part.
    pub(super) fn write_places(
        &mut self,
        room: &SpaceAccount,
        places: &Places<'_>,
    ) -> Result<(), AccessError> {
        let span = places.span();
        if self.is_summed() {
            // Checksums cover whole blocks, so everything between the places is rewritten anyway.
            let bytes = self.overlaid(places)?;
            return self.write(room, span.start, &[IoSlice::new(&bytes)], span.end);
        }
        self.spare.claim(&(span.start / PAGE * PAGE..page_up(span.end)));
        self.write_by(room, &span, &Plan::default(), |file, data_at| file.write_places(data_at, places))
    }

    /// Writes to a range, for which there is a plan, by a function of the file and where data begins in it.
    fn write_by(
        &mut self,
        room: &SpaceAccount,
        &Range { start: offset, end }: &Range<u64>,
        plan: &Plan,
        put: impl FnOnce(&dyn VolumeFile, u64) -> io::Result<()>,
    ) -> Result<(), AccessError> {
        assert!(offset < end, "a write of nothing at {offset}");
        // A whole page between the old end and the new data stays a hole.
        let measured = self.measured || offset / PAGE * PAGE > page_up(self.len);
        let reserved = self.reserve(room, offset, end, measured)?;
        if let Err(error) = self.begin_plan(plan) {
            self.measure(room, reserved);
            return Err(error.into());
        }
        if let Err(error) = put(&*self.file, self.data_at) {
            // A write that fails halfway must not leave a length behind which zeros would be read as data.
            self.undo(room, reserved, end);
            self.give_up_plan(plan);
            return Err(error.into());
        }
        // The bytes are there: from here on the write has succeeded, and a sum that cannot be written is a block
        // that is not compared, no error.
        self.end_plan(plan);
        if measured {
            self.measured = true;
            self.measure(room, reserved);
        } else {
            self.len = self.len.max(end);
            self.charged += reserved;
        }
        Ok(())
    }

    /// Like [`OpenSubfile::write`], within a window in which other processes write too, and which is counted already.
    /// After a failure nothing is truncated: bytes behind the old end may be theirs.
    pub(super) fn write_within(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), AccessError> {
        assert!(!self.is_summed(), "a write beside others would leave checksums that do not fit");
        Ok(write_all_at(&*self.file, bufs, self.data_at + offset)?)
    }

    /// Like [`OpenSubfile::write_within`], for places.
    pub(super) fn write_places_within(&self, places: &Places<'_>) -> Result<(), AccessError> {
        assert!(!self.is_summed(), "a write beside others would leave checksums that do not fit");
        Ok(self.file.write_places(self.data_at, places)?)
    }

    fn reserve(
        &mut self,
        room: &SpaceAccount,
        offset: u64,
        end: u64,
        measured: bool,
    ) -> Result<u64, AccessError> {
        if !measured {
            let more = dense(self.len.max(end), self.sums.is_some()).saturating_sub(self.charged);
            return room
                .reserve(more)
                .map(|()| more)
                .map_err(|free| AccessError::Full { needed: more, free });
        }
        let pages = offset / PAGE * PAGE..page_up(end);
        let entries = if self.sums.is_some() { summed::entries_room(&pages) } else { 0 };
        let at_most = pages.end - pages.start + entries;
        // More than may be needed, but it takes no look at the file. Only where there is not so much are its holes
        // looked for.
        if room.reserve(at_most).is_ok() {
            return Ok(at_most);
        }
        self.back(room, &pages).map(|_| 0)
    }

    /// Cuts off what a write added that failed somewhere.
    fn undo(&mut self, room: &SpaceAccount, reserved: u64, end: u64) {
        if end > self.len {
            // If this fails too, the bytes behind the old end are counted below and overwritten later.
            let _ = self.file.set_len(self.data_at + self.len);
        }
        self.measure(room, reserved);
        // A failed write may leave a hole, or pages behind the end; arithmetic would count both wrongly from here on.
        self.measured |= self.charged != dense(self.len, self.sums.is_some());
    }

    /// Asks the file for its length and bytes, and reconciles them with the room.
    pub(super) fn measure(&mut self, room: &SpaceAccount, reserved: u64) {
        let window = self.holders.window();
        let promised = self.missing(&window).unwrap_or(window.end - window.start);
        match self.file.stat() {
            Ok(stat) => {
                room.correct(self.charged + reserved, stat.allocated + promised);
                self.charged = stat.allocated + promised;
                // What others have cut off is missed, not forgotten: see `check_len`.
                if stat.len >= self.data_at {
                    self.len = stat.len - self.data_at;
                }
            }
            // Counted too high rather than too low: what is not known to be free is given to nobody.
            Err(_) => self.charged += reserved,
        }
    }

    /// Reconciles before the handle is closed: whoever opens the file again takes the file's word.
    pub(super) fn reconcile(&self, room: &SpaceAccount) {
        if let Ok(stat) = self.file.stat() {
            room.correct(self.charged, stat.allocated);
        }
    }

    /// Asks the file if arithmetic does not do.
    pub(super) fn refresh(&mut self, room: &SpaceAccount) {
        if self.measured {
            self.measure(room, 0);
        }
    }

    /// Cuts to at most `len_max` bytes of data, then makes `header` the subfile's, with its epoch.
    pub(super) fn trim(
        &mut self,
        room: &SpaceAccount,
        header: &SubfileHeader,
        len_max: u64,
    ) -> io::Result<()> {
        // A lower one would let writes in that the cut before has shut out.
        assert!(header.trim_epoch > self.epoch, "epoch {} after {}", header.trim_epoch, self.epoch);
        self.refresh(room);
        self.spare.cut(self.len.min(len_max));
        // What was reserved behind the end goes too.
        if self.len > len_max || self.measured {
            let gone = self.len.min(len_max)..self.len;
            self.zeroing(&gone, true, |open| {
                // The length is noted behind the cut: a cut that failed is tried again, and only if there is something
                // to cut.
                open.file.set_len(open.data_at + gone.start)?;
                open.len = gone.start;
                Ok(())
            })?;
            if self.measured {
                self.measure(room, 0);
            } else {
                let left = dense(len_max, self.sums.is_some());
                room.correct(self.charged, left);
                self.charged = left;
            }
        }
        // After the cut: killed in between, the cut is made again, since the epoch on the volume is still the old one.
        let header = SubfileHeader { sums: self.sums.is_some(), ..header.clone() };
        let (mut bytes, mut own_len) = (header.to_bytes(), header.own_len());
        if header.sums {
            own_len = summed::begin_sums(&mut bytes);
        }
        write_all_at(&*self.file, &[IoSlice::new(bytes.get(..own_len).unwrap_or(&bytes))], 0)?;
        self.epoch = header.trim_epoch;
        Ok(())
    }
}

/// Reads the header of a subfile.
pub(super) fn read_header(
    file: &dyn VolumeFile,
) -> io::Result<Result<SubfileHeader, bivouac_wire::subfile::SubfileError>> {
    let mut bytes = [0u8; HEADER_LEN as usize];
    let count = read_full_at(file, &mut [IoSliceMut::new(&mut bytes)], 0, HEADER_LEN)?;
    Ok(SubfileHeader::from_bytes(bytes.get(..count).unwrap_or_default()))
}
