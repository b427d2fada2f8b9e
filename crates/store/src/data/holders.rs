//! Processes that read and write a subfile themselves, on its descriptor. The daemon decides who may, and ends it
//! before it does anything that must not meet their accesses. The caller of everything here holds the
//! subfile's lock for writing.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bivouac_types::limits::{
    DIRECT_AHEAD_BYTES, DIRECT_CALM_MS, DIRECT_DRAIN_MS, FILE_SIZE_MAX, SUBFILE_HEADER_LEN,
};

use super::subfile::OpenSubfile;
use super::{DataStore, LocalFile, SubfileId};
use crate::StoreResult;

/// What is waited at least for accesses that are under way, also if others have waited long before.
const DRAIN_MIN: Duration = Duration::from_millis(20);

/// Somebody who may read or write a subfile without asking.
pub trait Holder: Send + Sync + fmt::Debug {
    /// Lets no access begin any more.
    fn close(&self);

    /// Waits until no access is under way after [`Holder::close`]; whether that came about in time.
    fn drain(&self, patience: Duration) -> bool;

    /// Whether it has gone, or has no use for the subfile any more, and no access is under way.
    fn is_over(&self) -> bool;
}

/// What somebody wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Write.
    Write,
}

/// What is granted.
#[derive(Clone, Debug)]
pub struct Granted {
    /// The descriptor.
    pub file: LocalFile,
    /// The subfile's epoch, for as long as the grant lasts.
    pub epoch: u32,
    /// Whether it may be read.
    pub reads: bool,
    /// Where data may be written; empty if nowhere.
    pub window: Range<u64>,
}

/// What holders may do; it is the same for all of one subfile. Writes do not tear each other, since the kernel
/// makes them one after the other, but reads may see half of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum Mode {
    #[default]
    Readers,
    Writers,
    /// One reads and writes.
    Sole,
}

/// The holders of one subfile.
#[derive(Debug, Default)]
pub(super) struct Holders {
    list: Vec<Arc<dyn Holder>>,
    mode: Mode,
    /// Where they may write: every byte of it is on the volume or is counted as if it were.
    window: Range<u64>,
    closed_at: Option<Instant>,
    /// When there may be holders again, after accesses of several met.
    calm_until: Option<Instant>,
}

impl Holders {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether a read may see half of what they write.
    pub(super) fn may_write(&self) -> bool {
        !self.list.is_empty() && self.mode != Mode::Readers
    }

    pub(super) fn window(&self) -> Range<u64> {
        self.window.clone()
    }

    /// Ends all grants; whether no access is under way any more.
    fn end(&mut self) -> bool {
        let closed_at = *self.closed_at.get_or_insert_with(Instant::now);
        self.list.iter().for_each(|holder| holder.close());
        let deadline = closed_at + Duration::from_millis(DIRECT_DRAIN_MS);
        let patience = deadline.saturating_duration_since(Instant::now()).max(DRAIN_MIN);
        self.list.retain(|holder| !holder.drain(patience));
        self.list.is_empty()
    }

    fn forget_all(&mut self) {
        (self.mode, self.window, self.closed_at) = (Mode::Readers, 0..0, None);
    }

    fn is_calm(&mut self) -> bool {
        self.calm_until = self.calm_until.filter(|until| *until > Instant::now());
        self.calm_until.is_none()
    }

    /// What a new holder and those that are there would be together; `None` if they do not agree.
    fn mode_with(&self, access: Access) -> Option<Mode> {
        match (access, self.mode, self.list.is_empty()) {
            (Access::Read, _, true) | (Access::Read, Mode::Readers, _) => Some(Mode::Readers),
            (Access::Write, _, true) => Some(Mode::Sole),
            (Access::Write, Mode::Writers, _) => Some(Mode::Writers),
            _ => None,
        }
    }
}

impl DataStore {
    /// Lets somebody read or write a subfile without asking; `None` if there is no subfile, if it has no
    /// descriptor, or if others' accesses do not go together with this one. A writer gets a window around
    /// the range that it is about to write.
    ///
    /// # Errors
    /// `NoVolume`, `Corrupt` and the like, `Io`.
    pub fn grant(
        &self,
        id: SubfileId,
        access: Access,
        range: Range<u64>,
        holder: &Arc<dyn Holder>,
    ) -> StoreResult<Option<Granted>> {
        let place = self.place(id)?;
        let mut state = place.state.write();
        let Some(open) = self.opened(id, &mut state)? else { return Ok(None) };
        self.drop_over(id, open)?;
        if !open.holders.is_calm() || open.file().as_fd().is_none() {
            return Ok(None);
        }
        let Some(mode) = self.agree(id, open, access)? else { return Ok(None) };
        if access == Access::Write && !self.promise(id, open, range)? {
            return Ok(None);
        }
        open.holders.mode = mode;
        open.holders.list.push(Arc::clone(holder));
        open.become_measured();
        let (epoch, window) = (open.epoch(), open.holders.window());
        let file = LocalFile { file: open.file().clone(), _place: Arc::clone(&place) };
        Ok(Some(Granted { file, epoch, reads: mode != Mode::Writers, window }))
    }

