//! One open subfile: its bytes, its epoch, and what it occupies. The caller holds its lock.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

use bivouac_types::limits::SUBFILE_HEADER_LEN as HEADER_LEN;
use bivouac_wire::subfile::SubfileHeader;

use super::holders::Holders;
use super::room::Room;
use super::space::Spare;
use crate::volume::transfer::{read_full_at, write_all_at};
use crate::{FileStat, VolumeFile};

/// What files occupy is counted in pages; larger blocks of a disk are noticed when a subfile is closed.
pub(super) const PAGE: u64 = 4096;

/// Why a write was not made.
#[derive(Debug)]
pub(super) enum WriteError {
    Full { needed: u64, free: u64 },
    Io(io::Error),
}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> WriteError {
        WriteError::Io(error)
    }
}

#[derive(Debug)]
pub(super) struct OpenSubfile {
    file: Arc<dyn VolumeFile>,
    /// Bytes of data, holes included.
    len: u64,
    /// Bytes that the volume's room counts for it.
    charged: u64,
    epoch: u32,
    /// Whether length and bytes cannot be followed by arithmetic, because it has holes or others write to it
    /// directly: they are asked for after each change.
    measured: bool,
    /// Who else reads and writes it.
    pub(super) holders: Holders,
    /// Pages without data.
    pub(super) spare: Spare,
}

/// Bytes that a subfile with this much data and no hole occupies.
fn dense(len: u64) -> u64 {
    HEADER_LEN + page_up(len)
}

/// Whether a file has all its data and nothing besides, so that arithmetic can follow what it occupies.
fn is_dense(file: &dyn VolumeFile, stat: &FileStat) -> io::Result<bool> {
    let len = stat.len.saturating_sub(HEADER_LEN);
    // What is reserved behind the end can make up for a hole before it.
    let whole =
        |data: Option<Range<u64>>| data.is_some_and(|data| data.start == HEADER_LEN && data.end >= stat.len);
    Ok(stat.allocated == dense(len) && (len == 0 || whole(file.next_data(HEADER_LEN)?)))
}

/// Bytes that a new subfile with data from `offset` to `end` occupies.
pub(super) fn needed_for_new(offset: u64, end: u64) -> u64 {
    HEADER_LEN + page_up(end) - offset / PAGE * PAGE
}

pub(super) fn page_up(len: u64) -> u64 {
    len.div_ceil(PAGE) * PAGE
}

impl OpenSubfile {
    /// A file that exists. What it occupies is already counted.
    pub(super) fn existing(file: Arc<dyn VolumeFile>, epoch: u32) -> io::Result<OpenSubfile> {
        let stat = file.stat()?;
        let len = stat.len.saturating_sub(HEADER_LEN);
        let (charged, measured) = (stat.allocated, !is_dense(&*file, &stat)?);
        let (holders, spare) = (Holders::default(), Spare::of_existing(measured));
        Ok(OpenSubfile { file, len, charged, epoch, measured, holders, spare })
    }

    /// Writes the header of a file that is empty, and whose page has been reserved.
    pub(super) fn begin(file: Arc<dyn VolumeFile>, header: &SubfileHeader) -> io::Result<OpenSubfile> {
        write_all_at(&*file, &[IoSlice::new(&header.to_bytes())], 0)?;
        let (epoch, holders, spare) = (header.trim_epoch, Holders::default(), Spare::default());
        Ok(OpenSubfile { file, len: 0, charged: HEADER_LEN, epoch, measured: false, holders, spare })
    }

    pub(super) fn file(&self) -> &Arc<dyn VolumeFile> {
        &self.file
    }

