//! The files behind subfiles: found, opened, made and removed.

use std::io::{self, IoSlice};
use std::sync::Arc;

use bivouac_types::Errno;
use bivouac_types::limits::SUBFILE_HEADER_LEN;

use super::cache::SubfileHandle;
use super::subfile::{AccessError, OpenSubfile, needed_for_new, read_header};
use super::{DataStore, SubfileId, SubfileSpec, names, scan};
use crate::volume::transfer::write_all_at;
use crate::{OpenMode, StoreError, StoreResult, Volume, VolumeFile};

impl DataStore {
    pub(super) fn place(&self, id: SubfileId) -> StoreResult<Arc<SubfileHandle>> {
        self.lent(id.volume)?;
        Ok(self.cache.place(id, &|id, open| self.reconcile(id, open)))
    }

    pub(super) fn reconcile(&self, id: SubfileId, open: &OpenSubfile) {
        if let Ok(room) = self.room(id) {
            open.reconcile(&room);
        }
    }

    /// Returns the handle in a place, opened if there is a file; `LostSubfile` if there was one.
    pub(super) fn opened<'s>(
        &self,
        id: SubfileId,
        state: &'s mut Option<OpenSubfile>,
    ) -> StoreResult<Option<&'s mut OpenSubfile>> {
        if state.is_some() {
            return Ok(state.as_mut());
        }
        // Checked once per opening: a file that was copied under another's name must not be served as its content.
        if let Some(file) = self.open_file(id)? {
            let header = read_header(&*file).map_err(|error| self.io_error(id, "read header", error))?;
            let header = scan::check_header(header, &*self.lent(id.volume)?.volume, id, self.formation)?;
            let open = OpenSubfile::existing(file, &header);
            let mut open = open.map_err(|error| self.io_error(id, "stat", error))?;
            self.check_len(id, &open)?;
            if header.sums {
                let found = open.find_sums(Some(&*self.room(id)?));
                found.map_err(|error| self.io_error(id, "read checksums", error))?;
                self.damage.expect(id, &open);
            }
            *state = Some(open);
        // Without the table a subfile that others have deleted would pass for a hole of its file, and read as zeros.
        } else if self.lent(id.volume)?.table.has(id) {
            return Err(self.lost(id));
        }
        Ok(state.as_mut())
    }

    /// Returns the error for a subfile that was made and is not there any more.
    pub(super) fn lost(&self, id: SubfileId) -> StoreError {
        let volume = self.lent(id.volume).map(|lent| lent.volume.path().to_owned()).unwrap_or_default();
        let error = StoreError::LostSubfile { volume, name: names::name_of(id) };
        if self.lent(id.volume).is_ok_and(|lent| lent.table.note_lost(id)) {
            log::error!(error:%; "{error}");
        }
        error
    }

    /// Returns the file of a subfile; one that is shorter than a header is none yet.
    pub(super) fn open_file(&self, id: SubfileId) -> StoreResult<Option<Arc<dyn VolumeFile>>> {
        let file = match self.open_with_room(id, OpenMode::Existing) {
            Err(error) if is(&error, Errno::ENOENT) => return Ok(None),
            file => file.map_err(|error| self.io_error(id, "open", error))?,
        };
        let stat = file.stat().map_err(|error| self.io_error(id, "stat", error))?;
        Ok((stat.len >= SUBFILE_HEADER_LEN).then_some(file))
    }

    /// Opens a file; when there are too many, closes those that are not in use and tries again.
    pub(super) fn open_with_room(&self, id: SubfileId, mode: OpenMode) -> io::Result<Arc<dyn VolumeFile>> {
        self.with_room(id, |volume, name| volume.open(name, mode))
    }

    fn create_with_room(&self, id: SubfileId, content: &[u8]) -> io::Result<Arc<dyn VolumeFile>> {
        self.with_room(id, |volume, name| volume.create_filled(name, content))
    }

    fn with_room(
        &self,
        id: SubfileId,
        open: impl Fn(&dyn Volume, &str) -> io::Result<Arc<dyn VolumeFile>>,
    ) -> io::Result<Arc<dyn VolumeFile>> {
        let (volume, name) = (&self.lent(id.volume).map_err(io::Error::other)?.volume, names::name_of(id));
        match open(&**volume, &name) {
            Err(error) if is(&error, Errno::EMFILE) || is(&error, Errno::ENFILE) => {
                // The process's or the machine's limit: most descriptors here are only kept for the next access.
                self.cache.close_unused(&|id, open| self.reconcile(id, open));
                open(&**volume, &name)
            }
            result => result,
        }
    }

    /// Takes room for the header of a new subfile, if the data that is to follow fits too.
    pub(super) fn reserve_new(&self, id: SubfileId, offset: u64, end: u64) -> StoreResult<()> {
        let room = &*self.room(id)?;
        let needed = needed_for_new(offset, end, self.lent(id.volume)?.sums);
        let free = room.free();
        // The header alone is taken: the data takes its own bytes when it is written, which may fail for another
        // reason.
        let reserved = if needed <= free { room.reserve(SUBFILE_HEADER_LEN) } else { Err(free) };
        reserved.map_err(|free| self.access_error(id, "make", AccessError::Full { needed, free }))
    }

    /// Makes a subfile. Room for its header has been taken, and is given back if this fails.
    pub(super) fn make(
        &self,
        id: SubfileId,
        spec: &SubfileSpec<'_>,
        epoch: u32,
        state: &mut Option<OpenSubfile>,
    ) -> StoreResult<()> {
        let (lent, room) = (self.lent(id.volume)?, self.room(id)?);
        let begin = |header| {
            // File, header, slot, and only then data: what is acknowledged has a header that says what it is of, and a
            // slot by which it is missed.
            let file = self.make_file(id, &OpenSubfile::first_bytes(&header))?;
            lent.table.add(id).map(|()| OpenSubfile::begun(file, &header))
        };
        let made = spec
            .header(id, self.formation, epoch, lent.sums)
            .and_then(|header| begin(header).map_err(|error| self.io_error(id, "make", error)));
        match made {
            Ok(open) => {
                room.file_made();
                *state = Some(open);
                Ok(())
            }
            Err(error) => {
                // Whatever failed, the caller took the header's room before, and nobody else gives it back.
                room.correct(SUBFILE_HEADER_LEN, 0);
                // What is left has no header and counts as absent.
                let _ = lent.volume.remove(&names::name_of(id));
                Err(error)
            }
        }
    }

    fn make_file(&self, id: SubfileId, content: &[u8]) -> io::Result<Arc<dyn VolumeFile>> {
        match self.create_with_room(id, content) {
            Err(error) if is(&error, Errno::ENOENT) => {
                self.make_dir(id)?;
                self.create_with_room(id, content)
            }
            Err(error) if is(&error, Errno::EEXIST) => {
                // The rest of one that could not be made.
                let file = self.open_with_room(id, OpenMode::Existing)?;
                // Nothing of it was acknowledged: that happens after header and slot.
                file.set_len(0)?;
                write_all_at(&*file, &[IoSlice::new(content)], 0)?;
                Ok(file)
            }
            result => result,
        }
    }

    fn make_dir(&self, id: SubfileId) -> io::Result<()> {
        let volume = &self.lent(id.volume).map_err(io::Error::other)?.volume;
        match volume.make_dir(&names::dir_of(id)) {
            Err(error) if is(&error, Errno::EEXIST) => Ok(()),
            result => result.and_then(|()| volume.sync_dir("")),
        }
    }

    /// Removes the file of an open subfile.
    pub(super) fn discard(&self, id: SubfileId, state: &mut Option<OpenSubfile>) -> StoreResult<()> {
        let Some(open) = state.as_ref() else { return Ok(()) };
        let lent = self.lent(id.volume)?;
        // The slot goes first. Killed in between, the next start finds a file without a slot and counts it again,
        // and not a loss.
        lent.table.remove(id).map_err(|error| self.io_error(id, "note removal", error))?;
        match lent.volume.remove(&names::name_of(id)) {
            Err(error) if !is(&error, Errno::ENOENT) => {
                // It is there as before. If even that cannot be noted, the next start does it.
                let _ = lent.table.add(id);
                return Err(self.io_error(id, "remove", error));
            }
            _ => {}
        }
        let room = self.room(id)?;
        room.correct(open.charged(), 0);
        room.file_removed();
        // What is known of the old bytes must not refuse grants and syncs of a new subfile with the same name.
        self.damage.forget(id, 0..u64::MAX);
        self.sync_failures.forget(id);
        *state = None;
        Ok(())
    }

    /// Refuses a subfile whose local file was cut by others, and ends its grants.
    pub(super) fn check_len(&self, id: SubfileId, open: &OpenSubfile) -> StoreResult<()> {
        open.check_len().map_err(|error| self.damaged(id, open, "stat", error))
    }

    /// Returns the error for an access that failed. For damage all grants end: direct readers compare nothing.
    pub(super) fn damaged(
        &self,
        id: SubfileId,
        open: &OpenSubfile,
        what: &str,
        error: AccessError,
    ) -> StoreError {
        let is_damage = matches!(error, AccessError::Wrong { .. } | AccessError::Cut { .. });
        // Noted before: no grant that is made from here on is missed.
        let error = self.access_error(id, what, error);
        if is_damage {
            open.holders.close();
        }
        error
    }

    pub(super) fn io_error(&self, id: SubfileId, what: &str, source: io::Error) -> StoreError {
        let root = self.lent(id.volume).map(|lent| lent.volume.path().to_owned()).unwrap_or_default();
        StoreError::Io { what: format!("{}: {what}", root.join(names::name_of(id)).display()), source }
    }

    pub(super) fn access_error(&self, id: SubfileId, what: &str, error: AccessError) -> StoreError {
        let path = self.lent(id.volume).map(|lent| lent.volume.path().to_owned()).unwrap_or_default();
        let over_quota = |needed| self.room(id).is_ok_and(|room| room.is_over_quota(needed));
        match error {
            AccessError::Full { needed, free } if over_quota(needed) => {
                StoreError::Quota { partition: id.target.partition(), path, needed, free }
            }
            AccessError::Full { needed, free } => StoreError::NoSpace { path, needed, free },
            AccessError::Wrong { block } => self.wrong_block(id, block),
            AccessError::Cut { len } => {
                let cause =
                    "it was cut here, and not by bivouac: what was behind is lost, and not served".into();
                StoreError::Corrupt { path: self.path_of(id).into(), offset: len, cause }
            }
            AccessError::Io(error) => self.io_error(id, what, error),
        }
    }
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.code())
}