    /// Makes the window larger, so that a holder may write this range too; `None` if its grant is over or there
    /// is no room.
    ///
    /// # Errors
    /// As [`DataStore::grant`].
    pub fn widen(
        &self,
        id: SubfileId,
        range: Range<u64>,
        holder: &Arc<dyn Holder>,
    ) -> StoreResult<Option<Range<u64>>> {
        let place = self.place(id)?;
        let mut state = place.state.write();
        let Some(open) = self.opened(id, &mut state)? else { return Ok(None) };
        let holders = &open.holders;
        let holds =
            holders.closed_at.is_none() && holders.list.iter().any(|other| Arc::ptr_eq(other, holder));
        if !holds || !holders.may_write() || !self.promise(id, open, range)? {
            return Ok(None);
        }
        Ok(Some(open.holders.window()))
    }

    /// Counts what holders that are over left behind as it is.
    ///
    /// # Errors
    /// As [`DataStore::grant`].
    pub fn release(&self, id: SubfileId) -> StoreResult<()> {
        let place = self.place(id)?;
        let mut state = place.state.write();
        match self.opened(id, &mut state)? {
            Some(open) => self.drop_over(id, open),
            None => Ok(()),
        }
    }

    /// Ends all grants of a subfile, to have the room back that they do not use.
    ///
    /// # Errors
    /// As [`DataStore::grant`]; `Io` if a process stands still in the middle of an access.
    pub fn revoke(&self, id: SubfileId) -> StoreResult<()> {
        let place = self.place(id)?;
        let mut state = place.state.write();
        match self.opened(id, &mut state)? {
            Some(open) => self.end_holders(id, open),
            None => Ok(()),
        }
    }

    /// Takes over a holder of an earlier daemon's that is still in the middle of an access.
    ///
    /// # Errors
    /// As [`DataStore::grant`].
    pub fn adopt(&self, id: SubfileId, holder: Arc<dyn Holder>) -> StoreResult<()> {
        let place = self.place(id)?;
        let mut state = place.state.write();
        if let Some(open) = self.opened(id, &mut state)? {
            open.holders.mode = Mode::Sole;
            open.holders.closed_at.get_or_insert_with(Instant::now);
            open.holders.list.push(holder);
            open.become_measured();
        }
        Ok(())
    }

    /// Before an access of the daemon's own that must not meet theirs: ends all grants, and there are none for a while.
    pub(super) fn interrupt(&self, id: SubfileId, open: &mut OpenSubfile) -> StoreResult<()> {
        // Who has gone by itself, as who closes the file does, is no reason to wait.
        if open.holders.closed_at.is_none() {
            self.drop_over(id, open)?;
        }
        if open.holders.is_empty() {
            return Ok(());
        }
        self.end_holders(id, open)?;
        open.holders.calm_until = Some(Instant::now() + Duration::from_millis(DIRECT_CALM_MS));
        Ok(())
    }

    pub(super) fn end_holders(&self, id: SubfileId, open: &mut OpenSubfile) -> StoreResult<()> {
        if open.holders.is_empty() {
            return Ok(());
        }
        if !open.holders.end() {
            let cause = "a process that accesses it directly stands still; let it go on, or end it";
            return Err(self.io_error(id, "wait", std::io::Error::new(std::io::ErrorKind::TimedOut, cause)));
        }
        self.count_anew(id, open)
    }

    fn drop_over(&self, id: SubfileId, open: &mut OpenSubfile) -> StoreResult<()> {
        if open.holders.is_empty() {
            return Ok(());
        }
        open.holders.list.retain(|holder| !holder.is_over());
        if open.holders.is_empty() { self.count_anew(id, open) } else { Ok(()) }
    }

    fn count_anew(&self, id: SubfileId, open: &mut OpenSubfile) -> StoreResult<()> {
        open.holders.forget_all();
        open.end_sharing(&*self.room(id)?);
        Ok(())
    }

    /// The mode of a further grant. Where it does not go together with those that there are, they end.
    fn agree(&self, id: SubfileId, open: &mut OpenSubfile, access: Access) -> StoreResult<Option<Mode>> {
        if let Some(mode) = open.holders.mode_with(access) {
            return Ok(Some(mode));
        }
        if access == Access::Write && open.holders.mode == Mode::Sole {
            // Who was alone asks again, and both write.
            self.end_holders(id, open)?;
            return Ok(Some(Mode::Writers));
        }
        self.interrupt(id, open)?;
        Ok(None)
    }

    /// Takes room for writes to a range, and for what is likely to follow; whether there was enough.
    fn promise(&self, id: SubfileId, open: &mut OpenSubfile, range: Range<u64>) -> StoreResult<bool> {
        if range.end > FILE_SIZE_MAX - SUBFILE_HEADER_LEN || range.is_empty() {
            return Ok(false);
        }
        let room = &*self.room(id)?;
        let promised = open.promise(room, range, DIRECT_AHEAD_BYTES.min(room.free() / 8));
        let window = promised.map_err(|error| self.io_error(id, "stat", error))?;
        Ok(window.map(|window| open.holders.window = window).is_some())
    }
}