    pub(super) fn epoch(&self) -> u32 {
        self.epoch
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn charged(&self) -> u64 {
        self.charged
    }

    /// From now on length and bytes are asked for.
    pub(super) fn become_measured(&mut self) {
        self.measured = true;
    }

    /// Nobody else writes to it any more.
    pub(super) fn end_sharing(&mut self, room: &Room) {
        self.measure(room, 0);
        let dense = self.file.stat().and_then(|stat| is_dense(&*self.file, &stat));
        self.measured = !dense.unwrap_or(false);
    }

    /// Takes room for every byte of a window that holds `range` and the window before; `None` if there is not
    /// enough. The window reaches `ahead` further if there is room for that too.
    pub(super) fn promise(
        &mut self,
        room: &Room,
        range: Range<u64>,
        ahead: u64,
    ) -> io::Result<Option<Range<u64>>> {
        let ahead = ahead / PAGE * PAGE;
        let (start, end) = (range.start / PAGE * PAGE, page_up(range.end));
        self.len = self.file.stat()?.len.saturating_sub(HEADER_LEN);
        let all = 0..page_up(self.len).max(end) + ahead;
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
                room.correct(self.charged + more, real);
                self.charged = real;
                // Nobody hears where they write, so it may be anywhere.
                self.spare.claim(&hull);
                return Ok(Some(hull));
            }
        }
        Ok(None)
    }

    /// Bytes that it occupies itself, without what is promised.
    pub(super) fn occupied(&self) -> io::Result<u64> {
        if self.holders.is_empty() { Ok(self.charged) } else { Ok(self.file.stat()?.allocated) }
    }

    /// The room has counted this much more for it.
    pub(super) fn charge(&mut self, bytes: u64) {
        self.charged += bytes;
    }

    /// Reads data. `offset` plus the header's length is within what a file can have.
    pub(super) fn read(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let len = if self.measured { u64::MAX } else { HEADER_LEN + self.len };
        read_full_at(&*self.file, bufs, HEADER_LEN + offset, len)
    }

    /// Writes data: all of it, or an error and then the length is as before.
    pub(super) fn write(
        &mut self,
        room: &Room,
        offset: u64,
        bufs: &[IoSlice<'_>],
        end: u64,
    ) -> Result<(), WriteError> {
        self.spare.claim(&(offset / PAGE * PAGE..page_up(end)));
        // A whole page between the old end and the new data stays a hole.
        let measured = self.measured || offset / PAGE * PAGE > page_up(self.len);
        let reserved = self.reserve(room, offset, end, measured)?;
        if let Err(error) = write_all_at(&*self.file, bufs, HEADER_LEN + offset) {
            self.undo(room, reserved, end);
            return Err(error.into());
        }
        if measured {
            self.measured = true;
            self.measure(room, reserved);
        } else {
            self.len = self.len.max(end);
            self.charged += reserved;
        }
        Ok(())
    }

    fn reserve(&mut self, room: &Room, offset: u64, end: u64, measured: bool) -> Result<u64, WriteError> {
        if !measured {
            let more = dense(self.len.max(end)).saturating_sub(self.charged);
            return room.reserve(more).map(|()| more).map_err(|free| WriteError::Full { needed: more, free });
        }
        let at_most = page_up(end) - offset / PAGE * PAGE;
        if room.reserve(at_most).is_ok() {
            return Ok(at_most);
        }
        self.back(room, &(offset / PAGE * PAGE..page_up(end))).map(|_| 0)
    }

    /// After a write that failed somewhere: cuts off what it added.
    fn undo(&mut self, room: &Room, reserved: u64, end: u64) {
        if end > self.len {
            // If this fails too, the bytes behind the old end are counted below and overwritten later.
            let _ = self.file.set_len(HEADER_LEN + self.len);
        }
        self.measure(room, reserved);
        self.measured |= self.charged != dense(self.len);
    }

    /// Asks the file for its length and bytes, and settles them with the room.
    pub(super) fn measure(&mut self, room: &Room, reserved: u64) {
        let window = self.holders.window();
        let promised = self.missing(&window).unwrap_or(window.end - window.start);
        match self.file.stat() {
            Ok(stat) => {
                room.correct(self.charged + reserved, stat.allocated + promised);
                self.charged = stat.allocated + promised;
                self.len = stat.len.saturating_sub(HEADER_LEN);
            }
            Err(_) => self.charged += reserved,
        }
    }

    /// Settles before the handle is closed: whoever opens the file again takes the file's word.
    pub(super) fn settle(&self, room: &Room) {
        if let Ok(stat) = self.file.stat() {
            room.correct(self.charged, stat.allocated);
        }
    }

    /// Asks the file if arithmetic does not do.
    pub(super) fn refresh(&mut self, room: &Room) {
        if self.measured {
            self.measure(room, 0);
        }
    }

    /// Cuts to at most `len_max` bytes of data, then makes `header` the subfile's, with its epoch.
    pub(super) fn trim(&mut self, room: &Room, header: &SubfileHeader, len_max: u64) -> io::Result<()> {
        self.refresh(room);
        self.spare.cut(self.len.min(len_max));
        // What was reserved behind the end goes too.
        if self.len > len_max || self.measured {
            self.len = self.len.min(len_max);
            self.file.set_len(HEADER_LEN + self.len)?;
            if self.measured {
                self.measure(room, 0);
            } else {
                room.correct(self.charged, dense(len_max));
                self.charged = dense(len_max);
            }
        }
        write_all_at(&*self.file, &[IoSlice::new(&header.to_bytes())], 0)?;
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
